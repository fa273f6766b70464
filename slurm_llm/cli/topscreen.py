"""The terminal of the live view: its other screen, keys, size and signals, and its state given back at the end.

Only lines that have changed are written: people look over slow connections.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.text import Text

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The other screen, no cursor, no wrapping, cleared."""
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
KEYS = 64
TERMINATED_RC = 128 + signal.SIGTERM


class Screen:
    """The terminal while the view is on; use it with `with`."""

    def __init__(self) -> None:
        self._out, self._in = sys.stdout.fileno(), -1
        self._console = Console(file=sys.stdout, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._shown: list[str] = []
        self._size = (0, 0)
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        if sys.stdin is not None and sys.stdin.isatty():
            self._in = sys.stdin.fileno()

    @property
    def keys(self) -> bool:
        """Whether somebody can press any."""
        return self._in >= 0

    def __enter__(self) -> Screen:
        for number, handler in (
            (signal.SIGWINCH, self._resized),
            (signal.SIGTERM, self._terminated),
            (signal.SIGTSTP, self._stopped),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        try:
            found = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        return max(1, found.columns), max(1, found.lines)

    def paint(self, lines: Sequence[Text]) -> None:
        """Show lines from the top; whatever was below them goes."""
        size = self.size()
        if size != self._size:
            self._size, self._shown = size, []
            self._write("\x1b[0m\x1b[2J")
        new = [self._as_ansi(line) for line in lines]
        parts = []
        for at in range(max(len(new), len(self._shown))):
            now = new[at] if at < len(new) else ""
            if at >= len(self._shown) or now != self._shown[at]:
                # Cleared before, not behind: behind a full line the cursor still stands on its last character.
                parts.append(f"\x1b[{at + 1};1H\x1b[0m\x1b[2K{now}")
        self._shown = new
        self._write("".join(parts))

    def wait(self, seconds: float) -> str:
        """Return the keys that were pressed, empty after that time, or once `wake` was called or the size changed."""
        wanted = [self._reader] if self._in < 0 else [self._reader, self._in]
        ready, _, _ = select.select(wanted, [], [], seconds)
        if self._reader in ready:
            os.read(self._reader, 4096)
        if self._in not in ready:
            return ""
        data = os.read(self._in, KEYS)
        if not data:
            # The terminal is gone.
            return "q"
        return data.decode("ascii", "ignore")

    def wake(self) -> None:
        """Have `wait` return; from any thread."""
        try:
            os.write(self._writer, b"\0")
        except OSError:
            # It is full, so `wait` returns anyway.
            return

    def _as_ansi(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._out, data) :]

    def _take(self) -> None:
        if self._in >= 0:
            self._before = termios.tcgetattr(self._in)
            tty.setcbreak(self._in)
        self._size = (0, 0)
        self._write(ENTER)

    def _give_back(self) -> None:
        self._write(f"\x1b[0m{LEAVE}")
        if self._before is not None:
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)
            self._before = None

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self.wake()

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED_RC)

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: give the terminal to the shell, stop, and take it again afterwards."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stopped)
        self._take()
        self.wake()
