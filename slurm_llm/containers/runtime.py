"""Runtime: what a container runtime takes and how a rank is put into it; every adapter is one subclass. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_llm.containers.types import ContainerPlan, Mount
from slurm_llm.sites.containers import ContainerRules

Words = tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """What is wrong with an image or a path, and the right form; the caller names the field."""

    what: str
    allowed: str
    todo: str = ""


@dataclass(frozen=True)
class Call:
    """One rendered use of a container: all mounts, parents before children, and absolute folders."""

    plan: ContainerPlan
    mounts: tuple[Mount, ...]
    workdir: str
    run_dir: str


@dataclass(frozen=True)
class Passing:
    """How enter.sh gets variables of the task into the container; by default all are inherited.

    `collect`: the runtime starts with an empty environment, so what Slurm, MPI and NCCL need is looked for by name.
    `word` is the option that takes a name, with `valued` a name and its value. `prefix` makes PREFIXNAME the variable
    to export; `evaluated` when a shell in the container reads its value. Without `multiline`, values with line breaks
    are left out.
    """

    collect: bool = False
    word: str = ""
    valued: bool = False
    prefix: str = ""
    evaluated: bool = False
    multiline: bool = True


@dataclass(frozen=True)
class Entry:
    """How enter.sh calls the program: `program *options IMAGE COMMAND…`.

    `bind` begins the word that mounts a folder of the node at its own place, `bind_end` ends it, and `bind_pair` names
    the folder twice; an empty `bind` mounts nothing. `shown` are folders that the runtime mounts by itself.
    """

    options: Words
    passing: Passing = field(default_factory=Passing)
    bind: str = ""
    bind_pair: bool = False
    bind_end: str = ""
    shown: Words = ()
    sources: Words = ()
    """What must be on the node."""
    searched: tuple[Mount, ...] = ()
    """Mounts for which enter.sh must find a mount point in the image."""
    writes_image: bool = False
    """Missing mount points may be made in the image."""
    image_word: bool = True
    dashes: bool = False
    """`--` stands before the command."""
    one_word: bool = False
    """The command is given as one word, to the image's bash."""
    peers: bool = False
    """The tasks of a node share one container."""
    needs_user: bool = False
    unset: Words = ()
    defaults: tuple[tuple[str, str], ...] = ()
    """Variables that are set unless they are."""


SINGLE_COPY = (("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),)
"""Ranks in user namespaces of their own cannot read each other's memory: Open MPI 4 would say so at length."""


class Runtime:
    """A container runtime. One with an `entry` is called by enter.sh, any other is entered through srun's options.

    `section` is the key of its flags in the site's rules. `refused` are characters that it cannot take in a path to
    mount. `folders`: an image may be a folder, so a word without a slash can be one. `in_place`: what is to be at its
    own place is mounted; else the site shows it. `shown` are folders of the node that are in every container, at their
    own place.
    """

    name = ""
    program = ""
    section = ""
    refused = ":"
    folders = False
    read_only = True
    in_place = True
    shown: Words = ()
    import_hint = ""
    """How a registry's image becomes a file."""

    def check_image(self, image: str) -> Fault | None:
        """Return what is wrong with an image, whose aliases and folders are resolved."""
        raise NotImplementedError

    def pulls(self, image: str) -> bool:
        """Return whether compute nodes would download `image`."""
        return False

    def check_path(self, path: str) -> Fault | None:
        """Return what is wrong with one side of a mount."""
        bad = sorted({character for character in path if character in self.refused})
        if not bad:
            return None
        listing = " and ".join(f"'{character}'" for character in bad)
        return Fault(f"{self.name} cannot mount a path with {listing}: {path}", f"a path without {listing}")

    def check_mount(self, mount: Mount) -> Fault | None:
        """Return what is wrong with a mount that a spec or a site asks for, beside its paths."""
        if mount.read_only and not self.read_only:
            what = f"{self.name} mounts nothing read-only: {mount.source}"
            return Fault(what, "SOURCE[:TARGET]", "leave ':ro' out; the permissions of the files still count")
        return None

    def flags(self, rules: ContainerRules, vendor: str | None) -> Words:
        """Return the words of the site's flags; `vendor` is that of the partition's GPUs, None without any."""
        return ()

    def own_mounts(self, rules: ContainerRules) -> tuple[Mount, ...]:
        """Return mounts that the site's flags ask for."""
        return ()

    def check_rules(self, rules: ContainerRules) -> Fault | None:
        """Return what is wrong with the site's flags."""
        return None

    def directives(self, rules: ContainerRules) -> Words:
        """Return the job's directives that follow from the site's rules."""
        return ()

    def definition(self, rules: ContainerRules) -> str | None:
        """Return the rest of the environment definition file, for a runtime that wants one."""
        return None

    def step_options(self, call: Call) -> Words:
        """Return options of srun."""
        return ()

    def sbatch_options(self, plan: ContainerPlan, mounts: tuple[Mount, ...]) -> Words:
        """Return directives of the job; the run directory is not among `mounts`."""
        return plan.sbatch

    def files(self, call: Call) -> dict[str, str]:
        """Return name → text of files in the run directory."""
        return {}

    def entry(self, call: Call) -> Entry | None:
        """Return how enter.sh calls the runtime; None for one that srun enters."""
        return None

    def shown_by(self, plan: ContainerPlan) -> Words:
        """Return the folders of the node that are in the container without being asked for."""
        return self.shown


def bind_words(start: str, mounts: tuple[Mount, ...]) -> Words:
    """Return `start` + SOURCE:TARGET[:ro] for each mount."""
    return tuple(f"{start}{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in mounts)
