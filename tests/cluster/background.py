"""Commands of the user that run beside a test: their output as it comes, a terminal of their own, an end by signal."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.conftest import User, wait_for


@dataclass
class Background:
    """A command that runs; `out` and `err` are what it has printed so far."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def wait_says(self, word: str) -> str:
        """Return what it printed once `word` is in it; a command that ends instead shows what it said."""

        def said() -> str:
            assert self.process.poll() is None or word in self.out, (self.out, self.err)
            return self.out if word in self.out else ""

        return str(wait_for(f"{word!r} printed", said))

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def ended(self, timeout_s: float = 30.0) -> int:
        """Return its exit status."""
        return self.process.wait(timeout_s)


def environment_of(user: User) -> dict[str, str]:
    """Return the environment in which the user's commands run."""
    home = pwd.getpwnam(user.cluster.user).pw_dir
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    env = {"HOME": home, "PATH": path, "SLURM_CONF": str(user.cluster.slurm_conf), "LANG": "C.UTF-8", "TERM": "xterm"}
    return env | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}


@contextmanager
def background(user: User, *argv: str, path: str = "") -> Iterator[Background]:
    """Start `python -m slurm_llm ARGV` as the user; `path` comes before PATH. Whatever is left at the end is killed."""
    folder = user.folder / f"background {len(list(user.folder.glob('background*')))}"
    folder.mkdir()
    env = environment_of(user)
    env["PATH"] = f"{path}:{env['PATH']}" if path else env["PATH"]
    account = pwd.getpwnam(user.cluster.user)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "slurm_llm", *argv],
            cwd=user.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
        )
    try:
        yield Background(process, folder)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
