"""Becoming a command with the environment of a rank, or of the job, as a process of it on this node has it.

The command is no engine process: it bears no mark by which agents know those.
"""

import errno
import json
import os
import shutil
import sys
from typing import Dict, List, Optional

from . import processes

Environment = Dict[bytes, bytes]

OWN_STEP = (b"SLURM_", b"SLURMD_")
"""Variables that say which task of which step this is: those of the command's own step count."""
OF_MPI = (b"PMIX_", b"PMI_", b"PMI2_", b"PALS_", b"OMPI_COMM_", b"OMPI_UNIVERSE", b"MV2_COMM_", b"PRTE_", b"HYDI_")
"""Variables by which an MPI library would take the command for a rank that is there already."""
MARKS = (processes.TAG.encode(), processes.NODE.encode())
SHELL = ["bash", "--norc"]
"""The user's own start files would set what the rank does not have."""
NOT_HERE = (errno.EACCES, errno.ENOTDIR)
"""Errors of a folder of PATH that may not be looked into, or is none."""
HEEDS_TERM = b"trap 'exit 143' TERM; unset PROMPT_COMMAND"
"""An interactive bash ignores SIGTERM: without this the job's end would wait for it until Slurm kills it."""


def main(run: str, tag: str, rank: Optional[int], words: List[str]) -> int:
    """Become `words`, or a shell, with a rank's environment, or without a rank the job's; return only on an error."""
    words = words[1:] if words[:1] == ["--"] else words
    found = _of_job(tag) if rank is None else _of_rank(tag, rank)
    if found is None and rank is not None:
        print("slurm_llm: rank %d has no process here now; its variables are those of the plan" % rank, file=sys.stderr)
        found = _planned(run, dict(os.environb))
    environment = _mixed(dict(os.environb) if found is None else found, rank)
    try:
        os.chdir(run)
        environment[b"PWD"] = os.fsencode(run)
    except OSError as error:
        print("slurm_llm: %s: %s" % (run, error.strerror), file=sys.stderr)
    return _become(words or (SHELL + ["-i"] if sys.stdin.isatty() else SHELL), environment)


def _become(words: List[str], environment: Environment) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        code = error.errno or 0
        path = os.fsdecode(environment.get(b"PATH", os.fsencode(os.defpath)))
        if code in NOT_HERE and "/" not in words[0] and not shutil.which(words[0], os.F_OK, path):
            # That is of one folder of PATH; in none of the others is it, as a shell says too.
            code = errno.ENOENT
        print("slurm_llm: %s: %s" % (words[0], os.strerror(code)), file=sys.stderr)
        return 127 if code == errno.ENOENT else 126


def _mixed(found: Environment, rank: Optional[int]) -> Environment:
    """Return a process's environment as one of this step: without the marks of engines, with this terminal."""
    own = dict(os.environb)
    kept = {
        name: value for name, value in found.items() if name not in MARKS and not name.startswith(OWN_STEP + OF_MPI)
    }
    kept.update((name, value) for name, value in own.items() if name.startswith(OWN_STEP) or name == b"TERM")
    if rank is not None:
        kept[processes.RANK.encode()] = b"%d" % rank
        kept[b"PROMPT_COMMAND"] = HEEDS_TERM
        kept[b"PS1"] = b"[rank %d on %s] \\w\\$ " % (rank, processes.node_name().encode())
    return kept


def _of_rank(tag: str, rank: int) -> Optional[Environment]:
    """Return the environment of the rank's server, the oldest of its processes."""
    found = [one.pid for one in processes.find(tag, processes.node_name(), processes.pids()) if one.rank == rank]
    return _environment(min(found, key=lambda pid: (-processes.age(pid), pid))) if found else None


def _of_job(tag: str) -> Optional[Environment]:
    """Return the environment of this node's agent: the job's own, modules and all.

    What a container runtime leaves beside its containers may bear the same mark, with an environment of its own.
    """
    node, found = processes.node_name(), []
    for pid in processes.pids():
        own = processes.environment(pid)
        if own.get(processes.TAG) == tag and own.get("SLURMD_NODENAME") == node and processes.RANK not in own:
            found.append(pid)
    return _environment(min(found, key=lambda pid: (not _is_agent(pid), pid))) if found else None


def _is_agent(pid: int) -> bool:
    return "\0node\0--attempt\0" in "\0".join(processes.words(pid))


def _environment(pid: int) -> Optional[Environment]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            pairs = [item.partition(b"=") for item in stream.read().split(b"\0")]
    except OSError:
        return None
    return {name: value for name, equals, value in pairs if name and equals} or None


def _planned(run: str, environment: Environment) -> Environment:
    """Return `environment` with what the plan sets for every rank."""
    try:
        with open(os.path.join(run, "plan.json")) as stream:
            plan = json.load(stream)["env"]
    except (OSError, ValueError, KeyError):
        return environment
    for name in plan["unset"]:
        environment.pop(name.encode(), None)
    environment.update((name.encode(), value.encode()) for name, value in plan["set"])
    for name, value in plan["prepend"]:
        before = environment.get(name.encode())
        environment[name.encode()] = value.encode() + (b":" + before if before else b"")
    return environment
