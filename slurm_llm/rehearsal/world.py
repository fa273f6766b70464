"""The ranks of the step, over MPI: who is here, how a command reaches all, how shards exchange arrays.

Nothing here spins: every wait polls and sleeps, longer the longer it lasts. One thread at a time may call.
mpi4py is imported when a world is joined, and only when the plan has more than one rank.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .layers import Group, Links
from .layout import Members, Sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Log = Callable[[str], None]

# The module is not here before a world is joined, and ships types only since release 4.
Mpi = Any

_HELLO, _COMMAND, _STAGE, _TOKENS = 1, 2, 3, 4
_EAGER_S = 0.002
_SHORTEST_S = 0.0005
_LONGEST_S = 0.02


class RehearsalError(Exception):
    """The engine cannot start or go on; the message says what to do."""


def wait_until(done: Callable[[], bool], deadline_s: float = float("inf")) -> bool:
    """Poll `done` until it is true or `deadline_s` passed; sleep a tenth of the time waited, 0.5 ms to 20 ms.

    For the first 2 ms it only yields: peers that compute answer within microseconds to a few milliseconds.
    """
    begun = time.monotonic()
    while not done():
        waited = time.monotonic() - begun
        if waited > deadline_s:
            return False
        if waited < _EAGER_S:
            os.sched_yield()
        else:
            time.sleep(min(max(waited / 10, _SHORTEST_S), _LONGEST_S))
    return True


class World(Protocol):
    """All ranks of the instance, this one at `rank`."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def links(self, members: Members) -> Links:
        """Connect this rank with its groups; every rank must call this at the same time."""

    def publish(self, command: bytes) -> None:
        """Send a command from rank 0 to all others."""

    def has_command(self) -> bool:
        """Whether rank 0's next command is here."""

    def next_command(self) -> bytes:
        """Wait for rank 0's next command."""

    def return_tokens(self, tokens: list[int], count: int) -> list[int]:
        """Bring `count` tokens from the last stage to rank 0; other ranks get an empty list."""


class AloneWorld:
    """A world of one rank, without MPI."""

    rank = 0
    size = 1

    def links(self, members: Members) -> Links:
        alone = AloneGroup()
        return Links(alone, alone, alone, alone, pipe=AlonePipe())

    def publish(self, command: bytes) -> None:
        """There is nobody to tell."""

    def has_command(self) -> bool:
        return False

    def next_command(self) -> bytes:
        raise RehearsalError("a world of one rank has no workers")

    def return_tokens(self, tokens: list[int], count: int) -> list[int]:
        return tokens


class AloneGroup:
    """A group of one."""

    index = 0
    size = 1

    def all_reduce(self, values: Ints) -> Ints:
        return values


class AlonePipe:
    """A pipeline of one stage: nothing comes in and nothing goes out."""

    def receive(self, shape: tuple[int, ...]) -> Ints:
        raise RehearsalError("the first stage receives nothing")

    def send(self, values: Ints) -> None:
        raise RehearsalError("the last stage sends nothing")


class _MpiGroup:
    def __init__(self, mpi: Mpi, comm: Mpi) -> None:
        self._mpi, self._comm = mpi, comm
        self.index: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def all_reduce(self, values: Ints) -> Ints:
        if values.size == 0:
            return values
        total = np.ascontiguousarray(values).copy()
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, total)
        wait_until(request.Test)
        return total


class _MpiPipe:
    def __init__(self, comm: Mpi, rank: int, stages: tuple[int, ...]) -> None:
        here = stages.index(rank)
        self._comm = comm
        self._previous = stages[here - 1] if here > 0 else None
        self._next = stages[here + 1] if here + 1 < len(stages) else None

    def receive(self, shape: tuple[int, ...]) -> Ints:
        values = np.empty(shape, np.int64)
        if self._previous is None:
            raise RehearsalError("the first stage receives nothing")
        wait_until(self._comm.Irecv(values, source=self._previous, tag=_STAGE).Test)
        return values

    def send(self, values: Ints) -> None:
        if self._next is None:
            raise RehearsalError("the last stage sends nothing")
        wait_until(self._comm.Isend(np.ascontiguousarray(values), dest=self._next, tag=_STAGE).Test)


class MpiWorld:
    """The ranks of MPI_COMM_WORLD."""

    def __init__(self, mpi: Mpi, sizes: Sizes) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        plane = sizes.tensor * sizes.context
        self._speaker = (sizes.pipeline - 1) * plane

    def links(self, members: Members) -> Links:
        return Links(
            tensor=self._group(members.tensor),
            context=self._group(members.context),
            moe_tensor=self._group(members.moe_tensor),
            moe_expert=self._group(members.moe_expert),
            pipe=_MpiPipe(self._comm, self.rank, members.pipeline),
        )

    def publish(self, command: bytes) -> None:
        data = np.frombuffer(command, np.uint8)
        sends = [self._comm.Isend(data, dest=rank, tag=_COMMAND) for rank in range(1, self.size)]
        wait_until(lambda: self._mpi.Request.Testall(sends))

    def has_command(self) -> bool:
        return bool(self._comm.Iprobe(source=0, tag=_COMMAND))

    def next_command(self) -> bytes:
        wait_until(self.has_command)
        return self._take(0, _COMMAND)

    def return_tokens(self, tokens: list[int], count: int) -> list[int]:
        if self._speaker == 0:
            return tokens
        if self.rank == self._speaker:
            wait_until(self._comm.Isend(np.array(tokens, np.int64), dest=0, tag=_TOKENS).Test)
        if self.rank != 0:
            return []
        came = np.empty(count, np.int64)
        wait_until(self._comm.Irecv(came, source=self._speaker, tag=_TOKENS).Test)
        return [int(token) for token in came]

    def say_hello(self, promise: str) -> None:
        """Tell rank 0 that this rank is up, and with which settings."""
        hello = json.dumps({"host": socket.gethostname(), "promise": promise}).encode()
        wait_until(self._comm.Isend(np.frombuffer(hello, np.uint8), dest=0, tag=_HELLO).Test)

    def hear_hellos(self, promise: str, timeout_s: float) -> None:
        """Wait on rank 0 until every other rank said hello with the same promise."""
        missing = set(range(1, self.size))
        strangers = []
        begun = time.monotonic()
        while missing:
            left = timeout_s - (time.monotonic() - begun)
            if not wait_until(lambda: self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_HELLO), left):
                raise RehearsalError(_missing_text(missing, self.size, timeout_s))
            status = self._mpi.Status()
            self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_HELLO, status=status)
            rank = status.Get_source()
            hello = json.loads(self._take(rank, _HELLO))
            missing.discard(rank)
            if hello["promise"] != promise:
                strangers.append(f"rank {rank} on {hello['host']} has {hello['promise']}")
        if strangers:
            raise RehearsalError(f"ranks were started with different parameters: rank 0 has {promise}; "
                                 + "; ".join(strangers))  # fmt: skip

    @staticmethod
    def abandon() -> None:
        """Let this process end without MPI_Finalize, which waits for ever for a rank that never comes."""

        def end() -> None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

        atexit.register(end)

    def _take(self, source: int, tag: int) -> bytes:
        status = self._mpi.Status()
        self._comm.Probe(source=source, tag=tag, status=status)
        data = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        wait_until(self._comm.Irecv(data, source=source, tag=tag).Test)
        return data.tobytes()

    def _group(self, ranks: tuple[int, ...]) -> Group:
        if len(ranks) == 1:
            return AloneGroup()
        world = self._comm.Get_group()
        return _MpiGroup(self._mpi, self._comm.Create_group(world.Incl(list(ranks))))


def _missing_text(missing: set[int], size: int, timeout_s: float) -> str:
    names = ", ".join(str(rank) for rank in sorted(missing))
    return (f"{len(missing)} of {size} ranks did not join within {timeout_s:g} s: rank {names}; "
            "read their logs, or raise join_timeout_s")  # fmt: skip


def join_world(sizes: Sizes, log: Log, before_mpi: Callable[[], None]) -> World:
    """Return the world of this process, or say why it is not the one that the plan needs.

    `before_mpi` is called once everything is there but MPI.
    """
    if sizes.world == 1:
        return AloneWorld()
    log("rehearsal: joining MPI")
    before_mpi()
    world = MpiWorld(_load_mpi(sizes), sizes)
    if world.size == sizes.world:
        return world
    planned = (f"{sizes.world} ranks (tensor {sizes.tensor} x pipeline {sizes.pipeline} "
               f"x context {sizes.context})")  # fmt: skip
    if world.size == 1:
        raise RehearsalError(
            f"MPI world size is 1 but the plan has {planned}: this rank was not started by `srun --mpi=pmix` "
            "or mpirun, its MPI was built without PMIx, or its PMIX_ variables were lost on the way "
            "(a container, env -i)"
        )
    raise RehearsalError(f"MPI world size is {world.size} but the plan has {planned}: start one task for each rank")


def _load_mpi(sizes: Sizes) -> Mpi:
    try:
        mpi4py = importlib.import_module("mpi4py")
        mpi4py.rc.thread_level = "serialized"  # initialize's thread, later the engine's; never two at once
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        version = ".".join(str(part) for part in sys.version_info[:2])
        raise RehearsalError(
            f"the plan has {sizes.world} ranks, and Python {version} of this image cannot load mpi4py "
            f"({error}): install mpi4py and an MPI library in the image, or plan one rank"
        ) from error
