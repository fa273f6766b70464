"""The rows of the fault matrix: what goes wrong, and what the package has to say of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

WHO = {"leader": 0, "beside the leader": 1, "elsewhere": 5}
WHEN = ("start", "mpi", "load", "serve")
HOW = ("exit:0", "exit:3", "signal:KILL", "signal:SEGV", "raise", "hang:stop", "hang:sleep", "hang:spin")
READY_S, STALL_S, ANSWER_S, PROBE_S = 20, 8, 5, 3
LIMITS = {"ready_s": READY_S, "stall_s": STALL_S, "answer_s": ANSWER_S, "probe_s": PROBE_S, "unready_s": 20}
SPEC: dict[str, Any] = {
    "name": "faults",
    "engine": "rehearsal",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 2,
    "resources": {"nodes": 4, "time": "00:05:00"},
    "timeouts": LIMITS,
}
ALONE = "unset ${!PMI@} ${!OMPI_@} SLURM_NODELIST SLURM_STEPID"
DEATH_S, HANG_S = 3.0, 5.0
LOST_S = 3 * 2.0 + 3.0
"""Three beats, and what it takes to look at the node."""


@dataclass(frozen=True)
class Expected:
    """What makes a row right: the result's state, the diagnosis' kind, rank or node (by index), and words of the cause.

    None and empty texts ask for nothing. `within_s` bounds the seconds to the verdict.
    """

    state: str = "FAILED"
    kinds: tuple[str, ...] = ()
    rank: int | None = None
    node: int | None = None
    words: str = ""
    within_s: float | None = None


@dataclass(frozen=True)
class Row:
    """One thing that goes wrong: faults of the rehearsal, or an action on a model that serves.

    `since` says from when seconds count: `end` (of the rank's process), `words` (of Triton, of a model that failed),
    `life` (the rank's last sign of it), `request`, `action`. A row with `root` needs the devcluster's own root.
    """

    name: str
    expected: Expected
    faults: tuple[str, ...] = ()
    action: str = ""
    since: str = "action"
    spec: dict[str, Any] = field(default_factory=dict)
    root: bool = False


def rows() -> Iterator[Row]:
    """Yield every row of the matrix."""
    for who, at, kind in itertools.product(WHO, WHEN, HOW):
        yield _of_a_rank(who, at, kind)
    yield from _of_the_surroundings()


def _of_a_rank(who: str, at: str, kind: str) -> Row:
    expected, since = Expected(kinds=(kind.partition(":")[0],), rank=WHO[who], within_s=DEATH_S), "end"
    manner, _, argument = kind.partition(":")
    if manner == "exit":
        kinds = ("exit0",) if argument == "0" else ("exit",)
        expected = Expected(kinds=kinds, rank=WHO[who], words=f"exit {argument}", within_s=DEATH_S)
    elif manner == "signal":
        expected = Expected(kinds=("signal",), rank=WHO[who], words=f"SIG{argument}", within_s=DEATH_S)
    elif manner == "hang":
        # What computes may be at work, as far as one can see: only the time to readiness bounds it while it loads.
        bound = READY_S if argument == "spin" else STALL_S
        expected, since = Expected(kinds=("hang", "not-ready"), rank=WHO[who], within_s=bound + HANG_S), "life"
    else:
        since = "words"
    if at == "serve" and since != "end":
        # The next probe is the first that shows it.
        limit = PROBE_S + (ANSWER_S + HANG_S if manner == "hang" else DEATH_S)
        expected, since = Expected(expected.state, expected.kinds, expected.rank, within_s=limit), "request"
    return Row(f"{who}:{at}:{kind}", expected, (f"rank={WHO[who]},at={at},kind={kind}",), since=since)


def _of_the_surroundings() -> Iterator[Row]:
    small = {"resources": {**SPEC["resources"], "mem_per_node": "1500M"}}
    yield Row(
        "memory limit exceeded",
        Expected(kinds=("memory",), rank=5, within_s=DEATH_S + 2),
        ("rank=5,at=load,kind=oom:4096",),
        since="end",
        spec=small,
    )
    yield Row("port taken", Expected(rank=0, kinds=("exit", "raise")), ("rank=0,at=mpi,kind=noport",), since="end")
    yield Row(
        "alone in the MPI world",
        Expected(kinds=("raise", "exit"), words="MPI world size is 1"),
        since="end",
        spec={
            "site": {"step_prologue": "unset ${!PMI@} ${!OMPI_@} SLURM_NODELIST SLURM_STEPID"},
            "preflight": {"mpi": False},
        },
    )
    yield Row(
        "srun without the MPI plugin",
        Expected(kinds=("raise", "exit"), words="MPI_Init"),
        since="end",
        spec={"site": {"launcher": {"mpi": "none"}}, "preflight": {"mpi": False}},
    )
    yield Row(
        "srun refuses the step",
        Expected(kinds=("preflight", "launch")),
        spec={"site": {"srun_extra": ["--no-such-option"]}},
    )
    yield Row("node agents lost", Expected(kinds=("agents",), within_s=DEATH_S), action="kill agents")
    yield Row("scancel of the step", Expected(kinds=("step",), within_s=DEATH_S), action="scancel step")
    yield Row("scancel", Expected("COMPLETED", ("stop",)), action="scancel")
    yield Row("cancel", Expected("COMPLETED", ("stop",)), action="cancel")
    short = {"resources": {**SPEC["resources"], "time": "00:02:00"}}
    yield Row("time limit", Expected("TIMED_OUT", ("stop",)), action="wait", spec=short)
    yield Row("requeue", Expected("READY"), action="requeue", spec={"recovery": {"requeue": 1}})
    yield Row("log folder removed", Expected("COMPLETED", ("stop",)), action="remove logs")
    yield Row("slurmctld restarted", Expected("COMPLETED", ("stop",)), action="restart controller", root=True)
    yield Row("node lost", Expected(kinds=("node",), node=2, within_s=LOST_S), action="kill node", root=True)
    yield Row("node cut off", Expected(kinds=("node",), node=2, within_s=LOST_S), action="cut node", root=True)
    yield Row("/dev/shm full", Expected(kinds=("shm",), node=2), action="fill shm", root=True)
    yield Row("disk full", Expected("COMPLETED", ("stop",)), action="fill disk", root=True)
