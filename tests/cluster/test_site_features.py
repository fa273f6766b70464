"""What a profile changes in a job, seen from inside real jobs: variables, modules, limits, launchers, templates."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.assets import templates_dir
from tests.cluster.conftest import Run, User, wait_for
from tests.cluster.test_main_job import ask

pytestmark = pytest.mark.cluster

MODULE = """module() {
    [ "$1" != load ] || export LOADED="${LOADED-}[$2]"
    [ "$2" != broken ] || { echo "Lmod has detected the following error: broken" >&2; return 1; }
}
"""


def _write(user: User, name: str, text: str) -> Path:
    path = user.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    owner = pwd.getpwnam(user.cluster.user)
    os.chown(path, owner.pw_uid, owner.pw_gid)
    return path


def _site(user: User, **values: Any) -> Path:
    """Write a profile that is the devcluster's with some keys changed."""
    profile = {"name": "mine", "schema_version": 1, "extends": "devcluster", **values}
    return _write(user, "mine.yaml", json.dumps(profile))


def _submit(user: User, site: Path, spec: dict[str, Any], *words: str) -> Run:
    path = user.write_spec({"engine": "rehearsal", **spec})
    done = user.run(*words, *user.program, "submit", str(path), "--site", str(site), "--json")
    value = json.loads(done.stdout)
    run = Run(user, Path(value["directory"]), int(value["job_id"]))
    user.runs.append(run)
    return run


def test_variables_modules_and_limits_reach_every_rank(user: User) -> None:
    """Sourced files, paths put in front, soft limits, MASTER_ADDR; a clock that cannot be locked is a warning."""
    _write(user, "my modules/init/bash", MODULE)
    sourced = _write(user, "nccl env.sh", "export SOURCED=yes A=sourced\n: $UNSET_VARIABLE\n")
    site = _site(
        user,
        env={"set": {"A": "b c", "OLD": "x"}, "source": [str(sourced)], "prepend": {"LIBS": ["/a b", "/c"]}},
        modules={"purge": True, "use": ["/my apps"], "load": ["one", "two"]},
        ulimits={"nofile": 512, "core": 0, "memlock": "unlimited"},
        network={"interface": "eth0", "rendezvous": {"source": "interface_ip", "family": "ipv4"}},
        policies={"gpu_clocks": True},
        step_prologue='env -0 >"$LLMRUN_ATTEMPT/inside-$rank"; ulimit -n >"$LLMRUN_ATTEMPT/limit-$rank"',
    )
    spec = {
        "name": "features",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "gpu_clocks": "1410,1410",
        "env": {"OLD": "spec"},
    }
    modules = ("env", f"MODULESHOME={user.folder}/my modules", "LIBS=/from submit")
    run = _submit(user, site, spec, *modules)
    run.wait_ready()
    first = user.cluster.on_node(user.cluster.nodes[0], "hostname", "-i").stdout.split()[0]
    for rank in (0, 7):
        pairs = (run.attempt / f"inside-{rank}").read_text().split("\0")
        inside = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        assert (inside["A"], inside["OLD"], inside["SOURCED"]) == ("b c", "spec", "yes")
        assert inside["LIBS"] == "/a b:/c:/from submit"
        assert inside["LOADED"] == "[one][two]"
        assert inside["NCCL_SOCKET_IFNAME"] == "eth0"
        assert inside["MASTER_ADDR"] == first
        assert (run.attempt / f"limit-{rank}").read_text().strip() == "512"
    warning = "slurm_llm: warning: GPU clocks of node node1 are not locked: sudo -n nvidia-smi -lgc 1410,1410"
    wait_for("the warning", lambda: warning.replace("node1", user.cluster.nodes[0]) in run.output())
    run.cli("cancel")


def test_a_module_that_fails_ends_the_job_at_once(user: User) -> None:
    """Before any step, with the command that failed in the job's output."""
    _write(user, "my modules/init/bash", MODULE)
    site = _site(user, modules={"load": ["broken"]})
    run = _submit(user, site, {"name": "broken"}, "env", f"MODULESHOME={user.folder}/my modules")
    run.wait_gone()
    assert run.slurm_state() == "FAILED"
    assert "slurm_llm: failed: module load broken" in run.output()


@pytest.mark.parametrize("command", ["mpirun", "mpirun -np {ntasks} --map-by ppr:{ntasks_per_node}:node --tag-output"])
def test_ranks_that_mpirun_starts_serve_too(user: User, command: str) -> None:
    """Where the site's launcher is not srun the MPI library says which rank is which."""
    site = _site(user, launcher={"command": command})
    spec = {"name": "mpirun", "tensor_parallel_size": 4, "resources": {"nodes": 2, "time": "00:10:00"}}
    run = _submit(user, site, spec)
    answer = ask(run.url(), "Hello", sampling_param_max_tokens=4)
    assert answer["text_output"]
    health = json.loads(run.cli("health", "--json").stdout)
    assert [row["node"] for row in health] == [node for node in user.cluster.nodes[:2] for _ in range(2)]
    run.cli("cancel")
    run.wait_gone()


DIALECTS: dict[str, dict[str, Any]] = {
    "gres": {"style": "gres"},
    "gpus_per_node": {"style": "gpus_per_node"},
    "gpus": {"style": "gpus"},
    "gpus_per_task": {"style": "gpus_per_task"},
    "none": {"style": "none", "step": "gres"},
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_rank_sees_the_jobs_gpus_in_every_dialect(user: User, dialect: str) -> None:
    """Two ranks on each of two nodes see both of the job's GPUs there; agents and preflight hold none of them."""
    partition = {"gpu_request": DIALECTS[dialect], "exclusive": dialect == "none"}
    site = _site(user, partitions={"batch": partition})
    spec = {"name": "gpus", "tensor_parallel_size": 4, "resources": {"nodes": 2, "time": "00:10:00"}}
    run = _submit(user, site, spec)
    run.wait_ready()
    seen = {item["rank"]: item["gpus"] for item in run.records() if item["kind"] == "start"}
    assert sorted(seen) == [0, 1, 2, 3]
    assert all(len(gpus.split(",")) == 2 for gpus in seen.values()), seen
    run.cli("cancel")


def test_a_template_of_the_site_takes_the_packaged_ones_place(user: User) -> None:
    """The folder may hold one template only; the others are the package's."""
    text = (templates_dir() / "rank.sh.j2").read_text()
    changed = text.replace("set -u\n", "set -u\necho changed by the site >&2\n", 1)
    template = _write(user, "our templates/rank.sh.j2", changed)
    site = _site(user, templates=str(template.parent))
    run = _submit(user, site, {"name": "templates"})
    run.wait_ready()
    assert "changed by the site" in (run.attempt / "step-0.log").read_text()
    run.cli("cancel")
