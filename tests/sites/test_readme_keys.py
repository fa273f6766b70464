"""site_configs/README.md against the schema: every key with its real default, and examples that are really taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic.fields import FieldInfo

from slurm_llm.assets import sites_dir
from slurm_llm.plan import build_plan
from slurm_llm.plan.steps import sbatch_options
from slurm_llm.schema import known_keys
from slurm_llm.sites.lint import lint_file
from slurm_llm.sites.load import load_site, parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.sites.queues import Overrides, PartitionDefaults
from slurm_llm.spec import spec_from_mapping, spec_from_text
from slurm_llm.yamlio import Document, Tree, parse_document, parse_scalar
from tests.schema_fields import field_of

README = (sites_dir() / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
COMMON, SECTION = "partition_defaults.KEY", "partitions.NAME.SECTION"
MINIMAL: dict[str, Tree] = {"schema_version": 1, "name": "here"}


class Row(NamedTuple):
    """One row of the table of keys, as it is written."""

    key: str
    type: str
    default: str
    meaning: str
    example: str


def _table(heading: str) -> list[list[str]]:
    """Return the cells of the first table below `heading`, its head aside."""
    below = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ROWS = [Row(cells[0].strip("`"), *cells[1:]) for cells in _table("Keys")]


def _leaves(path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key that takes a value; NAME stands for a partition's name.

    What partitions may change of the site, and what is common to partitions, have one row each.
    """
    skipped = set(Overrides.model_fields) if path == ("partitions", "NAME") else {"partition_defaults"}
    for name in sorted(known_keys(SiteProfile, path) - skipped):
        below = (*path, name, "NAME") if name == "partitions" else (*path, name)
        if known_keys(SiteProfile, below):
            yield from _leaves(below)
        else:
            yield below


def _field(key: str) -> FieldInfo:
    """Return the schema's field of a key."""
    return field_of(SiteProfile, key.replace(".NAME", ""))


def _with(key: str, value: Tree) -> Document:
    """Return the smallest profile that has `value` at `key`."""
    profile: dict[str, Tree] = {**MINIMAL, "partitions": {"gpu": {"gpus_per_node": 4}}}
    if key.startswith("partitions.NAME.time.by_nodes."):
        rule: dict[str, Tree] = {"max_nodes": 2, "max": "1:00:00", key.rpartition(".")[2]: value}
        key, value = "partitions.NAME.time.by_nodes", [rule]
    if key.startswith(("verified.", "policies.idle_gpu.")):
        # Two keys of these sections are required.
        section, _, name = key.rpartition(".")
        others: dict[str, dict[str, Tree]] = {
            "verified": {"state": "run", "date": "2026-01-01"},
            "policies.idle_gpu": {"watts": 1, "after_s": 1},
        }
        key, value = section, {**others[section], name: value}
    at = profile
    *parents, last = key.replace("NAME", "gpu").split(".")
    for parent in parents:
        below = at.setdefault(parent, {})
        assert isinstance(below, dict)
        at = below
    if last in {"KEY", "SECTION"}:
        assert isinstance(value, dict)
        at.update(value)
    else:
        at[last] = value
    return Document("example", profile)


def test_every_key_has_a_row_and_nothing_else_has() -> None:
    """A key that nobody can read about, or a row for a key that does not exist, is a fault of the page."""
    keys = [row.key for row in ROWS]
    assert len(keys) == len(set(keys))
    assert set(keys) - {COMMON, SECTION} == {".".join(path) for path in _leaves()}
    assert {COMMON, SECTION} <= set(keys)


def test_the_row_of_sections_names_all_that_a_partition_may_change() -> None:
    """One row stands for these keys of partitions: it must name each."""
    meaning = next(row.meaning for row in ROWS if row.key == SECTION)
    assert set(re.findall(r"`(\w+)`", meaning)) == set(Overrides.model_fields)


def test_keys_of_partitions_are_those_of_the_defaults_below_them() -> None:
    """The row of `partition_defaults` says so."""
    assert known_keys(SiteProfile, ("partitions", "NAME")) == set(PartitionDefaults.model_fields)


@pytest.mark.parametrize("row", [row for row in ROWS if row.key not in {COMMON, SECTION}], ids=lambda row: row.key)
def test_defaults_are_the_schemas(row: Row) -> None:
    """The column `default` says what really holds when a key is left out."""
    field = _field(row.key)
    if field.is_required():
        assert row.default == "required"
        return
    named: dict[str, Any] = {"null": None, "empty": type(field.default)()} if row.default != "null" else {"null": None}
    default = named[row.default] if row.default in named else parse_scalar(row.default.strip("`"))
    assert (tuple(default) if isinstance(default, list) else default) == field.default and row.default != "required"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_examples_are_taken(row: Row) -> None:
    """What the column `example` shows is a value that the schema takes at that key."""
    assert re.fullmatch(r"`[^`]+`", row.example), row
    value = parse_document(f"value: {row.example.strip('`')}\n", row.key).value["value"]
    parse_site(_with(row.key, value))


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.split("\n")[0][:40] + f"+{len(text)}")
def test_blocks_are_taken(text: str, tmp_path: Path) -> None:
    """Every YAML block is a spec, a profile, or a part of one that a profile takes."""
    value = parse_document(text, "block").value
    if "engine" in value:
        overlay = spec_from_text(text).site
        assert load_site("devcluster", {}, overlay).profile != load_site("devcluster", {}).profile
        return
    whole = text if "schema_version" in value else "schema_version: 1\nname: here\n" + text
    if not {"partitions", "extends"} & value.keys() and value.get("name") is None:
        whole += "partitions: {gpu: {gpus_per_node: 4}}\n"
    own = tmp_path / "slurm_llm" / "sites"
    own.mkdir(parents=True)
    name = str(value.get("name", "here"))
    (own / f"{name}.yaml").write_text(whole)
    assert load_site(name, {"XDG_CONFIG_HOME": str(tmp_path)}).profile.partitions


def test_the_smallest_profile_asks_for_what_is_said_of_it() -> None:
    """The sentence below the block quotes the directives."""
    text = README.partition("## The smallest profile")[2].partition("\n## ")[0]
    profile = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    said = re.findall(r"asks for `([^`]+)`", text)[0].split()
    spec = spec_from_mapping({"name": "demo", "engine": "rehearsal", "tensor_parallel_size": 4})
    options = sbatch_options(build_plan(spec, parse_site(parse_document(profile, "smallest"))), "out")
    assert set(said) <= set(options)


@pytest.mark.parametrize("text", [text for text in BLOCKS if "gpus_per_node:" in text or "whole_node:" in text])
def test_no_example_gives_a_rank_one_cpu(text: str, tmp_path: Path) -> None:
    """What people copy must not be what lint warns of."""
    value = parse_document(text, "block").value
    path = tmp_path / f"{value['name']}.yaml"
    path.write_text(text)
    assert "one-cpu-a-rank" not in {one.rule for one in lint_file(path, {"HOME": "/nonexistent"}, date(2026, 12, 1))}


@pytest.mark.parametrize(
    ("keys", "directives"),
    _table("Queues, and the ways to ask for GPUs, typed or not"),
    ids=lambda cell: cell.replace("`", ""),
)
def test_the_dialects_ask_for_what_the_table_says(keys: str, directives: str) -> None:
    """Two nodes of four GPUs are asked for as each row shows, and in no other way."""
    own = parse_document("\n".join(re.findall(r"`([^`]+)`", keys)), "table").value
    profile: dict[str, Tree] = {
        **MINIMAL,
        "partitions": {"gpu": {"gpus_per_node": 4, **own}},
        "launcher": {"mpi": "pmix"},
    }
    spec = spec_from_mapping({"name": "demo", "engine": "rehearsal", "tensor_parallel_size": 8})
    options = sbatch_options(build_plan(spec, parse_site(Document("table", profile))), "out")
    asked = {option for option in options if re.match(r"--(gres|gpus|constraint)", option)}
    assert asked == set(re.findall(r"`([^`]+)`", directives))


@pytest.mark.parametrize(
    ("runtime", "image"),
    [(cells[0].strip("`"), image) for cells in _table("Containers") for image in re.findall(r"`([^`]+)`", cells[1])],
)
def test_each_runtime_takes_the_images_that_are_shown_for_it(runtime: str, image: str) -> None:
    """The form of an image is what people get wrong first: what the page shows must be right."""
    queue: dict[str, Tree] = {"gpus_per_node": 4}
    profile: dict[str, Tree] = {**MINIMAL, "partitions": {"gpu": queue}, "container": {"runtime": runtime}}
    site = parse_site(Document("table", {**profile, "launcher": {"mpi": "pmix"}}))
    spec: dict[str, Tree] = {"name": "demo", "engine": "rehearsal", "container": {"image": image}}
    plan = build_plan(spec_from_mapping(spec), site)
    assert plan.container is not None and plan.container.image.endswith(image.partition("://")[2] or image[-9:])


def test_every_base_is_in_the_table_of_bases() -> None:
    """Who writes a profile finds what there is to build on."""
    told = set(re.findall(r"`(base-[\w-]+)`", README))
    assert {path.stem for path in sites_dir().glob("base-*.yaml")} == told
