"""A private apt beside the host's: its own lists and archives in the cache directory, the host's proxies and keys."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

from skerry.errors import HostUnsupported
from skerry.images import child
from skerry.images.base.sources import AptSource, without_passwords

# How the host reaches its mirrors. Not taken over: hooks, pins, extra index targets, permission for unsigned archives.
_HOST_SETTINGS = re.compile(
    r"Acquire::(?:https?(?:::.*)?|ForceIPv[46]|Retries|Check-Valid-Until|Check-Date|Max-FutureTime|Queue-Mode)"
    r' "[^"\\\n]*";'
)
_ENVIRONMENT = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
_URI_LINE = re.compile(r"'(?P<uri>[^']+)' (?P<file>[^ /]+) (?P<size>\d+)\b")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Apt:
    """`root` holds all of its files: etc/, lists/, archives/. Downloads stay there."""

    def __init__(self, root: Path, sources: list[AptSource]) -> None:
        self.root = root
        self.lists = root / "lists"
        self.archives = root / "archives"
        for directory in (root / "etc", self.lists / "partial", self.archives / "partial"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (root / "status").touch()
        self.sources = root / "etc" / "base.sources"
        self.keys = [key for source in sources if (key := source.options.get("signed-by", "")).startswith("/")]
        self._write_sources(sources)
        (root / "apt.conf").write_text(self._settings())

    def environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return passed | {
            "APT_CONFIG": str(self.root / "apt.conf"),
            "PATH": PATH,
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }

    def update(self) -> Iterator[child.OutputLine]:
        """Fetch the indexes, and remove archives of versions that they no longer list."""
        yield from self._run("update", what="fetching the package lists")
        yield from self._run("autoclean", what="removing old packages")

    def available(self, packages: tuple[str, ...]) -> tuple[str, ...]:
        argv = ["apt-cache", "policy", *packages]
        text = "\n".join(child.output(argv, self.environment(), "reading the package lists"))
        known = re.findall(r"^(\S+):\n.*\n  Candidate: [^(\s]", text, re.MULTILINE)
        return tuple(name for name in packages if name in known)

    def needed(self, packages: tuple[str, ...], installed: Path | None = None) -> dict[str, int]:
        """Return file name → size of all packages that an installation of `packages` needs, downloaded or not.
        `installed`: the package database of the image below; without one, the installation is a fresh one."""
        uris: dict[str, int] = {}
        for request in self._requests(packages, installed):
            # A fresh archives directory: apt leaves out packages that it already has.
            options = ["-o", f"Dir::Cache::archives={self.root}/none", "--print-uris"]
            (self.root / "none" / "partial").mkdir(parents=True, exist_ok=True)
            for line in self._run(*options, *request, what="resolving the packages"):
                if line.text and (match := _URI_LINE.match(line.text)):
                    uris[match["file"]] = int(match["size"])
        return uris

    def download(self, packages: tuple[str, ...], installed: Path | None = None) -> Iterator[child.OutputLine]:
        """Download; yield often enough to check `present`. An interrupted download continues where it stopped."""
        for request in self._requests(packages, installed):
            yield from self._run("--download-only", *request, what="downloading the packages")

    def present(self, files: dict[str, int]) -> int:
        """Return how many bytes of these files are downloaded, including partial ones."""
        total = 0
        for name, size in files.items():
            for path in (self.archives / name, self.archives / "partial" / name):
                try:
                    total += min(path.stat().st_size, size)
                except FileNotFoundError:
                    continue
                break
        return total

    def newest_release(self) -> int:
        """Return the time of the newest Release file in seconds since 1970: the date of this set of packages."""
        dates = [0]
        for file in [*self.lists.glob("*_InRelease"), *self.lists.glob("*_Release")]:
            if match := re.search(r"^Date: (.+)$", file.read_text(errors="replace"), re.M):
                dates.append(int(parsedate_to_datetime(match[1]).replace(tzinfo=UTC).timestamp()))
        return max(dates)

    @staticmethod
    def _requests(packages: tuple[str, ...], installed: Path | None) -> tuple[list[str], ...]:
        if installed is not None:
            return (["-o", f"Dir::State::status={installed}", "install", *packages],) if packages else ()
        # With nothing installed, dist-upgrade selects every essential package, and apt.
        return ["dist-upgrade"], ["install", *packages]

    def _run(self, *arguments: str, what: str) -> Iterator[child.OutputLine]:
        return child.lines(["apt-get", "--yes", "-o", "APT::Status-Fd=1", *arguments], self.environment(), what)

    def _write_sources(self, sources: list[AptSource]) -> None:
        pairs = [without_passwords(source) for source in sources]
        self.sources.write_text("\n".join(source.stanza() for source, _ in pairs))
        netrc = [line for _, lines in pairs for line in lines] + list(_host_netrc())
        path = self.root / "auth.conf"
        path.touch(mode=0o600)
        path.write_text("".join(f"{line}\n" for line in netrc))

    def _settings(self) -> str:
        architecture = _answer(["dpkg", "--print-architecture"]).strip()
        own = {
            "Dir": self.root,
            "Dir::State": self.root,
            "Dir::State::status": self.root / "status",
            "Dir::State::lists": self.lists,
            "Dir::Cache": self.root,
            "Dir::Cache::archives": self.archives,
            "Dir::Etc": self.root / "etc",
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.root / "etc",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Etc::netrc": self.root / "auth.conf",
            "Dir::Etc::netrcparts": "/dev/null",
            "Dir::Etc::trusted": "/etc/apt/trusted.gpg",
            "Dir::Etc::trustedparts": "/etc/apt/trusted.gpg.d",
            "Dir::Log": self.root / "log",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",  # the cache is below a 0700 directory, which _apt cannot enter
            "APT::Update::Error-Mode": "any",  # apt's default goes on with the indexes that it got, or with old ones
            "Acquire::Languages": "none",
        }
        return "".join([*_host_settings(), *(f'{name} "{value}";\n' for name, value in own.items())])


def _host_settings() -> list[str]:
    return [f"{line}\n" for line in _answer(["apt-config", "dump"]).splitlines() if _HOST_SETTINGS.fullmatch(line)]


def _host_netrc() -> Iterator[str]:
    etc = Path("/etc/apt")
    for file in [etc / "auth.conf", *sorted((etc / "auth.conf.d").glob("*.conf"))]:
        if file.is_file():
            yield from file.read_text(errors="replace").splitlines()


def _answer(argv: list[str]) -> str:
    environment = {"PATH": PATH, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        hint = "the base image needs Debian's or Ubuntu's apt"
        raise HostUnsupported(f"{argv[0]} was not found on this host", hint=hint) from None
