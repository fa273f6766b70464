"""A running job's endpoint and metrics, as a user asks for them: what is printed can be used as it is."""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import Run, User
from tests.cluster.test_main_job import small

pytestmark = pytest.mark.cluster


def requests(run: Run, *more: str) -> dict[str, float]:
    """Return how many requests each instance has answered, as `metrics` tells it."""
    rows = json.loads(run.cli("metrics", "--json", *more).stdout)["rows"]
    (found,) = (row for row in rows if row["family"] == "nv_inference_request_success")
    return {number: float(count) for number, count in found["values"].items()}


def test_a_run_is_handed_on_and_counts_what_it_is_asked(user: User) -> None:
    """The printed curl line reaches the model as it is; the request is in its instance's column of the table."""
    run = user.submit(small("counted", ranks=1, replicas=2, resources={"nodes": 1, "time": "00:05:00"}))
    run.wait_ready()
    before = requests(run)
    assert sorted(before) == ["0", "1"]
    made = json.loads(run.cli("endpoint", "--json").stdout)
    assert made["url"] == run.url()
    assert json.loads(user.run("bash", "-c", made["curl"]).stdout)["text_output"]
    assert requests(run, "--instance", "0", "--interval", "0.1")["0"] > before["0"]
    run.cli("cancel")
    gone = run.cli("metrics", check=False)
    assert (gone.returncode, gone.stdout) == (9, "")
    assert "serves nothing: it is COMPLETED" in gone.stderr
