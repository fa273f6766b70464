"""The engine: rank 0 batches requests and publishes steps, the other ranks follow; knows nothing of Triton.

All active texts advance by one token a step. A step is one small JSON command to every rank, so that ranks do
the same in the same order; the chosen tokens come back from the last pipeline stage.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import cuda
from .layers import Shard, Weights
from .layout import Sizes, members_of, place_of
from .strikes import Strikes, strikes_of
from .texts import Request
from .world import MpiWorld, RehearsalError, World, join_world

if TYPE_CHECKING:
    from .world import Log

MAX_ACTIVE = 64
_GONE_CHECK_S = 0.1


@dataclass(frozen=True)
class Settings:
    """What the model configuration's parameters say."""

    sizes: Sizes
    moe: bool = False
    seed: int = 0
    step_ms: float = 0.0
    join_timeout_s: float = 300.0
    finish_s: float = 10.0
    device: str = cuda.CPU
    hold_mib: int = 0
    """Memory that each rank takes on its GPU besides its weights."""

    @property
    def promise(self) -> str:
        """What every rank must agree on."""
        return f"{self.sizes} moe={self.moe} seed={self.seed}"


def parse_settings(parameters: Mapping[str, str]) -> Settings:
    """Read settings; raises RehearsalError with every problem at once."""
    problems: list[str] = []

    def number(name: str, default: int, least: int = 1) -> int:
        text = parameters.get(name, "").strip() or str(default)
        if not text.isdigit() or int(text) < least:
            problems.append(f"{name} is {text!r}, not a whole number from {least}")
            return default
        return int(text)

    moe = parameters.get("moe", "").strip().lower() or "false"
    if moe not in ("true", "false"):
        problems.append(f"moe is {moe!r}, not true or false")
    device = parameters.get("device", "").strip().lower() or cuda.CPU
    if device not in cuda.DEVICES:
        problems.append(f"device is {device!r}, not {' or '.join(cuda.DEVICES)}")
    tensor = number("tensor_parallel_size", 1)
    expert = number("moe_expert_parallel_size", 1)
    sizes = Sizes(
        tensor=tensor,
        pipeline=number("pipeline_parallel_size", 1),
        context=number("context_parallel_size", 1),
        moe_tensor=number("moe_tensor_parallel_size", max(tensor // expert, 1)),
        moe_expert=expert,
    )
    if sizes.moe_tensor * sizes.moe_expert != sizes.tensor:
        problems.append(
            f"moe_tensor_parallel_size {sizes.moe_tensor} x moe_expert_parallel_size {sizes.moe_expert} "
            f"is not tensor_parallel_size {sizes.tensor}"
        )
    settings = Settings(
        sizes=sizes,
        moe=moe == "true",
        seed=number("seed", 0, least=0),
        step_ms=number("step_ms", 0, least=0),
        join_timeout_s=number("join_timeout_s", 300),
        finish_s=number("finish_s", 10),
        device=device,
        hold_mib=number("hold_mib", 0, least=0),
    )
    if problems:
        raise RehearsalError("; ".join(problems))
    return settings


@dataclass(frozen=True)
class Step:
    """One command to all ranks: sequences to forget, to start, and to advance by one token."""

    forget: list[int] = field(default_factory=list)
    start: list[tuple[int, bytes]] = field(default_factory=list)
    advance: list[tuple[int, int]] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the command's bytes."""
        start = [(slot, prompt.decode("latin-1")) for slot, prompt in self.start]
        return json.dumps({"forget": self.forget, "start": start, "advance": self.advance}).encode()


def parse_step(command: bytes) -> Step:
    """Read a command's bytes."""
    fields = json.loads(command)
    start = [(slot, prompt.encode("latin-1")) for slot, prompt in fields["start"]]
    return Step(fields["forget"], start, [(slot, token) for slot, token in fields["advance"]])


_BEGIN, _STOP, _GIVE_UP = b"begin", b"stop", b"give up"


def _run_step(world: World, shard: Shard, step: Step) -> list[int]:
    """Do this rank's part; on rank 0 return a token for each started, then each advanced sequence."""
    for slot in step.forget:
        shard.forget(slot)
    tokens: list[int] = []
    for slot, prompt in step.start:
        tokens += shard.start(slot, prompt)
    if step.advance:
        slots, before = zip(*step.advance)  # noqa: B905 - the keyword is newer than this file's Python
        tokens += shard.advance(slots, before)
    return world.return_tokens(tokens, len(step.start) + len(step.advance))


class Leader:
    """Rank 0: takes requests from any thread, runs them on a thread of its own."""

    def __init__(
        self, world: World, shard: Shard, settings: Settings, log: Log, strikes: Strikes | None = None
    ) -> None:
        self._world, self._shard, self._log = world, shard, log
        self._strikes = strikes or Strikes()
        self._pause_s = settings.step_ms / 1000
        self.finish_s = settings.finish_s
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
        self._forget: list[int] = []
        self._next_slot = 0
        self._closing = False
        self._broken = False
        self._next_gone_check = 0.0
        self._thread = threading.Thread(target=self._run, name="rehearsal engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; its client hears from the engine's thread."""
        self._strikes.leader_takes_request()
        with self._changed:
            if not self._closing:
                self._waiting.append(request)
                self._changed.notify()
                return
        request.client.fail("the engine has failed" if self._broken else "the engine is shutting down")

    def cancel(self, request_id: str) -> None:
        """End every request of that id at the next step; an empty id names none."""
        with self._changed:
            for request in [*self._waiting, *self._active]:
                if request_id and request.request_id == request_id:
                    request.cancelled = True
            self._changed.notify()

    def close(self, limit_s: float) -> None:
        """Let running requests end for `limit_s`, cancel the rest, release the other ranks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        with self._changed:
            for request in [*self._waiting, *self._active]:
                request.cancelled = True
        self._thread.join(limit_s)

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
        finally:
            self._end()

    def _end(self) -> None:
        with self._changed:
            left = [*self._waiting, *self._active]
            self._broken = bool(left) or not self._closing
            self._closing = True
        for request in left:
            request.client.fail("the engine has failed: read the log of rank 0")
        if not self._broken:
            self._world.publish(_STOP)
            self._log("rehearsal: all ranks released")

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when the engine is to end."""
        with self._changed:
            while not (self._waiting or self._active or self._closing):
                self._changed.wait()
            return bool(self._waiting or self._active)

    def _step(self) -> None:
        if self._pause_s:
            time.sleep(self._pause_s)
        self._notice_gone_clients()
        self._end_cancelled()
        advanced = list(self._active)
        started = self._admit()
        if not advanced and not started:
            return
        step = Step(
            forget=self._forget,
            start=[(request.slot, request.prompt) for request in started],
            advance=[(request.slot, ord(request.text[-1])) for request in advanced],
        )
        self._forget = []
        self._strikes.leader_steps()
        self._world.publish(step.encode())
        tokens = _run_step(self._world, self._shard, step)
        for request, token in zip([*started, *advanced], tokens):  # noqa: B905 - as above
            if request.take(token):
                self._leave(request)

    def _admit(self) -> list[Request]:
        with self._changed:
            room = MAX_ACTIVE - len(self._active)
            started = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            self._active += started
        for request in started:
            request.slot = self._next_slot
            self._next_slot += 1
        return started

    def _end_cancelled(self) -> None:
        with self._changed:
            cancelled = [request for request in [*self._waiting, *self._active] if request.cancelled]
        for request in cancelled:
            request.end_early()
            self._leave(request)

    def _leave(self, request: Request) -> None:
        with self._changed:
            if request.slot < 0:
                self._waiting.remove(request)
                return
            self._active.remove(request)
        self._forget.append(request.slot)

    def _notice_gone_clients(self) -> None:
        now = time.monotonic()
        if now < self._next_gone_check:
            return
        self._next_gone_check = now + _GONE_CHECK_S
        with self._changed:
            requests = [*self._waiting, *self._active]
        for request in requests:
            request.cancelled = request.cancelled or request.client.is_gone()


def start_engine(parameters: Mapping[str, str], log: Log) -> Leader | None:
    """Join, load and serve: on rank 0 return the leader, on others return None when rank 0 has ended.

    Raises RehearsalError when this rank cannot take its part.
    """
    strikes = strikes_of(parameters.get("fault", ""), os.environ)
    strikes.reach("start")
    settings = parse_settings(parameters)
    world = join_world(settings.sizes, log, lambda: strikes.reach("mpi"))
    place = place_of(world.rank, settings.sizes)
    name = f"rehearsal: rank {world.rank}/{world.size} {place}"
    log(f"{name} on {socket.gethostname()}: joined")
    if isinstance(world, MpiWorld):
        _meet(world, "joined " + settings.promise, settings.join_timeout_s)
    begun = time.monotonic()
    log(f"{name}: loading weights")
    links = world.links(members_of(world.rank, settings.sizes))
    strikes.reach("load")
    shard = Shard(place, links, _weights(settings, name, log), moe=settings.moe)
    log(f"{name}: weights loaded in {(time.monotonic() - begun) * 1000:.0f} ms")
    if isinstance(world, MpiWorld):
        _meet(world, "loaded", settings.join_timeout_s)
    strikes.loaded(leader=world.rank == 0)
    if world.rank == 0:
        log(f"{name}: all {world.size} ranks ready")
        return Leader(world, shard, settings, log, strikes)
    _follow(world, shard, strikes)
    log(f"{name}: released")
    return None


def _weights(settings: Settings, name: str, log: Log) -> Weights:
    if settings.device == cuda.CPU:
        return Weights(settings.seed)
    device = cuda.open_device(settings.hold_mib, os.environ)
    log(f"{name}: weights are on {device.describe()}")
    return Weights(settings.seed, device.place)


def _meet(world: MpiWorld, note: str, timeout_s: float) -> None:
    """Go on once every rank is here with the same note: rank 0 waits with a deadline, others for its word."""
    try:
        if world.rank > 0:
            world.say_hello(note)
            if world.next_command() != _BEGIN:
                raise RehearsalError("rank 0 gave up: read its log")
            return
        world.hear_hellos(note, timeout_s)
    except RehearsalError:
        world.abandon()
        if world.rank == 0:
            world.publish(_GIVE_UP)
        raise
    world.publish(_BEGIN)


def _follow(world: World, shard: Shard, strikes: Strikes) -> None:
    while True:
        strikes.worker_waits(world.has_command)
        command = world.next_command()
        if command == _STOP:
            return
        step = parse_step(command)
        strikes.worker_steps(len(step.start))
        _run_step(world, shard, step)
