"""The Debian packages that a devcluster needs, installed with apt-get; it configures none of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_llm.errors import SetupError
from slurm_llm.process import run

SLURM = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
ACCOUNTING = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
# Slurm's plugin opens the unversioned libpmix.so, which only the -dev package carries.
MPI = ("libpmix2", "libpmix-dev", "openmpi-bin", "libopenmpi3")
TOOLS = ("iproute2", "python3-venv")

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Written by slurm_llm devcluster for the time of one apt-get.\nexit 101\n"


def needed_packages(*, accounting: bool) -> tuple[str, ...]:
    """Return the packages of a cluster with or without accounting."""
    return (*SLURM, *(ACCOUNTING if accounting else ()), *MPI, *TOOLS)


def ensure_packages(*, accounting: bool, say: Callable[[str], None]) -> None:
    """Install what is missing; SetupError says which and why it may not."""
    needed = needed_packages(accounting=accounting)
    missing = missing_packages(needed)
    if not missing:
        return
    say(f"installing {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    with services_held_back():
        for argv in (["apt-get", "update"], install):
            done = run(argv, env=environment, timeout_s=900)
            if done.returncode and argv is install:
                tail = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
                names = " ".join(missing)
                raise SetupError(f"packages {names}: apt-get could not install them: {tail}")


def missing_packages(needed: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `needed` that dpkg does not call installed."""
    done = run(["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\\n", *needed])
    installed = {line.split()[0].split(":")[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    return tuple(name for name in needed if name not in installed)


@contextmanager
def services_held_back(policy: Path = POLICY) -> Iterator[None]:
    """Keep the packages' own daemons (munge, MariaDB, slurmd) from being started by their installation.

    A machine that has a policy of its own keeps it: then it is the one that decides.
    """
    if policy.exists():
        yield
        return
    policy.write_text(POLICY_TEXT)
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
