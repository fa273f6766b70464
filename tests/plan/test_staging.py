"""`staging` of a spec: which folders are copied, where servers then look for them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.modelfiles import ModelFiles
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.plan.staging import at_home, check_room
from slurm_llm.sites.load import load_site
from slurm_llm.spec import JobSpec, spec_from_mapping
from tests.plan.sites_for_plans import make_site

SITE = load_site("devcluster", {}).profile


def spec(**more: Any) -> JobSpec:
    """Return a vLLM job of a model that is a path."""
    return spec_from_mapping({"name": "x", "engine": "vllm", "model": "/models/llama 8b", "staging": {}, **more})


def built(**more: Any) -> Plan:
    """Return its plan."""
    return build_plan(spec(**more), SITE)


def text_of(plan: Plan) -> str:
    """Return the texts that the server reads."""
    return "\n".join(file.text or "" for file in plan.server.repository)


def test_the_server_reads_the_copy() -> None:
    """Its configuration names the copy, in plain letters, and no longer the shared folder."""
    plan = built()
    assert plan.staging is not None
    (one,) = plan.staging.folders
    assert (one.source, one.target.rpartition("-")[0]) == ("/models/llama 8b", "/tmp/llmstage/llama-8b")
    assert one.target in text_of(plan)
    assert "/models/llama 8b" not in text_of(plan)
    assert plan.model == "/models/llama 8b"


def test_what_lies_in_a_copied_folder_is_read_there() -> None:
    """Adapters and the like, however deep in the arguments; other paths stay."""
    args = {"lora": {"a": "/models/llama 8b/lora/a", "b": "/elsewhere/b"}}
    plan = built(engine_args={**args, "enable_lora": True})
    assert plan.staging is not None
    target = plan.staging.folders[0].target
    assert f"{target}/lora/a" in text_of(plan)
    assert "/elsewhere/b" in text_of(plan)


def test_folders_that_are_named_take_the_place_of_the_usual_ones() -> None:
    """Each once; one that lies in another goes with that."""
    plan = built(staging={"folders": ["/models", "/models/llama 8b", "/data/x"]})
    assert plan.staging is not None
    assert [one.source for one in plan.staging.folders] == ["/data/x", "/models"]


def test_it_survives_json_and_is_not_there_unasked() -> None:
    """A plan of a job without it is as it was before there was such a thing."""
    plan = built(staging={"keep": True, "exclude": ["*.bin"], "streams": 8})
    assert plan_from_json(plan_to_json(plan)) == plan
    assert "staging" not in plan_to_json(built(staging=None))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": "facebook/opt-125m"}, "'facebook/opt-125m' is no path"),
        ({"staging": {"to": "relative"}}, "must be an absolute path"),
        ({"staging": {"streams": 0}}, "must be at least 1"),
    ],
    ids=["hub", "relative", "streams"],
)
def test_what_cannot_be_copied_is_refused(more: dict[str, Any], words: str) -> None:
    """In one sentence that says what to do."""
    with pytest.raises(Exception, match=words):
        built(**more)


def test_a_folder_that_the_container_lacks_is_refused() -> None:
    """Ranks in an image see the site's node-local folders, and no other."""
    site = make_site(container={"runtime": "apptainer"}, storage={"local": "/scratch", "staging": "/nvme"})
    own = {"container": {"image": "/images/x.sif"}}
    for to in ("/scratch/me", "/nvme"):
        build_plan(spec(staging={"to": to}, **own), site)
    with pytest.raises(PlanError, match=r"staging\.to.*below /scratch or /nvme"):
        build_plan(spec(staging={"to": "/data"}, **own), site)
    plan = build_plan(spec(**own), site)
    assert plan.container is not None
    assert "/nvme" in {mount.source for mount in plan.container.mounts}


def test_a_model_of_the_hub_is_found_in_the_cache(tmp_path: Path) -> None:
    """Its snapshot is copied; the folder of copies is the user's own."""
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    files = ModelFiles({"HF_HOME": str(tmp_path)}, tmp_path)
    home = at_home(spec(model="org/name"), SITE, files, 1234)
    assert (home.model, home.staging and home.staging.to) == (str(snapshot), "/tmp/llmstage-1234")
    assert at_home(home, SITE, files, 1234) == home
    own = at_home(spec(staging={"to": "/nvme/me/"}), SITE, files, 1234)
    assert own.staging is not None
    assert own.staging.to == "/nvme/me/llmstage-1234"


def test_more_than_the_disks_take_is_refused_before_it_is_submitted(tmp_path: Path) -> None:
    """With both figures, as far as the files can be seen here."""
    (tmp_path / "a.safetensors").touch()
    with (tmp_path / "a.safetensors").open("r+b") as stream:
        stream.truncate(7_000_000_000)
    files, own = ModelFiles({}, tmp_path), spec(model=str(tmp_path))
    assert check_room(own, make_site(storage={"staging_gb": 8}), files) == []
    (problem,) = check_room(own, make_site(storage={"staging_gb": 6}), files)
    assert "hold 7 GB" in problem.what
    assert "takes 6 GB" in problem.what
