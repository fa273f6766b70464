"""From a spec's `prepare` section to stages, in order: what each makes, where it runs, whether it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.app import Job
from slurm_llm.containers.imports import STORE as IN_A_STORE
from slurm_llm.containers.imports import import_image
from slurm_llm.containers.references import is_path
from slurm_llm.containers.runtime import Fault
from slurm_llm.errors import InputError, PlanError, Problem
from slurm_llm.expansion import expand
from slurm_llm.plan import Plan
from slurm_llm.preparation import Prepare, Stage
from slurm_llm.stages import engines
from slurm_llm.stages.asking import plan_stage, site_of
from slurm_llm.stages.products import Look, There, look
from slurm_llm.stages.recipe import (
    BUILD,
    CONVERT,
    FOLDER,
    IMAGE,
    STORE,
    VLLM,
    WEIGHTS,
    Command,
    Product,
    Recipe,
    beside,
    fingerprint,
)
from slurm_llm.stages.vllmhome import needs_internet, vllm_commands
from slurm_llm.stages.weights import hub_home, weights_commands, weights_product
from slurm_llm.surroundings import Surroundings

JOB, LOGIN = "job", "login"
HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE")


@dataclass(frozen=True)
class PlannedStage:
    """One stage: what it does, where (`job` or `login`), the job's plan, and what was found in the product's place."""

    recipe: Recipe
    where: str
    plan: Plan
    found: Look

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.recipe.name

    @property
    def needed(self) -> bool:
        """Whether its product is not there."""
        return self.found.there is not There.WHOLE


@dataclass
class _Draft:
    """A stage while it is planned; `reads` are folders beside the product that its commands look into."""

    name: str
    own: Stage
    source: str
    product: Product
    commands: tuple[Command, ...]
    online: bool = False
    mpi: bool = False
    reads: tuple[str, ...] = ()


class Planning:
    """Planning the stages of one job; every problem is collected."""

    def __init__(self, job: Job, around: Surroundings, run_id: str) -> None:
        self.job, self.around, self.run_id = job, around, run_id
        self.prepare = job.spec.prepare or Prepare()
        self.problems: list[Problem] = []
        container = job.plan.container
        self.image = None if container is None else container.image
        self.environ = _variables(job, around, self.problems)

    def stages(self) -> list[PlannedStage]:
        """Return the stages in order.

        Raises:
            PlanError: what contradicts; what is in a product's place and is another thing.
        """
        makers: tuple[Callable[[], _Draft | None], ...] = (
            self._image,
            self._vllm,
            self._weights,
            self._convert,
            self._build,
        )
        planned = [one for make in makers if (one := self._made(make)) is not None]
        if self.problems:
            raise PlanError(list(dict.fromkeys(self.problems)))
        return planned

    def _made(self, make: Callable[[], _Draft | None]) -> PlannedStage | None:
        try:
            draft = make()
            return None if draft is None else self._planned(draft)
        except PlanError as error:
            self.problems += error.problems
            return None

    def _planned(self, draft: _Draft) -> PlannedStage:
        where = self._where(draft)
        folders = [] if draft.product.kind == STORE else [str(Path(draft.product.part).parent)]
        plan = plan_stage(self.job, draft.name, draft.own, [*folders, *draft.reads], draft.mpi)
        if where == JOB and Path(plan.local_dir) in Path(draft.product.path).parents:
            what = f"{draft.product.path} lies in {plan.local_dir}, which is each node's own"
            self.problems.append(Problem(f"prepare.{draft.name}.to", what, "a folder that all nodes share"))
        image = self.image or "" if any(one.inside for one in draft.commands) else ""
        mark = fingerprint(draft.commands, draft.product, image)
        recipe = Recipe(draft.name, draft.source, image, draft.commands, draft.product, mark)
        found = look(recipe, self._known)
        if found.there is There.OTHER:
            todo = "remove it, or let `to` name another place"
            self.problems.append(Problem(f"prepare.{draft.name}", f"{draft.product.path}: {found.why}", todo=todo))
        return PlannedStage(recipe, where, plan, found)

    def _where(self, draft: _Draft) -> str:
        """Return where the stage runs: as it says, else here when it fetches what compute nodes cannot."""
        offline = site_of(self.job, draft.name, draft.own).network.internet == "none"
        asked = getattr(draft.own, "on", None)
        where = asked or (LOGIN if draft.online and offline else JOB)
        name = f"prepare.{draft.name}"
        if where == JOB and draft.online and offline:
            what = f"compute nodes of site {self.job.plan.site} have no internet"
            self.problems.append(
                Problem(f"{name}.on", what, "login", "leave it out, or run it where there is internet")
            )
        inside = [one for one in draft.commands if one.inside] if self.image is not None else []
        if where == LOGIN and inside:
            what = f"`{inside[0].text}` would run in the image on this machine"
            todo = "use what needs no internet (pip_args: --no-index, a checkout), or a partition that has it"
            self.problems.append(Problem(name, what, "a job on a node with internet", todo))
        return where

    def _known(self, argv: tuple[str, ...]) -> bool:
        done = self.around.runner(argv, env=self.around.environ)
        return done.returncode == 0 and bool(done.stdout.strip())

    def _image(self) -> _Draft | None:
        own = self.prepare.image
        if own is None:
            return None
        rules = site_of(self.job, IMAGE, own).container
        to = own.to or self._container_image()
        product = beside(to or "", "file", self.run_id)
        made = import_image(rules.runtime, rules.program, own.source, product.part)
        if isinstance(made, Fault):
            self.problems.append(Problem("prepare.image.source", made.what, made.allowed, made.todo))
            return None
        if made.kind == IN_A_STORE:
            product = Product(STORE, made.commands[0][-1], "", "", known=made.known)
            if own.to is not None:
                what = f"{rules.runtime} keeps its images in a store of its own"
                self.problems.append(Problem("prepare.image.to", what, todo="leave it out"))
            own = own.model_copy(update={"on": own.on or LOGIN})
        elif to is None:
            what = "where the image goes is not said: container.image is no path"
            self.problems.append(Problem("prepare.image.to", what, "the absolute path of an image file"))
            return None
        product = replace(product, kind=made.kind)
        commands = tuple(Command(words) for words in made.commands)
        return _Draft(IMAGE, own, own.source, product, commands, online=True)

    def _container_image(self) -> str | None:
        if self.image is None or not is_path(self.image):
            return None
        return self._expanded(self.image, "container.image")

    def _expanded(self, path: str, where: str) -> str:
        try:
            return expand(path, self.around.environ, where)
        except InputError as error:
            self.problems += error.problems
            return path

    def _vllm(self) -> _Draft | None:
        own = self.prepare.vllm
        if own is None:
            return None
        if self.job.spec.engine != "vllm":
            what = f"engine {self.job.spec.engine} takes no vLLM backend"
            self.problems.append(Problem("prepare.vllm", what, "engine: vllm", "remove it"))
        product = beside(own.to, FOLDER, self.run_id)
        site = site_of(self.job, VLLM, own)
        commands = vllm_commands(own, product, self.image, (site.triton.server, self._python()), self.problems)
        reads = (own.backend,) if own.backend is not None and own.backend.startswith("/") else ()
        source = own.backend or self.image or "the node's own Triton"
        return _Draft(VLLM, own, source, product, commands, needs_internet(own, self.image), reads=reads)

    def _python(self) -> str:
        container = self.job.plan.container
        return "python3" if container is None else container.python

    def _weights(self) -> _Draft | None:
        own, model = self.prepare.weights, self.job.spec.model
        if own is None:
            return None
        repo = own.repo or (model if model is not None and not is_path(model) else None)
        if repo is None:
            what = "which model to download is not said: the spec's model is no id of the hub"
            self.problems.append(Problem("prepare.weights.repo", what, todo="set it"))
            return None
        to = own.to or (model if own.repo is not None and model is not None and is_path(model) else None)
        own = own.model_copy(update={"to": to})
        product = weights_product(own, repo, hub_home(self.environ), self.run_id)
        source = repo if own.revision is None else f"{repo}@{own.revision}"
        return _Draft(WEIGHTS, own, source, product, weights_commands(own, repo, product), online=True)

    def _convert(self) -> _Draft | None:
        own = self.prepare.convert
        if own is None:
            return None
        self._check_engine(CONVERT, own.args)
        source = own.source or self._model_folder()
        if source is None:
            what = "the folder of the model is not said"
            self.problems.append(Problem("prepare.convert.source", what, todo="set it, or prepare.weights.to"))
            return None
        product = beside(own.to, FOLDER, self.run_id)
        command = engines.convert_command(own, source, self.job.plan.sizes, product, self._python())
        return _Draft(CONVERT, own, source, product, (command,), mpi=True, reads=(source,))

    def _model_folder(self) -> str | None:
        weights, model = self.prepare.weights, self.job.spec.model
        made = None if weights is None else weights.to
        return made or (model if model is not None and is_path(model) else None)

    def _build(self) -> _Draft | None:
        own = self.prepare.build
        if own is None:
            return None
        self._check_engine(BUILD, own.args)
        engine = self.job.spec.engine_args.get("engine_dir")
        to = own.to or (engine if isinstance(engine, str) else None)
        source = own.source or (None if self.prepare.convert is None else self.prepare.convert.to)
        for name, value in (("to", to), ("source", source)):
            if value is None:
                self.problems.append(Problem(f"prepare.build.{name}", "is not said", todo="set it"))
        if to is None or source is None:
            return None
        self.problems += engines.check_mapping(source, self.job.plan.sizes)
        product = beside(to, FOLDER, self.run_id)
        plan = self.job.plan
        gpus = (plan.allocation.ranks_per_node * plan.allocation.gpus_per_rank, plan.sizes.world_size)
        command = engines.build_command(own, source, gpus, product)
        return _Draft(BUILD, own, source, product, (command,), mpi=True, reads=(source,))

    def _check_engine(self, stage: str, args: Mapping[str, object]) -> None:
        self.problems += engines.check_flags(stage, args)
        engines.check_release(self.job.spec, self.image, self.problems)


def _variables(job: Job, around: Surroundings, problems: list[Problem]) -> dict[str, str]:
    """Return the environment as jobs will have it, as far as it says where the hub's files are."""
    found = dict(around.environ)
    given: Iterable[tuple[str, str]] = job.plan.env.set
    if job.plan.hf_home is not None:
        given = (("HF_HOME", job.plan.hf_home), *given)
    for name, value in given:
        if name in HUB_VARIABLES:
            try:
                found[name] = expand(value, around.environ, name) if name == "HF_HOME" else value
            except InputError as error:
                problems += error.problems
    return found


def plan_stages(job: Job, around: Surroundings, run_id: str) -> list[PlannedStage]:
    """Return the stages of a job's `prepare` section, in order; none where it has no such section.

    Raises:
        PlanError: see `Planning.stages`.
    """
    return Planning(job, around, run_id).stages()
