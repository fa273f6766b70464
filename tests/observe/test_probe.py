"""What a probe job wrote, folded: all well gives no complaint, each fault one row with its key and a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import journal
from slurm_llm.observe.checkrows import Row, Verdict, exit_code, fold_values, names_of
from slurm_llm.observe.insiderows import fold
from slurm_llm.observe.probe import expected_of, load_probe
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.yamlio import Tree
from tests.observe.probe_records import Record, make_probe, make_profile

Change = Callable[[Record], object]


def complaints(rows: list[Row]) -> list[Row]:
    """Return the rows that are not all well."""
    return [row for row in rows if row.verdict is not Verdict.OK]


def in_all(name: str, value: Any) -> Change:
    """Return a change of one fact of every rank."""
    return lambda parts: [rank.update({name: value}) for rank in parts["ranks"].values()]


def test_a_probe_that_found_all_well_complains_of_nothing() -> None:
    """Every topic has rows, none but OK; ranks are told together."""
    rows = fold(make_probe())
    assert complaints(rows) == []
    assert exit_code(rows) == 0
    assert list(dict.fromkeys(row.topic for row in rows)) == [
        *("job", "layout", "MPI", "GPUs", "memory", "network", "software"),
    ]
    found = {(row.topic, row.name): row.found for row in rows}
    assert found["MPI", "world"] == "4 ranks on 2 nodes in one world"
    assert found["GPUs", "nvidia-smi"] == "all 4 ranks: 2 × NVIDIA A100-SXM4-40GB"
    assert found["network", "rank 0"] == "one rank of every node reached n0 (10.0.0.0) in 0.3 ms"


def alone(parts: Record) -> None:
    for record in parts["worlds"].values():
        record["world"]["size"] = 1


def no_ranks(*log: str) -> Change:
    return lambda parts: parts.update(ranks={}, worlds={}, rank_log=log, codes={"ranks": 1, "nodes": 0})


def no_job(*output: str) -> Change:
    return lambda parts: parts.update(batch=None, nodes={}, ranks={}, worlds={}, seen={}, output=output)


def moved(parts: Record) -> None:
    parts["ranks"][1]["nodeid"], parts["ranks"][2]["nodeid"] = 1, 0


def set_of(parts: Record, kind: str, number: int, **facts: Any) -> None:
    parts[kind][number].update(facts)


FAULTS: tuple[tuple[str, Change, str, str, str], ...] = (
    ("alone", alone, "MPI/world", "every rank is alone in its world", "launcher.mpi"),
    (
        "mpi-aborts",
        lambda parts: [r.update(world="error: ended with exit status 1: no PMI") for r in parts["worlds"].values()],
        "MPI/world",
        "all 4 ranks: ended with exit status 1: no PMI",
        "launcher.mpi",
    ),
    (
        "mpi-kills-the-step",
        lambda parts: parts.update(worlds={}, rank_log=("aborted",)),
        "MPI/world",
        "all 4 ranks ended while joining: aborted",
        "launcher.mpi",
    ),
    (
        "no-such-mpi",
        no_ranks("srun: error: Couldn't find the specified plugin name for mpi/foo"),
        "job/ranks",
        "all 4 ranks did not answer",
        "launcher.mpi",
    ),
    (
        "no-pyxis",
        no_ranks("srun: unrecognized option '--container-image=x'"),
        "job/ranks",
        "did not answer",
        "container; srun_extra, srun_skip",
    ),
    ("no-python", no_job("slurm_llm: no Python at /x on node n0"), "job/Python", "no Python at /x", "python"),
    ("script-dies", no_job(), "job/script", "nothing was written", "prologue, modules"),
    (
        "no-helper",
        lambda parts: parts.update(nodes={}, seen={}, node_log=("srun: Requested nodes are busy",)),
        "job/side by side",
        "all 2 nodes silent): srun: Requested nodes are busy",
        "srun_extra, srun_skip",
    ),
    ("layout", moved, "layout/ranks", "rank 1 is on 1, rank 2 is on 0", "partitions.*.distribution, srun_extra"),
    ("one-cpu", in_all("cpus", 1), "layout/CPUs", "all 4 ranks: 1 CPUs", "launcher.step.cpu_bind"),
    (
        "one-gpu",
        lambda parts: parts["ranks"][3]["gpus"]["variables"].update(CUDA_VISIBLE_DEVICES="0"),
        "GPUs/visible",
        "3 of 4 ranks: 0,1; rank 3: 0",
        "gpu_request of the partition",
    ),
    (
        "device-closed",
        lambda parts: parts["ranks"][0]["gpus"]["devices"].update({"/dev/nvidia1": "error: not permitted"}),
        "GPUs/device files",
        "rank 0: 1 open",
        "gpus_per_node",
    ),
    (
        "shm-full",
        lambda parts: parts["ranks"][2].update(shm={"size_mib": 64, "free_mib": 10}),
        "memory//dev/shm",
        "64 to 4096 MiB, at least 10 MiB free",
        "container",
    ),
    (
        "shm-apart",
        lambda parts: [
            r.update(together={"/dev/shm": [str(n)], "/tmp": r["together"]["/tmp"]}) for n, r in parts["ranks"].items()
        ],
        "memory//dev/shm",
        "not shared by the ranks of a node: all 4 ranks saw not all others",
        "container",
    ),
    (
        "no-local",
        in_all("writable", {"/dev/shm": True, "/tmp": "error: [Errno 30] read-only"}),
        "memory//tmp",
        "cannot be written: all 4 ranks: [Errno 30] read-only",
        "storage.local",
    ),
    (
        "unreached",
        lambda parts: set_of(parts, "ranks", 2, reach="error: n0 port 20001: timed out"),
        "network/rank 0",
        "rank 2: n0 port 20001: timed out",
        "network.rendezvous",
    ),
    (
        "ports-taken",
        lambda parts: set_of(parts, "nodes", 1, ports={"tried": 65, "busy": list(range(63))}),
        "network/ports",
        "63 in use",
        "network.ports",
    ),
    (
        "files-unseen",
        lambda parts: parts["seen"][0].update(files={}),
        "network/shared files",
        "node 0 did not see the files of the others",
        "storage.logs",
    ),
    ("no-triton", in_all("servers", []), "software/Triton", "none in /opt/triton or on PATH", "triton.server"),
)


@pytest.mark.parametrize(
    ("change", "where", "found", "key"), [one[1:] for one in FAULTS], ids=[one[0] for one in FAULTS]
)
def test_each_fault_gives_its_own_row(change: Change, where: str, found: str, key: str) -> None:
    """The finding, the key to look at, and exit code 3."""
    rows = fold(make_probe(None, change))
    wrong = [row for row in rows if row.verdict is Verdict.WRONG]
    assert [f"{row.topic}/{row.name}" for row in wrong] == [where]
    assert found in wrong[0].found
    assert wrong[0].key == key
    assert exit_code(rows) == 3


@pytest.mark.parametrize(
    ("cpus", "key", "todo"),
    [
        ({"per_node": 32, "per_rank": 8}, "partitions.gpu.cpus.per_rank", "at most 3: ranks are not bound to CPUs"),
        ({"per_node": 32}, "partitions.gpu.cpus.per_node", "at most 6: ranks are not bound to CPUs"),
    ],
)
def test_ranks_that_are_not_bound_show_the_nodes_own_cpus(cpus: dict[str, Tree], key: str, todo: str) -> None:
    """To leave binding out is no remedy where it is left out: the profile's number is what is wrong."""
    profile = make_profile({"cpus": cpus}, launcher={"mpi": "pmix", "step": {"cpu_bind": "none"}})
    [row] = [row for row in fold(make_probe(profile, in_all("cpus", 6))) if row.verdict is Verdict.WRONG]
    assert (row.name, row.key) == ("CPUs", key)
    assert row.todo.startswith(todo)


def test_the_remedy_of_a_split_world_names_what_srun_offers() -> None:
    """With pmi2 in the profile and pmix on offer, pmix is what to try."""
    [row] = [r for r in fold(make_probe(make_profile(launcher={"mpi": "pmi2"}), alone)) if r.verdict is Verdict.WRONG]
    assert row.todo == "launcher.mpi: pmix; srun --mpi=list offers pmix, none, pmi2, pmix_v4"
    [row] = [r for r in fold(make_probe(None, alone)) if r.verdict is Verdict.WRONG]
    assert row.todo.startswith("the MPI library must speak pmix, in the image too")


PROFILES: tuple[tuple[str, dict[str, Tree], Change, Verdict, str], ...] = (
    ("interface", {"network": {"interface": "ib9"}}, id, Verdict.WRONG, "network.interface"),
    ("no-address", {"network": {"interface": "eth1"}}, id, Verdict.WRONG, "network.interface"),
    ("beginning", {"network": {"interface": "ib"}}, id, Verdict.WRONG, "network.interface"),
    ("limit-kept", {"ulimits": {"nofile": "unlimited"}}, id, Verdict.OK, "ulimits.nofile"),
    ("limit-missed", {"ulimits": {"nofile": 4096}}, id, Verdict.WRONG, "ulimits.nofile"),
    (
        "rdma",
        {"network": {"fabric": "infiniband"}},
        lambda parts: [r["limits"].update(memlock=[64, 64]) for r in parts["ranks"].values()],
        Verdict.NOTE,
        "ulimits.memlock",
    ),
    (
        "offline",
        {"network": {"internet": "direct"}},
        lambda parts: [n.update(internet="error: unreachable") for n in parts["nodes"].values()],
        Verdict.NOTE,
        "network.internet",
    ),
    ("ephemeral", {"network": {"ports": "40000-49999"}}, id, Verdict.NOTE, "network.ports"),
    (
        "variable",
        {"env": {"set": {"A": "b"}}},
        lambda parts: parts["ranks"][1].update(env={"A": "x"}),
        Verdict.WRONG,
        "env.set",
    ),
    (
        "unset",
        {"env": {"unset": ["B"]}},
        lambda parts: [r.update(env={"B": "1"}) for r in parts["ranks"].values()],
        Verdict.WRONG,
        "env.unset",
    ),
)


@pytest.mark.parametrize(
    ("values", "change", "verdict", "key"), [one[1:] for one in PROFILES], ids=[one[0] for one in PROFILES]
)
def test_what_the_profile_says_is_held_against_the_nodes(
    values: dict[str, Tree], change: Change, verdict: Verdict, key: str
) -> None:
    """The row of a key has the verdict, and no other row complains."""
    rows = fold(make_probe(make_profile(**values), change))
    assert [row.verdict for row in rows if row.key == key] == [verdict]
    assert {row.key for row in complaints(rows)} <= {key}


CONTAINER: dict[str, Tree] = {"runtime": "charliecloud", "image": "/images/triton"}


def _inside(parts: Record) -> None:
    for rank in parts["ranks"].values():
        rank.update(root="9:9", os="Ubuntu 24.04")


@pytest.fixture
def contained() -> SiteProfile:
    """A site whose ranks run in an image."""
    return make_profile(container=CONTAINER)


def test_ranks_inside_their_image_are_told_apart_from_the_host(contained: SiteProfile) -> None:
    """Another root folder is what proves it; the images' and the hosts' systems are both shown."""
    rows = {row.name: row for row in fold(make_probe(contained, _inside)) if row.topic == "container"}
    assert rows["boundary"].verdict is Verdict.OK
    assert "Ubuntu 24.04" in rows["ranks"].found
    assert "Debian 12" in rows["hosts"].found


@pytest.mark.parametrize(("outside", "whose"), [((0, 1, 2, 3), "all 4 ranks"), ((2, 3), "ranks 2-3")])
def test_ranks_that_fell_back_to_the_host_are_fatal(
    contained: SiteProfile, outside: tuple[int, ...], whose: str
) -> None:
    """A plugin that one node lacks starts that node's ranks on the host, and nothing else tells."""

    def change(parts: Record) -> None:
        _inside(parts)
        for number in outside:
            parts["ranks"][number]["root"] = "1:2"

    [row] = [row for row in fold(make_probe(contained, change)) if row.verdict is Verdict.WRONG]
    assert (row.name, row.key) == ("boundary", "container.runtime")
    assert row.found == f"{whose} run on the host itself, not in the image"


def test_a_name_that_only_the_host_knows_is_the_images_fault(contained: SiteProfile) -> None:
    """An image without the nodes' names cannot reach rank 0, though its host can."""

    def change(parts: Record) -> None:
        _inside(parts)
        set_of(parts, "ranks", 2, reach="error: n0 port 20001: [Errno -3] Temporary failure in name resolution")

    [row] = [row for row in fold(make_probe(contained, change)) if row.verdict is Verdict.WRONG]
    assert row.key == "container.mounts"


def test_records_are_read_back_from_the_folder(tmp_path: Path) -> None:
    """What ranks and nodes appended, the script's last words and srun's, by number."""
    probe = make_probe()
    journal.append(str(tmp_path / "rank-3.jsonl"), probe.ranks[3])
    journal.append(str(tmp_path / "rank-3.jsonl"), probe.worlds[3])
    journal.append(str(tmp_path / "job.jsonl"), {"t": 1, "kind": "end", "ranks": 7, "nodes": 0})
    (tmp_path / "ranks.log").write_text("1: same\n0: same\nsrun: error: last\n")
    (tmp_path / "slurm-12.out").write_text("out\n")
    found = load_probe(tmp_path, probe.plan, probe.profile, (), wheel=False)
    assert (list(found.ranks), list(found.worlds), found.batch) == ([3], [3], None)
    assert (found.codes, found.rank_log, found.output) == (
        {"ranks": 7, "nodes": 0},
        ("same", "srun: error: last"),
        ("out",),
    )


def test_what_the_processes_are_told_is_plain_json() -> None:
    """Names of variables, not their values; nobody is sent to the internet where there is none."""
    profile = make_profile(
        network={"internet": "none", "interface": "ib0"}, env={"set": {"TOKEN": "x"}, "unset": ["B"]}
    )
    plan = make_probe(profile).plan
    told = expected_of(plan, profile)
    assert json.loads(json.dumps(told)) == told
    assert {"TOKEN", "B"} <= set(told["variables"])
    assert (told["internet"], told["ranks"], told["ranks_per_node"], told["mpi"]) == ([], 4, 2, True)
    proxy = make_profile(network={"internet": "proxy", "proxy": {"https": "http://user@proxy.example:3128"}})
    assert expected_of(plan, proxy)["internet"] == ["proxy.example", 3128]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({0: "x"}, "rank 0: x"),
        ({0: "x", 1: "x"}, "all 2 ranks: x"),
        ({0: "x", 1: "error: y", 2: "x"}, "2 of 3 ranks: x; rank 1: y"),
        ({n: str(max(n, 4)) for n in range(10)}, "5 of 10 ranks: 4; rank 5: 5; rank 6: 6; rank 7: 7; 2 more differ"),
        ({}, "no rank"),
    ],
)
def test_equal_values_are_told_once(values: dict[int, str], text: str) -> None:
    """Odd ones are named, three at most."""
    assert fold_values(values) == text


@pytest.mark.parametrize(("keys", "text"), [([0, 1], "all 2 ranks"), ([1], "rank 1"), ([0, 1, 2, 5], "ranks 0-2, 5")])
def test_numbers_are_folded_into_ranges(keys: list[int], text: str) -> None:
    """As people write them."""
    assert names_of(keys, "rank", 2 if len(keys) == 2 else 8) == text
