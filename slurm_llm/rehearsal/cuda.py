"""The rehearsal's matrices on a GPU, where the spec asks for it; loads PyTorch, and only then.

All products and sums of matrices stay below 2**25 in magnitude, so float64 holds them exactly (CUDA multiplies no
matrices of integers), and the text is the one that the CPU writes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .world import RehearsalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

CPU, CUDA = "cpu", "cuda"
DEVICES = (CPU, CUDA)
_LOCAL_RANK = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_MIB = 1 << 20


class Matrix:
    """A matrix on a device: `x @ matrix` takes an array of the host, and gives one."""

    # numpy then leaves the product to `__rmatmul__`.
    __array_ufunc__ = None

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __rmatmul__(self, x: Ints) -> Ints:
        """Return x @ matrix, (positions, rows) by (rows, columns)."""
        there = torch().from_numpy(x).to(self._tensor)
        product: Ints = (there @ self._tensor).cpu().numpy().astype(np.int64)
        return product


class Device:
    """One GPU that holds this rank's matrices, and as many MiB besides as it was told to."""

    def __init__(self, name: str, hold_mib: int = 0) -> None:
        self.name = name
        self._held = self._zeros(hold_mib) if hold_mib else None

    def _zeros(self, mib: int) -> Any:
        return torch().zeros(mib * _MIB, dtype=torch().uint8, device=self.name)

    def place(self, values: Ints) -> Matrix:
        """Put a matrix there."""
        return Matrix(torch().from_numpy(values).to(self.name, torch().float64))

    def describe(self) -> str:
        """Return what the device is, for the log."""
        if not self.name.startswith(CUDA):
            return self.name
        own = torch().cuda.get_device_properties(self.name)
        return f"{self.name}: {own.name}, {own.total_memory // _MIB} MiB, UUID {getattr(own, 'uuid', 'unknown')}"


def torch() -> Any:
    """Import PyTorch.

    Raises:
        RehearsalError: there is none.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise RehearsalError(f"device cuda needs PyTorch where the ranks run: {error}") from None


def open_device(hold_mib: int, environ: Mapping[str, str]) -> Device:
    """Return this rank's GPU: of those that it is shown the one of its place on the node, in turns.

    Raises:
        RehearsalError: no PyTorch, or it sees no GPU.
    """
    count = torch().cuda.device_count()
    if not count:
        raise RehearsalError("device is cuda, and PyTorch sees no GPU here")
    local = next((environ[name] for name in _LOCAL_RANK if environ.get(name, "").isdigit()), "0")
    return Device(f"{CUDA}:{int(local) % count}", hold_mib)
