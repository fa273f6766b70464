"""What people get wrong first in a profile: each is told with the form to write, on loading and by lint alike."""

from __future__ import annotations

from datetime import date

import pytest

from slurm_llm.errors import SiteError
from slurm_llm.sites.lint import lint_document
from slurm_llm.sites.load import parse_site
from slurm_llm.yamlio import parse_document

HEAD = "schema_version: 1\nname: here\npartitions:\n  a:\n    gpus_per_node: 4\n"

CASES = [
    ("    constraint: [a, b]\n", "write one text: 'a&b' for both, 'a|b' for either"),
    ("exclude_nodes: [n1, n2]\n", "write one text, as node[01-04,07]"),
    ("prologue: [a, b]\n", "write lines of shell below `prologue: |`"),
    ("    qos: [a]\n", "write one text"),
    ("    gpu: a100\n", "write gpu: {model: a100}"),
    ("    gpu: {type: a100}\n", "did you mean 'slurm_type'?"),
    ("    gpu_request: gres\n", "write gpu_request: {style: gres}"),
    ("    memory: 60G\n", "write memory: {per_rank: 60G}"),
    ("    time: 24:00:00\n", 'write time: {max: "24:00:00"}'),
    ("    gpus: 4\n", "did you mean 'gpus_per_node'?"),
    ("    partition: x\n", "did you mean 'slurm_partition'?"),
    ("    slurm: {version: '23.11'}\n", "it holds for the whole site: write it at the left edge"),
    ("b:\n  gpus_per_node: 3\n", "'b' belongs below partitions: indent it"),
    ("gpu_request: {style: gres}\n", "it belongs to a partition: partitions.NAME.gpu_request"),
    ("slurm: 23.11\n", 'write slurm: {version: "23.11"}'),
    ("container: pyxis\n", "write container: {runtime: pyxis}"),
    ("launcher: ibrun\n", "write launcher: {command: ibrun}"),
    ("modules: [a]\n", "write modules: {load: […]}"),
    ("env: {NAME: 1}\n", "put it below env.set: {set: {NAME: …}}"),
    ("env: {st: {A: b}}\n", "did you mean 'set'?"),
    ("env: {set: {PATH: {append: [/x]}}}\n", "put paths in front: env: {prepend: {PATH: [/path]}}"),
    ("env: {set: {PATH: {append: /x}}}\n", "put paths in front with env: {prepend: {PATH: [/path]}}"),
    ("env: {set: {PATH: [/x]}}\n", "put paths in front: env: {prepend: {PATH: [/path]}}"),
    ("sbatch_extra: {apend: [--x]}\n", "only {append: […]} adds to a list"),
    ("network: {ports: 20000}\n", "write LOW-HIGH, as 20000-29999"),
    ("account: {required: yes}\n", "write true"),
    ("verified: {state: run, date: 30.11.2026}\n", "write it as YYYY-MM-DD"),
    ("verified: {state: run, date: 2026}\n", "write it as YYYY-MM-DD"),
]


@pytest.mark.parametrize(("text", "todo"), CASES, ids=[text.strip() for text, _ in CASES])
def test_a_common_mistake_is_told_with_the_right_form(text: str, todo: str) -> None:
    """The fault's last words are what to write; `site lint` has the same."""
    document = parse_document(HEAD + text, "here.yaml")
    with pytest.raises(SiteError) as caught:
        parse_site(document)
    assert todo in caught.value.problems[0].todo
    if "append: " not in text:
        assert any(todo in one.todo for one in lint_document(document, today=date(2026, 11, 30)))


@pytest.mark.parametrize(
    ("value", "todo"),
    [
        ("a100:4", "write 4, and the type as gpu: {slurm_type: a100} with gpu_request: {typed: true}"),
        ("gpu:4", "write 4"),
        ("four", "correct the value"),
    ],
)
def test_a_number_of_gpus_with_their_type_is_taken_apart(value: str, todo: str) -> None:
    """As Slurm's own options have both in one."""
    with pytest.raises(SiteError) as caught:
        parse_site(parse_document(HEAD.replace("4", value), "here.yaml"))
    assert [problem.todo for problem in caught.value.problems] == [todo]


def test_a_partition_may_have_the_name_of_a_section() -> None:
    """What is below `partitions` is a partition, whatever it is called."""
    with pytest.raises(SiteError, match="write its keys below it, gpus_per_node at least"):
        parse_site(parse_document("schema_version: 1\nname: here\npartitions: {gpu: 4}\n", "here.yaml"))
