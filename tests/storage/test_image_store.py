"""Images by name, and the layers that nothing names any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError
from skerry.storage import Image, ImageStore, LayerStore, image_digest


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images", LayerStore(tmp_path / "layers"))


def add_layer(images: ImageStore, tmp_path: Path, text: str) -> str:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/file").write_text(text)
    return images.layers.add_directory(tmp_path / "new")


def image(name: str, *layers: str) -> Image:
    digest = image_digest(layers, {"A": "1"}, "user", "/workspace")
    return Image(name=name, digest=digest, layers=layers, size=1, created_at=2.0, user="user", cwd="/", env={"A": "1"})


def test_an_image_round_trips(images: ImageStore, tmp_path: Path) -> None:
    layer = add_layer(images, tmp_path, "x")
    for name in ("base", "docker.io/library/python:3.12-slim", "a@sha256:" + "0" * 64):
        images.put(image(name, layer))
        assert images.get(name) == image(name, layer)
    assert [found.name for found in images.list()] == sorted(
        ["base", "docker.io/library/python:3.12-slim", f"a@sha256:{'0' * 64}"]
    )


def test_a_second_image_of_a_name_replaces_the_first(images: ImageStore, tmp_path: Path) -> None:
    one, two = add_layer(images, tmp_path, "1"), add_layer(images, tmp_path, "2")
    images.put(image("base", one))
    images.put(image("base", two))
    assert [found.layers for found in images.list()] == [(two,)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "export",
        ".",
        "..",
        "../x",
        "a/../b",
        "/etc/passwd",
        "a//b",
        "a/",
        "-a",
        "a\0b",
        "a\n",
        "x" * 300,
        "a b",
        "é",
        "a\x1b[31m",
    ],
)
def test_a_hostile_name_is_rejected_everywhere(images: ImageStore, name: str, tmp_path: Path) -> None:
    for call in (
        images.get,
        images.remove,
        lambda hostile: images.put(image(hostile, add_layer(images, tmp_path, "x"))),
    ):
        with pytest.raises(InvalidRequest):
            call(name)
    assert os.listdir(images.root) == []


def test_an_unknown_image_is_not_found_and_base_has_a_build_hint(images: ImageStore) -> None:
    with pytest.raises(NotFound) as caught:
        images.get("other")
    assert caught.value.details == {"image": "other"}
    with pytest.raises(NotFound) as caught:
        images.get("base")
    assert caught.value.details == {"image": "base", "build": True}
    assert "skerry image build base" in str(caught.value)
    with pytest.raises(NotFound):
        images.remove("other")


def test_an_image_with_a_missing_layer_is_rejected(images: ImageStore) -> None:
    with pytest.raises(Conflict):
        images.put(image("base", "sha256:" + "0" * 64))


def test_only_unused_layers_are_collected(images: ImageStore, tmp_path: Path) -> None:
    named, used, unused = (add_layer(images, tmp_path, text) for text in ("named", "used", "unused"))
    images.put(image("base", named))
    (images.layers.root / ".new-left-by-a-crash").mkdir()
    assert images.collect(lambda: {used}) == [unused]
    assert images.layers.digests() == sorted([named, used])
    assert not (images.layers.root / ".new-left-by-a-crash").exists()
    images.remove("base")
    assert images.collect(set) == sorted([named, used])


def test_an_image_digest_is_independent_of_the_name() -> None:
    one = image_digest(("sha256:1",), {"A": "1", "B": "2"}, "user", "/")
    assert one == image_digest(("sha256:1",), {"B": "2", "A": "1"}, "user", "/")
    assert one != image_digest(("sha256:1",), {"A": "1", "B": "2"}, "root", "/")


def test_a_damaged_entry_is_reported_by_file(images: ImageStore, tmp_path: Path) -> None:
    images.put(image("base", add_layer(images, tmp_path, "x")))
    file = next(images.root.iterdir())
    file.write_text("{")
    with pytest.raises(SkerryError, match=file.name):
        images.get("base")
