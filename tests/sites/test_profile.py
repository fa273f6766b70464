"""Site profiles: what they take, what they refuse, where they are found, and that every key is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from slurm_llm.assets import sites_dir
from slurm_llm.errors import SiteError
from slurm_llm.schema import Section, known_keys
from slurm_llm.sites.load import find_sites, load_site, parse_site, site_folders
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.yamlio import dump, load_document, parse_document

BASE = "schema_version: 1\nname: here\npartitions:\n  a: {gpus_per_node: 4}\n"


def _fault(text: str) -> str:
    with pytest.raises(SiteError) as caught:
        parse_site(parse_document(text, "f.yaml", SiteError))
    return str(caught.value)


def test_the_smallest_profile_has_defaults() -> None:
    """A version, a name and one partition are enough."""
    site = parse_site(parse_document(BASE, "f.yaml"))
    assert (site.network.ports, site.storage.local, site.container.runtime) == ("20000-29999", "/tmp", "none")
    assert (site.launcher.mpi, site.partitions["a"].gpu_request.style) == (None, "gpus_per_node")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\n", "f.yaml: 'schema_version' is missing: add it"),
        ("name: a\n", "f.yaml: 'partitions' is missing: add it"),
        (BASE.replace("version: 1", "version: 2"), "f.yaml:1: schema_version: must be one of 1 (found: 2)"),
        (BASE.replace("here", "a/b"), "f.yaml:2: name: must match"),
        ("schema_version: 1\nname: a\npartitions: {}\n", "f.yaml:3: partitions: must not be empty"),
        (
            BASE + "default_partition: b\n",
            "f.yaml:5: default_partition: must be one of a (found: 'b'): correct the value",
        ),
        (BASE.replace("gpus_per_node: 4", "gpus: 4"), "f.yaml:4: unknown key 'partitions.a.gpus': known here: "),
        (BASE.replace("4}", "'4'}"), "f.yaml:4: partitions.a.gpus_per_node: must be a whole number (found: '4')"),
        (
            BASE.replace("4}", "4, gpu_request: {style: tres}}"),
            "style: must be one of 'gres', 'gpus_per_node' or 'none'",
        ),
        (BASE.replace("4}", "4, time: {max: 4h}}"), "partitions.a.time.max: '4h' is not a Slurm time"),
        (BASE + "network: {ports: 9-1}\n", "network.ports: must be two ports between 1 and 65535, the lower one first"),
        (BASE + "network: {ports: all}\n", "network.ports: must be a range of ports like 20000-29999"),
        (BASE + "network: {ports: 0-99999}\n", "network.ports: must be two ports between 1 and 65535"),
        (BASE + "storage: {local: relative}\n", "storage.local: must be an absolute path of letters, digits"),
        (BASE + "storage: {local: /a b}\n", "storage.local: must be an absolute path of letters, digits"),
        (BASE + "account: {pattern: '['}\n", "account.pattern: not a regular expression"),
        (BASE + "env: {unset: ['X; touch pwned']}\n", "env.unset[0]: not the name of an environment variable"),
        (BASE + "env: {set: {A b: 1}}\n", "env.set.A b: not the name of an environment variable: 'A b'"),
        (BASE + "srun_extra: ['-p debug']\n", "srun_extra[0]: must be one option, as --name, --name=value or -Xvalue"),
        (BASE + "sbatch_extra: [--array=1-3]\n", "sbatch_extra[0]: is set by slurm_llm itself"),
        (BASE + "slurm: {version: '22'}\n", "slurm.version: must match"),
        (BASE + "slurm: {version: 22.05}\n", "slurm.version: must be text (found: 22.05): put it in quotes"),
        (BASE + "container: {runtime: docker}\n", "container.runtime: must be one of 'none' (found: 'docker')"),
        (BASE + "- x\n", "f.yaml:5: not readable as YAML"),
    ],
)
def test_a_bad_profile_is_refused_in_plain_words(text: str, message: str) -> None:
    """Every kind of bad value names its key, its line and the rule that it breaks."""
    assert message in _fault(text)


def test_several_faults_are_named_at_once() -> None:
    """One run shows everything that is wrong with the profile."""
    fault = _fault(BASE + "default_partition: b\nnetwork: {ports: x}\nstorage: {lokal: /tmp}\n")
    assert [line.split(":")[1] for line in fault.splitlines()] == ["5", "6", "7"]


@pytest.mark.parametrize("path", sorted(sites_dir().glob("*.yaml")), ids=lambda path: path.stem)
def test_every_packaged_profile_is_valid_and_named_as_its_file(path: Path) -> None:
    """The shipped profiles load, and what is written of them loads to the same profile."""
    site = parse_site(load_document(path, SiteError))
    assert site.name == path.stem
    written = dump(site.model_dump(mode="json", exclude_unset=True))
    assert parse_site(parse_document(written, "written")) == site


def test_the_users_folder_wins_then_the_admins_then_the_package(tmp_path: Path) -> None:
    """Profiles are looked for in three places, in this order."""
    own, admin = tmp_path / "config" / "slurm_llm" / "sites", tmp_path / "admin"
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "SLURM_LLM_SITE_PATH": f"{admin}::{tmp_path / 'none'}"}
    assert site_folders(environ) == [own, admin, tmp_path / "none", sites_dir()]
    for folder in (own, admin):
        folder.mkdir(parents=True)
        (folder / "generic.yaml").write_text(BASE)
        (folder / f"only_{folder.name}.yaml").write_text(BASE)
    found = find_sites(environ)
    assert found["generic"] == own / "generic.yaml"
    assert found["only_admin"] == admin / "only_admin.yaml"
    assert found["devcluster"] == sites_dir() / "devcluster.yaml"


def test_without_xdg_the_home_is_used(tmp_path: Path) -> None:
    """The user's folder is below ~/.config."""
    assert site_folders({"HOME": str(tmp_path)})[0] == tmp_path / ".config" / "slurm_llm" / "sites"


def test_a_site_is_chosen_by_name_path_or_variable(tmp_path: Path) -> None:
    """A name is looked for, a path is taken, and the variable stands in for a name."""
    path = tmp_path / "mine.yaml"
    path.write_text(BASE)
    assert load_site("generic", {}).profile.name == "generic"
    assert load_site(str(path), {}).profile.name == "here"
    assert load_site(None, {"SLURM_LLM_SITE": "devcluster"}).profile.name == "devcluster"


def test_an_unknown_site_lists_the_known_ones() -> None:
    """A wrong name and no name at all each show what there is and what to do."""
    with pytest.raises(SiteError) as caught:
        load_site("generik", {})
    assert str(caught.value) == (
        "--site generik: unknown site 'generik': known sites: devcluster, generic: did you mean 'generic'?"
    )
    with pytest.raises(SiteError, match="no site given: add --site NAME or set SLURM_LLM_SITE: known sites: "):
        load_site(None, {})
    with pytest.raises(SiteError, match="or give the path of a profile"):
        load_site("zzz", {})


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """A missing file is told with its path."""
    with pytest.raises(SiteError, match=r"missing\.yaml: cannot be read: No such file or directory: check the path"):
        load_site(str(tmp_path / "missing.yaml"), {})


def _keys(model: type[Section], path: tuple[str, ...] = ()) -> Iterator[str]:
    for name in sorted(known_keys(model, path)):
        below = (*path, name, "NAME") if name == "partitions" else (*path, name)
        if known_keys(model, below):
            yield from _keys(model, below)
        else:
            yield ".".join(below)


def test_every_key_is_documented_and_no_other() -> None:
    """site_configs/README.md has a row for each key of a profile, by its full name, and none that does not exist."""
    text = (sites_dir() / "README.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([A-Za-z_.]+)` \|", text, re.MULTILINE))
    assert documented == set(_keys(SiteProfile))


def test_a_profile_cannot_be_changed() -> None:
    """Profiles are values."""
    site = parse_site(parse_document(BASE, "f.yaml"))
    with pytest.raises(ValidationError, match="frozen"):
        site.name = "other"
