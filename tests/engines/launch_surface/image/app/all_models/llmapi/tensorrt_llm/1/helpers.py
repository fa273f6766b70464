"""Reading inputs, as the image's own helpers do."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it


def scalar(request: Any, name: str, default: Any) -> Any:
    """Return the one value of an input, or `default` when it is absent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    value = tensor.as_numpy().reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else value
