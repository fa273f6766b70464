"""SiteProfile: the schema of a site's YAML file. `null` always means "do not emit"."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator

from slurm_llm.errors import did_you_mean
from slurm_llm.fields import (
    Line,
    Lines,
    Name,
    Names,
    NodeSet,
    NonEmpty,
    OptionNames,
    SbatchOptions,
    Shell,
    SrunOptions,
)
from slurm_llm.schema import Section
from slurm_llm.sites.containers import ContainerRules
from slurm_llm.sites.queues import Overrides, Partition, PartitionDefaults
from slurm_llm.sites.rules import (
    Account,
    Launcher,
    Match,
    Modules,
    Network,
    Policies,
    Security,
    SiteEnvironment,
    SiteMetrics,
    SitePreflight,
    SiteTriton,
    Slurm,
    Startup,
    Storage,
    Ulimits,
    Verified,
)

__all__ = ["Partition", "SiteProfile"]


class SiteProfile(Section):
    """One cluster."""

    schema_version: Literal[1]
    name: Name
    description: Line = ""
    docs_url: Line | None = None
    contact: Line | None = None
    sources: Lines = ()
    """Public pages that the profile's facts are from."""
    verified: Verified | None = None
    extends: Names | Name | None = None
    """Profiles that this one is built on, by name; later ones win."""
    base: bool = False
    """Only to be extended: it is no cluster, and has no partitions."""
    standalone: bool = False
    """A user's file of a known name takes that profile's place, instead of being laid over it."""
    match: Match = Match()
    slurm: Slurm = Slurm()
    account: Account = Account()
    partition_defaults: PartitionDefaults | None = None
    """Laid under every partition when the profile is loaded."""
    partitions: Annotated[dict[NonEmpty, Partition], Field(min_length=1)]
    default_partition: NonEmpty | None = None
    launcher: Launcher = Launcher()
    network: Network = Network()
    security: Security = Security()
    container: ContainerRules = ContainerRules()
    storage: Storage = Storage()
    env: SiteEnvironment = SiteEnvironment()
    modules: Modules = Modules()
    ulimits: Ulimits = Ulimits()
    policies: Policies = Policies()
    startup: Startup = Startup()
    preflight: SitePreflight = SitePreflight()
    metrics: SiteMetrics = SiteMetrics()
    triton: SiteTriton = SiteTriton()
    python: NonEmpty | None = None
    """Python on the compute nodes that runs the agent (3.6 or newer); the submitting one when left out."""
    exclude_nodes: NodeSet | None = None
    sbatch_extra: SbatchOptions = ()
    sbatch_skip: OptionNames = ()
    srun_extra: SrunOptions = ()
    srun_skip: OptionNames = ()
    prologue: Shell | None = None
    step_prologue: Shell | None = None
    epilogue: Shell | None = None
    templates: Annotated[str, Field(pattern=r"^/")] | None = None
    """Folder with templates that take the place of the packaged ones of the same name."""

    @field_validator("default_partition")
    @classmethod
    def _known(cls, value: str | None, info: ValidationInfo) -> str | None:
        # Partitions that are wrong themselves are not in `data`: their own faults are told.
        known = info.data.get("partitions")
        if value is not None and known is not None and value not in known:
            hint = did_you_mean(value, known)
            raise ValueError(f"must be one of {', '.join(known)}" + (f"; {hint}" if hint else ""))
        return value

    def partition_name(self, asked: str | None) -> str:
        """Return the logical partition of a job that asks for `asked`: the default one, or the first, for None."""
        return asked or self.default_partition or next(iter(self.partitions))

    def for_partition(self, name: str) -> SiteProfile:
        """Return the profile as it is for one of its partitions: what the partition changes is laid over the rest."""
        partition = self.partitions[name]
        changes = {
            key: _laid_over(getattr(self, key), getattr(partition, key), optional=_may_be_null(SiteProfile, key))
            for key in Overrides.model_fields
            if key in partition.model_fields_set
        }
        plain = partition.model_copy(update=dict.fromkeys(Overrides.model_fields))
        plain.model_fields_set.difference_update(Overrides.model_fields)
        return self.model_copy(update={**changes, "partitions": {name: plain}, "default_partition": name})


def _may_be_null(model: type[Section], key: str) -> bool:
    return type(None) in get_args(model.model_fields[key].annotation)


def _laid_over(own: object, change: object, *, optional: bool) -> object:
    """Return `change` over `own`: sections and maps key by key, everything else whole.

    Null takes a value away where there may be none (`optional`), empties a list, and changes no section.
    """
    if change is None and not optional:
        return () if isinstance(own, tuple) else own
    if isinstance(own, Section) and isinstance(change, Section):
        kind = type(own)
        fields = {
            key: _laid_over(getattr(own, key), getattr(change, key), optional=_may_be_null(kind, key))
            for key in change.model_fields_set
        }
        return own.model_copy(update=fields)
    if isinstance(own, dict) and isinstance(change, dict):
        return {**own, **{key: _laid_over(own.get(key), value, optional=True) for key, value in change.items()}}
    return change
