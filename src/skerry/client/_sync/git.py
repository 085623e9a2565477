# Generated from client/_async/git.py by scripts/generate_sync.py. Do not edit.
"""Git inside a sandbox: what is more than a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.client.git import ENVIRONMENT, check_clone, clone_argv, cloned
from skerry.client.outcome import checked

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class Git:
    """`sandbox.git`. The rest of git is `sandbox.run("git …")`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def clone(
        self,
        url: str,
        path: str | None = None,
        *,
        depth: int | None = None,
        branch: str | None = None,
        user: str | None = None,
        timeout: float | None = 300,
    ) -> str:
        """Clone a repository inside; gives the absolute path of its working tree.

        `url` is what the sandbox's network reaches, or a path inside; `path` is where it goes, or a directory of the
        repository's name. A failure raises `CommandFailed`, which says what would help.
        """
        target = check_clone(url, path)
        sandbox, argv = self._sandbox, clone_argv(url, target, depth, branch)
        cloned(sandbox.run(argv, env=ENVIRONMENT, user=user, timeout=timeout), url, target, branch)
        where = ["git", "-C", target, "rev-parse", "--show-toplevel"]
        return checked(sandbox.run(where, user=user, timeout=timeout), where).stdout.removesuffix("\n")
