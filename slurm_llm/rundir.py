"""Every file name of a run directory, for Python and for templates; reads and writes nothing.

<log root>/<slug>-<run id>/         one submission ("run")
  job.sub rank.sh agent/            what sbatch runs
  enter.sh container.toml enter.rc  how a rank gets into its container, where its runtime wants such a file
  model_repository/ triton/         what Triton reads
  plan.json spec.yaml site.yaml record.json
  stages.json bench.json            stages that the run waits for, and the one that waits for it, where there are any
  slurm-<job id>.out                the job's own output
  bench/<N>/                        one measurement: load.sh, load.log, the tool's files, result.json
  job-<job id>/                     one Slurm job of that run
    job.json                        written by submit, or by the job itself when sbatch was called by hand
    endpoint.<attempt>.json         once, when ready (mode 0600)
    key.<attempt>                   the header that inference needs, where the spec asks for a key (mode 0600)
    result.<attempt>.json           once, at the end
    attempt-<attempt>/              one start of the server
      rank-<n>.log step-<i>.log agents.log preflight.log
      journal/<node>.jsonl journal/<node>.samples.jsonl journal/rank-<n>.jsonl journal/head.jsonl

<log root>/<slug>-<run id>.stages/<stage>/   one stage before or after serving
  stage.json                        its commands and product
  stage.log result.json             what its commands printed, and how it ended
  enter.sh                          as above
  submitit/                         the script that sbatch takes, the job's own output <job id>_0_log.out
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LOG_ROOT = "logs"
"""Where run directories go, below the current folder, when neither spec nor site says."""

JOB_SCRIPT = "job.sub"
RANK_SCRIPT = "rank.sh"
ENTER_SCRIPT = "enter.sh"
CLIENT_SCRIPT = "client.sh"
PROBE_SCRIPT = "probe.sub"
PROBE_RANK_SCRIPT = "probe-rank.sh"
IMAGE_SCRIPT = "image.sub"
IMAGE_LOOK_SCRIPT = "image-look.sh"
IMAGE_FOUND = "found.json"
AGENT = "agent"
KNOWN_ERRORS = "known_errors.json"
REPOSITORY_RECIPE = "repository.json"
REPOSITORY = "model_repository"
TRITON = "triton"
PLAN = "plan.json"
SPEC = "spec.yaml"
SITE = "site.yaml"
RECORD = "record.json"
STAGES = "stages.json"
BENCH = "bench.json"
BENCHES = "bench"
"""Folder with what `bench` has measured, one folder by number each."""
BENCH_RESULT = "result.json"
STAGES_ENDING = ".stages"
"""Ending of the folder with a run's stages, beside the run directory."""
STAGE_RECIPE = "stage.json"
STAGE_LOG = "stage.log"
STAGE_RESULT = "result.json"
STAGE_SUBMISSION = "submitit"

_RUN_NAME = re.compile(r"(?P<slug>.+)-(?P<id>\d{8}-\d{6}-[0-9a-f]{4})\Z")
_JOB_DIR = re.compile(r"job-(\d+)\Z")
_ATTEMPT_DIR = re.compile(r"attempt-(\d+)\Z")


@dataclass(frozen=True)
class RunPaths:
    """Paths of one run directory."""

    root: Path

    @property
    def run_id(self) -> str:
        """The run's id, `YYYYMMDD-HHMMSS-xxxx`; the folder's name when it is none of ours."""
        match = _RUN_NAME.match(self.root.name)
        return match["id"] if match else self.root.name

    @property
    def script(self) -> Path:
        """The script that sbatch takes."""
        return self.root / JOB_SCRIPT

    @property
    def plan(self) -> Path:
        """The plan as JSON."""
        return self.root / PLAN

    @property
    def record(self) -> Path:
        """What was rendered, when and by whom."""
        return self.root / RECORD

    def script_in(self, root: Path) -> Path:
        """Return the script below another root, such as a draft of this directory."""
        return root / JOB_SCRIPT

    def benches(self) -> list[Path]:
        """Return the folders of measurements, oldest first."""
        return sorted((path for path in _folders(self.root / BENCHES) if path.name.isdecimal()), key=_number)

    def output(self, job_id: int) -> Path:
        """The job's own output."""
        return self.root / f"slurm-{job_id}.out"

    def job(self, job_id: int) -> JobPaths:
        """Return the paths of one Slurm job of this run."""
        return JobPaths(self.root / f"job-{job_id}", job_id)

    def jobs(self) -> list[JobPaths]:
        """Return the run's Slurm jobs, oldest first."""
        found = (_JOB_DIR.match(path.name) for path in _folders(self.root))
        return [self.job(job_id) for job_id in sorted(int(match[1]) for match in found if match)]


@dataclass(frozen=True)
class JobPaths:
    """Paths of one Slurm job of a run."""

    root: Path
    job_id: int

    @property
    def submission(self) -> Path:
        """Who submitted the job, when and how."""
        return self.root / "job.json"

    def endpoint(self, attempt: int) -> Path:
        """Where the attempt serves."""
        return self.root / f"endpoint.{attempt}.json"

    def key(self, attempt: int) -> Path:
        """The HTTP header `name: value` without which inference is refused, where the spec asks for a key."""
        return self.root / f"key.{attempt}"

    @property
    def stop(self) -> Path:
        """Asks a run in somebody's allocation to stop, by being there."""
        return self.root / "stop"

    def client_log(self, attempt: int) -> Path:
        """What the attempt's client printed, where the spec has one."""
        return self.root / f"client.{attempt}.log"

    def result(self, attempt: int) -> Path:
        """How the attempt ended."""
        return self.root / f"result.{attempt}.json"

    def attempt(self, attempt: int) -> AttemptPaths:
        """Return the paths of one attempt."""
        return AttemptPaths(self.root / f"attempt-{attempt}", attempt)

    def attempts(self) -> list[AttemptPaths]:
        """Return the attempts, oldest first."""
        found = (_ATTEMPT_DIR.match(path.name) for path in _folders(self.root))
        return [self.attempt(number) for number in sorted(int(match[1]) for match in found if match)]


@dataclass(frozen=True)
class AttemptPaths:
    """Paths of one start of the server."""

    root: Path
    number: int

    @property
    def journal(self) -> Path:
        """The folder of journals."""
        return self.root / "journal"

    def rank_log(self, rank: int) -> Path:
        """Everything that one rank printed."""
        return self.root / f"rank-{rank}.log"

    def step_log(self, instance: int) -> Path:
        """What srun said about one instance's step."""
        return self.root / f"step-{instance}.log"


def _number(path: Path) -> int:
    return int(path.name)


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []


def run_name(slug: str, run_id: str) -> str:
    """Return the name of a run directory."""
    return f"{slug}-{run_id}"


def is_run_name(name: str) -> bool:
    """Return whether `name` is that of a run directory."""
    return _RUN_NAME.match(name) is not None


def stages_folder(run_dir: Path) -> Path:
    """Return the folder of a run's stages; it is there before the run directory is."""
    return run_dir.with_name(run_dir.name + STAGES_ENDING)


def stage_output(folder: Path, job_id: str) -> Path:
    """Return what the job of the stage in `folder` printed itself, as submitit names it."""
    return folder / STAGE_SUBMISSION / f"{job_id}_0_log.out"
