"""Whether a silent node is gone: its slurmd's port says so, and silence by itself only after a long time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest

from slurm_llm.agent import nodes
from slurm_llm.agent.nodes import DEAD_S, MOST_LOOKS, SILENT_S, Nodes


def test_a_listening_slurmd_is_no_absence() -> None:
    """A busy node's kernel still takes connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        assert nodes.absence("127.0.0.1", held.getsockname()[1]) == ""


def test_a_refused_connection_and_a_dead_network_are_told_apart() -> None:
    """A living kernel without slurmd refuses; a node without network does not answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert nodes.absence("127.0.0.1", port) == "neither its agent nor its slurmd answers"
    assert nodes.absence("no-such-node.invalid", port) == "it does not answer on the network"


def test_silence_alone_counts_after_a_long_time() -> None:
    """A node that has left in order is not missed."""
    seen = Nodes()
    seen.heard("a", 100.0)
    seen.heard("b", 100.0)
    seen.forget("b")
    assert seen.silent(100.0 + SILENT_S - 1) is None
    silent = seen.silent(100.0 + SILENT_S)
    assert silent is not None and silent.node == "a"
    lost = seen.lost(100.0 + DEAD_S)
    assert lost is not None and (lost.node, lost.why) == ("a", "its agent is silent for 60 s")


def test_a_node_that_speaks_again_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look takes seconds; what it found is worth nothing when the agent has spoken meanwhile."""
    monkeypatch.setattr(nodes, "slurm_says", lambda node: "DOWN*")
    seen = Nodes()
    seen.heard("a", time.monotonic() - SILENT_S - 1)
    seen._look("a", SILENT_S + 1)
    assert [one.why for one in seen.gone] == ["Slurm says DOWN*"]
    seen.gone.clear()
    seen.heard("a", time.monotonic())
    seen._look("a", SILENT_S + 1)
    assert seen.gone == []


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        ("DOWN*", True),
        ("IDLE+NOT_RESPONDING", True),
        ("MIXED+REBOOT_ISSUED", True),
        ("IDLE+POWERED_DOWN", True),
        ("ALLOCATED", False),
        ("ALLOCATED+REBOOT_REQUESTED", False),
        ("MIXED+FAIL", False),
        ("ALLOCATED+POWER_DOWN", False),
        ("", False),
    ],
)
def test_which_states_are_those_of_a_node_that_is_gone(state: str, gone: bool) -> None:
    """What an admin wants of a node once its jobs have ended takes nothing from the job that is there."""
    assert nodes.is_gone(state) is gone


def test_a_head_that_stood_still_takes_no_node_for_lost() -> None:
    """Its job was suspended, or a file system held it up: nobody could hear the agents."""
    seen = Nodes()
    assert seen.stood_still_s(100.0) == 0.0
    seen.heard("a", 100.0)
    assert seen.stood_still_s(100.5) == 0.0
    assert seen.stood_still_s(100.5 + 2 * DEAD_S) == 2 * DEAD_S
    now = 100.5 + 2 * DEAD_S
    assert seen.silent(now) is None and seen.lost(now) is None
    # From then on silence counts as ever.
    assert seen.silent(now + SILENT_S) is not None
    assert seen.lost(now + DEAD_S) is not None


def test_silent_nodes_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of nodes whose network stumbles must not become hundreds of questions to slurmctld, again and again."""
    asked, go_on = [], threading.Event()

    def says(node: str) -> str:
        asked.append(node)
        go_on.wait(20)
        return "DOWN"

    monkeypatch.setattr(nodes, "slurm_says", says)
    seen, long_ago = Nodes(), time.monotonic() - SILENT_S - 1
    for number in range(50):
        seen.heard(f"n{number}", long_ago)
    for later in range(3):
        assert seen.lost(long_ago + SILENT_S + 1 + 3 * later) is None
    assert len(asked) == len(set(asked)) == MOST_LOOKS
    go_on.set()
    deadline = time.monotonic() + 20
    while len(seen.gone) < MOST_LOOKS or seen.looking:
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Slurmd:
    """A port that ends each connection at once, as a slurmd at work does, or takes them only, as one that hangs."""

    def __init__(self, works: bool) -> None:
        self.held = socket.create_server(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]
        if works:
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.held.accept()[0].close()


@pytest.mark.parametrize("works", [True, False])
def test_a_slurmd_at_work_is_told_from_one_that_stands_still(works: bool) -> None:
    """The kernel takes connections for both."""
    slurmd = Slurmd(works)
    with slurmd.held:
        assert nodes.absence("127.0.0.1", slurmd.port) == ""
        assert nodes.answers("127.0.0.1", slurmd.port, 5.0 if works else 0.3) is works


@pytest.mark.parametrize(
    ("works", "srun", "alone"),
    [
        (True, "srun: error: 127.0.0.1: task 1: Killed\n", "its agent has ended (Killed); the node answers"),
        (True, "srun: error: 127.0.0.2: task 2: Killed\n", "its agent has ended (killed?); the node answers"),
        (False, "srun: error: 127.0.0.1: task 1: Killed\n", ""),
    ],
)
def test_an_agent_that_has_ended_is_no_lost_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool, srun: str, alone: str
) -> None:
    """Somebody killed it: the node's slurmd is at work, whatever Slurm says after a ping that it missed."""
    monkeypatch.setattr(nodes, "slurm_says", lambda node: "MIXED+NOT_RESPONDING")
    monkeypatch.setattr(nodes, "ANSWER_S", 0.3)
    slurmd, log = Slurmd(works), tmp_path / "agents.log"
    log.write_text(srun)
    seen, now = Nodes(str(log)), time.monotonic()
    seen.port = slurmd.port
    seen.heard("127.0.0.1", now - SILENT_S - 1)
    with slurmd.held:
        seen._look("127.0.0.1", SILENT_S + 1)
    assert seen.gone == []
    lost = seen.lost(now + DEAD_S)
    assert (lost is None) is works
    assert [one.why for one in seen.gone_alone()] == ([f"node 127.0.0.1 is watched no more: {alone}"] if alone else [])
    assert seen.gone_alone() == [] and (seen.silent(now + DEAD_S) is None) is works


def test_a_node_without_its_agent_can_still_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at further, though less often."""
    monkeypatch.setattr(nodes, "slurm_says", lambda node: "DOWN*")
    seen, now = Nodes(), time.monotonic()
    seen.heard("a", now - DEAD_S)
    seen.answering.add("a")
    seen._leave_alone("a", DEAD_S, "Killed")
    seen._look("a", DEAD_S)
    lost = seen.lost(now)
    assert lost is not None and lost.why == "Slurm says DOWN*"
