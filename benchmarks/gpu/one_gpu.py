"""The package's own jobs on a real GPU, and what it says of them beside what nvidia-smi says; `one_gpu.sh` starts it.

It prints a row for each check, good or not, and ends with 1 when one is not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).resolve().parents[2]
PROMPT = "The future of AI is"
TOKENS = 40
HELD_MIB = 4096
ROUNDS = 24
MIB = 1 << 20
WRONG: list[str] = []

MAKE_MODEL = """
import sys, torch
# Built against another numpy than the one that Triton's stub needs; transformers does without them.
sys.modules.update(dict.fromkeys(("sklearn", "scipy", "pandas")))
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(7)
config = LlamaConfig(vocab_size=320, hidden_size=4096, intermediate_size=11008, num_hidden_layers=16,
                     num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model.save_pretrained(sys.argv[1])
print(sum(one.numel() for one in model.parameters()) / 1e9, "billion parameters")
"""


def row(name: str, good: bool | None, text: object) -> None:
    """Print one check; None is a figure without a verdict."""
    word = "   " if good is None else "ok " if good else "NO "
    print(f"{word} {name:<44} {' '.join(str(text).split())[:300]}", flush=True)
    if good is False:
        WRONG.append(name)


@dataclass(frozen=True)
class Bench:
    """Where everything lies and who the user is."""

    base: Path
    user: str
    out: Path

    @property
    def home(self) -> Path:
        return Path("~" + self.user).expanduser()

    def as_user(self, *argv: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a command as the ordinary user, with the Python and the Slurm of this benchmark."""
        environ = {
            "PATH": f"{self.base}/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "SLURM_CONF": f"{self.base}/etc/slurm.conf",
            "SLURM_LLM_SITE": str(self.base / "site.yaml"),
            "COLUMNS": "100",
        }
        words = ["runuser", "-u", self.user, "--", "env", "-i", *(f"{key}={value}" for key, value in environ.items())]
        where = self.home / "with a space"
        where.mkdir(exist_ok=True)
        shutil.chown(where, self.user)
        return subprocess.run(
            [*words, *argv], cwd=where, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
        )

    def ours(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run our program as the user; what it printed is kept."""
        done = self.as_user("python", "-m", "slurm_llm", *argv)
        with (self.out / "commands.txt").open("a", encoding="utf-8") as stream:
            stream.write(f"$ slurm-llm {' '.join(argv)}\n{done.stdout}{done.stderr}[{done.returncode}]\n\n")
        return done

    def json(self, *argv: str) -> Any:
        """Return what one of our commands says in JSON."""
        done = self.ours(*argv, "--json")
        try:
            return json.loads(done.stdout)
        except ValueError:
            row(f"{argv[0]} --json", False, done.stdout + done.stderr)
            return {}

    def spec(self, name: str, **keys: Any) -> str:
        """Write a spec and return its path."""
        path = self.home / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "resources": {"nodes": 1, "time": "00:20:00"}, **keys}))
        return str(path)


def smi(query: str) -> list[list[str]]:
    """Return the rows of one of nvidia-smi's tables, without units."""
    done = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def used_mib() -> list[int]:
    """Return the memory in use on each GPU."""
    return [int(one) for (one,) in smi("--query-gpu=memory.used")]


def write_site(bench: Bench, gpus: int) -> None:
    """Write the devcluster's profile with this machine's GPUs and Python."""
    text = (SOURCE / "site_configs" / "devcluster.yaml").read_text(encoding="utf-8")
    profile = yaml.safe_load(text)
    profile["name"] = "site"
    profile.pop("verified", None)
    batch = {"slurm_partition": "batch", "gpus_per_node": gpus, "cpus": {"per_node": 8, "per_rank": 1}}
    profile["partitions"] = {
        "batch": {**batch, "gpu_request": {"style": "gres"}},
        # Slurm is not asked for GPUs here: a mistake, which two ranks on one GPU need.
        "unasked": {**batch, "gpus_per_node": 2, "gpu_request": {"style": "none"}},
    }
    profile["python"] = f"{bench.base}/venv/bin/python"
    (bench.base / "site.yaml").write_text(yaml.safe_dump(profile))


@contextmanager
def job(bench: Bench, spec: str) -> Iterator[dict[str, Any]]:
    """Submit a spec, wait until it serves, give its status, and end it."""
    began = time.monotonic()
    done = bench.ours("submit", spec, "--wait", "--timeout", "180")
    status = bench.json("status")
    row(f"{status.get('name')}: READY", status.get("state") == "READY", f"{time.monotonic() - began:.1f} s to wait")
    if status.get("state") != "READY":
        row("why", None, done.stdout + done.stderr)
        bench.ours("diagnose")
        bench.ours("logs")
    try:
        yield status
    finally:
        bench.ours("cancel")
        state = bench.json("status").get("state")
        row(f"{status.get('name')}: ended in order", state in ("COMPLETED", "CANCELLED", "FAILED"), state)
        free(f"{status.get('name')}: GPU memory is free again")


def free(name: str) -> None:
    """Check that nothing is left on any GPU; drivers take a moment."""
    deadline = time.monotonic() + 10
    while max(used_mib()) > 64 and time.monotonic() < deadline:
        time.sleep(0.2)
    row(
        name, max(used_mib()) <= 64, f"{used_mib()} MiB in use, processes {smi('--query-compute-apps=pid,used_memory')}"
    )


def generate(bench: Bench, prompt: str = PROMPT, tokens: int = TOKENS) -> str:
    """Return the served model's text."""
    return bench.ours("generate", "--no-stream", "--max-tokens", str(tokens), prompt).stdout.strip()


def texts(bench: Bench) -> None:
    """The rehearsal's tensors on the GPU give the text of the CPU; all that is said of the GPU is nvidia-smi's."""
    with job(bench, bench.spec("on-cpu", engine="rehearsal")):
        there = generate(bench)
    with job(bench, bench.spec("on-gpu", engine="rehearsal", engine_args={"device": "cuda", "hold_mib": HELD_MIB})):
        row("text of CUDA tensors is the CPU's", bool(there) and generate(bench) == there, there)
        time.sleep(12)
        compare(bench, range(1))


def compare(bench: Bench, ranks: range) -> None:
    """Check health, metrics, the rank's GPUs, top and report against nvidia-smi."""
    apps = {int(pid): int(mib) for pid, mib in smi("--query-compute-apps=pid,used_memory")}
    cards = smi("--query-gpu=index,uuid,memory.used,memory.total,utilization.gpu,driver_version,name")
    (bench.out / "nvidia-smi.txt").write_text(json.dumps({"apps": apps, "cards": cards}, indent=1))
    health = bench.json("health")
    for own in health or []:
        rank, held = own["rank"], own.get("gpu_mib")
        # Each rank has a server and a stub, and ranks are alike.
        near = held is not None and abs(held * len(health) - sum(apps.values())) <= 2 * len(apps)
        row(f"health: rank {rank}'s GPU memory", near, f"{held} MiB, nvidia-smi's processes {sorted(apps.values())}")
        row(
            f"health: rank {rank}'s GPU",
            own.get("used_gpus") == [rank],
            f"{own.get('used_gpus')}, {own['visible_gpus']}",
        )
    attempt = Path(bench.json("status").get("directory", "/")).glob("job-*/attempt-0")
    journals = [path for one in attempt for path in (one / "journal").glob("*.jsonl")]
    records = [json.loads(line) for path in journals for line in path.read_text().splitlines() if line]
    told = {item["rank"]: item["gpus"] for item in records if item["kind"] == "sees"}
    uuids = [uuid for _, uuid, *_ in cards]
    row("what ranks are shown, by UUID", all(set(told.get(one, [])) == set(uuids) for one in ranks), told)
    seen: dict[str, Any] = next((item for item in records if item["kind"] == "gpus"), {})
    row("the agent's list of GPUs", all(uuid in json.dumps(seen) for uuid in uuids), json.dumps(seen))
    metrics(bench, cards)
    nodes = (bench.json("top", "--once") or {}).get("nodes", [])
    shown = [(one["gpu"], one["used_mib"]) for node in nodes for one in node.get("gpus", [])]
    near = len(shown) == len(cards) and all(abs(mib - int(cards[gpu][2])) <= 2 for gpu, mib in shown)
    row("top: GPU memory", near, f"{shown}, nvidia-smi {[int(card[2]) for card in cards]}")
    page = bench.out / "report.html"
    made = bench.ours("report", "-o", str(bench.home / "report.html"), "--force")
    if made.returncode == 0:
        shutil.copy(bench.home / "report.html", page)
    row("report tells of the GPU", page.exists() and uuids[0] in page.read_text(), made.stdout + made.stderr)


def first_run(bench: Bench) -> None:
    """What an owner of GPU nodes runs first: every row of its rehearsal is well, and its archive is there."""
    value = bench.json("site", "check", "--rehearse", "--device", "cuda")
    for one in (value.get("rehearsal") or {}).get("rows", []):
        good = {"OK": True, "NOTE": None}.get(one["verdict"], False)
        row(f"site check --rehearse: {one['name']}", good, one["found"])
    archive = Path(value.get("archive", "/nowhere"))
    row("site check --rehearse: its archive", archive.is_file(), archive)
    if archive.is_file():
        shutil.copy(archive, bench.out / "site-check.tar.gz")


def metrics(bench: Bench, cards: list[list[str]]) -> None:
    """Check Triton's own GPU figures, as `metrics` shows them, against nvidia-smi."""
    raw = bench.ours("metrics", "--raw").stdout
    for _, uuid, mib, total, *_ in cards:
        found = {
            name: float(value)
            for name, value in re.findall(rf"^(nv_gpu_memory_\w+)\{{[^}}]*{uuid}[^}}]*\}} (\S+)$", raw, re.MULTILINE)
        }
        if not found:
            row("Triton's GPU metrics", None, "this Triton has none")
            return
        near = abs(found.get("nv_gpu_memory_used_bytes", 0) / MIB - float(mib)) < 64
        same = abs(found.get("nv_gpu_memory_total_bytes", 0) / MIB - float(total)) < 1024
        row("Triton's GPU metrics are nvidia-smi's", near and same, f"{found}, {mib} of {total} MiB")


def failures(bench: Bench) -> None:
    """A rank that runs out of GPU memory, one that is killed, and two ranks on one GPU are named."""
    total = max(int(one) for (one,) in smi("--query-gpu=memory.total"))
    hungry = bench.spec("hungry", engine="rehearsal", engine_args={"device": "cuda", "hold_mib": total + 4096})
    failed(bench, hungry, "out of GPU memory", r"CUDA out of memory|cuda-out-of-memory", r"rank 0")
    killed = {"device": "cuda", "hold_mib": HELD_MIB, "fault": "rank=0,at=serve,kind=signal:KILL,after=3"}
    failed(
        bench, bench.spec("killed", engine="rehearsal", engine_args=killed), "a killed process", r"SIGKILL", r"rank 0"
    )
    both = {"device": "cuda", "hold_mib": HELD_MIB}
    with job(
        bench, bench.spec("twice", engine="rehearsal", tensor_parallel_size=2, partition="unasked", engine_args=both)
    ):
        time.sleep(12)
        said = bench.ours("logs", "--source", "job").stdout
        row("two ranks on one GPU are told", "all use GPU 0 (GPU-" in said, said)


def failed(bench: Bench, spec: str, what: str, *patterns: str) -> None:
    """Submit what must fail, and look for words in its diagnosis."""
    bench.ours("submit", spec, "--wait", "--timeout", "120")
    deadline = time.monotonic() + 60
    while bench.json("status").get("state") not in ("FAILED", "COMPLETED") and time.monotonic() < deadline:
        time.sleep(1)
    said = bench.ours("diagnose").stdout
    row(f"{what} is named", all(re.search(one, said) for one in patterns), said)
    free(f"{what}: GPU memory is free again")


def two_gpus(bench: Bench) -> None:
    """Two ranks on two GPUs: each on its own, and the text is the one of a single rank."""
    with job(bench, bench.spec("one-rank", engine="rehearsal")):
        there = generate(bench)
    args = {"device": "cuda", "hold_mib": HELD_MIB}
    with job(bench, bench.spec("two-ranks", engine="rehearsal", tensor_parallel_size=2, engine_args=args)):
        row("text of two GPUs is the CPU's", bool(there) and generate(bench) == there, there)
        time.sleep(12)
        compare(bench, range(2))


def load(url: str, tokens: int, prompt: str = PROMPT, clients: int = 8) -> float:
    """Send one request of each of `clients` at once and return how long until the last is answered, in seconds."""
    body = json.dumps({"text_input": prompt, "sampling_param_max_tokens": tokens}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(_number: int) -> int:
        request = urllib.request.Request(f"{url}/v2/models/tensorrt_llm/generate", body)
        return len(json.load(opener.open(request, timeout=60))["text_output"])

    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        if list(pool.map(ask, range(clients))) != [tokens] * clients:
            raise ValueError("not as many tokens as asked for")
    return time.monotonic() - began


def measure(url: str, other: str, what: str, tokens: int, prompt: str, counted: int, *, judged: bool) -> None:
    """Ask the job's server and the other one by turns, and compare tokens a second."""
    for each in (url, other, url, other):
        load(each, tokens, prompt)
    pairs = [(load(url, tokens, prompt), load(other, tokens, prompt)) for _ in range(ROUNDS)]
    ours, hand = (8 * counted / statistics.median(times) for times in zip(*pairs, strict=True))
    row(f"{what} a second, job and by hand", None, f"{ours:.0f}, {hand:.0f}")
    ratios = sorted(theirs / own for own, theirs in pairs)
    middle, quarter = statistics.median(ratios), len(ratios) // 4
    text = f"{middle:.3f}, half of {len(ratios)} pairs {ratios[quarter]:.3f} to {ratios[-quarter - 1]:.3f}"
    row(f"{what}: ratio, median", middle >= 0.99 if judged else None, text)


@contextmanager
def by_hand(bench: Bench) -> Iterator[str]:
    """Start the job's own tritonserver once more, outside Slurm, with other ports and a repository of its own."""
    pids = subprocess.run(["pgrep", "-u", bench.user, "-x", "tritonserver"], capture_output=True, text=True)
    pid = pids.stdout.split()[0]
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    environ = dict(item.split("=", 1) for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in item)
    own = {name: value for name, value in environ.items() if not name.startswith(("SLURM", "PMIX", "OMPI", "LLMRUN"))}
    place = bench.home / "by-hand"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(next(word.partition("=")[2] for word in words if word.startswith("--model-repository=")), place)
    # Triton hands paths to a shell.
    home = bench.home / "triton"
    home.unlink(missing_ok=True)
    home.symlink_to(Path(words[0]).parents[1].resolve())
    ports = {
        "--http-port": "18000",
        "--grpc-port": "18001",
        "--metrics-port": "18002",
        "--model-repository": str(place),
    }
    words = [str(home / "bin" / "tritonserver"), *words[1:]]
    words = [f"{word.partition('=')[0]}={ports[word.partition('=')[0]]}" if word.partition("=")[0] in ports else word
             for word in words]  # fmt: skip
    words = [re.sub(r"(--backend-directory=).*", rf"\1{home}/backends", word) for word in words]
    words = [re.sub(r"shm-region-prefix-name=\w+", "shm-region-prefix-name=byhand_", word) for word in words]
    own.update(LD_LIBRARY_PATH=f"{home}/lib", TMPDIR=str(bench.home))
    subprocess.run(["chown", "-R", bench.user, place], check=True)
    with (bench.out / "by-hand.log").open("wb") as log:
        process = subprocess.Popen(
            [shutil.which("runuser") or "runuser", "-u", bench.user, "--", *words],
            env=own,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        await_ready("http://127.0.0.1:18000", process)
        yield "http://127.0.0.1:18000"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def language_model(bench: Bench) -> None:
    """A model of some billion parameters on the GPU: tokens a second through the job and by hand, by turns."""
    model = bench.home / "model"
    made = bench.as_user("python", "-c", MAKE_MODEL, str(model), timeout_s=300)
    row("a model is made", made.returncode == 0, made.stderr[-300:] if made.returncode else made.stdout)
    if made.returncode:
        return
    spec = bench.spec(
        "llama",
        engine="llmapi",
        launch="single",
        model=str(model),
        engine_args={"all_models": str(SOURCE / "benchmarks" / "gpu" / "all_models")},
    )
    with job(bench, spec) as status:
        if status.get("state") != "READY":
            return
        url = status["endpoints"][0]["url"]
        with by_hand(bench) as other:
            # Reading a long prompt keeps the GPU busy; writing token by token waits for Python, which is noise.
            measure(url, other, "tokens read", 2, PROMPT * 300, len(PROMPT) * 300, judged=True)
            measure(url, other, "tokens written", 64, PROMPT, 64, judged=False)
        bench.ours("metrics")


def is_ready(url: str) -> bool:
    """Return whether a server says that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def await_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server is ready.

    Raises:
        TimeoutError: it does not get ready.
    """
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if is_ready(url):
            return
        time.sleep(0.3)
    raise TimeoutError(url)


def run_part(part: Callable[[Bench], None], bench: Bench) -> None:
    """Run one part of the checks; if it raises, the others have something to say too."""
    try:
        part(bench)
    except Exception as error:  # noqa: BLE001
        row("a part of the checks", False, f"{type(error).__name__}: {error}")


def main() -> int:
    """Run every part; one that raises does not keep the others from running."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("base", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("parts", nargs="*", help="texts, failures, first_run, language_model; default: all")
    given = parser.parse_args()
    bench = Bench(given.base, given.user, given.out)
    gpus = len(smi("--query-gpu=index"))
    write_site(bench, gpus)
    seen = bench.as_user("srun", "--gres=gpu:1", "-n1", "nvidia-smi", "-L")
    row("a step that asks for a GPU", seen.stdout.count("GPU ") >= 1, seen.stdout + seen.stderr)
    parts = {"texts": texts, "failures": failures, "first_run": first_run, "language_model": language_model}
    for part in [parts[name] for name in given.parts or parts] if gpus == 1 else [two_gpus, first_run]:
        run_part(part, bench)
    for number, run in enumerate(sorted(bench.home.glob("with a space/logs/*"))):
        subprocess.run(["tar", "-C", run.parent, "-czf", bench.out / f"run-{number}.tar.gz", run.name], check=False)
    print(f"{len(WRONG)} not as wanted: {', '.join(WRONG)}" if WRONG else "all as wanted")
    return 1 if WRONG else 0


if __name__ == "__main__":
    sys.exit(main())
