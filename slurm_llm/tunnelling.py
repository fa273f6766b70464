"""Holding a run's addresses open at ports of this machine: straight to its node, or through a relay in the job.

A relay is one step of the job for all connections (`agent/relay.py`), reached over the standard streams of srun or ssh,
so nothing has to listen on the node beside the server itself. It follows a run to another port, node or job.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slurm_llm.agent import relay
from slurm_llm.entering import find_side
from slurm_llm.errors import NotReached, NotReady, Problem
from slurm_llm.observe.endpoint import is_inward
from slurm_llm.observe.facts import serves
from slurm_llm.observe.text import clean
from slurm_llm.relaying import Relay, start_relay
from slurm_llm.runs import FoundRun, current, evidence_of, status_of

if TYPE_CHECKING:
    from slurm_llm.observe.status import RunStatus
    from slurm_llm.surroundings import Surroundings

DIRECT, SSH, SRUN, AUTO = "direct", "ssh", "srun", "auto"
WAYS = (AUTO, DIRECT, SRUN, SSH)
LOOK_S, ASK_S = 2.0, 5.0
"""Between two looks at the run's files, and between two questions to Slurm while it does not serve."""
TRY_S = 3.0
"""How long the node's port is tried before a relay is taken."""
BELIEVED_AFTER = 3
AGAIN_S = 5.0
"""How soon after a relay that did not begin another one may be started, however many connections want one."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where a run serves now: Triton's HTTP, then the OpenAI front end where there is one, and the leader's rank."""

    job: int
    rank: int
    node: str
    targets: tuple[tuple[str, int], ...]
    inward: bool
    """Whether the server listens on its node's loopback alone."""


def find_place(found: FoundRun, instance: int | None) -> Place | None:
    """Return where the run serves, as its files say; None while it does not."""
    job = current(found).job
    if job is None or not serves(job):
        return None
    evidence = evidence_of(found)
    chosen = next((one for one in evidence.endpoints if instance in (None, one.instance)), None)
    if chosen is None or evidence.facts is None:
        return None
    rank = min((one.rank for one in evidence.layout.ranks if one.instance == (chosen.instance or 0)), default=0)
    own = evidence.facts.ranks.get(rank)
    urls = [urlsplit(url) for url in (chosen.url, chosen.openai) if url]
    targets = tuple((url.hostname or "", url.port or 0) for url in urls)
    node = own.node if own and own.node else targets[0][0]
    return Place(job.job_id, rank, node, targets, is_inward(chosen))


def mark_of(found: FoundRun) -> tuple[int, int, int] | None:
    """Return what changes whenever a run serves somewhere else: job, attempt, its endpoint file's time; None while it
    does not. It reads no journal, which a run of thousands of ranks has as many of.
    """
    job = current(found).job
    if job is None or not serves(job):
        return None
    number = job.attempts()[-1].number
    try:
        return job.job_id, number, job.endpoint(number).stat().st_mtime_ns
    except OSError:
        return None


class Tunnel:
    """Ports here and a run there; `say` gets what happens in between, a line each."""

    def __init__(self, found: FoundRun, around: Surroundings, instance: int | None, way: str, say: Say) -> None:
        self.found, self.around, self.instance, self.say = found, around, instance, say
        self.asked_way = self.way = way
        self.place: Place | None = None
        self.mark = mark_of(found)
        self.refused: tuple[float, NotReached] | None = None
        self.relay: Relay | None = None
        self.starting = asyncio.Lock()
        self.stopped = asyncio.Event()
        self.doubt = False
        self.endings = 0
        self.carrying: set[asyncio.Task[None]] = set()

    async def open(self, place: Place) -> None:
        """Find a way to the place.

        Raises:
            NotReached: there is none.
        """
        self.place, self.way = place, self.asked_way
        if self.way == AUTO:
            self.way = DIRECT if await self._reaches(place) else SRUN
        if self.way != DIRECT:
            await self._relay()
        elif place.inward:
            # Whoever has that port on this machine would be taken for it.
            what = f"the server listens on {place.node} alone"
            raise NotReached(Problem("--via direct", what, todo="leave --via out, or say srun or ssh"))

    async def hold(self, sockets: list[socket.socket]) -> RunStatus | None:
        """Carry connections until a signal, or until the run has ended: then return how."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` means it.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.stopped.set)
        servers = [await asyncio.start_server(self._accepter(index), sock=one) for index, one in enumerate(sockets)]
        try:
            return await self._follow()
        finally:
            for server in servers:
                server.close()
            for task in self.carrying:
                task.cancel()
            await asyncio.gather(*self.carrying, return_exceptions=True)
            await self._drop_relay()

    async def _follow(self) -> RunStatus | None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), LOOK_S if self.place else ASK_S)
            if self.stopped.is_set():
                return None
            await self._look()
            if (self.place is None or self.doubt) and (status := await self._ask()) is not None:
                return status

    async def _look(self) -> None:
        mark = await asyncio.to_thread(mark_of, self.found)
        if mark == self.mark:
            return
        self.mark = mark
        place = await asyncio.to_thread(find_place, self.found, self.instance)
        if place == self.place:
            return
        before, self.place = self.place, place
        if place is None:
            self.say("the run does not serve now; connections are refused until it does")
            return
        if before is None or (before.job, before.node) != (place.job, place.node):
            await self._drop_relay()
        try:
            await self.open(place)
            self.say(f"the run serves at {place.node}:{place.targets[0][1]}, job {place.job}, now")
        except (NotReached, NotReady) as error:
            self.say(str(error))
            self.doubt = True

    async def _ask(self) -> RunStatus | None:
        """Ask Slurm of the run; return its status once its end may be believed."""
        status = await asyncio.to_thread(status_of, self.found, self.around)
        self.doubt = self.doubt and not (status.slurm_answered and status.endpoints)
        self.endings = self.endings + 1 if status.ended and status.slurm_answered else 0
        return status if status.ended and (status.has_result or self.endings >= BELIEVED_AFTER) else None

    async def _reaches(self, place: Place) -> bool:
        if place.inward:
            return False
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*place.targets[0]), TRY_S)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True

    async def _relay(self) -> relay.Channel:
        async with self.starting:
            now = asyncio.get_running_loop().time()
            if self.refused is not None and now - self.refused[0] < AGAIN_S:
                raise self.refused[1]
            if self.relay is None or self.relay.over:
                await self._drop_relay()
                try:
                    self.relay = await start_relay(await asyncio.to_thread(self._words), self.around)
                except NotReached as error:
                    self.refused = (asyncio.get_running_loop().time(), error)
                    raise
            return self.relay.channel

    def _words(self) -> tuple[str, ...]:
        assert self.place is not None
        side = find_side(self.found, status_of(self.found, self.around), self.place.rank)
        words = (*side.agent, "relay")
        if self.way == SRUN:
            return side.step(words)
        options = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
        return ("ssh", *options, side.node, f"exec {shlex.join(words)}")

    async def _drop_relay(self) -> None:
        gone, self.relay = self.relay, None
        if gone is not None:
            await gone.end()

    def _accepter(self, index: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(index, reader, writer))
            self.carrying.add(task)
            task.add_done_callback(self.carrying.discard)

        return accept

    async def _carry(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.place is None or index >= len(self.place.targets):
                return
            host, port = self.place.targets[index]
            if self.way == DIRECT:
                await _pass_on(reader, writer, host, port)
                return
            connection = (await self._relay()).open(host, port)
            self._tell(await connection.carry(reader, writer))
        except (OSError, EOFError, asyncio.TimeoutError, NotReached, NotReady) as error:
            self._tell(str(error) or "no answer")
        finally:
            if not writer.transport.is_closing():
                writer.transport.abort()

    def _tell(self, why: str) -> None:
        """Tell what kept a connection from the server, once in a row."""
        if why and not self.doubt and not self.stopped.is_set():
            self.say(clean(why))
            self.doubt = True


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Pass bytes both ways between a connection here and a place that this machine reaches."""
    try:
        their_reader, their_writer = await asyncio.wait_for(asyncio.open_connection(host, port), relay.CONNECT_S)
    except (OSError, asyncio.TimeoutError) as error:
        raise NotReached(Problem("", relay.unreached(host, port, error))) from None
    ways = relay.both(_copy(reader, their_writer), _copy(their_reader, writer))
    try:
        with suppress(ConnectionError):
            await ways
            writer.close()
            their_writer.close()
    finally:
        ways.cancel()
        if not their_writer.transport.is_closing():
            their_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(relay.CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
