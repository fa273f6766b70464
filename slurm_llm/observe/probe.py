"""What a probe job has written, folded into rows against the plan and the profile; reads its folder, asks nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm.agent import journal, survey
from slurm_llm.observe.checkrows import ERROR, MOST_ODD, Row, Verdict, fold_values, is_error, names_of
from slurm_llm.observe.refusals import Hint, explain_step
from slurm_llm.observe.text import clean, last_lines
from slurm_llm.plan.types import Plan
from slurm_llm.sites.profile import SiteProfile

Record = dict[str, Any]

EXPECTED = survey.EXPECTED
EVENTS, RANK_LOG, NODE_LOG = "job.jsonl", "ranks.log", "nodes.log"
SAID_LINES, READ_LINES = 4, 64
PUBLIC = ("huggingface.co", 443)
"""What nodes with a way to the internet try to reach: where models come from."""
OPT_TRITON = "/opt/tritonserver"
UNBOUND = ("none", "no")
"""Values of `srun --cpu-bind` that leave ranks unbound (srun(1))."""


@dataclass(frozen=True)
class Probe:
    """A probe's plan and profile, and all that came back; `profile` is the site as it is for the probed partition.

    `ranks` and `nodes` are records by number, `worlds` what each rank saw of its MPI world, `seen` when each node saw
    the files of the others; `codes` are the exit statuses of the two steps, None while they are not known.
    """

    plan: Plan
    profile: SiteProfile
    mpi_types: tuple[str, ...]
    batch: Record | None
    nodes: Mapping[int, Record]
    seen: Mapping[int, Record]
    ranks: Mapping[int, Record]
    worlds: Mapping[int, Record]
    codes: Mapping[str, int | None]
    rank_log: tuple[str, ...]
    node_log: tuple[str, ...]
    output: tuple[str, ...]
    wheel: bool = False
    """Whether ranks on the host may take the Triton of an installed wheel."""

    @property
    def whose(self) -> int:
        """Number of ranks that were planned."""
        return len(self.plan.ranks)


def expected_of(plan: Plan, profile: SiteProfile) -> Record:
    """Return what the surveying processes must know, as JSON values."""
    own = plan.allocation
    return {
        "ranks": len(plan.ranks),
        "nodes": own.nodes,
        "ranks_per_node": own.ranks_per_node,
        "by_srun": plan.step.by_srun,
        "mpi": plan.preflight_mpi and (plan.step.mpi or "none") != "none" if plan.step.by_srun else plan.preflight_mpi,
        "suffix": "" if plan.master is None else plan.master.suffix,
        "ports": [plan.ports.low, plan.ports.high],
        "local": plan.local_dir,
        "homes": [home for home in (plan.server.home, OPT_TRITON) if home],
        "variables": [*(name for name, _ in plan.env.set), *plan.env.unset],
        "internet": _public(profile),
    }


def _public(profile: SiteProfile) -> list[object]:
    own = profile.network
    if own.internet == "none":
        return []
    proxy = own.proxy.https or own.proxy.http or ""
    found = re.match(r"(?:\w+://)?(?:[^@/]*@)?([^:/]+):(\d+)", proxy)
    if own.internet == "proxy":
        return [found[1], int(found[2])] if found else []
    return list(PUBLIC)


def load_probe(folder: Path, plan: Plan, profile: SiteProfile, mpi_types: tuple[str, ...], wheel: bool) -> Probe:
    """Read the folder of a probe job that has ended."""
    records = [record for path in sorted(folder.glob("*.jsonl")) for record in journal.read(str(path))]
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(record["kind"], []).append(record)
    end = kinds.get("end", [{}])[-1]
    outputs = sorted(folder.glob("slurm-*.out"))
    return Probe(
        plan=plan,
        profile=profile,
        mpi_types=mpi_types,
        batch=next(iter(kinds.get("batch", [])), None),
        nodes={record["nodeid"]: record for record in kinds.get("node", [])},
        seen={record["nodeid"]: record for record in kinds.get("seen", [])},
        ranks={record["rank"]: record for record in kinds.get("rank", [])},
        worlds={record["rank"]: record for record in kinds.get("mpi", [])},
        codes={"ranks": end.get("ranks"), "nodes": end.get("nodes")},
        rank_log=_tail(folder / RANK_LOG),
        node_log=_tail(folder / NODE_LOG),
        output=_tail(outputs[-1]) if outputs else (),
        wheel=wheel,
    )


def _tail(path: Path) -> tuple[str, ...]:
    """Return the last different lines of a log, without the labels that srun puts before those of a task."""
    rows = (re.sub(r"^ *\d+: ", "", clean(row)) for row in last_lines(path, READ_LINES)[0])
    return tuple(dict.fromkeys(rows))[-SAID_LINES:]


def job_rows(probe: Probe) -> list[Row]:
    """Return the rows of the job itself: who has answered, how fast steps start, what the batch host can do."""
    if probe.batch is None:
        return [_nothing(probe)]
    rows = [_answers(probe)]
    if probe.codes["nodes"] or len(probe.nodes) < probe.plan.allocation.nodes:
        rows.append(_no_helper(probe))
    else:
        rows.append(Row("job", "side by side", Verdict.OK, "a light step ran on every node beside the ranks"))
    return [*rows, *_launch(probe), *_commands(probe.batch), *_names(probe)]


def _nothing(probe: Probe) -> Row:
    said = " / ".join(probe.output) or "and the job's output is empty"
    if "no Python at" in said:
        todo = "the path of Python 3.6 or newer on the compute nodes"
        return Row("job", "Python", Verdict.WRONG, said, probe.plan.python or "", "python", todo)
    hint = Hint("prologue, modules", "the script ended before its first look")
    return Row("job", "script", Verdict.WRONG, f"nothing was written: {said}", "", hint.key, hint.todo)


def _answers(probe: Probe) -> Row:
    missing = set(range(probe.whose)) - set(probe.ranks)
    if not missing:
        return Row("job", "ranks", Verdict.OK, f"{names_of(probe.ranks, 'rank', probe.whose)} answered")
    said = " / ".join(probe.rank_log)
    hint = explain_step(said, probe.mpi_types)
    found = f"{names_of(missing, 'rank', probe.whose)} did not answer: {said or 'and srun said nothing'}"
    return Row("job", "ranks", Verdict.WRONG, found, _told(probe, hint.key), hint.key, hint.todo)


def _told(probe: Probe, key: str) -> str:
    return probe.profile.launcher.mpi or "none" if key == "launcher.mpi" else ""


def _no_helper(probe: Probe) -> Row:
    said = " / ".join(probe.node_log) or "and srun said nothing"
    hint = explain_step(said, ())
    missing = names_of(set(range(probe.plan.allocation.nodes)) - set(probe.nodes), "node", probe.plan.allocation.nodes)
    found = f"the light step beside the ranks failed ({missing} silent): {said}"
    return Row("job", "side by side", Verdict.WRONG, found, "", hint.key, hint.todo)


def _launch(probe: Probe) -> list[Row]:
    times = [rank["launch_s"] for rank in probe.ranks.values() if rank.get("launch_s") is not None]
    if not times:
        return []
    return [Row("job", "step launch", Verdict.OK, f"{max(times):.1f} s from srun to the last rank's first line")]


def _commands(batch: Record) -> list[Row]:
    wrong = [
        f"{name}: {str(batch[name]).removeprefix(ERROR)}" for name in ("scontrol", "scancel") if is_error(batch[name])
    ]
    if not wrong:
        return [Row("job", "Slurm inside", Verdict.OK, "scontrol and scancel answer on the batch host")]
    todo = "a job there cannot ask about itself"
    return [Row("job", "Slurm inside", Verdict.NOTE, "; ".join(wrong), "", "", todo)]


def _names(probe: Probe) -> list[Row]:
    differing = {number: f"{node['node']} is {node['hostname']}" for number, node in probe.nodes.items()}
    odd = {k: v for k, v in differing.items() if probe.nodes[k]["hostname"].partition(".")[0] != probe.nodes[k]["node"]}
    if not odd:
        return []
    return [Row("job", "host names", Verdict.NOTE, "Slurm's name is not the host's: " + fold_values(odd, "node"))]


def layout_rows(probe: Probe) -> list[Row]:
    """Return the rows of where ranks run, and on how many CPUs."""
    each, ranks = probe.plan.allocation.ranks_per_node, probe.ranks
    if not ranks:
        return []
    wrong = [
        f"rank {number} is on {rank['nodeid']}" for number, rank in ranks.items() if rank["nodeid"] != number // each
    ]
    nodes = len({rank["node"] for rank in ranks.values()})
    text = f"{len(ranks)} ranks on {nodes} node{'s' if nodes > 1 else ''}"
    row = Row("layout", "ranks", Verdict.OK, f"{text}, {each} a node, in order")
    if wrong:
        found = f"{text}, not {each} a node in order: of the job's nodes {', '.join(wrong[:MOST_ODD])}"
        row = Row("layout", "ranks", Verdict.WRONG, found, "", "partitions.*.distribution, srun_extra", "remove it")
    return [row, _cpus(probe)]


def _cpus(probe: Probe) -> Row:
    asked = probe.plan.allocation.cpus_per_rank
    counts = {number: f"{rank['cpus']} CPUs" for number, rank in probe.ranks.items()}
    few = [number for number, rank in probe.ranks.items() if isinstance(rank["cpus"], int) and rank["cpus"] < asked]
    found = fold_values(counts)
    if not few:
        return Row("layout", "CPUs", Verdict.OK, found, f"{asked} a rank")
    if probe.plan.step.cpu_bind not in UNBOUND:
        key = "launcher.step.cpu_bind"
        return Row("layout", "CPUs", Verdict.WRONG, found, f"{asked} a rank", key, "none leaves binding out")
    least = min(rank["cpus"] for rank in probe.ranks.values() if isinstance(rank["cpus"], int))
    key = _cpus_key(probe)
    most = least if key.endswith("per_node") else max(1, least // probe.plan.allocation.ranks_per_node)
    todo = f"at most {most}: ranks are not bound to CPUs, so the nodes have fewer for a job than Slurm claims"
    return Row("layout", "CPUs", Verdict.WRONG, found, f"{asked} a rank", key, todo)


def _cpus_key(probe: Probe) -> str:
    """Return the key that the ranks' number of CPUs is from."""
    name, partition = next(iter(probe.profile.partitions.items()))
    return f"partitions.{name}.cpus.{'per_node' if partition.cpus.per_rank is None else 'per_rank'}"


def mpi_rows(probe: Probe) -> list[Row]:
    """Return the rows of the MPI world."""
    if not expected_of(probe.plan, probe.profile)["mpi"]:
        return [Row("MPI", "world", Verdict.NOTE, "not looked at: launcher.mpi or preflight.mpi says so")]
    if not probe.ranks:
        return []
    worlds = {number: record["world"] for number, record in probe.worlds.items()}
    errors = {number: world for number, world in worlds.items() if is_error(world)}
    if len(worlds) < len(probe.ranks) or errors:
        return [_no_world(probe, errors)]
    sizes = {number: world["size"] for number, world in worlds.items()}
    if set(sizes.values()) != {probe.whose}:
        return [_split_world(probe, sizes)]
    who = worlds[min(worlds)]["who"]
    if probe.plan.step.by_srun and [task for task, _ in who] != list(range(probe.whose)):
        found = f"MPI ranks are the Slurm tasks {[task for task, _ in who]}"
        return [Row("MPI", "world", Verdict.WRONG, found, "", "partitions.*.distribution", "remove it")]
    slowest = max(world["init_s"] for world in worlds.values())
    exchange = max(world["exchange_s"] for world in worlds.values())
    nodes = len({node for _, node in who})
    found = f"{probe.whose} ranks on {nodes} node{'s' if nodes > 1 else ''} in one world"
    library = Row("MPI", "library", Verdict.OK, fold_values({k: w["library"] for k, w in worlds.items()}))
    times = Row("MPI", "times", Verdict.OK, f"joined in {slowest:.1f} s, first exchange {exchange * 1000:.0f} ms")
    return [Row("MPI", "world", Verdict.OK, found, _told(probe, "launcher.mpi"), "launcher.mpi"), library, times]


def _no_world(probe: Probe, errors: Mapping[int, str]) -> Row:
    told, key = _told(probe, "launcher.mpi"), "launcher.mpi"
    if errors and all("No module named" in text for text in errors.values()):
        pmi = fold_values({number: ", ".join(rank["pmi"]) or "nothing" for number, rank in probe.ranks.items()})
        found = f"no mpi4py here, so no world was tried; of PMI the environment has, {pmi}"
        todo = "preflight.mpi: false where the image has none"
        return Row("MPI", "world", Verdict.NOTE, found, told, key, todo)
    missing = set(probe.ranks) - set(probe.worlds)
    what = fold_values(errors) if errors else f"{names_of(missing, 'rank', probe.whose)} ended while joining"
    said = "" if errors else ": " + " / ".join(probe.rank_log)
    return Row("MPI", "world", Verdict.WRONG, what + said, told, key, _mpi_remedy(probe))


def _split_world(probe: Probe, sizes: Mapping[int, int]) -> Row:
    alone = set(sizes.values()) == {1}
    found = "every rank is alone in its world" if alone else f"worlds differ in size: {fold_values(_texts(sizes))}"
    return Row("MPI", "world", Verdict.WRONG, found, _told(probe, "launcher.mpi"), "launcher.mpi", _mpi_remedy(probe))


def _mpi_remedy(probe: Probe) -> str:
    told = probe.profile.launcher.mpi
    others = [name for name in probe.mpi_types if name not in (told, "none")]
    offers = f"srun --mpi=list offers {', '.join(probe.mpi_types)}" if probe.mpi_types else "see `srun --mpi=list`"
    likely = next((name for name in others if name.startswith("pmix")), None)
    if likely is not None and not (told or "").startswith("pmix"):
        return f"launcher.mpi: {likely}; {offers}"
    return f"the MPI library must speak {told}, in the image too; {offers}"


def _texts(values: Mapping[int, object]) -> dict[int, str]:
    return {number: str(value) for number, value in values.items()}
