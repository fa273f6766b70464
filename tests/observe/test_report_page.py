"""The page of a report and its file: nothing of a run's texts becomes markup, and nobody's file is lost."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slurm_llm.observe.report import Report
from slurm_llm.observe.reportlogs import Tail
from slurm_llm.page import mark, render_page
from tests.cli.test_cli import Desk
from tests.http_server import serve
from tests.observe.browser import look
from tests.observe.report_runs import MANY, completed, failed, place, report_of
from tests.observe.run_dirs import RUN_ID, RunDir, squeue_row

EVIL = "</pre></title></style><script>hacked=1</script><img src=x onerror=hacked=1>\"'&amp;{{7*7}}\u202eabc\x1b[2J\x07"
METRICS = (Path(__file__).parent / "metrics_pages" / "triton-1.txt").read_text(encoding="utf-8")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    return Desk(tmp_path, monkeypatch)


class Parsed(HTMLParser):
    """Tags, attributes that name something elsewhere, and whether tags are closed in order."""

    VOID = frozenset({"meta", "br", "path", "rect", "circle", "img", "input", "link"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.names: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.names += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action", "style")]
        if tag not in self.VOID or tag in ("path", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag without content."""
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Close a tag."""
        assert self.open[-1] == tag, (self.open, tag)
        self.open.pop()


def evil(report: Report) -> Report:
    """Return a report with hostile text in every field that is one."""
    told = tuple((label, EVIL) for label, _ in report.told)
    lines = tuple(
        replace(
            line,
            cause=EVIL,
            state=EVIL,
            first_how=EVIL,
            ranks=tuple(replace(rank, node=EVIL, how=EVIL, gpus=EVIL, role=EVIL, at=EVIL) for rank in line.ranks),
        )
        for line in report.attempts
    )
    rows = ((EVIL, EVIL),)
    plan = replace(report.plan, spec=(EVIL,), warnings=(EVIL,), options=(EVIL,), sizes=rows, server=rows)
    tails = (Tail(EVIL, EVIL, (EVIL,)),)
    proofs = tuple(replace(own, where=EVIL, line=EVIL) for own in report.evidence)
    return replace(
        report, name=EVIL, told=told, head=rows, notes=(EVIL,), attempts=lines, plan=plan, tails=tails, evidence=proofs
    )


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    """Names, log lines and everything else that somebody wrote: no tag, no script, no control or bidi character."""
    report = report_of(failed(place(tmp_path), 5))
    page = render_page(evil(report))
    tame = Parsed(render_page(report))
    assert set(Parsed(page).tags) <= set(tame.tags)
    assert {"script", "img", "link", "iframe"} & set(tame.tags) == set()
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page) is None
    path = tmp_path / "evil.html"
    path.write_text(page, encoding="utf-8")
    found = look(path, 1280)
    assert (found.problems, found.requests, found.scripts, found.images) == ([], [], 1, 0)
    assert "<script>hacked=1</script>" in found.text
    assert "{{7*7}}" in found.text


def test_a_hostile_run_directory_makes_a_tame_page(tmp_path: Path) -> None:
    """From the files on: invalid UTF-8 and lone surrogates too."""
    run = failed(place(tmp_path), 5)
    run.log("rank-5.log", b"ERROR \xff\xfe<b>\x1b]0;owned\x07\xe2\x80\xae\n")
    plan = json.loads(run.paths.plan.read_text())
    plan.update(name="<i>\ud800", model="<u>\u202e")
    run.paths.plan.write_text(json.dumps(plan))
    (run.root / "spec.yaml").write_bytes(b"name: \xff<script>\n")
    page = render_page(report_of(run))
    assert "&lt;b&gt;" in page and "&lt;i&gt;" in page and "&lt;u&gt;" in page
    assert {"script", "b", "i", "u"} & set(Parsed(page).tags) <= {"b"}
    page.encode("utf-8")


def test_the_page_is_whole_and_names_nothing_elsewhere(tmp_path: Path) -> None:
    """Tags are closed in order, ids are unique, links lead into the page, the policy forbids everything but styles."""
    run = failed(place(tmp_path, **MANY), 5).note("job", 10, "restart", in_s=1)
    run.attempt = 1
    page = render_page(report_of(failed(run, 6)))
    assert page.count("State of all 128 ranks") == 2
    found = Parsed(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {name.removeprefix("#") for name in found.names} <= set(found.ids)
    assert re.findall(r"url\((.)", page) and set(re.findall(r"url\((.)", page)) == {"#"}
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"]


def test_what_the_command_writes(desk: Desk) -> None:
    """One file here, under the run directory's name, for its owner alone; asked again it is written anew."""
    completed(place(desk.folder))
    for _ in range(2):
        done = desk.run("report")
        assert (done.exit_code, done.stdout) == (0, f"{desk.folder}/demo-{RUN_ID}.html\n"), done.stderr
    path = desk.folder / f"demo-{RUN_ID}.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "stopped on request" in path.read_text(encoding="utf-8")
    assert [one.name for one in desk.folder.iterdir() if one.name.startswith(".")] == []


@pytest.mark.parametrize("kind", ["note", "other report", "link", "pipe"])
def test_nobodys_file_is_lost(desk: Desk, kind: str) -> None:
    """What is no report of this run stays as it is; --force replaces it, but never a link or anything but a file."""
    completed(place(desk.folder))
    path, target = desk.folder / "x.html", desk.folder / "target"
    if kind == "note":
        path.write_text("mine")
    elif kind == "other report":
        path.write_text(f'<meta name="generator" content="{mark("20250101-000000-abcd")}">')
    elif kind == "link":
        target.write_text("mine")
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    before = _same(path)
    done = desk.run("report", "-o", "x.html")
    assert done.exit_code == 3, done.stderr
    assert done.stderr.startswith(f"error: {path}: is ")
    assert _same(path) == before
    forced = desk.run("report", "-o", "x.html", "--force")
    assert forced.exit_code == (0 if kind in ("note", "other report") else 3), forced.stderr
    assert not target.exists() or target.read_text() == "mine"


def _same(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is replaced or written."""
    found = path.lstat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def test_a_folder_that_is_not_there(desk: Desk) -> None:
    """One line, and nothing is left."""
    completed(place(desk.folder))
    done = desk.run("report", "-o", "nowhere/x.html")
    assert done.exit_code == 5
    assert done.stderr == f"error: {desk.folder}/nowhere/x.html: cannot be written: No such file or directory\n"


def test_other_places_for_the_page(desk: Desk) -> None:
    """A folder gets the usual name; - is standard output; a job that is asked for is in the name."""
    completed(place(desk.folder))
    (desk.folder / "out").mkdir()
    assert desk.run("report", "7", "-o", "out").stdout == f"{desk.folder}/out/demo-{RUN_ID}-job7.html\n"
    assert desk.run("report", "-o", "-").stdout.startswith("<!DOCTYPE html>")


def test_values_for_scripts(desk: Desk) -> None:
    """--json prints them and writes no file."""
    failed(place(desk.folder), 5)
    value = json.loads(desk.run("report", "--json").stdout)
    assert (value["state"], value["attempts"][0]["first"], len(value["attempts"][0]["ranks"])) == ("FAILED", 5, 8)
    assert list(desk.folder.glob("*.html")) == []
    assert desk.run("report", "--json", "-o", "x.html").exit_code == 2


def test_a_run_that_serves_is_asked_for_its_figures(desk: Desk) -> None:
    """Requests since its start are on the page; a server that is silent is named, and the page is made all the same."""
    plan = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "replicas": 2, "resources": {"nodes": 2}}
    with serve(lambda path, body: (200, iter([METRICS.encode()]))) as server:
        run = place(desk.folder, **plan).serving()
        _serves_at(run, server.url, "http://127.0.0.1:9")
        desk.says("squeue", squeue_row(7, "RUNNING"))
        found = json.loads(desk.run("report", "--json").stdout)["metrics"]
        page = desk.run("report", "-o", "-").stdout
    headlines = dict(found["headlines"])
    assert headlines["requests answered"] == "22"
    assert headlines["requests per second now"] == "0"
    assert found["instances"] == [0]
    assert found["problems"][0].startswith("instance 1: ")
    assert "<b>22</b><span>requests answered</span>" in page


def _serves_at(run: RunDir, *urls: str) -> None:
    path = run.job_paths.endpoint(0)
    value = json.loads(path.read_text())
    for one, url in zip(value["instances"], urls, strict=True):
        one.update(url=url, metrics=f"{url}/metrics")
    path.write_text(json.dumps(value))
