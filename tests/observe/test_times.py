"""How long phases took and what GPUs hold, as `status` and `health` show them."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_llm.agent import phases
from slurm_llm.cli.text import health_text, status_text
from slurm_llm.observe.health import build_health, health_to_json
from slurm_llm.observe.status import RunStatus, SlurmWord, build_status, status_to_json
from slurm_llm.runs import evidence_of
from slurm_llm.slurm.states import RunState
from tests.observe.run_dirs import T0, RunDir


def status_of(run: RunDir) -> RunStatus:
    """Return the status, without asking Slurm."""
    return build_status(evidence_of(run.job), SlurmWord(asked=False), T0 + 30, T0)


def started(run: RunDir) -> RunDir:
    """Write what the job's script notes before its ranks begin."""
    return run.submitted().note("job", 1.0, "begin").note("job", 1.8, "server")


def test_a_live_run_tells_the_phases_that_have_ended(tmp_path: Path) -> None:
    """The first answer has not come yet."""
    status = status_of(started(RunDir(tmp_path / "run")).loading())
    assert phases.parts(status.phases.took) == ["queue 1.0 s", "check 0.8 s", "launch 0.7 s"]
    assert "  phases     queue 1.0 s · check 0.8 s · launch 0.7 s\n" in status_text(status, T0 + 30, 80, cut=False)
    took = json.loads(status_to_json(status))["phases"]["took"]
    assert (took["queue_s"], took["load_s"]) == (1.0, None)
    assert {"phase": "start", "rank": 0, "node": "node1", "seconds": 0.5, "apart_s": 0.0} in took["slowest"]


def test_the_jobs_own_result_comes_first(tmp_path: Path) -> None:
    """It is written where the journals are whole, and stays when they are gone; an old one has no phases."""
    run = started(RunDir(tmp_path / "run")).serving().result("COMPLETED")
    assert status_of(run).phases.took.ready_s == 4.0
    path = run.job_paths.result(0)
    mine = phases.Phases(queue_s=7.0, ready_s=99.0, slowest=(phases.Slowest("launch", 5, "node3", 40.0, 39.0),))
    path.write_text(json.dumps({**json.loads(path.read_text()), "phases": phases.as_json(mine)}))
    assert status_of(run).phases.took == mine


def test_a_run_of_which_nothing_is_known_has_no_phases(tmp_path: Path) -> None:
    """Neither a line nor a fault."""
    status = status_of(RunDir(tmp_path / "run").submitted())
    assert phases.parts(status.phases.took) == []
    assert "phases" not in status_text(status, T0 + 30, 80, cut=False)


def test_ranks_show_what_they_hold_on_gpus(tmp_path: Path) -> None:
    """By the latest sample; a rank that has ended holds nothing, and without figures there is no column."""
    run = RunDir(tmp_path / "run").serving()
    rows = build_health(evidence_of(run.job), RunState.READY, T0 + 60)
    assert "GPU MiB" not in health_text(rows, 120, cut=False)
    own = {"rss_mib": 321.5, "cpu_s": 1.0, "gpu_mib": 70512, "gpu_util": 97, "gpus": [1]}
    run.note("node3", 12, "sample", node="node3", ranks={"5": own}, gpus={"1": [70900, 97]})
    rows = build_health(evidence_of(run.job), RunState.READY, T0 + 60)
    assert (rows[5].gpu_mib, rows[5].gpu_util, rows[5].used_gpus, rows[4].gpu_mib) == (70512, 97, (1,), None)
    lines = health_text(rows, 120, cut=False).splitlines()
    assert "GPU MiB" in lines[1]
    assert "70512" in next(line for line in lines if line.split()[:2] == ["5", "node3"])
    assert json.loads(health_to_json(rows))[5]["gpu_util"] == 97
    gone = build_health(evidence_of(run.job), RunState.FAILED, T0 + 60)
    assert (gone[5].gpu_mib, gone[5].used_gpus) == (None, ())
