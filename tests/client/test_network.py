"""`sandbox.network` and a scripted server: sent requests, resumed streams, answered approval requests."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said
from support.server import wait_until

from skerry import Approval, ApprovalRequest, AsyncSandbox, InvalidRequest, Network, NotFound, Sandbox
from skerry.types import Preset

NDJSON = "application/x-ndjson"
INFO = {"network": {"allow": ["a.test"]}}


def attempt(seq: int, **more: object) -> bytes:
    values = {"id": f"t-{seq}", "at": 1.0, "kind": "connection", "host": "a.test", "decision": "denied", "why": "no"}
    return json.dumps({**values, "seq": seq, **more}).encode() + b"\n"


def question(name: str, host: str = "a.test") -> bytes:
    values = {"id": name, "sandbox": SANDBOX["id"], "host": host, "port": 443, "at": 1.0, "ends_at": 31.0}
    return json.dumps(values).encode() + b"\n"


def of(path: str, answer: Callable[[Asked], Said]) -> Callable[[Asked], Said]:
    """That for one path below the sandbox; the sandbox itself for all else."""
    return lambda asked: answer(asked) if path in asked.path else said(SANDBOX)


def test_changes_are_sent_unchanged(tmp_path: Path) -> None:
    with lying(tmp_path, of("/network", lambda _: said(INFO))) as server:
        with Sandbox.get("dev", server=server.address).client as client:
            sandbox = Sandbox.get("dev", server=client)
            assert sandbox.network.allow("a.test", "b.test:8080").network.allow == ("a.test",)
            sandbox.network.deny("c.test")
            sandbox.network.set(Network(allow=["d.test"], on_unknown="ask"))
            sandbox.network.show()
        sent = [(asked.method, json.loads(asked.body or b"null")) for asked in server.asked if "/network" in asked.path]
    assert sent == [
        ("PATCH", {"allow": ["a.test", "b.test:8080"]}),
        ("PATCH", {"deny": ["c.test"]}),
        ("PUT", {"allow": ["d.test"], "on_unknown": "ask"}),
        ("GET", None),
    ]


def test_invalid_rule_is_rejected_before_sending(tmp_path: Path) -> None:
    with lying(tmp_path, of("/network", lambda _: said(INFO))) as server:
        sandbox = Sandbox.get("dev", server=server.address)
        for wrong in ((), ("",), (5,)):
            with pytest.raises(InvalidRequest):
                sandbox.network.allow(*wrong)  # type: ignore[arg-type]
        sandbox.close()
        assert not any("/network" in asked.path for asked in server.asked)


def test_string_in_place_of_a_list_is_rejected_with_a_hint() -> None:
    with pytest.raises(InvalidRequest, match="not a list") as refusal:
        Network(allow="api.example.com")  # type: ignore[arg-type]
    assert refusal.value.hint == "put it in brackets: ['api.example.com']"


@pytest.mark.parametrize("wrong", [["a.test"], "open", True])
def test_invalid_policy_is_rejected_by_name(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="is not a Network") as refused:
        Sandbox(network=wrong)  # type: ignore[arg-type]
    assert "Network(allow=[" in str(refused.value.hint)
    with pytest.raises(InvalidRequest, match="is not a Network"):
        Sandbox(network=wrong, on_unknown=lambda _: False)  # type: ignore[arg-type]


def test_list_in_place_of_rules_gets_a_hint(tmp_path: Path) -> None:
    with lying(tmp_path, of("/network", lambda _: said(INFO))) as server:
        sandbox = Sandbox.get("dev", server=server.address)
        with pytest.raises(InvalidRequest, match="separate arguments"):
            sandbox.network.allow(["a.test"])  # type: ignore[arg-type]
        sandbox.close()


def test_repr_of_a_preset_hides_certificates() -> None:
    assert "BEGIN" not in repr(Network(presets=[Preset(name="pip", certificates="-----BEGIN CERTIFICATE-----")]))


def test_unset_network_differs_from_an_empty_policy(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: said(SANDBOX, 201)) as server:
        Sandbox.create(server=server.address).close()
        Sandbox.create(server=server.address, network=Network()).close()
    bodies = [json.loads(asked.body) for asked in server.asked]
    assert [body.get("network") for body in bodies] == [None, {}]


def test_peer_can_be_a_sandbox_object(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: said(SANDBOX, 201)) as server:
        other = Sandbox.get("other", server=server.address)
        other.close()
    assert Network(peers={"db": other, "cache": "my-cache"}).peers == {"db": SANDBOX["id"], "cache": "my-cache"}
    with pytest.raises(InvalidRequest, match="has not been created"):
        Network(peers={"db": Sandbox()})
    with pytest.raises(InvalidRequest, match=r"network\.peers\.db"):
        Network(peers={"db": 5})


def test_followed_log_resumes_after_a_disconnect(tmp_path: Path) -> None:
    def log(asked: Asked) -> Said:
        since = int(asked.query["since"][0])
        if since >= 4:
            return refused(404, "not_found")
        return Said(200, attempt(since + 1) + attempt(since + 2), NDJSON, whole=False)

    with lying(tmp_path, of("/log", log)) as server:
        sandbox = Sandbox.get("dev", server=server.address)
        found = sandbox.network.log(follow=True, denied=True)
        assert [next(iter(found)).seq for _ in range(4)] == [1, 2, 3, 4]
        with pytest.raises(NotFound):
            next(iter(found))
        sandbox.close()
    assert server.asked[1].query == {"follow": ["true"], "since": ["0"], "denied": ["true"]}


def test_log_without_follow_ends(tmp_path: Path) -> None:
    with lying(
        tmp_path, of("/log", lambda _: Said(200, attempt(1) + attempt(2, decision="allowed"), NDJSON))
    ) as server:
        sandbox = Sandbox.get("dev", server=server.address)
        assert [one.decision for one in sandbox.network.log(limit=2)] == ["denied", "allowed"]
        sandbox.close()
    assert server.asked[1].query["limit"] == ["2"]


class Asking:
    """A server with two approval requests, one of them repeated after each disconnect; it stores the answers."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, object]] = {}

    def __call__(self, asked: Asked) -> Said:
        if asked.method == "POST" and "/approvals/" in asked.path:
            self.answers[asked.path.rpartition("/")[2]] = json.loads(asked.body)
            return Said(204)
        if asked.path.endswith("/approvals"):
            waiting = [name for name in ("q-aaaaaaaaaa", "q-bbbbbbbbbb") if name not in self.answers]
            if not waiting:
                return refused(404, "not_found")
            return Said(200, question("q-aaaaaaaaaa") + question("q-bbbbbbbbbb", "b.test"), NDJSON, whole=False)
        return Said(204) if asked.method == "DELETE" else said(SANDBOX, 201)


def test_approval_requests_arrive_once_and_are_answered(tmp_path: Path) -> None:
    asking = Asking()
    with lying(tmp_path, asking) as server:
        sandbox = Sandbox.get("dev", server=server.address)
        questions = sandbox.network.approvals()
        for one in questions:
            sandbox.network.answer(one, one.host == "b.test", remember=True)
        with pytest.raises(NotFound):
            sandbox.network.answer("q-none/../..", True)
        sandbox.close()
    assert asking.answers == {
        "q-aaaaaaaaaa": {"allow": False, "remember": True},
        "q-bbbbbbbbbb": {"allow": True, "remember": True},
    }


@pytest.mark.parametrize(
    ("says", "sent"),
    [
        (True, {"allow": True}),
        (False, {"allow": False}),
        (None, {"allow": False}),
        ("yes", {"allow": False}),
        (Approval(allow=True, remember=True), {"allow": True, "remember": True}),
    ],
)
def test_callback_answers_in_the_background(tmp_path: Path, says: object, sent: dict[str, object]) -> None:
    asking = Asking()
    hosts: list[str] = []

    def answer(one: ApprovalRequest) -> object:
        hosts.append(one.host)
        return says

    with lying(tmp_path, asking) as server, Sandbox(server=server.address, on_unknown=answer):  # type: ignore[arg-type]
        wait_until(lambda: len(asking.answers) == 2, "two answers")
    assert asking.answers == {"q-aaaaaaaaaa": sent, "q-bbbbbbbbbb": sent}
    assert hosts == ["a.test", "b.test"]
    assert json.loads(server.asked[0].body)["network"] == {"on_unknown": "ask"}


def test_callback_that_raises_denies(tmp_path: Path) -> None:
    asking = Asking()

    def answer(_: ApprovalRequest) -> bool:
        raise RuntimeError("broken")

    with (
        warnings.catch_warnings(record=True) as heard,
        lying(tmp_path, asking) as server,
        Sandbox(server=server.address, on_unknown=answer),
    ):
        warnings.simplefilter("always")
        wait_until(lambda: len(asking.answers) == 2, "two answers")
    assert asking.answers["q-aaaaaaaaaa"] == {"allow": False}
    assert any("broken" in str(one.message) for one in heard)


def test_callback_survives_a_lost_answer(tmp_path: Path) -> None:
    """The server went while the callback thought, and its question with it; the next one is answered."""
    asking, posted = Asking(), list[str]()

    def breaking(asked: Asked) -> Said:
        if asked.method == "POST" and asked.path.endswith("/q-aaaaaaaaaa") and not posted:
            posted.append(asked.path)
            return Said(whole=False)
        return asking(asked)

    with lying(tmp_path, breaking) as server, Sandbox(server=server.address, on_unknown=lambda _: True):
        wait_until(lambda: "q-bbbbbbbbbb" in asking.answers, "the second answer")


async def test_async_callback_may_await(tmp_path: Path) -> None:
    asking = Asking()

    async def answer(one: ApprovalRequest) -> bool:
        await asyncio.sleep(0)
        return one.host == "a.test"

    with lying(tmp_path, asking) as server:
        async with AsyncSandbox(server=server.address, on_unknown=answer):
            async with asyncio.timeout(20):
                while len(asking.answers) < 2:
                    await asyncio.sleep(0.01)
    assert asking.answers == {"q-aaaaaaaaaa": {"allow": True}, "q-bbbbbbbbbb": {"allow": False}}


def test_learning_network_sends_no_approval_requests() -> None:
    with pytest.raises(InvalidRequest, match="asks no questions"):
        Sandbox(network=Network(on_unknown="learn"), on_unknown=lambda _: True)


def test_denials_are_part_of_a_result(tmp_path: Path) -> None:
    from skerry.client.results.command import result_of
    from skerry.client.transport.responses import decode
    from skerry.types import ProcessInfo, RunResult

    body = {"id": "p-1", "exit_code": 6, "duration_s": 0.1, "denied": [json.loads(attempt(3))]}
    (denied,) = result_of(
        decode(json.dumps(body).encode(), RunResult), ProcessInfo(id="p-1", cmd="x", state="exited", pid=7)
    ).denied
    assert (denied.host, denied.decision, denied.why) == ("a.test", "denied", "no")
