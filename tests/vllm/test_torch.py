"""The rehearsal's matrices in PyTorch: without a GPU on its CPU device, which is the same code but for the name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_llm.process import run
from tests.vllm.conftest import VENV

pytestmark = pytest.mark.vllm

TEXTS = """
import json
from slurm_llm.rehearsal import cuda
from slurm_llm.rehearsal.layers import Links, Shard, Weights
from slurm_llm.rehearsal.layout import Sizes, place_of

class Alone:
    index, size = 0, 1
    def all_reduce(self, values):
        return values

def text(place, moe):
    links = Links(Alone(), Alone(), Alone(), Alone(), None)
    shard = Shard(place_of(0, Sizes()), links, Weights(7, place), moe=moe)
    found = shard.start(0, b"The future of AI is")
    while len(found) < 40:
        found += shard.advance([0], found[-1:])
    return bytes(found).decode()

print(json.dumps([[text(place, moe) for place in (None, cuda.Device("cpu", 1).place)] for moe in (False, True)]))
try:
    cuda.open_device(0, {})
except cuda.RehearsalError as error:
    print(error)
"""


def test_the_text_is_the_one_that_numpy_writes() -> None:
    """Floating point holds every product exactly; without a GPU the engine says what is missing."""
    package = str(Path(__file__).parents[2])
    done = run([str(VENV / "bin" / "python"), "-c", TEXTS], timeout_s=120, env={**os.environ, "PYTHONPATH": package})
    assert done.returncode == 0, done.stderr
    texts, refusal = done.stdout.splitlines()
    (dense, dense_there), (experts, experts_there) = json.loads(texts)
    assert dense == dense_there and experts == experts_there and dense != experts
    assert refusal == "device is cuda, and PyTorch sees no GPU here"
