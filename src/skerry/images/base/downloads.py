"""Files of the package indexes, fetched by the ordinary clients with the host's settings: wheels by pip, npm packages
by npm. Pinned ones are checked against a hash; they stay in the cache."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from skerry.errors import HostUnsupported, SkerryError
from skerry.images import child
from skerry.images.base.apt import PATH
from skerry.images.base.recipe import Download
from skerry.storage import tree

_DOWNLOADING = re.compile(r"Downloading .*\((\d+(?:\.\d+)?) ([kM])B\)")
_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
NPM_CLI = "usr/local/lib/node_modules/npm/bin/npm-cli.js"


class Pinned:
    """A pinned file in the cache directory `home`; downloaded once."""

    def __init__(self, home: Path, item: Download) -> None:
        self.home, self.item = home, item
        home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def present(self) -> Path | None:
        """Return the verified file; remove a damaged one."""
        algorithm, expected = self._expected()
        suffix = ".tgz" if "any" in self.item.sha else "-*.whl"
        stem = self.item.name if "any" in self.item.sha else self.item.name.replace("-", "[-_]")
        for path in self.home.glob(f"{stem}-{self.item.version}{suffix}"):
            with open(path, "rb") as file:
                if hashlib.file_digest(file, algorithm).hexdigest() == expected:
                    return path
            path.unlink()
        return None

    def download(self, npm: list[str]) -> Iterator[tuple[int, int]]:
        """Download; yield (bytes so far, total bytes or 0 while unknown). `npm`: the command for npm's packages."""
        named = f"{self.item.name}@{self.item.version}"
        if "any" in self.item.sha:
            argv = [*npm, "pack", "--loglevel=error", "--ignore-scripts", "--pack-destination", str(self.home), named]
            for _ in child.lines(argv, _environment(self.home), f"downloading {named}"):
                yield _size_of_files(self.home), 0
        else:
            request = ["--no-deps", f"{self.item.name}=={self.item.version}"]
            yield from download_wheels(self.home, request, f"downloading {named}")
        if self.present() is None:
            raise SkerryError(f"the package index's {named} does not match the pinned hash")

    def _expected(self) -> tuple[str, str]:
        if "any" in self.item.sha:
            return "sha512", self.item.sha["any"]
        machine = platform.machine()
        if machine not in self.item.sha:
            raise HostUnsupported(f"{self.item.name} {self.item.version} is not available for {machine}")
        return "sha256", self.item.sha[machine]


def download_wheels(home: Path, request: list[str], what: str) -> Iterator[tuple[int, int]]:
    """Have pip download wheels into `home`; yield (bytes so far, bytes of those that pip has named)."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = home / "scratch"
    tree.remove(scratch)
    scratch.mkdir(mode=0o700)
    argv = [_python_with_pip(), "-m", "pip", "download", "--only-binary=:all:", "--no-cache-dir"]
    argv += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(home), *request]
    total = 0
    for line in child.lines(argv, _environment(scratch), what):
        if line.text and (match := _DOWNLOADING.search(line.text)):
            total += int(float(match[1]) * {"k": 1e3, "M": 1e6}[match[2]])
        yield _size_of_files(scratch), total
    tree.remove(scratch)


def wheels_for(python: str) -> list[str]:
    """Return pip's options that select wheels for this machine's C library and a Python version like `3.11`: the image
    has the release of the host, but the server may run on another Python."""
    glibc = int((os.confstr("CS_GNU_LIBC_VERSION") or "glibc 2.17").rpartition(".")[2])
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(glibc, 4, -1)]
    platforms += [f"manylinux{old}_{machine}" for old in ("2014", "2010", "1")] + [f"linux_{machine}"]
    return ["--implementation=cp", f"--python-version={python}", *(f"--platform={name}" for name in platforms)]


def npm_command(root: Path) -> list[str]:
    """Return the host's npm, which reads all of the host's settings, or else that of the image, which reads those of
    this user and of the environment."""
    if (found := shutil.which("npm")) is not None:
        return [found]
    return [str(root / "usr/local/bin/node"), str(root / NPM_CLI)]


def _environment(scratch: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # Node trusts only the certificates that it was compiled with; the host may need another CA, such as one of a proxy.
    environment.setdefault("NODE_EXTRA_CA_CERTS", os.environ.get("SSL_CERT_FILE", _CA_BUNDLE))
    return environment | {"TMPDIR": str(scratch), "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", PATH)}


def _python_with_pip() -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        probe = [python, "-m", "pip", "--version"]
        if python and os.path.exists(python) and subprocess.run(probe, capture_output=True, timeout=60).returncode == 0:
            return python
    raise HostUnsupported("pip is needed to fetch parts of the image", hint="apt-get install python3-pip")


def _size_of_files(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
