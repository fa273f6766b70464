"""The real aiperf on a real job: what is printed, kept, compared and refused, with a key, as a step, a job and here."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from slurm_llm.process import Completed
from tests.cluster.conftest import Cluster, Run, wait_for, watched_user
from tests.cluster.test_main_job import small

pytestmark = pytest.mark.cluster
AIPERF = Path(os.environ.get("AIPERF_VENV", f"{sys.prefix}-aiperf")) / "bin" / "aiperf"
SHORT = ("--output-tokens", "8", "--input-tokens", "16")


@pytest.fixture(scope="module")
def run(cluster: Cluster) -> Iterator[Run]:
    """One run for all, whose inference needs a key."""
    assert AIPERF.is_file(), f"there is no {AIPERF}: make {AIPERF.parent.parent}/.installed"
    for user in watched_user(cluster, "bench"):
        spec = small("measured", ranks=1, access={"key": True}, resources={"nodes": 1, "time": "00:05:00"})
        # Tokens that come at once have no time between them.
        apart = {"engine_args": {"step_ms": 5}}
        made = user.submit({**spec, **apart, "recovery": {"restarts": 1, "backoff_s": 1}})
        made.wait_ready()
        yield made


def bench(run: Run, *more: str, check: bool = True) -> Completed:
    """Measure with the aiperf of its own environment."""
    return run.cli("bench", "--tool", str(AIPERF), *SHORT, *more, check=check)


def kept(run: Run) -> list[dict[str, Any]]:
    """Return what `bench list` knows."""
    rows: list[dict[str, Any]] = json.loads(run.user.cli("bench", "list", str(run.job), "--json").stdout)
    return rows


@pytest.fixture(scope="module")
def swept(run: Run) -> str:
    """What a sweep over two levels prints, as steps of the job."""
    return bench(run, "--sweep", "1,2", "-n", "8").stdout


def test_a_step_of_the_job_measures_it(run: Run, swept: str) -> None:
    """All figures, of as many answers as were asked for; Triton counts them too; the key is left nowhere."""
    made = kept(run)[1]
    assert (made["valid"], made["reasons"], made["requests"]) == (True, [], {"answered": 8, "failed": 0})
    assert made["figures"]["output_tokens"]["mean"] == 8
    for name in ("request_latency", "time_to_first_token", "inter_token_latency"):
        assert 0 < made["figures"][name]["p50"] <= made["figures"][name]["p99"]
    assert made["counted"]["after"] - made["counted"]["before"] >= 8 + 2
    assert (made["tool"]["name"], made["tool"]["version"], made["tool"]["place"]) == ("aiperf", "0.13.0", "step")
    assert made["tool"]["node"] in run.user.cluster.nodes
    assert (made["served"]["job_id"], made["served"]["engine"]) == (run.job_id, "rehearsal")
    secret = (run.job / "key.0").read_bytes().split()[1]
    files = [path for path in (run.path / "bench").rglob("*") if path.is_file()]
    assert any(path.name == "profile_export_aiperf.json" for path in files)
    assert [path for path in files if secret in path.read_bytes()] == []


def test_a_sweep_is_plotted_and_compared(run: Run, swept: str) -> None:
    """One result a level, bars in 80 columns; two levels are no comparison, and that is said."""
    *lines, where = swept.splitlines()
    assert where.endswith("/bench/1-2")
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if "█" in line] == ["1", "2"]
    first, second = kept(run)
    assert (first["series"]["sweep"], first["load"]["concurrency"], second["load"]["concurrency"]) == ([1, 2], 1, 2)
    differs = run.user.cli("bench", "diff", f"{run.path}:1", f"{run.path}:2", check=False)
    assert differs.returncode == 11
    assert "not comparable: concurrency: 1 in the first, 2 in the second" in differs.stderr
    assert "output tokens" in differs.stdout


def test_somebody_else_on_the_server_is_noticed(run: Run) -> None:
    """A job of its own measures; requests that it did not make spoil it, though none of its own failed."""
    endpoint = json.loads(run.cli("endpoint", "--json").stdout)
    url = f"{endpoint['url']}/v2/models/{endpoint['model']}/generate"
    body = '{"text_input": "x", "sampling_param_max_tokens": 1}'
    loop = (
        f"until [ -d '{run.path}/bench/{len(kept(run)) + 1}/artifacts' ]; do sleep 0.1; done; for i in $(seq 40); do "
    )
    loop += f"curl -s --noproxy '*' -H '@{run.job}/key.0' {url} -d '{body}' >/dev/null; done"
    script = run.user.folder / "other.sh"
    script.write_text(f'({loop}) &\n"$@"\nstatus=$?\nwait\nexit $status\n')
    words = (*run.user.program, "bench", str(run.job), "--job", "--tool", str(AIPERF), *SHORT, "-n", "8")
    done = run.user.run("bash", str(script), *words, check=False)
    assert done.returncode == 11, done
    assert "INVALID" in done.stdout
    assert "somebody else used the server" in " ".join(done.stdout.split())
    last = kept(run)[-1]
    assert (last["valid"], last["tool"]["place"], last["requests"]["failed"]) == (False, "job", 0)


def test_what_cannot_be_measured_is_refused(run: Run) -> None:
    """Before anything runs: a tool that is not there, one that cannot keep the key, another engine's requests."""
    missing = run.cli("bench", "--tool", "/nowhere/aiperf", "--here", check=False)
    assert (missing.returncode, missing.stdout) == (5, "")
    assert "there is no aiperf: on PATH here" in missing.stderr
    open_key = run.cli("bench", "--tool", "perf_analyzer", check=False)
    assert (open_key.returncode, "on its command line only" in open_key.stderr) == (3, True)
    ids = run.cli("bench", "--token-ids", check=False)
    assert (ids.returncode, "takes texts, no token ids" in ids.stderr) == (3, True)


def test_the_command_is_shown_without_running_it(run: Run) -> None:
    """The srun line, the script and the tool's configuration; nothing is made."""
    before = sorted((run.path / "bench").iterdir())
    shown = run.cli("bench", "--tool", str(AIPERF), "--dry-run", "--request-rate", "3").stdout
    assert shown.startswith(f"srun --jobid={run.job_id} --overlap ")
    assert f"\n{AIPERF} profile --config aiperf.yaml" in shown
    assert '"rate": 3.0' in shown
    assert sorted((run.path / "bench").iterdir()) == before


def test_a_server_that_is_killed_spoils_it(run: Run) -> None:
    """From this machine, while it measures: exit code 11, kept with the reason, and the run goes on as attempt 1."""
    number, pid = len(kept(run)) + 1, run.pid(0, main=True)
    artifacts = run.path / "bench" / str(number) / "artifacts"
    done: list[Completed] = []
    worker = Thread(target=lambda: done.append(bench(run, "--here", "--duration", "4", check=False)))
    worker.start()
    wait_for("the load has begun", lambda: (artifacts / "inputs.json").exists(), 60)
    os.kill(pid, signal.SIGKILL)
    worker.join(100)
    assert done and done[0].returncode == 11, done
    last = kept(run)[-1]
    assert (last["number"], last["valid"]) == (number, False)
    assert any("not READY throughout" in why or "started again" in why for why in last["reasons"])
    listed = run.user.cli("bench", "list", str(run.job)).stdout
    assert any(line.startswith(f"{number}!") for line in listed.splitlines())
