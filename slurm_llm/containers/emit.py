"""From a ContainerPlan to options of srun and sbatch, files of the run directory, and the variables of enter.sh.j2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slurm_llm.containers.mounts import final_mounts
from slurm_llm.containers.references import is_path
from slurm_llm.containers.runtime import Call, Entry, Runtime
from slurm_llm.containers.runtimes import RUNTIMES
from slurm_llm.containers.types import ContainerPlan, Mount
from slurm_llm.sites.secrets import names_secret

ENTER_SCRIPT = "enter.sh"

COLLECTED = (
    *("SLURM*", "LLMRUN_*", "PMIX_*", "PMI_*", "PALS_*", "OMPI_*", "PRTE_*", "MPICH_*", "I_MPI_*", "MV2_*", "HYDI_*"),
    *("UCX_*", "UCC_*", "HCOLL_*", "SHARP_*", "FI_*", "NCCL_*", "RCCL_*", "GLOO_*", "HWLOC_*", "OMP_*", "KMP_*"),
    *(
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_MPS_*",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
    ),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "HSA_*"),
    *("MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED", "HF_*", "TRANSFORMERS_OFFLINE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""What a rank needs of its task's environment, as patterns of names: Slurm, MPI, fabric, GPUs, proxies."""


def step_options(container: ContainerPlan, run_dir: str) -> tuple[str, ...]:
    """Return the options of srun that put a step's tasks into the container.

    Raises:
        InputError: a path that the runtime cannot mount; so do all functions with a run directory.
    """
    return _runtime(container).step_options(_call(container, run_dir))


def sbatch_options(container: ContainerPlan) -> tuple[str, ...]:
    """Return the container's directives of the job."""
    runtime = _runtime(container)
    return runtime.sbatch_options(container, final_mounts(container, runtime, None))


def wrap(container: ContainerPlan, run_dir: str) -> tuple[str, ...]:
    """Return the words in front of a task's command; none where srun enters the container."""
    return () if _entry(container, run_dir) is None else ("bash", f"{run_dir}/{ENTER_SCRIPT}")


def files(container: ContainerPlan, run_dir: str) -> dict[str, str]:
    """Return name → text of the files that the runtime wants in the run directory."""
    return _runtime(container).files(_call(container, run_dir))


def expand(container: ContainerPlan, expander: Callable[[str], str]) -> ContainerPlan:
    """Return `container` with `expander` applied to every path; names of registries stay as they are."""

    def expanded(path: str) -> str:
        return expander(path) if is_path(path) else path

    mounts = tuple(Mount(expanded(one.source), expanded(one.target), one.read_only) for one in container.mounts)
    folder = None if container.workdir is None else expanded(container.workdir)
    return replace(container, image=expanded(container.image), mounts=mounts, workdir=folder)


def enter_variables(container: ContainerPlan, run_dir: str) -> dict[str, object]:
    """Return the variables of enter.sh.j2; `command` alone is shell text."""
    entry = _entry(container, run_dir)
    if entry is None:
        raise ValueError(f"{container.runtime} is not entered by a script")
    passing, mounts = entry.passing, _call(container, run_dir).mounts
    collected = COLLECTED if passing.collect else ()
    inherits = not (passing.word or passing.prefix)
    # Every user of a node can read command lines.
    own = tuple(name for name in container.env if not (passing.valued and names_secret(name)))
    return {
        "runtime": container.runtime,
        "program": container.program,
        "image": container.image,
        "image_word": entry.image_word,
        "image_is_path": entry.image_word and container.image.startswith("/"),
        "sources": entry.sources,
        "options": entry.options,
        "bind": entry.bind,
        "bind_pair": entry.bind_pair,
        "bind_end": entry.bind_end,
        "shown": (*entry.shown, *(one.target for one in mounts if one.in_place and one not in entry.searched)),
        "searched": entry.searched,
        "writes_image": entry.writes_image,
        "patterns": () if inherits else tuple(dict.fromkeys((*own, *collected))),
        "defaults": entry.defaults,
        "pass_word": passing.word,
        "pass_value": passing.valued,
        "pass_prefix": passing.prefix,
        "pass_evaluated": passing.evaluated,
        "pass_multiline": passing.multiline,
        "unset": entry.unset,
        "needs_user": entry.needs_user,
        "peers": entry.peers,
        "one_word": entry.one_word,
        "command": _command(entry),
    }


def _command(entry: Entry) -> str:
    words = ['"$program"', '"${options[@]}"']
    words += ['"$image"'] if entry.image_word else []
    words += ["--"] if entry.dashes else []
    return " ".join([*words, 'bash -c "exec $command"' if entry.one_word else '"$@"'])


def _runtime(container: ContainerPlan) -> Runtime:
    return RUNTIMES[container.runtime]


def _call(container: ContainerPlan, run_dir: str) -> Call:
    mounts = final_mounts(container, _runtime(container), run_dir)
    return Call(container, mounts, container.workdir or run_dir, run_dir)


def _entry(container: ContainerPlan, run_dir: str) -> Entry | None:
    return _runtime(container).entry(_call(container, run_dir))
