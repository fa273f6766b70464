"""Products: what counts as there and whole, the record beside them, locks, and two makers at a time."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.stages import lock, products
from slurm_llm.stages.products import There
from slurm_llm.stages.recipe import FOLDER, HUB, STORE, Product, Recipe
from tests.stages.making import product_of, recipe_of


def _found(recipe: Recipe) -> tuple[There, str]:
    found = products.look(recipe, lambda _argv: False)
    return found.there, found.why


def _make(recipe: Recipe, text: str = "x") -> products.Record:
    product = product_of(recipe)
    products.clear(product)
    Path(product.part).write_text(text)
    return products.finish(recipe, product)


def test_a_file_is_there_once_it_has_its_record(tmp_path: Path) -> None:
    """Missing, then whole; made by hand it counts too, and says so."""
    recipe = recipe_of(tmp_path / "image.sqsh", "…")
    assert _found(recipe)[0] is There.MISSING
    record = _make(recipe)
    assert _found(recipe)[0] is There.WHOLE
    assert (record.files, record.bytes) == (1, 1)
    assert record.digest == "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert ".part" not in (tmp_path / "image.sqsh.slurm_llm.json").read_text()
    (tmp_path / "image.sqsh.slurm_llm.json").unlink()
    assert _found(recipe) == (There.WHOLE, "not made by slurm_llm")


def test_what_is_another_thing_is_told_and_left_alone(tmp_path: Path) -> None:
    """Another recipe, a changed size, a folder in a file's place."""
    path = tmp_path / "image.sqsh"
    _make(recipe_of(path, "one"))
    there, why = _found(recipe_of(path, "two"))
    assert there is There.OTHER and why.startswith("it was made otherwise: bash -c one")
    path.write_text("longer")
    assert _found(recipe_of(path, "one")) == (
        There.OTHER,
        "it has 1 files with 6 bytes, and was made with 1 and 1",
    )
    (tmp_path / "folder").mkdir()
    assert _found(recipe_of(tmp_path / "folder", "…")) == (There.OTHER, "it is no file")


def _model(folder: Path, *shards: str, index: bool = True, config: bool = True) -> None:
    folder.mkdir(parents=True)
    if config:
        (folder / "config.json").write_text("{}")
    for name in shards:
        (folder / name).write_text("w")
    if index:
        names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize(
    ("shards", "index", "config", "lacks"),
    [
        (("model-1.safetensors", "model-2.safetensors"), True, True, ()),
        (("model-1.safetensors",), True, True, ("model-2.safetensors",)),
        (("model.safetensors",), False, True, ()),
        (("pytorch_model.bin",), False, False, ("config.json",)),
        ((), False, True, ("any file of weights",)),
    ],
)
def test_weights_are_whole_when_their_index_says_so(
    tmp_path: Path, shards: tuple[str, ...], index: bool, config: bool, lacks: tuple[str, ...]
) -> None:
    """An interrupted copy is not served."""
    _model(tmp_path / "m", *shards, index=index, config=config)
    assert products.missing_weights(tmp_path / "m") == lacks
    product = Product(FOLDER, str(tmp_path / "m"), str(tmp_path / ".m.part"), str(tmp_path / "r"), complete=True)
    recipe = replace(recipe_of(tmp_path / "m", "…", kind=FOLDER), product=product)
    assert _found(recipe)[0] is (There.OTHER if lacks else There.WHOLE)


def test_the_hubs_cache_is_read_by_revision(tmp_path: Path) -> None:
    """A ref names the commit, a commit names itself; what is not whole is downloaded further, never refused."""
    model = tmp_path / "hub" / "models--org--tiny"
    whole = Product(HUB, str(model), str(model), str(tmp_path / "r.json"), complete=True)
    recipe = replace(recipe_of(tmp_path / "x", "…"), product=whole)
    assert _found(recipe)[0] is There.MISSING
    _model(model / "snapshots" / "abc", "model-1.safetensors")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    assert _found(recipe)[0] is There.MISSING
    (model / "snapshots" / "abc" / "model-2.safetensors").write_text("w")
    assert _found(recipe)[0] is There.WHOLE
    assert _found(replace(recipe, product=replace(whole, revision="abc")))[0] is There.WHOLE
    assert _found(replace(recipe, product=replace(whole, revision="v2")))[0] is There.MISSING
    some = replace(recipe, product=replace(whole, complete=False))
    assert _found(some)[0] is There.MISSING, "of some files nobody knows which, until the same are asked for again"
    assert products.finish(some, product_of(some)).digest == "commit:abc"
    assert _found(some)[0] is There.WHOLE


def test_a_store_is_asked(tmp_path: Path) -> None:
    """What lies in a runtime's own store is known by its own command."""
    recipe = replace(recipe_of(tmp_path / "x", "…"), product=Product(STORE, "a/b:1", "", "", known=("ask", "a/b:1")))
    assert products.look(recipe, lambda argv: argv == ("ask", "a/b:1")).there is There.WHOLE
    assert products.look(recipe, lambda _argv: False).there is There.MISSING


def test_of_two_makers_that_saw_no_lock_one_wins(tmp_path: Path) -> None:
    """Where a file system has no locks the later maker leaves its own aside, and the product is whole."""
    first, second = (recipe_of(tmp_path / "engine", "…", kind=FOLDER) for _ in range(2))
    other = replace(product_of(second), part=str(tmp_path / ".engine.other.part"))
    for recipe, product, text in ((first, product_of(first), "first"), (second, other, "second")):
        products.clear(product)
        Path(product.part).mkdir()
        (Path(product.part) / "rank0.engine").write_text(text)
        products.finish(recipe, product)
    assert (tmp_path / "engine" / "rank0.engine").read_text() == "first"
    assert not list(tmp_path.glob(".*.part"))


def test_half_made_things_go_unless_they_can_be_resumed(tmp_path: Path) -> None:
    """A download goes on where it stopped; anything else starts anew."""
    fresh = product_of(recipe_of(tmp_path / "engine", "…", kind=FOLDER))
    resumed = replace(fresh, part=str(tmp_path / ".engine.part"))
    for product, stays in ((fresh, False), (resumed, True)):
        Path(product.part).mkdir()
        (Path(product.part) / "half").write_text("x")
        products.clear(product)
        assert Path(product.part).exists() is stays
        products.give_up(product)
        assert Path(product.part).exists() is stays


def test_the_lock_lets_one_in_at_a_time_and_names_the_holder(tmp_path: Path) -> None:
    """The second waits, tells for whom, and comes in when the first has gone."""
    path, told, inside = tmp_path / "new" / ".x.lock", list[str](), threading.Event()
    release, order = threading.Event(), list[str]()

    def first() -> None:
        with lock.held(path, told.append, time.sleep):
            inside.set()
            release.wait(20)
            order.append("first")

    holder = threading.Thread(target=first)
    holder.start()
    assert inside.wait(20)

    def pause(_seconds: float) -> None:
        release.set()
        time.sleep(0.01)

    with lock.held(path, told.append, pause):
        order.append("second")
    holder.join(20)
    assert order == ["first", "second"]
    (line,) = told
    assert line.startswith(f"waiting for user {os.getuid()} on ") and line.endswith("who makes the same")
    assert path.stat().st_mode & 0o777 == 0o666, "another user of the project must be able to take it"
