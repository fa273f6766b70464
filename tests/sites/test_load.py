"""Finding and loading profiles: folders, what is laid over what, what is inherited, and whence every value is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest

from slurm_llm.assets import sites_dir
from slurm_llm.errors import SiteError
from slurm_llm.schema import apply_settings
from slurm_llm.sites.detect import Facts
from slurm_llm.sites.find import IDENTITY, SYSTEM_FOLDER, Library, ProfileFile, head_of, read_head, site_folders
from slurm_llm.sites.load import Site, find_sites, laid_over, load_site, overlay_of, parse_site
from slurm_llm.sites.view import leaves, tree_of
from slurm_llm.yamlio import Document, Tree, dump, parse_document

NOWHERE = Facts(("nowhere",), {}, lambda path: None)
BODY = "partitions:\n  gpu: {gpus_per_node: 4}\n"


@dataclass(frozen=True)
class Folders:
    """A user's, an admin's and another admin's folder of profiles, with the packaged ones below them."""

    root: Path

    @property
    def environ(self) -> dict[str, str]:
        """The environment that names them."""
        admins = f"{self.root / 'admin'}:{self.root / 'second'}"
        return {"HOME": str(self.root / "home"), "XDG_CONFIG_HOME": str(self.root), "SLURM_LLM_SITE_PATH": admins}

    def path(self, folder: str, name: str) -> Path:
        """Return the file `name` of `folder`: user, admin, second."""
        below = self.root / "slurm_llm" / "sites" if folder == "user" else self.root / folder
        return below / f"{name}.yaml"

    def write(self, folder: str, name: str, text: str, *, plain: bool = False) -> Path:
        """Write a profile; unless `plain`, with its version and name in front."""
        path = self.path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if plain else f"schema_version: 1\nname: {name}\n{text}")
        return path

    def load(self, name: str | None, overlay: dict[str, Tree] | Document | None = None) -> Site:
        """Load a site as a user with these folders does."""
        return load_site(name, self.environ, overlay, facts=NOWHERE)

    def faults(self, name: str | None, overlay: dict[str, Tree] | Document | None = None) -> list[str]:
        """Return what loading a site tells, with the root of the folders left out."""
        with pytest.raises(SiteError) as caught:
            self.load(name, overlay)
        return [
            str(problem).replace(f"{self.root}/", "").replace("slurm_llm/sites/", "user/")
            for problem in caught.value.problems
        ]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Return empty folders."""
    return Folders(tmp_path)


def _where(site: Site, *path: str | int) -> str:
    folder, file = Path(site.document.where(path)).parts[-2:]
    return f"{folder}/{file}"


def test_the_folders_are_the_users_the_admins_the_systems_the_packaged(folders: Folders) -> None:
    """Profiles are looked for in this order; an empty part of the path is none."""
    environ = {**folders.environ, "SLURM_LLM_SITE_PATH": "/a::/b"}
    found = [(folder.kind, folder.path) for folder in site_folders(environ)]
    assert found == [
        ("user", folders.root / "slurm_llm" / "sites"),
        ("admin", Path("/a")),
        ("admin", Path("/b")),
        ("system", SYSTEM_FOLDER),
        ("packaged", sites_dir()),
    ]


def test_without_xdg_the_home_is_used(tmp_path: Path) -> None:
    """The user's folder is below ~/.config."""
    assert site_folders({"HOME": str(tmp_path)})[0].path == tmp_path / ".config" / "slurm_llm" / "sites"


def test_of_the_folders_that_are_not_the_users_the_first_wins(folders: Folders) -> None:
    """An admin's profile takes the place of a packaged one, and of one further down the path."""
    folders.write("second", "generic", BODY + "python: /second\n")
    assert folders.load("generic").profile.python == "/second"
    path = folders.write("admin", "generic", BODY)
    found = folders.load("generic")
    assert (found.profile.python, found.path) == (None, path)
    assert find_sites(folders.environ)["generic"] == path


def test_a_system_folder_stands_between_the_admins_and_the_packaged(folders: Folders) -> None:
    """/etc/slurm_llm/sites needs no variable."""
    system = folders.write("system", "generic", BODY)
    library = Library(folders.environ, system=system.parent)
    assert [(file.path, file.kind) for file in library.files["generic"]] == [
        (system, "system"),
        (sites_dir() / "generic.yaml", "packaged"),
    ]
    admin = folders.write("admin", "generic", BODY)
    assert Library(folders.environ, system=system.parent).main("generic") == ProfileFile("generic", admin, "admin")


def test_a_users_file_is_laid_over_the_profile_of_its_name(folders: Folders) -> None:
    """It needs nothing but what it changes, and wins over the site's partitions; the site stays the admin's."""
    text = "account: {default: theirs}\npartitions:\n  gpu: {gpus_per_node: 4, account: {default: gpus}}\n"
    admin = folders.write("admin", "here", "description: A cluster\n" + text)
    folders.write("user", "here", "account: {default: mine}\n", plain=True)
    found = folders.load("here")
    assert found.profile.description == "A cluster"
    assert found.profile.for_partition("gpu").account.default == "mine"
    assert _where(found, "account", "default") == "sites/here.yaml:1"
    assert _where(found, "partitions", "gpu", "gpus_per_node") == "admin/here.yaml:6"
    assert found.path == admin == find_sites(folders.environ)["here"]


def test_a_users_file_over_a_packaged_profile(folders: Folders) -> None:
    """The same for what the package carries."""
    folders.write("user", "generic", "slurm: {kill_wait_s: 60}\n", plain=True)
    found = folders.load("generic")
    assert (found.profile.slurm.kill_wait_s, found.profile.launcher.mpi) == (60, "pmix")
    assert found.path == sites_dir() / "generic.yaml"


def test_a_standalone_file_of_the_users_takes_the_place(folders: Folders) -> None:
    """Nothing of the admin's is left."""
    folders.write("admin", "here", BODY + "python: /admin\n")
    path = folders.write("user", "here", "standalone: true\n" + BODY)
    found = folders.load("here")
    assert (found.profile.python, found.path) == (None, path)
    assert find_sites(folders.environ)["here"] == path


def test_a_users_file_of_a_new_name_is_a_profile_of_its_own(folders: Folders) -> None:
    """It needs all that a profile needs."""
    path = folders.write("user", "mine", BODY)
    assert folders.load("mine").path == path
    folders.write("user", "other", "name: other\n", plain=True)
    assert folders.faults("other") == [
        "user/other.yaml: 'schema_version' is missing: add it",
        "user/other.yaml: 'partitions' is missing: add it",
    ]


def test_a_users_file_of_a_mistyped_name_is_laid_over_nothing(folders: Folders) -> None:
    """It says nothing of itself, so it was to change another profile: that it lacks all keys would only mislead."""
    folders.write("user", "genric", "python: /x\n", plain=True)
    whole = "a profile of its own has schema_version, name and partitions: give the file the name of a profile"
    what = "user/genric.yaml: there is no profile 'genric' that this could be laid over"
    assert folders.faults("genric") == [f"{what}: did you mean 'generic'?: {whole}"]
    folders.path("user", "genric").rename(folders.path("user", "qqq"))
    assert folders.faults("qqq") == [f"{what.replace('genric', 'qqq')}: {whole}"]
    folders.write("admin", "bare", "python: /x\n", plain=True)
    assert len(folders.faults("bare")) == 3


def test_a_path_is_that_file_alone(folders: Folders) -> None:
    """No user's file is laid over it, and its name need not be the file's."""
    path = folders.write("elsewhere", "x", BODY).with_name("copy.yml")
    path.write_text("schema_version: 1\nname: here\nextends: base-x\n" + BODY)
    folders.write("user", "here", "python: /user\n", plain=True)
    folders.write("admin", "base-x", "base: true\npython: /base\n")
    found = folders.load(str(path))
    assert (found.profile.name, found.profile.python, found.path) == ("here", "/base", path)


def test_a_path_that_does_not_exist_is_named(folders: Folders) -> None:
    """A missing file is told with its path."""
    assert folders.faults(str(folders.root / "missing.yaml")) == [
        "missing.yaml: cannot be read: No such file or directory: check the path"
    ]


def test_a_site_is_chosen_by_flag_or_variable(folders: Folders) -> None:
    """The variable stands in for a name that is not given."""
    assert folders.load("generic").profile.name == "generic"
    environ = {**folders.environ, "SLURM_LLM_SITE": "devcluster"}
    assert load_site(None, environ).profile.name == "devcluster"
    assert load_site("generic", environ).profile.name == "generic"
    with pytest.raises(SiteError, match=r"^SLURM_LLM_SITE=devclustre: unknown site 'devclustre': did you mean 'devcl"):
        load_site(None, {**environ, "SLURM_LLM_SITE": "devclustre"})


def _known(folders: Folders) -> str:
    names = sorted(find_sites(folders.environ))
    return f"known sites: {', '.join(names[:10])} and {len(names) - 10} more: slurm-llm site list"


def test_an_unknown_site_lists_some_known_ones(folders: Folders) -> None:
    """What was probably meant comes first; ten names show what there is, and bases are not among them."""
    folders.write("admin", "aaa-fabric", "base: true\n")
    known = _known(folders)
    assert "fabric" not in known
    assert folders.faults("generik") == [f"--site generik: unknown site 'generik': did you mean 'generic'?: {known}"]
    assert folders.faults("zzz") == [f"--site zzz: unknown site 'zzz': {known}: or give the path of a profile"]


def test_the_profiles_that_are_not_packaged_are_listed_first(folders: Folders) -> None:
    """Of forty names, those of the own folders are the likely ones."""
    folders.write("admin", "zz-ours", BODY)
    (fault,) = folders.faults("qqq")
    assert ": known sites: zz-ours, alliance-fir, " in fault


def test_a_file_here_is_no_name(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a path stands for a file; without a flag the name stands alone in messages."""
    folders.write("here", "ours", BODY)
    monkeypatch.chdir(folders.root / "here")
    hint = "./ours.yaml is here: give this path"
    assert folders.faults("ours")[0].startswith(f"--site ours: unknown site 'ours': {hint}: known sites: ")
    with pytest.raises(SiteError, match=f"^ours: unknown site 'ours': {hint}"):
        load_site("ours", folders.environ, asked="")
    assert folders.load("./ours.yaml").profile.name == "ours"


def test_another_ending_is_told(folders: Folders) -> None:
    """A file that is passed over for its ending is named with the unknown site."""
    path = folders.write("admin", "ours", BODY)
    path.rename(path.with_suffix(".yml"))
    faults = folders.faults("ours")
    assert faults[1:] == [
        "admin/ours.yml: this file is not read: names of profiles end in .yaml: rename it to ours.yaml"
    ]


def test_without_a_name_the_one_that_matches_is_taken(folders: Folders) -> None:
    """Neither flag nor variable are needed on a cluster that knows itself."""
    folders.write("admin", "here", BODY + "match: {hostnames: ['login\\d']}\n")
    facts = Facts(("login1", "login1.example.org"), {}, lambda path: None)
    assert load_site(None, folders.environ, facts=facts).profile.name == "here"
    folders.write("admin", "there", BODY + "match: {env: {CLUSTER: x}}\n")
    both = Facts(facts.hostnames, {"CLUSTER": "x"}, facts.read_file)
    with pytest.raises(SiteError, match=r"^--site: no site given, and several match this machine: here, there: add --"):
        load_site(None, folders.environ, facts=both)
    (fault,) = folders.faults(None)
    told = "--site: no site given, and none matches this machine: add --site NAME, or set SLURM_LLM_SITE: known sites: "
    assert fault.startswith(told)
    assert fault.endswith(" more: slurm-llm site list")


PRECEDENCE = ["base1", "base2", "site", "partition", "user", "spec"]


@pytest.mark.parametrize(("low", "top"), list(combinations(PRECEDENCE, 2)))
def test_every_pair_of_the_order_of_precedence(folders: Folders, low: str, top: str) -> None:
    """Bases in their order < site < its partition < user's file < spec: of any two that set a value the later wins."""
    says = {place: f"launcher: {{command: /{place}}}\n" for place in (low, top)}
    for base in ("base1", "base2"):
        folders.write("admin", base, "base: true\n" + says.get(base, ""))
    own = f", {says['partition'].strip()}" if "partition" in says else ""
    partition = f"partitions:\n  gpu: {{gpus_per_node: 4{own}}}\n"
    folders.write("admin", "here", "extends: [base1, base2]\n" + says.get("site", "") + partition)
    folders.write("user", "here", "preflight: {mpi: false}\n" + says.get("user", ""), plain=True)
    overlay: dict[str, Tree] = {"launcher": {"command": "/spec"}} if "spec" in says else {}
    profile = folders.load("here", overlay).profile.for_partition("gpu")
    assert profile.launcher.command == f"/{top}"
    assert profile.preflight.mpi is False


def test_a_users_partition_wins_over_the_users_file(folders: Folders) -> None:
    """What the user says of one partition holds there, and what they say of the site everywhere else."""
    text = "partitions:\n  a: {gpus_per_node: 4, python: /site}\n  b: {gpus_per_node: 4, python: /site}\n"
    folders.write("admin", "here", text)
    folders.write("user", "here", "python: /user\npartitions:\n  a: {python: /user/a}\n", plain=True)
    profile = folders.load("here").profile
    assert [profile.for_partition(name).python for name in "ab"] == ["/user/a", "/user"]


def test_bases_are_chained_and_the_last_wins(folders: Folders) -> None:
    """A base may be built on another; one that is reached twice counts at its lowest place."""
    folders.write("admin", "base-0", "base: true\npython: /0\nenv: {set: {A: 0, B: 0, C: 0}}\nsrun_extra: [--x0]\n")
    folders.write("admin", "base-1", "base: true\nextends: base-0\nenv: {set: {A: 1, B: 1}}\n")
    folders.write("admin", "base-2", "base: true\nextends: base-0\nenv: {set: {B: 2}}\nsrun_extra: {append: [--x2]}\n")
    folders.write("admin", "here", "extends: [base-1, base-2]\n" + BODY)
    found = folders.load("here")
    assert found.profile.env.set == {"A": 1, "B": 2, "C": 0}
    assert found.profile.srun_extra == ("--x0", "--x2")
    assert _where(found, "env", "set", "A") == "admin/base-1.yaml:5"
    assert _where(found, "srun_extra", 0) == "admin/base-0.yaml:6"


def test_what_a_profile_is_is_not_inherited(folders: Folders) -> None:
    """Name, description, match and the like are the profile's own, also when it is built on another site."""
    text = (
        "description: Theirs\ndocs_url: https://x\ncontact: me\nsources: [a]\nmatch: {hostnames: [x]}\n"
        "verified: {state: run, date: 2026-01-01}\npython: /x\n"
    )
    folders.write("admin", "there", text + BODY)
    folders.write("admin", "here", "extends: there\n")
    profile = folders.load("here").profile
    assert (profile.name, profile.python) == ("here", "/x")
    assert (profile.description, profile.docs_url, profile.contact, profile.sources) == ("", None, None, ())
    assert (profile.verified, profile.match.hostnames, profile.extends) == (None, (), None)


def test_a_profile_that_extends_its_own_name_is_the_next_one_down(folders: Folders) -> None:
    """An admin changes a packaged profile and keeps what it is; several admins' folders chain."""
    folders.write("second", "generic", "extends: generic\nslurm: {kill_wait_s: 31}\nlauncher: {mpi: pmi2}\n")
    path = folders.write("admin", "generic", "extends: generic\nslurm: {kill_wait_s: 32}\n")
    found = folders.load("generic")
    assert (found.profile.slurm.kill_wait_s, found.profile.launcher.mpi) == (32, "pmi2")
    assert "PMIx and four GPUs" in found.profile.description
    assert found.path == path
    direct = folders.load(str(path)).profile
    assert direct == found.profile


def test_a_users_file_may_bring_bases_of_its_own(folders: Folders) -> None:
    """They lie between the site and what the file says itself."""
    folders.write("admin", "here", "python: /site\nstorage: {logs: /site}\n" + BODY)
    folders.write("admin", "base-x", "base: true\npython: /base\nstorage: {logs: /base}\n")
    folders.write("user", "here", "extends: base-x\nstorage: {logs: /user}\n", plain=True)
    profile = folders.load("here").profile
    assert (profile.python, profile.storage.logs) == ("/base", "/user")


def test_a_users_file_over_a_base_reaches_every_site_on_it(folders: Folders) -> None:
    """Bases are found as sites are."""
    folders.write("admin", "base-x", "base: true\npython: /base\nprologue: a\n")
    folders.write("user", "base-x", "python: /user\n", plain=True)
    folders.write("admin", "here", "extends: base-x\n" + BODY)
    profile = folders.load("here").profile
    assert (profile.python, profile.prologue) == ("/user", "a")


def test_a_base_is_no_site(folders: Folders) -> None:
    """It is not listed, and asking for it is one clear message."""
    path = folders.write("admin", "base-x", "base: true\n")
    assert "base-x" not in find_sites(folders.environ)
    what = "'base-x' is a base, which other profiles are built on, and no cluster"
    fault = f"--site base-x: {what}: {_known(folders)}: or write a profile that extends it"
    assert folders.faults("base-x") == [fault]
    assert folders.faults(str(path)) == [fault]


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        (
            {"here": "python: /x\nextends: basis\n", "base-is": "base: true\n"},
            ["admin/here.yaml:4: extends: there is no profile 'basis': did you mean 'base-is'?: known: …"],
        ),
        (
            {"here": "extends: [q, here]\n"},
            [
                "admin/here.yaml:3: extends: there is no profile 'q': known: …: correct the name",
                "admin/here.yaml:3: extends: there is no other profile 'here' further down the folders: remove it",
            ],
        ),
        (
            {"here": "extends: b\n", "b": "base: true\nextends: c\n", "c": "base: true\nextends: b\n"},
            ["admin/c.yaml:4: extends: 'b' is itself built on this profile: b → c → b: remove one of them"],
        ),
        (
            {"here": "extends: b\n", "b": "base: true\nextends: here\n"},
            ["admin/b.yaml:4: extends: 'here' is itself built on this profile: here → b → here: remove one of them"],
        ),
        (
            {"here": "extends: 3\n" + BODY},
            ["admin/here.yaml:3: extends: must be a profile's name, or a list of names: correct the value"],
        ),
        (
            {"here": "extends: [a, 3]\n" + BODY},
            ["admin/here.yaml:3: extends: must be a profile's name, or a list of names: correct the value"],
        ),
        (
            {"here": "extends: b\n" + BODY, "b": "base: [\n"},
            ["admin/b.yaml:4: not readable as YAML: did not find expected ',' or ']': correct this line"],
        ),
        (
            {"here": "standalone: maybe\n" + BODY},
            ["admin/here.yaml:3: standalone: must be true or false: correct the value"],
        ),
    ],
)
def test_faults_of_extends_are_told_with_file_and_line(
    folders: Folders, files: dict[str, str], faults: list[str]
) -> None:
    """An unknown base, a circle, a wrong form; nothing is reported missing that a base may have brought."""
    for name, text in files.items():
        folders.write("admin", name, text)
    found = [re.sub(r"known: .* site list", "known: …", fault) for fault in folders.faults("here")]
    assert [_same_words(fault) for fault in found] == [_same_words(fault) for fault in faults]


def test_a_base_beside_the_file_is_not_found(folders: Folders) -> None:
    """Only the folders of profiles are looked in: the file is named, and what to do."""
    path = folders.write("own", "here", "extends: basis\n" + BODY)
    folders.write("own", "basis", "base: true\n")
    (fault,) = folders.faults(str(path))
    assert fault.startswith(
        "own/here.yaml:3: extends: there is no profile 'basis': own/basis.yaml is beside this file, "
    )
    assert fault.endswith(": put it into one of them, or name its folder in SLURM_LLM_SITE_PATH")
    assert ": known: here, " not in fault and ": known: base-alliance, " in fault


def _same_words(fault: str) -> str:
    # PyYAML's own words differ between its parsers.
    return fault.split("not readable as YAML")[0]


def test_a_fault_is_told_where_it_stands_and_all_at_once(folders: Folders) -> None:
    """Faults of a base, of the site, of the user's file and of the spec in one error, each with its own file."""
    folders.write("admin", "base-x", "base: true\nlauncher: {mpi: 3}\nzzz: 1\n")
    folders.write("admin", "here", "extends: base-x\nslurm: {kill_wait_s: x}\n" + BODY)
    folders.write("user", "here", "\nnetwork: {ports: all}\n", plain=True)
    assert [fault.split(": ")[0] for fault in folders.faults("here", {"startup": {"boot_s": -1}})] == [
        "admin/here.yaml:4",
        "admin/base-x.yaml:4",
        "user/here.yaml:2",
        "site",
        "admin/base-x.yaml:5",
    ]


def test_a_fault_of_partition_defaults_is_told_once(folders: Folders) -> None:
    """Under the name that it has in the file, however many partitions inherit it."""
    partitions = "partitions:\n  a: {gpus_per_node: 1}\n  b: {gpus_per_node: x}\n"
    text = "partition_defaults:\n  time: {max: 4h}\n  tiem: 1\n" + partitions
    folders.write("admin", "here", text)
    assert [fault.split(": ")[:2] for fault in folders.faults("here")] == [
        ["admin/here.yaml:4", "partition_defaults.time.max"],
        ["admin/here.yaml:5", "unknown key 'partition_defaults.tiem'"],
        ["admin/here.yaml:8", "partitions.b.gpus_per_node"],
    ]


def test_the_name_is_the_files(folders: Folders) -> None:
    """A file that is found by its name must not call itself otherwise, the user's neither."""
    folders.write("admin", "here", "schema_version: 1\nname: there\n" + BODY, plain=True)
    folders.write("user", "here", "python: /x\nname: hero\n", plain=True)
    assert folders.faults("here") == [
        "user/here.yaml:2: name: must be 'here', as the file is called (found: 'hero'): correct it, or rename the file",
        "admin/here.yaml:2: name: must be 'here', as the file is called (found: 'there'): correct it, or rename the "
        "file",
    ]


def test_a_base_of_another_version_is_told(folders: Folders) -> None:
    """Its version is not inherited, and not overlooked."""
    folders.write("admin", "base-x", "schema_version: 2\nbase: true\n", plain=True)
    folders.write("admin", "here", "extends: base-x\n" + BODY)
    assert folders.faults("here") == ["admin/base-x.yaml:1: schema_version: must be 1 (found: 2): correct the value"]


def test_a_spec_lies_over_everything(folders: Folders) -> None:
    """Its `site:` wins over partitions, may append, and is named in messages by its label."""
    folders.write("admin", "here", "partitions:\n  gpu: {gpus_per_node: 4, python: /p, srun_extra: [--xa]}\n")
    overlay: dict[str, Tree] = {"python": "/spec", "srun_extra": {"append": ["--xb"]}}
    profile = load_site("here", folders.environ, overlay, label="job.yaml: site").profile.for_partition("gpu")
    assert (profile.python, profile.srun_extra) == ("/spec", ("--xa", "--xb"))
    with pytest.raises(SiteError, match=r"^job.yaml: site: slurm.kill_wait_s: must be a whole number"):
        load_site("here", folders.environ, {"slurm": {"kill_wait_s": "x"}}, label="job.yaml: site")


@pytest.mark.parametrize(
    "key", ["name", "extends", "match", "schema_version", "base", "standalone", "verified", "policies"]
)
def test_a_spec_may_not_touch_what_the_admin_alone_decides(folders: Folders, key: str) -> None:
    """Each such key is a problem, and does not change the profile on the way."""
    folders.write("admin", "here", BODY)
    what = "only the site's profile decides this: remove it"
    assert folders.faults("here", {key: "x"}) == [f"site: site.{key}: {what}"]


def test_a_spec_may_not_touch_policies_of_partitions_either(folders: Folders) -> None:
    """They are refused in every place that has them, all at once."""
    folders.write("admin", "here", BODY)
    own: dict[str, Tree] = {"policies": {"forbid": []}}
    overlay: dict[str, Tree] = {"name": "x", "partition_defaults": own, "partitions": {"gpu": own}}
    assert [fault.split(": ")[1] for fault in folders.faults("here", overlay)] == [
        "site.name",
        "site.partition_defaults.policies",
        "site.partitions.gpu.policies",
    ]


def test_the_site_of_a_spec_s_document_keeps_its_lines_and_flags(folders: Folders) -> None:
    """A value of `site:` is told with the spec's line, one of `--set` with the flag."""
    folders.write("admin", "here", BODY)
    spec = parse_document("name: demo\nsite:\n  python: 3\n  slurm: {kill_wait_s: 1}\n", "job.yaml")
    spec.value["site"]["slurm"]["kill_wait_s"] = "y"  # type: ignore[index, call-overload]
    spec.lines["site", "slurm", "kill_wait_s"] = 0
    assert [fault.partition(" must")[0] for fault in folders.faults("here", overlay_of(spec))] == [
        "--set site.slurm.kill_wait_s: slurm.kill_wait_s:",
        "job.yaml:3: python:",
    ]
    assert overlay_of(parse_document("name: demo\n", "job.yaml")) is None
    whole = Document("job.yaml", {"site": {"python": 3}}, {("site",): 0})
    assert [fault.partition(":")[0] for fault in folders.faults("here", overlay_of(whole))] == ["--set site"]


def test_a_folder_that_cannot_be_read_is_told_with_an_unknown_name(folders: Folders) -> None:
    """It may be why the name is unknown."""
    folder = folders.root / "admin"
    folder.symlink_to(folder)
    assert any(f.startswith("admin: this folder of profiles cannot be read: ") for f in folders.faults("zzz"))


def test_parse_site_needs_no_folders() -> None:
    """A document is a profile by itself: partition_defaults and `{append: …}` are applied, extends is not followed."""
    text = "schema_version: 1\nname: x\nextends: base-efa\nsrun_extra: [--xa]\npartition_defaults: {gpus_per_node: 2}\n"
    profile = parse_site(parse_document(text + "partitions:\n  p: {srun_extra: {append: [--xb]}}\n  q:\n", "f"))
    assert profile.for_partition("p").srun_extra == ("--xa", "--xb")
    assert profile.partitions["q"].gpus_per_node == 2


@pytest.mark.parametrize("name", sorted(find_sites({})))
def test_what_was_merged_can_be_loaded_again(name: str) -> None:
    """A packaged profile written out with all that it inherits is the same profile, without its bases."""
    site = load_site(name, {})
    written = dump(tree_of(leaf for leaf in leaves(site) if leaf.origin))
    assert parse_site(parse_document(written, "written")) == site.profile


@pytest.mark.parametrize("path", sorted(sites_dir().glob("*.yaml")), ids=lambda path: path.stem)
def test_the_head_of_a_packaged_profile_is_what_the_whole_file_says(path: Path) -> None:
    """Reading only what a profile is, for speed, gives the same values on the same lines."""
    whole = parse_document(path.read_text(encoding="utf-8"), str(path))
    head = read_head(path)
    assert head.value == {key: value for key, value in whole.value.items() if key in IDENTITY}
    assert all(whole.lines[key] == line for key, line in head.lines.items())


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("name: a\nlauncher:\n  mpi: x\nmatch:\n  env: {A: b}\n# end\n", False),
        ("name: a\r\nlauncher: {}\r\n", False),
        ("{name: a,\n launcher: {}}\n", True),
        ("---\nname: a\nlauncher: {}\n", True),
        ("'name': a\nlauncher: {}\n", True),
        ("name: a\nlauncher: {mpi: x\n}\n", True),
    ],
)
def test_a_head_is_cut_only_where_that_is_safe(tmp_path: Path, text: str, whole: bool) -> None:
    """Other forms of YAML are read whole; what the profile is is found in each."""
    assert (head_of(text) == text) is whole
    path = tmp_path / "a.yaml"
    path.write_text(text, newline="")
    assert read_head(path).value["name"] == "a"


@pytest.mark.parametrize("path", sorted(sites_dir().glob("base-*.yaml")), ids=lambda path: path.stem)
def test_every_packaged_base_is_valid_by_itself(folders: Folders, path: Path) -> None:
    """A profile that adds nothing but a partition to it loads."""
    folders.write("admin", "here", f"extends: {path.stem}\n" + BODY)
    assert folders.load("here").profile.partitions["gpu"].gpus_per_node == 4


def test_a_flag_wins_over_the_spec_also_in_partitions(folders: Folders) -> None:
    """`--set site.…` is stronger than all that the spec says, and takes the place of the same key there."""
    folders.write("admin", "here", "srun_extra: [--xa]\npartitions:\n  gpu: {gpus_per_node: 4, python: /p}\n")
    text = "site:\n  srun_extra: {append: [--xb]}\n  partitions: {gpu: {python: /spec, launcher: {mpi: pmi2}}}\n"
    settings = ["site.python=/flag", "site.srun_extra={append: [--xc]}", "site.slurm.kill_wait_s=7"]
    spec = apply_settings(parse_document(text, "job.yaml"), settings, SiteError)
    found = folders.load("here", overlay_of(spec))
    profile = found.profile.for_partition("gpu")
    assert (profile.python, profile.launcher.mpi, profile.slurm.kill_wait_s) == ("/flag", "pmi2", 7)
    assert profile.srun_extra == ("--xa", "--xc")
    assert found.document.where(("python",)) == "--set site.python"
    assert found.document.where(("partitions", "gpu", "launcher", "mpi")) == "job.yaml:3"


def test_a_partition_that_a_spec_adds_has_the_sites_defaults(tmp_path: Path) -> None:
    """From Python as on the command line: the site is loaded first, and the spec's `site:` laid over it later."""
    path = tmp_path / "here.yaml"
    path.write_text(
        "schema_version: 1\nname: here\npartition_defaults: {gpus_per_node: 4, whole_node: true}\n"
        "partitions: {gpu: {}}\n"
    )
    overlay: dict[str, Tree] = {"partitions": {"mine": {"slurm_partition": "mine"}}}
    later = laid_over(load_site(str(path), {}), overlay)
    assert later.profile == load_site(str(path), {}, overlay).profile
    mine = later.profile.partitions["mine"]
    assert (mine.gpus_per_node, mine.whole_node, mine.slurm_partition) == (4, True, "mine")
