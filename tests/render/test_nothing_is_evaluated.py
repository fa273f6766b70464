"""The scripts are run for real with small stand-ins for srun, Python and Triton: no value is ever run by a shell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_llm.plan import build_plan
from slurm_llm.render import Target, render
from slurm_llm.sites.load import parse_site
from slurm_llm.spec import spec_from_mapping
from slurm_llm.yamlio import Document, Tree, parse_document
from tests.render.sbatch_reader import read_options

EVIL = "a'b\"c `touch pwned1` $(touch pwned2) ${HOME} $HOME * ~ ; touch pwned3 & | > pwned4 # é 模 \\ !x %j"
EVIL_FOLDER = 'it\'s "x" `touch pwned5` $(touch pwned6) ;touch pwned7 é %j'
JOB_ID = "987654321"
MODEL_FILE = "tensorrt_llm/config.pbtxt"

# Each stand-in writes its words, one a line after its own name, and what it sees of the variable EVIL.
RECORD = 'printf "%s\\n" "{name}" "$@" "EVIL=${{EVIL-}}" "" >>"$STUB_OUT/{name}.${{SLURM_PROCID:-x}}"\n'
SRUN = """#!/bin/bash
{ printf '%s\\n' srun "$@" ""; } >>"$STUB_OUT/srun.words"
while [[ ${1-} == -* ]]; do shift; done
for task in 0 1; do
    SLURM_PROCID=$task "$@" || exit
done
"""
PYTHON = """#!/bin/bash
{ printf '%s\\n' "$@" "EVIL=${EVIL-}" ""; } >>"$STUB_OUT/python.$3"
case $3 in
head) trap 'exit 0' USR1 TERM; while read -r _; do :; done ;;
ports) echo 20001 20002 20003 ;;
repository) exec "$STUB_REAL_PYTHON" "$@" ;;
esac
exit 0
"""
TRITON = """#!/bin/bash
{ printf '%s\\n' "$@"; } >"$STUB_OUT/triton.$LLMRUN_RANK.words"
printf '%s' "${EVIL-}" >"$STUB_OUT/triton.$LLMRUN_RANK.evil"
printf '%s' "$LLMRUN_ROLE" >"$STUB_OUT/triton.$LLMRUN_RANK.role"
for word; do
    [[ $word != --model-repository=* ]] || cp -rL "${word#*=}" "$STUB_OUT/repository.$LLMRUN_RANK"
done
[[ -f $STUB_MODEL ]] || exit 3
exit "${STUB_CODE:-0}"
"""


@dataclass(frozen=True)
class Ran:
    """What a run of job.sub left: exit status, output, the stand-ins' notes and the working directory."""

    returncode: int
    output: str
    notes: Path
    cwd: Path
    run_dir: Path
    script: str

    def note(self, name: str) -> str:
        """Return a stand-in's note."""
        return (self.notes / name).read_text(encoding="utf-8")


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _values(tmp_path: Path) -> tuple[dict[str, Tree], dict[str, Tree]]:
    spec: dict[str, Tree] = {
        "name": EVIL,
        "engine": "rehearsal",
        "model": EVIL,
        "tensor_parallel_size": 2,
        "env": {"EVIL": EVIL},
        "qos": EVIL,
        "constraint": EVIL,
        "reservation": EVIL,
        "account": EVIL,
        "sbatch_extra": [f"--comment={EVIL}"],
        "triton": {"extra_args": [f"--x={EVIL}"], "server": str(tmp_path / EVIL_FOLDER / "triton")},
        "prologue": 'echo prologue >>"$STUB_OUT/order"',
        "epilogue": 'echo epilogue >>"$STUB_OUT/order"',
    }
    (tmp_path / "local").mkdir()
    site: dict[str, Tree] = {
        "schema_version": 1,
        "name": "here",
        "description": EVIL,
        "partitions": {"gpu": {"gpus_per_node": 4, "slurm_partition": EVIL, "licenses": EVIL, "switches": EVIL}},
        "launcher": {"mpi": EVIL, "step": {"cpu_bind": EVIL}},
        "srun_extra": [f"--comment={EVIL}"],
        "storage": {"local": str(tmp_path / "local")},
        "env": {"unset": ["GONE"], "prepend": {"EVIL_PATH": [EVIL, "/b"]}},
    }
    return spec, site


def _run(tmp_path: Path, changes: Mapping[str, Tree] | None = None, model_file: str = MODEL_FILE) -> Ran:
    """Run a job whose every value is hostile, with `changes` to its spec; Triton wants to see `model_file`."""
    spec, site = _values(tmp_path)
    spec.update(changes or {})
    run_dir = tmp_path / EVIL_FOLDER / "logs" / "run"
    python = tmp_path / EVIL_FOLDER / "bin" / "python3"
    plan = build_plan(spec_from_mapping(spec), parse_site(Document("site", site)))
    files = render(plan, Target(run_dir, str(python)))
    for name, text in files.items():
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text(text, encoding="utf-8")
    notes, cwd = tmp_path / "notes", tmp_path / "cwd"
    notes.mkdir()
    cwd.mkdir()
    _program(tmp_path / "stubs" / "srun", SRUN)
    _program(python, PYTHON)
    _program(tmp_path / EVIL_FOLDER / "triton" / "bin" / "tritonserver", TRITON)
    model = tmp_path / "local" / f"llmrun-{JOB_ID}.0" / "0" / "repository" / model_file
    variables = {
        "PATH": f"{tmp_path / 'stubs'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURMD_NODENAME": "n1",
        "STUB_OUT": str(notes),
        "STUB_MODEL": str(model),
        "STUB_REAL_PYTHON": sys.executable,
        "GONE": "here",
    }
    command = ["bash", str(run_dir / "job.sub")]
    done = subprocess.run(
        command,
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    return Ran(done.returncode, done.stdout + done.stderr, notes, cwd, run_dir, files["job.sub"])


def _no_trace(tmp_path: Path, ran: Ran) -> None:
    assert list(ran.cwd.iterdir()) == []
    assert [path for path in tmp_path.rglob("pwned?") if path.is_file()] == []


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of a job whose every value is hostile."""
    return _run(tmp_path_factory.mktemp("job"))


def test_the_job_runs_to_its_end(ran: Ran) -> None:
    """The script's own status is that of its last part, and prologue and epilogue, which are shell, did run."""
    assert ran.returncode == 0, ran.output
    assert ran.note("order").split() == ["prologue", "epilogue"]
    assert "conclude" in ran.note("python.conclude").split("\n")


def test_nothing_was_evaluated(ran: Ran) -> None:
    """No command that stands in a value was run, no file was made by a redirection."""
    assert ran.returncode == 0, ran.output
    _no_trace(ran.run_dir.parent.parent.parent, ran)


def test_shellcheck_finds_nothing_in_scripts_with_such_values(ran: Ran) -> None:
    """Quoting that a reader or a tool would stumble over is not needed for any value."""
    command = ["shellcheck", "--shell=bash", "--format=gcc", "job.sub", "rank.sh"]
    environ = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ran.run_dir, capture_output=True, text=True, check=False, env=environ)
    assert done.stdout + done.stderr == ""


def test_sbatch_reads_the_values_as_they_are(ran: Ran) -> None:
    """Name, account, partition and the rest stand in the directives unchanged."""
    options = read_options(ran.script)
    assert options[0] == f"--job-name={EVIL}"
    for name in ("account", "qos", "constraint", "reservation", "partition", "comment", "licenses", "switches"):
        assert f"--{name}={EVIL}" in options


def test_srun_gets_the_values_as_they_are(ran: Ran) -> None:
    """MPI type, binding and extra options are single words."""
    words = ran.note("srun.words").split("\n")
    assert {f"--mpi={EVIL}", f"--cpu-bind={EVIL}", f"--comment={EVIL}"} <= set(words)


def test_every_rank_gets_the_variable_as_it_is(ran: Ran) -> None:
    """The spec's variable arrives whole at the server of both ranks, one of which leads."""
    for rank in ("0", "1"):
        assert ran.note(f"triton.{rank}.evil") == EVIL
    assert [ran.note(f"triton.{rank}.role") for rank in ("0", "1")] == ["leader", "worker"]


def test_the_server_gets_its_arguments_as_they_are(ran: Ran) -> None:
    """The user's argument is one word; only the leader has ports; the repository's path is plain."""
    leader, worker = (ran.note(f"triton.{rank}.words").split("\n") for rank in ("0", "1"))
    assert f"--x={EVIL}" in leader
    assert f"--x={EVIL}" in worker
    assert {"--http-port=20001", "--grpc-port=20002", "--metrics-port=20003"} <= set(leader)
    assert {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"} <= set(worker)
    (repository,) = [word for word in leader if word.startswith("--model-repository=")]
    assert not set(repository) & set(" '\"`$;%\\é")


def test_each_rank_has_a_shm_prefix_of_its_own(ran: Ran) -> None:
    """Job, attempt and rank are in the prefix."""
    prefixes = [
        word.rpartition("=")[2]
        for rank in ("0", "1")
        for word in ran.note(f"triton.{rank}.words").split("\n")
        if "shm-region-prefix-name=" in word
    ]
    assert len(set(prefixes)) == 2
    assert all(JOB_ID in prefix for prefix in prefixes)


def test_the_agent_is_told_the_run_directory(ran: Ran) -> None:
    """The path reaches the agent as one word."""
    assert str(ran.run_dir) in ran.note("python.head").split("\n")
    assert str(ran.run_dir / f"job-{JOB_ID}" / "attempt-0") in ran.note("python.node").split("\n")


def test_nothing_stays_behind_on_the_node(ran: Ran) -> None:
    """The node-local folder is empty after the job."""
    assert list((ran.run_dir.parent.parent.parent / "local").iterdir()) == []


def test_the_front_end_gets_its_words_as_they_are(tmp_path: Path) -> None:
    """Its program and its tokenizer are single words too, and the balancer changes nothing in the scripts."""
    program = tmp_path / EVIL_FOLDER / "main.py"
    program.parent.mkdir()
    program.write_text("")
    triton: dict[str, Tree] = {
        "openai_frontend": str(program),
        "tokenizer": EVIL,
        "server": str(tmp_path / EVIL_FOLDER / "triton"),
    }
    ran = _run(tmp_path, {"frontend": "openai", "balancer": "haproxy", "triton": triton})
    assert ran.returncode == 0, ran.output
    words = ran.note("python.--enable-kserve-frontends").split("\n")
    assert {str(program), f"--tokenizer={EVIL}", "--openai-port=20003"} <= set(words)
    _no_trace(tmp_path, ran)


def test_arguments_of_an_engine_reach_its_repository_as_they_are(tmp_path: Path) -> None:
    """What rank.sh puts together on the node holds each value unchanged, and takes the folder that was meant."""
    own = tmp_path / EVIL_FOLDER / "all_models" / "llmapi" / "tensorrt_llm" / "1"
    own.mkdir(parents=True)
    (own / "model.py").write_text("")
    arguments: dict[str, Tree] = {
        "all_models": str(tmp_path / EVIL_FOLDER / "all_models"),
        "tokenizer": EVIL,
        "env_overrides": {EVIL: EVIL},
        "cp_config": {"text": "a\n$(touch pwned1)\n"},
    }
    spec: dict[str, Tree] = {"engine": "llmapi", "launch": "leader", "engine_args": arguments}
    ran = _run(tmp_path, spec, "tensorrt_llm/1/model.py")
    assert ran.returncode == 0, ran.output
    for rank in ("0", "1"):
        text = ran.note(f"repository.{rank}/tensorrt_llm/1/model.yaml")
        made = parse_document(text, "model.yaml").value
        assert {key: made[key] for key in arguments if key != "all_models"} | {"model": made["model"]} == {
            **{key: value for key, value in arguments.items() if key != "all_models"},
            "model": EVIL,
        }
    _no_trace(tmp_path, ran)


def test_a_missing_triton_is_told_without_evaluating_its_path(tmp_path: Path) -> None:
    """The message that names the places where Triton was looked for runs none of them."""
    spec, site = _values(tmp_path)
    run_dir = tmp_path / "run"
    plan = build_plan(spec_from_mapping(spec), parse_site(Document("site", site)))
    attempt = run_dir / "job-1" / "attempt-0"
    (attempt / "journal").mkdir(parents=True)
    text = render(plan, Target(run_dir, "/usr/bin/python3"))["rank.sh"]
    (run_dir / "rank.sh").write_text(text, encoding="utf-8")
    variables = {
        "PATH": "/usr/bin:/bin",
        "SLURM_PROCID": "0",
        "SLURM_JOB_ID": "1",
        "SLURMD_NODENAME": "n1",
        "LLMRUN_TAG": "1.0",
        "LLMRUN_RUN": str(run_dir),
        "LLMRUN_ATTEMPT": str(attempt),
    }
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    done = subprocess.run(["bash", str(run_dir / "rank.sh"), "0", "0"], cwd=cwd, env=variables, check=False)
    assert done.returncode == 127
    assert list(cwd.iterdir()) == []
    log = (attempt / "rank-0.log").read_text(encoding="utf-8")
    assert f"no bin/tritonserver in {tmp_path / EVIL_FOLDER / 'triton'}" in log


def test_two_runs_of_one_script_do_not_mix(tmp_path: Path) -> None:
    """A job of another id, and a second attempt of the same, each get a folder of their own."""
    first = _run(tmp_path)
    assert first.returncode == 0, first.output
    variables = {
        "PATH": f"{tmp_path / 'stubs'}:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "STUB_OUT": str(first.notes),
        "STUB_MODEL": "/dev/null",
    }
    for job_id in (JOB_ID, "987654322"):
        subprocess.run(
            ["bash", str(first.run_dir / "job.sub")],
            cwd=first.cwd,
            env={**variables, "SLURM_JOB_ID": job_id},
            check=False,
            capture_output=True,
            timeout=60,
        )
    folders = sorted(str(path.relative_to(first.run_dir)) for path in first.run_dir.glob("job-*/attempt-*"))
    assert folders == [f"job-{JOB_ID}/attempt-0", f"job-{JOB_ID}/attempt-1", "job-987654322/attempt-0"]
