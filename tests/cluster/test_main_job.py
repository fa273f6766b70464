"""The main job on a real Slurm, as an ordinary user, from a folder whose name has a space."""

from __future__ import annotations

import copy
import json
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import DEMO, Run, Spec, User, wait_for

pytestmark = pytest.mark.cluster

LONG = "x" * 300


def spec_with(**changes: Any) -> Spec:
    """Return the demo's spec with some keys changed."""
    return {**copy.deepcopy(DEMO), **changes}


def small(name: str, ranks: int = 2, **changes: Any) -> Spec:
    """Return a spec of one node."""
    return {
        "name": name,
        "engine": "rehearsal",
        "tensor_parallel_size": ranks,
        "resources": {"nodes": 1, "time": "00:10:00"},
        **changes,
    }


def ask(url: str, text: str, **more: Any) -> dict[str, Any]:
    """Send one generate request, past any proxy."""
    body = json.dumps({"text_input": text, **more}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/v2/models/tensorrt_llm/generate", body, timeout=60) as answer:
        value: dict[str, Any] = json.load(answer)
    return value


def test_the_demo_from_submit_to_cancel(user: User) -> None:
    """Four nodes × two ranks serve; every verb tells the truth; cancel leaves nothing (the fixture looks)."""
    spec = user.write_spec(DEMO)
    done = user.cli("submit", str(spec), "--site", "devcluster", "--wait", "--json")
    value = json.loads(done.stdout)
    run = Run(user, Path(value["directory"]), int(value["job_id"]))
    user.runs.append(run)

    status = json.loads(run.cli("status", "--json").stdout)
    assert (status["state"], status["ranks_ready"], status["ranks_total"]) == ("READY", 8, 8)
    health = json.loads(run.cli("health", "--json").stdout)
    assert [row["rank"] for row in health] == list(range(8))
    assert [row["node"] for row in health] == [node for node in user.cluster.nodes[:4] for _ in range(2)]
    assert {row["state"] for row in health} == {"ready"}
    text = run.cli("generate", "Hello", "--max-tokens", "12").stdout
    assert text.strip() == run.cli("generate", "Hello", "--max-tokens", "12", "--stream").stdout.strip()
    logs = run.cli("logs", "-n", "200").stdout
    assert all(f"rank {rank}" in logs for rank in range(8))
    assert "READY" in run.cli("status").stdout

    run.cli("cancel")
    result = run.wait_ended()
    assert (result["state"], result["exit_code"], run.slurm_state()) == ("COMPLETED", 0, "COMPLETED")
    assert json.loads(run.cli("status", "--json").stdout)["state"] == "COMPLETED"


def test_only_the_leader_opens_ports(user: User) -> None:
    """Workers answer on no port, leader and head on those of the endpoint file, which is private."""
    run = user.submit()
    served = run.wait_ready()
    endpoint = served["instances"][0]
    addresses = [served["exporter"], *(endpoint[name] for name in ("url", "grpc", "metrics"))]
    ports = {int(re.findall(r":(\d+)", address)[0]) for address in addresses}
    open_ports = {}
    for node in user.cluster.nodes[:4]:
        listing = user.cluster.on_node(node, "ss", "-H", "-t", "-l", "-n", "-p").stdout
        # MPI and PMIx listen too, on ports of their own outside the site's range.
        found = {int(row.split()[3].rpartition(":")[2]) for row in listing.splitlines()}
        open_ports[node] = {port for port in found if 20000 <= port <= 29999}
    assert open_ports[user.cluster.nodes[0]] == ports
    assert all(not found for node, found in open_ports.items() if node != user.cluster.nodes[0])
    assert (run.job / "endpoint.0.json").stat().st_mode & 0o777 == 0o600
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(endpoint["metrics"], timeout=10) as answer:
        assert b"nv_inference_count" in answer.read()


LAYOUTS = {
    "tp1": {"tensor_parallel_size": 1, "nodes": 1},
    "tp2": {"tensor_parallel_size": 2, "nodes": 1},
    "tp4": {"tensor_parallel_size": 4, "nodes": 1},
    "tp4 over 4 nodes": {"tensor_parallel_size": 4, "nodes": 4},
    "pp2": {"pipeline_parallel_size": 2, "nodes": 2},
    "tp2 pp2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nodes": 4},
}
EXPERTS = {
    "moe_ep1": {"tensor_parallel_size": 4, "moe_expert_parallel_size": 1, "nodes": 1},
    "moe_ep2": {"tensor_parallel_size": 4, "moe_expert_parallel_size": 2, "nodes": 4},
    "moe_ep4": {"tensor_parallel_size": 4, "moe_expert_parallel_size": 4, "nodes": 2},
}


@pytest.mark.parametrize("layouts", [LAYOUTS, EXPERTS], ids=["dense", "experts"])
def test_the_same_prompt_gives_the_same_text_for_every_layout(user: User, layouts: dict[str, dict[str, int]]) -> None:
    """A wrong rank map, shard or expert placement would change the text."""
    runs = {}
    for name, sizes in layouts.items():
        own = dict(sizes)
        resources = {"nodes": own.pop("nodes"), "time": "00:10:00"}
        runs[name] = user.submit({"name": name, "engine": "rehearsal", **own, "resources": resources})
    texts = {}
    for name, run in runs.items():
        texts[name] = ask(run.url(), "The quick brown fox", sampling_param_max_tokens=24)["text_output"]
        run.cli("cancel")
    assert len(set(texts.values())) == 1, texts


def test_sbatch_by_hand_does_what_submit_does(user: User) -> None:
    """From another directory, without the package on the compute side, twice, and the two do not mix."""
    target = user.folder / "rendered"
    user.cli("render", str(user.write_spec(small("by hand"))), "--site", "devcluster", "--out", str(target))
    runs = []
    for _ in range(2):
        done = user.run("env", "-C", "/", "sbatch", "--parsable", str(target / "job.sub"))
        runs.append(Run(user, target, int(done.stdout)))
        user.runs.append(runs[-1])
    answers = {run.job_id: ask(run.url(), "hello")["text_output"] for run in runs}
    assert len(set(answers.values())) == 1
    assert runs[0].url() != runs[1].url()
    for run in runs:
        assert json.loads((run.job / "job.json").read_text())["by"] == "sbatch"
        assert json.loads(run.cli("status", "--json").stdout)["state"] == "READY"
        environ = Path(f"/proc/{run.pid(0, main=True)}/environ").read_bytes()
        assert b"PYTHONPATH=" not in environ


def test_two_jobs_on_one_node_do_not_disturb_each_other(user: User) -> None:
    """Distinct ports and prefixes; one is cancelled and the other serves on."""
    node = user.cluster.nodes[1]
    here = [f"--nodelist={node}"]
    first, second = (user.submit(small(name, sbatch_extra=here)) for name in ("first", "second"))
    urls = {first.url(), second.url()}
    assert len(urls) == 2
    prefixes = set()
    for run in (first, second):
        for rank in (0, 1):
            command = Path(f"/proc/{run.pid(rank, main=True)}/cmdline").read_text()
            prefixes |= set(re.findall(r"shm-region-prefix-name=(\w+)", command))
    assert len(prefixes) == 4
    before = ask(second.url(), "still there?")["text_output"]
    first.cli("cancel")
    first.wait_ended()
    assert ask(second.url(), "still there?")["text_output"] == before
    assert second.slurm_state() == "RUNNING"


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama 3.1 70B",
        'it\'s "quoted" $(touch pwned) `x`',
        "100% %j %x",
        "-J leading dash",
        LONG,
        "Größe 模型",
    ],
    ids=["slash", "quotes", "percent", "dash", "300 characters", "unicode"],
)
def test_any_name_works(user: User, name: str) -> None:
    """A model id, quotes, percent signs: the run directory gets a slug, Slurm the name as it is."""
    run = user.submit(small(name, ranks=1))
    assert ask(run.url(), "hi")["text_output"]
    shown = user.cluster.slurm("squeue", "-h", "-j", str(run.job_id), "-o", "%j").stdout.rstrip("\n")
    assert shown == name
    assert run.output().startswith("slurm_llm: job")
    assert len(run.path.name.encode()) <= 64 + len("-20261130-000000-abcd")
    assert not list(user.folder.rglob("pwned"))


def cancel_when(run: Run, phase: str) -> None:
    """Wait for a phase and cancel."""
    if phase == "starting":
        wait_for("the job's attempt", lambda: run.attempt.exists())
    elif phase == "launching":
        wait_for("the server's srun", lambda: any(item["kind"] == "server" for item in run.records()))
    elif phase == "loading":
        wait_for("an engine process", lambda: any(item["kind"] == "found" for item in run.records()))
    elif phase == "serving":
        run.wait_ready()
    run.cli("cancel")


@pytest.mark.parametrize("phase", ["starting", "launching", "loading", "serving"])
def test_cancel_in_every_phase(user: User, phase: str) -> None:
    """The job ends soon and well, nothing is left (the fixture looks), and status says why."""
    run = user.submit()
    cancel_when(run, phase)
    wait_for("the job's end", lambda: run.slurm_state() not in ("RUNNING", "COMPLETING"), 30)
    assert run.slurm_state() in ("COMPLETED", "CANCELLED")
    assert json.loads(run.cli("status", "--json").stdout)["state"] in ("COMPLETED", "CANCELLED")


def test_a_pending_job_is_explained_and_cancelled(user: User) -> None:
    """Status says why it waits; cancel takes it out of the queue."""
    run = user.submit(small("later", sbatch_extra=["--begin=now+1hour"]))
    shown = run.cli("status").stdout
    assert "PENDING" in shown
    assert "BeginTime" in shown
    run.cli("cancel")
    assert run.slurm_state() == "CANCELLED"
    assert json.loads(run.cli("status", "--json").stdout)["state"] == "CANCELLED"


def test_plain_scancel_leaves_nothing(user: User) -> None:
    """Slurm's own cancel, TERM to everything at once, then KILL: the agents still clean up."""
    run = user.submit()
    run.wait_ready()
    user.cluster.slurm("scancel", str(run.job_id))
    wait_for("the job's end", lambda: run.slurm_state() == "CANCELLED", 30)


def test_the_time_limit_ends_the_job_in_order(user: User) -> None:
    """Slurm's warning signal ahead of the limit stops the server and says so."""
    run = user.submit(small("short"))
    run.wait_ready()
    user.cluster.slurm("scancel", "--batch", "--signal=USR1", str(run.job_id))
    result = run.wait_ended()
    assert (result["state"], result["exit_code"]) == ("TIMED_OUT", 0)


def test_the_curl_lines_of_the_triton_page_work(user: User) -> None:
    """generate as documented; of two requests in flight only the one that is named stops; an empty id stops none."""
    run = user.submit(small("curl", engine_args={"step_ms": 100}))
    base = f"{run.url()}/v2/models/tensorrt_llm"
    asked = {"text_input": "What is ML?", "sampling_param_max_tokens": 80}

    def curl(path: str, body: dict[str, Any]) -> tuple[str, ...]:
        return ("curl", "-sN", "--noproxy", "*", "-X", "POST", f"{base}/{path}", "-d", json.dumps(body))

    def start(name: str, *command: str) -> Path:
        answer = user.folder / name
        words = " ".join(f"'{word}'" for word in command)
        user.run("bash", "-c", f"{words} >'{answer}' 2>/dev/null </dev/null &")
        return answer

    one = start("one", *curl("generate", {**asked, "id": "one"}))
    two = start("two", *curl("generate_stream", {**asked, "id": "two", "streaming": True}))
    wait_for("the later one streams, so both are in flight", lambda: two.read_text().count("data:") >= 3)
    assert "id must be provided" in user.run(*curl("generate", {"text_input": "", "stop": True})).stdout
    assert one.read_text() == ""
    user.run(*curl("generate", {"text_input": "", "id": "one", "stop": True}))
    first = json.loads(wait_for("the named one stops", one.read_text, 3))
    assert first["finish_reason"] == "cancelled"
    assert 0 < len(first["text_output"]) < 80
    wait_for("the other goes on to its end", lambda: '"finish_reason":"length"' in two.read_text())
    assert two.read_text().count("data:") >= 80


def test_replicas_serve_apart_and_end_together(user: User) -> None:
    """Two instances on nodes of their own, an endpoint each, the same text; one cancel ends both in order."""
    spec = small("twins", replicas=2, resources={"nodes": 4, "time": "00:10:00"})
    run = user.submit(spec)
    endpoints = run.wait_ready()["instances"]
    assert [one["instance"] for one in endpoints] == [0, 1]
    assert len({one["url"] for one in endpoints}) == 2
    texts = {ask(one["url"], "same?")["text_output"] for one in endpoints}
    assert len(texts) == 1
    health = json.loads(run.cli("health", "--json").stdout)
    assert [row["role"] for row in health] == ["leader", "worker"] * 2
    assert [row["node"] for row in health] == list(user.cluster.nodes[:4])
    run.cli("cancel")
    assert run.wait_ended()["state"] == "COMPLETED"


def test_what_the_cluster_can_never_run_is_refused(user: User) -> None:
    """Slurm would accept it and let it wait for ever; nothing is submitted and nothing is written."""
    spec = user.write_spec(small("too large", ranks=64, resources={"nodes": 16}))
    done = user.cli("submit", str(spec), "--site", "devcluster", check=False)
    assert done.returncode == 4
    assert "16 nodes" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (user.folder / "logs").exists()


def test_a_refusal_by_sbatch_is_shown_whole(user: User) -> None:
    """Slurm's own words, exit code 6, and no run directory stays behind."""
    spec = user.write_spec(small("refused", resources={"nodes": 1, "time": "00:10:00", "mem_per_node": "9999999G"}))
    done = user.cli("submit", str(spec), "--site", "devcluster", check=False)
    assert done.returncode == 6
    assert "sbatch: error" in done.stderr
    assert not list((user.folder / "logs").glob("refused-*"))


def test_other_users_cannot_read_a_run(user: User) -> None:
    """What the job writes is private to its owner."""
    run = user.submit(small("private"))
    run.wait_ready()
    loose = [
        path
        for path in run.job.rglob("*")
        if path.is_file() and path.name != "job.json" and path.stat().st_mode & 0o077
    ]
    assert not loose
    assert shutil.which("setpriv")
    refused = user.cluster.slurm("setpriv", "--reuid=nobody", "--clear-groups", "cat", str(run.job / "endpoint.0.json"))
    assert refused.returncode != 0
