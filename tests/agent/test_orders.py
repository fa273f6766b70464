"""Orders to the agents' step: what Slurm does not take is given again."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.agent import orders

SCANCEL = """#!/bin/sh
echo "$*" >>{folder}/calls
[ "$(wc -l <{folder}/calls)" -gt {refusals} ] || {{ echo "Unable to contact slurm controller"; exit 1; }}
"""


@pytest.mark.parametrize("refusals", [0, 3])
def test_an_order_is_given_until_slurm_takes_it(refusals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that is away for a while must not cost the order: ranks would hold their GPUs. It is told once."""
    (tmp_path / "scancel").write_text(SCANCEL.format(folder=tmp_path, refusals=refusals))
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(orders, "AGAIN_S", 0.02)
    said: list[str] = []
    orders.deliver("7.0", "USR2", said.append)
    assert (tmp_path / "calls").read_text().splitlines() == ["--signal=USR2 7.0"] * (refusals + 1)
    assert len(said) == (1 if refusals else 0)
    assert all("Unable to contact slurm controller" in one for one in said)
