"""Servers' pages for the run's own: asked for all at once within bounds, read strictly, put together with labels."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.agent import exposition, fetching
from slurm_llm.agent.exposition import Exposition, Fault, Reader, labelled
from slurm_llm.agent.fetching import Place, fetch
from slurm_llm.observe.metricstext import Family, parse_metrics
from tests.observe.test_metrics import PAGES

Say = Callable[[socket.socket], None]
WHOSE = [("rank", "2"), ("node", "n1"), ("instance", "1")]


@contextmanager
def server(say: Say) -> Iterator[int]:
    """Answer each connection by `say` until the block ends, and return the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                say(connection)
            except OSError:
                # The other side has given up on us.
                return

    threading.Thread(target=work, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def sends(*pieces: bytes, pause_s: float = 0.0) -> Say:
    """Return what sends these pieces and closes."""

    def say(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)

    return say


def forever(piece: bytes, pause_s: float) -> Say:
    """Return what never comes to an end."""

    def say(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(piece)
            time.sleep(pause_s)

    return say


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n"


@pytest.mark.parametrize(
    ("say", "body", "problem"),
    [
        (sends(OK), b"a 1\n", ""),
        (sends(*(OK[at : at + 1] for at in range(len(OK)))), b"a 1\n", ""),
        (sends(b"HTTP/1.0 200 OK\r\n\r\na 1\n"), b"a 1\n", ""),
        (sends(OK[:-2]), b"", "broke off after 2 of 4 bytes"),
        (sends(b"HTTP/1.1 404 Not Found\r\n\r\n"), b"", "status 404"),
        (sends(b"SSH-2.0-OpenSSH_9.2\r\n"), b"", "is not HTTP"),
        (sends(), b"", "is not HTTP"),
        (forever(b"x", 0.01), b"", "no answer within 0.5 s"),
        (forever(b"x" * 65536, 0.0), b"", f"more than {fetching.MOST_BYTES} bytes"),
    ],
)
def test_what_a_server_answers(say: Say, body: bytes, problem: str) -> None:
    """A whole answer or a reason: never half a page, never more than its bounds of time and memory."""
    with server(say) as port:
        one_s = 0.5 if "0.5" in problem else 20.0
        found = fetch([Place(7, "127.0.0.1", port)], one_s, 30.0)[7]
    assert found.body == body
    assert problem in found.problem and bool(found.problem) == bool(problem)


def test_nobody_waits_for_a_slow_server() -> None:
    """Of many servers the slow ones alone are missing, more than are asked at a time too; one that is not there is."""
    with server(sends(OK)) as good, server(forever(b"x", 0.05)) as slow, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        places = [Place(key, "127.0.0.1", slow if key % 50 == 0 else good) for key in range(150)]
        places += [Place(200, "127.0.0.1", unused.getsockname()[1]), Place(201, "no-such-host.invalid", 1)]
        found = fetch(places, 2.0, 60.0)
    assert {key for key, one in found.items() if one.problem} == {0, 50, 100, 200, 201}
    assert "refused" in found[200].problem


def test_all_of_them_have_a_limit() -> None:
    """Servers that all hang do not hold up the page for the sum of their times: those that were not asked are told."""
    with server(forever(b"x", 0.05)) as slow:
        places = [Place(key, "127.0.0.1", slow) for key in range(fetching.AT_ONCE + 1)]
        found = fetch(places, 30.0, 0.3)
    assert {one.problem for one in found.values()} == {
        "no answer in time",
        "not asked: the others took all of the time",
    }


def page(*bodies: tuple[bytes, str]) -> str:
    """Return the page that bodies with labels make."""
    made, reader = Exposition(), Reader()
    for body, labels in bodies:
        made.take_in(reader.read(body), labels)
    return made.text()


def samples(families: list[Family]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample."""
    return {(one.name, one.labels): one.value for family in families for one in family.samples}


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("*.txt")))
def test_real_pages_with_labels(name: str) -> None:
    """Two instances' pages say together what each says alone, with its labels; each family is declared once."""
    body = (PAGES / name).read_bytes()
    text = page((body, labelled([("instance", "0")])), (body, labelled([("instance", "1")])))
    own, both = parse_metrics(body.decode()), parse_metrics(text)
    assert [(one.name, one.kind, one.help) for one in both] == [(one.name, one.kind, one.help) for one in own]
    wanted = {
        (name, tuple(sorted([*labels, ("instance", number)]))): value
        for (name, labels), value in samples(own).items()
        for number in "01"
    }
    assert samples(both) == wanted
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a 1", 'a{rank="2",node="n1",instance="1"} 1'),
        ("a{} 1", 'a{rank="2",node="n1",instance="1"} 1'),
        ('a{b="c"}1', 'a{rank="2",node="n1",instance="1",b="c"} 1'),
        ('a\t{ b = "c" , }\t-1.5e+3', 'a{rank="2",node="n1",instance="1",b="c"} -1.5e+3'),
        ('a{b="} 1,\\"\\\\\\n"} +Inf', 'a{rank="2",node="n1",instance="1",b="} 1,\\"\\\\\\n"} +Inf'),
        (
            'a{instance="x",node="y"} NaN',
            'a{rank="2",node="n1",instance="1",exported_instance="x",exported_node="y"} NaN',
        ),
        ("a 1 1700000000000", 'a{rank="2",node="n1",instance="1"} 1 1700000000000'),
    ],
)
def test_one_sample(line: str, told: str) -> None:
    """However it is written; a label of a server that bears the name of ours is kept, as Prometheus keeps it."""
    body = f"{line}\n".encode()
    assert page((body, labelled(WHOSE))).splitlines()[-1] == told
    reader = Reader()
    first, again = (reader.read(body).families["a"].samples for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"# HELP a b\n",
        b"<html>\n",
        b"a\n",
        b"a 1 2 3\n",
        b"a one\n",
        b'a{b="c" 1\n',
        b'a{b="c"x="d"} 1\n',
        b'a{b="1",b="2"} 1\n',
        b'a{instance="1",exported_instance="2"} 1\n',
        b"a 1\na 2\n",
        b"# TYPE a number\na 1\n",
        b'a{b="\xff"} 1\n',
        b"a 1_0\n",
    ],
)
def test_a_page_is_taken_in_whole_or_not_at_all(body: bytes) -> None:
    """One line that is none would make Prometheus refuse all that stands beside it."""
    with pytest.raises(Fault):
        Reader().read(body)


@given(st.text(st.sampled_from('# TYPEHLa{}="\\,.1e+-NInf \t\n'), max_size=60))
def test_what_is_taken_in_is_a_page(text: str) -> None:
    """Whatever a server says: what is made of it reads as Prometheus' format by our other, strict reader."""
    try:
        read = Reader().read(text.encode())
    except Fault:
        return
    made = Exposition()
    made.take_in(read, labelled(WHOSE))
    count = sum(len(family.samples) for family in read.families.values())
    assert sum(len(one.samples) for one in parse_metrics(made.text())) == count


def test_families_that_are_ours_or_differ_are_left_out() -> None:
    """A server cannot speak in the run's name, nor make one family two kinds."""
    first = (b"# TYPE a gauge\na 1\nslurm_llm_run_state 1\n", 'instance="0"')
    second = (b"# TYPE a counter\na 2\n# TYPE b counter\nb 3\n", 'instance="1"')
    lines = [line for line in page(first, second).splitlines() if not line.startswith("#")]
    assert lines == ['a{instance="0"} 1', 'b{instance="1"} 3']


def test_what_is_remembered_of_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose labels are new each time does not fill the memory of the head."""
    monkeypatch.setattr(exposition, "MOST_KEPT", 10)
    reader = Reader()
    for number in range(100):
        reader.read(f'a{{b="{number}"}} 1\n'.encode())
    assert len(reader._known) <= 12
