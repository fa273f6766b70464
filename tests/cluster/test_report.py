"""Reports of real runs, one that served and one a rank of which failed, as files and as a browser shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.conftest import Run, User
from tests.cluster.test_main_job import ask, small
from tests.observe.browser import Look, look

pytestmark = pytest.mark.cluster
TWO_NODES = {"nodes": 2, "time": "00:05:00"}


def page_of(run: Run, folder: Path) -> Look:
    """Write the run's report as its user, and return what a browser sees of it."""
    written = Path(run.cli("report").stdout.strip())
    assert written.parent == run.user.folder
    copy = folder / "page.html"
    copy.write_bytes(written.read_bytes())
    found = look(copy, 1280)
    assert (found.problems, found.requests, found.wide, found.cut) == ([], [], [], [])
    return found


def test_a_run_that_served(user: User, tmp_path: Path) -> None:
    """While it serves the report has its requests; afterwards how it ended, and when each rank did what."""
    run = user.submit(small("chat <b>7b</b>", ranks=4, resources=TWO_NODES))
    ask(run.url(), "hello")
    while_serving = page_of(run, tmp_path)
    assert "READY" in while_serving.text and "requests answered" in while_serving.text
    run.cli("cancel")
    run.wait_ended()
    found = page_of(run, tmp_path)
    for text in ("COMPLETED", "chat <b>7b</b>", "stopped on request", "ended as it was told", "Triton\n2.51.0"):
        assert text in found.text
    (line,) = json.loads(run.cli("report", "--json").stdout)["attempts"]
    begun = {"launch", "start", "load", "serve", "ending"}
    for rank in line["ranks"]:
        assert begun <= {span["phase"] for span in rank["spans"]}, rank
        ends = [span["end"] for span in rank["spans"]]
        assert ends == sorted(ends)


def test_a_run_that_fails(user: User, tmp_path: Path) -> None:
    """The rank that went first is named, in the cause, the timeline and the table; its last words are there."""
    user.write_spec(small("broken", ranks=4, resources=TWO_NODES))
    done = user.cli("rehearse", "job.yaml", "--site", "devcluster", "--json", "--fault", "rank=3,at=load,kind=exit:7")
    value = json.loads(done.stdout)
    run = Run(user, Path(value["directory"]), int(value["job_id"]))
    user.runs.append(run)
    run.wait_ended()
    found = page_of(run, tmp_path)
    for text in ("FAILED", "rank 3 on node", "triton_python_backend_stub: exit 7", "rank 3 first", "loading weights"):
        assert text in found.text
    (line,) = json.loads(run.cli("report", "--json").stdout)["attempts"]
    assert [rank["rank"] for rank in line["ranks"] if rank["state"] == "first"] == [3]
