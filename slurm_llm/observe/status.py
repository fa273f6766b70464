"""One run's state, folded from its directory and Slurm's words. Pure: it reads no file and asks nobody.

Order of evidence: the job's own result, then Slurm, then the journals, which say how far a job is only while Slurm
says that it runs, or when Slurm cannot be asked. Nothing known is UNKNOWN, never success.
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict, dataclass, field, replace

from slurm_llm.agent import causes, fold, phases
from slurm_llm.observe.facts import Earlier, Endpoint, Evidence, FirstFailure, Result
from slurm_llm.observe.times import Phases, build_phases, epoch
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import format_time
from slurm_llm.slurm.nodesets import fold_nodes, is_node_name
from slurm_llm.slurm.reasons import Reason, explain_reason
from slurm_llm.slurm.states import RunState, SlurmState, run_state

SCHEMA = 1
GONE, STOPPING = "gone", "stopping"
"""States of a rank: nobody saw it end, but its job has; told to end, or its run is failing."""
CANCELLED_WAITING = "cancelled while it waited in the queue"
SAME_SUBMIT_S = 300.0
LIVE = frozenset({RunState.STARTING, RunState.LOADING, RunState.READY, RunState.DEGRADED, RunState.DRAINING})


@dataclass(frozen=True)
class SlurmWord:
    """What Slurm said when asked about the job: its facts, that it knows no such job (`facts` None), or no answer."""

    facts: JobFacts | None = None
    problem: str = ""
    asked: bool = True


@dataclass(frozen=True)
class RunStatus:
    """A run as it is now. `cause` says why it is not well, `pending` why it waits, `notes` what to know beside it."""

    run_id: str
    name: str
    engine: str
    site: str
    directory: str
    job_id: int | None
    cluster: str
    state: RunState
    slurm_state: SlurmState | None
    attempt: int | None
    nodes: int
    node_list: str
    ranks_ready: int
    ranks_total: int
    rank_states: dict[str, int]
    model: str
    endpoints: tuple[Endpoint, ...] = ()
    time_left_s: int | None = None
    start_time: str | None = None
    pending: Reason | None = None
    first: FirstFailure | None = None
    cause: str = ""
    why: str = ""
    remedies: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    log_of: str = ""
    """Whose lines these are, where that is no rank's, step's or job's."""
    phases: Phases = field(default_factory=Phases)
    rehearsal_of: str | None = None
    slurm_answered: bool = True
    has_result: bool = False
    notes: tuple[str, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    client: fold.ClientState | None = None
    """The client that the job runs beside its server, once it has begun."""
    exit_code: int | None = None
    """The exit status that the job has for its own."""
    guest: bool = False
    """Whether the job is somebody's allocation, which goes on without the run."""
    called: str = ""
    """What commands are to call it: the run id, or the job id where the run id would mean another job."""

    @property
    def ready(self) -> bool:
        """Whether every rank serves."""
        return self.state is RunState.READY

    @property
    def ended(self) -> bool:
        """Whether nothing more happens."""
        return self.state.is_terminal


@dataclass(frozen=True)
class _Verdict:
    state: RunState
    cause: str = ""
    notes: tuple[str, ...] = ()


def build_status(
    evidence: Evidence, word: SlurmWord, now: float, submitted: float | None = None, called: str = ""
) -> RunStatus:
    """Return the status that the evidence adds up to; times are seconds since the epoch, `called` as in RunStatus."""
    if word.facts is not None and _is_another_job(word.facts, evidence, submitted):
        word = replace(word, facts=None)
    verdict = _judge(evidence, word, now)
    facts, result = word.facts, _current_result(evidence, word)
    ranks = _rank_states(evidence, verdict.state)
    first = _first_failure(evidence, result, verdict.state)
    pending = facts is not None and verdict.state is RunState.PENDING
    run_id = evidence.record.run_id if evidence.record else evidence.paths.run_id
    status = RunStatus(
        run_id=run_id,
        name=evidence.layout.name,
        engine=evidence.layout.engine,
        site=evidence.layout.site,
        directory=str(evidence.paths.root),
        job_id=evidence.job.job_id if evidence.job else None,
        cluster=facts.job_id.cluster or "" if facts else "",
        state=verdict.state,
        slurm_state=facts.state if facts else None,
        attempt=evidence.attempt.number if evidence.attempt else None,
        nodes=evidence.layout.nodes,
        node_list=_node_list(evidence, facts),
        ranks_ready=ranks.get(fold.READY, 0),
        ranks_total=len(evidence.layout.ranks),
        rank_states=ranks,
        model=evidence.layout.model_name,
        called=called or run_id,
    )
    return replace(
        status,
        endpoints=evidence.endpoints if verdict.state in (RunState.READY, RunState.DEGRADED) else (),
        time_left_s=facts.time_left_s if facts and verdict.state in LIVE else None,
        start_time=facts.start_time if facts and pending else None,
        pending=explain_reason(facts.reason) if facts and pending else None,
        first=first,
        cause=verdict.cause,
        why=result.why if result and result.state == verdict.state.value else "",
        remedies=_remedies(evidence, result, status),
        log_tail=result.log if result else evidence.output if verdict.state.is_terminal else (),
        phases=build_phases(evidence, result, submitted, verdict.state.is_terminal),
        rehearsal_of=evidence.record.rehearsal_of if evidence.record else None,
        slurm_answered=not word.problem,
        has_result=result is not None,
        notes=(*verdict.notes, *_service_notes(evidence, verdict.state)),
        earlier=evidence.earlier,
        client=evidence.facts.client if evidence.facts else None,
    )


def _service_notes(evidence: Evidence, state: RunState) -> tuple[str, ...]:
    news = evidence.facts.service_news if evidence.facts and state in LIVE else ""
    return (news,) if news else ()


def _remedies(evidence: Evidence, result: Result | None, status: RunStatus) -> tuple[str, ...]:
    if result is None or result.state != status.state.value:
        return ()
    rank = result.rank if result.rank is not None or result.first is None else result.first.rank
    run = shlex.quote(status.called)
    return tuple(causes.filled(text, run, rank, evidence.layout.site) for text in result.remedies)


def status_to_json(status: RunStatus) -> str:
    """Return the status as one JSON object."""
    value = asdict(status)
    value["phases"]["took"] = phases.as_json(status.phases.took)
    value["client"] = None if status.client is None else status.client._asdict()
    return json.dumps({"schema": SCHEMA, **value}, indent=1, ensure_ascii=False)


def _is_another_job(facts: JobFacts, evidence: Evidence, submitted: float | None) -> bool:
    """A cluster that was set up anew gives job ids out again: neither name nor time fits then."""
    at = epoch(facts.submit_time)
    if at is None or submitted is None or not facts.name:
        return False
    return facts.name != evidence.layout.name and abs(at - submitted) > SAME_SUBMIT_S


def _judge(evidence: Evidence, word: SlurmWord, now: float) -> _Verdict:
    if evidence.job is None:
        return _Verdict(RunState.PLANNED, notes=("rendered; no job of it has begun here",))
    result = _current_result(evidence, word)
    if result is not None:
        return _going_on(evidence, word, result) or _by_result(result, word, evidence.no_more)
    if word.problem or not word.asked:
        return _by_journals_alone(evidence, word, now)
    if word.facts is None or _is_forgotten(word.facts):
        return _gone(evidence, word.facts)
    state = run_state(word.facts.state)
    if state.is_terminal:
        return _by_slurms_end(evidence, word.facts, state)
    if state is RunState.PENDING:
        return _Verdict(state, notes=_requeued(evidence))
    if state is RunState.UNKNOWN:
        return _Verdict(state, cause=f"Slurm says {word.facts.state.value}")
    if evidence.result is not None:
        return _Verdict(RunState.STARTING, notes=("Slurm has started the job once more",))
    return _while_running(evidence, word.facts, state)


def _requeued(evidence: Evidence) -> tuple[str, ...]:
    if evidence.attempt is None:
        return ()
    notes: tuple[str, ...] = ("requeued: it waits to start once more",)
    result = evidence.result
    return notes if result is None else (*notes, f"attempt {evidence.attempt.number}: {result.state}, {result.cause}")


def _current_result(evidence: Evidence, word: SlurmWord) -> Result | None:
    """Return the newest attempt's result, unless Slurm has requeued the job since it was written."""
    result, facts = evidence.result, word.facts
    if result is None or facts is None or run_state(facts.state).is_terminal:
        return result
    if run_state(facts.state) is RunState.PENDING:
        return None
    begun = epoch(facts.start_time)
    return None if begun is not None and result.ended is not None and begun > result.ended else result


def _going_on(evidence: Evidence, word: SlurmWord, result: Result) -> _Verdict | None:
    """Return what the job is about after its newest attempt's result, when it goes on."""
    alive = word.facts is not None and not run_state(word.facts.state).is_terminal
    if not alive or evidence.facts is None:
        return None
    failed = f"attempt {evidence.attempt.number if evidence.attempt else 0} failed"
    if evidence.facts.requeued:
        return _Verdict(RunState.PENDING, notes=(f"{failed} and the job is requeued: {result.cause}",))
    if evidence.facts.restart_in_s is not None:
        return _Verdict(RunState.STARTING, notes=(f"{failed} and is started again: {result.cause}",))
    undecided = evidence.layout.recovers and not evidence.no_more
    if undecided and result.state == "FAILED" and evidence.facts.stop_why is None:
        # The job's script decides within seconds what follows; nobody may take this for the end meanwhile.
        return _Verdict(RunState.DRAINING, result.cause, (f"{failed}; whether another one follows is seen soon",))
    return None


def _by_result(result: Result, word: SlurmWord, no_more: str) -> _Verdict:
    state = _state_named(result.state)
    notes = (f"the server is not started again: {no_more}",) if no_more else ()
    facts = word.facts
    if facts is not None and run_state(facts.state).is_terminal and facts.state not in _USUAL_ENDS:
        notes = (*notes, f"Slurm says {_slurm_words(facts)}")
    return _Verdict(state, result.cause, notes)


_USUAL_ENDS = frozenset({SlurmState.COMPLETED, SlurmState.FAILED})


def _by_journals_alone(evidence: Evidence, word: SlurmWord, now: float) -> _Verdict:
    said = f"Slurm did not answer: {word.problem}" if word.problem else "Slurm was not asked"
    if evidence.facts is None or evidence.last_record is None:
        return _Verdict(RunState.UNKNOWN, notes=(said, "the job has written nothing so far"))
    age = format_time(max(0, int(now - evidence.last_record)))
    state, cause = _by_journals(evidence, RunState.STARTING)
    return _Verdict(state, cause, (said, f"the state is the job's own last word, {age} ago"))


def _is_forgotten(facts: JobFacts) -> bool:
    """The controller answered and does not know the job; the accounting failed."""
    return facts.source == "sacct" and facts.state is SlurmState.UNKNOWN


def _gone(evidence: Evidence, facts: JobFacts | None) -> _Verdict:
    notes = (f"accounting: {facts.reason}",) if facts and facts.reason else ()
    if evidence.facts is None:
        cause = "Slurm does not know the job, and it has written nothing: perhaps it ended before it began"
        return _Verdict(RunState.UNKNOWN, cause, notes)
    cause = f"the job is gone without a result, Slurm does not know it any more; {_last_word(evidence)}"
    return _Verdict(RunState.LOST, cause, notes)


def _by_slurms_end(evidence: Evidence, facts: JobFacts, state: RunState) -> _Verdict:
    said = f"Slurm says {_slurm_words(facts)}"
    if evidence.facts is None and state is RunState.CANCELLED and not facts.node_list:
        return _Verdict(state, CANCELLED_WAITING)
    if evidence.facts is None:
        return _Verdict(state, f"{said}; {_never_began(evidence, facts)}")
    if state is RunState.COMPLETED:
        return _Verdict(state, notes=(f"{said}; the job has left no result file",))
    own = _own_cause(evidence.facts)
    if state is RunState.FAILED and own:
        return _Verdict(state, own, (said,) if facts.state is not SlurmState.FAILED else ())
    return _Verdict(state, f"{said}; {_last_word(evidence)}")


def _never_began(evidence: Evidence, facts: JobFacts) -> str:
    # Slurm says JobLaunchFailure when a node cannot open the output file; nothing else tells (Slurm 22.05.8).
    if "launchfail" in facts.reason.lower().replace("_", ""):
        return f"it could not open the job's output: is {evidence.paths.root} there on the compute nodes too?"
    return "the job's script has written nothing"


def _while_running(evidence: Evidence, facts: JobFacts, floor: RunState) -> _Verdict:
    state, cause = _by_journals(evidence, floor)
    if floor is RunState.DEGRADED:
        return _Verdict(floor, f"Slurm has set the job to {facts.state.value}")
    if floor is RunState.DRAINING:
        return _Verdict(floor, cause, ("Slurm is completing the job",))
    if evidence.facts is None:
        return _Verdict(state, notes=(f"Slurm says {facts.state.value}; the job's script has written nothing yet",))
    return _Verdict(state, cause)


def _by_journals(evidence: Evidence, floor: RunState) -> tuple[RunState, str]:
    """Return the state that the head wrote last; what has failed but not ended yet is on its way down."""
    facts = evidence.facts
    if facts is None:
        return floor, ""
    state = _state_named(facts.state)
    if state.is_terminal:
        return RunState.DRAINING, _own_cause(facts)
    return state, facts.reason


def _own_cause(facts: fold.RunFacts) -> str:
    if facts.first_end is not None:
        return fold.describe(facts.first_end)
    return facts.reason if facts.state == "FAILED" else ""


def _last_word(evidence: Evidence) -> str:
    facts, last = evidence.facts, evidence.last_record
    if facts is None or last is None:
        return "it has written nothing"
    why = f" ({facts.reason})" if facts.reason else ""
    return f"its last word was {facts.state}{why}, written {_clock(last)}"


def _slurm_words(facts: JobFacts) -> str:
    words = facts.state.value
    if facts.signal:
        words += f", ended by signal {facts.signal}"
    elif facts.exit_code:
        words += f", exit status {facts.exit_code}"
    # Of a cancelled job Slurm still shows why it had been waiting.
    if facts.reason and facts.state not in (SlurmState.CANCELLED, SlurmState.COMPLETED):
        words += f" ({facts.reason})"
    return words


def rank_state(said: str, run: RunState) -> str:
    """Return a rank's state, given what the journals said of it last and the state of its run.

    Of a run that has ended, or is ending, no rank is ready any more.
    """
    if run.is_terminal and said not in (fold.WAITING, fold.ENDED):
        return GONE
    return STOPPING if run is RunState.DRAINING and said == fold.READY else said


def _rank_states(evidence: Evidence, state: RunState) -> dict[str, int]:
    if evidence.facts is None:
        return {fold.WAITING: len(evidence.layout.ranks)}
    counts: dict[str, int] = {}
    for own in evidence.facts.ranks.values():
        name = rank_state(own.state, state)
        counts[name] = counts.get(name, 0) + 1
    return counts


def _node_list(evidence: Evidence, facts: JobFacts | None) -> str:
    """Return the nodes of the ranks: those of the job, unless it has spare ones."""
    listed, seen = facts.node_list if facts else "", _nodes_seen(evidence)
    return seen or listed if evidence.layout.spare_nodes else listed or seen


def _nodes_seen(evidence: Evidence) -> str:
    names = {own.node or "" for own in evidence.facts.ranks.values()} if evidence.facts else set()
    return fold_nodes(sorted(filter(is_node_name, names)))


def _first_failure(evidence: Evidence, result: Result | None, state: RunState) -> FirstFailure | None:
    if result is not None:
        return result.first
    facts = evidence.facts
    if facts is None or facts.first_end is None or state is RunState.COMPLETED:
        return None
    return FirstFailure(**facts.first_end._asdict())


def _state_named(name: str) -> RunState:
    try:
        return RunState(name)
    except ValueError:
        return RunState.UNKNOWN


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
