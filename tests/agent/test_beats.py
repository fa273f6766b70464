"""What a beat says of a rank's processes, read from /proc of real ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from slurm_llm.agent import beats, processes
from slurm_llm.agent.processes import Found
from tests.rehearsal.test_triton import await_true

WAITS = """
import sys, threading, time
def nap():
    while True: time.sleep(0.002)
threading.Thread(target=nap, daemon=True).start()
held = b'x' * (50 << 20)
open('/dev/zero', 'rb', buffering=0).read(30 << 20)
print('ready', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def waiter() -> Iterator[Found]:
    """A process whose main thread sleeps while another one naps; it holds 50 MiB and has read 30 MiB."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        yield Found(child.pid, child.pid, 3, "worker", "python3")
        child.stdin.close()


def test_a_beat_holds_what_all_threads_have_done(waiter: Found) -> None:
    """An engine waits in a thread of its own, not in the main one."""
    own = beats.of_ranks([waiter], set())["3"]
    assert own["m"] > 50
    assert 30 <= own["r"] < 60
    assert len(own["st"]) == 1
    await_true(lambda: processes.naps(waiter.pid) > own["n"] + 20, "naps of the second thread")


def test_a_servers_own_naps_do_not_count_beside_its_childs(waiter: Found) -> None:
    """tritonserver's timers nap all the time; where it is all there is, they count."""
    server = waiter._replace(pid=1, name="tritonserver")
    both = beats.of_ranks([waiter, server], {1})["3"]
    assert len(both["st"]) == 2
    assert both["n"] <= processes.naps(waiter.pid)
    assert beats.of_ranks([waiter], {waiter.pid})["3"]["n"] > 0


def test_a_process_with_many_threads_is_asked_for_one(waiter: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread is a file to read: the main one, which sleeps, speaks for all."""
    monkeypatch.setattr(processes, "MOST_THREADS", 1)
    before = processes.naps(waiter.pid)
    monkeypatch.undo()
    await_true(lambda: processes.naps(waiter.pid) > before + 20, "naps of all threads")
    monkeypatch.setattr(processes, "MOST_THREADS", 1)
    # The main one may just have gone to sleep for good.
    assert processes.naps(waiter.pid) <= before + 5


def test_a_process_that_has_gone_reads_as_nothing() -> None:
    """It may end between two looks."""
    gone = Found(2**22 + 1, 1, 0, "worker", "x")
    own = beats.of_ranks([gone], set())["0"]
    assert (own["n"], own["m"], own["r"], own["st"]) == (0, 0.0, 0.0, "X")


def test_an_agent_that_is_held_up_still_says_that_it_lives() -> None:
    """A file system that hangs must not look like a lost node; one that beats by itself is not doubled."""
    told: list[dict[str, beats.Beat]] = []
    due = time.monotonic() + 1000
    beats.keep_up(lambda: due, told.append, 0.05)
    time.sleep(0.3)
    assert told == []
    due = time.monotonic() - 1
    await_true(lambda: len(told) >= 2, "beats in the agent's place")
    assert told[:2] == [{}, {}]
    due = time.monotonic() + 1000
