"""h11 parses headers in quadratic time unless its pattern is replaced: in every process that parses HTTP of others."""

from __future__ import annotations

import subprocess
import sys

import h11
import pytest

from skerry.codecs import h11_headers

# A client of a server, a pull from a registry, a call of a webhook, and the network worker.
STARTS = {
    "client": "import skerry; skerry.Client",
    "async client": "import skerry; skerry.AsyncClient",
    "pull": "import skerry.images.registry.pull",
    "webhook": """if True:
        import asyncio
        from skerry.engine.network.approvals import ask_webhook
        from skerry.types import ApprovalRequest
        request = ApprovalRequest(id="q-a", sandbox="sb-a", host="a.test", port=443, at=0.0, ends_at=9.0)
        assert asyncio.run(ask_webhook("http://127.0.0.1:1/", request, 5)) is None
    """,
    "network worker": "import skerry.network.worker.egress",
}


@pytest.mark.parametrize("start", STARTS)
def test_header_pattern_is_replaced_wherever_http_of_others_is_parsed(start: str) -> None:
    code = f"{STARTS[start]}\nimport h11._readers\nprint(h11._readers.header_field_re.pattern.decode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert r"[ \t]*+" in done.stdout


@pytest.mark.parametrize("line", [b"a:b", b"a: \t b \t", b"a:", b"a:  ", b"a: b c", b"x-y:\xff"])
def test_replaced_pattern_accepts_the_same_headers(line: bytes) -> None:
    h11_headers.harden()
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    connection.receive_data(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n")
    event = connection.next_event()
    assert isinstance(event, h11.Response)
    name, _, value = line.partition(b":")
    assert list(event.headers) == [(name, value.strip())]
