"""Cases of the rendering tests: layouts, sites and switches, and what they render to."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.plan import Plan, build_plan
from slurm_llm.render import Target, render
from slurm_llm.sites.load import load_site, parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.versions import parse_version
from slurm_llm.spec import JobSpec, spec_from_mapping
from slurm_llm.yamlio import Document, Tree

LAYOUTS: dict[str, dict[str, Tree]] = {
    "one": {},
    "tp4": {"tensor_parallel_size": 4},
    "tp4-pp2-moe": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "moe_expert_parallel_size": 2},
    "tp2-cp2": {"tensor_parallel_size": 2, "context_parallel_size": 2, "resources": {"nodes": 4}},
    "tp8-three-replicas": {"tensor_parallel_size": 8, "replicas": 3},
}


def _site(partition: dict[str, Tree], **values: Tree) -> SiteProfile:
    base: dict[str, Tree] = {"schema_version": 1, "name": "here", "launcher": {"mpi": "pmix"}}
    return parse_site(Document("site", {**base, "partitions": {"gpu": {"gpus_per_node": 4, **partition}}, **values}))


SITES: dict[str, SiteProfile] = {
    "devcluster": load_site("devcluster", {}).profile,
    "generic": load_site("generic", {}).profile,
    "account": _site(
        {
            "slurm_partition": "gpu_long",
            "exclusive": True,
            "memory": {"whole_node": "0"},
            "qos": "normal",
            "constraint": "a&b",
        },
        account={"required": True, "default": "project1"},
        launcher={"mpi": "pmi2", "step": {"cpu_bind": "cores"}},
        env={"set": {"NCCL_DEBUG": "WARN"}, "unset": ["I_MPI_PMI_LIBRARY"]},
        sbatch_extra=["--mail-type=END,FAIL"],
        srun_extra=["--mem-bind=local"],
        network={"flags": "no_vni"},
        triton={"server": "/apps/triton server"},
        python="/usr/bin/python3.9",
    ),
    "no-gpu-request": _site({"gpu_request": {"style": "none"}, "cpus": {"per_node": 64}}),
    "typed-gpus": _site({"gpu": {"slurm_type": "a100"}, "gpu_request": {"typed": True}, "cpus": {"per_node": 64}}),
    "typed-gres": _site(
        {"gpu": {"slurm_type": "h100"}, "gpu_request": {"style": "gres", "typed": True}},
        storage={"local": "/scratch/local"},
    ),
    "everything": _site(
        {
            "slurm_partition": ["a100", "h100"],
            "gpu": {"slurm_type": "a100"},
            "gpu_request": {"style": "gpus", "typed": True},
            "cpus": {"style": "cpus_per_gpu", "per_rank": 8, "hint": "nomultithread"},
            "memory": {"style": "mem_per_gpu", "per_rank": "60G"},
            "exclusive": "user",
            "licenses": "scratch:1,work:1",
            "switches": "1@10:00",
            "wait_all_nodes": True,
            "core_spec": 8,
            "distribution": "block:block",
            "prologue": "echo partition",
        },
        slurm={"version": "24.11", "clusters": "b1"},
        modules={"purge": True, "use": ["/apps/my modules"], "load": ["cuda/12.4", "openmpi"], "unload": ["x"]},
        ulimits={"memlock": "unlimited", "nofile": 65536},
        network={
            "fabric": "slingshot",
            "interface": "hsn0",
            "internet": "proxy",
            "proxy": {"http": "http://proxy:3128", "no_proxy": "localhost,.local"},
            "rendezvous": {"source": "interface_ip", "family": "ipv4"},
        },
        env={"set": {"A": "b c"}, "source": ["/opt/nccl env.sh"], "prepend": {"LD_LIBRARY_PATH": ["/a b", "/c"]}},
        storage={"hf_home": "$SCRATCH/hf"},
        exclude_nodes="n[1-3]",
        policies={"gpu_clocks": True, "forbid": ["--ntasks-per-node"]},
        srun_skip=["--label"],
        sbatch_skip=["--no-requeue"],
        step_prologue="echo step",
    ),
    "apptainer": _site({}, container={"runtime": "apptainer"}, storage={"local": "/scratch", "staging": "/nvme"}),
    "mpirun": _site({"gpu_request": {"style": "none"}, "whole_node": True}, launcher={"command": "mpirun"}),
    "suffix": _site(
        {"gpu_request": {"style": "gpus_per_task"}, "memory": {"style": "mem_per_cpu", "per_cpu": "4G"}},
        network={"rendezvous": {"suffix": "i"}, "internet": "none"},
        slurm={"version": "20.11.8"},
    ),
    "cpus-only": _site({"gpus_per_node": 0, "cpus": {"per_node": 8, "per_rank": 2}}),
}

SPECIAL = ("everything", "mpirun", "suffix", "apptainer")
"""Sites that leave out or change what every other job has."""

SWITCHES: dict[str, tuple[dict[str, Tree], dict[str, Tree]]] = {
    "preflight": ({"preflight": {"mpi": True}}, {"preflight": {"mpi": False}}),
    "env": ({}, {"env": {"A": 'it\'s "x" $HOME `id` \\ é 模', "B": True, "C": 1.5, "E": ""}}),
    "shell": ({}, {"prologue": "module load x || true\n", "epilogue": "echo once\necho twice"}),
    "options": (
        {},
        {"triton": {"http_port": 8000, "log_verbose": 1, "extra_args": ["--x=a b"]}, "sbatch_extra": ["--comment=a b"]},
    ),
}


@dataclass(frozen=True)
class Case:
    """A spec on a site; `name` says which of the tables' entries."""

    name: str
    spec: JobSpec
    site: SiteProfile
    version: str | None = None

    @property
    def plan(self) -> Plan:
        """The plan."""
        return build_plan(self.spec, self.site, None if self.version is None else parse_version(self.version))

    def files(self, target: Target | None = None) -> dict[str, str]:
        """Return the rendered files for a placeholder run directory, or for `target`."""
        return render(self.plan, target or Target(Path("/runs/demo"), "/usr/bin/python3", {"SCRATCH": "/my scratch"}))


def special() -> list[Case]:
    """Return jobs on the special sites."""
    layouts = ("one", "tp4", "tp4-pp2-moe")
    return [
        make_case(f"{layout}.{site}", site, LAYOUTS[layout]) for layout, site in itertools.product(layouts, SPECIAL)
    ]


def fronts() -> list[Case]:
    """Return jobs whose instances share nodes, with what stands before them."""
    twins: dict[str, Tree] = {"tensor_parallel_size": 2, "replicas": 2}
    spares: dict[str, Tree] = {"restarts": 1, "spare_nodes": 1}
    return [
        make_case("shared-whole-node", "no-gpu-request", twins, {"frontend": "openai", "model": "it's/a model"}),
        make_case("shared-spare", "typed-gpus", {**twins, "replicas": 4}, {"balancer": "nginx", "recovery": spares}),
        make_case("shared-typed", "typed-gres", twins, {"balancer": {"program": "haproxy", "port": 8000}}),
    ]


def releases() -> list[Case]:
    """Return the demo's layout on one site for several releases of Slurm."""
    values: dict[str, Tree] = {"resources": {"nodes": 4, "time": "00:30:00"}}
    return [
        replace(make_case(f"slurm-{version}", site, LAYOUTS["tp4-pp2-moe"], values), version=version)
        for version in ("20.11.8", "21.08.8", "22.05.8", "23.11.4", "24.11.0", "26.05.1")
        for site in ("typed-gpus",)
    ]


def recoveries() -> list[Case]:
    """Return jobs that do something after a failure: a restart, one on spare nodes, a requeue, all of it."""
    spares: dict[str, Tree] = {"restarts": 2, "spare_nodes": 1}
    chosen: dict[str, tuple[str, dict[str, Tree]]] = {
        "restarts": ("tp4-pp2-moe", {"restarts": 3, "backoff_s": 5}),
        "requeue": ("tp4", {"requeue": 2}),
        "spares": ("tp4-pp2-moe", spares),
        "all": ("tp8-three-replicas", {**spares, "reset_s": 600, "requeue": 1}),
        "service": ("tp4-pp2-moe", {**spares, "requeue": 1}),
    }
    service: dict[str, Tree] = {"service": {"successors": "unlimited", "idle_stop_s": 900}}
    return [
        make_case(
            f"recovery-{name}",
            "devcluster",
            LAYOUTS[layout],
            {"recovery": own, "exclude_nodes": "n[7-9]"},
            service if name == "service" else {},
        )
        for name, (layout, own) in chosen.items()
    ]


def beside_serving() -> list[Case]:
    """Return jobs with copies of weights, a client, or both, on sites that differ in GPUs, containers and recovery."""
    client: dict[str, Tree] = {"client": {"command": ["bash", "-c", "it's $X"], "env": {"X": "a b"}, "cpus": 2}}
    staging: dict[str, Tree] = {"model": "/models/it's one", "staging": {"exclude": ["*.bin"], "streams": 8}}
    spares: dict[str, Tree] = {"recovery": {"restarts": 1, "spare_nodes": 1}}
    inside: dict[str, Tree] = {"container": {"image": "/images/x.sif"}}
    return [
        make_case("client-step", "typed-gres", LAYOUTS["tp4"], client),
        make_case("staging-spares", "devcluster", LAYOUTS["tp4-pp2-moe"], staging, spares),
        make_case(
            "both-inside",
            "apptainer",
            LAYOUTS["tp4"],
            inside,
            staging,
            {"client": {"command": ["./ask"], "in_image": True}},
        ),
    ]


def make_case(name: str, site: str, *values: dict[str, Tree]) -> Case:
    """Return a rehearsal on the site of that name, with `values` laid over each other."""
    merged: dict[str, Tree] = {"name": "demo", "engine": "rehearsal"}
    for value in values:
        merged.update(value)
    return Case(name, spec_from_mapping(merged), SITES[site])


def matrix() -> list[Case]:
    """Return every layout on every site, and every combination of the switches on one of them."""
    cases = [
        make_case(f"{layout}.{site}", site, values)
        for (layout, values), site in itertools.product(LAYOUTS.items(), SITES)
        if site not in SPECIAL
    ]
    for choice in itertools.product((0, 1), repeat=len(SWITCHES)):
        picked = [pair[index] for pair, index in zip(SWITCHES.values(), choice, strict=True)]
        name = "switches-" + "".join(map(str, choice))
        cases.append(make_case(name, "devcluster", LAYOUTS["tp4-pp2-moe"], *picked))
    return cases
