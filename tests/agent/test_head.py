"""The head's own bookkeeping: how often it looks at all ranks, what it hears, and what a node's agent writes to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import journal
from slurm_llm.agent.head import Head
from slurm_llm.agent.node import Agent, Options
from slurm_llm.render import Target, render
from tests.plan.sites_for_plans import make_plan


@pytest.fixture
def head(tmp_path: Path) -> Head:
    """A head of one rank that reads nothing yet."""
    texts = render(make_plan(), Target(tmp_path, sys.executable, {}))
    (tmp_path / "plan.json").write_text(texts["plan.json"])
    (tmp_path / "attempt-0" / "journal").mkdir(parents=True)
    made = Head(str(tmp_path), str(tmp_path / "attempt-0"))
    made.state = "LOADING"
    return made


def test_all_ranks_are_looked_at_no_more_often_than_pays(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beats of hundreds of nodes wake the head hundreds of times a second; a look costs something for each rank."""
    looks: list[float] = []

    def look(waited: float, *_: Any) -> None:
        looks.append(waited)

    monkeypatch.setattr(head.watchdog, "loading", look)
    for _ in range(50):
        head._look_for_hangs()
    assert len(looks) == 1
    head.looked_at -= 1.0
    head._look_for_hangs()
    assert len(looks) == 2


def test_a_head_that_stood_still_gives_everybody_that_time(head: Head) -> None:
    """A suspended job's readiness and silence are judged by the time in which it ran."""
    head.alive.heard("n1", head.started)
    head._forgive()
    started = head.started
    assert head.alive.awake_at is not None
    head.alive.awake_at -= 1000.0
    head._forgive()
    assert head.started - started == pytest.approx(1000.0, abs=30.0)
    assert head.alive.last["n1"] <= head.alive.awake_at


def test_a_note_of_the_script_through_the_pipe_is_heeded_and_kept(head: Head) -> None:
    """The script could not write it to its own journal; the result is made of what the head writes down."""
    head._note_agent({"t": 1.0, "kind": "stop", "why": "asked"})
    head._note_agent({"t": 2.0, "kind": "finish"})
    kinds = [item["kind"] for item in journal.read(head.writer.path)]
    assert head.asked == "asked" and head.finished
    assert kinds.count("stop") == 1 and kinds.count("finish") == 1


def test_a_record_in_pieces_costs_only_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """srun passes on the output of many nodes in pieces: another node's record can come between two of them."""
    agent = Agent(Options(str(tmp_path), "7.0", 1, str(tmp_path), 5.0, 30.0))
    told = []
    for kind in ("long", "short"):
        agent._tell(journal.record(kind, text="x" * 2000))
        told.append(capfd.readouterr().out.encode())
    for cut in (1, 1024, len(told[0]) - 2):
        pieces = told[0][:cut] + told[1] + told[0][cut:] + told[1]
        assert [item["kind"] for item in journal.parse(pieces) if item["kind"] == "short"] == ["short", "short"]


def test_a_killed_agent_ends_no_run_and_is_named_beside_the_first_end(head: Head) -> None:
    """The node lives, and the server with it; srun says of a killed agent at once, before its silence tells."""
    head.state = "READY"
    Path(head.attempt_dir, "agents.log").write_text("srun: error: n2: task 1: Killed\n")
    for node in ("n1", "n2"):
        head._note_agent(journal.record("hello", node=node))
    head._tell_alone(head.alive.gone_alone(head.alive.last["n2"] + 7.0))
    head._judge()
    assert head.state == "READY" and head.order is None
    told = [item for item in journal.read(head.writer.path) if item["kind"] == "unwatched"]
    assert [(item["node"], "Killed" in item["text"]) for item in told] == [("n2", True)]
    assert told[0]["since"] == pytest.approx(told[0]["t"] - 7.0, abs=0.1)
