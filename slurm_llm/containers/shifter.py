"""Shifter: directives of the job name image, volumes and modules; `shifter` before the command enters.

Grammar from NERSC/shifter: src/shifter.c (options), src/VolumeMap.c and src/utility.c userInputPathFilter (volumes are
FROM:TO[:ro] joined by `;`, other characters than letters, digits and `_.+-/` are dropped without a word),
src/shifter_core.c (FROM must be a file system that the site shows in every container, at its own place; /tmp is),
src/ImageData.c (types docker, custom, id, local), doc/wlm/slurm.rst (the directives prepare the nodes once). The
image's variables win unless --env gives the value.
"""

from __future__ import annotations

from slurm_llm.containers.references import is_path, is_relative, is_slashed, scheme, slashed
from slurm_llm.containers.runtime import Call, Entry, Fault, Passing, Runtime, Words, bind_words
from slurm_llm.containers.types import ContainerPlan, Mount
from slurm_llm.sites.containers import ContainerRules

IMAGE_FORM = "docker:[REGISTRY/]NAME:TAG, id:DIGEST or custom:NAME"
TYPES = ("docker", "custom", "id", "local")
CLOSED = ("/etc", "/var", "/opt/udiImage")


class Shifter(Runtime):
    """#SBATCH --image and `shifter COMMAND`; the site's file systems are in every container."""

    name = "shifter"
    program = "shifter"
    section = "shifter"
    in_place = False
    import_hint = "shifterimg pull NAME:TAG"

    def check_image(self, image: str) -> Fault | None:
        kind, colon, name = image.partition(":")
        if is_path(image) or is_relative(image):
            what = f"shifter takes images from its gateway, not from a file: {image}"
            return Fault(what, IMAGE_FORM, "bring it there with `shifterimg pull NAME:TAG`")
        if scheme(image) is not None or "#" in image:
            right = slashed(image.partition("://")[2] or image)
            return Fault(f"'{image}' is no image name of shifter", IMAGE_FORM, f"write docker:{right}")
        if colon and kind in TYPES and name and (kind != "docker" or is_slashed(name)):
            return None
        todo = f"write docker:{image}" if is_slashed(image) else ""
        return Fault(f"'{image}' is no image name of shifter", IMAGE_FORM, todo)

    def check_path(self, path: str) -> Fault | None:
        bad = sorted({one for one in path if not (one.isascii() and (one.isalnum() or one in "_.+-/"))})
        if bad or ".." in path:
            listing = ", ".join(f"'{one}'" for one in bad) or "'..'"
            return Fault(f"shifter cannot mount a path with {listing}: {path}", "letters, digits and '_.+-/'")
        return None

    def check_mount(self, mount: Mount) -> Fault | None:
        if mount.in_place and mount.read_only:
            what = f"shifter mounts nothing read-only at its own place: {mount.source}"
            return Fault(what, "SOURCE:TARGET:ro with another TARGET", "leave it out: it is there if the site shows it")
        if mount.target == "/opt" or (mount.target.startswith(CLOSED) and mount.target != "/var/tmp"):
            return Fault(f"shifter mounts nothing at {mount.target}", "not /opt, and nothing in /etc or /var")
        return None

    def directives(self, rules: ContainerRules) -> Words:
        modules = rules.shifter.modules
        return () if modules is None else (f"--module={','.join(modules) or 'none'}",)

    def sbatch_options(self, plan: ContainerPlan, mounts: tuple[Mount, ...]) -> Words:
        volumes = ";".join(bind_words("", mounts))
        return (f"--image={plan.image}", *((f"--volume={volumes}",) if volumes else ()), *plan.sbatch)

    def entry(self, call: Call) -> Entry:
        return Entry(
            options=(*call.plan.options, f"--workdir={call.workdir}"),
            passing=Passing(word="--env=", valued=True),
            sources=tuple(mount.source for mount in call.mounts),
            image_word=False,
        )


RUNTIME = Shifter()
