"""job_templates/README.md names every template, variable, filter and field of a plan that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import jinja2
import jinja2.meta
import pytest

from slurm_llm.assets import templates_dir
from slurm_llm.plan import Plan

TEMPLATES = sorted(templates_dir().glob("*.j2"))
README = templates_dir() / "README.md"


def _section(title: str) -> str:
    text = README.read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _rows(title: str) -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)` \|", _section(title), re.MULTILINE))


def _syntax(path: Path) -> jinja2.nodes.Template:
    environment = jinja2.Environment(comment_start_string="<#", comment_end_string="#>", autoescape=False)
    environment.filters.update(dict.fromkeys(("sh", "sbatch", "comment", "clock", "coordinate", "short", "span"), str))
    return environment.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_variable_of_a_template_is_documented(path: Path) -> None:
    """The README has a section for each template, with a row for each variable that it uses."""
    assert f"`{path.name}`" in README.read_text(encoding="utf-8")
    assert jinja2.meta.find_undeclared_variables(_syntax(path)) <= _rows(path.name)


def test_every_section_is_of_a_template() -> None:
    """No template is documented that does not exist."""
    titles = re.findall(r"^## (\S+\.j2)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert titles == [path.name for path in TEMPLATES]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_filter_of_ours_is_documented(path: Path) -> None:
    """The README's rules name the filters."""
    used = {node.name for node in _syntax(path).find_all(jinja2.nodes.Filter)}
    assert all(f"`{name}`" in _section("Rules") for name in used & {"sh", "sbatch", "comment"})


def test_every_field_of_a_plan_is_documented() -> None:
    """The README's table of the plan is complete and has no other row."""
    assert _rows("The plan") == {f"plan.{field.name}" for field in fields(Plan)}
