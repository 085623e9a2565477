"""Kits of coding agents: the built-in ones and those in directories, with their capabilities checked. No network."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from skerry.client.agents.acp import VERSION as ACP_VERSION
from skerry.client.agents.descriptor import (
    PROMPT,
    SESSION,
    KitAcp,
    KitCapability,
    KitContext,
    KitCredential,
    KitDescriptor,
    KitExtension,
    KitInteractive,
    KitLifecycle,
    KitNetwork,
    KitResources,
    KitSessions,
    KitVolume,
    convert,
    expand,
    read_descriptor,
)
from skerry.client.repository.locate import read_plain
from skerry.errors import InvalidRequest, NotFound
from skerry.types import WORKSPACE, ImageInfo, check_env, check_path
from skerry.types.hosts import BadHost, parse_authority

BUILT_IN: Final = (
    "claude-code", "codex", "gemini-cli", "opencode", "aider", "qwen-code", "pi", "mini-swe-agent", "copilot", "cline",
)  # fmt: skip
VERSION: Final = "version"  # the argument that names the version of the agent
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_DOCKER: Final = "com.docker.sandbox/"
_SINGLE: Final[dict[str, type[Any]]] = {
    f"{_DOCKER}network-policy@1": KitNetwork,
    f"{_DOCKER}lifecycle@1": KitLifecycle,
    f"{_DOCKER}agent-sessions@1": KitSessions,
    f"{_DOCKER}agent-interactive-sessions@1": KitInteractive,
    f"{_DOCKER}resources@1": KitResources,
    "skerry/agent@1": KitExtension,
}
_SEVERAL: Final[dict[str, type[Any]]] = {
    f"{_DOCKER}credential@1": KitCredential,
    f"{_DOCKER}agent-context@1": KitContext,
    f"{_DOCKER}acp@1": KitAcp,
    f"{_DOCKER}volume@1": KitVolume,
}
# The user of the image runs the agent, and the author of commits is yours: there is nothing to configure.
_ALWAYS: Final = frozenset({f"{_DOCKER}sbx@1", f"{_DOCKER}git-identity@1"})
SUPPORTED: Final = frozenset({*_SINGLE, *_SEVERAL, *_ALWAYS})


@dataclass(frozen=True)
class Kit:
    """An agent. `args`: its arguments with their values. `skipped`: optional capabilities that are not supported."""

    name: str
    descriptor: KitDescriptor
    directory: str | None
    recipe: str
    args: Mapping[str, str]
    network: KitNetwork = field(default_factory=KitNetwork)
    lifecycle: KitLifecycle = field(default_factory=KitLifecycle)
    sessions: KitSessions = field(default_factory=KitSessions)
    interactive: KitInteractive = field(default_factory=KitInteractive)
    resources: KitResources = field(default_factory=KitResources)
    extension: KitExtension = field(default_factory=KitExtension)
    credentials: tuple[KitCredential, ...] = ()
    optional: frozenset[str] = frozenset()  # services without which the agent may start
    contexts: tuple[KitContext, ...] = ()
    acp: tuple[KitAcp, ...] = ()
    skipped: tuple[str, ...] = ()
    pulled: str | None = None  # the image of a kit from a registry
    home: str = "/home/user"  # of its user, inside

    @property
    def label(self) -> str:
        """Return the mark of its sandboxes. Another kit of the same name must not get into one."""
        return labels_of(self.name)[0 if self.built_in else 1]

    @property
    def built_in(self) -> bool:
        """Return whether the kit is part of Skerry. Others get no key of this machine by themselves."""
        return self.directory is None and self.pulled is None

    @property
    def version(self) -> str:
        return self.args.get(VERSION) or self.descriptor.version or "0"

    @property
    def image(self) -> str:
        """Return the name of its image. A kit in a directory may have the name of a built-in one, and any version."""
        return self.pulled or f"{'agent' if self.directory is None else 'kit'}/{self.name}@{self.version}"

    @property
    def build_arguments(self) -> dict[str, str]:
        return self._named("build_arg")

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in self._named("env").items() if value}

    @property
    def editor(self) -> KitAcp | None:
        """Return the command for editors: the first one of a supported version of the protocol, and of an agent that
        the kit provides."""
        provided = {_agent_name(one.partition("@")[0]) for one in self.descriptor.provides}
        known = (one for one in self.acp if one.protocol_version <= ACP_VERSION)
        return next((one for one in known if _agent_name(one.agent) in provided), None)

    def _named(self, kind: str) -> dict[str, str]:
        declared = ((getattr(one, kind), self.args[name]) for name, one in self.descriptor.args.items())
        return {variable: value for variable, value in declared if variable is not None}

    def headless(self, prompt: str, *, again: bool, events: bool = False, arguments: Sequence[str] = ()) -> list[str]:
        """Return the words that follow the image's command for one prompt. `again`: continue the last conversation.
        `events`: print events for programs, if the kit knows how. `arguments`: the user's, which are options only
        before a `--` of the kit."""
        words = self.extension.continue_prompt if again else ()
        words = words or self.sessions.prompt
        if not words:
            raise InvalidRequest(f"{self.name} cannot run a prompt without a terminal")
        if events and self.extension.events is not None:
            place = words.index("--") if "--" in words else 0
            words = (*words[:place], *self.extension.events.arguments, *words[place:])
        end = words.index("--") if "--" in words else len(words)
        return [*substitute(words[:end], PROMPT, prompt), *arguments, *substitute(words[end:], PROMPT, prompt)]

    def in_terminal(self, *, again: bool) -> list[str]:
        words = self.interactive.continue_ or self.sessions.continue_ if again else ()
        return list(words or self.interactive.new_session or self.lifecycle.interactive)


def labels_of(name: str) -> tuple[str, str]:
    """Return the marks of sandboxes of a built-in kit, and of another kit of that name."""
    return name, f"{name} (kit)"


def _agent_name(name: str) -> str:
    """Return a name with its namespace."""
    return name if "/" in name else f"{_DOCKER}{name}"


def substitute(words: tuple[str, ...], placeholder: str, value: str) -> list[str]:
    """Replace a placeholder in an argv. The value is not quoted: no shell reads it."""
    return [word.replace(placeholder, value) for word in words]


def load_kit(name: str, arguments: Mapping[str, str] = {}) -> Kit:
    """Return a built-in kit."""
    if name not in BUILT_IN:
        raise NotFound(f"agent {name[:60]!r} not found", hint=f"`skerry agent ls`: {', '.join(BUILT_IN)}; or --kit DIR")
    text = files("skerry.client.agents").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    return make_kit(name, read_descriptor(text, f"{name}.yaml"), None, arguments)


def load_directory(directory: str, arguments: Mapping[str, str] = {}) -> Kit:
    """Return the kit in a directory: its only descriptor, NAME.yaml, with the recipe beside it or in it."""
    top = os.path.abspath(directory)
    try:
        found = sorted(entry.name for entry in os.scandir(top) if entry.name.endswith((".yaml", ".yml")))
    except OSError as error:
        raise InvalidRequest(f"--kit: {directory}: {error.strerror}") from None
    if len(found) != 1:
        raise InvalidRequest(f"--kit: {directory} has {len(found)} descriptors", hint="one NAME.yaml is the kit")
    text = _text(f"{top}/{found[0]}")
    name = found[0].rpartition(".")[0].lower()
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"--kit: {found[0]!r} does not name an agent", hint="letters, digits and hyphens")
    return make_kit(name, read_descriptor(text, f"{directory}/{found[0]}"), top, arguments)


def load_image(image: ImageInfo, arguments: Mapping[str, str] = {}) -> Kit:
    """Return the kit of a pulled image. Its name is the last part of the image's."""
    if image.kit is None:
        raise InvalidRequest(
            f"--kit: the image {image.name} is not a kit",
            hint=f"if an earlier version of Skerry pulled it: skerry image pull {image.name}",
        )
    name = image.name.partition("@")[0].rpartition("/")[2].partition(":")[0].lower()
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"--kit: {name!r} does not name an agent", hint="pull it under another name: --name")
    home = "/root" if image.user in ("root", "0") else f"/home/{image.user.partition(':')[0]}"
    env = {"HOME": home, "WORKSPACE_DIR": WORKSPACE, **image.env}
    return make_kit(name, read_descriptor(image.kit, image.name), None, arguments, pulled=image.name, env=env)


def _text(path: str) -> str:
    data = read_plain(path)
    try:
        if data is not None:
            return data.decode()
    except UnicodeDecodeError:
        pass
    raise InvalidRequest(f"--kit: {path} is not a readable text file")


def make_kit(
    name: str,
    descriptor: KitDescriptor,
    directory: str | None,
    arguments: Mapping[str, str],
    *,
    pulled: str | None = None,
    env: Mapping[str, str] = {"HOME": "/home/user", "WORKSPACE_DIR": WORKSPACE},
) -> Kit:
    """Check a descriptor and its capabilities. A required capability that is not supported is an error."""
    args = _arguments(name, descriptor, arguments)
    skipped: list[str] = []
    single: dict[str, Any] = {}
    several: dict[str, list[Any]] = {kind: [] for kind in _SEVERAL}
    optional = set[str]()
    for one in descriptor.capabilities:
        where = f"{name}: {one.type}"
        if one.type in _ALWAYS:
            continue
        kind = _SINGLE.get(one.type) or _SEVERAL.get(one.type)
        if kind is None:
            _skip(one, where, skipped)
            continue
        value = convert(expand(one.config, args, env, where), kind, where)
        if one.type in _SEVERAL:
            several[one.type].append(value)
            if isinstance(value, KitCredential) and one.optional:
                optional.add(value.service)
        elif one.type in single:
            raise InvalidRequest(f"{where} is declared twice")
        else:
            single[one.type] = value
    kit = Kit(
        name, descriptor, directory, "" if pulled is not None else _recipe(name, descriptor, directory), args,
        network=single.get(f"{_DOCKER}network-policy@1", KitNetwork()),
        lifecycle=single.get(f"{_DOCKER}lifecycle@1", KitLifecycle()),
        sessions=single.get(f"{_DOCKER}agent-sessions@1", KitSessions()),
        interactive=single.get(f"{_DOCKER}agent-interactive-sessions@1", KitInteractive()),
        resources=single.get(f"{_DOCKER}resources@1", KitResources()),
        extension=single.get("skerry/agent@1", KitExtension()),
        credentials=tuple(several[f"{_DOCKER}credential@1"]), optional=frozenset(optional),
        contexts=tuple(_with_content(name, directory, one) for one in several[f"{_DOCKER}agent-context@1"]),
        acp=tuple(several[f"{_DOCKER}acp@1"]),
        skipped=tuple(skipped), pulled=pulled, home=env["HOME"],
    )  # fmt: skip
    _check(kit)
    return kit


def _skip(capability: KitCapability, where: str, skipped: list[str]) -> None:
    if not capability.optional:
        raise InvalidRequest(f"{where} is required, and not supported", hint="a kit may declare it with optional: true")
    skipped.append(capability.type)


def _arguments(name: str, descriptor: KitDescriptor, given: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(given.keys() - descriptor.args.keys())
    if unknown:
        known = ", ".join(descriptor.args) or "none"
        raise InvalidRequest(f"{name} has no argument {unknown[0]!r}", hint=f"its arguments: {known}")
    found = {}
    for key, argument in descriptor.args.items():
        value = given.get(key, argument.default)
        if value is None:
            if argument.required:
                raise InvalidRequest(f"{name} needs the argument {key}", hint=f"--kit-arg {key}=VALUE")
            value = ""
        if argument.enum is not None and value not in argument.enum:
            raise InvalidRequest(f"{name}: {key}: not one of {', '.join(argument.enum)}")
        if argument.pattern is not None and not re.fullmatch(argument.pattern, value):
            raise InvalidRequest(f"{name}: {key}: {value[:60]!r} does not match {argument.pattern}")
        found[key] = value
    return found


def _recipe(name: str, descriptor: KitDescriptor, directory: str | None) -> str:
    """Return the Dockerfile: the one in the descriptor, or the one beside it."""
    if descriptor.build is not None:
        return descriptor.build
    if directory is None:
        raise InvalidRequest(f"{name}: a workload needs a recipe", hint="build: or dockerfile:")
    return _text(_within(name, directory, descriptor.dockerfile or f"{name}.dockerfile"))


def _within(name: str, directory: str, file: str) -> str:
    path = os.path.normpath(os.path.join(directory, file))
    if not path.startswith(f"{directory}/"):
        raise InvalidRequest(f"{name}: {file[:80]} is outside of the kit")
    return path


def _with_content(name: str, directory: str | None, context: KitContext) -> KitContext:
    """Read the instructions of a kit in a directory. Those of an image are inside of it."""
    if not context.content_file or directory is None:
        return context
    return replace(context, content=_text(_within(name, directory, context.content_file)), content_file="")


def _check(kit: Kit) -> None:
    """Check values across capabilities."""
    check_env({**kit.environment, **{name: value for one in kit.acp for name, value in one.env.items()}})
    allowed = {phase: {rule.partition(":")[0] for rule in getattr(kit.network, phase).allow}
               for phase in ("install", "runtime")}  # fmt: skip
    seen = set[tuple[str, str]]()
    for one in kit.credentials:
        for phase in (one.phase,) if isinstance(one.phase, str) else one.phase:
            if (one.service, phase) in seen:
                raise InvalidRequest(f"{kit.name}: two credentials of {one.service} for {phase}")
            seen.add((one.service, phase))
            for injection in one.api_key.inject if one.api_key is not None else ():
                _check_host(kit.name, injection.domain)
                if injection.domain not in allowed[phase] and "*" not in allowed[phase]:
                    raise InvalidRequest(f"{kit.name}: {injection.domain} gets {one.service}, and is not allowed")
        if one.oauth is not None:
            endpoint = one.oauth.token_endpoint
            for host in (*one.resource_hosts, *([endpoint.host] if endpoint is not None else [])):
                _check_host(kit.name, host)
    for path in (*(file.path for file in kit.lifecycle.files), *(one.directory for one in kit.contexts)):
        if path:
            check_path(kit.name, path)
            if not path.startswith("/") or ".." in path.split("/"):
                raise InvalidRequest(f"{kit.name}: {path[:80]!r} is not an absolute path")
    agents = [_agent_name(one.agent) for one in kit.acp]
    if len(set(agents)) != len(agents):
        raise InvalidRequest(f"{kit.name}: acp@1: two commands of one agent")
    if SESSION in "\0".join((*kit.sessions.continue_, *kit.interactive.continue_)):
        raise InvalidRequest(f"{kit.name}: continue: it has no session")


def _check_host(name: str, host: str) -> None:
    try:
        parse_authority(host.removeprefix("*."))
    except BadHost as error:
        raise InvalidRequest(f"{name}: {host[:80]!r}: {error}") from None


def describe(kit: Kit) -> dict[str, Any]:
    """Return the kit for `--json`."""
    plain: dict[str, Any] = msgspec.to_builtins({
        "name": kit.name, "title": kit.descriptor.display_name or kit.name, "description": kit.descriptor.description,
        "version": kit.version, "image": kit.image, "arguments": dict(kit.args),
        "allow": kit.network.runtime.allow, "deny": kit.network.runtime.deny,
        "credentials": [
            {"service": one.service, "variable": one.api_key.name, "hosts": [i.domain for i in one.api_key.inject],
             "required": one.service not in kit.optional}
            for one in kit.credentials if one.api_key is not None
        ],
        "sign_in": [
            {"service": one.service, "endpoint": one.oauth.token_endpoint.url, "hosts": one.resource_hosts}
            for one in kit.credentials if one.oauth is not None and one.oauth.token_endpoint is not None
        ],
        "headless": bool(kit.sessions.prompt), "resumes": bool(kit.interactive.continue_ or kit.sessions.continue_),
        "acp": kit.editor is not None, "skipped": kit.skipped,
    })  # fmt: skip
    return plain
