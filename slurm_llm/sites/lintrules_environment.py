"""Lint rules about the variables that a profile sets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_llm.agent.preflight import VISIBLE_ALL
from slurm_llm.sites.lintrules import Hit, Queue, queue_rules

_COMMAND = re.compile(r"\$\(|`")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]|\{)")
_SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_OF_SLURM = re.compile(r"(?:SLURM|SBATCH|SRUN|SALLOC)_")
_TUNING = re.compile(r"SLURM_(?:PMIX_|PMI_|MPI_|DEBUG|UNBUFFEREDIO|LLM_)")
"""Variables of plugins and daemons, which are no options of srun."""

_NOT_IB = ("slingshot", "efa", "ethernet")


def value_is_literal(queue: Queue) -> Iterator[Hit]:
    """Values of env.set are quoted: no shell sees them, so nothing in them is replaced or run."""
    for name, value in queue.site.env.set.items():
        text = str(value)
        if _COMMAND.search(text):
            what, todo = f"env.set.{name}: a command is not run here, the value is literal", "set it in prologue"
        elif _VARIABLE.search(text):
            what = f"env.set.{name}: a variable is not replaced here, the value is literal"
            todo = "write the value out, or export it in prologue"
        elif text == "~" or text.startswith("~/"):
            what, todo = f"env.set.{name}: ~ is not replaced here, the value is literal", "write the path out"
        else:
            continue
        yield Hit(queue.at("env", "set", name), what, todo)


def set_and_unset(queue: Queue) -> Iterator[Hit]:
    """Variables are unset first and then set: one in both lists is simply set."""
    for index, name in enumerate(queue.site.env.unset):
        if name in queue.site.env.set:
            what = f"{name} is in env.unset and in env.set, which wins"
            yield Hit(queue.at("env", "unset", index), what, "remove it from one of the two")


def search_path_replaced(queue: Queue) -> Iterator[Hit]:
    """Modules and images fill these variables: a value of the profile's own hides their programs and libraries."""
    for name in _SEARCH_PATHS:
        if name in queue.site.env.set:
            what = f"env.set.{name} takes the place of what modules and images put there"
            todo = f"put paths in front of it: env: {{prepend: {{{name}: [/path]}}}}"
            yield Hit(queue.at("env", "set", name), what, todo)


def variable_of_slurm(queue: Queue) -> Iterator[Hit]:
    """srun reads SLURM_* as options; since 23.11 it dies when two of them name the CPUs of a task."""
    for name in queue.site.env.set:
        if _OF_SLURM.match(name) and not _TUNING.match(name):
            what = f"{name} is read by Slurm's commands as an option"
            todo = "remove it and use the profile's own key, or sbatch_extra and srun_extra"
            yield Hit(queue.at("env", "set", name), what, todo)


def visible_devices(queue: Queue) -> Iterator[Hit]:
    """Slurm says which GPUs are the job's: a fixed list shows a rank those of another job."""
    for name in queue.site.env.set:
        if name in VISIBLE_ALL:
            what = f"{name} is set by Slurm for each job and step"
            yield Hit(queue.at("env", "set", name), what, "remove it")


def provider_of_another_fabric(queue: Queue) -> Iterator[Hit]:
    """libfabric finds no device of another fabric's provider: copied profiles carry such variables along."""
    fabric = queue.site.network.fabric
    for name, value in queue.site.env.set.items():
        provider = str(value).lower() if name == "FI_PROVIDER" else ""
        for word, own in (("efa", "efa"), ("cxi", "slingshot")):
            if (provider == word or name.startswith(f"FI_{word.upper()}_")) and fabric not in (None, own):
                what = f"{name} is for {own}, and network.fabric is {fabric}"
                yield Hit(queue.at("env", "set", name), what, "remove it, or correct network.fabric")


def verbs_on_another_fabric(queue: Queue) -> Iterator[Hit]:
    """NCCL_IB_* steers verbs devices, which Slingshot and EFA do not use: the variables change nothing there."""
    fabric = queue.site.network.fabric
    for name in queue.site.env.set:
        if name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE" and fabric in _NOT_IB:
            what = f"{name} is for InfiniBand and RoCE, and network.fabric is {fabric}"
            yield Hit(queue.at("env", "set", name), what, "remove it, or correct network.fabric")


def interface_differs(queue: Queue) -> Iterator[Hit]:
    """network.interface becomes both variables; one that is set wins, and two answers are a mistake or a riddle."""
    interface = queue.site.network.interface
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = queue.site.env.set.get(name)
        if interface is None or value is None or _names_interface(str(value), interface, name.startswith("NCCL")):
            continue
        what = f"env.set.{name} is {value}, and network.interface is {interface}"
        yield Hit(queue.at("env", "set", name), what, "remove the variable, or correct the interface")


def _names_interface(value: str, interface: str, by_prefix: bool) -> bool:
    """Tell whether a variable's list has `interface`; NCCL's are prefixes, `=` makes them exact, `^` excludes."""
    excludes, exact = value.startswith("^"), "=" in value[:2] or not by_prefix
    names = [name.strip() for name in value.lstrip("^=").split(",") if name.strip()]
    found = any(interface == name or (not exact and interface.startswith(name)) for name in names)
    return found != excludes


RULES = (
    *queue_rules("error", value_is_literal, variable_of_slurm, visible_devices, provider_of_another_fabric),
    *queue_rules("warning", search_path_replaced, set_and_unset, verbs_on_another_fabric, interface_differs),
)
