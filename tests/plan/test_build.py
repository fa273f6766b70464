"""build_plan: every contradiction is told with its numbers and all at once, and what a plan holds otherwise."""

from __future__ import annotations

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.plan import build_plan
from slurm_llm.plan.build import slug
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan, make_site, make_spec


def _faults(spec: dict[str, Tree], partition: dict[str, Tree] | None = None, **site: Tree) -> list[str]:
    with pytest.raises(PlanError) as caught:
        build_plan(make_spec(**spec), make_site(partition, **site))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("spec", "partition", "message"),
    [
        (
            {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "resources": {"nodes": 3}},
            {},
            "resources.nodes: tensor 8 × pipeline 2 needs 16 GPUs; 3 nodes × 4 GPUs = 12; ask for 4 nodes",
        ),
        (
            {"tensor_parallel_size": 6, "resources": {"nodes": 1}},
            {},
            "resources.nodes: tensor 6 needs 6 GPUs; 1 node × 4 GPUs = 4; ask for 2 nodes",
        ),
        (
            {"tensor_parallel_size": 5, "resources": {"nodes": 2}},
            {},
            "resources.nodes: tensor 5 needs 5 GPUs; 2 nodes cannot share that evenly; ask for one of 5 nodes",
        ),
        (
            {"tensor_parallel_size": 4, "resources": {"nodes": 3}},
            {},
            "resources.nodes: tensor 4 needs 4 GPUs; 3 nodes cannot share that evenly; ask for one of 1, 2, 4 nodes",
        ),
        (
            {"tensor_parallel_size": 4, "resources": {"nodes": 2, "gpus_per_node": 4}},
            {},
            "resources.nodes: tensor 4 needs 4 GPUs; 2 nodes × 4 GPUs = 8; GPUs would stay idle; "
            "ask for 1 node, or leave gpus_per_node out",
        ),
        (
            {"tensor_parallel_size": 4, "resources": {"gpus_per_node": 3}},
            {},
            "resources.gpus_per_node: tensor 4 needs 4 GPUs; that is no multiple of 3 GPUs a node; ask for one of 1, 2",
        ),
        (
            {"tensor_parallel_size": 8, "resources": {"gpus_per_node": 8}},
            {},
            "resources.gpus_per_node: 8 GPUs a node asked for, a node of this partition has 4: 1 to 4: "
            "ask for more nodes instead",
        ),
        (
            {"tensor_parallel_size": 8, "context_parallel_size": 2, "resources": {"nodes": 2}},
            {},
            "resources.nodes: tensor 8 × context 2 needs 16 GPUs; 2 nodes × 4 GPUs = 8; ask for 4 nodes",
        ),
        (
            {"tensor_parallel_size": 4, "replicas": 2, "resources": {"nodes": 3}},
            {},
            "resources.nodes: 3 nodes cannot be shared out evenly to 2 replicas: a multiple of 2: ask for 4 nodes",
        ),
        (
            {"tensor_parallel_size": 8, "replicas": 2, "resources": {"nodes": 2}},
            {},
            "resources.nodes: tensor 8 × 2 replicas needs 16 GPUs; 2 nodes × 4 GPUs = 8; ask for 4 nodes",
        ),
        (
            {"tensor_parallel_size": 6, "resources": {"nodes": 2, "gpus_per_node": 4}},
            {},
            "resources.gpus_per_node: tensor 6 needs 6 GPUs; 2 nodes × 4 GPUs = 8; "
            "2 GPUs would stay idle; leave gpus_per_node out",
        ),
        (
            {"tensor_parallel_size": 64},
            {"nodes": 8},
            "resources.nodes: the job needs 16 nodes × 4 ranks, the partition gives 8 nodes: at most 8: "
            "ask for fewer ranks or another partition",
        ),
        (
            {"tensor_parallel_size": 64},
            {"nodes": 99, "limits": {"max_nodes": 2}},
            "resources.nodes: the job needs 16 nodes × 4 ranks, the partition gives 2 nodes: at most 2: "
            "ask for fewer ranks or another partition",
        ),
        (
            {"tensor_parallel_size": 4, "resources": {"cpus_per_rank": 9}},
            {},
            "resources.cpus_per_rank: 4 ranks × 9 CPUs = 36 a node; a node has 32: 1 to 8",
        ),
        (
            {"tensor_parallel_size": 4},
            {"cpus": {"per_node": 3}},
            "resources.cpus_per_rank: 4 ranks × 1 CPUs = 4 a node; a node has 3: put at most 3 ranks on a node",
        ),
        (
            {"tensor_parallel_size": 8, "resources": {"nodes": 1}},
            {"gpus_per_node": 0, "cpus": {"per_node": 4}},
            "resources.nodes: tensor 8 needs 8 ranks; 1 node × 4 ranks = 4; ask for 2 nodes",
        ),
        (
            {"resources": {"time": "2:00:00"}},
            {"time": {"max": "1:00:00"}},
            "resources.time: 2:00:00 asked for: at most 01:00:00 in this partition: "
            "ask for less, or choose another partition",
        ),
        (
            {"resources": {"time": "UNLIMITED"}},
            {"time": {"max": "1:00:00"}},
            "resources.time: no limit asked for: at most 01:00:00 in this partition: "
            "ask for less, or choose another partition",
        ),
        (
            {"resources": {"time": 0}},
            {"time": {"max": "1:00:00"}},
            "resources.time: no limit asked for: at most 01:00:00 in this partition: "
            "ask for less, or choose another partition",
        ),
        (
            {"partition": "gqu"},
            {},
            "partition: unknown partition 'gqu': partitions of site here: gpu: did you mean 'gpu'?",
        ),
        (
            {"partition": "xxxxx"},
            {},
            "partition: unknown partition 'xxxxx': partitions of site here: gpu: choose one of them",
        ),
        (
            {"container": {"image": "x.sqsh"}},
            {},
            "container.image: an image is given, but site here has no container runtime: "
            "remove `container`, or choose another site",
        ),
        (
            {"triton": {"http_port": 8000, "grpc_port": 8000}},
            {},
            "triton: two ports are the same: http_port 8000, grpc_port 8000: three different ports: change one",
        ),
        (
            {"replicas": 2, "triton": {"http_port": 8000}},
            {},
            "triton: fixed ports (http_port) with 2 replicas: leave the ports out: each replica draws its own",
        ),
        (
            {"triton": {"exit_timeout_s": 30}},
            {},
            "triton.exit_timeout_s: 30 s, but Slurm kills after KillWait, 30 s on site here: 1 to 29: leave it out",
        ),
        (
            {"engine_args": {"sed": 1}},
            {},
            "engine_args.sed: unknown argument of the rehearsal engine: seed, step_ms, join_timeout_s, device, "
            "hold_mib, fault: did you mean 'seed'?",
        ),
        (
            {"engine_args": {"seed": "x"}},
            {},
            "engine_args.seed: found 'x': a whole number from 0: correct it",
        ),
    ],
)
def test_a_contradiction_is_told_with_its_numbers(
    spec: dict[str, Tree], partition: dict[str, Tree], message: str
) -> None:
    """Each contradiction of spec and partition is one sentence, alone."""
    assert _faults(spec, partition) == [message]


@pytest.mark.parametrize(
    ("spec", "site", "message"),
    [
        (
            {},
            {"launcher": {}},
            "launcher.mpi: site here names no MPI type, and the leader launch forms an MPI world: "
            "pmix, pmix_v4, pmi2, …: set launcher.mpi in the profile (see `srun --mpi=list`)",
        ),
        (
            {},
            {"account": {"required": True}},
            "account: site here requires an account: ask your centre for yours",
        ),
        (
            {},
            {"account": {"required": True, "list_command": "myaccounts"}},
            "account: site here requires an account: list yours with `myaccounts`",
        ),
        (
            {"account": "nope"},
            {"account": {"pattern": "[a-z]+\\d+"}},
            "account: 'nope' does not look like one of here: [a-z]+\\d+: ask your centre for yours",
        ),
        (
            {},
            {"network": {"ports": "20000-20001"}},
            "network.ports: port range exhausted: 20000-20001 has 2 free ports, a job draws 3: "
            "widen the range in the site profile",
        ),
        (
            {"triton": {"http_port": 20001}},
            {"network": {"ports": "20000-20001"}},
            "network.ports: port range exhausted: 20000-20001 has 1 free ports, a job draws 2: "
            "widen the range in the site profile",
        ),
    ],
)
def test_a_contradiction_with_the_site_is_told(spec: dict[str, Tree], site: dict[str, Tree], message: str) -> None:
    """MPI type, account rules and ports of the site are held against the spec."""
    assert _faults(spec, None, **site) == [message]


@pytest.mark.parametrize(
    ("account", "rules", "expected"),
    [
        (None, {}, None),
        ("a1", {}, "a1"),
        (None, {"default": "d1"}, "d1"),
        (None, {"required": True, "default": "d1"}, "d1"),
        ("b2", {"required": True, "default": "d1", "pattern": "[a-z]\\d"}, "b2"),
    ],
)
def test_the_account_is_the_specs_or_the_sites(
    account: str | None, rules: dict[str, Tree], expected: str | None
) -> None:
    """The spec's account wins over the site's default."""
    assert build_plan(make_spec(account=account), make_site(account=rules)).allocation.account == expected


def test_all_contradictions_are_told_at_once() -> None:
    """Sizes, arguments, layout, time, account, ports, MPI and container come in one error, each once."""
    faults = _faults(
        {
            "tensor_parallel_size": 8,
            "moe_expert_parallel_size": 3,
            "resources": {"nodes": 1, "time": "9:00:00"},
            "triton": {"http_port": 1, "grpc_port": 1},
            "container": {"image": "x"},
            "engine_args": {"zzz": 1},
        },
        {"time": {"max": "1:00:00"}},
        launcher={},
        account={"required": True},
        network={"ports": "1-1"},
    )
    assert [fault.split(":")[0] for fault in faults] == [
        "moe_expert_parallel_size",
        "engine_args.zzz",
        "launcher.mpi",
        "account",
        "triton",
        "network.ports",
        "resources.nodes",
        "resources.time",
        "container.image",
    ]


def test_an_unknown_partition_hides_no_other_fault() -> None:
    """What does not depend on the partition is told together with it."""
    faults = _faults(
        {"partition": "x", "engine_args": {"sed": 1}, "container": {"image": "/a"}}, None, account={"required": True}
    )
    assert [fault.split(":")[0] for fault in faults] == ["partition", "engine_args.sed", "account", "container.image"]


@pytest.mark.parametrize(
    ("tensor", "moe_tensor", "moe_expert", "expected"),
    [
        (4, None, None, (4, 1)),
        (4, 2, None, (2, 2)),
        (4, None, 4, (1, 4)),
        (4, None, 2, (2, 2)),
        (4, 2, 2, (2, 2)),
        (1, 1, 1, (1, 1)),
        (12, 3, None, (3, 4)),
    ],
)
def test_unset_expert_sizes_are_filled(
    tensor: int, moe_tensor: int | None, moe_expert: int | None, expected: tuple[int, int]
) -> None:
    """moe_tp × moe_ep is tp; the one that is left out follows, and without both there is no expert parallel."""
    plan = make_plan(
        tensor_parallel_size=tensor, moe_tensor_parallel_size=moe_tensor, moe_expert_parallel_size=moe_expert
    )
    assert (plan.sizes.moe_tensor_parallel_size, plan.sizes.moe_expert_parallel_size) == expected
    assert plan.world_size == tensor


@pytest.mark.parametrize(
    ("moe_tensor", "moe_expert", "messages"),
    [
        (
            None,
            3,
            [
                "moe_expert_parallel_size: 3 does not divide tensor_parallel_size 4: one of 1, 2, 4: "
                "experts share the tensor dimension"
            ],
        ),
        (
            8,
            3,
            [
                "moe_expert_parallel_size: 3 does not divide tensor_parallel_size 4: one of 1, 2, 4: "
                "experts share the tensor dimension",
                "moe_tensor_parallel_size: 8 does not divide tensor_parallel_size 4: one of 1, 2, 4: "
                "experts share the tensor dimension",
            ],
        ),
        (
            4,
            2,
            [
                "moe_expert_parallel_size: moe_tensor 4 × moe_expert 2 = 8: "
                "their product must be tensor_parallel_size, 4: leave one of the two out and it is filled in"
            ],
        ),
    ],
)
def test_expert_sizes_that_contradict_tensor_are_told(
    moe_tensor: int | None, moe_expert: int | None, messages: list[str]
) -> None:
    """A size that does not divide tensor, and a product that is not tensor, are told with their numbers."""
    spec: dict[str, Tree] = {
        "tensor_parallel_size": 4,
        "moe_tensor_parallel_size": moe_tensor,
        "moe_expert_parallel_size": moe_expert,
    }
    assert _faults(spec) == messages


@pytest.mark.parametrize(
    ("values", "nodes", "ranks_per_node"),
    [
        ({"tensor_parallel_size": 1}, 1, 1),
        ({"tensor_parallel_size": 4}, 1, 4),
        ({"tensor_parallel_size": 8}, 2, 4),
        ({"tensor_parallel_size": 6}, 2, 3),
        ({"tensor_parallel_size": 5}, 5, 1),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "resources": {"nodes": 4}}, 4, 2),
        ({"tensor_parallel_size": 4, "resources": {"gpus_per_node": 1}}, 4, 1),
        ({"tensor_parallel_size": 4, "replicas": 3}, 3, 4),
        ({"tensor_parallel_size": 2, "replicas": 2, "resources": {"nodes": 4}}, 4, 1),
        ({"tensor_parallel_size": 4, "context_parallel_size": 2}, 2, 4),
    ],
)
def test_nodes_follow_from_the_sizes(values: dict[str, Tree], nodes: int, ranks_per_node: int) -> None:
    """As few nodes as hold the ranks evenly, unless the spec says how many."""
    allocation = make_plan(**values).allocation
    assert (allocation.nodes, allocation.ranks_per_node, allocation.gpus.per_node) == (
        nodes,
        ranks_per_node,
        ranks_per_node,
    )


def test_a_partition_without_gpus_asks_for_none() -> None:
    """On CPUs the ranks a node follow from the CPUs, and no GPU is asked for."""
    plan = make_plan({"gpus_per_node": 0, "cpus": {"per_node": 8, "per_rank": 2}}, tensor_parallel_size=8)
    assert (plan.allocation.nodes, plan.allocation.ranks_per_node, plan.allocation.gpus.per_node) == (2, 4, 0)


def test_a_site_without_a_gpu_request_asks_for_none() -> None:
    """Where whole nodes are given, nothing is asked for, and ranks still get one GPU each."""
    plan = make_plan({"gpu_request": {"style": "none"}}, tensor_parallel_size=4)
    assert plan.allocation.gpus.per_node == 0
    assert [rank.gpus for rank in plan.ranks] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("partition", "resources", "cpus"),
    [
        ({}, {}, 8),
        ({"cpus": {"per_rank": 2}}, {}, 2),
        ({"cpus": {"per_rank": 2}}, {"cpus_per_rank": 3}, 3),
        ({"cpus": {}}, {}, 1),
        ({"cpus": {"per_node": 4}, "gpus_per_node": 8}, {}, 1),
    ],
)
def test_cpus_of_a_rank(partition: dict[str, Tree], resources: dict[str, Tree], cpus: int) -> None:
    """The spec's number, else the partition's, else a node's CPUs over its GPUs, else one."""
    assert make_plan(partition, resources=resources).allocation.cpus_per_rank == cpus


@pytest.mark.parametrize(
    ("partition", "values", "warning"),
    [
        (
            {},
            {"tensor_parallel_size": 8},
            "a tensor group of 8 spans several nodes (4 a node): its all-reduces cross the network",
        ),
        (
            {"gpus_per_node": 3},
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 3},
            "a tensor group of 2 spans several nodes (3 a node): its all-reduces cross the network",
        ),
        (
            {"cpus": {}},
            {},
            "neither spec nor site says how many CPUs a rank gets: 1 (set resources.cpus_per_rank, or for every job "
            "partitions.gpu.cpus.per_node in the profile)",
        ),
        (
            {"cpus": {}, "gpus_per_node": 0},
            {},
            "neither spec nor site says how many CPUs a rank gets: 1 (set resources.cpus_per_rank, or for every job "
            "partitions.gpu.cpus.per_rank in the profile)",
        ),
    ],
)
def test_what_is_allowed_but_doubtful_is_a_warning(
    partition: dict[str, Tree], values: dict[str, Tree], warning: str
) -> None:
    """A tensor group over several nodes, and CPUs that nobody named, are warned of."""
    plan = make_plan({"time": {"default": "1:00:00"}, **partition}, **values)
    assert plan.warnings == (warning,)


def test_a_job_without_a_doubt_has_no_warning() -> None:
    """Tensor groups inside nodes, known CPUs and a time limit leave nothing to say; a missing limit is said."""
    assert make_plan({"time": {"default": "1:00:00"}}, tensor_parallel_size=4).warnings == ()
    assert make_plan(tensor_parallel_size=4).warnings == (
        "no time limit given: Slurm's own default for the partition counts",
    )


def test_spec_and_site_are_joined() -> None:
    """The spec's own values win, constraints add up, options and shell lines come in order."""
    spec = make_spec(
        qos="high",
        constraint="b",
        env={"A": 1, "B": True},
        sbatch_extra=["--nice=5"],
        prologue="echo spec",
        epilogue="echo spec\n",
        resources={"mem_per_node": 1024, "time": 30},
    )
    site = make_site(
        {"qos": "low", "constraint": "a", "memory": {"whole_node": "1G"}, "slurm_partition": "p", "reservation": "r"},
        env={"set": {"A": 0, "C": "x"}, "unset": ["D"]},
        sbatch_extra=["--mail-type=END"],
        prologue="echo site\n",
        epilogue="echo site",
        preflight={"mpi": False},
        python="/usr/bin/python3",
        storage={"local": "/scratch/"},
    )
    plan = build_plan(spec, site)
    own = plan.allocation
    assert (own.qos, own.constraint, own.memory, own.time, own.partition, own.reservation) == (
        *("high", "a&b", "--mem=1024", "30", "p", "r"),
    )
    assert own.extra == ("--mail-type=END", "--nice=5")
    assert plan.env.set == (("A", "1"), ("C", "x"), ("B", "true"))
    assert plan.env.unset == ("D",)
    assert (plan.prologue, plan.epilogue) == ("echo site\necho spec", "echo spec\necho site")
    assert (plan.preflight_mpi, plan.python, plan.local_dir) == (False, "/usr/bin/python3", "/scratch")


def test_the_specs_preflight_wins() -> None:
    """A spec can turn the MPI part of the check off where the site has it, and on where it has not."""
    assert not build_plan(make_spec(preflight={"mpi": False}), make_site()).preflight_mpi
    assert build_plan(make_spec(preflight={"mpi": True}), make_site(preflight={"mpi": False})).preflight_mpi


@pytest.mark.parametrize(
    ("kill_wait", "asked", "expected"),
    [(30, None, 25), (10, None, 5), (4, None, 3), (3, None, 2), (30, 7, 7), (10, 9, 9)],
)
def test_triton_gives_up_before_slurm_kills(kill_wait: int, asked: int | None, expected: int) -> None:
    """Triton's own deadline stays below KillWait, or its shared memory would stay behind."""
    spec = make_spec(triton={"exit_timeout_s": asked})
    assert build_plan(spec, make_site(slurm={"kill_wait_s": kill_wait})).server.exit_timeout_s == expected


def test_the_model_and_its_arguments() -> None:
    """The model's name, Triton's verbosity and the engine's arguments reach the server."""
    plan = make_plan(triton={"model_name": "m1", "log_verbose": 2, "extra_args": ["--x"]}, engine_args={"seed": 7})
    assert plan.server.model_name == "m1"
    assert plan.server.arguments == ("--disable-auto-complete-config", "--log-verbose=2", "--x")
    assert plan.server.worker_arguments == ("--model-control-mode=explicit", "--load-model=m1")
    assert plan.server.parameters["seed"] == "7"
    assert plan.probe.path == "/v2/models/m1/generate"
    assert make_plan().server.model_name == "tensorrt_llm"


def test_the_default_partition_is_named_or_the_first() -> None:
    """Without a partition in the spec the site's default counts, else its first one."""
    partitions: dict[str, Tree] = {
        "a": {"gpus_per_node": 4, "slurm_partition": "pa"},
        "b": {"gpus_per_node": 4, "slurm_partition": "pb"},
    }
    assert build_plan(make_spec(), make_site(partitions=partitions)).allocation.partition == "pa"
    site = make_site(partitions=partitions, default_partition="b")
    assert build_plan(make_spec(), site).allocation.partition == "pb"
    assert build_plan(make_spec(partition="a"), site).allocation.partition == "pa"


def test_expert_parallel_does_not_multiply_the_world() -> None:
    """World size is tensor × pipeline × context."""
    plan = make_plan(
        tensor_parallel_size=4, pipeline_parallel_size=2, context_parallel_size=2, moe_expert_parallel_size=4
    )
    assert plan.world_size == len(plan.ranks) == 16
    assert plan.sizes == ParallelSizes(4, 2, 2, 1, 4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("demo", "demo"),
        ("meta-llama/Llama-3.1-8B", "meta-llama-Llama-3.1-8B"),
        ("-rf --x", "rf---x"),
        ("../../etc/passwd", "etc-passwd"),
        (".hidden", "hidden"),
        ("100% $(id) `id`", "100-id-id"),
        ("x" * 300, "x" * 64),
        ("x" * 63 + "/y", "x" * 63),
        ("Llama é 模型", "Llama-e"),
        ("模型", "job"),
        ("///***", "job"),
        ("..", "job"),
        (" ", "job"),
    ],
)
def test_the_slug_of_a_name(name: str, expected: str) -> None:
    """A folder's name of at most 64 plain bytes, never empty, hidden, or an option."""
    assert slug(name) == expected
