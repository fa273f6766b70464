"""The command that looks into the image of a spec: `image`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from slurm_llm.cli.options import json_option, spec_options
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.imagefacts import ImageFacts

NAME_WIDTH = 14


@click.command()
@spec_options
@click.option("--job", "in_job", is_flag=True, help="Look in a job of a minute, even if this machine could.")
@click.option("--kept", is_flag=True, help="Show what was seen last, and look only when nothing was.")
@json_option
def image(spec: str, site: str | None, settings: tuple[str, ...], in_job: bool, kept: bool, as_json: bool) -> None:
    """Look what the image of SPEC holds for serving, or the nodes without one, and keep that for its checks.

    Versions, arguments, model folders and backends are read as files: no engine is started. Where this machine has the
    image's runtime it looks itself; otherwise a job of a minute does.
    """
    from slurm_llm.imageprobe import plan_probe, probe_image

    around = Surroundings.of_this_process()
    probe = plan_probe(spec, site, settings, around)
    facts = probe.kept if kept else None
    if facts is None:
        facts = probe_image(probe, around, _Teller(), in_job=in_job)
    if as_json:
        own = {"image": facts.place.name, "stamp": facts.place.stamp, "seen": facts.seen, "by": facts.by}
        click.echo(json.dumps({**own, **facts.found}))
        return
    for name, text in rows(facts):
        click.echo(f"{name:<{NAME_WIDTH}}{text}")


class _Teller:
    """Prints what is told, once for the same words."""

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, words: str) -> None:
        if words != self.last:
            click.echo(words, err=True)
        self.last = words


def rows(facts: ImageFacts) -> Iterator[tuple[str, str]]:
    """Return what was seen as names and words."""
    found = facts.found
    yield "seen", f"{facts.place.words}, by {facts.by}"
    yield "python", f"{found['python']['version']}, {found['python']['program']}"
    packages = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    yield "packages", packages or "none that count"
    for package, own in found["engines"].items():
        yield package, _arguments(own)
    yield "model folders", _folders(found["models"])
    launcher = found["launcher"]
    yield "launcher", "none" if launcher is None else _launcher(launcher)
    triton = found["triton"]
    if triton is None:
        yield "triton", "none"
        return
    release = triton["release"] or triton["version"]
    yield "triton", f"{triton['home']}{f', release {release}' if release else ''}"
    yield "backends", ", ".join(triton["backends"]) or "none"
    yield "OpenAI API", triton["openai_frontend"] or "none"


def _arguments(own: dict[str, Any] | None) -> str:
    if own is None:
        return "not installed"
    if "error" in own:
        return f"its arguments cannot be read: {own['error']}"
    return f"{len(own['names'])} arguments of {own['class']} in {own['file']}"


def _folders(models: dict[str, list[str]]) -> str:
    return "; ".join(f"{folder}: {', '.join(names)}" for folder, names in models.items()) or "none"


def _launcher(own: dict[str, Any]) -> str:
    ending = "ends with its task" if own["ends_with_task"] else "old: it stays when its task has ended"
    return f"{own['path']}, {ending}"
