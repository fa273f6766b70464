"""Rows of a site's rehearsal: the known text is the engine's, and each thing that is wrong is told as wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.agent import journal
from slurm_llm.agent.phases import Phases as Took
from slurm_llm.observe import rehearsalrows as rows
from slurm_llm.observe.checkrows import Verdict
from slurm_llm.observe.facts import FirstFailure
from slurm_llm.observe.health import RankHealth
from slurm_llm.observe.status import RunStatus
from slurm_llm.observe.times import Phases
from slurm_llm.rehearsal.layout import Sizes
from slurm_llm.slurm.states import RunState
from slurm_llm.topology import Coordinates
from tests.rehearsal.test_layers import write_text

SAID = "weights are on cuda:0: NVIDIA H200, 143155 MiB, UUID a877d1d4-b524-837e-8ac4-e9b61091cf56"
"""What a rank's log held on such a machine."""
KEY = "partitions.gpu.gpu_request"


def rank(number: int, node: int = 0, used: tuple[int, ...] = (), mib: int | None = None) -> RankHealth:
    """Return a rank that serves."""
    return RankHealth(
        rank=number,
        instance=0,
        node=f"n{node}",
        node_index=node,
        gpus=(0,),
        visible_gpus="0",
        role="worker",
        at=Coordinates(0, 0, 0, 0, 0),
        state="ready",
        how=None,
        rss_mib=1.0,
        log_age_s=1.0,
        last_error=None,
        used_gpus=used,
        gpu_mib=mib,
    )


def status(state: RunState, exit_code: int | None = None, cause: str = "", first: int | None = None) -> RunStatus:
    """Return a run of four ranks in that state, of which rank `first` ended first."""
    failure = None if first is None else FirstFailure(first, "n1", "tritonserver", "exit 3", "loading", 1.0)
    return RunStatus(
        *("id", "name", "rehearsal", "own", "/x", 7, "", state, None, 0, 2, "n[0-1]", 4, 4, {}, "tensorrt_llm"),
        cause=cause,
        first=failure,
        remedies=("look there",) if failure else (),
        exit_code=exit_code,
        phases=Phases(took=Took(queue_s=1.0, ready_s=5.94)),
    )


def gpus(count: int, name: str = "NVIDIA H200", **fields: object) -> journal.Record:
    """Return the record of a node's GPUs."""
    own = [{"gpu": index, "uuid": f"GPU-{index}", "name": name, "slices": []} for index in range(count)]
    return {"kind": "gpus", "t": 1.0, "driver": "580.1", "hidden": 0, "gpus": own, **fields}


@pytest.mark.parametrize("experts", [False, True])
def test_the_known_text_is_what_the_layers_write(experts: bool) -> None:
    """It is computed from the engine itself, in one layout and in another, so that it cannot go out of date."""
    expected = rows.known_text(0, experts)
    for sizes in (Sizes(), Sizes(tensor=4, moe_tensor=4, pipeline=2)):
        text = write_text(sizes, moe=experts, prompt=rows.PROMPT.encode(), count=rows.TOKENS)
        assert text.decode("latin-1") == expected


def test_a_seed_of_ones_own_has_no_known_text() -> None:
    """What it would have to be is not known here, so nothing is called wrong."""
    assert rows.known_text(None, False) == rows.known_text(0, False)
    assert rows.text_row("abc", rows.known_text(3, False)).verdict is Verdict.UNKNOWN


def test_another_text_is_wrong() -> None:
    """Both texts are told."""
    expected = rows.known_text(0, False)
    assert expected is not None
    assert rows.text_row(expected, expected).verdict is Verdict.OK
    row = rows.text_row("egilo wobu", expected)
    assert (row.verdict, row.found) == (Verdict.WRONG, f"'egilo wobu' instead of '{expected}'")


def test_where_ranks_serve_and_how_long_the_start_took() -> None:
    """As many on each node, or simply how many nodes."""
    served = status(RunState.READY)
    first, phases = rows.started_rows(served, [rank(0), rank(1), rank(2, 1), rank(3, 1)])
    assert first.found == "all 4 ranks serve, 2 on each of 2 nodes, 5.9 s after the job began"
    assert phases.found == "queue 1.0 s"
    assert rows.started_rows(served, [rank(0), rank(1, 1), rank(2, 1)])[0].found.startswith("all 3 ranks serve, on 2 ")
    assert rows.started_rows(served, [rank(0)])[0].found == "the rank serves, 5.9 s after the job began"


@pytest.mark.parametrize(
    ("state", "code", "verdict"),
    [
        (RunState.COMPLETED, 0, Verdict.OK),
        (RunState.COMPLETED, 1, Verdict.WRONG),
        (RunState.FAILED, 1, Verdict.WRONG),
        (RunState.TIMED_OUT, 0, Verdict.WRONG),
    ],
)
def test_only_an_end_in_order_is_well(state: RunState, code: int, verdict: Verdict) -> None:
    """State and exit status both count."""
    assert rows.ended_row(status(state, code), 2.0).verdict is verdict


@pytest.mark.parametrize("cause", ["rank 1 on node n1 went first: exit 3", "the server was lost"])
def test_a_failure_names_who_went_first_once(cause: str) -> None:
    """Also where the cause does not; a cause cannot steer a terminal."""
    row = rows.failed_row(status(RunState.FAILED, 1, f"{cause}\x1b[2J", first=1), "start")
    assert (row.verdict, row.todo, row.found.count("went first")) == (Verdict.WRONG, "look there", 1)
    assert row.found.startswith(f"FAILED: {cause}")
    assert "\x1b" not in row.found


def test_of_a_failed_log_the_line_that_tells_is_shown() -> None:
    """The first one, cut to a few rows; none where no line does."""
    failed = replace(status(RunState.FAILED, 1), log_tail=("I1 loading", "E1 \x1b[2JError: " + "x" * 999, "E1 failed"))
    [row] = rows.said_row(failed)
    assert row.found.startswith("E1 Error: xxx")
    assert len(row.found) == rows.SHOWN_CHARACTERS
    assert rows.said_row(replace(failed, log_tail=("I1 loading",))) == []


@pytest.mark.parametrize(
    ("records", "wanted", "verdict", "found"),
    [
        ([], 0, Verdict.OK, "no NVIDIA driver on the nodes, as the profile says"),
        ([], 4, Verdict.NOTE, "no NVIDIA driver on the nodes, the profile has 4 a node"),
        ([gpus(2), gpus(2)], 2, Verdict.OK, "all 2 nodes: 2 × NVIDIA H200, driver 580.1"),
        (
            [gpus(2), gpus(1)],
            2,
            Verdict.WRONG,
            "1 of 2 nodes: 2 × NVIDIA H200, driver 580.1; node 1: 1 × NVIDIA H200, driver 580.1",
        ),
        ([gpus(1, hidden=1)], 2, Verdict.OK, "node 0: 1 × NVIDIA H200, 1 hidden, driver 580.1"),
        ([gpus(1, "\x1b[2JH200")], 1, Verdict.OK, "node 0: 1 × H200, driver 580.1"),
    ],
)
def test_the_nodes_gpus(records: list[journal.Record], wanted: int, verdict: Verdict, found: str) -> None:
    """How many of which name with which driver; fewer than the profile has are wrong."""
    row = rows.inventory_row(records, wanted, "partitions.gpu.gpus_per_node")
    assert (row.verdict, row.found) == (verdict, found)


@pytest.mark.parametrize(
    ("devices", "verdict", "found"),
    [
        ({0: "a", 1: "b"}, Verdict.OK, "each of 2 ranks computes on a GPU of its own (NVIDIA H200)"),
        ({0: "a", 1: "a"}, Verdict.WRONG, "all 2 ranks on one GPU, a"),
        ({0: "a"}, Verdict.WRONG, "rank 1: computes on no GPU"),
    ],
)
def test_each_rank_wants_a_gpu_of_its_own(devices: dict[int, str], verdict: Verdict, found: str) -> None:
    """By UUID: ranks number GPUs as they see them."""
    named = {number: ("NVIDIA H200", uuid) for number, uuid in devices.items()}
    row = rows.device_rows([rank(0), rank(1)], named, KEY)[0]
    assert (row.verdict, row.found) == (verdict, found)


def test_memory_that_the_driver_tells_of_no_rank() -> None:
    """It is no fault of the profile, and `health` would show nothing."""
    named = {0: ("H200", "a"), 1: ("H200", "b")}
    seen = rows.device_rows([rank(0, used=(0,), mib=500), rank(1, used=(1,), mib=510)], named, KEY)[1]
    assert (seen.verdict, seen.found) == (Verdict.OK, "500 to 510 MiB a rank, as the driver tells of its processes")
    unseen = rows.device_rows([rank(0, used=(0,), mib=500), rank(1)], named, KEY)[1]
    assert (unseen.verdict, unseen.found) == (Verdict.NOTE, "the NVIDIA driver names no process of rank 1")


def test_the_gpu_that_a_rank_names_in_its_log(tmp_path: Path) -> None:
    """The line that the engine writes; no line, or no log, names none."""
    log = tmp_path / "rank-0.log"
    assert rows.device_of(log) is None
    log.write_text('I1130 1 engine.py:284] "rehearsal: rank 0/2: loading weights"\n')
    assert rows.device_of(log) is None
    with log.open("a") as stream:
        stream.write(f'I1130 20:38:12.230217 1208 engine.py:304] "rehearsal: rank 0/1 tp 0 pp 0: {SAID}"\n')
    assert rows.device_of(log) == ("NVIDIA H200", "a877d1d4-b524-837e-8ac4-e9b61091cf56")


def test_a_node_that_has_not_said_good_bye_may_be_unclean() -> None:
    """Each node's agent says last what it has removed."""
    byes = [{"kind": "bye", "t": 1.0, "node": f"n{node}", "removed": 2} for node in range(2)]
    assert rows.leftovers_row(byes, 2).verdict is Verdict.OK
    row = rows.leftovers_row(byes[:1], 2)
    assert (row.verdict, row.found) == (Verdict.NOTE, "only 1 of 2 nodes have said that they are clean")


def test_warnings_are_told_once_and_errors_of_logs_are_folded() -> None:
    """What the job complained of in its output, and what ranks alike say."""
    told = [{"kind": "warning", "t": 1.0, "text": "ranks 0, 1 on node n0 all use GPU 0"}] * 2
    odd = [RankHealth(**{**vars(rank(number)), "last_error": "E1 bad"}) for number in (0, 1)]
    assert [row.found for row in rows.log_rows(told, odd)] == [
        "ranks 0, 1 on node n0 all use GPU 0",
        "all 2 ranks: E1 bad",
    ]
    assert rows.log_rows([], [rank(0)]) == []
