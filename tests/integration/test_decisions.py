"""Decisions about hunks of a workspace over HTTP; the tests share one sandbox, each with separate files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from support.server import Server

from skerry import Client, Sandbox
from skerry.client.transport.requests import review as requests
from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.types import AppliedRequest, Decisions, Hunk, Review

LINES = "".join(f"line {n}\n" for n in range(60))
NAMES = ("plain.py", "moved.py", "two.py", "edited.py", "land.py", "why.py", "race.py", "watched.py", "sub/swept.py")


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Client(server.address) as client, Sandbox(server=client) as made:
        for name in NAMES:
            made.files.write(f"/workspace/{name}", LINES)
        made.files.write("/workspace/crlf.txt", b"one\r\ntwo\r\n\xff\r\nno end")
        made.review.start()
        yield made


def change(sandbox: Sandbox, name: str, *numbers: int, to: str = "changed") -> tuple[Hunk, ...]:
    marks = "; ".join(f"s/^line {number}$/{to} {number}/" for number in numbers)
    sandbox.run(f"sed -i '{marks}' /workspace/{name}", check=True)
    return sandbox.review.changes(name).hunks


def state(sandbox: Sandbox, name: str) -> list[str]:
    return [hunk.state for hunk in sandbox.review.changes(name).hunks]


def content(sandbox: Sandbox, oid: str) -> bytes:
    with sandbox.client.stream(requests.blob(sandbox.id, oid)) as chunks:
        data = b"".join(chunks)
    assert hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == oid
    return data


def tell(sandbox: Sandbox, name: str, digest: str | None = None, *, back: bool = False) -> None:
    apply = AppliedRequest(id=name * 32, digest=digest)
    request = requests.record_undo(sandbox.id, apply.id) if back else requests.record_apply(sandbox.id, apply)
    sandbox.client.request(request)


def test_hunks_are_listed_and_decided_by_object_or_id(sandbox: Sandbox) -> None:
    first, second = change(sandbox, "plain.py", 5, 40)
    assert (first.kind, first.state, first.old_start, first.heading) == ("text", "open", 3, "line 1")
    assert first.text.splitlines()[3:5] == ["-line 5", "+changed 5"]
    assert second.heading == "line 36"
    [now] = sandbox.review.accept(first)
    assert (now.id, now.state) == (first.id, "accepted")
    [now] = sandbox.review.reject(second.id, reason="keep forty")
    assert (now.state, now.reason) == ("rejected", "keep forty")
    assert sandbox.review.hunk(first) == sandbox.review.changes("plain.py").hunks[0]
    review = sandbox.review.changes("plain.py", state="rejected")
    assert [hunk.id for hunk in review.hunks] == [second.id]
    assert (review.accepted, review.rejected, review.open) == (1, 1, 0)
    [now] = sandbox.review.reopen(second)
    assert now.state == "open"
    with pytest.raises(NotFound):
        sandbox.review.hunk("h-0123456789abcdef")


def test_decision_follows_its_hunk_and_is_dropped_when_the_content_changes(sandbox: Sandbox) -> None:
    [hunk] = change(sandbox, "moved.py", 30)
    sandbox.review.accept(hunk)
    sandbox.run("cd /workspace && sed -i '1i top' moved.py && sed -i 's/^changed 30$/changed 30\\nand more/' moved.py")
    parts = sandbox.review.changes("moved.py").hunks
    assert [part.state for part in parts] == ["open", "accepted", "open"]
    assert parts[1].replacement == hunk.replacement == "changed 30\n"
    change(sandbox, "moved.py", to="evil")
    sandbox.run("sed -i 's/^changed 30$/evil 30/' /workspace/moved.py", check=True)
    assert "accepted" not in state(sandbox, "moved.py")


def test_concurrently_changed_hunk_is_a_conflict(sandbox: Sandbox) -> None:
    first, second = change(sandbox, "two.py", 5, 40)
    sandbox.run("sed -i 's/^changed 5$/other 5/' /workspace/two.py", check=True)
    with pytest.raises(Conflict, match=f"{first.id} has changed or is gone") as caught:
        sandbox.review.accept(second, first)
    assert "its content changed" in str(caught.value.hint)
    assert state(sandbox, "two.py") == ["open", "open"]


def test_decision_of_another_reviewer_is_a_visible_conflict(sandbox: Sandbox) -> None:
    [hunk] = [one for one in sandbox.review.changes("two.py").hunks if "40" in one.text]
    [accepted] = sandbox.review.accept(hunk)
    assert (accepted.decided_by, accepted.decided_at is not None) == ("uid:0", True)
    with pytest.raises(Conflict, match=f"{hunk.id} was accepted before by uid:0") as caught:
        sandbox.review.decide(Decisions(reject=(hunk.id,), seen={hunk.id: hunk.state}))
    assert caught.value.details == {"decided": [{"hunk": hunk.id, "state": "accepted"}]}
    sandbox.review.decide(Decisions(reject=(hunk.id,), seen={hunk.id: "accepted"}))
    [now] = sandbox.review.reopen(hunk)  # the same caller needs no `seen`
    assert (now.state, now.decided_by) == ("open", None)


def test_hunk_can_be_split_and_an_edited_one_is_applied_as_edited(sandbox: Sandbox) -> None:
    [whole] = change(sandbox, "edited.py", 10, 13)
    assert whole.splittable
    one, two = sandbox.review.split(whole)
    sandbox.review.reject(one)
    [edited] = sandbox.review.edit(two, "mine\n")
    assert (edited.state, edited.edited) == ("accepted", "mine\n")
    [file] = sandbox.review.accepted("edited.py").files
    assert content(sandbox, file.new_oid or "") == LINES.replace("line 13\n", "mine\n").encode()
    with pytest.raises(InvalidRequest, match="can't be split"):
        sandbox.review.split(two)
    assert [hunk.id for hunk in sandbox.review.reopen(one, two)] == [one.id, two.id]
    assert [hunk.id for hunk in sandbox.review.reopen(one, two)] == [whole.id]


def test_exactly_the_accepted_changes_are_applied_and_undone(sandbox: Sandbox) -> None:
    change(sandbox, "land.py", 5, 40)
    sandbox.run("cd /workspace && printf 'one\\r\\nTWO\\r\\n\\377\\r\\nno end' > crlf.txt && chmod +x land.py")
    hunks = sandbox.review.changes(["land.py", "crlf.txt"]).hunks
    assert [(hunk.path, hunk.kind) for hunk in hunks] == [
        ("crlf.txt", "text"), ("land.py", "mode"), ("land.py", "text"), ("land.py", "text"),
    ]  # fmt: skip
    assert hunks[0].raw is not None
    sandbox.review.accept(hunks[0], hunks[2])
    offer = sandbox.review.accepted(["land.py", "crlf.txt"])
    assert {file.path: content(sandbox, file.new_oid or "") for file in offer.files} == {
        "land.py": LINES.replace("line 5\n", "changed 5\n").encode(), "crlf.txt": b"one\r\nTWO\r\n\xff\r\nno end",
    }  # fmt: skip
    assert [(file.old_mode, file.new_mode) for file in offer.files] == [("100644", "100644")] * 2
    assert offer.entries[-1].command.endswith("chmod +x land.py")
    sandbox.run("sed -i 's/^changed 5$/again 5/' /workspace/land.py", check=True)
    tell(sandbox, "a", offer.digest)
    tell(sandbox, "a", offer.digest)
    review = sandbox.review.changes(["land.py", "crlf.txt"])
    assert [(hunk.kind, hunk.replacement) for hunk in review.hunks] == [
        ("mode", ""), ("text", "again 5\n"), ("text", "changed 40\n"),
    ]  # fmt: skip
    assert review.applied == 2
    applied = sandbox.review.changes(state="applied").hunks
    assert {(hunk.path, hunk.state) for hunk in applied} == {("crlf.txt", "applied"), ("land.py", "applied")}
    sandbox.run("sed -i 's/^again 5$/changed 5/' /workspace/land.py", check=True)
    assert len(sandbox.review.changes("land.py").hunks) == 2
    tell(sandbox, "a", back=True)
    tell(sandbox, "a", back=True)
    assert state(sandbox, "crlf.txt") == ["accepted"]
    assert state(sandbox, "land.py") == ["open", "accepted", "open"]
    with pytest.raises(NotFound):
        tell(sandbox, "b", back=True)
    with pytest.raises(NotFound):
        tell(sandbox, "c", "0" * 64)
    with pytest.raises(InvalidRequest):
        tell(sandbox, "d")


def test_origin_names_the_command_and_its_output(sandbox: Sandbox) -> None:
    sandbox.run("cd /workspace; sed -i 's/^line 5$/five/' why.py; echo did five")
    result = sandbox.run("cd /workspace; sed -i 's/^line 40$/forty/' why.py; echo did forty; echo oops >&2")
    first, second = sandbox.review.changes("why.py").hunks
    told = sandbox.review.origin(second)
    assert [entry.processes for entry in told.entries] == [(result.id,)]
    assert "echo did forty" in told.entries[0].command
    assert sorted(told.output[result.id].splitlines()) == ["did forty", "oops"]
    assert ["did five" in text for text in sandbox.review.origin(first.id).output.values()] == [True]
    sandbox.processes.remove(result.id)
    assert "no longer kept" in sandbox.review.origin(second).output[result.id]


def test_accepting_a_path_skips_flagged_hunks_and_reports_them(sandbox: Sandbox) -> None:
    sandbox.run("cd /workspace/sub && sed -i 's/^line 5$/x/' swept.py && echo 'all:' > Makefile && ln -s / link")
    decided = sandbox.review.decide(Decisions(do="accept", paths=("sub",)))
    assert {hunk.path for hunk in decided.hunks} == {"sub/swept.py"}
    assert {hunk.path for hunk in decided.held_back} == {"sub/Makefile", "sub/link"}
    assert all(hunk.risk and hunk.state == "open" for hunk in decided.held_back)
    flagged = decided.held_back[0]
    assert [hunk.state for hunk in sandbox.review.accept(flagged)] == ["accepted"]


def test_names_of_every_kind_can_be_decided(sandbox: Sandbox) -> None:
    names = [
        b"new\nline",
        b"\x1b[31mred",
        "\u202egnp.exe".encode(),
        b"\xff\xfe",
        b'quo"te',
        b":(glob)**",
        b"-rf",
        b"a\\b",
    ]
    make = "import sys; [open(b'/workspace/odd/' + bytes.fromhex(n), 'w').write('x\\n') for n in sys.argv[1:]]"
    sandbox.run(["mkdir", "/workspace/odd"], check=True)
    sandbox.run(["python3", "-c", make, *(name.hex() for name in names)], check=True)
    hunks = sandbox.review.changes("odd").hunks
    told = {hunk.raw_path if hunk.raw_path is not None else hunk.path.encode(): hunk for hunk in hunks}
    assert set(told) == {b"odd/" + name for name in names}
    sandbox.review.accept(*hunks[:-1])
    accepted = sandbox.review.accepted("odd").files
    assert {file.raw_path or file.path.encode() for file in accepted} == set(told) - {_raw(hunks[-1])}
    for name in names:
        [found] = sandbox.review.changes(os.fsdecode(b"odd/" + name)).hunks
        assert found.id == told[b"odd/" + name].id
    decided = sandbox.review.decide(Decisions(do="reopen", paths=(os.fsdecode(b"odd/" + names[0]),)))
    assert [_raw(hunk) for hunk in decided.hunks] == [b"odd/" + names[0]]
    assert [entry.kind for entry in sandbox.review.origin(told[b"odd/\xff\xfe"]).entries] == ["command"]


def _raw(hunk: Hunk) -> bytes:
    return hunk.raw_path if hunk.raw_path is not None else hunk.path.encode()


def test_decisions_of_concurrent_reviewers_are_both_kept(server: Server, sandbox: Sandbox) -> None:
    hunks = change(sandbox, "race.py", 5, 20, 35, 50)
    failed: list[Exception] = []

    def say(mine: Hunk) -> None:
        try:
            with Client(server.address) as client:
                same = Sandbox.get(sandbox.id, server=client)
                for _ in range(3):
                    same.review.reject(mine, reason=mine.id)
                    same.review.accept(mine)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=say, args=(hunk,)) for hunk in hunks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert state(sandbox, "race.py") == ["accepted"] * 4


def test_agent_inside_can_read_rejections_and_reasons(sandbox: Sandbox) -> None:
    def inside() -> list[dict[str, str]]:
        told = json.loads(sandbox.run(["cat", "/run/skerry/review.json"], check=True).stdout)
        return [one for one in told["rejected"] if one["path"] == "plain.py"]

    [_, second] = sandbox.review.changes("plain.py").hunks
    sandbox.review.reject(second, reason="keep \u00fcbung")
    [told] = inside()
    assert (told["reason"], "+changed 40" in told["text"]) == ("keep \u00fcbung", True)
    sandbox.review.reopen(second)
    assert inside() == []
    assert not sandbox.run("echo x > /run/skerry/review.json").ok


def test_watcher_receives_hunks_and_decisions(sandbox: Sandbox) -> None:
    with sandbox.review.watch() as watch:
        sandbox.run("sed -i 's/^line 5$/five/' /workspace/watched.py", check=True)
        event = next(watch)
        while event.type != "change" or all(file.path != "watched.py" for file in event.files):
            event = next(watch)
        [hunk] = event.files[0].hunks
        sandbox.review.accept(hunk)
        event = next(watch)
        assert (event.type, [(one.id, one.state) for one in event.hunks]) == ("decision", [(hunk.id, "accepted")])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"accept": ["x"]}, 400), ({"accept": ["h-0123456789abcdeF"]}, 400), ({"do": "accept"}, 400),
        ({"all": True}, 400), ({"do": "accept", "all": True, "paths": ["a"]}, 400), ({"do": "erase", "all": True}, 400),
        ({"accept": ["h-" + "0" * 16], "reason": "x" * 5000}, 400), ({"nonsense": 1}, 400), ([], 400),
        ({"accept": ["h-" + "0" * 16]}, 409), ({"edit": {"h-" + "0" * 16: "x\u0000"}}, 400),
        ({"do": "reject", "paths": ["nowhere"]}, 200), ({"do": "accept", "all": True, "tip": "0" * 40}, 400),
        ({}, 200),
    ],
)  # fmt: skip
def test_invalid_decision_is_rejected(server: Server, sandbox: Sandbox, body: object, status: int) -> None:
    with server.http() as http:
        answer = http.post(f"/v1/sandboxes/{sandbox.id}/review/decisions", json=body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("hunks/x", 404), ("hunks/h-" + "0" * 16, 404), ("hunks/h-" + "0" * 16 + "/origin", 404), ("blobs/x", 404),
        ("blobs/" + "0" * 40, 404), ("patch-set?paths=../x", 400), ("patch-set?paths=%00", 400),
    ],
)  # fmt: skip
def test_missing_image_is_not_found(server: Server, sandbox: Sandbox, path: str, status: int) -> None:
    with server.http() as http:
        assert http.get(f"/v1/sandboxes/{sandbox.id}/review/{path}").status_code == status
        commit = sandbox.review.changes("plain.py").tip
        assert http.get(f"/v1/sandboxes/{sandbox.id}/review/blobs/{commit}").status_code == 404


# -- a server of their own --------------------------------------------------------------------------------------------


@contextmanager
def token(server: Server, scope: str) -> Iterator[httpx2.Client]:
    with server.http() as admin:
        url = admin.get("/v1/server").json()["addresses"][1]
        made = admin.post("/v1/tokens", json={"scope": scope, "owner": "ann"}).json()
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {made['secret']}"}, timeout=60) as client:
            yield client


def test_decisions_survive_a_server_crash_and_need_a_reviewer_token(own_server: Server) -> None:
    own_server.start("--listen", "127.0.0.1:0")
    with token(own_server, "use") as agent, token(own_server, "review") as person:
        made = agent.post("/v1/sandboxes", json={"name": "fix"}).json()["id"]
        where = f"/v1/sandboxes/{made}"
        put = agent.put(f"{where}/files", params={"path": "/workspace/a.py"}, content=LINES.encode())
        assert put.status_code == 200
        assert agent.post(f"{where}/review", json={}).status_code == 201
        changed = LINES.replace("line 5\n", "five\n").replace("line 40\n", "forty\n")
        agent.put(f"{where}/files", params={"path": "/workspace/a.py"}, content=changed.encode())
        hunks = [hunk["id"] for hunk in agent.get(f"{where}/review").json()["files"][0]["hunks"]]
        for refused in (
            agent.post(f"{where}/review/decisions", json={"accept": hunks}),
            agent.post(f"{where}/review/decisions", json={}),
            agent.post(f"{where}/review/applies", json={"id": "a" * 32, "digest": "x"}),
            agent.delete(f"{where}/review/applies/{'a' * 32}"),
        ):
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        said = {"accept": hunks[:1], "reject": hunks[1:], "reason": "no"}
        assert person.post(f"{where}/review/decisions", json=said).status_code == 200
    own_server.end(signal.SIGKILL)
    own_server.start("--listen", "127.0.0.1:0", SKERRY_FAULT="apply.base")
    with own_server.http() as http:
        assert _states(http, where) == ["accepted", "rejected"]
        digest = http.get(f"{where}/review/patch-set").json()["digest"]
        with pytest.raises(httpx2.TransportError):
            http.post(f"{where}/review/applies", json={"id": "a" * 32, "digest": digest})
    assert own_server.process is not None
    own_server.process.wait(60)
    own_server.start()
    with own_server.http() as http:
        assert _states(http, where) == ["rejected"]
        assert http.post(f"{where}/review/applies", json={"id": "a" * 32, "digest": digest}).status_code == 204
        assert _states(http, where) == ["rejected"]
        told = http.get(f"{where}/files", params={"path": "/run/skerry/review.json"}).json()
        assert [one["reason"] for one in told["rejected"]] == ["no"]
        http.post(f"{where}/stop").raise_for_status()
        assert _states(http, where) == ["rejected"]
        assert http.post(f"{where}/review/decisions", json={"do": "reopen", "all": True}).status_code == 200
        assert http.delete(f"{where}/review/applies/{'a' * 32}").status_code == 204
        assert _states(http, where) == ["accepted", "open"]
        assert http.get(where).json()["state"] == "stopped"
        hunks = [hunk["id"] for file in http.get(f"{where}/review").json()["files"] for hunk in file["hunks"]]
        http.post(f"{where}/review/decisions", json={"reject": hunks[1:], "reason": "still no"}).raise_for_status()
        http.post(f"{where}/resume").raise_for_status()
        read = {"cmd": "grep 'still no' /run/skerry/review.json"}  # its first command after the start
        done = http.post(f"{where}/processes", params={"wait": "true"}, json=read).json()
        assert done["exit_code"] == 0


def _states(http: httpx2.Client, where: str) -> list[str]:
    review = http.get(f"{where}/review").json()
    return [hunk["state"] for file in review["files"] for hunk in file["hunks"]]


def test_fork_copies_the_decisions_and_diverges(sandbox: Sandbox) -> None:
    before: Review = sandbox.review.changes("race.py")
    [fork] = sandbox.fork()
    try:
        assert fork.review.changes("race.py").hunks == before.hunks
        fork.review.reject(before.hunks[0])
        assert state(sandbox, "race.py") == ["accepted"] * 4
    finally:
        fork.delete(force=True)
