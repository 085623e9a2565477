"""The options that give a sandbox secrets. A value never stands on a command line, where every user of the machine can
read it: it comes from the environment or from a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from skerry.cli.policy import wished
from skerry.client.secrets import Secret
from skerry.config import Settings
from skerry.errors import InvalidRequest
from skerry.types.hosts import BadHost, parse_authority

F = TypeVar("F", bound=Callable[..., Any])
_FORMS = ("header", "query", "basic")
_LIKE = {
    "--secret": "--secret API_TOKEN=api.example.com",
    "--secret-file": "--secret-file API_TOKEN=token.txt@api.example.com",
    "--secret-header": "--secret-header 'API_TOKEN=Authorization: Bearer {}'",
    "--secret-query": "--secret-query API_TOKEN=key",
    "--secret-basic": "--secret-basic API_TOKEN=user",
}

_OPTIONS = (
    click.option(
        "--secret", "secrets", multiple=True, metavar="NAME[=HOST,…]",
        help="A secret for these hosts, or those in skerry.toml; its value is that of your variable NAME.",
    ),
    click.option(
        "--secret-file", "secret_files", multiple=True, metavar="NAME=PATH@HOST[,HOST]",
        help="One whose value is in a file.",
    ),
    click.option(
        "--secret-header", "secret_header", multiple=True, metavar="NAME=HEADER",
        help='The header that it goes into, like "TOKEN=Authorization: Bearer {}".',
    ),
    click.option(
        "--secret-query", "secret_query", multiple=True, metavar="NAME=PARAMETER",
        help="The parameter of the query that it goes into.",
    ),
    click.option(
        "--secret-basic", "secret_basic", multiple=True, metavar="NAME=USER",
        help="The user of the basic login that it is the password of.",
    ),
)  # fmt: skip


def secret_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def secrets(given: dict[str, Any], settings: Settings) -> tuple[Secret, ...]:
    """Flags, and what the project's skerry.toml says of a secret that is named alone. Taken out of `given`."""
    named = [word for word in given["secrets"] if "=" not in word]
    given["secrets"] = tuple(word for word in given["secrets"] if "=" in word)
    return tuple(_of_project(name, settings) for name in named) + _of_flags(given)


def _of_project(name: str, settings: Settings) -> Secret:
    form = (wished(settings, "secrets") or {}).get(name)
    if form is None:
        raise InvalidRequest(
            "--secret: neither it nor this directory's skerry.toml says where it goes",  # the word may be a value
            hint='like --secret API_TOKEN=api.example.com, or [secrets.API_TOKEN] hosts = ["api.example.com"] there',
        )
    return Secret.from_env(name, **form)


def _of_flags(given: dict[str, Any]) -> tuple[Secret, ...]:
    forms = {form: _pairs(given.pop(f"secret_{form}"), f"--secret-{form}") for form in _FORMS}
    from_env = _pairs(given.pop("secrets"), "--secret")
    from_file = _pairs(given.pop("secret_files"), "--secret-file")
    for form, named in forms.items():
        for name in named:
            if name not in from_env and name not in from_file:
                raise InvalidRequest(
                    f"--secret-{form}: there is no --secret {name}", hint=f"--secret {name}=HOST says where it goes"
                )
    for name in from_env:
        if name in from_file:
            raise InvalidRequest(f"--secret: {name} is given twice")

    def form_of(name: str) -> dict[str, str | None]:
        return {form: named.get(name) for form, named in forms.items()}

    made = [Secret.from_env(name, hosts=_hosts(name, text), **form_of(name)) for name, text in from_env.items()]
    for name, text in from_file.items():
        path, sign, hosts = text.rpartition("@")
        if not (path and sign):
            raise InvalidRequest(f"--secret-file: {name} has no @HOST", hint=f"like {name}=token.txt@api.example.com")
        made.append(Secret.from_file(name, path, hosts=_hosts(name, hosts), **form_of(name)))
    return tuple(made)


def _pairs(words: tuple[str, ...], flag: str) -> dict[str, str]:
    """What is wrong is told without the word: it may hold a value, by mistake."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name.isidentifier() and name.isascii() and equals and text):
            raise InvalidRequest(f"{flag}: not of the form NAME=…, NAME being a variable's", hint=f"like {_LIKE[flag]}")
        if name in found:
            raise InvalidRequest(f"{flag}: {name} is given twice")
        found[name] = text
    return found


def _hosts(name: str, text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(","))
    if any(re.match(r"[a-z]{2,5}://", host) for host in hosts):
        raise InvalidRequest(
            f"--secret: what follows {name}= is an address of the web, not a host",
            hint=f"its host alone, without https:// and path: {name}=api.example.com",
        )
    if not all(_is_host(host) and not _looks_secret(name, host) for host in hosts):
        raise InvalidRequest(
            f"--secret: what follows {name}= is not a list of hosts",
            hint=f"a value never stands on a command line: export {name}, or put it in a file "
            f"(--secret-file {name}=PATH@HOST)",
        )
    return hosts


def _is_host(text: str) -> bool:
    try:
        parse_authority(text.removeprefix("*."))
    except BadHost:
        return False
    return True


def _looks_secret(name: str, host: str) -> bool:
    """Many tokens could be the name of a host in the own network, and would be kept and shown as one."""
    return host == os.environ.get(name) or re.fullmatch(r"(?=\D*\d)[A-Za-z0-9-]{20,}", host) is not None
