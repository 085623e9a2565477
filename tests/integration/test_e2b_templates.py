"""E2B's templates over plain HTTP: builds, limits, tags, images of a registry, and ports of their sandboxes."""

from __future__ import annotations

import io
import signal
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.archives import Item, folder, shell_layer, tar
from support.e2b import Account, Box, output
from support.registry import Made, Real
from support.server import Server, wait_until


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with Real(tmp_path_factory.mktemp("registry")).running() as real:
        yield real


def settings(registry: Real) -> dict[str, str]:
    return {"SKERRY_SERVER_WIRE": "e2b", "SKERRY_SERVER_WIRE_REGISTRIES": registry.host}


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server], registry: Real) -> Iterator[Server]:
    """Start a server that lets template builds pull from the registry."""
    made = make_server().start(**settings(registry))
    yield made
    made.retire()


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[Account]:
    made = Account(server, "ann")
    with made.http:
        yield made


@contextmanager
def box_of(account: Account, **more: Any) -> Iterator[Box]:
    made = account.create(**more)
    try:
        yield made
    finally:
        assert account.api("DELETE", f"/sandboxes/{made.id}").status_code == 204


class Template:
    """A template under construction."""

    def __init__(self, account: Account, name: str, **more: Any) -> None:
        self.account, self.name = account, name.partition(":")[0]
        made = account.api("POST", "/v3/templates", json={"name": name, "cpuCount": 1, "memoryMB": 512, **more})
        assert made.status_code == 202, made.text
        self.id = made.json()["buildID"]
        self.build = f"/templates/{self.name}/builds/{self.id}"

    def upload(self, name: str, files: dict[str, bytes]) -> str:
        """Upload an archive; return the path and query of its URL."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for path, data in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        there = self.account.api("GET", f"/templates/{self.name}/files/{name}")
        assert (there.status_code, there.json()["present"]) == (201, False)
        url: str = "/" + there.json()["url"].partition("//")[2].partition("/")[2]
        assert self.account.http.put(url, content=packed.getvalue()).status_code == 200
        return url

    def start(self, steps: list[tuple[str, list[str], str | None]], **more: Any) -> httpx2.Response:
        shown = [{"type": kind, "args": args, "filesHash": name} for kind, args, name in steps]
        base = {} if "fromImage" in more else {"fromTemplate": "base"}
        return self.account.api("POST", f"/v2{self.build}", json={**base, "steps": shown, **more})

    def make(self, *lines: str, **more: Any) -> str:
        """Build with commands; return the text of the log."""
        assert self.start([("RUN", [line], None) for line in lines], **more).status_code == 202
        state = self.end()
        assert state["status"] == "ready", state
        return "\n".join(state["logs"])

    def end(self) -> dict[str, Any]:
        state: dict[str, Any] = {}

        def has_ended() -> bool:
            state.update(self.account.api("GET", f"{self.build}/status").json())
            return bool(state["status"] in ("ready", "error"))

        wait_until(has_ended, "the build", 180)
        return state


def test_template_is_built_from_uploaded_files_and_steps(account: Account) -> None:
    template = Template(account, "app")
    url = template.upload("f00", {"src/a.txt": b"A", "src/.hidden": b"H"})
    for other in (f"{url}x", url.replace("f00", "f01"), url.partition("?")[0]):
        assert account.http.put(other, content=b"no").status_code in (400, 401), other
    steps = [
        ("ENV", ["COLOUR", "red"], None), ("WORKDIR", ["/app"], None), ("COPY", ["src", "in", "", ""], "f00"),
        ("RUN", ["echo $COLOUR > made; id -un >> made; pwd >> made"], None),
    ]  # fmt: skip
    commands = {"startCmd": "echo started > /tmp/started; sleep 600", "readyCmd": "[ -e /tmp/started ]"}
    assert template.start(steps, **commands).status_code == 202
    assert template.start(steps).status_code == 409
    state = template.end()
    assert state["status"] == "ready", state
    assert account.api("GET", "/templates/aliases/app").json() == {"templateID": "app", "public": False}
    assert [one["templateID"] for one in account.api("GET", "/templates").json()] == ["app"]
    box = account.create(templateID="app")
    try:
        assert output(box.run("cat /app/made /app/in/a.txt /app/in/.hidden")) == b"red\nuser\n/app\nAH"
        wait_until(lambda: output(box.run("cat /tmp/started")) == b"started\n", "the start command")
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204
    assert account.api("DELETE", "/templates/app").status_code == 204
    assert account.api("GET", "/templates/aliases/app").status_code == 404


def test_sandbox_is_deleted_if_its_start_command_cannot_start(account: Account) -> None:
    template = Template(account, "brief")
    replaced = "rmdir /home/user/here && touch /home/user/here"  # the directory of the start command
    steps = [("WORKDIR", ["here"], None), ("RUN", ["pwd"], None)]
    assert template.start(steps, startCmd="sleep 600", readyCmd=replaced).status_code == 202
    state = template.end()
    assert state["status"] == "ready", state
    before = account.api("GET", "/v2/sandboxes").json()
    answer = account.api("POST", "/sandboxes", json={"templateID": "brief", "timeout": 600})
    assert (answer.status_code, answer.json()["code"]) == (400, 400), answer.text
    assert account.api("GET", "/v2/sandboxes").json() == before
    assert account.api("DELETE", "/templates/brief").status_code == 204


def test_failed_step_of_a_build_is_named(account: Account) -> None:
    failed = Template(account, "failed")
    assert failed.start([("USER", ["user"], None), ("RUN", ["exit 7"], None)]).status_code == 202
    escaping = Template(account, "escaping")
    escaping.upload("f02", {"../../home/user/escaped": b"E"})
    assert escaping.start([("COPY", ["*", "/app/", "", ""], "f02")]).status_code == 202
    state = failed.end()
    assert (state["status"], state["reason"]["step"]) == ("error", "2")
    assert "exit status 7" in state["reason"]["message"]
    state = escaping.end()
    assert (state["status"], state["reason"]["step"]) == ("error", "1")
    assert account.api("GET", "/templates/aliases/failed").status_code == 404


def test_sandbox_of_a_template_has_its_limits(account: Account) -> None:
    Template(account, "sized", cpuCount=2, memoryMB=768).make("true")
    (shown,) = [one for one in account.api("GET", "/templates").json() if one["templateID"] == "sized"]
    assert (shown["cpuCount"], shown["memoryMB"]) == (2, 768)
    with box_of(account, templateID="sized") as box:
        made = account.api("GET", f"/sandboxes/{box.id}").json()
        assert (made["cpuCount"], made["memoryMB"]) == (2, 768)
    with box_of(account) as box:
        assert account.api("GET", f"/sandboxes/{box.id}").json()["memoryMB"] == 2048
    refused = account.api("POST", "/v3/templates", json={"name": "tiny", "memoryMB": 1})
    assert (refused.status_code, refused.json()["code"]) == (400, 400)


def test_step_of_an_earlier_build_is_not_run_again(account: Account) -> None:
    def stamp(template: str) -> bytes:
        with box_of(account, templateID=template) as box:
            return output(box.run("cat /home/user/stamp"))

    line = "date +%s.%N > stamp"
    assert "CACHED" not in Template(account, "cached").make(line)
    first = stamp("cached")
    assert "CACHED RUN" in Template(account, "cached").make(line)
    assert stamp("cached") == first
    log = Template(account, "cached-too").make(line, "echo more >> stamp")
    assert log.count("CACHED") == 1
    assert stamp("cached-too") == first + b"more\n"
    assert "CACHED" not in Template(account, "cached").make(line, force=True)
    assert stamp("cached") != first


def test_tags_name_builds_of_a_template(account: Account) -> None:
    one, two = Template(account, "tagged:v1"), Template(account, "tagged:v2")
    one.make("echo 1 > number")
    two.make("echo 2 > number")
    tagged = account.api("POST", "/templates/tags", json={"target": "tagged:v1", "tags": ["stable", "tagged:old"]})
    assert (tagged.status_code, tagged.json()) == (201, {"buildID": one.id, "tags": ["stable", "old"]})

    def number(template: str) -> bytes:
        with box_of(account, templateID=template) as box:
            return output(box.run("cat number"))

    assert (number("tagged:stable"), number("tagged:v2"), number(f"tagged:{one.id}")) == (b"1\n", b"2\n", b"1\n")
    account.api("POST", "/templates/tags", json={"target": "tagged:v2", "tags": ["stable"]})
    assert number("tagged:stable") == b"2\n"
    listed = account.api("GET", "/templates/tagged/tags").json()
    assert {tag["tag"]: tag["buildID"] for tag in listed} == {
        "v1": one.id,
        "old": one.id,
        "v2": two.id,
        "stable": two.id,
    }
    assert len(account.api("GET", "/templates/tagged").json()["builds"]) == 2
    gone = account.api("DELETE", "/templates/tags", json={"name": "tagged", "tags": ["v1", "old"]})
    assert gone.status_code == 204
    assert account.api("GET", "/templates/aliases/tagged:v1").status_code == 404
    for tags in (["-x"], ["tagged:"], [":x"], [""], ["a b"], []):
        answer = account.api("POST", "/templates/tags", json={"target": "tagged:v2", "tags": tags})
        assert (answer.status_code, answer.json()["code"]) == (400, 400), tags


def test_template_of_another_owner_is_not_found(server: Server, account: Account) -> None:
    Template(account, "private").make("true")
    with (other := Account(server, "eve")).http:
        assert other.api("POST", "/sandboxes", json={"templateID": "private"}).status_code == 404
        for method, path, body in (
            ("GET", "/templates/private", None), ("GET", "/templates/private/tags", None),
            ("PATCH", "/v2/templates/private", {"public": False}), ("DELETE", "/templates/private", None),
            ("POST", "/templates/tags", {"target": "private", "tags": ["x"]}),
            ("DELETE", "/templates/tags", {"name": "private", "tags": ["default"]}),
        ):  # fmt: skip
            answer = other.api(method, path, **({"json": body} if body is not None else {}))
            assert (answer.status_code, answer.json()["code"]) == (404, 404), path
    assert account.api("PATCH", "/v2/templates/private", json={"public": True}).status_code == 400
    assert account.api("PATCH", "/v2/templates/private", json={"public": False}).json() == {"names": ["private"]}


def test_log_of_a_build_has_pages_and_levels(account: Account) -> None:
    template = Template(account, "logged")
    template.make("echo out; echo err >&2")
    logs = account.api("GET", f"{template.build}/logs").json()["logs"]
    assert {"out", "err"} <= {one["message"] for one in logs}
    warnings = account.api("GET", f"{template.build}/logs", params={"level": "warn"}).json()["logs"]
    assert [one["message"] for one in warnings] == ["err"]
    last = account.api("GET", f"{template.build}/logs", params={"direction": "backward", "limit": 1}).json()["logs"]
    assert last == logs[-1:]


def test_build_pulls_its_image_from_a_permitted_registry(account: Account, registry: Real, base_store: Path) -> None:
    """The image has no bash, so the build has no commands."""
    users = Item("etc/passwd", b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    registry.push("mini", Made([shell_layer(base_store), tar(folder("etc"), users)]))
    template = Template(account, "pulled")
    assert template.start([("ENV", ["A", "b"], None)], fromImage=f"{registry.host}/mini").status_code == 202
    state = template.end()
    assert state["status"] == "ready", state
    assert any("Pulling" in line for line in state["logs"])


def test_build_pulls_from_no_other_registry(account: Account) -> None:
    template = Template(account, "elsewhere")
    assert template.start([], fromImage="127.0.0.1:9/secret:1").status_code == 202
    state = template.end()
    assert state["status"] == "error"
    assert "not found" in state["reason"]["message"]
    refused = Template(account, "login")
    login = {"type": "registry", "username": "u", "password": "p"}
    assert refused.start([], fromImage="127.0.0.1:9/secret:1", fromImageRegistry=login).status_code == 202
    assert "fromImageRegistry" in refused.end()["reason"]["message"]


def test_interpreter_without_its_image_names_the_command(account: Account) -> None:
    answer = account.api("POST", "/sandboxes", json={"templateID": "code-interpreter-v1"})
    assert answer.status_code == 404
    assert "skerry image build data" in answer.json()["message"]


def test_templates_survive_a_killed_server(server: Server, account: Account, registry: Real) -> None:
    """A build that was under way leaves neither a template nor a sandbox. This test is the last one: it restarts the
    server."""
    Template(account, "lasting:v1", cpuCount=2, memoryMB=600).make("echo 1 > number")
    slow = Template(account, "slow")
    assert slow.start([("RUN", ["sleep 600"], None)]).status_code == 202

    def builds() -> list[str]:
        with server.http() as http:
            found = http.get("/v1/sandboxes").json()["sandboxes"]
            return [one["id"] for one in found if "skerry.e2b-build" in one["labels"]]

    wait_until(lambda: bool(builds()), "the sandbox of the build")
    server.end(signal.SIGKILL)
    server.start(**settings(registry))
    wait_until(lambda: not builds(), "the end of the build's sandbox")
    assert account.api("GET", f"{slow.build}/status").status_code == 404
    assert account.api("GET", "/templates/aliases/slow").status_code == 404
    assert [tag["tag"] for tag in account.api("GET", "/templates/lasting/tags").json()] == ["v1"]
    with box_of(account, templateID="lasting:v1") as box:
        assert account.api("GET", f"/sandboxes/{box.id}").json()["memoryMB"] == 600
        assert output(box.run("cat number")) == b"1\n"
