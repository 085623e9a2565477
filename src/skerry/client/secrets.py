"""`Secret`: the source of a secret's value on this machine, and its destinations. The value is read when a sandbox is
created; only the server sees it, and the sandbox contains a placeholder."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO, Final

from skerry.client.secret_store import UserSecrets
from skerry.errors import InvalidRequest
from skerry.types import SecretForm, SecretValue
from skerry.types.network import MAX_SECRET

COMMAND_TIMEOUT: Final = 30.0
_LIKE: Final = 'like Secret.from_env("TOKEN", hosts=["api.example.com"])'


class Secret:
    """A variable inside with a placeholder; requests to `hosts`, over TLS, get the value.

    `header`, like "Authorization: Bearer {}", is set on each request; so are `query`, the name of a parameter, and
    `basic`, the user of a basic login. Without these, the placeholder is replaced wherever it occurs in a header, a
    query or a login. Without `value`, it is read from this environment's variable of the same name.
    """

    __slots__ = ("_form", "_read", "_source")

    def __init__(
        self,
        name: str,
        *,
        hosts: Sequence[str],
        header: str | None = None,
        value: str | None = None,
        query: str | None = None,
        basic: str | None = None,
    ) -> None:
        if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
            raise InvalidRequest(f"secrets: the hosts of {name} are not a list of strings", hint=_LIKE)
        self._form = SecretForm(name=name, hosts=tuple(hosts), header=header, query=query, basic=basic)
        self._source, self._read = f"the environment's {name}", _environment(name)
        if value is not None:
            self._source, self._read = "a value", lambda: value

    @classmethod
    def from_env(
        cls,
        name: str,
        variable: str | None = None,
        *,
        hosts: Sequence[str],
        header: str | None = None,
        query: str | None = None,
        basic: str | None = None,
    ) -> Secret:
        """Read the value from an environment variable of this process; by default of the same name."""
        secret = cls(name, hosts=hosts, header=header, query=query, basic=basic)
        return secret._from(f"the environment's {variable or name}", _environment(variable or name))

    @classmethod
    def from_file(
        cls,
        name: str,
        path: str | os.PathLike[str],
        *,
        hosts: Sequence[str],
        header: str | None = None,
        query: str | None = None,
        basic: str | None = None,
    ) -> Secret:
        """Read the value from a file of this machine, without its last line end."""
        secret = cls(name, hosts=hosts, header=header, query=query, basic=basic)
        return secret._from(f"the file {os.fspath(path)}", lambda: _file(name, os.fspath(path)))

    @classmethod
    def from_command(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        hosts: Sequence[str],
        header: str | None = None,
        query: str | None = None,
        basic: str | None = None,
        timeout: float = COMMAND_TIMEOUT,
    ) -> Secret:
        """Read the value from the output of a program of this machine, without its last line end. The program runs,
        without a shell, each time a sandbox is created."""
        if isinstance(argv, str) or not argv:
            raise InvalidRequest(f"secrets: the command of {name} is not a list", hint='like ["pass", "show", "token"]')
        words = [os.fspath(word) for word in argv]
        secret = cls(name, hosts=hosts, header=header, query=query, basic=basic)
        return secret._from(f"the command {words[0]}", lambda: read_command(name, words, timeout))

    @classmethod
    def from_store(
        cls,
        name: str,
        service: str,
        *,
        hosts: Sequence[str] = (),
        header: str | None = None,
        query: str | None = None,
        basic: str | None = None,
    ) -> Secret:
        """Read the value from the user's store on this machine, which `skerry secret set SERVICE` fills. `hosts`: by
        default those of the service."""
        store = UserSecrets()
        secret = cls(name, hosts=hosts or store.hosts(service), header=header, query=query, basic=basic)
        return secret._from(f"the store's {service}", lambda: store.value(service))

    def _from(self, source: str, read: Callable[[], str]) -> Secret:
        self._source, self._read = source, read
        return self

    @property
    def name(self) -> str:
        return self._form.name

    def read(self) -> SecretValue:
        """Return the secret with its value for the request. Blocks: it may read a file or run a command."""
        form = self._form
        return SecretValue(
            name=form.name, hosts=form.hosts, header=form.header, query=form.query, basic=form.basic, value=self._read()
        )

    def __repr__(self) -> str:
        return f"Secret({self._form.name!r}, hosts={list(self._form.hosts)!r}, from {self._source})"


def _environment(variable: str) -> Callable[[], str]:
    return lambda: read_variable(variable)


def read_variable(variable: str) -> str:
    if not os.environ.get(variable):
        raise InvalidRequest(
            f"secrets: {variable} is {'empty' if variable in os.environ else 'not set here'}",
            hint=f"export {variable}, or read the value from a file: Secret.from_file, --secret-file",
        )
    return os.environ[variable]


def _file(name: str, path: str) -> str:
    try:
        with open(os.path.expanduser(path), "rb", buffering=0) as file:
            return text_of(name, file.read(MAX_SECRET + 3) or b"")
    except OSError as error:
        raise InvalidRequest(f"secrets: {name}: {path}: {error.strerror}") from None


def read_command(name: str, argv: list[str], timeout: float = COMMAND_TIMEOUT) -> str:
    """Return the output of a program, without its last line end."""
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise InvalidRequest(f"secrets: {name}: {argv[0]} cannot be run: {error.strerror}") from None
    try:
        data = _output(name, argv[0], child.stdout, time.monotonic() + timeout)
        code = child.wait(timeout)
    except subprocess.TimeoutExpired:
        raise _late(name, argv[0]) from None
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if code != 0:
        raise InvalidRequest(f"secrets: {name}: {argv[0]} ended with {code}")
    return text_of(name, data)


def _output(name: str, program: str, pipe: IO[bytes] | None, end: float) -> bytes:
    """Return the output, up to the maximum size of a secret."""
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        if pipe is None:
            return b""
        selector.register(pipe, selectors.EVENT_READ)
        while len(data) <= MAX_SECRET + 2:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise _late(name, program)
            piece = os.read(pipe.fileno(), MAX_SECRET)
            if not piece:
                return bytes(data)
            data += piece
    raise InvalidRequest(f"secrets: {name}: {program} printed more than the maximum size of a secret")


def _late(name: str, program: str) -> InvalidRequest:
    return InvalidRequest(f"secrets: {name}: {program} took too long", hint="Secret.from_command(…, timeout=)")


def text_of(name: str, data: bytes) -> str:
    """Return the text without its last line end. Other errors are reported when the request is made."""
    try:
        return data.decode("ascii").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidRequest(f"secrets: the value of {name} is not ASCII") from None
