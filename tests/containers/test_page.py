"""docs/containers.md shows, for each runtime, exactly what its example emits."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slurm_llm.containers import sbatch_options, step_options
from slurm_llm.containers.runtimes import RUNTIMES
from slurm_llm.yamlio import parse_document
from tests.containers.rendered import IMAGES, make_plan, render_plan

PAGE = Path(__file__).parents[2] / "docs" / "containers.md"
RUN = "/scratch/u/logs/demo"
CALLED = re.compile(r"^options=\(\n(.*?)^\)$", re.MULTILINE | re.DOTALL)
PLACED = re.compile(r"^must_place (\S+) (\S+)$", re.MULTILINE)


def section(title: str) -> str:
    """Return the page's text below a heading, up to the next one."""
    text = PAGE.read_text().partition(f"\n## {title}\n")[2]
    assert text, f"no section {title}"
    return re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]


def shown(title: str) -> list[list[str]]:
    """Return the words of each indented block below a heading, those of variables aside."""
    found = re.findall(r"(?:^ {4}.*\n)+", section(title), re.MULTILINE)
    return [[word for word in shlex.split(block) if not word.startswith("--env=")] for block in found]


def called(script: str, program: str, image: str) -> list[str]:
    """Return the command that enter.sh becomes, as the page writes it."""
    options = CALLED.search(script)
    assert options is not None
    placed = " ".join(f"--bind={source}:{target}" for source, target in PLACED.findall(script))
    line = script.rstrip().splitlines()[-1].partition("exec ")[2]
    words = shlex.split(line.replace('"${options[@]}"', f"{options[1]} {placed}".replace("\n", " ")))
    known = {"$program": program, "$image": image, "$@": "COMMAND", "exec $command": "exec COMMAND"}
    return [known.get(word, word) for word in words]


def emitted(runtime: str) -> list[list[str]]:
    """Return what the page's example gives: directives, words of srun or of a program, the definition file."""
    example = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[-1]
    given = parse_document(example, "page").value
    plan = make_plan(runtime, rules={"mounts": given["mounts"]}, spec={"env": given["env"]}, storage=given["storage"])
    own, texts = plan.container, render_plan(plan, Path(RUN))
    assert own is not None
    found = [list(words) for words in (sbatch_options(own), step_options(own, RUN)) if words]
    if "enter.sh" in texts:
        found.append(called(texts["enter.sh"], own.program, own.image))
    return [*found, shlex.split(texts["container.toml"])] if "container.toml" in texts else found


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_page_shows_what_is_emitted(runtime: str) -> None:
    """A page that shows something else would be believed."""
    if runtime == "singularity":
        # Apptainer's section, with the program's own name.
        assert emitted(runtime) == [["singularity", *shown("apptainer")[0][1:]]]
    else:
        assert shown(runtime) == emitted(runtime)


def test_the_page_names_every_runtime_and_how_far_it_is_proven() -> None:
    """An admin wants to know which of them was ever run."""
    proven = section("How far each is proven")
    for runtime in IMAGES:
        assert f"`{runtime}`" in proven
