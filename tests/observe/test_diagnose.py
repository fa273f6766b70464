"""A run's diagnosis on the login node: the job's core with Slurm's words, and what is not there to look at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurm_llm.knownerrors import load_known_errors
from slurm_llm.observe.diagnose import RunDiagnosis, diagnose_run, diagnosis_to_json
from slurm_llm.observe.slurmwords import NodeWords, SlurmView, StepWords, ask_about
from slurm_llm.observe.status import SlurmWord
from slurm_llm.process import Completed
from slurm_llm.runs import evidence_of, status_by
from slurm_llm.slurm.client import SlurmClient
from slurm_llm.slurm.commands import SEPARATOR
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import SlurmState
from tests.observe import captured
from tests.observe.run_dirs import T0, RunDir, around

CATALOGUE = load_known_errors()


def diagnosed(run: RunDir, state: SlurmState | None = None, view: SlurmView | None = None, **more: str) -> RunDiagnosis:
    """Return the diagnosis when Slurm says `state`; None is a job that Slurm does not know."""
    facts = None if state is None else JobFacts(JobId(run.job_id), state, "squeue", **more)  # type: ignore[arg-type]
    status = status_by(run.job, SlurmWord(facts), around(run.root.parent))
    return diagnose_run(evidence_of(run.job), status, view or SlurmView(facts), CATALOGUE)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return an empty run directory."""
    return RunDir(tmp_path / "run")


def with_logs(run: RunDir) -> RunDir:
    """Give every rank a log that says nothing of interest."""
    for place in run.plan.ranks:
        run.log(f"rank-{place.rank}.log", "loading\n")
    return run


def test_a_healthy_run_is_well(run: RunDir) -> None:
    """Of a model that nobody has asked no more is said than what the head knows, and when it asks."""
    own = diagnosed(with_logs(run.serving()), SlurmState.RUNNING).found
    assert (own.state, own.kind) == ("READY", "none")
    assert own.cause == (
        "the head has found nothing wrong so far: 8 of 8 ranks serve; it asks the model for an answer every 30 s"
    )
    assert (own.evidence, own.remedies, own.missing) == ((), (), ())


def test_a_warning_of_a_healthy_run(run: RunDir) -> None:
    """What is worth knowing is said beside it."""
    run.serving().log("rank-3.log", "UCX  WARN  network device 'mlx3_1:1' is not available, please use\n")
    own = diagnosed(run, SlurmState.RUNNING).found
    assert (own.kind, [one.id for one in own.warnings]) == ("none", ["ucx-device"])


def test_a_waiting_run(run: RunDir) -> None:
    """Nothing has begun: why it waits is Slurm's to say."""
    own = diagnosed(run.submitted(), SlurmState.PENDING, reason="Resources").found
    assert (own.state, own.kind) == ("PENDING", "none")
    assert "waits for nodes" in own.cause


def test_a_rendered_run(run: RunDir) -> None:
    """No job at all."""
    own = diagnosed(run).found
    assert (own.state, own.kind) == ("PLANNED", "none")


def test_a_job_that_slurm_could_not_launch(run: RunDir) -> None:
    """No output, no attempt: `status` knows that reason, and it is not lost here."""
    own = diagnosed(run.submitted(), SlurmState.FAILED, reason="JobLaunchFailure").found
    assert (own.state, own.kind) == ("FAILED", "launch")
    assert "could not open the job's output" in own.cause
    assert own.missing == ("the job has left no output",)


def test_a_script_that_ended_before_its_attempt(run: RunDir) -> None:
    """Its own output is all there is, and what it says is known."""
    run.submitted()
    line = "slurm_llm: no Python at /x/python on node n1: set `python` in the site profile"
    run.paths.output(7).write_text(line + "\n")
    own = diagnosed(run, SlurmState.FAILED).found
    assert "Set `python`" in own.remedies[0]
    assert own.evidence[0] == ("slurm-7.out", line)


def test_a_run_that_failed(run: RunDir) -> None:
    """The core's diagnosis, with the log that explains it."""
    run.serving().killed(5).state(10, "FAILED", "x").result("FAILED", "rank 5", None)
    run.log("rank-5.log", "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n")
    own = diagnosed(run, SlurmState.FAILED).found
    assert (own.kind, own.rank, own.node) == ("signal", 5, "node3")
    assert [one.id for one in own.known] == ["gpu-xid"]


def test_journals_that_are_gone(run: RunDir) -> None:
    """The job's own result file and its logs still speak, and it is said what is missing."""
    run.submitted().result("FAILED", "rank 5 on node node3 went first: x ended: exit 1, while loading")
    run.log("rank-5.log", "RuntimeError: CUDA error: out of memory\n")
    own = diagnosed(run, SlurmState.FAILED).found
    assert own.state == "FAILED"
    assert "rank 5 on node node3 went first" in own.cause
    assert "the journals: there is no record of this attempt" in own.missing
    assert [one.id for one in own.known] == ["cuda-oom"]


def test_journals_that_are_torn(run: RunDir) -> None:
    """A torn line costs only itself, and its journal is named."""
    with_logs(run.serving()).killed(5).result("FAILED", "x")
    journal = run.job_paths.attempt(0).journal
    with (journal / "node2.jsonl").open("ab") as stream:
        stream.write(b'\n{"t": 3, "kind": "en')
    own = diagnosed(run, SlurmState.FAILED).found
    assert own.rank == 5
    assert own.missing == ("torn lines in journals: node2.jsonl",)


def test_agents_that_never_spoke(run: RunDir) -> None:
    """Of which nodes nobody has seen anything, which logs are gone, and that the script did not come to its end."""
    run.submitted().state(1, "STARTING").note("node1", 1.5, "hello", node="node1", step="1")
    run.note("rank-3", 2, "start", rank=3, node="node2")
    own = diagnosed(run, SlurmState.FAILED).found
    assert own.missing == (
        "node agents: 1 of 4 have said hello",
        "logs of ranks that ran: rank-3.log",
        "the result file: the job's script did not come to its end",
    )


def test_the_earliest_error_by_the_times_of_lines(run: RunDir) -> None:
    """Without journals, clocks in the logs tell which rank was first."""
    run.submitted()
    run.log("rank-1.log", "[2026-11-30 10:41:09] RuntimeError: CUDA error: out of memory\n")
    run.log("rank-6.log", "[2026-11-30 10:41:02] RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    own = diagnosed(run, SlurmState.FAILED).found
    assert (own.rank, own.known[0].id) == (6, "cuda-ecc")
    assert own.at == pytest.approx(T0 + 62, abs=86400)


def test_a_log_that_was_read_in_part(run: RunDir) -> None:
    """It is said how much of it was looked at."""
    run.serving().killed(5).result("FAILED", "x")
    with run.log("rank-5.log", "").open("r+b") as stream:
        stream.truncate(64 << 20)
    assert (
        "rank-5.log: 32 of 64 MiB were read, its end and its beginning"
        in diagnosed(run, SlurmState.FAILED).found.missing
    )


def test_slurms_words_are_evidence(run: RunDir) -> None:
    """Where the run directory explains little, failed steps; bad nodes of the job always."""
    run.serving().note("node3", 9, "bye", node="node3")
    view = SlurmView(
        JobFacts(JobId(7), SlurmState.NODE_FAIL, "sacct"),
        steps=(
            StepWords("batch", "FAILED", 1, None),
            StepWords("2", "CANCELLED", 0, 9),
            StepWords("1", "COMPLETED", 0, 0),
        ),
        bad_nodes={"node3": NodeWords("DOWN+NOT_RESPONDING", "Not responding")},
    )
    own = diagnosed(run, SlurmState.NODE_FAIL, view).found
    assert (own.kind, own.node) == ("node", "node3")
    assert own.evidence == (("scontrol", "node node3 is DOWN+NOT_RESPONDING: Not responding"),)


def test_an_attempt_that_is_started_again(run: RunDir) -> None:
    """The newest attempt is the one that is meant; the one before has failed for its own reason."""
    run.serving().killed(5).result("FAILED", "x")
    run.attempt = 1
    run.serving()
    own = diagnosed(run, SlurmState.RUNNING)
    assert (own.found.kind, own.status.attempt) == ("none", 1)


def test_json(run: RunDir) -> None:
    """One object with names that do not change: run, diagnosis, and what Slurm says."""
    run.serving().killed(5).result("FAILED", "x")
    view = SlurmView(
        None, 137, (StepWords("2", "FAILED", 1, None),), {"node3": NodeWords("DOWN")}, ("sacct: no answer",)
    )
    value = json.loads(diagnosis_to_json(diagnosed(run, SlurmState.FAILED, view)))
    assert (value["schema"], value["job_id"], value["attempt"], value["kind"], value["rank"]) == (1, 7, 0, "signal", 5)
    assert value["slurm"]["steps"][0] == {"name": "2", "state": "FAILED", "exit_code": 1, "signal": None}
    assert value["slurm"]["bad_nodes"] == {"node3": {"state": "DOWN", "reason": ""}}
    assert value["slurm"]["problems"] == ["sacct: no answer"]


@pytest.mark.parametrize("name", captured.NAMES)
def test_real_runs(run: RunDir, name: str) -> None:
    """What real jobs left is read from files as well: the same cause as from texts, and a rank that the plan has."""
    going = name == "raise-goes-on"
    own = diagnosed(captured.lay_out(run, name), SlurmState.RUNNING if going else SlurmState.FAILED).found
    assert (own.kind == "stop") == (name == "cancelled")
    assert bool(own.evidence) == (name != "cancelled")
    assert not any("torn" in text for text in own.missing)


SACCT = """7|FAILED|1:0|137:0|None|2026-11-30T15:10:25|2026-11-30T15:10:26|2026-11-30T15:10:32|00:10:00|4|n[1-4]|batch|x
7.batch|FAILED|1:0|||2026-11-30T15:10:26|2026-11-30T15:10:26|2026-11-30T15:10:32||1|n1||batch
7.0|COMPLETED|0:0|||2026-11-30T15:10:26|2026-11-30T15:10:26|2026-11-30T15:10:32||4|n[1-4]||python
7.2|CANCELLED by 0|0:9|||2026-11-30T15:10:28|2026-11-30T15:10:28|2026-11-30T15:10:32||4|n[1-4]||bash
""".replace("|", SEPARATOR)
NODES = """NodeName=n1 Arch=x86_64 State=MIXED ThreadsPerCore=1 Reason=
NodeName=n2 Arch=x86_64 State=IDLE+DRAIN Partitions=batch,debug Reason=bad disk [root@2026-11-30T15:22:00]
NodeName=n4 Arch=x86_64 State=DOWN+NOT_RESPONDING ThreadsPerCore=1 Reason=Not responding [slurm@2026-11-30T15:22:00]
"""


class Answers:
    """A Slurm whose sacct and scontrol answer as Slurm 22.05.8 does."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.calls: list[tuple[str, ...]] = []

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed:
        """Answer one command."""
        self.calls.append(tuple(argv))
        text = self.texts.get(argv[0])
        return Completed(tuple(argv), 0 if text else 1, text or "", "" if text else f"{argv[0]}: error: no answer")


def test_slurm_is_asked_for_steps_and_nodes() -> None:
    """The derived exit status, how each step ended, and the nodes that are not well, with Slurm's reason."""
    slurm = Answers(sacct=SACCT, scontrol=NODES)
    view = ask_about(SlurmClient(slurm, {}), JobId(7), None)
    assert view.derived_exit_code == 137
    assert view.facts is not None
    assert view.facts.state is SlurmState.FAILED
    assert view.steps == (
        StepWords("batch", "FAILED", 1, 0),
        StepWords("0", "COMPLETED", 0, 0),
        StepWords("2", "CANCELLED", 0, 9),
    )
    assert view.bad_nodes == {
        "n2": NodeWords("IDLE+DRAIN", "bad disk [root@2026-11-30T15:22:00]"),
        "n4": NodeWords("DOWN+NOT_RESPONDING", "Not responding [slurm@2026-11-30T15:22:00]"),
    }
    assert slurm.calls[1] == ("scontrol", "--oneliner", "show", "node", "n[1-4]")
    assert view.problems == ()


def test_a_slurm_that_does_not_answer() -> None:
    """It is told, and the rest goes on; a cluster without accounting is no problem."""
    view = ask_about(SlurmClient(Answers(), {}), JobId(7), None)
    assert (view.facts, view.steps, view.bad_nodes) == (None, (), {})
    assert "sacct: error: no answer" in view.problems[0]
    facts = JobFacts(JobId(7), SlurmState.FAILED, "scontrol", node_list="n[1-4]")
    view = ask_about(SlurmClient(Answers(scontrol=NODES), {}), JobId(7), facts)
    assert set(view.bad_nodes) == {"n2", "n4"}
    assert view.facts is facts
