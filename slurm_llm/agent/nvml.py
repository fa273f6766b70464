"""The driver's own library for GPUs, called by ctypes: one method a question. Knows nothing of ranks or journals.

Functions, structs and numbers are those of NVIDIA's public nvml.h (NVML 12); a call may take seconds on a sick GPU.
"""

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

NAME = "libnvidia-ml.so.1"

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TOO_SMALL, TIMEOUT, LOST = 3, 4, 6, 7, 10, 15
_XID = 0x8
_MEMORY_V2 = 2 << 24
_UNCORRECTED, _SINCE_RESET = 1, 0
_MOST_PROCESSES = 64
_UNKNOWN = (1 << 64) - 1
"""What stands for a process's memory where the driver does not know it."""
MIB = 1 << 20


class NvmlError(Exception):
    """A call that failed, with NVML's number for why; `ABSENT` where the library has no such function."""

    ABSENT = 13

    def __init__(self, call: str, code: int) -> None:
        Exception.__init__(self, "%s: error %d" % (call, code))
        self.code = code


class Process(NamedTuple):
    """A compute process on a GPU; its memory in MiB, None where the driver does not tell."""

    pid: int
    mib: Optional[int]


class Event(NamedTuple):
    """An Xid of a GPU; None for one that is not known."""

    gpu: Optional[int]
    xid: int


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Memory2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")
    ]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]


class _Process2(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Pci(ctypes.Structure):
    _fields_ = (
        [("legacy", ctypes.c_char * 16)]
        + [(name, ctypes.c_uint) for name in ("domain", "bus", "device", "device_id", "subsystem_id")]
        + [("bus_id", ctypes.c_char * 32)]
    )


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Library:
    """The library, ready to be asked; GPUs are named by their index in NVML's order, that of the PCI bus."""

    def __init__(self) -> None:
        """Load and start it.

        Raises:
            OSError: there is no such library.
            NvmlError: it cannot speak to the driver.
        """
        self._lib = ctypes.CDLL(NAME)
        self._call("nvmlInit_v2")
        self._handles: Dict[int, ctypes.c_void_p] = {}
        self._events: Optional[ctypes.c_void_p] = None

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._lib, name)
        except AttributeError:
            raise NvmlError(name, NvmlError.ABSENT) from None
        code = int(function(*arguments))
        if code:
            raise NvmlError(name, code)

    def _text(self, name: str, *arguments: Any) -> str:
        room = ctypes.create_string_buffer(96)
        self._call(name, *(arguments + (room, ctypes.c_uint(len(room)))))
        return room.value.decode("utf-8", "replace")

    def driver(self) -> str:
        """Return the driver's version."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        """Return how many GPUs the node has, those that this process may not open counted in."""
        number = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        return number.value

    def _handle(self, index: int) -> ctypes.c_void_p:
        if index not in self._handles:
            found = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(found))
            self._handles[index] = found
        return self._handles[index]

    def uuid(self, index: int) -> str:
        """Return `GPU-…`.

        Raises:
            NvmlError: with `NO_PERMISSION`, this process may not open the GPU; with `LOST`, it has left the bus.
        """
        return self._text("nvmlDeviceGetUUID", self._handle(index))

    def name(self, index: int) -> str:
        """Return the model's name."""
        return self._text("nvmlDeviceGetName", self._handle(index))

    def pci(self, index: int) -> str:
        """Return the address as the kernel's log has it, `0000:3b:00`."""
        found = _Pci()
        self._call("nvmlDeviceGetPciInfo_v3", self._handle(index), ctypes.byref(found))
        return "%04x:%02x:%02x" % (found.domain, found.bus, found.device)

    def memory(self, index: int) -> Tuple[int, int]:
        """Return MiB in use and in all; what the driver keeps for itself counts as used only before release 510."""
        new = _Memory2()
        new.version = ctypes.sizeof(_Memory2) | _MEMORY_V2
        try:
            self._call("nvmlDeviceGetMemoryInfo_v2", self._handle(index), ctypes.byref(new))
            return new.used // MIB, new.total // MIB
        except NvmlError as error:
            if error.code == LOST:
                raise
        old = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle(index), ctypes.byref(old))
        return old.used // MIB, old.total // MIB

    def utilization(self, index: int) -> int:
        """Return for how many percent of the last second or so a kernel ran."""
        found = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", self._handle(index), ctypes.byref(found))
        return int(found.gpu)

    def processes(self, index: int) -> List[Process]:
        """Return the compute processes, by ids of this process's namespace."""
        try:
            return self._processes("nvmlDeviceGetComputeRunningProcesses_v3", _Process2, index)
        except NvmlError as error:
            if error.code != NvmlError.ABSENT:
                raise
        return self._processes("nvmlDeviceGetComputeRunningProcesses", _Process1, index)

    def _processes(self, call: str, kind: Any, index: int) -> List[Process]:
        room = _MOST_PROCESSES
        while True:
            number, found = ctypes.c_uint(room), (kind * room)()
            try:
                self._call(call, self._handle(index), ctypes.byref(number), found)
                break
            except NvmlError as error:
                if error.code != TOO_SMALL or room > 100 * _MOST_PROCESSES:
                    raise
                room = 2 * max(room, number.value)
        return [_process(found[at].pid, found[at].used) for at in range(number.value)]

    def slices(self, index: int) -> List[str]:
        """Return the UUIDs of the MIG devices on a GPU; none where MIG is off or unknown."""
        now, later, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", self._handle(index), ctypes.byref(now), ctypes.byref(later))
            if not now.value:
                return []
            self._call("nvmlDeviceGetMaxMigDeviceCount", self._handle(index), ctypes.byref(most))
        except NvmlError:
            return []
        return [uuid for uuid in (self._slice(index, at) for at in range(most.value)) if uuid]

    def _slice(self, index: int, at: int) -> str:
        found = ctypes.c_void_p()
        try:
            self._call(
                "nvmlDeviceGetMigDeviceHandleByIndex", self._handle(index), ctypes.c_uint(at), ctypes.byref(found)
            )
            return self._text("nvmlDeviceGetUUID", found)
        except NvmlError:
            return ""

    def uncorrected(self, index: int) -> int:
        """Return how many memory errors could not be corrected since the driver was loaded."""
        number = ctypes.c_ulonglong()
        self._call(
            "nvmlDeviceGetTotalEccErrors",
            self._handle(index),
            ctypes.c_uint(_UNCORRECTED),
            ctypes.c_uint(_SINCE_RESET),
            ctypes.byref(number),
        )
        return number.value

    def remapping(self, index: int) -> Tuple[bool, bool]:
        """Return whether a bad memory row waits for a reset to be replaced, and whether replacing one has failed."""
        numbers = [ctypes.c_uint() for _ in range(4)]
        self._call("nvmlDeviceGetRemappedRows", self._handle(index), *map(ctypes.byref, numbers))
        return bool(numbers[2].value), bool(numbers[3].value)

    def listen(self, indices: List[int]) -> None:
        """Begin to note the Xids of these GPUs.

        Raises:
            NvmlError: no GPU can tell.
        """
        events = ctypes.c_void_p()
        self._call("nvmlEventSetCreate", ctypes.byref(events))
        registered = [index for index in indices if self._register(index, events)]
        if not registered:
            raise NvmlError("nvmlDeviceRegisterEvents", NOT_SUPPORTED)
        self._events = events

    def _register(self, index: int, events: ctypes.c_void_p) -> bool:
        try:
            self._call("nvmlDeviceRegisterEvents", self._handle(index), ctypes.c_ulonglong(_XID), events)
        except NvmlError:
            return False
        return True

    def wait(self, seconds: float) -> Optional[Event]:
        """Return the next Xid, or None when there was none for `seconds`.

        Raises:
            NvmlError: waiting makes no sense any more.
        """
        found = _Event()
        try:
            self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(found), ctypes.c_uint(int(seconds * 1000)))
        except NvmlError as error:
            if error.code == TIMEOUT:
                return None
            raise
        known = {handle.value: index for index, handle in self._handles.items()}
        return Event(known.get(found.device), int(found.data)) if found.kind & _XID else None


def _process(pid: int, used: int) -> Process:
    return Process(pid, None if used == _UNKNOWN else used // MIB)
