"""Variables of every rank: the site's and the spec's own, and those that follow from the site's network."""

from __future__ import annotations

from slurm_llm.plan.types import EnvironmentPlan, MasterPlan, ModulePlan
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec


def build_environment(spec: JobSpec, site: SiteProfile) -> EnvironmentPlan:
    """Return the variables; the spec's win over the site's, those over what follows from the network."""
    known = {**_of_network(site), **texts(site.env.set), **texts(spec.env)}
    unset = tuple(name for name in site.env.unset if name not in spec.env)
    prepend = tuple((name, ":".join(paths)) for name, paths in site.env.prepend.items())
    return EnvironmentPlan(unset, site.env.source, tuple(known.items()), prepend)


def build_modules(site: SiteProfile) -> ModulePlan:
    """Return the environment modules of the batch host."""
    own = site.modules
    return ModulePlan(own.purge, own.use, own.unload, own.load)


def build_master(site: SiteProfile) -> MasterPlan | None:
    """Return the rule of MASTER_ADDR, where the site has one."""
    rule = site.network.rendezvous
    if rule is None:
        return None
    interface = site.network.interface if rule.source == "interface_ip" else None
    return MasterPlan(interface, rule.suffix, rule.family)


def build_ulimits(site: SiteProfile) -> tuple[tuple[str, str], ...]:
    """Return the letter of bash's `ulimit` and the value of each limit."""
    letters = {"memlock": "l", "nofile": "n", "stack": "s", "core": "c", "nproc": "u"}
    found = ((letter, getattr(site.ulimits, name)) for name, letter in letters.items())
    return tuple((letter, str(value)) for letter, value in found if value is not None)


def texts(values: dict[str, str | int | float | bool]) -> dict[str, str]:
    """Return the values of variables as texts."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}


def _of_network(site: SiteProfile) -> dict[str, str]:
    own = site.network
    known: dict[str, str | None] = {"NCCL_SOCKET_IFNAME": own.interface, "GLOO_SOCKET_IFNAME": own.interface}
    for name, value in (("http_proxy", own.proxy.http), ("https_proxy", own.proxy.https)):
        known.update({name: value, name.upper(): value})
    known.update({"no_proxy": own.proxy.no_proxy, "NO_PROXY": own.proxy.no_proxy})
    if own.internet == "none":
        known.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    return {key: value for key, value in known.items() if value is not None}
