"""Lint rules about a profile as a whole: its name, how far it can be trusted, how it is detected, accounts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from urllib.parse import urlsplit

from slurm_llm.sites.lintrules import Hit, Queue, View, queue_rules, site_rules
from slurm_llm.yamlio import Key

OLDEST_CHECK_DAYS = 180
LEAST_KILL_WAIT_S = 5
RELEASES = frozenset({"20.11", "21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"})
OLDEST, NEWEST = min(RELEASES), max(RELEASES)

_UNLIKELY_NAMES = ("q7", "x-9.invalid", "zz.example", "_")
"""No cluster's host names all match these: a pattern that does matches everything."""

_UNLIKELY_TEXTS = ("", "q7", "_-_", "/x/9", "/home/q/x", "/scratch/q/x")


def name_differs_from_file(view: View) -> Iterator[Hit]:
    """`--site` finds a profile by its file's name, and records and messages show its `name`."""
    name = view.profile.name
    if view.given("name") and ("name",) not in view.unknown and view.stem is not None and view.stem != name:
        yield Hit(("name",), f"name is '{name}', and the file is {view.stem}.yaml", "give both the same name")


def not_verified(view: View) -> Iterator[Hit]:
    """Profiles rot: partitions, limits and network variables change, and readers must see how old the facts are."""
    if not view.given("verified") and not view.profile.base:
        todo = "add verified: {state: documentation or run, date: YYYY-MM-DD}"
        yield Hit((), "nothing says when the profile was last checked, and how", todo)


def no_such_date(view: View) -> Iterator[Hit]:
    """`verified.date` is compared with today."""
    verified = view.profile.verified
    if verified is not None and _date(verified.date) is None:
        yield Hit(("verified", "date"), f"'{verified.date}' is no day", "write it as YYYY-MM-DD")


def verified_in_future(view: View) -> Iterator[Hit]:
    """A check cannot have been made after today."""
    day = _verified_on(view)
    if day is not None and day > view.today:
        yield Hit(("verified", "date"), f"{day} is in the future (today is {view.today})", "correct the date")


def verified_too_old(view: View) -> Iterator[Hit]:
    """Sites change without notice: one changed seven defaults of its network on a single day."""
    day = _verified_on(view)
    if day is not None and (view.today - day).days > OLDEST_CHECK_DAYS:
        what = f"last checked on {day}, {(view.today - day).days} days ago"
        yield Hit(("verified", "date"), what, "check the profile against the cluster again, and set the date")


def run_without_release(view: View) -> Iterator[Hit]:
    """What was run was run on one release of Slurm, and the next one behaves differently."""
    verified = view.profile.verified
    if verified is not None and verified.state == "run" and not view.given("verified", "slurm"):
        yield Hit(("verified", "state"), "run on a cluster, but not on which release of Slurm", "add verified.slurm")


def no_sources(view: View) -> Iterator[Hit]:
    """Facts that were read and never run can be checked only where they were read."""
    verified = view.profile.verified
    read_only = verified is not None and verified.state == "documentation"
    if read_only and not view.given("sources") and not view.given("docs_url"):
        what = "the facts are from documentation, and nothing says from which"
        yield Hit(("verified", "state"), what, "add the pages' addresses as sources")


def not_an_address(view: View) -> Iterator[Hit]:
    """`docs_url` and `sources` are opened by readers of messages and documentation pages."""
    profile = view.profile
    places = [(("docs_url",), profile.docs_url), *((("sources", at), url) for at, url in enumerate(profile.sources))]
    for path, url in places:
        if url is not None and not _is_address(url):
            yield Hit(path, f"'{url}' is no web address", "write it as https://…")


def matches_everything(view: View) -> Iterator[Hit]:
    """`site detect` takes the profile whose patterns match this host: one that matches any host claims them all."""
    for index, pattern in enumerate(view.profile.match.hostnames):
        if all(re.fullmatch(pattern, name) for name in _UNLIKELY_NAMES):
            what = f"the pattern '{pattern}' matches the name of any host"
            yield Hit(("match", "hostnames", index), what, "name the cluster's own hosts, such as login\\d+\\.example")


def matches_nothing_said(view: View) -> Iterator[Hit]:
    """A pattern that fits the empty text says nothing about the cluster."""
    match = view.profile.match
    hosts: list[tuple[Key, str]] = [(("match", "hostnames", at), pattern) for at, pattern in enumerate(match.hostnames)]
    variables: list[tuple[Key, str]] = [(("match", "env", name), pattern) for name, pattern in match.env.items()]
    for path, pattern in (*hosts, *variables):
        everything = all(re.fullmatch(pattern, name) for name in _UNLIKELY_NAMES) and "hostnames" in path
        if re.fullmatch(pattern, "") and not everything:
            yield Hit(path, f"the pattern '{pattern}' matches an empty text", "make it match the value, or .+ for any")


def no_such_release(view: View) -> Iterator[Hit]:
    """What is rendered depends on the release; Slurm has two a year, with fixed numbers."""
    for path, text in _releases(view):
        series = text[:5]
        if series < OLDEST:
            yield Hit(
                path, f"Slurm {text} is older than {OLDEST}, the oldest release that jobs are written for", "upgrade"
            )
        elif series <= NEWEST and series not in RELEASES:
            known = ", ".join(sorted(RELEASES))
            yield Hit(path, f"there is no Slurm {series}", f"see `sbatch --version`; releases are {known}")


def short_kill_wait(view: View) -> Iterator[Hit]:
    """Between SIGTERM and SIGKILL Triton must give its shared memory back, and the agents clean up."""
    seconds = view.profile.slurm.kill_wait_s
    if seconds < LEAST_KILL_WAIT_S:
        what = f"{seconds} s between SIGTERM and SIGKILL are too few for a clean end"
        yield Hit(("slurm", "kill_wait_s"), what, "see KillWait in `scontrol show config`; Slurm's default is 30")


def account_default_mismatch(queue: Queue) -> Iterator[Hit]:
    """A default account that breaks the site's own pattern is refused in every job that names none."""
    rules = queue.site.account
    if rules.default is not None and rules.pattern is not None and not re.fullmatch(rules.pattern, rules.default):
        what = f"the default account '{rules.default}' does not match account.pattern '{rules.pattern}'"
        yield Hit(queue.at("account", "default"), what, "correct one of the two")


def useless_pattern(queue: Queue) -> Iterator[Hit]:
    """A pattern that any text matches refuses nothing."""
    patterns = (
        (("account", "pattern"), queue.site.account.pattern),
        (("storage", "submit_from"), queue.site.storage.submit_from),
    )
    for path, pattern in patterns:
        if pattern is not None and all(re.fullmatch(pattern, text) for text in _UNLIKELY_TEXTS):
            yield Hit(queue.at(*path), f"the pattern '{pattern}' matches anything", "remove it, or make it stricter")


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _verified_on(view: View) -> date | None:
    return None if view.profile.verified is None else _date(view.profile.verified.date)


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and " " not in text


def _releases(view: View) -> Iterator[tuple[tuple[str, ...], str]]:
    if view.profile.slurm.version is not None:
        yield ("slurm", "version"), view.profile.slurm.version
    if view.profile.verified is not None and view.profile.verified.slurm is not None:
        yield ("verified", "slurm"), view.profile.verified.slurm


RULES = (
    *site_rules("error", no_such_date, verified_in_future, not_an_address, matches_everything),
    *site_rules("warning", name_differs_from_file, not_verified, verified_too_old, no_sources),
    *site_rules("warning", run_without_release, needs_all=True),
    *site_rules("warning", matches_nothing_said, no_such_release, short_kill_wait),
    *queue_rules("error", account_default_mismatch),
    *queue_rules("warning", useless_pattern),
)
