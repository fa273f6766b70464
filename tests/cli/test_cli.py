"""The command line: output for people and scripts, exit codes, errors without tracebacks, and what is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_llm.cli import COMMANDS, cli
from tests.observe.run_dirs import RunDir, squeue_row

SPEC = """
name: demo
engine: rehearsal
tensor_parallel_size: 4
pipeline_parallel_size: 2
moe_expert_parallel_size: 2
resources: {nodes: 4}
"""
ROOT = Path(__file__).resolve().parent.parent.parent
SINFO = "batch*\x1fup\x1f1-00:00:00\x1f4\x1f8\x1f16000\x1fgpu:4"
COMMAND = """#!/bin/sh
echo "{name} $*" >>"{folder}/calls"
cat "{folder}/{name}.out" 2>/dev/null
cat "{folder}/{name}.err" >&2 2>/dev/null
exit $(cat "{folder}/{name}.rc" 2>/dev/null || echo 0)
"""


@dataclass
class Desk:
    """A user's directory with a Slurm of small programs on PATH; `says` sets what one of them answers."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    spec: Path = field(init=False)

    def __post_init__(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        for name in ("sbatch", "squeue", "scontrol", "sacct", "scancel", "sinfo"):
            (programs / name).write_text(COMMAND.format(name=name, folder=programs))
            (programs / name).chmod(0o755)
        self.says("sinfo", SINFO)
        self.says("sbatch", "7")
        self.says("squeue", "", "slurm_load_jobs error: Invalid job id specified", 1)
        self.says("scontrol", "", "Invalid job id specified", 1)
        self.says("sacct", "", "Slurm accounting storage is disabled", 1)
        self.monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        self.monkeypatch.setenv("HOME", str(self.folder))
        self.monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        self.monkeypatch.delenv("SLURM_LLM_SITE", raising=False)
        self.monkeypatch.chdir(self.folder)
        self.spec = self.folder / "demo.yaml"
        self.spec.write_text(SPEC)

    def says(self, name: str, out: str, err: str = "", code: int = 0) -> None:
        """Set what one of Slurm's programs answers."""
        for suffix, text in (("out", out), ("err", err), ("rc", str(code))):
            (self.folder / "bin" / f"{name}.{suffix}").write_text(text + "\n" if text else "")

    def calls(self) -> list[str]:
        """Return the commands that were run."""
        path = self.folder / "bin" / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *words: str, given: str | bytes | None = None) -> Result:
        """Run the program, with `given` on its standard input."""
        return CliRunner().invoke(cli, list(words), input=given)

    def serving(self) -> RunDir:
        """Write a run that serves, and have Slurm say that it runs."""
        self.says("squeue", squeue_row(7, "RUNNING"))
        return RunDir(self.folder / "logs" / "demo-20261130-104000-abcd").serving()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    return Desk(tmp_path, monkeypatch)


def test_status_of_a_serving_run(desk: Desk) -> None:
    """State, ranks, endpoint with a line to try it, and the time left; at most 80 columns."""
    desk.serving()
    found = desk.run("status")
    assert found.exit_code == 0
    assert found.stdout.startswith("READY  demo  20261130-104000-abcd  job 7\n")
    assert "8 of 8 ready" in found.stdout
    assert "http://node1:20000/v2/models/tensorrt_llm/generate" in found.stdout
    assert "time left  00:09:00" in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_status_of_a_failed_run(desk: Desk) -> None:
    """The cause, the rank that went first, the end of its log without control characters, and what to run next."""
    cause = "rank 5 on node node3 went first: triton_python_b ended: signal SIGKILL, while serving"
    first: dict[str, object] = {
        "rank": 5,
        "node": "node3",
        "name": "x",
        "how": "signal SIGKILL",
        "phase": "serving",
        "at": 1,
    }
    desk.serving().result("FAILED", cause, first, ["last \x1b[2Jwords"])
    found = desk.run("status", "7")
    assert "FAILED" in found.stdout
    assert "rank 5 on node node3 went first" in found.stdout
    assert "| last words" in found.stdout
    assert "  next       slurm-llm diagnose 20261130-104000-abcd\n" in found.stdout
    assert "slurm-llm logs 20261130-104000-abcd --rank 5" in found.stdout


def test_the_older_job_of_a_service_is_called_by_its_id(desk: Desk) -> None:
    """The run id would show the logs of the newer one."""
    run = desk.serving().result("FAILED", "x")
    newer = run.paths.job(8)
    (newer.root / "attempt-0" / "journal").mkdir(parents=True)
    text = desk.run("status", "7").stdout
    assert "slurm-llm diagnose 7\n" in text
    assert "slurm-llm logs 7\n" in text
    assert "20261130-104000-abcd" in desk.run("status", "8").stdout.partition("next")[2]


def test_wait_says_why_and_what_to_do(desk: Desk) -> None:
    """A failed start is explained where it is seen: cause, meaning, first remedy, and where to read on."""
    run = desk.serving().killed(5).result("FAILED", "rank 5 on node node3 went first")
    value = json.loads(run.job_paths.result(0).read_text())
    value["diagnosis"] = {
        "means": "It was killed.",
        "remedies": ["In any case read `slurm-llm logs RUN --rank N`.", "b"],
        "rank": 5,
    }
    run.job_paths.result(0).write_text(json.dumps(value))
    run.note("job", 61, "no-restart", why="no restart is left")
    assert "`slurm-llm logs 20261130-104000-abcd --rank 5`" in desk.run("status").stdout
    done = desk.run("wait", "7")
    assert done.exit_code == 8
    assert [row.removeprefix("error: ") for row in done.stderr.splitlines() if row.startswith("error: ")] == [
        "job 7 (demo): FAILED: rank 5 on node node3 went first",
        "why: It was killed.",
        "do: In any case read `slurm-llm logs 20261130-104000-abcd --rank 5`.",
        "note: the server is not started again: no restart is left",
        "next: slurm-llm diagnose 20261130-104000-abcd",
    ]


def test_status_of_a_waiting_run(desk: Desk) -> None:
    """Why it waits, and who can end that."""
    RunDir(desk.folder / "logs" / "demo-20261130-104000-abcd").submitted()
    desk.says("squeue", squeue_row(7, "PENDING", reason="PartitionTimeLimit"))
    found = desk.run("status")
    assert "ask for less time. It never starts as it is" in " ".join(found.stdout.split())
    assert "slurm-llm cancel" in found.stdout


def test_status_without_slurm(desk: Desk) -> None:
    """A controller that does not answer is told, and the state is not lost."""
    desk.serving()
    desk.says("squeue", "", "Unable to contact slurm controller", 1)
    found = desk.run("status")
    assert found.exit_code == 0
    assert "READY" in found.stdout
    assert "Slurm did not answer" in found.stdout


@pytest.mark.parametrize("command", ["status", "health", "list"])
def test_json_of_reading_commands(desk: Desk, command: str) -> None:
    """One JSON value on stdout, and nothing else."""
    desk.serving()
    found = desk.run(command, "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)


def test_health_is_a_row_for_each_rank(desk: Desk) -> None:
    """Rank, node, GPUs, role, place, state; the last error below its rank; at most 80 columns."""
    desk.serving().log("rank-5.log", "ValueError: bad\n")
    lines = desk.run("health").stdout.splitlines()
    assert lines[0] == "at: tp/pp/moe_tp" or lines[0].startswith("at: tp/pp")
    assert lines[1].split()[:4] == ["rank", "node", "gpu", "role"]
    assert sum(line.split()[0].isdecimal() for line in lines[1:]) == 8
    assert lines[lines.index("     ! ValueError: bad") - 1].split()[:2] == ["5", "node3"]
    assert max(map(len, lines)) <= 80


def test_logs_are_merged_with_the_rank_in_front(desk: Desk) -> None:
    """By time, with only the chosen ranks, sources and number of lines."""
    run = desk.serving()
    run.log("rank-0.log", "I1130 10:00:02.0 two\n")
    run.log("rank-3.log", "I1130 10:00:01.0 one\nI1130 10:00:03.0 three\x07\n")
    run.log("step-0.log", "srun: error: 2026\n")
    assert desk.run("logs", "--rank", "0,2-5").stdout.splitlines() == [
        "[3] I1130 10:00:01.0 one",
        "[0] I1130 10:00:02.0 two",
        "[3] I1130 10:00:03.0 three",
    ]
    assert desk.run("logs", "--source", "srun").stdout == "[srun] srun: error: 2026\n"
    assert len(desk.run("logs", "-n", "2").stdout.splitlines()) == 2
    assert json.loads(desk.run("logs", "-n", "1", "--rank", "0", "--json").stdout)["rank"] == 0


def test_following_ends_with_the_run(desk: Desk) -> None:
    """`-f` of a run that has ended prints what there is and stops."""
    run = desk.serving()
    run.log("rank-0.log", "one\ntwo")
    run.result("COMPLETED")
    found = desk.run("logs", "-f", "--rank", "0")
    assert found.stdout == "[0] one\n[0] two\n"


def test_list_shows_runs(desk: Desk) -> None:
    """A line a run; none is no error."""
    assert desk.run("list").stdout == ""
    desk.serving()
    lines = desk.run("list").stdout.splitlines()
    assert lines[1].split()[:4] == ["20261130-104000-abcd", "7", "READY", "8/8"]


def test_list_says_that_slurm_is_silent(desk: Desk) -> None:
    """States are then those that the jobs told last."""
    desk.serving()
    assert desk.run("list").stderr == ""
    desk.says("squeue", "", code=1)
    done = desk.run("list")
    assert (done.exit_code, done.stderr.partition(":")[0]) == (0, "warning")
    assert "Slurm did not answer" in done.stderr and "READY" in done.stdout


@pytest.mark.parametrize(("wanted", "said"), [("x" * 300, "no run 'xxx"), (f"./{'x' * 300}", "File name too long")])
def test_a_run_that_cannot_be_is_not_found(desk: Desk, wanted: str, said: str) -> None:
    """One line and the code of a run that is not there, whatever the file system says of the name."""
    done = desk.run("status", wanted)
    assert (done.exit_code, done.stderr.count("\n")) == (7, 1)
    assert said in done.stderr


def test_a_run_that_may_not_be_looked_into_hides_no_other(desk: Desk) -> None:
    """A name that the file system refuses stands for a folder of somebody else; it stays in the list of runs."""
    run = desk.serving().result("COMPLETED")
    path = desk.folder / "state" / "slurm_llm" / "runs"
    path.parent.mkdir(parents=True, exist_ok=True)
    closed = f"{desk.folder}/{'x' * 300}"
    path.write_text(f"{run.root}\n{closed}\n")
    desk.monkeypatch.setenv("XDG_STATE_HOME", str(desk.folder / "state"))
    assert desk.run("list").stdout.count("COMPLETED") == 1
    desk.says("squeue", "")
    done = desk.run("clean", "--older", "0", "--yes")
    assert (done.exit_code, run.root.exists(), path.read_text()) == (0, False, f"{closed}\n"), done.output


def test_plan_fits_eighty_columns(desk: Desk) -> None:
    """A table of ranks that can be piped; warnings go to stderr."""
    found = desk.run("plan", "demo.yaml", "--site", "devcluster")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "8: tensor 4 × pipeline 2; experts moe_tp 2 × moe_ep 2" in found.stdout
    assert lines[-1].split() == ["7", "3", "1", "1", "worker", "3", "1", "1", "1"]
    assert "warning: a tensor group of 4 spans" in found.stderr


def test_plan_as_json_is_the_plan(desk: Desk) -> None:
    """The same text as plan.json."""
    found = desk.run("plan", "demo.yaml", "--site", "devcluster", "--json", "--set", "resources.time=00:05:00")
    assert json.loads(found.stdout)["allocation"]["time"] == "00:05:00"


def test_validate(desk: Desk) -> None:
    """One line when it is right; with --json an object."""
    assert desk.run("validate", "demo.yaml", "--site", "devcluster").stdout.startswith("valid: demo")
    assert json.loads(desk.run("validate", "demo.yaml", "--site", "devcluster", "--json").stdout)["valid"] is True


def test_render_writes_a_directory_that_sbatch_takes(desk: Desk) -> None:
    """The folder is the run directory, and its scripts name it; a second time it is in the way."""
    found = desk.run("render", "demo.yaml", "--site", "devcluster", "--out", "out dir")
    assert found.exit_code == 0
    script = Path(found.stdout.strip())
    assert script == desk.folder / "out dir" / "job.sub"
    assert f"run='{desk.folder / 'out dir'}'" in script.read_text()
    assert desk.run("render", "demo.yaml", "--site", "devcluster", "--out", "out dir").exit_code == 3
    assert desk.run("status", "out dir").stdout.startswith("PLANNED")
    assert desk.calls() == []


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_dry_run_prints_what_submit_writes(desk: Desk) -> None:
    """Every file by name and text, nothing written, nothing asked of Slurm; then the same files from submit."""
    dry = json.loads(desk.run("submit", "demo.yaml", "--site", "devcluster", "--dry-run", "--json").stdout)
    assert not (desk.folder / "logs").exists()
    assert desk.calls() == []
    text = desk.run("submit", "demo.yaml", "--site", "devcluster", "--dry-run").stdout
    assert all(f"  {name}\n" in text for name in dry["files"])
    # What is the same in every job is only named.
    shown = {name for name in dry["files"] if f"==> {name} <==\n" in text}
    assert {"job.sub", "rank.sh"} <= shown
    assert not {name for name in shown if name.startswith("agent/")}
    done = json.loads(desk.run("submit", "demo.yaml", "--site", "devcluster", "--json").stdout)
    written = _files(Path(done["directory"]))
    written.pop("job-7/job.json")
    assert set(written) == set(dry["files"])
    for name in set(written) - {"record.json"}:
        assert written[name] == dry["files"][name].replace(dry["directory"], done["directory"]), name


def test_submit_tells_job_run_and_place(desk: Desk) -> None:
    """One line on stdout; the warnings on stderr."""
    found = desk.run("submit", "demo.yaml", "--site", "devcluster")
    assert found.exit_code == 0
    assert found.stdout.startswith("submitted job 7, run ")
    assert "warning:" in found.stderr


def test_submit_wait_shows_stages_and_fails_with_the_reason(desk: Desk) -> None:
    """The job is gone before it began: plain lines of progress on stderr, then why, and a code that says so."""
    desk.says("squeue", squeue_row(7, "CANCELLED"))
    found = desk.run("submit", "demo.yaml", "--site", "devcluster", "--wait")
    assert found.exit_code == 8
    assert "cancelled" in found.stderr
    assert "error: job 7 (demo): CANCELLED" in found.stderr


def test_a_deadline_is_its_own_exit_code(desk: Desk) -> None:
    """The job goes on, and the message says how to come back."""
    desk.says("squeue", squeue_row(7, "PENDING", reason="Priority"))
    found = desk.run("submit", "demo.yaml", "--site", "devcluster", "--wait", "--timeout", "0")
    assert found.exit_code == 9
    assert "queued: Jobs of higher priority" in found.stderr
    assert "slurm-llm cancel" in found.stderr


def test_submit_wait_json_is_one_object(desk: Desk) -> None:
    """`wait` of a ready run prints its status."""
    desk.serving()
    found = desk.run("wait", "7", "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["state"] == "READY"


def test_rehearse_says_what_it_is(desk: Desk) -> None:
    """What replaces the weights, and what the image must have."""
    found = desk.run("rehearse", "demo.yaml", "--site", "devcluster", "--dry-run")
    assert found.exit_code == 0
    assert "needs mpi4py and numpy" in found.stderr


def test_cancel(desk: Desk) -> None:
    """Out of the queue; a second time there is nothing to do."""
    run = RunDir(desk.folder / "logs" / "demo-20261130-104000-abcd").submitted()
    desk.says("squeue", squeue_row(7, "PENDING"))
    desk.says("scancel", "")
    (desk.folder / "bin" / "scancel").write_text(
        f"#!/bin/sh\nprintf '%s\\n' '{squeue_row(7, 'CANCELLED')}' >'{desk.folder}/bin/squeue.out'\n"
    )
    found = desk.run("cancel")
    assert found.exit_code == 0
    assert found.stdout.startswith("CANCELLED")
    assert "had ended already" in desk.run("cancel", run.run_id).stdout


def test_generate_of_a_run_that_does_not_serve(desk: Desk) -> None:
    """Nothing is sent; the state says why."""
    RunDir(desk.folder / "logs" / "demo-20261130-104000-abcd").submitted()
    found = desk.run("generate", "hello")
    assert found.exit_code == 9
    assert "error: run 20261130-104000-abcd: serves nothing" in found.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("status", "nope"), 7, "error: RUN: no run 'nope'"),
        (("plan", "none.yaml", "--site", "devcluster"), 3, "error: "),
        (("plan", "demo.yaml", "--site", "nowhere"), 3, "unknown site"),
        (("plan", "demo.yaml"), 3, "no site given"),
        (("plan", "demo.yaml", "--site", "devcluster", "--set", "resources.nodes=3"), 4, "error: "),
        (("plan", "demo.yaml", "--site", "devcluster", "--set", "nmae=x"), 3, "did you mean"),
        (("logs", "--rank", "x"), 3, "no list of ranks"),
        (("logs", "--rank", "5-2"), 3, "no range of ranks"),
        (("logs", "--rank", "99"), 3, "no such rank"),
        (("statsu",), 2, "did you mean 'status'"),
        (("generate", "a", "b", "c"), 2, "quotes"),
        (("generate",), 2, "Missing"),
    ],
)
def test_errors_have_codes_and_no_traceback(desk: Desk, words: tuple[str, ...], code: int, said: str) -> None:
    """One line a problem on stderr, nothing on stdout, nothing submitted."""
    RunDir(desk.folder / "logs" / "demo-20261130-104000-abcd").loading()
    found = desk.run(*words)
    assert found.exit_code == code
    assert said in found.stderr
    assert found.stdout == ""
    assert "Traceback" not in found.stderr


def test_every_problem_is_a_line(desk: Desk) -> None:
    """All problems of the file and of the site are there at once."""
    desk.spec.write_text("name: 3\nengine: magic\n")
    found = desk.run("validate", "demo.yaml", "--site", "nowhere")
    lines = found.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: ") for line in lines)


@pytest.mark.parametrize("words", [("--debug", "status", "nope"), ("status", "nope", "--debug")])
def test_debug_shows_the_traceback(desk: Desk, words: tuple[str, ...]) -> None:
    """--debug works before and after the command."""
    assert type(desk.run(*words).exception).__name__ == "RunNotFound"


def test_a_refusal_of_sbatch_is_told_whole(desk: Desk) -> None:
    """Slurm's own words, its exit code class, and nothing left behind."""
    desk.says("sbatch", "", "sbatch: error: Batch job submission failed: Invalid account", 1)
    found = desk.run("submit", "demo.yaml", "--site", "devcluster")
    assert found.exit_code == 6
    assert "Invalid account" in found.stderr
    assert list((desk.folder / "logs").iterdir()) == []


def test_help_names_every_command(desk: Desk) -> None:
    """Each command has its own help."""
    text = desk.run("--help").stdout
    for name in COMMANDS:
        assert f"  {name} " in text
        assert desk.run(name, "--help").exit_code == 0


HEAVY = {"pydantic", "jinja2", "yaml", "rich", "httpx"}


def loaded(program: str, desk: Desk, *words: str) -> set[str]:
    """Return which heavy modules a fresh Python has loaded after a command."""
    code = (
        f"import sys\ntry:\n {program}\nexcept SystemExit: pass\nprint('HEAVY', sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=desk.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("HEAVY"))
    return {name for name in HEAVY if f"'{name}'" in line}


@pytest.mark.parametrize(
    "words", [("--help",), ("status",), ("logs",), ("health",), ("list",), ("cancel", "--help"), ("generate", "--help")]
)
def test_looking_at_a_run_loads_nothing_heavy(desk: Desk, words: tuple[str, ...]) -> None:
    """No schema library, templates, YAML, tables or HTTP client: they would double the time that `status` takes."""
    desk.serving()
    assert loaded("from slurm_llm.cli import main; main(sys.argv[1:])", desk, *words) == set()


def test_the_check_above_can_fail(desk: Desk) -> None:
    """A command that plans does load them."""
    words = ("validate", "demo.yaml", "--site", "devcluster")
    assert {"pydantic", "yaml"} <= loaded("from slurm_llm.cli import main; main(sys.argv[1:])", desk, *words)


def test_a_reader_that_goes_away(desk: Desk) -> None:
    """`| head` ends the program without a traceback."""
    run = desk.serving()
    run.log("rank-0.log", "x" * 1000 + "\n" + "line\n" * 50_000)
    command = f"{sys.executable} -m slurm_llm logs --rank 0 -n 50000 | head -1"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=desk.folder, env=env)
    assert done.returncode == 0
    assert done.stderr == ""
