"""The srun line that gets beside a rank: for both ways into a container, older Slurms, and where there is no place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.containers import expand
from slurm_llm.entering import Side, find_side, shell_words
from slurm_llm.errors import InputError, NotReady, SetupError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.rundir import RunPaths
from slurm_llm.runs import status_of
from slurm_llm.sites.load import load_site
from slurm_llm.slurm.formats import JobId
from slurm_llm.spec import spec_from_mapping
from slurm_llm.yamlio import Tree
from tests.observe.run_dirs import FakeSlurm, RunDir, around, make_plan, squeue_row

RUN = "/runs/my run"


def side(plan: Plan, cluster: str | None = None) -> Side:
    """Return a place beside a rank."""
    return Side(plan, RunPaths(Path(RUN)), JobId(7, cluster=cluster), "node2", "7.0", "/opt/py")


def planned(site: str) -> Plan:
    """Return a plan with an image on a site."""
    image: Tree = {"image": "/images/trtllm.sqsh"}
    spec = spec_from_mapping(
        {"name": "a", "engine": "llmapi", "model": "/m", "tensor_parallel_size": 8, "container": image}
    )
    plan = build_plan(spec, load_site(site, {}).profile)
    assert plan.container is not None
    # As in the plan of a run, whose paths are written out.
    return replace(plan, container=expand(plan.container, lambda path: path.replace("$USER", "me")))


def test_srun_enters_the_container_itself() -> None:
    """With pyxis the step has the image, and the image's own Python looks for the rank."""
    argv = shell_words(side(planned("aws-hyperpod")), 3, ("nvidia-smi",), pty=True)
    at = argv.index("python3")
    assert argv[at:] == ("python3", "-I", f"{RUN}/agent", *enter("--rank", "3", "--", "nvidia-smi"))
    options = argv[:at]
    assert {"--overlap", "--jobid=7", "--nodelist=node2", "--ntasks=1", "--pty"} <= set(options)
    assert [word for word in options if word.startswith("--container-image=")]


def enter(*words: str) -> tuple[str, ...]:
    """Return the agent's verb as it is called here."""
    return ("enter", "--run", RUN, "--tag", "7.0", *words)


def test_a_script_enters_it_on_the_node() -> None:
    """Elsewhere the job's own environment comes first, then the runtime, then the rank's."""
    plan = planned("aws-hyperpod")
    assert plan.container is not None
    plan = replace(plan, container=replace(plan.container, runtime="charliecloud", program="ch-run"))
    argv = shell_words(side(plan), 0, (), pty=False)
    at = argv.index("/opt/py")
    inner = ("bash", f"{RUN}/enter.sh", "python3", "-I", f"{RUN}/agent", *enter("--rank", "0", "--"))
    assert argv[at:] == ("/opt/py", "-I", f"{RUN}/agent", *enter("--"), *inner)
    assert "--pty" not in argv


@pytest.mark.parametrize(("version", "shares"), [("21.08", False), ("23.11", True)])
def test_older_slurms_share_less(version: str, shares: bool) -> None:
    """Before 22.05 a step beside others may hold neither memory nor GPUs, or it would wait for them."""
    argv = shell_words(side(replace(make_plan(), slurm=version), "other"), 0, ("id",), pty=False)
    assert ("--mem=0" in argv) is ("--gres=none" in argv) is not shares
    assert ("--gres=gpu:2" in argv) is shares
    assert "--clusters=other" in argv


def test_where_there_is_no_place(tmp_path: Path) -> None:
    """A run that has ended, a rank that is not there, a script without a Python, a plan of another release."""
    run = RunDir(tmp_path / "demo-20261130-104000-abcd").serving()
    here = around(tmp_path, FakeSlurm([squeue_row(7, "RUNNING")]))

    def find(rank: int) -> Side:
        return find_side(run.job, status_of(run.job, here), rank)

    with pytest.raises(SetupError, match="does not say which Python"):
        find(3)
    run.paths.script.write_text("#!/bin/bash\npython='/opt/my py'\n")
    found = find(3)
    assert (found.node, found.tag, found.job.number, found.python) == ("node2", "7.0", 7, "/opt/my py")
    with pytest.raises(InputError, match="has no rank 8: there are ranks 0 to 7"):
        find(8)
    plan = run.paths.plan.read_text()
    run.paths.plan.write_text(plan.replace('"schema": 1', '"schema": 99'))
    with pytest.raises(SetupError, match="another release"):
        find(3)
    run.paths.plan.write_text(plan)
    run.result("COMPLETED")
    with pytest.raises(NotReady, match="nothing of it runs: it is COMPLETED"):
        find(3)
