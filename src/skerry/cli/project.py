"""The project's skerry.toml: find it, and ask the user to trust it before it widens anything.

A repository is written by others, and a `git pull` can add or change its skerry.toml. A file that asks for more than
the defaults is used only after the user trusted exactly these bytes at exactly this path.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from skerry.cli import output
from skerry.client._sync.client import Client
from skerry.client._sync.snapshots import Snapshot
from skerry.codecs.text import escape
from skerry.config import PROJECT_FILE, TABLE, ProjectFile, Settings, load
from skerry.errors import InvalidRequest, NotFound
from skerry.types import NAME, parse_lifetime, parse_size

MAX_FILE_BYTES: Final = 256 << 10
# These settings act inside the sandbox only, or leave changes out of bulk decisions. Every other setting of a project
# needs trust, future ones included. An image does too if it is a snapshot of the user (`require_trust_for_snapshot`).
_HARMLESS: Final = frozenset(
    {
        "image",
        "setup",
        "setup_files",
        "setup_max_age",
        "on_start",
        "ready",
        "ready_timeout",
        "env",
        "git.name",
        "git.email",
        "network.deny",
        "review.exclude",
    }
)
_AMOUNTS: Final[dict[str, Callable[[Any], float]]] = {
    "limits.cpus": float, "limits.memory": parse_size, "limits.disk": parse_size, "limits.pids": float,
    "limits.open_files": float, "lifecycle.idle_timeout": parse_lifetime, "lifecycle.max_lifetime": parse_lifetime,
}  # fmt: skip


@dataclass(frozen=True)
class Project:
    """The settings of one call and the directory of its skerry.toml (without one, the current directory). The file is
    read once: a file that changes during the call has no effect on it. `untrusted`: the file, if it is used because it
    widens nothing and not because it is trusted. `trusted_call`: --trust."""

    settings: Settings
    directory: Path
    skip_setup: bool = False
    untrusted: ProjectFile | None = None
    trusted_call: bool = False

    @property
    def setup(self) -> tuple[str, ...]:
        return () if self.skip_setup else self.settings["setup"]


# -- finding ----------------------------------------------------------------------------------------------------------


def find_project_file(start: Path | None = None) -> ProjectFile | None:
    """Return the nearest skerry.toml: in the current directory or above it, up to the top of the repository.

    Above the current directory, a file of another user is ignored, such as /tmp/skerry.toml: its owner must be this
    user, root, or the owner of the current directory. The search ends below the home directory."""
    start = Path(os.path.realpath(start or Path.cwd()))
    owners = {os.geteuid(), 0, start.stat().st_uid}
    home = os.path.realpath(os.environ.get("HOME") or "/")
    for directory in (start, *start.parents):
        if directory != start and str(directory) in (home, "/"):
            return None
        found = _read(directory / PROJECT_FILE, None if directory == start else owners)
        if found is not None or os.path.lexists(directory / ".git"):
            return found
    return None


def _read(path: Path, owners: set[int] | None) -> ProjectFile | None:
    """Read the file itself, never the target of a link: a repository could point to a file that is trusted elsewhere,
    or to a file whose reading blocks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if owners is not None and not _is_of(path, owners):
            return None
        what = "is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise InvalidRequest(f"{path}: {what}", hint=_IGNORE) from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if owners is not None and status.st_uid not in owners:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"{path}: not a regular file", hint=_IGNORE)
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path}: larger than {output.format_size(MAX_FILE_BYTES)}", hint=_IGNORE)
    return ProjectFile(path, content)


def _is_of(path: Path, owners: set[int]) -> bool:
    try:
        return path.lstat().st_uid in owners
    except OSError:  # a directory above that this user may not search
        return False


# -- judging ----------------------------------------------------------------------------------------------------------


def widened_settings(file: ProjectFile) -> list[tuple[str, str]]:
    """Return names and values of the settings that ask for more than the defaults of this machine."""
    environ = {name: os.environ[name] for name in ("SKERRY_CONFIG",) if name in os.environ}
    defaults, given = load(environ=environ), load(environ=environ, project=file)
    rows: list[tuple[str, str]] = []
    for name in (setting.name for setting in TABLE):
        if name not in _HARMLESS and given.resolved(name).source == "project's file":
            rows += _more(name, given[name], defaults[name])
    return rows


def _more(name: str, value: Any, default: Any) -> Iterator[tuple[str, str]]:
    if (amount := _AMOUNTS.get(name)) is not None:
        if amount(value) > amount(default):
            yield name, f"{value} (default: {default})"
    elif name == "secrets":
        for secret, form in value.items():
            hows = "".join(f", {how} {text!r}" for how, text in form.items() if how != "hosts")
            yield f"secrets.{secret}", f"sent to {', '.join(form['hosts'])}{hows}"
    elif name == "volumes":
        yield from ((f"volumes.{path}", volume) for path, volume in value.items() if default.get(path) != volume)
    elif isinstance(value, tuple):
        yield from ((name, word) for word in value if word not in default)
    else:  # no such setting today; a new one needs trust until it is judged above
        yield name, str(value)


def image_row(file: ProjectFile, name: str | None = None) -> list[tuple[str, str]]:
    """Return the row of an image of the file that is, or without `name` could be, a snapshot of the user."""
    image = load(environ={}, project=file).resolved("image")
    if name is None and (image.source != "project's file" or not NAME.fullmatch(image.value)):
        return []
    return [
        ("image", f"{name}: one of your snapshots" if name else f"{image.value}: an image, or one of your snapshots")
    ]


def shown(file: ProjectFile, rows: list[tuple[str, str]]) -> list[str]:
    """Return the lines that the user judges. Every row is shown. Characters other than plain ASCII are escaped:
    control codes could hide a row, and letters of other alphabets could imitate a host."""
    width = max(len(name) for name, _ in rows)
    lines = [f"{file.path} asks for more than the defaults:"]
    lines += [f"  {name.ljust(width)}  {value}" for name, value in rows]
    return [escape(line).encode("ascii", "backslashreplace").decode() for line in lines]


# -- trust ------------------------------------------------------------------------------------------------------------


def require_trust(file: ProjectFile, rows: list[tuple[str, str]]) -> None:
    """Return if the file widens nothing (`rows`) or is trusted. Else ask at the terminal; without one, raise an
    error."""
    if not rows or is_trusted(file):
        return
    lines = shown(file, rows)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest("\n".join([f"{PROJECT_FILE} is not trusted: {lines[0]}", *lines[1:]]), hint=_TRUST)
    for line in lines:
        output.info(line)
    if not click.confirm("Trust this file until it changes?", err=True):
        raise InvalidRequest(f"{escape(str(file.path))} is not trusted", hint=_IGNORE)
    trust(file)


def require_trust_for_snapshot(client: Client, project: Project, names: Iterable[str], *, dockerfile: bool) -> None:
    """Require trust if one of these images of the project's file is a snapshot of the user: a create finds snapshots by
    name too, and their files are the user's. A Dockerfile can change without the trusted skerry.toml, so that only
    --trust lets it start from one."""
    if project.trusted_call or (project.untrusted is None and not dockerfile):
        return
    for name in filter(NAME.fullmatch, names):
        try:
            Snapshot.get(name, server=client)
        except NotFound:
            continue
        if dockerfile:
            raise InvalidRequest(
                f"the project's Dockerfile starts from {name}, one of your snapshots",
                hint="--trust allows it for this call",
            )
        if project.untrusted is not None:
            require_trust(project.untrusted, image_row(project.untrusted, name))


_IGNORE: Final = f"--no-project ignores the project's {PROJECT_FILE}"
_TRUST: Final = (
    f"read the file, then run `skerry trust` there to allow this content, or pass --trust for this call; {_IGNORE}"
)


def is_trusted(file: ProjectFile) -> bool:
    """Return whether the user trusted this content at this path. Records that another user could write do not count."""
    store = _store()
    return _is_private(store) and _is_private(store / _key(file))


def trust(file: ProjectFile) -> None:
    store = _store()
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(store):
        raise InvalidRequest(
            f"{store}: not a directory of this user alone",
            hint="make it yours with mode 0700, or set XDG_STATE_HOME to another directory",
        )
    record = {"path": str(file.path), "sha256": hashlib.sha256(file.content).hexdigest()}
    handle, name = tempfile.mkstemp(dir=store, prefix=".new-")  # mode 0600
    with os.fdopen(handle, "w") as made:
        json.dump(record, made)
    os.replace(name, store / _key(file))


def revoke(path: Path) -> int:
    """Forget every trusted content of the file at this path. Return their number."""
    removed = 0
    with contextlib.suppress(FileNotFoundError):
        for record in _store().iterdir():
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                if json.loads(record.read_text())["path"] == str(path):
                    record.unlink()
                    removed += 1
    return removed


def _store() -> Path:
    """Return the directory of the records, one file each. The name of a record is a hash of path and content: the same
    content elsewhere, such as in a subdirectory or another clone, is not trusted."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "skerry" / "trusted"


def _key(file: ProjectFile) -> str:
    content = hashlib.sha256(file.content).digest()
    return hashlib.sha256(b"skerry.toml 1\0" + content + os.fsencode(file.path)).hexdigest()


def _is_private(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    kind = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022
