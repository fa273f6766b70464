"""The near end of a relay in a job: the program that reaches it, its first word, and its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from slurm_llm.agent import relay
from slurm_llm.errors import NotReached, Problem
from slurm_llm.observe.text import clean, split_lines
from slurm_llm.process import start_piped
from slurm_llm.slurm.client import scrub_environment

if TYPE_CHECKING:
    import subprocess

    from slurm_llm.surroundings import Surroundings

START_S = 60.0
"""How long a step may take to begin: a busy controller lets it wait."""
STOP_S = 3.0
KEPT_LINES, KEPT_BYTES = 5, 4096
"""Of what the program says beside, for the case that it does not begin."""


class Relay:
    """A relay that has been started: its channel, and the task that ends with it."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: relay.Pipe, errors: asyncio.StreamReader) -> None:
        self.process = process
        self.channel = relay.Channel(pipe)
        self.said = b""
        self.reading = asyncio.ensure_future(self._read(errors))
        self.running: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Wait for the far end's first word.

        Raises:
            NotReached: it does not come; the message has what the program said instead.
        """
        try:
            await asyncio.wait_for(self.channel.reader.readuntil(relay.MAGIC), START_S)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            await self.end()
            name = str(self.process.args[0]) if isinstance(self.process.args, list) else ""
            lines = [clean(line) for line in split_lines(self.said.decode(errors="replace")) if line.strip()]
            said = " | ".join(lines[-KEPT_LINES:]) or f"no word within {START_S:g} s"
            raise NotReached(Problem(name, "the relay in the job did not begin", said)) from None
        self.running = asyncio.ensure_future(self.channel.run())

    @property
    def over(self) -> bool:
        """Whether the far end is gone."""
        return self.running is None or self.running.done()

    async def _read(self, errors: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await errors.read(KEPT_BYTES):
                self.said = (self.said + data)[-KEPT_BYTES:]

    async def end(self) -> None:
        """Close the pipe, which ends the far end, and see the program off."""
        self.channel.writer.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_S
        while self.process.poll() is None and loop.time() < deadline:
            await asyncio.sleep(0.05)
        if self.process.poll() is None:
            self.process.terminate()
            await asyncio.to_thread(self.process.wait)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.reading, 1.0)
        if self.running is not None:
            await self.running


async def start_relay(argv: tuple[str, ...], around: Surroundings) -> Relay:
    """Start a relay by `argv` and wait until it answers.

    Raises:
        NotReached: there is no such program, or no relay begins.
    """
    try:
        process = start_piped(argv, env=scrub_environment(around.environ))
    except OSError as error:
        raise NotReached(Problem(argv[0], f"cannot be started: {error.strerror}")) from None
    pipe = await relay.over(process.stdout, process.stdin)
    errors = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(errors), process.stderr)
    made = Relay(process, pipe, errors)
    await made.begin()
    return made
