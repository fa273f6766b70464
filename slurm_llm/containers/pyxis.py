"""Pyxis: NVIDIA's SPANK plugin, entered through srun's --container-* options.

Grammar from NVIDIA/pyxis 0.24.0, args.c (parse_mount_option, spank_option_container_env) and pyxis_slurmstepd.c: a
mount is SRC:DST[:FLAG+FLAG], mounts are joined by commas, nothing can be escaped, and the list is written into a shell
script. Paths with spaces need 0.24.0. The image's own variables win unless they are named in --container-env.
"""

from __future__ import annotations

from slurm_llm.containers.references import (
    ARCHIVES,
    SIF_FILES,
    bare,
    folder_like,
    hashed,
    is_hashed,
    is_path,
    is_relative,
    is_slashed,
    scheme,
)
from slurm_llm.containers.runtime import Call, Fault, Runtime, Words, bind_words
from slurm_llm.sites.containers import ContainerRules

SQUASH_FORM = "the absolute path of a .sqsh file"
HASHED_FORM = f"[USER@][REGISTRY#]NAME[:TAG], or {SQUASH_FORM}"
IMPORT_HINT = "enroot import -o IMAGE.sqsh docker://REGISTRY#NAME:TAG"
SCHEMES = ("docker", "dockerd")


def check_squash(name: str, path: str) -> Fault | None:
    """Return what is wrong with the path of an image that must be a SquashFS file; `name` is the runtime's."""
    todo = f"make one: `{IMPORT_HINT}`"
    if path.endswith((*SIF_FILES, *ARCHIVES, ".toml")):
        return Fault(f"{name} takes SquashFS files, not '{path}'", SQUASH_FORM, todo)
    if folder_like(path):
        what = f"'{path}' looks like a folder, and {name} takes SquashFS files"
        return Fault(what, SQUASH_FORM, f"{todo}, or give the file this ending")
    return None


def check_hashed(name: str, image: str) -> Fault | None:
    """Return what is wrong with an image of pyxis and of what is built on it; `name` is the runtime's."""
    if is_path(image):
        return check_squash(name, image)
    if is_relative(image):
        return Fault(f"'{image}' starts in whatever folder the job is submitted from", "an absolute path")
    kind = scheme(image)
    if kind is not None and kind not in SCHEMES:
        return Fault(f"{name} knows no {kind}:// in '{image}'", HASHED_FORM)
    start = "" if kind is None else f"{kind}://"
    reference = image[len(start) :]
    if is_hashed(reference):
        return None
    right = hashed(reference)
    if right != reference and is_hashed(right):
        what = f"'{image}' names its registry with '/', which {name} takes for a part of the name"
        return Fault(what, HASHED_FORM, f"write {start}{right}")
    own = bare(reference)
    todo = f"write {hashed(own)}" if own != reference and is_slashed(own) else ""
    return Fault(f"'{image}' is no image that {name} can take", HASHED_FORM, todo)


class Pyxis(Runtime):
    """srun --container-image=…; the tasks of a node share one container."""

    name = "pyxis"
    section = "pyxis"
    # Enroot reads the list of mounts as shell text in double quotes.
    refused = ',:"$`\\'
    import_hint = IMPORT_HINT

    def check_image(self, image: str) -> Fault | None:
        return check_hashed(self.name, image)

    def pulls(self, image: str) -> bool:
        return not is_path(image)

    def flags(self, rules: ContainerRules, vendor: str | None) -> Words:
        own = rules.pyxis
        switches = (
            (own.remap_root, "--container-remap-root", "--no-container-remap-root"),
            (own.mount_home, "--container-mount-home", "--no-container-mount-home"),
            (own.entrypoint, "--container-entrypoint", "--no-container-entrypoint"),
            (own.writable, "--container-writable", "--container-readonly"),
        )
        return tuple(yes if value else no for value, yes, no in switches if value is not None)

    def step_options(self, call: Call) -> Words:
        plan = call.plan
        return (
            f"--container-image={plan.image}",
            "--container-mounts=" + ",".join(bind_words("", call.mounts)),
            f"--container-workdir={call.workdir}",
            *((f"--container-env={','.join(plan.env)}",) if plan.env else ()),
            *plan.options,
        )


RUNTIME = Pyxis()
