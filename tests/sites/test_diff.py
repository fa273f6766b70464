"""Sites as rows: values with their origins, of one partition too; two sites side by side; the schema for editors."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.errors import SiteError
from slurm_llm.schema import known_keys
from slurm_llm.sites.diff import Row, compare, of_partition
from slurm_llm.sites.jsonschema import Schema, profile_schema
from slurm_llm.sites.load import Site, parse_site
from slurm_llm.sites.merge import Layer, merge_layers
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.sites.view import Leaf, by_item, leaves, tree_of, value_text
from slurm_llm.yamlio import Tree, parse_document

HEAD = "schema_version: 1\nname: here\n"


def _site(*texts: str) -> Site:
    """Merge texts called 0, 1, 2, …; the first gets version and name in front, below its own lines."""
    documents = [parse_document(text, str(index)) for index, text in enumerate((texts[0] + HEAD, *texts[1:]))]
    merged = merge_layers([Layer(document) for document in documents], "site").document
    return Site(parse_site(merged), Path("site"), merged)


def _origins(site: Site, partition: str | None = None) -> dict[str, tuple[Tree, str | None]]:
    return {leaf.name: (leaf.value, leaf.origin) for leaf in leaves(site, partition)}


PARTITIONS = """\
partitions:
  a:
    gpus_per_node: 4
    python: /a
    env: {set: {X: 2, Z: 3}}
    srun_extra: null
  b: {gpus_per_node: 0}
python: /site
env: {set: {X: 1, Y: 1}}
srun_extra: [--xx]
"""


def test_each_value_has_its_origin_or_is_a_default() -> None:
    """Defaults stand beside what files say; a partition has only those of the site's sections that it changes."""
    found = _origins(_site(PARTITIONS))
    assert found["python"] == ("/site", "0:8")
    assert found["slurm.kill_wait_s"] == (30, None)
    assert found["partitions.a.python"] == ("/a", "0:4")
    assert found["partitions.a.env.set.X"] == (2, "0:5")
    assert found["partitions.a.srun_extra"] == (None, "0:6")
    assert found["partitions.b.qos"] == (None, None)
    assert not {"partitions.b.python", "partitions.a.env.unset", "partitions.a.launcher", "extends"} & found.keys()


def test_of_one_partition_the_changes_are_laid_over_the_site() -> None:
    """A job there finds these values, and each is from the partition's line where that changes it."""
    found = _origins(_site(PARTITIONS), "a")
    assert found["python"] == ("/a", "0:4")
    assert [found[f"env.set.{name}"] for name in "XYZ"] == [(2, "0:5"), (1, "0:9"), (3, "0:5")]
    assert found["srun_extra"] == ([], "0:6")
    assert found["partitions.a.gpus_per_node"] == (4, "0:3")
    assert not [name for name in found if name.startswith(("partitions.b", "partitions.a.env", "partitions.a.python"))]
    assert _origins(_site(PARTITIONS), "b")["python"] == ("/site", "0:8")


def test_an_unknown_partition_names_the_known_ones() -> None:
    """With the nearest one."""
    with pytest.raises(SiteError) as caught:
        leaves(_site(PARTITIONS.replace("  a:", "  alpha:")), "alfa")
    assert str(caught.value) == (
        "here:alfa: site here has no partition 'alfa': its partitions: alpha, b: did you mean 'alpha'?"
    )


def test_a_list_of_several_files_is_shown_item_by_item() -> None:
    """Each item has its own line; a list of one file has that of its key."""
    site = _site(PARTITIONS, "srun_extra: {append: [--xy]}\nsbatch_extra:\n- --xz=1\n- --xz=2\n")
    rows = {leaf.name: leaf for leaf in leaves(site)}
    items = [(leaf.name, leaf.value, leaf.origin) for leaf in by_item(rows["srun_extra"], site.document)]
    assert items == [("srun_extra[0]", "--xx", "0:10"), ("srun_extra[1]", "--xy", "1:1")]
    assert by_item(rows["sbatch_extra"], site.document) == [rows["sbatch_extra"]]
    assert rows["sbatch_extra"].origin == "1:2"
    assert by_item(rows["env.unset"], site.document) == [rows["env.unset"]]


def test_leaves_make_the_tree_that_they_are_from() -> None:
    """All of them together are the whole profile, as JSON has it."""
    site = _site(PARTITIONS)
    tree = tree_of(leaves(site, "a"))
    whole = site.profile.for_partition("a").model_dump(mode="json")
    assert tree["env"] == whole["env"] == {"set": {"X": 2, "Y": 1, "Z": 3}, "unset": [], "prepend": {}, "source": []}
    assert tree.keys() == whole.keys() - {"extends", "base", "standalone", "partition_defaults"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("pmix", "pmix"),
        ("", '""'),
        ("22.05", '"22.05"'),
        ("null", '"null"'),
        ("a, b", "a, b"),
        ("a\nb", '"a\\nb"'),
        ("a: b", '"a: b"'),
        (["a", "b,c", 1], '[a, "b,c", 1]'),
        ([{"max_nodes": 1, "max": "02:00:00"}], "[{max_nodes: 1, max: 02:00:00}]"),
        ([], "[]"),
        ({}, "{}"),
    ],
)
def test_a_value_is_one_line_that_yaml_would_take(value: Tree, text: str) -> None:
    """Texts that would be read as something else are quoted."""
    assert value_text(value) == text
    assert parse_document(f"v: {text}", "f").value["v"] == value


def _rows(first: str, second: str, name: str = "here") -> list[tuple[str, object, object]]:
    sites = [_site(first), _site(second.replace("@", ""))]
    if name != "here":
        sites[1] = _site(second, f"name: {name}")
    return [(row.key, _side(row.first), _side(row.second)) for row in compare(*(leaves(site) for site in sites))]


def _side(leaf: Leaf | None) -> object:
    return "absent" if leaf is None else (leaf.value, "set" if leaf.origin else "default")


ONE = "partitions: {a: {gpus_per_node: 4}}\n"


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        ("", "", []),
        ("python: /x\n", "python: /y\n", [("python", ("/x", "set"), ("/y", "set"))]),
        ("python: /x\n", "", [("python", ("/x", "set"), (None, "default"))]),
        ("python: null\n", "", [("python", (None, "set"), (None, "default"))]),
        ("python: null\n", "python: null\n", []),
        ("slurm: {kill_wait_s: 30}\n", "", []),
        ("slurm: {kill_wait_s: 31}\n", "", [("slurm.kill_wait_s", (31, "set"), (30, "default"))]),
        ("env: {set: {A: 1}}\n", "env: {set: {A: true}}\n", [("env.set.A", (1, "set"), (True, "set"))]),
        ("env: {set: {A: 1}}\n", "", [("env.set.A", (1, "set"), "absent")]),
        ("", "env: {set: {A: 1}}\n", [("env.set.A", "absent", (1, "set"))]),
        ("srun_extra: [--xa]\n", "srun_extra: [--xb]\n", [("srun_extra", (["--xa"], "set"), (["--xb"], "set"))]),
    ],
)
def test_keys_that_differ(first: str, second: str, rows: list[tuple[str, object, object]]) -> None:
    """A default is told from a value, and null from what is not set; what is equal has no row."""
    assert _rows(ONE + first, ONE + second) == rows


def test_a_partition_that_only_one_site_has() -> None:
    """Only what files say of it is shown, not its defaults."""
    assert _rows(ONE, "partitions: {a: {gpus_per_node: 4}, b: {gpus_per_node: 2, qos: q}}\n") == [
        ("partitions.b.qos", "absent", ("q", "set")),
        ("partitions.b.gpus_per_node", "absent", (2, "set")),
    ]


def test_what_a_site_is_counts_only_against_itself() -> None:
    """Two clusters differ in name and description anyhow; two versions of one profile may do so by mistake."""
    first, second = ONE + "description: A\npython: /x\n", ONE + "description: B\n"
    assert [row[0] for row in _rows(first, second)] == ["description", "python"]
    assert [row[0] for row in _rows(first, second, "there")] == ["python"]


def test_the_order_is_the_schema_s_and_stable() -> None:
    """Rows come as the schema has them, those of the second side behind what they follow there."""
    first = ONE + "env: {set: {A: 1, C: 1}}\npython: /x\nslurm: {kill_wait_s: 1}\n"
    second = ONE + "env: {set: {A: 2, B: 2}}\naccount: {required: true}\n"
    keys = ["slurm.kill_wait_s", "account.required", "env.set.A", "env.set.B", "env.set.C", "python"]
    assert [row[0] for row in _rows(first, second)] == keys
    assert sorted(keys) == sorted(row[0] for row in _rows(second, first))


def test_two_partitions_of_any_name_can_be_held_against_each_other() -> None:
    """Their values stand under one key; the name itself is no difference."""
    site = _site("partitions: {a: {gpus_per_node: 4, python: /a}, b: {gpus_per_node: 2}}\n")
    rows = compare(*(of_partition(leaves(site, name)) for name in "ab"))
    assert [row.key for row in rows] == ["partition.gpus_per_node", "python"]
    assert isinstance(rows[0], Row)


SCHEMA = profile_schema()


def _at(schema: Schema, *path: str) -> Schema:
    """Return the schema of a key, through references and alternatives."""
    for key in path:
        for one in (schema, *schema.get("anyOf", ())):
            section = SCHEMA["$defs"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
            if key in section.get("properties", {}) or isinstance(section.get("additionalProperties"), dict):
                schema = section.get("properties", {}).get(key, section.get("additionalProperties"))
                break
        else:
            raise AssertionError(f"{key} of {path}")
    return schema


def test_the_schema_has_every_key_and_no_other() -> None:
    """At the top, in partitions and in a section; unknown keys are refused everywhere."""
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["properties"].keys() == known_keys(SiteProfile, ())
    partition = SCHEMA["$defs"]["Partition"]
    assert partition["properties"].keys() == known_keys(SiteProfile, ("partitions", "gpu"))
    for section in (SCHEMA, *SCHEMA["$defs"].values()):
        assert section["additionalProperties"] is False
        assert "title" not in section or section is SCHEMA


def test_each_list_may_be_appended_to() -> None:
    """In sections, partitions and at the top; `extends` alone is read before anything is merged."""
    for path in (("srun_extra",), ("env", "unset"), ("partitions", "x", "slurm_partition"), ("policies", "forbid")):
        alternatives = [one.get("properties", {}).keys() for one in _flat(_at(SCHEMA, *path))]
        assert {"append"} in alternatives, path
    assert "append" not in str(SCHEMA["properties"]["extends"])


def _flat(schema: Schema) -> list[Schema]:
    return [schema, *(found for one in schema.get("anyOf", ()) for found in _flat(one))]


def test_descriptions_are_the_docstrings() -> None:
    """Of a section, and of a key below which there is one, also where it is inherited."""
    assert SCHEMA["$defs"]["Startup"]["description"].startswith("Slow storage")
    assert _at(SCHEMA, "python")["description"].startswith("Python on the compute nodes")
    assert _at(SCHEMA, "partitions", "x", "nodes")["description"].startswith("Number of nodes")


def test_what_the_loader_takes_the_schema_takes() -> None:
    """Times and memory may be whole numbers, a partition may be empty, sections may be partial."""
    assert {"type": "integer"} in _at(SCHEMA, "partitions", "x", "time", "max")["anyOf"]
    assert {"type": "integer"} in _at(SCHEMA, "partitions", "x", "memory", "whole_node")["anyOf"]
    assert {"type": "null"} in SCHEMA["properties"]["partitions"]["additionalProperties"]["anyOf"]
    with_required = {name for name, section in SCHEMA["$defs"].items() if "required" in section}
    assert with_required == {"TimeByNodes"}
    # A user's file that is laid over a profile needs neither name nor partitions.
    assert "required" not in SCHEMA and "then" not in SCHEMA
