"""git's HTTP server, called as CGI."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from urllib.parse import urlsplit

import h11

USER, TOKEN = "x-token", "push-token-of-the-tests"  # a push must present this basic login
_LOGIN = "Basic eC10b2tlbjpwdXNoLXRva2VuLW9mLXRoZS10ZXN0cw=="


async def backend(
    site: Path, request: h11.Request, target: str, body: bytes
) -> tuple[int, list[tuple[str, str]], bytes]:
    headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    parts = urlsplit(target)
    pushes = "git-receive-pack" in target
    if pushes and headers.get("authorization") != _LOGIN:
        return 401, [("www-authenticate", 'Basic realm="the test world"')], b"who are you?"
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    environment = {
        "PATH": "/usr/bin:/bin",
        "GIT_PROJECT_ROOT": str(site),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_PROTOCOL": headers.get("git-protocol", ""),
        "REQUEST_METHOD": request.method.decode(),
        "PATH_INFO": parts.path,
        "QUERY_STRING": parts.query,
        "CONTENT_TYPE": headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(body)),
        **({"REMOTE_USER": USER} if pushes else {}),
    }
    process = await asyncio.create_subprocess_exec(
        "git", "http-backend", env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate(body)
    head, _, answer = out.partition(b"\r\n\r\n")
    fields = [line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")]
    status = next((int(value.split()[0]) for name, value in fields if name == "Status"), 200)
    return status, [(name, value) for name, value in fields if name != "Status"], answer
