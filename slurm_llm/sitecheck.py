"""Use case: hold a site's profile against the live cluster; asks Slurm, creates no job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from slurm_llm import app
from slurm_llm.errors import InputError, PlanError, Problem, SetupError, SiteError, SlurmError, SpecError, did_you_mean
from slurm_llm.expansion import expand
from slurm_llm.observe.checkrows import CONTRADICTIONS, Row, Verdict, exit_code
from slurm_llm.observe.nodechoice import chosen_nodes
from slurm_llm.observe.refusals import explain_refusal, refused_values
from slurm_llm.observe.sitefacts import SITE, ClusterFacts, compare, paths_of, programs_of, topic_of
from slurm_llm.rundir import JOB_SCRIPT, LOG_ROOT
from slurm_llm.schema import apply_settings
from slurm_llm.sites.load import Site, load_site, overlay_of
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.client import scrub_environment
from slurm_llm.slurm.formats import format_time, parse_time
from slurm_llm.slurm.survey import (
    node_kinds_argv,
    parse_node_kinds,
    parse_srun_help,
    partitions_argv,
    srun_help_argv,
)
from slurm_llm.slurm.trial import (
    PartitionLimits,
    parse_partition_limits,
    parse_trial,
    trial_argv,
)
from slurm_llm.spec import JobSpec, parse_spec
from slurm_llm.surroundings import Surroundings
from slurm_llm.yamlio import Document, Tree

FactT = TypeVar("FactT")
MOST_NODES, FEW_RANKS = 2, 2
NAME = "site-check"
"""Name of the jobs, and beginning of the names of their folders."""
TRIAL, FULL_TRIAL = "a job", "a full node"
"""Names of the rows of a small job, and of one on all GPUs of its nodes."""


@dataclass(frozen=True)
class Wanted:
    """What is to be checked: a site by name or path, one of its logical partitions or all, and how jobs are to be."""

    site: str | None
    partition: str | None = None
    account: str | None = None
    nodes: int | None = None
    image: str | None = None
    room: int | None = None
    """Nodes that the cluster has for the partition, where that is known."""
    qos: str | None = None
    settings: tuple[str, ...] = ()
    """Fields of the jobs' spec, and below `site` of the profile, as `a.b=c`."""
    ranks: int | None = None
    """Ranks on each node; otherwise as many as a small job has."""

    @property
    def flags(self) -> dict[str, str]:
        """What flags gave: field of the allocation → the flag."""
        set_fields = {setting.partition("=")[0].strip(): setting for setting in self.settings}
        named = {"account": self.account, "qos": self.qos}
        return {
            **{field: f"--set {setting}" for field, setting in set_fields.items()},
            **{field: f"--{field}" for field, value in named.items() if value is not None},
        }


@dataclass(frozen=True)
class SiteReport:
    """A checked site, with what the cluster said."""

    site: Site
    names: tuple[str, ...]
    rows: tuple[Row, ...]
    facts: ClusterFacts

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the worst row."""
        return exit_code(self.rows)


def check_site(wanted: Wanted, around: Surroundings) -> SiteReport:
    """Compare the profile with the cluster, and ask Slurm whether it takes a small job in each partition.

    Raises:
        SiteError: the profile is wrong in itself, or has no such partition; SpecError: a setting is; SetupError: no
        Slurm here, or no folder can be written.
    """
    overlay = overlay_of(_document(wanted, {}))
    site = load_site(wanted.site, around.environ, overlay, asked="")
    names = _partitions(site, wanted.partition)
    _spec(wanted, site.profile.partitions[names[0]], names[0], None)
    facts = _ask(site.profile, names, around)
    rows = compare(site.profile, names, facts)
    with scratch(site, around) as folder:
        for name in names:
            room = room_of(site.profile.partitions[name], facts)
            rows += _tries(replace(wanted, room=room), site, name, folder, around)
    return SiteReport(site, names, tuple(located(row, site) for row in _in_order(rows, names)), facts)


def _document(wanted: Wanted, values: dict[str, Tree]) -> Document:
    """Return a spec's document with the settings that are wanted laid over it."""
    if "partition" in wanted.flags:
        todo = "write it behind the site's name, as NAME:PARTITION"
        raise SpecError(Problem(wanted.flags["partition"], "the partition is chosen otherwise here", todo=todo))
    return apply_settings(Document(NAME, values), wanted.settings, SpecError)


def _partitions(site: Site, asked: str | None) -> tuple[str, ...]:
    known = tuple(site.profile.partitions)
    if asked is None:
        return known
    if asked not in known:
        allowed = f"partitions of site {site.profile.name}: " + ", ".join(known)
        raise SiteError(Problem(str(site.path), f"unknown partition '{asked}'", allowed, did_you_mean(asked, known)))
    return (asked,)


def _in_order(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    topics = [SITE, *map(topic_of, names)]
    return sorted(rows, key=lambda row: topics.index(row.topic))


def located(row: Row, site: Site) -> Row:
    """Return a row of a contradiction with the place in the profile's files that its key is from."""
    if row.verdict not in CONTRADICTIONS or not row.key:
        return row
    path = _path_of(row.key, site.profile.partitions)
    known = [path[:length] for length in range(len(path), 0, -1) if path[:length] in site.document.lines]
    return replace(row, where=site.document.where(known[0])) if known else row


def _path_of(key: str, partitions: Iterable[str]) -> tuple[str, ...]:
    """Return the path of a dotted key; the name of a partition may hold dots itself."""
    for name in partitions:
        if key.startswith(f"partitions.{name}."):
            return ("partitions", name, *key.removeprefix(f"partitions.{name}.").split("."))
    return tuple(key.split("."))


def _ask(profile: SiteProfile, names: Sequence[str], around: Surroundings) -> ClusterFacts:
    """Ask all there is to ask; what is not answered is told, and costs only its own rows."""
    slurm, clusters, silent = around.slurm(), profile.slurm.clusters, dict[str, str]()

    def answer(question: str, ask: Callable[[], FactT], nothing: FactT) -> FactT:
        try:
            return ask()
        except SlurmError as error:
            silent[question] = str(error)
            return nothing

    own = [profile.for_partition(name) for name in names]
    version = answer("sbatch --version", slurm.version, None)

    def limits() -> dict[str, PartitionLimits]:
        return parse_partition_limits(slurm.output(partitions_argv(clusters=clusters)))

    nothing: dict[str, PartitionLimits] = {}
    kinds_argv = node_kinds_argv()
    if clusters is not None:
        kinds_argv = (kinds_argv[0], f"--clusters={clusters}", *kinds_argv[1:])
    return ClusterFacts(
        version=version,
        config=answer("scontrol show config", lambda: slurm.config(clusters=clusters), {}),
        partitions=answer("sinfo", lambda: slurm.partitions(clusters=clusters), ()),
        limits=answer("scontrol show partition", limits, nothing),
        kinds=answer("sinfo", lambda: parse_node_kinds(slurm.output(kinds_argv)), ()),
        mpi_types=answer("srun --mpi=list", slurm.mpi_types, ()),
        srun_options=answer("srun --help", lambda: parse_srun_help(slurm.output(srun_help_argv())), frozenset()),
        programs=frozenset(word for one in own for word in programs_of(one) if _on_path(word, around)),
        missing_paths=frozenset(path for one in own for path in paths_of(one).values() if not _is_there(path, around)),
        silent=silent,
    )


def _on_path(program: str, around: Surroundings) -> bool:
    return shutil.which(program, path=around.environ.get("PATH")) is not None


def _is_there(path: str, around: Surroundings) -> bool:
    try:
        return Path(around.cwd, expand(path, around.environ, "path")).exists()
    except (InputError, OSError):
        return False


@contextmanager
def scratch(site: Site, around: Surroundings) -> Iterator[Path]:
    """Make a folder where jobs of the site keep theirs, if there is such a place yet, and remove it afterwards.

    Raises:
        SetupError: the file system refuses.
    """
    folder = _root(site.profile, around) / f".{NAME}-{around.run_id()}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise SetupError(
            Problem(str(folder), f"cannot be made: {error.strerror}", todo="cd to a folder of yours")
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _root(profile: SiteProfile, around: Surroundings) -> Path:
    """Return the site's folder of logs when one can write there, else the current one."""
    try:
        root = Path(os.path.normpath(around.cwd / expand(profile.storage.logs or LOG_ROOT, around.environ, "storage")))
    except InputError:
        return around.cwd
    return root if root.is_dir() and os.access(root, os.W_OK) else around.cwd


def _tries(wanted: Wanted, site: Site, name: str, folder: Path, around: Surroundings) -> list[Row]:
    """Try a small job, and where Slurm takes it, one on all GPUs of its nodes: that asks for memory.whole_node."""
    first = _try(wanted, site, name, folder, around)
    larger = _on_all_gpus(wanted, site.profile.partitions[name])
    if larger is None or first.verdict not in (Verdict.OK, Verdict.NOTE):
        return [first]
    return [first, replace(_try(larger, site, name, folder, around), name=FULL_TRIAL)]


def _on_all_gpus(wanted: Wanted, partition: Partition) -> Wanted | None:
    """Return a job that takes every GPU of its nodes, where the partition gives that and the small job does not."""
    gpus, limits = partition.gpus_per_node, partition.limits
    nodes = limits.min_nodes or 1
    if sizes_of(partition, wanted.nodes, wanted.room)[1] >= gpus or nodes * gpus > (limits.max_gpus or nodes * gpus):
        return None
    return replace(wanted, nodes=nodes, ranks=gpus)


def _try(wanted: Wanted, site: Site, name: str, folder: Path, around: Surroundings) -> Row:
    """Ask Slurm whether it would take a job of this partition as it is rendered."""
    topic = topic_of(name)
    try:
        job = plan_check(wanted, site, name, None, around)
        text = app.render_job(job, app.new_run_dir(job, around), around).texts[JOB_SCRIPT]
    except PlanError as error:
        return _unplanned(name, error, wanted)
    except InputError as error:
        problem = error.problems[0]
        return Row(topic, TRIAL, Verdict.DIFFERS, problem.what, "", problem.where, problem.todo)
    script = folder / f"{job.plan.slug}-{len(list(folder.iterdir()))}.sub"
    script.write_text(text, encoding="utf-8")
    completed = around.runner(trial_argv(str(script)), env=scrub_environment(around.environ))
    trial = parse_trial(completed)
    sizes = f"{job.plan.allocation.nodes} × {job.plan.allocation.ranks_per_node} ranks"
    if not trial.accepted:
        row = refused(Row(topic, TRIAL, Verdict.REFUSED, ""), trial.said, job, wanted)
        return replace(row, found=f"{row.found} ({sizes})")
    when = trial.start.replace("T", " ") or "at a time that sbatch does not tell"
    where = f" on {trial.nodes}" if trial.nodes else ""
    found = f"accepted ({sizes}): it would start {when}{where}"
    if trial.preempts:
        return Row(topic, TRIAL, Verdict.NOTE, found, "", "", f"it would preempt {trial.preempts}")
    return Row(topic, TRIAL, Verdict.OK, found)


def refused(row: Row, said: str, job: app.Job, wanted: Wanted) -> Row:
    """Return `row` with sbatch's words whole, the values that they are about, the key, and what to do."""
    name = job.spec.partition or ""
    hint = explain_refusal(said, name)
    values, where = refused_values(hint, job.plan, name, job.site.document, wanted.flags)
    todo = f"{hint.todo}; --nodes asks for {wanted.nodes}" if wanted.nodes and "max_nodes" in hint.key else hint.todo
    found = " / ".join(line.strip() for line in said.splitlines() if line.strip())
    return replace(row, found=found, profile=values, key=hint.key, todo=todo, where=where)


_REMEDIES = {
    "account": "--account A here, account.default for every job",
    "qos": "--qos Q here, partitions.{name}.qos for every job",
    "constraint": "--set constraint=C here, partitions.{name}.constraint for every job",
    "reservation": "--set reservation=R here, partitions.{name}.reservation for every job",
    "--time": "--set resources.time=T here, partitions.{name}.time.default for every job",
    "--mem": "--set resources.mem_per_node=M here, partitions.{name}.memory for every job",
}
"""Field of a spec that a plan lacks, or option that a job must have → how a check gets it, and every job."""


def _unplanned(name: str, error: PlanError, wanted: Wanted) -> Row:
    told, todos = [], []
    for one in error.problems:
        remedy = _REMEDIES.get(one.where, "").format(name=name)
        if one.where == "resources.nodes" and wanted.nodes is not None:
            remedy = f"another --nodes than {wanted.nodes}"
        # What to change in a spec is of no use to who has none.
        todo = "" if remedy and one.todo.startswith(("set ", "ask for ")) else one.todo
        told.append(": ".join(part for part in (one.what, one.allowed, todo) if part))
        todos += [remedy] if remedy else []
    keys = ", ".join(dict.fromkeys(problem.where for problem in error.problems))
    return Row(topic_of(name), TRIAL, Verdict.UNPLANNED, "; ".join(told), "", keys, "; ".join(todos))


def plan_check(wanted: Wanted, site: Site, name: str, time: str | None, around: Surroundings) -> app.Job:
    """Plan a small job of the rehearsal engine in one logical partition.

    Raises:
        PlanError: the profile and what is wanted contradict each other.
    """
    profile = _with_mpi(site.profile, name)
    spec = _spec(wanted, profile.partitions[name], name, time)
    return app.make_job(spec, replace(site, profile=profile), around)


def limit_of(profile: SiteProfile, name: str, seconds: int) -> str:
    """Return the time limit of a job that needs so many seconds, within the rules of a logical partition."""
    rules = profile.partitions[name].time
    most, least = (None if text is None else parse_time(text) for text in (rules.max, rules.min))
    return format_time(max(least or 0, min(seconds, most or seconds)))


def _with_mpi(profile: SiteProfile, name: str) -> SiteProfile:
    """Return the profile with an MPI type: many engines need none, the rehearsal engine is not planned without."""
    launcher, partition = profile.for_partition(name).launcher, profile.partitions[name]
    if launcher.mpi is not None or not launcher.by_srun:
        return profile
    changed = partition.model_copy(update={"launcher": launcher.model_copy(update={"mpi": "none"})})
    return profile.model_copy(update={"partitions": {**profile.partitions, name: changed}})


def _spec(wanted: Wanted, partition: Partition, name: str, time: str | None) -> JobSpec:
    nodes, ranks = sizes_of(partition, wanted.nodes, wanted.room)
    ranks = wanted.ranks or ranks
    resources: dict[str, Tree] = {"nodes": nodes, "gpus_per_node": ranks}
    if time is not None:
        resources["time"] = time
    values: dict[str, Tree] = {
        "name": NAME,
        "engine": "rehearsal",
        "tensor_parallel_size": ranks,
        "pipeline_parallel_size": nodes,
        "resources": resources,
        "partition": name,
    }
    if wanted.account is not None:
        values["account"] = wanted.account
    if wanted.qos is not None:
        values["qos"] = wanted.qos
    if wanted.image is not None:
        values["container"] = {"image": wanted.image}
    return parse_spec(_document(wanted, values))


def room_of(partition: Partition, facts: ClusterFacts) -> int | None:
    """Return how many nodes the cluster has for a logical partition."""
    own = partition.slurm_partition
    names = own if isinstance(own, tuple) else (own,) if own is not None else ()
    kinds = [one for one in facts.partitions if (one.name in names if names else one.is_default)]
    parts = {one.name for one in kinds}
    chosen = chosen_nodes(partition, [one for one in facts.kinds if one.partition in parts])
    return chosen or sum(one.nodes for one in kinds) or None


def sizes_of(partition: Partition, asked: int | None, room: int | None = None) -> tuple[int, int]:
    """Return nodes and ranks a node: two nodes where the partition takes so many, all GPUs where nodes are whole."""
    whole = partition.whole_node or partition.exclusive is True or partition.gpu_request.style == "none"
    gpus, own = partition.gpus_per_node, partition.cpus
    ranks = gpus if whole and gpus else min(FEW_RANKS, gpus or FEW_RANKS)
    if not gpus and own.per_node is not None:
        ranks = min(ranks, max(1, own.per_node // (own.per_rank or 1)))
    limits = (MOST_NODES, partition.nodes, partition.limits.max_nodes, room)
    most = min(number for number in limits if number is not None)
    nodes = asked or max(most, partition.limits.min_nodes or 1)
    total = partition.limits.max_gpus
    if asked is None and gpus and total is not None and nodes * ranks > total:
        nodes, ranks = 1, min(ranks, total)
    return nodes, ranks
