"""Times at the beginning of log lines, as Triton, Python logging, TensorRT-LLM, vLLM and Slurm write them. Pure."""

from __future__ import annotations

import re
import time

_GLOG = re.compile(r"[IWEFV](?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_ISO = re.compile(
    r"\[?(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?(?P<zone>Z)?"
)
_TRTLLM = re.compile(r"\[(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4})-(?P<clock>\d\d:\d\d:\d\d)\]")
_VLLM = re.compile(r"(?:\([^)]*\) )*[A-Z]{4,8} (?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_OURS = re.compile(r"slurm_llm: (?P<clock>\d\d:\d\d:\d\d) ")
_SLURM = re.compile(r".{0,200}? AT (?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)T(?P<clock>\d\d:\d\d:\d\d)")
_FORMS = (_GLOG, _ISO, _TRTLLM, _VLLM, _OURS)
AHEAD_S = 2 * 86400
"""How far a line may lie ahead of its file: a container can keep another time zone than the host."""
CLOCK_AHEAD_S = 3600


def stamp(line: str, near: float) -> float | None:
    """Return the time that `line` begins with, in seconds since the epoch; None when it has none.

    Texts are local times. `near`, the file's own time, supplies the year where the line has none, and the day where it
    has only a clock: the last one that does not lie ahead of the file.
    """
    for form in _FORMS:
        match = form.match(line)
        if match:
            return _moment(match, near)
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
