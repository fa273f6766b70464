"""GPU clocks are locked and given back through `sudo -n nvidia-smi`, and a failure of either is only a sentence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_llm.agent import clocks

SUDO = """#!/bin/sh
sleep "${CLOCKS_SLEEP:-0}"
printf '%s\\n' "$*" >>"$CLOCKS_LOG"
[ -z "$CLOCKS_SAYS" ] || { echo "$CLOCKS_SAYS"; exit 1; }
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `sudo` on PATH that notes its arguments."""
    program = tmp_path / "bin" / "sudo"
    program.parent.mkdir()
    program.write_text(SUDO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CLOCKS_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("CLOCKS_SAYS", "")
    return tmp_path / "log"


def test_clocks_are_locked_and_given_back(log: Path) -> None:
    """No password is ever asked for (-n); the options are nvidia-smi's."""
    assert (clocks.lock("1200,1410"), clocks.reset()) == ("", "")
    assert log.read_text().splitlines() == ["-n nvidia-smi -lgc 1200,1410", "-n nvidia-smi -rgc"]


def test_a_refusal_is_told_in_one_line(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sudo's own words, without line breaks."""
    monkeypatch.setenv("CLOCKS_SAYS", "sudo: a password\nis required")
    assert clocks.lock("1410") == "sudo -n nvidia-smi -lgc 1410: exit status 1: sudo: a password is required"


def test_a_node_without_sudo_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is a sentence too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "No such file or directory" in clocks.lock("1410")


def test_locking_does_not_hold_up_the_watch(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may take seconds: it runs in a thread of its own, which is awaited before the clocks are given back."""
    monkeypatch.setenv("CLOCKS_SLEEP", "0.5")
    told: list[str] = []
    began = time.monotonic()
    thread = clocks.lock_aside("1410", told.append)
    assert (time.monotonic() - began < 0.4, told) == (True, [])
    thread.join(10)
    assert told == [""]
