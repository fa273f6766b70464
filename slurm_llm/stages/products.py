"""What a stage makes: whether it is there, whole and as asked for, and how it takes its place when it is made."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from slurm_llm import __version__
from slurm_llm.engines.weights import INDEX
from slurm_llm.stages.recipe import FILE, HUB, STORE, Product, Recipe

SCHEMA = 1
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".nemo")
READ_WHOLE = 1 << 20
"""Bytes: smaller files go into a folder's digest with their contents, larger ones with their size."""
BLOCK = 1 << 22


class There(str, Enum):
    """Whether a product is there."""

    MISSING = "missing"
    WHOLE = "whole"
    OTHER = "other"  # something else is in its place


@dataclass(frozen=True)
class Look:
    """What was found in a product's place; `why` says it in words."""

    there: There
    why: str = ""


@dataclass(frozen=True)
class Record:
    """How a product was made; `digest` is of its contents, `made` seconds since the epoch."""

    schema: int
    stage: str
    path: str
    source: str
    image: str
    commands: tuple[str, ...]
    fingerprint: str
    digest: str
    files: int
    bytes: int
    made: float
    user: str
    host: str
    job_id: str
    version: str


def look(recipe: Recipe, known: Callable[[tuple[str, ...]], bool]) -> Look:
    """Return whether a stage's product is there; `known` runs a command that tells whether a store has it."""
    product = recipe.product
    if product is None:
        return Look(There.MISSING)
    if product.kind == STORE:
        return Look(There.WHOLE) if known(product.known) else Look(There.MISSING)
    place = _place(product)
    if place is None or not place.exists():
        return Look(There.MISSING)
    fault = _fault(product, place)
    if fault:
        # The hub's own program completes what lies in its cache.
        return Look(There.MISSING if product.kind == HUB else There.OTHER, fault)
    record = load_record(product)
    if product.kind == HUB:
        # A snapshot is whole by what its index names, or, of some of its files, because the same were asked for.
        same = product.complete or (record is not None and record.fingerprint == recipe.fingerprint)
        return Look(There.WHOLE if same else There.MISSING)
    if record is None:
        return Look(There.WHOLE, "not made by slurm_llm")
    return _by_record(recipe, record, place)


def _by_record(recipe: Recipe, record: Record, place: Path) -> Look:
    if record.fingerprint != recipe.fingerprint:
        return Look(There.OTHER, f"it was made otherwise: {'; '.join(record.commands) or record.source}")
    files, size = measure(place)
    if (files, size) != (record.files, record.bytes):
        what = f"it has {files} files with {size} bytes, and was made with {record.files} and {record.bytes}"
        return Look(There.OTHER, what)
    return Look(There.WHOLE, time.strftime("made %Y-%m-%d", time.localtime(record.made)))


def _fault(product: Product, place: Path) -> str:
    """Return why what lies there cannot be the product."""
    if product.kind == FILE:
        return "" if place.is_file() else "it is no file"
    if not place.is_dir():
        return "it is no folder"
    if not any(place.iterdir()):
        return "it is empty"
    lacks = missing_weights(place) if product.complete else ()
    return f"it lacks {', '.join(lacks[:3])}" if lacks else ""


def missing_weights(folder: Path) -> tuple[str, ...]:
    """Return what a model's folder lacks: config.json, files that its index of weights names, any weights at all."""
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        names = set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return (f"a readable {INDEX}",)
    lacks = tuple(name for name in ("config.json", *sorted(map(str, names))) if not (folder / name).exists())
    found = any(path.suffix in WEIGHTS for path in folder.iterdir())
    return lacks if found or lacks else ("any file of weights",)


def _place(product: Product) -> Path | None:
    """Return where the product's files lie: of a model in the hub's cache, the snapshot of its revision."""
    if product.kind != HUB:
        return Path(product.path)
    commit = hub_commit(product)
    return None if commit is None else Path(product.path) / "snapshots" / commit


def hub_commit(product: Product) -> str | None:
    """Return the commit that the hub's cache has for the product's revision."""
    if (Path(product.path) / "snapshots" / product.revision).is_dir():
        return product.revision
    try:
        return (Path(product.path) / "refs" / product.revision).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def measure(place: Path) -> tuple[int, int]:
    """Return how many files lie there and their bytes together."""
    sizes = [path.stat().st_size for path in _files(place)]
    return len(sizes), sum(sizes)


def digest(place: Path) -> str:
    """Return the SHA-256 of a file; of a folder, that of its list: each file's path, size and, if small, contents."""
    found = hashlib.sha256()
    if place.is_file():
        with place.open("rb") as stream:
            while block := stream.read(BLOCK):
                found.update(block)
        return f"sha256:{found.hexdigest()}"
    for path in _files(place):
        size = path.stat().st_size
        found.update(f"{path.relative_to(place)}\0{size}\n".encode(errors="surrogateescape"))
        if size <= READ_WHOLE:
            found.update(path.read_bytes())
    return f"sha256-list:{found.hexdigest()}"


def _files(place: Path) -> Iterator[Path]:
    """Yield the files in order; links that lead into an image count for nothing here."""
    if place.is_file():
        yield place
        return
    for folder, names, files in os.walk(place):
        names.sort()
        yield from (path for name in sorted(files) if (path := Path(folder) / name).is_file())


def clear(product: Product) -> None:
    """Make room for the commands: the folder above is there, and nothing half made unless it can be resumed."""
    part = Path(product.part)
    part.parent.mkdir(parents=True, exist_ok=True)
    if product.part != product.path and not _resumable(product):
        remove(part)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _resumable(product: Product) -> bool:
    return Path(product.part).name == f".{Path(product.path).name}.part"


def give_up(product: Product) -> None:
    """Remove what is half made, unless a later run goes on with it."""
    if product.part != product.path and not _resumable(product):
        remove(Path(product.part))


def fault_of(product: Product) -> str:
    """Return why what the commands left cannot be the product, or an empty text."""
    if product.kind == STORE:
        return ""
    place = _place(product) if product.part == product.path else Path(product.part)
    if place is None or not place.exists():
        return f"the commands ended well, and there is no {product.path}"
    return _fault(product, place)


def finish(recipe: Recipe, product: Product) -> Record:
    """Let the product take its place, and write beside it how it was made.

    Of two makers that could not see each other's lock, the later one finds the place taken and leaves its own aside.
    """
    if product.part != product.path:
        try:
            Path(product.part).rename(product.path)
        except OSError:
            if not Path(product.path).exists():
                raise
            remove(Path(product.part))
    place = None if product.kind == STORE else _place(product)
    files, size = (0, 0) if place is None else measure(place)
    record = Record(
        schema=SCHEMA,
        stage=recipe.name,
        path=product.path,
        source=recipe.source,
        image=recipe.image,
        commands=tuple(one.text.replace(product.part, product.path) for one in recipe.commands),
        fingerprint=recipe.fingerprint,
        digest=_digest(product, place),
        files=files,
        bytes=size,
        made=round(time.time(), 3),
        user=getpass.getuser(),
        host=socket.gethostname(),
        job_id=os.environ.get("SLURM_JOB_ID", ""),
        version=__version__,
    )
    if product.record:
        _write(Path(product.record), json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n")
    return record


def _digest(product: Product, place: Path | None) -> str:
    commit = hub_commit(product) if product.kind == HUB else None
    return f"commit:{commit}" if commit else "" if place is None else digest(place)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.rename(path)


def load_record(product: Product) -> Record | None:
    """Return how a product was made, or None when nothing readable says so."""
    try:
        value = json.loads(Path(product.record).read_text(encoding="utf-8", errors="replace"))
        return Record(**{**value, "commands": tuple(value["commands"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
