"""Secrets in profiles: found wherever they stand, told by key and kind, and never printed."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from slurm_llm.sites.lint import lint_file
from slurm_llm.sites.secrets import find_secrets, names_secret, redacted

TODAY = date(2026, 11, 30)
HEAD = "schema_version: 1\nname: here\nverified: {state: run, date: '2026-11-01', slurm: '23.11'}\n"
PARTITIONS = "partitions: {gpu: {gpus_per_node: 4, cpus: {per_rank: 2}, limits: {max_nodes: 1}}}\n"

# Put together here, so that no scanner of repositories takes this file for a leak.
HUGGING_FACE = "hf_" + "aB3" * 11
GITHUB = "ghp_" + "aB3d" * 9
AWS = "AKIA" + "ABCDEFGH12345678"
WORD = "correct-" + "horse-battery"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"export HF_TOKEN={HUGGING_FACE}", "a Hugging Face token"),
        (f"https://oauth2:{GITHUB}@github.com/x", "a GitHub token"),
        (f"key {AWS} of ours", "an AWS key"),
        ("glpat-" + "abcdefghij1234567890", "a GitLab token"),
        ("nvapi-" + "abcdefghij1234567890", "an NVIDIA key"),
        ("sk-" + "proj-abcdefghij1234567890", "an API key"),
        ("AIza" + "B" * 35, "a Google key"),
        ("xoxb-" + "1234567890-abcdef", "a Slack token"),
        ("eyJ" + "hbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2", "a JSON web token"),
        ("curl -H 'Authorization: Bearer " + "abcdef0123456789abcdef'", "a bearer token"),
        ("-----BEGIN " + "OPENSSH PRIVATE KEY-----", "a private key"),
        (f"http_proxy=http://me:{WORD}@proxy:3128", "a password in a URL"),
        (f"export DB_PASSWORD='{WORD}'", "a value that is to stay secret"),
        (f"--comment=token={WORD}", "a value that is to stay secret"),
        (f"export PGPASSWORD={WORD} HF_TOKEN_2=x", "a value that is to stay secret"),
        (f"SMTP_PWD={WORD}", "a value that is to stay secret"),
        (f"export OPENAI_KEY={WORD}", "a value that is to stay secret"),
        ("curl -H 'Authorization: Basic " + "dXNlcjpwYXNzd29yZA=='", "an authorization header"),
        ("curl -H 'X-Api-Key: " + "abcdef0123456789'", "an authorization header"),
        (f"  # WANDB_API_KEY: {WORD}  # of the group", "a value that is to stay secret"),
        (f"curl https://example.org/x?access_token={WORD}", "a value that is to stay secret"),
    ],
)
def test_what_looks_like_a_secret_is_one(line: str, kind: str) -> None:
    """Tokens of known forms, and values that a name calls secret."""
    found = list(find_secrets(line))
    assert kind in [secret.kind for secret in found]
    assert redacted(line) != line


@pytest.mark.parametrize(
    "line",
    [
        "export HF_TOKEN=$(cat ~/.cache/huggingface/token)",
        'HF_TOKEN="${HF_TOKEN:?set it}"',
        "HF_TOKEN_PATH=/p/project/tokens/huggingface",
        "TOKENIZERS_PARALLELISM=false",
        "PWD=/home/somebody",
        "password=<yours>",
        "SECRET=",
        "# The token: ask your admin for one.",
        "# Note: tokens belong into files with mode 600",
        "docker://registry.example.org:5000/org/image@sha256:0123456789abcdef",
        "user@registry.example.org#org/image:latest",
        "https://docs.example.org/a:b/c@d",
        "constraint: nvme&gpu",
        "task-management-for-large-language-models",
        "contact: jane.doe@example.org",
        "hf_home: /scratch/hf_home_of_everybody",
        "NCCL_IB_HCA=mlx5_0:1,mlx5_1:1",
        "ssh_key=/home/me/.ssh/id_ed25519",
    ],
)
def test_what_only_resembles_a_secret_is_none(line: str) -> None:
    """References, paths, placeholders, prose, images and addresses of people."""
    assert list(find_secrets(line)) == []
    assert redacted(line) == line


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(("HF_TOKEN", True), ("db-password", True), ("AWS_SECRET_ACCESS_KEY", True), ("apiKey", True)),
        *(("NGC_API_KEY", True), ("TOKENIZERS_PARALLELISM", False), ("MAX_TOKENS", False), ("KEY", False)),
        *(("TOKEN_FILE", False), ("secret", True), ("", False), ("PUBLIC_KEY", False)),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    """The last word decides; `key` needs one before it that says what it opens."""
    assert names_secret(name) is secret


@pytest.mark.parametrize(
    ("text", "line", "near"),
    [
        (f"env:\n  set:\n    HF_TOKEN: {HUGGING_FACE}\n", 7, "env.set.HF_TOKEN"),
        (f"env: {{set: {{MY_PASSWORD: '{WORD}'}}}}\n", 5, "env.set.MY_PASSWORD"),
        (f"env: {{set: {{MY_PASSWORD: '{WORD}\\x01'}}}}\n".replace("'", '"'), 5, "env.set.MY_PASSWORD"),
        (f"prologue: |\n  module load x\n  export A={HUGGING_FACE}\n", 7, "prologue"),
        (f"# old: {HUGGING_FACE}\n", 5, "partitions.gpu.limits.max_nodes"),
        (f"sbatch_extra:\n- --comment={GITHUB}\n", 6, "sbatch_extra"),
        (f"passwd: {WORD}\n", 5, "passwd"),
        (f"contact: [{HUGGING_FACE}]\n", 5, "contact"),
        (f"storage: {{local: {HUGGING_FACE}}}\n", 5, "storage.local"),
        (f"launcher: {{step: {{wait_s: {HUGGING_FACE}}}}}\n", 5, "launcher.step.wait_s"),
        ('description: "\\x68f_' + HUGGING_FACE[3:] + '"\n', 5, "description"),
    ],
)
def test_a_secret_is_told_by_its_place_and_never_shown(tmp_path: Path, text: str, line: int, near: str) -> None:
    """Neither its own finding nor one about the same value, or its key, holds it."""
    path = tmp_path / "here.yaml"
    path.write_text(HEAD + PARTITIONS + text)
    findings = lint_file(path, {"HOME": "/nonexistent"}, TODAY)
    own = [one for one in findings if one.rule == "secret"]
    assert [one.line for one in own] == [line]
    assert f"near '{near}'" in own[0].what
    told = "\n".join(str(one) for one in findings)
    assert not any(text in told for text in (HUGGING_FACE, GITHUB, WORD, HUGGING_FACE[3:]))


def test_a_secret_as_a_key_is_not_shown(tmp_path: Path) -> None:
    """Somebody may put it on the wrong side of the colon."""
    path = tmp_path / "here.yaml"
    for text, rule in (
        (f"{HUGGING_FACE}: 1\n", "unknown-key"),
        (f"env: {{{AWS}: 1}}\n", "unknown-key"),
        (f"account: {HUGGING_FACE}\n", "wrong-value"),
    ):
        path.write_text(HEAD + PARTITIONS + text)
        findings = lint_file(path, {"HOME": "/nonexistent"}, TODAY)
        assert {one.rule for one in findings} == {"secret", rule}
        assert not {HUGGING_FACE, AWS} & set(re.findall(r"\w+", "\n".join(str(one) for one in findings)))
