"""Programs that a test needs: of this machine, or of a Debian package in a separate directory, without an installation.
An installation would start nginx as a service of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".venv" / "debian"
DIRECTORIES = ("usr/bin", "usr/sbin")


def program(name: str, package: str = "") -> str:
    """Return the path of a program. Skip the test if neither this machine nor its packages have it."""
    home = CACHE / (package or name)
    if found := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin"):
        return found
    if not home.exists():
        _unpack(package or name, home)
    for directory in DIRECTORIES:
        if (path := home / directory / name).exists():
            return str(path)
    return pytest.skip(f"the package {package or name} has no {name}")


def _unpack(package: str, home: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip(f"no {package} here, and no apt-get to download it")
    home.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        download = ["timeout", "60", "apt-get", "download", "-o", "APT::Sandbox::User=root", package]
        got = subprocess.run(download, cwd=scratch, capture_output=True, text=True, check=False)
        packages = list(Path(scratch).glob("*.deb"))
        if got.returncode or not packages:
            pytest.skip(f"no {package} here, and its package is not available: {got.stderr[-200:]}")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), f"{scratch}/tree"], check=True, timeout=100)
        if not home.exists():
            os.rename(f"{scratch}/tree", home)
