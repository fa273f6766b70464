"""Every rendered script is sound: bash -n, shellcheck, directives where sbatch reads them, and the srun lines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_llm.errors import InputError
from slurm_llm.plan import Plan
from slurm_llm.plan.steps import helper_step, world_step
from slurm_llm.render import Target, slurm_pattern
from slurm_llm.yamlio import Tree
from tests.render.rendered_jobs import LAYOUTS, Case, fronts, make_case, matrix, recoveries, releases, special
from tests.render.sbatch_reader import read_options

CASES = matrix()
SCRIPTS = ("job.sub", "rank.sh")
RUN_DIR = "/runs/demo"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every script of the matrix as a file; equal texts once."""
    folder = tmp_path_factory.mktemp("scripts")
    texts: dict[str, str] = {}
    for case in (*CASES, *special(), *releases(), *recoveries(), *fronts()):
        files = case.files()
        for name in SCRIPTS:
            texts.setdefault(files[name], f"{case.name}.{name}")
    for text, name in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


def test_bash_reads_every_script(scripts: list[Path]) -> None:
    """`bash -n` finds no fault of syntax."""
    for path in scripts:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path.name


def test_shellcheck_finds_nothing(scripts: list[Path]) -> None:
    """shellcheck has no remark on any script of any layout, site and switch."""
    assert shutil.which("shellcheck"), "shellcheck is not installed: apt-get install shellcheck"
    command = ["shellcheck", "--shell=bash", "--format=gcc", *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_directives_follow_the_shebang(case: Case) -> None:
    """The directives are one block right below the shebang, and sbatch reads one option of each."""
    lines = case.files()["job.sub"].split("\n")
    count = sum(line.startswith("#SBATCH") for line in lines)
    assert lines[0] == "#!/bin/bash"
    assert all(line.startswith("#SBATCH --") for line in lines[1 : 1 + count])
    assert len(read_options("\n".join(lines))) == count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sbatch_reads_what_was_planned(case: Case) -> None:
    """Names, counts and the user's own options arrive as they are in the plan."""
    plan, options = case.plan, read_options(case.files()["job.sub"])
    own = plan.allocation
    assert options[:5] == [
        "--job-name=demo",
        f"--nodes={own.nodes}",
        f"--ntasks={len(plan.ranks)}",
        f"--ntasks-per-node={own.ranks_per_node}",
        f"--cpus-per-task={own.cpus_per_rank}",
    ]
    for name in ("time", "partition", "account", "qos", "constraint", "reservation"):
        value = getattr(own, name)
        assert [option for option in options if option.startswith(f"--{name}=")] == (
            [] if value is None else [f"--{name}={value}"]
        )
    assert "--output=/runs/demo/slurm-%j.out" in options
    assert tuple(options[len(options) - len(own.extra) :]) == own.extra


@pytest.mark.parametrize(
    ("site", "job", "helper"),
    [
        ("devcluster", ["--gres=gpu:4"], ["--gres=none"]),
        ("generic", ["--gpus-per-node=4"], ["--gres=none"]),
        ("typed-gpus", ["--gpus-per-node=a100:4"], ["--gres=none"]),
        ("typed-gres", ["--gres=gpu:h100:4"], ["--gres=none"]),
        ("no-gpu-request", [], []),
        ("cpus-only", [], []),
    ],
)
def test_gpus_are_asked_for_in_the_sites_dialect(site: str, job: list[str], helper: list[str]) -> None:
    """Job and ranks ask alike, helper steps take none, and nothing is asked where nothing is to be asked."""
    case = make_case("gpus", site, LAYOUTS["tp4"])

    def asked(options: tuple[str, ...] | list[str]) -> list[str]:
        return [option for option in options if option.startswith(("--gres", "--gpus"))]

    assert asked(read_options(case.files()["job.sub"])) == job
    assert asked(world_step(case.plan, RUN_DIR)) == job
    assert asked(helper_step(case.plan)) == helper


def _steps(plan: Plan) -> list[tuple[str, ...]]:
    return [world_step(plan, RUN_DIR, one) for one in plan.instances]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_step_states_its_own_shape(case: Case) -> None:
    """srun reads the job's environment as options, so each step says nodes, tasks, CPUs and MPI itself."""
    plan = case.plan
    for step in (helper_step(plan), world_step(plan, RUN_DIR), *_steps(plan)):
        stated = {option.partition("=")[0] for option in step}
        assert {"--mpi", "--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task", "--unbuffered"} <= stated
        assert {"--kill-on-bad-exit", "--wait", "--export"} <= stated
    steps = _steps(plan)
    tasks = [int(option.partition("=")[2]) for step in steps for option in step if option.startswith("--ntasks=")]
    assert sum(tasks) == len(plan.ranks)
    relative = [option for step in steps for option in step if option.startswith("--relative")]
    expected = [f"--relative={one.first_node}" for one in plan.instances] if plan.replicas > 1 else []
    assert relative == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_job_starts_one_step_an_instance(case: Case) -> None:
    """One srun of rank.sh for each instance, with its first rank; the preflight joins MPI only when it is to."""
    text = case.files()["job.sub"]
    for one in case.plan.instances:
        assert f'bash "$run/rank.sh" {one.index} {one.first_rank}' in text
    assert text.count('rank.sh"') == case.plan.replicas
    assert "preflight --ranks" in text
    assert (" --mpi </dev/null" in text) == case.plan.preflight_mpi


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_model_repository_is_whole(case: Case) -> None:
    """The configuration and the model's files lie below the model's name; every text ends with a line end."""
    files = case.files()
    repository = {name for name in files if name.startswith("model_repository/")}
    assert "model_repository/tensorrt_llm/config.pbtxt" in repository
    assert "model_repository/tensorrt_llm/1/model.py" in repository
    assert len(repository) == len(case.plan.server.repository)
    assert {"job.sub", "rank.sh", "plan.json", "agent/__main__.py"} <= set(files)
    assert all(text.endswith("\n") for text in files.values())


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "two words",
        'it\'s "q" `x` $(x)',
        "100% %j",
        "-lead",
        "x" * 300,
        "模型 é",
        "back\\slash\\",
        "#x",
        "''",
        " ",
    ],
)
def test_a_name_arrives_at_slurm_as_it_is(name: str) -> None:
    """Whatever the name, `--job-name` is it, and the script stays one that bash reads."""
    text = make_case("name", "devcluster", {"name": name}).files()["job.sub"]
    assert read_options(text)[0] == f"--job-name={name}"
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_long_and_strange_names_are_short_in_comments() -> None:
    """A comment shows at most 80 characters, none of which moves the terminal's cursor or the text's direction."""
    text = make_case("name", "devcluster", {"name": "a\u202eb" + "x" * 300}).files()["rank.sh"]
    comment = text.split("\n")[1]
    assert "a?bxxx" in comment
    assert "…" in comment
    assert len(comment) < 160


@pytest.mark.parametrize(
    ("extra", "read"),
    [
        ("--comment=a b", "--comment=a b"),
        ("--comment=it's", "--comment=it's"),
        ('--comment="a"', '--comment="a"'),
        ("--comment=a\\b", "--comment=a\\b"),
        ("--comment=#x", "--comment=#x"),
        ("--comment=$(id)", "--comment=$(id)"),
        ("--comment= x ", "--comment= x "),
        ("-ba'b\"c", "-ba'b\"c"),
        ("--spread-job", "--spread-job"),
    ],
)
def test_extra_options_arrive_as_they_are(extra: str, read: str) -> None:
    """The quoting of a directive is undone by sbatch's own reader."""
    values: dict[str, Tree] = {"sbatch_extra": [extra]}
    assert read_options(make_case("extra", "devcluster", values).files()["job.sub"])[-1] == read


@pytest.mark.parametrize("folder", ["/a b/c", "/it's", '/"q"', "/100%j", "/$(id)", "/é"])
def test_the_output_pattern_is_the_run_directory(folder: str) -> None:
    """A percent sign of the path is doubled, so that Slurm puts none of its values there."""
    text = make_case("out", "devcluster").files(Target(Path(folder), "/usr/bin/python3"))["job.sub"]
    (output,) = [option for option in read_options(text) if option.startswith("--output=")]
    assert output == f"--output={folder.replace('%', '%%')}/slurm-%j.out"


@pytest.mark.parametrize("folder", ["/back\\slash", "/new\nline", "/tab\t"])
def test_a_run_directory_that_slurm_cannot_name_is_refused(folder: str) -> None:
    """A backslash would turn off Slurm's patterns, a line end would end the directive."""
    with pytest.raises(InputError, match="cannot be a run directory: no backslash or control character: set log_root"):
        slurm_pattern(folder)
