"""Which GPUs a process is shown, by its environment and by the driver, and what is wrong with that."""

import threading
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import gpuwatch

DRIVER_S = 15.0
BUSY_MIB, BUSY_SHARE = 1024, 0.02
"""More than this in use before anything has started is somebody's."""
MOST_PIDS = 4


class Device(NamedTuple):
    """A GPU that this process may open: NVML's index, memory in MiB, who computes on it, its MIG devices."""

    gpu: int
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    pids: Tuple[int, ...] = ()
    slices: Tuple[str, ...] = ()


class Shown(NamedTuple):
    """What one rank is shown on its node: UUIDs of GPUs or MIG devices."""

    node: str
    rank: int
    uuids: Tuple[str, ...]


def devices(seconds: float = DRIVER_S) -> Optional[List[Device]]:
    """Return the GPUs that this process may open; none without a driver, None when it does not answer in time."""
    found: List[List[Device]] = []
    thread = threading.Thread(target=lambda: found.append(_ask()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _ask() -> List[Device]:
    source = gpuwatch.source()
    if source is None:
        return []
    inventory, look = source.inventory(), source.look()
    used = {gpu: own[0] for gpu, own in look["gpus"].items()}
    return [
        Device(
            own["gpu"],
            own["uuid"],
            own.get("name", ""),
            own["total_mib"],
            used.get(str(own["gpu"]), 0),
            tuple(sorted(int(pid) for pid, gpus in look["pids"].items() if str(own["gpu"]) in gpus)),
            tuple(own.get("slices", ())),
        )
        for own in inventory["gpus"]
    ]


def names_in(text: str) -> List[str]:
    """Return what a variable such as CUDA_VISIBLE_DEVICES names; Slurm's `NoDevFiles` means nothing."""
    return [name for name in (one.strip() for one in text.split(",")) if name and name != "NoDevFiles"]


def resolve(names: Iterable[str], known: Sequence[Device]) -> Dict[str, Optional[Device]]:
    """Return the device that each name means: an index among those that may be opened, a UUID or its beginning."""
    return {name: _device(name, known) for name in names}


def _device(name: str, known: Sequence[Device]) -> Optional[Device]:
    if name.isdigit():
        return known[int(name)] if int(name) < len(known) else None
    if name.startswith("MIG-"):
        # Before driver 470 a MIG device was named by its GPU: MIG-GPU-…/1/0.
        return next((own for own in known if name in own.slices or name.startswith("MIG-%s/" % own.uuid)), None)
    return next((own for own in known if own.uuid.startswith(name)), None)


def uuids(names: Iterable[str], known: Sequence[Device]) -> Tuple[str, ...]:
    """Return the UUIDs of the devices that names mean, a MIG device's own."""
    found = resolve(names, known)
    return tuple(name if name.startswith("MIG-") else own.uuid for name, own in found.items() if own is not None)


def problems(variable: str, text: str, known: Sequence[Device], gpus: int) -> List[str]:
    """Return what is wrong with the devices that a variable names, where the job has `gpus` on each node."""
    names, found = names_in(text), []
    unknown = [name for name, own in resolve(names, known).items() if own is None]
    if unknown:
        there = ", ".join("%d %s" % (own.gpu, own.uuid) for own in known) or "none"
        found.append("%s=%s names %s, the driver shows only %s" % (variable, text, ", ".join(unknown), there))
    elif len(known) < gpus and not any(name.startswith("MIG-") for name in names):
        found.append("the driver shows %d GPUs, the job has %d a node" % (len(known), gpus))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        found.append("%s=%s names %s more than once" % (variable, text, ", ".join(twice)))
    return found


def busy(known: Iterable[Device]) -> List[str]:
    """Return a sentence on each GPU that holds much before anything of the job runs on it."""
    return [
        "GPU %d (%s) has %d of %d MiB in use before the start%s"
        % (own.gpu, own.uuid, own.used_mib, own.total_mib, _by(own.pids))
        for own in known
        if own.used_mib > max(BUSY_MIB, BUSY_SHARE * own.total_mib)
    ]


def _by(pids: Sequence[int]) -> str:
    if not pids:
        return ", by nobody that the driver tells of"
    more = " and %d more" % (len(pids) - MOST_PIDS) if len(pids) > MOST_PIDS else ""
    return ", by process %s%s" % (", ".join(map(str, pids[:MOST_PIDS])), more)


def shared(mine: Shown, others: Iterable[Shown]) -> List[str]:
    """Return which ranks of this node would use the very GPU of this one: each is shown that one alone."""
    if len(mine.uuids) != 1:
        return []
    same = [one.rank for one in others if one.node == mine.node and one.uuids == mine.uuids and one.rank != mine.rank]
    if not same:
        return []
    ranks = ", ".join(map(str, sorted(same)))
    return ["it is shown %s alone, and so is rank %s: they would share that GPU" % (mine.uuids[0], ranks)]
