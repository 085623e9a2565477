"""The settings of a repository's copy, written from a short list of safe ones. Pure, except for `read`.

The list contains no helper, hook, filter, command or include, and nothing that can contain a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from skerry.client.host.git import HostGit

_OWN: Final = ("local", "worktree")
_USERS: Final = ("system", "global")
_TRUTH: Final = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})
# How git compares files with its objects: without these, `git status` inside would report something else.
_COMPARING: Final = {
    "core.autocrlf": _TRUTH | {"input"},
    "core.eol": {"lf", "crlf", "native"},
    "core.filemode": _TRUTH,
    "core.ignorecase": _TRUTH,
    "core.precomposeunicode": _TRUTH,
    "core.sparsecheckout": _TRUTH,
    "core.sparsecheckoutcone": _TRUTH,
    "status.showuntrackedfiles": {"no", "normal", "all"},
}
_IGNORED_PARTS: Final = {"none", "dirty", "untracked", "all"}
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f]+")
_REFSPEC: Final = re.compile(r"\+?refs/[^\x00-\x20\x7f:]+:refs/[^\x00-\x20\x7f:]+")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)")
_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?")
_SCP: Final = re.compile(r"([A-Za-z0-9._-]+@)?[A-Za-z0-9._-]+:(?!/?/)[^\x00-\x1f\x7f]*")
OUR_REMOTE: Final = "skerry"


@dataclass(frozen=True)
class GitSetting:
    scope: str
    key: str
    value: str


class GitSettings:
    def __init__(self, all_: list[GitSetting]) -> None:
        self._all = all_

    @classmethod
    def read(cls, git: HostGit) -> GitSettings:
        fields = git.output("config", "--list", "-z", "--show-scope", "--includes").split(b"\0")
        pairs = zip(fields[::2], fields[1::2], strict=False)
        return cls([GitSetting(scope.decode(), *_parted(os.fsdecode(entry))) for scope, entry in pairs])

    def own(self, pattern: str) -> Iterator[tuple[re.Match[str], str]]:
        """Return the settings of this repository that match a pattern."""
        for one in self._all:
            if one.scope in _OWN and (match := re.fullmatch(pattern, one.key)):
                yield match, one.value

    def users(self, key: str) -> str | None:
        """Return a setting of the user or the host; the repository's own value is ignored."""
        found = [one.value for one in self._all if one.key == key and one.scope in _USERS]
        return found[-1] if found else None

    def last(self, key: str) -> str | None:
        found = [one.value for one in self._all if one.key == key]
        return found[-1] if found else None

    @property
    def partial(self) -> bool:
        """Whether objects are missing that a remote has promised."""
        promised = (*self.own(r"extensions\.partialclone"), *self.own(r"(?s:remote\..*\.promisor)"))
        return any(value.lower() not in ("false", "no", "off", "0") for _, value in promised)


def _parted(entry: str) -> tuple[str, str]:
    key, newline, value = entry.partition("\n")
    return key, value if newline else "true"


def config(settings: GitSettings, object_format: str) -> bytes:
    """Return the `config` file of the copy."""
    remotes = _remotes(settings)
    partial = settings.partial
    lines = ["[core]", f"\trepositoryformatversion = {int(partial or object_format != 'sha1')}", "\tbare = false"]
    lines += ["\tlogallrefupdates = true"]
    if object_format != "sha1":
        lines += ["[extensions]", f"\tobjectformat = {object_format}"]
    for key, allowed in _COMPARING.items():
        value = (settings.last(key) or "").lower()
        if value in allowed:
            section, _, name = key.partition(".")
            lines += [f"[{section}]", f"\t{name} = {value}"]
    lines += _promised(remotes, partial)
    for name, url in remotes.items():
        lines += [f"[remote {_quoted(name)}]", f"\turl = {_quoted(url)}"]
        lines += [f"\tfetch = {_quoted(spec)}" for spec in _refspecs(settings, name)]
    lines += [*_branches(settings, remotes), *_submodules(settings)]
    return os.fsencode("\n".join(lines) + "\n")


def _promised(remotes: dict[str, str], partial: bool) -> list[str]:
    if not partial:
        return []
    name = "origin" if "origin" in remotes or not remotes else next(iter(remotes))
    return ["[extensions]", f"\tpartialclone = {_quoted(name)}", f"[remote {_quoted(name)}]", "\tpromisor = true"]


def _remotes(settings: GitSettings) -> dict[str, str]:
    found = {}
    for match, value in settings.own(r"(?s:remote\.(.*)\.url)"):
        name, url = match[1], clean_url(value)
        if _NAME.fullmatch(name) and name != OUR_REMOTE and url is not None and name not in found:
            found[name] = url
    return found


def _refspecs(settings: GitSettings, name: str) -> list[str]:
    said = [value for _, value in settings.own(rf"remote\.{re.escape(name)}\.fetch") if _REFSPEC.fullmatch(value)]
    return said or [f"+refs/heads/*:refs/remotes/{name}/*"]


def _branches(settings: GitSettings, remotes: dict[str, str]) -> list[str]:
    lines = []
    upstream: dict[str, dict[str, str]] = {}
    for match, value in settings.own(r"(?s:branch\.(.*)\.(remote|merge))"):
        if _PLAIN.fullmatch(match[1]) and _PLAIN.fullmatch(value):
            upstream.setdefault(match[1], {})[match[2]] = value
    for branch, said in upstream.items():
        remote, merge = said.get("remote", ""), said.get("merge", "")
        if (remote == "." or remote in remotes) and merge.startswith("refs/"):  # a URL can be in its place
            lines += [f"[branch {_quoted(branch)}]", f"\tremote = {_quoted(remote)}", f"\tmerge = {_quoted(merge)}"]
    return lines


def _submodules(settings: GitSettings) -> list[str]:
    lines = []
    active = {match[1] for match, _ in settings.own(r"(?s:submodule\.(.*)\.(?:active|url))")}
    for name in sorted(name for name in active if _PLAIN.fullmatch(name)):
        lines += [f"[submodule {_quoted(name)}]", "\tactive = true"]
    for match, value in settings.own(r"(?s:submodule\.(.*)\.ignore)"):
        if _PLAIN.fullmatch(match[1]) and value in _IGNORED_PARTS:
            lines += [f"[submodule {_quoted(match[1])}]", f"\tignore = {value}"]
    return lines


def clean_url(url: str) -> str | None:
    """Return a URL without its credentials. None: git would need another program to fetch it."""
    if not _PLAIN.fullmatch(url) or url.startswith("-") or re.match(r"[A-Za-z0-9+.-]*::", url):
        return None
    match = _SCHEME.match(url)
    if match is None:
        return url if url.startswith(("/", "./", "../")) or ":" not in url.split("/")[0] else _scp(url)
    scheme, authority, path = match[1].lower(), match[2], match[3]
    if scheme == "file":
        return url
    user, at, host = authority.rpartition("@")
    if not _HOST.fullmatch(host):
        return None
    if scheme in ("ssh", "git+ssh", "ssh+git"):
        return f"{scheme}://{user.partition(':')[0]}{at}{host}{path}"
    if scheme not in ("http", "https", "git") or "@" in path:  # a password that contains a slash ends up there
        return None
    return f"{scheme}://{host}{path}"


def _scp(url: str) -> str | None:
    return url if _SCP.fullmatch(url) and "@" not in url.partition(":")[2] else None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
