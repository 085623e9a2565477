"""Spans of a real server and of its client, in one trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support.server import Server, wait_until
from support.spans import Collector, ReceivedSpan

from skerry import Sandbox

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server], collector: Collector) -> Iterator[Server]:
    made = make_server().start(**collector.environment)
    yield made
    made.retire()


def test_spans_of_the_sdk_the_server_and_the_keeper_are_one_trace(server: Server, collector: Collector) -> None:
    program = """if True:
        import os
        from skerry import Sandbox
        with Sandbox(server=os.environ["ADDRESS"]) as sandbox:
            sandbox.run("echo secret-argument", env={"TOKEN": "secret-value"})
    """
    environment = {**os.environ, **collector.environment, "ADDRESS": server.address}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=100)
    client = collector.wait_for("skerry-client", "skerry POST sandboxes processes")
    route = "POST /v1/sandboxes/{ref}/processes"
    served = collector.wait_for("skerry-server", route, client.trace)
    keeper = collector.wait_for("skerry-server", "keeper POST /v1/processes", client.trace)
    assert served.parent == client.id
    assert keeper.parent == served.id
    assert served.attributes["http.route"] == "/v1/sandboxes/{ref}/processes"
    assert served.attributes["http.response.status_code"] == 200
    assert served.attributes["skerry.sandbox"].startswith("sb-")
    assert len(served.attributes["skerry.request_id"]) == 16
    assert "secret-" not in str(collector.spans())


def test_context_of_a_caller_is_continued(server: Server, collector: Collector) -> None:
    with server.http() as http:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        assert http.get("/v1/sandboxes/absent", headers=headers).status_code == 404
    span = collector.wait_for("skerry-server", "GET /v1/sandboxes/{ref}", TRACE)
    assert span.parent == PARENT
    assert span.attributes["http.response.status_code"] == 404
    assert span.attributes["error.type"] == "not_found"
    assert not span.failed


def test_malformed_context_starts_a_new_trace(server: Server, collector: Collector) -> None:
    hostile = ["", "00-0-0-01", "ff-" + TRACE, "x" * 4000, "00-" + "0" * 32 + "-" + PARENT + "-01"]
    with server.http() as http:
        for text in hostile:
            headers = {"traceparent": text, "tracestate": "=" * 600}
            assert http.get("/v1/languages", headers=headers).status_code == 200

    def found() -> list[ReceivedSpan]:
        return [one for one in collector.spans() if one.name == "GET /v1/languages"]

    wait_until(lambda: len(found()) == len(hostile), "the spans of all requests")
    assert {one.parent for one in found()} == {""}
    assert len({one.trace for one in found()}) == len(hostile)


def test_probes_make_no_spans(server: Server, collector: Collector) -> None:
    with server.http() as http:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert http.get(path).status_code == 200
    with Sandbox(server=server.address):
        pass
    collector.wait_for("skerry-server", "DELETE /v1/sandboxes/{ref}")
    assert not [one.name for one in collector.spans() if one.name.endswith(("z", "metrics"))]
