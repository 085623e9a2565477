"""The sign-in of an agent: the secret of its sandbox, the rules of its network, and the broker in this program."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from skerry.cli import output
from skerry.client.agents.credentials import present_secrets
from skerry.client.agents.kits import Kit
from skerry.client.agents.oauth import OauthRefused, SignIn, credential_file
from skerry.client.agents.sign_in import HANDLER_TIMEOUT_S, SignInBroker, SignInService, load_sign_in, service_of
from skerry.client.secrets import Secret
from skerry.errors import CommandFailed, InvalidRequest, SkerryError

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

ENOUGH_S: Final = 300.0  # a sign-in that ends sooner is refreshed before the agent starts
# The shell of the user inside knows the home directory. A file that is there is the agent's own.
_WRITE: Final = 'f="$HOME/$1"; [ -e "$f" ] || { umask 077; mkdir -p "${f%/*}" && cat > "$f"; }'


def choose_service(kit: Kit, *, asked: bool, given: Collection[str]) -> SignInService | None:
    """Return the service that a new sandbox is signed in to: with `asked`, that of the kit; otherwise one with a stored
    sign-in, if no key is there. `given`: the names of other secrets.

    A kit of a directory or an image is asked for only: its author names the hosts."""
    declared = [one for one in kit.credentials if one.oauth is not None]
    if asked:
        if not declared:
            raise InvalidRequest(f"{kit.name} declares no sign-in", hint="give it a key: skerry agent show AGENT")
        return service_of(declared[0], kit.extension.sign_in_paths)
    keys = {one.api_key.name for one in kit.credentials if one.api_key is not None}
    if not kit.built_in or not keys.isdisjoint(given) or present_secrets(kit, given):
        return None
    services = (service_of(one, kit.extension.sign_in_paths) for one in declared)
    return next((one for one in services if load_sign_in(one) is not None), None)


def service_in(sandbox: Sandbox, kit: Kit) -> SignInService | None:
    """Return the service that a sandbox of the kit was created for."""
    names = {one.name for one in sandbox.cached_info.secrets}
    services = (service_of(one, kit.extension.sign_in_paths) for one in kit.credentials if one.oauth is not None)
    return next((one for one in services if one.variable in names), None) if names else None


def token_endpoints(kit: Kit) -> tuple[str, ...]:
    """Return the rules of the kit's token endpoints. Without a broker, real tokens would come from there."""
    endpoints = (one.oauth.token_endpoint for one in kit.credentials if one.oauth is not None)
    return tuple(f"{one.host}{one.path}" for one in endpoints if one is not None)


def sign_in_secret(service: SignInService, sign_in: SignIn | None) -> Secret:
    """Return the secret for the sandbox. Before the sign-in, its value is worthless."""
    value = sign_in.access if sign_in is not None else secrets.token_hex(32)
    return Secret(service.variable, hosts=service.hosts, value=value)


class AgentSignIn:
    """A sandbox with a sign-in. While this program runs, it answers for the token endpoint; otherwise, requests to it
    fail. `others`: all other secrets of the sandbox."""

    def __init__(
        self, sandbox: Sandbox, kit: Kit, service: SignInService, others: Sequence[Secret],
        *, asked: bool, note: Callable[[str], None] = output.info,
    ) -> None:  # fmt: skip
        self._sandbox, self._kit, self._service, self._others, self._note = sandbox, kit, service, others, note
        self._sentinel = self._read_sentinel()
        self._broker = SignInBroker(service, self._sentinel, self._push, note, may_sign_in=asked)

    def start(self) -> None:
        """Answer for the token endpoint, then open the way to it, then use a stored sign-in."""
        service, network = self._service, self._sandbox.network
        network.handle(service.host, self._broker.handle, bodies=True, timeout=HANDLER_TIMEOUT_S)
        policy = network.show().network
        denied = [rule for rule in self._kit.extension.sign_in_deny if rule not in policy.deny]
        if denied:
            network.deny(*denied)
        allowed = [rule for rule in service.rules if rule not in policy.allow]
        if allowed:
            network.allow(*allowed)
        if load_sign_in(service) is None:
            return
        try:
            sign_in = self._broker.refreshed(at_least_s=ENOUGH_S)
        except (OauthRefused, SkerryError) as error:  # the agent can still be used to sign in again
            self._note(f"{service.name}: {error}")
            return
        file = service.oauth.credential_file
        if file is not None:
            content = credential_file(file.structure, sign_in, self._sentinel)
            self._run([_WRITE, "sh", file.path.removeprefix("~/")], content)

    def _push(self, access: str) -> None:
        known = {self._service.variable, *(one.name for one in self._others)}
        missing = {one.name for one in self._sandbox.cached_info.secrets} - known
        if missing:
            names = ", ".join(sorted(missing))
            raise InvalidRequest(f"the sandbox has other secrets too: {names}", hint="give them again as well")
        value = Secret(self._service.variable, hosts=self._service.hosts, value=access)
        self._sandbox.update(secrets=[*self._others, value])

    def _read_sentinel(self) -> str:
        variable = self._service.variable
        found = self._run([f'printf %s "${variable}"'])
        if not re.fullmatch(rf"skerry-secret-{variable}-[a-z2-7]{{32}}", found):
            raise CommandFailed(f"the sandbox does not show the placeholder of {variable}")
        return found

    def _run(self, words: list[str], stdin: str = "") -> str:
        done = self._sandbox.run(["/bin/sh", "-c", *words], stdin=stdin, timeout=60)
        with suppress(SkerryError):
            self._sandbox.processes.remove(done.id)
        if not done.ok:
            raise CommandFailed(f"the sign-in could not be written into the sandbox: {done.stderr.strip()[-200:]}")
        return done.stdout
