"""Records of a probe on two nodes with two ranks each, all as it should be; tests change what they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_llm.observe.probe import Probe
from slurm_llm.plan import build_plan
from slurm_llm.sites.load import parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import spec_from_mapping
from slurm_llm.yamlio import Document, Tree

Record = dict[str, Any]
TYPES = ("pmix", "none", "pmi2", "pmix_v4")


def make_profile(partition: dict[str, Tree] | None = None, /, **values: Tree) -> SiteProfile:
    """Return a site with a partition `gpu` of four GPUs a node, changed by `partition` and `values`."""
    own: dict[str, Tree] = {"gpus_per_node": 4, "cpus": {"per_node": 32, "per_rank": 2}, **(partition or {})}
    base: dict[str, Tree] = {
        "schema_version": 1,
        "name": "here",
        "partitions": {"gpu": own},
        "launcher": {"mpi": "pmix"},
        "triton": {"server": "/opt/triton"},
    }
    return parse_site(Document("site", {**base, **values}))


def _sight(node: int) -> Record:
    return {
        "node": f"n{node}",
        "hostname": f"n{node}",
        "resolved": [f"10.0.0.{node}"],
        "kernel": "6.1",
        "machine": "x86_64",
        "glibc": "glibc 2.36",
        "python": "3.11.2",
        "executable": "/usr/bin/python3",
        "os": "Debian 12",
        "root": "1:2",
        "limits": {name: ["unlimited", "unlimited"] for name in ("memlock", "stack", "core", "nofile", "nproc")},
        "interfaces": {"lo": "127.0.0.1", "ib0": f"10.1.0.{node}", "eth0": f"10.0.0.{node}", "eth1": ""},
        "shm": {"size_mib": 4096, "free_mib": 4000},
        "gpus": {
            "variables": {"CUDA_VISIBLE_DEVICES": "0,1"},
            "devices": {"/dev/nvidia0": True, "/dev/nvidia1": True},
            "nvidia_smi": ["GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)", "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)"],
        },
        "servers": ["/opt/triton/bin/tritonserver"],
        "env": {},
        "internet": True,
    }


def _rank(number: int) -> Record:
    at, local = divmod(number, 2)
    names = sorted([str(2 * at), str(2 * at + 1), "node"])
    reach = {"name": "n0", "address": "10.0.0.0", "connect_ms": 0.3, "clock_s": 0.001 * at}
    return {
        **_sight(at),
        "t": 101.0,
        "kind": "rank",
        "rank": number,
        "nodeid": at,
        "localid": local,
        "launch_s": 0.4,
        "cpus": 2,
        "pmi": {"PMIX_RANK": str(number)},
        "writable": {"/dev/shm": True, "/tmp": True},
        "together": {"/dev/shm": names, "/tmp": names},
        "listens": None,
        "reach": None if local else reach,
    }


def _node(number: int) -> Record:
    ports = {"tried": 65, "busy": []}
    return {
        **_sight(number),
        "t": 100.0,
        "kind": "node",
        "nodeid": number,
        "ports": ports,
        "ephemeral": [32768, 60999],
        "writable": {"/dev/shm": True, "/tmp": True},
    }


def _world(number: int) -> Record:
    who = [[rank, f"n{rank // 2}"] for rank in range(4)]
    world = {"size": 4, "rank": number, "who": who, "init_s": 0.3, "exchange_s": 0.01, "library": "Open MPI v4"}
    return {"kind": "mpi", "rank": number, "t": 102.0, "world": world}


def make_probe(profile: SiteProfile | None = None, change: Callable[[Record], object] = id, **values: Any) -> Probe:
    """Return the probe; `change` is called with a mapping of its parts before it is frozen."""
    own = profile or make_profile()
    resources: dict[str, Tree] = {"nodes": 2, "gpus_per_node": 2}
    plan = build_plan(
        spec_from_mapping(
            {
                "name": "site-check",
                "engine": "rehearsal",
                "tensor_parallel_size": 2,
                "pipeline_parallel_size": 2,
                "resources": resources,
                **values,
            }
        ),
        own,
    )
    env = dict(plan.env.set)
    parts: Record = {
        "batch": {**_sight(0), "scontrol": True, "scancel": [], "t": 99.0, "kind": "batch"},
        "nodes": {number: _node(number) for number in range(2)},
        "seen": {n: {"nodeid": n, "t": 100.1, "files": {f"node-{1 - n}.jsonl": 100.05}} for n in range(2)},
        "ranks": {number: {**_rank(number), "env": dict(env)} for number in range(4)},
        "worlds": {number: _world(number) for number in range(4)},
        "codes": {"ranks": 0, "nodes": 0},
        "rank_log": (),
        "node_log": (),
        "output": (),
    }
    change(parts)
    return Probe(plan=plan, profile=own.for_partition("gpu"), mpi_types=TYPES, **parts)
