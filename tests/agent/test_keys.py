"""The key of an attempt as the head reads it, and shared memory that others must not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_llm.agent import front, keys, leftovers, probe, regions


def attempt(folder: Path, key: str | None) -> str:
    """Make a job's folder with an attempt and its key, and return the attempt's folder."""
    made = folder / "job-7" / "attempt-2"
    made.mkdir(parents=True)
    if key is not None:
        (made.parent / "key.2").write_text(key)
    return str(made)


def test_the_header_is_that_of_the_attempt(tmp_path: Path) -> None:
    """As the job's script writes it; without a file there is no key."""
    assert keys.headers(attempt(tmp_path / "a", "slurm-llm-key: 0a1b\n")) == {"slurm-llm-key": "0a1b"}
    assert keys.headers(attempt(tmp_path / "b", None)) == {}


def test_a_key_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Without it every probe would be refused, and the run would look as if it never became ready."""
    (tmp_path / "job-7" / "key.2").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        keys.headers(str(tmp_path / "job-7" / "attempt-2"))


def test_the_endpoint_names_the_file_and_not_the_key(tmp_path: Path) -> None:
    """The endpoint file may be copied; its reader must be able to read the key's file."""
    folder = attempt(tmp_path, "slurm-llm-key: 0a1b2c3d\n")
    own = front.Front({"server": {"model_name": "m"}, "instances": [1]}, folder)
    assert own.open([probe.Leader(0, "node1", 1, 2, 3)]) == ""
    text = (tmp_path / "job-7" / "endpoint.2.json").read_text()
    assert json.loads(text)["instances"][0]["key_file"] == str(tmp_path / "job-7" / "key.2")
    assert "0a1b2c3d" not in text


@pytest.mark.parametrize(
    ("bind", "expected"), [({}, ""), ({"bind": "all"}, ""), ({"bind": "loopback"}, "127.0.0.1"), (None, "")]
)
def test_the_address_to_listen_on(bind: dict[str, str] | None, expected: str) -> None:
    """Empty is every address; plans of older releases say nothing."""
    plan = {"interface": None} if bind is None else {"access": bind, "interface": None}
    assert front.bind_address(plan) == expected


def test_an_interface_has_its_address_or_is_refused() -> None:
    """A server that listened elsewhere would be what the site does not want."""
    assert front.bind_address({"access": {"bind": "interface"}, "interface": "lo"}) == "127.0.0.1"
    with pytest.raises(ValueError, match="interface none0 has no IPv4 address here"):
        front.bind_address({"access": {"bind": "interface"}, "interface": "none0"})


def test_regions_are_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the run, and what its processes have mapped; another run's, folders and links stay as they are."""
    monkeypatch.setattr(leftovers, "SHM", str(tmp_path))
    names = {"llm7a2r0_x": 0o644, "llm8a0r0_x": 0o644, "mapped": 0o666, "other": 0o644, "llm7a2r1_closed": 0o600}
    for name, mode in names.items():
        (tmp_path / name).write_bytes(b"prompt")
        (tmp_path / name).chmod(mode)
    (tmp_path / "llm7a2r0_mpi").mkdir(mode=0o755)
    (tmp_path / "llm7a2r0_link").symlink_to(tmp_path / "other")
    assert regions.close("7.2", [str(tmp_path / "mapped"), str(tmp_path / "gone")]) == 2
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_file()}
    assert modes == {**names, "llm7a2r0_x": 0o600, "mapped": 0o600, "llm7a2r0_link": 0o644}
    assert regions.close("7.2", [str(tmp_path / "mapped")]) == 0
