"""The jobs that follow one another in a service: what Slurm says of them, how one is submitted, whether it serves."""

import glob
import json
import os
import re
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional
from urllib.parse import urlsplit

from . import journal, nodes, probe

SUBMIT_S = 60.0
LIVE = frozenset(
    ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING")
    + ("SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)
_LOCATORS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
_OF_THE_JOB = re.compile(
    r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|PMI|PMIX|LLMRUN)_.*\Z|SLURMD\w+\Z"
    r"|(CUDA_VISIBLE|ROCR_VISIBLE)_DEVICES\Z|GPU_DEVICE_ORDINAL\Z|ZE_AFFINITY_MASK\Z"
)
_MOMENT = "%Y-%m-%dT%H:%M:%S"


class Word(NamedTuple):
    """What Slurm says of a job: its state, its end (seconds since the epoch), whether it has to make room for another.

    `comes_back` tells that Slurm itself then puts it into the queue again.
    """

    state: str
    end: Optional[float]
    preempted: bool
    comes_back: bool


def ask_slurm(job_id: str) -> Optional[Word]:
    """Return what Slurm says of a job, None without an answer.

    While a preempted job's grace time runs its state is still RUNNING; only PreemptTime tells (Slurm 22.05.8).
    """
    facts = _facts(nodes.scontrol("--oneliner", "show", "job", job_id))
    word = parse_word(facts)
    if word is None or not (word.preempted and word.comes_back):
        return word
    mode = _facts(nodes.scontrol("--oneliner", "show", "partition", facts.get("Partition", ""))).get("PreemptMode", "")
    return word._replace(comes_back="REQUEUE" in mode)


def _facts(text: str) -> Dict[str, str]:
    return dict(word.partition("=")[::2] for word in text.split() if "=" in word)


def parse_word(facts: Dict[str, str]) -> Optional[Word]:
    """Return what the words of `scontrol show job` say; of one that may be requeued `comes_back` is True."""
    if "JobState" not in facts:
        return None
    preempted = facts.get("PreemptTime", "None") not in ("None", "Unknown", "N/A")
    return Word(facts["JobState"], _epoch(facts.get("EndTime", "")), preempted, facts.get("Requeue") == "1")


def _epoch(text: str) -> Optional[float]:
    try:
        return time.mktime(time.strptime(text, _MOMENT))
    except ValueError:
        return None


def load_jobs(run_dir: str) -> Dict[str, Dict[str, Any]]:
    """Return the records of a run's jobs by their ids."""
    found = {}
    for path in glob.glob(os.path.join(glob.escape(run_dir), "job-*", "job.json")):
        value = _read(path)
        if value is not None and "job_id" in value:
            found[str(value["job_id"])] = value
    return found


def _read(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def chain(jobs: Dict[str, Dict[str, Any]], job_id: str) -> List[str]:
    """Return the jobs that followed the first of the chain that `job_id` belongs to, in order of their ids."""

    def first(one: str) -> str:
        seen = set()
        while one not in seen and jobs.get(one, {}).get("after"):
            seen.add(one)
            one = str(jobs[one]["after"])
        return one

    own = first(job_id)
    return sorted((one for one in jobs if one != own and first(one) == own), key=int)


def clean_environment(environ: Dict[str, str]) -> Dict[str, str]:
    """Return the environment that a job was submitted with, as far as its own tells: without what Slurm has set."""
    return {name: value for name, value in environ.items() if name in _LOCATORS or not _OF_THE_JOB.match(name)}


def environment_of(pid: int) -> Dict[str, str]:
    """Return the environment that a process began with: modules that the job has loaded since are not in it."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            rows = stream.read().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return dict(os.environ)
    return {name: value for name, equals, value in (row.partition("=") for row in rows) if equals}


class Submission(NamedTuple):
    """The id of a new job, or why there is none and whether to try again."""

    job_id: str
    cluster: str = ""
    problem: str = ""
    again: bool = False


def submit(run_dir: str, after: str, environ: Dict[str, str]) -> Submission:
    """Submit the run's script once more, as the successor of job `after`."""
    argv = ["sbatch", "--parsable", os.path.join(run_dir, "job.sub"), after]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=SUBMIT_S,
            env=environ,
        )
    except subprocess.TimeoutExpired:
        # There may be a job all the same: a second one would be one too many.
        return Submission("", problem="sbatch has not answered within %d s" % SUBMIT_S)
    except OSError as error:
        return Submission("", problem="sbatch cannot be run on this node: %s" % error.strerror)
    told = done.stdout.decode("utf-8", "replace")
    found = re.findall(r"^(\d+)(?:;(\S+))?$", told, re.MULTILINE)
    if done.returncode == 0 and found:
        return Submission(*found[-1])
    said = " ".join((done.stderr.decode("utf-8", "replace") or told).split())
    return Submission("", problem=said or "sbatch: exit status %d" % done.returncode, again=True)


def serving(job_dir: str) -> bool:
    """Tell whether a job's newest endpoint file is that of a server which is ready now."""
    paths = glob.glob(os.path.join(glob.escape(job_dir), "endpoint.*.json"))
    numbers = [int(name.split(".")[1]) for name in map(os.path.basename, paths) if name.split(".")[1].isdigit()]
    if not numbers or os.path.exists(os.path.join(job_dir, "result.%d.json" % max(numbers))):
        return False
    value = _read(os.path.join(job_dir, "endpoint.%d.json" % max(numbers))) or {}
    urls = [urlsplit(one["url"]) for one in value.get("instances", ())]
    return bool(urls) and all(probe.ready(url.hostname or "", url.port or 0).ok for url in urls)


def write_down(run_dir: str, made: Submission, after: str) -> str:
    """Write the new job's record, before it begins; return what went wrong, empty when nothing did."""
    folder = os.path.join(run_dir, "job-" + made.job_id)
    value = {"job_id": made.job_id, "cluster": made.cluster, "time": round(time.time(), 3)}
    try:
        os.makedirs(folder, exist_ok=True)
        journal.write_once(os.path.join(folder, "job.json"), json.dumps(dict(value, by="handover", after=after)) + "\n")
    except OSError as error:
        return "job %s cannot be written down: %s" % (made.job_id, error.strerror)
    return ""
