"""What git has at a place at one moment, as the files of a `.git` made anew: HEAD, refs, index, settings, and a merge
or rebase under way. No hook, no stash, no reflog, no password.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final

from skerry.client.host_git import Git, GitFailed
from skerry.client.repository import filters
from skerry.client.repository.finding import Place, read_plain
from skerry.client.repository.rules import excludes_file, own_excludes, user_excludes
from skerry.client.repository.settings import OUR_REMOTE, Settings, config

_KINDS: Final = ("refs/heads", "refs/tags", "refs/remotes", "refs/notes", "refs/replace")
_OTHERS: Final = f"refs/remotes/{OUR_REMOTE}/".encode()  # of other sandboxes
_OBJECT: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_MOST: Final = 1 << 20
_SHALLOW_MOST: Final = 64 << 20
_GITLINK: Final = b"160000"
_ATTRIBUTES: Final = b".gitattributes"
# A merge or a rebase under way: what git itself keeps of it, each a commit, a list or a message.
_HEADS: Final = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD")
_WORDS: Final = ("MERGE_MSG", "MERGE_MODE", "SQUASH_MSG")
_UNDER_WAY: Final = ("rebase-merge", "rebase-apply", "sequencer")
_NOT_OF_IT: Final = ("autostash", "gpg_sign_opt")
_MOST_STEPS: Final = 10_000


@dataclass(frozen=True)
class State:
    """`files`: of the new `.git`, by their names in it. `index`: the index's copy, on disk. `tips`: what refs name.
    `wanted`: the names of all objects that the pack must reach, on disk too. `gitlinks`: where the index has
    submodules."""

    place: Place
    settings: Settings
    head: str | None
    files: dict[str, bytes]
    index: str | None
    tips: tuple[bytes, ...]
    wanted: str
    gitlinks: frozenset[str]

    def git(self) -> Git:
        """Calls that see the index as it was, and only this user's own file of excludes."""
        git = self.place.git(**({"GIT_INDEX_FILE": self.index} if self.index else {}))
        return git.also("-c", f"core.excludesFile={excludes_file(self.settings)}")


def taken(place: Place, scratch: str) -> State:
    """As it is now. `scratch`: an empty directory of ours, for the index's copy."""
    index = _index(place, scratch)
    git = place.git(**({"GIT_INDEX_FILE": index} if index else {}))
    settings = Settings.read(git)
    refs, symbolic = _refs(git)
    head, text = _head(git, refs)
    files = {"HEAD": text, "packed-refs": _packed(refs), "config": config(settings, place.object_format), **symbolic}
    files |= dict(_under_way(place)) | dict(_info(place, settings))
    if place.shallow and (shallow := read_plain(f"{place.common_dir}/shallow", _SHALLOW_MOST)):
        files["shallow"] = shallow
    tips, wanted = (*refs.values(), *([head] if head else ()), *_unfinished(files)), f"{scratch}/wanted"
    with open(wanted, "wb") as file:
        file.writelines(oid + b"\n" for oid in dict.fromkeys(tips))
        gitlinks, attributes = _indexed(git, file if not settings.partial else None) if index else (frozenset(), [])
    if index is not None and (marked := filters.unmodified(place, git, attributes)):
        given = (name + b"\0" for name in marked)
        _writing(place, scratch).said("update-index", "--assume-unchanged", "-z", "--stdin", given=given)
    return State(place, settings, head.decode() if head else None, files, index, tips, wanted, gitlinks)


def _unfinished(files: dict[str, bytes]) -> Iterator[bytes]:
    """The commits that a merge or a rebase under way needs."""
    for name in (*_HEADS, "rebase-merge/orig-head", "rebase-apply/orig-head", "rebase-merge/onto", "rebase-apply/onto"):
        yield from (line for line in files.get(name, b"").split() if _OBJECT.fullmatch(line))


def _index(place: Place, scratch: str) -> str | None:
    """A copy in one piece, without what is cached in it of this host's file system."""
    try:
        descriptor = os.open(f"{place.git_dir}/index", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    copy = f"{scratch}/index"
    with open(descriptor, "rb") as source, open(copy, "wb") as target:
        shutil.copyfileobj(source, target)
    plain = ("--no-split-index", "--no-untracked-cache", "--no-fsmonitor", "--force-write-index")
    _writing(place, scratch).said("update-index", *plain)
    return copy


def _writing(place: Place, scratch: str) -> Git:
    """Calls that write the index's copy: with an empty working tree, since with the real one git would compare files on
    the way, those that seem to be of the future say, and run their filters for it."""
    empty = f"{scratch}/empty"
    os.makedirs(empty, exist_ok=True)
    where = ("-C", empty, f"--git-dir={place.git_dir}", f"--work-tree={empty}")
    settings = ("-c", "core.splitIndex=false", "-c", "index.sparse=false")
    return Git("repo", *where, *settings, env={"GIT_INDEX_FILE": f"{scratch}/index"})


def _indexed(git: Git, blobs: IO[bytes] | None) -> tuple[frozenset[str], list[str]]:
    """Where submodules are, and files of attributes. A partial clone's blobs may be missing: git finds out which."""
    gitlinks, attributes = [], []
    for entry in git.names("ls-files", "--stage", "-z"):
        facts, _, name = entry.partition(b"\t")
        mode, oid, _ = facts.split(b" ")
        if mode == _GITLINK:
            gitlinks.append(os.fsdecode(name))
        elif blobs is not None:
            blobs.write(oid + b"\n")
        if name.endswith(_ATTRIBUTES):
            attributes.append(os.fsdecode(name))
    return frozenset(gitlinks), attributes


def _refs(git: Git) -> tuple[dict[bytes, bytes], dict[str, bytes]]:
    """Refs with their objects, and the symbolic ones as files."""
    refs, symbolic = {}, {}
    for line in git.said("for-each-ref", "--format=%(objectname) %(refname) %(symref)", *_KINDS).splitlines():
        oid, name, target = line.split(b" ")
        if name.startswith(_OTHERS) or not _OBJECT.fullmatch(oid):
            continue
        if target:
            symbolic[os.fsdecode(name)] = b"ref: " + target + b"\n"
        else:
            refs[name] = oid
    return refs, symbolic


def _packed(refs: dict[bytes, bytes]) -> bytes:
    return b"# pack-refs with: sorted \n" + b"".join(b"%s %s\n" % (refs[name], name) for name in sorted(refs))


def _head(git: Git, refs: dict[bytes, bytes]) -> tuple[bytes | None, bytes]:
    """The commit, None if there is none yet, and the file."""
    try:
        name = git.said("symbolic-ref", "-q", "HEAD").removesuffix(b"\n")
    except GitFailed as error:
        if error.exit_code != 1:
            raise
        commit = git.said("rev-parse", "--verify", "HEAD^{commit}").strip()
        return commit, commit + b"\n"
    return refs.get(name), b"ref: " + name + b"\n"


def _under_way(place: Place) -> Iterator[tuple[str, bytes]]:
    for name in (*_HEADS, *_WORDS):
        if (data := read_plain(f"{place.git_dir}/{name}", _MOST)) is not None:
            yield name, data
    for directory in _UNDER_WAY:
        path = f"{place.git_dir}/{directory}"
        if os.path.islink(path) or not os.path.isdir(path):
            continue
        for name in sorted(os.listdir(path))[:_MOST_STEPS]:
            if name not in _NOT_OF_IT and (data := read_plain(f"{path}/{name}", _MOST)) is not None:
                yield f"{directory}/{name}", data


def _info(place: Place, settings: Settings) -> Iterator[tuple[str, bytes]]:
    exclude = user_excludes(settings) + own_excludes(place)
    if exclude:
        yield "info/exclude", exclude
    if attributes := read_plain(f"{place.common_dir}/info/attributes", _MOST):
        yield "info/attributes", attributes
    if sparse := read_plain(f"{place.git_dir}/info/sparse-checkout", _MOST):
        yield "info/sparse-checkout", sparse
