"""Many connections over one pair of pipes: both ends of a tunnel into a job. It knows no server and no run.

A frame is a header (connection, kind, bytes that follow), its bytes, and a line end: slurmstepd hands on what a task
prints when a line is whole. Each connection may have WINDOW bytes under way in each direction, and more once those have
been taken off: one that nobody reads holds up no other, and memory has a bound.
"""

import asyncio
import os
import struct
import sys
from typing import Any, Dict, Optional, Set, Tuple

MAGIC = b"\nslurm_llm relay 1\n"
"""What the far end says first: before it a login script, or a step's prologue, may have printed anything."""
OPEN, DATA, END, RESET, CREDIT = range(1, 6)
CHUNK = 1 << 15
WINDOW = 1 << 18
MOST = 512
"""Connections at a time."""
CONNECT_S = 10.0
FIRST_S = 0.02
"""How long the first bytes of a connection are awaited; a server may be the one that speaks first."""
_HEADER = struct.Struct(">IBI")
_COUNT = struct.Struct(">I")
_GONE = (OSError, EOFError)

Pipe = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _frame(number: int, kind: int, data: bytes) -> bytes:
    return _HEADER.pack(number, kind, len(data)) + data + b"\n"


class Connection:
    """One connection: what the other end sends stands in `inbox`, None is its end; `credit` bytes may be sent to it."""

    def __init__(self, channel: "Channel", number: int) -> None:
        self.channel, self.number = channel, number
        self.inbox: "asyncio.Queue[Optional[bytes]]" = asyncio.Queue()
        self.credit = WINDOW
        self.room = asyncio.Event()
        self.reset: "asyncio.Future[str]" = asyncio.get_event_loop().create_future()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Pass bytes both ways until both ends have said that they are done, or one gives up; return why, if told."""
        ways = both(self._outward(reader), self._inward(writer))
        try:
            await asyncio.wait([ways, self.reset], return_when=asyncio.FIRST_COMPLETED)
            if not ways.done():
                return self.reset.result()
            await ways
            # What is still to be written goes out all the same.
            writer.close()
        except _GONE:
            await self.give_up()
        finally:
            ways.cancel()
            self.channel.forget(self)
            if not writer.transport.is_closing():
                writer.transport.abort()
        return ""

    async def give_up(self, why: str = "") -> None:
        """Tell the other end that nothing more comes."""
        try:
            await self.channel.send(self.number, RESET, why.encode("utf-8", "replace")[:CHUNK])
        except _GONE:
            return

    async def _outward(self, reader: asyncio.StreamReader) -> None:
        while True:
            while self.credit <= 0:
                self.room.clear()
                await self.room.wait()
            data = await reader.read(min(CHUNK, self.credit))
            if not data:
                await self.channel.send(self.number, END)
                return
            self.credit -= len(data)
            await self.channel.send(self.number, DATA, data)

    async def _inward(self, writer: asyncio.StreamWriter) -> None:
        taken = 0
        while True:
            data = await self.inbox.get()
            if data is None:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            taken += len(data)
            if taken >= WINDOW // 4:
                await self.channel.send(self.number, CREDIT, _COUNT.pack(taken))
                taken = 0

    def take(self, kind: int, data: bytes) -> None:
        """Take a frame in; this never waits, so that no connection holds up the others."""
        if kind == DATA:
            self.inbox.put_nowait(data)
        elif kind == END:
            self.inbox.put_nowait(None)
        elif kind == CREDIT:
            self.credit += _COUNT.unpack(data)[0]
            self.room.set()
        elif kind == RESET and not self.reset.done():
            self.reset.set_result(data.decode("utf-8", "replace"))


class Channel:
    """One end of the pair of pipes; `serves` at the end that opens connections to where it is told."""

    def __init__(self, pipe: Pipe, serves: bool = False) -> None:
        self.reader, self.writer = pipe
        self.serves = serves
        self.connections: Dict[int, Connection] = {}
        self.tasks: "Set[asyncio.Future[None]]" = set()
        self.unsent: Dict[int, bytes] = {}
        self.sending = asyncio.Lock()
        self.last = 0

    async def send(self, number: int, kind: int, data: bytes = b"") -> None:
        """Send a frame, once the pipe has room for it."""
        async with self.sending:
            self.writer.write(self.unsent.pop(number, b"") + _frame(number, kind, data))
            await self.writer.drain()

    def open(self, host: str, port: int) -> Connection:
        """Have the other end connect to a place; whether it could is heard by `carry`.

        The word goes out with the first bytes, or shortly: a second small message behind one that is not acknowledged
        waits 40 ms for that in TCP, on which srun stands.
        """
        if len(self.connections) >= MOST:
            raise OSError("there are %d connections already" % MOST)
        self.last += 1
        made = self.connections[self.last] = Connection(self, self.last)
        self.unsent[made.number] = _frame(made.number, OPEN, ("%s %d" % (host, port)).encode())
        asyncio.get_event_loop().call_later(FIRST_S, self._hurry, made.number)
        return made

    def _hurry(self, number: int) -> None:
        self.writer.write(self.unsent.pop(number, b""))

    def forget(self, connection: Connection) -> None:
        """Drop a connection: further frames for it count for nothing."""
        self.connections.pop(connection.number, None)
        self.unsent.pop(connection.number, None)

    async def run(self) -> None:
        """Take frames in until the other end is gone; then every connection ends."""
        try:
            while True:
                number, kind, size = _HEADER.unpack(await self.reader.readexactly(_HEADER.size))
                if size > CHUNK:
                    raise EOFError
                data = (await self.reader.readexactly(size + 1))[:-1]
                if kind == OPEN and self.serves:
                    self._serve(number, data)
                elif number in self.connections:
                    self.connections[number].take(kind, data)
        except (*_GONE, ValueError, struct.error):
            # What is no frame is the end of what can be understood.
            return
        finally:
            for one in list(self.connections.values()):
                one.take(RESET, b"the relay has ended")

    def _serve(self, number: int, place: bytes) -> None:
        made = self.connections[number] = Connection(self, number)
        host, _, port = place.decode().rpartition(" ")
        task = asyncio.ensure_future(self._connect(made, host, int(port)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _connect(self, made: Connection, host: str, port: int) -> None:
        try:
            ends = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            self.forget(made)
            await made.give_up(unreached(host, port, error))
            return
        await made.carry(*ends)


def unreached(host: str, port: int, error: BaseException) -> str:
    """Return why there is no connection to a place; asyncio's own words are its arguments."""
    number = getattr(error, "errno", None)
    return "%s:%d: %s" % (host, port, os.strerror(number) if number else "no answer")


def both(one: Any, other: Any) -> "asyncio.Future[Any]":
    """Return the run of two coroutines; nobody need ask how it ended, as when it is given up."""
    made: "asyncio.Future[Any]" = asyncio.gather(one, other)
    made.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return made


async def over(source: Any, sink: Any) -> Pipe:
    """Return a reader and a writer over two files of this process, which are closed with them."""
    loop = asyncio.get_event_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sink)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _serve() -> None:
    # Whatever prints to standard output from now on must not come between frames.
    sink = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    pipe = await over(sys.stdin, sink)
    pipe[1].write(MAGIC)
    await Channel(pipe, serves=True).run()


def main() -> int:
    """Be the far end on standard input and output, until the near one is gone."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_serve())
    return 0
