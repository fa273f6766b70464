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
        ("array job-name open-mode output error input chdir signal wrap parsable", ""),
        ("export export-file get-user-env container het-group", ""),
        ("requeue no-requeue", "recovery.requeue"),
        ("nodes ntasks ntasks-per-node ntasks-per-gpu ntasks-per-core ntasks-per-socket", _SIZES),
        ("cpus-per-task cpus-per-gpu hint threads-per-core", _CPUS),
        ("mem mem-per-cpu mem-per-gpu", "resources.mem_per_node, or memory of the partition"),
        ("gres gpus gpus-per-node gpus-per-task gpus-per-socket", _GPUS),
        ("time", "resources.time, or time of the partition"),
        ("partition", "partition"),
        ("account", "account"),
        ("qos", "qos"),
        ("constraint", "constraint"),
        ("reservation", "reservation"),
        ("exclude", "exclude_nodes"),
        ("clusters cluster", "slurm.clusters"),
        ("exclusive", "exclusive of the partition"),
        ("segment", "segment of the partition"),
        ("licenses", "licenses of the partition"),
        ("network", "network.flags"),
        ("switches", "switches of the partition"),
        ("core-spec", "core_spec of the partition"),
        ("wait-all-nodes", "wait_all_nodes of the partition"),
        ("distribution", "distribution of the partition"),
    )
)
"""Option of sbatch, without dashes → the key to use instead; empty where there is none."""

MANAGED_SRUN = _table(
    (
        ("nodes ntasks ntasks-per-node relative label unbuffered overlap exact kill-on-bad-exit", ""),
        ("output error input chdir export multi-prog pty het-group jobid distribution", ""),
        ("cpus-per-task", _CPUS),
        ("gres gpus gpus-per-node gpus-per-task", _GPUS),
        ("mpi", "launcher.mpi"),
        ("wait", "launcher.step.wait_s"),
        ("cpu-bind", "launcher.step.cpu_bind"),
        ("gpu-bind", "launcher.step.gpu_bind"),
        ("network", "network.flags"),
        ("container-image container-mounts container-workdir container-env environment", "container"),
    )
)
"""The same for srun."""


_LETTERS = {
    "A": "account",
    "a": "array",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "I": "immediate",
    "i": "input",
    "J": "job-name",
    "K": "kill-on-bad-exit",
    "k": "no-kill",
    "L": "licenses",
    "l": "label",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "r": "relative",
    "S": "core-spec",
    "s": "oversubscribe",
    "T": "threads",
    "t": "time",
    "u": "unbuffered",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
"""Short options of sbatch and srun (sbatch(1), srun(1))."""


LETTERS_ALONE = frozenset("HhIKklOQsuVvWX") - {"K", "W", "I"}
"""Short options without a value: getopt reads what follows as further options. K, W and I may have one."""


def option_name(option: str) -> str:
    """Return the long name of one option, without dashes and value: `mem` of `--mem=4G`, `ntasks` of `-n4`."""
    if option.startswith("--"):
        return option[2:].partition("=")[0]
    return _LETTERS.get(option[1:2], option[1:2])
