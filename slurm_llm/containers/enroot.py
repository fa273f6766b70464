"""Plain enroot: `enroot start`, called by enter.sh.

Grammar from NVIDIA/enroot 4.1: enroot.in (options), src/runtime.sh (a mount is an fstab line with colons for spaces and
holds no white space, so a space is written \\040; --env NAME takes the value from the environment, one line each; --rc
takes the place of the image's entrypoint; a name with a slash must be a SquashFS file), bin/enroot-mount.c, and
conf/mounts/10-system.fstab (/dev with /dev/shm, /proc and /sys are the node's, /tmp is empty).
"""

from __future__ import annotations

import re
import shlex

from slurm_llm.containers.pyxis import IMPORT_HINT, check_squash
from slurm_llm.containers.references import is_path, is_reference, is_relative
from slurm_llm.containers.runtime import SINGLE_COPY, Call, Entry, Fault, Passing, Runtime, Words
from slurm_llm.containers.types import Mount
from slurm_llm.sites.containers import ContainerRules

IMAGE_FORM = "the absolute path of a .sqsh file, or the name of a container that `enroot create` made on every node"
COMMAND_SCRIPT = "enter.rc"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
_BIND = "none:rbind,x-create=auto"


def _escaped(path: str) -> str:
    return path.replace("\\", "\\134").replace(" ", "\\040")


def _word(mount: Mount) -> str:
    end = ",ro" if mount.read_only else ""
    return f"--mount={_escaped(mount.source)}:{_escaped(mount.target)}:{_BIND}{end}"


class Enroot(Runtime):
    """`enroot start`, once a task; the environment is the image's and what is named."""

    name = "enroot"
    program = "enroot"
    section = "enroot"
    shown = ("/dev", "/proc", "/sys")
    import_hint = IMPORT_HINT

    def check_image(self, image: str) -> Fault | None:
        if is_path(image):
            return check_squash(self.name, image)
        if _NAME.match(image) and not is_reference(image):
            return None
        if is_relative(image):
            return Fault(f"'{image}' starts in whatever folder the job is submitted from", "an absolute path")
        return Fault(f"enroot start takes no image of a registry: '{image}'", IMAGE_FORM, f"first `{self.import_hint}`")

    def flags(self, rules: ContainerRules, vendor: str | None) -> Words:
        own = rules.enroot
        given = {"--root": own.root, "--rw": own.rw, "--env=HOME": own.mount_home}
        return tuple(word for word, wanted in given.items() if wanted)

    def own_mounts(self, rules: ContainerRules) -> tuple[Mount, ...]:
        return (Mount("~", "~"),) if rules.enroot.mount_home else ()

    def entry(self, call: Call) -> Entry:
        return Entry(
            options=(
                "start",
                *call.plan.options,
                f"--rc={call.run_dir}/{COMMAND_SCRIPT}",
                *(_word(mount) for mount in call.mounts),
            ),
            passing=Passing(collect=True, word="--env=", multiline=False),
            bind="--mount=",
            bind_pair=True,
            bind_end=f":{_BIND}",
            shown=self.shown,
            sources=tuple(mount.source for mount in call.mounts),
            defaults=SINGLE_COPY,
        )

    def files(self, call: Call) -> dict[str, str]:
        # In place of the image's entrypoint, which might not run what it is given.
        return {COMMAND_SCRIPT: f'cd {shlex.quote(call.workdir)} && exec "$@"\n'}


RUNTIME = Enroot()
