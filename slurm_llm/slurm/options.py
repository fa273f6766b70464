"""Options of sbatch and srun that a rendered job sets itself, and the key of spec or profile that changes each."""

from __future__ import annotations

from collections.abc import Sequence

_GPUS = "gpu_request of the partition"
_SIZES = "the parallel sizes and resources.nodes"
_CPUS = "resources.cpus_per_rank, or cpus of the partition"


def _table(rows: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {name: key for names, key in rows for name in names.split()}


MANAGED_SBATCH = _table(
    (
        ("array a job-name J open-mode output o error e input i chdir D signal wrap parsable", ""),
        ("export export-file get-user-env container requeue no-requeue het-group", ""),
        ("nodes N ntasks n ntasks-per-node ntasks-per-gpu ntasks-per-core ntasks-per-socket", _SIZES),
        ("cpus-per-task c cpus-per-gpu hint threads-per-core", _CPUS),
        ("mem mem-per-cpu mem-per-gpu", "resources.mem_per_node, or memory of the partition"),
        ("gres gpus G gpus-per-node gpus-per-task gpus-per-socket", _GPUS),
        ("time t", "resources.time, or time of the partition"),
        ("partition p", "partition"),
        ("account A", "account"),
        ("qos q", "qos"),
        ("constraint C", "constraint"),
        ("reservation", "reservation"),
        ("exclude x", "exclude_nodes"),
        ("clusters cluster M", "slurm.clusters"),
        ("exclusive", "exclusive of the partition"),
        ("segment", "segment of the partition"),
        ("licenses L", "licenses of the partition"),
        ("network", "network.flags"),
        ("switches", "switches of the partition"),
        ("core-spec S", "core_spec of the partition"),
        ("wait-all-nodes", "wait_all_nodes of the partition"),
        ("distribution m", "distribution of the partition"),
    )
)
"""Option of sbatch, without dashes → the key to use instead; empty where there is none."""

MANAGED_SRUN = _table(
    (
        ("nodes N ntasks n ntasks-per-node relative r label l unbuffered u overlap exact kill-on-bad-exit K", ""),
        ("output o error e input i chdir D export multi-prog pty het-group jobid distribution m", ""),
        ("cpus-per-task c", _CPUS),
        ("gres gpus G gpus-per-node gpus-per-task", _GPUS),
        ("mpi", "launcher.mpi"),
        ("wait W", "launcher.step.wait_s"),
        ("cpu-bind", "launcher.step.cpu_bind"),
        ("gpu-bind", "launcher.step.gpu_bind"),
        ("network", "network.flags"),
        ("container-image container-mounts container-workdir container-env environment", "container"),
    )
)
"""The same for srun."""


def option_name(option: str) -> str:
    """Return the name of one option as it is written, without dashes and value: `mem` of `--mem=4G`, `n` of `-n4`."""
    return option[2:].partition("=")[0] if option.startswith("--") else option[1:2]
