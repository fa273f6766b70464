"""What a run directory says of one Slurm job: layout, journals, endpoint, result. Reads files and judges nothing.

plan.json is read into a few small values of its own, since the plan's full type needs the spec's schema library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slurm_llm.agent import fold, journal, phases, safely
from slurm_llm.errors import Problem, SetupError
from slurm_llm.observe.text import last_lines
from slurm_llm.record import RunRecord, load_record
from slurm_llm.rundir import AttemptPaths, JobPaths, RunPaths
from slurm_llm.topology import Coordinates

T = TypeVar("T")


OUTPUT_LINES = 5


@dataclass(frozen=True)
class RankPlace:
    """Where the plan puts one rank; `node` counts the allocation's nodes from 0."""

    rank: int
    instance: int
    node: int
    local: int
    gpus: tuple[int, ...]
    at: Coordinates
    role: str


@dataclass(frozen=True)
class Layout:
    """What watching needs of a plan."""

    name: str
    engine: str
    site: str
    nodes: int
    instances: int
    model_name: str
    ranks: tuple[RankPlace, ...]
    exit_timeout_s: int
    kill_wait_s: int
    spare_nodes: int = 0
    recovers: bool = False
    """Whether a failure may be followed by a restart or a requeue."""
    probe_s: float = 0.0
    """How often the head asks the served model for an answer while nothing else proves that it gives any."""
    image: str = ""
    """The container's image, as its runtime names it."""
    client_grace_s: int = 0
    """How long its client has to end before the server is told to."""


@dataclass(frozen=True)
class Endpoint:
    """Where one instance serves, or with a `balancer` all of them; `openai` is empty without that front end."""

    instance: int | None
    url: str
    grpc: str
    metrics: str
    openai: str = ""
    balancer: str = ""
    key_file: str = ""
    """File (0600) with the header that inference needs, where the spec asks for a key; see `observe.keys`."""
    exporter: str = ""
    """The page with the metrics of the whole run, the same one for each instance; empty without one."""


@dataclass(frozen=True)
class FirstFailure:
    """The process that ended first without having been asked to; `at` is seconds since the epoch."""

    rank: int
    node: str
    name: str
    how: str | None
    phase: str
    at: float


@dataclass(frozen=True)
class Result:
    """How an attempt ended, as the job itself wrote it down; times are seconds since the epoch."""

    state: str
    cause: str
    exit_code: int
    first: FirstFailure | None
    log: tuple[str, ...]
    began: float | None
    ready: float | None
    ended: float | None
    ranks_ended: dict[int, str]
    why: str = ""
    """What the cause means, in a sentence."""
    remedies: tuple[str, ...] = ()
    phases: phases.Phases | None = None
    rank: int | None = None
    """The rank that the diagnosis names."""


@dataclass(frozen=True)
class Earlier:
    """How an attempt before the newest one ended, in short."""

    attempt: int
    state: str
    cause: str


@dataclass(frozen=True)
class Evidence:
    """All that the run directory says of one job's newest attempt; None is what is not there (yet)."""

    paths: RunPaths
    layout: Layout
    record: RunRecord | None
    job: JobPaths | None
    attempt: AttemptPaths | None
    facts: fold.RunFacts | None
    last_record: float | None
    head_began: bool
    endpoints: tuple[Endpoint, ...]
    result: Result | None
    output: tuple[str, ...]
    earlier: tuple[Earlier, ...] = ()
    no_more: str = ""
    """Why nothing follows a failure, where the spec would have it."""
    failed_at: float | None = None
    """When the head saw the attempt fail."""

    @property
    def client_failed(self) -> bool:
        """Whether the client ended by itself with an error."""
        client = self.facts.client if self.facts else None
        return client is not None and bool(client.code) and not client.told


class Reading:
    """How a run directory is read: all of it anew. Who looks again and again remembers what cannot have changed."""

    def layout(self, plan: Path) -> Layout:
        """Return what a plan.json says; see `load_layout`."""
        return load_layout(plan)

    def records(self, attempt: AttemptPaths) -> list[journal.Record]:
        """Return the records of an attempt's journals, in order of time; of samples the newest ones."""
        return journal.read_briefly(str(attempt.journal))

    def facts(self, attempt: AttemptPaths, records: list[journal.Record], ranks: int) -> fold.RunFacts:
        """Return what these records of the attempt add up to."""
        return fold.fold(records, ranks)


def load_evidence(
    paths: RunPaths, job: JobPaths | None, number: int | None = None, reading: Reading | None = None
) -> Evidence:
    """Read what the run directory says of `job`, and of its attempt of that number, or the newest one.

    Raises:
        SetupError: there is no readable plan.json.
    """
    reading = reading or Reading()
    layout = reading.layout(paths.plan)
    attempts = [one for one in (job.attempts() if job else []) if number is None or one.number <= number]
    attempt = attempts[-1] if attempts else None
    records = reading.records(attempt) if attempt else []
    number = attempt.number if attempt else -1
    return Evidence(
        paths=paths,
        layout=layout,
        record=load_record(paths),
        job=job,
        attempt=attempt,
        facts=reading.facts(attempt, records, len(layout.ranks)) if attempt and records else None,
        last_record=float(records[-1]["t"]) if records else None,
        head_began=any(item["kind"] == "state" for item in records),
        endpoints=_read(job.endpoint(number), _endpoints) or () if job else (),
        result=_read(job.result(number), _result) if job else None,
        # Of a job that has come no further, its own output is all there is.
        output=tuple(last_lines(paths.output(job.job_id), OUTPUT_LINES)[0]) if job and not records else (),
        earlier=tuple(_earlier(job, one.number) for one in attempts[:-1]) if job else (),
        no_more=next(
            (str(item.get("why", "")) for item in reversed(records) if item["kind"] == journal.NO_RESTART), ""
        ),
        failed_at=next((float(item["t"]) for item in records if item.get("state") == "FAILED"), None),
    )


def _earlier(job: JobPaths, number: int) -> Earlier:
    found = _read(job.result(number), _result)
    return Earlier(number, found.state, found.cause) if found else Earlier(number, "UNKNOWN", "it has left no result")


def has_result(job: JobPaths) -> bool:
    """Return whether the job's newest attempt has written how it ended, and no other one is to follow."""
    attempts = job.attempts()
    if not attempts or not job.result(attempts[-1].number).is_file():
        return False
    facts = fold.fold(journal.read(str(attempts[-1].journal / "job.jsonl")), 0)
    return facts.restart_in_s is None and not facts.requeued


def serves(job: JobPaths) -> bool:
    """Return whether the job's newest attempt has become ready, and has not written how it ended."""
    attempts = job.attempts()
    if not attempts:
        return False
    number = attempts[-1].number
    return job.endpoint(number).is_file() and not job.result(number).is_file()


def load_layout(path: Path) -> Layout:
    """Read a plan.json.

    Raises:
        SetupError: it is missing, or no plan of ours.
    """
    try:
        value = safely.loads(path.read_text(encoding="utf-8", errors="replace"))
        return _layout(value)
    except OSError as error:
        raise SetupError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SetupError(Problem(str(path), "is no plan of slurm_llm, or was cut off")) from None


def _layout(value: Mapping[str, Any]) -> Layout:
    return Layout(
        name=str(value["name"]),
        engine=str(value["engine"]),
        site=str(value["site"]),
        nodes=int(value["allocation"]["nodes"]),
        instances=len(value["instances"]),
        model_name=str(value["server"]["model_name"]),
        ranks=tuple(_place(item) for item in value["ranks"]),
        exit_timeout_s=int(value["server"]["exit_timeout_s"]),
        kill_wait_s=int(value["kill_wait_s"]),
        spare_nodes=int(value["allocation"].get("spare_nodes", 0)),
        recovers=any(value["recovery"].get(name) for name in ("restarts", "requeue")),
        image=str((value.get("container") or {}).get("image") or ""),
        client_grace_s=int((value.get("client") or {}).get("grace_s", 0)),
        probe_s=float(value["limits"]["probe_s"]),
    )


def _place(value: Mapping[str, Any]) -> RankPlace:
    return RankPlace(
        rank=int(value["rank"]),
        instance=int(value["instance"]),
        node=int(value["node"]),
        local=int(value["local"]),
        gpus=tuple(value["gpus"]),
        at=Coordinates(**value["at"]),
        role=str(value["role"]),
    )


def _read(path: Path, build: Callable[[Mapping[str, Any]], T]) -> T | None:
    """Return a file that is written once, or None while it is missing, cut off or not ours."""
    try:
        return build(safely.loads(path.read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _endpoints(value: Mapping[str, Any]) -> tuple[Endpoint, ...]:
    """Return where the run is served: the balancer first, where there is one."""
    front = value.get("balancer")
    whole = {"exporter": value.get("exporter", "")}
    common = () if front is None else (_endpoint({**front, **whole, "metrics": ""}, None),)
    return (*common, *(_endpoint({**item, **whole}, int(item["instance"])) for item in value["instances"]))


def _endpoint(value: Mapping[str, Any], instance: int | None) -> Endpoint:
    return Endpoint(
        instance=instance,
        url=str(value["url"]),
        grpc=str(value["grpc"]),
        metrics=str(value["metrics"]),
        openai=str(value.get("openai", "")),
        balancer=str(value.get("program", "")),
        key_file=str(value.get("key_file", "")),
        exporter=str(value["exporter"]),
    )


def _result(value: Mapping[str, Any]) -> Result:
    first = value["first"]
    return Result(
        state=str(value["state"]),
        cause=str(value["cause"]),
        exit_code=int(value["exit_code"]),
        first=None if first is None else FirstFailure(**{name: first[name] for name in FirstFailure.__annotations__}),
        log=tuple(str(row) for row in value["log"] or value.get("preflight", [])[1:]),
        began=_moment(value.get("began")),
        ready=_moment(value.get("ready")),
        ended=_moment(value.get("ended")),
        ranks_ended={int(rank): str(how) for rank, how in value.get("ranks_ended", {}).items()},
        why=str(_diagnosis(value).get("means") or ""),
        remedies=tuple(str(one) for one in _diagnosis(value).get("remedies") or ()),
        rank=_diagnosis(value).get("rank"),
        phases=phases.from_json(value.get("phases")),
    )


def _diagnosis(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found = value.get("diagnosis")
    return found if isinstance(found, dict) else {}


def _moment(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
