"""What a devcluster needs of the machine: root, a lock, a user, directories, devices, lines in /etc/hosts."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_llm.devcluster.config import (
    ClusterSpec,
    Machine,
    Paths,
    hosts_block,
    without_hosts_block,
)
from slurm_llm.errors import NotReady, SetupError
from slurm_llm.process import run

HOSTS = Path("/etc/hosts")
LOCK = Path("/run/lock/slurm_llm-devcluster.lock")
OS_RELEASE = Path("/etc/os-release")
NULL_DEVICE = (1, 3)


def require_root() -> None:
    """Refuse, in one sentence, to work as an ordinary user."""
    if os.geteuid() != 0:
        raise SetupError("devcluster: needs root for namespaces, devices and packages: run it as root")


def require_debian(os_release: str | None = None) -> None:
    """Refuse, in one sentence, a system whose packages we do not know."""
    text = os_release
    if text is None:
        text = OS_RELEASE.read_text() if OS_RELEASE.exists() else ""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    family = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".replace('"', "").split()
    if not {"debian", "ubuntu"} & set(family):
        name = values.get("PRETTY_NAME", "an unknown system").strip('"')
        raise SetupError(f"devcluster: needs Debian or Ubuntu for its packages; this is {name}")


@contextmanager
def exclusive(timeout_s: float = 180.0) -> Iterator[None]:
    """Let one command at a time change devclusters: subnets and /etc/hosts are shared by all of them.

    What is created meanwhile is readable by others, whatever the caller's umask.
    """
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as handle:
        deadline = time.monotonic() + timeout_s
        while not _locked(handle.fileno()):
            if time.monotonic() > deadline:
                raise NotReady(f"devcluster: another up, down or node command holds {LOCK}")
            time.sleep(0.1)
        umask = os.umask(0o022)
        try:
            yield
        finally:
            os.umask(umask)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ensure_user(name: str) -> Path:
    """Create the ordinary user if missing; return its home directory."""
    try:
        return Path(pwd.getpwnam(name).pw_dir)
    except KeyError:
        done = run(["useradd", "--create-home", "--shell", "/bin/bash", name])
    if done.returncode:
        raise SetupError(f"user {name}: cannot be created: {done.stderr.strip()}")
    return Path(pwd.getpwnam(name).pw_dir)


def ensure_directories(spec: ClusterSpec) -> None:
    """Make the state directory's tree; an ordinary user can pass through it and read the configuration."""
    paths = Paths(spec.state)
    for path in (paths.state, paths.etc, paths.log, paths.pids, paths.gpus, paths.spool):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    for node in () if spec.paper else spec.node_names:
        (paths.spool / node).mkdir(mode=0o755, exist_ok=True)
    for path, owner in ((paths.munge, "munge"), (paths.controller, "slurm")):
        path.mkdir(mode=0o755, exist_ok=True)
        shutil.chown(path, owner, owner)
    for name in ("slurmctld.log", "slurmdbd.log"):
        (paths.log / name).touch()
        shutil.chown(paths.log / name, "slurm", "slurm")


def ensure_devices(spec: ClusterSpec) -> None:
    """Make the character devices that stand for GPUs; each is another /dev/null."""
    for index in range(spec.shape.most_gpus):
        path = Paths(spec.state).gpus / f"gpu{index}"
        if not path.exists():
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(*NULL_DEVICE))
            path.chmod(0o666)


def write_hosts(spec: ClusterSpec, machine: Machine) -> None:
    """Put this cluster's names into /etc/hosts, once."""
    _replace_hosts(spec.state, hosts_block(spec, machine))


def remove_hosts(state: Path) -> None:
    """Take this cluster's names out of /etc/hosts."""
    _replace_hosts(state, "")


def _replace_hosts(state: Path, block: str) -> None:
    before = HOSTS.read_text() if HOSTS.exists() else ""
    rest = without_hosts_block(before, state)
    if block and rest and not rest.endswith("\n"):
        rest += "\n"
    if rest + block != before:
        # In place: in a container the file is a mount and cannot be renamed over.
        HOSTS.write_text(rest + block)
