"""Jobs and recipes for tests of stages, made without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_llm.app import Job, make_job
from slurm_llm.process import Completed
from slurm_llm.sites.load import load_site, overlay_of
from slurm_llm.spec import spec_from_mapping
from slurm_llm.stages.planning import PlannedStage, plan_stages
from slurm_llm.stages.recipe import FILE, Command, Product, Recipe, beside, fingerprint
from slurm_llm.surroundings import Surroundings
from slurm_llm.yamlio import Document

RUN_ID = "demo-20261130-120000-abcd"
TRTLLM_IMAGE = "/images/tritonserver-25.12-trtllm.sqsh"


def around(folder: Path, **environ: str) -> Surroundings:
    """Return surroundings without Slurm: every program is missing."""

    def missing(argv: Sequence[str], **_kwargs: Any) -> Completed:
        return Completed(tuple(argv), 127, "", "not found")

    return Surroundings({"HOME": str(folder), "USER": "ada", **environ}, folder, missing)


def job_of(folder: Path, prepare: dict[str, Any] | None, *, on_site: str = "devcluster", **others: Any) -> Job:
    """Return the job of a rehearsal spec with a `prepare` section on a packaged site."""
    value = {"name": "demo", "engine": "rehearsal", "prepare": prepare, **others}
    document = Document("spec", value)
    here = around(folder)
    return make_job(spec_from_mapping(value), load_site(on_site, {}, overlay_of(document)), here, inspect=False)


def stages_of(folder: Path, prepare: dict[str, Any], **others: Any) -> dict[str, PlannedStage]:
    """Return the planned stages by name."""
    return {one.name: one for one in plan_stages(job_of(folder, prepare, **others), around(folder), RUN_ID)}


def with_image(image: str = TRTLLM_IMAGE, runtime: str = "enroot", **site: Any) -> dict[str, Any]:
    """Return the fields of a spec that runs in an image on the devcluster."""
    return {"container": {"image": image}, "site": {"container": {"runtime": runtime}, **site}}


def recipe_of(path: Path, *scripts: str, kind: str = FILE, source: str = "nothing") -> Recipe:
    """Return a recipe of bash scripts; $1 is where they put their product."""
    product = beside(str(path), kind, RUN_ID)
    commands = tuple(Command(("bash", "-c", text, "bash", product.part)) for text in scripts)
    return Recipe("image", source, "", commands, product, fingerprint(commands, product, ""))


def product_of(recipe: Recipe) -> Product:
    """Return the recipe's product."""
    assert recipe.product is not None
    return recipe.product
