"""How many GPUs a GRES or TRES text of Slurm names; other resources in it are passed over."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_llm.slurm.nodesets import expand_nodes

# gpu, gpu:4, gpu:a100:4(IDX:0-3), gres:gpu:4 (squeue), gres/gpu:a100=4 (TRES); a type may hold dots.
_GPU = re.compile(r"(?:gres[:/])?gpu(?::([^:=(]*[^:=(\d][^:=(]*))?(?:[:=](\d+))?(?:\((.*)\))?", re.ASCII)


@dataclass(frozen=True)
class GpuGres:
    """GPUs of one type; `type` is empty when untyped, `indices` are those allocated, when the text tells."""

    type: str
    count: int
    indices: tuple[int, ...] = ()


def parse_gpus(text: str) -> tuple[GpuGres, ...]:
    """Return the GPU entries of a GRES or TRES list in its order; none for `(null)` and an empty text."""
    found = []
    for part in _split_outside_parentheses(text.strip()):
        name = re.split(r"[:=(]", part.removeprefix("gres:").removeprefix("gres/"), maxsplit=1)[0]
        if name != "gpu":
            continue
        match = _GPU.fullmatch(part.replace(":no_consume", ""))
        if not match:
            raise ValueError(f"'{part}' in '{text}' is not a GPU resource: such as gpu:a100:4 or gres/gpu=4")
        kind, count, detail = match.groups()
        found.append(GpuGres(kind or "", int(count or 1), _indices(detail or "")))
    return tuple(found)


def _split_outside_parentheses(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _indices(detail: str) -> tuple[int, ...]:
    """Return the numbers of `IDX:0-1,3`; sockets (`S:0-1`) and `IDX:N/A` give none."""
    label, _, numbers = detail.partition(":")
    if label != "IDX" or not numbers[:1].isdecimal():
        return ()
    return tuple(int(name.removeprefix("x")) for name in expand_nodes(f"x[{numbers}]"))
