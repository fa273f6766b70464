"""The values of a report: what each rank did when, figures over time, benches, the plan; no secret among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_llm.observe import benchresults as bench
from slurm_llm.observe.livefigures import build_figures
from slurm_llm.observe.metricstext import parse_metrics
from slurm_llm.observe.report import Report, report_to_json
from slurm_llm.observe.reportbars import draw_attempts
from slurm_llm.observe.reportbench import build_benches
from slurm_llm.observe.reportdraw import elapsed, span, time_scale, time_ticks, value_ticks
from slurm_llm.observe.reportheat import start_times
from slurm_llm.observe.reportmetrics import UNUSED, headlines
from slurm_llm.observe.reportsamples import LOOK_BYTES, WHOLE_BYTES, build_series, load_samples
from slurm_llm.observe.reporttimes import PHASES, STATES, AttemptLine
from slurm_llm.record import Submission, record_to_json
from tests.observe.captured import NAMES, lay_out
from tests.observe.report_runs import MANY, begun, bench_result, completed, ended, failed, place, report_of, sampled
from tests.observe.run_dirs import T0, FakeSlurm, squeue_row

RUNS = FakeSlurm([squeue_row(7, "RUNNING")])


def only(report: Report) -> AttemptLine:
    """Return the only attempt of a report."""
    (line,) = report.attempts
    return line


def phases(line: AttemptLine, rank: int) -> list[tuple[str, float]]:
    """Return a rank's phases, and when each ended, in seconds after the test's beginning."""
    return [(one.phase, round(one.end - T0, 3)) for one in line.ranks[rank].spans]


def test_every_phase_of_a_rank(tmp_path: Path) -> None:
    """From the start of the step to the end, without a hole; the leader's own word for loaded counts."""
    run = begun(place(tmp_path)).note("node1", 4, "loaded", rank=0, node="node1", pid=100).serving()
    run.note("head", 59, "stop", why="stop")
    for rank in run.plan.ranks:
        ended(run, rank.rank, 59.5, "exit 0", asked=True)
    line = only(report_of(run.result("COMPLETED", "stopped on request")))
    told = [("launch", 2.0), ("start", 2.5), ("load", 4.0), ("wait", 5.0), ("serve", 59.0), ("ending", 59.5)]
    assert phases(line, 0) == told
    assert phases(line, 1) == [("launch", 2.0), ("start", 2.5), ("load", 5.0), ("serve", 59.0), ("ending", 59.5)]
    assert [one.phase for one in line.spans] == ["queue", "check", "launch", "load", "serve", "ending"]
    assert (line.ranks[0].load_s, line.ranks[1].load_s) == (1.5, None)
    assert {rank.state for rank in line.ranks} == {"ended"}


def test_the_rank_that_went_first_stands_out(tmp_path: Path) -> None:
    """It alone, with how its process ended, not how its server was told to end afterwards."""
    line = only(report_of(failed(place(tmp_path), 5)))
    assert [rank.rank for rank in line.ranks if rank.state == "first"] == [5] == [line.first]
    assert line.ranks[5].how == "triton_python_backend_stub: signal SIGKILL"
    assert (line.first_at, line.state) == (T0 + 9, "FAILED")
    assert {rank.how for rank in line.ranks if rank.rank != 5} == {"signal SIGTERM"}
    assert line.ranks[5].at == "tp 1 · pp 1"


@pytest.mark.parametrize(("served", "ends"), [(True, "stroke end"), (False, "cross bad")])
def test_a_run_whose_time_was_up_has_not_failed(tmp_path: Path, served: bool, ends: str) -> None:
    """Its lane ends as that of one which was told to end; it bears a cross where it never served."""
    run = begun(place(tmp_path))
    run = run.serving() if served else run
    line = only(report_of(run.result("TIMED_OUT", "the time limit was near")))
    drawn = draw_attempts([line]).paths
    assert [path.css for path in drawn if path.title.startswith("TIMED_OUT")] == [ends]


def test_a_run_that_still_loads(tmp_path: Path) -> None:
    """Its bars go on until now, and nothing of it has ended."""
    line = only(report_of(begun(place(tmp_path)), RUNS))
    assert phases(line, 3)[-1] == ("load", 60.0)
    assert line.live
    assert {rank.state for rank in line.ranks} == {"load"}


@pytest.mark.parametrize("kind", ["waiting", "planned", "cancelled"])
def test_a_run_that_never_started(tmp_path: Path, kind: str) -> None:
    """No rank is made up; the plan is there."""
    run = place(tmp_path)
    rows = {"waiting": [squeue_row(7, "PENDING", reason="Resources")], "cancelled": [squeue_row(7, "CANCELLED")]}
    report = report_of(run if kind == "planned" else run.submitted(), FakeSlurm(rows.get(kind, [])))
    assert [line.ranks for line in report.attempts] == [()] * (kind != "planned")
    assert report.main is None
    assert dict(report.plan.sizes)["tensor_parallel_size"] == "4"
    assert report.plan.commands[0].line == "srun --mpi=pmix bash rank.sh"


def test_restarts_are_told_apart(tmp_path: Path) -> None:
    """A lane for each attempt, only the first of which has waited in the queue; ranks of both."""
    run = failed(place(tmp_path), 5).note("job", 10, "restart", in_s=1)
    run.attempt = 1
    begun(run)
    report = report_of(run, RUNS)
    assert [(line.attempt, line.spans[0].phase, len(line.ranks)) for line in report.attempts] == [
        (0, "queue", 8),
        (1, "check", 8),
    ]
    assert report.main == 1


def test_a_successor_names_whom_it_follows(tmp_path: Path) -> None:
    """Both jobs of the run have a lane, and the new one says from whom it takes over."""
    run = begun(place(tmp_path)).serving()
    job = run.paths.job(8)
    job.root.mkdir()
    job.submission.write_text(record_to_json(Submission("8", "", T0 + 20, "handover", "7")))
    report = report_of(run, FakeSlurm([squeue_row(7, "RUNNING"), squeue_row(8, "PENDING")]))
    assert [(line.job_id, line.after) for line in report.attempts] == [(7, 0), (8, 7)]


def test_many_ranks_and_those_that_are_late(tmp_path: Path) -> None:
    """The time up to the engine's process is known of all; the one rank that took longer is named."""
    run = place(tmp_path, **MANY).submitted().note("job", 1, "begin").note("job", 2, "server")
    for own in run.plan.ranks:
        at = 3 + 0.01 * (own.rank % 7) + 9 * (own.rank == 100)
        run.note("node1", at, "found", rank=own.rank, node=f"node{own.node + 1}", pid=1, main=True, name="tritonserver")
    line = only(report_of(run, RUNS))
    assert line.ranks[100].at == "instance 12 · tp 0 · pp 1"
    times = start_times(line.ranks)
    assert times is not None
    assert (times.late, round(times.seconds[100], 2)) == ((100,), 10.02)


@pytest.mark.parametrize("name", NAMES)
def test_what_real_jobs_left_makes_a_report(tmp_path: Path, name: str) -> None:
    """Journals and logs of jobs that failed in many ways: every phase and state has a name, every bar a length."""
    report = report_of(lay_out(place(tmp_path), name))
    assert report.attempts
    for line in report.attempts:
        spans = [*line.spans, *(one for rank in line.ranks for one in rank.spans)]
        assert all(one.phase in PHASES and one.end > one.begin for one in spans)
        assert {rank.state for rank in line.ranks} <= set(STATES)
    assert json.loads(report_to_json(report))["schema"] == 1


def test_torn_files_do_not_matter(tmp_path: Path) -> None:
    """Half lines, invalid UTF-8 and records of another release are left out."""
    run = completed(place(tmp_path))
    path = run.job_paths.attempt(0).journal / "node1.samples.jsonl"
    path.write_bytes(
        b'\n{"kind":"sample","t":1}\n{"kind":"sample","t":2,"ranks":{"0":{"rss_mib":[]}}}\n\xff\xfe{"kind":"sam'
    )
    report = report_of(run)
    assert (report.series, report.state) == ((), "COMPLETED")


def test_figures_over_time(tmp_path: Path) -> None:
    """Memory of all ranks of a node, processors from their time, GPUs where there are any; a line a node."""
    run = sampled(completed(place(tmp_path)), (1, 2), (10, 20, 30), gpus={"0": [2048, 50], "1": [1024, 100]})
    series = {one.title: one for one in report_of(run).series}
    assert list(series) == [
        "Memory of the ranks' processes",
        "Processors kept busy",
        "GPU memory in use",
        "GPU use, mean of a node's GPUs",
    ]
    memory, cores, gpu, use = series.values()
    assert [(line.name, line.values[0]) for line in memory.lines] == [("node1", 1.0), ("node2", 2.0)]
    assert [value for value in cores.lines[0].values if value is not None] == [0.2, 0.2]
    assert (gpu.lines[0].values[0], use.lines[0].values[0]) == (3.0, 75.0)


def test_many_nodes_are_drawn_as_a_range(tmp_path: Path) -> None:
    """Highest, middle and lowest; the node of the peak is named."""
    run = sampled(place(tmp_path).submitted(), range(1, 13), (10, 20))
    (memory, _) = build_series(load_samples([run.job_paths.attempt(0).journal]))
    assert [(line.name, line.values[0]) for line in memory.lines] == [
        ("highest (node12)", 12.0),
        ("middle", 6.5),
        ("lowest", 1.0),
    ]


def test_a_long_journal_is_looked_into_here_and_there(tmp_path: Path) -> None:
    """A file of many days: its beginning and its end are there, and few of the samples between."""
    run = place(tmp_path).submitted()
    path = run.log("unused", "").parent / "journal" / "node1.samples.jsonl"
    path.parent.mkdir()
    row = '\n{{"kind":"sample","node":"node1","ranks":{{"0":{{"cpu_s":1.0,"rss_mib":2.0}}}},"t":{}}}'
    path.write_text("".join(row.format(T0 + 10 * number) for number in range(40_000)))
    assert path.stat().st_size > 10 * WHOLE_BYTES
    (own,) = load_samples([path.parent])
    assert 16 <= len(own) <= 240
    apart = 10 * LOOK_BYTES / len(row)
    assert own[0].at < T0 + apart
    assert own[-1].at > T0 + 400_000 - apart


SECRETS = {
    "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7": "a token in the spec",
    "correct-horse-battery": "a variable of whoever writes the report",
    "k3y-0f-the-endp01nt": "the key of the endpoint",
}


def test_no_secret_is_in_a_report(tmp_path: Path) -> None:
    """Of the spec, the environment and the endpoint's key: not in the spec, a cause, a log, evidence or a command."""
    run = failed(place(tmp_path), 5)
    token, password, key = SECRETS
    (run.root / "spec.yaml").write_text(f"name: demo\nenv: {{set: {{HF_TOKEN: {token}}}}}\n")
    (run.root / "job.sub").write_text(f"#!/bin/bash\n#SBATCH --comment={password}\nsrun x --key {key} {token}\n")
    run.job_paths.key(0).write_text(f"x-key: {key}\n")
    run.log("rank-5.log", f"ERROR: bad {token} and {password} and {key}\n")
    text = report_to_json(report_of(run, DB_PASSWORD=password))
    assert {meaning for secret, meaning in SECRETS.items() if secret in text} == set()
    assert "ERROR: bad (hidden) and (hidden) and (hidden)" in text


@pytest.mark.parametrize(
    ("rank", "names"), [(5, ["rank 5", "srun, instance 0", "the job's own output"]), (None, [])], ids=["failed", "well"]
)
def test_ends_of_logs(tmp_path: Path, rank: int | None, names: list[str]) -> None:
    """Of the rank that went first, srun and the job where a run has failed; none of one that is well."""
    run = completed(place(tmp_path)) if rank is None else failed(place(tmp_path), rank)
    run.log("step-0.log", "srun: error\n")
    run.paths.output(7).write_text("slurm_llm: the end\n")
    assert [tail.of for tail in report_of(run).tails] == names


def test_benches_are_rows_and_a_sweep_is_points(tmp_path: Path) -> None:
    """Repetitions are one point with their spread; what is not valid is a row and no point."""
    loads = [(1, 10.0, True), (4, 30.0, True), (4, 34.0, True), (8, 99.0, False)]
    found = build_benches([bench_result(at, *load) for at, load in enumerate(loads, 1)], str)
    assert [(row.number, row.valid, row.tokens_s) for row in found.rows] == [
        (at, valid, tokens) for at, (_, tokens, valid) in enumerate(loads, 1)
    ]
    (sweep,) = found.sweeps
    assert [(point.name, point.x, point.xs) for point in sweep.points] == [
        ("1", 10.0, (10.0, 10.0)),
        ("4", 32.0, (30.0, 34.0)),
    ]
    assert found.notes[0] == "bench 4: a request failed"


def test_kept_benches_are_found(tmp_path: Path) -> None:
    """Those of the run's own folder."""
    run = completed(place(tmp_path))
    folder = run.root / "bench" / "1"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(bench.result_to_json(bench_result(1, 2, 5.0, True)))
    assert [row.load for row in report_of(run).benches.rows] == ["concurrency 2, in 64, out 32"]
    assert len(bench.load_results(run.paths)) == 1


def test_figures_that_stand_out() -> None:
    """Of a vLLM that has answered: tokens, cache and the time to the first token; what it does not tell is left out."""
    page = parse_metrics((Path(__file__).parent / "metrics_pages" / "vllm.txt").read_text(encoding="utf-8"))
    whole = build_figures("vllm_model", "vllm", page, UNUSED, 10.0)
    told = dict(headlines(whole, build_figures("vllm_model", "vllm", page)))
    assert set(told) >= {"tokens per second so far", "mean time to the first token", "P99 time to the first token"}
    assert "requests per second now" not in told


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25\u00a0s"), (4.21, "4.2\u00a0s"), (95, "95\u00a0s"), (720, "12\u00a0min"), (12600, "3.5\u00a0h")],
)
def test_lengths_of_time_in_words(seconds: float, words: str) -> None:
    """In the unit that says enough."""
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "step", "words"),
    [(0.5, 0.1, "0.5 s"), (42, 1, "42 s"), (185, 5, "3:05"), (7620, 60, "2:07:00"), (93_784.2, 0.1, "1 d 2:03:04.2")],
)
def test_times_on_a_scale(seconds: float, step: float, words: str) -> None:
    """As a stop-watch says them; tenths where the scale has them."""
    assert elapsed(seconds, step) == words


def test_a_scale_leaves_time_out() -> None:
    """Moments keep their order, also those that are left out; every tick lies in a piece."""
    scale = time_scale([(0, 10), (1000, 1010)], 100, 900)
    places = [scale.at(moment) for moment in (-5, 0, 5, 10, 500, 1000, 1005, 2000)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (100, 900)
    assert all(any(one.left <= x <= one.right for one in scale.pieces) for x, _ in time_ticks(scale, 0))


@pytest.mark.parametrize("most", [0, 0.07, 1, 3.2, 19, 100, 12345])
def test_scales_of_values_are_even(most: float) -> None:
    """They begin at 0, reach the highest value, and have a few steps."""
    ticks = value_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most
    assert 3 <= len(ticks) <= 7


def test_gpus_are_named(tmp_path: Path) -> None:
    """Whoever owns the machine asks for the UUID first; of very many GPUs the first ones are named."""
    run = begun(place(tmp_path)).serving()
    cards = [{"gpu": card, "uuid": f"GPU-{card}", "name": "H200", "total_mib": 143771} for card in range(18)]
    run.note("node1", 3, "gpus", node="node1", driver="580.1", gpus=cards)
    versions = dict(report_of(run).versions)
    assert (versions["NVIDIA driver"], versions["GPUs"]) == ("580.1", "H200")
    assert versions["GPU 0 of node1"] == "GPU-0, 143771 MiB"
    assert versions["further GPUs"] == "2" and "GPU 16 of node1" not in versions
