"""Rows of a site's rehearsal: what its start, its text, its GPUs and its end say of the site. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_llm.agent import journal, phases
from slurm_llm.observe.checkrows import Row, Verdict, fold_values, names_of
from slurm_llm.observe.health import RankHealth
from slurm_llm.observe.status import RunStatus
from slurm_llm.observe.text import clean
from slurm_llm.slurm.states import RunState

TOPIC = "rehearsal"
PROMPT, TOKENS = "The future of AI is", 16
TEXTS: Mapping[bool, str] = {False: "egilo wobu wila ", True: "ogiguri bulovopu"}
"""What the rehearsal writes to that prompt with seed 0, in every layout: without experts, and with them."""
SHOWN_WARNINGS, SHOWN_CHARACTERS = 3, 300
_DEVICE = re.compile(rb"weights are on cuda:\d+: (?P<name>[^\n]*), \d+ MiB, UUID (?P<uuid>[\w-]+)")
_TELLING = re.compile(r"[Ee]rror|ERROR|[Ee]xception|[Ff]ailed")
BEGINNING = 65536
"""Bytes of a rank's log in which it says which GPU it took."""


def known_text(seed: object, experts: bool) -> str | None:
    """Return the text that the rehearsal has to write; None for a seed of one's own."""
    return None if seed else TEXTS[experts]


def started_rows(status: RunStatus, ranks: Sequence[RankHealth]) -> list[Row]:
    """Return rows of a run that serves: where its ranks are, and how long each part of the start took."""
    took = status.phases.took
    after = "" if took.ready_s is None else f", {took.ready_s:.1f} s after the job began"
    placed: dict[str, list[int]] = {}
    for one in ranks:
        placed.setdefault(one.node or f"#{one.node_index}", []).append(one.rank)
    alike = sorted({len(own) for own in placed.values()})
    each = f", {alike[0]} on each of {len(placed)} nodes" if len(alike) == 1 else f", on {len(placed)} nodes"
    who = f"all {len(ranks)} ranks serve" if len(ranks) > 1 else "the rank serves"
    rows = [Row(TOPIC, "start", Verdict.OK, who + (each if len(placed) > 1 else "") + after)]
    parts = phases.parts(took)
    return [*rows, Row(TOPIC, "phases", Verdict.OK, " · ".join(parts))] if parts else rows


def failed_row(status: RunStatus, name: str) -> Row:
    """Return a row of a run that has failed: the cause, who went first, what it means and what to do."""
    told = [clean(status.cause) or "it says no cause"]
    first = status.first
    if first is not None and not status.cause.startswith(f"rank {first.rank} "):
        told.append(f"rank {first.rank} on {first.node} went first ({first.how or 'nobody saw how'})")
    told += [clean(status.why)] if status.why else []
    todo = clean(status.remedies[0]) if status.remedies else "the archive has logs, journals and the diagnosis"
    return Row(TOPIC, name, Verdict.WRONG, f"{status.state.value}: {'; '.join(told)}", todo=todo)


def said_row(status: RunStatus) -> list[Row]:
    """Return a row of the first line of a failed run's log that tells an error, where there is one."""
    line = next((clean(line) for line in status.log_tail if _TELLING.search(line)), "")
    return [Row(TOPIC, "log", Verdict.NOTE, line[:SHOWN_CHARACTERS])] if line else []


def text_row(text: str, expected: str | None) -> Row:
    """Return a row that compares the text with the known one."""
    if expected is None:
        return Row(TOPIC, "text", Verdict.UNKNOWN, f"{text!r}; the text of seed 0 alone is known")
    if text == expected:
        return Row(TOPIC, "text", Verdict.OK, f"the known one, {text!r}: every rank has its own part of the model")
    todo = "ranks are not where the job thinks, or they compute wrongly: the archive shows each one's place"
    return Row(TOPIC, "text", Verdict.WRONG, f"{text!r} instead of {expected!r}", todo=todo)


def log_rows(records: Iterable[journal.Record], ranks: Iterable[RankHealth]) -> list[Row]:
    """Return rows of what the job warned of, and of errors in the ranks' logs."""
    told = list(dict.fromkeys(clean(str(item.get("text", ""))) for item in records if item["kind"] == "warning"))
    rows = [Row(TOPIC, "warning", Verdict.NOTE, text) for text in told[:SHOWN_WARNINGS]]
    errors = {one.rank: one.last_error[:SHOWN_CHARACTERS] for one in ranks if one.last_error}
    return [*rows, Row(TOPIC, "logs", Verdict.NOTE, fold_values(errors))] if errors else rows


def device_of(log: Path) -> tuple[str, str] | None:
    """Return name and UUID of the GPU that a rank's log says it computes on; None where it says none."""
    try:
        with log.open("rb") as stream:
            found = _DEVICE.search(stream.read(BEGINNING))
    except OSError:
        return None
    if found is None:
        return None
    return tuple(clean(found[part].decode("utf-8", "replace")) for part in ("name", "uuid"))  # type: ignore[return-value]


def inventory_row(records: Iterable[journal.Record], gpus: int, key: str) -> Row:
    """Return a row of the GPUs that the nodes' agents see, where the profile's `key` has so many on a node."""
    told = [item for item in records if item["kind"] == "gpus"]
    if not told:
        verdict, what = (Verdict.NOTE, ", the profile has") if gpus else (Verdict.OK, ", as the profile says")
        return Row(
            TOPIC, "GPUs", verdict, "no NVIDIA driver on the nodes" + (f"{what} {gpus} a node" if gpus else what)
        )
    found = fold_values({index: _gpus_text(item) for index, item in enumerate(told)}, "node")
    few = [len(item.get("gpus", ())) + int(item.get("hidden") or 0) < gpus for item in told]
    verdict = Verdict.WRONG if any(few) else Verdict.OK
    return Row(TOPIC, "GPUs", verdict, found, str(gpus), key, "fewer than the job was given" if any(few) else "")


def _gpus_text(item: journal.Record) -> str:
    """Return what a node's GPUs are: how many of which name, with which driver."""
    names = sorted({clean(str(own.get("name") or "GPU")) for own in item.get("gpus", ())})
    slices = sum(bool(own.get("slices")) for own in item.get("gpus", ()))
    hidden = int(item.get("hidden") or 0)
    parts = (
        f"{len(item.get('gpus', ()))} × {', '.join(names) or 'GPU'}",
        f"{slices} of them cut by MIG" if slices else "",
        f"{hidden} hidden" if hidden else "",
        f"driver {clean(str(item['driver']))}" if item.get("driver") else "",
    )
    return ", ".join(filter(None, parts))


def device_rows(ranks: Sequence[RankHealth], devices: Mapping[int, tuple[str, str]], key: str) -> list[Row]:
    """Return rows of which GPU each rank computes on: `devices` is rank → name and UUID, as its log says.

    `key` is the profile's, on how GPUs are asked for.
    """
    silent = [one.rank for one in ranks if one.rank not in devices]
    users: dict[str, list[int]] = {}
    for rank, (_name, uuid) in sorted(devices.items()):
        users.setdefault(uuid, []).append(rank)
    shared = {uuid: own for uuid, own in users.items() if len(own) > 1}
    total = len(ranks)
    if silent:
        row = Row(TOPIC, "ranks' GPUs", Verdict.WRONG, f"{names_of(silent, 'rank', total)}: computes on no GPU")
    elif shared:
        told = "; ".join(f"{names_of(own, 'rank', total)} on one GPU, {uuid}" for uuid, own in shared.items())
        todo = "each rank wants a GPU of its own: see what the probe says of GPUs"
        row = Row(TOPIC, "ranks' GPUs", Verdict.WRONG, told, "", key, todo)
    else:
        names = ", ".join(sorted({name for name, _uuid in devices.values()}))
        who = f"each of {total} ranks computes" if total > 1 else "the rank computes"
        row = Row(TOPIC, "ranks' GPUs", Verdict.OK, f"{who} on a GPU of its own ({names})")
    return [row, _seen_row(ranks)]


def _seen_row(ranks: Sequence[RankHealth]) -> Row:
    """Return a row of what the driver says that the ranks' processes hold."""
    unseen = [one.rank for one in ranks if not one.used_gpus]
    if unseen:
        whose = "any rank" if len(unseen) == len(ranks) else names_of(unseen, "rank", len(ranks))
        found = f"the NVIDIA driver names no process of {whose}"
        todo = "`health` and `top` then show no GPU memory by rank: a container's own process ids are one reason"
        return Row(TOPIC, "GPU memory", Verdict.NOTE, found, todo=todo)
    held = sorted(one.gpu_mib or 0 for one in ranks)
    span = f"{held[0]}" if held[0] == held[-1] else f"{held[0]} to {held[-1]}"
    return Row(TOPIC, "GPU memory", Verdict.OK, f"{span} MiB a rank, as the driver tells of its processes")


def ended_row(status: RunStatus, seconds: float) -> Row:
    """Return a row of how the run ended after it was told to."""
    if status.state is RunState.COMPLETED and status.exit_code == 0:
        return Row(TOPIC, "end", Verdict.OK, f"in order, {seconds:.1f} s after it was told to")
    return failed_row(status, "end")


def leftovers_row(records: Iterable[journal.Record], nodes: int) -> Row:
    """Return a row of what the nodes' agents said last: that they ended and removed all that was of the run."""
    removed = {str(item.get("node")): int(item.get("removed") or 0) for item in records if item["kind"] == "bye"}
    if len(removed) < nodes:
        found = f"only {len(removed)} of {nodes} nodes have said that they are clean"
        todo = "look for processes, /dev/shm/llm* and storage.local there; `site epilog` has a script for it"
        return Row(TOPIC, "leftovers", Verdict.NOTE, found, todo=todo)
    whole = f"all {nodes} nodes" if nodes > 1 else "its node"
    found = f"none: {whole} ended its processes and removed {sum(removed.values())} things of it"
    return Row(TOPIC, "leftovers", Verdict.OK, found)
