"""Clues in journals and logs: which log and line explains an end, which node speaks, who only suffered. Pure."""

import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import fold, journal, known
from .reading import Log, Match

NEAR_END = 1 << 16
"""Bytes: an error farther from the end of a log did not end its writer."""
LINE_LENGTH = 300
TELLING_LINES = 4
QUIET_LINES = 3
CLEAR_LEAD = 1.5
LATER_S = 0.05
AT_ONCE_S = 0.4
NEARLY_ALL = 0.75

_NODE_FAILURE = re.compile(r"Node failure on ([A-Za-z0-9._-]+)")
_SPEAKER = re.compile(r"^ *(?:(\d+): )?slurmstepd(?:-([A-Za-z0-9._-]+))?: ")
_SIZES = re.compile(r"exceeded memory limit \((\d+) ?> ?(\d+)\)")
_COMPLAINT = re.compile(r"preflight: rank (\d+) on node (\S+): ")
_STEP_LOG = re.compile(r"step-(\d+)\.log")


class Evidence(NamedTuple):
    """A line, and the file that it stands in."""

    where: str
    line: str


class Finding(NamedTuple):
    """A cause before it is explained.

    `ids` are known errors that belong to it, `where` the kinds of logs that may explain it, best ones first; of ranks'
    logs only that of `rank` where there is one. `how` is how a process ended, and `seen` that this says enough: what
    a log says of the consequences adds nothing.
    """

    state: str
    kind: str
    cause: str
    rank: Optional[int] = None
    node: Optional[str] = None
    at: Optional[float] = None
    phase: str = ""
    how: Optional[str] = None
    ids: Tuple[str, ...] = ()
    where: Tuple[str, ...] = ()
    seen: bool = False


class Case:
    """The facts, records and logs of one attempt, with what is often looked up in them."""

    def __init__(
        self, facts: fold.RunFacts, records: List[journal.Record], logs: List[Log], entries: List[known.Entry]
    ) -> None:
        self.facts, self.logs = facts, logs
        self.records = journal.in_order(records)
        self.entries = {entry.id: entry for entry in entries}
        self.ends: Dict[int, journal.Record] = {}
        for item in self.records:
            if item["kind"] == "ended" and item.get("main"):
                self.ends[int(item["rank"])] = item

    def entry(self, name: str) -> known.Entry:
        """Return the entry of that id."""
        return self.entries[name]

    def log_of(self, rank: Optional[int]) -> Optional[Log]:
        """Return a rank's log."""
        return next((log for log in self.logs if rank is not None and log.source.rank == rank), None)

    def matches(self, kind: str) -> List[Match]:
        """Return every match of one kind."""
        return [match for log in self.logs for match in log.matches if match.kind == kind]

    def first_match(self, ids: Sequence[str], where: Sequence[str]) -> Optional[Match]:
        """Return the first match with one of `ids` in logs of the kinds `where`."""
        logs = [log for name in where for log in self.logs if log.source.where == name]
        return next((match for log in logs for match in log.matches if match.id in ids), None)

    def earliest_end(self) -> Optional[float]:
        """Return when the first rank ended."""
        return min((own.ended for own in self.facts.ranks.values() if own.ended is not None), default=None)

    def ends_of(self, rank: int) -> List[journal.Record]:
        """Return the ends of a rank's processes, in order of time."""
        return [item for item in self.records if item["kind"] == "ended" and item.get("rank") == rank]

    def ended_by(self, own: fold.RankState) -> str:
        """Return who ended a rank after the first one had gone; `unseen` where nobody saw how it ended."""
        record = self.ends.get(own.rank)
        if record is not None and record.get("asked"):
            return "the node agents"
        if (own.how or "").startswith("signal"):
            return "PMIx or srun"
        return "itself" if own.how else "unseen"


def node_in(line: str) -> str:
    """Return the node that srun says has failed, or nothing."""
    match = _NODE_FAILURE.search(line)
    return match.group(1) if match else ""


def any_of(names: Optional[Iterable[str]]) -> str:
    """Return the only name, or nothing."""
    found = list(names or ())
    return found[0] if len(found) == 1 else ""


def in_brackets(text: str) -> str:
    """Return ` (text)`, or nothing."""
    return " (%s)" % text if text else ""


def speaking_node(case: Case, line: str, name: str) -> Optional[str]:
    """Return the node whose slurmstepd says a line: by its own name, else by the task that srun puts before it."""
    match = _SPEAKER.match(line)
    if match is None:
        return None
    if match.group(2):
        return str(match.group(2))
    step = _STEP_LOG.match(name)
    if match.group(1) is None or step is None:
        return None
    steps = 1 + max((int(found.group(1)) for found in map(_STEP_LOG.match, _names(case)) if found), default=0)
    rank = int(step.group(1)) * (len(case.facts.ranks) // steps) + int(match.group(1))
    return case.facts.ranks[rank].node if rank in case.facts.ranks else None


def _names(case: Case) -> List[str]:
    return [log.source.name for log in case.logs]


def sizes(line: str) -> str:
    """Return how much memory was used, and how much was allowed, in words; Slurm writes both in bytes."""
    match = _SIZES.search(line)
    if match is None or "StepId=" not in line:
        return "more memory than the job may use there"
    used, allowed = (int(text) >> 20 for text in match.groups())
    return "%d MiB, more than the %d MiB that the job may use there" % (used, allowed)


def largest_rank(case: Case, node: Optional[str]) -> Optional[int]:
    """Return the rank on `node` that seems to have held most memory; None when that is not clear.

    Its last measurement can be ten seconds old. What was killed with much memory takes longest to go: the kernel frees
    some gigabytes a second.
    """
    here = [own for own in case.facts.ranks.values() if node is not None and own.node == node]
    heaviest = heaviest_rank(case, node)
    if len(here) == 1 or heaviest is not None:
        return here[0].rank if heaviest is None else heaviest
    last = {own.rank: max((moment(item) for item in case.ends_of(own.rank)), default=0.0) for own in here}
    ordered = sorted(last, key=lambda rank: -last[rank])
    if len(ordered) > 1 and last[ordered[0]] - last[ordered[1]] > LATER_S:
        return ordered[0]
    return None


def heaviest_rank(case: Case, node: Optional[str]) -> Optional[int]:
    """Return the rank on `node` that held much more memory than any other there when it was last measured."""
    here = [own for own in case.facts.ranks.values() if node is not None and own.node == node]
    sized = sorted(((own.rss_mib or 0.0, own.rank) for own in here), reverse=True)
    return sized[0][1] if len(sized) > 1 and sized[0][0] > CLEAR_LEAD * sized[1][0] else None


def killed_for_memory(case: Case) -> Optional[int]:
    """Return the rank of the first process of which its control group says that the kernel killed it for memory."""
    ends = [item for item in case.records if item["kind"] == "ended" and item.get("oom")]
    return int(min(ends, key=moment)["rank"]) if ends else None


def anybody_began(case: Case) -> bool:
    """Tell whether any rank has come into being."""
    return any(item["kind"] in ("start", "found", "exit") for item in case.records)


def moment(item: journal.Record) -> float:
    """Return when what a record tells has happened, seconds since the epoch."""
    return float(item["at"] if "at" in item else item["t"])


def complaints(case: Case) -> List[str]:
    """Return the lines in which our own preflight complains."""
    lines = [line for log in case.logs if log.source.where == "preflight" for line in _all_lines(log)]
    return [line for line in lines if "preflight: rank " in line]


def _all_lines(log: Log) -> List[str]:
    return list(dict.fromkeys([match.line for match in log.matches] + log.telling + log.last))


def rank_and_node(line: str) -> Tuple[Optional[int], Optional[str]]:
    """Return which rank complains on which node in a line of the preflight."""
    match = _COMPLAINT.search(line)
    return (int(match.group(1)), match.group(2)) if match else (None, None)


def said_in(case: Case, where: str) -> str:
    """Return the most telling line of the logs of one kind."""
    for log in case.logs:
        if log.source.where == where and (log.telling or log.last):
            return (log.telling or log.last[-1:])[0]
    return ""


def explaining_in(case: Case, where: Sequence[str], rank: Optional[int] = None) -> List[Match]:
    """Return what explains an end in logs of the kinds `where`: near a log's end, and those that say why first."""
    found = []
    for name in where:
        for log in case.logs:
            if log.source.where == name and (name != "rank" or rank is None or log.source.rank == rank):
                found += [match for match in log.matches if match.kind == known.FATAL]
    near = [match for match in found if match.before_end <= NEAR_END]
    return sorted(near or found, key=lambda match: case.entry(match.id).weak)


def explaining(case: Case, finding: Finding) -> List[Match]:
    """Return the known errors that explain a finding, best ones first, each once."""
    wanted = [case.first_match((name,), finding.where) for name in finding.ids]
    found = [match for match in wanted if match is not None]
    if finding.kind != "node":
        found += explaining_in(case, finding.where, finding.rank)
    if not found and finding.rank is not None and not finding.seen:
        own = case.log_of(finding.rank)
        found = [match for match in (own.matches if own else []) if _is_useful(match)][:1]
    return list({match.id: match for match in reversed(found)}.values())[::-1]


_OF_PEERS = ("nccl-remote", "nccl-watchdog", "mpi-abort", "mpirun-peer-gone")
_SAY_NOTHING = ("triton-told-to-end", "triton-exit-timeout", "step-cancelled", "stub-dead")


def _is_useful(match: Match) -> bool:
    return match.kind == known.EFFECT and match.before_end <= NEAR_END and match.id not in _SAY_NOTHING


def culprit_behind(case: Case, first: int) -> Optional[int]:
    """Return the rank whose error another one only suffered from, when the logs show that plainly.

    A rank whose log has nothing but words about its peers ended because of one; the peer that names an error of its own
    did not end first, because it was caught, or took long to die.
    """
    own = case.log_of(first)
    if own is None or own.exception or not any(match.id in _OF_PEERS for match in own.matches):
        return None
    if explaining_in(case, ("rank",), first):
        return None
    others = [log for log in case.logs if log.source.rank not in (None, first)]
    found = [
        (match.at is None, match.at or 0.0, int(log.source.rank or 0))
        for log in others
        for match in log.matches
        if match.kind == known.FATAL and match.before_end <= NEAR_END
    ]
    return min(found)[2] if found else None


def all_at_once(case: Case, end: fold.FirstEnd) -> bool:
    """Tell whether SIGKILL took nearly all ranks in one moment: whoever sent it meant the step, not a rank.

    When one rank dies srun sends the others SIGTERM, and PMIx's SIGKILL comes about a second later.
    """
    own = case.ends.get(end.rank)
    if end.how != "signal SIGKILL" or own is None or moment(own) - end.at > AT_ONCE_S / 4:
        return False
    if case.first_match(("step-cancelled",), ("step",)) is None:
        return False
    ends = [item for item in case.ends.values() if not item.get("asked")]
    near = [item for item in ends if moment(item) - end.at <= AT_ONCE_S and item.get("how") in (end.how, None)]
    return len(near) >= max(2, NEARLY_ALL * len(case.facts.ranks))


def complaining_rank(case: Case) -> Optional[int]:
    """Return the lowest rank whose log ends with an error while the run goes on: it raised and did not exit."""
    found = [
        log.source.rank
        for log in case.logs
        if log.source.rank is not None
        and (log.exception or any(match.kind == known.FATAL and match.before_end <= NEAR_END for match in log.matches))
    ]
    return min(found) if found else None


def alike(case: Case, first: int) -> int:
    """Return how many ranks' logs name the error of `first`: then it is no matter of one rank."""
    own = explaining_in(case, ("rank",), first)
    if not own:
        return 0
    return sum(any(match.id == own[0].id for match in log.matches) for log in case.logs if log.source.rank is not None)


def evidence(case: Case, finding: Finding) -> Tuple[Evidence, ...]:
    """Return the lines that prove a finding: what agents and head saw, known errors, then the most telling ones."""
    explained = explaining(case, finding)
    rows = _journal_rows(case, finding)
    rows += [Evidence(match.name, match.line) for match in explained[:TELLING_LINES]]
    own = case.log_of(finding.rank)
    logs = [own] if own else [log for name in finding.where for log in case.logs if log.source.where == name]
    told = [Evidence(log.source.name, line) for log in logs for line in log.telling]
    # What srun and its like say beside a known error only repeats it.
    rows += told[:TELLING_LINES] if own or not explained else []
    if own and not own.telling and not explained:
        last = [line for line in own.last if "slurm_llm: rank " not in line]
        rows += [Evidence(own.source.name, line) for line in last[-QUIET_LINES:]]
    rows = rows or [Evidence(match.name, match.line) for log in logs for match in log.matches][:TELLING_LINES]
    return tuple(Evidence(row.where, row.line[:LINE_LENGTH]) for row in dict.fromkeys(rows))


def _journal_rows(case: Case, finding: Finding) -> List[Evidence]:
    rows = [
        Evidence("journal/head.jsonl", "node %s silent for %s s" % (item["node"], item.get("silent_s", "some")))
        for item in case.records
        if item["kind"] == "lost" and finding.kind == "node"
    ]
    texts = [str(item.get("text", "")) for item in case.records if item["kind"] == "unwatched"]
    rows += [Evidence("journal/head.jsonl", text) for text in texts]
    end = case.facts.first_end
    if end is not None and finding.rank == end.rank:
        what = "%s of rank %d ended: %s" % (fold.shown(end.name), end.rank, end.how or "nobody saw how")
        # What was not seen by an agent the rank's own wrapper has noted.
        whose = "rank-%d" % end.rank if end.name == "engine" else end.node
        rows.append(Evidence("journal/%s.jsonl" % whose, what))
    return rows
