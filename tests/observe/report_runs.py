"""Runs of every kind for tests of reports: written with the real writers, asked for as the command does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_llm.cli.reporting import reported
from slurm_llm.observe import benchresults as bench
from slurm_llm.observe.report import Report
from tests.observe.run_dirs import RUN_ID, T0, FakeSlurm, RunDir, around, make_plan, squeue_row

MANY = {"replicas": 16, "resources": {"nodes": 64}}
"""More ranks than have a row each: 128 on 64 nodes."""


def place(folder: Path, **fields: object) -> RunDir:
    """Return a run directory below `folder` with the plan of these fields of a spec."""
    plan = make_plan(**fields)  # type: ignore[arg-type]
    made = RunDir(folder / "logs" / f"demo-{RUN_ID}", plan=plan)
    (made.root / "spec.yaml").write_text("name: demo\nengine: rehearsal\n")
    (made.root / "job.sub").write_text("#!/bin/bash\n#SBATCH --nodes=4\nsrun --mpi=pmix \\\n  bash rank.sh\n")
    return made


def sampled(run: RunDir, nodes: Sequence[int], times: Sequence[float], **gpus: object) -> RunDir:
    """Write samples of nodes (counted from 1) at these times."""
    for node in nodes:
        for number, when in enumerate(times):
            ranks = {"0": {"rss_mib": 1024.0 * node + number, "cpu_s": 2.0 * number}}
            run.note(f"node{node}.samples", when, "sample", node=f"node{node}", ranks=ranks, **gpus)
    return run


def begun(run: RunDir) -> RunDir:
    """Write that the job's script has begun, and started the server's step."""
    run.submitted().note("job", 0.5, "begin").note("job", 1.8, "server")
    return run.loading()


def completed(run: RunDir) -> RunDir:
    """Write a run that served, and ended as it was told."""
    begun(run).serving().note("head", 59, "stop", why="stop")
    for rank in run.plan.ranks:
        ended(run, rank.rank, 59.5, "exit 0", asked=True)
    return run.result("COMPLETED", "stopped on request")


def failed(run: RunDir, rank: int) -> RunDir:
    """Write a run whose model served, and a rank of which was killed; the others were ended by the agents."""
    begun(run).serving().killed(rank).state(9.2, "FAILED", "a rank went").note("head", 9.3, "stop", why="failed")
    for other in run.plan.ranks:
        ended(run, other.rank, 9.5 + 0.01 * other.rank, "signal SIGTERM", asked=True)
        run.log(f"rank-{other.rank}.log", f"I1130 rank {other.rank} says its last words\n")
    node = f"node{run.plan.ranks[rank].node + 1}"
    first: dict[str, object] = {"rank": rank, "node": node, "name": "triton_python_b", "how": "signal SIGKILL"}
    first.update(phase="serving", at=T0 + 9)
    return run.result("FAILED", f"rank {rank} on node {node} went first", first)


def ended(run: RunDir, rank: int, at: float, how: str, *, asked: bool) -> None:
    """Write the end of a rank's server."""
    node = f"node{run.plan.ranks[rank].node + 1}"
    fields = {"rank": rank, "node": node, "pid": 100 + rank, "name": "tritonserver", "main": True, "asked": asked}
    run.note(node, at, "ended", how=how, at=T0 + at, **fields)


def bench_result(number: int, concurrency: int, tokens: float, valid: bool) -> bench.BenchResult:
    """Return a kept result of a sweep."""
    load = bench.Load(concurrency=concurrency, input_tokens=(64, 0), output_tokens=(32, 0))
    figures = {
        bench.TOKENS: bench.Figure("tokens/s", tokens),
        bench.LATENCY: bench.Figure("ms", 100.0 * concurrency, p99=200.0 * concurrency),
    }
    served = bench.Served("r", 7, 0, "demo", "rehearsal", "m", "s", "", 4, 8, 1, "", {}, "", "", "http://n:1")
    return bench.BenchResult(
        number=number,
        valid=valid,
        reasons=() if valid else ("a request failed",),
        notes=("the tokenizer is a stand-in",),
        began=T0,
        ended=T0 + 9,
        tool=bench.ToolRun("aiperf", "0.13.0", ("aiperf",), "step", "node1", 0),
        load=load,
        series=bench.Series(1, (1, 4, 8)),
        figures=figures,
        requests=bench.Answers(40, 0 if valid else 1),
        errors=(),
        served=served,
    )


def benched(run: RunDir) -> RunDir:
    """Keep a sweep over concurrency, one measurement of which is not valid."""
    for number, (concurrency, tokens) in enumerate(((1, 100.0), (4, 350.0), (8, 500.0), (8, 490.0)), 1):
        folder = run.root / "bench" / str(number)
        folder.mkdir(parents=True)
        made = bench_result(number, concurrency, tokens, valid=number != 4)
        (folder / "result.json").write_text(bench.result_to_json(made))
    return run


def report_of(run: RunDir, slurm: FakeSlurm | None = None, **environ: str) -> Report:
    """Return the report of a run, as `report` makes it."""
    here = around(run.root.parent.parent, slurm)
    here.environ.update(environ)  # type: ignore[attr-defined]
    return reported(run.job, here)


def runs(folder: Path) -> dict[str, Report]:
    """Return a report of each kind: finished, failed, with many ranks, waiting in the queue, never submitted."""
    waits = FakeSlurm([squeue_row(7, "PENDING", reason="Resources")])
    nodes = range(1, 5)
    return {
        "completed": report_of(benched(sampled(completed(place(folder / "a")), nodes, (5, 15, 25, 35)))),
        "failed": report_of(failed(place(folder / "b"), 5)),
        "many": report_of(failed(place(folder / "c", **MANY), 77)),
        "waiting": report_of(place(folder / "d").submitted(), waits),
        "planned": report_of(place(folder / "e")),
    }
