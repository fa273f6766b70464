"""What the ranks of a probe job saw around them, folded into rows: container, programs, environment."""

from __future__ import annotations

from slurm_llm.observe.checkrows import Row, Verdict, fold_values, names_of
from slurm_llm.observe.probe import Probe, job_rows, layout_rows, mpi_rows
from slurm_llm.observe.sightrows import gpu_rows, memory_rows, network_rows


def fold(probe: Probe) -> list[Row]:
    """Return every row of a probe, topic by topic."""
    parts = (job_rows, layout_rows, mpi_rows, gpu_rows, memory_rows, network_rows, container_rows, environment_rows)
    return [row for part in parts for row in part(probe)]


def container_rows(probe: Probe) -> list[Row]:
    """Return the rows of the container that ranks should be in, and of the programs there."""
    if not probe.ranks:
        return []
    return [*_boundary(probe), *_programs(probe), *_triton(probe)]


def _boundary(probe: Probe) -> list[Row]:
    own = probe.plan.container
    if own is None:
        return []
    hosts = {node["node"]: node["root"] for node in probe.nodes.values()}
    outside = {number for number, rank in probe.ranks.items() if rank["root"] == hosts.get(rank["node"])}
    images = fold_values({number: str(rank["os"]) for number, rank in probe.ranks.items()})
    row = Row("container", "boundary", Verdict.OK, f"every rank is inside; {images}", own.image, "container")
    if not outside:
        return [row]
    found = f"{names_of(outside, 'rank', len(probe.ranks))} run on the host itself, not in the image"
    odd = len(outside) < len(probe.ranks)
    todo = (
        "the runtime is missing on some nodes: ask the admins" if odd else "the runtime's options have no effect here"
    )
    return [Row(row.topic, row.name, Verdict.WRONG, found, own.image, "container.runtime", todo)]


def _programs(probe: Probe) -> list[Row]:
    inside = {n: f"{r['os']}, {r['glibc']}, Python {r['python']}, kernel {r['kernel']}" for n, r in probe.ranks.items()}
    rows = [Row("container" if probe.plan.container else "software", "ranks", Verdict.OK, fold_values(inside))]
    if probe.plan.container is not None:
        hosts = {n: f"{r['os']}, {r['glibc']}, Python {r['python']}" for n, r in probe.nodes.items()}
        rows.append(Row("container", "hosts", Verdict.OK, fold_values(hosts, "node")))
    return rows


def _triton(probe: Probe) -> list[Row]:
    found = {number: _first(rank["servers"]) for number, rank in probe.ranks.items()}
    topic, key = "container" if probe.plan.container else "software", "triton.server"
    told = probe.plan.server.home or "/opt/tritonserver"
    missing = [number for number, place in found.items() if not place]
    if not missing:
        return [Row(topic, "Triton", Verdict.OK, fold_values(found), told, key)]
    where = f"none in {told} or on PATH for {names_of(missing, 'rank', len(found))}"
    if probe.plan.container is None and probe.plan.server.home is None:
        if probe.wheel:
            return [Row(topic, "Triton", Verdict.OK, "of the wheel that is installed here", told, key)]
        if probe.profile.container.runtime != "none":
            return [Row(topic, "Triton", Verdict.NOTE, where, told, key, "specs must name an image that has it")]
    return [Row(topic, "Triton", Verdict.WRONG, where, told, key, "the folder that holds bin/tritonserver")]


def _first(servers: list[str] | str) -> str:
    return "" if isinstance(servers, str) or not servers else servers[0].removesuffix("/bin/tritonserver")


def environment_rows(probe: Probe) -> list[Row]:
    """Return the rows of variables that the plan sets or unsets."""
    if not probe.ranks:
        return []
    rows = []
    changed = {
        number: ", ".join(
            f"{name}={rank['env'].get(name)}" for name, value in probe.plan.env.set if rank["env"].get(name) != value
        )
        for number, rank in probe.ranks.items()
    }
    count = len(probe.plan.env.set)
    if any(changed.values()):
        inside = "container.pass_env keeps an image from changing them; " if probe.plan.container else ""
        todo = f"{inside}prologue and step_prologue run after env.set"
        found = fold_values({number: text or "as set" for number, text in changed.items()})
        rows.append(Row("environment", "set", Verdict.WRONG, found, f"{count} variables", "env.set", todo))
    elif count:
        text = f"{names_of(probe.ranks, 'rank', len(probe.ranks))} have them as set"
        rows.append(Row("environment", "set", Verdict.OK, text, f"{count} variables", "env.set"))
    set_too = {name for name, _ in probe.plan.env.set}
    kept = {
        number: ", ".join(name for name in probe.plan.env.unset if name not in set_too and rank["env"].get(name))
        for number, rank in probe.ranks.items()
    }
    if any(kept.values()):
        found = "still set: " + fold_values({number: text or "none" for number, text in kept.items()})
        rows.append(Row("environment", "unset", Verdict.WRONG, found, "", "env.unset", "something sets it after"))
    return rows
