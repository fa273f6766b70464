"""The table of features in docs/features.md: every feature has its spec, every spec its golden run.

A golden file holds what of an example's run directory follows from the spec: options of the job, the lines that start
the servers, and the model repository. The rest is that of every job and golden in tests/render.
`pytest tests/test_features.py --update-golden` writes the files anew; the difference is for a person to review.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_llm.plan import Plan, build_plan
from slurm_llm.render import Target, render
from slurm_llm.rundir import JOB_SCRIPT, RANK_SCRIPT, REPOSITORY, REPOSITORY_RECIPE
from slurm_llm.sites.load import laid_over, load_site
from slurm_llm.spec import JobSpec, load_spec

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "features.md"
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))
GOLDEN = ROOT / "tests" / "render" / "golden-examples"

FEATURES = {
    "TensorRT-LLM": (
        *("LLM API quick start", "tensor and pipeline parallel", "expert parallel", "cancel by request id"),
        *("leader mode", "orchestrator mode", "multi-instance", "multi-node", "MIG", "scheduling", "KV cache"),
        *("decoding", "chunked context", "quantization", "LoRA", "Slurm", "metrics", "benchmarking"),
    ),
    "vLLM": (
        *("model.json", "multi-GPU", "GPU_DEVICE_IDS", "distinct prefixes", "additional outputs", "metrics"),
        "health check",
    ),
}
"""What NVIDIA's pages of the two backends document for serving."""

PLACES = ("real", "stand-in", "rehearsed", "assembled", "rendered")
"""Where a feature may have run, as the page explains these words."""

COMMANDS = re.compile(r"command\+?=|^\[\[ -v |^export |^ *frontend=|^ *role=")


@dataclass(frozen=True)
class Row:
    """One line of the page's tables: a feature of an engine, its examples, where it has run, and tests that ran it."""

    engine: str
    feature: str
    examples: tuple[str, ...]
    places: tuple[str, ...]
    tests: tuple[str, ...]


def read_rows() -> list[Row]:
    """Return the rows of every table below a heading that names an engine."""
    rows, engine = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            engine = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) != 4 or cells[0] == "feature":
            continue
        feature, specs, places, tests = cells
        named = tuple(re.findall(r"\]\(examples/([\w.-]+)\)", specs))
        rows.append(
            Row(engine, feature, named, tuple(places.split(", ")), tuple(re.findall(r"`(tests/[\w./]+)", tests)))
        )
    return rows


ROWS = read_rows()


@pytest.mark.parametrize("engine", FEATURES)
def test_every_feature_of_nvidias_page_has_its_row(engine: str) -> None:
    """None is left out, however it is served."""
    told = " ".join(row.feature for row in ROWS if row.engine == engine).lower()
    assert [feature for feature in FEATURES[engine] if feature.lower() not in told] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.engine}: {row.feature}")
def test_a_row_is_true_to_what_is_there(row: Row) -> None:
    """Its specs exist and are of its engine; what is said to have run names the test that runs it."""
    assert row.examples
    for name in row.examples:
        engine = load_spec(ROOT / "docs" / "examples" / name).engine
        assert engine in {"TensorRT-LLM": ("llmapi", "tensorrtllm"), "vLLM": ("vllm",)}.get(row.engine, (engine,))
    assert set(row.places) <= set(PLACES)
    assert bool(row.tests) == (row.places != ("rendered",))
    for name in row.tests:
        assert (ROOT / name).is_file(), name


def test_every_example_is_in_the_tables() -> None:
    """A spec that nobody is pointed to helps nobody."""
    named = {name for row in ROWS for name in row.examples}
    assert {path.name for path in EXAMPLES} - named == set()


def plan_of(spec: JobSpec) -> Plan:
    """Plan an example: those with an image on a site with pyxis and nodes of eight GPUs, as in tests/test_docs.py."""
    site = load_site("devcluster" if spec.container is None else "aws-hyperpod", {})
    return build_plan(spec, (laid_over(site, dict(spec.site), label="spec: site") if spec.site else site).profile)


def listing(spec: JobSpec) -> str:
    """Return what of the run directory follows from the spec, as one text."""
    plan = plan_of(spec)
    files = render(plan, Target(Path("/runs/demo"), "/usr/bin/python3", {"USER": "somebody"}))
    size = f"{len(plan.instances)} × {plan.world_size} ranks on {plan.allocation.nodes} nodes"
    parts = [f"== {plan.engine}, {plan.launch} launch: {size}", f"probe: {plan.probe.path} {plan.probe.body}"]
    job = files[JOB_SCRIPT].splitlines()
    parts += ["", f"== {JOB_SCRIPT}", *(line for line in job if line.startswith("#SBATCH "))]
    starts = [number for number, line in enumerate(job) if f"/{RANK_SCRIPT}" in line]
    parts += ["", *(line.strip() for number in starts for line in job[number - 1 : number + 1])]
    rank = files[RANK_SCRIPT].splitlines()
    parts += ["", f"== {RANK_SCRIPT}", *(line.rstrip() for line in rank if COMMANDS.search(line))]
    for name in sorted(files):
        if name.startswith(f"{REPOSITORY}/") or name == REPOSITORY_RECIPE:
            # The rehearsal engine's own program is no text of the spec.
            text = files[name] if not name.endswith(".py") else "(packaged)\n"
            parts += ["", f"== {name}", text.rstrip("\n")]
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_renders_as_reviewed(path: Path, request: pytest.FixtureRequest) -> None:
    """Each is the golden one; with the option, the golden one is written instead."""
    golden, text = GOLDEN / f"{path.stem}.txt", listing(load_spec(path))
    if request.config.getoption("--update-golden", default=False):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert golden.is_file(), f"{golden} is missing: run pytest tests/test_features.py --update-golden and review it"
    assert golden.read_text(encoding="utf-8") == text, f"{golden} differs: if that is meant, --update-golden"


def test_no_golden_file_is_left_over() -> None:
    """An example that goes takes its golden file with it."""
    assert {path.stem for path in GOLDEN.iterdir()} == {path.stem for path in EXAMPLES}
