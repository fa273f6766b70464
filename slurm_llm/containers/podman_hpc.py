"""Podman-HPC: `podman-hpc run`, NERSC's wrapper of rootless podman, called by enter.sh.

Grammar from NERSC/podman-hpc 1.1: podman_hpc/podman_hpc.py (module flags are read anywhere in the command line, behind
the image too, hence the command as one word), etc/modules.d (what --gpu, --mpi, --cuda-mpi and --nccl add, and what MPI
needs: the host's network, IPC and process ids, the user's own id) and containers/podman 4.3 (`--volume SRC:DST[:ro]`,
no escape for a colon; `--env NAME` takes the value from the environment).
"""

from __future__ import annotations

from slurm_llm.containers.references import bare, is_path, is_relative, is_slashed, slashed
from slurm_llm.containers.runtime import SINGLE_COPY, Call, Entry, Fault, Passing, Runtime, Words, bind_words
from slurm_llm.sites.containers import ContainerRules

IMAGE_FORM = "[REGISTRY/]NAME:TAG of podman-hpc's image store"
HOST = ("--network=host", "--ipc=host", "--pid=host")


class PodmanHpc(Runtime):
    """`podman-hpc run`, once a task; the environment is empty but for what is named."""

    name = "podman_hpc"
    program = "podman-hpc"
    section = "podman_hpc"
    shown = ("/dev/shm",)
    import_hint = "podman-hpc pull REGISTRY/NAME:TAG on a login node"

    def check_image(self, image: str) -> Fault | None:
        if is_path(image) or is_relative(image):
            what = f"podman-hpc takes images by name, not from a file: {image}"
            return Fault(what, IMAGE_FORM, "`podman-hpc load -i FILE`, then write its name")
        if is_slashed(image.removeprefix("docker://")):
            return None
        own = slashed(bare(image))
        todo = f"write {own}" if own != image and is_slashed(own) else ""
        return Fault(f"'{image}' is no image name of podman", IMAGE_FORM, todo)

    def flags(self, rules: ContainerRules, vendor: str | None) -> Words:
        own = rules.podman_hpc
        gpu = vendor == "nvidia" if own.gpu == "auto" else own.gpu
        given = {"--gpu": gpu, "--mpi": own.mpi, "--cuda-mpi": own.cuda_mpi, "--nccl": own.nccl}
        return tuple(word for word, wanted in given.items() if wanted)

    def entry(self, call: Call) -> Entry:
        extra = call.plan.options
        # PMIx and the files in /dev/shm know the user by number.
        own_id = () if any(word.startswith("--userns") for word in extra) else ("--userns=keep-id",)
        return Entry(
            options=(
                *("run", "--rm", *HOST, *own_id, "--entrypoint="),
                *extra,
                f"--workdir={call.workdir}",
                *bind_words("--volume=", call.mounts),
            ),
            passing=Passing(collect=True, word="--env="),
            bind="--volume=",
            bind_pair=True,
            shown=self.shown,
            sources=tuple(mount.source for mount in call.mounts),
            one_word=True,
            needs_user=True,
            defaults=SINGLE_COPY,
        )


RUNTIME = PodmanHpc()
