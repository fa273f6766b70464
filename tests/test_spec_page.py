"""docs/spec.md against the schema: every key with its real default, and examples that plan and leave no key out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from pydantic.fields import FieldInfo

from slurm_llm.engines import find_engine
from slurm_llm.plan import Plan, build_plan
from slurm_llm.preparation import Bench, BuildStage, Prepare, Stage
from slurm_llm.schema import known_keys
from slurm_llm.sites.load import laid_over, load_site
from slurm_llm.spec import JobSpec, spec_from_text
from slurm_llm.yamlio import Tree, dump, parse_document, parse_scalar
from tests.schema_fields import field_of, sections_of

PAGE = (Path(__file__).parent.parent / "docs" / "spec.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
PART = "prepare.PART."
SITE: dict[str, Tree] = {
    "schema_version": 1,
    "name": "here",
    "partitions": {"gpu": {"gpus_per_node": 8, "cpus": {"per_node": 64}}},
    "launcher": {"mpi": "pmix"},
    "container": {"runtime": "pyxis"},
    "policies": {"gpu_clocks": True},
}
"""A site where every example is possible: nodes of eight GPUs, pyxis, clocks that may be locked."""


class Row(NamedTuple):
    """One row of the tables of keys, as it is written."""

    key: str
    type: str
    default: str
    meaning: str


def _rows() -> Iterator[Row]:
    for line in PAGE.partition("\n## Keys\n")[2].splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line[1:].removesuffix("|").split(" | ")]
            yield Row(cells[0].strip("`"), *cells[1:])


ROWS = list(_rows())


def _leaves(path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every key that takes a value, with dots; what all parts of `prepare` have in common has one row."""
    for name in sorted(known_keys(JobSpec, path)):
        below = (*path, name)
        if known_keys(JobSpec, below):
            yield from _leaves(below)
        elif path[:1] == ("prepare",) and name in Stage.model_fields and below != ("prepare", "build", "gpus"):
            yield PART + name
        else:
            yield ".".join(below)


def _field(key: str) -> FieldInfo:
    """Return the schema's field of a key."""
    if key.startswith(PART):
        return Stage.model_fields[key.removeprefix(PART)]
    return field_of(JobSpec, key)


def test_every_key_has_a_row_and_nothing_else_has() -> None:
    """A key that nobody can read about, or a row for a key that does not exist, is a fault of the page."""
    keys = [row.key for row in ROWS]
    assert len(keys) == len(set(keys))
    assert set(keys) - {"balancer"} == set(_leaves())


def test_the_row_of_all_parts_names_them() -> None:
    """One row stands for the same key of five parts, of which only `build` has a default of its own."""
    meaning = next(row.meaning for row in ROWS if row.key == f"{PART}partition")
    assert set(re.findall(r"`(\w+)`", meaning)) == set(Prepare.model_fields)
    parts = [section for field in Prepare.model_fields.values() for section in sections_of(field.annotation)]
    own = {(part, name) for part in (*parts, Bench) for name in Stage.model_fields if name in part.__annotations__}
    assert own == {(BuildStage, "gpus")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_defaults_are_the_schemas(row: Row) -> None:
    """The column `default` says what really holds when a key is left out."""
    field = _field(row.key)
    if field.is_required():
        assert row.default == "required"
        return
    named = {"null": None, "none": None, "empty": type(field.default)()} if row.default != "null" else {"null": None}
    default = named[row.default] if row.default in named else parse_scalar(row.default)
    default = tuple(default) if isinstance(default, list) else default
    assert default == field.default and row.default != "required"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_words_are_the_schemas(row: Row) -> None:
    """A key that takes certain words alone has them in the column `type`, all of them and no other."""
    words = {word for word in _words(_field(row.key).annotation) if isinstance(word, str)}
    if row.key == "balancer":
        words = {word for word in _words(_field("balancer.program").annotation) if isinstance(word, str)}
    shown = set(re.findall(r"`([\w-]+)`", row.type))
    assert not words or words == shown


def _words(annotation: Any) -> Iterator[object]:
    """Yield the words of every `Literal` in an annotation; sections have rows of their own."""
    if isinstance(annotation, type):
        return
    for argument in get_args(annotation):
        if isinstance(argument, str):
            yield argument
        yield from _words(argument)


def _plan(text: str, folder: Path) -> tuple[JobSpec, Plan]:
    """Return the spec that stands in a block, and its plan."""
    (folder / "here.yaml").write_text(dump(SITE), encoding="utf-8")
    spec, site = spec_from_text(text), load_site(str(folder / "here.yaml"), {})
    return spec, build_plan(spec, (laid_over(site, dict(spec.site), label="spec: site") if spec.site else site).profile)


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.split("\n")[1] + f"+{len(text)}")
def test_examples_plan(text: str, tmp_path: Path) -> None:
    """What people copy is a spec that a site with GPUs takes as it stands."""
    spec, plan = _plan(text, tmp_path)
    assert plan.engine == spec.engine == find_engine(spec.engine).name
    assert len(plan.ranks) == plan.world_size * spec.replicas


@pytest.mark.parametrize("engine", ["llmapi", "tensorrtllm", "vllm", "rehearsal"])
def test_each_engine_has_its_least_and_a_full_example(engine: str) -> None:
    """Nothing can be taken away from the first but the image, which a site may have; the second has far more."""
    least, full = (parse_document(text, "block").value for text in BLOCKS if f"engine: {engine}\n" in text)
    assert set(least) <= {"name", "engine", "model", "container", "engine_args"}
    assert len(set(_paths(full))) > len(set(_paths(least)))


def _paths(value: Tree, path: tuple[str, ...] = ()) -> Iterator[str]:
    yield ".".join(path)
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))


def test_no_key_is_without_an_example() -> None:
    """The full examples together show how each key is written."""
    shown = {path for text in BLOCKS for path in _paths(parse_document(text, "block").value)}
    parts = {f"{PART}{path.split('.')[-1]}" for path in shown if path.startswith("prepare.") and path.count(".") == 2}
    stage = {f"bench.{name}" for name in Stage.model_fields}
    assert {row.key for row in ROWS} - shown - parts - stage == set()
