"""What the node agent says of a real GPU, beside what nvidia-smi says: figures, whose process it is, Xids, cost.

Run it as root on a machine with one NVIDIA GPU, PyTorch and nvcc; it needs no Slurm:

    python3 benchmarks/gpu/gpus.py --out /tmp/gpus

It prints a row for each check, good or not, and leaves journals and nvidia-smi's own tables in the folder. Its last
part makes two faults on purpose, an access out of bounds and a failed assertion, to see their Xids told; both end
only the program that made them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import poll
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from slurm_llm.agent import gpus, journal, nvml, preflight, smi, visible  # noqa: E402

LOAD = """
import sys, time, torch
held = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""
FAULTS = {
    "access out of bounds": "__global__ void k(int *p) { p[threadIdx.x] = 1; } int main() {"
    " k<<<1, 32>>>((int *)0x10); return cudaDeviceSynchronize() != cudaSuccess; }",
    "failed assertion": "#include <cassert>\n__global__ void k() { assert(threadIdx.x > 99); } int main() {"
    " k<<<1, 32>>>(); return cudaDeviceSynchronize() != cudaSuccess; }",
}
TAG, RANK = "1.0", 5
NOBODY = 65534


def row(name: str, good: bool | None, text: str) -> None:
    """Print one check; None is a figure without a verdict."""
    word = "   " if good is None else "ok " if good else "NO "
    print(f"{word} {name:<34} {text}", flush=True)


def asked(*query: str) -> str:
    """Return what nvidia-smi says."""
    argv = ("nvidia-smi", *query, "--format=csv,noheader,nounits")
    return subprocess.run(argv, check=False, capture_output=True, text=True).stdout


@contextmanager
def load(mib: int, seconds: float, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that holds memory and computes, from when it has begun."""
    argv = (sys.executable, "-c", LOAD, str(mib), str(seconds))
    # An engine leads a process group of its own, by which the agent knows it.
    given = {**os.environ, **environment}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=given, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.wait()


def still() -> None:
    """Compare what does not change, and time each call."""
    library = nvml.Library()
    table = smi.rows(asked("--query-gpu=" + smi.GPUS), 7)
    row("GPUs", library.count() == len(table), f"{library.count()}, driver {library.driver()}")
    for own in table:
        gpu = int(own[0])
        row("UUID", library.uuid(gpu) == own[1], library.uuid(gpu))
        row("name", library.name(gpu) == own[2], library.name(gpu))
        row("PCI address", library.pci(gpu) == smi.pci(own[3]), library.pci(gpu))
        used, total = library.memory(gpu)
        row("MiB in all", total == int(own[4]), f"{total}, nvidia-smi {own[4]}")
        row("MiB in use, idle", abs(used - int(own[5])) <= 2, f"{used}, nvidia-smi {own[5]}")
        row("MIG devices", None, str(library.slices(gpu)))
        row("uncorrected, remapping", None, f"{tolerant(library.uncorrected)}, {tolerant(library.remapping)}")
    for name in ("uuid", "memory", "utilization", "processes"):
        took = [timed(lambda name=name: getattr(library, name)(0)) for _ in range(50)]
        row(f"one call: {name}", None, f"median {statistics.median(took):.3f} ms, worst {max(took):.3f} ms")


def tolerant(ask: Any) -> object:
    """Return an answer of the first GPU, or why there is none."""
    try:
        return ask(0)
    except nvml.NvmlError as error:
        return str(error)


def timed(call: Any) -> float:
    """Return the milliseconds that a call takes."""
    began = time.monotonic()
    call()
    return (time.monotonic() - began) * 1000


def under_load(out: Path) -> None:
    """Compare figures while a program computes, through the process that the agent asks."""
    watcher = gpus.Watcher(poll(), "here")
    began = time.monotonic()
    watcher.start()
    said = await_records(watcher, 30.0, "gpus")
    row("first word of the watch", bool(said), f"after {time.monotonic() - began:.2f} s")
    (out / "inventory.json").write_text(json.dumps(said, indent=1))
    with load(4096, 14.0) as one:
        time.sleep(2.0)
        looks = []
        for _ in range(3):
            time.sleep(1.0)
            look = watcher.look({one.pid: RANK})
            tables = asked("--query-gpu=" + smi.GPUS), asked("--query-compute-apps=" + smi.PROCESSES)
            looks.append((look, tables))
        compare(looks[-1][0], one.pid, *looks[-1][1])
        (out / "smi-gpus.csv").write_text(looks[-1][1][0])
        (out / "smi-processes.csv").write_text(looks[-1][1][1])
        row("through nvidia-smi instead", None, f"{timed(lambda: smi.Smi().look()):.0f} ms for one look")
        with load(1024, 2.0) as two:
            look = watcher.look({one.pid: 0, two.pid: 1})
            both = gpus.shares(look, {one.pid: 0, two.pid: 1})
            row("two ranks on one GPU", len(both) == 2 and both[0].gpus == both[1].gpus, str(both))
            row("seen as busy beforehand", None, "; ".join(visible.busy(visible.devices() or [])))
    time.sleep(1.0)
    row("free again", not watcher.look({}).processes, str(watcher.look({}).gpus))
    took = [timed(lambda: watcher.look({})) for _ in range(30)]
    row("one look through the pipe", None, f"median {statistics.median(took):.1f} ms, worst {max(took):.1f} ms")
    watcher.stop()


def await_records(watcher: gpus.Watcher, seconds: float, kind: str) -> list[journal.Record]:
    """Return what is told until a record of that kind comes."""
    told: list[journal.Record] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until and not any(item["kind"] == kind for item in told):
        told += watcher.take({})
        time.sleep(0.02)
    return told


def compare(look: gpus.Look, pid: int, table: str, processes: str) -> None:
    """Compare one look with nvidia-smi's tables of the same moment."""
    own = smi.rows(table, 7)[0]
    used, util = look.gpus[0]
    row("MiB in use, loaded", abs(used - int(own[5])) <= 16, f"{used}, nvidia-smi {own[5]}")
    row("percent busy, loaded", util is not None and abs(util - int(own[6])) <= 5, f"{util}, nvidia-smi {own[6]}")
    apps = {int(one[0]): int(one[2]) for one in smi.rows(processes, 3)}
    mine = look.processes.get(pid, {})
    row("processes", set(apps) == set(look.processes), f"{look.processes}, nvidia-smi {apps}")
    row("MiB of the process", mine.get(0) == apps.get(pid), f"{mine}, nvidia-smi {apps.get(pid)}")
    row("rank of the process", gpus.shares(look, {pid: RANK})[RANK].gpus == (0,), str(gpus.shares(look, {pid: RANK})))


def whole_agent(out: Path) -> None:
    """Let a real node agent watch a rank that computes, and read its journal."""
    attempt = out / "attempt-0"
    (attempt / "journal").mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-I", str(ROOT / "slurm_llm" / "agent"), "node", "--attempt", str(attempt), "--tag", TAG]
    argv += ["--ranks", "1", "--local", "/tmp", "--stop-s", "5", "--kill-wait-s", "30"]
    marks = {"LLMRUN_TAG": TAG, "LLMRUN_RANK": str(RANK), "LLMRUN_ROLE": "server", "LLMRUN_NODE": "here"}
    node = {**os.environ, "SLURMD_NODENAME": "here"}
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=node) as agent:
        time.sleep(1.0)
        with load(2048, 24.0, **marks):
            time.sleep(14.0)
            cost(agent.pid, 9.0)
        fault(out, "access out of bounds")
        time.sleep(3.0)
        agent.send_signal(signal.SIGINT)
        agent.wait(20)
    records = journal.read(str(attempt / "journal" / "here.jsonl"))
    measured = journal.read(str(attempt / "journal" / "here.samples.jsonl"))
    samples = [item["ranks"].get(str(RANK), {}) for item in measured]
    row("samples with GPU memory", any(own.get("gpu_mib", 0) > 2048 for own in samples), json.dumps(samples[-1:]))
    row("the agent tells of an Xid", any(item["kind"] == "xid" for item in records), told(records))
    row("the agent has gone in order", records[-1]["kind"] == "bye", records[-1]["kind"])


def told(records: list[journal.Record]) -> str:
    """Return the warnings among records."""
    return "; ".join(item["text"] for item in records if item["kind"] == "warning") or "nothing"


def cost(pid: int, seconds: float) -> None:
    """Print CPU and memory of the agent and of the process that it asks."""
    family = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    before = [cpu_s(one) for one in family]
    time.sleep(seconds)
    for name, one, spent in zip(("the agent", "its watch"), family, before, strict=False):
        share = 100 * (cpu_s(one) - spent) / seconds
        own = Path(f"/proc/{one}/smaps_rollup").read_text().split("\n")
        sizes = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in own if line.endswith(" kB")}
        held = ", ".join(f"{key} {sizes[key]}" for key in ("Rss", "Pss", "Private_Clean", "Private_Dirty", "Anonymous"))
        row(f"cost of {name}", None, f"{share:.2f} % of a core; MiB: {held}")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has spent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fault(out: Path, name: str) -> None:
    """Make a program fail on the GPU."""
    binary = out / "fault"
    (out / "fault.cu").write_text(FAULTS[name])
    built = subprocess.run(("nvcc", "-o", binary, out / "fault.cu"), check=False, capture_output=True, text=True)
    if built.returncode:
        row(name, False, built.stderr.strip()[-200:])
        return
    done = subprocess.run((binary,), check=False, capture_output=True, text=True)
    row(f"made: {name}", done.returncode != 0, f"exit status {done.returncode}")


def xids(out: Path, user: int | None) -> None:
    """See whether Xids are told, to root or to an ordinary user."""
    folder = Path("/tmp/gpuwatch-agent")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "slurm_llm" / "agent", folder, ignore=shutil.ignore_patterns("__pycache__"))
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    who = "root" if user is None else f"user {user}"
    argv = (python, "-I", str(folder), "gpus")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user) as child:
        time.sleep(3.0)
        for name in FAULTS:
            fault(out, name)
            time.sleep(2.5)
        said, _ = child.communicate(b"\n", timeout=20)
    records = journal.parse(said)
    heard = [
        {key: item[key] for key in ("gpu", "xid", "pid") if key in item} for item in records if item["kind"] == "xid"
    ]
    row(f"Xids told to {who}", bool(heard), str(heard))
    row(f"figures told to {who}", any(item["kind"] == "look" for item in records), said.decode()[:200].strip())
    (out / f"watch-{who.replace(' ', '-')}.jsonl").write_bytes(said)


def at_start() -> None:
    """See what the preflight says of right and wrong variables."""
    known = visible.devices()
    row("GPUs that a rank may open", bool(known), str(known))
    row("asked by a rank at its start", None, f"{timed(visible.devices):.0f} ms")
    uuid = known[0].uuid if known else ""
    for text, gpus_a_node in (("0", 1), (uuid, 1), (uuid[:12], 1), ("0", 2), ("1", 1), ("0,0", 1), ("MIG-1/2", 1)):
        os.environ["CUDA_VISIBLE_DEVICES"] = text
        found = preflight.driver_findings(gpus_a_node, known)
        wanted = text in ("0", uuid, uuid[:12]) and gpus_a_node == 1
        row(f"shown {text[:14]} of {gpus_a_node}", (not found.problems) == wanted, "; ".join(found.problems) or "well")
    del os.environ["CUDA_VISIBLE_DEVICES"]


def main() -> None:
    """Run every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("/tmp/gpus"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for part in (still, at_start, lambda: under_load(out), lambda: whole_agent(out)):
        tried(part)
    tried(lambda: xids(out, None))
    tried(lambda: xids(out, NOBODY))


def tried(part: Callable[[], None]) -> None:
    """Run a part; when it breaks off, the others are worth their figures."""
    try:
        part()
    except Exception as error:  # noqa: BLE001
        row("broken off", False, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
