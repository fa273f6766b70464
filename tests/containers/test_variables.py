"""enter.sh with a fake runtime on PATH: which variables of the task get into the container; none is evaluated."""

from __future__ import annotations

import subprocess

import pytest

from slurm_llm.yamlio import Tree
from tests.containers.entering import BATCH, ODD, Place


@pytest.mark.parametrize("runtime", ["podman_hpc", "enroot"])
def test_variables_are_named_where_the_runtime_starts_with_none(place: Place, runtime: str) -> None:
    """What Slurm, MPI, fabrics and GPUs set, and what the plan names; values with breaks only where they can pass."""
    env = {
        **dict.fromkeys(("UCX_TLS", "NCCL_DEBUG", "OMPI_MCA_a", "PMI_FD", "HWLOC_XMLFILE", "HF_TOKEN"), "x"),
        **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), "x"),
        **dict.fromkeys(("MASTER_ADDR", "http_proxy", "OURS", "NOT_OURS", "CUDA_HOME", "LD_LIBRARY_PATH"), "x"),
        "SLURM_ODD": "a=b 'c' \"d\"",
        "NCCL_ODD": "two\nlines",
    }
    found = place.enter(runtime, env=env, rules={"pass_env": ["OURS", "UNSET"]})
    names = {word[len("--env=") :] for word in found.words if word.startswith("--env=")}
    refused = {"NOT_OURS", "CUDA_HOME", "LD_LIBRARY_PATH", *(["NCCL_ODD"] if runtime == "enroot" else [])}
    added = {"OMPI_MCA_btl_vader_single_copy_mechanism"}
    assert names == ({*env, *BATCH} | added) - refused
    assert all(found.environment[name] == value for name, value in env.items())


def test_shifter_is_given_values(place: Place) -> None:
    """The image's own would win; an empty value is refused by shifter."""
    env = {"OURS": ODD, "EMPTY": "", "OTHER": "x"}
    found = place.enter("shifter", env=env, rules={"pass_env": ["OURS", "EMPTY", "UNSET"]})
    assert [word for word in found.words if word.startswith("--env=")] == [f"--env=OURS={ODD}"]


def test_shifters_command_line_shows_no_secret(place: Place) -> None:
    """Every user of a node can list its processes: a secret goes in with the environment alone."""
    env = {"HF_TOKEN": "hf_of_mine", "DB_PASSWORD": "word of mine", "OURS": "x"}
    found = place.enter("shifter", env=env, rules={"pass_env": [*env]})
    assert [word for word in found.words if word.startswith("--env=")] == ["--env=OURS=x"]
    assert not any("of mine" in word or "of_mine" in word for word in found.words)
    assert found.environment["HF_TOKEN"] == env["HF_TOKEN"]


def as_the_image_reads(value: str) -> str:
    """Return `value` as Apptainer's shell in the image reads it: double quotes around, only quotes escaped."""
    text = value.replace('"', '\\"')
    done = subprocess.run(["bash", "-c", f'X="{text}"; printf %s "$X"'], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(("runtime", "prefix"), [("apptainer", "APPTAINERENV_"), ("singularity", "SINGULARITYENV_")])
def test_apptainers_shell_evaluates_no_value(place: Place, runtime: str, prefix: str) -> None:
    """A `$(…)` in a variable would run in the container, by every rank."""
    found = place.enter(runtime, env={"OURS": ODD, "NCCL_DEBUG": "x"}, rules={"pass_env": ["OURS", "UNSET"]})
    forced = {name: value for name, value in found.environment.items() if name.startswith(prefix)}
    assert set(forced) == {f"{prefix}OURS"}
    assert as_the_image_reads(forced[f"{prefix}OURS"]) == ODD
    assert found.environment["OURS"] == ODD


@pytest.mark.parametrize(
    ("rules", "collected", "evaluated"),
    [
        ({"apptainer": {"cleanenv": True}}, True, True),
        ({"apptainer": {"containall": True}}, True, True),
        ({"extra": ["-e"]}, True, True),
        ({"extra": ["--compat"]}, True, False),
        ({"extra": ["--no-eval"]}, False, False),
        ({}, False, True),
    ],
)
def test_apptainer_with_an_empty_environment(
    place: Place, rules: dict[str, Tree], collected: bool, evaluated: bool
) -> None:
    """Whatever empties it, Slurm's and MPI's variables get in; with --no-eval the value is taken as it stands."""
    found = place.enter("apptainer", env={"OURS": ODD, "NCCL_X": ODD}, rules={**rules, "pass_env": ["OURS"]})
    assert {f"APPTAINERENV_{name}" in found.environment for name in (*BATCH, "NCCL_X")} == {collected}
    value = found.environment["APPTAINERENV_OURS"]
    assert (as_the_image_reads(value) if evaluated else value) == ODD
