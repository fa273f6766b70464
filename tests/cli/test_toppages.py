"""Metrics pages beside the live view: rates between two looks, and servers that hang, fail, or show something else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from slurm_llm.cli.toppages import A_LOOK, Pages, Subject
from slurm_llm.observe.livefigures import Probe
from tests.http_server import serve

FAMILY = "nv_inference_request_success"
PATIENCE_S = 20.0


def page(count: float) -> str:
    """Return a page on which so many requests were answered."""
    return f'# TYPE {FAMILY} counter\n{FAMILY}{{model="m",version="1"}} {count}\n'


def subject(*urls: str) -> Subject:
    """Return these instances of a model."""
    return Subject(dict(enumerate(urls)), "m", "rehearsal")


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"


def test_rates_between_two_looks() -> None:
    """Each look has what was answered; from the second on, how fast."""
    counts = iter((10, 14, 14))
    with serve(lambda path, body: (200, iter([page(next(counts)).encode()]))) as served:
        pages, rates = Pages(), []
        for _ in range(3):
            pages.want(subject(served.url + "/metrics"))
            pages.settle()
            figures = pages.looks()[0].figures
            assert figures is not None
            rates.append((figures.answered, figures.requests_per_s is not None and figures.requests_per_s > 0))
    assert rates == [(10, False), (14, True), (14, False)]
    trend = pages.looks()[0].trend
    assert len(trend) == 2 and trend[0] > 0 and trend[1] == 0


def test_a_server_that_hangs_holds_up_nobody(silent: str) -> None:
    """Neither the asking nor the looks at the others wait for it; it is told, and asked again only afterwards."""
    with serve(lambda path, body: (200, iter([page(1).encode()]))) as served:
        pages = Pages(timeout_s=0.5)
        wanted = subject(silent, served.url + "/metrics")
        pages.want(wanted)
        began = time.monotonic()
        while pages.looks()[1].figures is None:
            assert time.monotonic() - began < PATIENCE_S
            time.sleep(0.01)
        assert pages.looks()[0].figures is None
        pages.settle()
    assert pages.looks()[0].problem == "no answer within 0.5 s"


def test_old_figures_stay_with_their_age() -> None:
    """A server that was there and is gone: what it said last is kept with its time, and why there is nothing newer."""
    pages = Pages(timeout_s=2.0)
    with serve(lambda path, body: (200, iter([page(7).encode()]))) as served:
        wanted = subject(served.url + "/metrics")
        pages.want(wanted)
        pages.settle()
    before = pages.looks()[0]
    pages.want(wanted)
    pages.settle()
    after = pages.looks()[0]
    assert (after.figures, after.at) == (before.figures, before.at)
    assert after.problem and not before.problem


@pytest.mark.parametrize(
    ("status", "text", "problem"),
    [(500, "oops", "answered with status 500"), (200, "<html>\x1b[2J</html>", "is no line of Prometheus'")],
)
def test_what_is_no_page_is_a_problem(status: int, text: str, problem: str) -> None:
    """An error and a page of somebody else's are told in few words."""
    with serve(lambda path, body: (status, iter([text.encode()]))) as served:
        pages = Pages()
        pages.want(subject(served.url))
        pages.settle()
    assert pages.looks()[0].problem.startswith(problem)
    assert pages.looks()[0].figures is None


def test_another_server_of_the_same_instance_begins_anew() -> None:
    """After a restart the instance has another address: no rate between two servers."""
    with serve(lambda path, body: (200, iter([page(7).encode()]))) as served:
        pages = Pages()
        for path in ("/one", "/two"):
            pages.want(subject(served.url + path))
            pages.settle()
            figures = pages.looks()[0].figures
            assert figures is not None and figures.requests_per_s is None


def test_the_heads_own_questions_stand_beside_the_figures() -> None:
    """The page of the run's head tells of each instance how long its last question took."""

    def answer(path: str, body: dict[str, object]) -> tuple[int, Iterator[bytes]]:
        labels = '{instance="0",node="n",rank="0"}'
        names = {"success": 1, "duration_seconds": 0.25, "timestamp_seconds": 1796035260}
        head = "".join(f"slurm_llm_probe_{name}{labels} {value}\n" for name, value in names.items())
        return 200, iter([(head if path == "/head" else page(3)).encode()])

    with serve(answer) as served:
        pages = Pages()
        pages.want(Subject({0: f"{served.url}/0", 1: f"{served.url}/1"}, "m", "rehearsal", f"{served.url}/head"))
        pages.settle()
    looks = pages.looks()
    assert sorted(looks) == [0, 1]
    assert looks[0].probe == Probe(0.25, 1796035260, True) and looks[1].probe is None
    assert looks[0].figures is not None and looks[0].figures.answered == 3


def test_many_instances_are_asked_in_turns() -> None:
    """A look asks no more than so many; after a few looks each has been asked."""
    with serve(lambda path, body: (200, iter([page(1).encode()]))) as served:
        wanted = subject(*(f"{served.url}/{number}" for number in range(A_LOOK + 10)))
        # However slowly a busy machine answers so many at once.
        pages = Pages(20.0)
        pages.want(wanted)
        pages.settle()
        assert sum(look.figures is not None for look in pages.looks().values()) == A_LOOK
        pages.want(wanted)
        pages.settle()
        assert all(look.figures is not None for look in pages.looks().values())
