"""What a process of a probe job sees of its host or container: facts only, every failure a value; it judges nothing."""

import glob
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, List, Sequence

from . import interfaces, meeting, ports, preflight

Facts = Dict[str, Any]

FACT_S = 8.0
"""Seconds for one fact: a file system or a name service that hangs must not hold up the rest."""
SAMPLE = 64
"""Ports of the range that are tried."""

_LIMITS = (("memlock", 1024), ("stack", 1024), ("core", 1024), ("nofile", 1), ("nproc", 1))
_GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*")


def attempt(fact: Callable[..., Any], *arguments: Any, seconds: float = FACT_S) -> Any:
    """Return what `fact` returns, or a text that begins with `error: `."""
    found: List[Any] = ["error: no answer within %g s" % seconds]

    def run() -> None:
        try:
            found.append(fact(*arguments))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong on a foreign node is what is to be told
            found.append("error: %s" % (str(error) or type(error).__name__))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[-1]


def node_name() -> str:
    """Return Slurm's name of this node, the host's own one outside of a step."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def look(homes: Sequence[str], variables: Sequence[str], internet: Sequence[Any]) -> Facts:
    """Return what is true of this process's host, or of its container.

    `homes` are folders that may hold a Triton, `variables` are looked up, `internet` is a host and port to reach.
    """
    return {
        "node": node_name(),
        "hostname": attempt(socket.gethostname),
        "resolved": attempt(meeting.resolve, node_name()),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "glibc": attempt(os.confstr, "CS_GNU_LIBC_VERSION"),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        "os": attempt(_os_name),
        "root": attempt(_root),
        "limits": attempt(_limits),
        "interfaces": attempt(interfaces.addresses),
        "shm": attempt(_space, "/dev/shm"),
        "gpus": attempt(_gpus),
        "servers": attempt(_servers, homes),
        "env": {name: os.environ.get(name) for name in variables},
        "internet": attempt(meeting.knock, *internet) if internet else None,
    }


def _os_name() -> str:
    with open("/etc/os-release") as stream:
        rows = dict(row.strip().split("=", 1) for row in stream if "=" in row)
    return (rows.get("PRETTY_NAME") or rows.get("NAME", "")).strip("\"'")


def _root() -> str:
    """Return what names the root folder: a container has another than its host, whatever its image."""
    found = os.stat("/")
    return "%d:%d" % (found.st_dev, found.st_ino)


def _limits() -> Facts:
    """Return soft and hard limits, in the units of Bash's `ulimit`."""
    found = {}
    for name, unit in _LIMITS:
        limits = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        found[name] = ["unlimited" if one == resource.RLIM_INFINITY else one // unit for one in limits]
    return found


def _space(folder: str) -> Facts:
    size = os.statvfs(folder)
    return {"size_mib": size.f_blocks * size.f_frsize >> 20, "free_mib": size.f_bavail * size.f_frsize >> 20}


def _gpus() -> Facts:
    names = sorted(name for pattern in _GPU_DEVICES for name in glob.glob(pattern))
    return {
        "variables": {name: os.environ[name] for name in preflight.VISIBLE_ALL if name in os.environ},
        # Slurm hides devices by refusing to open them: that they are listed says nothing.
        "devices": {name: attempt(_opens, name) for name in names},
        "nvidia_smi": attempt(output, "nvidia-smi", "-L") if shutil.which("nvidia-smi") else None,
    }


def _opens(path: str) -> bool:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    return True


def output(*argv: str) -> List[str]:
    """Return the lines that a command prints.

    Raises:
        OSError: it fails, with its last words.
    """
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if done.returncode:
        raise OSError("exit status %d: %s" % (done.returncode, (lines or ["no word"])[-1]))
    return lines


def _servers(homes: Sequence[str]) -> List[str]:
    found = [home + "/bin/tritonserver" for home in homes if os.access(home + "/bin/tritonserver", os.X_OK)]
    on_path = shutil.which("tritonserver")
    return found + ([on_path] if on_path and on_path not in found else [])


def sample_ports(low: int, high: int) -> Facts:
    """Try ports all over the range; return how many were tried, and those that are in use."""
    tried = list(range(low, high + 1, max(1, (high - low + 1) // SAMPLE)))
    return {"tried": len(tried), "busy": [port for port in tried if not ports.free(port)]}


def ephemeral_ports() -> List[int]:
    """Return the first and last port that the kernel itself gives to outgoing connections."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as stream:
        return [int(word) for word in stream.read().split()]


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))
