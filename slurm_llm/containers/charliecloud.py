"""Charliecloud: `ch-run`, called by enter.sh.

Grammar from hpc/charliecloud 0.31, bin/ch-run.c and bin/ch_core.c: `ch-run OPTION… IMAGE -- COMMAND`, a bind is
SRC[:DST] without escapes and never read-only, a mount point must be in the image unless --write is given, $TMPDIR or
else /tmp becomes /tmp, USER must be set, and the environment goes through (the image's own variables are not read).
--join finds its peers by SLURM_STEP_ID alone, so two jobs on a node would meet: the tag is given.
"""

from __future__ import annotations

from slurm_llm.containers.references import ARCHIVES, SIF_FILES, is_path, is_relative
from slurm_llm.containers.runtime import SINGLE_COPY, Call, Entry, Fault, Runtime, Words, bind_words
from slurm_llm.sites.containers import ContainerRules

IMAGE_FORM = "the absolute path of an image folder or of a SquashFS file"
MAKES_MOUNT_POINTS = ("--write-fake", "-W")


class Charliecloud(Runtime):
    """`ch-run IMAGE -- COMMAND`, once a task; the environment is the host's."""

    name = "charliecloud"
    program = "ch-run"
    section = "charliecloud"
    folders = True
    read_only = False
    shown = ("/tmp", "/dev", "/proc", "/sys")
    import_hint = "ch-image pull REGISTRY/NAME:TAG && ch-convert NAME:TAG FOLDER"

    def check_image(self, image: str) -> Fault | None:
        if is_path(image) and not image.endswith((*SIF_FILES, *ARCHIVES)):
            return None
        if is_path(image):
            what = f"charliecloud runs image folders and SquashFS files, not '{image}'"
            own = "from an archive: `ch-convert FILE FOLDER`" if image.endswith(ARCHIVES) else f"`{self.import_hint}`"
            return Fault(what, IMAGE_FORM, f"make one {own}")
        if is_relative(image):
            return Fault(f"'{image}' starts in whatever folder the job is submitted from", IMAGE_FORM)
        return Fault(f"'{image}' is no file or folder", IMAGE_FORM, f"first `{self.import_hint}`")

    def flags(self, rules: ContainerRules, vendor: str | None) -> Words:
        own = rules.charliecloud
        given = {"--write": own.write, "--home": own.home, "--join": own.join}
        return tuple(word for word, wanted in given.items() if wanted)

    def entry(self, call: Call) -> Entry:
        words = call.plan.options
        made = any(word.startswith(MAKES_MOUNT_POINTS) for word in words)
        fixed = bind_words("--bind=", call.mounts) if made else ()
        return Entry(
            options=(*(word for word in words if word != "--join"), f"--cd={call.workdir}", *fixed),
            bind="--bind=",
            shown=self.shown,
            sources=tuple(mount.source for mount in call.mounts),
            searched=() if made else call.mounts,
            writes_image="--write" in words or "-w" in words,
            dashes=True,
            peers="--join" in words,
            needs_user=True,
            unset=("TMPDIR",),
            defaults=() if "--join" in words else SINGLE_COPY,
        )


RUNTIME = Charliecloud()
