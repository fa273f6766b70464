"""Merging: who wins, what is added to lists, and that every value remembers its file and line."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.errors import Problem
from slurm_llm.sites.merge import Layer, Merged, document_of, merge, merge_layers, node_of
from slurm_llm.yamlio import Document, Key, Tree, parse_document

SITE, OVER = False, True


def _merged(*texts: str | tuple[str, bool]) -> Merged:
    """Merge YAML texts, the lowest first, called 0, 1, 2, …; (text, OVER) wins over partitions below it."""
    layers = []
    for index, item in enumerate(texts):
        text, over = item if isinstance(item, tuple) else (item, SITE)
        layers.append(Layer(parse_document(text, str(index)), over))
    return merge_layers(layers, "site")


def _value(*texts: str | tuple[str, bool]) -> dict[str, Tree]:
    merged = _merged(*texts)
    assert merged.problems == ()
    return merged.document.value


@pytest.mark.parametrize(
    ("lower", "upper", "result"),
    [
        ("a: 1", "b: 2", {"a": 1, "b": 2}),
        ("a: 1", "a: 2", {"a": 2}),
        ("a: 1", "a: null", {"a": None}),
        ("a: null", "a: 1", {"a": 1}),
        ("a: {x: 1, y: 1}", "a: {y: 2, z: 2}", {"a": {"x": 1, "y": 2, "z": 2}}),
        ("a: {x: {p: 1}}", "a: {x: {q: 2}}", {"a": {"x": {"p": 1, "q": 2}}}),
        ("a: {x: 1}", "a: 2", {"a": 2}),
        ("a: {x: 1}", "a: null", {"a": None}),
        ("a: {x: 1}", "a: {}", {"a": {"x": 1}}),
        ("a: 2", "a: {x: 1}", {"a": {"x": 1}}),
        ("a: [1, 2]", "a: [3]", {"a": [3]}),
        ("a: [1]", "a: []", {"a": []}),
        ("a: [1, 2]", "a: {append: [3]}", {"a": [1, 2, 3]}),
        ("a: [1]", "a: {append: []}", {"a": [1]}),
        ("b: 1", "a: {append: [3]}", {"b": 1, "a": [3]}),
        ("a: null", "a: {append: [3]}", {"a": [3]}),
        ("a: {append: [1]}", "a: {append: [2]}", {"a": [1, 2]}),
        ("a: {append: [1]}", "a: [2]", {"a": [2]}),
        ("a: {append: [1]}", "a: {x: 1}", {"a": {"x": 1}}),
        ("a: {b: {c: [1]}}", "a: {b: {c: {append: [2]}}}", {"a": {"b": {"c": [1, 2]}}}),
        ("a: [{x: 1}]", "a: {append: [{x: 2}]}", {"a": [{"x": 1}, {"x": 2}]}),
        ("a: {append: [1], b: 2}", "c: 1", {"a": {"append": [1], "b": 2}, "c": 1}),
    ],
)
def test_one_layer_on_another(lower: str, upper: str, result: dict[str, Tree]) -> None:
    """Maps merge, scalars and lists replace, null replaces, `{append: …}` adds; the same in either kind of layer."""
    assert _value(lower, upper) == _value(lower, (upper, OVER)) == result


PARTITIONED = "top: {a: 0, l: [t]}\npartitions:\n  p: {top: {a: 1, l: [p]}, q: x}\n  other: {q: y}\n"


@pytest.mark.parametrize(
    ("upper", "partition", "top"),
    [
        ("top: {a: 2}", {"top": {"l": ["p"]}, "q": "x"}, {"a": 2, "l": ["t"]}),
        ("top: {a: null}", {"top": {"l": ["p"]}, "q": "x"}, {"a": None, "l": ["t"]}),
        ("top: {b: 2}", {"top": {"a": 1, "l": ["p"]}, "q": "x"}, {"a": 0, "l": ["t"], "b": 2}),
        ("top: {l: [u]}", {"top": {"a": 1}, "q": "x"}, {"a": 0, "l": ["u"]}),
        ("top: {l: {append: [u]}}", {"top": {"a": 1, "l": ["p", "u"]}, "q": "x"}, {"a": 0, "l": ["t", "u"]}),
        ("top: {a: 2, l: []}", {"q": "x"}, {"a": 2, "l": []}),
        ("top: 5", {"q": "x"}, 5),
        ("top: {a: {deep: 1}}", {"top": {"l": ["p"]}, "q": "x"}, {"a": {"deep": 1}, "l": ["t"]}),
        ("top: {}", {"top": {"a": 1, "l": ["p"]}, "q": "x"}, {"a": 0, "l": ["t"]}),
        (
            "top: {a: 2}\npartitions: {p: {top: {a: 3}}}",
            {"top": {"l": ["p"], "a": 3}, "q": "x"},
            {"a": 2, "l": ["t"]},
        ),
        (
            "top: {l: [u]}\npartitions: {p: {top: {l: {append: [v]}}}}",
            {"top": {"a": 1, "l": ["u", "v"]}, "q": "x"},
            {"a": 0, "l": ["u"]},
        ),
        ("partition_defaults: {q: z}", {"top": {"a": 1, "l": ["p"]}, "q": "z"}, {"a": 0, "l": ["t"]}),
        (
            "partition_defaults: {q: z}\npartitions: {p: {q: w}}",
            {"top": {"a": 1, "l": ["p"]}, "q": "w"},
            {"a": 0, "l": ["t"]},
        ),
    ],
)
def test_a_stronger_layer_wins_over_partitions_too(upper: str, partition: Tree, top: Tree) -> None:
    """What a user or a spec sets for the whole site takes the same leaf out of the partitions below, and only it."""
    found = _value(PARTITIONED, (upper, OVER))
    assert (found["partitions"], found["top"]) == (
        {"p": partition, "other": {"q": "z" if "partition_defaults" in upper else "y"}},
        top,
    )


def test_a_site_s_own_layer_leaves_partitions_alone() -> None:
    """A site over its base says what holds outside of the partitions: those stay as the base has them."""
    found = _value(PARTITIONED, "top: {a: 2}")
    assert found["partitions"] == {"p": {"top": {"a": 1, "l": ["p"]}, "q": "x"}, "other": {"q": "y"}}


def test_null_in_a_partition_is_no_section_that_could_resist() -> None:
    """A partition's null gives way to a mapping of a stronger layer."""
    found = _value("partitions: {p: {env: null, q: 1}}", ("env: {set: {A: 1}}", OVER))
    assert found == {"env": {"set": {"A": 1}}, "partitions": {"p": {"q": 1}}}


@pytest.mark.parametrize(
    ("texts", "partitions"),
    [
        (
            ("partition_defaults: {a: 1, b: 1}\npartitions: {p: {b: 2}, q: {}}",),
            {"p": {"a": 1, "b": 2}, "q": {"a": 1, "b": 1}},
        ),
        (("partition_defaults: {a: 1}\npartitions:\n  p:\n",), {"p": {"a": 1}}),
        (("partition_defaults: {a: {x: 1}}", "partitions: {p: {a: {y: 2}}}"), {"p": {"a": {"x": 1, "y": 2}}}),
        (("partitions: {p: {a: 1}}", "partition_defaults: {a: 2, b: 2}"), {"p": {"a": 1, "b": 2}}),
        (("partition_defaults: {a: 1}", "partition_defaults: {b: 2}\npartitions: {p: {}}"), {"p": {"a": 1, "b": 2}}),
        (
            ("partition_defaults: {a: 1}\npartitions: {p: {}}", ("partitions: {new: {b: 1}}", OVER)),
            {"p": {"a": 1}, "new": {"a": 1, "b": 1}},
        ),
        (
            ("partition_defaults: {a: 1}\npartitions: {p: {a: 5}}", ("partition_defaults: {a: 2}", OVER)),
            {"p": {"a": 2}},
        ),
        (
            ("partition_defaults: {s: {a: 1}}\npartitions: {p: {}}", ("s: {a: 2}\npartitions: {new: {}}", OVER)),
            {"p": {}, "new": {}},
        ),
    ],
)
def test_partition_defaults_lie_under_every_partition(
    texts: tuple[str | tuple[str, bool], ...], partitions: Tree
) -> None:
    """They go into each partition, whichever layer that is from, and are gone from the tree."""
    found = _value(*texts)
    assert found["partitions"] == partitions
    assert "partition_defaults" not in found


def test_partition_defaults_without_a_partition_stay_for_the_schema() -> None:
    """Otherwise nobody would see what is wrong with them."""
    assert _value("partition_defaults: {a: 1}") == {"partition_defaults": {"a": 1}}


@pytest.mark.parametrize(
    ("texts", "result"),
    [
        # Of the same partition below, of what is common to partitions, of the site, of nothing.
        (("l: [t]\npartitions: {p: {l: [p]}}", "partitions: {p: {l: {append: [q]}}}"), ["p", "q"]),
        (("l: [t]\npartition_defaults: {l: [d]}\npartitions: {p: {l: {append: [q]}}}",), ["d", "q"]),
        (("l: [t]\npartition_defaults: {l: {append: [d]}}\npartitions: {p: {l: {append: [q]}}}",), ["t", "d", "q"]),
        (("l: [t]\npartition_defaults: {l: {append: [d]}}\npartitions: {p: {}}",), ["t", "d"]),
        (("l: [t]\npartitions: {p: {l: {append: [q]}}}",), ["t", "q"]),
        (("partitions: {p: {l: {append: [q]}}}",), ["q"]),
        (("l: [t]\npartitions: {p: {l: null}}", "partitions: {p: {l: {append: [q]}}}"), ["q"]),
        # The site's list is the merged one, whichever layer it is from.
        (("partitions: {p: {l: {append: [q]}}}", "l: [t]"), ["t", "q"]),
        (("l: [t]\npartitions: {p: {l: {append: [q]}}}", "l: {append: [u]}"), ["t", "u", "q"]),
        (("partitions: {p: {l: {append: [q]}}}", "partitions: {p: {l: {append: [r]}}}"), ["q", "r"]),
        # A stronger layer comes last in every partition's list, and once.
        (("l: [t]\npartitions: {p: {l: {append: [q]}}}", ("l: {append: [u]}", OVER)), ["t", "q", "u"]),
        (("l: [t]\npartitions: {p: {l: [q]}}", ("partitions: {p: {l: {append: [u]}}}", OVER)), ["q", "u"]),
        (("l: [t]\npartitions: {p: {}}", ("partitions: {p: {l: {append: [u]}}}", OVER)), ["t", "u"]),
        (("l: [t]\npartitions: {p: {}}", ("partition_defaults: {l: {append: [u]}}", OVER)), ["t", "u"]),
        (("l: [t]\npartitions: {p: {l: [q]}}", ("partition_defaults: {l: {append: [u]}}", OVER)), ["q", "u"]),
        (
            ("l: [t]\npartition_defaults: {l: [d]}\npartitions: {p: {}}", ("l: {append: [u]}", OVER)),
            ["d", "u"],
        ),
        (
            ("l: [t]\npartitions: {p: {l: [q]}}", ("l: {append: [u]}", OVER), ("l: {append: [v]}", OVER)),
            ["q", "u", "v"],
        ),
    ],
)
def test_append_in_a_partition(texts: tuple[str | tuple[str, bool], ...], result: list[str]) -> None:
    """It adds to the nearest list below: the partition's, what is common to partitions, the site's."""
    partitions = _value(*texts)["partitions"]
    assert isinstance(partitions, dict)
    assert partitions["p"] == {"l": result}


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (
            ("a: 1", "a: {append: [2]}"),
            "1:1: a: nothing can be appended: below stands a single value, no list (0:1): write the whole value",
        ),
        (
            ("a: {b: {c: 1}}", "a:\n  b: {append: [2]}"),
            "1:2: a.b: nothing can be appended: below stands a mapping, no list (0:1): write the whole value",
        ),
        (
            ("partitions: {p: {s: x}}", ("partitions:\n  p:\n    s: {append: [y]}", OVER)),
            "1:3: partitions.p.s: nothing can be appended: below stands a single value, no list (0:1): "
            "write the whole value",
        ),
        (
            ("l: x\npartitions: {p: {l: {append: [y]}}}",),
            "0:2: partitions.p.l: nothing can be appended: below stands a single value, no list (0:1): "
            "write the whole value",
        ),
        (
            ("\na: {append: x}",),
            "0:2: a: `append` takes a list: {append: [value, …]}: put the value in brackets",
        ),
        (
            ("partitions: {p: {a: {append: null}}}",),
            "0:1: partitions.p.a: `append` takes a list: {append: [value, …]}: put the value in brackets",
        ),
        (
            ("a: {append: {x: 1}}",),
            "0:1: a: `append` takes a list: {append: [value, …]}: put the value in brackets",
        ),
    ],
)
def test_an_append_that_fits_nothing_is_told(texts: tuple[str, ...], problem: str) -> None:
    """What is no list below, or above, is one problem with file and line."""
    assert [str(one) for one in _merged(*texts).problems] == [problem]


def test_all_faults_of_appending_are_told_at_once() -> None:
    """A wrong one hides no other."""
    merged = _merged("a: 1\nb: 1\nc: [1]", "a: {append: [2]}\nb: {append: 2}\nc: {append: [2]}")
    assert [one.where for one in merged.problems] == ["1:2", "1:1", "1:2"]
    assert merged.document.value["c"] == [1, 2]


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (("a",), "0:1"),
        (("a", "x"), "0:2"),
        (("a", "y"), "1:2"),
        (("a", "missing"), "0:1"),
        (("l",), "1:3"),
        (("l", 0), "0:4"),
        (("l", 1), "1:3"),
        (("partitions", "p", "d"), "0:6"),
        (("partitions", "p", "e"), "2:2"),
        (("partitions", "p"), "0:8"),
        (("partitions", "p", "l", 0), "0:4"),
        (("partitions", "p", "l", 2), "0:8"),
        (("nowhere",), "site"),
        ((), "site"),
    ],
)
def test_every_value_remembers_its_file_and_line(path: Key, where: str) -> None:
    """Merged values, items of lists and values from partition_defaults name the line on which they stand."""
    lower = "a:\n  x: 1\n  y: 1\nl: [0]\npartition_defaults:\n  d: 1\npartitions:\n  p: {e: 1, l: {append: [1]}}\n"
    merged = _merged(lower, "a:\n  y: 2\nl: {append: [2]}\n", ("partition_defaults:\n  e: 3", OVER))
    assert merged.document.where(path) == where


def test_the_lines_of_partition_defaults_are_known() -> None:
    """So that a fault in them can be told once, instead of once for each partition."""
    assert _merged("partition_defaults:\n  d: {e: 1}\npartitions: {p: {f: 1}}").defaults == {"0:1", "0:2"}


def test_what_is_from_no_file_says_whence_it_is() -> None:
    """A mapping from Python is known by its label, a flag by its own text."""
    plain = Document("spec: site", {"a": {"b": 1}})
    flags = Document("job.yaml", {"a": {"c": {"d": 2}}}, {("a",): 3, ("a", "c"): 0}, {("a", "c"): "--set site.a.c"})
    document = merge_layers([Layer(plain), Layer(flags)], "site").document
    assert document.where(("a", "b")) == "spec: site"
    assert document.where(("a", "c", "d")) == "--set site.a.c"


@pytest.mark.parametrize(
    "text", ["partitions: 3", "partitions: [a]", "partitions: {append: [a]}", "partition_defaults: 3"]
)
def test_what_is_no_mapping_is_left_for_the_schema(text: str) -> None:
    """Nothing that is wrong disappears in merging."""
    assert _value(text, ("a: 1", OVER)).keys() == {text.partition(":")[0], "a"}
    assert _value("partitions: {p: 3}", ("q: 1", OVER))["partitions"] == {"p": 3}


def test_an_empty_list_of_partitions_stays_empty() -> None:
    """The schema says that there must be one."""
    assert _value("partitions: {}") == {"partitions": {}}


def _shaped(lists: st.SearchStrategy[Any], depth: int = 3) -> st.SearchStrategy[dict[str, Tree]]:
    """Return mappings in which, as by a schema, a key always has the same kind of value."""
    inner = {"m": _shaped(lists, depth - 1), "n": _shaped(lists, depth - 1)} if depth else {}
    scalars = st.none() | st.integers(0, 3) | st.text("xy", max_size=1)
    return st.fixed_dictionaries({}, optional={"s": scalars, "t": scalars, "l": lists, **inner})


_lists = st.none() | st.lists(st.integers(0, 3), max_size=2)
_maps = _shaped(_lists)
_appending = _shaped(_lists | st.fixed_dictionaries({"append": st.lists(st.integers(0, 3), max_size=2)}))


def _fold(*values: dict[str, Tree]) -> dict[str, Tree]:
    return merge_layers([Layer(Document("x", value)) for value in values], "x").document.value


@given(_maps, _maps, _maps)
def test_merging_is_associative(one: dict[str, Tree], two: dict[str, Tree], three: dict[str, Tree]) -> None:
    """Bases may be merged among themselves first: the result is the same."""
    assert _fold(_fold(one, two), three) == _fold(one, _fold(two, three)) == _fold(one, two, three)


@given(_maps)
def test_merging_is_idempotent(one: dict[str, Tree]) -> None:
    """A layer on itself, or on nothing, is itself; and no argument is changed."""
    before = copy.deepcopy(one)
    assert _fold(one, one) == _fold({}, one) == _fold(one, {}) == one
    assert one == before


@given(_appending, _appending, _appending)
def test_appending_is_associative(one: dict[str, Tree], two: dict[str, Tree], three: dict[str, Tree]) -> None:
    """`{append: …}` waits for the list that it belongs to, however layers are grouped."""
    nodes = [node_of(Document("x", value)) for value in (one, two, three)]
    problems: list[Problem] = []
    left = merge(merge(nodes[0], nodes[1], problems), nodes[2], problems)
    right = merge(nodes[0], merge(nodes[1], nodes[2], problems), problems)
    assert document_of(left, "x").value == document_of(right, "x").value
    assert problems == []


@given(_maps, _maps, _maps)
def test_a_stronger_layer_has_the_last_word_everywhere(
    top: dict[str, Tree], partition: dict[str, Tree], over: dict[str, Tree]
) -> None:
    """For each partition, its own section over the site's holds every leaf of the stronger layer."""
    site: dict[str, Tree] = {"s": top, "partitions": {"p": {"s": partition}}}
    merged = merge_layers([Layer(Document("x", site)), Layer(Document("y", {"s": over}), over=True)], "x")
    value = merged.document.value
    partitions = value["partitions"]
    assert isinstance(partitions, dict)
    changed = partitions["p"]
    effective = _fold({"s": value["s"]}, changed if isinstance(changed, dict) else {})
    assert _fold(effective, {"s": over}) == effective
