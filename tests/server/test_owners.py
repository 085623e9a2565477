"""Objects of another owner are not found, on every route of the table, with real sandboxes behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from support.server import Server
from support.terminal_viewers import KEY

from skerry.server.app import ROUTES

HANDSHAKE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/review/deleted/{ref}"): {"json": {}},
    ("POST", "/v1/sandboxes/{ref}/processes"): {"json": {"cmd": ["true"]}, "params": {"wait": "true"}},
    ("POST", "/v1/sandboxes/{ref}/processes/{process}/signal"): {"json": {"signal": "KILL"}},
    ("POST", "/v1/sandboxes/{ref}/processes/{process}/resize"): {"json": {"cols": 80, "rows": 24}},
    ("POST", "/v1/sandboxes/{ref}/processes/{process}/stdin"): {"content": b"x"},
    ("GET", "/v1/sandboxes/{ref}/processes/{process}/terminal"): {"headers": HANDSHAKE},
    ("POST", "/v1/sandboxes/{ref}/sessions"): {"json": {"name": "stolen"}},
    ("POST", "/v1/sandboxes/{ref}/code"): {"json": {"code": "stolen = 1"}},
    ("POST", "/v1/sandboxes/{ref}/contexts"): {"json": {"name": "stolen"}},
    ("GET", "/v1/sandboxes/{ref}/files"): {"params": {"path": "/etc/hostname"}},
    ("PUT", "/v1/sandboxes/{ref}/files"): {"params": {"path": "/workspace/stolen"}, "content": b"x"},
    ("DELETE", "/v1/sandboxes/{ref}/files"): {"params": {"path": "/workspace", "recursive": "true"}},
    ("POST", "/v1/sandboxes/{ref}/processes/{process}/tool-calls"): {"json": {"calls": []}},
    ("GET", "/v1/sandboxes/{ref}/files/stat"): {"params": {"path": "/workspace"}},
    ("GET", "/v1/sandboxes/{ref}/files/list"): {"params": {"path": "/workspace"}},
    ("GET", "/v1/sandboxes/{ref}/files/glob"): {"params": {"pattern": "*"}},
    ("GET", "/v1/sandboxes/{ref}/files/search"): {"params": {"pattern": "root", "path": "/etc"}},
    ("GET", "/v1/sandboxes/{ref}/files/lines"): {"params": {"path": "/etc/hostname"}},
    ("GET", "/v1/sandboxes/{ref}/files/checksum"): {"params": {"path": "/etc/hostname"}},
    ("POST", "/v1/sandboxes/{ref}/files/mkdir"): {"params": {"path": "/workspace/made"}},
    ("POST", "/v1/sandboxes/{ref}/files/move"): {"params": {"path": "/workspace", "to": "/tmp/stolen"}},
    ("POST", "/v1/sandboxes/{ref}/files/copy"): {"params": {"path": "/etc/hostname", "to": "/tmp/stolen"}},
    ("POST", "/v1/sandboxes/{ref}/files/chmod"): {"params": {"path": "/workspace", "mode": "0777"}},
    ("POST", "/v1/sandboxes/{ref}/files/chown"): {"params": {"path": "/workspace", "owner": "root"}},
    ("POST", "/v1/sandboxes/{ref}/files/replace"): {"params": {"path": "f"}, "json": {"old": "a", "new": "b"}},
    ("POST", "/v1/sandboxes/{ref}/files/patch"): {"params": {"path": "f"}, "content": b"@@ -1 +1 @@\n-a\n+b\n"},
    ("GET", "/v1/sandboxes/{ref}/files/tree"): {"params": {"path": "/workspace"}},
    ("PUT", "/v1/sandboxes/{ref}/files/tree"): {"params": {"path": "/workspace"}, "content": b"x"},
    ("GET", "/v1/sandboxes/{ref}/files/watch"): {"params": {"path": "/workspace"}},
    ("POST", "/v1/sandboxes/{ref}/files/link"): {"params": {"path": "/workspace/l", "target": "/"}},
    ("PATCH", "/v1/sandboxes/{ref}"): {"json": {"labels": {"a": "b"}}},
    ("GET", "/v1/sandboxes/{ref}/ports/{port}/connect"): {"headers": HANDSHAKE},
    ("POST", "/v1/sandboxes/{ref}/previews"): {"json": {"port": 80, "public": True}},
    ("POST", "/v1/sandboxes/{ref}/review/git/pack"): {"json": {"wants": ["0" * 40]}},
    ("POST", "/v1/sandboxes/{ref}/review"): {"json": {}},
    ("POST", "/v1/sandboxes/{ref}/review/decisions"): {"json": {"do": "accept", "all": True}},
    ("POST", "/v1/sandboxes/{ref}/review/applies"): {"json": {"id": "0" * 32, "digest": "0" * 64}},
    ("POST", "/v1/sandboxes/{ref}/snapshots"): {"json": {}},
    ("POST", "/v1/sandboxes/{ref}/restore"): {"params": {"snapshot": "sn-aaaaaaaaaa"}},
    ("POST", "/v1/sandboxes/{ref}/rename"): {"json": {"name": "mine"}},
    ("POST", "/v1/sandboxes/{ref}/fork"): {"json": {}},
    ("POST", "/v1/sandboxes/{ref}/rollback"): {"json": {"steps": 1}},
    ("PUT", "/v1/sandboxes/{ref}/network"): {"json": {"allow": ["*"]}},
    ("PATCH", "/v1/sandboxes/{ref}/network"): {"json": {"allow": ["*"]}},
    ("POST", "/v1/sandboxes/{ref}/network/approvals/{approval}"): {"json": {"allow": True}},
    ("GET", "/v1/sandboxes/{ref}/network/handlers"): {"params": {"host": "api.example.com"}},
    ("POST", "/v1/sandboxes/{ref}/network/handlers/{call}"): {"json": {}},
}
MINE = [route for route in ROUTES if "{ref}" in route.path]


@dataclass
class Two:
    """Two owners on one TCP listener; the first has a sandbox, with a process under way."""

    admin: httpx2.Client
    ann: httpx2.Client
    bob: httpx2.Client
    sandbox: str
    process: str


@pytest.fixture(scope="module")
def two(make_server: Callable[[], Server]) -> Iterator[Two]:
    server = make_server().start("--listen", "127.0.0.1:0")
    with server.http() as admin:
        url = admin.get("/v1/server").json()["addresses"][1]

        def client(owner: str) -> httpx2.Client:
            made = admin.post("/v1/tokens", json={"scope": "review", "owner": owner}).json()
            return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {made['secret']}"}, timeout=60)

        with client("ann") as ann, client("bob") as bob:
            made = ann.post("/v1/sandboxes", json={"name": "dev"})
            assert made.status_code == 201, made.text
            sandbox = made.json()["id"]
            run = {"cmd": "sleep 1000 & echo kept"}
            done = ann.post(f"/v1/sandboxes/{sandbox}/processes", params={"wait": "true"}, json=run)
            assert done.json()["stdout"] == "kept\n"
            yield Two(admin, ann, bob, sandbox, done.json()["id"])
            ann.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()
    server.retire()


def ask(client: httpx2.Client, method: str, path: str, ref: str, process: str) -> httpx2.Response:
    concrete = path.replace("{ref}", ref).replace("{process}", process).replace("{port}", "80")
    concrete = concrete.replace("{hunk}", f"h-{'0' * 16}").replace("{oid}", "0" * 40).replace("{apply}", "0" * 32)
    return client.request(method, concrete, **BODIES.get((method, path), {}))


def test_stats_have_only_the_callers_sandboxes(two: Two) -> None:
    assert [one["id"] for one in two.ann.get("/v1/stats").json()["sandboxes"]] == [two.sandbox]
    assert two.bob.get("/v1/stats").json()["sandboxes"] == []
    for ref in (two.sandbox, "dev"):
        assert two.bob.get("/v1/stats", params={"sandbox": ref}).status_code == 404


@pytest.mark.parametrize("route", MINE, ids=lambda route: f"{route.method} {route.path}")
def test_sandbox_of_another_owner_is_not_found(two: Two, route: Any) -> None:
    for ref in (two.sandbox, "dev"):
        answer = ask(two.bob, route.method, route.path, ref, two.process)
        nowhere = ask(two.bob, route.method, route.path, "sb-aaaaaaaaaa" if ref != "dev" else "nobody", two.process)
        assert answer.status_code == nowhere.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
        # The messages for a foreign and for a missing object must be equal.
        told = answer.text.replace(ref, "x")
        assert told == nowhere.text.replace("sb-aaaaaaaaaa", "x").replace("nobody", "x")


def test_every_other_route_is_admin_only_or_shows_only_own_data(two: Two) -> None:
    for route in ROUTES:
        if "{ref}" in route.path or route.scope is None:
            continue
        if route.scope == "admin":
            path = route.path.replace("{name:path}", "base").replace("{token}", "tk-a")
            assert two.bob.request(route.method, path).status_code == 403
    assert two.bob.get("/v1/sandboxes").json() == {"sandboxes": []}
    assert two.bob.get("/v1/server").json()["sandboxes"] == 0
    assert two.sandbox not in two.bob.get("/v1/images").text


def test_sandbox_of_the_owner_is_unchanged(two: Two) -> None:
    info = two.ann.get("/v1/sandboxes/dev").json()
    assert (info["id"], info["state"], info["owner"]) == (two.sandbox, "running", "ann")
    assert info.get("labels", {}) == {}
    listed = two.ann.get("/v1/sandboxes/dev/files/list", params={"path": "/workspace"}).json()
    assert not {entry["name"] for entry in listed["entries"]} & {"stolen", "made"}
    processes = two.ann.get("/v1/sandboxes/dev/processes").json()["processes"]
    assert [p["id"] for p in processes if p.get("children")] == [two.process]


def test_snapshot_of_another_owner_is_not_found(two: Two) -> None:
    where = "/v1/sandboxes/dev/snapshots"
    made = two.ann.post(where, json={"name": "deps"}).json()
    step = two.ann.post(where, json={"key": "step1"}).json()
    own = two.bob.post("/v1/sandboxes", json={"name": "own"}).json()["id"]

    def told(ref: str) -> list[tuple[int, str]]:
        answers = [
            two.bob.request(route.method, route.path.replace("{snapshot}", ref), params=wanted)
            for route, wanted in ((route, {"to": own} if "changes" in route.path else {}) for route in ROUTES)
            if "{snapshot}" in route.path
        ]
        answers.append(two.bob.post("/v1/sandboxes", json={"image": ref}))
        answers.append(two.bob.post(f"/v1/sandboxes/{own}/rollback", json={"snapshot": ref}))
        return [(answer.status_code, answer.text.replace(ref, "x")) for answer in answers]

    for ref, nowhere in ((made["id"], "sn-aaaaaaaaaa"), (step["id"], "sn-aaaaaaaaaa"), ("deps", "nobody")):
        assert told(ref) == told(nowhere)
        assert {status for status, _ in told(ref)} == {404}
    for query in ({}, {"kind": "build"}, {"key": "step1"}):
        assert two.bob.get("/v1/snapshots", params=query).json() == {"snapshots": []}
    taken = two.bob.post(f"/v1/sandboxes/{own}/snapshots", json={"name": "deps", "key": "step1"})
    assert taken.status_code == 201  # a name and a key are each owner's own
    assert two.admin.get(f"/v1/snapshots/{made['id']}").json()["owner"] == "ann"
    by_admin = two.admin.post(where.replace("dev", two.sandbox), json={}).json()
    assert by_admin["owner"] == "ann"  # for every creator: it may hold data of ann
    for client, snapshot in ((two.bob, taken.json()), (two.ann, made), (two.ann, step), (two.ann, by_admin)):
        assert client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204
    assert two.bob.delete(f"/v1/sandboxes/{own}").status_code == 204


def test_delete_conflict_does_not_name_sandboxes_of_other_owners(two: Two) -> None:
    """Others come to stand on it when an admin makes an image of it."""
    made = two.ann.post("/v1/sandboxes/dev/snapshots", json={"name": "given"}).json()
    wish = {"snapshot": made["id"], "name": "given-away"}
    for wrong in ({"snapshot": made["id"]}, wish | {"rebuild": True}):
        assert two.admin.post("/v1/images", json=wrong).status_code == 400
    assert two.admin.post("/v1/images", json=wish).status_code == 201
    secret = two.bob.post("/v1/sandboxes", json={"name": "secret-plan", "image": "given-away"})
    assert secret.status_code == 201, secret.text
    refused = two.ann.delete("/v1/snapshots/given")
    assert refused.status_code == 409
    assert refused.json()["error"]["details"]["users"] == ["a sandbox of another owner", "image given-away"]
    assert "secret" not in refused.text
    assert secret.json()["id"] not in refused.text
    assert "secret-plan" in two.admin.delete(f"/v1/snapshots/{made['id']}").text
    assert two.bob.delete("/v1/sandboxes/secret-plan").status_code == 204
    assert two.admin.delete("/v1/images/given-away").status_code == 204
    assert two.ann.delete("/v1/snapshots/given").status_code == 204


def test_variables_do_not_grow_from_one_snapshot_to_the_next(two: Two) -> None:
    """The server reads every snapshot's row again and again."""
    wish = {"name": "much", "env": {"A": "a" * 80_000}}
    assert two.ann.post("/v1/sandboxes/dev/snapshots", json=wish).status_code == 201
    assert two.ann.post("/v1/sandboxes", json={"name": "more", "image": "much"}).status_code == 201
    refused = two.ann.post("/v1/sandboxes/more/snapshots", json={"env": {"B": "b" * 80_000}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert two.ann.delete("/v1/sandboxes/more").status_code == 204
    assert two.ann.delete("/v1/snapshots/much").status_code == 204


def test_names_are_unique_per_owner_only(two: Two) -> None:
    made = two.bob.post("/v1/sandboxes", json={"name": "dev"})
    assert made.status_code == 201
    assert made.json()["id"] != two.sandbox
    assert two.bob.get("/v1/sandboxes/dev").json()["id"] == made.json()["id"]
    assert two.ann.get("/v1/sandboxes/dev").json()["id"] == two.sandbox
    assert two.ann.post("/v1/sandboxes", json={"name": "dev"}).status_code == 409
    assert two.bob.delete("/v1/sandboxes/dev").status_code == 204


def test_idempotency_keys_are_separate_per_owner(two: Two) -> None:
    key = {"Idempotency-Key": "same"}
    ids = [client.post("/v1/sandboxes", json={}, headers=key).json()["id"] for client in (two.ann, two.bob, two.bob)]
    assert ids[0] != ids[1] == ids[2]
    for client, sandbox in zip((two.ann, two.bob), ids[:2], strict=True):
        assert client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204


def test_admin_sees_sandboxes_of_all_owners(two: Two) -> None:
    assert two.sandbox in [s["id"] for s in two.admin.get("/v1/sandboxes").json()["sandboxes"]]
    assert two.admin.get(f"/v1/sandboxes/{two.sandbox}").json()["owner"] == "ann"


def test_volume_of_another_owner_is_not_found(two: Two) -> None:
    made = two.ann.post("/v1/volumes", json={"name": "data", "size": "64M"}).json()["id"]
    assert two.bob.get("/v1/volumes").json() == {"volumes": []}
    routes = [route for route in ROUTES if "{volume}" in route.path]
    assert len(routes) == 5
    for ref in (made, "data"):
        for route in routes:
            body = {"json": {"name": "stolen"}} if route.method == "POST" else {}
            answer = two.bob.request(route.method, route.path.replace("{volume}", ref), **body)  # type: ignore[arg-type]
            assert answer.status_code == 404
        for word in (ref, f"{ref}:ro"):
            assert two.bob.post("/v1/sandboxes", json={"volumes": {"/data": word}}).status_code == 404
    assert two.bob.post("/v1/volumes", json={"name": "data", "size": "64M"}).status_code == 201, "names are per owner"


def test_volume_is_written_to_by_sandboxes_of_its_owner_only(two: Two) -> None:
    made = two.ann.get("/v1/volumes/data").json()["id"]
    refused = two.admin.post("/v1/sandboxes", json={"volumes": {"/data": made}})
    assert (refused.status_code, "belongs to another owner" in refused.text) == (409, True)
    lent = two.admin.post("/v1/sandboxes", json={"volumes": {"/data": f"{made}:ro"}}).json()
    assert lent["volumes"] == {"/data": f"{made}:ro"}
    refused = two.ann.delete("/v1/volumes/data")
    assert refused.status_code == 409
    assert lent["id"] not in refused.text
    two.admin.delete(f"/v1/sandboxes/{lent['id']}").raise_for_status()
    for owner in (two.ann, two.bob):
        owner.delete("/v1/volumes/data").raise_for_status()
