"""`site epilog`: print the Slurm epilog script."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", required=False)
@click.option("--local", "folders", multiple=True, metavar="DIR", help="A node-local folder of jobs; may be repeated.")
def epilog(name: str | None, folders: tuple[str, ...]) -> None:
    """Print the Slurm epilog script that removes what killed jobs left on a node.

    It cleans /dev/shm, /tmp, the folders given, and with the NAME of a profile its `storage.local`. Save it where every
    node finds it, make it executable, and name it as Epilog in slurm.conf.
    """
    from slurm_llm.sites.epilog import epilog_script, local_folders
    from slurm_llm.sites.load import load_site
    from slurm_llm.surroundings import Surroundings

    own = () if name is None else local_folders(load_site(name, Surroundings.of_this_process().environ).profile)
    click.echo(epilog_script((*own, *folders)), nl=False)
