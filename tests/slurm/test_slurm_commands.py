"""The argv of Slurm's commands, and what is read from real answers of 22.05.8 and documented ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.errors import SlurmError, SubmitError
from slurm_llm.slurm import commands, scontrol
from slurm_llm.slurm.commands import SEPARATOR, PartitionFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import SlurmState
from tests.slurm.slurm_captures import answer, load_capture


def test_sbatch_argv_puts_options_before_the_script() -> None:
    """sbatch reads what follows the script as the script's arguments."""
    argv = commands.sbatch_argv("/run/job.sub", options=["--partition=gpu"], clusters="alpha")
    assert argv == ("sbatch", "--parsable", "--clusters=alpha", "--partition=gpu", "/run/job.sub")


@pytest.mark.parametrize(
    ("stdout", "stderr", "job_id", "warnings"),
    [
        ("123\n", "", JobId(123), ()),
        ("123;alpha\n", "", JobId(123, cluster="alpha"), ()),
        ("Welcome to the cluster!\n\n123\n", "", JobId(123), ("Welcome to the cluster!",)),
        ("123\n", "sbatch: warning: odd\n", JobId(123), ("sbatch: warning: odd",)),
        ("You have 42 GPU hours left\n123\n", "", JobId(123), ("You have 42 GPU hours left",)),
    ],
)
def test_sbatch_answers_are_read(stdout: str, stderr: str, job_id: JobId, warnings: tuple[str, ...]) -> None:
    """The id is found among other lines, which are kept for the user."""
    submitted = commands.parse_sbatch(answer(stdout, stderr))
    assert (submitted.job_id, submitted.warnings) == (job_id, warnings)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sbatch-refused", "invalid partition specified: nosuch"),
        ("sbatch-nodes", "Requested node configuration is not available"),
    ],
)
def test_a_refused_job_keeps_slurms_words(name: str, said: str) -> None:
    """The error shows all that sbatch said, and has argv and status."""
    completed = load_capture(f"slurm-22.05.8-{name}")
    with pytest.raises(SubmitError, match=said) as caught:
        commands.parse_sbatch(completed)
    assert caught.value.argv == completed.argv
    assert caught.value.returncode == 1
    assert completed.stderr.strip() in str(caught.value)


def test_no_id_is_no_success() -> None:
    """sbatch that ends well without an id is an error."""
    with pytest.raises(SubmitError, match="no job id"):
        commands.parse_sbatch(answer("Submitted\n"))


def test_squeue_reads_many_jobs_at_once() -> None:
    """One real answer about jobs in many states, one with a separator and a line end in its name."""
    completed = load_capture("slurm-22.05.8-squeue-many")
    jobs = commands.parse_squeue(completed)
    states = {job_id.number: facts.state.value for job_id, facts in jobs.items()}
    assert states == {
        7: "RUNNING",
        8: "COMPLETED",
        9: "FAILED",
        10: "RUNNING",
        11: "CANCELLED",
        12: "PENDING",
        13: "PENDING",
        14: "FAILED",
        15: "PENDING",
        16: "PENDING",
    }
    assert jobs[JobId(12)].reason == "PartitionNodeLimit"
    assert jobs[JobId(13)].reason == "JobHeldUser"
    assert jobs[JobId(15)].name == "a|b;c,d 'e' $f \"g\" ü"
    assert jobs[JobId(16)].name == "a\nb\x1fc"


def test_squeue_reads_a_running_job_whole() -> None:
    """Every field of a running job is a value of its type."""
    facts = commands.parse_squeue(load_capture("slurm-22.05.8-squeue-many"))[JobId(10)]
    assert facts.source == "squeue"
    assert facts.time_limit_s == 600
    assert facts.time_left_s is not None and 0 < facts.time_left_s <= 600
    assert facts.start_time == "2026-11-30T10:39:46"
    assert facts.submit_time == "2026-11-30T10:39:44"
    assert (facts.node_count, facts.node_list, facts.batch_host) == (2, "node[1-2]", "node1")
    assert facts.partition == "debug"
    assert facts.name == "running a=b JobState=COMPLETED Reason=x"


def test_squeue_says_nothing_of_what_a_pending_job_has_not() -> None:
    """N/A and n/a are no values."""
    facts = commands.parse_squeue(load_capture("slurm-22.05.8-squeue-many"))[JobId(12)]
    assert (facts.start_time, facts.batch_host, facts.node_list) == (None, "", "")


@pytest.mark.parametrize("name", ["squeue-unknown", "squeue-unknown-two"])
def test_squeue_without_such_a_job_is_empty(name: str) -> None:
    """Unknown ids are an empty answer, though squeue's status differs with their number."""
    assert commands.parse_squeue(load_capture(f"slurm-22.05.8-{name}")) == {}


@pytest.mark.parametrize(
    ("stderr", "returncode"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1),
        ("slurm_load_jobs error: Socket timed out on send/recv operation\n", 1),
        ("squeue: no answer within 60 s", 124),
        ("", 1),
    ],
)
def test_a_failed_controller_is_not_an_empty_queue(stderr: str, returncode: int) -> None:
    """An answer that did not come raises, with Slurm's words."""
    with pytest.raises(SlurmError) as caught:
        commands.parse_squeue(answer("", stderr, returncode))
    assert stderr.strip() in str(caught.value)


def _line(*fields: str) -> str:
    return SEPARATOR.join(fields) + "\n"


@pytest.mark.parametrize(
    ("limit", "left", "expected"),
    [
        ("UNLIMITED", "UNLIMITED", (None, None, True)),
        ("1-00:00:00", "INVALID", (86400, None, False)),
        ("Partition_Limit", "NOT_SET", (None, None, False)),
        ("new words", "new words", (None, None, False)),
    ],
)
def test_squeue_times_without_numbers(limit: str, left: str, expected: tuple[int | None, int | None, bool]) -> None:
    """A time that is no number hides nothing else of the job."""
    text = _line("5", "RUNNING", "None", left, limit, "N/A", "N/A", "1", "n1", "gpu", "n1", "x")
    facts = commands.parse_squeue(answer(text))[JobId(5)]
    assert (facts.time_limit_s, facts.time_left_s, facts.unlimited) == expected
    assert facts.state is SlurmState.RUNNING


def test_squeue_of_another_cluster_keeps_the_cluster() -> None:
    """The header line of --clusters is no job, and the ids carry the cluster."""
    text = "CLUSTER: alpha\n" + _line("5", "PD", "Priority", "1:00", "1:00", "N/A", "N/A", "1", "", "gpu", "", "x")
    assert list(commands.parse_squeue(answer(text), cluster="alpha")) == [JobId(5, cluster="alpha")]


def test_a_line_without_an_id_hides_no_other() -> None:
    """A malformed line is passed over."""
    bad = _line("?", *["x"] * 11)
    good = _line("5", "R", *["x"] * 10)
    assert list(commands.parse_squeue(answer(bad + good))) == [JobId(5)]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=40))
def test_no_name_changes_the_other_fields(name: str) -> None:
    """Whatever a job is called, with separators in it too, its fields stay where they are."""
    text = _line("5", "RUNNING", "None", "1:00", "2:00", "N/A", "N/A", "1", "n1", "gpu", "n1", name)
    facts = commands.parse_squeue(answer(text))[JobId(5)]
    assert (facts.name, facts.state, facts.partition) == (name, SlurmState.RUNNING, "gpu")


@pytest.mark.parametrize(
    ("name", "state", "reason", "code", "signal"),
    [
        ("running", SlurmState.RUNNING, "", 0, 0),
        ("completed", SlurmState.COMPLETED, "", 0, 0),
        ("failed", SlurmState.FAILED, "NonZeroExitCode", 3, 0),
        ("cancelled", SlurmState.CANCELLED, "", 0, 15),
        ("pending", SlurmState.PENDING, "PartitionNodeLimit", 0, 0),
        ("held", SlurmState.PENDING, "JobHeldUser", 0, 0),
        ("launch", SlurmState.FAILED, "JobLaunchFailure", 0, 53),
        ("timeout", SlurmState.TIMEOUT, "TimeLimit", 0, 15),
        ("separators", SlurmState.PENDING, "JobHeldUser", 0, 0),
        ("name-with-newline", SlurmState.PENDING, "JobHeldUser", 0, 0),
    ],
)
def test_scontrol_jobs_are_read(name: str, state: SlurmState, reason: str, code: int, signal: int) -> None:
    """State, reason and exit status of real jobs, whatever their names hold."""
    facts = scontrol.parse_scontrol_job(load_capture(f"slurm-22.05.8-scontrol-{name}"))
    assert facts is not None
    assert facts.source == "scontrol"
    assert (facts.state, facts.reason, facts.exit_code, facts.signal) == (state, reason, code, signal)


def test_scontrol_reads_a_job_whole() -> None:
    """A name that holds keys of its own is a name, and every field is the job's."""
    facts = scontrol.parse_scontrol_job(load_capture("slurm-22.05.8-scontrol-running"))
    assert facts is not None
    assert facts.name == "running a=b JobState=COMPLETED Reason=x"
    assert (facts.job_id, facts.node_count, facts.node_list) == (JobId(10), 2, "node[1-2]")
    assert (facts.batch_host, facts.partition, facts.time_limit_s) == ("node1", "debug", 600)
    assert (facts.start_time, facts.end_time) == ("2026-11-30T10:39:46", "2026-11-30T10:49:46")
    assert (facts.stdout, facts.restarts) == ("/dev/null", 0)


def test_scontrol_tells_of_a_failed_step() -> None:
    """DerivedExitCode is the highest status of the steps."""
    facts = scontrol.parse_scontrol_job(load_capture("slurm-22.05.8-scontrol-failed"))
    assert facts is not None
    assert (facts.exit_code, facts.derived_exit_code) == (3, 1)


@pytest.mark.parametrize("name", ["a\nb\x1fc", "a|b;c,d 'e' $f \"g\" ü"])
def test_scontrol_names_come_back(name: str) -> None:
    """Line ends and quotes in a name survive."""
    capture = "name-with-newline" if "\n" in name else "separators"
    facts = scontrol.parse_scontrol_job(load_capture(f"slurm-22.05.8-scontrol-{capture}"))
    assert facts is not None and facts.name == name


def test_scontrol_does_not_know_the_job() -> None:
    """An unknown id is None, any other failure raises."""
    assert scontrol.parse_scontrol_job(load_capture("slurm-22.05.8-scontrol-unknown")) is None
    with pytest.raises(SlurmError, match="Unable to contact"):
        scontrol.parse_scontrol_job(answer("", "slurm_load_jobs error: Unable to contact slurm controller", 1))
    with pytest.raises(SlurmError):
        scontrol.parse_scontrol_job(answer(""))


def test_scontrol_array_task_has_squeues_id() -> None:
    """A task of an array is known by the array's id and its number."""
    line = "JobId=8 ArrayJobId=7 ArrayTaskId=3 JobName=x UserId=a(1) GroupId=a(1) JobState=RUNNING Reason=None\n"
    facts = scontrol.parse_scontrol_job(answer(line))
    assert facts is not None and facts.job_id == JobId(7, array_task="3")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40))
def test_no_name_changes_a_jobs_state(name: str) -> None:
    """Whatever a job is called, scontrol's state is read from its own field."""
    line = f"JobId=8 JobName={name} UserId=a(1) GroupId=a(1) MCS_label=N/A JobState=FAILED ExitCode=1:0\n"
    facts = scontrol.parse_scontrol_job(answer(line))
    assert facts is not None
    assert (facts.state, facts.exit_code) == (SlurmState.FAILED, 1)


def test_sacct_jobs_are_read() -> None:
    """The accounting's states, statuses and reasons of real jobs."""
    accounting = commands.parse_sacct(load_capture("slurm-22.05.8-sacct-many"))
    assert accounting.enabled
    states = {job_id.number: facts.state.value for job_id, facts in accounting.jobs.items()}
    assert states[7] == "TIMEOUT"
    assert states[8] == "COMPLETED"
    assert states[9] == "FAILED"
    assert states[10] == "RUNNING"
    assert states[11] == "CANCELLED"
    assert states[12] == "PENDING"
    failed = accounting.jobs[JobId(9)]
    assert (failed.source, failed.exit_code, failed.derived_exit_code) == ("sacct", 3, 1)
    assert (failed.node_list, failed.partition, failed.name) == ("node1", "debug", "failed")
    assert accounting.jobs[JobId(15)].name == "a|b;c,d 'e' $f `g` ü"  # the accounting's own quotes


def test_sacct_steps_have_ids_of_their_own() -> None:
    """With steps, the batch script and each srun are told apart."""
    accounting = commands.parse_sacct(load_capture("slurm-22.05.8-sacct-steps"))
    assert {str(job_id) for job_id in accounting.jobs} >= {"9", "9.batch", "9.0"}
    assert accounting.jobs[JobId(9, step="0")].exit_code == 1


def test_sacct_does_not_know_the_job() -> None:
    """An unknown id is an empty answer of an accounting that works."""
    accounting = commands.parse_sacct(load_capture("slurm-22.05.8-sacct-unknown"))
    assert (accounting.enabled, accounting.jobs) == (True, {})


def test_no_accounting_is_no_error() -> None:
    """A cluster without slurmdbd is told from one whose database fails."""
    accounting = commands.parse_sacct(load_capture("documented-sacct-no-accounting"))
    assert (accounting.enabled, accounting.jobs) == (False, {})
    with pytest.raises(SlurmError, match="Connection refused"):
        commands.parse_sacct(answer("", "sacct: error: slurm_persist_conn_open: Connection refused", 1))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (commands.scancel_argv(JobId(5)), ("scancel", "5")),
        (commands.scancel_argv(JobId(5, cluster="a")), ("scancel", "--clusters=a", "5")),
        (commands.scancel_argv(JobId(5), signal="TERM", step="0"), ("scancel", "--signal=TERM", "5.0")),
        (
            commands.scancel_argv(JobId(5), signal="USR1", batch=True),
            ("scancel", "--batch", "--signal=USR1", "5"),
        ),
        (
            commands.scancel_argv(JobId(5), signal="TERM", full=True),
            ("scancel", "--full", "--signal=TERM", "5"),
        ),
    ],
)
def test_scancel_argv(argv: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Whole job, step, batch shell, or all: each is its own argv."""
    assert argv == expected


def test_partitions_are_read() -> None:
    """sinfo's real answer, the default partition marked."""
    partitions = commands.parse_sinfo(load_capture("slurm-22.05.8-sinfo"))
    assert partitions == (
        PartitionFacts("batch", True, True, 86400, 4, 8, 16000, "gpu:4"),
        PartitionFacts("debug", False, True, 1800, 4, 8, 16000, "gpu:4"),
    )


def test_odd_partitions_are_read() -> None:
    """No limit, mixed sizes, no GPUs, and a partition that is down."""
    text = _line("old", "down", "infinite", "12", "8+", "24000+", "(null)")
    assert commands.parse_sinfo(answer(text)) == (PartitionFacts("old", False, False, None, 12, 8, 24000, ""),)


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("slurm-22.05.8-mpi-list", ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4")),
        ("documented-21.08-mpi-list", ("pmix_v4", "pmix", "pmi2", "none")),
    ],
)
def test_mpi_types_are_read(name: str, types: tuple[str, ...]) -> None:
    """The lists of before and since 22.05 give the types."""
    assert commands.parse_mpi_list(load_capture(name)) == types


def test_config_is_a_mapping() -> None:
    """Keys of the real configuration have their values, (null) none."""
    config = scontrol.parse_scontrol_config(load_capture("slurm-22.05.8-scontrol-config"))
    assert config["SLURM_VERSION"] == "22.05.8"
    assert config["MpiDefault"] == "none"
    assert config["SelectTypeParameters"] == "CR_CORE_MEMORY"
    assert config["AuthAltTypes"] == ""
    assert config["AuthInfo"].startswith("socket=")


def test_no_config_is_an_error() -> None:
    """A controller that does not answer has no configuration."""
    with pytest.raises(SlurmError, match="no configuration"):
        scontrol.parse_scontrol_config(answer("", "slurm_load_ctl_conf error: Unable to contact", 1))
