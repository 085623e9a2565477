"""Names of images are read as docker reads them."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest
from skerry.types import parse_reference

HEX = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("me/app", "docker.io/me/app:latest"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/me/app:v1", "docker.io/me/app:v1"),
        ("ghcr.io/owner/a/b:1", "ghcr.io/owner/a/b:1"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app:x", "localhost:5000/app:x"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        (f"python@{HEX}", f"docker.io/library/python@{HEX}"),
        (f"python:3@{HEX}", f"docker.io/library/python:3@{HEX}"),
        ("docker://quay.io/a/b", "quay.io/a/b:latest"),
    ],
)
def test_names_are_parsed_as_in_docker(written: str, meant: str) -> None:
    assert str(parse_reference(written)) == meant
    assert parse_reference(meant) == parse_reference(written)


@pytest.mark.parametrize(
    "written",
    ["", "/", "a//b", "Python", "a:", "a:b:c", "https://a.test/b", "a@sha256:12", "a@md5:1", "../a", "a/../b", "a b",
     "-a", "a:" + "t" * 129, "x" * 300, "host.test:123456/a", "host_.test/a", "a\n", "a@"],
)  # fmt: skip
def test_invalid_names_are_rejected_with_an_example(written: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_reference(written)
    assert "python:3.12" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("written", "local"),
    [("localhost:5000/a", True), ("127.8.9.1/a", True), ("[::1]/a", True),
     ("10.0.0.1:5000/a", False), ("a.test/b", False)],
)  # fmt: skip
def test_a_local_registry_is_recognised(written: str, local: bool) -> None:
    assert parse_reference(written).local is local
