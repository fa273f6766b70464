"""How the processes of a probe job meet: in folders of their node, in the job's own folder, over the network."""

import errno
import json
import os
import socket
import stat
import threading
import time
from typing import Any, Dict, List, Sequence, Set, Union

from . import journal, leftovers, ports

LISTEN = "listen.json"
LOOK_S = 0.02
SHARED_S = 3.0
"""How long a rank waits for the files of its node's other ranks."""
CLOCK_ROUNDS = 5


class Place:
    """A folder in which each process of a node leaves one small file.

    The files have the names of a run's own, in its folder where it has one there: whatever clears up after runs
    (`leftovers`, the epilog script) removes those of a probe that was killed.
    """

    def __init__(self, folder: str, job: str) -> None:
        """Choose the files' names in `folder`, for Slurm's number of the job."""
        tag = job + ".0"
        self.folder, self._own = folder, ""
        self._made = "" if folder == leftovers.SHM else os.path.join(folder, leftovers.FOLDER + tag)
        self._start = os.path.join(self._made or folder, leftovers.shm_prefix(tag) + "0_probe-")

    def leave(self, name: str) -> bool:
        """Write this process's file.

        Raises:
            OSError: without the file's name, so that the same fault reads alike for every process.
        """
        path = self._start + name
        try:
            self._make()
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise OSError(error.errno, error.strerror) from None
        self._own = path
        try:
            os.write(handle, b"x")
        finally:
            os.close(handle)
        return True

    def meet(self, names: Set[str]) -> List[str]:
        """Return the processes whose files are seen, as soon as all of `names` are or the time is up."""
        deadline = time.monotonic() + SHARED_S
        while True:
            found = set(self._names())
            if names <= found or time.monotonic() > deadline:
                return sorted(found)
            time.sleep(LOOK_S)

    def clear(self) -> None:
        """Remove this process's file, and the folder after the last one."""
        if self._own:
            os.unlink(self._own)
            self._leave_folder()

    def clear_all(self) -> None:
        """Remove every file of the job, and its folder."""
        for name in self._names():
            os.unlink(self._start + name)
        self._leave_folder()

    def _names(self) -> List[str]:
        folder, start = os.path.split(self._start)
        return [name[len(start) :] for name in os.listdir(folder) if name.startswith(start)]

    def _make(self) -> None:
        """Make the job's folder, unless another of its processes has."""
        if not self._made:
            return
        try:
            os.mkdir(self._made, 0o700)
        except FileExistsError:
            found = os.lstat(self._made)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise OSError(errno.EPERM, "the job's folder is somebody else's") from None

    def _leave_folder(self) -> None:
        try:
            if self._made:
                os.rmdir(self._made)
        except OSError:
            # Others still have files in it; the last one removes it.
            return


def watch_for(folder: str, names: Set[str], seconds: float) -> Dict[str, float]:
    """Return when each of `names` was first seen in `folder`; those that were not within `seconds` are left out.

    The folder is listed each time: over NFS that asks the server, while looking for one name may be answered from a
    memory of its absence.
    """
    deadline = time.monotonic() + seconds
    seen: Dict[str, float] = {}
    while True:
        present = names & set(os.listdir(folder))
        for name in present - set(seen):
            seen[name] = round(time.time(), 3)
        if len(seen) == len(names) or time.monotonic() > deadline:
            return seen
        time.sleep(LOOK_S)


def resolve(name: str) -> List[str]:
    """Return the addresses of a name."""
    return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)})


def knock(host: str, port: int) -> bool:
    """Connect and hang up."""
    socket.create_connection((host, port), 4.0).close()
    return True


def open_door(folder: str, span: Sequence[int], seed: int) -> Union[socket.socket, str]:
    """Listen on a port of the range `span` and tell the others where; each that comes is told this node's time.

    Returns the listening socket, or a text that begins with `error: `.
    """
    try:
        port = ports.draw(span[0], span[1], seed, [0, 0, 0])[0]
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("0.0.0.0", port))
        door.listen(128)
        where = {"node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(), "port": port}
        journal.write_once(os.path.join(folder, LISTEN), json.dumps(where))
    except (OSError, ValueError) as error:
        return "error: %s" % error
    threading.Thread(target=_answer, args=(door,), daemon=True).start()
    return door


def _answer(door: socket.socket) -> None:
    try:
        while True:
            guest, _ = door.accept()
            with guest:
                guest.settimeout(5.0)
                try:
                    while guest.recv(1):
                        guest.sendall(b"%020.6f" % time.time())
                except OSError:
                    continue
    except OSError:
        return


def reach(folder: str, suffix: str, seconds: float) -> Dict[str, Any]:
    """Connect to rank 0 by its node's name with `suffix`; tell how far apart the clocks are.

    Raises:
        OSError: rank 0 cannot be reached; it says by which name, address and port.
    """
    if not watch_for(folder, {LISTEN}, seconds):
        raise OSError("rank 0 does not listen, or its file is not seen here")
    with open(os.path.join(folder, LISTEN)) as stream:
        where = json.load(stream)
    name = where["node"] + suffix
    begun = time.monotonic()
    try:
        with socket.create_connection((name, where["port"]), seconds) as line:
            connect_ms = (time.monotonic() - begun) * 1000
            address = str(line.getpeername()[0])
            offset_s = min((_ask_time(line) for _ in range(CLOCK_ROUNDS)), key=lambda one: one[1])[0]
    except OSError as error:
        raise OSError("%s port %d: %s" % (name, where["port"], error)) from None
    return {"name": name, "address": address, "connect_ms": round(connect_ms, 2), "clock_s": round(offset_s, 4)}


def _ask_time(line: socket.socket) -> List[float]:
    """Return how far rank 0's clock is ahead, and how long its answer took."""
    sent = time.time()
    line.sendall(b"?")
    said = b""
    while len(said) < 20:
        piece = line.recv(20 - len(said))
        if not piece:
            raise OSError("rank 0 hung up")
        said += piece
    back = time.time()
    return [float(said) - (sent + back) / 2, back - sent]
