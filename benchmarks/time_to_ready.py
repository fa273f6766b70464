"""Time from sbatch to the first answered generation: our job beside a hand-written script, interleaved.

Both start the same eight ranks (4 nodes × 2) with the same srun line, environment, ports and model. The hand-written
script has nothing else. Run it as an ordinary user on the devcluster:

    python benchmarks/time_to_ready.py --pairs 15

It prints the median of each, the seconds that our start-up adds, and what the MPI preflight costs on top.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from slurm_llm.app import make_job, new_run_dir, render_job, write_run
from slurm_llm.plan.steps import world_step
from slurm_llm.sites.load import load_site
from slurm_llm.spec import spec_from_mapping
from slurm_llm.surroundings import Surroundings

HTTP = 18000
SPEC = {
    "name": "time-to-ready",
    "engine": "rehearsal",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 2,
    "moe_expert_parallel_size": 2,
    "resources": {"nodes": 4, "time": "00:05:00"},
    "triton": {"http_port": HTTP, "grpc_port": HTTP + 1, "metrics_port": HTTP + 2},
}
BARE = """#!/bin/bash
{directives}
export OMPI_MCA_mpi_yield_when_idle=1 SLURM_PMIX_FENCE=ring LD_LIBRARY_PATH={home}/lib PATH={bin}:$PATH
exec {step} bash -c '
common=(--model-repository={link}/model_repository --backend-directory={home}/backends --disable-auto-complete-config
  --backend-config=python,shm-region-prefix-name=bare${{SLURM_JOB_ID}}_${{SLURM_PROCID}}_)
if ((SLURM_PROCID == 0)); then
  exec {home}/bin/tritonserver "${{common[@]}}" --http-port={http} --grpc-port={grpc} --metrics-port={metrics}
fi
exec {home}/bin/tritonserver "${{common[@]}}" --allow-http=false --allow-grpc=false --allow-metrics=false \\
  --model-control-mode=explicit --load-model=tensorrt_llm'
"""


def render(around: Surroundings, preflight: bool) -> Path:
    """Render one run directory and return it."""
    spec = spec_from_mapping({**SPEC, "preflight": {"mpi": preflight}})
    job = make_job(spec, load_site("devcluster", around.environ))
    rendered = render_job(job, new_run_dir(job, around), around)
    write_run(rendered)
    return rendered.paths.root


def bare_script(ours: Path, around: Surroundings) -> Path:
    """Write the hand-written counterpart of our script, with its own `#SBATCH` lines."""
    job = make_job(spec_from_mapping(SPEC), load_site("devcluster", around.environ))
    # Triton's Python backend hands the repository path to a shell, so both use a path without blanks.
    link = Path(f"/var/tmp/time-to-ready-{os.getuid()}")
    link.unlink(missing_ok=True)
    link.symlink_to(ours)
    directives = [line for line in (ours / "job.sub").read_text().splitlines() if line.startswith("#SBATCH")]
    text = BARE.format(
        directives="\n".join(directives),
        home=link / "triton",
        bin=Path(sys.executable).parent,
        link=link,
        step=shlex.join(world_step(job.plan, str(ours), job.plan.instances[0])),
        http=HTTP,
        grpc=HTTP + 1,
        metrics=HTTP + 2,
    )
    path = ours / "bare.sub"
    path.write_text(text)
    return path


def answered(url: str) -> bool:
    """Return whether one generation is answered."""
    body = json.dumps({"text_input": "ready?", "sampling_param_max_tokens": 1}).encode()
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, body, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def measure(script: Path) -> float:
    """Submit `script`, wait for its first answer, end the job; return the seconds."""
    began = time.monotonic()
    job = subprocess.run(("sbatch", "--parsable", script), check=True, capture_output=True, text=True).stdout.strip()
    url = ""
    try:
        while not url:
            nodes = subprocess.run(
                ("squeue", "-h", "-j", job, "-o", "%B %T"), capture_output=True, text=True
            ).stdout.split()
            if len(nodes) == 2 and nodes[1] == "RUNNING":
                url = f"http://{nodes[0]}:{HTTP}/v2/models/tensorrt_llm/generate"
            time.sleep(0.02)
        while not answered(url):
            if time.monotonic() - began > 60:
                raise SystemExit(f"job {job} of {script} is not ready after 60 s")
            time.sleep(0.02)
        return time.monotonic() - began
    finally:
        end(job)


def end(job: str) -> None:
    """Cancel the job and wait until its nodes are idle again."""
    subprocess.run(("scancel", job), check=True)
    while subprocess.run(("squeue", "-h", "-j", job), capture_output=True, text=True).stdout.strip():
        time.sleep(0.1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    around = Surroundings.of_this_process()
    plain, checked = render(around, preflight=False), render(around, preflight=True)
    scripts = {
        "hand-written script": bare_script(plain, around),
        "slurm_llm": plain / "job.sub",
        "slurm_llm with MPI preflight": checked / "job.sub",
    }
    seconds: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(pairs):
        for name, script in scripts.items():
            seconds[name].append(measure(script))
    for name, values in seconds.items():
        spread = f"({min(values):.2f} to {max(values):.2f}, n={len(values)})"
        print(f"{name:30} median {statistics.median(values):.2f} s  {spread}")
    bare, ours, with_check = (statistics.median(values) for values in seconds.values())
    print(f"added by slurm_llm: {ours - bare:+.2f} s; the MPI preflight: {with_check - ours:+.2f} s")


if __name__ == "__main__":
    main()
