"""Node lists expand with padding and order kept, an unknown form is an error, folding undoes expanding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.slurm.nodesets import MAX_NODES, expand_nodes, fold_nodes

NAMES = st.one_of(
    st.from_regex(r"[a-c]{1,2}(-[a-z])?[0-9]{1,4}", fullmatch=True),
    st.from_regex(r"[a-c]{1,3}", fullmatch=True),
    st.from_regex(r"[a-c][0-9]{1,2}-ib", fullmatch=True),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[01-03,7],m2", ("n01", "n02", "n03", "n7", "m2")),
        ("b04-[09-10]", ("b04-09", "b04-10")),
        ("nodeA,nodeB[001,003],nodeC", ("nodeA", "nodeB001", "nodeB003", "nodeC")),
        ("foo003,foo0[10-12],foo-m11-16", ("foo003", "foo010", "foo011", "foo012", "foo-m11-16")),
        ("host-[001-002]", ("host-001", "host-002")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("n[09-11]", ("n09", "n10", "n11")),
        ("n[99-100]", ("n99", "n100")),
        ("n[09-100]", tuple(f"n{number:02}" for number in range(9, 101))),
        ("r[1-2]c[01-02]", ("r1c01", "r1c02", "r2c01", "r2c02")),
        ("n[1-2]-ib", ("n1-ib", "n2-ib")),
        ("A100_1,A100_2", ("A100_1", "A100_2")),
        ("c[1-2].cluster.example", ("c1.cluster.example", "c2.cluster.example")),
        ("n3,n1", ("n3", "n1")),
    ],
)
def test_node_lists_expand(text: str, names: tuple[str, ...]) -> None:
    """Lists as clusters print them, from reports where others went wrong, give the right names in order."""
    assert expand_nodes(text) == names


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("n[1-3", "n[1-3"),
        ("n1-3]", "]"),
        ("n[1-[2-3]]", "[2-3]]"),
        ("n[]", "''"),
        ("n[a-c]", "'a-c'"),
        ("n[3-1]", "'3-1'"),
        ("n[1-010]", "'1-010'"),
        ("n[001-3]", "'001-3'"),
        ("n[1-2-3]", "'1-2-3'"),
        ("n[0-10/2]", "'0-10/2'"),
        ("n1,,n2", "''"),
        ("n1,", "''"),
        (",n1", "''"),
        ("n1 n2", "'n1 n2'"),
        ("@all", "'@all'"),
        ("n1!n2", "'n1!n2'"),
        ("(null)", "'(null)'"),
        ("[1-2]", "'[1-2]'"),
        ("$(id)", "'$(id)'"),
        ("n[1-99999999]", "more than"),
        ("r[1-999]n[1-999]", "more than"),
    ],
)
def test_unknown_forms_are_errors(text: str, offending: str) -> None:
    """What is not in Slurm's grammar is an error with the part that is wrong, never one odd node."""
    with pytest.raises(ValueError, match=r"nodes|node list|unbalanced") as caught:
        expand_nodes(text)
    assert offending in str(caught.value)


def test_a_huge_list_is_refused_without_building_it() -> None:
    """The bound holds over the whole list too."""
    half = MAX_NODES // 2 + 1
    with pytest.raises(ValueError, match="more than"):
        expand_nodes(f"a[1-{half}],b[1-{half}]")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("n1",), "n1"),
        (("n01",), "n01"),
        (("n1", "n2", "n3", "n7"), "n[1-3,7]"),
        (("n08", "n09", "n10"), "n[08-10]"),
        (("n9", "n10"), "n[9-10]"),
        (("n99", "n100"), "n[99-100]"),
        (("n099", "n100"), "n[099-100]"),
        (("login", "n1", "n2"), "login,n[1-2]"),
        (("n2", "n1"), "n[2,1]"),
        (("a1", "b1", "a2"), "a1,b1,a2"),
    ],
)
def test_names_fold(names: tuple[str, ...], text: str) -> None:
    """Neighbours that count up in one width share a range."""
    assert fold_nodes(names) == text


@given(st.lists(NAMES, max_size=30).map(tuple))
def test_expanding_undoes_folding(names: tuple[str, ...]) -> None:
    """Any list of names comes back whole and in its order."""
    assert expand_nodes(fold_nodes(names)) == names


@pytest.mark.parametrize("name", ["", "n 1", "n[1]", "a,b"])
def test_folding_refuses_what_is_no_name(name: str) -> None:
    """A name that could not be read back is refused."""
    with pytest.raises(ValueError, match="is not a node name"):
        fold_nodes([name])


@given(st.lists(st.from_regex(r"[a-c](0[1-9]|[1-9][0-9])", fullmatch=True), min_size=1, max_size=20, unique=True))
def test_agrees_with_clustershell(names: list[str]) -> None:
    """On lists that both understand, ClusterShell names the same nodes."""
    nodeset = pytest.importorskip("ClusterShell.NodeSet")
    assert set(expand_nodes(fold_nodes(names))) == set(nodeset.NodeSet(fold_nodes(names), resolver=None))
    folded = str(nodeset.NodeSet.fromlist(names))
    assert set(expand_nodes(folded)) == set(names)
