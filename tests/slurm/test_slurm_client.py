"""The client asks in order, with a clean environment, and takes no failure for 'no such job'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from slurm_llm.errors import SetupError, SlurmError, SubmitError
from slurm_llm.process import NOT_FOUND_RC, Completed
from slurm_llm.slurm import client as client_module
from slurm_llm.slurm.client import SlurmClient, scrub_environment
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import SlurmState
from slurm_llm.slurm.versions import SlurmVersion
from tests.slurm.slurm_captures import answer, load_capture

REAL = "slurm-22.05.8-"
DOWN = answer("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1)


class FakeSlurm:
    """A runner that gives each program's prepared answer and remembers what was asked."""

    def __init__(self, **answers: Completed) -> None:
        self.answers = answers
        self.calls: list[tuple[str, ...]] = []
        self.envs: list[dict[str, str]] = []
        self.timeouts: list[float] = []

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed:
        self.calls.append(tuple(argv))
        self.envs.append(dict(env or {}))
        self.timeouts.append(timeout_s)
        return replace(self.answers[argv[0]], argv=tuple(argv))

    @property
    def programs(self) -> list[str]:
        """The programs in the order in which they were called."""
        return [argv[0] for argv in self.calls]


def test_live_jobs_take_one_call() -> None:
    """Any number of jobs that are in the queue cost one squeue and nothing else."""
    slurm = FakeSlurm(squeue=load_capture(REAL + "squeue-many"))
    found = SlurmClient(slurm, {}).query([JobId(10), JobId(12), JobId(13)])
    assert slurm.programs == ["squeue"]
    assert "--jobs=10,12,13" in slurm.calls[0]
    assert {job_id.number: facts.state for job_id, facts in found.items()} == {
        10: SlurmState.RUNNING,
        12: SlurmState.PENDING,
        13: SlurmState.PENDING,
    }


def test_an_ended_job_gets_its_status_from_scontrol() -> None:
    """squeue still lists it, only scontrol has its exit status."""
    slurm = FakeSlurm(squeue=load_capture(REAL + "squeue-many"), scontrol=load_capture(REAL + "scontrol-failed"))
    found = SlurmClient(slurm, {}).query([JobId(9)])
    assert slurm.programs == ["squeue", "scontrol"]
    assert (found[JobId(9)].source, found[JobId(9)].exit_code) == ("scontrol", 3)


def test_a_job_that_was_just_forgotten_keeps_squeues_facts() -> None:
    """Between squeue and scontrol the controller may drop a job: the first answer stands."""
    slurm = FakeSlurm(squeue=load_capture(REAL + "squeue-many"), scontrol=load_capture(REAL + "scontrol-unknown"))
    found = SlurmClient(slurm, {}).query([JobId(9)])
    assert (found[JobId(9)].source, found[JobId(9)].state) == ("squeue", SlurmState.FAILED)


def test_a_forgotten_job_comes_from_sacct() -> None:
    """What the controller does not know is asked of the accounting in one call."""
    slurm = FakeSlurm(squeue=load_capture(REAL + "squeue-unknown"), sacct=load_capture(REAL + "sacct-many"))
    found = SlurmClient(slurm, {}).query([JobId(8), JobId(9), JobId(99999)])
    assert slurm.programs == ["squeue", "sacct"]
    assert found[JobId(9)].source == "sacct"
    assert found[JobId(8)].state is SlurmState.COMPLETED
    assert JobId(99999) not in found


def test_without_accounting_a_forgotten_job_is_absent() -> None:
    """Nobody knows it: no entry, so no success and no failure either."""
    slurm = FakeSlurm(
        squeue=load_capture(REAL + "squeue-unknown"), sacct=load_capture("documented-sacct-no-accounting")
    )
    assert SlurmClient(slurm, {}).query([JobId(8)]) == {}


def test_a_failed_controller_raises() -> None:
    """A controller that does not answer is no empty queue, and sacct is not asked in its place."""
    slurm = FakeSlurm(squeue=DOWN)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller") as caught:
        SlurmClient(slurm, {}).query([JobId(8)])
    assert caught.value.argv[0] == "squeue"


def test_a_controller_that_fails_in_between_raises() -> None:
    """scontrol's failure is no 'unknown job' either."""
    slurm = FakeSlurm(squeue=load_capture(REAL + "squeue-many"), scontrol=DOWN)
    with pytest.raises(SlurmError, match="Unable to contact"):
        SlurmClient(slurm, {}).query([JobId(9)])


@pytest.mark.parametrize(
    "failure",
    [
        answer("", "sacct: error: Problem talking to the database: Connection refused", 1),
        answer("", "sacct: No such file or directory", NOT_FOUND_RC),
    ],
)
def test_a_failed_accounting_is_unknown_with_its_words(failure: Completed) -> None:
    """The live job's facts hold, the forgotten one is UNKNOWN and says why."""
    slurm = FakeSlurm(squeue=load_capture(REAL + "squeue-many"), sacct=failure)
    found = SlurmClient(slurm, {}).query([JobId(10), JobId(500)])
    assert found[JobId(10)].state is SlurmState.RUNNING
    assert (found[JobId(500)].state, found[JobId(500)].source) == (SlurmState.UNKNOWN, "sacct")
    assert failure.stderr in found[JobId(500)].reason


def test_no_jobs_take_no_call() -> None:
    """Nothing asked, nothing run."""
    slurm = FakeSlurm()
    assert SlurmClient(slurm, {}).query([]) == {}
    assert slurm.calls == []


def test_each_cluster_is_asked_once() -> None:
    """Jobs of two clusters cost one squeue each, with the cluster named."""
    slurm = FakeSlurm(squeue=answer(""), sacct=answer(""))
    SlurmClient(slurm, {}).query([JobId(1, cluster="a"), JobId(2, cluster="b"), JobId(3, cluster="a")])
    queues = [argv for argv in slurm.calls if argv[0] == "squeue"]
    assert [[word for word in argv if word.startswith("--clusters")] for argv in queues] == [
        ["--clusters=a"],
        ["--clusters=b"],
    ]


def test_submit_returns_id_and_warnings() -> None:
    """What sbatch printed beside the id reaches the caller."""
    slurm = FakeSlurm(sbatch=answer("77;alpha\n", "sbatch: warning: odd\n"))
    submitted = SlurmClient(slurm, {}).submit("/run/job.sub", ["--nodes=2"])
    assert submitted.job_id == JobId(77, cluster="alpha")
    assert submitted.warnings == ("sbatch: warning: odd",)
    assert slurm.calls == [("sbatch", "--parsable", "--nodes=2", "/run/job.sub")]


def test_a_refused_job_raises() -> None:
    """SubmitError has exit code 6 and all of Slurm's text."""
    slurm = FakeSlurm(sbatch=load_capture(REAL + "sbatch-refused"))
    with pytest.raises(SubmitError, match="invalid partition specified") as caught:
        SlurmClient(slurm, {}).submit("/run/job.sub")
    assert caught.value.exit_code == 6


def test_cancel_raises_when_slurm_refuses() -> None:
    """Another user's job cannot be cancelled, and the user is told."""
    slurm = FakeSlurm(scancel=answer("", "scancel: error: Kill job error on job id 5: Access/permission denied", 1))
    with pytest.raises(SlurmError, match="permission denied"):
        SlurmClient(slurm, {}).cancel(JobId(5))


def test_cancel_of_a_step_signals_the_step() -> None:
    """The tasks are asked by JOB.STEP."""
    slurm = FakeSlurm(scancel=answer())
    SlurmClient(slurm, {}).cancel(JobId(5), signal="TERM", step="0")
    assert slurm.calls == [("scancel", "--signal=TERM", "5.0")]


def test_a_missing_program_is_named() -> None:
    """Without Slurm the message says which program is missing and what to do."""
    slurm = FakeSlurm(squeue=answer("", "squeue: No such file or directory", NOT_FOUND_RC))
    with pytest.raises(SetupError, match="Slurm's `squeue` is not on PATH: ") as caught:
        SlurmClient(slurm, {}).query([JobId(1)])
    assert caught.value.exit_code == 5


def test_the_client_and_the_runner_agree_on_a_missing_program() -> None:
    """The number that the client looks for is the runner's."""
    assert client_module.NOT_FOUND_RC == NOT_FOUND_RC


def test_version_is_read() -> None:
    """The release of the commands."""
    slurm = FakeSlurm(sbatch=load_capture(REAL + "sbatch-version"))
    assert SlurmClient(slurm, {}).version() == SlurmVersion(22, 5, 8)


def test_a_strange_version_is_a_slurm_error() -> None:
    """A wrapper that prints something else is shown whole."""
    slurm = FakeSlurm(sbatch=answer("my wrapper\n"))
    with pytest.raises(SlurmError, match="my wrapper"):
        SlurmClient(slurm, {}).version()


def test_mpi_types_are_read() -> None:
    """What srun names."""
    slurm = FakeSlurm(srun=load_capture(REAL + "mpi-list"))
    assert "pmix" in SlurmClient(slurm, {}).mpi_types()


def test_inherited_options_are_dropped() -> None:
    """Options of an outer job or a module go, what locates the cluster stays, and so does everything else."""
    kept = {
        "PATH": "/usr/bin",
        "HOME": "/home/u",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_CONF_SERVER": "ctl:6817",
        "SLURM_CLUSTERS": "alpha",
        "SLURM_CLUSTER_NAME": "alpha",
        "SLURM_JWT": "token",
        "SLURM_SACK_SOCKET": "/run/slurm/sack.socket",
        "SLURM_LLM_SITE": "devcluster",
    }
    dropped = {
        "SLURM_JOB_ID": "1",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_TIME_FORMAT": "relative",
        "SBATCH_PARTITION": "small",
        "SBATCH_MEM_PER_NODE": "100M",
        "SRUN_CPUS_PER_TASK": "4",
        "SALLOC_ACCOUNT": "x",
        "SQUEUE_FORMAT": "%i",
        "SQUEUE_STATES": "R",
        "SACCT_FORMAT": "jobid",
        "SCANCEL_SIGNAL": "INT",
        "SINFO_FORMAT": "%P",
    }
    assert scrub_environment({**kept, **dropped}) == kept


def test_queries_speak_english_and_standard_times() -> None:
    """Reading commands get LC_ALL=C and standard times; sbatch keeps the locale, which the job inherits."""
    slurm = FakeSlurm(squeue=answer(""), sacct=answer(""), sbatch=answer("1\n"))
    client = SlurmClient(slurm, {"LC_ALL": "de_DE.UTF-8", "SLURM_TIME_FORMAT": "relative"}, timeout_s=7)
    client.query([JobId(1)])
    client.submit("/run/job.sub")
    for env in slurm.envs[:2]:
        assert (env["LC_ALL"], env["SLURM_TIME_FORMAT"]) == ("C", "standard")
    assert slurm.envs[2] == {"LC_ALL": "de_DE.UTF-8"}
    assert slurm.timeouts == [7, 7, 7]
