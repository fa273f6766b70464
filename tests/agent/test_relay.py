"""The relay with real pipes and sockets: much data, many connections, slow readers, ends of every kind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import slurm_llm.agent
from slurm_llm.agent import relay

AGENT = Path(slurm_llm.agent.__file__).parent
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
PIECE = 1 << 16
RESIDENT_MIB = 60


class Ends:
    """A far end in a process of its own, the near end of this one, and a server that the far end reaches."""

    def __init__(self, process: subprocess.Popen[bytes], channel: relay.Channel, port: int) -> None:
        self.process, self.channel, self.port = process, channel, port
        self.running = asyncio.ensure_future(channel.run())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Task[str]]:
        """Return a client's streams, and the task that carries them."""
        carried: asyncio.Future[asyncio.Task[str]] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            carrying = self.channel.open("127.0.0.1", self.port).carry(reader, writer)
            carried.set_result(asyncio.ensure_future(carrying))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        task = await carried
        server.close()
        return reader, writer, task

    def resident_mib(self) -> float:
        """Return the far end's memory."""
        rows = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("VmRSS"))


def through(handler: Handler, test: Callable[[Ends], Awaitable[None]]) -> None:
    """Run `test` with a relay to a server that treats each connection with `handler`."""

    async def run() -> None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [sys.executable, "-I", str(AGENT), "relay"], stdin=pipe, stdout=pipe, bufsize=0
        ) as process:
            ends = await relay.over(process.stdout, process.stdin)
            await ends[0].readuntil(relay.MAGIC)
            own = Ends(process, relay.Channel(ends), port)
            try:
                await asyncio.wait_for(test(own), 60)
            finally:
                own.channel.writer.close()
                await asyncio.to_thread(process.wait, 10)
                await own.running
                server.close()

    asyncio.run(run())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Give back what comes, and end when it ends."""
    with suppress(ConnectionError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
    writer.close()


async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything, then answer with its digest: a server that waits for the client's end."""
    writer.write(sha256(await reader.read()).hexdigest().encode())
    writer.close()


def test_every_byte_goes_through_and_a_half_closed_connection_is_answered() -> None:
    """All bytes, line ends among them, in 20 MB; the answer comes after the client has said that it is done."""
    data = bytes(range(256)) * 80_000

    async def test(ends: Ends) -> None:
        reader, writer, task = await ends.connect()
        writer.write(data)
        writer.write_eof()
        assert (await reader.read()).decode() == sha256(data).hexdigest()
        assert await task == ""
        writer.close()

    through(swallow, test)


def test_many_at_once_get_their_own_bytes() -> None:
    """A hundred connections, each with data of its own, through one pair of pipes."""

    async def one(ends: Ends, number: int) -> None:
        data = bytes([number]) * 50_000
        reader, writer, task = await ends.connect()
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.close()
        await task

    async def test(ends: Ends) -> None:
        await asyncio.gather(*(one(ends, number) for number in range(100)))
        assert ends.channel.connections == {}

    through(echo, test)


def test_one_that_nobody_reads_holds_up_no_other_and_no_memory() -> None:
    """A client that takes nothing of 64 MB that it is sent; others go on, and the far end keeps only its window."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1)
        with suppress(ConnectionError):
            for _ in range(1024 if first == b"a" else 0):
                writer.write(b"x" * PIECE)
                await writer.drain()
            writer.write(b"done")
        writer.close()

    async def test(ends: Ends) -> None:
        slow_reader, slow, slow_task = await ends.connect()
        slow.write(b"a")
        for _ in range(20):
            reader, writer, task = await ends.connect()
            writer.write(b"b")
            assert await reader.read() == b"done"
            writer.close()
            await task
        assert ends.resident_mib() < RESIDENT_MIB
        total = 0
        while data := await slow_reader.read(PIECE):
            total += len(data)
        assert total == 1024 * PIECE + 4
        slow.close()
        await slow_task

    through(endless, test)


def test_a_server_that_speaks_first_is_heard() -> None:
    """The word to connect goes out even when the client says nothing."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def test(ends: Ends) -> None:
        reader, writer, task = await ends.connect()
        assert await reader.read() == b"hello"
        writer.close()
        await task

    through(greet, test)


def test_a_server_that_is_not_there_is_named() -> None:
    """The client's connection ends, and the reason comes back with the place."""

    async def test(ends: Ends) -> None:
        ends.port = 1
        reader, writer, task = await ends.connect()
        writer.write(b"anybody?")
        assert "127.0.0.1:1" in await task
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    through(echo, test)


def test_a_client_that_goes_ends_the_servers_connection() -> None:
    """What a client leaves by a reset is reset at the server too."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(PIECE):
                pass
        ended.set()
        writer.close()

    async def test(ends: Ends) -> None:
        _, writer, task = await ends.connect()
        writer.write(b"x")
        await writer.drain()
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 10)
        await task

    through(serve, test)


def test_no_connection_outlives_the_relay() -> None:
    """A far end that is killed, as with its job, ends every connection with a reason."""

    async def test(ends: Ends) -> None:
        reader, writer, task = await ends.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        ends.process.kill()
        assert "relay has ended" in await task
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    through(echo, test)


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the most is refused before anything is sent for it."""
    monkeypatch.setattr(relay, "MOST", 1)

    async def test(ends: Ends) -> None:
        _, writer, task = await ends.connect()
        with pytest.raises(OSError, match="1 connections already"):
            ends.channel.open("127.0.0.1", ends.port)
        writer.close()
        await task

    through(echo, test)


def test_the_far_end_ends_with_its_input() -> None:
    """A near end that is killed closes the pipe: no step stays behind."""
    done = subprocess.run(
        [sys.executable, "-I", str(AGENT), "relay"],
        input=b"",
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert (done.stdout, done.stderr) == (relay.MAGIC, b"")
