"""Removing what a run leaves on a node: its shared memory and its folder, never another run's."""

import os
import re
import shutil
import time
from typing import Iterable, List, Set

from . import processes

SHM = "/dev/shm"
FOLDER = "llmrun-"
PREFIX = "llm"
PYTHON_ENV = "/tmp/python_env_"
CREATION_S = 60.0
"""Triton's Python backend makes its folder, always in /tmp, within this time of its server's start."""
_SHM_NAME = re.compile(r"llm(\d+)a(\d+)r\d+_")
_FOLDER_NAME = re.compile(r"llmrun-(\d+)\.(\d+)\Z")
SPARE_S = 60.0
"""A folder younger than this may belong to a run whose first process has not started yet."""


def shm_prefix(tag: str) -> str:
    """Return the start of the name of every shared-memory region of the run: `llm<job>a<attempt>r`."""
    job, _, attempt = tag.partition(".")
    return "%s%sa%sr" % (PREFIX, job, attempt)


def _unlink(path: str) -> bool:
    """Remove a region, or a folder of them."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError:
        return False
    return True


def names(folder: str) -> List[str]:
    """Return the names in a folder, none where it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _mine(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False


def remove(tag: str, local_dir: str, mapped: Iterable[str]) -> int:
    """Remove the run's regions, the files that its processes had `mapped` and its folder; return how many."""
    regions = {os.path.join(SHM, name) for name in names(SHM) if name.startswith(shm_prefix(tag))}
    paths = {path for path in (regions | set(mapped)) - _in_use() if _mine(path)}
    count = sum(map(_unlink, paths))
    count += sum(map(_remove_empty, orphaned_python_envs()))
    folder = os.path.join(local_dir, FOLDER + tag)
    if _mine(folder):
        shutil.rmtree(folder, ignore_errors=True)
        count += 1
    return count


def orphaned_python_envs() -> List[str]:
    """Return the Python backend's folders of this user that no live tritonserver on this node can have made.

    A server that is killed leaves its folder, whose name says nothing about its owner.
    """
    folder, prefix = os.path.split(PYTHON_ENV)
    paths = [os.path.join(folder, name) for name in names(folder) if name.startswith(prefix)]
    servers = [processes.age(pid) for pid in processes.pids() if _is_server_here(pid)]
    return [path for path in paths if _mine(path) and not any(0 <= age - _age(path) <= CREATION_S for age in servers)]


def _is_server_here(pid: int) -> bool:
    # A zombie that nobody has reaped yet keeps its name, but no environment.
    if processes.name_of(pid) != "tritonserver" or not _mine("/proc/%d" % pid) or not processes.alive(pid):
        return False
    return processes.environment(pid).get(processes.NODE, processes.node_name()) == processes.node_name()


def _remove_empty(path: str) -> bool:
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def _in_use() -> Set[str]:
    """Return the shared files that a live process of ours still maps, such as a neighbour job's."""
    files: Set[str] = set()
    for pid in processes.pids():
        if _mine("/proc/%d" % pid):
            files |= processes.shared_files(pid)
    return files


def sweep(local_dir: str, own_tag: str) -> int:
    """Remove what earlier runs of this user left here after a lost node or a SIGKILL; return how many things."""
    stale = _stale_tags(local_dir) - {own_tag}
    if not stale:
        return 0
    live = processes.live_tags(processes.pids())
    return sum(remove(tag, local_dir, ()) for tag in stale - live)


def _stale_tags(local_dir: str) -> Set[str]:
    tags = set()
    for folder, pattern in ((SHM, _SHM_NAME), (local_dir, _FOLDER_NAME)):
        for name in names(folder):
            match = pattern.match(name)
            path = os.path.join(folder, name)
            if match and _mine(path) and _age(path) > SPARE_S:
                tags.add("%s.%s" % match.groups())
    return tags


def _age(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0
