"""The remote `skerry` of a repository here: what its sandboxes did, for `git fetch skerry`. Only its settings are made;
git starts `git-remote-skerry` for it, which the package installs beside `skerry`."""

from __future__ import annotations

from typing import Final

from skerry.client.host_git import Git
from skerry.client.repository.settings import OUR_REMOTE

LOCAL: Final = "local"
_FETCH: Final = (f"+refs/heads/*:refs/remotes/{OUR_REMOTE}/*", f"+refs/agents/*:refs/{OUR_REMOTE}/*")


def add(git: Git, address: str = LOCAL) -> bool:
    """False: there is a remote of that name already, which is left as it is."""
    if OUR_REMOTE in git.said("remote").decode("utf-8", "replace").split("\n"):
        return False
    # In one step for who looks: a remote is there with its URL, which comes last.
    for name, value in (*(("fetch", one) for one in _FETCH), ("tagOpt", "--no-tags"), ("skipFetchAll", "true")):
        git.said("config", "--local", "--add", f"remote.{OUR_REMOTE}.{name}", value)
    git.said("config", "--local", f"remote.{OUR_REMOTE}.url", f"skerry::{address}")
    return True
