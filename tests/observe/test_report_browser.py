"""Reports in a real browser: nothing is asked for, nothing does not fit, everything can be read and printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.observe.report import Report
from slurm_llm.page import render_page
from tests.observe.browser import DARK, Look, look, printed
from tests.observe.report_runs import runs

EXPECTED = {
    "completed": (
        "COMPLETED",
        "stopped on request",
        "Over time",
        "tp 3 · pp 1",
        "not valid",
        "Sweep over",
        "srun --mpi=pmix bash rank.sh",
    ),
    "failed": ("FAILED", "rank 5 on node node3 went first", "rank 5 says its last words", "signal SIGKILL", "Cause"),
    "many": ("State of all 128 ranks", "rank 77", "Where all 128 ranks ran", "Ranks that stand out"),
    "waiting": ("PENDING", "Spec as written", "engine: rehearsal"),
    "planned": ("PLANNED", "Asked of Slurm"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for pages and the browser's profile."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def reports(folder: Path) -> dict[str, Report]:
    """Return a report of each kind."""
    return runs(folder)


def opened(folder: Path, name: str, report: Report, width: int, *options: str) -> Look:
    """Return what a browser sees of a report's page."""
    page = folder / f"{name}.html"
    page.write_text(render_page(report), encoding="utf-8")
    return look(page, width, *options)


def insist_on_order(found: Look) -> None:
    """Nothing asked for, no fault, nothing too wide or cut off, no text too pale to read."""
    assert (found.problems, found.requests) == ([], [])
    assert (found.wide, found.cut, found.pale) == ([], [], [])
    assert (found.scripts, found.images) == (1, 0), "the one script is the test's own"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_report_on_a_wide_screen(folder: Path, reports: dict[str, Report], name: str) -> None:
    """Its facts are visible texts."""
    found = opened(folder, name, reports[name], 1280)
    insist_on_order(found)
    for text in EXPECTED[name]:
        assert text in found.text


@pytest.mark.parametrize("name", ["failed", "many"])
def test_a_report_on_a_narrow_screen_in_the_dark(folder: Path, reports: dict[str, Report], name: str) -> None:
    """Drawings and tables scroll in frames of their own; the page itself does not."""
    insist_on_order(opened(folder, name, reports[name], 400, DARK))


def test_the_browser_sees_what_is_wrong(folder: Path) -> None:
    """What the other tests insist on would be noticed: requests, faults of scripts, what is wide, cut off or pale."""
    page = folder / "wrong.html"
    page.write_text(
        "<!DOCTYPE html><html><head><meta http-equiv='Content-Security-Policy' content=\"img-src 'none'\"></head><body>"
        "<img src='http://127.0.0.1:9/x.png'><div style='width: 900px'>wide</div><p style='color: #ccc'>pale</p>"
        "<svg viewBox='0 0 100 20'><text x='90' y='10'>cut off</text></svg>"
        "<button onclick='nothing()'>x</button><script>nothing()</script></body></html>"
    )
    found = look(page, 400)
    assert {problem.partition(":")[0] for problem in found.problems} == {"img-src", "error"}
    assert any("nothing is not defined" in problem for problem in found.problems)
    assert found.requests == ["http://127.0.0.1:9/x.png"]
    assert "the page" in found.wide and any("wide" in one for one in found.wide)
    assert [one[:4] for one in found.cut] == ["text"]
    assert any("pale" in one for one in found.pale)
    assert (found.scripts, found.images) == (2, 1)


def test_a_report_on_paper(folder: Path, reports: dict[str, Report]) -> None:
    """Every rank is there, also of what is folded on a screen, and the last section is."""
    page = folder / "paper.html"
    page.write_text(render_page(reports["many"]), encoding="utf-8")
    pages = printed(page)
    assert 2 < len(pages) < 12
    text = "".join(pages)
    assert "node64126-127" in text, "the row of the last ranks"
    assert "slurm_llmofthisreport" in text
