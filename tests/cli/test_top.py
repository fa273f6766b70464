"""`top`: one picture for scripts, its JSON, and the live view in a pseudo-terminal, which it gives back as it was."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_llm.cli.top import has_unicode
from slurm_llm.cli.topscreen import LEAVE
from slurm_llm.cli.topwatch import ASK_S
from tests.cli.test_cli import Desk
from tests.cli.test_endpoint_cli import says, serving
from tests.http_server import serve
from tests.observe.run_dirs import RunDir, squeue_row

RUN_ID = "20261130-104000-abcd"
PATIENCE_S = 30.0
SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(1, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""What a shell does: the program gets a process group of its own and the terminal, and can then be stopped by a key."""
PROGRAM = (sys.executable, "-m", "slurm_llm", "top")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7])m")
MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return Desk(tmp_path, monkeypatch)


def loading(desk: Desk) -> RunDir:
    """Write a run that loads."""
    desk.says("squeue", squeue_row(7, "RUNNING", left="1:00:00"))
    return RunDir(desk.folder / "logs" / f"demo-{RUN_ID}").loading()


def test_once(desk: Desk) -> None:
    """Two looks at a server: plain text within 80 × 24, with rates."""
    counts = iter(range(0, 1000, 10))
    name = "nv_inference_request_success"
    answer = f'# TYPE {name} counter\n{name}{{model="tensorrt_llm",version="1"}} '
    with serve(lambda path, body: (200, iter([f"{answer}{next(counts)}\n".encode()]))) as served:
        serving(desk, f"{served.url}/metrics")
        done = desk.run("top", "--once", "--interval", "0.2")
        again = json.loads(desk.run("top", "--json", "--interval", "0.2").stdout)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("READY  demo  job 7")
    assert re.search(r"\n0 +node1 +1/1 +\d", done.stdout), done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80 and "\x1b" not in done.stdout
    assert again["total"]["requests_per_s"] > 0
    assert again["instances"][0]["look"]["figures"]["answered"] >= 20


def test_once_with_a_server_that_is_no_triton(desk: Desk) -> None:
    """It is told in the instance's row, and the picture is whole."""
    with serve(says("\x1b[2Jno metrics here")) as served:
        serving(desk, f"{served.url}/metrics")
        done = desk.run("top", "--once", "--interval", "0.2")
    assert done.exit_code == 0
    assert "is no line of Prometheus' text" in done.stdout and "\x1b" not in done.stdout


def test_once_of_a_run_that_loads_looks_once(desk: Desk) -> None:
    """No server, no second look: an interval of an hour is not waited for."""
    loading(desk)
    done = desk.run("top", "--once", "--interval", "3600")
    assert done.exit_code == 0
    assert "LOADING  demo" in done.stdout and "▄ 8 loading" in done.stdout
    assert "[" not in done.stdout.splitlines()[0]


def test_once_of_a_run_without_a_job(desk: Desk) -> None:
    """One that was rendered and not submitted."""
    RunDir(desk.folder / "logs" / f"demo-{RUN_ID}")
    done = desk.run("top", "--once")
    assert done.exit_code == 0
    assert done.stdout.startswith("PLANNED  demo  no job")
    assert json.loads(desk.run("top", "--json").stdout)["status"]["job_id"] is None


def test_once_is_as_large_as_it_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS and LINES say it for a script, and the locale whether there is more than ASCII."""
    loading(desk)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "9")
    monkeypatch.setenv("LC_ALL", "C")
    lines = desk.run("top", "--once").stdout.splitlines()
    assert len(lines) <= 9 and max(map(len, lines)) <= 40
    assert all(map(str.isascii, lines))


def test_the_live_view_wants_a_terminal(desk: Desk) -> None:
    """Into a pipe it says what to ask for instead."""
    loading(desk)
    done = desk.run("top")
    assert done.exit_code == 2
    assert "--once" in done.stderr


@pytest.mark.parametrize(
    ("environ", "utf8_mode", "expected"),
    [
        ({"LANG": "en_US.UTF-8"}, False, True),
        ({"LC_CTYPE": "C.UTF-8"}, False, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, True, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, True, False),
        ({"LC_CTYPE": "C.UTF-8"}, True, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "de_DE.utf8"}, True, True),
        ({"LANG": "en_US.ISO-8859-1"}, False, False),
        ({}, True, False),
    ],
)
def test_what_the_locale_has(environ: Mapping[str, str], utf8_mode: bool, expected: bool) -> None:
    """What Python puts into LC_CTYPE in the C locale is not the terminal's."""
    assert has_unicode(environ, utf8_mode) is expected


@dataclass
class Terminal:
    """A pseudo-terminal with the live view in it; `seen` is all that was written to it."""

    ours: int
    theirs: int
    process: subprocess.Popen[bytes]
    before: list[object]
    seen: str = ""
    looked: int = field(default=0)

    def read(self, timeout_s: float = 0.1) -> None:
        """Read what there is."""
        ready, _, _ = select.select([self.ours], [], [], timeout_s)
        if ready:
            try:
                self.seen += os.read(self.ours, 65536).decode("utf-8", "replace")
            except OSError:
                # Nobody has the other end open any more.
                return

    def wait_for(self, what: Callable[[str], object]) -> None:
        """Wait until what was written since the last wait has it."""
        deadline = time.monotonic() + PATIENCE_S
        while not what(MOVES.sub("", self.seen[self.looked :])):
            assert time.monotonic() < deadline, self.seen[self.looked :]
            self.read()
        self.looked = len(self.seen)

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.ours, keys)

    @property
    def program(self) -> int:
        """The process that has the terminal."""
        return os.tcgetpgrp(self.ours)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; the kernel tells those who have it."""
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def ended(self) -> int:
        """Wait for the end; return the exit status, and insist that the terminal is as it was."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self.read()
        while (size := len(self.seen)) >= 0:
            self.read(0.2)
            if len(self.seen) == size:
                break
        assert termios.tcgetattr(self.theirs) == self.before
        assert self.seen.count("\x1b[?1049h") == self.seen.count("\x1b[?1049l")
        assert self.seen.count("\x1b[?25l") == self.seen.count("\x1b[?25h")
        return self.process.returncode


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., Terminal]]:
    """Return what starts `top` in a pseudo-terminal of 80 × 24."""
    opened: list[Terminal] = []

    def start(*words: str, stdin: int | None = None) -> Terminal:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        given = theirs if stdin is None else stdin
        process = subprocess.Popen(
            (sys.executable, "-c", SHELL, *PROGRAM, "--interval", "0.2", *words),
            stdin=given,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=environ,
        )
        opened.append(Terminal(ours, theirs, process, termios.tcgetattr(theirs)))
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        os.close(one.ours)
        os.close(one.theirs)


def test_it_lives(desk: Desk, open_terminal: Callable[..., Terminal]) -> None:
    """It draws, draws anew what has changed, sorts otherwise, fits another size, and q ends it."""
    run, began = loading(desk), time.monotonic()
    terminal = open_terminal()
    terminal.wait_for(lambda seen: "LOADING  demo" in seen and "▄ 8 loading" in seen)
    run.serving()
    terminal.wait_for(lambda seen: "READY  demo" in seen and "■ 8 ready" in seen)
    terminal.press(b"s")
    terminal.wait_for(lambda seen: "sort: number" in seen)
    terminal.resize(50, 12)
    terminal.wait_for(lambda seen: "READY  demo  job 7" in seen and "sort: number" in seen)
    terminal.press(b"q")
    assert terminal.ended() == 0
    assert terminal.seen.endswith(LEAVE)
    assert COLOUR.search(terminal.seen)
    asked = [call for call in desk.calls() if call.startswith("squeue")]
    assert 1 <= len(asked) <= 2 + (time.monotonic() - began) / ASK_S


@pytest.mark.parametrize("how", ["ctrl-c", "terminated"])
def test_it_gives_the_terminal_back(desk: Desk, open_terminal: Callable[..., Terminal], how: str) -> None:
    """Interrupted by a key or by a signal."""
    loading(desk)
    terminal = open_terminal()
    terminal.wait_for(lambda seen: "LOADING  demo" in seen)
    if how == "ctrl-c":
        terminal.press(b"\x03")
        assert terminal.ended() == 130
    else:
        os.kill(terminal.program, signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM
    assert "Traceback" not in terminal.seen


def test_it_ends_with_the_run(desk: Desk, open_terminal: Callable[..., Terminal]) -> None:
    """A run that fails while somebody looks: the last picture stays on the ordinary screen, and the exit code tells."""
    run = loading(desk)
    terminal = open_terminal()
    terminal.wait_for(lambda seen: "LOADING  demo" in seen)
    run.killed(5).result("FAILED", "rank 5 on node node3 went first")
    assert terminal.ended() == 8
    last = terminal.seen.partition(LEAVE)[2]
    assert "FAILED  demo" in last and "cause   rank 5 on node node3 went first" in last
    assert "slurm-llm diagnose" in last and "\x1b" not in last


def test_it_ends_well_with_a_run_that_does(desk: Desk, open_terminal: Callable[..., Terminal]) -> None:
    """A run that was told to stop."""
    run = loading(desk)
    run.serving()
    terminal = open_terminal()
    terminal.wait_for(lambda seen: "READY  demo" in seen)
    run.result("COMPLETED")
    assert terminal.ended() == 0
    assert "COMPLETED  demo" in terminal.seen.partition(LEAVE)[2]


def test_a_run_that_is_over_needs_no_screen(desk: Desk, open_terminal: Callable[..., Terminal]) -> None:
    """Its last picture is printed, and that is all."""
    run = loading(desk)
    run.serving().killed(5).result("FAILED", "rank 5 on node node3 went first")
    terminal = open_terminal()
    assert terminal.ended() == 8
    assert "FAILED  demo" in terminal.seen and "\x1b" not in terminal.seen


def test_without_a_keyboard(desk: Desk, open_terminal: Callable[..., Terminal]) -> None:
    """Its input may be no terminal: it shows no keys and goes on."""
    run = loading(desk)
    with Path(os.devnull).open() as nothing:
        terminal = open_terminal(stdin=nothing.fileno())
        terminal.wait_for(lambda seen: "LOADING  demo" in seen and "read 0 s ago" in seen)
        run.serving()
        terminal.wait_for(lambda seen: "READY  demo" in seen)
        assert "q quit" not in terminal.seen
        run.result("COMPLETED")
        assert terminal.ended() == 0


def test_no_colours_where_none_are_wanted(
    desk: Desk, open_terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR: states are told by marks and words alone."""
    monkeypatch.setenv("NO_COLOR", "1")
    loading(desk)
    terminal = open_terminal()
    terminal.wait_for(lambda seen: "▄ 8 loading" in seen)
    terminal.press(b"q")
    assert terminal.ended() == 0
    assert not COLOUR.search(terminal.seen)


def test_it_stops_and_goes_on(desk: Desk, open_terminal: Callable[..., Terminal]) -> None:
    """Ctrl-Z gives the terminal back; the picture returns when the shell continues it."""
    loading(desk)
    terminal = open_terminal()
    terminal.wait_for(lambda seen: "LOADING  demo" in seen)
    program, deadline = terminal.program, time.monotonic() + PATIENCE_S
    terminal.press(b"\x1a")
    while Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, terminal.seen
        terminal.read()
    # It may have stopped between the last look at its words and that at its state.
    terminal.read()
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert terminal.seen.endswith(LEAVE)
    terminal.looked = len(terminal.seen)
    os.kill(program, signal.SIGCONT)
    terminal.wait_for(lambda seen: "LOADING  demo" in seen)
    terminal.press(b"q")
    assert terminal.ended() == 0
