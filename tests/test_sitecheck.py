"""Checking a site: what is asked of Slurm, what comes of each answer, and that nothing is left behind."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slurm_llm.agent import journal
from slurm_llm.cli.sitecheck import check
from slurm_llm.errors import SetupError, SiteError, SpecError
from slurm_llm.observe.checkrows import Verdict
from slurm_llm.plan.steps import world_step
from slurm_llm.process import NOT_FOUND_RC, Completed
from slurm_llm.render import Target, render_probe
from slurm_llm.sitecheck import Wanted, check_site, plan_check, sizes_of
from slurm_llm.siteprobe import run_probe
from slurm_llm.siterehearsal import rehearsal_of
from slurm_llm.sites.find import split_target
from slurm_llm.sites.load import load_site
from slurm_llm.sites.queues import Partition
from slurm_llm.slurm.commands import SEPARATOR
from slurm_llm.surroundings import Surroundings
from slurm_llm.yamlio import Tree
from tests.observe.probe_records import make_probe
from tests.render.sbatch_reader import read_options

Answer = tuple[int, str, str]


def _sinfo(*rows: tuple[str, int, str]) -> str:
    return "".join(
        SEPARATOR.join((name, "up", "1-00:00:00", str(nodes), "8", "16000", gres)) + "\n" for name, nodes, gres in rows
    )


ACCEPTED: Answer = (0, "", "sbatch: Job 5 to start at 2026-11-30T13:25:16 using 4 processors on nodes n[1-2]\n")
PENDING, DONE = "PENDING", "COMPLETED"


@dataclass
class FakeSlurm:
    """Answers with given texts, keeps every call; `states` are what squeue says of a submitted job, look by look."""

    trial: Answer = ACCEPTED
    full_trial: Answer | None = None
    """Answer about the second script that is tried, where it is another."""
    features: Answer = (0, "", "")
    submit: Answer = (0, "4711\n", "")
    sinfo: Answer = (0, _sinfo(("batch*", 4, "gpu:4"), ("debug", 2, "gpu:4")), "")
    states: list[tuple[str, str]] = field(default_factory=lambda: [(DONE, "None")])
    on_submit: Callable[[Path], None] = lambda script: None
    calls: list[tuple[str, ...]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed:
        """Answer one command."""
        self.calls.append(tuple(argv))
        return Completed(tuple(argv), *self._answer(tuple(argv)))

    def _answer(self, argv: tuple[str, ...]) -> Answer:
        if argv[:2] == ("sbatch", "--test-only"):
            self.scripts.append(Path(argv[-1]).read_text())
            return self.full_trial if self.full_trial and len(self.scripts) == 2 else self.trial
        if argv == ("sbatch", "--version"):
            return 0, "slurm 22.05.8\n", ""
        if argv[0] == "sbatch":
            self.on_submit(Path(argv[-1]))
            return self.submit
        if argv[0] == "squeue":
            state, reason = self.states[0] if len(self.states) == 1 else self.states.pop(0)
            values = ("4711", state, reason, *([""] * 8), "site-check")
            return 0, SEPARATOR.join(values) + "\n", ""
        if argv[0] == "sinfo":
            return self.features if "%f" in argv[-1] else self.sinfo
        if "job" in argv:
            return 0, f"JobId=4711 JobName=site-check UserId=me(1) GroupId=me(1) JobState={DONE} Reason=None\n", ""
        return 0, SAID[" ".join(argv[:2])], ""


SAID = {
    "scancel 4711": "",
    "srun --mpi=list": "MPI plugin types are...\n\tpmix\n\tnone\n",
    "srun --help": "  -A, --account=name\n",
    "scontrol show": "KillWait = 10 sec\n",
    "scontrol --oneliner": "PartitionName=batch MaxNodes=UNLIMITED MaxTime=1-00:00:00 TotalNodes=4\n",
}


@dataclass(frozen=True)
class Here(Surroundings):
    """Surroundings whose pauses take no time."""

    def pause(self, seconds: float) -> None:
        """Go on at once."""


@pytest.fixture
def slurm() -> FakeSlurm:
    """A cluster like the devcluster."""
    return FakeSlurm()


@pytest.fixture
def around(tmp_path: Path, slurm: FakeSlurm) -> Here:
    """A user with an empty folder."""
    (tmp_path / "work").mkdir()
    return Here({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path / "work", slurm)


def write_site(around: Surroundings, partition: dict[str, Tree] | None = None, **values: Tree) -> str:
    """Write a profile with one partition and return its path (JSON is YAML)."""
    own: dict[str, Tree] = {"slurm_partition": "batch", "gpus_per_node": 4, **(partition or {})}
    base: dict[str, Tree] = {
        "schema_version": 1,
        "name": "own",
        "slurm": {"version": "22.05.8", "kill_wait_s": 10},
        "launcher": {"mpi": "pmix"},
        "partitions": {"gpu": own},
    }
    path = around.cwd / "own.yaml"
    path.write_text(json.dumps({**base, **values}))
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (None, None)),
        ("devcluster", ("devcluster", None)),
        ("devcluster:debug", ("devcluster", "debug")),
        ("dir/own.yaml:gpu", ("dir/own.yaml", "gpu")),
        ("a:b/own.yaml", ("a:b/own.yaml", None)),
        (":debug", (None, "debug")),
    ],
)
def test_a_partition_may_follow_the_name(text: str | None, expected: tuple[str | None, str | None]) -> None:
    """A colon in a path is part of the path."""
    assert split_target(text) == expected


def test_a_file_with_a_colon_in_its_name_is_a_site(tmp_path: Path) -> None:
    """What is a file is no name with a partition."""
    path = tmp_path / "own:gpu"
    assert split_target(str(path)) == (str(tmp_path / "own"), "gpu")
    path.touch()
    assert split_target(str(path)) == (str(path), None)


@pytest.mark.parametrize(
    ("values", "asked", "room", "expected"),
    [
        ({"gpus_per_node": 4}, None, None, (2, 2)),
        ({"gpus_per_node": 1}, None, None, (2, 1)),
        ({"gpus_per_node": 8, "whole_node": True}, None, None, (2, 8)),
        ({"gpus_per_node": 4, "gpu_request": {"style": "none"}}, None, None, (2, 4)),
        ({"gpus_per_node": 4, "exclusive": True}, 1, None, (1, 4)),
        ({"gpus_per_node": 4, "limits": {"max_nodes": 1}}, None, None, (1, 2)),
        ({"gpus_per_node": 4, "limits": {"min_nodes": 4}}, None, None, (4, 2)),
        ({"gpus_per_node": 4, "limits": {"max_gpus": 2}}, None, None, (1, 2)),
        ({"gpus_per_node": 4, "nodes": 1}, None, None, (1, 2)),
        ({"gpus_per_node": 4}, None, 1, (1, 2)),
        ({"gpus_per_node": 0, "cpus": {"per_node": 8, "per_rank": 8}}, None, None, (2, 1)),
        ({"gpus_per_node": 0}, None, None, (2, 2)),
    ],
)
def test_the_job_is_small_and_fits(
    values: dict[str, Any], asked: int | None, room: int | None, expected: tuple[int, int]
) -> None:
    """Two nodes where the partition and the cluster have them, all GPUs only where nodes are whole."""
    assert sizes_of(Partition.model_validate(values), asked, room) == expected


def test_a_check_creates_no_job_and_leaves_nothing(around: Here, slurm: FakeSlurm) -> None:
    """Every sbatch is a trial, of the script that a job of that partition would be; the folder is removed."""
    report = check_site(Wanted("devcluster"), around)
    assert report.exit_code == 0
    assert [call[1] for call in slurm.calls if call[0] == "sbatch"] == ["--version", *["--test-only"] * 4]
    partitions = [next(o for o in read_options(text) if o.startswith("--partition")) for text in slurm.scripts]
    assert partitions == ["--partition=batch", "--partition=batch", "--partition=debug", "--partition=debug"]
    assert list(around.cwd.iterdir()) == []
    rows = {row.name: row.found for row in report.rows if row.topic == "partition debug"}
    when = "it would start 2026-11-30 13:25:16 on n[1-2]"
    assert (rows["a job"], rows["a full node"]) == (
        f"accepted (2 × 2 ranks): {when}",
        f"accepted (1 × 4 ranks): {when}",
    )


def test_a_job_on_all_gpus_is_tried_too(around: Here, slurm: FakeSlurm) -> None:
    """What only such a job asks for, --mem=0, is refused by some sites, and a small job would never show it."""
    path = write_site(around, {"memory": {"per_rank": "4G", "whole_node": "0"}})
    slurm.full_trial = (1, "", "allocation failure: Memory specification can not be satisfied\n")
    report = check_site(Wanted(path), around)
    small, full = (set(read_options(text)) for text in slurm.scripts)
    assert {"--nodes=2", "--gpus-per-node=2", "--mem=8G"} <= small
    assert {"--nodes=1", "--gpus-per-node=4", "--mem=0"} <= full
    rows = {row.name: row for row in report.rows if row.topic == "partition gpu"}
    assert (rows["a job"].verdict, rows["a full node"].verdict) == (Verdict.OK, Verdict.REFUSED)
    assert (rows["a full node"].key, report.exit_code) == ("partitions.gpu.memory", 6)


@pytest.mark.parametrize(
    ("partition", "nodes", "sizes"),
    [
        ({"gpus_per_node": 4}, None, (2, 4)),
        ({"gpus_per_node": 4}, 3, (3, 4)),
        ({"gpus_per_node": 4, "limits": {"max_nodes": 1}}, None, (1, 4)),
        ({"gpus_per_node": 4, "limits": {"max_gpus": 4}}, None, (2, 2)),
        ({"gpus_per_node": 4, "limits": {"max_gpus": 3}}, None, (1, 3)),
        ({"gpus_per_node": 0}, None, (2, 2)),
    ],
)
def test_a_rehearsal_takes_whole_nodes(
    around: Here, partition: dict[str, Tree], nodes: int | None, sizes: tuple[int, int]
) -> None:
    """Every GPU of its nodes as far as the partition gives so many, and two ranks a node where there are none."""
    report = check_site(Wanted(write_site(around, partition), nodes=nodes), around)
    asked = Wanted("", nodes=nodes, settings=("engine_args.seed=3",))
    wanted = rehearsal_of(asked, report, "gpu", "00:10:00", cuda=True)
    assert (wanted.nodes, wanted.ranks) == sizes
    spec = plan_check(wanted, report.site, "gpu", None, around).spec
    assert (spec.pipeline_parallel_size, spec.tensor_parallel_size) == sizes
    assert spec.engine_args == {"device": "cuda", "seed": 3}
    assert spec.timeouts.ready_s == 300


@pytest.mark.parametrize(
    "partition", [{"whole_node": True}, {"gpus_per_node": 2}, {"gpus_per_node": 0}, {"limits": {"max_gpus": 3}}]
)
def test_a_full_node_is_tried_only_where_it_is_another_job(
    around: Here, slurm: FakeSlurm, partition: dict[str, Tree]
) -> None:
    """Not where the small job has all GPUs, where there are none, and where the partition does not give so many."""
    check_site(Wanted(write_site(around, partition)), around)
    assert len(slurm.scripts) == 1


def test_nothing_larger_is_tried_where_a_small_job_is_refused(around: Here, slurm: FakeSlurm) -> None:
    """It would be the same refusal once more."""
    slurm.trial = (1, "", "allocation failure: Invalid qos specification\n")
    check_site(Wanted(write_site(around)), around)
    assert len(slurm.scripts) == 1


def test_one_partition_account_and_nodes_can_be_chosen(around: Here, slurm: FakeSlurm) -> None:
    """The flags reach the trial's script."""
    check_site(Wanted("devcluster", "debug", account="proj", nodes=1), around)
    for text in slurm.scripts:
        assert {"--partition=debug", "--account=proj", "--nodes=1"} <= set(read_options(text))
    with pytest.raises(SiteError, match=r"unknown partition 'debgu'.*did you mean 'debug'"):
        check_site(Wanted("devcluster", "debgu"), around)


def test_a_refusal_is_told_whole_with_its_key(around: Here, slurm: FakeSlurm) -> None:
    """Slurm's words, the key, exit code 6: the profile may be right, and the user's rights wrong."""
    slurm.trial = (1, "", "sbatch: error: a word\nallocation failure: Invalid qos specification\n")
    report = check_site(Wanted("devcluster", "batch"), around)
    [row] = [row for row in report.rows if row.verdict is Verdict.REFUSED]
    assert row.found == "a word / allocation failure: Invalid qos specification (2 × 2 ranks)"
    assert (row.key, report.exit_code) == ("partitions.batch.qos", 6)


@pytest.mark.parametrize(
    ("said", "profile", "where"),
    [
        ("Invalid qos specification", "qos long", "{path}:7"),
        ("Invalid feature specification", "constraint a&b", "{path}:7"),
        ("Requested reservation is invalid", "reservation mine", "--set reservation=mine"),
        ("Invalid account or account/partition combination specified", "account proj", "--account"),
        ("Invalid partition name specified", "partition batch", "{path}:7"),
        ("Invalid license specification", "", ""),
    ],
)
def test_the_refused_value_is_told_with_its_place(
    around: Here, slurm: FakeSlurm, said: str, profile: str, where: str
) -> None:
    """Slurm does not repeat what it refuses: the value, and the line or flag that it is from."""
    path = around.cwd / "own.yaml"
    own = "  qos: {slurm_partition: batch, gpus_per_node: 4, qos: long, constraint: a&b, account: {required: true}}"
    path.write_text(
        "\n".join(("schema_version: 1", "name: own", "", "launcher: {mpi: pmix}", "", "partitions:", own, ""))
    )
    slurm.trial = (1, "", f"allocation failure: {said}\n")
    report = check_site(Wanted(str(path), account="proj", settings=("reservation=mine",)), around)
    [row] = [row for row in report.rows if row.verdict is Verdict.REFUSED]
    assert (row.profile, row.where) == (profile, where.format(path=path))


def test_an_option_that_the_site_insists_on_can_be_given(around: Here, slurm: FakeSlurm) -> None:
    """Without it no job is planned: the row says how to give it here, and where for every job."""
    path = write_site(around, policies={"require": ["--qos", "--constraint"]})
    report = check_site(Wanted(path), around)
    [row] = [row for row in report.rows if row.verdict is Verdict.UNPLANNED]
    assert row.todo == (
        "--qos Q here, partitions.gpu.qos for every job; "
        "--set constraint=C here, partitions.gpu.constraint for every job"
    )
    assert (report.exit_code, slurm.scripts) == (4, [])
    assert check_site(Wanted(path, qos="high", settings=("constraint=a",)), around).exit_code == 0
    assert {"--qos=high", "--constraint=a"} <= set(read_options(slurm.scripts[0]))


def test_too_many_nodes_are_the_flags_fault(around: Here) -> None:
    """The user has no spec whose `resources.nodes` could be changed."""
    report = check_site(Wanted(write_site(around, {"nodes": 4}), nodes=9), around)
    [row] = [row for row in report.rows if row.verdict is Verdict.UNPLANNED]
    assert row.found == "the job needs 9 nodes × 2 ranks, the partition gives 4 nodes: at most 4"
    assert row.todo == "another --nodes than 9"


def test_settings_change_spec_and_profile(around: Here, slurm: FakeSlurm) -> None:
    """As with other commands: fields of the spec, and what is below `site` of the profile."""
    path = write_site(around)
    wanted = Wanted(path, settings=("resources.time=7", "site.sbatch_extra=[--comment=x]"))
    report = check_site(wanted, around)
    assert report.site.profile.sbatch_extra == ("--comment=x",)
    assert {"--time=7", "--comment=x"} <= set(read_options(slurm.scripts[0]))
    with pytest.raises(SpecError, match=r"^--set qso: unknown key 'qso'"):
        check_site(Wanted(path, settings=("qso=x",)), around)
    with pytest.raises(SiteError, match=r"^--set site.nonsense: unknown key 'nonsense'"):
        check_site(Wanted(path, settings=("site.nonsense=x",)), around)
    with pytest.raises(SpecError, match=r"^--set partition=a: .*: write it behind the site's name, as NAME:PARTITION"):
        check_site(Wanted(path, settings=("partition=a",)), around)


def test_features_are_asked_for(around: Here, slurm: FakeSlurm) -> None:
    """A constraint that no node meets is told with the features that there are."""
    fields = ("batch", "idle", "4", "8", "16000", "1", "8", "1", "n[1-4]", "gpu:4", "a100,ib")
    slurm.features = (0, SEPARATOR.join(fields) + "\n", "")
    report = check_site(Wanted(write_site(around, {"constraint": "a10"})), around)
    [row] = [row for row in report.rows if row.name == "features"]
    assert (row.verdict, row.todo) == (Verdict.DIFFERS, "did you mean 'a100'?")
    assert row.where.endswith("own.yaml:1")


def test_a_job_has_no_more_nodes_than_its_constraint_leaves(around: Here, slurm: FakeSlurm) -> None:
    """Four nodes of which one has the feature: two would never start."""
    common = ("8", "16000", "1", "8", "1", "n1", "gpu:4")
    rows = [("batch", "idle", "1", *common, "ib"), ("batch", "idle", "3", *common, "")]
    slurm.features = (0, "".join(SEPARATOR.join(row) + "\n" for row in rows), "")
    check_site(Wanted(write_site(around, {"constraint": "ib"})), around)
    assert "--nodes=1" in read_options(slurm.scripts[0])


def test_what_a_refusal_may_be_about_is_told_where_it_is_set(around: Here, slurm: FakeSlurm) -> None:
    """Of many keys, those that the job does not have are no news."""
    slurm.trial = (1, "", "Requested node configuration is not available\n")
    for constraint, told in ((None, ""), ("a", "constraint a")):
        report = check_site(Wanted(write_site(around, {"constraint": constraint})), around)
        assert [row.profile for row in report.rows if row.verdict is Verdict.REFUSED] == [told]


def test_a_contradiction_is_shown_with_its_line(around: Here) -> None:
    """File and line of the key, exit code 3."""
    path = around.cwd / "own.yaml"
    lines = ("schema_version: 1", "name: own", "launcher:", "  mpi: pmix_v9", "partitions:", "  a.b:")
    path.write_text("\n".join((*lines, "    slurm_partition: none", "    gpus_per_node: 4", "")))
    report = check_site(Wanted(str(path)), around)
    where = {row.key: row.where for row in report.rows if row.verdict is Verdict.DIFFERS}
    assert where == {
        "slurm.kill_wait_s": "",
        "launcher.mpi": f"{path}:4",
        "partitions.a.b.slurm_partition": f"{path}:7",
    }
    assert report.exit_code == 3


def test_a_missing_account_is_told_before_slurm_is_asked(around: Here, slurm: FakeSlurm) -> None:
    """No job can be planned without it: exit code 4, and the flag helps."""
    path = write_site(around, account={"required": True})
    report = check_site(Wanted(path), around)
    [row] = [row for row in report.rows if row.verdict is Verdict.UNPLANNED]
    assert "requires an account" in row.found
    assert (report.exit_code, slurm.scripts) == (4, [])
    assert check_site(Wanted(path, account="proj"), around).exit_code == 0


def test_a_profile_without_mpi_type_is_checked_too(around: Here, slurm: FakeSlurm) -> None:
    """Engines without MPI need none: a note, and the trial goes on; what the profile says else is kept."""
    path = write_site(around, {"launcher": {"step": {"wait_s": 9}}}, launcher={}, sbatch_extra=["--mail-type=END"])
    report = check_site(Wanted(path), around)
    assert report.exit_code == 0
    assert "--mail-type=END" in read_options(slurm.scripts[0])


def test_a_silent_slurm_is_told_question_by_question(around: Here, slurm: FakeSlurm) -> None:
    """The rest is still checked; exit code 6."""
    slurm.sinfo = (1, "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)")
    report = check_site(Wanted("devcluster", "batch"), around)
    [row] = [row for row in report.rows if row.verdict is Verdict.SILENT]
    assert (row.name, report.exit_code) == ("sinfo", 6)
    assert "Unable to contact slurm controller" in row.found


def test_without_slurm_there_is_nothing_to_check(around: Here) -> None:
    """The machine's fault, not the profile's."""

    def nothing(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        return Completed(tuple(argv), NOT_FOUND_RC, "", f"{argv[0]}: No such file or directory")

    with pytest.raises(SetupError, match="is not on PATH"):
        check_site(Wanted("devcluster"), replace(around, runner=nothing))


def _write_good_records(script: Path) -> None:
    probe = make_probe()
    for kind, records in (("rank", probe.ranks), ("rank", probe.worlds), ("node", probe.nodes), ("node", probe.seen)):
        for number, record in records.items():
            record = {"kind": "seen", **record}
            journal.append(str(script.parent / f"{kind}-{number}.jsonl"), record)
    assert probe.batch is not None
    journal.append(str(script.parent / "batch.jsonl"), probe.batch)
    journal.append(str(script.parent / "job.jsonl"), journal.record("end", ranks=0, nodes=0))


def test_a_probe_is_submitted_awaited_folded_and_removed(around: Here, slurm: FakeSlurm) -> None:
    """All is well: the job's folder is gone, and so is every other trace."""
    slurm.on_submit = _write_good_records
    slurm.states = [(PENDING, "Resources"), ("RUNNING", "None"), (DONE, "None")]
    wanted, told = Wanted(write_site(around, triton={"server": "/opt/triton"}), "gpu"), list[str]()
    probed = run_probe(check_site(wanted, around), wanted, around, told.append)
    assert [row for row in probed.rows if row.verdict is not Verdict.OK] == []
    assert (probed.exit_code, probed.job_id, probed.directory) == (0, 4711, None)
    assert [stage.split(":")[0] for stage in told] == ["queued", "running", "completed"]
    assert {record["kind"] for record in probed.records} == {"rank", "mpi", "node", "seen", "batch", "end"}
    assert [path.name for path in around.cwd.rglob("*") if path.name != "own.yaml"] == ["logs"]


@pytest.mark.parametrize("keep", [True, False])
def test_the_folder_stays_when_it_is_needed(around: Here, slurm: FakeSlurm, keep: bool) -> None:
    """When something is wrong, to look into; with --keep, whenever."""
    if keep:
        slurm.on_submit = _write_good_records
    wanted = Wanted(write_site(around, triton={"server": "/opt/triton"}), "gpu")
    probed = run_probe(check_site(wanted, around), wanted, around, lambda stage: None, keep=keep)
    assert probed.exit_code == (0 if keep else 3)
    assert probed.directory is not None
    assert (probed.directory / "probe.sub").exists()
    assert json.loads((probed.directory / "expect.json").read_text())["ranks"] == 4


def test_an_interrupt_ends_the_job(around: Here, slurm: FakeSlurm) -> None:
    """Ctrl-C while it waits: cancelled, and the folder removed."""
    slurm.states = [(PENDING, "Priority")]
    wanted = Wanted("devcluster", "batch")

    def interrupt(stage: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_probe(check_site(wanted, around), wanted, around, interrupt)
    assert slurm.calls[-1] == ("scancel", "4711")
    assert list(around.cwd.glob("logs/*")) == []


def test_a_job_that_can_never_start_is_taken_back(around: Here, slurm: FakeSlurm) -> None:
    """Slurm took it, and would leave it in the queue for ever."""
    slurm.states = [(PENDING, "PartitionTimeLimit")]
    wanted = Wanted("devcluster", "batch")
    probed = run_probe(check_site(wanted, around), wanted, around, lambda stage: None)
    assert [(row.verdict, row.key) for row in probed.rows] == [(Verdict.REFUSED, "partitions.batch.time")]
    assert ("scancel", "4711") in slurm.calls
    assert probed.exit_code == 6


def test_a_refused_submission_leaves_no_folder(around: Here, slurm: FakeSlurm) -> None:
    """A submit filter may take a trial and refuse the job."""
    slurm.submit = (1, "", "sbatch: error: Invalid account or account/partition combination specified\n")
    wanted = Wanted("devcluster", "batch")
    probed = run_probe(check_site(wanted, around), wanted, around, lambda stage: None)
    assert [(row.verdict, row.key) for row in probed.rows] == [(Verdict.REFUSED, "account")]
    assert list(around.cwd.glob("logs/*")) == []


def test_a_folder_that_cannot_be_written_is_the_profiles(around: Here) -> None:
    """The key and its line are named, where the profile has one."""
    (around.cwd / "full").write_text("a file")
    wanted = Wanted(write_site(around, storage={"logs": str(around.cwd / "full")}), "gpu")
    report = check_site(wanted, around)
    place = f"{around.cwd}/own.yaml:1"
    with pytest.raises(SetupError, match=f"cannot be written: .*: set storage.logs \\({place}\\) to a folder of yours"):
        run_probe(report, wanted, around, lambda stage: None)


SITES: dict[str, dict[str, Tree]] = {
    "plain": {},
    "all": {
        "modules": {"purge": True, "load": ["a b"]},
        "env": {"set": {"A": "x'y"}, "unset": ["B"], "source": ["/etc/own env"], "prepend": {"P": ["/a"]}},
        "ulimits": {"memlock": "unlimited"},
        "prologue": "echo begin",
        "step_prologue": "echo step",
        "epilogue": "echo end",
        "network": {"interface": "ib0", "rendezvous": {"suffix": "i"}},
    },
    "mpirun": {"launcher": {"command": "mpirun"}},
    "container": {"container": {"runtime": "charliecloud", "image": "/images/a b"}},
}


@pytest.mark.parametrize("name", SITES)
def test_the_rendered_probe_is_sound(around: Here, tmp_path: Path, name: str) -> None:
    """`bash -n` and shellcheck find nothing, and the ranks are started by the words that start those of a job."""
    site = load_site(write_site(around, None, **SITES[name]), around.environ)
    plan = plan_check(Wanted(None), site, "gpu", "5", around).plan
    texts = render_probe(plan, Target(Path("/runs/a b"), "/usr/bin/python3", around.environ))
    assert shlex.join(world_step(plan, "/runs/a b")) in texts["probe.sub"]
    assert ("enter.sh" in texts) is (plan.container is not None)
    assert "agent/survey.py" in texts
    assert shutil.which("shellcheck"), "shellcheck is not installed: apt-get install shellcheck"
    for script in ("probe.sub", "probe-rank.sh"):
        path = tmp_path / script
        path.write_text(texts[script])
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
        command = ["shellcheck", "--shell=bash", "--format=gcc", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C.UTF-8"})
        assert done.stdout == ""


def test_the_command_prints_rows_and_exits_with_their_code(
    around: Here, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow text for people, everything as JSON, the same exit code."""
    monkeypatch.setattr(Surroundings, "of_this_process", staticmethod(lambda: around))
    slurm.trial = (1, "", "allocation failure: Invalid feature specification\n")
    shown = CliRunner().invoke(check, ["devcluster:batch", "--run"])
    assert shown.exit_code == 6
    assert "REFUSED" in shown.output
    assert "partitions.batch.constraint: `sinfo" in shown.output
    assert "the job has no constraint" in shown.output
    assert "no job is submitted" in shown.output
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    given = CliRunner().invoke(check, ["devcluster:batch", "--qos", "x", "--set", "constraint=a b"])
    assert "the job has constraint a b, --set constraint=a b" in " ".join(given.output.split())
    assert "--qos=x" in read_options(slurm.scripts[-1])
    value = json.loads(CliRunner().invoke(check, ["devcluster:batch", "--json"]).stdout)
    assert (value["exit_code"], value["probe"]) == (6, None)
    assert [row["verdict"] for row in value["rows"] if row["name"] == "a job"] == ["REFUSED"]
