"""What README and docs show: commands that exist, specs that validate, links that lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from slurm_llm.agent import leftovers
from slurm_llm.cli import cli
from slurm_llm.plan import build_plan
from slurm_llm.plan.types import SHM_PREFIX
from slurm_llm.sites.load import load_site
from slurm_llm.spec import load_spec, spec_from_text

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*_*/README.md")])
COMMAND = re.compile(r"python -m slurm_llm ([^\n`#]+)")


def commands() -> list[tuple[str, list[str]]]:
    """Return every command line that a page shows, with the page's name."""
    shown = [(page.name, text) for page in PAGES for text in COMMAND.findall(page.read_text())]
    return [(name, shlex.split(text.split("|")[0].rstrip())) for name, text in shown]


@pytest.mark.parametrize(
    ("page", "words"), commands(), ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
def test_every_command_that_is_shown_exists(page: str, words: list[str]) -> None:
    """Verb and options are known to the command line."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        inner = command.get_command(context, name)
        assert inner is not None, f"{page}: no command {name}"
        command = inner
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known | {"--help"}


def test_the_readmes_spec_is_the_one_it_says_it_is() -> None:
    """The first thing that a reader copies validates and gives eight ranks on four nodes."""
    readme = (ROOT / "README.md").read_text()
    text = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)[0]
    plan = build_plan(spec_from_text(text), load_site("devcluster", {}).profile)
    assert (len(plan.ranks), plan.allocation.nodes) == (8, 4)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_plans(path: Path) -> None:
    """Examples are specs that work on the devcluster; those with an image, on a site with pyxis and eight GPUs."""
    spec = load_spec(path)
    site = "devcluster" if spec.container is None else "aws-hyperpod"
    assert build_plan(spec, load_site(site, {}).profile).ranks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links and the files that are named in code spans exist."""
    text = page.read_text()
    for target in re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:slurm_llm|docs|job_templates|site_configs|benchmarks|tests)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name


def test_agents_remove_what_the_plans_recipe_names() -> None:
    """The recipe for the shared-memory prefix and the agent's clean-up agree."""
    prefix = SHM_PREFIX.format(job_id="123", attempt="4", rank="5")
    assert prefix.startswith(leftovers.shm_prefix("123.4"))
    assert re.fullmatch(r"[A-Za-z0-9_]+", prefix)
