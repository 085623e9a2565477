"""Registry logins of this machine's user: docker's and podman's files, and the helpers that they name. They are read on
the client, sent with a pull, and stored nowhere."""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from skerry.errors import SkerryError
from skerry.types import Credentials, Reference
from skerry.types.references import HUB

_HELPER_TIMEOUT: Final = 30.0
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_BYTES: Final = 1 << 20
_TOKEN: Final = "<token>"  # noqa: S105 - the user name by which a helper says that it has a token


class _Login(msgspec.Struct, frozen=True):
    auth: str = ""
    identitytoken: str = ""
    username: str = ""
    password: str = ""


class _LoginFile(msgspec.Struct, frozen=True):
    auths: dict[str, _Login] = {}
    helpers: dict[str, str] = msgspec.field(default_factory=dict, name="credHelpers")
    store: str = msgspec.field(default="", name="credsStore")


class _HelperLogin(msgspec.Struct, frozen=True):
    username: str = msgspec.field(default="", name="Username")
    secret: str = msgspec.field(default="", name="Secret")


def find_credentials(reference: Reference, env: Mapping[str, str] | None = None) -> Credentials | None:
    """Return the first login for this registry in one of the files; None: pull anonymously."""
    for path in _files(os.environ if env is None else env):
        file = _read(path)
        if file is not None and (found := _from_file(file, reference)) is not None:
            return found
    return None


def _files(env: Mapping[str, str]) -> Iterator[Path]:
    if named := env.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
        return
    home = Path(env.get("HOME") or "~").expanduser()
    if runtime := env.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "containers/auth.json")
    yield Path(env.get("XDG_CONFIG_HOME") or home / ".config", "containers/auth.json")
    yield Path(env.get("DOCKER_CONFIG") or home / ".docker", "config.json")


def _read(path: Path) -> _LoginFile | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError:
        return None
    try:
        return msgspec.json.decode(data, type=_LoginFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SkerryError(f"{path} cannot be read: {error}", hint="log in again, or set REGISTRY_AUTH_FILE") from None


def _from_file(file: _LoginFile, reference: Reference) -> Credentials | None:
    keys = list(_keys(reference))
    for key in keys:
        if (helper := file.helpers.get(key)) is not None and (reply := _ask(helper, key)) is not None:
            return reply
    for key in keys:
        if file.store and (reply := _ask(file.store, key)) is not None:
            return reply
    for key in keys:
        if (login := file.auths.get(key)) is not None and (known := _decoded(login)) is not None:
            return known
    return None


def _keys(reference: Reference) -> Iterator[str]:
    """Return the possible keys of a registry, most specific first."""
    if reference.registry == HUB:
        yield f"https://index.{HUB}/v1/"
        yield f"index.{HUB}"
    path = f"{reference.registry}/{reference.repository}"
    while "/" in path:
        yield path
        path = path.rpartition("/")[0]
    for shape in ("{}", "https://{}", "https://{}/", "https://{}/v1/", "https://{}/v2/", "http://{}"):
        yield shape.format(reference.registry)


def _decoded(login: _Login) -> Credentials | None:
    if login.identitytoken:
        return Credentials(identity_token=login.identitytoken)
    if login.auth:
        try:
            user, _, password = base64.b64decode(login.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return Credentials(username=user, password=password.rstrip("\0"))
    return Credentials(username=login.username, password=login.password) if login.username else None


def _ask(helper: str, key: str) -> Credentials | None:
    """Run `docker-credential-<helper> get`, as docker does. A helper without a login fails."""
    if not _HELPER.fullmatch(helper):
        raise SkerryError(f"{helper[:64]!r} is not a valid name of a credential helper")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=key.encode(), capture_output=True, timeout=_HELPER_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise SkerryError(
            f"the login for {key} is stored by {program}, which is not installed on this machine", hint="use --username"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SkerryError(f"{program} failed: {error}", hint="use --username and --password-stdin") from None
    if done.returncode != 0 or len(done.stdout) > _MAX_BYTES:
        return None
    try:
        reply: Any = msgspec.json.decode(done.stdout, type=_HelperLogin)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if reply.username == _TOKEN:
        return Credentials(identity_token=reply.secret)
    return Credentials(username=reply.username, password=reply.secret) if reply.secret else None
