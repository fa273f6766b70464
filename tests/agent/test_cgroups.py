"""Whether a process was killed for want of memory: its control group's own counter says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_llm.agent import cgroups

GREEDY = "import sys; sys.stdin.readline(); held = b'x' * (200 << 20)"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("oom_kill_disable 0\nunder_oom 0\n", 0),
        ("", 0),
    ],
)
def test_both_kinds_of_counters(tmp_path: Path, text: str, count: int) -> None:
    """memory.events of version 2, memory.oom_control of version 1, that of an old kernel without the count."""
    path = tmp_path / "counter"
    path.write_text(text)
    assert cgroups.kills(str(path)) == count
    assert cgroups.kills(str(tmp_path / "none")) == 0


def test_the_counter_is_that_of_the_processes_own_group(tmp_path: Path) -> None:
    """The file that /proc names, where it can be read."""
    rows = [row.split(":", 2) for row in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in rows:
        name = "memory/{}/memory.oom_control" if "memory" in controllers.split(",") else "{}/memory.events"
        if "memory" in controllers.split(",") or not controllers:
            file = tmp_path / name.format(path.strip("/"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("oom_kill 7\n")
    assert cgroups.kills(cgroups.counter_of(os.getpid(), str(tmp_path))) == 7
    assert cgroups.counter_of(2**22 + 1) == ""


@pytest.fixture
def small() -> Iterator[Path]:
    """A real control group of 64 MiB."""
    first = Path("/sys/fs/cgroup/memory")
    folder = (first if first.is_dir() else first.parent) / f"slurm_llm_test_{os.getpid()}"
    limit = "memory.limit_in_bytes" if first.is_dir() else "memory.max"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(64 << 20))
    except OSError as error:
        folder.rmdir() if folder.is_dir() else None
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    folder.rmdir()


def test_a_real_kill_is_counted_once(small: Path) -> None:
    """The kernel ends the process that takes too much; a neighbour's SIGKILL in the same group is another one."""
    kills, children = cgroups.Kills(), []
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", GREEDY], stdin=subprocess.PIPE)
        (small / "cgroup.procs").write_text(str(child.pid))
        kills.watch(child.pid)
        children.append(child)
    greedy, other = children
    greedy.communicate(b"\n")
    assert greedy.returncode == -signal.SIGKILL
    other.kill()
    other.communicate()
    assert [kills.took(greedy.pid), kills.took(other.pid), kills.took(greedy.pid)] == [True, False, False]
