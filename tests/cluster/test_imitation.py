"""Packaged profiles on imitated clusters: Slurm itself judges what is rendered for them, and jobs really run."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_llm import devcluster
from slurm_llm.imitation import imitate
from slurm_llm.sites.load import parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.trial import Trial, parse_trial, trial_argv
from slurm_llm.yamlio import Document, Tree
from tests.cluster.conftest import Cluster, User, watched_user
from tests.sites.shipped import SITES, Job, Shape, account_of, jobs_of, profile_of

pytestmark = pytest.mark.cluster

PAPER = Path("/var/lib/slurm_llm/devcluster-paper")
REAL = Path("/var/lib/slurm_llm/devcluster-like")
USER = os.environ.get("DEVCLUSTER_USER", "llm")

NOT_IMITATED = {
    "coreweave-sunk": ("segment", "gb200"),
    "gb200-nvl72": ("segment", "rack", "racks"),
    "nersc-perlmutter": ("image", "regular", "regular-80g", "debug", "premium", "preempt", "shared"),
}
"""Site → an option that sbatch 22.05 does not know, and the partitions that have it.

`--segment` came with Slurm 24.05; `--image` (and `--module` with it) is of Shifter's own plugin. These lines are taken
out, and the rest of the script is judged.
"""
LEFT_OUT = {"segment": ("--segment=",), "image": ("--image=", "--module=")}

ENVIRONMENT: Tree = {"OMPI_MCA_mpi_yield_when_idle": 1, "SLURM_PMIX_FENCE": "ring"}
"""As in the `devcluster` profile: what this machine's MPI wants."""

DEMO_SITE: dict[str, Tree] = {
    "schema_version": 1,
    "name": "typed-9.1",
    "slurm": {"kill_wait_s": 10},
    "account": {"required": True, "pattern": r"project\d+"},
    "partitions": {
        "premium": {
            "qos": "premium",
            "constraint": "gpu&hbm80g",
            "gpus_per_node": 4,
            "gpu": {"slurm_type": "h100"},
            "gpu_request": {"style": "gpus_per_node", "typed": True},
            "cpus": {"per_node": 8, "per_rank": 1},
            "memory": {"per_rank": "2G"},
            "licenses": "scratch:1",
            "time": {"max": "01:00:00", "default": "00:10:00"},
            "limits": {"max_nodes": 2},
        },
        "whole": {
            "slurm_partition": "whole",
            "gpus_per_node": 2,
            "gpu_request": {"style": "none", "step": "gres"},
            "whole_node": True,
            "exclude_nodes": "bad[1-3]",
            "cpus": {"per_node": 4, "per_rank": 2},
            "time": {"default": "00:10:00"},
        },
    },
    "policies": {"forbid": ["--nodelist"], "require": ["--time"]},
    "launcher": {"mpi": "pmix", "step": {"wait_s": 10}},
    "env": {"set": ENVIRONMENT},
}


@pytest.fixture(scope="module")
def paper() -> Iterator[Path]:
    """Name the state directory of clusters on paper; the database of one serves the next."""
    devcluster.down(PAPER)
    yield PAPER
    devcluster.down(PAPER)


def on_paper(state: Path, shape: devcluster.Shape) -> Cluster:
    """Bring up a cluster on paper, or give the one that is there another shape."""
    status = devcluster.up(devcluster.ClusterSpec(state=state, user=USER, own_shape=shape, paper=True))
    assert status.all_up
    return Cluster(state, status.slurm_conf, USER, ())


def judge(cluster: Cluster, text: str) -> Trial:
    """Return what Slurm says of a script that the ordinary user hands in."""
    folder = Path(pwd.getpwnam(cluster.user).pw_dir)
    script = folder / "judged.sub"
    script.write_text(text)
    script.chmod(0o644)
    try:
        return parse_trial(User(cluster, folder).run(*trial_argv(str(script)), check=False))
    finally:
        script.unlink()


def without(text: str, options: tuple[str, ...]) -> str:
    """Return a script without the `#SBATCH` lines of some options."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(tuple(f"#SBATCH {o}" for o in options)))


def jobs_with_files(name: str) -> list[tuple[Job, str]]:
    """Return a site's jobs, those of the smallest size where two nodes are too few, each with its script."""
    site = profile_of(name)
    found = [(job, files["job.sub"]) for job, files in jobs_of(name)]
    for part, partition in site.partitions.items():
        fewest = partition.limits.min_nodes or 1
        if fewest > 2:
            job = Job(site, part, Shape("least", fewest, partition.gpus_per_node))
            found.append((job, job.files()["job.sub"]))
    return found


@pytest.mark.parametrize("name", SITES)
def test_slurm_takes_every_job_of_a_packaged_profile(name: str, paper: Path) -> None:
    """One GPU, a node and two nodes, in every partition that takes them, pass `sbatch --test-only`."""
    option, *partitions = NOT_IMITATED.get(name, ("",))
    made = imitate(profile_of(name), paper=True, account=account_of(profile_of(name)))
    cluster = on_paper(paper, made.shape)
    refused, judged = {}, set()
    for job, text in jobs_with_files(name):
        script = text
        if job.partition in partitions:
            assert f"unrecognized option '--{option}=" in judge(cluster, text).said, job.name
            script = without(text, LEFT_OUT[option])
        trial = judge(cluster, script)
        judged.add(job.partition)
        if not trial.accepted:
            refused[job.name] = trial.said
    assert refused == {}
    assert judged == set(profile_of(name).partitions)


def job_of(partition: str, **changes: Tree) -> Job:
    """Return a job of two nodes on the demo's site; `changes` to its partition its cluster does not know of."""
    partitions = DEMO_SITE["partitions"]
    assert isinstance(partitions, dict)
    own = partitions[partition]
    assert isinstance(own, dict)
    values: dict[str, Tree] = {**DEMO_SITE, "partitions": {partition: {**own, **changes}}}
    if changes:
        # The plan itself would keep to them.
        del values["policies"]
    site = parse_site(Document("site", values))
    return Job(site, partition, Shape("two", 2, site.partitions[partition].gpus_per_node))


REFUSALS: dict[str, tuple[dict[str, Tree], str]] = {
    "constraint": ({"constraint": "hbm40g"}, "Invalid feature specification"),
    "gpu type": ({"gpu": {"slurm_type": "a100"}}, "Requested node configuration is not available"),
    "gpus": ({"gpus_per_node": 5}, "Requested node configuration is not available"),
    "memory": ({"memory": {"per_rank": "9G"}}, "Requested node configuration is not available"),
    "cpus": ({"cpus": {"per_node": 12, "per_rank": 3}}, "More processors requested than permitted"),
    "qos": ({"qos": "debug"}, "Invalid qos specification"),
    "licence": ({"licenses": "work:1"}, "Invalid license specification"),
    "partition": ({"slurm_partition": "batch"}, "invalid partition specified"),
    "reservation": ({"reservation": "mig"}, "Requested reservation is invalid"),
    "time": ({"time": {"default": "02:00:00", "max": "03:00:00"}}, "Requested time limit is invalid"),
    "excluded node": ({"exclude_nodes": "bad9"}, "Invalid node name specified"),
    "filter": ({"sbatch_extra": ["--nodelist=bad1"]}, "--nodelist is refused here"),
    "no account": ({"sbatch_skip": ["--account"]}, "--account must be given here"),
    "account": ({"account": {"pattern": "aip-.*"}}, "Invalid account"),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_slurm_refuses_what_the_site_does_not_have(fault: str, paper: Path) -> None:
    """Each thing that an imitated site has is really there: a job that names another one is refused, for that."""
    changes, why = REFUSALS[fault]
    cluster = on_paper(paper, imitate(parse_site(Document("site", DEMO_SITE))).shape)
    assert judge(cluster, job_of("premium").files()["job.sub"]).accepted
    trial = judge(cluster, job_of("premium", **changes).files()["job.sub"])
    assert not trial.accepted
    assert why in trial.said


@contextmanager
def with_nodes(site: SiteProfile) -> Iterator[Cluster]:
    """Bring up a cluster that imitates a site, with nodes that run jobs."""
    devcluster.down(REAL)
    try:
        status = devcluster.up(devcluster.ClusterSpec(state=REAL, user=USER, own_shape=imitate(site).shape))
        yield Cluster(REAL, status.slurm_conf, USER, tuple(node.name for node in status.nodes))
    finally:
        devcluster.down(REAL)


def rehearse(user: User, site: str, spec: dict[str, Tree]) -> set[str]:
    """Run a rehearsal on two nodes until it serves, end it, and return what its ranks saw as their GPUs."""
    run = user.submit({"name": "demo", "engine": "rehearsal", "pipeline_parallel_size": 2, **spec}, site=site)
    run.wait_ready()
    starts = [record for record in run.records() if record["kind"] == "start"]
    assert len({record["node"] for record in starts}) == 2
    run.cli("cancel")
    assert run.wait_ended()["state"] == "COMPLETED"
    return {record["gpus"] for record in starts}


def test_rehearsals_run_on_an_imitated_site(request: pytest.FixtureRequest) -> None:
    """Typed GPUs, QOS, constraint, licence, account; whole nodes whose steps ask: ranks see all GPUs of a node."""
    with with_nodes(parse_site(Document("site", DEMO_SITE))) as cluster:
        for user in watched_user(cluster, request.node.name):
            site = user.folder / "site.yaml"
            site.write_text(json.dumps(DEMO_SITE))
            site.chmod(0o644)
            common: dict[str, Tree] = {"account": "project1"}
            premium = {**common, "partition": "premium", "tensor_parallel_size": 4}
            assert rehearse(user, str(site), premium) == {"0,1,2,3"}
            whole = {**common, "partition": "whole", "tensor_parallel_size": 2}
            assert rehearse(user, str(site), whole) == {"0,1"}


def test_a_packaged_profile_runs_on_its_imitation(request: pytest.FixtureRequest) -> None:
    """Raven's job as it is rendered runs, but for what the machine does not have: containers, modules, folders."""
    here: dict[str, Tree] = {
        "container": {"runtime": "none"},
        "modules": {"load": []},
        "storage": {"logs": None, "images": None, "hf_home": None},
        "env": {"set": ENVIRONMENT},
    }
    with with_nodes(profile_of("mpcdf-raven")) as cluster:
        for user in watched_user(cluster, request.node.name):
            spec: dict[str, Tree] = {"partition": "gpu-bw", "tensor_parallel_size": 4, "site": here}
            assert rehearse(user, "mpcdf-raven", spec) == {"0,1,2,3"}
