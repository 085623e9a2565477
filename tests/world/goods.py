"""The packages that the world's sites offer: a wheel, an npm package, a Debian package, a git repository. Built
here."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

YARN_VERSION = "4.99.0"


def make(sites: Path) -> None:
    for make_site in (_wheel, _npm, _debian, _git):
        make_site(sites)
    _wheel(sites, "six")  # of the documentation's examples


def _wheel(sites: Path, package: str = "tinylib") -> None:
    place = sites / f"index/simple/{package}"
    place.mkdir(parents=True)
    name = f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(place / name, "w") as wheel:
        wheel.writestr(f"{package}.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{package}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    digest = hashlib.sha256((place / name).read_bytes()).hexdigest()
    (place / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{name}#sha256={digest}">{name}</a>')


def _npm(sites: Path) -> None:
    _npm_package(sites, "tiny-lib", "1.0.0", {"index.js": "module.exports = 42\n"})
    yarn = "console.log('yarn', process.argv.slice(2).join(' '), 'of the test world')\n"
    _npm_package(sites, "@yarnpkg/cli-dist", YARN_VERSION, {"bin/yarn.js": yarn})


def _npm_package(sites: Path, name: str, version: str, files: dict[str, str]) -> None:
    place = sites / "npm" / name
    place.mkdir(parents=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        manifest = json.dumps({"name": name, "version": version, "main": "index.js"})
        for path, text in {"package.json": manifest, **files}.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    tarball, file = packed.getvalue(), f"{name.rpartition('/')[2]}-{version}.tgz"
    (place / file).write_bytes(tarball)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    released = {
        "name": name,
        "version": version,
        "dist": {
            "tarball": f"https://npm.example.test/{name}/{file}",
            "integrity": integrity,
            "shasum": hashlib.sha1(tarball).hexdigest(),
        },
    }
    described = {"name": name, "dist-tags": {"latest": version}, "versions": {version: released}}
    (place / "index.html").write_text(json.dumps(described))
    (place / version).mkdir()
    (place / version / "index.html").write_text(json.dumps(released))


def _debian(sites: Path) -> None:
    """A repository without signatures: the tests' line of sources.list marks it as trusted."""
    place, tree = sites / "apt", sites / "apt-tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share/tinytool").mkdir(parents=True)
    (tree / "usr/share/tinytool/answer").write_text("42\n")
    control = (
        "Package: tinytool\nVersion: 1.0\nArchitecture: all\nMaintainer: tests <tests@example.test>\n"
        "Description: nothing much\n"
    )
    (tree / "DEBIAN/control").write_text(control)
    place.mkdir()
    package = place / "tinytool_1.0_all.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)], check=True, stdout=subprocess.DEVNULL
    )
    content = package.read_bytes()
    entry = (
        f"{control}Filename: ./{package.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    )
    (place / "Packages").write_text(entry)
    (place / "Packages.gz").write_bytes(gzip.compress(entry.encode()))


def _git(sites: Path) -> None:
    place, work = sites / "git", sites / "git-work"
    place.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "tests@example.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def git(*args: str) -> None:
        subprocess.run(["git", *args], check=True, env=environment, stdout=subprocess.DEVNULL)

    git("init", "-q", "-b", "main", str(work))
    (work / "README").write_text("a repository of the test world\n")
    git("-C", str(work), "add", "README")
    git("-C", str(work), "commit", "-q", "-m", "Begin")
    git("clone", "-q", "--bare", str(work), str(place / "tiny.git"))
    git("-C", str(place / "tiny.git"), "config", "http.receivepack", "true")
