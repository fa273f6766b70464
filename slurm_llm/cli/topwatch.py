"""Looks at a run for the live view, again and again, at little cost: to files, Slurm and servers.

Files are read as they grow; Slurm is asked at most every 15 s, less often while nothing changes; servers are asked by
`toppages`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from slurm_llm.cli.toppages import Pages, Subject
from slurm_llm.errors import SlurmLlmError
from slurm_llm.observe.facts import load_evidence
from slurm_llm.observe.live import Seen, Snapshot, build_snapshot, head_page, metrics_pages
from slurm_llm.observe.livejournal import LiveReading
from slurm_llm.observe.status import SlurmWord
from slurm_llm.rundir import JobPaths
from slurm_llm.runs import FoundRun, ask_slurm, status_of
from slurm_llm.slurm.states import SlurmState
from slurm_llm.surroundings import Surroundings

ASK_S, LONGEST_ASK_S, GROWTH = 15.0, 60.0, 1.5
AGAIN_S = 3.0
"""How soon Slurm is asked again after a run's own files have told of a new attempt or of an end."""
BELIEVED_AFTER = 3
"""Answers in a row of Slurm that make an end of which the run's own files tell nothing."""
SHARE = 4
"""A look that takes long is followed by a pause of so many times its length at least."""


class SlurmWords:
    """Slurm's words on the jobs of a run, asked for anew only now and then; a call is as `ask_slurm`."""

    def __init__(self) -> None:
        self.asked: float | None = None
        """When Slurm was last asked, seconds since the epoch."""
        self.times = 0
        self._words: dict[JobPaths | None, SlurmWord] = {}
        self._news: dict[JobPaths | None, tuple[int, bool]] = {}
        self._due = self._soonest = float("-inf")
        self._pause = ASK_S

    def __call__(self, group: Sequence[FoundRun], around: Surroundings) -> list[SlurmWord]:
        """Return the newest word on each job, asking for all of them in one go when it is time."""
        now, news = around.monotonic(), {one.job: _progress(one) for one in group}
        if news != self._news:
            # The job itself has gone on: what Slurm said before is old, and may contradict it.
            self._due, self._pause = self._soonest, ASK_S
        if now >= self._due:
            words = ask_slurm(group, around)
            self._words = {one.job: word for one, word in zip(group, words, strict=True)}
            self.asked, self.times, self._news = around.now(), self.times + 1, news
            self._soonest, self._due = now + AGAIN_S, now + self._pause
            self._pause = min(self._pause * GROWTH, LONGEST_ASK_S)
        return [self._brought_up(self._words.get(one.job, SlurmWord(asked=False)), one) for one in group]

    def _brought_up(self, word: SlurmWord, found: FoundRun) -> SlurmWord:
        """Return the word on a job, which does not wait any more once it has begun another attempt since."""
        waits = word.facts is not None and word.facts.state is SlurmState.PENDING
        if word.facts is None or not waits or _progress(found) == self._news.get(found.job):
            return word
        return replace(word, facts=replace(word.facts, state=SlurmState.RUNNING))

    def hurry(self) -> None:
        """Have Slurm asked again soon."""
        self._due, self._pause = self._soonest, ASK_S


def _progress(found: FoundRun) -> tuple[int, bool]:
    """Return what of a job's files shows that it has gone on: its attempts, and whether the newest has a result."""
    attempts = found.job.attempts() if found.job is not None else []
    ended = found.job is not None and bool(attempts) and found.job.result(attempts[-1].number).is_file()
    return len(attempts), ended


class Watcher:
    """Looks at one run; `over` is set once it has ended and nothing follows."""

    def __init__(self, found: FoundRun, around: Surroundings, pages: Pages) -> None:
        self._found, self._around, self._pages = found, around, pages
        self._reading, self._words = LiveReading(), SlurmWords()
        self._ended_since: int | None = None
        self.over = False

    def look(self) -> Snapshot:
        """Return the run as it is now, and have its servers asked for the next look.

        Raises:
            SetupError: its plan cannot be read.
        """
        self._reading.begin()
        status = status_of(self._found, self._around, self._words, self._reading)
        paths = self._found.paths
        job = paths.job(status.job_id) if status.job_id is not None else None
        evidence = load_evidence(paths, job, reading=self._reading)
        attempt = evidence.attempt
        seen = Seen(
            records=self._reading.records(attempt) if attempt else (),
            samples=self._reading.journal_of(attempt).samples if attempt else {},
            looks=self._pages.looks(),
            asked=self._words.asked,
        )
        ends = status.endpoints
        self._pages.want(Subject(metrics_pages(ends), status.model, status.engine, head_page(ends)))
        self._note_end(status.ended, status.has_result)
        return build_snapshot(status, evidence, seen, self._around.now())

    def _note_end(self, ended: bool, has_result: bool) -> None:
        """Believe an end that the job wrote down, and any other after Slurm has said it several times."""
        if not ended:
            self._ended_since = None
            return
        if self._ended_since is None:
            self._ended_since = self._words.times
        self.over = has_result or self._words.times - self._ended_since >= BELIEVED_AFTER - 1
        if not self.over:
            self._words.hurry()


class Looker:
    """Looks every few seconds in a thread of its own, so that neither Slurm nor a file system freezes the view."""

    def __init__(self, watcher: Watcher, first: Snapshot, every_s: float) -> None:
        """Take the first snapshot as it is."""
        self.snapshot = first
        self.failure: SlurmLlmError | OSError | None = None
        self._watcher, self._every_s = watcher, every_s
        self._tell: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = threading.Event()

    @property
    def going(self) -> bool:
        """Whether further snapshots may come."""
        return self._thread.is_alive()

    @property
    def broke_off(self) -> bool:
        """Whether it has ended though the run goes on and nobody told it to: by a fault of ours."""
        return not self.going and not self._watcher.over and not self._stop.is_set() and self.failure is None

    def start(self, tell: Callable[[], None]) -> None:
        """Begin to look; `tell` is called after each look, and at the end."""
        self._tell = tell
        self._thread.start()

    def stop(self) -> None:
        """Begin no further look."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the looks, at most that long."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        around = Surroundings.of_this_process()
        pause = self._every_s
        try:
            while not self._watcher.over and not self._stop.wait(pause):
                began = around.monotonic()
                self.snapshot = self._watcher.look()
                pause = max(self._every_s, SHARE * (around.monotonic() - began))
                self._tell()
        except (SlurmLlmError, OSError) as error:
            self.failure = error
        finally:
            self._tell()
