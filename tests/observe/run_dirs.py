"""Run directories as a job leaves them, and a Slurm that answers what a test wants; written with the real writers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_llm.agent import journal
from slurm_llm.app import make_job
from slurm_llm.plan import Plan
from slurm_llm.plan.asjson import plan_to_json
from slurm_llm.process import Completed
from slurm_llm.record import RunRecord, Submission, record_to_json
from slurm_llm.rundir import JobPaths, RunPaths
from slurm_llm.runs import FoundRun
from slurm_llm.sites.load import load_site
from slurm_llm.slurm.commands import SEPARATOR
from slurm_llm.spec import spec_from_mapping
from slurm_llm.surroundings import Surroundings
from slurm_llm.yamlio import Tree

T0 = 1796035200.0
"""When the runs of these tests are submitted."""
RUN_ID = "20261130-104000-abcd"
NO_JOB = Completed(("squeue",), 1, "", "slurm_load_jobs error: Invalid job id specified")
NO_ANSWER = Completed(("squeue",), 1, "", "slurm_load_jobs error: Unable to contact slurm controller")


def make_plan(**fields: Tree) -> Plan:
    """Return a real plan: tp4 · pp2 on 4 nodes × 2 unless told otherwise."""
    value: dict[str, Tree] = {
        "name": "demo",
        "engine": "rehearsal",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "resources": {"nodes": 4},
    }
    value.update(fields)
    return make_job(spec_from_mapping(value), load_site("devcluster", {})).plan


@dataclass
class RunDir:
    """One run directory; each method adds what the job would write."""

    root: Path
    job_id: int = 7
    run_id: str = RUN_ID
    attempt: int = 0
    plan: Plan = field(default_factory=make_plan)

    def __post_init__(self) -> None:
        self.paths = RunPaths(self.root)
        self.root.mkdir(parents=True)
        self.paths.plan.write_text(plan_to_json(self.plan), encoding="utf-8")
        record = RunRecord(
            run_id=self.run_id,
            name=self.plan.name,
            engine=self.plan.engine,
            model=None,
            site="devcluster",
            created=T0,
            user="me",
            host="login",
            version="0",
            ranks=len(self.plan.ranks),
            nodes=self.plan.allocation.nodes,
            world_size=self.plan.world_size,
        )
        self.paths.record.write_text(record_to_json(record), encoding="utf-8")

    @property
    def job(self) -> FoundRun:
        """The run with the job that is written to."""
        job = self.paths.job(self.job_id)
        return FoundRun(self.paths, job if job.root.is_dir() else None)

    def submitted(self) -> RunDir:
        """Write what `submit` writes."""
        job = self.paths.job(self.job_id)
        job.root.mkdir(exist_ok=True)
        job.submission.write_text(record_to_json(Submission(str(self.job_id), "", T0, "submit")), encoding="utf-8")
        return self

    def log(self, name: str, text: str | bytes) -> Path:
        """Write a log of the attempt."""
        path = self._attempt() / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def note(self, writer: str, when: float, kind: str, /, **fields: object) -> RunDir:
        """Append a record to a journal, `when` seconds after T0."""
        folder = self._attempt() / "journal"
        folder.mkdir(exist_ok=True)
        item = dict(journal.record(kind, **fields), t=T0 + when)
        assert journal.append(str(folder / f"{writer}.jsonl"), item)
        return self

    def state(self, at: float, state: str, reason: str = "") -> RunDir:
        """Append a change of state to the head's journal."""
        return self.note("head", at, "state", state=state, reason=reason)

    def loading(self) -> RunDir:
        """Write a start in which every rank's engine runs."""
        self.submitted().state(1, "STARTING")
        for index in range(self.plan.allocation.nodes):
            self.note(f"node{index + 1}", 1.5, "hello", node=f"node{index + 1}", step="1")
        for place in self.plan.ranks:
            node = f"node{place.node + 1}"
            self.note(f"rank-{place.rank}", 2, "start", rank=place.rank, node=node, gpus="0,1")
            found = {"rank": place.rank, "node": node, "pid": 100 + place.rank, "main": True, "name": "tritonserver"}
            self.note(node, 2.5, "found", **found)
        return self.state(3, "LOADING")

    def serving(self) -> RunDir:
        """Write a start that became ready, with its endpoint."""
        self.loading().state(5, "READY")
        where = [
            {
                "instance": one.index,
                "url": f"http://node{one.index + 1}:2000{one.index}",
                "grpc": "node1:1",
                "metrics": "x",
            }
            for one in self.plan.instances
        ]
        self._write(self.job_paths.endpoint(self.attempt), {"attempt": self.attempt, "instances": where})
        return self

    def killed(self, rank: int, at: float = 9.0) -> RunDir:
        """Have a rank's stub killed."""
        node = f"node{self.plan.ranks[rank].node + 1}"
        fields = {"rank": rank, "node": node, "pid": 9, "name": "triton_python_b", "main": False, "asked": False}
        return self.note(node, at, "ended", how="signal SIGKILL", at=T0 + at, **fields)

    def result(
        self, state: str, cause: str = "", first: dict[str, object] | None = None, log: Sequence[str] = ()
    ) -> RunDir:
        """Write how the attempt ended."""
        self._attempt()
        value = {
            "state": state,
            "cause": cause,
            "exit_code": 0 if state == "COMPLETED" else 1,
            "first": first,
            "log": list(log),
            "preflight": [],
            "began": T0 + 1,
            "ready": T0 + 5,
            "ended": T0 + 60,
            "ranks_ended": {"0": "exit 0"},
        }
        self._write(self.job_paths.result(self.attempt), value)
        return self

    @property
    def job_paths(self) -> JobPaths:
        """Paths of the job."""
        return self.paths.job(self.job_id)

    def _attempt(self) -> Path:
        root = self.job_paths.attempt(self.attempt).root
        root.mkdir(parents=True, exist_ok=True)
        return root

    def _write(self, path: Path, value: object) -> None:
        path.write_text(json.dumps(value), encoding="utf-8")


def squeue_row(job_id: int, state: str, *, reason: str = "None", name: str = "demo", left: str = "9:00") -> str:
    """Return a line of squeue as slurm.commands asks for it."""
    times = (left, "10:00", "2026-11-30T10:40:01", "2026-11-30T10:40:00")
    return SEPARATOR.join((str(job_id), state, reason, *times, "4", "node1", "batch", "node[1-4]", name))


@dataclass
class FakeSlurm:
    """Answers squeue with the given rows, scontrol and sacct with nothing known; keeps every call.

    After `scancel` the rows become `after_cancel`.
    """

    rows: list[str] = field(default_factory=list)
    failures: int = 0
    after_cancel: list[str] | None = None
    after_signal: list[str] | None = None
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed:
        """Answer one command."""
        self.calls.append(tuple(argv))
        if argv[0] == "squeue":
            if self.failures:
                self.failures -= 1
                return NO_ANSWER
            return Completed(tuple(argv), 0, "\n".join(self.rows) + "\n", "") if self.rows else NO_JOB
        if argv[0] == "scancel":
            signalled = any(word.startswith("--signal") for word in argv)
            rows = self.after_signal if signalled else self.after_cancel
            self.rows = self.rows if rows is None else rows
            return Completed(tuple(argv), 0, "", "")
        if argv[0] == "scontrol":
            return Completed(tuple(argv), 1, "", "slurm_load_jobs error: Invalid job id specified")
        return Completed(tuple(argv), 1, "", "Slurm accounting storage is disabled")


@dataclass(frozen=True)
class FakeAround(Surroundings):
    """Surroundings whose clock moves only when somebody waits."""

    ticks: list[float] = field(default_factory=list)

    def now(self) -> float:
        """Return the time: T0, a minute, and every pause."""
        return T0 + 60 + sum(self.ticks)

    def monotonic(self) -> float:
        """Return the same clock."""
        return self.now()

    def pause(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.ticks.append(seconds)


def around(folder: Path, slurm: FakeSlurm | None = None) -> FakeAround:
    """Return surroundings below `folder`, which is home and working directory."""
    return FakeAround({"HOME": str(folder)}, folder, slurm or FakeSlurm())
