"""h11 parses headers in quadratic time unless its pattern is replaced: in every process that parses HTTP of others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import h11
import pytest

import skerry
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
    "ports of E2B": "import skerry.server.wire.e2b.ports",
}
WORKER = "network/worker/"  # the package's first module replaces the pattern


@pytest.mark.parametrize("start", STARTS)
def test_header_pattern_is_replaced_wherever_http_of_others_is_parsed(start: str) -> None:
    code = f"{STARTS[start]}\nimport h11._readers\nprint(h11._readers.header_field_re.pattern.decode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert r"[ \t]*+" in done.stdout


def test_module_that_parses_with_h11_replaces_the_pattern_itself() -> None:
    sources = Path(skerry.__file__).parent
    files = {str(file.relative_to(sources)): file.read_text() for file in sources.rglob("*.py")}
    parsing = [name for name, text in files.items() if re.search(r"^import h11$", text, re.MULTILINE)]
    assert len(parsing) > 3
    others = [name for name in parsing if not name.startswith(WORKER)]
    assert [name for name in others if "\nh11_headers.harden()" not in files[name]] == []


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
