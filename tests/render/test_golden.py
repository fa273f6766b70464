"""Whole run directories, byte for byte: a change of any rendered file is seen as a difference of tests/render/golden.

The files are for a run directory /runs/demo, so that they hold no machine's path. `pytest tests/render --update-golden`
writes them anew; the difference is then for a person to review. A golden file that is missing fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.yamlio import dump
from tests.render.rendered_jobs import LAYOUTS, SWITCHES, Case, beside_serving, make_case, recoveries, releases

GOLDEN = Path(__file__).parent / "golden"
FILES = ("job.sub", "rank.sh", "client.sh", "plan.json", "spec.yaml", "site.yaml", "config.pbtxt")

CASES = [
    make_case("one-rank-generic", "generic", LAYOUTS["one"]),
    make_case(
        "four-nodes-moe-devcluster",
        "devcluster",
        LAYOUTS["tp4-pp2-moe"],
        {"resources": {"nodes": 4, "time": "00:30:00"}, "partition": "debug"},
    ),
    make_case("three-replicas-account", "account", LAYOUTS["tp8-three-replicas"]),
    make_case(
        "every-switch-devcluster",
        "devcluster",
        {"name": 'meta-llama/Llama 3 "8B" 100%'},
        LAYOUTS["tp2-cp2"],
        *(pair[1] for pair in SWITCHES.values()),
    ),
    make_case("cpus-only", "cpus-only", LAYOUTS["tp4"]),
    make_case("everything", "everything", LAYOUTS["tp4"], {"gpu_clocks": "1410,1410", "exclude_nodes": "n9"}),
    make_case("mpirun", "mpirun", LAYOUTS["tp4-pp2-moe"]),
    make_case(
        "instances-share-a-node",
        "account",
        {"tensor_parallel_size": 2, "replicas": 4, "balancer": "haproxy", "frontend": "openai", "model": "org/model"},
    ),
    make_case("offline-gpus-per-task", "suffix", LAYOUTS["tp4"]),
    *releases(),
    *recoveries(),
    *beside_serving(),
]


def _names(case: Case) -> tuple[str, ...]:
    return tuple(name for name in FILES if name != "client.sh" or case.spec.client is not None)


def _files(case: Case) -> dict[str, str]:
    files = case.files()
    (configuration,) = [text for name, text in files.items() if name.endswith("config.pbtxt")]
    return {
        **{name: files[name] for name in ("job.sub", "rank.sh", "client.sh", "plan.json") if name in files},
        "spec.yaml": dump(case.spec.model_dump(mode="json", exclude_defaults=True)),
        "site.yaml": dump(case.site.model_dump(mode="json", exclude_unset=True)),
        "config.pbtxt": configuration,
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_directory_is_as_reviewed(case: Case, request: pytest.FixtureRequest) -> None:
    """Each file is the golden one; with the option, the golden one is written instead."""
    folder, files = GOLDEN / case.name, _files(case)
    assert tuple(files) == _names(case)
    if request.config.getoption("--update-golden", default=False):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_bytes(text.encode())
    for name, text in files.items():
        golden = folder / name
        assert golden.is_file(), f"{golden} is missing: run pytest tests/render --update-golden and review it"
        assert golden.read_bytes().decode() == text, f"{golden} differs: if that is meant, --update-golden"


def test_no_golden_directory_is_left_over() -> None:
    """Every golden file belongs to a case."""
    found = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()}
    assert found == {f"{case.name}/{name}" for case in CASES for name in _names(case)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rendering_twice_gives_the_same(case: Case) -> None:
    """Nothing of a run directory depends on the time, the machine or chance."""
    assert _files(case) == _files(case)
