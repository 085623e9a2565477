"""Settings: one table, five layers.

    built-in < operator's file < project's skerry.toml < environment < flags and arguments

The server reads the operator's file and its environment, never a project's file: what a project says reaches it
as part of a request, where the operator's maxima apply. The environment name of a setting is SKERRY_ and the name in
capitals with underscores: `limits.memory` is SKERRY_LIMITS_MEMORY.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from skerry.errors import InvalidRequest
from skerry.types import (
    DEFAULT_LIMITS,
    LanguageForm,
    Lifecycle,
    Limits,
    SecretForm,
    check_known_by,
    check_line,
    parse_size,
    parse_span,
)

RUN_BASE = Path("/run/skerry")
OPERATOR_FILE = Path("/etc/skerry/config.toml")
PROJECT_FILE = "skerry.toml"
Source = Literal["built-in", "operator's file", "project's file", "environment", "flag"]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequest(f"{name}: {value!r} is not text")
    return value


def _line(value: Any, name: str) -> str:
    check_line(name, _text(value, name))
    return value  # type: ignore[no-any-return]


def _path(value: Any, name: str) -> str:
    """Absolute from here on: a server in the background works in another directory than the one who started it."""
    return os.path.abspath(_text(value, name))


def _count(value: Any, name: str) -> int:
    try:
        number = int(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if number < 1:
        raise InvalidRequest(f"{name}: {value!r} is not a whole number above 0")
    return number


def _number(value: Any, name: str) -> int:
    """As `_count`, and 0."""
    return 0 if value in (0, "0") and not isinstance(value, bool) else _count(value, name)


def _cpus(value: Any, name: str) -> float:
    try:
        return float(Limits(cpus=float(value)).cpus or 0)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}: {value!r} is not a number of CPUs") from error


def _size(value: Any, name: str) -> str | int:
    parse_size(value, name)
    return value  # type: ignore[no-any-return]


def _span(value: Any, name: str) -> str | int | float:
    parse_span(value, name)
    return value  # type: ignore[no-any-return]


def _words(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"{name}: {value!r} is not a list of texts")
    return tuple(_text(word, name) for word in value)


def _pairs(value: Any, name: str) -> dict[str, str]:
    if isinstance(value, str):
        value = dict(pair.partition("=")[::2] for pair in value.split(",") if pair)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: {value!r} is not a table of texts")
    return {_text(key, name): _text(item, f"{name}.{key}") for key, item in value.items()}


def _secrets(value: Any, name: str) -> dict[str, dict[str, Any]]:
    """Where secrets go, by their names. Never where their values come from: a project's file is whoever's who wrote it,
    and could have any file and variable of its user sent anywhere."""
    if not isinstance(value, dict) or not all(isinstance(form, dict) for form in value.values()):
        raise InvalidRequest(f"{name}: not a table of secrets", hint='[secrets.TOKEN] hosts = ["api.example.com"]')
    forms = {}
    for key, form in value.items():
        if stray := form.keys() - {"hosts", "header", "query", "basic"}:
            raise InvalidRequest(
                f"{name}.{key}: {sorted(stray)[0]!r} can't be set here",
                hint=f"a value is given by whoever makes the sandbox: --secret {key}",
            )
        texts = {how: _text(text, f"{name}.{key}.{how}") for how, text in form.items() if how != "hosts"}
        hosts = _words(form.get("hosts", ()), f"{name}.{key}.hosts")
        SecretForm(name=key, hosts=hosts, **texts)
        forms[key] = {"hosts": hosts, **texts}
    return forms


def _languages(value: Any, name: str) -> dict[str, LanguageForm]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: not a table of languages", hint='[languages.lua] run = ["lua", "{file}"]')
    forms = {}
    for key, form in value.items():
        check_known_by(key, name)
        try:
            forms[key] = msgspec.convert(form, LanguageForm)
        except msgspec.ValidationError as problem:
            cause = problem.__cause__
            what, hint = (cause.message, cause.hint) if isinstance(cause, InvalidRequest) else (str(problem), None)
            raise InvalidRequest(f"{name}.{key}: {what}", hint=hint) from None
    return forms


@dataclass(frozen=True)
class Setting:
    """One row. `project` rows may also stand in a project's skerry.toml."""

    name: str
    default: Any
    parse: Callable[[Any, str], Any]
    help: str
    project: bool = False

    @property
    def env(self) -> str:
        return "SKERRY_" + self.name.upper().replace(".", "_")


TABLE: tuple[Setting, ...] = (
    Setting("state_dir", "/var/lib/skerry", _path, "where the server keeps its database, layers and sandboxes"),
    Setting("server", None, _text, "the server: unix:///path or http://host:port; none: the one of this host"),
    Setting("token", None, _text, "the token for a server on TCP"),
    Setting("image", "base", _text, "the image of a new sandbox", project=True),
    Setting("setup", (), _words, "commands that prepare a project's sandbox", project=True),
    Setting("setup_files", (), _words, "files of the project that setup needs: paths and patterns", project=True),
    Setting("setup_expires", "7d", _span, "how old a prepared project may be before setup runs again", project=True),
    Setting("env", {}, _pairs, "variables of a new sandbox", project=True),
    Setting("limits.cpus", DEFAULT_LIMITS.cpus, _cpus, "CPUs of a sandbox", project=True),
    Setting("limits.memory", DEFAULT_LIMITS.memory, _size, "memory of a sandbox", project=True),
    Setting("limits.disk", DEFAULT_LIMITS.disk, _size, "disk that a sandbox may fill", project=True),
    Setting("limits.pids", DEFAULT_LIMITS.pids, _count, "processes and threads of a sandbox", project=True),
    Setting("limits.open_files", DEFAULT_LIMITS.open_files, _count, "open files of a process", project=True),
    Setting("lifecycle.idle", "15m", _span, "how long a sandbox may be idle", project=True),
    Setting("lifecycle.life", "24h", _span, "how long a sandbox may run", project=True),
    Setting("journal.process", "64M", _size, "output kept of a process; past that, the oldest is dropped"),
    Setting("journal.sandbox", "512M", _size, "output kept of all of a sandbox's processes; at most half of its disk"),
    Setting("git.name", None, _line, "the name on commits made inside; none: the image's", project=True),
    Setting("git.email", None, _line, "the address on commits made inside; none: the image's", project=True),
    Setting("network.allow", (), _words, "what a new sandbox may reach", project=True),
    Setting("network.deny", (), _words, "what no sandbox may reach; nobody can lift the operator's", project=True),
    Setting("network.presets", (), _words, "presets, by project or environment: pip, npm, apt, git", project=True),
    Setting("secrets", {}, _secrets, "where secrets go, by name; --secret NAME gives one its value", project=True),
    Setting("network.ask_url", None, _text, "asked, by POST, about what no rule names (on_unknown=\"ask\")"),
    Setting("network.ask_timeout", "30s", _span, "how long an answer may take; then it is no"),
    Setting("max.network", ("*",), _words, "rules beyond which no sandbox may reach, whatever its own policy says"),
    Setting("max.bandwidth", None, _size, "most bytes a second that a sandbox may send and receive"),
    Setting("max.traffic", None, _size, "most bytes that a sandbox may send and receive in all"),
    Setting("max.connections", 1024, _count, "most connections of a sandbox at once"),
    Setting("preview.listen", "127.0.0.1:7470", _text, "where previews are served; port 0: any; none: nowhere"),
    Setting("preview.domain", "localhost", _text, "the domain below which previews have their names"),
    Setting("preview.url", None, _text, "how people reach that listener, if through a proxy: https://*.example.com"),
    Setting("max.cpus", None, _cpus, "most CPUs that anyone may ask for; none: what the host has"),
    Setting("max.memory", None, _size, "most memory that anyone may ask for; none: what the host has"),
    Setting("max.disk", None, _size, "most disk that anyone may ask for"),
    Setting("max.pids", 32768, _count, "most processes that anyone may ask for"),
    Setting("max.open_files", 1 << 20, _count, "most open files that anyone may ask for"),
    Setting("max.life", None, _span, "longest life that anyone may ask for"),
    Setting("max.sandboxes", 1000, _count, "live sandboxes on this host"),
    Setting("max.sandboxes_per_owner", 500, _count, "live sandboxes of one owner"),
    Setting("runtime", None, _text, "crun or runc; none: the better one that works here"),
    Setting("storage.driver", None, _text, "btrfs, loop or plain; none: the best one that works here"),
    Setting("storage.pool_size", "64G", _size, "most that sandboxes and snapshots together may take on disk"),
    Setting("storage.reserve", "1G", _size, "free space of the host's disk that is left alone"),
    Setting("storage.headroom", "1G", _size, "room that the pool takes on the host's disk ahead of what is written"),
    Setting("archive.timeout", "1m", _span, "how long an archive may stand still on its way out or in"),
    Setting("registry.timeout", "30s", _span, "how long a registry may send nothing before a pull gives up on it"),
    Setting("snapshots.auto", 100, _count, "snapshots before commands (auto_snapshot) kept of a sandbox: the newest"),
    Setting("snapshots.per_owner", 1000, _count, "snapshots that one owner may keep"),
    Setting("pool.size", 2, _number, "ready sandboxes kept for each image in the pool; 0: none"),
    Setting("pool.images", (), _words, "images that always have ready ones; others do while they are in use"),
    Setting("pool.total", 8, _number, "ready sandboxes of all images together"),
    Setting("pool.memory", "1G", _size, "free memory of the host below which none is made ready"),
    Setting("review.file", "16M", _size, "largest file whose content the ledger keeps; larger ones by their hash"),
    Setting("review.ledger", "4G", _size, "most that the ledger of a sandbox may take on disk"),
    Setting("contexts.idle", "30m", _span, "how long a context of code may be idle before its memory is let go"),
    Setting("contexts.most", 128, _count, "contexts of code that one sandbox may have"),
    Setting("languages", {}, _languages, "languages that code can be run in, beside and over those that are built in"),
    Setting("listen.hosts", (), _words, "further host names by which the TCP listener may be called"),
    Setting("listen.origins", (), _words, "web origins that may call the API"),
    Setting("server_idle_exit", "10m", _span, "a server started in the background leaves after this long idle"),
)  # fmt: skip
BY_NAME = {setting.name: setting for setting in TABLE}


@dataclass(frozen=True)
class Resolved:
    value: Any
    source: Source
    where: str = ""


class Settings:
    """Every setting with its value and where it came from."""

    def __init__(self, values: Mapping[str, Resolved]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def resolved(self, name: str) -> Resolved:
        return self._values[name]

    def given(self, name: str) -> Any:
        """The value if somebody set it; None where only the built-in speaks."""
        resolved = self._values[name]
        return None if resolved.source == "built-in" else resolved.value

    @property
    def state_dir(self) -> Path:
        return Path(self["state_dir"])

    @property
    def limits(self) -> Limits:
        return Limits(**{f: self[f"limits.{f}"] for f in Limits.__struct_fields__})

    @property
    def lifecycle(self) -> Lifecycle:
        return Lifecycle(idle=self["lifecycle.idle"], life=self["lifecycle.life"], wake=True)


_BUILT_IN = {setting.name: Resolved(setting.default, "built-in") for setting in TABLE}
_BY_ENV = {setting.env: setting for setting in TABLE}


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    operator_file: Path | None = None,
) -> Settings:
    """All layers in one. `project` is the directory whose skerry.toml counts; None: no project's file is read."""
    environ = os.environ if environ is None else environ
    values = dict(_BUILT_IN)
    operator = operator_file or Path(environ.get("SKERRY_CONFIG", OPERATOR_FILE))
    values |= _from_file(operator, "operator's file", BY_NAME)
    if project is not None:
        allowed = {name: setting for name, setting in BY_NAME.items() if setting.project}
        values |= _from_file(project / PROJECT_FILE, "project's file", allowed)
    for name in _BY_ENV.keys() & set(environ):  # every client does this: few variables are looked at one by one
        if environ[name]:
            setting = _BY_ENV[name]
            values[setting.name] = Resolved(setting.parse(environ[name], name), "environment", name)
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = Resolved(BY_NAME[name].parse(value, name), "flag")
    return Settings(values)


def _from_file(path: Path, source: Source, allowed: Mapping[str, Setting]) -> dict[str, Resolved]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        # An operator's file that this user may not read says nothing to their client; the server is root and can.
        if os.geteuid() != 0:
            return {}
        raise InvalidRequest(f"{path}: {error.strerror}") from error
    try:
        tree = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    flat = dict(_flatten(tree, allowed))
    for name in flat:
        if name not in allowed:
            known = "it is the operator's to set" if name in BY_NAME else f"known: {', '.join(allowed)}"
            raise InvalidRequest(f"{path}: {name!r} can't be set here", hint=known)
    return {name: Resolved(allowed[name].parse(value, name), source, str(path)) for name, value in flat.items()}


def _flatten(tree: Mapping[str, Any], allowed: Mapping[str, Setting], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in allowed:
            rows += _flatten(value, allowed, f"{name}.")
        else:
            rows.append((name, value))
    return rows


def instance_of(state_dir: Path) -> str:
    """The short name under which a state directory's resources stand on the host."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(state_dir))).digest()
    return base64.b32encode(digest).decode().lower()[:10]


def run_dir(state_dir: Path) -> Path:
    return RUN_BASE / instance_of(state_dir)


def socket_path(state_dir: Path) -> Path:
    """Where the server of a state directory listens; short, because a socket's path is at most 107 bytes."""
    return run_dir(state_dir) / "api.sock"
