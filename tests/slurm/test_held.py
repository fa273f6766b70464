"""What each node of an allocation gives, as scontrol tells it in its details."""

from __future__ import annotations

import pytest

from slurm_llm.slurm.held import NodeShare, parse_shares

REST = "Partition=batch NodeList=n[1-2] JOB_GRES=gpu:4 "


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        (
            "Nodes=n1 CPU_IDs=0-2 Mem=1000 GRES=gpu:2(IDX:0-1) Nodes=n2 CPU_IDs=0 Mem=1000 GRES=gpu:2(IDX:0-1)",
            [NodeShare("n1", 3, 1000, (("gpu", 2),)), NodeShare("n2", 1, 1000, (("gpu", 2),))],
        ),
        ("Nodes=n[01-02] CPU_IDs=0-3,8 Mem=0 GRES=", [NodeShare("n01", 5, 0, ()), NodeShare("n02", 5, 0, ())]),
        (
            "Nodes=n1 CPU_IDs=0 Mem=5 GRES=gpu:h100:4(IDX:0-3),gpu:a100:1(IDX:4),nic:2(CNT:2)",
            [NodeShare("n1", 1, 5, (("gpu", 4), ("gpu", 1), ("nic", 2)))],
        ),
        ("NumNodes=2 NumCPUs=4", []),
    ],
    ids=["uneven", "ranges", "types", "without details"],
)
def test_shares_are_read(text: str, shares: list[NodeShare]) -> None:
    """CPUs are counted, GPUs of all types together, nodes one by one (texts as of Slurm 22.05.8)."""
    assert list(parse_shares(REST + text)) == shares


def test_types_of_a_gres_count_together() -> None:
    """A plan asks for so many GPUs."""
    assert NodeShare("n1", 1, 5, (("gpu", 4), ("gpu", 1), ("nic", 2))).count("gpu") == 5
