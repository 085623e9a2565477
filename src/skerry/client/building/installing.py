"""How packages are put into an image: for the whole system, as root, leaving nothing but what was asked for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from skerry.client.building.steps import Install, Manager
from skerry.errors import InvalidRequest

_APT: Final = """\
apt-get update -q -o Acquire::Languages=none
apt-get install -q -y --no-install-recommends -o Dpkg::Use-Pty=0 -- "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
"""
_PIP: Final = """\
PYTHON=$(command -v python3 || command -v python)
exec "$PYTHON" -m pip install --no-cache-dir --no-input --root-user-action=ignore --disable-pip-version-check "$@"
"""
_NPM: Final = """\
npm install -g --no-fund --no-audit --no-update-notifier --cache /tmp/.skerry-npm -- "$@"
rm -rf /tmp/.skerry-npm
"""
# What an image says about a system's own Python stands against this: here it is meant.
_PIP_ENV: Final = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_NO_INPUT": "1"}
_WORD: Final = re.compile(r"[^\s\0-][^\s\0]*(?: ?[^\s\0-][^\s\0]*)*")
_MOST: Final = 1000
_LIKE: Final[Mapping[Manager, str]] = {"apt": "'ffmpeg'", "pip": "'numpy>=2'", "npm": "'typescript@5'"}


def check_packages(manager: Manager, packages: Iterable[object]) -> tuple[str, ...]:
    """Names, and never options: what is installed is said by its name."""
    found = []
    for package in packages:
        if not isinstance(package, str) or not _WORD.fullmatch(package.strip()):
            raise InvalidRequest(f"{manager}: {package!r} is not a package", hint=f"names like {_LIKE[manager]}")
        found.append(package.strip())
    if len(found) > _MOST:
        raise InvalidRequest(f"{manager}: more than {_MOST} packages in one step")
    return tuple(found)


def command(install: Install) -> list[str]:
    if install.manager == "apt":
        return ["/bin/sh", "-ec", _APT, "apt", *install.packages]
    if install.manager == "npm":
        return ["/bin/sh", "-ec", _NPM, "npm", *install.packages]
    return ["/bin/sh", "-ec", _PIP, "pip", *(("-r", "/dev/stdin") if install.requirements else ()), *install.packages]


def environment(install: Install) -> dict[str, str]:
    if install.manager == "apt":
        return {"DEBIAN_FRONTEND": "noninteractive"}
    return dict(_PIP_ENV) if install.manager == "pip" else {"NODE_DISABLE_COMPILE_CACHE": "1"}
