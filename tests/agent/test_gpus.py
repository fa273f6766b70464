"""GPU figures for the node agent. The values of a real GPU (H200, driver 580.159.04) are those of benchmarks/gpu."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_llm.agent import gpus, gpuwatch, journal, nvml, smi, visible

UUID = "GPU-ff43b23a-ec75-7ae8-4b60-15e30c10532d"
SMI_GPUS = f"0, {UUID}, NVIDIA H200, 00000000:00:06.0, 143771, 4979, 100\n"
SMI_PROCESSES = f"444, {UUID}, 4970\n"
INVENTORY = {
    "by": "nvml",
    "driver": "580.159.04",
    "gpus": [{"gpu": 0, "name": "NVIDIA H200", "pci": "0000:00:06", "total_mib": 143771, "uuid": UUID}],
    "hidden": 0,
    "kind": "gpus",
    "t": 1796057079.89,
}
LOOK = {
    "kind": "look",
    "t": 1796057143.686,
    "gpus": {"0": [6784, 100], "1": [10, None]},
    "pids": {"444": {"0": 4970}, "485": {"0": 1800}, "486": {"1": None}, "9": {"0": 14}},
    "errors": {},
}
KERNEL = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=580, name=fault, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS"
)

FOLDER = Path(gpus.__file__).parent
no_driver = pytest.mark.skipif(Path(gpus.CONTROL).exists(), reason="this machine has an NVIDIA driver")


def test_shares_are_told_by_rank_and_not_of_others() -> None:
    """Two ranks share a GPU, a third one's memory is unknown, and process 9 is nobody of ours."""
    look = gpus.look_in(LOOK)
    assert gpus.shares(look, {444: 0, 485: 1, 486: 2, 777: 3}) == {
        0: gpus.Share(4970, 100, (0,)),
        1: gpus.Share(1800, 100, (0,)),
        2: gpus.Share(0, None, (1,)),
    }
    assert gpus.sampled(look) == {"gpus": {"0": [6784, 100], "1": [10, None]}}
    assert gpus.sampled(gpus.NOTHING) == {}


def test_ranks_that_share_their_only_gpu_are_told_once() -> None:
    """Two ranks on one GPU are slow or run out of memory; a rank on several GPUs and one alone are as meant."""
    watcher = gpus.Watcher(select.poll(), "n1")
    found = {rank: gpus.Share(10, None, own) for rank, own in enumerate([(0,), (1,), (0,), (0, 1)])}
    (text,) = watcher.complaints(found)
    assert text == "ranks 0, 2 on node n1 all use GPU 0 (UUID unknown) and no other"
    assert watcher.complaints(found) == []


def test_a_rank_on_several_gpus_sums_memory_and_averages_use() -> None:
    """An orchestrator's only process holds all GPUs of its node."""
    look = gpus.Look({0: (10, 90), 1: (20, 100)}, {5: {0: 10, 1: 20}})
    assert gpus.shares(look, {5: 4}) == {4: gpus.Share(30, 95, (0, 1))}


@pytest.mark.parametrize(
    ("line", "xid"),
    [
        (KERNEL, gpuwatch.Xid("0000:00:06", 31, 580)),
        ("NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>", gpuwatch.Xid("0000:3b:00", 79)),
        (
            "[ 74.1] NVRM: Xid (PCI:0000:3b:00 GPU-I:01): 79, GPU has fallen off the bus.",
            gpuwatch.Xid("0000:3b:00", 79),
        ),
        ("NVRM: GPU at PCI:0000:00:06: GPU-ff43b23a", None),
        ("Xid (PCI:0000:00:06): 31, of somebody else", None),
    ],
)
def test_xids_are_found_in_the_kernels_log(line: str, xid: gpuwatch.Xid | None) -> None:
    """With the process where the driver knows it; a MIG slice stands behind the address."""
    assert gpuwatch.xid_in(line) == xid


def test_an_xid_is_told_once_and_again_with_its_process() -> None:
    """NVML and the kernel's log tell of the same one; another job's GPU is none of ours."""
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    try:
        teller = gpuwatch.Teller(INVENTORY)
        for item in (
            gpuwatch.Xid(0, 31),
            gpuwatch.Xid(0, 31),
            gpuwatch.Xid("0000:00:06", 31, 580),
            gpuwatch.Xid(0, 31),
            gpuwatch.Xid("0000:aa:00", 79, 4),
        ):
            teller.tell_xid(item)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(writer)
    told = journal.parse(os.read(reader, 65536))
    os.close(reader)
    assert [(item["gpu"], item["xid"], item.get("pid")) for item in told] == [(0, 31, None), (0, 31, 580)]


def test_nvidia_smi_says_the_same() -> None:
    """Its tables of a real GPU become the records that the library's answers become."""
    found = smi.inventory(SMI_GPUS)
    assert found["gpus"] == INVENTORY["gpus"]
    look = gpus.look_in(smi.look(SMI_GPUS, SMI_PROCESSES))
    assert look == gpus.Look({0: (4979, 100)}, {444: {0: 4970}})


def test_what_nvidia_smi_does_not_know_is_left_open() -> None:
    """With MIG it gives no use, and a process's memory can be unknown; a broken driver prints a sentence."""
    row = SMI_GPUS.replace("4979, 100", "4979, [N/A]")
    look = gpus.look_in(smi.look(row, f"444, {UUID}, [N/A]\n77, GPU-of-another, 5\n"))
    assert look == gpus.Look({0: (4979, None)}, {444: {0: None}})
    assert gpus.look_in(smi.look("NVIDIA-SMI has failed\n", "")) == gpus.NOTHING


@no_driver
def test_without_a_driver_nothing_is_asked_and_nothing_said() -> None:
    """No process, no record, no GPU; the watch itself ends at once when it is started all the same."""
    poller = select.poll()
    watcher = gpus.Watcher(poller, "n1")
    watcher.start()
    assert watcher.look({1: 0}) == gpus.NOTHING
    assert watcher.take({1: 0}) == []
    watcher.stop()
    assert poller.poll(0) == []
    done = subprocess.run((sys.executable, "-I", FOLDER, "gpus"), stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert visible.devices() == []
    with pytest.raises(OSError, match="libnvidia-ml"):
        nvml.Library()


SPEAKER = """
import json, sys, time
said = json.loads(sys.argv[1])
for item in said["first"]:
    print(json.dumps(item), flush=True)
for _ in sys.stdin:
    for item in said["then"]:
        print(json.dumps(item), flush=True)
    if not said["then"]:
        time.sleep(60)
"""


def watch(first: list[journal.Record], then: list[journal.Record], silent_s: float = 60.0) -> gpus.Watcher:
    """Return a watcher of a program that says these records, and the others whenever it is asked."""
    watcher = gpus.Watcher(select.poll(), "n1", silent_s)
    watcher.start_as([sys.executable, "-c", SPEAKER, json.dumps({"first": first, "then": then})])
    return watcher


def hear(watcher: gpus.Watcher, ranks: dict[int, int], records: int) -> list[journal.Record]:
    """Return the first records that a watcher tells."""
    told: list[journal.Record] = []
    until = time.monotonic() + 20
    while len(told) < records and time.monotonic() < until:
        told += watcher.take(ranks)
        time.sleep(0.01)
    return told


def test_an_xid_is_told_with_its_gpu_and_ranks() -> None:
    """The driver names no process: whoever used the GPU is named, as it was seen at the latest look."""
    watcher = watch([INVENTORY, {"kind": "xid", "t": 5.0, "at": 5.0, "gpu": 0, "xid": 79}], [LOOK])
    told = hear(watcher, {444: 2, 485: 3}, 3)
    watcher.stop()
    assert [item["kind"] for item in told] == ["gpus", "warning", "xid"]
    assert (told[2]["uuid"], told[2]["ranks"], told[2]["at"]) == (UUID, [2, 3], 5.0)
    assert told[1]["text"] == f"GPU 0 ({UUID}) of node n1 reports Xid 79: the GPU has fallen off the bus"


def test_another_jobs_errors_are_kept_and_not_complained_of() -> None:
    """A program's fault names its process; on a GPU that no rank of ours uses an error is not ours either."""
    xids = [{"kind": "xid", "t": 5.0, "gpu": 0, "xid": 31, "pid": 9}, {"kind": "xid", "t": 5.0, "gpu": 1, "xid": 79}]
    watcher = watch([INVENTORY, *xids], [LOOK])
    told = hear(watcher, {444: 2}, 3)
    watcher.stop()
    assert [item["kind"] for item in told] == ["gpus", "xid", "xid"]
    assert all(item["other"] for item in told[1:])


def test_a_gpu_that_no_longer_answers_is_told_once() -> None:
    """NVML's error 15 is a lost GPU; every further look would say it again."""
    watcher = watch([INVENTORY], [{**LOOK, "errors": {"0": 15}}])
    watcher.look({})
    watcher.look({})
    told = hear(watcher, {}, 3)
    told += watcher.take({})
    watcher.stop()
    assert [item["kind"] for item in told] == ["gpus", "warning", "gpu"]
    assert told[1]["text"] == f"GPU 0 ({UUID}) of node n1 does not answer"


def test_a_driver_that_hangs_costs_a_moment_and_one_sentence() -> None:
    """The agent goes on without figures, says so once, and does not wait for that process at its end."""
    watcher = watch([INVENTORY], [], silent_s=0.1)
    assert hear(watcher, {}, 1)[0]["kind"] == "gpus"
    assert watcher.look({}) == gpus.NOTHING
    told = hear(watcher, {}, 1)
    assert told == [{"kind": "warning", "text": told[0]["text"]}]
    assert "of node n1 has not answered" in told[0]["text"]
    watcher.look({})
    assert watcher.take({}) == []
    watcher.stop()


def test_a_watch_that_ends_leaves_the_poller_alone() -> None:
    """A pipe that has ended would wake up the agent for ever."""
    poller = select.poll()
    watcher = gpus.Watcher(poller, "n1")
    watcher.start_as([sys.executable, "-c", "print('no record', flush=True)"])
    until = time.monotonic() + 20
    while poller.poll(10) and time.monotonic() < until:
        watcher.take({})
    assert watcher.look({}) == gpus.NOTHING
    watcher.take({})
    assert poller.poll(0) == []


def test_a_bad_piece_of_memory_is_told_at_the_start() -> None:
    """It explains errors to come, and the admins want to know."""
    bad = {**INVENTORY, "gpus": [{**INVENTORY["gpus"][0], "remap": "pending"}]}  # type: ignore[index]
    watcher = watch([bad], [LOOK])
    told = hear(watcher, {}, 2)
    watcher.stop()
    assert told[1]["text"] == "GPU 0 of node n1 waits for a reset to replace a bad piece of its memory"
