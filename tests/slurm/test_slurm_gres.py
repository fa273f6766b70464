"""GPUs are counted right in every form in which Slurm prints GRES and TRES."""

from __future__ import annotations

import pytest

from slurm_llm.slurm.gres import GpuGres, parse_gpus


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:4(IDX:0-3)", (GpuGres("a100", 4, (0, 1, 2, 3)),)),
        ("gpu:2(IDX:1,3)", (GpuGres("", 2, (1, 3)),)),
        ("gpu:4", (GpuGres("", 4),)),
        ("gpu", (GpuGres("", 1),)),
        ("gpu:h100:8(S:0-1)", (GpuGres("h100", 8),)),
        ("gpu:0(IDX:N/A)", (GpuGres("", 0),)),
        ("gpu:a100:2,gpu:v100:1", (GpuGres("a100", 2), GpuGres("v100", 1))),
        ("gres:gpu:4", (GpuGres("", 4),)),
        ("gres/gpu:4", (GpuGres("", 4),)),
        ("gres/gpu:a100=4", (GpuGres("a100", 4),)),
        ("gpu:1g.10gb:2", (GpuGres("1g.10gb", 2),)),
        ("gpu:nvidia_h100-80gb:4(S:0)", (GpuGres("nvidia_h100-80gb", 4),)),
        ("nvme:1,gpu:4,shard:16", (GpuGres("", 4),)),
        ("(null)", ()),
        ("N/A", ()),
        ("", ()),
        ("gpumem:40G", ()),
    ],
)
def test_gpu_entries_are_read(text: str, gpus: tuple[GpuGres, ...]) -> None:
    """Type, count and indices are taken apart; other resources are passed over."""
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize("text", ["gpu:a100:x:y", "gpu:a100:4(IDX:0-3", "gpu=four"])
def test_malformed_gpu_entries_are_errors(text: str) -> None:
    """A GPU entry that cannot be read is an error that shows it, not zero GPUs."""
    with pytest.raises(ValueError, match="is not a GPU resource"):
        parse_gpus(text)
