"""The remote `skerry` of a repository on this host, for `git fetch skerry`. Only its settings are written; git starts
`git-remote-skerry`, which the package installs beside `skerry`."""

from __future__ import annotations

from typing import Final

from skerry.client.host.git import HostGit
from skerry.client.repository.settings import OUR_REMOTE

LOCAL: Final = "local"
_FETCH: Final = (f"+refs/heads/*:refs/remotes/{OUR_REMOTE}/*", f"+refs/agents/*:refs/{OUR_REMOTE}/*")


def add(git: HostGit, address: str = LOCAL) -> bool:
    """Add the remote. Return False if a remote of that name exists; it is left unchanged."""
    if OUR_REMOTE in git.output("remote").decode("utf-8", "replace").split("\n"):
        return False
    # The URL comes last, so that other programs see either no remote or a complete one.
    for name, value in (*(("fetch", one) for one in _FETCH), ("tagOpt", "--no-tags"), ("skipFetchAll", "true")):
        git.output("config", "--local", "--add", f"remote.{OUR_REMOTE}.{name}", value)
    git.output("config", "--local", f"remote.{OUR_REMOTE}.url", f"skerry::{address}")
    return True
