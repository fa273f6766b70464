"""Loading a site's profile: the layers of its name merged into one document, which is validated once."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_llm.errors import InputError, Problem, SiteError
from slurm_llm.schema import validate
from slurm_llm.sites.detect import SITE_VARIABLE, Facts, detect, detected_site
from slurm_llm.sites.extends import base_refused, chain_of, identities, laid_over_nothing
from slurm_llm.sites.find import ENDINGS, Library, ProfileFile, unknown_site
from slurm_llm.sites.merge import DEFAULTS, PARTITIONS, Layer, Merged, merge_layers
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.sites.remedies import remedy
from slurm_llm.yamlio import FROM_FLAG, Document, Tree, dotted

NOT_FOR_SPECS = frozenset(
    {"base", "extends", "match", "name", "policies", "schema_version", "standalone", "verified"},
)
"""Keys that the admin alone decides: a spec's `site:` may not touch them."""

Overlay = Mapping[str, Tree] | Document


@dataclass(frozen=True)
class Site:
    """A profile, the file that it is from, and the merged document, in which every key knows its file and line."""

    profile: SiteProfile
    path: Path
    document: Document
    layers: tuple[Layer, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Resolved:
    """A merged profile that is not validated yet; `file` is the one that was asked for, `path` the site's own."""

    file: ProfileFile
    path: Path
    layers: tuple[Layer, ...]
    merged: Merged
    problems: tuple[Problem, ...]
    """What is wrong with how files refer to each other, and with what a spec lays over them."""


def find_sites(environ: Mapping[str, str]) -> dict[str, Path]:
    """Return every known site's name and file, bases left out; a user's file over another is not the site's own."""
    return {one.name: one.file.path for one in identities(environ)[0] if not one.is_base}


def load_site(
    name: str | None,
    environ: Mapping[str, str],
    overlay: Overlay | None = None,
    *,
    label: str = "site",
    facts: Facts | None = None,
    asked: str = "--site",
) -> Site:
    """Load the site called `name` (or the file at that path), with `overlay`, a spec's `site:`, over it.

    Without a name it is $SLURM_LLM_SITE, else the one profile whose `match` fits this machine (`facts`). `label` says
    in messages whence an overlay is that is a plain mapping, see `overlay_of`; `asked` is the flag that brought the
    name, an empty text where it stood alone.

    Raises:
        SiteError: no site, an unknown one, or every fault of its files and of the overlay.
    """
    found = resolve_site(name, environ, overlay, label=label, facts=facts, asked=asked)
    if found.merged.document.value.get("base") is True:
        where = f"{asked} {found.file.name}".strip()
        raise SiteError(base_refused(where, found.file.name, find_sites(environ)))
    document = _standing_alone(found.merged.document)
    return Site(_validated(found.merged, document, found.problems), found.path, document, found.layers)


def laid_over(site: Site, overlay: Overlay, *, label: str = "site") -> Site:
    """Return `site` with `overlay`, a spec's `site:`, over it; see `load_site`.

    Raises:
        SiteError: every fault of the overlay and of what it makes of the profile.
    """
    over, refused = _laid_over(overlay, label)
    # From the layers: in the merged document the partitions' defaults stand in every partition, and nowhere else.
    layers = (*(site.layers or (Layer(site.document),)), *over)
    merged = merge_layers(layers, str(site.path))
    document = _standing_alone(merged.document)
    return Site(_validated(merged, document, tuple(refused)), site.path, document, layers)


def parse_site(document: Document) -> SiteProfile:
    """Return the profile that `document` holds by itself: `extends` is not followed.

    Raises:
        SiteError: every fault of the document.
    """
    merged = merge_layers([Layer(document)], document.source)
    return _validated(merged, merged.document, ())


def resolve_site(
    name: str | None,
    environ: Mapping[str, str],
    overlay: Overlay | None = None,
    *,
    label: str = "site",
    facts: Facts | None = None,
    asked: str = "--site",
) -> Resolved:
    """Find and merge the layers of a site, or of a base, without validating what they make; see `load_site`.

    Raises:
        SiteError: no site, an unknown one, or a file of its own that cannot be read.
    """
    library = Library(environ)
    file = _chosen(name, library, environ, facts, asked)
    chain = chain_of(library, file)
    if not chain.layers or str(file.path) != chain.layers[-1].document.source:
        raise SiteError(chain.problems)
    lonely = laid_over_nothing(library, file)
    main = file if file.kind == "path" else library.main(file.name) or file
    over, refused = _laid_over(overlay, label)
    layers = (*chain.layers, *over)
    merged = merge_layers(layers, str(main.path))
    return Resolved(file, main.path, layers, merged, (*([lonely] if lonely else []), *chain.problems, *refused))


def overlay_of(spec: Document) -> Document | None:
    """Return the `site:` of a spec's document as an overlay whose keys know their lines and flags."""
    value = spec.value.get("site")
    if not isinstance(value, dict):
        return None
    if spec.lines.get(("site",)) == FROM_FLAG and ("site",) not in spec.sources:
        # One flag gave all of it.
        return Document(spec.where(("site",)), value)
    lines = {path[1:]: line for path, line in spec.lines.items() if path[0] == "site" and len(path) > 1}
    flags = {path: spec.where(("site", *path)) for path, line in lines.items() if line == FROM_FLAG}
    return Document(spec.source, value, lines, flags)


def _chosen(
    name: str | None, library: Library, environ: Mapping[str, str], facts: Facts | None, asked: str
) -> ProfileFile:
    chosen = name or environ.get(SITE_VARIABLE)
    where = f"{asked} {name}".strip() if name else f"{SITE_VARIABLE}={chosen}"
    chosen = chosen or detected_site(detect(environ, facts), asked)
    if "/" in chosen or chosen.endswith(ENDINGS):
        return _file_at(Path(chosen), library)
    file = library.first(chosen)
    if file is None:
        raise SiteError((unknown_site(where, chosen, find_sites(environ)), *library.problems))
    return file


def _file_at(path: Path, library: Library) -> ProfileFile:
    """Return the file at `path` under the name that it gives itself."""
    file = ProfileFile(path.stem, path, "path")
    name = library.document(file).value.get("name")
    return replace(file, name=name) if isinstance(name, str) else file


def _laid_over(overlay: Overlay | None, label: str) -> tuple[list[Layer], list[Problem]]:
    """Return a spec's overlay as layers without what it may not touch, and a problem for each such key."""
    if overlay is None:
        return [], []
    document = overlay if isinstance(overlay, Document) else Document(label, dict(overlay))
    value, problems = dict(document.value), []
    for key in sorted(NOT_FOR_SPECS & value.keys()):
        problems.append(_not_yours(document, (key,)))
        del value[key]
    named = value.get(PARTITIONS)
    sections: list[tuple[tuple[str, ...], Tree]] = [((DEFAULTS,), value.get(DEFAULTS))]
    sections += [((PARTITIONS, name), own) for name, own in (named if isinstance(named, dict) else {}).items()]
    problems += [
        _not_yours(document, (*path, "policies"))
        for path, own in sections
        if isinstance(own, dict) and "policies" in own
    ]
    parts = _flags_apart(replace(document, value=value))
    return [Layer(part, over=True) for part in parts], problems


def _flags_apart(document: Document) -> list[Document]:
    """Return an overlay's own values, and those of `--set`, which win also where the overlay names a partition."""
    own, flagged = deepcopy(document.value), Document(document.source, {}, document.lines, document.sources)
    for path in [path for path, line in document.lines.items() if line == FROM_FLAG]:
        parent: Tree = own
        at: dict[str, Tree] = flagged.value
        for step in map(str, path[:-1]):
            parent = parent.get(step) if isinstance(parent, dict) else None
            following = at.setdefault(step, {})
            at = following if isinstance(following, dict) else at
        if isinstance(parent, dict) and path[-1] in parent:
            at[str(path[-1])] = parent.pop(str(path[-1]))
    return [replace(document, value=own), *([flagged] if flagged.value else [])]


def _not_yours(document: Document, path: tuple[str, ...]) -> Problem:
    what = f"site.{dotted(path)}: only the site's profile decides this"
    return Problem(document.where(path), what, todo="remove it")


def _standing_alone(document: Document) -> Document:
    """Return a merged document without what said how to merge it: loaded again, it is the same profile."""
    value = {key: item for key, item in document.value.items() if key not in {"extends", "standalone"}}
    return replace(document, value=value)


def _validated(merged: Merged, document: Document, before: tuple[Problem, ...]) -> SiteProfile:
    problems = (*before, *merged.problems)
    try:
        profile = validate(SiteProfile, document, SiteError, remedy)
    except InputError as error:
        # Where a layer is missing, so is what it would have brought.
        own = [one for one in error.problems if not before or not one.what.endswith("is missing")]
        problems += tuple(_of_defaults(one, merged) for one in own)
        raise SiteError(dict.fromkeys(problems)) from None
    if problems:
        raise SiteError(problems)
    return profile


def _of_defaults(problem: Problem, merged: Merged) -> Problem:
    """Return the problem under the name that its key has in the file: one of all partitions is told once."""
    partitions = merged.document.value.get(PARTITIONS)
    if problem.where not in merged.defaults or not isinstance(partitions, dict):
        return problem
    what = problem.what
    for name in partitions:
        what = what.replace(f"{PARTITIONS}.{name}.", f"{DEFAULTS}.", 1)
    return replace(problem, what=what)
