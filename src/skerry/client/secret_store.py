"""The user's store of secret values by service, on this machine, and the table of known services.

A value is in a file that only its owner can read, or in the system's keyring if the package `keyring` is installed and
has a working backend. The file then has the service without its value. The file is always complete: it is replaced as a
whole, and concurrent changes wait for each other. A file or directory that another user could have read or written is
not used.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from skerry.client.host.posix import require_posix
from skerry.client.host.private_files import check_directory, check_private, user_directory
from skerry.errors import InvalidRequest, NotFound, PermissionDenied, SkerryError
from skerry.types import SecretValue

MAX_SIZE: Final = 8 << 20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_KEYRING: Final = "skerry"  # the name of the application in the keyring
Place = Literal["file", "keyring"]


@dataclass(frozen=True)
class Service:
    """A known service. `variable`: the usual one in programs. `hosts` receive the value. `header`: set by its
    clients; for information, because the placeholder is replaced at any place."""

    variable: str
    hosts: tuple[str, ...]
    header: str = "Authorization: Bearer {}"


SERVICES: Final[Mapping[str, Service]] = {
    "anthropic": Service("ANTHROPIC_API_KEY", ("api.anthropic.com",), "x-api-key: {}"),
    "azure-openai": Service("AZURE_OPENAI_API_KEY", ("*.openai.azure.com", "*.services.ai.azure.com"), "api-key: {}"),
    "cerebras": Service("CEREBRAS_API_KEY", ("api.cerebras.ai",)),
    "claude-code": Service("CLAUDE_CODE_OAUTH_TOKEN", ("api.anthropic.com",)),
    "claude-environment": Service("ANTHROPIC_ENVIRONMENT_KEY", ("api.anthropic.com",)),
    "cohere": Service("COHERE_API_KEY", ("api.cohere.com",)),
    "dashscope": Service("DASHSCOPE_API_KEY", ("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com")),
    "deepseek": Service("DEEPSEEK_API_KEY", ("api.deepseek.com",)),
    "fireworks": Service("FIREWORKS_API_KEY", ("api.fireworks.ai",)),
    "gemini": Service("GEMINI_API_KEY", ("generativelanguage.googleapis.com",), "x-goog-api-key: {}"),
    "github": Service("GITHUB_TOKEN", ("api.github.com", "github.com", "uploads.github.com")),
    "github-copilot": Service("COPILOT_GITHUB_TOKEN", ("api.github.com", "*.githubcopilot.com")),
    "gitlab": Service("GITLAB_TOKEN", ("gitlab.com",), "PRIVATE-TOKEN: {}"),
    "groq": Service("GROQ_API_KEY", ("api.groq.com",)),
    "huggingface": Service("HF_TOKEN", ("huggingface.co", "router.huggingface.co")),
    "mistral": Service("MISTRAL_API_KEY", ("api.mistral.ai", "codestral.mistral.ai")),
    "moonshot": Service("MOONSHOT_API_KEY", ("api.moonshot.ai", "api.moonshot.cn")),
    "openai": Service("OPENAI_API_KEY", ("api.openai.com",)),
    "openrouter": Service("OPENROUTER_API_KEY", ("openrouter.ai",)),
    "together": Service("TOGETHER_API_KEY", ("api.together.xyz", "api.together.ai")),
    "xai": Service("XAI_API_KEY", ("api.x.ai",)),
    "zai": Service("ZAI_API_KEY", ("api.z.ai",)),
}


class StoredSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service of the store. `value`: None if the keyring has it. `repr` hides it. `sign_in`: the value is a sign-in
    of an agent (skerry.client.agents.sign_in). Its access token is valid until `expires_at`."""

    hosts: tuple[str, ...]
    place: Place
    set_at: float
    value: str | None = None
    sign_in: bool = False
    expires_at: float | None = None

    def __repr__(self) -> str:
        return f"StoredSecret(hosts={self.hosts!r}, place={self.place!r})"


@dataclass(frozen=True)
class NewSignIn:
    """A sign-in to store: JSON, in one line."""

    hosts: tuple[str, ...]
    value: str
    expires_at: float | None

    def __repr__(self) -> str:
        return f"NewSignIn(hosts={self.hosts!r})"


class _StoreFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    services: dict[str, StoredSecret] = {}


class UserSecrets:
    """The store in `directory`; by default `skerry` in the user's directory of settings."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or user_directory()
        self._path = self._directory / "secrets.json"

    def services(self) -> dict[str, StoredSecret]:
        """Return all services, with the values that are in the file."""
        return dict(sorted(self._read().services.items()))

    def get(self, service: str) -> StoredSecret:
        check_service(service)
        found = self._read().services.get(service)
        if found is None:
            raise NotFound(f"the secret of {service} is not in the store", hint=f"skerry secret set {service}")
        return found

    def hosts(self, service: str) -> tuple[str, ...]:
        """Return the hosts that a service was stored with, otherwise those of the known service."""
        check_service(service)
        found = self._read().services.get(service)
        return known_hosts(service) if found is None else found.hosts

    def value(self, service: str) -> str:
        """Return the value of a service. Blocks: the keyring may ask the user."""
        found = self.get(service)
        if found.sign_in:
            raise InvalidRequest(
                f"secrets: {service} is a sign-in, and no value for --secret", hint="skerry agent uses it by itself"
            )
        return self._value(service, found)

    def sign_in(self, service: str) -> str | None:
        """Return the stored sign-in of a service as JSON; None without one."""
        found = self._read().services.get(service)
        return self._value(service, found) if found is not None and found.sign_in else None

    def _value(self, service: str, found: StoredSecret) -> str:
        if found.place == "file":
            return found.value or ""
        with _keyring_errors(service):
            value = _load_keyring().get_password(_KEYRING, service)
        if not isinstance(value, str):
            raise NotFound(f"the keyring has no value for {service}", hint=f"skerry secret set {service}")
        return value

    def set(self, service: str, value: str, hosts: tuple[str, ...] = (), place: Place | None = None) -> StoredSecret:
        """Store a value and replace an earlier one. `hosts`: by default the earlier or known ones. `place`: by default
        the keyring if there is one, otherwise the file."""
        check_service(service)
        place = place or ("keyring" if has_keyring() else "file")
        with self._changing() as file:
            hosts = hosts or (file.services[service].hosts if service in file.services else known_hosts(service))
            SecretValue(name="VALUE", hosts=hosts, value=value)  # raises if a sandbox would not take it
            stored = StoredSecret(hosts=hosts, place=place, set_at=time.time())
            self._put(file, service, stored, value)
        return stored

    def change_sign_in(self, service: str, change: Callable[[str | None], NewSignIn | None]) -> None:
        """Replace the sign-in of a service by what `change` returns for the present one; None: keep it. Other programs
        wait, so that a refresh token is used once."""
        check_service(service)
        place: Place = "keyring" if has_keyring() else "file"
        with self._changing() as file:
            found = file.services.get(service)
            now = self._value(service, found) if found is not None and found.sign_in else None
            new = change(now)
            if new is None:
                return
            SecretValue(name="VALUE", hosts=new.hosts, value=new.value)
            place = found.place if found is not None and found.sign_in else place
            stored = StoredSecret(
                hosts=new.hosts, place=place, set_at=time.time(), sign_in=True, expires_at=new.expires_at
            )
            self._put(file, service, stored, new.value)

    def _put(self, file: _StoreFile, service: str, stored: StoredSecret, value: str) -> None:
        earlier = file.services.get(service)
        if stored.place == "keyring":
            with _keyring_errors(service):
                _load_keyring().set_password(_KEYRING, service, value)
        else:
            stored = msgspec.structs.replace(stored, value=value)
        self._write(msgspec.structs.replace(file, services={**file.services, service: stored}))
        if stored.place == "file" and earlier is not None and earlier.place == "keyring":
            _forget(service)

    def remove(self, service: str) -> None:
        check_service(service)
        with self._changing() as file:
            if service not in file.services:
                raise NotFound(f"the secret of {service} is not in the store", hint="skerry secret ls")
            if file.services[service].place == "keyring":
                _forget(service)
            self._write(
                msgspec.structs.replace(file, services={n: s for n, s in file.services.items() if n != service})
            )

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_StoreFile]:
        """Yield the content; other programs that change it wait until the end."""
        require_posix("the store of secrets")
        import fcntl  # Windows lacks it

        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(self._directory)
        fd = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(fd)

    def _read(self) -> _StoreFile:
        require_posix("the store of secrets")
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return _StoreFile()
        except OSError as error:
            raise PermissionDenied(f"{self._path}: {error.strerror}") from None
        with open(fd, "rb") as source:
            check_directory(self._directory)
            check_private(self._path, os.fstat(fd), "secrets")
            text = source.read(MAX_SIZE + 1)
        try:
            if len(text) > MAX_SIZE:
                raise msgspec.DecodeError
            return msgspec.json.decode(text, type=_StoreFile)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # its words may hold some of the text
            raise InvalidRequest(
                f"{self._path} is damaged, or of another version of Skerry",
                hint="move it away and set its secrets again",
            ) from None

    def _write(self, file: _StoreFile) -> None:
        draft = f"{self._path}.{secrets.token_hex(6)}.new"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(fd, "wb") as target:
                os.fchmod(fd, 0o600)
                target.write(msgspec.json.encode(file))
                target.flush()
                os.fsync(fd)
            os.rename(draft, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        self._sync_and_sweep()

    def _sync_and_sweep(self) -> None:
        """Make the rename durable, and remove files of programs that were killed while they wrote. The lock is held."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
            for name in os.listdir(directory):
                if re.fullmatch(re.escape(self._path.name) + r"\.[0-9a-f]{12}\.new", name):
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)


def check_service(service: str) -> None:
    """Raise for a name that is not one. The error does not quote it: it may be a value by mistake."""
    if not _NAME.fullmatch(service):
        raise InvalidRequest(
            "secrets: not the name of a service",
            hint="at most 40 characters of a-z, 0-9, '.', '_', '-', like anthropic",
        )


def known_hosts(service: str) -> tuple[str, ...]:
    if service not in SERVICES:
        raise InvalidRequest(  # not quoted: the name may be a value by mistake
            "secrets: the service is not known, and no host was given",
            hint="name its hosts: skerry secret set SERVICE --host api.example.com. "
            "`skerry secret ls --known` lists the known services",
        )
    return SERVICES[service].hosts


def has_keyring() -> bool:
    """Return whether `keyring` is installed and has a backend that keeps values."""
    try:
        backend = _load_keyring().get_keyring()
        return type(backend).__module__ not in ("keyring.backends.fail", "keyring.backends.null")
    except Exception:  # a backend may raise anything, for example without a session bus
        return False


def _load_keyring() -> Any:
    try:
        import keyring
    except ImportError:
        raise InvalidRequest(
            "secrets: the value is in the system's keyring, and the package `keyring` is not installed",
            hint="pip install 'skerry[keyring]', or store the value again with --in file",
        ) from None
    return keyring


@contextlib.contextmanager
def _keyring_errors(service: str) -> Iterator[None]:
    try:
        yield
    except SkerryError:
        raise
    except Exception as error:  # backends have their own errors; their words may quote a value
        raise InvalidRequest(
            f"secrets: the keyring failed for {service} ({type(error).__name__})",
            hint="unlock it, or use --in file",
        ) from None


def _forget(service: str) -> None:
    """Remove a value from the keyring; ignore one that is not there any more."""
    with _keyring_errors(service):
        keyring = _load_keyring()
        if keyring.get_password(_KEYRING, service) is not None:
            keyring.delete_password(_KEYRING, service)
