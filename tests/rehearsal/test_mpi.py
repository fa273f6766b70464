"""The engine over real MPI, without Triton: layouts, and worlds that are not what the plan says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from slurm_llm.process import Completed, run

pytestmark = pytest.mark.rehearsal

HERE = Path(__file__).parent
PROMPTS = ["The future of AI is", "What is machine learning?"]
DENSE = ["egilo wobu wila ", "fosemukota ve no"]
MIXED = ["ogiguri bulovopu", "sugu su ba bo bo"]
ABSENT = "from mpi4py import MPI; import time; time.sleep(60)"


def mpirun(*programs: tuple[int, list[str]], scratch: Path | None = None) -> Completed:
    """Start ranks of several programs as one MPI world."""
    argv = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    for count, words in programs:
        argv += [":"] * (len(argv) > 3) + ["-n", str(count), *words]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    if scratch:  # ranks that do not end by themselves leave Open MPI's segments behind
        environment["OMPI_MCA_btl_vader_backing_directory"] = str(scratch)
    return run(argv, env=environment, timeout_s=40)


def engine(**parameters: int | str) -> list[str]:
    """Return the command of a rank that runs the engine on the two prompts."""
    texts = {name: str(value) for name, value in parameters.items()}
    return [sys.executable, str(HERE / "mpi_rank.py"), json.dumps(texts), json.dumps(PROMPTS), "16"]


@pytest.mark.parametrize(
    ("ranks", "parameters"),
    [
        (2, {"tensor_parallel_size": 2}),
        (3, {"pipeline_parallel_size": 3}),
        (4, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
        (4, {"tensor_parallel_size": 2, "context_parallel_size": 2}),
        (4, {"tensor_parallel_size": 4, "moe": "true"}),
        (8, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "moe": "true", "moe_expert_parallel_size": 2}),
        (4, {"tensor_parallel_size": 4, "moe": "true", "moe_expert_parallel_size": 4}),
    ],
)
def test_text_over_mpi_is_the_text_of_one_rank(ranks: int, parameters: dict[str, int | str]) -> None:
    """Alone or in a batch, a prompt's text is the same over real MPI, and all ranks end by themselves."""
    done = mpirun((ranks, engine(**parameters)))
    assert done.returncode == 0, done.stderr
    expected = MIXED if "moe" in parameters else DENSE
    answer = json.loads(done.stdout)
    assert answer["single"] == expected
    assert answer["together"] == expected


def test_every_rank_logs_where_it_stands() -> None:
    """The log has a line for each rank and stage of the start."""
    done = mpirun((4, engine(tensor_parallel_size=2, pipeline_parallel_size=2)))
    for rank, place in enumerate(("tp 0 pp 0", "tp 1 pp 0", "tp 0 pp 1", "tp 1 pp 1")):
        assert f"rehearsal: rank {rank}/4 {place} on " in done.stderr
        assert f"rehearsal: rank {rank}/4 {place}: weights loaded" in done.stderr
    assert "all 4 ranks ready" in done.stderr


def test_a_world_of_one_is_named() -> None:
    """A rank that was started alone says that it is, and how it should have been started."""
    done = run(
        engine(tensor_parallel_size=4, pipeline_parallel_size=2),
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    assert done.returncode == 3
    assert "MPI world size is 1 but the plan has 8 ranks (tensor 4 x pipeline 2 x context 1)" in done.stdout
    assert "srun --mpi=pmix" in done.stdout


def test_a_world_of_another_size_is_refused() -> None:
    """Both numbers are said."""
    done = mpirun((2, engine(tensor_parallel_size=4)))
    assert done.returncode == 3
    assert "MPI world size is 2 but the plan has 4 ranks" in done.stdout


def test_ranks_with_other_parameters_are_refused(tmp_path: Path) -> None:
    """A rank with another seed is named, and nobody waits for ever."""
    done = mpirun((1, engine(tensor_parallel_size=2)), (1, engine(tensor_parallel_size=2, seed=1)), scratch=tmp_path)
    assert done.returncode not in (0, 124), done.stderr
    assert "different parameters" in done.stdout
    assert "rank 1 on " in done.stdout


def test_missing_ranks_are_named_within_the_time_limit(tmp_path: Path) -> None:
    """A rank that is in MPI but never joins is named, and the step ends."""
    parameters = {"tensor_parallel_size": 3, "join_timeout_s": 1}
    done = mpirun((2, engine(**parameters)), (1, [sys.executable, "-c", ABSENT]), scratch=tmp_path)
    assert done.returncode not in (0, 124), done.stderr
    assert "1 of 3 ranks did not join within 1 s: rank 2" in done.stdout


def test_a_python_without_mpi4py_is_named() -> None:
    """An image without mpi4py gives one clear sentence."""
    hide = "import sys; sys.modules['mpi4py'] = None; import runpy; sys.argv = sys.argv[1:]; "
    words = engine(tensor_parallel_size=2)
    done = run(
        [words[0], "-c", hide + "runpy.run_path(sys.argv[0], run_name='__main__')", *words[1:]],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    assert done.returncode == 3
    assert "cannot load mpi4py" in done.stdout
