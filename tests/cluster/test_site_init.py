"""A profile drafted from the live cluster runs the demo's job as it is, for an ordinary user."""

from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest

from slurm_llm.sites.load import parse_site
from slurm_llm.yamlio import load_document
from tests.cluster.conftest import User

pytestmark = pytest.mark.cluster

NAME = "drafted"


def test_a_drafted_profile_runs_the_demo(user: User) -> None:
    """init, lint, submit, ready, an answer, cancel; a second init overwrites nothing."""
    path = Path(pwd.getpwnam(user.cluster.user).pw_dir) / f".config/slurm_llm/sites/{NAME}.yaml"
    path.unlink(missing_ok=True)
    try:
        done = user.cli("site", "init", "--name", NAME)
        assert done.stdout.startswith(f"wrote {path}\n")
        _says_what_the_cluster_is(path)
        assert user.cli("site", "init", "--name", NAME, check=False).returncode == 3
        linted = json.loads(user.cli("site", "lint", str(path), "--json").stdout)
        assert {one["severity"] for one in linted["findings"]} <= {"warning"}

        run = user.submit(site=NAME)
        run.wait_ready()
        assert len(run.cli("generate", "Hello", "--max-tokens", "8").stdout.strip()) > 0
        run.cli("cancel")
        assert run.wait_ended()["state"] == "COMPLETED"
    finally:
        path.unlink(missing_ok=True)


def _says_what_the_cluster_is(path: Path) -> None:
    """What was read is right; the devcluster's own profile says the same by hand."""
    site = parse_site(load_document(path))
    own = site.partitions["batch"]
    assert (site.slurm.kill_wait_s, site.launcher.mpi, site.default_partition) == (10, "pmix", "batch")
    assert (own.slurm_partition, own.nodes, own.gpus_per_node, own.cpus.per_node) == ("batch", 4, 4, 8)
    assert (own.time.max, own.time.default, own.memory.per_rank) == ("1-00:00:00", "01:00:00", "4000M")
    assert site.account.required is False
    assert "debug" in site.partitions
