"""The live view's picture: what it says, and that it keeps to the terminal's size whatever is in the run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from slurm_llm.cli.topcells import Style, number, span, took
from slurm_llm.cli.topranks import LOAD, NUMBER, Order
from slurm_llm.cli.topview import View, draw
from slurm_llm.observe.live import InstanceNow, Look, NodeNow, RankNow, Snapshot
from slurm_llm.observe.livefigures import Figures, Probe, Spread, add_up
from slurm_llm.slurm.states import SlurmState
from tests.observe.run_dirs import T0, RunDir, make_plan
from tests.observe.test_live import snapshot_of

SIZES = [(80, 24), (60, 15), (200, 60), (40, 8), (20, 3), (1, 1)]
HOSTILE = "\x1b[2J\x1b]0;owned\x07evil\r\n\u202e名前\ttab" + "x" * 300


def text(snapshot: Snapshot, width: int = 80, height: int = 24, view: View | None = None) -> str:
    """Return a picture as plain text."""
    return "\n".join(line.plain.rstrip() for line in draw(snapshot, width, height, view or View(T0 + 61)))


def demo(folder: Path) -> RunDir:
    """Return the demo's run directory."""
    return RunDir(folder / "run")


def serving(folder: Path) -> Snapshot:
    """Return a run that serves, with figures."""
    figures = Figures(2.0, 1234, 1, 12.5, 0.0, 3, 7, 0.42, 830.0, Spread(0.081, 0.07, 0.2), Spread(0.012), False)
    return snapshot_of(
        demo(folder).serving(), SlurmState.RUNNING, looks={0: Look(figures, T0 + 60, probe=Probe(0.13, T0, True))}
    )


def failed(folder: Path) -> Snapshot:
    """Return a run whose rank 5 was killed."""
    run = demo(folder).serving().killed(5)
    first: dict[str, object] = {"rank": 5, "node": "node3", "name": "s", "how": "signal SIGKILL", "phase": "serving"}
    run.state(9.5, "FAILED", "rank 5 went").result("FAILED", "rank 5 on node node3 went first", {**first, "at": T0 + 9})
    return snapshot_of(run, SlurmState.FAILED)


def hostile(folder: Path) -> Snapshot:
    """Return a run with names and messages that would steer a terminal."""
    run = demo(folder).serving().note("head", 6, "warning", text=HOSTILE)
    made = snapshot_of(run, SlurmState.RUNNING)
    states = [{"ready": 1, HOSTILE: 1}, {"ready": 2}]
    nodes = tuple(NodeNow(HOSTILE + str(at), own) for at, own in enumerate(states))
    ranks = tuple(RankNow(at, 0, nodes[at % 2].name, [HOSTILE, "ready"][at % 2]) for at in range(4))
    look = Look(Figures(), T0, HOSTILE)
    return dataclasses.replace(
        made,
        status=dataclasses.replace(made.status, name=HOSTILE, cause=HOSTILE, notes=(HOSTILE,), model=HOSTILE),
        nodes=nodes,
        ranks=ranks,
        instances=(InstanceNow(0, HOSTILE, 4, 2, look), InstanceNow(1, HOSTILE, 4, 2, look)),
    )


def large(folder: Path, nodes: int, instances: int = 1) -> Snapshot:
    """Return a run of two ranks a node, of which one on the last node but two has ended."""
    made = serving(folder)
    names = [f"nid{number:06d}" for number in range(nodes)]
    ended = 2 * nodes - 5
    ranks = tuple(
        RankNow(rank, rank * instances // (2 * nodes), names[rank // 2], "ended" if rank == ended else "ready")
        for rank in range(2 * nodes)
    )
    states = [{"ready": 1, "ended": 1} if at == ended // 2 else {"ready": 2} for at in range(nodes)]
    each = 2 * nodes // instances
    looks = [Look(Figures(2.0, 10, 0, 1.5, 0.0, 1), T0 + 60) for _ in range(instances)]
    return dataclasses.replace(
        made,
        ranks=ranks,
        nodes=tuple(NodeNow(name, own, 900.0 + at) for at, (name, own) in enumerate(zip(names, states, strict=True))),
        instances=tuple(InstanceNow(at, names[at], each, each, look) for at, look in enumerate(looks)),
        total=add_up(look.figures for look in looks if look.figures),
    )


MAKERS: dict[str, Callable[[Path], Snapshot]] = {
    "waiting": lambda folder: snapshot_of(demo(folder).submitted(), SlurmState.PENDING),
    "loading": lambda folder: snapshot_of(demo(folder).loading(), SlurmState.RUNNING),
    "serving": serving,
    "failed": failed,
    "hostile": hostile,
    "1000 ranks": lambda folder: large(folder, 500, 125),
    "4096 ranks": lambda folder: large(folder, 2048),
}


@pytest.mark.parametrize("name", MAKERS)
def test_it_keeps_to_the_size(tmp_path: Path, name: str) -> None:
    """No line is longer than the terminal, no more lines than it has, nothing that steers it; in ASCII where asked."""
    made = MAKERS[name](tmp_path)
    for width, height in SIZES:
        for view in (
            View(T0 + 61),
            View(T0 + 61, Style(unicode=False), keys=True, every_s=2.0),
            View(T0 + 61, order=Order(NUMBER, 7)),
            View(T0 + 61, order=Order(LOAD, 10**6), keys=True),
        ):
            lines = [line.plain for line in draw(made, width, height, view)]
            assert len(lines) <= height, (width, height)
            assert max(map(cell_len, lines)) <= width, (width, height, max(lines, key=cell_len))
            assert all(line.isprintable() for line in lines), lines
            assert view.style.unicode or all(line.isascii() for line in lines)


def test_a_run_that_serves(tmp_path: Path) -> None:
    """At 80 × 24: state, address, time left, each node's ranks, the instance's figures, the newest events."""
    shown = text(serving(tmp_path))
    for part in (
        "READY  demo  job 7",
        "served 56 s, 00:08:54 left",
        "http://node1:20000 · tensorrt_llm · rehearsal · devcluster",
        "ranks  8 of 8 ready on 4 nodes  ■ 8 ready",
        "node4  ■■",
        "req/s  failed/s  queue  in work   KV  tok/s  mean    p99  first  probe",
        "12.5         0      3        7  42%    830  81ms  200ms   12ms  130ms",
    ):
        assert part in shown, (part, shown)
    assert shown.splitlines()[-2].endswith("READY")


def test_marks_tell_states_without_colours(tmp_path: Path) -> None:
    """One character a state, another one for each, also in ASCII."""
    made = snapshot_of(demo(tmp_path).loading(), SlurmState.RUNNING)
    states = ("waiting", "starting", "loading", "loaded", "ready", "stopping", "ended", "gone")
    ranks = tuple(dataclasses.replace(one, state=state) for one, state in zip(made.ranks, states, strict=True))
    for style, marks in ((Style(), "·▁ ▄▆ ■▒ x?"), (Style(unicode=False), ".s lL #t x?")):
        shown = text(dataclasses.replace(made, ranks=ranks), view=View(T0, style))
        assert re.findall(r"^node\d +(\S+)", shown, re.MULTILINE) == marks.split()


def test_a_start(tmp_path: Path) -> None:
    """The phases with their times, the present one with its share of ranks."""
    run = demo(tmp_path).submitted().note("job", 1, "begin").note("job", 1.9, "server").loading()
    run.note("node1", 4, "loaded", rank=0, node="node1", pid=100)
    shown = text(snapshot_of(run, SlurmState.RUNNING))
    assert "start   queue 1.0 s › check 0.9 s › launch 0.6 s › load 58 s › answer" in shown
    assert "1 of 8 ranks have loaded" in shown
    assert "req/s" not in shown


def test_a_run_that_failed(tmp_path: Path) -> None:
    """Who went first, why, and what to ask next; figures of servers that are gone are not shown."""
    shown = text(failed(tmp_path))
    assert shown.startswith("FAILED  demo")
    assert "cause   rank 5 on node node3 went first" in shown
    assert "next    slurm-llm diagnose" in shown
    assert "req/s" not in shown
    assert "next    slurm-llm diagnose" in text(failed(tmp_path / "small"), 60, 15)


@pytest.mark.parametrize(("nodes", "size"), [(500, (80, 24)), (2048, (80, 24)), (2048, (60, 15)), (2048, (200, 60))])
def test_the_worst_is_seen_first(tmp_path: Path, nodes: int, size: tuple[int, int]) -> None:
    """One rank of thousands that has ended is counted, and its node is the first of the list."""
    shown = text(large(tmp_path, nodes), *size)
    assert re.search(rf"{2 * nodes - 1} of {2 * nodes} ready on {nodes} nodes.*  x 1", shown), shown
    rows = [line for line in shown.splitlines() if line.startswith("nid")]
    assert rows[0].startswith(f"nid{nodes - 3:06d}  ■x"), rows


@pytest.mark.parametrize(
    ("nodes", "size", "marks", "said"),
    [
        (500, (200, 60), 1000, "ready"),
        (500, (80, 24), 500, "on 500 nodes, 1 a mark"),
        (2048, (80, 24), 683, "on 2048 nodes, 3 a mark"),
        (2048, (60, 15), 147, "on 2048 nodes, 14 a mark"),
    ],
)
def test_a_grid_has_a_mark_for_everything(
    tmp_path: Path, nodes: int, size: tuple[int, int], marks: int, said: str
) -> None:
    """For every rank where all fit; else for every node or several, with the state of their worst rank."""
    shown = text(large(tmp_path, nodes), *size)
    grid = [line for line in shown.splitlines() if re.match(r" *\d+ [■x]", line)]
    assert (sum(line.count("■") for line in grid), sum(line.count("x") for line in grid)) == (marks - 1, 1), shown
    assert said in shown


def test_pages(tmp_path: Path) -> None:
    """Each page of the list shows other nodes, and together they show all of them."""
    made = large(tmp_path, 100)
    seen: set[str] = set()
    for page in range(100):
        shown = text(made, 80, 24, View(T0, order=Order(NUMBER, page)))
        rows = {line.split()[0] for line in shown.splitlines() if line.startswith("nid")}
        if rows <= seen:
            break
        seen |= rows
    assert len(seen) == 100


def test_an_instance_that_does_not_answer(tmp_path: Path) -> None:
    """It comes first with its figures' age; the sum says how many answer."""
    made = large(tmp_path, 40, 20)
    old = made.instances[13]
    silent = dataclasses.replace(old, look=Look(old.look.figures, T0 + 31, "no answer within 2 s"))
    instances = (*made.instances[:13], silent, *made.instances[14:])
    shown = text(dataclasses.replace(made, instances=instances), 100, 30)
    rows = [line for line in shown.splitlines() if line.split()[:1] in (["all"], ["13"])]
    assert rows[0].startswith("all 20") and rows[0].endswith("19 answer")
    assert rows[1].endswith("no answer within 2 s, 30 s old")
    assert shown.index(rows[1]) < shown.index("\n0  ")


def test_figures_in_few_characters() -> None:
    """At most six characters, and nothing where nothing is known."""
    numbers = {
        None: "-",
        0.0: "0",
        0.04: "0.04",
        0.96: "1.0",
        12.5: "12.5",
        830.4: "830",
        12345.0: "12.3k",
        2.5e6: "2.5M",
    }
    assert {value: number(value) for value in numbers} == numbers
    assert max(len(number(base * 10.0**power)) for power in range(12) for base in (1, 9.99, 5.5)) <= 6
    times = {None: "-", 0.000474: "0.474ms", 0.081: "81ms", 1.234: "1.23s", 75.0: "75s"}
    assert {value: took(value) for value in times} == times
    assert took(2.0, beyond=True) == ">2.00s"
    assert [span(value) for value in (2.1, 95, 720, 12600, 200000)] == ["2.1 s", "95 s", "12 min", "3.5 h", "2 days"]


def test_a_trend() -> None:
    """The highest value fills its place, nothing is at the bottom; a few values are no trend."""
    assert Style().trend([0, 5, 10, 2.5]) == "▁▅█▃"
    assert Style(unicode=False).trend([0, 5, 10, 2.5]) == "_=#:"
    assert [Style().trend(values) for values in ([], [1, 2], [0, 0, 0])] == ["-"] * 3


def test_many_instances_fit(tmp_path: Path) -> None:
    """A run of 125 instances in a small terminal shows the sum and the first of them."""
    plan = make_plan(replicas=2, tensor_parallel_size=1, pipeline_parallel_size=1, resources={"nodes": 2})
    run = RunDir(tmp_path / "two", plan=plan).serving()
    assert "all 2" in text(snapshot_of(run, SlurmState.RUNNING, looks={0: Look(Figures(2.0, 1, 0, 1.0), T0 + 60)}))
    shown = text(large(tmp_path, 500, 125), 60, 15)
    assert "all 125" in shown and "of 125 by trouble" in shown
