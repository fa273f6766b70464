"""Whether a silent node is gone: its slurmd's port says so, and silence by itself only after a long time."""

from __future__ import annotations

import socket
import time

import pytest

from slurm_llm.agent import nodes
from slurm_llm.agent.nodes import DEAD_S, SILENT_S, Nodes


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
