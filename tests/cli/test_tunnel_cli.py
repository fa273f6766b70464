"""`tunnel` and `shell` without a cluster: what they print for a laptop or a person, and what they refuse."""

from __future__ import annotations

import shlex
import socket
import stat
from pathlib import Path

import pytest

from slurm_llm.errors import InputError
from slurm_llm.listening import listen, listen_privately
from slurm_llm.tunnelling import find_place
from tests.cli.test_cli import Desk
from tests.observe.run_dirs import RunDir, squeue_row

RUN_ID = "20261130-104000-abcd"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory, whose name has a space."""
    folder = tmp_path / "my folder"
    folder.mkdir()
    made = Desk(folder, monkeypatch)
    made.says("squeue", squeue_row(7, "RUNNING", left="1:00:00"))
    monkeypatch.setenv("USER", "me")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return made


def test_what_a_laptop_needs(desk: Desk) -> None:
    """One line that opens both ends, whose words survive two shells; and the plain one."""
    run = desk.serving()
    lines = desk.run("tunnel", "--print", "--port", "8123").stdout.splitlines()
    *ssh, there = shlex.split(lines[1])
    assert ssh[:4] == ["ssh", "-t", "-L", "8123:127.0.0.1:8123"] and ssh[4].startswith("me@")
    assert shlex.split(there)[-4:] == ["tunnel", str(run.root), "--port", "8123"]
    assert lines[3].split()[:4] == ["ssh", "-N", "-L", "8123:node1:20000"]
    assert len(lines[2]) <= 80


def test_a_laptops_line_goes_the_way_that_was_asked_for(desk: Desk) -> None:
    """`--via` and `--instance` are for the tunnel that the laptop starts."""
    desk.serving()
    line = desk.run("tunnel", "--print", "--via", "srun", "--instance", "0").stdout.splitlines()[1]
    assert shlex.split(shlex.split(line)[-1])[-6:] == ["--port", "8000", "--via", "srun", "--instance", "0"]


def test_a_server_on_its_nodes_loopback_has_no_plain_line(desk: Desk) -> None:
    """Nothing that ssh forwards to from the login node would be it."""
    run = desk.serving()
    path = run.paths.job(7).endpoint(0)
    path.write_text(path.read_text().replace("http://node1:20000", "http://127.0.0.1:20000"))
    assert len(desk.run("tunnel", "--print").stdout.splitlines()) == 2
    place = find_place(run.job, None)
    assert place is not None
    assert (place.node, place.targets, place.inward) == ("node1", (("127.0.0.1", 20000),), True)


def test_there_is_no_tunnel_to_what_does_not_serve(desk: Desk) -> None:
    """One line and the code of every command that needs a server; no place is found in its files."""
    run = RunDir(desk.folder / "logs" / f"demo-{RUN_ID}").loading()
    done = desk.run("tunnel")
    assert (done.exit_code, len(done.stderr.splitlines())) == (9, 1)
    assert "serves nothing: it is LOADING" in done.stderr
    assert find_place(run.job, None) is None


def test_a_silent_slurm_is_the_reason(desk: Desk) -> None:
    """Of a run whose files tell nothing, only Slurm could say more."""
    RunDir(desk.folder / "logs" / f"demo-{RUN_ID}").submitted()
    desk.says("squeue", "", code=1)
    assert "it is UNKNOWN: Slurm did not answer" in desk.run("tunnel").stderr


def test_a_reason_ends_once(desk: Desk) -> None:
    """A sentence about the queue is no sentence any more before what to do."""
    RunDir(desk.folder / "logs" / f"demo-{RUN_ID}").submitted()
    desk.says("squeue", squeue_row(7, "PENDING", reason="JobHeldUser"))
    said = desk.run("endpoint").stderr
    assert "it is PENDING: " in said and ".:" not in said


def test_ports() -> None:
    """The usual one unless it is taken, then any, on loopback alone."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        other = listen(None, port)
        assert other.port not in (0, port) and other.url == f"http://127.0.0.1:{other.port}"
        assert other.forward(9) == f"9:127.0.0.1:{other.port}"
        other.close()


def test_a_socket_is_its_users_alone(tmp_path: Path) -> None:
    """Mode 0600; what is there stays, unless it is a socket that nobody listens at; it goes with the tunnel."""
    path = tmp_path / "my socket"
    made = listen_privately(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.forward(8000) == f"'8000:{path}'"
    with pytest.raises(InputError, match="Address already in use"):
        listen_privately(path)
    made.socket.close()
    listen_privately(path).close()
    assert not path.exists()
    path.write_text("a file")
    with pytest.raises(InputError, match="cannot be opened"):
        listen_privately(path)
    assert path.read_text() == "a file"
    with pytest.raises(InputError, match="path too long"):
        listen_privately(tmp_path / ("x" * 200))


def test_the_srun_line_can_be_looked_at(desk: Desk) -> None:
    """`shell --print` shows what it would run, quoted for a shell; words behind -- are the command's, options too."""
    run = desk.serving()
    run.paths.script.write_text("python=/usr/bin/python3\n")
    words = shlex.split(desk.run("shell", "--rank", "5", "--print", "--", "ls", "--rank", "a b").stdout)
    assert words[0] == "srun" and "--nodelist=node3" in words and "--jobid=7" in words
    assert words[-6:] == ["--rank", "5", "--", "ls", "--rank", "a b"]
    assert str(run.root / "agent") in words


@pytest.mark.parametrize(("words", "code"), [(("--rank", "8"), 3), (("--rank", "-1"), 2), (("--rank", "x"), 2)])
def test_no_such_rank(desk: Desk, words: tuple[str, ...], code: int) -> None:
    """Ranks are counted from 0."""
    desk.serving()
    assert desk.run("shell", *words, "--print").exit_code == code
