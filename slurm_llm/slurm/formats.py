"""Slurm's small text formats, to values and back; an unknown form is a ValueError, never a guess."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNLIMITED_TEXTS = frozenset({"unlimited", "infinite", "-1"})
NO_TIME_TEXTS = frozenset({"", "not_set", "invalid", "partition_limit", "n/a", "none", "unknown"})

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_MEMORY = re.compile(r"(\d+)(?:\.(\d+))?([KMGTP]?)B?", re.ASCII | re.IGNORECASE)
_KIB_PER_UNIT = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3, "P": 1024**4}
_JOB_ID = re.compile(r"(\d+)(?:_(\d+|\[[^\]\s;]+\])|\+(\d+))?(?:\.(\w+(?:\+\d+)?))?(?:;([^\s;]+))?", re.ASCII)


def parse_time(text: str) -> int | None:
    """Return the seconds of a Slurm time, None for no limit.

    Forms: `minutes`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, `UNLIMITED`, `INFINITE`, `-1`. As
    in Slurm, a part may exceed its usual range (`90:00` is an hour and a half). A limit below a minute is
    rounded up by Slurm itself. NOT_SET, INVALID and Partition_Limit name no time and are errors here: see
    `parse_reported_time`.
    """
    bare = text.strip()
    if bare.lower() in UNLIMITED_TEXTS:
        return None
    match = _TIME.fullmatch(bare)
    if not match:
        raise ValueError(f"'{text}' is not a Slurm time: minutes, MM:SS, HH:MM:SS, D-HH[:MM[:SS]] or UNLIMITED")
    days, first, second, third = match.groups()
    numbers = [int(first), int(second or 0), int(third or 0)]
    if days is not None:
        return int(days) * _DAY + numbers[0] * _HOUR + numbers[1] * _MINUTE + numbers[2]
    if third is not None:
        return numbers[0] * _HOUR + numbers[1] * _MINUTE + numbers[2]
    return numbers[0] * _MINUTE + numbers[1]


def parse_reported_time(text: str) -> int | None:
    """Return the seconds that squeue, scontrol or sacct report, None when the text names no number."""
    return None if text.strip().lower() in NO_TIME_TEXTS else parse_time(text)


def is_unlimited(text: str) -> bool:
    """Tell whether a reported time says that there is no limit."""
    return text.strip().lower() in UNLIMITED_TEXTS


def format_time(seconds: int | None) -> str:
    """Return `HH:MM:SS`, `D-HH:MM:SS` from a day on, `UNLIMITED` for None; every release reads it."""
    if seconds is None:
        return "UNLIMITED"
    if seconds < 0:
        raise ValueError(f"{seconds} is not a duration: seconds from 0 on")
    days, rest = divmod(seconds, _DAY)
    clock = f"{rest // _HOUR:02}:{rest % _HOUR // _MINUTE:02}:{rest % _MINUTE:02}"
    return f"{days}-{clock}" if days else clock


def parse_mem_mib(text: str) -> int:
    """Return MiB, rounded up as Slurm does; no unit means M, units are powers of 1024.

    Slurm prints fractions (`mem=1.50G`), so they are read, though sbatch takes whole numbers only. 0 means
    all of the node's memory for `--mem`.
    """
    match = _MEMORY.fullmatch(text.strip())
    if not match:
        raise ValueError(f"'{text}' is not a Slurm memory size: a whole number with K, M, G or T")
    whole, fraction, unit = match.groups()
    scale = int("1" + "0" * len(fraction or ""))
    kib = (int(whole) * scale + int(fraction or 0)) * _KIB_PER_UNIT[(unit or "M").upper()]
    return -(-kib // (scale * 1024))


def format_mem(mib: int) -> str:
    """Return the shortest exact whole number with its unit: `16G`, `1500M`, `0`."""
    if mib < 0:
        raise ValueError(f"{mib} is not a memory size: MiB from 0 on")
    if mib == 0:
        return "0"
    for unit, size in (("T", 1024**2), ("G", 1024)):
        if mib % size == 0:
            return f"{mib // size}{unit}"
    return f"{mib}M"


@dataclass(frozen=True)
class JobId:
    """One job, array task, component of a heterogeneous job, or step of these.

    `str()` is what Slurm's commands take as an argument; the cluster is not part of it, it goes into
    `--clusters`.
    """

    number: int
    array_task: str | None = None
    het_offset: int | None = None
    step: str | None = None
    cluster: str | None = None

    def __str__(self) -> str:
        text = str(self.number)
        if self.array_task is not None:
            text += f"_{self.array_task}"
        if self.het_offset is not None:
            text += f"+{self.het_offset}"
        return text if self.step is None else f"{text}.{self.step}"

    @property
    def job(self) -> JobId:
        """The job of a step."""
        return JobId(self.number, self.array_task, self.het_offset, None, self.cluster)


def parse_job_id(text: str) -> JobId:
    """Parse `123`, `123;cluster`, `123_4`, `123_[1-5]`, `123+1`, `123.0`, `123.batch`, `123_4.0+1`."""
    match = _JOB_ID.fullmatch(text.strip())
    if not match or int(match[1]) == 0:
        raise ValueError(f"'{text}' is not a Slurm job id: such as 123, 123_4, 123.0 or 123;cluster")
    number, task, offset, step, cluster = match.groups()
    return JobId(int(number), task, None if offset is None else int(offset), step, cluster)


def parse_exit_code(text: str) -> tuple[int, int] | None:
    """Return (exit status, signal) of Slurm's `exit:signal`, as `0:53`; None for an empty text."""
    if not text.strip():
        return None
    status, colon, signal = text.strip().partition(":")
    if not status.isdecimal() or (colon and not signal.isdecimal()):
        raise ValueError(f"'{text}' is not a Slurm exit code: exit:signal")
    return int(status), int(signal or 0)
