"""What the measurements of one command share: the run, how it is reached, where a tool runs, and which one is there."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm import containers
from slurm_llm.benching import placing
from slurm_llm.benching.aiperf import AiPerf
from slurm_llm.benching.genaiperf import GenAiPerf
from slurm_llm.benching.perfanalyzer import PerfAnalyzer
from slurm_llm.benching.tokenizers import tokenizer_folder
from slurm_llm.benching.tools import Entry, Target, Tool, Wanted
from slurm_llm.errors import InputError, NotReady, Problem, SetupError
from slurm_llm.expansion import expand
from slurm_llm.observe.benchresults import Load
from slurm_llm.observe.endpoint import choose as choose_endpoint
from slurm_llm.observe.endpoint import serving
from slurm_llm.observe.facts import Endpoint, Layout, load_layout
from slurm_llm.observe.keys import headers_of
from slurm_llm.observe.status import RunStatus
from slurm_llm.observe.text import clean
from slurm_llm.plan.asjson import plan_from_json
from slurm_llm.plan.types import Plan
from slurm_llm.rundir import SPEC, RunPaths
from slurm_llm.runs import FoundRun, current, evidence_of, status_of
from slurm_llm.slurm.client import scrub_environment
from slurm_llm.surroundings import Surroundings
from slurm_llm.yamlio import load_document

TOOLS: dict[str, Tool] = {one.name: one for one in (AiPerf(), GenAiPerf(), PerfAnalyzer())}
AUTO = "auto"
FIND_TIMEOUT_S = 300.0
REHEARSAL = "rehearsal"


@dataclass(frozen=True)
class Scene:
    """What stays the same over measurements; of `asked` the first is where requests go, all count them.

    `tokenizer` is a folder, or None for one of bytes.
    """

    found: FoundRun
    status: RunStatus
    plan: Plan
    layout: Layout
    asked: tuple[Endpoint, ...]
    target: Target
    where: placing.Where
    around: Surroundings
    entries: tuple[Entry, ...] = ()
    tokenizer: Path | None = None

    @property
    def paths(self) -> RunPaths:
        """The run's paths."""
        return self.found.paths

    @property
    def keyed(self) -> Endpoint:
        """The endpoint that names the key's file, where there is one."""
        return _keyed(self.asked)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of srun: without what it would read as options."""
        return scrub_environment(self.around.environ)


@dataclass(frozen=True)
class FoundTool:
    """A load generator as it was found: its path where it runs, and its version."""

    tool: Tool
    path: str
    version: str


def look(found: FoundRun, around: Surroundings) -> tuple[FoundRun, RunStatus]:
    """Return the run with the job that serves, and its status.

    Raises:
        NotReady: it is not ready, with the reason.
    """
    now = current(found)
    status = status_of(now, around)
    serving(status)
    if not status.ready:
        what = f"is {status.state.value}, and only one that is ready is measured"
        raise NotReady(Problem(f"run {status.run_id}", what, clean(status.cause), f"slurm-llm wait {status.run_id}"))
    return now, status


def endpoints_of(status: RunStatus, instance: int | None) -> tuple[Endpoint, ...]:
    """Return where requests go, then the instances whose counters grow with them.

    Without `instance` that is the balancer, or the first instance where there is none.

    Raises:
        NotReady: there is no such instance.
    """
    first = choose_endpoint(status, instance)
    return (first, *(one for one in status.endpoints if first.balancer and one.instance is not None))


def set_scene(
    found: FoundRun, where: placing.Where, around: Surroundings, instance: int | None = None, tokenizer: str | None = ""
) -> Scene:
    """Return the scene of a run that is ready; `where.job_id` and its node are filled in here.

    `tokenizer` is the folder that is asked for, empty for the model's own, None where nothing counts tokens.

    Raises:
        NotReady: it is not ready, or its key cannot be read; InputError: no tokenizer is known.
        SetupError: plan.json or spec.yaml cannot be read.
    """
    now, status = look(found, around)
    asked = endpoints_of(status, instance)
    layout, plan = load_layout(now.paths.plan), _plan(now.paths)
    if where.in_image:
        plan = inside(plan, around.environ)
    first = asked[0]
    place = replace(where, job_id=status.job_id or 0, node=_node(now, plan.instances[first.instance or 0].leader))
    header = next(iter(headers_of(_keyed(asked))), "")
    target = Target(first.url, first.grpc, first.openai, status.model, status.engine, header)
    folder = None
    if tokenizer is not None and (tokenizer or status.engine != REHEARSAL):
        folder = tokenizer_folder(tokenizer, plan.model or "", _named_tokenizer(now.paths), around.cwd)
    return Scene(now, status, plan, layout, asked, target, place, around, tokenizer=folder)


def _keyed(asked: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint that names the key's file: a balancer may not."""
    return next((one for one in asked if one.key_file), asked[0])


def _node(found: FoundRun, leader: int) -> str:
    """Return the node of a rank, as its journals name it; empty while they do not."""
    facts = evidence_of(found).facts
    rank = facts.ranks.get(leader) if facts else None
    return rank.node or "" if rank else ""


def _plan(paths: RunPaths) -> Plan:
    try:
        return plan_from_json(paths.plan.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(Problem(str(paths.plan), f"cannot be read: {error.strerror}")) from None
    except (ValueError, KeyError, TypeError):
        raise SetupError(Problem(str(paths.plan), "is no plan of this release")) from None


def inside(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return the plan with `$NAME` and `~` in its container's paths replaced, as they are when it is rendered."""
    if plan.container is None:
        return plan
    return replace(plan, container=containers.expand(plan.container, lambda path: expand(path, environ, "container")))


def _named_tokenizer(paths: RunPaths) -> str:
    """Return the tokenizer's folder that the spec's engine arguments name, or an empty text."""
    try:
        own = load_document(paths.root / SPEC).value.get("engine_args")
    except InputError:
        return ""
    found = [own.get(name) for name in ("tokenizer_dir", "tokenizer")] if isinstance(own, dict) else []
    return next((one for one in found if isinstance(one, str)), "")


def choose(scene: Scene, loads: Mapping[str, Load], name: str) -> list[str]:
    """Return the programs to look for, best first: the one that is named, else all that can do what is wanted.

    `loads` is what each tool would be told.

    Raises:
        InputError: none can, with what each lacks.
    """
    known = list(TOOLS) if name == AUTO else [name.rpartition("/")[2]]
    if known[0] not in TOOLS:
        allowed = f"{AUTO}, {', '.join(TOOLS)}"
        raise InputError(Problem("--tool", f"unknown tool '{known[0]}'", allowed, "or a path to one"))
    faults = {one: TOOLS[one].problems(_wanted(scene, loads[one])) for one in known}
    able = [one for one in known if not faults[one]]
    problems = placing.check_place(scene.where, scene.plan, scene.asked[0])
    if not able:
        found = [fault for one in known for fault in faults[one]]
        # What no tool can do says more than which tool is the wrong one.
        problems += [one for one in found if not one.where.startswith("--tool ")] or found
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    if name != AUTO:
        return [name]
    # What is installed beside this package comes first: its extra `bench`.
    beside = () if scene.where.in_image else (str(Path(sys.prefix) / "bin" / one) for one in able)
    return [*beside, *able]


def _wanted(scene: Scene, load: Load) -> Wanted:
    return Wanted(load, scene.target, scene.paths.root, scene.entries)


def find_tool(scene: Scene, programs: list[str]) -> FoundTool:
    """Return the first of `programs` that is there where the tool is to run.

    Raises:
        SetupError: none is, or nothing can be started there.
    """
    where = scene.where
    if where.place == placing.JOB and not where.in_image:
        # Nobody wants to queue twice; a job's node sees the same file systems.
        where = replace(where, place=placing.HERE)
    words = placing.place_words(where, scene.plan, str(scene.paths.root))
    argv = (*words, "bash", "-c", placing.FIND, "find", *programs)
    done = scene.around.runner(argv, env=scene.environment, timeout_s=FIND_TIMEOUT_S)
    found = placing.found_tool(done.stdout) if done.returncode == 0 else None
    if found is not None:
        name, path, version = found
        return FoundTool(TOOLS[name], path, version)
    if done.returncode == 0:
        names = " or ".join(dict.fromkeys(one.rpartition("/")[2] for one in programs))
        todo = "pip install 'slurm-llm[bench]' where nodes see it, or say --tool /path/to/aiperf"
        raise SetupError(Problem(f"there is no {names}", _place_words(where), todo=todo))
    said = " / ".join(clean(line) for line in done.stderr.strip().splitlines()[-3:])
    raise SetupError(Problem("the load generator cannot be started", said or f"exit status {done.returncode}"))


def _place_words(where: placing.Where) -> str:
    words = {
        placing.STEP: f"on PATH in a step on node {where.node or 'of the job'}",
        placing.JOB: "on PATH in a job of its own",
        placing.HERE: "on PATH here",
    }
    return words[where.place] + (", in the run's image" if where.in_image else "")
