"""What is to go wrong in a rehearsal, as a text: `rank=5,at=load,kind=exit:3`. Grammar only: nothing happens here.

Planning checks the texts with it, and the rank that is meant reads them again; so it needs no more than Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

KEYS = ("rank", "at", "kind", "after", "who", "attempt")
PLACES = ("start", "mpi", "load", "serve")
KINDS = ("exit", "exit0", "signal", "raise", "hang", "oom", "slow", "noport")
SIGNALS = ("KILL", "SEGV", "BUS", "ABRT", "TERM", "STOP")
HANGS = ("sleep", "spin", "stop")
PROCESSES = ("stub", "server")
FORM = "rank=N,at=PLACE,kind=KIND"
EVERY_ATTEMPT = "all"
BETWEEN = ";"
OOM_MIB = 8192
"""What `oom` takes when nobody says how much."""

_SECONDS = re.compile(r"\d{1,9}(\.\d{1,6})?", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


class Complaint(NamedTuple):
    """One thing that is wrong with a text, and what is allowed; `word` may have been meant as one of `choices`."""

    what: str
    allowed: str = ""
    word: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """Something that happens to one process of one rank; the rank is counted over all replicas.

    `argument` belongs to the kind: an exit status, a signal's name, a way to hang, MiB, or seconds. `attempt` is the
    start of the server in which it happens, None for each: what is started again is to be well by itself.
    """

    rank: int
    at: str
    kind: str
    argument: str = ""
    after_s: float | None = None
    who: str = "stub"
    attempt: int | None = 0

    def __str__(self) -> str:
        """Return the text that reads back as this fault; it needs no quoting in any configuration file."""
        kind = f"{self.kind}:{self.argument}" if self.argument else self.kind
        seconds = "" if self.after_s is None else f"{self.after_s:.6f}".rstrip("0").rstrip(".")
        after = f",after={seconds}" if seconds else ""
        who = "" if self.who == "stub" else f",who={self.who}"
        each = "" if self.attempt == 0 else f",attempt={EVERY_ATTEMPT if self.attempt is None else self.attempt}"
        return f"rank={self.rank},at={self.at},kind={kind}{after}{who}{each}"

    def is_due(self, attempt: int) -> bool:
        """Tell whether it happens in that attempt, which counts from 0."""
        return self.attempt in (None, attempt)


def read_fault(text: str) -> tuple[Fault | None, list[Complaint]]:
    """Return the fault that `text` describes, or everything that is wrong with it."""
    given, complaints = _split(text)
    rank = given.get("rank", "0")
    if not _NUMBER.fullmatch(rank):
        complaints.append(Complaint(f"rank is '{rank}'", "a number from 0"))
    at = given.get("at", PLACES[0])
    if at not in PLACES:
        complaints.append(_unknown("place", at, PLACES))
    who = given.get("who", PROCESSES[0])
    if who not in PROCESSES:
        complaints.append(_unknown("process", who, PROCESSES))
    after = given.get("after")
    if after is not None and not _SECONDS.fullmatch(after):
        complaints.append(Complaint(f"after is '{after}'", "a number of seconds"))
    attempt = given.get("attempt", "0")
    if attempt != EVERY_ATTEMPT and not _NUMBER.fullmatch(attempt):
        complaints.append(Complaint(f"attempt is '{attempt}'", f"a number from 0, or {EVERY_ATTEMPT}"))
    kind, argument = "", ""
    if "kind" in given:
        kind, argument, wrong = _read_kind(given["kind"])
        complaints += wrong
    if complaints:
        return None, complaints
    due = None if attempt == EVERY_ATTEMPT else int(attempt)
    fault = Fault(int(rank), at, kind, argument, None if after is None else float(after), who, due)
    senseless = _senseless(fault)
    return (None, senseless) if senseless else (fault, [])


def _split(text: str) -> tuple[dict[str, str], list[Complaint]]:
    given: dict[str, str] = {}
    complaints = []
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            complaints.append(Complaint(f"'{part.strip()}' is not KEY=VALUE", FORM))
        elif key not in KEYS:
            complaints.append(_unknown("key", key, KEYS))
        elif key in given:
            complaints.append(Complaint(f"{key} is there twice", "each key once"))
        given[key] = value
    if not complaints:
        missing = [key for key in ("rank", "at", "kind") if key not in given]
        complaints += [Complaint(f"no {key} in '{text}'", FORM) for key in missing]
    return given, complaints


def _unknown(what: str, word: str, known: tuple[str, ...]) -> Complaint:
    return Complaint(f"unknown {what} '{word}'", ", ".join(known), word, known)


class _Argument(NamedTuple):
    """What may stand behind a kind's colon: how it looks, whether it is that, and what it is when left out."""

    form: str
    fits: Callable[[str], bool]
    default: str = ""
    choices: tuple[str, ...] = ()


_ARGUMENTS = {
    "exit": _Argument("exit:N with N from 0 to 255", lambda text: _whole(text, 0) <= 255),
    "signal": _Argument("signal:" + "|".join(SIGNALS), SIGNALS.__contains__, choices=SIGNALS),
    "hang": _Argument("hang:" + "|".join(HANGS), HANGS.__contains__, "sleep", HANGS),
    "oom": _Argument("oom:MIB with MIB from 1", lambda text: _whole(text, 1) < _NEVER, str(OOM_MIB)),
    "slow": _Argument("slow:SECONDS, more than 0", lambda text: bool(_SECONDS.fullmatch(text)) and float(text) > 0),
}
_NEVER = 1 << 40


def _whole(text: str, least: int) -> int:
    return int(text) if _NUMBER.fullmatch(text) and int(text) >= least else _NEVER


def _read_kind(text: str) -> tuple[str, str, list[Complaint]]:
    kind, colon, argument = text.partition(":")
    if kind not in KINDS:
        return "", "", [_unknown("kind", kind, KINDS)]
    takes = _ARGUMENTS.get(kind)
    if takes is None:
        wrong = [Complaint(f"kind is '{text}'", f"{kind} alone")] if colon else []
        return ("exit", "0", wrong) if kind == "exit0" else (kind, "", wrong)
    argument = argument if colon else takes.default
    if not takes.fits(argument):
        return kind, "", [Complaint(f"kind is '{text}'", takes.form, argument, takes.choices)]
    return kind, argument, []


def _senseless(fault: Fault) -> list[Complaint]:
    """Return what is well written and cannot be."""
    complaints = []
    if fault.after_s is not None and fault.at != "serve":
        complaints.append(Complaint(f"after with at={fault.at}", "after counts from the end of loading: at=serve"))
    if fault.kind == "noport" and fault.at == "serve":
        complaints.append(Complaint("noport with at=serve", "Triton's port is open by then: start, mpi or load"))
    if fault.who == "server" and fault.kind != "signal" and (fault.kind, fault.argument) != ("hang", "stop"):
        allowed = "to a server one can only do signal:NAME and hang:stop"
        complaints.append(Complaint(f"{fault.kind} with who=server", allowed))
    return complaints


def misfits(fault: Fault, world: int, replicas: int) -> list[Complaint]:
    """Return why `fault` cannot be in a job of `replicas` instances of `world` ranks each."""
    total = world * replicas
    if fault.rank >= total:
        return [Complaint(f"rank {fault.rank} of a job with {total} {'rank' if total == 1 else 'ranks'}",
                          f"0 to {total - 1}")]  # fmt: skip
    complaints = []
    if fault.kind == "noport" and fault.rank % world:
        leaders = ", ".join(str(first) for first in range(0, total, world))
        complaints.append(Complaint(f"noport on rank {fault.rank}, a worker", f"a leader has the port: rank {leaders}"))
    if fault.at == "mpi" and world == 1:
        complaints.append(Complaint("at=mpi in a world of one rank", "it needs no MPI: start, load or serve"))
    return complaints


def join_faults(faults: Iterable[Fault]) -> str:
    """Return one text for all `faults`; see `parse_faults`."""
    return BETWEEN.join(str(fault) for fault in faults)


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read what `join_faults` wrote, nothing from an empty text.

    Raises:
        ValueError: everything that is wrong with it.
    """
    read = [read_fault(each) for each in text.split(BETWEEN) if each.strip()]
    complaints = [complaint for _, wrong in read for complaint in wrong]
    if complaints:
        raise ValueError("; ".join(f"fault: {one.what} ({one.allowed})" for one in complaints))
    return tuple(fault for fault, _ in read if fault is not None)
