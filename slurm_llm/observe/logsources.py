"""Which log files a run has, whose they are, and which of them are wanted. Reads names, and a first line or two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.agent import journal
from slurm_llm.observe.facts import Layout, RankPlace
from slurm_llm.observe.stamps import stamp
from slurm_llm.rundir import AttemptPaths, JobPaths, RunPaths

OTHERS = ("srun", "job", "agents", "preflight", "staging", "balancer", "client")
ZONE_STEP_S = 900
"""Time zones differ by quarters of an hour."""


@dataclass(frozen=True)
class LogSource:
    """One log file of an attempt; `rank` is None for those that no rank writes.

    `since` and `until` bound what of a file is the attempt's (seconds since the epoch): the job's own output holds all
    attempts. `ahead_s` is how far the clock of its writers lies ahead of this machine's: a container can keep another
    time zone. `began` is when the attempt began, where that is known.
    """

    label: str
    path: Path
    rank: int | None = None
    job_id: int = 0
    attempt: int = 0
    since: float | None = None
    until: float | None = None
    ahead_s: float = 0.0
    began: float | None = None


@dataclass(frozen=True)
class Choice:
    """Which logs are wanted; None is no restriction.

    Naming ranks, nodes or an instance leaves out the other logs, unless `others` names them too; naming only `others`
    leaves out the ranks.
    """

    ranks: frozenset[int] | None = None
    nodes: frozenset[str] | None = None
    instance: int | None = None
    others: tuple[str, ...] = ()

    @property
    def of_ranks(self) -> bool:
        """Whether some ranks are wanted and not all."""
        return self.ranks is not None or self.nodes is not None or self.instance is not None

    @property
    def beside(self) -> tuple[str, ...]:
        """The other logs that are wanted."""
        if self.others:
            return self.others
        return (
            () if self.ranks is not None or self.nodes is not None else OTHERS if self.instance is None else ("srun",)
        )


def log_sources(
    paths: RunPaths, job: JobPaths | None, attempt: AttemptPaths | None, layout: Layout, choice: Choice
) -> list[LogSource]:
    """Return the wanted logs of an attempt, ranks first; before the first one only the job's own output."""
    if job is None:
        return []
    if attempt is None:
        return [LogSource("job", paths.output(job.job_id), job_id=job.job_id)] if "job" in choice.beside else []
    began = began_at(attempt)
    numbers = (job.job_id, attempt.number)
    ahead = _ahead(attempt, layout)
    sources = [
        LogSource(f"rank {place.rank}", attempt.rank_log(place.rank), place.rank, *numbers, ahead_s=ahead, began=began)
        for place in wanted_ranks(attempt, layout, choice)
    ]
    return sources + list(_others(paths, job, attempt, layout, choice))


def _others(
    paths: RunPaths, job: JobPaths, attempt: AttemptPaths, layout: Layout, choice: Choice
) -> Iterator[LogSource]:
    instances = range(layout.instances) if choice.instance is None else [choice.instance]
    files = {
        "srun": [attempt.step_log(index) for index in instances],
        "agents": [attempt.root / "agents.log"],
        "preflight": [attempt.root / "preflight.log"],
        "staging": [attempt.root / "staging.log"],
        "balancer": [attempt.root / "balancer.log"],
        "client": [job.client_log(attempt.number)],
    }
    began = began_at(attempt)
    common = {"job_id": job.job_id, "attempt": attempt.number}
    for name in choice.beside:
        for path in files.get(name, ()):
            if path.exists():
                yield LogSource(name, path, began=began, **common)
        if name == "job":
            since, until = began if attempt.number else None, began_at(job.attempt(attempt.number + 1))
            yield LogSource(name, paths.output(job.job_id), since=since, until=until, began=began, **common)


def wanted_ranks(attempt: AttemptPaths, layout: Layout, choice: Choice) -> list[RankPlace]:
    """Return the ranks that are wanted, in order."""
    if choice.others and not choice.of_ranks:
        return []
    places = [
        place
        for place in layout.ranks
        if (choice.ranks is None or place.rank in choice.ranks)
        and (choice.instance is None or place.instance == choice.instance)
    ]
    if choice.nodes is None:
        return places
    names = node_names(attempt, places)
    return [place for place in places if names.get(place.node) in choice.nodes]


def node_names(attempt: AttemptPaths, places: Iterable[RankPlace]) -> dict[int, str]:
    """Return node index → name, as the first rank of each node wrote it down when it began."""
    names: dict[int, str] = {}
    for place in places:
        if place.node not in names:
            item = _first_record(attempt.journal / f"rank-{place.rank}.jsonl", "start")
            if item is not None and isinstance(item.get("node"), str):
                names[place.node] = str(item["node"])
    return names


def agent_names(attempt: AttemptPaths) -> frozenset[str]:
    """Return the names of the nodes whose agents have written anything."""
    try:
        names = [path.name.removesuffix(".jsonl") for path in attempt.journal.iterdir()]
    except OSError:
        return frozenset()
    ours = ("rank-", "sees-")
    return frozenset(name for name in names if "." not in name and name not in ("head", "job") and name[:5] not in ours)


def began_at(attempt: AttemptPaths) -> float | None:
    """Return when the job's script began the attempt; None when it has not, or nobody knows."""
    item = _first_record(attempt.journal / "job.jsonl", "begin")
    return float(str(item["t"])) if item is not None else None


def _first_record(path: Path, kind: str) -> dict[str, object] | None:
    """Return the first record of that kind at the beginning of a journal."""
    try:
        with path.open("rb") as stream:
            rows = stream.read(4096).split(b"\n")
    except OSError:
        return None
    return next((item for item in map(journal.parse_line, rows) if item is not None and item["kind"] == kind), None)


def _ahead(attempt: AttemptPaths, layout: Layout) -> float:
    """Return how far the clock in the ranks' containers lies ahead of this machine's, in whole quarters of an hour.

    A rank writes one moment twice when it begins: as seconds into its journal, as a local time into its log. All ranks
    run in one image, so that one of them is enough.
    """
    for place in layout.ranks[:1]:
        item = _first_record(attempt.journal / f"rank-{place.rank}.jsonl", "start")
        try:
            with attempt.rank_log(place.rank).open("rb") as stream:
                line = stream.readline(200).decode("utf-8", "replace")
        except OSError:
            return 0.0
        begun = float(str(item["t"])) if item is not None else None
        written = stamp(line, begun) if begun is not None and "slurm_llm: rank" in line else None
        if begun is not None and written is not None:
            return float(round((written - begun) / ZONE_STEP_S) * ZONE_STEP_S)
    return 0.0


def ended(job: JobPaths, attempt: AttemptPaths) -> bool:
    """Return whether the attempt has written how it ended."""
    try:
        return bool(json.loads(job.result(attempt.number).read_bytes()))
    except (OSError, ValueError):
        return False
