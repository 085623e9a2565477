"""Options for the secrets of a sandbox. A value comes from the environment, the store, a file or a program, never from
the command line, which every user of the machine can read."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from skerry.cli.options.network import project_setting
from skerry.client.secret_store import SERVICES
from skerry.client.secrets import Secret
from skerry.config import Settings
from skerry.errors import InvalidRequest
from skerry.types.hosts import BadHost, parse_authority

F = TypeVar("F", bound=Callable[..., Any])
_FORMS = ("header", "query", "basic")
_SOURCES = {
    "--secret": "secrets",
    "--secret-env": "secret_envs",
    "--secret-file": "secret_files",
    "--secret-command": "secret_commands",
}
_LIKE = {
    "--secret": "--secret API_TOKEN=api.example.com",
    "--secret-env": "--secret-env API_TOKEN=MY_TOKEN@api.example.com",
    "--secret-command": "--secret-command 'API_TOKEN=pass show api@api.example.com'",
    "--secret-file": "--secret-file API_TOKEN=token.txt@api.example.com",
    "--secret-header": "--secret-header 'API_TOKEN=Authorization: Bearer {}'",
    "--secret-query": "--secret-query API_TOKEN=key",
    "--secret-basic": "--secret-basic API_TOKEN=user",
}

_OPTIONS = (
    click.option(
        "--secret", "secrets", multiple=True, metavar="NAME[=HOST,…|=@SERVICE]",
        help="Send a secret to these hosts, or to those in skerry.toml. The value is read from your variable NAME, or "
        "from the store (`skerry secret`): @SERVICE for its hosts, @SERVICE:HOST,… for others.",
    ),
    click.option(
        "--secret-env", "secret_envs", multiple=True, metavar="NAME=VARIABLE@HOST[,HOST]",
        help="Read the value of a secret from another variable of yours.",
    ),
    click.option(
        "--secret-command", "secret_commands", multiple=True, metavar="NAME=COMMAND@HOST[,HOST]",
        help="Read the value of a secret from the output of a program, which runs without a shell.",
    ),
    click.option(
        "--secret-file", "secret_files", multiple=True, metavar="NAME=PATH@HOST[,HOST]",
        help="Read the value of a secret from a file.",
    ),
    click.option(
        "--secret-header", "secret_header", multiple=True, metavar="NAME=HEADER",
        help='Send the secret in this header, like "TOKEN=Authorization: Bearer {}".',
    ),
    click.option(
        "--secret-query", "secret_query", multiple=True, metavar="NAME=PARAMETER",
        help="Send the secret in this query parameter.",
    ),
    click.option(
        "--secret-basic", "secret_basic", multiple=True, metavar="NAME=USER",
        help="Send the secret as the password of this user with basic authentication.",
    ),
)  # fmt: skip


def secret_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def secrets_from_options(given: dict[str, Any], settings: Settings) -> tuple[Secret, ...]:
    """Remove the secret flags from `given`. The project's skerry.toml describes secrets that are given by name only."""
    given["secrets"] = tuple(_with_variable(word) for word in given["secrets"])
    named = [word for word in given["secrets"] if "=" not in word]
    given["secrets"] = tuple(word for word in given["secrets"] if "=" in word)
    return tuple(_of_project(name, settings) for name in named) + _of_flags(given)


def _with_variable(word: str) -> str:
    """Return NAME=@SERVICE for @SERVICE, with the usual variable of that service."""
    service = word.removeprefix("@").partition(":")[0]
    return f"{SERVICES[service].variable}={word}" if word.startswith("@") and service in SERVICES else word


def _of_project(name: str, settings: Settings) -> Secret:
    form = (project_setting(settings, "secrets") or {}).get(name)
    if form is None:
        raise InvalidRequest(
            "--secret: no hosts given, neither in the option nor in skerry.toml",  # not quoted: the word may be a value
            hint='use --secret TOKEN=api.example.com, or [secrets.TOKEN] hosts = ["api.example.com"] in skerry.toml',
        )
    return Secret.from_env(name, **form)


def _of_flags(given: dict[str, Any]) -> tuple[Secret, ...]:
    forms = {form: _pairs(given.pop(f"secret_{form}"), f"--secret-{form}") for form in _FORMS}
    sources = {flag: _pairs(given.pop(key), flag) for flag, key in _SOURCES.items()}
    names = [name for named in sources.values() for name in named]
    for form, given_names in forms.items():
        for name in given_names:
            if name not in names:
                raise InvalidRequest(
                    f"--secret-{form}: {name} is not given with --secret", hint=f"add --secret {name}=HOST"
                )
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"--secret: {name} is given twice")
    return tuple(
        _made(flag, name, text, {form: named.get(name) for form, named in forms.items()})
        for flag, named_texts in sources.items()
        for name, text in named_texts.items()
    )


def _made(flag: str, name: str, text: str, form: dict[str, Any]) -> Secret:
    if flag == "--secret" and text.startswith("@"):
        service, colon, hosts = text.removeprefix("@").partition(":")
        return Secret.from_store(name, service, hosts=_hosts(name, hosts) if colon else (), **form)
    if flag == "--secret":
        return Secret.from_env(name, hosts=_hosts(name, text), **form)
    source, sign, host_list = text.rpartition("@")
    if not (source and sign):
        raise InvalidRequest(f"{flag}: {name} has no @HOST", hint=f"example: {_LIKE[flag]}")
    hosts_given = _hosts(name, host_list)
    if flag == "--secret-file":
        return Secret.from_file(name, source, hosts=hosts_given, **form)
    if flag == "--secret-command":
        return Secret.from_command(name, command_words(flag, source), hosts=hosts_given, **form)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", source):  # not quoted: it may be a value by mistake
        raise InvalidRequest(f"{flag}: {name}: not the name of a variable", hint=f"example: {_LIKE[flag]}")
    return Secret.from_env(name, source, hosts=hosts_given, **form)


def command_words(flag: str, text: str) -> list[str]:
    """Split a command into words, which are run without a shell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidRequest(f"{flag}: {error}") from None
    if not words:
        raise InvalidRequest(f"{flag}: the command is empty")
    return words


def _pairs(words: tuple[str, ...], flag: str) -> dict[str, str]:
    """Parse NAME=TEXT words. Errors do not quote the word: it may contain a secret value by mistake."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name.isidentifier() and name.isascii() and equals and text):
            raise InvalidRequest(f"{flag}: not NAME=… with the name of a variable", hint=f"example: {_LIKE[flag]}")
        if name in found:
            raise InvalidRequest(f"{flag}: {name} is given twice")
        found[name] = text
    return found


def _hosts(name: str, text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(","))
    if any(re.match(r"[a-z]{2,5}://", host) for host in hosts):
        raise InvalidRequest(
            f"--secret: the text after {name}= is a URL, not a host",
            hint=f"use the host name only, without https:// and path: {name}=api.example.com",
        )
    if not all(_is_host(host) and not _looks_secret(name, host) for host in hosts):
        raise InvalidRequest(
            f"--secret: the text after {name}= is not a list of hosts",
            hint=f"do not write the value on the command line: export {name}, or put the value in a file "
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
    """Detect a token in place of a host: many tokens are valid host names of a local network, and would be stored and
    shown as hosts."""
    return host == os.environ.get(name) or re.fullmatch(r"(?=\D*\d)[A-Za-z0-9-]{20,}", host) is not None
