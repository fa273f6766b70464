"""Who reaches the server and may ask it what: its key, the APIs that are closed, the addresses that it listens on."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_llm.engines.releases import release_of
from slurm_llm.errors import Problem
from slurm_llm.plan.layout import Layout
from slurm_llm.plan.types import AccessPlan
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec

KEY_HEADER = "slurm-llm-key"
"""HTTP header, and with Triton's prefix metadata of gRPC, that holds the key."""
CLOSED_HEADER = "slurm-llm-closed"
"""Header of what nobody may use: its value is drawn in the job and kept by nobody."""
FIRST_RELEASE = "23.11"
"""The first release with `--http-restricted-api`; gRPC has had its own since 23.04 (triton-inference-server/server,
src/command_line_parser.cc at v2.33.0, v2.39.0 and v2.40.0)."""
COUNTING = "statistics"


def plan_access(spec: JobSpec, site: SiteProfile) -> AccessPlan:
    """Return what the job closes, and where it listens.

    With a key the closed `statistics` need it, as inference does: the job's head itself asks for them. A server that
    is started as the OpenAI-compatible front end has no such options.
    """
    closed = [name for name in dict.fromkeys(site.security.closed_apis) if name not in spec.access.open_apis]
    if spec.frontend == "openai":
        return AccessPlan((), (), site.network.bind)
    keyed = ["inference", *(name for name in closed if name == COUNTING)] if wants_key(spec, site) else []
    return AccessPlan(tuple(name for name in closed if name not in keyed), tuple(keyed), site.network.bind)


def wants_key(spec: JobSpec, site: SiteProfile) -> bool:
    """Tell whether inference needs a key."""
    return site.security.require_key if spec.access.key is None else spec.access.key


def check_access(spec: JobSpec, site: SiteProfile, layout: Layout | None, image: str | None) -> list[Problem]:
    """Return what contradicts it; `image` is what the ranks run in, None without a container."""
    return [*_check_key(spec, site, image), *_check_closed(spec, site), *_check_bind(spec, site, layout)]


def _check_key(spec: JobSpec, site: SiteProfile, image: str | None) -> Iterator[Problem]:
    if site.security.require_key and spec.access.key is False:
        what = f"site {site.name} wants a key for every served model (security.require_key)"
        yield Problem("access.key", what, todo="leave it out")
    if not wants_key(spec, site):
        return
    where = "access.key" if spec.access.key else "frontend"
    if spec.frontend == "openai":
        what = "the OpenAI-compatible front end cannot keep Triton's own protocols to those with a key"
        yield Problem(where, what, "frontend: triton", "leave one of the two out")
    release = release_of(image)
    if release is not None and release.triton < FIRST_RELEASE:
        what = f"Triton {release.triton} has no key for HTTP"
        yield Problem(where, what, f"from release {FIRST_RELEASE} on", "take a newer image")


def _check_closed(spec: JobSpec, site: SiteProfile) -> Iterator[Problem]:
    counting = COUNTING in site.security.closed_apis and COUNTING not in spec.access.open_apis
    if counting and not wants_key(spec, site) and spec.frontend == "triton":
        what = f"site {site.name} closes `{COUNTING}`, which the job's head asks for too: that needs a key"
        yield Problem("access", what, todo=f"access: {{key: true}}, or open_apis: [{COUNTING}]")


def _check_bind(spec: JobSpec, site: SiteProfile, layout: Layout | None) -> Iterator[Problem]:
    bind, own = site.network.bind, f"site {site.name} lets servers listen on"
    if bind == "all":
        return
    names = [word for word in spec.triton.extra_args if word.partition("=")[0].endswith("-address")]
    if names:
        what = f"{own} {_PLACES[bind]} only (network.bind)"
        yield Problem("triton.extra_args", what, todo=f"leave out {', '.join(names)}")
    if bind == "interface" and site.network.interface is None:
        what = "network.bind: interface, and the profile names none"
        yield Problem("network.interface", what, todo="name it, or bind to all")
    if bind == "loopback":
        yield from _check_loopback(spec, layout, f"{own} {_PLACES[bind]} only (network.bind)")


def _check_loopback(spec: JobSpec, layout: Layout | None, what: str) -> Iterator[Problem]:
    # The head asks every leader from the job's first node.
    if layout is not None and spec.replicas > layout.instances_per_node:
        allowed = f"at most {layout.instances_per_node}, on the first node"
        yield Problem("replicas", f"{what}: leaders on other nodes are out of reach", allowed, "ask for fewer")
    if spec.recovery.spare_nodes:
        yield Problem("recovery.spare_nodes", f"{what}: after a restart the leader may be on another node", "0")
    if spec.bench is not None:
        yield Problem("bench", f"{what}: a bench runs elsewhere", todo="leave it out")


def access_groups(plan: AccessPlan) -> tuple[tuple[str, str, bool], ...]:
    """Return the groups of Triton's APIs that need a header: their names as its options take them, the header, and
    whether its value is the run's key (else nobody keeps it)."""
    groups = ((",".join(plan.keyed), KEY_HEADER, True), (",".join(plan.closed), CLOSED_HEADER, False))
    return tuple(group for group in groups if group[0])


_PLACES = {"interface": "one interface", "loopback": "their node's loopback"}


def describe(plan: AccessPlan) -> str:
    """Return one sentence for `plan`: who may ask the model, what nobody may, and where it listens."""
    who = "needs a key (it stands in Triton's command line too)" if plan.keyed else "is open"
    closed = f"closed: {', '.join(plan.closed)}" if plan.closed else "Triton's other APIs are open"
    where = {"all": "all addresses", **_PLACES}[plan.bind]
    return f"inference {who}; {closed}; on {where}"
