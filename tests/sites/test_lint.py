"""Lint: each rule finds what it is for and nothing else, nothing hides anything, and packaged profiles are clean."""

from __future__ import annotations

import copy
import os
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.assets import sites_dir
from slurm_llm.containers import lintrules
from slurm_llm.sites.lint import NOT_FOUND, NOT_MERGED, RULES, Finding, lint_document, lint_file
from slurm_llm.yamlio import Document, dump, parse_document

TODAY = date(2026, 11, 30)
NO_HOME = {"HOME": "/nonexistent"}
CLEAN: dict[str, Any] = {
    "schema_version": 1,
    "name": "here",
    "verified": {"state": "run", "date": "2026-11-01", "slurm": "23.11"},
    "partitions": {"gpu": {"gpus_per_node": 4, "cpus": {"per_node": 32}}},
    "launcher": {"mpi": "pmix"},
}
GPU = "partitions.gpu."
ALL_RULES = (*RULES, *lintrules.RULES)
SCHEMA_RULES = ("unknown-key", "missing-key", "managed-option", "wrong-value")
"""Names of faults against the schema itself."""

Changes = dict[str, Any]
CASES: dict[str, list[tuple[Changes, Changes]]] = {
    "no-such-date": [({"verified.date": "2026-02-30"}, {"verified.date": "2026-11-30"})],
    "verified-in-future": [({"verified.date": "2026-12-01"}, {"verified.date": "2026-11-30"})],
    "verified-too-old": [({"verified.date": "2026-06-02"}, {"verified.date": "2026-06-03"})],
    "not-verified": [({"verified": None}, {"base": True, "verified": None, "partitions": None})],
    "run-without-release": [
        ({"verified": {"state": "run", "date": "2026-11-01"}}, {"verified.slurm": "24.05"}),
    ],
    "no-sources": [
        (
            {"verified": {"state": "documentation", "date": "2026-11-01"}},
            {"verified": {"state": "documentation", "date": "2026-11-01"}, "sources": ["https://example.org/docs"]},
        ),
    ],
    "not-an-address": [
        ({"docs_url": "example.org/docs"}, {"docs_url": "https://example.org/docs"}),
        ({"sources": ["the admin said so"]}, {"sources": ["http://example.org"]}),
    ],
    "name-differs-from-file": [({"name": "there"}, {})],
    "matches-everything": [({"match.hostnames": [".*"]}, {"match.hostnames": [r"login\d+\.example\.org"]})],
    "matches-nothing-said": [
        ({"match.env": {"CLUSTER": ".*"}}, {"match.env": {"CLUSTER": "alps|daint"}}),
        ({"match.hostnames": ["(login)?"]}, {"match.hostnames": ["login"]}),
    ],
    "no-such-release": [
        ({"slurm.version": "23.07.1"}, {"slurm.version": "23.11.1"}),
        ({"slurm.version": "19.05"}, {"slurm.version": "27.05"}),
    ],
    "short-kill-wait": [({"slurm.kill_wait_s": 4}, {"slurm.kill_wait_s": 5})],
    "account-default-mismatch": [
        (
            {"account": {"pattern": ".*_g", "default": "m1234"}},
            {"account": {"pattern": ".*_g", "default": "m1234_g"}},
        ),
    ],
    "useless-pattern": [
        ({"account.pattern": ".*"}, {"account.pattern": "def-.*"}),
        ({"storage.submit_from": "(/.*)?|.*"}, {"storage.submit_from": "(?!/home/).*"}),
    ],
    "typed-without-type": [
        (
            {GPU + "gpu_request.typed": True},
            {GPU + "gpu_request.typed": True, GPU + "gpu.slurm_type": "a100"},
        ),
    ],
    "type-never-used": [
        ({GPU + "gpu.slurm_type": "a100"}, {GPU + "gpu.model": "A100"}),
        (
            {
                GPU + "gpu_request": {"style": "none", "typed": True},
                GPU + "gpu.slurm_type": "a100",
                GPU + "whole_node": True,
            },
            {
                GPU + "gpu_request": {"style": "none", "step": "gres", "typed": True},
                GPU + "gpu.slurm_type": "a100",
                GPU + "whole_node": True,
            },
        ),
    ],
    "gpus-never-asked-for": [
        (
            {GPU + "gpu_request.style": "none"},
            {GPU + "gpu_request.style": "none", GPU + "whole_node": True},
        ),
        (
            {GPU + "gpu_request.style": "none", GPU + "exclusive": "user"},
            {GPU + "gpu_request.style": "none", GPU + "exclusive": True},
        ),
    ],
    "mixed-gpu-dialects": [
        (
            {"slurm.version": "26.05", GPU + "gpu_request": {"style": "gres", "step": "gpus_per_node"}},
            {"slurm.version": "25.11", GPU + "gpu_request": {"style": "gres", "step": "gpus_per_node"}},
        ),
    ],
    "needs-gpu-request": [
        (
            {GPU + "gpus_per_node": 0, GPU + "cpus.style": "cpus_per_gpu"},
            {GPU + "cpus.style": "cpus_per_gpu"},
        ),
        (
            {
                GPU + "gpu_request.style": "none",
                GPU + "whole_node": True,
                GPU + "memory": {"style": "mem_per_gpu", "per_rank": "60G"},
            },
            {GPU + "memory": {"style": "mem_per_gpu", "per_rank": "60G"}},
        ),
    ],
    "cpus-exceed-node": [({GPU + "cpus.per_rank": 9}, {GPU + "cpus.per_rank": 8})],
    "hint-with-threads-per-core": [
        (
            {GPU + "cpus": {"per_rank": 4, "hint": "nomultithread", "threads_per_core": 1}},
            {GPU + "cpus": {"per_rank": 4, "threads_per_core": 1}},
        ),
    ],
    "one-cpu-a-rank": [
        ({GPU + "cpus": {}}, {GPU + "cpus.per_rank": 8}),
        ({GPU + "cpus": {"style": "cpus_per_gpu"}}, {GPU + "cpus": {"style": "none"}}),
        ({GPU + "cpus": {}}, {GPU + "cpus": {}, GPU + "gpus_per_node": 0}),
    ],
    "search-path-replaced": [
        ({"env.set": {"LD_LIBRARY_PATH": "/x"}}, {"env.prepend": {"LD_LIBRARY_PATH": ["/x"]}}),
        ({"env.set": {"PATH": "/x"}}, {"env.set": {"MANPATH": "/x"}}),
    ],
    "cpus-never-used": [({GPU + "cpus": {"style": "none", "per_rank": 2}}, {GPU + "cpus": {"style": "none"}})],
    "memory-never-used": [
        ({GPU + "memory": {"style": "none", "whole_node": "0"}}, {GPU + "memory": {"whole_node": "0"}}),
        ({GPU + "memory": {"per_cpu": "4G"}}, {GPU + "memory": {"style": "mem_per_cpu", "per_cpu": "4G"}}),
        (
            {GPU + "memory": {"style": "mem_per_cpu", "per_cpu": "4G", "per_rank": "8G"}},
            {GPU + "memory": {"style": "mem", "per_rank": "8G"}},
        ),
    ],
    "style-without-value": [
        (
            {GPU + "memory.style": "mem_per_gpu"},
            {GPU + "memory": {"style": "mem_per_gpu", "whole_node": "0"}},
        ),
    ],
    "grace-without-preemption": [
        ({GPU + "preempt.grace_s": 300}, {GPU + "preempt": {"possible": True, "grace_s": 300}}),
    ],
    "time-above-max": [
        ({GPU + "time": {"max": "01:00:00", "default": "90"}}, {GPU + "time": {"max": "2:0:0", "default": "90"}}),
        ({GPU + "time": {"max": "60", "min": "UNLIMITED"}}, {GPU + "time": {"max": "UNLIMITED", "min": "60"}}),
    ],
    "default-below-min": [
        ({GPU + "time": {"min": "60", "default": "30"}}, {GPU + "time": {"min": "30", "default": "60"}}),
    ],
    "times-by-nodes": [
        (
            {GPU + "time.by_nodes": [{"max_nodes": 9, "max": "60"}, {"max_nodes": 9, "max": "90"}]},
            {GPU + "time.by_nodes": [{"max_nodes": 8, "max": "60"}, {"max_nodes": 9, "max": "90"}]},
        ),
        (
            {GPU + "time": {"max": "60", "by_nodes": [{"max_nodes": 9, "max": "90"}]}},
            {GPU + "time": {"max": "90", "by_nodes": [{"max_nodes": 9, "max": "90"}]}},
        ),
    ],
    "more-nodes-than-there-are": [
        (
            {GPU + "nodes": 4, GPU + "limits.max_nodes": 5},
            {GPU + "nodes": 5, GPU + "limits.max_nodes": 5},
        ),
    ],
    "least-above-most": [
        ({GPU + "limits": {"min_nodes": 3, "max_nodes": 2}}, {GPU + "limits": {"min_nodes": 2, "max_nodes": 2}}),
    ],
    "gpu-limit-below-node": [
        ({GPU + "whole_node": True, GPU + "limits.max_gpus": 2}, {GPU + "limits.max_gpus": 2}),
    ],
    "gpu-limit-never-reached": [
        ({GPU + "nodes": 2, GPU + "limits.max_gpus": 9}, {GPU + "nodes": 2, GPU + "limits.max_gpus": 8}),
        ({GPU + "gpus_per_node": 0, GPU + "limits.max_gpus": 9}, {GPU + "gpus_per_node": 0}),
    ],
    "segment-too-large": [
        ({"slurm.version": "24.05", GPU + "segment": 5, GPU + "nodes": 4}, {GPU + "segment": "all", GPU + "nodes": 4}),
    ],
    "forbidden-extra": [
        (
            {"policies.forbid": ["--nodelist"], "sbatch_extra": ["-wn1"]},
            {"policies.forbid": ["--nodelist"], "sbatch_extra": ["--mail-type=END"]},
        ),
    ],
    "forbidden-and-required": [
        (
            {"policies": {"forbid": ["--mail-type"], "require": ["--mail-type"]}},
            {"policies": {"forbid": ["--mail-type"], "require": ["--time"]}},
        ),
    ],
    "required-and-skipped": [
        (
            {"policies.require": ["--time"], "sbatch_skip": ["--time"]},
            {"policies.require": ["--time"], "sbatch_skip": ["--signal"]},
        ),
    ],
    "required-never-written": [
        ({"policies.require": ["--gres"]}, {"policies.require": ["--gpus-per-node", "--mem", "--qos"]}),
        ({"policies.require": ["--mem-per-gpu"]}, {"policies.require": ["--gres"], GPU + "gpus_per_node": 0}),
    ],
    "forbidden-but-asked-for": [
        ({"policies.forbid": ["--mem"], GPU + "memory.whole_node": "0"}, {"policies.forbid": ["--mem"]}),
        (
            {"policies.forbid": ["--gpus-per-node"]},
            {"policies.forbid": ["--gpus-per-node"], GPU + "gpu_request.style": "gres"},
        ),
        ({"policies.forbid": ["--account"], "account.default": "x"}, {"policies.forbid": ["--account"]}),
    ],
    "leaves-out-what-jobs-need": [
        ({"sbatch_skip": ["--output"]}, {"sbatch_skip": ["--ntasks"]}),
        ({"srun_skip": ["--ntasks"]}, {"srun_skip": ["--label"]}),
        ({"policies.forbid": ["--nodes"]}, {"policies.forbid": ["--nodelist"]}),
    ],
    "option-of-another-release": [
        ({"slurm.version": "24.05", "srun_extra": ["--oom-kill-step=1"]}, {"srun_extra": ["--oom-kill-step=1"]}),
        (
            {"slurm.version": "24.05", "sbatch_extra": ["--power="]},
            {"slurm.version": "23.11", "sbatch_extra": ["--power="]},
        ),
        (
            {"slurm.version": "24.11", "srun_extra": ["--wait-for-children"]},
            {"slurm.version": "25.05", "srun_extra": ["--wait-for-children"]},
        ),
    ],
    "key-of-another-release": [
        ({"slurm.version": "23.11", GPU + "segment": 1}, {"slurm.version": "24.05", GPU + "segment": 1}),
        ({"slurm.version": "23.11", GPU + "exclusive": "topo"}, {GPU + "exclusive": "topo"}),
        (
            {"slurm.version": "24.11", "launcher.step.cpu_bind": "rank"},
            {"slurm.version": "24.05", "launcher.step.cpu_bind": "rank"},
        ),
        (
            {"slurm.version": "25.05", "network.flags": "unique-channel-per-segment"},
            {"slurm.version": "25.05", "network.flags": "disable_rdzv_get"},
        ),
    ],
    "exclusive-with-oversubscribe": [
        (
            {GPU + "exclusive": True, "sbatch_extra": ["--oversubscribe"]},
            {GPU + "exclusive": True, "sbatch_extra": ["--oversubscribe"], "slurm.version": "22.05"},
        ),
        ({"srun_extra": ["--exclusive", "-s"]}, {"srun_extra": ["-s"]}),
    ],
    "tasks-by-gpu": [({"srun_extra": ["--ntasks-per-gpu=1"]}, {"srun_extra": ["--gpu-freq=high"]})],
    "unknown-option": [
        ({"policies.forbid": ["--node-list"]}, {"policies.forbid": ["--nodelist"]}),
        ({"srun_skip": ["--kill-on-bad-exits"]}, {"srun_skip": ["--uenv"]}),
    ],
    "value-is-literal": [
        ({"env.set": {"A": "$(hostname)"}}, {"env.set": {"A": "100$"}}),
        ({"env.set": {"A": "`date`"}}, {"env.set": {"A": "date"}}),
        ({"env.set": {"A": "$SCRATCH/x"}}, {"env.set": {"A": "/scratch/x"}}),
        ({"env.set": {"A": "${SCRATCH}"}}, {"env.set": {"A": "%h.%p"}}),
        ({"env.set": {"A": "~/x"}}, {"env.set": {"A": "a~"}}),
    ],
    "set-and-unset": [({"env": {"set": {"A": "1"}, "unset": ["A"]}}, {"env": {"set": {"A": "1"}, "unset": ["B"]}})],
    "variable-of-slurm": [
        ({"env.set": {"SLURM_CPU_BIND": "none"}}, {"env.set": {"SLURM_PMIX_FENCE": "ring"}}),
        ({"env.set": {"SBATCH_QOS": "x"}}, {"env.unset": ["SLURM_CPU_BIND"]}),
    ],
    "visible-devices": [
        ({"env.set": {"CUDA_VISIBLE_DEVICES": "0,1"}}, {"env.unset": ["ROCR_VISIBLE_DEVICES"]}),
    ],
    "provider-of-another-fabric": [
        (
            {"network.fabric": "infiniband", "env.set": {"FI_PROVIDER": "efa"}},
            {"network.fabric": "efa", "env.set": {"FI_PROVIDER": "efa"}},
        ),
        (
            {"network.fabric": "slingshot", "env.set": {"FI_EFA_USE_DEVICE_RDMA": 1}},
            {"network.fabric": "slingshot", "env.set": {"FI_CXI_DEFAULT_CQ_SIZE": 131072}},
        ),
        (
            {"network.fabric": "efa", "env.set": {"FI_CXI_RX_MATCH_MODE": "software"}},
            {"env.set": {"FI_PROVIDER": "efa"}},
        ),
    ],
    "verbs-on-another-fabric": [
        (
            {"network.fabric": "slingshot", "env.set": {"NCCL_IB_TIMEOUT": 50}},
            {"network.fabric": "roce", "env.set": {"NCCL_IB_GID_INDEX": 3}},
        ),
        (
            {"network.fabric": "efa", "env.set": {"NCCL_IB_HCA": "mlx5"}},
            {"network.fabric": "efa", "env.set": {"NCCL_IB_DISABLE": 1}},
        ),
    ],
    "interface-differs": [
        (
            {"network.interface": "ib0", "env.set": {"NCCL_SOCKET_IFNAME": "hsn"}},
            {"network.interface": "hsn0", "env.set": {"NCCL_SOCKET_IFNAME": "hsn"}},
        ),
        (
            {"network.interface": "eth1", "env.set": {"GLOO_SOCKET_IFNAME": "eth"}},
            {"network.interface": "hsn0", "env.set": {"NCCL_SOCKET_IFNAME": "=hsn0,hsn1"}},
        ),
        (
            {"network.interface": "docker0", "env.set": {"NCCL_SOCKET_IFNAME": "^docker"}},
            {"network.interface": "ib0", "env.set": {"NCCL_SOCKET_IFNAME": "^docker,lo"}},
        ),
    ],
    "several-nodes-without-mpi": [
        ({"launcher": {}}, {"launcher": {"command": "ibrun"}}),
        ({"launcher": None}, {"launcher": None, GPU + "limits.max_nodes": 1}),
        ({"launcher.mpi": "none"}, {"launcher.mpi": "cray_shasta"}),
    ],
    "mpi-never-used": [({"launcher.command": "ibrun"}, {"launcher.command": "srun"})],
    "rendezvous-without-interface": [
        (
            {"network.rendezvous.source": "interface_ip"},
            {"network.rendezvous.source": "interface_ip", "network.interface": "hsn0"},
        ),
    ],
    "bind-without-interface": [
        ({"network.bind": "interface"}, {"network.bind": "interface", "network.interface": "hsn0"}),
        ({"network.bind": "interface"}, {"network.bind": "loopback"}),
    ],
    "proxy-without-address": [
        ({"network.internet": "proxy"}, {"network": {"internet": "proxy", "proxy": {"https": "http://p:1"}}}),
        ({"network.internet": "proxy"}, {"network.internet": "proxy", "modules.load": ["httpproxy"]}),
        ({"network.internet": "proxy"}, {"network.internet": "proxy", "env.set": {"https_proxy": "http://p:1"}}),
    ],
    "proxy-never-needed": [
        (
            {"network": {"internet": "none", "proxy": {"http": "http://p:1"}}},
            {"network": {"internet": "proxy", "proxy": {"http": "http://p:1"}}},
        ),
    ],
    "privileged-ports": [({"network.ports": "1000-1200"}, {"network.ports": "1024-1200"})],
    "ephemeral-ports": [({"network.ports": "30000-40000"}, {"network.ports": "30000-32767"})],
    "few-ports": [({"network.ports": "20000-20098"}, {"network.ports": "20000-20099"})],
    "path-is-relative": [
        ({"storage.models": "models"}, {"storage.models": "$WORK/models"}),
        ({"env.source": ["env.sh"]}, {"env.source": ["/etc/env.sh"]}),
    ],
    "variable-of-the-job": [
        ({"storage.models": "$SLURM_TMPDIR/m"}, {"storage.models": "$SCRATCH/m"}),
        (
            {"container": {"runtime": "apptainer", "mounts": ["${SLURM_TMPDIR}:/x"]}},
            {"container": {"runtime": "apptainer", "mounts": ["$WORK:/x"]}},
        ),
    ],
    "logs-on-one-node": [({"storage.logs": "/tmp/logs"}, {"storage.logs": "/tmpfs/logs"})],
    "storage-on-home": [
        ({"storage.hf_home": "~/hf"}, {"storage.hf_home": "/p/home-of-models/hf"}),
        ({"storage.logs": "/home/$USER/logs"}, {"storage.logs": "/homework/logs"}),
    ],
    "local-is-not-local": [
        ({"storage.local": "/dev/shm"}, {"storage.local": "/local"}),
        ({"storage.local": "/home/x"}, {"storage.local": "/mnt/bb"}),
    ],
    "spank-runtime-without-slurmd": [
        (
            {"slurm.node_daemon": "psslurm", "container.runtime": "pyxis"},
            {"slurm.node_daemon": "psslurm", "container.runtime": "apptainer"},
        ),
    ],
    "image-not-taken": [
        (
            {"container": {"runtime": "pyxis", "image": "registry.example.org/a/b:1"}},
            {"container": {"runtime": "pyxis", "image": "registry.example.org#a/b:1"}},
        ),
        (
            {"container": {"runtime": "pyxis", "images": {"a": "docker://registry.example.org:5000/a/b"}}},
            {"container": {"runtime": "pyxis", "images": {"a": "ubuntu/nginx", "b": "/images/a.b/c.sqsh"}}},
        ),
        (
            {"container": {"runtime": "enroot", "image": "/images/x.sif"}},
            {"container": {"runtime": "apptainer", "image": "/images/x.sif"}},
        ),
        (
            {"container": {"runtime": "charliecloud", "images": {"a": "/images/x.sif"}}},
            {"container": {"runtime": "charliecloud", "image": "a", "images": {"a": "/images/x"}}},
        ),
        (
            {"container": {"runtime": "apptainer", "image": "x.sif"}},
            {"container": {"runtime": "apptainer", "image": "x.sif"}, "storage.images": "/images"},
        ),
        (
            {"container": {"runtime": "pyxis", "image": "tritno", "images": {"triton": "/images/x.sqsh"}}},
            {"container": {"runtime": "pyxis", "image": "triton", "images": {"triton": "/images/x.sqsh"}}},
        ),
        (
            {"network.internet": "none", "container": {"runtime": "pyxis", "image": "ubuntu"}},
            {"network.internet": "none", "container": {"runtime": "pyxis", "image": "$WORK/u.sqsh"}},
        ),
        (
            {"network.internet": "none", "container": {"runtime": "apptainer", "images": {"a": "docker://ubuntu"}}},
            {"network.internet": "none", "container": {"runtime": "shifter", "image": "docker:ubuntu"}},
        ),
    ],
    "mount-not-taken": [
        (
            {"container": {"runtime": "pyxis", "mounts": ["/a,b:/x"]}},
            {"container": {"runtime": "pyxis", "mounts": ["/a b:/x:ro"]}},
        ),
        (
            {"container": {"runtime": "pyxis", "mounts": ["/a:/b:/c:ro"]}},
            {"container": {"runtime": "apptainer", "mounts": ["/a:/b:ro"]}},
        ),
        (
            {"container": {"runtime": "apptainer", "mounts": ["data:/x"]}},
            {"container": {"runtime": "apptainer", "mounts": ["/data", "$WORK", "~/x:/y"]}},
        ),
        (
            {"container": {"runtime": "apptainer", "mounts": ["/data:x"]}},
            {"container": {"runtime": "apptainer", "mounts": ["/data:/x"]}},
        ),
        (
            {"container": {"runtime": "charliecloud", "mounts": ["/data:/data:ro"]}},
            {"container": {"runtime": "charliecloud", "mounts": ["/data:/data"]}},
        ),
    ],
    "options-of-another-runtime": [
        (
            {"container": {"runtime": "apptainer", "pyxis": {"writable": True}}},
            {"container": {"runtime": "singularity", "apptainer": {"cleanenv": True}}},
        ),
        (
            {"container": {"runtime": "apptainer", "pyxis": {"writable": True}}},
            {
                "container": {"runtime": "apptainer", "pyxis": {"writable": True}},
                GPU + "container.runtime": "pyxis",
            },
        ),
    ],
    "container-never-used": [
        ({"container.image": "/x.sif"}, {"container": {"runtime": "apptainer", "image": "/x.sif"}}),
    ],
    "script-ends-the-job": [
        ({"prologue": "a\nexit 0\n"}, {"prologue": "echo exit # exit\n"}),
        ({"epilogue": "if x; then exec y; fi"}, {"epilogue": "exec 3>/x"}),
        ({"step_prologue": "set -euo pipefail"}, {"step_prologue": "set +e; set -- -e"}),
    ],
    "script-starts-steps": [
        ({"prologue": "x=1 && srun hostname"}, {"prologue": "echo srun\n# srun x\nmy-srun"}),
    ],
}


def _document(changes: Changes) -> Document:
    value = copy.deepcopy(CLEAN)
    for key, new in changes.items():
        *parents, last = key.split(".")
        at = value
        for step in parents:
            at = at.setdefault(step, {})
        if new is None:
            at.pop(last, None)
        else:
            at[last] = new
    return parse_document(dump(value), "here.yaml")


def _lint(changes: Changes) -> list[Finding]:
    return lint_document(_document(changes), today=TODAY, stem="here", rules=ALL_RULES)


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        pytest.param(rule, bad, good, id=f"{rule}-{at}")
        for rule, rows in CASES.items()
        for at, (bad, good) in enumerate(rows)
    ],
)
def test_a_rule_finds_what_it_is_for_and_nothing_else(rule: str, bad: Changes, good: Changes) -> None:
    """The first profile breaks exactly this rule, the second, which is near it, breaks none."""
    findings = _lint(bad)
    assert {one.rule for one in findings} == {rule}, [str(one) for one in findings]
    assert all(one.todo and one.what and one.file == "here.yaml" for one in findings)
    assert [str(one) for one in _lint(good)] == []


def test_every_rule_has_cases_and_says_why() -> None:
    """A rule without a test, or without a reason, is none."""
    names = {rule.name for rule in ALL_RULES}
    assert names == set(CASES)
    assert len(ALL_RULES) == len(names)
    assert all(rule.why for rule in ALL_RULES)


@pytest.mark.parametrize("name", sorted(rule.name for rule in ALL_RULES if rule.needs_all))
def test_a_rule_about_what_is_missing_waits_for_the_bases(name: str) -> None:
    """A base that is not found may have what the rule misses."""
    for broken, _ in CASES[name]:
        document = _document(broken)
        whole, part = (lint_document(document, today=TODAY, whole=one, rules=ALL_RULES) for one in (True, False))
        assert name in {one.rule for one in whole}
        assert name not in {one.rule for one in part}


def test_twenty_faults_are_told_in_one_run() -> None:
    """Faults against the schema and broken rules, a secret too, each with its line and a remedy."""
    path = Path(__file__).parent / "twenty_faults.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    expected = {(at, match[1]) for at, line in enumerate(lines, 1) if (match := re.search(r"# ([a-z-]+)$", line))}
    findings = lint_file(path, NO_HOME, TODAY)
    assert {(one.line, one.rule) for one in findings} == expected
    assert len(expected) == 20
    assert len({rule for _, rule in expected}) == 20
    assert {rule for _, rule in expected} >= set(SCHEMA_RULES)
    assert all(one.todo for one in findings)


@pytest.mark.parametrize(
    "text",
    [
        "schema_version: 1\nname: [x]\npartitions: {a: 5, b: {gpus_per_node: four}}\ndefault_partition: a\n",
        "schema_version: 9\npartitions: {}\nverified: {state: run}\n",
        "sbatch_extra: [--nodes=2, --oversubscribe, nothing]\npartitions: {a: {gpus_per_node: 1, exclusive: true}}\n",
        "partitions: {a: {gpus_per_node: 4, time: {by_nodes: [{max: 5}, {max_nodes: 2, max: 5}]}}}\n",
    ],
)
def test_what_is_left_without_faults_is_a_profile(text: str) -> None:
    """However wrong the schema's parts are, rules still judge the rest."""
    findings = lint_document(parse_document(text, "f.yaml"), today=TODAY)
    assert "not-verified" in {one.rule for one in findings} or "verified" in text
    assert {one.rule for one in findings} & set(SCHEMA_RULES)


def test_a_faulty_item_does_not_move_the_others() -> None:
    """The second option is told with its own line, though the first one was taken out before rules ran."""
    text = dump({**CLEAN, "partitions": {"gpu": {"gpus_per_node": 4, "cpus": {"per_rank": 2}, "exclusive": True}}})
    text += "sbatch_extra:\n- --nodes=2\n- --oversubscribe\n"
    findings = lint_document(parse_document(text, "f.yaml"), today=TODAY)
    lines = text.splitlines()
    assert {one.rule: lines[(one.line or 0) - 1] for one in findings} == {
        "managed-option": "- --nodes=2",
        "exclusive-with-oversubscribe": "- --oversubscribe",
    }


def test_a_missing_value_is_told_once_and_stands_for_nothing() -> None:
    """Without gpus_per_node nothing is said about numbers of GPUs."""
    document = _document({"partitions": {"gpu": {"gpu_request": {"style": "none"}, "limits": {"max_gpus": 1}}}})
    assert [one.rule for one in lint_document(document, today=TODAY)] == ["missing-key"]


def test_a_partition_changes_what_holds_for_the_site() -> None:
    """A rule sees each partition as it is, and the place is that of the value that counts there."""
    found = _lint(
        {
            "network.fabric": "infiniband",
            "env.set": {"NCCL_IB_HCA": "mlx5"},
            "partitions": {
                "a": {"gpus_per_node": 1, "cpus": {"per_rank": 8}},
                "b": {"gpus_per_node": 1, "cpus": {"per_rank": 8}, "network": {"fabric": "efa"}},
            },
        }
    )
    assert [one.rule for one in found] == ["verbs-on-another-fabric"]
    text = dump(_document({"env.set": {"NCCL_IB_HCA": "mlx5"}}).value)
    assert text.splitlines()[-1] == "    NCCL_IB_HCA: mlx5"


def test_the_same_finding_of_several_partitions_is_one(tmp_path: Path) -> None:
    """What stands in partition_defaults is told once, with the partitions' names."""
    path = tmp_path / "here.yaml"
    value = {**CLEAN, "partition_defaults": {"gpus_per_node": 2, "gpu_request": {"typed": True}, "nods": 3}}
    path.write_text(dump({**value, "partitions": {"a": None, "b": None}}))
    findings = lint_file(path, NO_HOME, TODAY)
    assert [one.what for one in findings] == [
        "each of the partitions 'a', 'b': a rank gets 1 CPU, as neither cpus.per_rank nor cpus.per_node is given",
        "each of the partitions 'a', 'b' asks for GPUs by type, and gpu.slurm_type is not set",
        "unknown key 'partition_defaults.nods'",
    ]


def test_defaults_that_a_partition_does_not_need_are_no_fault(tmp_path: Path) -> None:
    """A value for all partitions is not `never used` because one of them has another style."""
    path = tmp_path / "here.yaml"
    defaults = {"gpus_per_node": 2, "memory": {"per_rank": "4G"}, "cpus": {"per_rank": 2}}
    plain = {"memory": {"style": "none"}, "cpus": {"style": "none"}}
    path.write_text(dump({**CLEAN, "partition_defaults": defaults, "partitions": {"a": None, "b": plain}}))
    assert lint_file(path, NO_HOME, TODAY) == []


def test_a_type_for_all_partitions_that_none_names_is_told(tmp_path: Path) -> None:
    """A type in partition_defaults is used where any partition's requests name it, and else by none."""
    path = tmp_path / "here.yaml"
    defaults = {"gpus_per_node": 2, "cpus": {"per_rank": 2}, "gpu": {"slurm_type": "a100"}}
    typed = {"gpu_request": {"typed": True}}
    for partitions, rules in (({"a": None, "b": None}, ["type-never-used"]), ({"a": None, "b": typed}, [])):
        path.write_text(dump({**CLEAN, "partition_defaults": defaults, "partitions": partitions}))
        assert [one.rule for one in lint_file(path, NO_HOME, TODAY)] == rules


@pytest.mark.parametrize(
    ("option", "changes", "todo"),
    [
        ("--time", {GPU + "time.default": "60"}, "remove the value, or the name from policies.forbid"),
        ("--mem", {GPU + "memory.whole_node": "0"}, "remove the value (or choose style: none), or the name"),
    ],
)
def test_the_remedy_is_of_the_option_that_is_refused(option: str, changes: Changes, todo: str) -> None:
    """Only some options have a style that leaves them out."""
    (finding,) = _lint({"policies.forbid": [option], **changes})
    assert finding.todo.startswith(todo)


def test_what_a_profile_extends_is_linted_with_it(tmp_path: Path) -> None:
    """Findings name the file and line where the value stands; a base alone lacks nothing."""
    folder = tmp_path / "sites"
    folder.mkdir()
    base = {"schema_version": 1, "name": "base-x", "base": True, "network": {"fabric": "efa"}}
    (folder / "base-x.yaml").write_text(dump({**base, "env": {"set": {"NCCL_IB_HCA": "mlx5", "FI_PROVIDER": "cxi"}}}))
    (folder / "here.yaml").write_text(dump({**CLEAN, "extends": "base-x", "network": {"fabric": "slingshot"}}))
    environ = {**NO_HOME, "SLURM_LLM_SITE_PATH": str(folder)}
    found = [(Path(one.file).name, one.line, one.rule) for one in lint_file(folder / "here.yaml", environ, TODAY)]
    assert found == [("base-x.yaml", 8, "verbs-on-another-fabric")]
    found = [(Path(one.file).name, one.line, one.rule) for one in lint_file(folder / "base-x.yaml", environ, TODAY)]
    assert found == [
        ("base-x.yaml", 8, "verbs-on-another-fabric"),
        ("base-x.yaml", 9, "provider-of-another-fabric"),
    ]


def test_an_unknown_base_hides_nothing(tmp_path: Path) -> None:
    """What the base would have brought is not missed, and the rest is judged."""
    path = tmp_path / "here.yaml"
    path.write_text("schema_version: 1\nname: here\nextends: nowhere\nstorage: {models: m}\nnonsense: 1\n")
    rules = [one.rule for one in lint_file(path, NO_HOME, TODAY)]
    assert rules == [NOT_MERGED, "not-verified", "path-is-relative", "unknown-key"]


def test_a_name_is_no_file_and_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes a profile's name is told its file: the one here first, else the one that the name stands for."""
    monkeypatch.chdir(tmp_path)
    what = "there is no such file, and files are checked, not names"
    (finding,) = lint_file(Path("generic"), NO_HOME, TODAY)
    assert (finding.what, finding.todo) == (what, f"did you mean {sites_dir() / 'generic.yaml'}?")
    (tmp_path / "generic.yaml").write_text(dump(CLEAN))
    (finding,) = lint_file(Path("generic"), NO_HOME, TODAY)
    assert (finding.what, finding.todo) == (what, "did you mean generic.yaml?")
    (finding,) = lint_file(Path("nothing"), NO_HOME, TODAY)
    assert finding.what == "cannot be read: No such file or directory"


def test_a_file_that_no_name_finds_is_told(tmp_path: Path) -> None:
    """Another ending is right for a file that is given by its path, and passed over in a folder of profiles."""
    path = tmp_path / "here.yml"
    path.write_text(dump(CLEAN))
    assert lint_file(path, NO_HOME, TODAY) == []
    (finding,) = lint_file(path, {**NO_HOME, "SLURM_LLM_SITE_PATH": str(tmp_path)}, TODAY)
    assert (finding.rule, finding.severity, finding.todo) == (NOT_FOUND, "warning", "rename it to here.yaml")


def test_a_users_file_with_a_mistyped_name_is_told_once(tmp_path: Path) -> None:
    """It lacks nothing but the right name; what is wrong inside is told too."""
    own = tmp_path / "slurm_llm" / "sites" / "genric.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("network: {ports: 100-200}\n")
    findings = lint_file(own, {"XDG_CONFIG_HOME": str(tmp_path)}, TODAY)
    assert [one.rule for one in findings] == [NOT_MERGED, "not-verified", "privileged-ports"]
    assert findings[0].what == ("there is no profile 'genric' that this could be laid over: did you mean 'generic'?")


def test_a_file_that_is_no_yaml_is_one_error(tmp_path: Path) -> None:
    """A fault of YAML's own is told with its line; so is a secret in the same file."""
    path = tmp_path / "here.yaml"
    path.write_text("name: here\n\tx: 1\n")
    assert [(one.rule, one.line) for one in lint_file(path, NO_HOME, TODAY)] == [("unreadable", 2)]
    path.write_text("name: [\nHF_TOKEN: hf_" + "a1B2" * 8 + "\n")
    assert {one.rule for one in lint_file(path, NO_HOME, TODAY)} == {"unreadable", "secret"}
    assert [one.rule for one in lint_file(tmp_path / "none.yaml", NO_HOME, TODAY)] == ["unreadable"]


PACKAGED = sorted(sites_dir().glob("*.yaml"))


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_packaged_profiles_have_no_errors(path: Path) -> None:
    """What we ship passes its own check; ages are judged by the day of its last check."""
    errors = [one for one in lint_file(path, {**os.environ, **NO_HOME}, TODAY) if one.severity == "error"]
    assert [str(one) for one in errors] == []
