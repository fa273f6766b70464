"""Site profiles: what they take, what they refuse, and that every key is documented."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from slurm_llm.errors import SiteError
from slurm_llm.sites.load import parse_site
from slurm_llm.yamlio import parse_document

BASE = "schema_version: 1\nname: here\npartitions:\n  a: {gpus_per_node: 4}\n"


def _fault(text: str) -> str:
    with pytest.raises(SiteError) as caught:
        parse_site(parse_document(text, "f.yaml", SiteError))
    return str(caught.value)


def test_the_smallest_profile_has_defaults() -> None:
    """A version, a name and one partition are enough."""
    site = parse_site(parse_document(BASE, "f.yaml"))
    assert (site.network.ports, site.storage.local, site.container.runtime) == ("20000-29999", "/tmp", "none")
    assert (site.launcher.mpi, site.partitions["a"].gpu_request.style) == (None, "gpus_per_node")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\n", "f.yaml: 'schema_version' is missing: add it"),
        ("name: a\n", "f.yaml: 'partitions' is missing: add it"),
        (BASE.replace("version: 1", "version: 2"), "f.yaml:1: schema_version: must be one of 1 (found: 2)"),
        (
            BASE.replace("here", "a/b"),
            "f.yaml:2: name: must be letters, digits, '.', '_' and '-', and start with a letter or digit",
        ),
        ("schema_version: 1\nname: a\npartitions: {}\n", "f.yaml:3: partitions: must not be empty"),
        (
            BASE + "default_partition: b\n",
            "f.yaml:5: default_partition: must be one of a (found: 'b'): correct the value",
        ),
        (BASE.replace("gpus_per_node: 4", "gpus: 4"), "f.yaml:4: unknown key 'partitions.a.gpus': known here: "),
        (BASE.replace("4}", "'4'}"), "f.yaml:4: partitions.a.gpus_per_node: must be a whole number (found: '4')"),
        (
            BASE.replace("4}", "4, gpu_request: {style: tres}}"),
            "style: must be one of 'gres', 'gpus_per_node', 'gpus', 'gpus_per_task' or 'none' (found: 'tres')",
        ),
        (BASE.replace("4}", "4, time: {max: 4h}}"), "partitions.a.time.max: '4h' is not a Slurm time"),
        (BASE + "network: {ports: 9-1}\n", "network.ports: must be two ports between 1 and 65535, the lower one first"),
        (BASE + "network: {ports: all}\n", "network.ports: must be a range of ports like 20000-29999"),
        (BASE + "network: {ports: 0-99999}\n", "network.ports: must be two ports between 1 and 65535"),
        (BASE + "network: {interface: 'hsn0,hsn1'}\n", "must be one name; NCCL_SOCKET_IFNAME in env.set takes lists"),
        (BASE + "network: {interface: ^docker}\n", "must be one name; NCCL_SOCKET_IFNAME in env.set takes lists"),
        (BASE + "network: {interface: =hsn0}\n", "must be one name; NCCL_SOCKET_IFNAME in env.set takes lists"),
        (BASE + "network: {interface: ib 0}\n", "network.interface: must be the name of an interface"),
        (BASE + "network: {interface: sixteen_letters_}\n", "network.interface: must be the name of an interface"),
        (BASE + "storage: {local: relative}\n", "storage.local: must be an absolute path of letters, digits"),
        (BASE + "storage: {local: /a b}\n", "storage.local: must be an absolute path of letters, digits"),
        (BASE + "account: {pattern: '['}\n", "account.pattern: not a regular expression"),
        (BASE + "account: {pattern: 'a{99999999999}'}\n", "account.pattern: not a regular expression"),
        (BASE + "launcher: {command: /usr/bin/srun}\n", "launcher.command: must be srun alone"),
        (BASE + "startup: {timeout_factor: .inf}\n", "startup.timeout_factor: must be at most 1000"),
        (BASE + "env: {unset: ['X; touch pwned']}\n", "env.unset[0]: not the name of an environment variable"),
        (BASE + "env: {set: {A b: 1}}\n", "env.set.A b: not the name of an environment variable: 'A b'"),
        (BASE + "srun_extra: ['-p debug']\n", "srun_extra[0]: must be one option, as --name, --name=value or -Xvalue"),
        (BASE + "sbatch_extra: [--array=1-3]\n", "sbatch_extra[0]: is set by slurm_llm itself"),
        (BASE + "slurm: {version: '22'}\n", 'slurm.version: must be a release in quotes, as "23.11"'),
        (BASE + "slurm: {version: 22.05}\n", "slurm.version: must be text (found: 22.05): put it in quotes"),
        (BASE + "container: {runtime: docker}\n", "container.runtime: must be one of 'none', 'pyxis', "),
        (
            BASE.replace("a:", "gpu:").replace("4}", "4, hint: x}"),
            "f.yaml:4: unknown key 'partitions.gpu.hint': known ",
        ),
        (BASE.replace("4}", "4, hint: x}"), "whole_node: remove it"),
        (
            BASE.replace("4}", "4, segment: {x: 1}}"),
            "partitions.a.segment: must be a whole number or one of 'all' (fou",
        ),
        (BASE + "policies: {forbid: [mem]}\n", "policies.forbid[0]: must be the long name of an option, as --mem"),
        (BASE + "exclude_nodes: 'n[1-'\n", "f.yaml:5: exclude_nodes: "),
        (BASE + "verified: {state: guessed, date: 2026-01-01}\n", "verified.state: must be one of 'documentation' or"),
        (BASE + 'prologue: "a\\rb"\n', "prologue: must hold no NUL and no carriage return"),
        (BASE + "- x\n", "f.yaml:5: not readable as YAML"),
    ],
)
def test_a_bad_profile_is_refused_in_plain_words(text: str, message: str) -> None:
    """Every kind of bad value names its key, its line and the rule that it breaks."""
    assert message in _fault(text)


def test_several_faults_are_named_at_once() -> None:
    """One run shows everything that is wrong with the profile."""
    fault = _fault(BASE + "default_partition: b\nnetwork: {ports: x}\nstorage: {lokal: /tmp}\n")
    assert [line.split(":")[1] for line in fault.splitlines()] == ["5", "6", "7"]


def test_a_profile_cannot_be_changed() -> None:
    """Profiles are values."""
    site = parse_site(parse_document(BASE, "f.yaml"))
    with pytest.raises(ValidationError, match="frozen"):
        site.name = "other"
