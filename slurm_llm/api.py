"""The same from Python: load a spec and a site, plan, render, submit, then watch, ask and cancel the run.

spec = slurm_llm.load_spec("llama.yaml")
run = slurm_llm.submit(spec, slurm_llm.load_site("devcluster"))
run.wait_ready(timeout_s=600)
print(run.generate("Once upon a time", max_tokens=32))
run.cancel()
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from slurm_llm import runs, waiting
from slurm_llm.observe.health import RankHealth, build_health
from slurm_llm.observe.logs import Choice, LogLine, last_merged, log_sources
from slurm_llm.observe.status import RunStatus
from slurm_llm.runs import FoundRun
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.dialects import Value
    from slurm_llm.plan import Plan
    from slurm_llm.sites.load import Site
    from slurm_llm.spec import JobSpec


def load_spec(path: str | Path, settings: Iterable[str] = ()) -> JobSpec:
    """Read a spec, with each `a.b=value` of `settings` laid over it.

    Raises:
        SpecError: every fault of the file and of the settings.
    """
    from slurm_llm import spec

    return spec.load_spec(path, settings)


def load_site(name: str | None = None, environ: Mapping[str, str] | None = None) -> Site:
    """Load a site profile by name or path; without a name, $SLURM_LLM_SITE, else the one that matches this machine.

    Raises:
        SiteError: no site, an unknown one, or every fault of its files.
    """
    from slurm_llm.sites import load

    return load.load_site(name, _around(None).environ if environ is None else environ)


def _site_of(spec: JobSpec, site: Site) -> Site:
    """Return the site as it is for this spec, whose `site:` is laid over it."""
    from slurm_llm.sites import load

    return load.laid_over(site, dict(spec.site), label="spec: site") if spec.site else site


def build_plan(spec: JobSpec, site: Site) -> Plan:
    """Decide the job: nodes, tasks, and every rank's place.

    Raises:
        PlanError: every contradiction between spec and site.
    """
    from slurm_llm import plan

    return plan.build_plan(spec, _site_of(spec, site).profile)


def render_run(spec: JobSpec, site: Site, run_dir: str | Path, *, rehearse: bool = False) -> dict[str, str]:
    """Return every file of the run directory at `run_dir`, by relative path; nothing is written.

    Raises:
        PlanError, InputError: as `build_plan`; a path that no script can name.
    """
    from slurm_llm import app

    around = _around(None)
    job = app.make_job(spec, _site_of(spec, site), around, rehearse=rehearse)
    return app.render_job(job, around.cwd / run_dir, around).texts


def submit(spec: JobSpec, site: Site, *, rehearse: bool = False, around: Surroundings | None = None) -> Run:
    """Write the run directory and submit it; `rehearse` puts a tiny model in place of the weights.

    Raises:
        PlanError, InputError: the job cannot be planned or written; SubmitError: sbatch refused it;
        SetupError: no Slurm here, or the directory cannot be written.
    """
    from slurm_llm import app

    here = _around(around)
    job = app.make_job(spec, _site_of(spec, site), here, rehearse=rehearse)
    rendered = app.render_job(job, app.new_run_dir(job, here), here)
    job_id = app.submit_job(job, rendered, here).job_id
    return Run(FoundRun(rendered.paths, rendered.paths.job(job_id.number)), here)


def find_run(run: str | None = None, *, around: Surroundings | None = None) -> Run:
    """Return a run by run id, job id, name or path; None is the newest.

    Raises:
        RunNotFound: none, or more than one.
    """
    here = _around(around)
    return Run(runs.find_run(run, here), here)


@dataclass(frozen=True)
class Run:
    """One submitted run. Every call looks anew; nothing is kept."""

    found: FoundRun
    around: Surroundings

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.found.paths.root

    @property
    def run_id(self) -> str:
        """The run's id, `YYYYMMDD-HHMMSS-xxxx`."""
        return self.found.paths.run_id

    @property
    def job_id(self) -> int | None:
        """Slurm's number of the job; None of a run that was only rendered."""
        job = runs.current(self.found).job
        return job.job_id if job else None

    def status(self) -> RunStatus:
        """Return how the run is now; a Slurm that does not answer is told in it."""
        return runs.status_of(self.found, self.around)

    def ranks(self) -> list[RankHealth]:
        """Return a row for each rank.

        Raises:
            SetupError: the run directory is not readable any more.
        """
        state = self.status().state
        return build_health(runs.evidence_of(self.found), state, self.around.now())

    def logs(self, rank: int | Collection[int] | None = None, *, lines: int = 100) -> list[LogLine]:
        """Return the last `lines` lines, merged by time: of one rank, of some, or of everything."""
        ranks = frozenset((rank,)) if isinstance(rank, int) else None if rank is None else frozenset(rank)
        evidence = runs.evidence_of(self.found)
        sources = log_sources(evidence.paths, evidence.job, evidence.attempt, evidence.layout, Choice(ranks))
        return last_merged(sources, lines)

    def wait_ready(self, timeout_s: float | None = None) -> RunStatus:
        """Return once every rank serves.

        Raises:
            RunFailed: the job ended; its problems name the cause, the first rank and the end of its log;
            NotReady: `timeout_s` passed, the job goes on.
        """
        return waiting.wait_ready(self.found, self.around, timeout_s)

    @overload
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = ...,
        stream: Literal[False] = ...,
        timeout_s: float = ...,
        sampling: Mapping[str, Value] | None = ...,
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = ...,
        stream: Literal[True],
        timeout_s: float = ...,
        sampling: Mapping[str, Value] | None = ...,
    ) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        stream: bool = False,
        timeout_s: float = 300.0,
        sampling: Mapping[str, Value] | None = None,
    ) -> str | Iterator[str]:
        """Return the text that goes on from `prompt`, or with `stream` its pieces as they come.

        `sampling` are parameters under their common names, as in `{"temperature": 0, "seed": 1}`.

        Raises:
            NotReady: the run does not serve; RequestFailed: the server answered with an error, or not in time.
        """
        from slurm_llm import triton
        from slurm_llm.observe.served import served_of

        served = served_of(self.status(), self.around.environ)
        ask = triton.Ask(prompt, max_tokens, timeout_s=timeout_s, sampling=sampling or {})
        return triton.stream(served, ask) if stream else triton.generate(served, ask)

    def cancel(self) -> RunStatus:
        """End the run, in order where it runs; return its last status.

        Raises:
            SlurmError: Slurm does not answer or refuses; NotReady: the job outlived scancel.
        """
        return waiting.cancel(self.found, self.around)


def _around(around: Surroundings | None) -> Surroundings:
    return around or Surroundings.of_this_process()
