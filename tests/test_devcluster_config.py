"""The devcluster's configuration files as text, and the pure rules around them; nothing is started here."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.cli import devcluster as cli
from slurm_llm.devcluster.config import (
    DEFAULT_STATE,
    ClusterSpec,
    Machine,
    Paths,
    check_spec,
    gres_conf,
    hosts_block,
    names_of,
    slurm_conf,
    slurmdbd_conf,
    spec_from_json,
    without_hosts_block,
)
from slurm_llm.devcluster.daemons import Identity, end_processes, identify
from slurm_llm.devcluster.host import require_debian
from slurm_llm.devcluster.packages import needed_packages, services_held_back
from slurm_llm.devcluster.shape import NodeKind, Quality, Queue, Reservation, Shape
from slurm_llm.devcluster.submitfilter import can_see, filter_text
from slurm_llm.errors import InputError, SetupError

MACHINE = Machine(host="box", net="10.213.77")
SPEC = ClusterSpec()
SHAPE = Shape(
    name="site",
    kinds=(
        NodeKind(2, cpus=64, memory=500_000, gpus=4, gpu_type="a100", features=("gpu", "hbm80g")),
        NodeKind(1, cpus=32, memory=64_000),
    ),
    queues=(
        Queue("gpu", (0, 1), is_default=True, max_time="1-00:00:00", max_nodes=2),
        Queue("whole", (0,), exclusive="node", min_nodes=2),
        Queue("mine", (1,), exclusive="user"),
    ),
    qualities=(Quality("debug", "00:30:00", 1),),
    accounts=("proj_1",),
    licenses=("scratch:100",),
    reservations=(Reservation("mig", 1),),
    absent=("bad1", "bad2"),
    forbid=("--mem",),
    require=("--account",),
)
SHAPED = replace(SPEC, own_shape=SHAPE)
HOSTS = "127.0.0.1 localhost\n10.0.0.1 nodes.example\n"


def settings(text: str) -> dict[str, str]:
    """Return the `key=value` lines whose key stands for itself."""
    lines = [line for line in text.splitlines() if not line.startswith(("NodeName", "PartitionName"))]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SlurmctldHost", "box(10.213.77.1)"),
        ("ClusterName", "devcluster"),
        ("MpiDefault", "none"),
        ("ProctrackType", "proctrack/linuxproc"),
        ("SelectTypeParameters", "CR_Core_Memory"),
        ("JobAcctGatherParams", "OverMemoryKill"),
        ("SlurmdParameters", "config_overrides"),
        ("ReturnToService", "2"),
        ("KillWait", "10"),
        ("DefMemPerCPU", "2000"),
        ("AuthInfo", f"socket={DEFAULT_STATE}/munge/munge.socket"),
    ],
)
def test_slurm_conf_settings(key: str, value: str) -> None:
    """Each setting that the rest of the package relies on is in slurm.conf."""
    assert settings(slurm_conf(SPEC, MACHINE))[key] == value


def test_slurm_conf_names_every_node_with_its_own_address() -> None:
    """Sixteen nodes get sixteen names and addresses, none of them the controller's."""
    spec = replace(SPEC, nodes=16)
    lines = [line for line in slurm_conf(spec, MACHINE).splitlines() if line.startswith("NodeName=")]
    addresses = {line.split()[1] for line in lines}
    assert [line.split()[0] for line in lines] == [f"NodeName=node{n}" for n in range(1, 17)]
    assert len(addresses) == 16
    assert "NodeAddr=10.213.77.1" not in addresses


def test_two_default_jobs_of_two_ranks_fit_on_a_node() -> None:
    """Four CPUs at the default memory need no more than the node has, whatever its shape."""
    for cpus, memory in ((8, 16000), (4, 1000), (7, 1001)):
        spec = replace(SPEC, cpus_per_node=cpus, mem_per_node=memory)
        assert int(settings(slurm_conf(spec, MACHINE))["DefMemPerCPU"]) * 4 <= memory


def test_partitions() -> None:
    """There is a default partition for a day and a debug partition for half an hour."""
    lines = [line for line in slurm_conf(SPEC, MACHINE).splitlines() if line.startswith("PartitionName=")]
    assert "Default=YES MaxTime=1-00:00:00" in lines[0]
    assert lines[1].startswith("PartitionName=debug") and "MaxTime=00:30:00" in lines[1]


def test_without_accounting_nothing_names_the_database() -> None:
    """A cluster without accounting asks no slurmdbd and enforces no association."""
    text = slurm_conf(replace(SPEC, accounting=False), MACHINE)
    assert "AccountingStorageType=accounting_storage/none" in text
    assert "slurmdbd" not in text and "Enforce" not in text


@pytest.mark.parametrize(
    ("gpus", "files"), [(4, "gpu[0-3]"), (1, "gpu0"), (16, "gpu[0-15]")], ids=["four", "one", "sixteen"]
)
def test_gres_conf(gpus: int, files: str) -> None:
    """gres.conf names one device file a GPU for every node, and nothing is detected."""
    text = gres_conf(replace(SPEC, nodes=2, gpus_per_node=gpus))
    assert text == f"AutoDetect=off\nNodeName=node1,node2 Name=gpu File={DEFAULT_STATE}/gpus/{files}\n"


def test_no_gpus_no_gres() -> None:
    """A cluster without GPUs has no generic resource at all."""
    spec = replace(SPEC, gpus_per_node=0)
    assert "gpu" not in gres_conf(spec).lower()
    assert "gres" not in slurm_conf(spec, MACHINE).lower()


def lines(text: str, key: str) -> list[str]:
    """Return the lines that begin with `key`, without it."""
    return [line.removeprefix(f"{key}=") for line in text.splitlines() if line.startswith(f"{key}=")]


def test_nodes_of_a_shape() -> None:
    """Every kind of node has its numbers, its typed GPUs and its features; nodes count on from kind to kind."""
    first, second, third, absent = lines(slurm_conf(SHAPED, MACHINE), "NodeName")
    common = "CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=500000"
    wanted = f"node1 NodeAddr=10.213.77.11 {common} Gres=gpu:a100:4 Features=gpu,hbm80g State=UNKNOWN"
    assert first == wanted
    assert second == wanted.replace("node1", "node2").replace(".11", ".12")
    assert third.startswith("node3 NodeAddr=10.213.77.13 CPUs=32") and "Gres" not in third and "Features" not in third
    assert absent == "bad1,bad2 CPUs=1 State=CLOUD"


def test_devices_of_a_shape() -> None:
    """Only nodes with GPUs have devices, under the type that jobs ask for."""
    line = f"NodeName=node1,node2 Name=gpu Type=a100 File={DEFAULT_STATE}/gpus/gpu[0-3]"
    assert gres_conf(SHAPED) == f"AutoDetect=off\n{line}\n"


def test_partitions_of_a_shape() -> None:
    """Every partition has the nodes of its kinds and its own limits."""
    assert lines(slurm_conf(SHAPED, MACHINE), "PartitionName") == [
        "gpu Nodes=node1,node2,node3 Default=YES MaxTime=1-00:00:00 MaxNodes=2 State=UP",
        "whole Nodes=node1,node2 MinNodes=2 OverSubscribe=EXCLUSIVE State=UP",
        "mine Nodes=node3 ExclusiveUser=YES State=UP",
    ]


def test_a_shape_is_strict() -> None:
    """On an imitated cluster what a partition cannot give is refused at once; a plain one lets it wait."""
    text = slurm_conf(SHAPED, MACHINE)
    assert {"ClusterName=site", "EnforcePartLimits=ALL", "Licenses=scratch:100"} <= set(text.splitlines())
    assert "EnforcePartLimits" not in slurm_conf(SPEC, MACHINE)


def test_nodes_on_paper_have_no_address_and_no_device() -> None:
    """On paper nodes are a cloud that is powered down: nobody looks for them, and jobs are tested against them."""
    paper = replace(SHAPED, paper=True)
    text = slurm_conf(paper, MACHINE)
    assert "NodeAddr" not in text and "State=UNKNOWN" not in text
    assert text.count("State=CLOUD") == 4
    assert settings(text)["PrivateData"] == "cloud"
    assert gres_conf(paper) == "AutoDetect=off\n"


def test_more_nodes_fit_on_paper() -> None:
    """A kind of 300 nodes is refused for real, where each has a slurmd, and taken on paper."""
    many = replace(SHAPED, own_shape=replace(SHAPE, kinds=(replace(SHAPE.kinds[0], count=300), SHAPE.kinds[1])))
    check_spec(replace(many, paper=True))
    with pytest.raises(InputError, match="301 is out of range"):
        check_spec(many)


def test_epilog_stands_in_slurm_conf() -> None:
    """The epilog is Slurm's own, and there is none unless it is asked for."""
    assert settings(slurm_conf(replace(SPEC, epilog=Path("/srv/epilog.sh")), MACHINE))["Epilog"] == "/srv/epilog.sh"
    assert "Epilog" not in settings(slurm_conf(SPEC, MACHINE))


def test_the_filter_knows_what_it_can_see() -> None:
    """The filter names the fields of the options that it can see; without any there is no filter."""
    text = filter_text(SHAPE)
    assert text is not None
    assert '{["--mem"] = "pn_min_memory"}' in text and '{["--account"] = "account"}' in text
    assert can_see("--mem") and not can_see("--export")
    assert filter_text(replace(SHAPE, forbid=("--export",), require=())) is None
    assert "JobSubmitPlugins=lua" in slurm_conf(SHAPED, MACHINE).splitlines()
    assert "JobSubmitPlugins" not in slurm_conf(SPEC, MACHINE)


def test_slurmdbd_conf_reaches_only_its_own_database() -> None:
    """slurmdbd is sent to an address and a port of ours, never to the machine's own MariaDB socket."""
    values = settings(slurmdbd_conf(SPEC, MACHINE, "secret"))
    assert (values["StorageHost"], values["StoragePort"]) == ("127.0.0.1", "13306")
    assert values["StoragePass"] == "secret"


def test_hosts_block_is_removed_as_it_was_added() -> None:
    """Adding and removing our lines leaves a hosts file byte for byte as it was."""
    assert without_hosts_block(HOSTS + hosts_block(SPEC, MACHINE), SPEC.state) == HOSTS
    assert without_hosts_block(HOSTS, SPEC.state) == HOSTS


def test_hosts_block_without_its_end_takes_no_foreign_line() -> None:
    """A block that a crash cut short loses our lines, and a foreign line after it stays."""
    cut = "".join(hosts_block(SPEC, MACHINE).splitlines(keepends=True)[:-1])
    assert without_hosts_block(HOSTS + cut + "10.1.1.1 other\n", SPEC.state) == HOSTS + "10.1.1.1 other\n"


def test_hosts_block_of_another_cluster_stays() -> None:
    """Two clusters keep their names apart in one hosts file."""
    other = replace(SPEC, state=Path("/srv/other"))
    both = HOSTS + hosts_block(SPEC, MACHINE) + hosts_block(other, MACHINE)
    assert without_hosts_block(both, SPEC.state) == HOSTS + hosts_block(other, MACHINE)


def test_names_fit_the_kernel_and_differ() -> None:
    """Interface names have at most 15 characters, and two state directories share none."""
    here, there = names_of(DEFAULT_STATE), names_of(Path("/srv/other"))
    for names in (here, there):
        assert len(names.bridge) <= 15
        assert len(names.veth(f"{names.node_prefix}200")) <= 15
    assert here.bridge != there.bridge
    assert here.node_prefix == "node" != there.node_prefix


def test_spec_survives_json() -> None:
    """What `up` records is what a later `up` compares with."""
    spec = ClusterSpec(Path("/srv/x"), 3, 2, 4, 4000, accounting=False, user="ann", shared=Path("/srv/runs"))
    assert spec_from_json(spec.to_json()) == spec
    assert spec_from_json(SPEC.to_json()) == SPEC
    shaped = replace(SHAPED, paper=True, epilog=Path("/srv/epilog.sh"))
    assert spec_from_json(shaped.to_json()) == shaped


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"nodes": 0}, "--nodes"),
        ({"nodes": 201}, "--nodes"),
        ({"cpus_per_node": 0}, "--cpus-per-node"),
        ({"state": Path("/var/with space")}, "--state"),
        ({"state": Path("relative")}, "--state"),
        ({"state": Path("/tmp/state")}, "--state"),
        ({"state": Path("/srv/" + "x" * 60)}, "--state"),
        ({"shared": Path("/dev/shm/x")}, "--shared"),
        ({"epilog": Path("/tmp/epilog.sh")}, "--epilog"),
        ({"own_shape": replace(SHAPE, accounts=("a b",))}, "--like"),
        ({"own_shape": replace(SHAPE, queues=(replace(SHAPE.queues[0], name="gpu Nodes=ALL"),))}, "--like"),
        ({"own_shape": replace(SHAPE, kinds=(replace(SHAPE.kinds[0], features=("a#b",)),))}, "--like"),
        ({"user": "root"}, "--user"),
        ({"user": "a b"}, "--user"),
    ],
)
def test_impossible_specs(change: dict[str, int | str | Path | Shape], where: str) -> None:
    """Each impossible option is named."""
    with pytest.raises(InputError) as caught:
        check_spec(replace(SPEC, **change))  # type: ignore[arg-type]
    assert [problem.where for problem in caught.value.problems] == [where]


def test_all_faults_of_a_spec_are_reported_together() -> None:
    """Three wrong options are three problems of one error."""
    with pytest.raises(InputError) as caught:
        check_spec(ClusterSpec(state=Path("x"), nodes=0, user="root"))
    assert len(caught.value.problems) == 3


def test_down_never_removes_logs() -> None:
    """What `down` removes excludes the logs and the state directory itself, and ends with the record."""
    paths = Paths(DEFAULT_STATE)
    assert paths.log not in paths.owned
    assert paths.state not in paths.owned
    assert paths.owned[-1] == paths.record


@pytest.mark.parametrize("text", ["ID=debian\n", "ID=ubuntu\nID_LIKE=debian\n", 'ID=x\nID_LIKE="ubuntu debian"\n'])
def test_debian_and_its_children_are_accepted(text: str) -> None:
    """Debian, Ubuntu and what descends from them pass."""
    require_debian(text)


@pytest.mark.parametrize("text", ['ID=fedora\nPRETTY_NAME="Fedora 40"\n', ""])
def test_other_systems_get_one_sentence(text: str) -> None:
    """Any other system is refused with one problem that says what is needed."""
    with pytest.raises(SetupError, match="needs Debian or Ubuntu") as caught:
        require_debian(text)
    assert len(caught.value.problems) == 1


def test_the_pmix_development_package_is_installed() -> None:
    """Slurm opens the unversioned libpmix.so, so the package that carries it is needed, accounting or not."""
    assert "libpmix-dev" in needed_packages(accounting=False)
    assert "mariadb-server" not in needed_packages(accounting=False)
    assert "mariadb-server" in needed_packages(accounting=True)


def test_no_service_starts_while_packages_are_installed(tmp_path: Path) -> None:
    """The policy that forbids starting services is there meanwhile, answers 101, and is gone afterwards."""
    policy = tmp_path / "policy-rc.d"
    with services_held_back(policy):
        assert subprocess.run([policy], check=False).returncode == 101
    assert not policy.exists()


def test_a_policy_of_the_machine_stays(tmp_path: Path) -> None:
    """A policy that was there before is neither changed nor removed."""
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")
    with services_held_back(policy):
        assert policy.read_text() == "theirs"
    assert policy.read_text() == "theirs"


def test_the_command_and_the_package_agree_on_the_state_directory() -> None:
    """The command names the default itself, so that `--help` need not import the package."""
    assert cli.DEFAULT_STATE == DEFAULT_STATE


def test_a_recycled_pid_is_never_ended() -> None:
    """A record whose start time or boot differs from the living process of that pid hits nothing."""
    with subprocess.Popen(["sleep", "60"]) as child:
        real = identify(child.pid)
        assert real is not None
        end_processes([Identity(real.pid, real.start - 1, real.boot)], grace_s=0)
        end_processes([Identity(real.pid, real.start, "another-boot")], grace_s=0)
        assert identify(child.pid) == real
        end_processes([real], grace_s=0)
        assert child.wait() == -9


def test_a_zombie_is_no_living_process() -> None:
    """A child that ended and was not waited for yet has no identity."""
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identify(child.pid) is None
