"""Which TensorRT-LLM and vLLM a Triton image holds, read from the image's name; nothing is opened or asked for.

The versions are those of the compatibility matrix of Triton Inference Server (docs/introduction/compatibility.md in
triton-inference-server/server, read in its edition of release 26.08).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TRTLLM = "trtllm"
VLLM = "vllm"
PLAIN = "plain"

_TRTLLM = {
    "24.04": "0.9.0",
    "24.05": "0.9.0",
    "24.06": "0.10.0",
    "24.07": "0.11.0",
    "24.08": "0.12.0",
    "24.09": "0.13.0",
    "24.10": "0.14.0",
    "24.11": "0.15.0",
    "24.12": "0.16.0",
    "25.01": "0.17.0",
    "25.02": "0.17.0.post1",
    "25.03": "0.18.0",
    "25.04": "0.18.2",
    "25.05": "0.19.0",
    "25.06": "0.20.0",
    "25.07": "0.20.0",
    "25.08": "0.21.0",
    "25.09": "1.0.0",
    "25.10": "1.0.0",
    "25.11": "1.0.3.2510",
    "25.12": "1.1.0",
    "26.01": "1.1.0",
    "26.02": "1.1.0",
    "26.03": "1.2.0",
    "26.04": "1.2.1",
    "26.05": "1.2.1",
    "26.06": "1.2.1",
    "26.07": "1.2.1",
}
_VLLM = {
    "24.04": "0.4.0.post1",
    "24.05": "0.4.0.post1",
    "24.06": "0.4.3",
    "24.07": "0.5.0.post1",
    "24.08": "0.5.0.post1",
    "24.09": "0.5.3.post1",
    "24.10": "0.5.5",
    "24.11": "0.5.5",
    "24.12": "0.5.5",
    "25.01": "0.6.3.post1",
    "25.02": "0.7.0",
    "25.03": "0.7.3",
    "25.04": "0.8.1",
    "25.05": "0.8.4",
    "25.06": "0.9.0rc1",
    "25.07": "0.9.0rc1",
    "25.08": "0.9.2",
    "25.09": "0.10.1.1",
    "25.10": "0.10.2",
    "25.11": "0.11.0",
    "25.12": "0.11.1",
    "26.01": "0.13.0",
    "26.02": "0.15.1",
    "26.03": "0.17.1",
    "26.04": "0.19.0",
    "26.05": "0.19.0",
    "26.06": "0.22.1",
    "26.07": "0.24.0",
    "26.08": "0.27.1",
}

_TRITON = re.compile(r"triton|trtllm|tensorrt[-_]?llm|vllm", re.IGNORECASE)
_RELEASE = re.compile(r"(?<![0-9.])(2[2-9]\.(?:0[1-9]|1[0-2]))(?![0-9])(?!\.[0-9])")
_FLAVOURS = (
    (TRTLLM, re.compile(r"trtllm|tensorrt[-_]?llm", re.IGNORECASE)),
    (VLLM, re.compile(r"vllm", re.IGNORECASE)),
    (PLAIN, re.compile(r"[-_](?:py3|min|sdk)\b", re.IGNORECASE)),
)


@dataclass(frozen=True)
class Release:
    """A Triton release, `triton` as in its tag (25.09), and the engines that an image of it holds.

    `trtllm` and `vllm` are their versions; None: not in this image, or the release is newer than the table. `flavour`
    is "trtllm", "vllm" or "plain" as the image's name says it; where it says nothing it is None, and both versions are
    those that the release's own images have.
    """

    triton: str
    trtllm: str | None = None
    vllm: str | None = None
    flavour: str | None = None


def release_of(image: str | None) -> Release | None:
    """Return the Triton release that `image` bears in its name, or None where the name does not say.

    `image` is a registry's reference or the path of an image file or folder: the last part of either must hold the
    release (25.09), and the whole a word such as triton, trtllm or vllm.
    """
    if image is None or not _TRITON.search(image):
        return None
    last = image.partition("@sha256:")[0].rstrip("/").rpartition("/")[2]
    found = _RELEASE.search(last)
    if found is None:
        return None
    triton = found[1]
    flavour = next((name for name, pattern in _FLAVOURS if pattern.search(last)), None)
    return Release(
        triton=triton,
        trtllm=_TRTLLM.get(triton) if flavour in (TRTLLM, None) else None,
        vllm=_VLLM.get(triton) if flavour in (VLLM, None) else None,
        flavour=flavour,
    )


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version for comparing: 1.0.3.2510 → (1, 0, 3, 2510), 0.17.0.post1 → (0, 17, 0).

    A release candidate counts as its release: 1.3.0rc4 → (1, 3, 0).
    """
    numbers = []
    for part in version.split("+")[0].split("."):
        found = re.match(r"[0-9]{1,9}(?![0-9])", part)
        if found is None:
            break
        numbers.append(int(found[0]))
        if found[0] != part:
            break
    return tuple(numbers)
