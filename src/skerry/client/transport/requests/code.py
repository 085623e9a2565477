"""Requests about code: runs, contexts, languages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skerry.client.create_options import seconds, texts
from skerry.client.transport.requests.sandboxes import RESPONSE_TIMEOUT, Request, json_request, sandbox_path
from skerry.codecs.frames import MEDIA_TYPE
from skerry.errors import InvalidRequest, NotFound
from skerry.types import NAME, CodeRequest, ContextRequest

Input = str | bytes | bytearray | memoryview


def code_request(
    code: str, language: str | None, stdin: Input | None, timeout: float | None, **more: Any
) -> CodeRequest:
    """Return the request, with its values checked before anything is sent."""
    if not isinstance(code, str):
        raise InvalidRequest(f"code: a {type(code).__name__} is not a str", hint="bytes have .decode()")
    if language is not None and not isinstance(language, str):
        raise InvalidRequest(f"language: {language!r} is not a str", hint='like "python"')
    return CodeRequest(code=code, language=language, timeout=seconds(timeout), **_input(stdin), **more)


def _input(stdin: object) -> dict[str, Any]:
    if stdin is None:
        return {}
    if isinstance(stdin, str):
        try:
            stdin.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("stdin: not valid Unicode", hint="pass it as bytes") from None
        return {"stdin": stdin}
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        return {"stdin_base64": bytes(stdin)}
    raise InvalidRequest(f"stdin: a {type(stdin).__name__} is not supported", hint="pass all of it: str or bytes")


def context_settings(cwd: str | None, env: Mapping[str, str | None], user: str | None) -> dict[str, Any]:
    """Return the settings of a run without a context, or of a new context."""
    return {"cwd": cwd, "env": texts(env, "env"), "user": user}


def run(ref: str, value: CodeRequest) -> Request:
    # In a context it may first wait for its turn, for any length of time; see sandboxes.run.
    silence = value.timeout + RESPONSE_TIMEOUT if value.timeout is not None and value.fresh else None
    request = json_request("POST", sandbox_path(ref, "code"), value)
    return replace(request, accept=MEDIA_TYPE, read_timeout=silence)


def open_context(ref: str, value: ContextRequest) -> Request:
    return json_request("POST", sandbox_path(ref, "contexts"), value)


def contexts(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "contexts"))


def context(ref: str, name: str, method: str = "GET") -> Request:
    return Request(method, _context_path(ref, name))


def act(ref: str, name: str, verb: str) -> Request:
    """Interrupt or restart a context."""
    return Request("POST", _context_path(ref, name, verb))


def _context_path(ref: str, name: str, *rest: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise NotFound(f"context {str(name)[:80]!r} not found", hint="sandbox.code.contexts() lists them")
    return sandbox_path(ref, "contexts", name, *rest)


def languages(ref: str | None) -> Request:
    """Request the languages of a sandbox, with the versions found there; or those of the server."""
    return Request("GET", "/v1/languages" if ref is None else sandbox_path(ref, "languages"))
