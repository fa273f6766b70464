"""One measurement: writes what the tool reads, runs it, looks at the server before and after, keeps the result.

It prints nothing. A result is kept whatever came out; one that must not be used says so.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from slurm_llm import __version__, triton
from slurm_llm.agent import journal
from slurm_llm.benching import judging
from slurm_llm.benching.perfanalyzer import CORE_MODEL
from slurm_llm.benching.placing import place_words
from slurm_llm.benching.scene import FoundTool, Scene
from slurm_llm.benching.tokenizers import byte_tokenizer
from slurm_llm.benching.tools import GRPC_IDS, HUB, HUB_NAME, KEY_VARIABLE, TOKENIZER, Outcome, Wanted
from slurm_llm.errors import Problem, RequestFailed, RunFailed, SetupError
from slurm_llm.observe.benchresults import (
    Answers,
    BenchResult,
    Counted,
    Load,
    Series,
    Served,
    ToolRun,
    result_to_json,
)
from slurm_llm.observe.endpoint import is_inward
from slurm_llm.observe.keys import headers_of
from slurm_llm.observe.metricstext import parse_metrics
from slurm_llm.observe.status import RunStatus
from slurm_llm.observe.text import clean, last_lines
from slurm_llm.process import run_logged
from slurm_llm.render import render_load
from slurm_llm.rundir import BENCH_RESULT, BENCHES, SPEC, RunPaths
from slurm_llm.runs import current, status_of

SCRIPT, LOG, NODE = "load.sh", "load.log", "node"
COUNT_WAIT_S, COUNT_PAUSE_S = 3.0, 0.2
"""Longest wait for Triton's count to hold what has just been answered."""
REDACTED = b"<key>"
SEARCHED_LINES, MOST_WORDS = 60, 200
FRAME = " │╭╮╰╯─•"
_SPEAKS = re.compile(r"error|failed|cannot|refused", re.IGNORECASE)
BYTES = "bytes"
"""What a result says in place of a folder, where each byte is a token."""


@dataclass(frozen=True)
class Prepared:
    """One measurement that is ready to begin: its number, folder, and the command that starts it."""

    number: int
    folder: Path
    wanted: Wanted
    tool: FoundTool
    argv: tuple[str, ...]
    command: tuple[str, ...]


def plan_one(scene: Scene, load: Load, tool: FoundTool, number: int) -> Prepared:
    """Return a measurement without writing anything; `argv` starts it, `command` is the tool's own part."""
    folder = scene.paths.root / BENCHES / str(number)
    wanted = Wanted(load, scene.target, folder, scene.entries)
    argv = (*place_words(scene.where, scene.plan, str(scene.paths.root)), "bash", str(folder / SCRIPT))
    return Prepared(number, folder, wanted, tool, argv, tool.tool.argv(tool.path, wanted))


def new_number(paths: RunPaths) -> int:
    """Return a number that no other measurement of the run has, and make its folder.

    Raises:
        SetupError: the run directory cannot be written.
    """
    number = 1 + max((int(path.name) for path in paths.benches()), default=0)
    while True:
        folder = paths.root / BENCHES / str(number)
        try:
            folder.mkdir(mode=0o700, parents=True)
            return number
        except FileExistsError:
            number += 1
        except OSError as error:
            raise SetupError(Problem(str(folder), f"cannot be made: {error.strerror}")) from None


def texts_of(scene: Scene, one: Prepared) -> dict[str, str]:
    """Return name → text of every file that the measurement begins with."""
    script = render_load(
        scene.plan,
        number=one.number,
        folder=str(one.folder),
        hub=str(one.folder / HUB),
        key_file=scene.keyed.key_file,
        key_variable=KEY_VARIABLE,
        command=one.command,
    )
    tokens = {} if scene.tokenizer else {f"{TOKENIZER}/{name}": text for name, text in byte_tokenizer().items()}
    return {SCRIPT: script, **tokens, **one.tool.tool.files(one.wanted)}


def _write(scene: Scene, one: Prepared) -> None:
    try:
        for name, text in texts_of(scene, one).items():
            path = one.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if scene.tokenizer is not None:
            (one.folder / TOKENIZER).symlink_to(scene.tokenizer)
        # The layout of huggingface_hub's cache: a name, a revision, the folder of its files.
        cached = one.folder / HUB / f"models--{HUB_NAME.replace('/', '--')}"
        for name in ("refs", "snapshots"):
            (cached / name).mkdir(parents=True)
        (cached / "refs" / "main").write_text("local", encoding="ascii")
        (cached / "snapshots" / "local").symlink_to(scene.tokenizer or one.folder / TOKENIZER)
    except OSError as error:
        raise SetupError(Problem(str(one.folder), f"cannot be written: {error.strerror}")) from None


def measure(scene: Scene, load: Load, tool: FoundTool, number: int, series: Series) -> BenchResult:
    """Run one measurement in the folder of `number`, keep its result and return it.

    Raises:
        SetupError: the folder cannot be written; NotReady: the key has gone.
    """
    one = plan_one(scene, load, tool, number)
    _write(scene, one)
    # Read now: with the job's end its file goes.
    secret = _secret(scene)
    model = CORE_MODEL if load.protocol == GRPC_IDS else scene.target.model
    before, began = _count(scene, model), scene.around.now()
    try:
        code = run_logged(one.argv, one.folder / LOG, env=scene.environment)
    finally:
        _redact(secret, one.folder)
    ended = scene.around.now()
    outcome, lost = _outcome(one)
    answered = (outcome.answered if outcome else 0) + load.warmup
    after = None if before is None else _count(scene, model, before + answered)
    # Before release 23.12 Triton counted nothing for `tensorrt_llm` itself: that is no figure.
    counted = Counted(before, after) if before is not None and after else None
    now = status_of(current(scene.found), scene.around)
    seen = judging.Seen(
        tool=tool.tool.name,
        exit_code=code,
        outcome=outcome,
        lost=lost,
        before=_sight(scene.status),
        after=_sight(now),
        states=tuple(_states(scene, began, ended)),
        counted=counted,
        others=judging.own_requests(ended - began, scene.layout.probe_s, scene.layout.instances),
    )
    result = _result(scene, one, seen, series, (began, ended))
    _keep(one.folder, result)
    return result


def _result(scene: Scene, one: Prepared, seen: judging.Seen, series: Series, times: tuple[float, float]) -> BenchResult:
    tokenizer = "" if one.wanted.load.protocol == GRPC_IDS else str(scene.tokenizer or BYTES)
    load = replace(one.wanted.load, tokenizer=tokenizer)
    found, reasons = seen.outcome, judging.reasons(seen, load)
    return BenchResult(
        number=one.number,
        valid=not reasons,
        reasons=tuple(reasons),
        notes=tuple(judging.notes(seen, load)),
        began=round(times[0], 3),
        ended=round(times[1], 3),
        tool=_tool_run(scene, one, seen.exit_code),
        load=load,
        series=series,
        figures=found.figures if found else {},
        requests=Answers(found.answered if found else 0, found.failed if found else 0),
        errors=found.errors if found else (),
        served=_served(scene),
        counted=seen.counted,
    )


def _tool_run(scene: Scene, one: Prepared, code: int) -> ToolRun:
    try:
        node = (one.folder / NODE).read_text(encoding="utf-8").strip()
    except OSError:
        node = ""
    return ToolRun(one.tool.tool.name, one.tool.version, one.command, scene.where.place, node, code)


def _outcome(one: Prepared) -> tuple[Outcome | None, str]:
    try:
        return one.tool.tool.outcome(one.folder, one.wanted), ""
    except RunFailed as error:
        said = last_words(one.folder / LOG)
        return None, error.problems[0].what + (f"; it said: {said}" if said else "")


def last_words(log: Path) -> str:
    """Return what a tool said of its failure: a reason that it names, else its last line that speaks of an error.

    An empty text where there is neither.
    """
    rows = [clean(line).strip(FRAME) for line in last_lines(log, SEARCHED_LINES)[0]]
    named = (f"{row} {after}" for row, after in pairwise([*rows, ""]) if row.startswith("Reason:"))
    spoken = (row for row in reversed(rows) if _SPEAKS.search(row) and not row.startswith("srun:"))
    return next((row.strip()[:MOST_WORDS] for row in chain(named, spoken)), "")


def _sight(status: RunStatus) -> judging.Sight:
    return judging.Sight(status.state.value, status.job_id, status.attempt)


def _states(scene: Scene, began: float, ended: float) -> Iterator[str]:
    """Yield the states that the job's head noted meanwhile."""
    job, attempt = scene.found.job, scene.status.attempt
    if job is None or attempt is None:
        return
    for record in journal.read_folder(str(job.attempt(attempt).journal)):
        if record["kind"] == "state" and began <= float(record["t"]) <= ended:
            yield str(record["state"])


def _count(scene: Scene, model: str, wanted: int = 0) -> int | None:
    """Return Triton's count of answered requests over all instances that are asked; None where one does not tell.

    A count below `wanted` is asked for again for a moment: Triton counts a request once its answer is on its way.
    """
    if is_inward(scene.asked[0]):
        # Its page is on the node alone: what answers at that address here is another server.
        return None
    deadline = scene.around.monotonic() + COUNT_WAIT_S
    while True:
        counts = [_count_of(one.metrics, model) for one in scene.asked if one.metrics]
        total = None if None in counts or not counts else sum(one or 0 for one in counts)
        if total is None or total >= wanted or scene.around.monotonic() > deadline:
            return total
        scene.around.pause(COUNT_PAUSE_S)


def _count_of(url: str, model: str) -> int | None:
    try:
        return judging.success_count(parse_metrics(triton.page(url)), model)
    except RequestFailed:
        return None


def _served(scene: Scene) -> Served:
    status, plan, first = scene.status, scene.plan, scene.asked[0]
    return Served(
        run_id=status.run_id,
        job_id=status.job_id or 0,
        attempt=status.attempt or 0,
        name=status.name,
        engine=status.engine,
        model=plan.model or status.model,
        site=status.site,
        image=scene.layout.image,
        nodes=scene.layout.nodes,
        world_size=plan.sizes.world_size,
        instances=scene.layout.instances,
        spec_sha256=_digest(scene.paths.root / SPEC),
        sizes=vars(plan.sizes).copy(),
        triton="" if is_inward(first) else _triton_version(first.url),
        slurm_llm=__version__,
        url=first.url,
    )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _triton_version(url: str) -> str:
    """Return what the server says of itself, or an empty text; the page needs no key."""
    try:
        return triton.server_version(url)
    except RequestFailed:
        return ""


def _secret(scene: Scene) -> bytes:
    """Return the key's value, to be taken out of what the tool writes; empty without a key."""
    return next(iter(headers_of(scene.keyed).values()), "").encode()


def _redact(secret: bytes, folder: Path) -> None:
    """Take the key out of what the tool has written: aiperf repeats its configuration in its summary."""
    if not secret:
        return
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink() and secret in (data := path.read_bytes()):
                path.write_bytes(data.replace(secret, REDACTED))


def _keep(folder: Path, result: BenchResult) -> None:
    draft = folder / f".{BENCH_RESULT}"
    draft.write_text(result_to_json(result), encoding="utf-8")
    draft.rename(folder / BENCH_RESULT)
