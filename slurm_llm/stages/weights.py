"""The weights stage: `hf download` into a folder or into the hub's cache.

Grammar measured on huggingface_hub 0.34.4 (argparse: `--include [INCLUDE ...]`) and 1.x (typer: one pattern an option):
only one `--include=PATTERN` a call means the same to both, so each pattern has a call of its own; of several
`--exclude` the older one heeds the last. HF_TOKEN is read from the environment and never written anywhere.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from slurm_llm.preparation import WeightsStage
from slurm_llm.stages.recipe import FOLDER, HUB, Command, Product, beside

_FIND = (
    'for name in hf huggingface-cli; do command -v "$name" >/dev/null && exec "$name" "$@"; done; '
    "echo 'slurm_llm: there is neither hf nor huggingface-cli on PATH: install huggingface_hub' >&2; exit 127"
)
QUIET = ("env", "HF_HUB_DISABLE_PROGRESS_BARS=1")


def hub_home(environ: Mapping[str, str]) -> str:
    """Return the hub's folder for models, as huggingface_hub finds it: HF_HUB_CACHE, HF_HOME, the user's cache."""
    cache = environ.get("XDG_CACHE_HOME") or environ.get("HOME", "/nonexistent") + "/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return environ.get("HF_HUB_CACHE") or f"{home}/hub"


def weights_product(own: WeightsStage, repo: str, hub: str, run_id: str) -> Product:
    """Return where the weights go; `hub` is the hub's folder for models."""
    whole = not (own.include or own.exclude)
    if own.to is not None:
        return beside(own.to, FOLDER, run_id, resumable=True, complete=whole)
    name = "models--" + repo.replace("/", "--")
    path = f"{hub}/{name}"
    # Beside the hub's folder: what is in it and is no model makes the hub's own tools complain.
    record = f"{hub.rpartition('/')[0]}/slurm_llm/{name}.json"
    return Product(HUB, path, path, record, complete=whole, revision=own.revision or "main")


def weights_commands(own: WeightsStage, repo: str, product: Product) -> tuple[Command, ...]:
    """Return the calls that download `repo`."""
    words = ["download", repo]
    words += [] if own.revision is None else [f"--revision={own.revision}"]
    words += [] if own.to is None else [f"--local-dir={product.part}"]
    words += [f"--exclude={pattern}" for pattern in own.exclude]
    calls = [[*words, f"--include={pattern}"] for pattern in own.include] or [words]
    return tuple(
        Command((*QUIET, "bash", "-c", _FIND, "hf", *call), own.in_image, shlex.join(["hf", *call])) for call in calls
    )
