"""`git clone` inside, as words: what is asked of git, and its failures in words that help. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from skerry.client.outcome import checked
from skerry.errors import CommandFailed, InvalidRequest
from skerry.types import Attempt, Result, check_text

_SCHEMES: Final = ("file", "git", "http", "https", "ssh")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER: Final = re.compile(r"[A-Za-z0-9+.-]*::")
_SIGNED_IN: Final = re.compile(r"(?<=://)[^/@\s']*@")
_QUOTED: Final = 2000

# English, so that its refusals can be told apart; no question that nobody could answer; no program as a transport.
ENVIRONMENT: Final[Mapping[str, str | None]] = {
    "LC_ALL": "C.UTF-8", "LANGUAGE": None, "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": ":".join(_SCHEMES),
}  # fmt: skip

_REFUSALS: Final = (
    (r"(?:Could not resolve host(?:name)?:? |Failed to connect to |connect to host |unable to (?:look up|connect to) )"
     r"(?P<host>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)",
     "{host} can't be reached from the sandbox",
     'a sandbox reaches nothing that is not allowed: network=Network(allow=["{host}"]) would allow it; '
     "or clone it here and bring it in with files.upload()"),
    (r"Remote branch .* not found in upstream",
     "there is no branch or tag {branch!r} in {source}", "leave branch= out for the repository's own"),
    (r"already exists and is not an empty directory",
     "{path} exists already and is not empty", "give another path="),
    (r"could not read Username|Authentication failed|Permission denied \(|terminal prompts disabled",
     "{source} wants somebody to sign in", "clone it here and bring it in with files.upload()"),
    (r"does not appear to be a git repository|repository .* (?:does not exist|not found)|not a git repository",
     "there is no git repository at {source}", "a URL, or a path inside the sandbox"),
    (r"No space left on device|Disk quota exceeded", "the sandbox's disk is full", "limits=Limits(disk=…)"),
)  # fmt: skip


def clone_argv(source: str, path: str, depth: int | None, branch: str | None) -> list[str]:
    """`--no-local`: a shallow clone of a path needs git's own transport."""
    argv = ["git", "clone", "--quiet"]
    if depth is not None:
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth < 1 << 31:
            raise InvalidRequest(f"depth: {depth!r} is not a number of commits", hint="1 is the last one only")
        argv += ["--no-local", f"--depth={depth}"]
    if branch is not None:
        if not branch or branch.startswith("-"):
            raise InvalidRequest(f"branch: {branch!r} can't be one")
        check_text("branch", branch)
        argv.append(f"--branch={branch}")
    return [*argv, "--", source, path]


def check_clone(source: str, path: str | None) -> str:
    """Where it goes: the path that was given, or the repository's own name."""
    if not isinstance(source, str) or not source or source.startswith("-") or re.search(r"[\0-\x1f\x7f]", source):
        raise InvalidRequest(f"url: {source!r} can't be one", hint="a URL, or a path inside the sandbox")
    check_text("url", source)
    scheme = _SCHEME.match(source)
    if _HELPER.match(source) or (scheme is not None and scheme[1].lower() not in _SCHEMES):
        raise InvalidRequest(f"url: {shown(source)!r} is not fetched", hint=f"one of {', '.join(_SCHEMES)}")
    if path is None:
        return _name_of(source)
    if not isinstance(path, str) or not path:
        raise InvalidRequest(f"path: {path!r} is none")
    check_text("path", path)
    return path


def _name_of(source: str) -> str:
    text = source.rstrip("/").removesuffix("/.git").rstrip("/")
    name = re.split(r"[/:]", text)[-1].removesuffix(".git")
    if name in ("", ".", "..") or name.startswith("-"):
        raise InvalidRequest(f"path: {shown(source)!r} has no name of its own", hint="give path=")
    return name


def shown(source: str) -> str:
    """Without the password that may stand in it."""
    return _SIGNED_IN.sub("", source)


def _refused(attempt: Attempt, said: str) -> tuple[str, str]:
    """By the sandbox's policy, which knows better than git what it was."""
    rule = (attempt.hint or "").removeprefix("--allow ").strip('"')
    allow = f'network=Network(allow=["{rule}"]) would allow it; ' if rule and rule != attempt.hint else ""
    message = f"{attempt.host} can't be reached from the sandbox: {attempt.why}\n{said}"
    return message, f"{allow}or clone it here and bring it in with files.upload()"


def cloned(result: Result, source: str, path: str, branch: str | None) -> Result:
    """The result if all went well; else an error that says what to do."""
    if result.ok or result.timed_out:
        return checked(result, ["git", "clone", shown(source), path])
    said = shown(result.stderr)[-_QUOTED:].strip()
    facts: dict[str, str | None] = {"source": shown(source), "path": path, "branch": branch}
    message, hint = f"git clone failed: {said or f'exit code {result.exit_code}'}", result.hint
    if result.exit_code == 127 and "git" in said:
        message, hint = "there is no git in the sandbox", "`apt-get install git` as root, or another image"
    if result.denied:
        message, hint = _refused(result.denied[-1], said)
    for pattern, text, help_ in _REFUSALS if not result.denied else ():
        if match := re.search(pattern, said):
            facts |= match.groupdict()
            message, hint = f"{text.format(**facts)}\n{said}", help_.format(**facts)
            break
    error = CommandFailed(message, hint=hint)
    error.result = result
    raise error
