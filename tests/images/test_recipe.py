"""A new version of Skerry with another recipe rebuilds `base`; sandboxes of the old one keep running."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.server import Server

from skerry import Client, Sandbox
from skerry.images import recipe_digest
from skerry.images.base.recipe import _LAYER_MODULES, _SLIM_MODULES
from skerry.storage import Image, ImageStore, LayerStore


def store_of(server: Server) -> ImageStore:
    return ImageStore(server.state_dir / "images", LayerStore(server.state_dir / "layers"))


def age(store: ImageStore) -> Image:
    """An image as an earlier version made it: with another recipe, and a layer that the current one lacks."""
    tree = store.root.parent / "old-tree"
    tree.mkdir(mode=0o755)
    (tree / "old").write_text("old")
    current = store.get("base")
    old = replace(current, layers=(*current.layers, store.layers.add_directory(tree)), recipe="sha256:" + "0" * 64)
    store.put(old)
    return old


def test_the_recipe_changes_with_each_module_that_makes_the_image(tmp_path: Path) -> None:
    import skerry.images.base

    ask = "import sys; sys.path.insert(0, sys.argv[1]); import recipe; print(recipe.recipe_digest())"
    found = set()
    modules = *_SLIM_MODULES, *_LAYER_MODULES
    for changed in (None, *modules):
        copy = tmp_path / str(changed)
        shutil.copytree(Path(skerry.images.base.__file__).parent, copy)
        if changed:
            with (copy / changed).open("a") as module:
                module.write("# changed\n")
        answer = subprocess.run([sys.executable, "-c", ask, str(copy)], capture_output=True, text=True, check=True)
        found.add(answer.stdout.strip())
    assert recipe_digest() in found
    assert len(found) == 1 + len(modules)


def test_an_image_of_the_current_recipe_is_returned_at_once(server: Server) -> None:
    with server.http() as http:
        lines = http.post("/v1/images", json={"name": "base"}).text.splitlines()
    assert [list(json.loads(line)) for line in lines] == [["image"]]
    assert json.loads(lines[0])["image"]["recipe"] == recipe_digest()


def test_an_outdated_image_is_rebuilt_and_stays_until_the_new_one_is_complete(own_server: Server) -> None:
    old = age(store_of(own_server))
    own_server.start()
    with own_server.http() as http, http.stream("POST", "/v1/images", json={"name": "base"}) as answer:
        assert json.loads(next(answer.iter_lines()))["progress"]["stage"] == "lists"
        own_server.end()  # which ends the build, too
    assert store_of(own_server).get("base") == old
    assert all(store_of(own_server).layers.has(digest) for digest in old.layers)


def test_doctor_reports_an_outdated_image(own_server: Server) -> None:
    age(store_of(own_server))
    own_server.start()
    with Client(own_server.address) as client:
        (found,) = [check for check in client.doctor()["checks"] if check["name"] == "image base"]
    assert found["ok"] is None
    assert found["fix"] == "skerry image build base"
    own_server.end()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_sandboxes_keep_an_old_image_until_the_last_one_is_deleted(own_server: Server, base_store: Path) -> None:
    subprocess.run(["cp", "-al", str(base_store / "cache"), str(own_server.state_dir / "cache")], check=True)
    old = age(store_of(own_server))
    own_server.start()
    store = store_of(own_server)
    with Client(own_server.address) as client, Sandbox(server=client) as sandbox:
        built = client.images.build("base")
        assert built.recipe == recipe_digest()
        assert built.layers == old.layers[:-1]
        assert sandbox.run("cat /old").stdout == "old"
        sandbox.stop()
        assert sandbox.run("cat /old").stdout == "old", "it starts again, too"
        with Sandbox(server=client) as fresh:
            assert not fresh.files.exists("/old")
        assert store.layers.has(old.layers[-1])
        sandbox.delete()
        client.images.build("base", rebuild=True)
        assert not store.layers.has(old.layers[-1])
    own_server.end()
