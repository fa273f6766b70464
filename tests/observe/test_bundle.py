"""The archive for a support ticket: what is in it, how large it may be, and that no secret leaves with it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from slurm_llm.observe import bundle
from slurm_llm.observe.redact import HIDDEN
from tests.observe.run_dirs import RunDir

TOKEN = "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7"
PASSWORD = "correct-horse-battery"


def packed(run: RunDir, environ: dict[str, str] | None = None, **sizes: int) -> dict[str, str]:
    """Return name → text of the files in a run's archive, as an unpacker sees them."""
    stream = io.BytesIO()
    reports = {"diagnosis.txt": "all is lost\n"}
    members = bundle.collect(run.paths, run.job.job, reports, environ or {}, **{"log_bytes": 1 << 20, **sizes})
    bundle.write(members, stream, "case")
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r:gz") as archive:
        found = {}
        for info in archive.getmembers():
            assert info.isreg()
            assert info.mode == 0o600
            assert info.name.startswith("case/")
            data = archive.extractfile(info)
            assert data is not None
            found[info.name.removeprefix("case/")] = data.read().decode()
    return found


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run that failed."""
    made = RunDir(tmp_path / "run").serving().killed(5).result("FAILED", "rank 5", None)
    made.log("rank-5.log", "loading\nlast words\n")
    made.paths.output(7).write_text("slurm_llm: FAILED\n")
    (made.root / "job.sub").write_text("#!/bin/bash\n")
    return made


def test_what_is_in_it(run: RunDir) -> None:
    """Scripts, plan, record, output, journals, logs and results of the job, the reports, and a list of it all."""
    found = packed(run)
    job = "job-7"
    assert {
        *("README.txt", "diagnosis.txt", "job.sub", "plan.json", "record.json", "slurm-7.out"),
        *(f"{job}/job.json", f"{job}/result.0.json", f"{job}/endpoint.0.json", f"{job}/attempt-0/rank-5.log"),
        *(f"{job}/attempt-0/journal/head.jsonl", f"{job}/attempt-0/journal/node3.jsonl"),
    } <= set(found)
    assert found[f"{job}/attempt-0/rank-5.log"] == "loading\nlast words\n"
    about = found["README.txt"]
    assert "job 7" in about
    assert f"{job}/attempt-0/rank-5.log" in about
    assert "slurm_llm" in about
    assert "Python" in about


def test_what_is_not(run: RunDir) -> None:
    """Links are never followed, weights and other binaries are not taken, nor another job's output."""
    (run.root / "secret.yaml").symlink_to("/etc/passwd")
    folder = run.root / "model_repository" / "x" / "1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    (folder.parent / "config.pbtxt").write_text("name: 'x'\n")
    (folder / "weights").symlink_to("/")
    run.paths.output(6).write_text("another job\n")
    found = packed(run)
    assert "model_repository/x/config.pbtxt" in found
    assert not any(
        "safetensors" in name or "weights" in name or name in ("secret.yaml", "slurm-6.out") for name in found
    )


def test_the_middle_of_a_long_log_is_left_out(run: RunDir) -> None:
    """Whole lines of its beginning and of its end stay, and it says how much is gone."""
    lines = [f"line {number}" for number in range(100_000)]
    run.log("rank-5.log", "\n".join(lines) + "\n")
    found = packed(run, log_bytes=64 << 10)
    text = found["job-7/attempt-0/rank-5.log"]
    rows = text.split("\n")
    assert len(text) < 66 << 10
    assert rows[0] == "line 0"
    assert rows[-2:] == ["line 99999", ""]
    assert set(rows) - set(lines) == {"", next(row for row in rows if "bytes left out" in row)}
    assert len(found["README.txt"].split("(middle left out)")) == 2


def test_many_logs_get_less_each(run: RunDir) -> None:
    """An archive of a job with very many ranks can still be sent."""
    for rank in range(40):
        run.log(f"rank-{rank}.log", "x" * 99 + "\n" + "y\n" * 60_000)
    assert sum(map(len, packed(run).values())) > 4 << 20
    assert sum(map(len, packed(run, most_bytes=1 << 20).values())) < 2 << 20


SECRETS = {
    "a token": f"loading with token {TOKEN}",
    "a variable": f"export DB_PASSWORD={PASSWORD}",
    "JSON": f'{{"api_key": "{PASSWORD}", "x": 1}}',
    "YAML": f"  HF_TOKEN: {PASSWORD}",
    "a header": f"Authorization: Bearer {PASSWORD}{PASSWORD}",
    "basic authorization": "authorization: Basic dXNlcjpjb3JyZWN0aG9yc2U=",
    "an URL": f"proxy http://me:{PASSWORD}@proxy:3128/",
    "Triton's keys of APIs": f"--http-restricted-api=inference:api-key={PASSWORD}",
    "an NVIDIA key": "nvapi-" + "Zz9" * 12,
    "an AWS key": "AKIA" + "ABCDEFGH12345678",
}


@pytest.mark.parametrize("line", SECRETS.values(), ids=SECRETS.keys())
def test_secrets_are_hidden(run: RunDir, line: str) -> None:
    """In scripts, specs and logs, whatever form they have; the rest of the line stays."""
    run.log("rank-3.log", f"before\n{line}\nafter\n")
    (run.root / "spec.yaml").write_text(f"name: demo\nenv:\n{line}\n")
    found = packed(run)
    text = "".join(found.values())
    for secret in (TOKEN, PASSWORD, "dXNlcjpjb3JyZWN0aG9yc2U", "Zz9Zz9Zz9", "ABCDEFGH12345678"):
        assert secret not in text
    log = found["job-7/attempt-0/rank-3.log"]
    assert HIDDEN in log
    assert log.startswith("before\n")
    assert log.endswith("after\n")
    assert "Places where a secret was hidden: 0" not in found["README.txt"]


def test_a_private_key_is_hidden_to_its_end(run: RunDir) -> None:
    """All of its lines, not the first alone; also one that is cut off."""
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n{body}\n"
    run.log("rank-3.log", f"a\n{key}-----END RSA PRIVATE KEY-----\nb\n")
    run.log("rank-4.log", key)
    found = packed(run)
    assert body not in "".join(found.values())
    assert found["job-7/attempt-0/rank-3.log"].endswith("\nb\n")


def test_a_value_is_hidden_wherever_it_stands(run: RunDir) -> None:
    """What one file, or the user's environment, names as a secret is one in every other place too."""
    (run.root / "spec.yaml").write_text(f"env:\n  MY_SECRET: {PASSWORD}\n")
    run.log("rank-3.log", f"connected with {PASSWORD}\nand {'q' * 12}-mine\n")
    text = "".join(packed(run, {"OTHER_TOKEN": "q" * 12 + "-mine", "HOME": "/home/me"}).values())
    assert PASSWORD not in text
    assert "q" * 12 not in text


def test_what_only_looks_like_a_secret_stays(run: RunDir) -> None:
    """A diagnosis needs paths, references, numbers and the names of things."""
    lines = [
        "export HF_TOKEN=$(cat ~/.token)",
        "HF_TOKEN_PATH=/home/me/.token",
        'TOKENIZERS_PARALLELISM="false"',
        "max_tokens: 16",
        '"eos_token": "</s>"',
        "KeyError: 'qwen3'",
        "rank 5 on node node3 went first: triton_python_b ended: signal SIGKILL",
        'I1130 14:27:06.961434 1 http_server.cc:4713] "Started HTTPService at 0.0.0.0:22991"',
    ]
    run.log("rank-3.log", "\n".join(lines) + "\n")
    assert packed(run)["job-7/attempt-0/rank-3.log"].splitlines() == lines


def test_a_run_without_a_job(tmp_path: Path) -> None:
    """What was rendered is all there is."""
    run = RunDir(tmp_path / "run")
    assert {"plan.json", "record.json", "README.txt"} <= set(packed(run))
    assert bundle.archive_name(run.paths, None) == "run.tar.gz"


def test_a_file_that_cannot_be_read(run: RunDir) -> None:
    """It vanishes while the archive is made: said so, and the rest is there."""
    folder = run.job_paths.attempt(0).root
    (folder / "rank-6.log").mkdir()
    found = packed(run)
    assert "job-7/attempt-0/rank-5.log" in found


def test_what_the_user_is_told(run: RunDir) -> None:
    """How much is in it, and how many secrets were hidden."""
    run.log("rank-3.log", f"token {TOKEN}\n")
    said = bundle.write(bundle.collect(run.paths, run.job.job, {}, {}, log_bytes=1 << 20), io.BytesIO(), "case")
    assert "files, 0 of them cut, secrets hidden in 1 places" in said
