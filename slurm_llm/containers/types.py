"""ContainerPlan: the decided container of a job's ranks, pure data with a JSON form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """`source` on the node appears as `target` in the container; both may hold `$NAME` until a job is rendered."""

    source: str
    target: str
    read_only: bool = False

    @property
    def in_place(self) -> bool:
        """Whether it appears in the container where it is on the node."""
        return self.source == self.target


@dataclass(frozen=True)
class ContainerPlan:
    """One container a rank or a node: `image` as the runtime itself names it, empty when `edf` names it.

    `env` are names of variables whose value in the job must win over the image's. `options` are the runtime's own flags
    as words, in the order in which they are given; `sbatch` are directives of the job. `edf` is what an environment
    definition file holds beside image, mounts and folder. `python` is the image's. A `workdir` of None is the run
    directory, which is mounted when a job is rendered.
    """

    runtime: str
    program: str
    image: str
    mounts: tuple[Mount, ...]
    workdir: str | None
    env: tuple[str, ...]
    python: str
    options: tuple[str, ...]
    sbatch: tuple[str, ...] = ()
    edf: str | None = None
