"""Which options sbatch and srun know, and from and up to which release: from `slurm_opt.c` and the man pages."""

from __future__ import annotations

from slurm_llm.slurm.versions import SlurmVersion, parse_version

_COMMON = """
    account acctg-freq bb bbf begin chdir cluster-constraint clusters comment constraint contiguous core-spec
    cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
    exclusive export extra extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
    gres-flags het-group hint hold input job-name licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
    mem-per-gpu mincpus network nice no-kill nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket open-mode output overcommit oversubscribe partition power prefer priority
    profile qos quiet reboot reservation resv-ports segment share signal sockets-per-node spread-job switches
    thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid gid use-min-nodes usage verbose version
    wait wait-all-nodes wckey container container-id consolidate-segments spread-segments stepmgr oom-kill-step
"""
_SBATCH_ONLY = """
    array batch burst-buffer cluster export-file get-user-env ignore-pbs kill-on-invalid-dep no-requeue parsable
    requeue test-only wrap
"""
_SRUN_ONLY = """
    accel-bind async bcast bcast-exclude compress container-type cpu-bind disable-status epilog exact
    external-launcher ignore-signals immediate interactive jobid join kill-on-bad-exit label launch-cmd launcher-opts
    mem-update mpi msg-timeout multi-prog no-allocate overlap packjob preserve-env prolog propagate pty
    quit-on-interrupt relative send-libs slurmd-debug task-epilog task-prolog treewidth unbuffered
    wait-for-children whole
"""
SBATCH_OPTIONS = frozenset((_COMMON + _SBATCH_ONLY).split())
SRUN_OPTIONS = frozenset((_COMMON + _SRUN_ONLY).split())

_LETTERS = """
    A=account a=array B=extra-node-info C=constraint c=cpus-per-task D=chdir d=dependency e=error F=nodefile G=gpus
    H=hold i=input J=job-name k=no-kill L=licenses M=clusters m=distribution N=nodes n=ntasks O=overcommit o=output
    p=partition q=qos S=core-spec s=oversubscribe t=time W=wait w=nodelist x=exclude
"""
SHORT_OPTIONS = {word[0]: word[2:] for word in _LETTERS.split()}
"""Letters that mean the same to sbatch and srun; others are left as they are."""

_CAME_WITH = {
    "20.11": "overlap exact whole interactive ntasks-per-gpu",
    "21.08": "container send-libs bcast-exclude",
    "22.05": "prefer",
    "23.02": "tres-per-task container-id extra",
    "23.11": "tres-bind external-launcher treewidth",
    "24.05": "segment stepmgr",
    "24.11": "oom-kill-step",
    "25.05": "wait-for-children",
    "25.11": "consolidate-segments spread-segments",
    "26.05": "async mem-update container-type ignore-signals",
}
SINCE = {name: release for release, names in _CAME_WITH.items() for name in names.split()}
"""Option → the first release that knows it."""

GONE = {"export-file": "23.11", "power": "24.05"}
"""Option → the first release without it."""


def long_name(name: str) -> str:
    """Return an option's long name of a name without dashes."""
    return SHORT_OPTIONS.get(name, "oversubscribe" if name == "share" else name)


def refusal(name: str, version: SlurmVersion) -> str | None:
    """Return why `version` does not know the option called `name`, None when it does."""
    since, gone = SINCE.get(name), GONE.get(name)
    if since is not None and version < parse_version(since):
        return f"--{name} exists since Slurm {since}"
    if gone is not None and version >= parse_version(gone):
        return f"--{name} is gone since Slurm {gone}"
    return None
