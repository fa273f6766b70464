"""The first cause, from journals and logs: who is the culprit, who only suffered, what explains it, what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import diagnose, fold, known, reading
from slurm_llm.agent.diagnose import Diagnosis, Material, SlurmWords
from slurm_llm.knownerrors import load_known_errors
from tests.observe import captured

CATALOGUE = known.entries(load_known_errors())
RANKS = 8
WHERE = {"step-0.log": "step", "step-1.log": "step", "agents.log": "agent", "preflight.log": "preflight"}
Records = list[dict[str, Any]]


def read(folder: Path, name: str, text: str) -> reading.Log:
    """Return what is read of a log with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    rank = int(name[5:-4]) if name.startswith("rank-") else None
    where = "rank" if rank is not None else WHERE.get(name, "slurm")
    log = reading.read_log(reading.Source(str(path), name, where, rank), CATALOGUE, 1 << 24)
    assert log is not None
    return log


def found(folder: Path, records: Records, logs: dict[str, str] | None = None, **more: Any) -> Diagnosis:
    """Return the diagnosis of a run of eight ranks on four nodes."""
    read_ones = [read(folder, name, text) for name, text in (logs or {}).items()]
    facts = fold.fold(records, RANKS)
    return diagnose.diagnose(Material(facts, records, read_ones, CATALOGUE, **more))


def started(until: int = RANKS) -> Records:
    """Return the records of a start in which every rank's engine runs, from 0 to 4 s."""
    items: Records = [{"t": 0.0, "kind": "state", "state": "STARTING"}]
    items += [{"t": 1.0, "kind": "hello", "node": f"n{node}", "step": "1"} for node in range(1, 5)]
    for rank in range(until):
        node = f"n{rank // 2 + 1}"
        items.append({"t": 2.0, "kind": "start", "rank": rank, "node": node})
        items.append({"t": 3.0, "kind": "found", "rank": rank, "node": node, "pid": rank, "main": True})
    return [*items, {"t": 4.0, "kind": "state", "state": "LOADING"}]


READY = {"t": 6.0, "kind": "state", "state": "READY"}


def ended(t: float, rank: int, how: str | None, **more: Any) -> dict[str, Any]:
    """Return a node agent's record of a server's end."""
    base = {"kind": "ended", "node": f"n{rank // 2 + 1}", "name": "tritonserver", "main": True, "asked": False}
    return {**base, "t": t, "at": t, "rank": rank, "how": how, "lived_s": 9.0, **more}


def died(rank: int = 5, how: str | None = "signal SIGKILL", **more: Any) -> Records:
    """Return the records of a run that served until one rank died, and PMIx killed the others."""
    others = [ended(11.0 + other / 10, other, "signal SIGKILL") for other in range(RANKS) if other != rank]
    return [*started(), READY, ended(10.0, rank, how, **more), *others]


def ids(own: Diagnosis) -> list[str]:
    """Return the known errors that explain a diagnosis."""
    return [one.id for one in own.known]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB.\n"
REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
CANCELLED = "slurmstepd: error: *** STEP 7.2 ON n1 CANCELLED AT 2026-11-30T14:27:08{} ***\n"
STEP = "srun: error: n1: tasks 0-1: Killed\n0: " + CANCELLED.format("")


@pytest.mark.parametrize(
    ("how", "kind", "means"),
    [
        ("signal SIGKILL", "signal", "SIGKILL"),
        ("signal SIGSEGV", "signal", "crashed"),
        ("signal SIGTERM", "signal", "Something outside"),
        ("signal SIGSYS", "signal", "gave up by itself"),
        ("exit 0", "exit0", "nobody had asked it"),
        ("exit 3", "exit", "gave up by itself"),
        ("exit 127", "exit", "not found"),
        (None, "unseen", "before anybody saw how"),
    ],
)
def test_how_the_first_rank_ended(tmp_path: Path, how: str | None, kind: str, means: str) -> None:
    """Named with rank, node, time and phase; what srun says of the others is no evidence against it."""
    own = found(tmp_path, died(5, how), {"step-0.log": STEP})
    assert (own.state, own.kind, own.rank, own.node, own.at, own.phase) == ("FAILED", kind, 5, "n3", 10.0, "serving")
    assert means in own.means
    assert own.remedies
    assert own.evidence[0].where == "journal/n3.jsonl"


def test_a_step_that_was_cancelled(tmp_path: Path) -> None:
    """SIGKILL for nearly all ranks in one moment was meant for the step; a rank that died a second before is a rank."""
    killed = [ended(10.0 + rank / 50, rank, "signal SIGKILL" if rank else None) for rank in range(RANKS)]
    own = found(tmp_path, [*started(), READY, *killed[::-1]], {"step-0.log": STEP})
    assert (own.kind, own.rank) == ("unseen", 0)
    killed[0] = ended(10.01, 0, "signal SIGKILL")
    killed[1] = ended(10.0, 1, "signal SIGKILL")
    own = found(tmp_path, [*started(), READY, *killed], {"step-0.log": STEP})
    assert (own.kind, own.rank, own.at) == ("step", None, 10.0)
    assert "no rank is at fault" in own.means
    assert found(tmp_path, died(5), {"step-0.log": STEP}).rank == 5
    assert found(tmp_path, [*started(), READY, *killed]).rank == 1


def test_victims_are_no_culprits(tmp_path: Path) -> None:
    """Those whom PMIx killed, those whom the agents ended and those who gave up are told apart, with how long after."""
    records = [
        *started(),
        READY,
        ended(10.0, 2, "exit 3"),
        ended(10.4, 0, "signal SIGTERM", asked=True),
        ended(10.5, 1, "signal SIGTERM", asked=True),
        ended(11.0, 3, "signal SIGKILL"),
        ended(11.2, 4, "signal SIGKILL"),
        ended(11.25, 5, "signal SIGKILL"),
        ended(10.2, 6, "exit 1"),
    ]
    own = found(tmp_path, records)
    assert own.rank == 2
    assert [(one.ranks, one.how, one.by, one.within_s) for one in own.victims] == [
        ((3, 4, 5), "signal SIGKILL", "PMIx or srun", 1.25),
        ((0, 1), "signal SIGTERM", "the node agents", 0.5),
        ((6,), "exit 1", "itself", 0.2),
        ((7,), "its end was not seen", "", 0.0),
    ]


def test_the_log_of_the_first_rank_explains_it(tmp_path: Path) -> None:
    """Meaning and remedy are the catalogue's; other ranks' logs and noise do not get in the way."""
    logs = {"rank-5.log": f"Component: munge\n{OOM}", "rank-0.log": f"{REMOTE}Illegal instruction\n"}
    own = found(tmp_path, died(5, "exit 1"), logs)
    assert ids(own) == ["cuda-oom"]
    assert "GPU has no memory" in own.means
    assert ("rank-5.log", OOM.strip()) in own.evidence


def test_why_comes_before_how(tmp_path: Path) -> None:
    """A crash is the end of a story: the line that says why is named first, though it stands before or after."""
    log = "terminate called after throwing an instance of 'std::runtime_error'\nSignal (11) received.\n" + OOM
    assert ids(found(tmp_path, died(5, "signal SIGABRT"), {"rank-5.log": log}))[0] == "cuda-oom"


def test_an_old_error_did_not_end_it(tmp_path: Path) -> None:
    """An error megabytes before the end was survived; one near the end counts."""
    late = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    log = OOM + "all is well again\n" * 20000 + late
    assert ids(found(tmp_path, died(5, "signal SIGABRT"), {"rank-5.log": log})) == ["cuda-illegal-access"]


def test_unknown_errors_are_shown(tmp_path: Path) -> None:
    """What no entry matches is told by the most telling lines, the exception first."""
    log = 'Traceback (most recent call last):\n  File "x.py", line 1\nFlowError: the pipe burst\nbye\n'
    own = found(tmp_path, died(5, "exit 1"), {"rank-5.log": log})
    assert (own.kind, ids(own)) == ("raise", [])
    assert ("rank-5.log", "FlowError: the pipe burst") in own.evidence


def test_a_silent_log_is_shown_by_its_last_lines(tmp_path: Path) -> None:
    """SIGKILL leaves no words: then the last thing that the rank did is what there is."""
    ours = "2026-11-30 14:27:09 slurm_llm: rank 5: the engine ended with exit code 137\n"
    log = f"2026-11-30 14:27:08 loading layer 7\n{ours}"
    own = found(tmp_path, died(5), {"rank-5.log": log})
    assert [line.line for line in own.evidence if line.where == "rank-5.log"] == ["2026-11-30 14:27:08 loading layer 7"]


def test_a_common_error_is_no_matter_of_one_rank(tmp_path: Path) -> None:
    """When the logs of all ranks say the same, the sentence says so."""
    line = "slurm_llm: no bin/tritonserver in /opt/nowhere\n"
    own = found(tmp_path, died(4, "exit 127"), {f"rank-{rank}.log": line for rank in range(RANKS)})
    assert "the logs of 8 of 8 ranks say the same" in own.cause
    assert ids(own) == ["no-tritonserver"]


def test_the_rank_that_only_suffered_is_not_the_cause(tmp_path: Path) -> None:
    """A rank that ended first with nothing but words about its peers; the one with an error of its own took longer."""
    logs = {"rank-1.log": REMOTE, "rank-2.log": REMOTE, "rank-6.log": OOM}
    own = found(tmp_path, died(1, "exit 1"), logs)
    assert (own.rank, own.node, own.kind) == (6, "n4", "raise")
    assert "rank 1 on node n1 went first" in own.cause
    assert ids(own) == ["cuda-oom"]


def test_nobody_is_accused_without_evidence(tmp_path: Path) -> None:
    """Where every log only speaks of peers, the one that ended first stays the one to look at."""
    own = found(tmp_path, died(1, "exit 1"), {"rank-1.log": REMOTE, "rank-2.log": REMOTE})
    assert (own.rank, ids(own)) == (1, ["nccl-remote"])


COMPLAINT = {
    "t": 9.0,
    "kind": "complaint",
    "rank": 2,
    "node": "n2",
    "text": "failed to load 'x': RuntimeError: bad weights",
}


def test_a_model_that_failed_without_an_end(tmp_path: Path) -> None:
    """The node agent heard Triton say so: that rank is named, and not those that were ended for it."""
    own = found(tmp_path, [*started(), COMPLAINT, ended(12.0, 0, "signal SIGTERM", asked=True)])
    assert (own.kind, own.rank, own.node, own.at) == ("raise", 2, "n2", 9.0)
    assert "bad weights" in own.cause
    assert found(tmp_path, [*died(5), {**COMPLAINT, "t": 10.5}]).rank == 5
    assert found(tmp_path, [*died(5), COMPLAINT]).rank == 2


def test_a_stub_that_leaves_its_server(tmp_path: Path) -> None:
    """How it ended says enough: what its server has to say of that explains nothing."""
    log = {"rank-5.log": "E1 failed to load 'tensorrt_llm' version 1: Internal: Stub process 'x_0_0' is not healthy.\n"}
    own = found(tmp_path, died(5, "exit 3", name="triton_python_b", main=False), log)
    assert (own.kind, own.rank, ids(own)) == ("exit", 5, [])
    assert "last words" in own.means


LIMIT = "4: slurmstepd{}: error: StepId=7.2 exceeded memory limit (1101496320 > 419430400), being killed\n"
CGROUP = "4: slurmstepd: error: Detected 1 oom_kill event in StepId=7.2. Some of the step tasks have been OOM Killed.\n"


@pytest.mark.parametrize("speaker", ["-n3", ""])
def test_slurms_memory_limit(tmp_path: Path, speaker: str) -> None:
    """Slurm kills the whole step and who went first is chance: the node is named, by its name or by its task."""
    own = found(tmp_path, died(0), {"step-0.log": LIMIT.format(speaker) + STEP})
    assert (own.kind, own.node) == ("memory", "n3")
    assert "1050 MiB, more than the 400 MiB" in own.cause
    assert ids(own)[0] == "slurm-memory-limit"
    assert all("SIGKILL" not in remedy for remedy in own.remedies)


def test_the_rank_that_held_the_memory(tmp_path: Path) -> None:
    """By its last measurement when that is clear, else the one that took longest to go; never a mere guess."""
    step = {"step-0.log": LIMIT.format("-n3")}
    sample = {"t": 9.0, "kind": "sample", "ranks": {"4": {"rss_mib": 900.0}, "5": {"rss_mib": 80.0}}}
    assert found(tmp_path, [*died(0), sample], step).rank == 4
    slow = [ended(11.9, 5, "signal SIGKILL", main=False, name="triton_python_b")]
    assert found(tmp_path, [*died(0), *slow], step).rank == 5
    together = [ended(11.9, rank, "signal SIGKILL", main=False, name="triton_python_b") for rank in (4, 5)]
    assert found(tmp_path, [*died(0), *together], step).rank is None


def test_the_kernels_oom_killer_takes_one_process(tmp_path: Path) -> None:
    """The rank that the agents saw go first, when it ran on the node whose slurmstepd speaks."""
    own = found(tmp_path, died(5), {"step-0.log": CGROUP})
    assert (own.kind, own.rank, own.node, ids(own)) == ("memory", 5, "n3", ["slurm-oom-kill"])
    own = found(tmp_path, died(0), {"step-0.log": CGROUP})
    assert (own.kind, own.node) == ("memory", "n3")


def test_the_kernels_own_count_names_the_rank(tmp_path: Path) -> None:
    """Its control group says that a process was killed for memory, whatever slurmstepd says, and who went first."""
    killed = [*died(0), ended(10.2, 3, "signal SIGKILL", main=False, name="triton_python_b", oom=True)]
    own = found(tmp_path, killed)
    assert (own.kind, own.rank, own.node) == ("memory", 3, "n2")
    assert found(tmp_path, died(0)).kind == "signal"


def test_where_a_whole_group_is_killed_the_largest_rank_was_meant(tmp_path: Path) -> None:
    """Of ranks that die at once the first one to be seen is any of them."""
    sizes = {"t": 9.0, "kind": "sample", "ranks": {"4": {"rss_mib": 900.0}, "5": {"rss_mib": 80.0}}}
    own = found(tmp_path, [*died(5), sizes], {"step-0.log": CGROUP})
    assert (own.kind, own.rank, own.node) == ("memory", 4, "n3")
    assert "rank 4 held most of it" in own.cause


def test_the_second_instances_tasks_are_other_ranks(tmp_path: Path) -> None:
    """srun counts tasks from 0 in every instance's step."""
    own = found(tmp_path, died(0), {"step-0.log": "x\n", "step-1.log": LIMIT.format("").replace("4:", "2:")})
    assert own.node == "n4"


def test_a_memory_warning_of_a_run_that_serves(tmp_path: Path) -> None:
    """Slurm that only says so has ended nothing."""
    own = found(
        tmp_path, [*started(), READY], {"slurm-7.out": "slurmstepd: error: Exceeded job memory limit\n"}, over=False
    )
    assert (own.state, own.kind) == ("READY", "none")
    assert [one.id for one in own.warnings] == ["slurm-job-memory"]


def test_a_lost_node_comes_before_everything(tmp_path: Path) -> None:
    """As the head saw it, as srun says it, or as Slurm says it; what ends because of it is no cause."""
    lost = {"t": 12.0, "kind": "lost", "node": "n3", "silent_s": 6.1, "why": "it does not answer on the network"}
    own = found(tmp_path, [*died(0), lost])
    assert (own.kind, own.node, own.at) == ("node", "n3", 12.0)
    assert "it does not answer on the network" in own.cause
    own = found(tmp_path, died(0), {"step-0.log": "srun: error: Node failure on n2\n"})
    assert (own.kind, own.node, own.rank, ids(own)) == ("node", "n2", None, ["node-failure"])
    slurm = SlurmWords("NODE_FAIL", "", None, None, None, {"n4": "DOWN*"})
    own = found(tmp_path, died(0), slurm=slurm)
    assert (own.kind, own.node) == ("node", "n4")
    assert "DOWN*" in own.cause


def test_a_node_is_not_explained_by_what_follows(tmp_path: Path) -> None:
    """The clean-up of a job cannot reach a lost node either, which is no cause."""
    lost = {"t": 12.0, "kind": "lost", "node": "n3", "why": "silent"}
    log = {
        "agents.log": "srun: error: Task launch for StepId=7.3 failed on node n3: Communication connection failure\n"
    }
    own = found(tmp_path, [*died(0), lost], log)
    assert ids(own) == []
    assert "gone" in own.means


STALL = {"t": 30.0, "kind": "stall", "rank": 6, "what": "no rank has logged; rank 6 holds up the others"}
ASKED = {"t": 9.0, "kind": "stop", "why": "asked"}
HEAD_FAILED = {"t": 30.1, "kind": "state", "state": "FAILED", "reason": "the node agents' step ended before the server"}


def test_agents_and_script_that_are_gone(tmp_path: Path) -> None:
    """The script that was killed with the agents is named beside them, and what is there of their logs is shown."""
    own = found(tmp_path, [*started(), HEAD_FAILED], {"agents.log": STEP})
    assert (own.kind, own.evidence[0].where) == ("agents", "agents.log")
    assert "the job's script was gone too" in own.cause
    assert "script" not in found(tmp_path, [*started(), HEAD_FAILED, {"t": 31.0, "kind": "finish"}]).cause


def test_a_hang_is_the_heads_to_see(tmp_path: Path) -> None:
    """The rank that stands out; what is killed afterwards is no first end."""
    own = found(tmp_path, [*started(), STALL, ended(31.0, 0, "signal SIGKILL")], {"rank-6.log": "waiting\n"})
    assert (own.kind, own.rank, own.node, own.at) == ("hang", 6, "n4", 30.0)
    assert "timeouts.stall_s" in own.remedies[0]


def test_a_model_that_answers_with_errors_has_raised(tmp_path: Path) -> None:
    """The leader's, which no process has left."""
    record = {**STALL, "rank": 0, "refused": True, "what": "rank 0 calls itself ready and answers with HTTP 400"}
    own = found(tmp_path, [*started(), READY, record])
    assert (own.state, own.kind, own.rank, own.node) == ("FAILED", "raise", 0, "n1")


def test_an_option_that_srun_does_not_know(tmp_path: Path) -> None:
    """srun's last words only say where to look."""
    said = "srun: unrecognized option '--no-such'\nTry \"srun --help\" for more information\n"
    own = found(tmp_path, [started()[0]], {"preflight.log": said}, preflight=1)
    assert (own.kind, own.cause) == ("preflight", "preflight: srun: unrecognized option '--no-such'")


def test_a_step_that_never_began_is_no_hang(tmp_path: Path) -> None:
    """srun waits for something until the run is not ready in time: what it says is the cause."""
    record = {**STALL, "rank": None, "what": "not ready within 60 s: no engine process seen for rank 0"}
    words = "srun: error: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    own = found(tmp_path, [started()[0], record], {"step-0.log": words})
    assert (own.kind, own.rank) == ("launch", None)
    assert "step creation temporarily disabled" in own.cause


def test_a_node_without_shared_memory_is_named(tmp_path: Path) -> None:
    """The head's verdict bears its kind and the node."""
    full = {**HEAD_FAILED, "reason": "/dev/shm of node n2 has 3 MiB free", "why": "shm", "node": "n2"}
    late = ended(30.5, 0, "signal SIGKILL")
    for records in ([*started(0), full], [*started(), full, late]):
        own = found(tmp_path, records)
        assert (own.kind, own.node) == ("shm", "n2")
    assert "exclude_nodes" in own.remedies[0]


def test_a_death_before_the_hang_is_its_cause(tmp_path: Path) -> None:
    """Others hang because one has gone."""
    assert found(tmp_path, [*died(5), STALL]).rank == 5


@pytest.mark.parametrize(
    ("records", "logs", "more", "state", "kind", "cause"),
    [
        pytest.param([*started(), HEAD_FAILED], {}, {}, "FAILED", "agents", "the node agents' step", id="agents lost"),
        pytest.param(
            [*started(), {**HEAD_FAILED, "reason": "/dev/shm of node n1 has 3 MiB free"}],
            {},
            {},
            "FAILED",
            "failed",
            "/dev/shm of node n1",
            id="the head's own check",
        ),
        pytest.param(
            [*started(), READY, ASKED],
            {},
            {},
            "COMPLETED",
            "stop",
            "request",
            id="stopped",
        ),
        pytest.param([*started(), ASKED], {}, {}, "CANCELLED", "stop", "request", id="early"),
        pytest.param(
            [*started(), {**ASKED, "why": "time limit"}],
            {},
            {},
            "TIMED_OUT",
            "time",
            "limit",
            id="no time",
        ),
        pytest.param(
            [*started(), READY, ended(10, 3, "signal SIGTERM")],
            {"step-0.log": CANCELLED.format(" DUE TO TIME LIMIT")},
            {},
            "TIMED_OUT",
            "time",
            "time limit",
            id="Slurm's time limit",
        ),
        pytest.param(
            [*started(), READY, ASKED],
            {"agents.log": CANCELLED.format(" DUE TO PREEMPTION")},
            {},
            "PREEMPTED",
            "preempted",
            "another job",
            id="preempted",
        ),
        pytest.param(
            started(0),
            {"step-0.log": "slurmstepd: error: pyxis: URL https://r/x returned error code: 401 Unauthorized\n"},
            {"codes": (1,)},
            "FAILED",
            "launch",
            "401 Unauthorized",
            id="a container that cannot be had",
        ),
        pytest.param(
            started(0),
            {"step-0.log": "srun: what is this\n"},
            {"codes": (2,)},
            "FAILED",
            "launch",
            "what is this",
            id="srun",
        ),
        pytest.param(
            started(), {}, {"codes": (0,)}, "FAILED", "unknown", "by itself (srun exit status 0)", id="left by itself"
        ),
        pytest.param(
            [*started(), READY], {}, {"over": False}, "READY", "none", "nothing is wrong", id="a run that is well"
        ),
        pytest.param(
            [*started(), {"t": 9, "kind": "state", "state": "DEGRADED", "reason": "leader of instance 0: 503"}],
            {},
            {"over": False},
            "DEGRADED",
            "unknown",
            "503",
            id="degraded",
        ),
    ],
)
def test_other_ends(
    tmp_path: Path, records: Records, logs: dict[str, str], more: dict[str, Any], state: str, kind: str, cause: str
) -> None:  # fmt: skip
    """Each kind of end has its state and its sentence."""
    own = found(tmp_path, records, logs, **more)
    assert (own.state, own.kind) == (state, kind)
    assert cause in own.cause


def test_a_preflight_that_complains(tmp_path: Path) -> None:
    """Our own check's line names rank and node; srun's words count where there is none of ours."""
    line = "noise\n3: preflight: rank 3 on node n2: the MPI world has 1 ranks, the plan has 8: each task is alone\n"
    own = found(tmp_path, started(0), {"preflight.log": line}, preflight=1)
    assert (own.kind, own.rank, own.node, ids(own)) == ("preflight", 3, "n2", ["preflight-world"])
    own = found(tmp_path, started(0), {"preflight.log": "srun: error: Invalid MPI type 'pmix_v3'\n"}, preflight=1)
    assert own.cause == "preflight: srun: error: Invalid MPI type 'pmix_v3'"
    assert ids(own) == ["mpi-type-missing"]


def test_a_job_that_is_cancelled_during_the_preflight(tmp_path: Path) -> None:
    """`scancel` ends the preflight too: that is no failure of it."""
    records = [*started(0), {"t": 2.0, "kind": "stop", "why": "asked"}]
    assert found(tmp_path, records, {"preflight.log": STEP}, preflight=143).state == "CANCELLED"


def test_an_error_while_the_run_goes_on(tmp_path: Path) -> None:
    """A rank that raises and does not exit holds up all others: it is named before any limit is over."""
    own = found(tmp_path, started(), {"rank-2.log": OOM, "rank-1.log": "joining\n"}, over=False)
    assert (own.state, own.kind, own.rank) == ("LOADING", "raise", 2)
    assert own.victims == ()
    own = found(tmp_path, [*started(), READY], {"rank-2.log": OOM}, over=False)
    assert (own.state, own.kind, [one.id for one in own.warnings]) == ("READY", "none", ["cuda-oom"])


def test_without_journals_the_earliest_error_counts(tmp_path: Path) -> None:
    """By the times that lines bear; without times a rank's before srun's."""
    own = found(tmp_path, [], {"rank-1.log": REMOTE, "rank-6.log": OOM, "step-0.log": STEP})
    assert (own.state, own.rank, ids(own)) == ("FAILED", 6, ["cuda-oom"])
    assert OOM.strip() in own.cause


def test_with_nothing_at_all(tmp_path: Path) -> None:
    """No record, no log: said so, and never a success."""
    own = found(tmp_path, [])
    assert (own.state, own.kind) == ("FAILED", "unknown")
    assert "nothing that was left says why" in own.cause


def test_the_jobs_own_word_counts_when_all_else_is_gone(tmp_path: Path) -> None:
    """A result file outlives journals that were removed."""
    own = found(tmp_path, [], told=("FAILED", "rank 5 on node n3 went first"))
    assert (own.state, own.cause) == ("FAILED", "rank 5 on node n3 went first")


@pytest.mark.parametrize(
    ("state", "ours", "kind"),
    [
        ("TIMEOUT", "TIMED_OUT", "time"),
        ("PREEMPTED", "PREEMPTED", "preempted"),
        ("CANCELLED", "CANCELLED", "stop"),
        ("BOOT_FAIL", "FAILED", "node"),
        ("OUT_OF_MEMORY", "FAILED", "memory"),
        ("FAILED", "FAILED", "unknown"),
    ],
)
def test_slurms_word_alone(tmp_path: Path, state: str, ours: str, kind: str) -> None:
    """A job that was killed before it could say anything."""
    own = found(tmp_path, started(), slurm=SlurmWords(state, "", 1, None, 137, {}))
    assert (own.state, own.kind) == (ours, kind)


def test_what_is_missing_is_passed_on(tmp_path: Path) -> None:
    """A reader knows what the diagnosis could not look at."""
    assert found(tmp_path, died(), missing=("rank-3.log",)).missing == ("rank-3.log",)


def test_it_is_json(tmp_path: Path) -> None:
    """The result file and `--json` hold the same value, tuples as lists, named tuples as mappings."""
    own = found(tmp_path, died(5, "exit 1"), {"rank-5.log": OOM})
    value = json.loads(json.dumps(diagnose.as_json(own)))
    assert value["rank"] == 5
    assert value["evidence"][-1] == {"where": "rank-5.log", "line": OOM.strip()}
    assert value["victims"][0]["by"] == "PMIx or srun"


CAPTURES = {
    "cancelled": ("COMPLETED", "stop", None, None, []),
    "hang": ("FAILED", "hang", 6, "n4", []),
    "import-error": ("FAILED", "raise", 4, "n3", ["stub-import"]),
    "killed-stub": ("FAILED", "signal", 5, "n3", []),
    "memory-limit": ("FAILED", "memory", 3, "n2", ["slurm-memory-limit"]),
    "no-mpi-plugin": ("FAILED", "preflight", None, None, ["mpi-type-missing"]),
    "no-pmi": ("FAILED", "preflight", None, None, ["mpi-pmi-unreachable"]),
    "no-server": ("FAILED", "exit", 4, "n3", ["no-tritonserver"]),
    "node-cut": ("FAILED", "node", None, "n4", []),
    "node-killed": ("FAILED", "node", None, "n3", ["node-failure"]),
    "port-taken": ("FAILED", "exit", 0, "n1", ["port-triton"]),
    "raise-goes-on": ("LOADING", "raise", 2, "n2", ["stub-import"]),
    "segv-loading": ("FAILED", "signal", 7, "n4", []),
    "stub-exits": ("FAILED", "exit", 5, "n3", []),
}


def test_every_capture_is_tried() -> None:
    """The table below has no capture too few."""
    assert sorted(CAPTURES) == captured.NAMES


@pytest.mark.parametrize("name", CAPTURES)
def test_what_real_jobs_left(tmp_path: Path, name: str) -> None:
    """Jobs that failed on the devcluster: the right state, kind, rank, node and explanation."""
    parts = captured.sections(name)
    records = [json.loads(line) for line in parts.pop("journal").splitlines() if line.strip()]
    codes = [item["code"] for item in records if item["kind"] == "preflight"]
    logs = {"slurm-7.out" if file == "slurm.out" else file: text for file, text in parts.items()}
    own = found(tmp_path, records, logs, preflight=codes[-1], over=name != "raise-goes-on") if codes else None
    assert own is not None
    assert (own.state, own.kind, own.rank, own.node, ids(own)) == CAPTURES[name]


UNWATCHED = {"t": 9.5, "kind": "unwatched", "node": "n3", "since": 8.0, "text": "node n3 is watched no more"}


def test_an_end_beside_a_node_without_its_agent_is_told_with_reserve(tmp_path: Path) -> None:
    """Who is seen first may be a victim; no rank is accused, no node, and nobody is told to ask for memory."""
    seen = [*died(1), UNWATCHED]
    own = found(tmp_path, [item for item in seen if item["kind"] != "ended" or item["rank"] not in (4, 5)])
    assert (own.state, own.kind, own.rank, own.node) == ("FAILED", "agent", None, None)
    assert "node n3 was not watched (its agent had ended at " in own.cause
    assert "the first end may be one of its ranks 4-5; the first that was seen: rank 1 on node n1" in own.cause
    assert "memory" not in own.means + " ".join(own.remedies)
    assert [one.means for one in own.warnings] == ["node n3 is watched no more"]


@pytest.mark.parametrize(("at", "culprit"), [(9.9, 4), (10.9, 1)])
def test_a_wrappers_note_says_when_an_unwatched_rank_ended(tmp_path: Path, at: float, culprit: int) -> None:
    """The first end is known then, be it on that node or not."""
    seen = [item for item in died(1) if item["kind"] != "ended" or item["rank"] not in (4, 5)]
    notes = [
        {"t": at + late, "kind": "exit", "rank": rank, "node": "n3", "code": 137} for rank, late in ((4, 0), (5, 0.5))
    ]
    own = found(tmp_path, [*seen, UNWATCHED, *notes])
    assert (own.kind, own.rank) == ("signal", culprit)
    assert own.cause.startswith(f"rank {culprit} ")


def test_what_ends_unwatched_after_the_verdict_is_no_cause(tmp_path: Path) -> None:
    """The job itself ends it then, and its wrapper does not know that."""
    failed = {"t": 10.0, "kind": "state", "state": "FAILED", "reason": "the load balancer ended with status 1"}
    late = {"t": 10.5, "kind": "exit", "rank": 4, "node": "n3", "code": 143}
    own = found(tmp_path, [*started(), READY, UNWATCHED, failed, late])
    assert (own.kind, own.cause) == ("failed", "the load balancer ended with status 1")


def test_a_run_with_an_unwatched_node_is_well_and_says_so(tmp_path: Path) -> None:
    """Nothing has ended but an agent."""
    own = found(tmp_path, [*started(), READY, UNWATCHED], over=False)
    assert (own.state, own.kind) == ("READY", "none")
    assert [one.id for one in own.warnings] == ["agent-ended"]


def test_a_node_that_is_lost_after_a_stop_was_asked_for_ends_nothing(tmp_path: Path) -> None:
    """The run was to end, and has."""
    lost = {"t": 12.0, "kind": "lost", "node": "n3", "silent_s": 60.0, "why": "silent"}
    own = found(tmp_path, [*started(), READY, {"t": 11.0, "kind": "stop", "why": "asked"}, lost])
    assert (own.state, own.cause) == ("COMPLETED", "stopped on request")


def test_the_python_stub_is_called_by_its_whole_name(tmp_path: Path) -> None:
    """The kernel cuts it off, and journals keep what the kernel says."""
    own = found(tmp_path, died(5, "signal SIGKILL", name="triton_python_b", main=False))
    told = own.cause + own.evidence[0].line
    assert told.count("triton_python_backend_stub") == 2
