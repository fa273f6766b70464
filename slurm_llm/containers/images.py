"""Which image a spec gets on a site: aliases, files among the site's images, and whether the runtime takes it."""

from __future__ import annotations

from slurm_llm.containers.references import is_file_name, is_path, is_reference, is_relative
from slurm_llm.containers.runtime import Fault, Runtime
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec


def image_wanted(spec: JobSpec, site: SiteProfile) -> bool:
    """Return whether the ranks run in a container: the spec or the site names an image, or a definition that does."""
    asked = site.container.image if spec.container is None else spec.container.image or site.container.image
    inherited = site.container.runtime == "cscs_ce" and site.container.cscs_ce.base is not None
    return asked is not None or inherited


def choose_image(spec: JobSpec, site: SiteProfile, runtime: Runtime, problems: list[Problem]) -> str:
    """Return the image as `runtime` names it, or empty text with a problem appended."""
    asked = None if spec.container is None else spec.container.image
    where = "container.image" if asked else f"container.image of site {site.name}"
    asked = asked or site.container.image or ""
    if asked in site.container.images:
        where = f"container.images.{asked} of site {site.name}"
        found = _located(site.container.images[asked], site, runtime)
    else:
        found = _misread_alias(asked, site) or _located(asked, site, runtime)
    fault = found if isinstance(found, Fault) else _fault_of(found, site, runtime)
    if fault is not None:
        problems.append(Problem(where, fault.what, fault.allowed, fault.todo))
    return "" if isinstance(found, Fault) else found


def find_fault(image: str, site: SiteProfile, runtime: Runtime) -> Fault | None:
    """Return what is wrong with an image that a profile itself names, and that is no alias of another one."""
    meant = _misread_alias(image, site) if image == site.container.image else None
    found = meant or _located(image, site, runtime)
    return found if isinstance(found, Fault) else _fault_of(found, site, runtime)


def _misread_alias(asked: str, site: SiteProfile) -> Fault | None:
    """Say what was probably meant by a word that is close to an alias but is none."""
    if "/" in asked or is_path(asked) or is_reference(asked) or is_file_name(asked):
        return None
    aliases = site.container.images
    hint = did_you_mean(asked, aliases)
    allowed = "its images: " + ", ".join(aliases)
    return Fault(f"'{asked}' is no image of site {site.name}", allowed, hint) if hint else None


def _located(image: str, site: SiteProfile, runtime: Runtime) -> str | Fault:
    """Return `image` with its folder, when it is the name of a file or folder among the site's images."""
    word = image and not (is_path(image) or is_relative(image) or is_reference(image))
    if not is_file_name(image) and not (word and runtime.folders):
        return image
    folder = site.storage.images
    if folder is not None:
        return f"{folder.rstrip('/')}/{image}"
    if is_file_name(image):
        what = f"'{image}' has no folder, and site {site.name} names none for images"
        return Fault(what, "the file's absolute path", "or set storage.images in the profile")
    aliases = ", ".join(site.container.images)
    known = f"one of the site's images ({aliases}), or " if aliases else ""
    return Fault(f"'{image}' is no image that site {site.name} knows", f"{known}an absolute path")


def _fault_of(image: str, site: SiteProfile, runtime: Runtime) -> Fault | None:
    fault = runtime.check_image(image)
    if fault is not None or site.network.internet != "none" or not runtime.pulls(image):
        return fault
    what = f"compute nodes would download '{image}', but have no internet (network.internet: none)"
    return Fault(what, "the absolute path of an image file", f"on a login node `{runtime.import_hint}`")
