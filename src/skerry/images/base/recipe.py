"""The recipes of Skerry's own images, as data, and a digest of everything that Skerry adds to one.

    base-slim ← base ← data, browser, and an image per language whose tools `base` lacks

`base-slim` is made from nothing; every other image is the one below it plus one layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Download:
    """A file of a package index. `sha`: its SHA-256, by machine, or under "any" its SHA-512."""

    name: str
    version: str
    sha: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one image is made. `extras`: packages that are installed if the archive has them; Ubuntu keeps some in a
    component that a host may not have enabled. `programs`: wheels that contain a program. `npm`: npm packages without
    dependencies. `python`: what pip installs. `excludes`: files of the packages that are left out. `files`: texts by
    their paths below the root; those below home/user belong to the user. `script`: shell lines that run in the image
    at the end. `title`: the addition, in words."""

    name: str
    title: str
    below: str | None = None
    packages: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    programs: tuple[Download, ...] = ()
    npm: tuple[Download, ...] = ()
    python: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    script: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


_SLIM = Recipe(
    name="base-slim",
    title="the distribution, Python and Node.js",
    packages=(
        *("bash", "mount", "passwd", "adduser", "procps", "tzdata", "ca-certificates"),
        *("python3", "python3-pip", "python3-venv", "git", "curl", "vim-tiny", "tmux", "less"),
    ),
    extras=(
        *("ripgrep", "nano", "htop", "jq", "file", "patch", "unzip", "zip", "xz-utils", "openssh-client"),
        *("python-is-python3", "netbase", "wget", "make", "tree"),
    ),
)

_UV = Download(
    "uv",
    "0.13.8",
    {
        "x86_64": "e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984",
        "aarch64": "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d",
    },
)
_PNPM = Download(
    "pnpm",
    "10.34.9",
    {
        "any": "f49b5a8ea0fdedb44bb3c0c1d6575092a53c2950d95b7ad15df11f17974877a2"
        "de3a01c07e934e9b28ce716e51c09a94962c7306d09be2e1e4b18a8c8762fd32"
    },
)
_YARN = Download(  # the last yarn 1; a project that names a newer one gets it through corepack
    "yarn",
    "1.22.22",
    {
        "any": "a6b2f7906b721bba3d67d4aff083df04dad64c399707841b7acf00f6b133b7ac"
        "24255f2652fa22ae3534329dc6180534e98d17432037ff6fd140556e2bb3137e"
    },
)

_BASE = Recipe(
    name="base",
    title="compilers and package managers",
    below="base-slim",
    packages=("gcc", "g++", "libc6-dev", "make", "pkg-config", "sqlite3", "rsync", "less"),
    extras=("gh",),
    excludes=("/usr/bin/*lto-dump*",),  # a tool for GCC's developers, 32 MB
    programs=(_UV,),
    npm=(_PNPM, _YARN),
    # `pnpm add -g` without root installs beside npm's and pip's programs.
    files={"home/user/.config/pnpm/rc": "global-bin-dir=/home/user/.local/bin\nupdate-notifier=false\n"},
)

_DATA = Recipe(
    name="data",
    title="numpy, pandas and their companions",
    below="base",
    python=(
        *("numpy==2.4.6", "pandas==3.1.1", "matplotlib==3.11.2", "scipy==1.17.1", "scikit-learn==1.9.1"),
        *("polars==2.1.0", "ipython==9.18.1"),
    ),
)

# Playwright starts its own build of Chromium from these places, and that build is not in a package index.
_PLAYWRIGHT_LINKS = """\
python3 - <<'END'
import json, pathlib, playwright
listed = json.loads((pathlib.Path(playwright.__file__).parent / "driver/package/browsers.json").read_text())["browsers"]
number = {browser["name"]: browser["revision"] for browser in listed}
places = {
    f"chromium-{number['chromium']}": ("chrome", "chrome"),
    f"chromium_headless_shell-{number['chromium-headless-shell']}": ("chrome-headless-shell", "chrome-headless-shell"),
}
for folder, (top, program) in places.items():
    for machine in ("linux64", "linux-arm64"):
        link = pathlib.Path("/opt/playwright", folder, f"{top}-{machine}", program)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/usr/bin/chromium")
END
"""
_BROWSER = Recipe(
    name="browser",
    title="Chromium and Playwright",
    below="base",
    packages=("chromium", "fonts-dejavu-core", "fonts-noto-color-emoji"),
    python=("playwright==1.65.2",),
    # Chromium's own sandbox needs a user namespace, which no program gets in a sandbox of Skerry: that one is the
    # boundary. Playwright passes these flags itself; the others stop requests that no page made.
    files={
        "etc/chromium.d/skerry": 'CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --disable-background-networking'
        ' --disable-component-update"\n'
    },
    script=_PLAYWRIGHT_LINKS,
    env={"PLAYWRIGHT_BROWSERS_PATH": "/opt/playwright", "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1"},
)


def _language(name: str, *packages: str) -> Recipe:
    return Recipe(name=f"base-{name}", title=f"the tools of {name}", below="base", packages=packages)


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _SLIM, _BASE, _DATA, _BROWSER,
        _language("go", "golang-go"),
        _language("rust", "rustc"),
        _language("java", "default-jdk-headless"),
        _language("ruby", "ruby"),
        _language("php", "php-cli"),
        _language("r", "r-base-core"),
    )
}  # fmt: skip

BOOTSTRAP = ("--mode=root", "--variant=apt", "--format=directory", "--skip=update,check/signed-by", "--verbose")
DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED",
)

_SLIM_MODULES = ("finish.py", "node.py")
_LAYER_MODULES = ("layer.py",)


def chain(name: str) -> tuple[Recipe, ...]:
    """Return the recipe of an image and of those below it, the lowest first."""
    recipe = RECIPES[name]
    return (*(chain(recipe.below) if recipe.below else ()), recipe)


@cache
def recipe_digest(name: str = "base") -> str:
    """Return a digest of everything that defines the image, except the state of the archive: an image with another
    digest in its record was made by another version of Skerry. It covers the row of the recipe, the images below it,
    and the modules that make it, so no version number has to be maintained; even a changed comment in one causes a
    rebuild."""
    recipe = RECIPES[name]
    row = repr(recipe) if recipe.below else repr((recipe, BOOTSTRAP, DPKG_OPTIONS))
    whole = hashlib.sha256(b"skerry-recipe-2\n%d %s\n" % (len(row), row.encode()))
    if recipe.below:
        whole.update(recipe_digest(recipe.below).encode())
    for module in _LAYER_MODULES if recipe.below else _SLIM_MODULES:
        source = (Path(__file__).parent / module).read_bytes()
        whole.update(b"%s %d\n" % (module.encode(), len(source)) + source)
    return f"sha256:{whole.hexdigest()}"
