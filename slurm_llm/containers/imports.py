"""Importing an image of a registry: the command of each container runtime, and where its product goes. Pure.

Grammar: `enroot import -o FILE docker://[USER@][REGISTRY#]NAME[:TAG]` refuses a FILE that exists (NVIDIA/enroot 4.1,
enroot.in and src/docker.sh); `apptainer pull FILE URI` does too (apptainer/apptainer 1.5, cmd/internal/cli/pull.go);
`podman-hpc pull IMAGE` fills the user's own store and makes the squashed copy that compute nodes read (NERSC/podman-hpc
1.1, podman_hpc/podman_hpc.py); `shifterimg pull` and `lookup` ask the site's gateway (NERSC/shifter, doc/); `ch-image
pull REF` and `ch-convert REF FOLDER` (hpc/charliecloud 0.31).
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_llm.containers.references import bare, hashed, is_hashed, is_slashed, scheme, slashed
from slurm_llm.containers.runtime import Fault

FILE, FOLDER, STORE = "file", "folder", "store"

_SQUASH = frozenset({"pyxis", "cscs_ce", "enroot"})
_SIF = frozenset({"apptainer", "singularity"})
FORM = "REGISTRY/NAME:TAG, as nvcr.io/nvidia/tritonserver:25.09-py3"


@dataclass(frozen=True)
class Import:
    """How an image is imported: `commands` make `kind` of product.

    What goes into a store has no path; `known` is the command that prints something once the store has it, or succeeds.
    """

    kind: str
    commands: tuple[tuple[str, ...], ...]
    known: tuple[str, ...] = ()


def import_image(runtime: str, program: str | None, source: str, to: str) -> Import | Fault:
    """Return how `source` becomes the image `to` of a runtime; `program` is the site's own name of its program."""
    reference = bare(source)
    plain = slashed(reference)
    if runtime in _SQUASH:
        right = hashed(reference)
        if not is_hashed(right):
            return Fault(f"'{source}' is no image of a registry", FORM)
        own = program if runtime == "enroot" and program else "enroot"
        return Import(FILE, ((own, "import", "-o", to, f"docker://{right}"),))
    if runtime in _SIF:
        kind = scheme(source)
        if kind not in (None, "docker"):
            return Import(FILE, ((program or runtime, "pull", to, source),))
        fault = _check(source, plain)
        return fault or Import(FILE, ((program or runtime, "pull", to, f"docker://{plain}"),))
    fault = _check(source, plain)
    if fault is not None:
        return fault
    if runtime == "podman_hpc":
        own = program or "podman-hpc"
        return Import(STORE, ((own, "pull", plain),), (own, "images", "-q", plain))
    if runtime == "shifter":
        return Import(STORE, (("shifterimg", "pull", plain),), ("shifterimg", "lookup", plain))
    if runtime == "charliecloud":
        return Import(FOLDER, (("ch-image", "pull", plain), ("ch-convert", "-o", "dir", plain, to)))
    return Fault("the site has no container runtime, so there is no image to import", "", "remove it")


def _check(source: str, plain: str) -> Fault | None:
    return None if is_slashed(plain) else Fault(f"'{source}' is no image of a registry", FORM)
