"""Asks Slurm through a given runner: what to run, in what order, in which environment; it starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_llm.errors import Problem, SetupError, SlurmError
from slurm_llm.slurm import commands, scontrol
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import RunState, SlurmState, run_state
from slurm_llm.slurm.versions import SlurmVersion, parse_version

if TYPE_CHECKING:
    from slurm_llm.process import Completed, Runner

NOT_FOUND_RC = 127  # process.NOT_FOUND_RC: importing it would cost every status call subprocess
DEFAULT_TIMEOUT_S = 60.0

# Commands read these as options; what locates the cluster stays.
_OPTION_PREFIXES = (
    "SLURM_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SQUEUE_",
    "SACCT_",
    "SCANCEL_",
    "SINFO_",
    "SCONTROL_",
)
_LOCATORS = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME", "SLURM_JWT"})
_KEPT_PREFIXES = ("SLURM_SACK_", "SLURM_LLM_")  # credentials of auth/slurm; our own variables


def scrub_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without inherited Slurm options, as the job's own when called from inside a job.

    A module or an outer job may set `SBATCH_PARTITION` or `SLURM_MEM_PER_NODE`; those beat `#SBATCH` lines.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _LOCATORS or name.startswith(_KEPT_PREFIXES) or not name.startswith(_OPTION_PREFIXES)
    }


class SlurmClient:
    """Slurm's commands for one user and environment.

    Every failure of Slurm raises SlurmError with argv, exit status and both streams; a missing program raises
    SetupError. "The controller did not answer" is therefore never the same as "no such job".
    """

    def __init__(self, runner: Runner, environ: Mapping[str, str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._runner = runner
        self._timeout_s = timeout_s
        # sbatch passes its environment on to the job, so its own keeps the user's locale.
        self._submit_env = scrub_environment(environ)
        self._env = {**self._submit_env, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}

    def submit(self, script: str, options: Sequence[str] = (), *, clusters: str | None = None) -> commands.Submitted:
        """Submit a script and return its job id and sbatch's warnings.

        Raises SubmitError with Slurm's whole text.
        """
        argv = commands.sbatch_argv(script, options=options, clusters=clusters)
        return commands.parse_sbatch(self._run(argv, self._submit_env))

    def query(self, job_ids: Iterable[JobId]) -> dict[JobId, JobFacts]:
        """Return what Slurm knows of each job, by the ids given; a job that it does not know is absent.

        Evidence in order: squeue, one call for all of a cluster; scontrol for those that ended and are still
        remembered, since only it has their exit status; sacct, one call for the rest. Raises SlurmError when
        the controller does not answer. When it answers and only the accounting fails, the rest come back as
        UNKNOWN with the accounting's words as the reason. Parts of array and heterogeneous jobs are asked for
        by the id of each part.
        """
        found: dict[JobId, JobFacts] = {}
        by_cluster: dict[str | None, list[JobId]] = {}
        for job_id in dict.fromkeys(job_ids):
            by_cluster.setdefault(job_id.cluster, []).append(job_id)
        for cluster, asked in by_cluster.items():
            found.update(self._query_cluster(cluster, asked))
        return found

    def cancel(
        self,
        job_id: JobId,
        *,
        signal: str | None = None,
        batch: bool = False,
        full: bool = False,
        step: str | None = None,
    ) -> None:
        """Cancel or signal a job or step; raises SlurmError when Slurm refuses.

        Slurm says nothing of a job that ended or never was, exit status 0 (22.05.8): that it is gone is for
        `query` to tell.
        """
        argv = commands.scancel_argv(job_id, signal=signal, batch=batch, full=full, step=step)
        self._checked(argv, f"scancel could not reach job {job_id}")

    def version(self) -> SlurmVersion:
        """Return the release of the Slurm commands on this machine."""
        completed = self._checked(("sbatch", "--version"), "sbatch did not tell its version")
        try:
            return parse_version(completed.stdout)
        except ValueError as error:
            raise commands.failure(SlurmError, str(error), completed) from error

    def mpi_types(self) -> tuple[str, ...]:
        """Return the MPI types that srun names."""
        return commands.parse_mpi_list(self._run(commands.mpi_list_argv()))

    def partitions(self, *, clusters: str | None = None) -> tuple[commands.PartitionFacts, ...]:
        """Return the partitions, one entry for each kind of node in them."""
        return commands.parse_sinfo(self._run(commands.sinfo_argv(clusters=clusters)))

    def config(self, *, clusters: str | None = None) -> dict[str, str]:
        """Return the controller's configuration."""
        argv = scontrol.scontrol_show_config_argv(clusters=clusters)
        return scontrol.parse_scontrol_config(self._run(argv))

    def output(self, argv: Sequence[str]) -> Completed:
        """Run any other query in the commands' own environment; only a missing program raises SetupError."""
        return self._run(argv)

    def accounting(self, job_ids: Sequence[JobId], *, steps: bool = False) -> commands.Accounting:
        """Return what sacct knows of jobs of one cluster, by id, with their steps when asked."""
        cluster = job_ids[0].cluster if job_ids else None
        argv = commands.sacct_argv(job_ids, steps=steps, clusters=cluster)
        return commands.parse_sacct(self._run(argv), cluster=cluster)

    def _query_cluster(self, cluster: str | None, asked: list[JobId]) -> dict[JobId, JobFacts]:
        queue = self._run(commands.squeue_argv(asked, clusters=cluster))
        found = commands.parse_squeue(queue, cluster=cluster)
        found = {job_id: facts for job_id, facts in found.items() if job_id in set(asked)}
        for job_id, facts in found.items():
            if _has_ended(facts):
                found[job_id] = self._details(facts)
        missing = [job_id for job_id in asked if job_id not in found]
        return {**found, **self._account(missing)} if missing else found

    def _details(self, facts: JobFacts) -> JobFacts:
        """Return scontrol's facts of an ended job; squeue's when the controller has just forgotten it."""
        completed = self._run(scontrol.scontrol_show_job_argv(facts.job_id))
        details = scontrol.parse_scontrol_job(completed, cluster=facts.job_id.cluster)
        return facts if details is None else replace(details, job_id=facts.job_id)

    def _account(self, missing: list[JobId]) -> dict[JobId, JobFacts]:
        """Ask sacct; its failure is carried as UNKNOWN: the controller's answers about other jobs hold."""
        try:
            known = self.accounting(missing).jobs
        except (SlurmError, SetupError) as error:
            return {job_id: JobFacts(job_id, SlurmState.UNKNOWN, "sacct", reason=str(error)) for job_id in missing}
        return {job_id: known[job_id] for job_id in missing if job_id in known}

    def _run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Completed:
        completed = self._runner(argv, env=env or self._env, timeout_s=self._timeout_s)
        if completed.returncode == NOT_FOUND_RC:
            program = argv[0]
            raise SetupError(
                Problem(
                    f"Slurm's `{program}` is not on PATH",
                    completed.stderr.strip() or "it could not be started",
                    todo="run this on a login node, or load the module that brings Slurm",
                )
            )
        return completed

    def _checked(self, argv: Sequence[str], failure: str) -> Completed:
        completed = self._run(argv)
        if completed.returncode != 0:
            raise commands.failure(SlurmError, failure, completed)
        return completed


def _has_ended(facts: JobFacts) -> bool:
    state = run_state(facts.state)
    return state.is_terminal and state is not RunState.LOST
