"""Times at the beginning of log lines, as Triton, Python logging, TensorRT-LLM, vLLM and Slurm write them. Pure."""

from __future__ import annotations

import re
import time

_GLOG = re.compile(r"(?:\[rank\d+\]:)?\[?[IWEFV](?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_ISO = re.compile(
    r"\[?(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?(?P<zone>Z)?"
)
_TRTLLM = re.compile(r"\[(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4})-(?P<clock>\d\d:\d\d:\d\d)\]")
_VLLM = re.compile(r"(?:\([^)]*\) )*[A-Z]{4,8} (?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_OURS = re.compile(r"slurm_llm: (?P<clock>\d\d:\d\d:\d\d) ")
_SLURM = re.compile(r".{0,200}? AT (?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)T(?P<clock>\d\d:\d\d:\d\d)")
PREFIX = rb"(?:\x1b\[[\d;]*m ?|\([^)\n]{0,60}\) ?|\[rank\d{1,6}\]: ?)*"
"""What may stand before a line's own words: colours, vLLM's name of a process, PyTorch's rank."""
STAMPED = re.compile(
    PREFIX + rb"(?:\[?[IWEFV]\d{4} \d\d:\d\d:\d\d|\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d"
    rb"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]|[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d|slurm_llm: (?:\d\d:\d\d:\d\d |job )"
    rb"|(?:\d+: )?(?:slurm|srun)[^\n]{0,200}? AT \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
)
"""A line, as bytes, that seems to begin with a time; what `stamp` finds in it may still be none."""
_FORMS = (_GLOG, _ISO, _TRTLLM, _VLLM, _OURS)
AHEAD_S = 2 * 86400
"""How far a line may lie ahead of its file: a container can keep another time zone than the host."""
CLOCK_AHEAD_S = 3600


_AGE = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?\Z")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?\Z")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?)?\Z")


def moment_of(text: str, now: float) -> float | None:
    """Return the moment that a person means, in seconds since the epoch; None when it cannot be read.

    An age (`90s`, `10m`, `1h30m`, `2d`), a clock time (`14:30`, the last one that has been), a date with or without a
    time (`2026-11-30`, `2026-11-30T14:30:05`, in local time, or with `Z` or `+01:00`).
    """
    text = text.strip()
    if text and (match := _AGE.match(text)):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return now - (((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if match := _CLOCK.match(text):
        year, month, day = time.localtime(now)[:3]
        hour, minute, second = (int(part or 0) for part in match.groups())
        found = _local(year, month, day, hour, minute, second)
        return _local(year, month, day - 1, hour, minute, second) if found is not None and found > now else found
    match = _DATE.match(text)
    if match is None:
        return None
    *fields, zone = match.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in fields)
    found = _local(year, month, day, hour, minute, second)
    if found is None or not zone:
        return found
    import calendar

    shift = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return float(calendar.timegm((year, month, day, hour, minute, second))) - shift


def _local(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    """Return seconds since the epoch of a local time; day 0 is the day before the month."""
    if not (1 <= month <= 12 and 0 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


def stamp(line: str, near: float, day: float | None = None) -> float | None:
    """Return the time that `line` begins with, in seconds since the epoch; None when it has none.

    Texts are local times. `near`, the file's own time, supplies the year where the line has none; `day`, `near` when
    left out, the day where it has only a clock: the last one that does not lie ahead of it.
    """
    for form in _FORMS:
        match = form.match(line)
        if match:
            return _moment(match, near if day is None or form is not _OURS else day)
    match = _SLURM.match(line) if "slurm" in line[:40] else None
    return _moment(match, near) if match else None


def _moment(match: re.Match[str], near: float) -> float | None:
    found = match.groupdict()
    now = time.localtime(near)
    hour, minute, second = (int(part) for part in found["clock"].split(":"))
    month, day = int(found.get("month") or now.tm_mon), int(found.get("day") or now.tm_mday)
    year = int(found.get("year") or now.tm_year)
    part = float("0." + found["part"][1:]) if found.get("part") else 0.0
    fields = (year, month, day, hour, minute, second, 0, 0, -1)
    try:
        moment = _seconds(fields, bool(found.get("zone"))) + part
        if not found.get("year") and found.get("month") and moment > near + AHEAD_S:
            moment = _seconds((year - 1, *fields[1:]), False) + part
    except (ValueError, OverflowError):
        return None
    if not found.get("month") and moment > near + CLOCK_AHEAD_S:
        moment -= 86400
    return moment


_cache: dict[tuple[int, ...], float] = {}


def _seconds(fields: tuple[int, ...], utc: bool) -> float:
    """Return seconds since the epoch; mktime is asked once a minute of the log, not once a line."""
    if utc:
        import calendar

        return float(calendar.timegm(fields))
    minute = fields[:5]
    if minute not in _cache:
        if not (1 <= fields[1] <= 12 and 1 <= fields[2] <= 31 and fields[3] < 24 and fields[4] < 60):
            raise ValueError("no time")
        if len(_cache) > 1000:
            _cache.clear()
        year, month, day, hour, minutes = minute
        _cache[minute] = time.mktime((year, month, day, hour, minutes, 0, 0, 0, -1))
    return _cache[minute] + fields[5]
