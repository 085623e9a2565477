"""Settings: one table, five layers.

    built-in < operator's file < project's skerry.toml < environment < flags and arguments

The server reads the operator's file and its environment, never a project's file: a project's settings reach it
in requests, where the operator's maxima apply. The environment name of a setting is SKERRY_ and the name in
capitals with underscores: `limits.memory` is SKERRY_LIMITS_MEMORY.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from skerry.errors import InvalidRequest
from skerry.types import (
    DEFAULT_LIMITS,
    NAME,
    AlertForm,
    EndpointForm,
    LanguageForm,
    Lifecycle,
    Limits,
    MountForm,
    SecretForm,
    WebhookForm,
    check_http_url,
    check_known_by,
    check_line,
    parse_lifetime,
    parse_ready,
    parse_size,
    parse_span,
)

RUN_BASE = Path("/run/skerry")
OPERATOR_FILE = Path("/etc/skerry/config.toml")
PROJECT_FILE = "skerry.toml"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
_ALERT = re.compile(r"[a-z][a-z0-9_]{0,29}")  # the second part of an event's type
F = TypeVar("F")
Source = Literal["built-in", "operator's file", "project's file", "environment", "flag"]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequest(f"{name}: {value!r} is not text")
    return value


def _line(value: Any, name: str) -> str:
    check_line(name, _text(value, name))
    return value  # type: ignore[no-any-return]


def _path(value: Any, name: str) -> str:
    """Return an absolute path: a server in the background has another working directory than its client."""
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


def _price(value: Any, name: str) -> float:
    try:
        price = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and 0 <= price <= 1e9):
        raise InvalidRequest(f"{name}: {value!r} is not a price", hint="a number, 0 or above")
    return price


def _currency(value: Any, name: str) -> str:
    if not isinstance(value, str) or not (1 <= len(value) <= 8 and value.isascii() and value.isalnum()):
        raise InvalidRequest(f"{name}: {value!r} is not a currency", hint="letters, like USD or EUR")
    return value


def _lifetime(value: Any, name: str) -> str | int | float:
    parse_lifetime(value, name)
    return value  # type: ignore[no-any-return]


def _install(value: Any, name: str) -> str:
    if value not in ("auto", "never"):
        raise InvalidRequest(f"{name}: {value!r} is not a choice", hint="auto, or never")
    return str(value)


def _sync(value: Any, name: str) -> str:
    if value not in ("all", "boundary"):
        raise InvalidRequest(f"{name}: {value!r} is not a way to sync", hint="all, or boundary")
    return str(value)


def _ready(value: Any, name: str) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidRequest(f"{name}: {value!r} is not a condition", hint="a port, a URL on localhost or a shell line")
    parse_ready(value)
    return value


def _lines(value: Any, name: str) -> tuple[str, ...]:
    """Return shell lines. A text, as from the environment, is one: a shell line may contain commas."""
    return _words([value] if isinstance(value, str) else value, name)


def _words(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"{name}: {value!r} is not a list of texts")
    return tuple(_text(word, name) for word in value)


def _origins(value: Any, name: str) -> tuple[str, ...]:
    """Return origins as browsers send them. `null` is the origin of every sandboxed frame and file."""
    words = _words(value, name)
    for word in words:
        if not _ORIGIN.fullmatch(word):
            raise InvalidRequest(f"{name}: {word[:80]!r} is not an origin", hint="like https://app.example.com")
    return words


def _networks(value: Any, name: str) -> tuple[str, ...]:
    """Return networks in their standard form. All addresses are none: each client could choose its own address then."""
    import ipaddress  # late: of a list that most do not set

    found = []
    for word in _words(value, name):
        try:
            network = ipaddress.ip_network(word)
        except ValueError:
            network = None
        if network is None or not network.prefixlen or "%" in word:
            raise InvalidRequest(
                f"{name}: {word[:80]!r} is not an address or a network", hint="like 10.0.0.7, 10.1.0.0/24 or ::1"
            )
        found.append(str(network))
    return tuple(found)


def _wires(value: Any, name: str) -> tuple[str, ...]:
    words = _words(value, name)
    for word in words:
        if word != "e2b":
            raise InvalidRequest(f"{name}: {word[:40]!r} is not a protocol", hint='known: "e2b"')
    return words


def _pairs(value: Any, name: str) -> dict[str, str]:
    if isinstance(value, str):
        value = dict(pair.partition("=")[::2] for pair in value.split(",") if pair)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: {value!r} is not a table of texts")
    return {_text(key, name): _text(item, f"{name}.{key}") for key, item in value.items()}


def _secrets(value: Any, name: str) -> dict[str, dict[str, Any]]:
    """Return the destinations of secrets by name, never the sources of their values: a project's file may come from an
    untrusted author, who could send any file or variable of the user anywhere."""
    if not isinstance(value, dict) or not all(isinstance(form, dict) for form in value.values()):
        raise InvalidRequest(f"{name}: not a table of secrets", hint='[secrets.TOKEN] hosts = ["api.example.com"]')
    forms = {}
    for key, form in value.items():
        if stray := form.keys() - {"hosts", "header", "query", "basic"}:
            raise InvalidRequest(
                f"{name}.{key}: {sorted(stray)[0]!r} cannot be set here",
                hint=f"pass the value when creating the sandbox: --secret {key}",
            )
        texts = {how: _text(text, f"{name}.{key}.{how}") for how, text in form.items() if how != "hosts"}
        hosts = _words(form.get("hosts", ()), f"{name}.{key}.hosts")
        SecretForm(name=key, hosts=hosts, **texts)
        forms[key] = {"hosts": hosts, **texts}
    return forms


def _languages(value: Any, name: str) -> dict[str, LanguageForm]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: not a table of languages", hint='[languages.lua] run = ["lua", "{file}"]')
    for key in value:
        check_known_by(key, name)
    return {key: _form(form, LanguageForm, f"{name}.{key}") for key, form in value.items()}


def _webhooks(value: Any, name: str) -> dict[str, WebhookForm]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: not a table of webhooks", hint='[webhooks.ci] url = "https://…"')
    for key in value:
        if not NAME.fullmatch(key) or "." in key:
            raise InvalidRequest(f"{name}: {key[:40]!r} can't be a webhook's name", hint="letters, digits, '-', '_'")
    return {key: _form(form, WebhookForm, f"{name}.{key}") for key, form in value.items()}


def _alerts(value: Any, name: str) -> dict[str, AlertForm]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: not a table of alert rules", hint='[alerts.denials] events = ["network.denied"]')
    for key in value:
        if not _ALERT.fullmatch(key):
            raise InvalidRequest(
                f"{name}: {key[:40]!r} can't be an alert's name", hint="1 to 30 small letters, digits and '_'"
            )
    return {key: _form(form, AlertForm, f"{name}.{key}") for key, form in value.items()}


def _mounts(value: Any, name: str) -> dict[str, MountForm]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: not a table of directories", hint='[mounts.datasets] path = "/srv/datasets"')
    for key in value:
        if not NAME.fullmatch(key):
            raise InvalidRequest(f"{name}: {key[:40]!r} can't be a directory's name", hint="letters, digits, '-', '_'")
    return {key: _form(form, MountForm, f"{name}.{key}") for key, form in value.items()}


def _buckets(value: Any, name: str) -> dict[str, EndpointForm]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: not a table of servers", hint='[buckets.minio] url = "https://…"')
    for key in value:
        if not NAME.fullmatch(key):
            raise InvalidRequest(f"{name}: {key[:40]!r} can't be a server's name", hint="letters, digits, '-', '_'")
    return {key: _form(form, EndpointForm, f"{name}.{key}") for key, form in value.items()}


def _form(value: Any, kind: type[F], name: str) -> F:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        cause = problem.__cause__
        what, hint = (cause.message, cause.hint) if isinstance(cause, InvalidRequest) else (str(problem), None)
        raise InvalidRequest(f"{name}: {what}", hint=hint) from None


def _sinks(value: Any, name: str) -> tuple[str, ...]:
    """Return absolute paths and URLs."""
    sinks = []
    for word in _words(value, name):
        if "://" in word:
            check_http_url(name, word)
        sinks.append(word if "://" in word else _path(word, name))
    return tuple(sinks)


@dataclass(frozen=True)
class Setting:
    """A row of the table. `project`: a project's skerry.toml may set it too."""

    name: str
    default: Any
    parse: Callable[[Any, str], Any]
    help: str
    project: bool = False

    @property
    def env(self) -> str:
        return "SKERRY_" + self.name.upper().replace(".", "_")


TABLE: tuple[Setting, ...] = (
    Setting("state_dir", "/var/lib/skerry", _path, "directory of the server's database, layers and sandboxes"),
    Setting("server", None, _text, "server address: unix:///path or http://host:port; none: this host's"),
    Setting("token", None, _text, "token for a server on TCP"),
    Setting("image", "base", _text, "image of a new sandbox; ./Dockerfile: of a project, built first", project=True),
    Setting("setup", (), _words, "commands that prepare a project's sandbox", project=True),
    Setting("setup_files", (), _words, "files of the project that setup needs: paths and patterns", project=True),
    Setting("setup_max_age", "7d", _span, "maximum age of a prepared project before setup runs again", project=True),
    Setting("on_start", (), _lines, "shell lines started in the background at each start of a sandbox", project=True),
    Setting("ready", None, _ready, "port, URL or shell line that a start waits for", project=True),
    Setting("ready_timeout", "60s", _span, "maximum time until a sandbox is ready", project=True),
    Setting("env", {}, _pairs, "variables of a new sandbox", project=True),
    Setting("limits.cpus", DEFAULT_LIMITS.cpus, _cpus, "CPUs of a sandbox", project=True),
    Setting("limits.memory", DEFAULT_LIMITS.memory, _size, "memory of a sandbox", project=True),
    Setting("limits.disk", DEFAULT_LIMITS.disk, _size, "disk that a sandbox may fill", project=True),
    Setting("limits.pids", DEFAULT_LIMITS.pids, _count, "processes and threads of a sandbox", project=True),
    Setting("limits.open_files", DEFAULT_LIMITS.open_files, _count, "open files of a process", project=True),
    Setting("lifecycle.idle_timeout", "15m", _lifetime, "maximum idle time of a sandbox, or never", project=True),
    Setting("lifecycle.max_lifetime", "24h", _lifetime, "maximum lifetime of a sandbox, or never", project=True),
    Setting("output.max_per_process", "64M", _size, "output kept per process; beyond it, the oldest is dropped"),
    Setting("output.max_per_sandbox", "512M", _size, "output kept per sandbox; at most half of its disk"),
    Setting("git.name", None, _line, "author name of commits made inside; none: the image's", project=True),
    Setting("git.email", None, _line, "author email of commits made inside; none: the image's", project=True),
    Setting("network.allow", (), _words, "destinations that a new sandbox may reach", project=True),
    Setting("network.deny", (), _words, "denied destinations; the operator's always apply", project=True),
    Setting("network.presets", (), _words, "presets: pip, npm, apt, git, cargo, go, maven, gem", project=True),
    Setting("network.handlers", (), _lines, "rules that change, redirect or answer HTTP requests", project=True),
    Setting("network.mirror", (), _words, "hosts whose exchanges are written to the trace", project=True),
    Setting("secrets", {}, _secrets, "destinations of secrets by name; --secret NAME passes a value", project=True),
    Setting("network.approval_webhook", None, _text, "URL that approval requests are posted to (on_unknown=\"ask\")"),
    Setting("network.approval_timeout", "30s", _span, "maximum time for an approval; then the request is denied"),
    Setting("max.network", ("*",), _words, "rules that bound every policy; they alone open addresses of this machine"),
    Setting("max.bandwidth", None, _size, "maximum bytes per second that a sandbox may send and receive"),
    Setting("max.network_bytes", None, _size, "maximum total bytes that a sandbox may send and receive"),
    Setting("max.connections", 1024, _count, "maximum open connections of a sandbox"),
    Setting("preview.listen", "127.0.0.1:7470", _text, "preview listener's address; port 0: any; none: no previews"),
    Setting("preview.domain", "localhost", _text, "parent domain of preview host names"),
    Setting("preview.url", None, _text, "public URL of the preview listener behind a proxy: https://*.example.com"),
    Setting("max.cpus", None, _cpus, "maximum CPUs in a request; none: those of the host"),
    Setting("max.memory", None, _size, "maximum memory in a request; none: that of the host"),
    Setting("max.disk", None, _size, "maximum disk in a request; none: the storage of the host"),
    Setting("max.pids", 32768, _count, "maximum processes in a request"),
    Setting("max.open_files", 1 << 20, _count, "maximum open files in a request"),
    Setting("max.lifetime", None, _span, "maximum lifetime in a request"),
    Setting("max.timeout", None, _span, "maximum run time of a command, code, background process or terminal"),
    Setting("max.sandboxes", 1000, _count, "maximum sandboxes on this host"),
    Setting("max.sandboxes_per_owner", 500, _count, "maximum sandboxes per owner"),
    Setting("runtime", None, _text, "crun or runc; none: the better one that works here"),
    Setting("storage.driver", None, _text, "btrfs, loop or plain; none: the best one that works here"),
    Setting("storage.pool_size", "64G", _size, "maximum disk space of all sandboxes and snapshots"),
    Setting("storage.min_free_space", "1G", _size, "free space to keep on the host's disk"),
    Setting("storage.preallocate", "1G", _size, "disk space that the storage pool allocates ahead of writes"),
    Setting("storage.keep_quarantine", "30d", _span, "time to keep data without a record before it is removed"),
    Setting("archive.stall_timeout", "1m", _span, "maximum time without progress of an archive transfer"),
    Setting("registry.stall_timeout", "30s", _span, "maximum time without data from a registry before a pull fails"),
    Setting("snapshots.max_auto", 100, _count, "newest snapshots before commands (auto_snapshot) kept per sandbox"),
    Setting("snapshots.max_freeze", "5s", _span, "longest freeze of a sandbox for a snapshot; then the snapshot fails"),
    Setting("snapshots.per_owner", 1000, _count, "maximum snapshots per owner"),
    Setting("volumes", {}, _pairs, "volumes of a new sandbox: a path inside and the volume's name", project=True),
    Setting("volumes.size", "10G", _size, "size of a new volume"),
    Setting("volumes.per_owner", 100, _count, "maximum volumes per owner"),
    Setting("max.volume_size", None, _size, "maximum size of a volume; none: the storage of the host"),
    Setting("mounts", {}, _mounts, "host directories that sandboxes may mount, by name"),
    Setting("buckets", {}, _buckets, "servers of object storage with buckets for sandboxes, by name"),
    Setting("pool.per_image", 2, _number, "ready sandboxes kept for each image in the pool; 0: none"),
    Setting("pool.images", (), _words, "images that always have ready sandboxes; others have them while in use"),
    Setting("pool.max_total", 8, _number, "maximum ready sandboxes of all images"),
    Setting("pool.min_free_memory", "1G", _size, "free memory of the host below which no sandbox is prepared"),
    Setting("review.exclude", (), _words, "globs of files that a review keeps apart, like caches", project=True),
    Setting("review.max_file_size", "16M", _size, "largest file stored in the ledger; of larger ones, the hash"),
    Setting("review.max_ledger_size", "4G", _size, "maximum size of a sandbox's ledger"),
    Setting("review.keep_deleted", "7d", _span, "time to keep the review of a deleted sandbox for `skerry undelete`"),
    Setting("review.max_deleted_size", "10G", _size, "maximum size of all reviews of deleted sandboxes"),
    Setting("contexts.idle_timeout", "30m", _span, "idle time after which the memory of a context is freed"),
    Setting("contexts.max_per_sandbox", 128, _count, "maximum contexts per sandbox"),
    Setting("languages", {}, _languages, "languages to add to the built-in ones, or to change"),
    Setting("languages.allow", None, _words, "languages that code may be run in; none: all. Commands may run anything"),
    Setting(
        "languages.install", "auto", _install,
        "auto: code in a language that `base` lacks installs its tools once, into an image for all users; or never",
    ),
    Setting("trace.keep", "7d", _span, "time to keep the trace of a deleted sandbox"),
    Setting("trace.max_size", "256M", _size, "maximum size of a sandbox's trace; steps beyond it are left out"),
    Setting("trace.max_deleted_size", "4G", _size, "maximum size of all traces of deleted sandboxes"),
    Setting("audit.key_dir", "/etc/skerry/audit", _path, "directory of the audit log's key, outside of state_dir"),
    Setting("audit.keep", "365d", _span, "time to keep audit records"),
    Setting("audit.sync", "boundary", _sync, "actions that wait for the disk: boundary (not those inside), or all"),
    Setting("audit.checkpoints", (), _sinks, "files and URLs that each checkpoint of the audit log is sent to"),
    Setting("webhooks", {}, _webhooks, "URLs that events are posted to, by name"),
    Setting("alerts", {}, _alerts, "rules that raise an event when other events are frequent, by name"),
    Setting("usage.keep", "400d", _span, "time to keep the usage of each day, also of deleted sandboxes"),
    Setting("prices.cpu_hour", None, _price, "price of an hour of one CPU; none: no cost"),
    Setting("prices.memory_gb_hour", None, _price, "price of a GB (2^30 bytes) of memory for an hour"),
    Setting("prices.disk_gb_month", None, _price, "price of a GB of disk for a month of 30 days"),
    Setting("prices.network_gb", None, _price, "price of a GB sent or received"),
    Setting("prices.currency", "USD", _currency, "currency of the prices"),
    Setting("server.listen", None, _text, "TCP address of the API, host:port; callers need a token. None: no TCP"),
    Setting("server.allowed_hosts", (), _words, "further Host names that the TCP listener accepts"),
    Setting("server.allowed_origins", (), _origins, "origins of web pages that may use the API, with a token"),
    Setting(
        "server.trusted_proxies", (), _networks,
        "proxies, as addresses or networks: their X-Forwarded-For has the client for the audit log",
    ),
    Setting("server.wire", (), _wires, "protocols of other products that the API's listeners answer: e2b"),
    Setting("server.wire_domain", None, _text, "parent domain of E2B's host names, PORT-SANDBOX.DOMAIN. None: headers"),
    Setting("server.wire_registries", (), _words, "registries that E2B's template builds of any token may pull from"),
    Setting("server.max_connections", 4096, _count, "maximum open connections of a listener"),
    Setting("server.max_connections_per_address", 1024, _count, "maximum open connections of a client's address"),
    Setting("server.request_timeout", "30s", _span, "maximum time for a request's head, and between parts of its body"),
    Setting("server.idle_connection_timeout", "75s", _span, "idle time after which a connection is closed"),
    Setting("server.log_size", "10M", _size, "size at which a log file is renamed to its name with .1"),
    Setting("server.log_age", "30d", _span, "age at which a log file is renamed to its name with .1"),
    Setting("server.idle_exit", "10m", _span, "idle time after which a background server exits"),
)  # fmt: skip
BY_NAME = {setting.name: setting for setting in TABLE}


@dataclass(frozen=True)
class Resolved:
    value: Any
    source: Source
    where: str = ""


class Settings:
    """Every setting with its value and its source."""

    def __init__(self, values: Mapping[str, Resolved]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def resolved(self, name: str) -> Resolved:
        return self._values[name]

    def given(self, name: str) -> Any:
        """Return the value if it was set; None for a built-in default."""
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
        return Lifecycle(
            idle_timeout=self["lifecycle.idle_timeout"], max_lifetime=self["lifecycle.max_lifetime"], auto_resume=True
        )


@dataclass(frozen=True)
class ProjectFile:
    """A project's skerry.toml as it was read: everything that is shown, trusted and used comes from these bytes."""

    path: Path
    content: bytes


_BUILT_IN = {setting.name: Resolved(setting.default, "built-in") for setting in TABLE}
_BY_ENV = {setting.env: setting for setting in TABLE}


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    project: ProjectFile | None = None,
    operator_file: Path | None = None,
) -> Settings:
    """Merge all layers. Without `project`, no project's file is used: never search for one here, because such a file
    may need the user's trust first (`cli/project.py`)."""
    environ = os.environ if environ is None else environ
    values = dict(_BUILT_IN)
    operator = operator_file or Path(environ.get("SKERRY_CONFIG", OPERATOR_FILE))
    values |= _from_operator(operator)
    if project is not None:
        allowed = {name: setting for name, setting in BY_NAME.items() if setting.project}
        values |= _parsed(project.path, project.content, "project's file", allowed)
    for name in _BY_ENV.keys() & set(environ):  # every client does this, so it visits only known variables
        if environ[name]:
            setting = _BY_ENV[name]
            values[setting.name] = Resolved(setting.parse(environ[name], name), "environment", name)
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = Resolved(BY_NAME[name].parse(value, name), "flag")
    return Settings(values)


def _from_operator(path: Path) -> dict[str, Resolved]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        # A client ignores an operator's file that its user may not read; the server is root and reads it.
        if os.geteuid() != 0:
            return {}
        raise InvalidRequest(f"{path}: {error.strerror}") from error
    return _parsed(path, content, "operator's file", BY_NAME)


def _parsed(path: Path, content: bytes, source: Source, allowed: Mapping[str, Setting]) -> dict[str, Resolved]:
    try:
        tree = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    flat = dict(_flatten(tree, allowed))
    for name in flat:
        if name not in allowed:
            known = "only the operator can set it" if name in BY_NAME else f"known: {', '.join(allowed)}"
            raise InvalidRequest(f"{path}: {name!r} cannot be set here", hint=known)
    return {name: Resolved(allowed[name].parse(value, name), source, str(path)) for name, value in flat.items()}


def _flatten(tree: Mapping[str, Any], allowed: Mapping[str, Setting], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if name == "server.address":  # a file cannot hold both `server = …` and the table [server]
            name = "server"
        if isinstance(value, dict) and name in allowed and name != "server":
            settings = {key: one for key, one in value.items() if f"{name}.{key}" in allowed}  # [languages] allow = …
            rows += _flatten(settings, allowed, f"{name}.")
            value = {key: one for key, one in value.items() if key not in settings}
        if isinstance(value, dict) and (name not in allowed or name == "server"):
            rows += _flatten(value, allowed, f"{name}.")
        else:
            rows.append((name, value))
    return rows


def instance_of(state_dir: Path) -> str:
    """Return the short name of a state directory's resources on the host."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(state_dir))).digest()
    return base64.b32encode(digest).decode().lower()[:10]


def run_dir(state_dir: Path) -> Path:
    return RUN_BASE / instance_of(state_dir)


def socket_path(state_dir: Path) -> Path:
    """Return the socket path of a state directory's server; short, because a socket's path has at most 107 bytes."""
    return run_dir(state_dir) / "api.sock"
