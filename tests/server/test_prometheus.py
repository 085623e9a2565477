"""A real Prometheus scrapes a real server with the configuration of docs/guides/monitoring.md and team.md."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from support.debian_programs import program
from support.pages import ROOT, texts
from support.prometheus import Prometheus
from support.server import Server, wait_until

from skerry import Client, Sandbox

GUIDES = ROOT / "docs" / "guides"


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server]) -> Iterator[Server]:
    made = make_server().start(SKERRY_SERVER_LISTEN="127.0.0.1:0", SKERRY_PRICES_CPU_HOUR="1")
    yield made
    made.retire()


@pytest.fixture(scope="module")
def metrics(server: Server) -> str:
    with server.http() as http:
        return http.get("/metrics").text


def test_prometheus_reads_the_figures_of_a_server(server: Server, tmp_path: Path) -> None:
    monitoring, team = (texts(GUIDES / page, "yaml") for page in ("monitoring.md", "team.md"))
    assert re.sub(" +#.*", "", monitoring[0]) == re.sub(" +#.*", "", team[0])
    token = tmp_path / "skerry.token"
    with Client(server.address) as client:
        token.write_text(client.tokens.create("metrics", note="prometheus").secret or "")
        tcp = next(one for one in client.info()["addresses"] if one.startswith("http"))
    shown = team[0].replace("/etc/prometheus/skerry.token", str(token)).replace("127.0.0.1:7070", tcp[len("http://") :])
    with (
        Sandbox(server=server.address),
        closing(Prometheus(tmp_path, f"global: {{scrape_interval: 1s}}\n{shown}")) as prometheus,
    ):
        wait_until(lambda: prometheus.query('skerry_sandboxes{state="running"} == 1'), "the running sandbox")
        (up,) = prometheus.query('up{job="skerry"}')
        assert up["value"][1] == "1"
        assert prometheus.query('skerry_creates_total{result="ok"} >= 1')
        assert prometheus.query('skerry_http_request_seconds_bucket{path="/v1/sandboxes",method="POST",le="+Inf"} >= 1')
        assert [target["lastError"] for target in prometheus.targets()] == [""]


def test_server_refuses_prometheus_without_a_token(server: Server, tmp_path: Path) -> None:
    with Client(server.address) as client:
        tcp = next(one for one in client.info()["addresses"] if one.startswith("http"))
    target = f"[{{targets: ['{tcp[len('http://') :]}']}}]"
    shown = f"scrape_configs: [{{job_name: skerry, scrape_interval: 1s, static_configs: {target}}}]\n"
    with closing(Prometheus(tmp_path, shown)) as prometheus:
        wait_until(lambda: [one for one in prometheus.targets() if one["lastError"]], "the refusal")
        (one,) = prometheus.targets()
        assert one["health"] == "down"
        assert "401" in one["lastError"]


def test_tool_of_prometheus_accepts_the_figures(metrics: str) -> None:
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "metrics"], input=metrics, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_uses_figures_that_exist(metrics: str) -> None:
    dashboard = json.loads((ROOT / "examples" / "grafana" / "skerry.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"\bskerry_\w+", text)}
    known = set()
    for family in parse(metrics):
        known.add(family.name)
        known |= {f"{family.name}_{suffix}" for suffix in SUFFIXES.get(family.type, ())}
    assert used - known == set()
    assert len(used) > 15


SUFFIXES = {"counter": ("total",), "histogram": ("bucket", "count", "sum")}


def test_documented_figures_exist(metrics: str) -> None:
    page = (GUIDES / "monitoring.md").read_text()
    for name in re.findall(r"^\| `(skerry_\w+)|, `(skerry_\w+)", page, re.MULTILINE):
        assert re.search(rf"^# TYPE {next(filter(None, name))}\w* ", metrics, re.MULTILINE), name


def test_labels_of_callers_make_no_series(server: Server) -> None:
    """10,000 distinct labels, also with commas, quotes and newlines."""
    with server.http() as http, Sandbox(server=server.address) as sandbox:
        sandbox.update(labels={"first": "value"})
        http.get("/metrics")
        before = len(http.get("/metrics").text.splitlines())
        for number in range(157):
            labels = {f"key{number}.{key}": f'value "{number}",\n{key}' for key in range(64)}
            assert http.patch(f"/v1/sandboxes/{sandbox.id}", json={"labels": labels}).status_code == 200
        after = http.get("/metrics").text
    assert "key156" not in after
    assert abs(len(after.splitlines()) - before) <= 40  # routes and event types that were used for the first time
