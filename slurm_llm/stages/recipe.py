"""Stages as values: commands, and the product that they make; what a stage's job reads is one JSON file of these."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_llm.errors import Problem, SetupError
from slurm_llm.rundir import STAGE_RECIPE

FILE, FOLDER, HUB, STORE = "file", "folder", "hub", "store"
IMAGE, VLLM, WEIGHTS, CONVERT, BUILD, BENCH = "image", "vllm", "weights", "convert", "build", "bench"


@dataclass(frozen=True)
class Product:
    """What a stage makes: a file or folder at `path`, a model in the hub's cache, an image in a runtime's `store`.

    Commands write to `part`, beside `path`, which is renamed once it is whole; where they keep order themselves, as the
    hub's cache does, both are the same. `record` is the small file that says how it was made. `known` is the command
    that tells whether a store has it. `complete`: the files that an index of weights names must all be there.
    """

    kind: str
    path: str
    part: str
    record: str
    known: tuple[str, ...] = ()
    complete: bool = False
    revision: str = "main"


@dataclass(frozen=True)
class Command:
    """One command of a stage; `inside` the container, where there is one. `shown` is what people read instead."""

    argv: tuple[str, ...]
    inside: bool = False
    shown: str = ""

    @property
    def text(self) -> str:
        """The command as people read it."""
        return self.shown or shlex.join(self.argv)


@dataclass(frozen=True)
class Recipe:
    """What a stage does; `source` says from what, in words, `image` in which image.

    `fingerprint` changes whenever what is made would be another thing.
    """

    name: str
    source: str
    image: str
    commands: tuple[Command, ...]
    product: Product | None
    fingerprint: str


def fingerprint(commands: tuple[Command, ...], product: Product, image: str) -> str:
    """Return what tells one recipe from another: the commands as they are with the final path, and the image."""
    words = [[word.replace(product.part, product.path) for word in one.argv] for one in commands]
    return hashlib.sha256(json.dumps([words, image]).encode()).hexdigest()[:16]


def beside(path: str, kind: str, run_id: str, *, resumable: bool = False, complete: bool = False) -> Product:
    """Return the product at `path`; what is half made has a name of its own for each run, unless it is resumable."""
    folder, _, name = path.rpartition("/")
    part = f"{folder}/.{name}.part" if resumable else f"{folder}/.{name}.{run_id}.part"
    return Product(kind, path, part, f"{path}.slurm_llm.json", complete=complete)


def recipe_to_json(recipe: Recipe) -> str:
    """Return a recipe as JSON text."""
    return json.dumps(asdict(recipe), indent=1, ensure_ascii=False) + "\n"


def load_recipe(folder: Path) -> Recipe:
    """Read the recipe in a stage's folder.

    Raises:
        SetupError: there is none that can be read.
    """
    path = folder / STAGE_RECIPE
    try:
        return _recipe(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SetupError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    except (ValueError, KeyError, TypeError):
        raise SetupError(Problem(str(path), "is no stage of slurm_llm")) from None


def _recipe(value: Mapping[str, Any]) -> Recipe:
    commands = tuple(Command(tuple(one["argv"]), one["inside"], one["shown"]) for one in value["commands"])
    own = value["product"]
    product = None if own is None else Product(**{**own, "known": tuple(own["known"])})
    return Recipe(**{**value, "commands": commands, "product": product})
