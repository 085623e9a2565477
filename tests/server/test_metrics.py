"""/metrics and /readyz."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support.listening_server import Listening
from support.server import Server, wait_until

from skerry import Network, Sandbox
from skerry.errors import NotFound


def value(text: str, name: str, **labels: str) -> float:
    for family in parse(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return 0.0


def scrape(http: httpx.Client) -> str:
    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    return answer.text


def test_figures_follow_the_life_of_a_sandbox(server: Server) -> None:
    with server.http() as http:
        before = scrape(http)
        with Sandbox(server=server.address, network=Network(allow=["other.example"])) as box:
            assert value(scrape(http), "skerry_sandboxes", state="running") >= 1
            box.run(["python3", "-c", "import socket; socket.create_connection(('denied.example', 80))"])
            denied = {"decision": "denied"}
            name = "skerry_egress_decisions_total"
            wait_until(lambda: value(scrape(http), name, **denied) > value(before, name, **denied), "the decision")
        with pytest.raises(NotFound):
            Sandbox.create(server=server.address, image="missing")
        after = scrape(http)
    for name, labels in (
        ("skerry_creates_total", {"result": "ok"}),
        ("skerry_creates_total", {"result": "not_found"}),
        ("skerry_http_requests_total", {"method": "POST", "path": "/v1/sandboxes", "status": "201"}),
        ("skerry_http_request_seconds_count", {"method": "POST", "path": "/v1/sandboxes"}),
        ("skerry_events_total", {"type": "sandbox.created"}),
        ("skerry_usage_cpu_seconds_total", {}),
        ("skerry_usage_wall_seconds_total", {}),
    ):
        assert value(after, name, **labels) > value(before, name, **labels), (name, labels)
    assert value(after, "skerry_disk_free_bytes") > 0
    assert value(after, "skerry_server_process_resident_memory_bytes") > 0
    assert value(after, "skerry_network_worker_ready") == 1


def test_open_metrics_are_sent_to_a_scraper_that_accepts_them(server: Server) -> None:
    with server.http() as http:
        answer = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert {"skerry_sandboxes", "skerry_http_requests"} <= {family.name for family in parse_open_metrics(answer.text)}


def test_figures_need_an_admin(listening: Listening, token: str) -> None:
    with listening.tcp() as http:
        assert http.get("/metrics").status_code == 401
        assert http.get("/metrics", headers={"Authorization": f"Bearer {token}"}).status_code == 403


def test_hostile_requests_add_one_series(server: Server) -> None:
    """The paths and methods of callers are no labels."""
    with server.http() as http:
        http.get("/none")
        before = len(scrape(http).splitlines())
        for number in range(50):
            for method in ("GET", "PROPFIND", "PURGE"):
                assert http.request(method, f"/none/{number}").status_code == 404
        assert len(scrape(http).splitlines()) <= before + 20


def test_ready_server_says_so_to_everybody(server: Server) -> None:
    with server.http() as http:
        http.headers.pop("Authorization", None)
        answer = http.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ok": True, "problems": []})


@pytest.fixture
def audit_disk(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Mount a small file system on a directory."""
    image, mounted = tmp_path / "disk.img", list[Path]()

    def mount(place: Path) -> Path:
        image.write_bytes(b"")
        os.truncate(image, 16 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        place.mkdir(parents=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


def test_server_with_a_failed_audit_disk_is_not_ready_and_does_nothing(
    make_server: Callable[[], Server], audit_disk: Callable[[Path], Path]
) -> None:
    """First a full disk, which gets space again; then one that fails as after an I/O error."""
    server = make_server()
    place = audit_disk(server.state_dir / "audit")
    server.start()
    try:
        with server.http() as http:
            assert unready(http) == []
            subprocess.run(["dd", "if=/dev/zero", f"of={place}/full", "bs=4k"], check=False, capture_output=True)
            wait_until(lambda: use_space(http) == ["audit"], "the reserved space to be used")
            assert value(scrape(http), "skerry_audit_writable") == 0
            (place / "full").unlink()
            wait_until(lambda: unready(http) == [], "the space to be used again")
            subprocess.run(["mount", "-o", "remount,abort", str(place)], check=True)
            wait_until(lambda: unready(http) == ["audit"], "the failure to be noticed without an action")
            refused = http.post("/v1/sandboxes", json={"name": "never"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "audit_unavailable")
            assert http.get("/v1/sandboxes").json()["sandboxes"] == []
            assert http.get("/healthz").status_code == 200
    finally:
        server.end()


def unready(http: httpx.Client) -> list[str]:
    answer = http.get("/readyz")
    found: list[str] = answer.json()["problems"]
    assert answer.status_code == (503 if found else 200)
    return found


def use_space(http: httpx.Client) -> list[str]:
    for _ in range(50):
        http.post("/v1/sandboxes/none/processes?wait=true", json={"cmd": ["x" * 200] * 32})
    return unready(http)


def test_server_without_free_space_is_not_ready(make_server: Callable[[], Server]) -> None:
    server = make_server().start(SKERRY_STORAGE_MIN_FREE_SPACE="1000T")
    with server.http() as http:
        answer = http.get("/readyz")
        assert http.get("/healthz").status_code == 200
    assert answer.status_code == 503
    assert "disk" in answer.json()["problems"]
    server.retire()
