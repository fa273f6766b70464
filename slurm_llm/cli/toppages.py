"""The metrics pages of a run's instances, asked for beside the live view: a server that hangs holds up nobody.

Threads of their own ask; each instance has at most one request under way, and keeps its last figures with their age.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slurm_llm.errors import NotReached, RequestFailed
from slurm_llm.observe.live import Look
from slurm_llm.observe.livefigures import build_figures, build_probes
from slurm_llm.observe.metricstext import Family, parse_metrics

if TYPE_CHECKING:
    import httpx

AT_ONCE = 16
"""Pages that are asked for at a time."""
A_LOOK = 64
"""Pages that one look of the view asks for at most: those of more instances are asked for in turns."""
TIMEOUT_S, SPARE_S = 2.0, 1.0
HEAD = -1
"""Stands for the run's head among instances."""
SHOWN_PROBLEM = 30
TREND = 16
"""Intervals whose requests by the second are kept."""


@dataclass(frozen=True)
class Subject:
    """Whose figures are wanted: addresses of pages by instance, and which model of which engine they serve.

    `head` is the address of the page of the run's head, empty where there is none.
    """

    urls: Mapping[int, str]
    model: str
    engine: str
    head: str = ""

    @property
    def pages(self) -> dict[int, str]:
        """All pages; that of the head has a number of its own."""
        return {**self.urls, **({HEAD: self.head} if self.head else {})}


@dataclass(frozen=True)
class _State:
    """What is known of one instance; `read` and `asked` are moments of the monotonic clock."""

    url: str
    look: Look = field(default_factory=Look)
    families: Sequence[Family] = ()
    read: float = 0.0
    asked: float = float("-inf")
    under_way: bool = False


class Pages:
    """Asks for pages in the background; `looks` never waits."""

    def __init__(self, timeout_s: float = TIMEOUT_S, a_look: int = A_LOOK) -> None:
        self._timeout_s, self._a_look = timeout_s, a_look
        self._states: dict[int, _State] = {}
        self._changed = threading.Condition()
        self._wanted: queue.SimpleQueue[tuple[int, str, Subject]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._client: httpx.Client | None = None

    def want(self, subject: Subject) -> None:
        """Ask for the pages that were not asked for the longest time; those under way are left alone."""
        with self._changed:
            self._states = {
                number: known if (known := self._states.get(number)) and known.url == url else _State(url)
                for number, url in subject.pages.items()
            }
            free = [number for number, own in self._states.items() if not own.under_way]
            due = sorted(free, key=lambda number: self._states[number].asked)[: self._a_look]
            for number in due:
                own = self._states[number]
                self._states[number] = replace(own, under_way=True, asked=time.monotonic())
                self._wanted.put((number, own.url, subject))
        while len(self._threads) < min(AT_ONCE, len(subject.pages)):
            # Daemons: a program that is told to end does not wait for a server that hangs.
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()

    def looks(self) -> dict[int, Look]:
        """Return what is known of each instance now."""
        with self._changed:
            states = dict(self._states)
        head = states.pop(HEAD, None)
        probes = build_probes(head.families) if head is not None else {}
        return {number: replace(own.look, probe=probes.get(number)) for number, own in states.items()}

    def settle(self) -> None:
        """Wait until no page is under way, at most as long as all of them may take."""
        with self._changed:
            limit = self._timeout_s * (1 + len(self._states) / AT_ONCE) + SPARE_S
            self._changed.wait_for(lambda: not any(own.under_way for own in self._states.values()), limit)

    def _work(self) -> None:
        while True:
            number, url, subject = self._wanted.get()
            page = self._ask(url)
            with self._changed:
                own = self._states.get(number)
                if own is not None and own.url == url:
                    self._states[number] = _after(own, page, subject)
                self._changed.notify_all()

    def _ask(self, url: str) -> Sequence[Family] | RequestFailed:
        # Imported here: only a run that serves needs an HTTP library.
        from slurm_llm import triton

        with self._changed:
            if self._client is None:
                self._client = triton.page_client()
        try:
            return parse_metrics(triton.page(url, self._timeout_s, self._client))
        except RequestFailed as error:
            return error


def _after(own: _State, page: Sequence[Family] | RequestFailed, subject: Subject) -> _State:
    """Return the state after an answer, or after none: the last figures stay, and grow old."""
    if isinstance(page, RequestFailed):
        what = "cannot be reached" if isinstance(page, NotReached) else page.problems[0].what
        return replace(own, under_way=False, look=replace(own.look, problem=what[:SHOWN_PROBLEM]))
    now = time.monotonic()
    figures = build_figures(subject.model, subject.engine, page, own.families, now - own.read)
    rate = figures.requests_per_s
    trend = own.look.trend if rate is None else (*own.look.trend, rate)[-TREND:]
    return replace(own, under_way=False, look=Look(figures, time.time(), trend=trend), families=page, read=now)
