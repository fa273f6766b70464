"""What `submit --wait` shows while it waits: one moving line on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

import click

from slurm_llm.agent import fold
from slurm_llm.observe.text import clean
from slurm_llm.slurm.states import RunState

if TYPE_CHECKING:
    from rich.status import Status

    from slurm_llm.observe.status import RunStatus
    from slurm_llm.surroundings import Surroundings


class Progress:
    """Shows the stage of a run on stderr, and how to go on when it is interrupted."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._begun = around.monotonic()
        self._stage = ""
        self._run_id = ""
        self._spinner: Status | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console

            self._spinner = Console(stderr=True, markup=False, highlight=False).status("asking Slurm")
            self._spinner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rest()
        if kind is KeyboardInterrupt and self._run_id:
            click.echo(f"the job goes on; end it with: slurm-llm cancel {self._run_id}", err=True)

    def rest(self) -> None:
        """Let the line stand still: what follows is told in lines of their own."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def tell(self, status: RunStatus, unanswered: int) -> None:
        """Show one look at the run."""
        self._run_id = status.run_id
        stage = stage_text(status)
        if unanswered:
            stage += f" (Slurm has not answered {unanswered} times)"
        seconds = self._around.monotonic() - self._begun
        if self._spinner is not None:
            self._spinner.update(f"{stage}  {seconds:.0f} s")
        elif stage != self._stage:
            click.echo(f"{seconds:6.1f} s  {stage}", err=True)
        self._stage = stage


def stage_text(status: RunStatus) -> str:
    """Return the stage in a few words: queued with the reason, starting, loading n/m ranks, ready."""
    if status.pending is not None:
        return f"queued: {status.pending.text}"
    if status.state is RunState.LOADING:
        going = status.ranks_total - status.rank_states.get(fold.WAITING, 0) - status.rank_states.get(fold.STARTING, 0)
        return f"loading: {going}/{status.ranks_total} ranks run"
    if status.state in (RunState.READY, RunState.STARTING):
        return str(status.state.value).lower()
    if status.ended:
        return str(status.state.value).lower()
    cause = clean(status.cause) or ", ".join(map(clean, status.notes))
    return str(status.state.value).lower() + (f": {cause}" if cause else "")
