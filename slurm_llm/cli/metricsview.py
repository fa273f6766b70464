"""Rows of metrics as a table of at most the terminal's columns, or as JSON; values in, text out."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from slurm_llm.observe.metrics import Row
from slurm_llm.observe.text import clean

NAME, MEANING, VALUE = 27, 24, 9
"""Columns of a row's name and meaning at most, and of a value at least."""
_INDENT = "  "
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_EXACT = 10_000_000
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
Line = tuple[str, str, str, Mapping[int, str]]


def metrics_text(rows: Sequence[Row], instances: Sequence[int], notes: Iterable[str], columns: int) -> str:
    """Return the table: blocks of rows, one column an instance, repeated for instances that do not fit; then notes."""
    models = {row.model for row in rows if row.model}
    title = f"model {clean(next(iter(models)))}, instance" if len(models) == 1 else "instance"
    blocks = [
        (_wrapped(_heading(found[0], len(models) > 1), columns), [line for row in found for line in _lines(row)])
        for found in _blocks(rows)
    ]
    widths = _widths([line for _, lines in blocks for line in lines])
    room = columns - len(_INDENT) - sum(size + 2 for size in widths)
    wide = max([VALUE, *(len(text) for _, lines in blocks for *_, cells in lines for text in cells.values())])
    each = max(1, (room + 2) // (wide + 2))
    parts = [instances[start : start + each] for start in range(0, len(instances), each)]
    shown = [line for part in parts for line in _table(title, blocks, part, widths, wide)]
    for note in notes:
        shown += _wrapped(f"note: {clean(note)}", columns)
    return "\n".join(shown)


def metrics_json(about: Mapping[str, object], rows: Sequence[Row], notes: Sequence[str], seconds: float | None) -> str:
    """Return everything as JSON, with null for a figure that is not there yet."""
    items = [
        {
            "family": row.family,
            "kind": row.kind,
            "model": row.model,
            "labels": dict(row.labels),
            "stat": row.stat,
            "meaning": row.meaning or (row.known.meaning if row.known else ""),
            "unit": row.unit,
            "values": {str(number): _finite(cell.value) for number, cell in row.cells.items()},
            "rates": {str(number): _finite(cell.rate) for number, cell in row.cells.items() if cell.rate is not None},
            "beyond": [number for number, cell in row.cells.items() if cell.beyond],
        }
        for row in rows
    ]
    return json.dumps({**about, "interval_s": seconds, "rows": items, "notes": list(notes)}, indent=1)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _blocks(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that stand below one heading, by the order in which the headings come first."""

    def key(row: Row) -> tuple[str, str]:
        return (row.known.block if row.known and row.known.block else row.family), row.model

    order = {name: place for place, name in enumerate(dict.fromkeys(map(key, rows)))}
    return [list(found) for _, found in groupby(sorted(rows, key=lambda row: order[key(row)]), key)]


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, subsequent_indent=" " * 6, break_on_hyphens=False)


def _heading(row: Row, names_model: bool) -> str:
    known, model = row.known, f", model {clean(row.model)}" if row.model and names_model else ""
    if known is None:
        return f"{clean(row.family)}{model}: {clean(row.meaning) or 'not known to slurm_llm'}"
    if known.block:
        return f"{known.block}  {known.owner}{model}"
    return f"{known.family}  {known.owner}: {known.meaning}{model}"


def _lines(row: Row) -> Iterable[Line]:
    """Return a row, and below one that has grown between two looks its rate."""
    name, meaning = _name(row), "" if row.known is None and not row.stat else row.meaning
    if row.known is not None and not row.known.block and meaning == row.known.meaning:
        meaning = ""
    cells = {
        number: (">" if cell.beyond else "") + value_text(cell.value, row.unit) for number, cell in row.cells.items()
    }
    yield name, clean(meaning), _unit(row.unit), cells
    if any(cell.rate for cell in row.cells.values()):
        per = {"bytes": "/s", "": "/s"}.get(row.unit, f"{row.unit}/s")
        rates = {number: _rate(cell.rate, row.unit) for number, cell in row.cells.items()}
        yield "", "per second", per, rates


def _name(row: Row) -> str:
    parts = [row.known.short] if row.known and row.known.short else []
    told = [(name, clean(value)) for name, value in row.labels if name != "response_metric_type"]
    parts += [f"gpu {value}" if name == "gpu" else value for name, value in told]
    return " ".join([*parts, *([row.stat] if row.stat else [])]) or "value"


def _unit(unit: str) -> str:
    return "" if unit == "bytes" else unit


def _rate(rate: float | None, unit: str) -> str:
    return "-" if rate is None or rate < 0 else value_text(rate, unit)


def value_text(value: float, unit: str) -> str:
    """Return a figure in at most nine characters; `-` for one that is not there yet."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "inf"
    if unit == "bytes":
        return next((f"{value / size:.4g} {name}" for size, name in _SIZES if value >= size), f"{value:g} B")
    if abs(value) < _EXACT and (value == int(value) or abs(value) >= 1000):
        return f"{value:.0f}"
    return next((f"{value / size:.4g}{name}" for size, name in _LARGE if size <= abs(value) < 1e15), f"{value:.4g}")


def _widths(lines: Sequence[Line]) -> tuple[int, int, int]:
    """Return the columns of name, meaning and unit."""
    name = max((len(line[0]) for line in lines), default=0)
    meaning = max((len(line[1]) for line in lines), default=0)
    return min(name, NAME), min(meaning, MEANING), max((len(line[2]) for line in lines), default=0)


def _table(
    title: str,
    blocks: Iterable[tuple[Sequence[str], Sequence[Line]]],
    instances: Sequence[int],
    widths: tuple[int, int, int],
    wide: int,
) -> Iterator[str]:
    yield _cut(title, sum(widths) + 4 + len(_INDENT)) + "".join(f"  {number:>{wide}}" for number in instances)
    for heading, lines in blocks:
        yield from heading
        for *words, cells in lines:
            shown = (_cut(str(word), size) for word, size in zip(words, widths, strict=True))
            values = (f"{cells.get(number, '-'):>{wide}}" for number in instances)
            yield _INDENT + "  ".join((*shown, *values))


def _cut(text: str, size: int) -> str:
    return f"{text:<{size}}" if len(text) <= size else f"{text[: size - 1]}…"
