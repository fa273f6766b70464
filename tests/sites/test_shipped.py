"""Every packaged profile is one that a user can start with: sound, documented, and rendered as its cluster takes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slurm_llm.plan import build_plan
from slurm_llm.rundir import ENTER_SCRIPT, JOB_SCRIPT
from slurm_llm.sites.lint import lint_document, lint_secrets
from slurm_llm.sites.load import load_site, overlay_of
from slurm_llm.slurm.options import option_name
from slurm_llm.spec import parse_spec
from slurm_llm.yamlio import parse_document
from tests.render.sbatch_reader import read_options
from tests.sites.shipped import (
    CLUSTERS,
    DEFINITION,
    SCRIPTS,
    SITES,
    STEPS,
    Shape,
    jobs_of,
    of_the_site,
    profile_of,
    shapes_of,
)

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "sites"
GOLDEN = Path(__file__).parent / "golden"


def _golden(name: str) -> dict[str, str]:
    """Return file name → text of a site's golden files: jobs of one node and of two in its default partition.

    Of the jobs' scripts only what is the site's: the rest is the same everywhere, and golden in tests/render.
    """
    default = profile_of(name).partition_name(None)
    files = {}
    for job, made in jobs_of(name):
        if job.partition == default and job.shape.name != "gpu":
            files[f"{job.shape.name}.sub"] = of_the_site(made[JOB_SCRIPT])
            files |= {file: made[file] for file in (ENTER_SCRIPT, DEFINITION) if file in made}
    return files


def test_there_are_profiles() -> None:
    """The tests below have something to test: more than twenty clusters."""
    assert len(CLUSTERS) > 20


@pytest.mark.parametrize("name", SITES)
def test_a_profile_has_no_error(name: str) -> None:
    """Lint finds no error in what its layers make, and no secret in its own text."""
    site = load_site(name, {})
    findings = lint_document(site.document, today=date(2026, 12, 1), stem=name)
    findings += lint_secrets(site.path.read_text(), str(site.path))
    assert [str(finding) for finding in findings if finding.severity == "error"] == []


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_profile_says_where_its_facts_are_from(name: str) -> None:
    """Sources that can be opened, and an honest word on how far they were tried."""
    site = profile_of(name)
    assert site.description
    assert site.sources
    for url in (site.docs_url or "", *site.sources):
        assert urlsplit(url).scheme == "https" and urlsplit(url).hostname, url
    assert site.verified is not None
    assert date.fromisoformat(site.verified.date) >= date(2026, 1, 1)
    assert site.verified.state != "documentation" or site.verified.note


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_profile_has_its_page(name: str) -> None:
    """The page of the same stem names every partition, and the profile, which says where its facts are from."""
    page = (PAGES / f"{name}.md").read_text()
    site = profile_of(name)
    assert [partition for partition in site.partitions if f"`{partition}`" not in page] == []
    assert f"`site_configs/{name}.yaml`" in page


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_pages_specs_fit_the_site(name: str) -> None:
    """What a reader copies from the page can be planned there."""
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / f"{name}.md").read_text(), re.DOTALL)
    specs = [block for block in blocks if re.search(r"^engine:", block, re.MULTILINE)]
    assert specs
    for text in specs:
        document = parse_document(text, f"{name}.md")
        site = load_site(name, {}, overlay_of(document)).profile
        assert build_plan(parse_spec(document), site).ranks


@pytest.mark.parametrize("name", SITES)
def test_jobs_keep_the_sites_rules(name: str) -> None:
    """Nothing that the site refuses is asked of Slurm, and everything that it insists on is."""
    jobs = jobs_of(name)
    assert jobs
    for job, files in jobs:
        site, options = job.profile, read_options(files[JOB_SCRIPT])
        names = {f"--{option_name(option)}" for option in options}
        assert names & {*site.policies.forbid, *site.sbatch_skip} == set(), job.name
        assert set(site.policies.require) <= names, job.name


@pytest.mark.parametrize("name", SITES)
def test_jobs_take_what_the_partition_has(name: str) -> None:
    """As many nodes and ranks as planned, within the partition's time, GPUs in its own dialect."""
    for job, files in jobs_of(name):
        partition, options = job.profile.partitions[job.partition], read_options(files[JOB_SCRIPT])
        assert f"--nodes={job.shape.nodes}" in options, job.name
        asked = [option for option in options if option.startswith(("--gres=", "--gpus"))]
        style = partition.gpu_request.style
        assert bool(asked) == (style != "none" and partition.gpus_per_node > 0), job.name
        for option in asked:
            # A total alone could be spread unevenly over several nodes.
            alike = style == "gpus" and job.shape.nodes > 1 and option.startswith("--gpus-per-node=")
            assert alike or option.startswith(f"--{style.replace('_', '-')}="), job.name
            assert not partition.gpu_request.typed or f"{partition.gpu.slurm_type}:" in option, job.name


@pytest.mark.parametrize("name", SITES)
def test_shells_read_every_script(name: str, tmp_path: Path) -> None:
    """bash finds no fault of syntax and shellcheck has no remark, in any script of any job on the site."""
    assert shutil.which("shellcheck"), "shellcheck is not installed: apt-get install shellcheck"
    texts: dict[str, str] = {}
    for job, files in jobs_of(name):
        for script in SCRIPTS:
            if script in files:
                texts.setdefault(files[script], f"{job.name}.{script}")
    for text, file in texts.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    paths = [str(tmp_path / file) for file in texts.values()]
    for path in paths:
        read = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, ""), path
    command = ["shellcheck", "--shell=bash", "--format=gcc", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C.UTF-8"})
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", SITES)
def test_job_scripts_are_as_reviewed(name: str, request: pytest.FixtureRequest) -> None:
    """Each file is the golden one; with --update-golden, the golden one is written instead."""
    folder, files = GOLDEN / name, _golden(name)
    assert "one.sub" in files
    if request.config.getoption("--update-golden", default=False):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_bytes(text.encode())
    assert {path.name for path in folder.glob("*")} == set(files), (
        "run pytest tests/sites --update-golden and review it"
    )
    for file, text in files.items():
        assert (folder / file).read_bytes().decode() == text, (
            f"{folder / file} differs: if that is meant, --update-golden"
        )


@pytest.mark.parametrize("name", SITES)
def test_golden_files_have_every_step_and_every_variable(name: str) -> None:
    """What is left out of a script must not be the site's: it would change unseen."""
    for job, made in jobs_of(name):
        text = of_the_site(made[JOB_SCRIPT])
        assert [mark for mark in STEPS if mark not in text] == [], job.name
        assert read_options(text) == read_options(made[JOB_SCRIPT])
        site = job.profile
        assert [key for key in site.env.set if f"export {key}=" not in text] == [], job.name
        assert [key for key in site.env.unset if f"unset {key}\n" not in text] == [], job.name
        assert [one for one in site.modules.load if f"module load {one}" not in text] == [], job.name
        assert [shell for shell in (site.prologue, site.epilogue) if shell and shell.splitlines()[0] not in text] == []


def test_no_golden_file_is_left_over() -> None:
    """Every folder of golden files belongs to a packaged profile."""
    assert {path.name for path in GOLDEN.iterdir()} == set(SITES)


def test_shapes_follow_the_partitions_limits() -> None:
    """The table of jobs leaves out what a partition does not take, and nothing else."""
    site = profile_of("psc-bridges2")
    assert shapes_of(site.partitions["h100"]) == [Shape("gpu", 1, 1), Shape("one", 1, 8), Shape("two", 2, 8)]
    assert shapes_of(site.partitions["h100-shared"]) == [Shape("gpu", 1, 1), Shape("one", 1, 4)]
