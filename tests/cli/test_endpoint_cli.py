"""`endpoint` and `metrics`: what a person copies, what a shell evaluates, and a server that is not there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_llm.observe.endpoint import LOGIN_NODE, tunnel
from slurm_llm.observe.facts import Endpoint
from tests.cli.test_cli import Desk
from tests.http_server import serve
from tests.observe.run_dirs import RunDir, make_plan, squeue_row

RUN_ID = "20261130-104000-abcd"
PAGE = (Path(__file__).parent.parent / "observe" / "metrics_pages" / "triton-1.txt").read_text(encoding="utf-8")
BALANCER = {"program": "haproxy", "url": "http://node1:1", "grpc": "node1:2", "openai": "http://node1:3/v1"}
Reply = tuple[int, Iterator[bytes]]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    return Desk(tmp_path, monkeypatch)


def serving(desk: Desk, *metrics: str, **more: object) -> RunDir:
    """Write a run that serves, an instance for each metrics address."""
    desk.says("squeue", squeue_row(7, "RUNNING", left="1:00:00"))
    plan = make_plan(
        replicas=len(metrics), tensor_parallel_size=1, pipeline_parallel_size=1, resources={"nodes": len(metrics)}
    )
    run = RunDir(desk.folder / "logs" / f"demo-{RUN_ID}", plan=plan).serving()
    path = run.paths.job(7).endpoint(0)
    value = json.loads(path.read_text())
    for one, address in zip(value["instances"], metrics, strict=True):
        one["metrics"] = address
    path.write_text(json.dumps({**value, **more}))
    return run


def says(text: str, status: int = 200) -> Callable[[str, dict[str, object]], Reply]:
    """Return a server's answer to everything."""
    return lambda path, body: (status, iter([text.encode()]))


def test_what_a_person_copies(desk: Desk) -> None:
    """Addresses, the engine's own body, the tunnel with the endpoint's place, and the time of the end."""
    serving(desk, "http://node1:9/metrics", "http://node2:9/metrics", balancer=BALANCER)
    done = desk.run("endpoint")
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stdout.split())
    for part in (
        "url http://node1:1 model",
        "balancer haproxy before 2 instances",
        "openai http://node1:3/v1",
        "instance 1 http://node2:20001 grpc node1:1 metrics http://node2:9/metrics",
        ", in 01:00:00, with job 7",
        'http://node1:1/v2/models/tensorrt_llm/generate \\ -d \'{"text_input": "Hello"',
        "ssh -N -L 8000:node1:1 -L 8001:node1:3",
        "http://localhost:8000 and http://localhost:8001/v1",
        "own name for itself",
    ):
        assert part in text, (part, text)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_shell_takes_the_variables(desk: Desk) -> None:
    """`eval` of them gives each value as it is, with the spaces in the list of URLs."""
    serving(desk, "http://node1:9/metrics", "http://node2:9/metrics", balancer=BALANCER)
    lines = desk.run("endpoint", "--env").stdout
    script = 'eval "$1"; printf "%s|" "$SLURM_LLM_URL" "$SLURM_LLM_MODEL" "$SLURM_LLM_URLS" "$SLURM_LLM_METRICS"'
    done = subprocess.run(["bash", "-c", script, "-", lines], capture_output=True, text=True, check=True)
    urls = "http://node1:1 http://node1:20000 http://node2:20001"
    assert done.stdout == f"http://node1:1|tensorrt_llm|{urls}|http://node1:9/metrics|"


def test_nothing_of_another_run_stays_in_the_shell(desk: Desk) -> None:
    """The key of the run before must not go to the server of this one."""
    serving(desk, "http://node1:9/metrics")
    lines = desk.run("endpoint", "--env").stdout
    script = 'SLURM_LLM_KEY_FILE=/old/key SLURM_LLM_OPENAI=x; eval "$1"; echo "$SLURM_LLM_KEY_FILE$SLURM_LLM_OPENAI"'
    done = subprocess.run(["bash", "-c", script, "-", lines], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_json_has_all_of_it(desk: Desk) -> None:
    """For scripts: the same, as values; the curl line on one line."""
    serving(desk, "http://node1:9/metrics")
    value = json.loads(desk.run("endpoint", "--json").stdout)
    assert (value["url"], value["time_left_s"], value["instances"][0]["instance"]) == ("http://node1:20000", 3600, 0)
    assert value["tunnel"]["command"].startswith("ssh -N -L 8000:node1:20000 ")
    assert "\n" not in value["curl"]


def test_what_serves_in_part_says_so(desk: Desk) -> None:
    """The address is still there, with the state in front of it."""
    serving(desk, "http://node1:9/metrics").state(8, "DEGRADED", "rank 0 does not answer")
    done = desk.run("endpoint")
    assert done.exit_code == 0
    assert done.stdout.split()[:3] == ["state", "DEGRADED", "rank"]


@pytest.mark.parametrize("words", [("endpoint",), ("endpoint", "--env"), ("endpoint", "--json"), ("metrics",)])
def test_what_does_not_serve_yet(desk: Desk, words: tuple[str, ...]) -> None:
    """Exit code 9, the state, why, and what to do; nothing for `eval` on stdout."""
    desk.says("squeue", squeue_row(7, "PENDING", reason="Resources"))
    RunDir(desk.folder / "logs" / f"demo-{RUN_ID}").submitted()
    done = desk.run(*words)
    assert (done.exit_code, done.stdout) == (9, "")
    assert done.stderr.startswith(f"error: run {RUN_ID}: serves nothing: it is PENDING: ")
    assert done.stderr.endswith(f": slurm-llm wait {RUN_ID}\n")


@pytest.mark.parametrize(("host", "in_job"), [("n5", True), ("", False)])
def test_a_login_node_that_cannot_be_guessed_is_left_to_be_filled_in(host: str, in_job: bool) -> None:
    """Inside a job this machine is a compute node."""
    reach = tunnel(Endpoint(0, "http://n1:5", "n1:6", "http://n1:7/metrics"), "me", host, in_job)
    assert reach.command == f"ssh -N -L 8000:n1:5 me@{LOGIN_NODE}"
    assert LOGIN_NODE in reach.guessed


def test_metrics_of_two_instances(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column each, within 80 columns, asked past the proxy that a site sets."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serve(says(PAGE)) as server:
        serving(desk, f"{server.url}/metrics", f"{server.url}/metrics")
        done = desk.run("metrics")
    assert done.exit_code == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["request_success", "answered", "22", "22"] in rows
    assert ["model", "tensorrt_llm,", "instance", "0", "1"] in rows
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert server.asked == [("/metrics", {})] * 2


def test_instances_that_do_not_fit_come_below(desk: Desk) -> None:
    """Nothing is wider than 80 columns; every instance is there."""
    with serve(says(PAGE)) as server:
        serving(desk, *[f"{server.url}/metrics"] * 4)
        done = desk.run("metrics")
    heads = [line.split()[3:] for line in done.stdout.splitlines() if line.startswith("model ")]
    assert len(heads) > 1
    assert [number for head in heads for number in head] == [str(number) for number in range(4)]
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_one_instance_raw(desk: Desk) -> None:
    """The page as it is, below a comment that names it; to a pipe byte for byte."""
    with serve(says(PAGE)) as server:
        serving(desk, "http://127.0.0.1:9/metrics", f"{server.url}/metrics")
        done = desk.run("metrics", "--instance", "1", "--raw")
    assert (done.exit_code, done.stdout) == (0, f"# instance 1: {server.url}/metrics\n{PAGE}")


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [("<html>sign in</html>", 200, "line 1: is no line of Prometheus"), ("gone", 503, "status 503: gone")],
)
def test_an_instance_that_does_not_show_its_metrics(desk: Desk, text: str, status: int, told: str) -> None:
    """The others are shown, that one is told at the end with its address, and the exit code is 10."""
    with serve(says(PAGE)) as well, serve(says(text, status)) as ill:
        serving(desk, f"{well.url}/metrics", f"{ill.url}/metrics")
        done = desk.run("metrics", "--json")
    assert done.exit_code == 10
    rows = {row["family"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["nv_inference_request_success"]["values"] == {"0": 22}
    assert done.stderr.startswith(f"error: {ill.url}/metrics")
    assert told in done.stderr


def test_rates_between_two_looks(desk: Desk) -> None:
    """A counter's growth per second stands below it, where it has grown."""
    success = 'nv_inference_request_success{model="tensorrt_llm",version="1"} '
    pages = iter((PAGE, PAGE.replace(f"{success}22", f"{success}32")))
    with serve(lambda path, body: (200, iter([next(pages).encode()]))) as server:
        serving(desk, f"{server.url}/metrics")
        done = desk.run("metrics", "--interval", "0.1", "--json")
    value = json.loads(done.stdout)
    rates = {row["family"]: row["rates"] for row in value["rows"] if any(row["rates"].values())}
    assert rates == {"nv_inference_request_success": {"0": pytest.approx(10 / value["interval_s"])}}


@pytest.mark.parametrize(
    "words",
    [("metrics", "--raw", "--json"), ("metrics", "--raw", "--interval", "1"), ("endpoint", "--env", "--json")],
)
def test_options_that_exclude_each_other(desk: Desk, words: tuple[str, ...]) -> None:
    """A usage error, before anything is asked."""
    assert desk.run(*words).exit_code == 2
    assert desk.calls() == []


def test_an_instance_that_is_not_there(desk: Desk) -> None:
    """The known ones are named."""
    serving(desk, "http://node1:9/metrics")
    done = desk.run("metrics", "--instance", "4")
    assert (done.exit_code, done.stderr) == (3, f"error: run {RUN_ID}: has no instance 4: there is instance 0 alone\n")


def test_nothing_of_a_page_steers_the_terminal(desk: Desk) -> None:
    """Names of models and words of help are somebody's text."""
    evil = '# HELP x \x1b[2Jgone\n# TYPE x gauge\nx{model="\x1b]0;owned\x07m",who="\x1b[31mred"} 1\n'
    with serve(says(evil)) as server:
        serving(desk, f"{server.url}/metrics")
        done = desk.run("metrics")
    assert done.exit_code == 0, done.stderr
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert "red" in done.stdout


def test_a_key_is_named_and_used_and_never_shown(desk: Desk) -> None:
    """curl reads the header from its file; gRPC's clients are told where it goes."""
    run = serving(desk, "http://node1:9/metrics")
    key = run.job_paths.key(0)
    key.write_text("slurm-llm-key: 0a1b2c3d4e5f\n")
    path = run.job_paths.endpoint(0)
    value = json.loads(path.read_text())
    value["instances"][0]["key_file"] = str(key)
    path.write_text(json.dumps(value))
    text, variables, status = (desk.run(*words).stdout for words in (["endpoint"], ["endpoint", "--env"], ["status"]))
    assert f"-H @{key}" in text
    assert "for gRPC, triton-grpc-protocol- goes before its name" in text
    assert f"SLURM_LLM_KEY_FILE={key}" in variables
    assert "Triton's command line has it too" in " ".join(status.split())
    assert "0a1b2c3d4e5f" not in text + variables + status + desk.run("endpoint", "--json").stdout


def test_a_server_on_its_nodes_loopback_is_reached_by_a_tunnel(desk: Desk) -> None:
    """An ssh line through the login node would lead to the login node's own loopback."""
    run = serving(desk, "http://127.0.0.1:9/metrics")
    path = run.job_paths.endpoint(0)
    value = json.loads(path.read_text())
    value["instances"][0]["url"] = "http://127.0.0.1:20001"
    path.write_text(json.dumps(value))
    text = " ".join(desk.run("endpoint").stdout.split())
    assert f"on its node alone: `slurm-llm tunnel {RUN_ID}` opens it here" in text
    assert "ssh -N" not in text
