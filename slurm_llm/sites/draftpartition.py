"""The lines of one drafted partition: how its GPUs, CPUs, memory and time are asked for, and who may use it."""

from __future__ import annotations

import re

from slurm_llm.sites.draftqueues import Queue
from slurm_llm.sites.drafttext import Draft, guessed, read
from slurm_llm.slurm.formats import format_mem, format_time, parse_reported_time
from slurm_llm.slurm.survey import PartitionRules, Survey
from slurm_llm.yamlio import Tree

DEFAULT_TIME_S = 3600
MOST_FEATURES = 8
"""Features that a remark lists."""
GIB = 1024
PARTITION, NODES = "scontrol show partition", "sinfo"
_ARCHES = ("x86_64", "aarch64")
_AMD, _INTEL = re.compile(r"^mi\d"), re.compile(r"^(?:pvc|max\d|ponte)")


def add_partition(draft: Draft, survey: Survey, queue: Queue) -> None:
    """Add a logical partition's keys, in the order of the schema."""
    shape, rules = queue.shape, queue.rules
    others = f"; its other nodes: {', '.join(queue.others)}" if queue.others else ""
    draft.key(1, queue.name, f"{PARTITION} {rules.name}{others}")
    draft.key(2, "slurm_partition", read(PARTITION, "PartitionName"), rules.name)
    _qos(draft, survey, rules)
    if queue.constraint:
        draft.key(2, "constraint", guessed("a feature that only these nodes have (sinfo)"), queue.constraint)
    _some_features(draft, queue)
    down = f", {shape.nodes - shape.up} of them not up now" if shape.nodes > shape.up else ""
    draft.key(2, "nodes", read(NODES, f"%D{down}"), shape.nodes)
    if shape.arch in _ARCHES:
        draft.key(2, "arch", read("scontrol show node", "Arch"), shape.arch)
    else:
        draft.key(2, "arch", guessed("no node told its Arch"), "x86_64")
    _gpus(draft, survey, queue)
    _cpus(draft, queue)
    _memory(draft, survey, queue)
    _time(draft, rules)
    _limits(draft, queue)
    _preemption(draft, survey, rules)
    _who_may(draft, survey, rules)


def _some_features(draft: Draft, queue: Queue) -> None:
    some, nodes = queue.shape.some, queue.shape.nodes
    if not some:
        return
    told = ", ".join(f"{feature} {number}" for feature, number in some[:MOST_FEATURES])
    more = f" and {len(some) - MOST_FEATURES} features more" if len(some) > MOST_FEATURES else ""
    use = f"To keep jobs on some of them: constraint: {some[0][0]} ('a&b' for both, 'a|b' for either), and their number"
    draft.remark(2, f"Its nodes differ in features, of {nodes} have: {told}{more} (sinfo: %f). {use} as nodes")


def _qos(draft: Draft, survey: Survey, rules: PartitionRules) -> None:
    allowed = rules.names("AllowQos")
    own = list(dict.fromkeys(name for one in survey.associations for name in one.qos))
    default = {one.default_qos or "normal" for one in survey.associations}
    if not allowed:
        return
    usable = [name for name in own if name in allowed]
    told = f"AllowQos={','.join(allowed)}"
    if not own:
        draft.remark(2, f"{told}, and your own QOS were not told: set qos where the default one is not among them")
    elif not usable:
        draft.remark(2, f"{told}: none of yours ({', '.join(own)}) is among them")
    elif not default & set(usable):
        more = f", of yours {', '.join(usable)}" if len(usable) > 1 else ""
        draft.key(2, "qos", guessed(f"{told}{more}; your default QOS is not among them"), usable[0])


def _gpus(draft: Draft, survey: Survey, queue: Queue) -> None:
    shape, gpu = queue.shape, queue.shape.gpu
    if not gpu.count:
        draft.key(2, "gpus_per_node", read(NODES, "%G has no GPU; GPUs that Slurm does not count need whole_node"), 0)
        _whole_node(draft, survey, queue)
        return
    draft.key(2, "gpus_per_node", read(NODES, f"%G {f'gpu:{gpu.type}' if gpu.type else 'gpu'}:{gpu.count}"), gpu.count)
    about: dict[str, Tree] = {}
    if shape.model:
        vendor = "amd" if _AMD.match(shape.model) else "intel" if _INTEL.match(shape.model) else None
        about = {"vendor": vendor, "model": shape.model} if vendor else {"model": shape.model}
    if queue.typed:
        about["slurm_type"] = gpu.type
    elif gpu.type:
        by_name = f"gpu: {{slurm_type: {gpu.type}}} with gpu_request: {{typed: true}}"
        draft.remark(2, f"To ask for these GPUs by their type in Slurm: {by_name}")
    if about:
        draft.key(2, "gpu", read(NODES, "%G" if gpu.type else "%f"), about)
    trackable = survey.config.get("SelectType", "") == "select/cons_tres"
    style = "gpus_per_node" if trackable else "gres"
    request: dict[str, Tree] = {"style": style, "typed": True} if queue.typed else {"style": style}
    why = f"{survey.config.get('SelectType') or 'SelectType unknown'}; some sites want another one"
    draft.key(2, "gpu_request", guessed(why), request)
    _whole_node(draft, survey, queue)
    if queue.others and not queue.typed and not queue.constraint:
        draft.remark(2, "Nothing tells these nodes from the partition's others: jobs may start on any that fit")


def _whole_node(draft: Draft, survey: Survey, queue: Queue) -> None:
    why = _whole(survey, queue.rules)
    if why:
        draft.key(2, "whole_node", why, True)


def _whole(survey: Survey, rules: PartitionRules) -> str:
    """Return why only whole nodes are given, an empty text where nodes are shared."""
    if rules.get("OverSubscribe").upper() == "EXCLUSIVE":
        return read(PARTITION, "OverSubscribe=EXCLUSIVE")
    if survey.config.get("SelectType") == "select/linear":
        return read("scontrol show config", "SelectType=select/linear")
    return ""


def _cpus(draft: Draft, queue: Queue) -> None:
    shape, most = queue.shape, queue.rules.get("MaxCPUsPerNode")
    per_node = min(shape.cpus, int(most)) if most.isdecimal() and int(most) else shape.cpus
    if per_node < 1:
        return
    cpus: dict[str, Tree] = {"per_node": per_node}
    each = _job_default(queue.rules, "DefCpuPerGPU")
    note = f"%c{f', {shape.threads_per_core} threads a core' if shape.threads_per_core > 1 else ''}"
    if each and shape.gpu.count and each * shape.gpu.count <= per_node:
        cpus["per_rank"] = each
        note += "; JobDefaults has DefCpuPerGPU"
    mixed = ", the smallest of its nodes" if shape.mixed else ""
    draft.key(2, "cpus", read(NODES, note + mixed), cpus)


def _memory(draft: Draft, survey: Survey, queue: Queue) -> None:
    shape, rules = queue.shape, queue.rules
    counted = rules.get("SelectTypeParameters") or survey.config.get("SelectTypeParameters", "")
    if "MEMORY" not in counted.upper():
        why = read("scontrol show config", f"SelectTypeParameters={counted or '(null)'} counts no memory")
        draft.key(2, "memory", why if survey.config else guessed("nothing was read"), {"style": "none"})
        return
    most = rules.get("MaxMemPerNode")
    usable = min(shape.mem_mib, int(most)) if most.isdecimal() and int(most) else shape.mem_mib
    share = usable // (shape.gpu.count or max(1, shape.cpus))
    if share < 1:
        draft.remark(2, "memory: the size of its nodes was not told")
        return
    memory: dict[str, Tree] = {"per_rank": format_mem(share if share < 8 * GIB else share // GIB * GIB)}
    if shape.gpu.count or _whole(survey, rules):
        memory["whole_node"] = format_mem(usable) if usable < shape.mem_mib else "0"
    what = "a GPU" if shape.gpu.count else "a CPU"
    draft.key(2, "memory", guessed(f"{what}'s share of {usable} MiB (sinfo: %m); {counted} counts memory"), memory)


def _time(draft: Draft, rules: PartitionRules) -> None:
    longest, usual = _seconds(rules, "MaxTime"), _seconds(rules, "DefaultTime")
    time: dict[str, Tree] = {} if longest is None else {"max": format_time(longest)}
    limit = f"MaxTime={rules.fields.get('MaxTime', '?')}"
    if usual is not None and (longest is None or usual <= longest):
        time["default"] = format_time(usual)
        draft.key(2, "time", read(PARTITION, f"{limit}, DefaultTime"), time)
        return
    time["default"] = format_time(DEFAULT_TIME_S if longest is None else min(DEFAULT_TIME_S, longest))
    draft.key(2, "time", f"{read(PARTITION, limit)}; default {guessed('DefaultTime is not set')}", time)


def _limits(draft: Draft, queue: Queue) -> None:
    most, least = queue.rules.get("MaxNodes"), queue.rules.get("MinNodes")
    limits: dict[str, Tree] = {}
    if least.isdecimal() and 1 < int(least) <= queue.shape.nodes:
        limits["min_nodes"] = int(least)
    if most.isdecimal() and 1 <= int(most) < queue.shape.nodes:
        limits["max_nodes"] = int(most)
    if limits:
        draft.key(2, "limits", read(PARTITION, "MinNodes, MaxNodes"), limits)


def _preemption(draft: Draft, survey: Survey, rules: PartitionRules) -> None:
    mode, kind = rules.get("PreemptMode").upper(), survey.config.get("PreemptType", "")
    if mode in ("", "OFF", "GANG") or kind in ("", "preempt/none"):
        return
    grace = rules.get("GraceTime")
    preempt: dict[str, Tree] = {"possible": True}
    if grace.isdecimal():
        preempt["grace_s"] = int(grace)
    draft.key(2, "preempt", read(PARTITION, f"PreemptMode={mode}, GraceTime"), preempt)


def _who_may(draft: Draft, survey: Survey, rules: PartitionRules) -> None:
    own = {one.account for one in survey.associations}
    for key in ("AllowGroups", "AllowAccounts", "DenyAccounts", "DenyQos"):
        names = rules.names(key)
        if names:
            yours = ""
            if key == "AllowAccounts" and own:
                yours = f"; of yours: {', '.join(sorted(own & set(names))) or 'none'}"
            draft.remark(2, f"{key}={','.join(names[:8])}{',…' if len(names) > 8 else ''}{yours}")
    if rules.get("QoS"):
        draft.remark(2, f"QoS={rules.get('QoS')} limits jobs here: `sacctmgr show qos {rules.get('QoS')}`")
    for key in ("ExclusiveUser", "ExclusiveTopo"):
        if rules.get(key).upper() == "YES":
            draft.remark(2, f"{key}=YES: nodes are not shared with other users' jobs")


def _job_default(rules: PartitionRules, name: str) -> int:
    match = re.search(rf"{name}=(\d+)", rules.get("JobDefaults"))
    return int(match[1]) if match else 0


def _seconds(rules: PartitionRules, key: str) -> int | None:
    try:
        return parse_reported_time(rules.get(key)) or None
    except ValueError:
        return None
