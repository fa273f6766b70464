"""Slurm's job states, ours, and the one table between them; a run directory knows better, this does not."""

from __future__ import annotations

from enum import Enum


class SlurmState(str, Enum):
    """Every state and state flag that Slurm's commands print for a job, 20.11 to 26.05, by its long form."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    EXPEDITING = "EXPEDITING"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    POWER_UP_NODE = "POWER_UP_NODE"
    PREEMPTED = "PREEMPTED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    UPDATE_DB = "UPDATE_DB"
    UNKNOWN = "UNKNOWN"


# The compact forms of `squeue -o %t`; the states that are missing have none.
SHORT_FORMS = {
    "BF": SlurmState.BOOT_FAIL,
    "CA": SlurmState.CANCELLED,
    "CD": SlurmState.COMPLETED,
    "CF": SlurmState.CONFIGURING,
    "CG": SlurmState.COMPLETING,
    "DL": SlurmState.DEADLINE,
    "F": SlurmState.FAILED,
    "NF": SlurmState.NODE_FAIL,
    "OOM": SlurmState.OUT_OF_MEMORY,
    "PD": SlurmState.PENDING,
    "PR": SlurmState.PREEMPTED,
    "R": SlurmState.RUNNING,
    "RD": SlurmState.RESV_DEL_HOLD,
    "RF": SlurmState.REQUEUE_FED,
    "RH": SlurmState.REQUEUE_HOLD,
    "RQ": SlurmState.REQUEUED,
    "RS": SlurmState.RESIZING,
    "RV": SlurmState.REVOKED,
    "S": SlurmState.SUSPENDED,
    "SE": SlurmState.SPECIAL_EXIT,
    "SI": SlurmState.SIGNALING,
    "SO": SlurmState.STAGE_OUT,
    "ST": SlurmState.STOPPED,
    "TO": SlurmState.TIMEOUT,
}

_BY_TEXT = {
    **{state.value: state for state in SlurmState},
    **SHORT_FORMS,
    "COMPLETE": SlurmState.COMPLETED,
    "REQUEUE": SlurmState.REQUEUED,
}


def parse_state(text: str) -> SlurmState:
    """Return the state of `CANCELLED by 1000`, `CANCELLED+`, `CG`; UNKNOWN for anything else, no error.

    Of several states, `COMPLETED,COMPLETING`, the last known one counts: flags follow the base state, and
    Slurm's commands show the flag.
    """
    words = text.strip().upper().split(maxsplit=1)
    state = SlurmState.UNKNOWN
    for part in words[0].split(",") if words else ():
        state = _BY_TEXT.get(part.rstrip("+*"), state)
    return state


class RunState(str, Enum):
    """The states of a run, as status shows them.

        PLANNED ─► SUBMITTED ─► PENDING ─► STARTING ─► LOADING ─► READY ◄──► DEGRADED
                                   ▲           │           │         │          │
                                   │           └───────────┴────┬────┴──────────┘
                                   │ requeued                   ▼
                                   ├─────────────────────── DRAINING   (told to stop, or completing)
                                   │                            │
                                   │     COMPLETED  FAILED  CANCELLED  TIMED_OUT  PREEMPTED  LOST
                                   └──────────── (a requeued job leaves PREEMPTED or FAILED again)

    Every state up to DRAINING may go to each of the last six, SUBMITTED to LOST too. UNKNOWN means that
    nobody who was asked knows: it is no step of the way and never a success.
    """

    PLANNED = "PLANNED"
    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    STARTING = "STARTING"
    LOADING = "LOADING"
    READY = "READY"
    DEGRADED = "DEGRADED"
    DRAINING = "DRAINING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"
    UNKNOWN = "UNKNOWN"

    @property
    def is_terminal(self) -> bool:
        """Tell whether nothing more happens, unless Slurm requeues the job under the same id."""
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        RunState.COMPLETED,
        RunState.FAILED,
        RunState.CANCELLED,
        RunState.TIMED_OUT,
        RunState.PREEMPTED,
        RunState.LOST,
    }
)

# What Slurm's state alone says of a run. RUNNING gives STARTING as the floor, the run directory refines it.
RUN_STATE_OF = {
    SlurmState.PENDING: RunState.PENDING,
    SlurmState.REQUEUED: RunState.PENDING,
    SlurmState.REQUEUE_FED: RunState.PENDING,
    SlurmState.REQUEUE_HOLD: RunState.PENDING,
    SlurmState.RESV_DEL_HOLD: RunState.PENDING,
    SlurmState.SPECIAL_EXIT: RunState.PENDING,  # requeued in a held state
    SlurmState.EXPEDITING: RunState.PENDING,  # requeued, to be started at once
    SlurmState.CONFIGURING: RunState.STARTING,
    SlurmState.POWER_UP_NODE: RunState.STARTING,
    SlurmState.RUNNING: RunState.STARTING,
    SlurmState.RESIZING: RunState.STARTING,
    SlurmState.SIGNALING: RunState.STARTING,
    SlurmState.SUSPENDED: RunState.DEGRADED,
    SlurmState.STOPPED: RunState.DEGRADED,
    SlurmState.COMPLETING: RunState.DRAINING,
    SlurmState.STAGE_OUT: RunState.DRAINING,
    SlurmState.COMPLETED: RunState.COMPLETED,
    SlurmState.FAILED: RunState.FAILED,
    SlurmState.BOOT_FAIL: RunState.FAILED,
    SlurmState.LAUNCH_FAILED: RunState.FAILED,
    SlurmState.NODE_FAIL: RunState.FAILED,
    SlurmState.OUT_OF_MEMORY: RunState.FAILED,
    SlurmState.RECONFIG_FAIL: RunState.FAILED,
    SlurmState.CANCELLED: RunState.CANCELLED,
    SlurmState.TIMEOUT: RunState.TIMED_OUT,
    SlurmState.DEADLINE: RunState.TIMED_OUT,
    SlurmState.PREEMPTED: RunState.PREEMPTED,
    SlurmState.REVOKED: RunState.UNKNOWN,  # another cluster of the federation has the job
    SlurmState.UPDATE_DB: RunState.UNKNOWN,
    SlurmState.UNKNOWN: RunState.UNKNOWN,
}


def run_state(state: SlurmState) -> RunState:
    """Return our state for Slurm's."""
    return RUN_STATE_OF[state]
