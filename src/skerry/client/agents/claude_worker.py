"""Claude Managed Agents as a provider of sessions: a self-hosted environment of Anthropic, by the official SDK.

The environment's key stays in this program, which only claims and stops work items. Inside, the SDK serves a session
with the token of that session: a placeholder, for which the sandbox's gateway sends the value, to the API only.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import re
from collections.abc import AsyncGenerator, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from skerry import extras
from skerry.client.agents.worker import SessionRun, WorkItem
from skerry.client.secrets import Secret
from skerry.errors import InvalidRequest, NotFound, PermissionDenied, SkerryError
from skerry.types import Handler, HttpResponse, Network

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

KEY: Final = "ANTHROPIC_ENVIRONMENT_KEY"
SERVICE: Final = "claude-environment"  # of the key in the user's store of secrets
PROGRAMS: Final = "/usr/local/lib/skerry"  # inside
PLACEHOLDER: Final = "ANTHROPIC_WORK_TOKEN"  # the variable inside
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")  # they become parts of paths, rules and arguments
_CREDENTIAL: Final = re.compile(r"[\x21-\x7e]{1,16384}")
MAX_SECRET: Final = 64 << 10


def sdk_requirement() -> str:
    """Return the SDK that the image gets: the version of this program, whose parts both use."""
    extras.require("worker")
    return f"anthropic=={importlib.metadata.version('anthropic')}"


@contextlib.contextmanager
def session_program() -> Iterator[Path]:
    """Yield the file of the program that the image gets."""
    with resources.as_file(resources.files(__package__) / "claude_session.py") as path:
        yield path


class ClaudeProvider:
    """One self-hosted environment. `max_idle`: seconds until the run of a session that waits for its user ends."""

    name = "claude"
    handled = 3  # HANDLED of claude_session.py

    def __init__(self, environment: str, key: str, *, workdir: str, max_idle: float) -> None:
        extras.require("worker")
        from anthropic import AsyncAnthropic

        self.environment = _checked("environment", environment)
        self._key = key
        self._client: AsyncAnthropic = AsyncAnthropic(auth_token=key)
        self._client.api_key = None  # of the user's environment: only the key of the environment is sent
        self._host, self._prefix = _address(str(self._client.base_url))
        self._workdir = workdir
        self._max_idle = max_idle

    async def aclose(self) -> None:
        await self._client.close()

    async def claim(self) -> WorkItem | None:
        work = self._client.beta.environments.work
        items = work.poller(environment_id=self.environment, environment_key=self._key, drain=True, auto_stop=False)
        with self._errors():
            # `drain`: it ends after an empty poll, so that no claim is cut off when the worker is drained.
            async with contextlib.aclosing(cast("AsyncGenerator[Any, None]", items)) as claimed:
                async for item in claimed:
                    found = await self._read(item)
                    if found is not None:
                        return found
        return None

    async def _read(self, item: Any) -> WorkItem | None:
        """Return a claimed item. Stop one that is not a session, or that comes without a token: with the environment's
        key, code inside could claim and answer all other sessions."""
        if not isinstance(item.id, str) or not _ID.fullmatch(item.id):
            raise SkerryError("the API handed out a work item with a malformed ID")
        if item.data.type != "session":
            await self.stop(item.id, "not a session")
            return None
        token = session_token(item.secret)
        if token is None or not isinstance(item.data.id, str) or not _ID.fullmatch(item.data.id):
            await self.stop(item.id, "the work item has no token for its session, or a malformed session ID")
            return None
        return WorkItem(item.id, item.data.id, token)

    def describe(self, item: WorkItem) -> SessionRun:
        options = {
            "work": item.id, "environment": self.environment, "session": item.session, "workdir": self._workdir,
            "max-idle": str(self._max_idle),
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        # -I: no packages and start-up files of the working directory or the user
        argv = ("python3", "-I", f"{PROGRAMS}/claude_session.py", *words)
        secret = Secret(PLACEHOLDER, hosts=[self._host], header="Authorization: Bearer {}", value=item.credential)
        env = {"ANTHROPIC_BASE_URL": f"https://{self._host}{self._prefix}"}
        # The SDK creates a folder for each memory store.
        setup = ("mkdir", "-p", "-m", "1777", "/mnt/memory")
        return SessionRun(argv, setup, env, (secret,), self._network(item.session))

    def _network(self, session: str) -> Network:
        """Return the policy for the API. The secret opens its host; handlers leave the paths of the session. There, the
        token replaces any other, and no other key passes: with its own, code inside could send data to another account.
        """
        api, work = f"{self._host}{self._prefix}", f"v1/environments/{self.environment}/work"
        paths = (f"{api}/{work}", f"{api}/v1/sessions/{session}", f"{api}/v1/memory_stores", f"GET {api}/v1/skills")
        passed = tuple(Handler(host=path, remove_headers=("x-api-key",)) for path in paths)
        other = Handler(host=self._host, answer=HttpResponse(status=403))
        return Network(deny=(f"{api}/{work}/poll",), handlers=(*passed, other))

    async def stop(self, work: str, reason: str) -> None:
        from anthropic import APIStatusError

        resource = self._client.beta.environments.work
        with contextlib.suppress(SkerryError), self._errors():  # the reason is also reported here
            await resource.update(work, environment_id=self.environment, metadata={"skerry_reason": reason[:500]})
        with self._errors():
            try:
                await resource.stop(work, environment_id=self.environment, force=True)
            except APIStatusError as error:
                if error.status_code not in (404, 409):  # stopped already
                    raise

    async def has_ended(self, session: str) -> bool:
        if not _ID.fullmatch(session):
            return False
        try:
            with self._errors():
                return (await self._client.beta.sessions.retrieve(session)).status == "terminated"
        except NotFound:
            return True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of the SDK as errors of Skerry. They name no request: its headers have the key."""
        from anthropic import APIError, APIStatusError

        try:
            yield
        except APIStatusError as error:
            code = error.status_code
            if code in (401, 403):
                raise PermissionDenied(
                    f"the API of Claude rejected the environment's key ({code})",
                    hint=f"set {KEY} to the key of {self.environment}, or: skerry secret set {SERVICE}",
                ) from None
            if code == 404:
                raise NotFound(f"the API of Claude: not found: {_message(error)}") from None
            raise SkerryError(f"the API of Claude answered {code}: {_message(error)}") from None
        except APIError as error:
            raise SkerryError(f"the API of Claude is not reachable: {_message(error)}") from None


def session_token(secret: str | None) -> str | None:
    """Return the token in a work item's secret, base64 of JSON with `sessions_token`; None without one."""
    if not secret or len(secret) > MAX_SECRET:
        return None
    try:
        decoded = json.loads(base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))
    except ValueError:
        return None
    token = decoded.get("sessions_token") if isinstance(decoded, dict) else None
    return token if isinstance(token, str) and _CREDENTIAL.fullmatch(token) else None


def _checked(what: str, text: str) -> str:
    if not _ID.fullmatch(text):
        raise InvalidRequest(f"{what}: {text[:60]!r} is not an ID", hint="like env_01AbC")
    return text


def _address(url: str) -> tuple[str, str]:
    """Return the host, with a port, and the prefix of paths of the API's address."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InvalidRequest(
            f"ANTHROPIC_BASE_URL: {url[:100]!r} is not the address of an API", hint="like https://api.anthropic.com"
        )
    return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname, parts.path.rstrip("/")


def _message(error: Any) -> str:
    return str(getattr(error, "message", error))[:300]
