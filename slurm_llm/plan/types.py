"""The Plan and its parts: frozen values; `plan.asjson` has their JSON form."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_llm.containers.types import ContainerPlan
from slurm_llm.engines.types import ProbePlan, ServerPlan
from slurm_llm.topology import Coordinates, ParallelSizes

PLAN_SCHEMA = 1

SHM_PREFIX = "llm{job_id}a{attempt}r{rank}_"
"""Recipe for a rank's shared-memory prefix: the ids are known in the job. Short, and nothing but letters and digits."""


@dataclass(frozen=True)
class RankPlan:
    """One rank: `rank` counts over all instances, `instance_rank` within its own (the MPI rank).

    `node` counts the allocation's nodes from 0; `gpus` are slots on that node, in the order that Slurm shows them.
    """

    rank: int
    instance: int
    instance_rank: int
    node: int
    local: int
    gpus: tuple[int, ...]
    at: Coordinates
    role: str


@dataclass(frozen=True)
class InstancePlan:
    """One copy of the model: one srun step of its ranks on `nodes` nodes from `first_node` on."""

    index: int
    first_node: int
    nodes: int
    first_rank: int
    leader: int


@dataclass(frozen=True)
class Gpus:
    """How a job asks for its GPUs: `per_node` of them (0 asks for none) in the dialect `style`, its steps in `step`.

    `type` is the GRES type of typed requests, `name` the GRES of the `gres` dialect. `present` tells whether nodes have
    any, asked for or not.
    """

    per_node: int
    style: str
    step: str
    type: str | None
    name: str
    present: bool


@dataclass(frozen=True)
class Allocation:
    """What is asked of Slurm; None is not emitted.

    `nodes` are those of the ranks; the job asks for `spare_nodes` more, for a restart without one that failed.
    `ranks_per_node` are those of all instances that share a node, `cpus_per_rank` those of all of a rank's GPUs.
    `cpu_style` says in which option CPUs are asked for, `memory` is the whole option. `others` are further options as
    words, in order, `extra` those of spec and site as they stand; an option that is named in `skip` is not emitted.
    """

    nodes: int
    spare_nodes: int
    ranks_per_node: int
    gpus_per_rank: int
    instances_per_node: int
    gpus: Gpus
    cpus_per_rank: int
    cpu_style: str
    memory: str | None
    time: str | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    exclude: str | None
    others: tuple[str, ...]
    extra: tuple[str, ...]
    skip: tuple[str, ...]

    @property
    def gpu_slots(self) -> int:
        """GPUs that rank.sh picks for an instance out of its node's; 0 where each has a step with GPUs of its own."""
        by_slurm = not self.spare_nodes and self.gpus.step != "none"
        if self.instances_per_node == 1 or not self.gpus.present or by_slurm:
            return 0
        return self.instance_gpus_per_node

    @property
    def instance_ranks_per_node(self) -> int:
        """Ranks of one instance on each of its nodes."""
        return self.ranks_per_node // self.instances_per_node

    @property
    def instance_gpus_per_node(self) -> int:
        """GPUs of one instance on each of its nodes."""
        return self.instance_ranks_per_node * self.gpus_per_rank

    @property
    def asked_nodes(self) -> int:
        """Nodes of the job, spare ones included."""
        return self.nodes + self.spare_nodes


@dataclass(frozen=True)
class StepPlan:
    """How ranks are started: by srun, or by another `command` of several words; and the options of srun's steps."""

    command: tuple[str, ...]
    mpi: str | None
    cpu_bind: str | None
    gpu_bind: str | None
    wait_s: int
    extra: tuple[str, ...]
    skip: tuple[str, ...]

    @property
    def by_srun(self) -> bool:
        """Whether srun starts the ranks, and so says who is who."""
        return self.command == ("srun",)


@dataclass(frozen=True)
class EnvironmentPlan:
    """Variables of every rank, applied in this order: `unset`, files to `source` (in the step), `set`, `prepend`."""

    unset: tuple[str, ...]
    source: tuple[str, ...]
    set: tuple[tuple[str, str], ...]
    prepend: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ModulePlan:
    """Environment modules of the batch host, applied in this order."""

    purge: bool
    use: tuple[str, ...]
    unload: tuple[str, ...]
    load: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.purge or self.use or self.unload or self.load)


@dataclass(frozen=True)
class RecoveryPlan:
    """How often a server that failed is started again, seconds before the first time, and how often it is requeued.

    After `reset_s` seconds of service all restarts are there again.
    """

    restarts: int
    backoff_s: int
    reset_s: int
    requeue: int

    def __bool__(self) -> bool:
        return bool(self.restarts or self.requeue)


@dataclass(frozen=True)
class ServicePlan:
    """How a job hands over: seconds for its successor to become ready, and for its own requests to end.

    `successors` is how many jobs may follow the first, None any number. After `idle_stop_s` seconds without a request
    a server ends by itself; None is never.
    """

    handover_s: int
    drain_s: int
    successors: int | None
    idle_stop_s: int | None

    @property
    def hands_over(self) -> bool:
        """Whether there may be a successor."""
        return self.successors != 0


@dataclass(frozen=True)
class ClientPlan:
    """A command on the job's first node, from the first answered request to its end, with which the job ends.

    `env` are variables of its own. With `cpus` or `in_image` it is a step of its own beside the server's, else it runs
    beside the script, with the job's CPUs there. Told to end, it has `grace_s` seconds. `restart`: a server that is
    started again gets it again.
    """

    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    in_image: bool
    cpus: int | None
    restart: bool
    grace_s: int

    @property
    def as_step(self) -> bool:
        """Whether it is a step of its own."""
        return self.in_image or self.cpus is not None


@dataclass(frozen=True)
class StagedFolder:
    """A folder that is copied: `source` as the nodes see it, `target` on each node."""

    source: str
    target: str


@dataclass(frozen=True)
class StagingPlan:
    """What is copied to a disk of each node before ranks start; `to` holds the copies, and what is known of them."""

    to: str
    folders: tuple[StagedFolder, ...]
    exclude: tuple[str, ...]
    streams: int
    keep: bool


@dataclass(frozen=True)
class GuestPlan:
    """A run in an allocation that somebody holds already, as by salloc: its job, and the run's first attempt.

    Attempts are counted through all runs of that allocation: their marks and ports follow from the number.
    """

    job_id: int
    first_attempt: int


@dataclass(frozen=True)
class MasterPlan:
    """What MASTER_ADDR is: the first node's name with `suffix`, or an address of `interface` there."""

    interface: str | None
    suffix: str
    family: str


@dataclass(frozen=True)
class PortPlan:
    """Recipe for the leader's three ports: a fixed number, or None for one drawn in the job from `low`..`high`."""

    low: int
    high: int
    http: int | None
    grpc: int | None
    metrics: int | None


@dataclass(frozen=True)
class LimitPlan:
    """Seconds after which a run counts as hung; see `timeouts` of a spec."""

    ready_s: int
    stall_s: int
    answer_s: int
    probe_s: int
    unready_s: int


@dataclass(frozen=True)
class BalancerPlan:
    """The program before all instances, and its HTTP port where one is given."""

    program: str
    port: int | None


@dataclass(frozen=True)
class FrontendPlan:
    """The OpenAI-compatible front end in place of the leader's tritonserver: its `main.py`, and arguments."""

    program: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class AccessPlan:
    """Who may ask the server what: `closed` APIs of Triton are refused to all, `keyed` ones to those without the key.

    `bind` is where it listens: `all` addresses, the site's network `interface`, or the `loopback` of its node.
    """

    closed: tuple[str, ...] = ()
    keyed: tuple[str, ...] = ()
    bind: str = "all"


@dataclass(frozen=True)
class Plan:
    """A decided job."""

    schema: int
    name: str
    slug: str
    site: str
    slurm: str | None
    engine: str
    model: str | None
    launch: str
    sizes: ParallelSizes
    replicas: int
    allocation: Allocation
    instances: tuple[InstancePlan, ...]
    ranks: tuple[RankPlan, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    step: StepPlan
    container: ContainerPlan | None
    server: ServerPlan
    ports: PortPlan
    balancer: BalancerPlan | None
    frontend: FrontendPlan | None
    shm_prefix: str
    probe: ProbePlan
    python: str | None
    local_dir: str
    hf_home: str | None
    env: EnvironmentPlan
    modules: ModulePlan
    ulimits: tuple[tuple[str, str], ...]
    master: MasterPlan | None
    interface: str | None
    gpu_clocks: str | None
    preflight_mpi: bool
    dev_shm_mib: int
    kill_wait_s: int
    limits: LimitPlan
    recovery: RecoveryPlan
    prologue: str | None
    step_prologue: str | None
    epilogue: str | None
    templates: str | None
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    """What the engine found in its model's files, name and words: bytes of weights, tokens that fit."""
    service: ServicePlan | None = None
    client: ClientPlan | None = None
    staging: StagingPlan | None = None
    guest: GuestPlan | None = None
    access: AccessPlan = AccessPlan()
    exporter: bool = True
    """Whether the head has a metrics page of the whole run."""

    @property
    def world_size(self) -> int:
        """Ranks of one instance."""
        return len(self.ranks) // self.replicas
