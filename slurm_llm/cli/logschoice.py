"""What `logs` is asked for: from options to a question, and to which logs of a run it is put, now and later."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slurm_llm.cli.options import parse_ranks
from slurm_llm.errors import InputError, Problem
from slurm_llm.observe.facts import Layout, load_layout
from slurm_llm.observe.logs import LEVELS, Choice, Folding, LogSource, Wanted, log_sources, rank_list
from slurm_llm.observe.logsources import agent_names, ended, node_names, wanted_ranks
from slurm_llm.observe.stamps import moment_of
from slurm_llm.runs import FoundRun, current, status_of
from slurm_llm.slurm.nodesets import expand_nodes, fold_nodes
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.rundir import AttemptPaths, JobPaths

T = TypeVar("T")
LINES = 100
ALL = "all"
FOLLOW_LOOK_S = 3.0
"""How often `logs -f` asks whether the run has ended; growing to ten times that."""


@dataclass(frozen=True)
class Asked:
    """Options of the command line, as they were written; None is what was not said."""

    ranks: str | None = None
    nodes: str | None = None
    instance: int | None = None
    others: tuple[str, ...] = ()
    attempt: str | None = None
    level: str | None = None
    grep: str | None = None
    ignore_case: bool = False
    since: str | None = None
    until: str | None = None
    lines: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether lines are chosen by what they say or when."""
        return any(one is not None for one in (self.level, self.grep, self.since, self.until))


@dataclass(frozen=True)
class Question:
    """What is wanted of which logs.

    `count` is how many lines at most, None for all; `attempt` that start of the server, None the newest, ALL all.
    """

    wanted: Wanted
    choice: Choice
    count: int | None
    attempt: int | str | None


class _Options:
    """Reads options and gathers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read(self, option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
        """Return what an option means; None when it was not given or means nothing."""
        try:
            return None if text is None else parse(text)
        except InputError as error:
            self.problems.extend(error.problems)
        except ValueError as error:
            self.problems.append(Problem(option, str(error)))
        return None


def question(asked: Asked, now: float) -> Question:
    """Return what the options mean.

    Raises:
        InputError: all of them that mean nothing.
    """
    options = _Options()
    since = options.read("--since", asked.since, lambda text: _moment(text, now))
    until = options.read("--until", asked.until, lambda text: _moment(text, now))
    made = Question(
        Wanted(
            LEVELS[asked.level] if asked.level else 0,
            options.read("--grep", asked.grep, lambda text: _expression(text, asked.ignore_case)),
            since,
            until,
        ),
        Choice(
            options.read("--rank", asked.ranks, parse_ranks),
            options.read("--node", asked.nodes, _nodes),
            asked.instance,
            asked.others,
        ),
        options.read("-n", asked.lines, _count) if asked.lines else None if asked.is_filtered else LINES,
        options.read("--attempt", asked.attempt, _attempt),
    )
    if since is not None and until is not None and since > until:
        options.problems.append(Problem("--since", f"'{asked.since}' is later than --until '{asked.until}'"))
    if asked.ignore_case and asked.grep is None:
        options.problems.append(Problem("-i", "there is no --grep for which it could be meant"))
    if options.problems:
        raise InputError(options.problems)
    return made


def _up_to(count: int) -> str:
    return f"there are 0 to {count - 1}" if count > 1 else "there is only 0"


def _moment(text: str, now: float) -> float:
    found = moment_of(text, now)
    if found is None:
        raise ValueError(f"'{text}' is no time: an age as 90s, 10m, 1h30m or 2d, a time as 14:30, 2026-11-30T14:30")
    return found


def _expression(text: str, ignore_case: bool) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'{text}' is no expression: {error}") from None


def _nodes(text: str) -> frozenset[str]:
    found = frozenset(expand_nodes(text))
    if not found:
        raise ValueError("no node is named")
    return found


def _count(text: str) -> int | None:
    if text == ALL:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"'{text}' is no number of lines: a whole number, or `{ALL}`")
    return int(text)


def _attempt(text: str) -> int | str:
    if text != ALL and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"'{text}' is no attempt: its number, counted from 0 in each job, or `{ALL}`")
    return text if text == ALL else int(text)


class View:
    """The logs of a run that a question is put to; asked again, those that are there then."""

    def __init__(self, found: FoundRun, asked: Question) -> None:
        self.found, self.asked = found, asked
        self._known: dict[tuple[Path, bool], list[LogSource]] = {}

    @cached_property
    def layout(self) -> Layout:
        """The run's plan, as far as it matters here."""
        return load_layout(self.found.paths.plan)

    def attempts(self) -> list[tuple[JobPaths, AttemptPaths | None]]:
        """Return the attempts whose logs are wanted, oldest first; a job that has not begun has none."""
        if self.asked.attempt == ALL:
            jobs = [self.found.job] if self.found.pinned else self.found.paths.jobs()
            return [(job, attempt) for job in jobs if job is not None for attempt in (*job.attempts(),) or (None,)]
        job = current(self.found).job
        if job is None:
            return []
        attempts = job.attempts()
        if self.asked.attempt is None:
            return [(job, attempts[-1] if attempts else None)]
        return [(job, one) for one in attempts if one.number == self.asked.attempt]

    def sources(self) -> list[LogSource]:
        """Return the wanted logs."""
        return [source for job, attempt in self.attempts() for source in self._of(job, attempt)]

    def _of(self, job: JobPaths, attempt: AttemptPaths | None) -> list[LogSource]:
        if attempt is None:
            return log_sources(self.found.paths, job, None, self.layout, self.asked.choice)
        # Some files come later: the ranks' records, which tell their nodes, and the balancer's log.
        settled = job.endpoint(attempt.number).exists() or ended(job, attempt)
        key = (attempt.root, settled)
        if key not in self._known or not settled:
            self._known[key] = log_sources(self.found.paths, job, attempt, self.layout, self.asked.choice)
        return self._known[key]

    def check(self) -> None:
        """Refuse what the run does not have.

        Raises:
            InputError: an attempt, an instance, a rank or a node.
        """
        attempts = [(job, attempt) for job, attempt in self.attempts() if attempt is not None]
        problems = list(self._missing(attempts))
        if problems:
            raise InputError(problems)

    def _missing(self, attempts: list[tuple[JobPaths, AttemptPaths]]) -> Iterator[Problem]:
        choice, layout = self.asked.choice, self.layout
        job = current(self.found).job
        if isinstance(self.asked.attempt, int) and not attempts:
            there = ", ".join(str(one.number) for one in (job.attempts() if job else [])) or "none yet"
            whose = f"job {job.job_id}" if job else "the run"
            yield Problem("--attempt", f"{whose} has no attempt {self.asked.attempt}", f"there are {there}")
        if choice.instance is not None and choice.instance >= layout.instances:
            yield Problem("--instance", f"there is no instance {choice.instance}", _up_to(layout.instances))
        unknown = (choice.ranks or frozenset()) - {place.rank for place in layout.ranks}
        if unknown:
            yield Problem("--rank", f"no such rank: {rank_list(unknown)}", _up_to(len(layout.ranks)))
        if choice.nodes is not None and not any(wanted_ranks(one, layout, choice) for _, one in attempts):
            yield from self._other_nodes(choice.nodes, [one for _, one in attempts])

    def _other_nodes(self, wanted: frozenset[str], attempts: list[AttemptPaths]) -> Iterator[Problem]:
        """Say which nodes there are; before any rank has begun nobody knows."""
        names = {name for one in attempts for name in node_names(one, self.layout.ranks).values()}
        if names:
            what = f"none of the wanted ranks is on {fold_nodes(sorted(wanted))}"
            yield Problem("--node", what, f"the run has {fold_nodes(sorted(names))}")

    def folding(self, folds: bool) -> Folding | None:
        """Return what folds lines of these logs, None where they are not to be folded."""
        if not folds:
            return None
        return Folding({name for _, one in self.attempts() if one is not None for name in agent_names(one)})

    def ending(self, around: Surroundings) -> Callable[[], bool]:
        """Return what tells whether nothing more is to come, asking Slurm only now and then."""
        pause, due, over, results = FOLLOW_LOOK_S, around.monotonic(), False, -1

        def is_over() -> bool:
            nonlocal pause, due, over, results
            before, results = results, self._results()
            if not over and (around.monotonic() >= due or results != before):
                over = self._attempt_is_over() or status_of(self.found, around).ended
                due = around.monotonic() + pause
                pause = min(pause * 1.5, 10 * FOLLOW_LOOK_S)
            return over

        return is_over

    def _results(self) -> int:
        """Return how many attempts have written how they ended: one more may be the end of the run."""
        job = current(self.found).job
        return sum(ended(job, one) for one in job.attempts()) if job else 0

    def _attempt_is_over(self) -> bool:
        if not isinstance(self.asked.attempt, int):
            return False
        return all(attempt is not None and ended(job, attempt) for job, attempt in self.attempts())
