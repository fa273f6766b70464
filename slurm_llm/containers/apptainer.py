"""Apptainer and Singularity: `apptainer exec`, called by enter.sh.

Grammar from apptainer/apptainer 1.5: pkg/runtime/engine/apptainer/config/bind.go (a bind is SRC[:DST[:OPTS]], split at
commas and colons; its escapes do not survive every release, and `^` ends a word too), internal/pkg/util/env/create.go
(the image's variables win unless APPTAINERENV_NAME is set) and process_linux.go injectEnvHandler (those values are read
by a shell in double quotes unless --no-eval or --compat is given). SingularityCE reads SINGULARITYENV_NAME.
"""

from __future__ import annotations

from slurm_llm.containers.references import ARCHIVES, bare, is_path, is_reference, is_relative, scheme, slashed
from slurm_llm.containers.runtime import Call, Entry, Fault, Passing, Runtime, Words, bind_words
from slurm_llm.containers.types import ContainerPlan, Mount
from slurm_llm.sites.containers import ContainerRules

IMAGE_FORM = "a .sif file, a sandbox folder, docker://REGISTRY/NAME:TAG, oras://… or library://…"
REMOTE = ("docker", "oras", "library", "shub", "http", "https", "ipfs")
LOCAL = ("docker-archive:", "docker-daemon:", "oci:", "oci-archive:")
SHOWN = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys")

EMPTY_ENVIRONMENT = {"--cleanenv", "-e", "--containall", "-C", "--compat"}
OWN_DEV = {"--contain", "-c", "--containall", "-C", "--compat"}
LITERAL = {"--no-eval", "--compat"}


class Apptainer(Runtime):
    """`program exec`, once a task; the environment is the host's, with the image's variables over it."""

    section = "apptainer"
    refused = ",:^\\"
    folders = True
    import_hint = "apptainer pull IMAGE.sif docker://REGISTRY/NAME:TAG"

    def __init__(self, name: str, prefix: str) -> None:
        self.name = self.program = name
        self.prefix = prefix

    def check_image(self, image: str) -> Fault | None:
        if image.startswith(LOCAL):
            return None
        if is_path(image):
            return self._check_file(image)
        if is_relative(image):
            return Fault(f"'{image}' starts in whatever folder the job is submitted from", "an absolute path")
        kind = scheme(image)
        if kind in REMOTE and "#" not in image:
            return None
        if kind is not None:
            what = f"{self.name} cannot run '{image}'"
            return Fault(what, IMAGE_FORM, f"write {slashed(image)}" if kind in REMOTE else "")
        own = bare(image)
        todo = f"write docker://{slashed(own)}" if is_reference(own) or own != image else ""
        return Fault(f"'{image}' is no image that {self.name} can take", IMAGE_FORM, todo)

    def _check_file(self, path: str) -> Fault | None:
        if not path.endswith((*ARCHIVES, ".toml")):
            return None
        todo = f"write docker-archive:{path}" if path.endswith(ARCHIVES) else ""
        return Fault(f"{self.name} runs no such file: '{path}'", IMAGE_FORM, todo)

    def pulls(self, image: str) -> bool:
        return scheme(image) in REMOTE

    def check_path(self, path: str) -> Fault | None:
        if path != path.strip():
            return Fault(f"{self.name} cuts spaces off the ends of '{path}'", "a path without them")
        return super().check_path(path)

    def flags(self, rules: ContainerRules, vendor: str | None) -> Words:
        own = rules.apptainer
        by_vendor = {"nvidia": "nv", "amd": "rocm"}
        gpu = by_vendor.get(vendor or "") if own.gpu_flag == "auto" else own.gpu_flag
        switches = {
            "--containall": own.containall,
            "--cleanenv": own.cleanenv,
            "--no-home": own.no_home,
            "--writable-tmpfs": own.writable_tmpfs,
        }
        return (*(() if gpu is None else (f"--{gpu}",)), *(word for word, given in switches.items() if given))

    def shown_by(self, plan: ContainerPlan) -> Words:
        return ("/proc", "/sys") if OWN_DEV & set(plan.options) else SHOWN

    def entry(self, call: Call) -> Entry:
        words, shown = set(call.plan.options), self.shown_by(call.plan)
        # An empty /dev has an empty /dev/shm, which Triton, NCCL and MPI must share.
        shared = () if "/dev" in shown else (Mount("/dev/shm", "/dev/shm"),)
        mounts = (*shared, *call.mounts)
        passing = Passing(collect=bool(EMPTY_ENVIRONMENT & words), prefix=self.prefix, evaluated=not LITERAL & words)
        return Entry(
            options=("exec", *call.plan.options, f"--pwd={call.workdir}", *bind_words("--bind=", mounts)),
            passing=passing,
            bind="--bind=",
            shown=shown,
            sources=tuple(mount.source for mount in call.mounts),
        )


APPTAINER = Apptainer("apptainer", "APPTAINERENV_")
SINGULARITY = Apptainer("singularity", "SINGULARITYENV_")
