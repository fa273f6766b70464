"""docs/sites: a page for every profile, and what a page shows is right for its site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_llm.plan import build_plan
from slurm_llm.sites.load import find_sites, load_site
from slurm_llm.spec import spec_from_text
from slurm_llm.yamlio import parse_document

PAGES = Path(__file__).parents[2] / "docs" / "sites"
WITHOUT_PAGE = {"devcluster", "generic"}
SITES = sorted(find_sites({}).keys() - WITHOUT_PAGE)


def _page(site: str) -> str:
    return (PAGES / f"{site}.md").read_text(encoding="utf-8")


def _blocks() -> list[tuple[str, str]]:
    return [(site, text) for site in SITES for text in re.findall(r"```yaml\n(.*?)```", _page(site), re.DOTALL)]


def test_every_cluster_has_a_page_and_a_line_in_the_index() -> None:
    """Pages and profiles have the same names, so that one leads to the other."""
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)\.md\) \|", index, re.MULTILINE)
    assert listed == [(site, site) for site in SITES]
    assert {path.stem for path in PAGES.glob("*.md")} == {*SITES, "README"}


@pytest.mark.parametrize("site", SITES)
def test_the_index_says_how_far_a_profile_can_be_trusted(site: str) -> None:
    """State and date are those of the profile itself; none of these was run on its cluster."""
    verified = load_site(site, {}).profile.verified
    line = next(line for line in (PAGES / "README.md").read_text().splitlines() if line.startswith(f"| [{site}]"))
    assert verified is not None and verified.state in line and verified.date in line
    assert verified.note is not None and "not run" in verified.note


@pytest.mark.parametrize("site", SITES)
def test_the_table_of_partitions_is_the_profiles(site: str) -> None:
    """Each logical partition has its row, and no row names another."""
    table = _page(site).partition("\n| partition |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w.-]+)`", table, re.MULTILINE) == [*load_site(site, {}).profile.partitions]


@pytest.mark.parametrize(("site", "text"), _blocks(), ids=lambda value: value if value in SITES else "")
def test_what_a_page_shows_works_on_its_site(site: str, text: str, tmp_path: Path) -> None:
    """A spec can be planned there, and a file of one's own can be laid over the profile."""
    value = parse_document(text, f"{site}.md").value
    if "engine" in value:
        spec = spec_from_text(text)
        assert build_plan(spec, load_site(site, {}, spec.site).profile).ranks
        return
    assert value.get("name") == site
    own = tmp_path / "slurm_llm" / "sites" / f"{site}.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    assert load_site(site, {"XDG_CONFIG_HOME": str(tmp_path)}).profile != load_site(site, {}).profile


def test_every_page_has_a_spec_to_begin_with() -> None:
    """A first job is what a reader looks for."""
    assert {site for site, text in _blocks() if "engine:" in text} == set(SITES)
