"""The descriptor of a kit: Docker's Sandbox Kit grammar, version 3. Pure.

The reader is strict: an unknown field, a duplicate key and a YAML alias are errors, because a misspelled rule that is
ignored would be a missing rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from skerry.client.agents.events import DIALECTS
from skerry.errors import InvalidRequest

MAX_SIZE: Final = 256 << 10
MAX_DEPTH: Final = 32
PROMPT: Final = "{{.Prompt}}"
SESSION: Final = "{{.SessionID}}"
_TYPE: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/[a-z0-9](?:[a-z0-9-]*[a-z0-9])?@[1-9][0-9]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVICE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_REFERENCE: Final = re.compile(r"\$\{\{\s*kit\.(args|env)\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_ANY_REFERENCE: Final = re.compile(r"\$\{\{")
_MODE: Final = re.compile(r"0?[0-7]{3,4}")
_HOST_PORT: Final = re.compile(r"(?=.{1,260}$)[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[1-9][0-9]{0,4})?")
_PATH: Final = re.compile(r"/[A-Za-z0-9._~/-]{1,200}")
# The last three are not in the specification: agents with an identity token need them.
CREDENTIAL_FIELDS: Final = frozenset(
    "{{.%s}}" % name  # noqa: UP031 - braces
    for name in (
        "AccessToken", "RefreshToken", "ExpiresAt", "Scopes", "PrimaryApiKey", "IDToken", "AccountID", "RefreshedAt",
    )
)  # fmt: skip
T = TypeVar("T")


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A value that rejects unknown fields."""


class KitArgument(_Strict, frozen=True, kw_only=True):
    """A value that the user may set. `env`: the variable inside that gets it; `build_arg`: the one of the build."""

    default: str | None = None
    required: bool = False
    description: str = ""
    enum: tuple[str, ...] | None = None
    pattern: str | None = None
    env: str | None = None
    build_arg: str | None = None

    def __post_init__(self) -> None:
        if self.env is not None and self.build_arg is not None:
            raise ValueError("env and buildArg exclude each other")
        if self.enum is not None and self.pattern is not None:
            raise ValueError("enum and pattern exclude each other")
        if self.default is not None and self.required:
            raise ValueError("default and required exclude each other")
        for name in (self.env, self.build_arg):
            if name is not None and not _VARIABLE.fullmatch(name):
                raise ValueError("not the name of a variable")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error:
                raise ValueError("the pattern is not a regular expression") from None


class KitCapability(_Strict, frozen=True, kw_only=True):
    """A typed request to the host. An optional one that is not supported is skipped, a required one is an error."""

    type: str
    name: str = ""
    optional: bool = False
    config: dict[str, Any] = {}
    description: str = ""

    def __post_init__(self) -> None:
        if not _TYPE.fullmatch(self.type):
            raise ValueError("type: not NAMESPACE/NAME@VERSION")


class KitDescriptor(_Strict, frozen=True, kw_only=True):
    schema_version: Literal["3"]
    kind: Literal["workload"]
    display_name: str = ""
    author: str = ""
    description: str = ""
    source_url: str = ""
    icon_url: str = ""
    version: str = ""
    licenses: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    integrates: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    capabilities: tuple[KitCapability, ...] = ()
    args: dict[str, KitArgument] = {}
    build: str | None = None
    dockerfile: str | None = None

    def __post_init__(self) -> None:
        if self.build is not None and self.dockerfile is not None:
            raise ValueError("build and dockerfile exclude each other")
        if any(not _VARIABLE.fullmatch(name) for name in self.args):
            raise ValueError("args: a name is not that of a variable")


# -- the configurations of capabilities -------------------------------------------------------------------------------


class KitRules(_Strict, frozen=True, kw_only=True):
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class KitNetwork(_Strict, frozen=True, kw_only=True):
    """network-policy@1. `install`: while the install commands run; `runtime`: while the agent runs."""

    install: KitRules = KitRules()
    runtime: KitRules = KitRules()


class KitInjection(_Strict, frozen=True, kw_only=True):
    domain: str
    header: str | None = None
    format: str | None = None
    scheme: str | None = None
    username: str | None = None


class KitApiKey(_Strict, frozen=True, kw_only=True):
    """`name`: the variable inside, which always has a placeholder. `inject`: the hosts that get the value."""

    name: str = ""
    proxy_managed: bool = False
    inject: tuple[KitInjection, ...] = ()

    def __post_init__(self) -> None:
        if self.name and not _VARIABLE.fullmatch(self.name):
            raise ValueError("name: not the name of a variable")
        if not self.inject:
            raise ValueError("inject: no host gets this credential")
        if not self.name and (len(self.inject) > 1 or self.inject[0].header is None):
            raise ValueError("inject: without a name, one host and its header are needed")


class KitTokenEndpoint(_Strict, frozen=True, kw_only=True):
    """The place of an authorization server that gives tokens. Always over TLS."""

    host: str
    path: str

    def __post_init__(self) -> None:
        if not _HOST_PORT.fullmatch(self.host):
            raise ValueError("host: not the name of a host")
        if not _PATH.fullmatch(self.path) or "//" in self.path or not {".", ".."}.isdisjoint(self.path.split("/")):
            raise ValueError("path: not a plain absolute path")

    @property
    def url(self) -> str:
        return f"https://{self.host.removesuffix(':443')}{self.path}"


class KitSentinels(_Strict, frozen=True, kw_only=True):
    """The texts that an agent gets instead of tokens. Here each sandbox has its own."""

    access_token: str = ""
    refresh_token: str = ""


class KitCredentialFile(_Strict, frozen=True, kw_only=True):
    """The file in which the agent keeps a sign-in, below its home directory. A string of `structure` that is a
    placeholder of CREDENTIAL_FIELDS gets its value; without a value, its key is left out."""

    path: str
    structure: dict[str, Any] = {}
    format: Literal["json", "toml"] = "json"

    def __post_init__(self) -> None:
        if not self.path.startswith("~/") or not is_below_home(self.path[2:]):
            raise ValueError("path: not ~/ and a path below the home directory")
        unknown = [one for one in _strings(self.structure) if "{{" in one and one not in CREDENTIAL_FIELDS]
        if unknown:
            raise ValueError(f"structure: {unknown[0][:60]!r} is not a placeholder")


class KitResponseFields(_Strict, frozen=True, kw_only=True):
    """The names of fields in the answer of the token endpoint."""

    access_token: str = "access_token"  # noqa: S105 - the name of a field
    refresh_token: str = "refresh_token"  # noqa: S105
    expires_in: str = "expires_in"

    def __post_init__(self) -> None:
        names = (self.access_token, self.refresh_token, self.expires_in)
        if not all(map(_VARIABLE.fullmatch, names)) or self.expires_in in names[:2]:
            raise ValueError("not the names of fields")


class KitOauth(_Strict, frozen=True, kw_only=True):
    """A sign-in of the user: the tokens stay outside. `resource_hosts`: those that get the access token."""

    token_endpoint: KitTokenEndpoint | None = None
    resource_hosts: tuple[str, ...] = ()
    sentinels: KitSentinels = KitSentinels()
    credential_file: KitCredentialFile | None = None
    response_fields: KitResponseFields = KitResponseFields()
    passthrough: bool = False

    def __post_init__(self) -> None:
        if self.token_endpoint is not None and self.token_endpoint.host in self.resource_hosts:
            raise ValueError("resourceHosts: the host of the token endpoint gets no access token")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, str):
        yield value


class KitCredential(_Strict, frozen=True, kw_only=True):
    """credential@1: a key, a sign-in, or either."""

    service: str
    phase: str | tuple[str, ...]
    api_key: KitApiKey | None = None
    oauth: KitOauth | None = None

    def __post_init__(self) -> None:
        if not _SERVICE.fullmatch(self.service):
            raise ValueError("service: not a name of lower-case letters, digits and hyphens")
        phases = (self.phase,) if isinstance(self.phase, str) else self.phase
        if not phases or len(set(phases)) != len(phases) or not {"install", "runtime"}.issuperset(phases):
            raise ValueError("phase: not install, runtime, or both")
        if self.api_key is None and self.oauth is None:
            raise ValueError("neither apiKey nor oauth")

    @property
    def resource_hosts(self) -> tuple[str, ...]:
        """Return the hosts that get the access token of a sign-in: by default those of the key."""
        named = self.oauth.resource_hosts if self.oauth is not None else ()
        return named or tuple(dict.fromkeys(one.domain for one in (self.api_key.inject if self.api_key else ())))


class KitHook(_Strict, frozen=True, kw_only=True):
    """A command of the lifecycle. `env`: the only variables that it sees beside those of every program."""

    command: str | tuple[str, ...]
    user: str | None = None
    env: tuple[str, ...] = ()
    background: bool = False
    description: str = ""

    @property
    def argv(self) -> list[str]:
        return ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)


class KitFile(_Strict, frozen=True, kw_only=True):
    path: str
    content: str = ""
    mode: str | None = None
    overwrite: bool = True
    description: str = ""

    def __post_init__(self) -> None:
        if self.mode is not None and not _MODE.fullmatch(self.mode):
            raise ValueError("mode: not an octal mode")


class KitLifecycle(_Strict, frozen=True, kw_only=True):
    """lifecycle@1. `install`: once, after the sandbox is created; `startup`: at each start of the sandbox."""

    install: tuple[KitHook, ...] = ()
    startup: tuple[KitHook, ...] = ()
    files: tuple[KitFile, ...] = ()
    interactive: tuple[str, ...] = ()


class KitSessions(_Strict, frozen=True, kw_only=True):
    """agent-sessions@1: words to append to the image's command, without a terminal."""

    prompt: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    continue_: tuple[str, ...] = msgspec.field(default=(), name="continue")
    list: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt and PROMPT not in "\0".join(self.prompt):
            raise ValueError(f"prompt: without {PROMPT}")
        if self.resume and SESSION not in "\0".join(self.resume):
            raise ValueError(f"resume: without {SESSION}")


class KitInteractive(_Strict, frozen=True, kw_only=True):
    """agent-interactive-sessions@1: words to append to the image's command, in a terminal."""

    new_session: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    continue_: tuple[str, ...] = msgspec.field(default=(), name="continue")
    session_picker: tuple[str, ...] = ()
    list: str | tuple[str, ...] = ()


class KitContext(_Strict, frozen=True, kw_only=True):
    """agent-context@1: instructions for the agent, in a file that it reads."""

    filename: str = ""
    directory: str = ""
    content: str = ""
    content_file: str = ""

    def __post_init__(self) -> None:
        if self.filename in (".", "..") or "/" in self.filename or "\0" in self.filename:
            raise ValueError("filename: not one name")
        if self.content and self.content_file:
            raise ValueError("content and contentFile exclude each other")


class KitAcp(_Strict, frozen=True, kw_only=True):
    """acp@1: the command that speaks the Agent Client Protocol on its stdin and stdout."""

    agent: str
    command: str | tuple[str, ...]
    env: dict[str, str] = {}
    protocol_version: int = 1

    def __post_init__(self) -> None:
        words = (self.command,) if isinstance(self.command, str) else self.command
        if not words or not words[0].strip():
            raise ValueError("command: empty")
        if not self.agent or "@" in self.agent or self.protocol_version < 1:
            raise ValueError("agent: not a name without a version; protocolVersion: at least 1")

    @property
    def argv(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", self.command) if isinstance(self.command, str) else self.command


class KitResources(_Strict, frozen=True, kw_only=True):
    cpu: float | None = None
    memory: str | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        if self.gpu is not None:
            raise ValueError("gpu: sandboxes have none")


class KitVolume(_Strict, frozen=True, kw_only=True):
    """volume@1. A named sandbox keeps all its files, so that nothing is to do."""

    path: str
    size: str = ""


class KitEvents(_Strict, frozen=True, kw_only=True):
    """The events that the agent prints for programs, with these arguments before its prompt. Their tool calls become
    the origins of changes. `dialect`: the agent whose form they have."""

    dialect: str
    arguments: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise ValueError(f"dialect: not one of {', '.join(DIALECTS)}")


class KitMcp(_Strict, frozen=True, kw_only=True):
    """The MCP servers in the agent's settings: the file below the home directory, JSON or TOML, and the key in it."""

    file: str
    key: str

    def __post_init__(self) -> None:
        if not is_below_home(self.file) or not self.file.endswith((".json", ".toml")):
            raise ValueError("file: not a JSON or TOML file below the home directory")
        if not _VARIABLE.fullmatch(self.key):
            raise ValueError("key: not a name")


class KitExtension(_Strict, frozen=True, kw_only=True):
    """skerry/agent@1, for what the specification has no word. `package`: the agent's package, as npm:NAME or pip:NAME;
    its newest version is the version of an update. `needs_credential`: one of the optional credentials must be there.
    `sign_in`: how to get one. `variables`: for a service, further names of its variable on this machine.
    `continue_prompt`: words for a further prompt of the last conversation. `user_config`: files and directories of the
    user's home that `--with-config` copies. `quiet`: hosts that the agent tries and does not need: a denied attempt is
    logged, and gives no hint. `events`: how the agent reports its tool calls.
    `mcp`: the MCP servers in the user's settings, of which `--with-config` copies those without logins.
    `exclude`: the agent's own files in the workspace, which the review leaves out.
    `sign_in_paths`: paths beside the token endpoint that a sign-in needs; requests to them pass unchanged.
    `sign_in_deny`: requests that are denied where a sign-in is used: their answers would have a key."""

    package: str = ""
    needs_credential: bool = False
    sign_in: str = ""
    variables: dict[str, tuple[str, ...]] = {}
    continue_prompt: tuple[str, ...] = ()
    user_config: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    events: KitEvents | None = None
    mcp: KitMcp | None = None
    exclude: tuple[str, ...] = ()
    sign_in_paths: tuple[str, ...] = ()
    sign_in_deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(_PATH.fullmatch, self.sign_in_paths)):
            raise ValueError("signInPaths: not a plain absolute path")
        if self.package and not re.fullmatch(r"(?:npm|pip):@?[A-Za-z0-9][A-Za-z0-9._/-]*", self.package):
            raise ValueError("package: not npm:NAME or pip:NAME")
        if self.continue_prompt and PROMPT not in "\0".join(self.continue_prompt):
            raise ValueError(f"continuePrompt: without {PROMPT}")
        if not all(map(is_below_home, self.user_config)):
            raise ValueError("userConfig: not a path below the home directory")


def is_below_home(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


# -- reading ----------------------------------------------------------------------------------------------------------


def read_descriptor(text: str, where: str) -> KitDescriptor:
    """Parse a descriptor. `where`: its file, for errors."""
    if len(text) > MAX_SIZE:
        raise InvalidRequest(f"{where}: larger than {MAX_SIZE >> 10} KiB")
    return convert(_plain(text, where), KitDescriptor, where)


def convert(data: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidRequest(f"{where}: {error}") from None


def _plain(text: str, where: str) -> Any:
    import yaml  # 15 ms

    class Loader(yaml.SafeLoader):
        """Reads values only: no alias, which could grow without bound, and no key twice."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=self.get_mark())
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=self.get_mark())
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for at, key in enumerate(keys):
                if not isinstance(key, str) or key in keys[:at]:
                    problem = f"{key!r} is not a string, or occurs twice"
                    raise yaml.MarkedYAMLError(None, None, problem, node.value[at][0].start_mark)
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a subclass of SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "not YAML"
        mark = getattr(error, "problem_mark", None)
        raise InvalidRequest(f"{where}{f':{mark.line + 1}' if mark else ''}: {problem}") from None


def expand(value: Any, args: Mapping[str, str], env: Mapping[str, str], where: str) -> Any:
    """Replace `${{ kit.args.NAME }}` and `${{ kit.env.NAME }}` in the strings of a value."""
    if isinstance(value, dict):
        return {key: expand(item, args, env, where) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, args, env, where) for item in value]
    if not isinstance(value, str) or "${{" not in value:
        return value

    def named(match: re.Match[str]) -> str:
        found = (args if match[1] == "args" else env).get(match[2])
        if found is None:
            raise InvalidRequest(f"{where}: {match[0]} is not known")
        return found

    if len(_REFERENCE.findall(value)) != len(_ANY_REFERENCE.findall(value)):
        raise InvalidRequest(f"{where}: {value[:60]!r} has a reference that is not kit.args.NAME or kit.env.NAME")
    return _REFERENCE.sub(named, value)
