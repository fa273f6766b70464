"""What the ranks and nodes of a probe job saw, folded into rows: GPUs, shared memory, limits, folders, network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slurm_llm.agent.preflight import VISIBLE_BY_VENDOR
from slurm_llm.observe.checkrows import Row, Verdict, fold_values, is_error, names_of
from slurm_llm.observe.probe import Probe, Record

CLOCK_S, LATE_S = 0.5, 2.0
"""Seconds beyond which clocks that differ, and files of other nodes that show late, are worth a note."""
FEW_PORTS = 3
RDMA = frozenset({"infiniband", "roce", "slingshot", "efa", "gib"})
SHM = "/dev/shm"
_DEVICES = {"nvidia": "/dev/nvidia", "amd": "/dev/dri/renderD", "intel": "/dev/dri/renderD"}


def gpu_rows(probe: Probe) -> list[Row]:
    """Return the rows of the GPUs that Slurm shows to the ranks, and of the devices that open."""
    partition = next(iter(probe.profile.partitions.values()))
    if not partition.gpus_per_node or not probe.ranks:
        return []
    vendor = partition.gpu.vendor
    rows = [_visible(probe, VISIBLE_BY_VENDOR[vendor])] if probe.plan.allocation.gpus.per_node else []
    return [*rows, *_devices(probe, _DEVICES[vendor]), *_models(probe)]


def _visible(probe: Probe, names: tuple[str, ...]) -> Row:
    asked, key = probe.plan.allocation.gpus.per_node, "gpu_request of the partition"
    shown = {number: _shown(rank, names) for number, rank in probe.ranks.items()}
    wrong = [number for number, text in shown.items() if _count(text) != asked]
    told = fold_values({number: text or "none" for number, text in shown.items()})
    row = Row("GPUs", "visible", Verdict.OK, told, f"{asked} a rank", key)
    if not wrong:
        return row
    todo = f"look at gpu_request.step, launcher.step.gpu_bind and at what sets {names[0]}"
    return Row(row.topic, row.name, Verdict.WRONG, told, row.profile, key, todo)


def _shown(rank: Record, names: tuple[str, ...]) -> str:
    gpus = rank["gpus"]
    return "" if is_error(gpus) else next((gpus["variables"][name] for name in names if name in gpus["variables"]), "")


def _count(text: str) -> int:
    return len([name for name in text.split(",") if name and name != "NoDevFiles"])


def _devices(probe: Probe, prefix: str) -> list[Row]:
    ranks = {number: _opening(rank, prefix) for number, rank in probe.ranks.items()}
    nodes = {number: _opening(node, prefix) for number, node in probe.nodes.items()}
    partition = next(iter(probe.profile.partitions.values()))
    told = fold_values({number: f"{count} open" for number, count in ranks.items()})
    own = probe.plan.allocation.gpus.per_node or partition.gpus_per_node
    row = Row("GPUs", "device files", Verdict.OK, f"{told} ({prefix}*)", f"{own} a node", "gpus_per_node")
    if not any(ranks.values()) and not any(_listed(one, prefix) for one in (*probe.nodes.values(),)):
        todo = "Slurm gives GPUs here that have no device files"
        return [Row(row.topic, row.name, Verdict.NOTE, f"no {prefix}* on the nodes", "", "", todo)]
    if probe.plan.container is not None and not any(ranks.values()):
        todo = f"the nodes have {max(nodes.values(), default=0)} open: the runtime must bring them in (gpu_flag, hooks)"
        return [Row(row.topic, row.name, Verdict.WRONG, "none in the container", row.profile, "container", todo)]
    if all(count >= own for count in ranks.values()):
        return [row]
    todo = "fewer devices open than the profile counts"
    return [Row(row.topic, row.name, Verdict.WRONG, row.found, row.profile, row.key, todo)]


def _opening(record: Record, prefix: str) -> int:
    gpus = record["gpus"]
    return 0 if is_error(gpus) else sum(v is True for name, v in gpus["devices"].items() if name.startswith(prefix))


def _listed(record: Record, prefix: str) -> bool:
    gpus = record["gpus"]
    return not is_error(gpus) and any(name.startswith(prefix) for name in gpus["devices"])


def _models(probe: Probe) -> list[Row]:
    lists = {number: rank["gpus"]["nvidia_smi"] for number, rank in probe.ranks.items() if not is_error(rank["gpus"])}
    lists = {number: rows for number, rows in lists.items() if rows is not None}
    if not lists:
        return []
    told = {number: rows if is_error(rows) else _names(rows) for number, rows in lists.items()}
    verdict = Verdict.NOTE if any(map(is_error, lists.values())) else Verdict.OK
    return [Row("GPUs", "nvidia-smi", verdict, fold_values(told))]


def _names(rows: list[str]) -> str:
    """Return `4 × NVIDIA A100-SXM4-40GB` of `GPU 0: NVIDIA A100-SXM4-40GB (UUID: …)` lines."""
    found = [match[1] for row in rows if (match := re.match(r"GPU \d+: (.*?) \(UUID", row))]
    return ", ".join(f"{found.count(name)} × {name}" for name in dict.fromkeys(found)) or "no GPU"


def memory_rows(probe: Probe) -> list[Row]:
    """Return the rows of /dev/shm, of the node-local folder and of the limits of a rank."""
    if not probe.ranks:
        return []
    rows = [_shm(probe), *_folder(probe, SHM, "container")]
    if probe.plan.local_dir != SHM:
        rows += _folder(probe, probe.plan.local_dir, "storage.local")
    return [*rows, *_limits(probe)]


def _shm(probe: Probe) -> Row:
    spaces = {number: rank["shm"] for number, rank in probe.ranks.items()}
    need = probe.plan.dev_shm_mib * probe.plan.allocation.ranks_per_node
    errors = {number: text for number, text in spaces.items() if is_error(text)}
    if errors:
        return Row("memory", SHM, Verdict.WRONG, fold_values(errors), f"{need} MiB", "container", "")
    sizes = sorted({space["size_mib"] for space in spaces.values()})
    least = min(space["free_mib"] for space in spaces.values())
    size = " to ".join(dict.fromkeys((f"{sizes[0]}", f"{sizes[-1]}")))
    row = Row("memory", SHM, Verdict.OK, f"{size} MiB, at least {least} MiB free", f"{need} MiB a node")
    if least >= need:
        return row
    todo = "a larger one is the admins' or the container runtime's; preflight.dev_shm_mib is what a rank needs"
    return Row(row.topic, row.name, Verdict.WRONG, row.found, row.profile, "container", todo)


def _folder(probe: Probe, folder: str, key: str) -> list[Row]:
    writable = {number: rank["writable"].get(folder) for number, rank in probe.ranks.items()}
    refused = {number: str(value) for number, value in writable.items() if value is not True}
    if refused:
        found = f"cannot be written: {fold_values(refused)}"
        return [Row("memory", folder, Verdict.WRONG, found, folder, key, "a folder of the nodes that users may write")]
    met = {number: rank["together"].get(folder) for number, rank in probe.ranks.items()}
    apart = {number for number, names in met.items() if is_error(names) or not _peers(probe, number) <= set(names)}
    if apart:
        found = f"not shared by the ranks of a node: {names_of(apart, 'rank', len(met))} saw not all others"
        inside = "a container of its own for each rank: join them, or mount the node's folder"
        todo = inside if probe.plan.container else "a folder of the node, not of a task"
        return [Row("memory", folder, Verdict.WRONG, found, folder, key, todo)]
    if all("node" in names for names in met.values()):
        return [Row("memory", folder, Verdict.OK, "writable, shared by the ranks of a node and with its host")]
    found = "writable, shared by the ranks of a node, but not the host's own"
    return [Row("memory", folder, Verdict.NOTE, found, "", key, "what ranks leave there is not cleaned by the host")]


def _peers(probe: Probe, number: int) -> set[str]:
    node = probe.ranks[number]["node"]
    return {str(other) for other, rank in probe.ranks.items() if rank["node"] == node}


def _limits(probe: Probe) -> Iterable[Row]:
    asked = probe.profile.ulimits
    for name in ("memlock", "nofile", "stack", "core", "nproc"):
        told = getattr(asked, name)
        limits = {number: rank["limits"][name] for number, rank in probe.ranks.items() if not is_error(rank["limits"])}
        if not limits:
            continue
        soft = {number: str(pair[0]) for number, pair in limits.items()}
        key, row_name = f"ulimits.{name}", f"ulimit {name}"
        if told is not None:
            hard = " or ".join(sorted({str(pair[1]) for pair in limits.values()}))
            good = set(soft.values()) == {str(told)}
            todo = (
                ""
                if good
                else f"the hard limit here is {hard}: admins raise it (slurmd's own limit), or leave the key out"
            )
            verdict = Verdict.OK if good else Verdict.WRONG
            yield Row("memory", row_name, verdict, fold_values(soft), str(told), key, todo)
        elif name == "memlock" and probe.profile.network.fabric in RDMA and set(soft.values()) != {"unlimited"}:
            todo = f"{probe.profile.network.fabric} pins memory: {key}: unlimited, if the hard limit allows"
            yield Row("memory", row_name, Verdict.NOTE, fold_values(soft), "", key, todo)


def network_rows(probe: Probe) -> list[Row]:
    """Return the rows of interfaces, names, connections, ports, clocks and files that travel between nodes."""
    if not probe.ranks:
        return []
    rows = [*_interface(probe), _reach(probe), *_own_names(probe), *_ports(probe)]
    return [*rows, *_clocks(probe), *_files(probe), *_internet(probe)]


def _interface(probe: Probe) -> list[Row]:
    told, key = probe.profile.network.interface, "network.interface"
    there = {number: rank["interfaces"] for number, rank in probe.ranks.items() if not is_error(rank["interfaces"])}
    if not there:
        return []
    common = "; ".join(dict.fromkeys(_addresses(found) for found in list(there.values())[:2]))
    if told is None:
        return [Row("network", "interfaces", Verdict.OK, common, "not given", key)]
    wrong = {number for number, found in there.items() if not found.get(told)}
    if wrong:
        found = f"{names_of(wrong, 'rank', len(there))} have no such interface with an address; there are {common}"
        return [Row("network", "interface", Verdict.WRONG, found, told, key, "one of those that are there")]
    return [Row("network", "interface", Verdict.OK, "is there with an address, for every rank", told, key)]


def _addresses(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {address}" for name, address in found.items() if address and name != "lo") or "none"


def _reach(probe: Probe) -> Row:
    tried = {number: rank["reach"] for number, rank in probe.ranks.items() if rank["reach"] is not None}
    errors = {number: text for number, text in tried.items() if is_error(text)}
    door = probe.ranks.get(0, {}).get("listens")
    if door:
        return Row("network", "rank 0", Verdict.WRONG, f"cannot listen: {door}", "", "network.ports", "another range")
    host_knows = not any(is_error(node["resolved"]) for node in probe.nodes.values())
    if errors and probe.plan.container and host_knows and all("name" in text for text in errors.values()):
        todo = "/etc/hosts, or what else names the nodes: their hosts know the name, the image does not"
        return Row("network", "rank 0", Verdict.WRONG, fold_values(errors), "", "container.mounts", todo)
    if errors:
        suffix = probe.plan.master.suffix if probe.plan.master else ""
        todo = "by another name (network.rendezvous.suffix), or over other ports (network.ports)"
        return Row("network", "rank 0", Verdict.WRONG, fold_values(errors), suffix, "network.rendezvous", todo)
    if not tried:
        return Row("network", "rank 0", Verdict.UNKNOWN, "no rank has tried to reach it")
    last = tried[max(tried)]
    names = "one rank of every node" if len(tried) > 1 else "its own node"
    found = f"{names} reached {last['name']} ({last['address']}) in {last['connect_ms']:.1f} ms"
    return Row("network", "rank 0", Verdict.OK, found)


def _own_names(probe: Probe) -> list[Row]:
    own = {number: node["resolved"] for number, node in probe.nodes.items()}
    odd = {n: text if is_error(text) else ", ".join(text) for n, text in own.items() if _is_odd(text)}
    if not odd:
        return []
    todo = "a server that binds its own name there is not reached from other nodes"
    return [Row("network", "own name", Verdict.NOTE, f"resolves to {fold_values(odd, 'node')}", "", "", todo)]


def _is_odd(resolved: str | list[str]) -> bool:
    return isinstance(resolved, str) or all(address.startswith("127.") or address == "::1" for address in resolved)


def _ports(probe: Probe) -> list[Row]:
    tried = {number: node["ports"] for number, node in probe.nodes.items() if not is_error(node["ports"])}
    key, told = "network.ports", probe.profile.network.ports
    if not tried:
        return []
    busy = {number: len(found["busy"]) for number, found in tried.items()}
    most, sample = max(busy.values()), next(iter(tried.values()))["tried"]
    found = f"{sample} tried on each node, {most} in use" + (" at most" if most else "")
    if sample - most < FEW_PORTS:
        return [Row("network", "ports", Verdict.WRONG, found, told, key, "another range")]
    overlap = [node["ephemeral"] for node in probe.nodes.values() if _overlaps(node["ephemeral"], told)]
    if overlap:
        low, high = overlap[0]
        todo = f"the kernel gives {low}-{high} to outgoing connections: a port may be taken at any time"
        return [Row("network", "ports", Verdict.NOTE, found, told, key, todo)]
    return [Row("network", "ports", Verdict.OK, found, told, key)]


def _overlaps(ephemeral: str | list[int], told: str) -> bool:
    low, high = (int(word) for word in told.split("-"))
    return not isinstance(ephemeral, str) and ephemeral[0] <= high and low <= ephemeral[1]


def _clocks(probe: Probe) -> list[Row]:
    ahead = {r["node"]: r["reach"]["clock_s"] for r in probe.ranks.values() if isinstance(r["reach"], dict)}
    if len(ahead) < 2:
        return []
    spread = max(ahead.values()) - min(ahead.values())
    if spread <= CLOCK_S:
        return [Row("network", "clocks", Verdict.OK, f"within {max(spread, 0.001):.3f} s of each other")]
    todo = "times in merged logs mislead: the nodes' clocks need NTP"
    return [Row("network", "clocks", Verdict.NOTE, f"up to {spread:.1f} s apart", "", "", todo)]


def _files(probe: Probe) -> list[Row]:
    """Return how late the files of other nodes show in the job's folder; the clocks are set right by rank 0's."""
    others = probe.plan.allocation.nodes - 1
    if not others or not probe.seen:
        return []
    ahead = {r["nodeid"]: r["reach"]["clock_s"] for r in probe.ranks.values() if isinstance(r["reach"], dict)}
    late, unseen = [0.0], set()
    for number, record in probe.seen.items():
        files = {} if is_error(record["files"]) else record["files"]
        if len(files) < others:
            unseen.add(number)
        for name, at in files.items():
            other = int(name.partition("-")[2].partition(".")[0])
            if other in probe.nodes:
                written = probe.nodes[other]["t"] + ahead.get(other, 0.0)
                late.append(
                    at + ahead.get(number, 0.0) - max(written, probe.nodes[number]["t"] + ahead.get(number, 0.0))
                )
    if unseen:
        found = f"{names_of(unseen, 'node', len(probe.seen))} did not see the files of the others"
        todo = "a folder that all nodes share"
        return [Row("network", "shared files", Verdict.WRONG, found, "", "storage.logs", todo)]
    verdict = Verdict.NOTE if max(late) > LATE_S else Verdict.OK
    todo = "what other nodes write shows late: status lags behind" if verdict is Verdict.NOTE else ""
    found = f"what one node writes others see within {max(max(late), 0.01):.2f} s"
    return [Row("network", "shared files", verdict, found, "", "storage.logs" if todo else "", todo)]


def _internet(probe: Probe) -> list[Row]:
    told, key = probe.profile.network.internet, "network.internet"
    reached = {number: node["internet"] for number, node in probe.nodes.items() if node["internet"] is not None}
    if not reached:
        return []
    target = "the proxy" if told == "proxy" else "the internet"
    if all(value is True for value in reached.values()):
        return [Row("network", "internet", Verdict.OK, f"{target} is reached from every node", told, key)]
    texts = {number: "reached" if value is True else str(value) for number, value in reached.items()}
    todo = "none keeps jobs from trying to download; proxy needs network.proxy"
    return [Row("network", "internet", Verdict.NOTE, f"{target}: {fold_values(texts, 'node')}", told, key, todo)]
