"""The rehearsal engine's own arguments: what planning refuses, and what reaches the model's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_llm.cli import cli
from slurm_llm.engines.rehearsal import DEVICES
from slurm_llm.errors import PlanError
from slurm_llm.rehearsal import cuda
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan

FORM = "rank=N,at=PLACE,kind=KIND"
SPEC = {"name": "demo", "engine": "rehearsal", "tensor_parallel_size": 2, "resources": {"nodes": 2}}
FIRST, SECOND = "rank=1,at=load,kind=exit:3", "rank=0,at=start,kind=hang"


@pytest.mark.parametrize(
    ("fault", "messages"),
    [
        (
            "rank=1,at=load,knd=raise",
            ["engine_args.fault: unknown key 'knd': rank, at, kind, after, who, attempt: did you mean 'kind'?"],
        ),
        (
            "rank=1,at=laod,kind=raise",
            ["engine_args.fault: unknown place 'laod': start, mpi, load, serve: did you mean 'load'?"],
        ),
        (
            "rank=1,at=load,kind=signal:SIGSEGV",
            ["engine_args.fault: kind is 'signal:SIGSEGV': signal:KILL|SEGV|BUS|ABRT|TERM|STOP: did you mean 'SEGV'?"],
        ),
        ("rank=8,at=load,kind=raise", ["engine_args.fault: rank 8 of a job with 8 ranks: 0 to 7: correct it"]),
        (
            "rank=3,at=load,kind=noport",
            ["engine_args.fault: noport on rank 3, a worker: a leader has the port: rank 0: correct it"],
        ),
        (
            [FIRST, "rank=1,at=load,kind=rise", "load", 7],
            [
                "engine_args.fault[1]: unknown kind 'rise': exit, exit0, signal, raise, hang, oom, slow, noport: "
                "did you mean 'raise'?",
                f"engine_args.fault[2]: 'load' is not KEY=VALUE: {FORM}: correct it",
                f"engine_args.fault[3]: found 7: a text: {FORM}: correct it",
            ],
        ),
        ({"rank": 1}, [f"engine_args.fault: found {{'rank': 1}}: a text: {FORM}: correct it"]),
    ],
)
def test_a_wrong_fault_is_refused_before_anything_starts(fault: Tree, messages: list[str]) -> None:
    """Every fault of every text is one sentence, with what was probably meant."""
    with pytest.raises(PlanError) as caught:
        make_plan(tensor_parallel_size=8, engine_args={"fault": fault})
    assert [str(problem) for problem in caught.value.problems] == messages


@pytest.mark.parametrize(
    ("fault", "parameter"),
    [
        (FIRST, FIRST),
        ([FIRST, SECOND], f"{FIRST};{SECOND}:sleep"),
        ([], None),
    ],
)
def test_faults_reach_the_model_as_one_text(fault: Tree, parameter: str | None) -> None:
    """A text or a list of texts; without any the configuration is the same as ever."""
    plan = make_plan(tensor_parallel_size=2, engine_args={"fault": fault, "seed": 3})
    assert plan.server.parameters.get("fault") == parameter
    assert plan.server.parameters["seed"] == "3"
    without = make_plan(tensor_parallel_size=2, engine_args={"seed": 3}).server.parameters
    assert {name: text for name, text in plan.server.parameters.items() if name != "fault"} == without


def test_ranks_are_counted_over_all_replicas() -> None:
    """The second replica's leader is rank 2 of two replicas of two ranks."""
    plan = make_plan(tensor_parallel_size=2, replicas=2, engine_args={"fault": "rank=2,at=load,kind=noport"})
    assert plan.server.parameters["fault"] == "rank=2,at=load,kind=noport"


def rehearse(folder: Path, spec: dict[str, object], *words: str) -> Result:
    """Run `rehearse --dry-run` on a spec."""
    path = folder / "demo.yaml"
    path.write_text(json.dumps(spec))
    return CliRunner().invoke(cli, ["rehearse", str(path), "--site", "devcluster", "--dry-run", "--json", *words])


@pytest.mark.parametrize("engine", ["rehearsal", "vllm"])
def test_the_flag_asks_for_faults(engine: str, tmp_path: Path) -> None:
    """For a spec of any engine; they stand in the model's configuration, and in the spec that the run keeps."""
    own = {"model": "m", "engine_args": {"x": 1}} if engine == "vllm" else {"engine_args": {"seed": 1}}
    spec = {**SPEC, "engine": engine, **own}
    done = rehearse(tmp_path, spec, "--fault", FIRST, "--fault", SECOND)
    assert done.exit_code == 0, done.output
    files = json.loads(done.stdout)["files"]
    config = files["model_repository/tensorrt_llm/config.pbtxt"]
    assert f'parameters {{ key: "fault" value: {{ string_value: "{FIRST};{SECOND}:sleep" }} }}' in config
    assert FIRST in files["spec.yaml"]
    assert {f"model_repository/tensorrt_llm/1/{name}.py" for name in ("faults", "strikes")} <= set(files)
    assert json.loads(files["record.json"])["rehearsal_of"] == (None if engine == "rehearsal" else engine)


def test_the_flag_replaces_the_specs_own(tmp_path: Path) -> None:
    """A spec with a fault is tried with another one; without the flag its own counts."""
    spec = {**SPEC, "engine_args": {"fault": SECOND}}
    config = "model_repository/tensorrt_llm/config.pbtxt"
    assert f'"{SECOND}:sleep"' in json.loads(rehearse(tmp_path, spec).stdout)["files"][config]
    assert f'"{FIRST}"' in json.loads(rehearse(tmp_path, spec, "--fault", FIRST).stdout)["files"][config]


def test_a_wrong_flag_is_told_like_a_wrong_spec(tmp_path: Path) -> None:
    """Exit code and sentence of a plan that cannot be."""
    done = rehearse(tmp_path, dict(SPEC), "--fault", "rank=2,at=load,kind=raise")
    assert done.exit_code == PlanError.exit_code
    assert "engine_args.fault[0]: rank 2 of a job with 2 ranks: 0 to 1: correct it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ({"device": "gpu"}, ["engine_args.device: found 'gpu': cpu, cuda: correct it"]),
        ({"device": "cuda", "hold_mib": -1}, ["engine_args.hold_mib: found -1: a whole number from 0: correct it"]),
        (
            {"hold_mib": 10},
            [
                "engine_args.hold_mib: takes memory of a GPU, and the rehearsal uses none: "
                "set engine_args.device to cuda, or remove it"
            ],
        ),
    ],
)
def test_a_wrong_device_is_refused(arguments: dict[str, Tree], messages: list[str]) -> None:
    """What the GPU option cannot do is said before anything starts."""
    with pytest.raises(PlanError) as caught:
        make_plan(engine_args=arguments)
    assert [str(problem) for problem in caught.value.problems] == messages


def test_a_device_reaches_the_model() -> None:
    """The words of the spec are those that the engine reads, and it brings its file."""
    plan = make_plan(engine_args={"device": "cuda", "hold_mib": 10})
    assert {name: plan.server.parameters[name] for name in ("device", "hold_mib")} == {
        "device": "cuda",
        "hold_mib": "10",
    }
    assert DEVICES == cuda.DEVICES
    assert any(one.asset == "cuda.py" for one in plan.server.repository)
