"""Commands of `devcluster`: they read options and print; everything else happens in slurm_llm.devcluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurm_llm.devcluster import ClusterSpec, ClusterStatus

DEFAULT_STATE = Path("/var/lib/slurm_llm/devcluster")

state_option = click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="Directory of the cluster's configuration, logs and database.",
)


@click.group()
def devcluster() -> None:
    """A real multi-node Slurm on this machine (root, Debian or Ubuntu)."""


@devcluster.command()
@state_option
@click.option("--like", metavar="SITE", help="Imitate a site: its partitions, QOS, GPU types, constraints, ...")
@click.option("--account", help="One more account on a cluster that is --like a site.")
@click.option("--paper", is_flag=True, help="No nodes, a controller that knows them: for sbatch --test-only.")
@click.option("--nodes", type=int, help="Number of nodes: 4, or with --like 2 of each kind.")
@click.option("--gpus-per-node", type=int, help="GPUs of a node, 4; they do nothing.")
@click.option("--cpus-per-node", type=int, help="CPUs a node claims to have, 8.")
@click.option("--mem-per-node", type=int, help="Memory a node claims to have, 16000 MiB.")
@click.option("--accounting/--no-accounting", default=True, show_default=True, help="slurmdbd and MariaDB.")
@click.option("--user", default="llm", show_default=True, help="Ordinary user, created if missing.")
@click.option("--shared", type=click.Path(path_type=Path), help="Tree that `cut` hides (user's home).")
@click.option("--epilog", type=click.Path(path_type=Path), help="Slurm's Epilog: root runs it after each job.")
def up(like: str | None, account: str | None, **options: object) -> None:
    """Start a cluster, or what died of it; wait until every node is idle."""
    from slurm_llm import devcluster as api

    given = {name: value for name, value in options.items() if value is not None}
    told: tuple[str, ...] = ()
    if like is None and account is None:
        spec = api.ClusterSpec(**given)  # type: ignore[arg-type]
    else:
        spec, told = _imitation(like, account, given)
    found = api.up(spec, say=_progress)
    for line in (*_hints(found), *told):
        click.echo(f"# {line}")
    click.echo(f"export SLURM_CONF={found.slurm_conf}")
    click.echo(f"export DEVCLUSTER_USER={found.user}")


def _imitation(like: str | None, account: str | None, given: dict[str, object]) -> tuple[ClusterSpec, tuple[str, ...]]:
    """Return the spec of a cluster like a site, and what its user should know."""
    from slurm_llm.devcluster import ClusterSpec
    from slurm_llm.imitation import imitate
    from slurm_llm.sites.load import load_site
    from slurm_llm.surroundings import Surroundings

    if like is None:
        raise click.UsageError("--account goes with --like")
    for name in ("gpus_per_node", "cpus_per_node", "mem_per_node"):
        if name in given:
            raise click.UsageError(f"--{name.replace('_', '-')} goes without --like: nodes are those of the profile")
    if not given["accounting"]:
        raise click.UsageError("--no-accounting goes without --like: slurmdbd keeps QOS and accounts")
    profile = load_site(like, Surroundings.of_this_process().environ).profile
    changes = {name: given.pop(name) for name in ("nodes",) if name in given}
    made = imitate(profile, paper=bool(given["paper"]), account=account, **changes)  # type: ignore[arg-type]
    told = (f"like {profile.name}; account {made.account}", *(f"not imitated: {one}" for one in made.missing))
    return ClusterSpec(own_shape=made.shape, **given), told  # type: ignore[arg-type]


@devcluster.command()
@state_option
def down(state: Path) -> None:
    """End and remove everything that `up` made; logs stay."""
    from slurm_llm import devcluster as api

    existed = api.down(state)
    click.echo(f"down; logs are in {state}/log" if existed else "nothing is up")


@devcluster.command()
@state_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def status(context: click.Context, state: Path, as_json: bool) -> None:
    """Show daemons and nodes; exit status 1 unless all of them are up."""
    from slurm_llm import devcluster as api

    found = api.status(state)
    click.echo(found.to_json() if as_json else _table(found))
    context.exit(0 if found.all_up else 1)


@devcluster.command()
@click.argument("name")
@click.argument("action", type=click.Choice(["down", "up", "cut", "heal", "kill"]))
@state_option
def node(name: str, action: str, state: Path) -> None:
    """Lose the node NAME, or bring it back.

    down: slurmd stopped, its jobs' processes run on. kill: everything on it killed, /tmp and /dev/shm gone.
    cut: cable pulled and the shared tree hidden; files that are open already stay usable. up undoes down and
    kill, heal undoes cut; both wait until the node takes jobs.
    """
    from slurm_llm import devcluster as api

    found = api.node_action(state, name, action)
    click.echo(_table(found))


def _hints(found: ClusterStatus) -> tuple[str, ...]:
    example = f"runuser -u {found.user} -- env SLURM_CONF={found.slurm_conf} sinfo"
    what = f"{len(found.nodes)} nodes are up" if found.nodes else "nodes on paper: jobs can be tested, none can run"
    return f"{what}; submit as {found.user}, for example:", f"  {example}"


def _progress(message: str) -> None:
    click.echo(f"devcluster: {message}", err=True)


def _table(found: ClusterStatus) -> str:
    if not found.exists:
        return f"no cluster in {found.state}"
    lines = [f"{row.name:<16} {'pid ' + str(row.pid) if row.pid else 'not running'}" for row in found.daemons]
    for row in found.nodes:
        slurmd = f"pid {row.slurmd_pid}" if row.slurmd_pid else "no slurmd"
        reason = "" if row.reason in ("", "none") else f"  ({row.reason})"
        cable = "" if row.link else "  cut"
        lines.append(f"{row.name:<16} {row.address:<15} {row.state or 'unknown':<12} {slurmd}{cable}{reason}")
    return "\n".join((*lines, f"SLURM_CONF={found.slurm_conf}", f"user {found.user}"))
