"""The sandbox of an agent: its name, its creation from a kit, and its later starts."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from skerry.cli import output
from skerry.cli.commands.agent_config import copy_files, copy_servers
from skerry.cli.commands.agent_image import AgentImage, ensure_image, image_of
from skerry.cli.commands.agent_sign_in import (
    AgentSignIn,
    choose_service,
    service_in,
    sign_in_secret,
    token_endpoints,
)
from skerry.cli.context import CliContext
from skerry.cli.options.repository import report_import
from skerry.client._sync.sandbox import Sandbox
from skerry.client.agents.credentials import find_secrets, present_secrets
from skerry.client.agents.kits import Kit
from skerry.client.agents.sign_in import load_sign_in
from skerry.client.repository.locate import find_repository
from skerry.client.repository.source import Repo
from skerry.client.secrets import Secret
from skerry.codecs.text import escape
from skerry.errors import CommandFailed, Conflict, FileNotFound, InvalidRequest, NotFound, SkerryError
from skerry.types import WORKSPACE, Limits, Network, Options

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client.agents.descriptor import KitHook

LABEL: Final = "skerry.agent"
LABEL_REPO: Final = "skerry.agent.repo"
LABEL_USED: Final = "skerry.agent.used"
LABEL_READY: Final = "skerry.agent.ready"  # the kit's install commands have run
HOOK_TIMEOUT: Final = 300
MEMORY: Final = "4G"
_BASELINE: Final = frozenset({"PATH", "HOME", "HOSTNAME", "TERM", "PWD", "OLDPWD", "SHLVL", "_"})
# Python's caches would be new files of the review; telemetry of Python tools would be denied attempts.
_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1", "WORKSPACE_DIR": WORKSPACE}


@dataclass(frozen=True)
class LaterOptions:
    """The options of this call that change an existing sandbox. `ignored`: the flags that matter only at its
    creation."""

    limits: Limits | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentRequest:
    """`top`: the repository of this host, None for a sandbox without one. `arguments`: those of `Sandbox.create`, for a
    new sandbox; `changes`: for an existing one. `sign_in`: the user signs in now. `note`: shows messages about it."""

    kit: Kit
    top: str | None
    name: str
    arguments: Mapping[str, Any]
    with_config: bool = False
    changes: LaterOptions = LaterOptions()
    include_home: bool = False
    sign_in: bool = False
    note: Callable[[str], None] = output.info

    @property
    def given(self) -> tuple[Secret, ...]:
        """Return the secrets of the options."""
        return tuple(self.arguments.get("secrets", ()))


def repository_top(directory: str) -> str:
    return find_repository(directory).top


def default_name(client: Client, kit: Kit, top: str | None) -> str:
    """Return the name of the agent's sandbox for a repository; a second repository of the same name gets a suffix."""
    slug = re.sub(r"[^a-z0-9-]+", "-", os.path.basename(top or "scratch").lower()).strip("-")[:24] or "repo"
    plain = f"{kit.name}-{slug}"
    found = find_sandbox(client, plain)
    if found is None or found.labels.get(LABEL_REPO, "") == repository_id(top):
        return plain
    return f"{plain}-{repository_id(top)[:6]}"


def repository_id(top: str | None) -> str:
    return hashlib.sha256(os.fsencode(top)).hexdigest()[:16] if top is not None else ""


def find_sandbox(client: Client, name: str) -> Sandbox | None:
    try:
        return Sandbox.get(name, server=client)
    except NotFound:
        return None


def open_sandbox(cli: CliContext, client: Client, request: AgentRequest) -> tuple[Sandbox, AgentImage, bool]:
    """Return the agent's sandbox, its image, and whether a conversation can be continued."""
    found = find_sandbox(client, request.name)
    if found is None:
        sandbox, image = create_sandbox(cli, client, request)
        return sandbox, image, False
    if found.labels.get(LABEL) != request.kit.label:
        raise Conflict(f"sandbox {request.name} is not one of {request.kit.name}", hint="--name NAME for another one")
    if found.labels.get(LABEL_REPO, "") != repository_id(request.top):
        raise Conflict(f"sandbox {request.name} has another repository", hint="--name NAME for another one")
    if LABEL_READY not in found.labels:
        raise Conflict(
            f"sandbox {request.name} is not set up: another call does it now, or was killed",
            hint=f"wait, or remove it: skerry rm {request.name}",
        )
    image, was_running = image_of(client, found.cached_info.image), found.state == "running"
    _change(cli, found, request)
    resume_sign_in(found, request)
    if request.top is not None:
        refresh(cli, found, request.top)
    if not was_running:
        _run_hooks(found, request.kit, request.kit.lifecycle.startup, image)
    return found, image, LABEL_USED in found.labels


def _change(cli: CliContext, sandbox: Sandbox, request: AgentRequest) -> None:
    """Apply the options of this call to an existing sandbox. Give it the current values of its secrets: a key may have
    been replaced since."""
    changes = request.changes
    if changes.limits is not None or changes.env:
        sandbox.update(limits=changes.limits, env=changes.env or None)
    if changes.allow or changes.presets:
        sandbox.network.allow(*changes.allow, presets=changes.presets)
    if changes.deny:
        sandbox.network.deny(*changes.deny)
    if changes.ignored and not cli.quiet:
        output.info(f"{request.name} exists already: {', '.join(changes.ignored)} without effect")
        output.info("hint: these matter when the sandbox is created: --name NAME for another one")
    _renew_secrets(cli, sandbox, request)


def _renew_secrets(cli: CliContext, sandbox: Sandbox, request: AgentRequest) -> None:
    """Replace the values of the secrets. They can only be replaced together: if one is missing here, all stay."""
    given = request.given
    secrets = (*given, *present_secrets(request.kit, {one.name for one in given}))
    if service_in(sandbox, request.kit) is not None:
        return  # the broker of the sign-in does it
    missing = {one.name for one in sandbox.cached_info.secrets} - {one.name for one in secrets}
    if secrets and not missing:
        sandbox.update(secrets=secrets)
    elif given:
        names = ", ".join(sorted(missing))
        raise InvalidRequest(f"{request.name} has other secrets too: {names}", hint="set or give them again as well")
    elif secrets and not cli.quiet:
        output.info(f"the secrets keep their earlier values: {', '.join(sorted(missing))} is not set here")


def resume_sign_in(sandbox: Sandbox, request: AgentRequest) -> None:
    """Answer for the token endpoint of a sandbox that is signed in, or that will be."""
    service = service_in(sandbox, request.kit)
    if service is not None:
        AgentSignIn(
            sandbox, request.kit, service, request.given, asked=request.sign_in, note=request.note
        ).start()  # fmt: skip
    elif request.sign_in:
        raise Conflict(f"sandbox {request.name} was created for a key", hint="--name NAME for another one")


def refresh(cli: CliContext, sandbox: Sandbox, top: str) -> None:
    """Bring the user's later edits in. A conflict leaves the copy unchanged."""
    try:
        done = sandbox.repo.pull(top)
    except Conflict as error:
        if not cli.quiet:
            output.info(f"your later edits are not in the sandbox: {error.message}")
            output.info(f"hint: skerry pull {sandbox.name} --prefer host, or --prefer sandbox")
        return
    changed = sum(file.how != "same" for file in done.files)
    if changed and not cli.quiet:
        output.info(f"{changed} of your files were changed since the last start, and are now in the sandbox")


def create_sandbox(cli: CliContext, client: Client, request: AgentRequest) -> tuple[Sandbox, AgentImage]:
    """Create the sandbox, and run the kit's install commands in it. A failure deletes it."""
    kit, given_names = request.kit, {secret.name for secret in request.given}
    service = choose_service(kit, asked=request.sign_in, given=given_names)
    if service is not None:
        secrets: Sequence[Secret] = (sign_in_secret(service, load_sign_in(service)),)
    else:
        secrets = find_secrets(kit, given_names)  # a missing key is the first error
    image = ensure_image(cli, client, kit)
    if not kit.built_in and not cli.quiet:
        hosts = dict.fromkeys((*kit.network.runtime.allow, *kit.network.install.allow))
        output.info(f"the kit {kit.name} allows {escape(', '.join(hosts) or 'no hosts')}")
    given = dict(request.arguments)
    given["labels"] = {**given.get("labels", {}), LABEL: kit.label, LABEL_REPO: repository_id(request.top)}
    given["env"] = {**_ENVIRONMENT, **kit.environment, **given.get("env", {})}
    given["secrets"] = (*secrets, *request.given)
    if service is None and not kit.built_in and "network" in given:
        network = given["network"]
        given["network"] = replace(network, deny=(*network.deny, *token_endpoints(kit)))
    if request.top is not None:
        given["repo"] = Repo(request.top, exclude=kit.extension.exclude, include_home=request.include_home)
    sandbox = Sandbox.create(image.ref, name=request.name, server=client, **given)
    try:
        report_import(cli, sandbox.imported)
        if request.with_config:
            copy_files(cli, sandbox, kit)
        if service is not None:
            resume_sign_in(sandbox, request)  # before any program of the kit runs
        _install(sandbox, kit, image)
        if request.with_config:
            copy_servers(cli, sandbox, kit)
        sandbox.update(labels={**sandbox.labels, LABEL_READY: "1"})
    except BaseException:
        sandbox.delete(force=True, purge=True)
        raise
    return sandbox, image


def _install(sandbox: Sandbox, kit: Kit, image: AgentImage) -> None:
    if any(kit.network.install.allow):
        sandbox.network.allow(*kit.network.install.allow)
    _run_hooks(sandbox, kit, kit.lifecycle.install, image)
    if any(kit.network.install.allow):  # open only while the install commands run
        closed = [rule for rule in kit.network.install.allow if rule not in kit.network.runtime.allow]
        policy = sandbox.network.show().network
        sandbox.network.set(replace(policy, allow=tuple(rule for rule in policy.allow if rule not in closed)))
    for file in kit.lifecycle.files:
        if file.overwrite or not sandbox.files.exists(file.path):
            sandbox.files.mkdir(posixpath.dirname(file.path))
            sandbox.files.write(file.path, file.content, mode=int(file.mode, 8) if file.mode else None)
    for context in kit.contexts:
        staged = f"Read {context.content_file}.\n" if context.content_file else ""
        _write_context(sandbox, context.directory, context.filename, context.content or staged)
    _run_hooks(sandbox, kit, kit.lifecycle.startup, image)


def _write_context(sandbox: Sandbox, directory: str, filename: str, content: str) -> None:
    """Write instructions into the file that the agent reads, after those that are there."""
    if not (directory and filename):
        return
    path = posixpath.join(directory, filename)
    try:
        before = sandbox.files.read_text(path)
    except FileNotFound:
        before = ""
    text = f"{_ABOUT}\n{content}" if content else _ABOUT
    sandbox.files.mkdir(directory)
    sandbox.files.write(path, f"{before}\n{text}" if before else text)


_ABOUT: Final = """\
# Sandbox

You work in a Skerry sandbox: an isolated Linux machine with a copy of the user's repository in /workspace. `sudo`
works. The network is closed except for a few hosts. The user reviews your changes afterwards, hunk by hunk.
"""


def _run_hooks(sandbox: Sandbox, kit: Kit, hooks: Sequence[KitHook], image: AgentImage) -> None:
    """Run commands of the lifecycle, which see only the variables that they declare."""
    names = {*image.env, *sandbox.cached_info.env, *(secret.name for secret in sandbox.cached_info.secrets)}
    service = service_in(sandbox, kit)
    modes = {
        f"SBX_CRED_{one.service.upper().replace('-', '_')}_MODE": "oauth"
        if service is not None and service.name == one.service
        else "apikey"
        if one.api_key is not None and one.api_key.name in names
        else "none"
        for one in kit.credentials
    }
    for number, hook in enumerate(hooks):
        declared = _BASELINE.union(hook.env)
        env: dict[str, str | None] = {name: None for name in names if name not in declared}
        env |= {name: value for name, value in modes.items() if name in declared}
        user = "root" if hook.user in (None, "0") and hooks is kit.lifecycle.install else hook.user
        if hook.background:
            sandbox.spawn(hook.argv, env=env, user=user)
            continue
        done = sandbox.run(hook.argv, env=env, user=user, timeout=HOOK_TIMEOUT)
        _forget(sandbox, done.id)
        if not done.ok:
            said = (done.stderr or done.stdout).strip()[-400:]
            what = hook.description or f"command {number + 1}"
            raise CommandFailed(f"{kit.name}: {what}: exit {done.exit_code}: {said}")


def _forget(sandbox: Sandbox, process: str) -> None:
    """Remove a command of the set-up from the list of processes."""
    try:
        sandbox.processes.remove(process)
    except SkerryError:
        return


def mark_used(sandbox: Sandbox) -> None:
    """Note that there is a conversation to continue."""
    if LABEL_USED not in sandbox.labels:
        sandbox.update(labels={**sandbox.labels, LABEL_USED: "1"})


def limits_of(kit: Kit, given: Limits) -> Limits:
    """Return the limits: those of the flags, else those of the kit, else 4 GB."""
    return replace(given, memory=given.memory or kit.resources.memory or MEMORY, cpus=given.cpus or kit.resources.cpu)


def network_of(kit: Kit, given: Network | None) -> Network:
    """Return the hosts of the kit, together with the rules of the flags."""
    rules = kit.network.runtime
    if given is None:
        return Network(allow=rules.allow, deny=rules.deny)
    return replace(given, allow=(*rules.allow, *given.allow), deny=(*rules.deny, *given.deny))


def git_identity(top: str | None) -> Options:
    """Return the author of commits inside: yours in this repository."""

    def read(key: str) -> str | None:
        argv = ["git", *(("-C", top) if top is not None else ()), "config", "--get", key]
        try:
            found = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            return None
        return found.stdout.strip() or None if found.returncode == 0 else None

    return Options(git_name=read("user.name"), git_email=read("user.email"))
