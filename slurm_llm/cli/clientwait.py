"""What `submit --then CMD --wait` does: show what the client prints until the job has ended, and end as it did."""

from __future__ import annotations

import codecs
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.progress import Progress
from slurm_llm.cli.text import status_text, width
from slurm_llm.errors import RunFailed
from slurm_llm.observe.status import RunStatus, status_to_json
from slurm_llm.observe.text import clean
from slurm_llm.surroundings import Surroundings
from slurm_llm.waiting import failure_problems, wait_end

if TYPE_CHECKING:
    from slurm_llm.rundir import JobPaths
    from slurm_llm.runs import FoundRun

LOOK_S = 0.5
BLOCK_BYTES = 1 << 16


def wait_for_client(found: FoundRun, around: Surroundings, timeout_s: float | None, as_json: bool) -> int:
    """Wait until the job has ended, and return its exit status; its client's output goes to stdout, all else to stderr.

    With `as_json` the last status is printed instead.

    Raises:
        RunFailed: the server was at fault; NotReady: `timeout_s` passed, the job goes on.
    """
    output = _Output(None if as_json else found.job)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(around))

        def tell(status: RunStatus, unanswered: int) -> None:
            progress.tell(status, unanswered)
            if status.client is not None or status.ready:
                # Its spinner and the client's lines would overwrite each other.
                progress.rest()

        status = wait_end(found, _Showing(around.environ, around.cwd, around.runner, output=output), timeout_s, tell)
    output.show()
    if as_json:
        click.echo(status_to_json(status))
    if status.client is None or (status.state.value == "FAILED" and status.client.told):
        raise RunFailed(failure_problems(status))
    if not as_json:
        click.echo(status_text(status, around.now(), width(sys.stderr.isatty()), sys.stderr.isatty()), err=True)
    return 1 if status.exit_code is None else status.exit_code


class _Output:
    """The clients' logs of a job, shown from where they were left: one after the other where an attempt follows."""

    def __init__(self, job: JobPaths | None) -> None:
        self._job = job
        self._attempt, self._offset = 0, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self) -> None:
        """Print what has come since the last call; a pipe gets every byte, a terminal no control characters."""
        while self._job is not None:
            self._show_rest(self._job)
            if not self._job.attempt(self._attempt + 1).root.is_dir():
                return
            self._attempt, self._offset = self._attempt + 1, 0

    def _show_rest(self, job: JobPaths) -> None:
        try:
            with job.client_log(self._attempt).open("rb") as stream:
                stream.seek(self._offset)
                while data := stream.read(BLOCK_BYTES):
                    self._offset += len(data)
                    self._print(data)
        except FileNotFoundError:
            return

    def _print(self, data: bytes) -> None:
        if not sys.stdout.isatty():
            click.echo(data, nl=False)
            return
        rows = self._decoder.decode(data).split("\n")
        click.echo("\n".join(clean(row) for row in rows), nl=False)


@dataclass(frozen=True, kw_only=True)
class _Showing(Surroundings):
    """Surroundings that show a client's output while they wait."""

    output: _Output

    def pause(self, seconds: float) -> None:
        """Wait, and look for new output meanwhile."""
        until = self.monotonic() + seconds
        while (left := until - self.monotonic()) > 0:
            self.output.show()
            super().pause(min(LOOK_S, left))
