"""One row a rank: where it runs, how it is, what its log said last. Reads ends of logs and judges no cause."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_llm.agent import fold
from slurm_llm.observe.facts import Evidence, RankPlace
from slurm_llm.observe.status import GONE, rank_state
from slurm_llm.observe.text import clean, read_end, split_lines
from slurm_llm.slurm.states import RunState
from slurm_llm.topology import Coordinates

ERROR_BYTES = 65536

_ERRORS = re.compile(
    r"""^[EF]\d{4}\ \d\d:\d\d:\d\d        # Triton and glog
    |\[(E|ERROR|FATAL|CRITICAL)\]          # TensorRT-LLM
    |\b(ERROR|FATAL|CRITICAL)\b            # Python logging, vLLM
    |^\s*([\w]+\.)*\w*(Error|Exception|KeyboardInterrupt|SystemExit)(:|$)   # the last line of a Python traceback
    |CUDA\ (error|out\ of\ memory|failure)|cudaError|CUDA_ERROR|CUBLAS_STATUS|CUDNN_STATUS
    |NCCL\ (WARN|error)|nccl\w*Error
    |MPI_ABORT|MPI_ERR_|\*\*\*\ An\ error\ occurred\ in\ MPI|PMIX?\ ?ERROR|^ORTE_ERROR
    |Segmentation\ fault|Bus\ error|Out\ of\ memory|oom[-_]kill|std::bad_alloc|terminate\ called
    |:\ line\ \d+:\ +\d+\ (Killed|Aborted|Terminated)   # bash on its child
    """,
    re.VERBOSE,
)
# What every line that `_ERRORS` knows holds one of: looked for first, since most logs hold none of them.
_TELLING = tuple(
    word.encode()
    for word in (
        *("\nE", "\nF", "\rE", "\rF", "[E", "rror", "RROR", "FATAL", "CRITICAL", "xception", "KeyboardInterrupt"),
        *("SystemExit", "CUDA ", "CUBLAS_STATUS", "CUDNN_STATUS", "NCCL WARN", "MPI_ABORT", "MPI_ERR_", "bad_alloc"),
        *("Segmentation fault", "Out of memory", "oom-kill", "oom_kill", "terminate called", "Killed", "Aborted"),
        "Terminated",
    )
)
# Triton 24.10 prints these as errors on every node without a GPU driver, and serves.
_HARMLESS = ("CudaDriverHelper has not been initialized", "Failed to initialize NVML")


@dataclass(frozen=True)
class RankHealth:
    """One rank; None is what nobody knows.

    `gpus` are the plan's slots, `visible_gpus` what the rank was shown, `used_gpus` those that its processes use, by
    NVML's index; `gpu_mib` is what they hold there, `gpu_util` how busy those GPUs are, in percent.
    """

    rank: int
    instance: int
    node: str | None
    node_index: int
    gpus: tuple[int, ...]
    visible_gpus: str | None
    role: str
    at: Coordinates
    state: str
    how: str | None
    rss_mib: float | None
    log_age_s: float | None
    last_error: str | None
    used_gpus: tuple[int, ...] = ()
    gpu_mib: int | None = None
    gpu_util: int | None = None


def build_health(evidence: Evidence, state: RunState, now: float) -> list[RankHealth]:
    """Return a row for each rank of the newest attempt, in order of rank, given the run's own state."""
    known = evidence.facts.ranks if evidence.facts else {}
    ended = evidence.result.ranks_ended if evidence.result else {}
    nodes = node_names(evidence, known)
    return [
        _row(evidence, place, known.get(place.rank) or fold.RankState(place.rank), (state, now, nodes, ended))
        for place in evidence.layout.ranks
    ]


def health_to_json(rows: list[RankHealth]) -> str:
    """Return the rows as a JSON list, one rank a line."""
    return "[\n " + ",\n ".join(json.dumps(asdict(row), ensure_ascii=False) for row in rows) + "\n]"


def last_error(path: Path) -> str | None:
    """Return the last line of a log's end that tells an error, made safe to print; None when there is none."""
    data = read_end(path, ERROR_BYTES)
    if not (data[:1] in (b"E", b"F") or any(word in data for word in _TELLING)):
        return None
    for row in reversed(split_lines(data.decode("utf-8", "replace"))):
        if _ERRORS.search(row) and not any(text in row for text in _HARMLESS):
            return clean(row).strip()
    return None


def _row(
    evidence: Evidence,
    place: RankPlace,
    own: fold.RankState,
    common: tuple[RunState, float, Mapping[int, str], Mapping[int, str]],
) -> RankHealth:
    state, now, nodes, ended = common
    log = evidence.attempt.rank_log(place.rank) if evidence.attempt else None
    shown = rank_state(own.state, state)
    gone = shown in (GONE, fold.ENDED)
    return RankHealth(
        rank=place.rank,
        instance=place.instance,
        node=own.node or nodes.get(place.node),
        node_index=place.node,
        gpus=place.gpus,
        visible_gpus=own.visible_gpus,
        role=place.role,
        at=place.at,
        state=shown,
        how=own.how or ended.get(place.rank),
        rss_mib=None if gone else own.rss_mib,
        log_age_s=_age(log, now) if log else None,
        last_error=last_error(log) if log else None,
        used_gpus=() if gone else own.gpus,
        gpu_mib=None if gone else own.gpu_mib,
        gpu_util=None if gone else own.gpu_util,
    )


def node_names(evidence: Evidence, known: Mapping[int, fold.RankState]) -> dict[int, str]:
    """Return node index → name, learnt from the ranks that have begun there."""
    names = {}
    for place in evidence.layout.ranks:
        own = known.get(place.rank)
        if own is not None and own.node is not None:
            names[place.node] = own.node
    return names


def _age(path: Path, now: float) -> float | None:
    try:
        return round(max(0.0, now - path.stat().st_mtime), 1)
    except OSError:
        return None
