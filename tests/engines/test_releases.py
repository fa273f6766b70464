"""Which releases an image's name tells of; nothing is guessed where it says nothing."""

from __future__ import annotations

import pytest

from slurm_llm.engines.releases import Release, release_of, version_numbers

TRTLLM = Release("25.09", "1.0.0", None, "trtllm")


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3", TRTLLM),
        ("docker://nvcr.io#nvidia/tritonserver:25.09-trtllm-python-py3", TRTLLM),
        ("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3@sha256:" + "25a09" * 12 + "abcd", TRTLLM),
        ("/images/tritonserver_25.09-trtllm-python-py3.sif", TRTLLM),
        ("/images/nvidia+tritonserver+25.09-trtllm-python-py3.sqsh", TRTLLM),
        ("/images/nvcr.io%nvidia%tritonserver+25.09-trtllm-python-py3/", TRTLLM),
        ("/images/tensorrt-llm-25.09.sqsh", TRTLLM),
        (
            "nvcr.io/nvidia/tritonserver:26.03-vllm-python-py3",
            Release("26.03", None, "0.17.1", "vllm"),
        ),
        ("nvcr.io/nvidia/tritonserver:25.03-py3", Release("25.03", None, None, "plain")),
        ("/images/triton-25.11.sqsh", Release("25.11", "1.0.3.2510", "0.11.0", None)),
        ("nvcr.io/nvidia/tritonserver:27.01-trtllm-python-py3", Release("27.01", None, None, "trtllm")),
        ("nvcr.io/nvidia/pytorch:25.09-py3", None),
        ("/images/triton.sqsh", None),
        ("/triton-25.09/images/mine.sqsh", None),
        ("/images/vllm-0.9.2.sif", None),
        ("/images/triton-1.25.09.sqsh", None),
        ("/images/triton-25.09.1.sqsh", None),
        (None, None),
    ],
)
def test_the_release_of_an_image(image: str | None, release: Release | None) -> None:
    """References of every runtime and the file names that their imports give; a tag's own words, never a folder's."""
    assert release_of(image) == release


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1.2.1", (1, 2, 1)),
        ("1.0.3.2510", (1, 0, 3, 2510)),
        ("0.17.0.post1", (0, 17, 0)),
        ("1.3.0rc26", (1, 3, 0)),
        ("0.11.0+582e4e37.nv25.11.cu130", (0, 11, 0)),
    ],
)
def test_versions_compare_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    """Of the forms in the compatibility matrix."""
    assert version_numbers(text) == numbers
