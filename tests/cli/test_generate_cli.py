"""`generate`: where the prompt comes from, what reaches the server and the terminal, and how a request is stopped."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.test_cli import ROOT, Desk
from tests.http_server import Served, serve
from tests.observe.run_dirs import RunDir, squeue_row

Reply = tuple[int, Iterator[bytes]]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory with a run that serves."""
    made = Desk(tmp_path, monkeypatch)
    made.says("squeue", squeue_row(7, "RUNNING", left="1:00:00"))
    return made


@pytest.fixture
def server() -> Iterator[Served]:
    """Answer with what was asked for, in two pieces where a stream is wanted."""

    def answer(path: str, body: dict[str, object]) -> Reply:
        if body.get("stop"):
            return 400, iter([b'{"error": "Request cancelled by client"}'])
        pieces = [json.dumps({"text_output": text}).encode() for text in ("\x1b[31mred", " more")]
        return 200, iter([b"data: " + one + b"\n\n" for one in pieces] if path.endswith("stream") else pieces[:1])

    with serve(answer) as made:
        yield made


def serving(desk: Desk, *urls: str, **more: object) -> RunDir:
    """Write a run that serves at these addresses, an instance each."""
    run = RunDir(desk.folder / "logs" / "demo-20261130-104000-abcd").serving()
    path = run.paths.job(7).endpoint(0)
    value = json.loads(path.read_text())
    one = value["instances"][0]
    value["instances"] = [{**one, "instance": index, "url": url, **more} for index, url in enumerate(urls)]
    path.write_text(json.dumps(value))
    return run


def elsewhere(server: Served) -> str:
    """Return the server's address in a form that is not the loopback's, as of another machine."""
    return server.url.replace("127.0.0.1", "0.0.0.0")


def test_the_prompt_is_a_word_a_file_or_standard_input(desk: Desk, server: Served) -> None:
    """As it is, to the last line end; an argument of the command line is not the only way, since others can read it."""
    serving(desk, elsewhere(server))
    text = "zwei\nlines\n"
    (desk.folder / "prompt").write_text(text, encoding="utf-8")
    for words, given in (((text,), None), (("--file", "prompt"), None), (("-",), text), (("--file", "-"), text)):
        done = desk.run("generate", *words, given=given)
        assert done.exit_code == 0, done.stderr
    assert {body["text_input"] for _, body in server.asked} == {text}


@pytest.mark.parametrize(
    ("words", "given", "code", "said"),
    [
        (("--file", "nothing"), None, 3, "nothing: cannot be read: No such file"),
        (("--file", "."), None, 3, "cannot be read: Is a directory"),
        (("-",), b"\xff", 3, "standard input: is no UTF-8 text: byte 0 is 0xff"),
        (("--file", "a", "run", "prompt"), None, 2, "RUN and no PROMPT"),
        (("--cancel", "x", "run", "prompt"), None, 2, "RUN and no PROMPT"),
        (("--timeout", "0", "x"), None, 2, "--timeout"),
        (("--param", "x", "y"), None, 2, "NAME=VALUE"),
        (("--instance", "3", "x"), None, 3, "has no instance 3: there is instance 0 alone"),
        (("--cancel", ""), None, 2, "an empty id names no request"),
    ],
)
def test_what_is_no_request(
    desk: Desk, server: Served, words: tuple[str, ...], given: bytes | None, code: int, said: str
) -> None:
    """One reason, and nothing is sent."""
    serving(desk, elsewhere(server))
    done = desk.run("generate", *words, given=given)
    assert (done.exit_code, server.asked) == (code, [])
    assert said in done.stderr


def test_pieces_come_one_by_one_as_json(desk: Desk, server: Served) -> None:
    """A line for each, with the request's id, which --verbose tells before."""
    serving(desk, elsewhere(server))
    done = desk.run("generate", "x", "--stream", "--json", "--request-id", "mine", "-v")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["text_output"]) for row in rows] == [("mine", "\x1b[31mred"), ("mine", " more")]
    assert done.stderr.startswith("request mine to http://")


def test_a_stop_is_sent_to_every_instance(desk: Desk, server: Served) -> None:
    """With the balancer before them; the key of the run goes along and is printed nowhere."""
    run = serving(desk, elsewhere(server), elsewhere(server))
    key = run.paths.job(7).root / "key.0"
    key.write_text("x-key: s3cret\n")
    path = run.paths.job(7).endpoint(0)
    value = json.loads(path.read_text())
    front = {"program": "haproxy", "url": "http://nowhere.invalid:1", "grpc": "x:1", "key_file": str(key)}
    path.write_text(json.dumps({**value, "balancer": front}))
    done = desk.run("generate", "--cancel", "mine", "--json")
    assert json.loads(done.stdout) == {"id": "mine", "servers": 2}
    assert [body.get("id") for _, body in server.asked] == ["mine", "mine"]
    assert {headers["x-key"] for headers in server.headers} == {"s3cret"}
    assert "s3cret" not in done.stdout + done.stderr


def test_an_address_of_the_nodes_own_loopback_is_not_asked_here(desk: Desk, server: Served) -> None:
    """Somebody else may have that port on this machine: neither prompt nor key goes there."""
    serving(desk, server.url)
    done = desk.run("generate", "secret plans")
    assert (done.exit_code, server.asked) == (10, [])
    assert "slurm-llm tunnel 20261130-104000-abcd" in done.stderr


def test_a_terminal_gets_the_text_as_it_comes_and_nothing_that_steers_it(desk: Desk) -> None:
    """A stream without being asked for, all of a long line, and no control character out of a model's mouth."""
    long = "x" * 9000

    def answer(path: str, body: dict[str, object]) -> Reply:
        texts = ("\x1b]0;title\x07\x1b[31mred\r", f" {long}", "\nend")
        return 200, (f"data: {json.dumps({'text_output': text})}\n\n".encode() for text in texts)

    with serve(answer) as server:
        serving(desk, elsewhere(server))
        ours, theirs = pty.openpty()
        argv = [sys.executable, "-m", "slurm_llm", "generate", "x"]
        with subprocess.Popen(
            argv, stdout=theirs, cwd=desk.folder, env={**os.environ, "PYTHONPATH": str(ROOT)}
        ) as done:
            os.close(theirs)
            seen = bytearray()
            # A terminal whose other end has been closed is an error, not an end.
            with suppress(OSError):
                while data := os.read(ours, 1 << 16):
                    seen += data
        os.close(ours)
    assert (done.returncode, seen.decode()) == (0, f"red {long}\r\nend\r\n")
    assert server.asked[0][0].endswith("generate_stream")
