"""Submitting: a run directory is whole or absent, a refusal leaves nothing, what cannot start is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_llm.app import (
    Job,
    Rendered,
    check_cluster,
    log_root,
    make_job,
    new_run_dir,
    plan_job,
    render_job,
    submit_job,
    write_run,
)
from slurm_llm.errors import InputError, PlanError, SetupError, SlurmLlmError, SpecError, SubmitError
from slurm_llm.process import NOT_FOUND_RC, Completed
from slurm_llm.sites.load import load_site
from slurm_llm.slurm.commands import SEPARATOR
from slurm_llm.spec import spec_from_mapping
from slurm_llm.surroundings import Surroundings
from slurm_llm.yamlio import Tree
from tests.render.sbatch_reader import read_options

Answer = tuple[int, str, str]


def _partition(name: str, nodes: int) -> str:
    return SEPARATOR.join((name, "up", "1-00:00:00", str(nodes), "8", "16000", "gpu:4"))


SINFO: Answer = (0, "\n".join((_partition("batch*", 4), _partition("debug", 2))) + "\n", "")


@dataclass
class FakeSlurm:
    """Answers sinfo and sbatch with given texts, and keeps every call; `on_sbatch` looks while sbatch would run."""

    sbatch: Answer = (0, "4711\n", "")
    sinfo: Answer = SINFO
    on_sbatch: Callable[[Path], None] = lambda script: None
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed:
        """Answer one command."""
        self.calls.append(tuple(argv))
        if argv[0] == "sbatch":
            self.on_sbatch(Path(argv[-1]))
        code, out, err = {"sbatch": self.sbatch, "sinfo": self.sinfo}[argv[0]]
        return Completed(tuple(argv), code, out, err)

    @property
    def programs(self) -> list[str]:
        """Names of the programs that were run."""
        return [call[0] for call in self.calls]


def _around(tmp_path: Path, slurm: FakeSlurm | None = None, **environ: str) -> Surroundings:
    return Surroundings({"HOME": str(tmp_path / "home"), **environ}, tmp_path, slurm or FakeSlurm())


def _job(**values: Tree) -> Job:
    spec = spec_from_mapping({"name": "demo", "engine": "rehearsal", "triton": {"server": "/opt/t"}, **values})
    return make_job(spec, load_site("devcluster", {}))


def _rendered(job: Job, around: Surroundings) -> Rendered:
    return render_job(job, new_run_dir(job, around), around)


def _everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_submitted_run_is_whole_and_recorded(tmp_path: Path) -> None:
    """The script is executable, spec, site, plan and record lie beside it, and the job's id is written below it."""
    slurm = FakeSlurm()
    around = _around(tmp_path, slurm)
    job = _job(tensor_parallel_size=2)
    rendered = _rendered(job, around)
    job_id = submit_job(job, rendered, around).job_id
    root = rendered.paths.root
    assert job_id.number == 4711
    assert {"job.sub", "rank.sh", "plan.json", "spec.yaml", "site.yaml", "record.json"} <= {
        path.name for path in root.iterdir()
    }
    assert os.access(root / "job.sub", os.X_OK)
    assert json.loads((root / "job-4711" / "job.json").read_text())["by"] == "submit"
    assert json.loads((root / "record.json").read_text())["world_size"] == 2
    assert slurm.programs == ["sinfo", "sbatch"]
    assert slurm.calls[-1][-1] == str(root / "job.sub")
    known = tmp_path / "home" / ".local" / "state" / "slurm_llm" / "runs"
    assert known.read_text().splitlines() == [str(root)]


def test_the_run_directory_is_there_before_sbatch(tmp_path: Path) -> None:
    """A job that starts at once finds every file; nothing half-written is ever visible under the final name."""
    seen: list[list[str]] = []
    slurm = FakeSlurm(on_sbatch=lambda script: seen.append(_everything_below(script.parent)))
    around = _around(tmp_path, slurm)
    rendered = _rendered(_job(), around)
    submit_job(_job(), rendered, around)
    (names,) = seen
    assert set(rendered.texts) <= set(names)


def test_a_refusal_leaves_nothing_behind(tmp_path: Path) -> None:
    """When sbatch refuses, its words come back and neither directory nor record stays."""
    said = "sbatch: error: Batch job submission failed: Invalid account\n"
    slurm = FakeSlurm(sbatch=(1, "", said))
    around = _around(tmp_path, slurm)
    job = _job(log_root="logs")
    with pytest.raises(SubmitError, match="Invalid account") as caught:
        submit_job(job, _rendered(job, around), around)
    assert (caught.value.returncode, caught.value.stderr) == (1, said)
    assert _everything_below(tmp_path) == ["logs"]


@pytest.mark.parametrize(
    ("said", "advised"),
    [
        ("sbatch: error: Batch job submission failed: Invalid feature specification\n", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller\n", False),
    ],
)
def test_a_refusal_ends_with_the_command_that_explains_it(tmp_path: Path, said: str, advised: bool) -> None:
    """Where a key of the profile is to blame; a controller that is down is nobody's key."""
    around = _around(tmp_path, FakeSlurm(sbatch=(1, "", said)))
    with pytest.raises(SubmitError) as caught:
        submit_job(_job(), _rendered(_job(), around), around)
    told = [str(problem) for problem in caught.value.problems]
    advice = ["`slurm-llm site check devcluster:batch` says which key of the profile that is about"]
    assert told[1:] == (advice if advised else [])
    job = _site_job(around, {})
    with pytest.raises(SubmitError) as caught:
        submit_job(job, _rendered(job, around), around)
    place = tmp_path / "sites" / "here.yaml"
    assert (f"`slurm-llm site check {place}:gpu`" in str(caught.value.problems[-1])) is advised


def test_without_slurm_nothing_is_written(tmp_path: Path) -> None:
    """A machine without Slurm's commands gets one sentence."""
    slurm = FakeSlurm(sinfo=(NOT_FOUND_RC, "", "sinfo: No such file or directory"))
    around = _around(tmp_path, slurm)
    with pytest.raises(SetupError, match="Slurm's `sinfo` is not on PATH"):
        submit_job(_job(), _rendered(_job(), around), around)
    assert _everything_below(tmp_path) == []


def test_a_job_that_wrote_its_own_record_keeps_it(tmp_path: Path) -> None:
    """A job that started before submit came back has written job.json; it is not written again."""

    def start(script: Path) -> None:
        (script.parent / "job-4711").mkdir()
        (script.parent / "job-4711" / "job.json").write_text('{"by": "sbatch"}')

    around = _around(tmp_path, FakeSlurm(on_sbatch=start))
    rendered = _rendered(_job(), around)
    submit_job(_job(), rendered, around)
    assert (rendered.paths.root / "job-4711" / "job.json").read_text() == '{"by": "sbatch"}'


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"tensor_parallel_size": 32},
            "resources.nodes: the job needs 8 nodes, partition batch has 4: ask for fewer ranks or another partition",
        ),
        (
            {"tensor_parallel_size": 12, "partition": "debug"},
            "resources.nodes: the job needs 3 nodes, partition debug has 2: ask for fewer ranks or another partition",
        ),
    ],
)
def test_more_nodes_than_the_partition_has_are_refused(tmp_path: Path, values: dict[str, Tree], message: str) -> None:
    """Slurm would take such a job and leave it pending for ever."""
    slurm = FakeSlurm()
    around = _around(tmp_path, slurm)
    job = _job(**values)
    with pytest.raises(PlanError) as caught:
        submit_job(job, _rendered(job, around), around)
    assert str(caught.value) == message
    assert slurm.programs == ["sinfo"]
    assert _everything_below(tmp_path) == []


def test_a_partition_that_this_cluster_has_not_is_refused(tmp_path: Path) -> None:
    """The wrong site for this cluster is told, with the partitions that there are."""
    around = _around(tmp_path, FakeSlurm(sinfo=(0, _partition("other*", 9) + "\n", "")))
    with pytest.raises(PlanError) as caught:
        submit_job(_job(), _rendered(_job(), around), around)
    assert str(caught.value) == (
        "partition: this cluster has no partition 'batch' (site devcluster): other: "
        "is this the right site for this cluster?"
    )


def test_a_partition_of_several_kinds_of_nodes_is_added_up() -> None:
    """sinfo has a line for each kind of node."""
    around = FakeSlurm(sinfo=(0, f"{_partition('batch*', 4)}\n{_partition('batch*', 4)}\n", ""))
    job = _job(tensor_parallel_size=32)
    check_cluster(job, Surroundings({}, Path("/"), around).slurm().partitions())


def test_a_log_root_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A file where a folder should be gets the system's reason, and what to do."""
    (tmp_path / "logs").write_text("a file")
    around = _around(tmp_path)
    with pytest.raises(SetupError, match=r"cannot be written: .*: set log_root to a folder of yours"):
        write_run(_rendered(_job(), around))
    assert _everything_below(tmp_path) == ["logs"]


def test_the_profiles_folder_of_logs_is_named_as_such(tmp_path: Path) -> None:
    """Who has written no log_root is told the profile's key and line; a spec's own log_root is named as before."""
    (tmp_path / "full").write_text("a file")
    around, profile = _around(tmp_path), tmp_path / "sites" / "here.yaml"
    job = _site_job(around, {"storage": {"logs": str(tmp_path / "full")}})
    todo = f"set log_root to a folder of yours, or correct storage.logs \\({profile}:1\\)"
    with pytest.raises(SetupError, match=f"cannot be written: .*: {todo}"):
        write_run(_rendered(job, around))
    job = _site_job(around, {"storage": {"logs": "$NOWHERE/x"}})
    with pytest.raises(InputError, match=f"^{profile}:1: storage.logs: '\\$NOWHERE/x' uses \\$NOWHERE, which is not"):
        log_root(job, around)
    assert log_root(_site_job(around, {"storage": {"logs": "$NOWHERE/x"}}, log_root="y"), around) == tmp_path / "y"


def test_a_partitions_own_folder_of_logs_counts(tmp_path: Path) -> None:
    """A partition may change where run directories go, as all of the site's storage."""
    around = _around(tmp_path)
    partitions: dict[str, Tree] = {"gpu": {"gpus_per_node": 4, "storage": {"logs": "/own"}}}
    job = _site_job(around, {"storage": {"logs": "/site"}, "partitions": partitions})
    assert log_root(job, around) == Path("/own")


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    """A file that cannot be written takes the whole draft with it."""
    around = _around(tmp_path)
    rendered = _rendered(_job(), around)
    broken = Rendered(rendered.paths, {**rendered.texts, "job.sub/impossible": "x"}, {})
    with pytest.raises(SetupError, match="cannot be written"):
        write_run(broken)
    assert _everything_below(tmp_path / "logs") == []


def test_an_existing_run_directory_is_not_overwritten(tmp_path: Path) -> None:
    """Two runs never share a directory."""
    around = _around(tmp_path)
    rendered = _rendered(_job(), around)
    write_run(rendered)
    (rendered.paths.root / "mine").write_text("keep")
    with pytest.raises(SetupError, match="cannot be written"):
        write_run(rendered)
    assert (rendered.paths.root / "mine").read_text() == "keep"
    assert list(rendered.paths.root.parent.iterdir()) == [rendered.paths.root]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "{cwd}/logs"),
        ("runs", "{cwd}/runs"),
        ("../up/./x", "{cwd}/../up/x"),
        ("/abs/runs", "/abs/runs"),
        ("~/runs", "{cwd}/home/runs"),
        ("~", "{cwd}/home"),
        ("$WORK/runs", "/work dir/runs"),
        ("${WORK}_x/runs", "/work dir_x/runs"),
        ("/a/$USER_ID/$WORK", "/a/u1//work dir"),
        ('/a b/it\'s "q" 100%', '/a b/it\'s "q" 100%'),
    ],
)
def test_the_log_root_is_expanded_by_us(tmp_path: Path, given: str | None, expected: str) -> None:
    """`~` and variables are replaced, since Slurm replaces neither; a relative path starts at the caller's folder."""
    around = _around(tmp_path, WORK="/work dir", USER_ID="u1")
    path = log_root(_job(log_root=given), around)
    assert path == Path(os.path.normpath(expected.format(cwd=tmp_path)))
    assert path.is_absolute()


@pytest.mark.parametrize("given", ["$MISSING/runs", "${MISSING}/runs", "/a/$(touch pwned)", "/a/$"])
def test_a_log_root_with_an_unset_variable_is_refused(tmp_path: Path, given: str) -> None:
    """A variable that is not set is told by its name, and `$(…)` is never run."""
    said = r"log_root: .* (uses \$MISSING, which is not set|holds a \$ that names no variable)"
    with pytest.raises(InputError, match=said):
        log_root(_job(log_root=given), _around(tmp_path))


@pytest.mark.parametrize("name", ["a b", "it's", '"q"', "100%j", "`touch pwned`", "é"])
def test_a_log_root_of_any_characters_works(tmp_path: Path, name: str) -> None:
    """Spaces, quotes, percent signs and back quotes in the path reach Slurm as they are."""
    around = _around(tmp_path)
    job = _job(log_root=name)
    rendered = _rendered(job, around)
    submit_job(job, rendered, around)
    root = rendered.paths.root
    assert root.parent == tmp_path / name
    (output,) = [option for option in read_options((root / "job.sub").read_text()) if option.startswith("--output=")]
    assert output == f"--output={str(root).replace('%', '%%')}/slurm-%j.out"
    assert not (tmp_path / "pwned").exists()


def test_a_log_root_with_a_backslash_is_refused(tmp_path: Path) -> None:
    """Slurm would write its output elsewhere."""
    around = _around(tmp_path)
    with pytest.raises(InputError, match="cannot be a run directory: no backslash or control character"):
        _rendered(_job(log_root="a\\b"), around)


@pytest.mark.parametrize("name", ["meta-llama/Llama 3", "-rf", "x" * 300, "100%", "模型", "../../up"])
def test_any_name_makes_one_plain_folder(tmp_path: Path, name: str) -> None:
    """The folder's name is a slug and the run's id, whatever the name, and the record keeps the name."""
    around = _around(tmp_path)
    rendered = _rendered(_job(name=name), around)
    write_run(rendered)
    assert rendered.paths.root.parent == tmp_path / "logs"
    assert len(rendered.paths.root.name) <= 64 + 21
    assert json.loads((rendered.paths.root / "record.json").read_text(encoding="utf-8"))["name"] == name


def test_spec_and_site_of_a_run_give_the_same_plan(tmp_path: Path) -> None:
    """What lies in the run directory is enough to make its plan again."""
    around = _around(tmp_path)
    job = _job(name="a: b #c", tensor_parallel_size=4, env={"A": "1e3", "B": "010", "C": "no"})
    rendered = _rendered(job, around)
    write_run(rendered)
    root = rendered.paths.root
    again = plan_job(root / "spec.yaml", str(root / "site.yaml"), (), around)
    assert (again.spec, again.plan) == (job.spec, job.plan)


def test_faults_of_spec_and_site_come_together(tmp_path: Path) -> None:
    """A wrong spec does not hide an unknown site."""
    path = tmp_path / "spec.yaml"
    path.write_text("name: a\nengine: rehearsal\nreplicas: 0\n")
    with pytest.raises(SpecError) as caught:
        plan_job(path, "nowhere", (), _around(tmp_path))
    assert [problem.where for problem in caught.value.problems] == [f"{path}:3", "--site nowhere"]


BAD_SPECS: dict[str, tuple[str | bytes, str, int]] = {
    "unknown key": ("name: a\nengine: rehearsal\ntensor_paralel_size: 2\n", "did you mean 'tensor_parallel_size'?", 3),
    "wrong type": ("name: a\nengine: rehearsal\nreplicas: two\n", "must be a whole number", 3),
    "tp that does not divide": (
        "name: a\nengine: rehearsal\ntensor_parallel_size: 4\nmoe_expert_parallel_size: 3\n",
        "3 does not divide tensor_parallel_size 4",
        4,
    ),
    "more GPUs than a node has": (
        "name: a\nengine: rehearsal\nresources: {gpus_per_node: 9}\n",
        "9 GPUs a node asked for, a node of this partition has 4",
        4,
    ),
    "empty file": ("", "the file is empty", 3),
    "a YAML list": ("- name: a\n", "the file holds a list", 3),
    "a 10 MB file": (b"#" * 10_000_000, "the file has more than 1048576 bytes", 3),
    "no text": (b"\x00\xff", "not UTF-8 text", 3),
}


@pytest.mark.parametrize(("content", "message", "code"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_bad_input_is_one_sentence_and_submits_nothing(
    tmp_path: Path, content: str | bytes, message: str, code: int
) -> None:
    """Each kind of bad file has its message and exit code, and Slurm is never asked."""
    path = tmp_path / "spec.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    slurm = FakeSlurm()
    with pytest.raises(SlurmLlmError) as caught:
        plan_job(path, "devcluster", (), _around(tmp_path, slurm))
    assert (len(caught.value.problems), caught.value.exit_code) == (1, code)
    assert message in str(caught.value)
    assert slurm.calls == []


def test_a_rehearsal_of_another_engine_keeps_ranks_and_launch(tmp_path: Path) -> None:
    """`rehearse` turns a spec of any engine into one that runs here, and says of which."""
    spec = spec_from_mapping(
        {"name": "a", "engine": "vllm", "model": "m", "tensor_parallel_size": 4, "engine_args": {"x": 1}}
    )
    job = make_job(spec, load_site("devcluster", {}), rehearse=True)
    assert (job.plan.engine, job.rehearsal_of, len(job.plan.ranks)) == ("rehearsal", "vllm", 4)


def _site_job(around: Surroundings, site: dict[str, Tree], **values: Tree) -> Job:
    base: dict[str, Tree] = {"schema_version": 1, "name": "here", "partitions": {"gpu": {"gpus_per_node": 4}}}
    profile = {**base, "launcher": {"mpi": "pmix"}, **site}
    folder = around.cwd / "sites"
    folder.mkdir(exist_ok=True)
    (folder / "here.yaml").write_text(json.dumps(profile))
    spec = spec_from_mapping({"name": "demo", "engine": "rehearsal", "triton": {"server": "/opt/t"}, **values})
    return make_job(spec, load_site(str(folder / "here.yaml"), {}), around)


def test_an_account_may_come_from_the_environment(tmp_path: Path) -> None:
    """The site names the variables; the first one that is set counts, and the spec's own account wins."""
    site: dict[str, Tree] = {"account": {"required": True, "env": ["FIRST", "SECOND"]}}
    around = _around(tmp_path, FIRST="", SECOND="b")
    assert _site_job(around, site).plan.allocation.account == "b"
    assert _site_job(around, site, account="c").plan.allocation.account == "c"
    with pytest.raises(PlanError, match="requires an account"):
        _site_job(_around(tmp_path), site)


def test_slurms_release_is_asked_for_unless_the_profile_knows(tmp_path: Path) -> None:
    """`sbatch --version` where the profile says nothing; a machine without Slurm plans for an unknown release."""
    around = _around(tmp_path, FakeSlurm(sbatch=(0, "slurm 23.11.4\n", "")))
    assert _site_job(around, {}).plan.slurm == "23.11.4"
    assert _site_job(around, {"slurm": {"version": "22.05"}}).plan.slurm == "22.05.0"
    without = _around(tmp_path, FakeSlurm(sbatch=(NOT_FOUND_RC, "", "sbatch: No such file or directory")))
    assert _site_job(without, {}).plan.slurm is None


def test_a_site_takes_jobs_from_its_own_folders_only(tmp_path: Path) -> None:
    """The folder of submission is looked at before anything is written."""
    slurm = FakeSlurm()
    around = _around(tmp_path, slurm)
    job = _site_job(around, {"storage": {"submit_from": "/scratch/.*"}, "slurm": {"version": "23.02"}})
    with pytest.raises(PlanError, match=r"takes no jobs that are submitted here: a folder whose whole path matches"):
        submit_job(job, _rendered(job, around), around)
    assert slurm.programs == []
    good = _site_job(around, {"storage": {"submit_from": f"{tmp_path}.*"}, "slurm": {"version": "23.02"}})
    submit_job(good, _rendered(good, around), around)


def test_every_partition_of_a_list_must_exist(tmp_path: Path) -> None:
    """Slurm takes the first free one; the nodes of all of them count."""
    around = _around(tmp_path)
    partition: dict[str, Tree] = {"gpus_per_node": 1, "slurm_partition": ["batch", "debug"]}
    job = _site_job(around, {"partitions": {"a": partition}}, tensor_parallel_size=6)
    check_cluster(job, around.slurm().partitions())
    partition["slurm_partition"] = ["batch", "nope"]
    job = _site_job(around, {"partitions": {"a": partition}})
    with pytest.raises(PlanError, match="no partition 'nope'"):
        check_cluster(job, around.slurm().partitions())


def test_variables_in_paths_are_replaced_when_a_job_is_rendered(tmp_path: Path) -> None:
    """In the submitting environment; all that are missing are told."""
    site: dict[str, Tree] = {"storage": {"hf_home": "$SCRATCH/hf", "logs": "$WORK/logs"}}
    around = _around(tmp_path, SCRATCH="/my scratch", WORK=str(tmp_path))
    rendered = _rendered(_site_job(around, site), around)
    assert "export HF_HOME='/my scratch/hf'" in rendered.texts["job.sub"]
    assert rendered.paths.root.parent == tmp_path / "logs"
    with pytest.raises(InputError, match=r"storage\.hf_home: '\$SCRATCH/hf' uses \$SCRATCH, which is not set"):
        _rendered(_site_job(around, site), _around(tmp_path, WORK=str(tmp_path)))


def test_a_run_directory_is_its_users_alone(tmp_path: Path) -> None:
    """Variables of a spec may be tokens, whatever the umask says."""
    around = _around(tmp_path)
    rendered = _rendered(_job(env={"HF_TOKEN": "x"}), around)
    before = os.umask(0o022)
    try:
        write_run(rendered)
    finally:
        os.umask(before)
    assert rendered.paths.root.stat().st_mode & 0o777 == 0o700
    files = [path for path in rendered.paths.root.rglob("*") if not path.is_symlink()]
    assert not [path for path in files if path.stat().st_mode & 0o077]


def test_hf_home_is_one_folder(tmp_path: Path) -> None:
    """A variable that the site or the spec sets itself wins over the site's storage, and is set once."""
    site: dict[str, Tree] = {"storage": {"hf_home": "/storage"}, "env": {"set": {"HF_HOME": "/site"}}}
    around = _around(tmp_path)
    cases: list[tuple[dict[str, Tree], str]] = [({}, "/site"), ({"env": {"HF_HOME": "/spec"}}, "/spec")]
    for values, home in cases:
        text = _rendered(_site_job(around, site, **values), around).texts["job.sub"]
        assert [line for line in text.splitlines() if "HF_HOME" in line] == [f"export HF_HOME={home}"]
