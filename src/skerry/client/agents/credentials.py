"""The credentials of an agent: from this machine to secrets of its sandbox, which contains placeholders."""

from __future__ import annotations

import os
from collections.abc import Collection

from skerry.client.agents.descriptor import KitApiKey, KitCredential
from skerry.client.agents.kits import Kit
from skerry.client.secret_store import UserSecrets
from skerry.client.secrets import Secret
from skerry.errors import InvalidRequest, NotFound


def find_value(service: str, variables: tuple[str, ...]) -> str | None:
    """Return the value of a service's credential on this machine: that of a variable, else that of the user's store
    (`skerry secret set`). No other function looks it up."""
    value = next((value for name in variables if (value := os.environ.get(name))), None)
    if value is not None:
        return value
    store = UserSecrets()
    try:
        return None if store.get(service).sign_in else store.value(service)
    except NotFound:
        return None


def variables_of(kit: Kit, credential: KitCredential) -> tuple[str, ...]:
    """Return the variables of this machine that may have the credential, the first one first."""
    own = credential.api_key.name if credential.api_key is not None else ""
    named = (own or f"{credential.service.upper().replace('-', '_')}_API_KEY",)
    return tuple(dict.fromkeys((*named, *kit.extension.variables.get(credential.service, ()))))


def find_secrets(kit: Kit, given: Collection[str] = ()) -> tuple[Secret, ...]:
    """Return the secrets of the kit's credentials that exist on this machine, except those in `given`. A missing one
    that the agent needs is an error, with the variables to set.

    A kit of a directory or an image gets nothing of this machine: it could name any variable, and its own host."""
    found = []
    for one in kit.credentials:
        if one.api_key is None or one.api_key.name in given:
            continue
        if not kit.built_in:
            if one.service not in kit.optional:
                where = ",".join(injection.domain for injection in one.api_key.inject)
                raise InvalidRequest(
                    f"{kit.name} needs a credential of {one.service}",
                    hint=f"if these hosts may have it: --secret {one.api_key.name or 'NAME'}={where}",
                )
            continue
        value = find_value(one.service, variables_of(kit, one))
        if value is not None:
            found.append(_secret(one.service, one.api_key, value))
        elif one.service not in kit.optional:
            raise _missing(kit, (one,))
    if kit.extension.needs_credential and not found and not given:
        raise _missing(kit, kit.credentials)
    return tuple(found)


def present_secrets(kit: Kit, given: Collection[str] = ()) -> tuple[Secret, ...]:
    """Return the secrets of the kit's credentials that exist on this machine, for a sandbox that has them already. A
    missing one is no error."""
    if not kit.built_in:
        return ()
    keys = [(one, one.api_key) for one in kit.credentials if one.api_key is not None and one.api_key.name not in given]
    values = [(one.service, key, find_value(one.service, variables_of(kit, one))) for one, key in keys]
    return tuple(_secret(service, key, value) for service, key, value in values if value is not None)


def _secret(service: str, key: KitApiKey, value: str) -> Secret:
    """Return a secret. The agent puts the placeholder where it puts a key; a key without a variable is set in the
    kit's header."""
    hosts = tuple(dict.fromkeys(injection.domain for injection in key.inject))
    if key.name:
        return Secret(key.name, hosts=hosts, value=value)
    first = key.inject[0]
    header = f"{first.header}: {(first.format or '%s').replace('%s', '{}')}"
    return Secret(f"KIT_{service.upper().replace('-', '_')}", hosts=hosts, header=header, value=value)


def _missing(kit: Kit, credentials: tuple[KitCredential, ...]) -> InvalidRequest:
    names = [variables_of(kit, one)[0] for one in credentials if one.api_key is not None]
    shown = ", ".join(names[:-1]) + f" or {names[-1]}" if len(names) > 1 else "".join(names)
    title = kit.descriptor.display_name or kit.name
    sign_in = ", or sign in: --sign-in" if any(one.oauth is not None for one in kit.credentials) else ""
    return InvalidRequest(
        f"{title} needs a credential: {shown} is not set here",
        hint=f"export {names[0]}=…, or `skerry secret set {credentials[0].service}`, {kit.extension.sign_in}{sign_in}",
    )
