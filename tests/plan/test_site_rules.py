"""What a site's profile changes in a plan: the dialects, the limits, the policies, the release of Slurm."""

from __future__ import annotations

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.steps import helper_step, sbatch_options, world_step
from slurm_llm.slurm.versions import parse_version
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan, make_site, make_spec

TYPED: dict[str, Tree] = {"slurm_type": "h100"}
TWO_NODES: dict[str, Tree] = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}


def _asked(words: tuple[str, ...], *names: str) -> list[str]:
    return [word for word in words if word.startswith(tuple(f"--{name}" for name in names))]


def _faults(spec: dict[str, Tree], partition: dict[str, Tree] | None = None, **site: Tree) -> list[str]:
    with pytest.raises(PlanError) as caught:
        build_plan(make_spec(**spec), make_site(partition, **site))
    return [str(problem) for problem in caught.value.problems]


DIALECTS: dict[str, tuple[dict[str, Tree], list[str], list[str]]] = {
    "gres": ({"style": "gres"}, ["--gres=gpu:4"], ["--gres=gpu:4"]),
    "gres, typed": ({"style": "gres", "typed": True}, ["--gres=gpu:h100:4"], ["--gres=gpu:h100:4"]),
    "gres of another name": ({"style": "gres", "name": "mig"}, ["--gres=mig:4"], ["--gres=mig:4"]),
    "gpus per node": ({}, ["--gpus-per-node=4"], ["--gpus-per-node=4"]),
    "gpus per node, typed": ({"typed": True}, ["--gpus-per-node=h100:4"], ["--gpus-per-node=h100:4"]),
    "total": ({"style": "gpus"}, ["--gpus=8", "--gpus-per-node=4"], ["--gpus-per-node=4"]),
    "total, typed": (
        {"style": "gpus", "typed": True},
        ["--gpus=h100:8", "--gpus-per-node=h100:4"],
        ["--gpus-per-node=h100:4"],
    ),
    "a task": ({"style": "gpus_per_task"}, ["--gpus-per-task=1"], ["--gpus-per-node=4"]),
    "a task, typed": (
        {"style": "gpus_per_task", "typed": True},
        ["--gpus-per-task=h100:1"],
        ["--gpus-per-node=h100:4"],
    ),
    "nothing": ({"style": "none"}, [], []),
    "nothing, but steps ask": ({"style": "none", "step": "gpus_per_node"}, [], ["--gpus-per-node=4"]),
}


@pytest.mark.parametrize(("request_", "job", "step"), DIALECTS.values(), ids=DIALECTS)
def test_gpus_are_asked_for_in_every_dialect(request_: dict[str, Tree], job: list[str], step: list[str]) -> None:
    """Two nodes of four GPUs; job and ranks ask in the site's dialect, helper steps take no GPU."""
    plan = make_plan({"gpu": TYPED, "gpu_request": request_}, **TWO_NODES)
    assert _asked(sbatch_options(plan, ""), "gres", "gpus") == job
    assert _asked(world_step(plan, "/r"), "gres", "gpus") == step
    assert _asked(helper_step(plan), "gres", "gpus") == (["--gres=none"] if step else [])


def test_whole_nodes_are_asked_for_whole() -> None:
    """Where only whole nodes are given a small job asks for all GPUs of its node, and is told that some are idle."""
    plan = make_plan({"whole_node": True, "time": {"default": "1:00:00"}}, tensor_parallel_size=2)
    assert _asked(sbatch_options(plan, ""), "gpus") == ["--gpus-per-node=4"]
    assert plan.allocation.ranks_per_node == 2
    assert plan.warnings == ("only whole nodes are given: 2 of 4 GPUs of each node stay idle",)
    tasks: dict[str, Tree] = {"whole_node": True, "gpu_request": {"style": "gpus_per_task"}}
    assert make_plan(tasks, tensor_parallel_size=2).allocation.gpus.per_node == 2


@pytest.mark.parametrize(
    ("memory", "resources", "ranks", "option"),
    [
        ({}, {}, 4, None),
        ({"per_rank": "60G"}, {}, 2, "--mem=120G"),
        ({"per_rank": "1500M"}, {}, 3, "--mem=4500M"),
        ({"per_rank": "60G", "whole_node": "450G"}, {}, 4, "--mem=450G"),
        ({"per_rank": "60G", "whole_node": "450G"}, {}, 2, "--mem=120G"),
        ({"style": "mem_per_gpu", "per_rank": "60G"}, {}, 2, "--mem-per-gpu=60G"),
        ({"style": "mem_per_gpu", "per_rank": "60G", "whole_node": "0"}, {}, 4, "--mem=0"),
        ({"style": "mem_per_cpu", "per_cpu": "4G"}, {}, 2, "--mem-per-cpu=4G"),
        ({"style": "none", "per_rank": "60G", "whole_node": "450G"}, {}, 4, None),
        ({"per_rank": "60G"}, {"mem_per_node": "7G"}, 2, "--mem=7G"),
    ],
)
def test_memory_is_asked_for_once(
    memory: dict[str, Tree], resources: dict[str, Tree], ranks: int, option: str | None
) -> None:
    """Slurm's client dies of two of the three memory options."""
    plan = make_plan({"memory": memory}, tensor_parallel_size=ranks, resources=resources)
    assert _asked(sbatch_options(plan, ""), "mem") == ([] if option is None else [option])


@pytest.mark.parametrize(
    ("cpus", "job", "step"),
    [
        ({"per_rank": 8}, ["--cpus-per-task=8"], ["--cpus-per-task=8"]),
        ({"per_rank": 8, "style": "cpus_per_gpu"}, ["--cpus-per-gpu=8"], ["--cpus-per-task=8"]),
        ({"per_rank": 8, "style": "none"}, [], []),
    ],
)
def test_cpus_are_asked_for_in_the_sites_style(cpus: dict[str, Tree], job: list[str], step: list[str]) -> None:
    """--cpus-per-gpu and --cpus-per-task on one level are fatal from Slurm 23.11 on; a step's own wins over a job's."""
    plan = make_plan({"cpus": cpus}, tensor_parallel_size=4)
    assert _asked(sbatch_options(plan, ""), "cpus") == job
    assert _asked(world_step(plan, "/r"), "cpus") == step


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("slurm_partition", ["a", "b"], "--partition=a,b"),
        ("exclusive", True, "--exclusive"),
        ("exclusive", "user", "--exclusive=user"),
        ("segment", 2, "--segment=2"),
        ("segment", "all", "--segment=2"),
        ("licenses", "cat:1,horse:2", "--licenses=cat:1,horse:2"),
        ("switches", "1@10:00", "--switches=1@10:00"),
        ("wait_all_nodes", True, "--wait-all-nodes=1"),
        ("core_spec", 0, "--core-spec=0"),
        ("distribution", "block:block", "--distribution=block:block"),
        ("cpus", {"per_rank": 1, "hint": "nomultithread"}, "--hint=nomultithread"),
        ("cpus", {"per_rank": 1, "threads_per_core": 1}, "--threads-per-core=1"),
        ("network", {"flags": "disable_rdzv_get"}, "--network=disable_rdzv_get"),
        ("exclude_nodes", "n[1-3]", "--exclude=n[1-3]"),
        ("sbatch_extra", ["--mail-type=END"], "--mail-type=END"),
    ],
)
def test_a_partitions_key_becomes_its_option(key: str, value: Tree, option: str) -> None:
    """Each key is emitted as sbatch spells it, and nothing of it without the key."""
    name = option.partition("=")[0].lstrip("-")
    assert option in _asked(sbatch_options(make_plan({key: value}, **TWO_NODES), ""), name)
    assert not _asked(sbatch_options(make_plan(**TWO_NODES), ""), name)


@pytest.mark.parametrize(
    ("spec", "partition", "fault"),
    [
        (
            {**TWO_NODES, "resources": {"time": "03:00:00"}},
            {
                "time": {
                    "max": "24:00:00",
                    "by_nodes": [{"max_nodes": 1, "max": "6:00:00"}, {"max_nodes": 9, "max": 120}],
                }
            },
            "resources.time: 03:00:00 asked for: at most 02:00:00 for up to 9 nodes: ask for less, or choose another",
        ),
        (
            {**TWO_NODES, "resources": {"time": "01:00:00"}},
            {"time": {"node_hours": 1.5}},
            "resources.time: 01:00:00 asked for: at most 00:45:00 for 1.5 node-hours: ask for less, or choose another",
        ),
        (
            {"tensor_parallel_size": 4, "pipeline_parallel_size": 7, "resources": {"time": "03:26:00"}},
            {"time": {"node_hours": 24}},
            "resources.time: 03:26:00 asked for: at most 03:25:00 for 24 node-hours",
        ),
        (
            {"resources": {"time": "5"}},
            {"time": {"min": "00:10:00"}},
            "resources.time: 5 asked for: at least 00:10:00 in this partition: ask for more",
        ),
        ({}, {"limits": {"min_nodes": 2}}, "resources.nodes: the job needs 1 nodes: at least 2 in this partition"),
        (TWO_NODES, {"limits": {"max_gpus": 4}}, "resources.nodes: the job takes 8 GPUs: at most 4 in this partition"),
        (
            {"tensor_parallel_size": 4, "pipeline_parallel_size": 3},
            {"segment": 2},
            "resources.nodes: 3 nodes in segments of 2: a multiple of 2",
        ),
        (
            {"gpu_clocks": "1410,1410", "tensor_parallel_size": 2},
            {"policies": {"gpu_clocks": True}},
            "gpu_clocks: clocks are locked for all GPUs of a node, and the job shares its nodes with others: use all 4",
        ),
        ({"gpu_clocks": "1410"}, {}, "gpu_clocks: site here does not let jobs lock GPU clocks: remove it, or ask"),
        (
            {"model": "meta-llama/Llama-3.1-8B", "engine": "vllm"},
            {"network": {"internet": "none"}},
            "model: 'meta-llama/Llama-3.1-8B' would be downloaded, and compute nodes of site here have no internet",
        ),
        (
            {"resources": {"mem_per_node": "1G"}},
            {"policies": {"forbid": ["--mem"]}},
            "resources.mem_per_node: site here refuses jobs with --mem: remove `resources.mem_per_node`",
        ),
        (
            {"sbatch_extra": ["--nodelist=n1"]},
            {"policies": {"forbid": ["--nodelist"]}},
            "sbatch_extra[0]: site here refuses jobs with --nodelist: remove it",
        ),
        (
            {"sbatch_extra": ["-wn1"]},
            {"policies": {"forbid": ["--nodelist"]}},
            "sbatch_extra[0]: site here refuses jobs with --nodelist: remove it",
        ),
        (
            {"resources": {"cpus_per_rank": 2}},
            {"policies": {"forbid": ["--cpus-per-task"]}},
            "resources.cpus_per_rank: site here refuses jobs with --cpus-per-task",
        ),
        ({}, {"policies": {"require": ["--qos"]}}, "qos: site here refuses jobs without --qos: set qos"),
        (
            {},
            {"policies": {"require": ["--comment"]}},
            "comment: site here refuses jobs without --comment: set comment",
        ),
        (
            {},
            {"policies": {"require": ["--wckey"]}},
            "--wckey: site here refuses jobs without --wckey: add it to sbatch_extra, as --wckey=VALUE",
        ),
        (
            {"replicas": 2},
            {"launcher": {"command": "ibrun"}},
            "replicas: site here starts ranks with ibrun, which cannot start several instances: 1: submit one job",
        ),
    ],
)
def test_what_a_site_does_not_take_is_refused(spec: dict[str, Tree], partition: dict[str, Tree], fault: str) -> None:
    """Each with its numbers and what to do."""
    assert any(found.startswith(fault) for found in _faults(spec, partition)), _faults(spec, partition)


def test_a_default_time_fits_the_number_of_nodes() -> None:
    """The default is cut to what so many nodes may run; a time of the spec is not touched."""
    rules: dict[str, Tree] = {"default": "04:00:00", "by_nodes": [{"max_nodes": 1, "max": "02:00:00"}]}
    assert make_plan({"time": rules}).allocation.time == "02:00:00"
    assert make_plan({"time": rules}, **TWO_NODES).allocation.time == "04:00:00"
    assert make_plan({"time": rules}, resources={"time": 7}).allocation.time == "7"
    # To Slurm zero is no limit at all.
    assert make_plan({"time": {"default": 0, "max": "01:00:00"}}).allocation.time == "01:00:00"


def test_forbidden_and_skipped_options_are_not_emitted() -> None:
    """Neither by the job nor by its steps, though the plan would set them."""
    partition: dict[str, Tree] = {
        "memory": {"per_rank": "1G"},
        "policies": {"forbid": ["--mem", "--gpus-per-node"]},
        "sbatch_skip": ["--signal"],
        "srun_skip": ["--label"],
    }
    plan = make_plan(partition, tensor_parallel_size=4)
    assert not _asked(sbatch_options(plan, ""), "mem", "gpus-per-node", "signal")
    assert not _asked(world_step(plan, "/r"), "label")
    assert _asked(world_step(make_plan(), "/r"), "label")


@pytest.mark.parametrize("key", ["segment", "exclusive"])
def test_what_a_release_does_not_know_is_refused(key: str) -> None:
    """`--segment` and `--exclusive=topo` exist from 24.05 on; a release that nobody knows is trusted."""
    partition: dict[str, Tree] = {"segment": 1} if key == "segment" else {"exclusive": "topo"}
    with pytest.raises(PlanError, match=r"Slurm 23\.11\.4 does not know it: from Slurm 24\.05 on: remove the key"):
        build_plan(make_spec(), make_site(partition), parse_version("slurm 23.11.4"))
    for version in ("24.05", None):
        slurm: dict[str, Tree] = {} if version is None else {"version": version}
        site = make_site(partition, slurm=slurm)
        assert _asked(sbatch_options(build_plan(make_spec(), site), ""), key)


def _on(version: str | None, request_: dict[str, Tree] | None = None) -> Plan:
    site = make_site({"gpu_request": request_ or {}})
    return build_plan(make_spec(**TWO_NODES), site, None if version is None else parse_version(version))


@pytest.mark.parametrize(("version", "memory"), [("20.11.8", True), ("21.08.8", True), ("22.05.0", False)])
def test_a_helper_step_takes_nothing_from_the_server(version: str, memory: bool) -> None:
    """Before 22.05 `--overlap` shares CPUs only: a helper must ask for no memory, or it waits for the server to end."""
    helper = helper_step(_on(version))
    assert ("--mem=0" in helper) is memory
    assert "--overlap" in helper
    assert helper_step(_on(None)) == helper_step(_on("22.05.0"))


@pytest.mark.parametrize(("version", "gpus"), [("21.08.8", "--gres=none"), ("22.05.8", "--gpus-per-node=4")])
def test_the_agents_share_the_servers_gpus_where_slurm_can(version: str, gpus: str) -> None:
    """Device cgroups hide the GPUs that a step did not ask for, and nobody could then say how they are."""
    assert gpus in helper_step(_on(version), sees_gpus=True)


@pytest.mark.parametrize(("version", "known"), [("24.05.1", False), ("24.11.0", True), ("26.05.3", True)])
def test_a_rank_out_of_memory_ends_its_step(version: str, known: bool) -> None:
    """`--oom-kill-step` exists from 24.11 on."""
    assert bool(_asked(world_step(_on(version), "/r"), "oom-kill-step")) is known


def test_a_profiles_release_wins_over_the_probed_one() -> None:
    """The login node's commands may be another release than the cluster's controller."""
    site = make_site(slurm={"version": "23.11"})
    assert build_plan(make_spec(), site, parse_version("26.05.1")).slurm == "23.11.0"
    assert build_plan(make_spec(), make_site(), parse_version("26.05.1")).slurm == "26.05.1"
    assert build_plan(make_spec(), make_site()).slurm is None


def test_variables_follow_from_the_network() -> None:
    """Interface, proxies and no internet become variables; the site's own and the spec's win over them."""
    site = make_site(
        network={"interface": "hsn0", "internet": "none", "proxy": {"http": "http://p:1", "no_proxy": "a"}},
        env={"set": {"GLOO_SOCKET_IFNAME": "eth0", "X": "site"}, "unset": ["OLD", "X"]},
    )
    plan = build_plan(make_spec(env={"X": "spec", "HF_HUB_OFFLINE": 0}), site)
    assert dict(plan.env.set) == {
        "NCCL_SOCKET_IFNAME": "hsn0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "http_proxy": "http://p:1",
        "HTTP_PROXY": "http://p:1",
        "no_proxy": "a",
        "NO_PROXY": "a",
        "HF_HUB_OFFLINE": "0",
        "TRANSFORMERS_OFFLINE": "1",
        "X": "spec",
    }
    assert plan.env.unset == ("OLD",)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("srun", None),
        (" srun ", None),
        ("ibrun", ("ibrun", "-n", "8")),
        ("mpirun", ("mpirun", "-np", "8", "--map-by", "ppr:4:node")),
        (
            "mpiexec -n {ntasks} -ppn {ntasks_per_node} -hosts {nodes}",
            ("mpiexec", "-n", "8", "-ppn", "4", "-hosts", "2"),
        ),
    ],
)
def test_ranks_are_started_by_the_sites_launcher(command: str, words: tuple[str, ...] | None) -> None:
    """srun gets all of its options, another launcher the numbers that it asks for; helpers are srun's in any case."""
    plan = build_plan(make_spec(**TWO_NODES), make_site(launcher={"command": command, "mpi": "pmix"}))
    step = world_step(plan, "/r", plan.instances[0])
    assert step[0] == "srun" if words is None else step == words
    assert helper_step(plan)[0] == "srun"


def test_what_a_partition_changes_wins_over_the_site() -> None:
    """Maps key by key, lists whole, and null takes a value away."""
    partition: dict[str, Tree] = {
        "launcher": {"step": {"wait_s": 5}},
        "env": {"set": {"A": "partition"}},
        "srun_extra": [],
        "exclude_nodes": None,
        "account": {"required": True},
    }
    site = make_site(
        partition,
        launcher={"mpi": "pmix", "step": {"cpu_bind": "cores"}},
        env={"set": {"A": "site", "B": "site"}},
        srun_extra=["--mem-bind=local"],
        exclude_nodes="n1",
    )
    plan = build_plan(make_spec(account="a"), site)
    assert (plan.step.mpi, plan.step.cpu_bind, plan.step.wait_s, plan.step.extra) == ("pmix", "cores", 5, ())
    assert dict(plan.env.set) == {"A": "partition", "B": "site"}
    assert plan.allocation.exclude is None
    assert _faults({}, partition, launcher={"mpi": "pmix"})[0].startswith("account: site here requires an account")


def test_slow_sites_get_more_time_to_be_ready() -> None:
    """The factor for slow storage, the seconds for nodes that boot."""
    site = make_site(startup={"timeout_factor": 1.5, "boot_s": 600})
    assert build_plan(make_spec(timeouts={"ready_s": 100}), site).limits.ready_s == 750


def test_policies_that_end_jobs_are_told() -> None:
    """Idle GPUs and preemption are the admin's to set, and the user's to know."""
    partition: dict[str, Tree] = {"preempt": {"possible": True, "grace_s": 300}, "time": {"default": 60}}
    site = make_site(partition, policies={"idle_gpu": {"watts": 100, "after_s": 3600}})
    assert build_plan(make_spec(), site).warnings == (
        "site here ends jobs whose GPUs draw less than 100 W for 3600 s: "
        "a server that nobody asks anything may be ended",
        "jobs in this partition may be preempted, with 300 s of warning",
    )


def test_null_in_a_partition_takes_a_value_away() -> None:
    """Where a key may have no value; a whole section cannot be taken away, a list becomes empty."""
    site = make_site(
        {"network": {"rendezvous": None}, "policies": {"idle_gpu": None}, "sbatch_extra": None, "launcher": None},
        network={"rendezvous": {"suffix": "i"}, "interface": "ib0"},
        policies={"idle_gpu": {"watts": 100, "after_s": 60}, "gpu_clocks": True},
        sbatch_extra=["--mail-type=END"],
    ).for_partition("gpu")
    assert (site.network.rendezvous, site.network.interface) == (None, "ib0")
    assert (site.policies.idle_gpu, site.policies.gpu_clocks) == (None, True)
    assert (site.sbatch_extra, site.launcher.mpi) == ((), "pmix")


def test_constraints_are_joined_as_they_are_meant() -> None:
    """Slurm reads `a&b|c` from left to right: nodes with c alone would do."""
    plan = make_plan({"constraint": "gpu"}, constraint="hbm40g|hbm80g")
    assert plan.allocation.constraint == "gpu&(hbm40g|hbm80g)"
    assert make_plan({"constraint": "a|b"}).allocation.constraint == "a|b"


def test_what_counts_by_gpu_needs_gpus() -> None:
    """In a partition without GPUs, CPUs and memory are asked for by task and node."""
    partition: dict[str, Tree] = {
        "gpus_per_node": 0,
        "cpus": {"style": "cpus_per_gpu", "per_rank": 8},
        "memory": {"style": "mem_per_gpu", "per_rank": "4G"},
    }
    options = sbatch_options(make_plan(partition, tensor_parallel_size=2), "")
    assert _asked(options, "cpus", "mem") == ["--cpus-per-task=8", "--mem=8G"]
    whole: dict[str, Tree] = {"whole_node": True, "cpus": {"style": "cpus_per_gpu", "per_node": 64}}
    faults = _faults({"tensor_parallel_size": 2, "resources": {"cpus_per_rank": 32}}, whole)
    assert faults == ["resources.cpus_per_rank: 4 GPUs × 32 CPUs = 128 a node; a node has 64: 1 to 16"]


def test_a_refused_option_does_not_hide_other_faults() -> None:
    """All of a spec's contradictions come together."""
    faults = _faults({"qos": "x", "moe_expert_parallel_size": 3}, {"policies": {"forbid": ["--qos"]}})
    assert [fault.split(":")[0] for fault in faults] == ["moe_expert_parallel_size", "qos"]


def test_a_profile_for_a_partition_stays_as_it_is() -> None:
    """What a partition changes is laid over the site once; asked for again, nothing more happens."""
    partition: dict[str, Tree] = {"prologue": "echo partition", "launcher": {"step": {"wait_s": 5}}}
    site = make_site(partition, python="/usr/bin/python3", sbatch_extra=["--mail-type=END"], prologue="echo site")
    once = site.for_partition("gpu")
    assert (once.prologue, once.launcher.step.wait_s, once.python) == ("echo partition", 5, "/usr/bin/python3")
    assert once.for_partition("gpu") == once
