"""`git clone` inside a sandbox: its command line, and helpful messages for its failures. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from skerry.client.results.command import check_result
from skerry.errors import CommandFailed, InvalidRequest
from skerry.types import NetworkAttempt, Result, check_text

_SCHEMES: Final = ("file", "git", "http", "https", "ssh")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER: Final = re.compile(r"[A-Za-z0-9+.-]*::")
_SIGNED_IN: Final = re.compile(r"(?<=://)[^/@\s']*@")
_QUOTED: Final = 2000

# English, so that failures can be recognised; no prompts, because nothing answers them; no program as a transport.
ENVIRONMENT: Final[Mapping[str, str | None]] = {
    "LC_ALL": "C.UTF-8", "LANGUAGE": None, "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": ":".join(_SCHEMES),
}  # fmt: skip

_REFUSALS: Final = (
    (r"(?:Could not resolve host(?:name)?:? |Failed to connect to |connect to host |unable to (?:look up|connect to) )"
     r"(?P<host>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)",
     "{host} cannot be reached from the sandbox",
     'the network policy does not allow it: use network=Network(allow=["{host}"]), '
     "or clone it on the host and use files.upload()"),
    (r"Remote branch .* not found in upstream",
     "branch or tag {branch!r} not found in {source}", "omit branch= for the default branch"),
    (r"already exists and is not an empty directory",
     "{path} already exists and is not empty", "choose another path="),
    (r"could not read Username|Authentication failed|Permission denied \(|terminal prompts disabled",
     "{source} requires a login", "clone it on the host and use files.upload()"),
    (r"does not appear to be a git repository|repository .* (?:does not exist|not found)|not a git repository",
     "no git repository found at {source}", "a URL, or a path inside the sandbox"),
    (r"No space left on device|Disk quota exceeded", "the sandbox's disk is full", "limits=Limits(disk=…)"),
)  # fmt: skip


def clone_argv(source: str, path: str, depth: int | None, branch: str | None) -> list[str]:
    """Return the command. `--no-local`: a shallow clone of a path needs git's transport."""
    argv = ["git", "clone", "--quiet"]
    if depth is not None:
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth < 1 << 31:
            raise InvalidRequest(f"depth: {depth!r} is not a number of commits", hint="1 is the last one only")
        argv += ["--no-local", f"--depth={depth}"]
    if branch is not None:
        if not branch or branch.startswith("-"):
            raise InvalidRequest(f"branch: {branch!r} is not valid")
        check_text("branch", branch)
        argv.append(f"--branch={branch}")
    return [*argv, "--", source, path]


def check_clone(source: str, path: str | None) -> str:
    """Return the target: the given path, or the name of the repository."""
    if not isinstance(source, str) or not source or source.startswith("-") or re.search(r"[\0-\x1f\x7f]", source):
        raise InvalidRequest(f"url: {source!r} is not valid", hint="a URL, or a path inside the sandbox")
    check_text("url", source)
    scheme = _SCHEME.match(source)
    if _HELPER.match(source) or (scheme is not None and scheme[1].lower() not in _SCHEMES):
        raise InvalidRequest(
            f"url: {without_password(source)!r} is not supported", hint=f"one of {', '.join(_SCHEMES)}"
        )
    if path is None:
        return _name_of(source)
    if not isinstance(path, str) or not path:
        raise InvalidRequest(f"path: {path!r} is not valid")
    check_text("path", path)
    return path


def _name_of(source: str) -> str:
    text = source.rstrip("/").removesuffix("/.git").rstrip("/")
    name = re.split(r"[/:]", text)[-1].removesuffix(".git")
    if name in ("", ".", "..") or name.startswith("-"):
        raise InvalidRequest(f"path: {without_password(source)!r} has no name for the target", hint="give path=")
    return name


def without_password(source: str) -> str:
    """Return the URL without its password."""
    return _SIGNED_IN.sub("", source)


def _denied(attempt: NetworkAttempt, said: str) -> tuple[str, str]:
    """Return the error for an attempt that the sandbox's policy denied: the policy is more specific than git."""
    rule = (attempt.hint or "").removeprefix("--allow ").strip('"')
    allow = f'network=Network(allow=["{rule}"]) allows it; ' if rule and rule != attempt.hint else ""
    message = f"{attempt.host} cannot be reached from the sandbox: {attempt.why}\n{said}"
    return message, f"{allow}or clone it on the host and use files.upload()"


def check_cloned(result: Result, source: str, path: str, branch: str | None) -> Result:
    """Return if the clone succeeded; otherwise raise an error with a hint."""
    if result.ok or result.timed_out:
        return check_result(result, ["git", "clone", without_password(source), path])
    said = without_password(result.stderr)[-_QUOTED:].strip()
    facts: dict[str, str | None] = {"source": without_password(source), "path": path, "branch": branch}
    message, hint = f"git clone failed: {said or f'exit code {result.exit_code}'}", result.hint
    if result.exit_code == 127 and "git" in said:
        message, hint = "git is not installed in the sandbox", "`apt-get install git` as root, or another image"
    if result.denied:
        message, hint = _denied(result.denied[-1], said)
    for pattern, text, help_ in _REFUSALS if not result.denied else ():
        if match := re.search(pattern, said):
            facts |= match.groupdict()
            message, hint = f"{text.format(**facts)}\n{said}", help_.format(**facts)
            break
    error = CommandFailed(message, hint=hint)
    error.result = result
    raise error
