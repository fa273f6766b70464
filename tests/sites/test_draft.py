"""Drafts of profiles from what clusters of several kinds print; each must load, and lint without errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

import pytest

from slurm_llm.errors import SetupError, SlurmError
from slurm_llm.process import Completed
from slurm_llm.sites.draft import draft_profile, site_name
from slurm_llm.sites.lint import lint_document
from slurm_llm.sites.load import parse_site
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.client import SlurmClient
from slurm_llm.slurm.commands import SEPARATOR
from slurm_llm.slurm.survey import Survey, parse_record, parse_srun_help, survey
from slurm_llm.yamlio import parse_document

TODAY = date(2026, 11, 30)
UNKNOWN_YET = {"not-verified", "several-nodes-without-mpi"}
"""Warnings that a draft may have: nobody has run it, and srun may name no MPI type."""

CONFIG = """
Configuration data as of 2026-11-30T10:00:00
AccountingStorageEnforce = associations,limits,qos
ClusterName             = example
EnforcePartLimits       = ANY
JobSubmitPlugins        = (null)
KillWait                = 30 sec
MpiDefault              = none
MpiParams               = (null)
PlugStackConfig         = (null)
PreemptType             = preempt/none
ResumeTimeout           = 60 sec
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
SLURM_VERSION           = 23.11.4
SrunPortRange           = 0-0
SwitchType              = switch/none
TmpFS                   = /tmp
TopologyPlugin          = topology/default

Slurmctld(primary) at head is UP
"""
PARTITION = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=2-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[01-08] PriorityJobFactor=1 "
    "PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP "
    "TotalCPUs=512 TotalNodes=8 SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED "
    "MaxMemPerNode=UNLIMITED TRES=cpu=512,mem=4000000M,node=8,billing=512,gres/gpu=32"
)
MPI_NEW = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4,pmix_v5\n"
MPI_OLD = "srun: MPI types are...\nsrun: cray_shasta\nsrun: none\nsrun: pmi2\nsrun: pmix_v3\n"
HELP = """Usage: srun [OPTIONS(0)... [executable(0) [args(0)...]]]

Parallel run options:
  -A, --account=name          charge job to specified account
      --export=env_vars|NONE  environment variables passed to launcher with
                              optional values, see --environment of others
  -n, --ntasks=ntasks         number of tasks to run
"""
PYXIS_HELP = HELP + "\nOptions provided by plugins:\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
NODE = (
    "NodeName={name} Arch={arch} CoresPerSocket=32 CPUAlloc=0 CPUEfctv={cpus} CPUTot=64 "
    "OS=Linux 5.14.0 #1 SMP x MemSpecLimit={spec}"
)
# partition|state|nodes|cpus|memory|sockets|cores|threads|names|gres|features
SINFO = "gpu|idle|8|64|512000|2|32|1|n[01-08]|gpu:a100:4(S:0-1)|a100,nvme"


@dataclass(frozen=True)
class Cluster:
    """What the commands of a cluster print; an answer that is None is a command that fails."""

    config: str = CONFIG
    partitions: str = PARTITION
    sinfo: str = SINFO
    nodes: str = ""
    mpi: str = MPI_NEW
    help: str = HELP
    assoc: str | None = "def-pi||normal,high|\n"
    account: str | None = "def-pi\n"
    environ: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed:
        said = self._answer(list(argv))
        if said is None:
            return Completed(tuple(argv), 1, "", "Slurm accounting storage is disabled")
        return Completed(tuple(argv), 0, said, "")

    def _answer(self, argv: list[str]) -> str | None:
        asked = " ".join(argv)
        answers = {
            "scontrol show config": self.config,
            "scontrol --oneliner show partition": self.partitions,
            "srun --mpi=list": self.mpi,
            "srun --help": self.help,
        }
        if argv[0] == "sinfo":
            return self.sinfo.strip().replace("|", SEPARATOR) + "\n"
        if argv[0] == "sacctmgr":
            return self.assoc if "assoc" in argv else self.account
        return self.nodes if "show node" in asked else answers[asked]

    def survey(self) -> Survey:
        """Ask it as a user does."""
        client = SlurmClient(self, self.environ)
        return survey(client, user="me", host="login1.example.org", environ={"PATH": "/nonexistent", **self.environ})

    def draft(self, *, standalone: bool = False) -> str:
        """Return the drafted text."""
        return draft_profile(self.survey(), name="here", today=TODAY, standalone=standalone)

    def profile(self) -> SiteProfile:
        """Return the drafted profile, which must lint without errors."""
        document = parse_document(self.draft(), "here.yaml")
        found = [one for one in lint_document(document, today=TODAY, stem="here") if one.rule not in UNKNOWN_YET]
        assert [str(one) for one in found] == []
        return parse_site(document)

    def partition(self) -> Partition:
        """Return the only partition of the draft."""
        (found,) = self.profile().partitions.values()
        return found


def with_keys(text: str, **values: str) -> str:
    """Return a partition's line, or a configuration, with other values."""
    for key, value in values.items():
        text, count = re.subn(rf"\b{key}( *=) ?\S.*?(?=\s\w+=|\n|\Z)", rf"{key}\1 {value}", text, count=1)
        assert count == 1, key
    return re.sub(r"(\w)= ", r"\1=", text) if text.startswith("PartitionName") else text


def test_a_plain_gpu_cluster() -> None:
    """What one partition of one kind of node becomes."""
    nodes = NODE.format(name="n01", arch="x86_64", cpus=60, spec=8000)
    site = Cluster(nodes=nodes).profile()
    own = site.partitions["gpu"]
    assert (site.name, site.slurm.version, site.slurm.kill_wait_s) == ("here", "23.11.4", 30)
    assert (site.default_partition, site.launcher.mpi) == ("gpu", "pmix")
    assert (own.slurm_partition, own.nodes, own.gpus_per_node, own.arch) == ("gpu", 8, 4, "x86_64")
    assert (own.gpu.model, own.gpu_request.style, own.gpu_request.typed) == ("a100", "gpus_per_node", False)
    assert own.cpus.per_node == 60
    assert (own.memory.style, own.memory.per_rank, own.memory.whole_node) == ("mem", "123G", "0")
    assert (own.time.max, own.time.default) == ("2-00:00:00", "01:00:00")
    assert not own.whole_node
    assert own.limits.max_nodes is None
    assert not site.account.required
    assert "def-pi" in Cluster().draft()


def test_every_value_says_where_it_is_from() -> None:
    """Behind each value, or above it, stands the command that told it, or that it was guessed."""
    lines = Cluster(help=PYXIS_HELP, environ={"SCRATCH": "/scratch/me"}).draft().splitlines()
    keys = [at for at, line in enumerate(lines) if re.match(r"\s*[\w-]+: \S", line)]
    untold = [lines[at] for at in keys if "  # " not in lines[at] and not lines[at - 1].lstrip().startswith("# ")]
    assert untold == []
    assert len(keys) > 15
    assert all(len(line) <= 120 for line in lines)
    assert sum("guessed" in line for line in lines) >= 5


MIXED = """
gpu|idle|4|64|512000|2|32|1|n[01-04]|gpu:a100:4(S:0-1)|ib
gpu|mixed|2|96|1024000|2|48|1|n[05-06]|gpu:h100:8(S:0-1)|ib,hdr
gpu|down*|1|96|1024000|2|48|1|n07|gpu:h100:8(S:0-1)|ib
gpu|idle|8|128|256000|2|64|1|c[01-08]|(null)|(null)
"""


def test_several_types_of_gpu_are_several_partitions() -> None:
    """Each kind is asked for by its type; nodes without GPUs are a partition of their own."""
    site = Cluster(sinfo=MIXED).profile()
    assert list(site.partitions) == ["gpu-a100", "gpu-h100", "gpu-cpu"]
    assert site.default_partition == "gpu-a100"
    a100, h100, cpu = site.partitions.values()
    assert {one.slurm_partition for one in site.partitions.values()} == {"gpu"}
    assert [(one.gpus_per_node, one.nodes, one.cpus.per_node) for one in (a100, h100)] == [(4, 4, 64), (8, 3, 96)]
    assert [one.gpu.slurm_type for one in (a100, h100, cpu)] == ["a100", "h100", None]
    assert [one.gpu_request.typed for one in (a100, h100, cpu)] == [True, True, False]
    assert (cpu.gpus_per_node, cpu.nodes, cpu.memory.per_rank) == (0, 8, "2000M")
    assert "1 of them not up now" in Cluster(sinfo=MIXED).draft()


def test_nodes_that_differ_in_features_are_told() -> None:
    """One kind of GPU and several features are one partition; a comment says how to choose among its nodes."""
    first = "gpu|idle|5|64|512000|2|32|1|a[1-5]|gpu:a100:4|a100,ib"
    rows = f"{first}\ngpu|idle|3|64|512000|2|32|1|b[1-3]|gpu:a100:4|a100,hbm80g"
    cluster = Cluster(sinfo=rows)
    assert (cluster.partition().nodes, cluster.partition().constraint) == (8, None)
    text = " ".join(line.strip("# ") for line in cluster.draft().splitlines())
    assert "Its nodes differ in features, of 8 have: hbm80g 3, ib 5 (sinfo: %f). To keep jobs on some" in text
    assert "constraint: hbm80g ('a&b' for both, 'a|b' for either)" in text
    assert "differ in features" not in Cluster().draft()


def test_the_type_that_slurm_knows_is_a_comment() -> None:
    """A partition of one type asks for any GPU; how to ask by type is said, not done."""
    text = Cluster().draft()
    assert "gpu: {slurm_type: a100} with gpu_request: {typed: true}" in text
    assert Cluster().partition().gpu.slurm_type is None
    assert "by their type" not in Cluster(sinfo=MIXED).draft()


def test_times_are_in_quotes() -> None:
    """As everywhere in the documentation: no reader of YAML then takes one for a number."""
    assert 'time: {max: "2-00:00:00", default: "01:00:00"}' in Cluster().draft()


def test_one_type_in_two_sizes_is_told_apart_by_a_feature() -> None:
    """Four and eight GPUs a node of one type: a constraint that only the nodes of one kind meet."""
    rows = "gpu|idle|4|64|512000|2|32|1|a[1-4]|gpu:a100:4|ib,quad\ngpu|idle|2|96|512000|2|48|1|b[1-2]|gpu:a100:8|ib,dgx"
    site = Cluster(sinfo=rows).profile()
    assert [(name, one.constraint) for name, one in site.partitions.items()] == [
        ("gpu-a100x4", "quad"),
        ("gpu-a100x8", "dgx"),
    ]


def test_untyped_gpus_are_told_apart_by_features() -> None:
    """Where Slurm counts GPUs without types, features name the models."""
    rows = "gpu|idle|4|64|512000|2|32|1|a[1-4]|gpu:4|A100,nvlink\ngpu|idle|2|64|512000|2|32|1|b[1-2]|gpu:4|h100"
    site = Cluster(sinfo=rows).profile()
    assert [(name, one.constraint, one.gpu.model) for name, one in site.partitions.items()] == [
        ("gpu-A100", "A100", "A100"),
        ("gpu-h100", "h100", "h100"),
    ]
    same = "gpu|idle|4|64|512000|2|32|1|a[1-4]|gpu:4|ib\ngpu|idle|2|48|400000|2|24|1|b[1-2]|gpu:4|eth,fast"
    own = Cluster(sinfo=same).partition()
    assert (own.nodes, own.cpus.per_node, own.memory.per_rank, own.constraint) == (6, 48, "97G", None)


def test_what_nothing_tells_apart_is_said() -> None:
    """Two sizes of node without types or features stay two partitions, with a warning in the text."""
    rows = "gpu|idle|4|64|512000|2|32|1|a[1-4]|gpu:4|(null)\ngpu|idle|2|96|512000|2|48|1|b[1-2]|gpu:8|(null)"
    assert list(Cluster(sinfo=rows).profile().partitions) == ["gpu-gpux4", "gpu-gpux8"]
    assert "jobs may start on any that fit" in Cluster(sinfo=rows).draft()


def test_slices_of_gpus_do_not_count_beside_whole_ones() -> None:
    """MIG slices are types of their own; where there is nothing else they are what there is."""
    both = "gpu|idle|1|64|512000|2|32|1|n1|gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:1)|(null)"
    assert Cluster(sinfo=both).partition().gpus_per_node == 2
    only = "gpu|idle|1|64|512000|2|32|1|n1|gpu:1g.10gb:28|(null)"
    assert Cluster(sinfo=only).partition().gpus_per_node == 28


def test_a_cluster_without_gpus() -> None:
    """Ranks share the CPUs, and memory is a CPU's share."""
    rows = "gpu|idle|8|128|256000|2|64|2|c[01-08]|(null)|(null)"
    own = Cluster(sinfo=rows).partition()
    assert (own.gpus_per_node, own.cpus.per_node, own.memory.per_rank) == (0, 128, "2000M")
    assert own.memory.whole_node is None
    assert "2 threads a core" in Cluster(sinfo=rows).draft()


def test_a_queue_that_takes_only_some_qos() -> None:
    """Where the user's default QOS is refused, one that is allowed is written, and marked as guessed."""
    limited = with_keys(PARTITION, AllowQos="acc_debug,acc_ehpc")
    cluster = Cluster(partitions=limited, assoc="ehpc||acc_ehpc,gp_ehpc|\n")
    assert cluster.partition().qos == "acc_ehpc"
    assert "guessed: AllowQos=acc_debug,acc_ehpc" in cluster.draft()
    assert Cluster(partitions=limited, assoc="ehpc||acc_debug,gp|acc_debug\n").partition().qos is None
    stranger = Cluster(partitions=limited, assoc="ehpc||gp|\n")
    assert stranger.partition().qos is None
    assert "none of yours (gp)" in stranger.draft()


def test_a_cluster_without_accounting() -> None:
    """That sacctmgr does not answer is told at the head, and no account is asked for."""
    cluster = Cluster(config=with_keys(CONFIG, AccountingStorageEnforce="(null)"), assoc=None, account=None)
    assert not cluster.profile().account.required
    assert "# Not told by `sacctmgr show assoc`: sacctmgr got no answer" in cluster.draft()
    enforced = Cluster(assoc=None, account=None)
    assert not enforced.profile().account.required
    assert "guessed: associations are enforced, and yours were not told" in enforced.draft()


def test_an_account_is_required_where_there_is_no_default_one() -> None:
    """Associations are enforced, and the user has accounts but none by default."""
    cluster = Cluster(account="\n", assoc="one||normal|\ntwo||normal|\n")
    assert cluster.profile().account.required
    assert "Your accounts: one, two" in cluster.draft()


@pytest.mark.parametrize(
    ("text", "environ", "runtime"),
    [
        (HELP, {}, "none"),
        (PYXIS_HELP, {}, "pyxis"),
        (PYXIS_HELP + "      --environment=<name|path>\n", {}, "cscs_ce"),
        (HELP + "      --image=[type:]name         shifter image to use\n", {}, "shifter"),
    ],
)
def test_the_container_runtime(text: str, environ: dict[str, str], runtime: str) -> None:
    """Options of plugins in srun's help decide; words in its prose do not."""
    assert Cluster(help=text, environ=environ).profile().container.runtime == runtime


def test_programs_on_the_path_are_guesses() -> None:
    """A runtime that is a program is found on PATH of this host; what the nodes have is for the admin to say."""
    found = Cluster().survey()
    for program, runtime in (("apptainer", "apptainer"), ("ch-run", "charliecloud"), ("podman-hpc", "podman_hpc")):
        changed = replace(found, programs=frozenset({program}))
        text = draft_profile(changed, name="here", today=TODAY)
        assert parse_site(parse_document(text, "here.yaml")).container.runtime == runtime
        assert f"guessed: {program} is on PATH" in text
    changed = replace(found, programs=frozenset({"ibrun"}))
    launcher = parse_site(parse_document(draft_profile(changed, name="here", today=TODAY), "here.yaml")).launcher
    assert (launcher.command, launcher.mpi) == ("ibrun", None)


def test_a_cray_with_slingshot() -> None:
    """The switch tells the fabric, and the site's own MPI type is read, not guessed."""
    config = with_keys(CONFIG, SwitchType="switch/hpe_slingshot", MpiDefault="cray_shasta", TmpFS="/local/scratch")
    cluster = Cluster(
        config=config,
        nodes=NODE.format(name="n01", arch="aarch64", cpus=64, spec=0),
        partitions=with_keys(PARTITION, OverSubscribe="EXCLUSIVE", MinNodes="2", MaxNodes="4"),
    )
    site, own = cluster.profile(), cluster.partition()
    assert (site.network.fabric, site.launcher.mpi, site.storage.local) == (
        "slingshot",
        "cray_shasta",
        "/local/scratch",
    )
    assert (own.arch, own.whole_node, own.limits.min_nodes, own.limits.max_nodes) == ("aarch64", True, 2, 4)
    assert "mpi: cray_shasta" in cluster.draft()


def test_slurm_20_11() -> None:
    """Its `srun --mpi=list`, its consumable resources without trackable ones, and no key that came later."""
    old = re.sub(r" (?:JobDefaults|ExclusiveUser)=\S+", "", PARTITION)
    config = with_keys(CONFIG, SLURM_VERSION="20.11.8", SelectType="select/cons_res", SelectTypeParameters="CR_CORE")
    site = Cluster(config=config, partitions=old, mpi=MPI_OLD).profile()
    own = site.partitions["gpu"]
    assert (site.slurm.version, site.launcher.mpi) == ("20.11.8", "pmix_v3")
    assert (own.gpu_request.style, own.memory.style, own.memory.per_rank) == ("gres", "none", None)


def test_whole_nodes_by_select_linear() -> None:
    """The old plugin gives nothing but whole nodes."""
    assert Cluster(config=with_keys(CONFIG, SelectType="select/linear")).partition().whole_node


@pytest.mark.parametrize(
    ("longest", "usual", "time"),
    [
        ("UNLIMITED", "NONE", (None, "01:00:00")),
        ("00:30:00", "NONE", ("00:30:00", "00:30:00")),
        ("UNLIMITED", "08:00:00", (None, "08:00:00")),
        ("7-00:00:00", "UNLIMITED", ("7-00:00:00", "01:00:00")),
        ("01:00:00", "02:00:00", ("01:00:00", "01:00:00")),
    ],
)
def test_times(longest: str, usual: str, time: tuple[str | None, str]) -> None:
    """No limit is no key; a default that is not set, or cannot be, is guessed."""
    own = Cluster(partitions=with_keys(PARTITION, MaxTime=longest, DefaultTime=usual)).partition()
    assert (own.time.max, own.time.default) == time


def test_limits_of_a_partition() -> None:
    """CPUs, memory and defaults of jobs that the partition itself sets."""
    keys = {"MaxCPUsPerNode": "48", "MaxMemPerNode": "400000", "JobDefaults": "DefCpuPerGPU=8,DefMemPerGPU=60000"}
    own = Cluster(partitions=with_keys(PARTITION, **keys)).partition()
    assert (own.cpus.per_node, own.cpus.per_rank) == (48, 8)
    assert (own.memory.per_rank, own.memory.whole_node) == ("97G", "400000M")
    larger = with_keys(PARTITION, MaxNodes="99", MinNodes="9")
    assert Cluster(partitions=larger).partition().limits.max_nodes is None


def test_preemption_needs_a_plugin() -> None:
    """A partition's PreemptMode means something only where the cluster preempts."""
    rules = with_keys(PARTITION, PreemptMode="REQUEUE", GraceTime="300")
    assert not Cluster(partitions=rules).partition().preempt.possible
    config = with_keys(CONFIG, PreemptType="preempt/partition_prio")
    own = Cluster(partitions=rules, config=config).partition()
    assert (own.preempt.possible, own.preempt.grace_s) == (True, 300)


def test_nodes_that_boot_when_they_are_needed() -> None:
    """Powered-down nodes of a cloud are up, and their boot counts into the time until a server is ready."""
    config = with_keys(CONFIG, ResumeTimeout="600 sec")
    site = Cluster(config=config, sinfo=SINFO.replace("idle", "idle~")).profile()
    assert (site.startup.boot_s, site.partitions["gpu"].nodes) == (600, 8)


def test_partitions_that_nobody_can_use_are_left_out() -> None:
    """Down, hidden, root's own, and those without a node that is up: named in a comment."""
    names = {"a": {"State": "DOWN"}, "b": {"RootOnly": "YES"}, "c": {"Hidden": "YES"}, "d": {}, "e": {}}
    rules = "\n".join(with_keys(PARTITION, PartitionName=name, **keys) for name, keys in names.items())
    rows = "\n".join(SINFO.replace("gpu|idle", f"{name}|{'drained' if name == 'd' else 'idle'}") for name in names)
    cluster = Cluster(partitions=rules, sinfo=rows)
    assert list(cluster.profile().partitions) == ["e"]
    for told in ("a, State=DOWN", "b, RootOnly=YES", "c, Hidden=YES", "d, none of its nodes is up"):
        assert f"# Left out: {told}" in cluster.draft()
    with pytest.raises(SetupError, match="no partition that jobs can run in: gpu: none of its nodes is up"):
        Cluster(sinfo=SINFO.replace("idle", "down*")).draft()


def test_partitions_of_one_shape_stay_apart() -> None:
    """Users name queues; that two of them have the same nodes is no reason to drop one."""
    rules = "\n".join(with_keys(PARTITION, PartitionName=name, Default="NO") for name in ("short", "long"))
    rows = "\n".join(SINFO.replace("gpu|idle", f"{name}|idle") for name in ("short", "long"))
    site = Cluster(partitions=rules, sinfo=rows).profile()
    assert list(site.partitions) == ["short", "long"]
    assert site.default_partition == "short"


def test_the_default_partition_has_gpus_where_any_has() -> None:
    """Slurm's default one is for other jobs where it has no GPUs."""
    rules = "\n".join((with_keys(PARTITION, PartitionName="cpu"), with_keys(PARTITION, Default="NO")))
    cluster = Cluster(partitions=rules, sinfo=f"cpu|idle|8|64|512000|2|32|1|c[1-8]|(null)|(null)\n{SINFO}")
    assert cluster.profile().default_partition == "gpu"
    assert "guessed: Slurm's own, cpu, has no GPUs" in cluster.draft()


def test_ports_keep_clear_of_those_that_slurm_uses() -> None:
    """srun and MPI have ranges of their own at some sites."""
    assert Cluster(config=with_keys(CONFIG, SrunPortRange="20000-25000")).profile().network.ports == "10000-19999"
    both = with_keys(CONFIG, SrunPortRange="25000-26000", MpiParams="ports=10000-11000")
    assert Cluster(config=both).profile().network.ports == "12000-19999"


def test_what_a_cluster_says_cannot_break_the_text() -> None:
    """Names with blanks, quotes, colons and number signs; a command that is not there; nothing but partitions."""
    odd = with_keys(PARTITION, PartitionName="CPU nodes (amd)", AllowGroups="a: #b,'c")
    rows = SINFO.replace("gpu|", "CPU nodes (amd)|").replace("a100,nvme", "x: y #z,a'b")
    cluster = Cluster(partitions=odd, sinfo=rows, config=with_keys(CONFIG, ClusterName='Odd # "name": x'))
    site = cluster.profile()
    assert site.partitions["CPU-nodes-amd"].slurm_partition == "CPU nodes (amd)"
    assert site_name(cluster.survey()) == "odd-name-x"
    bare = Cluster(config="", mpi="", help="", assoc=None, account=None)
    assert bare.profile().launcher.mpi is None
    assert "Not told by `scontrol show config`" in bare.draft()


def test_a_known_name_stands_alone() -> None:
    """A user's file of a packaged profile's name would only be laid over it."""
    assert "standalone: true" in Cluster().draft(standalone=True)
    assert "standalone" not in Cluster().draft()


def test_without_partitions_there_is_nothing_to_draft() -> None:
    """A controller that does not answer is Slurm's error, in Slurm's words."""

    def down(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        return Completed(tuple(argv), 1, "", "slurm_load_partitions: Unable to contact slurm controller")

    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        survey(SlurmClient(down, {}), user="me", host="h", environ={})


def test_records_and_help_are_read_as_slurm_prints_them() -> None:
    """Keys begin with a capital after a blank; options begin a line."""
    assert parse_record("PartitionName=a b JobDefaults=DefCpuPerGPU=4 TRES=cpu=1,gres/gpu=2 X=") == {
        "PartitionName": "a b",
        "JobDefaults": "DefCpuPerGPU=4",
        "TRES": "cpu=1,gres/gpu=2",
        "X": "",
    }
    options = parse_srun_help(Completed((), 0, PYXIS_HELP, ""))
    assert options == {"account", "export", "ntasks", "container-image"}
