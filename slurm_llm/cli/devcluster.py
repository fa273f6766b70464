"""Commands of `devcluster`: they read options and print; everything else happens in slurm_llm.devcluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurm_llm.devcluster import ClusterStatus

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
@click.option("--nodes", default=4, show_default=True, help="Number of nodes.")
@click.option("--gpus-per-node", default=4, show_default=True, help="GPUs of a node; they do nothing.")
@click.option("--cpus-per-node", default=8, show_default=True, help="CPUs a node claims to have.")
@click.option("--mem-per-node", default=16000, show_default=True, help="Memory a node claims to have, MiB.")
@click.option("--accounting/--no-accounting", default=True, show_default=True, help="slurmdbd and MariaDB.")
@click.option("--user", default="llm", show_default=True, help="Ordinary user, created if missing.")
@click.option("--shared", type=click.Path(path_type=Path), help="Tree that `cut` hides (user's home).")
def up(state: Path, shared: Path | None, **options: object) -> None:
    """Start a cluster, or what died of it; wait until every node is idle."""
    from slurm_llm import devcluster as api

    spec = api.ClusterSpec(state=state, shared=shared, **options)  # type: ignore[arg-type]
    found = api.up(spec, say=_progress)
    click.echo(f"# {len(found.nodes)} nodes are up; submit as {found.user}, for example:")
    click.echo(f"#   runuser -u {found.user} -- env SLURM_CONF={found.slurm_conf} sinfo")
    click.echo(f"export SLURM_CONF={found.slurm_conf}")
    click.echo(f"export DEVCLUSTER_USER={found.user}")


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
