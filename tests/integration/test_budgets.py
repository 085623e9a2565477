"""Budgets of a real server: routes, scopes, the CLI, and sandboxes whose budget is used up."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from support.cli import skerry
from support.server import Server, wait_until

from skerry import Budget, BudgetExceeded, Client, Sandbox
from skerry.errors import InvalidRequest, NotFound, PermissionDenied

OPERATORS = """
[prices]
cpu_hour = 3600.0
"""


@pytest.fixture(autouse=True)
def clean(client: Client) -> Iterator[None]:
    yield
    for one in client.budgets.list():
        if one.sandbox is None:
            client.budgets.remove(one.id)


@pytest.fixture(scope="module")
def tokens(client: Client) -> dict[str, str]:
    """Return tokens of the owner `ann`, by scope, and of the owner `bob`."""
    made = {scope: client.tokens.create(scope, owner="ann").secret or "" for scope in ("use", "review", "admin")}
    return {**made, "bob": client.tokens.create("use", owner="bob").secret or ""}


def as_caller(server: Server, token: str) -> Client:
    return Client(server.address, token=token)


def test_budget_is_set_listed_changed_and_removed(client: Client) -> None:
    made = client.budgets.set(Budget(cpu="1h", cost=5), label="task=42")
    assert (made.label, made.owner, made.set_by, made.exceeded) == ("task=42", "local", "admin", ())
    assert made.percent == {"cpu": 0, "cost": 0}
    assert made.notice is None
    changed = client.budgets.set(Budget(cpu="2h", on_exceeded="stop"), label="task=42")
    assert changed.id == made.id
    assert client.budgets.list() == [changed]
    client.budgets.remove(made.id)
    assert client.budgets.list() == []
    with pytest.raises(NotFound, match="not found"):
        client.budgets.remove(made.id)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"label": "task=42"}, {"label": "task=42", "budget": {}}, {"label": "task", "budget": {"cpu": "1h"}},
        {"label": "task=42", "budget": {"cpu": "long"}}, {"label": "task=42", "budget": {"memory": "1G"}},
        {"label": "task=42", "budget": {"cost": "5"}}, {"label": "task=42", "budget": {"cost": 0}},
        {"label": "task=42", "budget": {"cpu": "1h", "on_exceeded": "delete"}},
        {"label": "task=42", "owner": "../x", "budget": {"cpu": "1h"}}, {"label": "a\u0000=1", "budget": {"cpu": 1}},
        {"label": ["task=42"], "budget": {"cpu": "1h"}},
    ],
)  # fmt: skip
def test_invalid_budget_is_rejected(http: httpx2.Client, body: dict[str, Any]) -> None:
    answer = http.put("/v1/budgets", json=body)
    assert answer.status_code == 400, answer.text
    assert http.get("/v1/budgets").json() == {"budgets": []}


def test_budget_of_a_higher_scope_cannot_be_changed(server: Server, tokens: dict[str, str]) -> None:
    with as_caller(server, tokens["use"]) as agent, as_caller(server, tokens["review"]) as reviewer:
        own = agent.budgets.set(Budget(cpu="1m"), label="task=1")
        assert agent.budgets.set(Budget(cpu="2m"), label="task=1").id == own.id
        raised = reviewer.budgets.set(Budget(cpu="1m"), label="task=1")
        assert (raised.id, raised.set_by) == (own.id, "review")
        with pytest.raises(PermissionDenied, match="set with the scope 'review'"):
            agent.budgets.set(Budget(cpu="9h"), label="task=1")
        with pytest.raises(PermissionDenied, match="set with the scope 'review'"):
            agent.budgets.remove(own.id)
        for caller in (agent, reviewer):
            with pytest.raises(PermissionDenied, match="admin"):
                caller.budgets.set(Budget(cpu="9h"), owner="ann")
            with pytest.raises(PermissionDenied, match="admin"):
                caller.budgets.set(Budget(cpu="9h"), label="task=1", owner="local")
        assert [one.budget.cpu for one in agent.budgets.list()] == ["1m"]
        reviewer.budgets.remove(own.id)


def test_budgets_of_another_owner_are_not_found(server: Server, client: Client, tokens: dict[str, str]) -> None:
    label = client.budgets.set(Budget(cpu="1h"), label="task=42", owner="ann")
    whole = client.budgets.set(Budget(cpu="1h"), owner="ann")
    with as_caller(server, tokens["bob"]) as bob:
        assert bob.budgets.list() == []
        for one in (label, whole):
            with pytest.raises(NotFound):
                bob.budgets.remove(one.id)
    with as_caller(server, tokens["use"]) as ann:
        assert {one.id for one in ann.budgets.list()} == {label.id, whole.id}
        with pytest.raises(PermissionDenied):
            ann.budgets.remove(whole.id)


def test_budget_of_a_sandbox(server: Server, client: Client, tokens: dict[str, str]) -> None:
    """One sandbox: its budget is part of it, labels lead to others, and a lower scope cannot leave them."""
    with as_caller(server, tokens["use"]) as agent, as_caller(server, tokens["admin"]) as admin:
        label = admin.budgets.set(Budget(cpu="1h"), label="task=a,b\nc")
        with Sandbox(budget=Budget(cpu="1h", cost=5), labels={"task": "a,b\nc"}, server=agent) as sandbox:
            assert sandbox.cached_info.budget == Budget(cpu="1h", cost=5, on_exceeded="pause")
            own, shared = agent.budgets.list(sandbox.id)
            assert (own.id, own.sandbox, own.set_by, shared.id) == (sandbox.id, sandbox.id, "use", label.id)
            sandbox.update(budget=Budget(cpu="2h"))
            operators = Sandbox.get(sandbox.id, server=admin)
            operators.update(budget=Budget(cpu="1h", on_exceeded="stop"))
            for change in (Budget(cpu="9h"), Budget()):
                with pytest.raises(PermissionDenied, match="set with the scope 'admin'"):
                    sandbox.update(budget=change)
            with pytest.raises(PermissionDenied, match="labels"):
                sandbox.update(labels={"task": "other"})
            sandbox.update(labels={"task": "a,b\nc", "more": "1"})
            with pytest.raises(NotFound, match="not found"):
                admin.budgets.remove(sandbox.id)
            with as_caller(server, tokens["bob"]) as bob, pytest.raises(NotFound):
                bob.budgets.list(sandbox.id)
            operators.update(budget=Budget(), labels={})
            assert operators.cached_info.budget is None
            assert agent.budgets.list(sandbox.id) == []
    with pytest.raises(InvalidRequest, match="is not a Budget"):
        Sandbox(budget={"cpu": "1h"}, server=client)  # type: ignore[arg-type]


def test_command_line(server: Server, client: Client) -> None:
    def cli(*words: str, ok: bool = True) -> str:
        done = skerry(*words, server=server.address)
        assert (done.returncode == 0) == ok, done.stderr
        return (done.stdout if ok else done.stderr).decode()

    name = cli("budget", "set", "--label", "task=42", "--cpu", "1h", "--cost", "5").strip()
    listed = json.loads(cli("budget", "ls", "--json"))
    assert [(one["id"], one["budget"]["cpu"]) for one in listed] == [(name, "1h")]
    assert "CPU time" in cli("budget", "ls")
    assert "required" in cli("budget", "set", "--cpu", "1h", ok=False)
    assert "NAME=VALUE" in cli("create", "--budget", "cpu:1h", ok=False)
    sandbox = cli("create", "--label", "task=42", "--budget", "wall=1h").strip()
    try:
        shown = cli("show", sandbox)
        assert "label task=42" in shown
        assert f"sandbox {sandbox}" in shown
        assert "BUDGET" in cli("ls")
        assert [one["id"] for one in json.loads(cli("show", sandbox, "--json"))["budgets"]] == [sandbox, name]
        cli("update", sandbox, "--budget", "cpu=2h,on_exceeded=stop")
        assert Sandbox.get(sandbox, server=client).cached_info.budget == Budget(cpu="2h", on_exceeded="stop")
        cli("update", sandbox, "--budget", "none")
        assert [one.id for one in client.budgets.list(sandbox)] == [name]
    finally:
        cli("rm", sandbox)
    cli("budget", "rm", "--label", "task=42")
    assert client.budgets.list() == []


def test_used_up_budgets_end_sandboxes_after_a_restart(own_server: Server) -> None:
    """A server was killed after it had stored the used amounts: its successor pauses and stops the sandboxes, and no
    command, start, resume, fork or creation is possible until the budgets are raised."""
    own_server.start()
    with Client(own_server.address) as client:
        label = client.budgets.set(Budget(cpu=10, cost=5), label="task=42")
        assert "no prices are set" in (label.notice or "")
        pausing = Sandbox.create(name="pausing", labels={"task": "42"}, server=client)
        stopping = Sandbox.create(name="stopping", budget=Budget(wall=5, on_exceeded="stop"), server=client)
        own_server.end(signal.SIGKILL)
        for budget, cpu, wall in ((label.id, 11_000_000, 0), (stopping.id, 0, 5_000_000)):
            own_server.sql("INSERT OR REPLACE INTO budget_use VALUES (?, ?, 0, 0, ?, '{}')", budget, cpu, wall)
        own_server.start()
        for sandbox, state in ((pausing, "paused"), (stopping, "stopped")):
            wait_until(lambda s=sandbox, t=state: s.info().state == t, f"{sandbox.name} to be {state}")  # type: ignore[misc]
            assert "a budget is used up" in (sandbox.info().reason or "")
            for call in (
                lambda s=sandbox: s.run("true"),
                sandbox.resume,
                sandbox.fork,
                lambda s=sandbox: s.spawn("true"),
            ):  # type: ignore[misc]
                with pytest.raises(BudgetExceeded, match="a budget is used up") as caught:
                    call()
                assert "raise it" in (caught.value.hint or "")
        with pytest.raises(BudgetExceeded, match="CPU time 11s of 10s"):
            Sandbox.create(labels={"task": "42"}, server=client)
        assert [one.exceeded for one in client.budgets.list(pausing.id)] == [("cpu",)]
        client.budgets.set(Budget(cpu=1000), label="task=42")
        stopping.update(budget=Budget(wall=1000))
        for sandbox in (pausing, stopping):
            assert sandbox.run("true").ok


# -- enforcement ------------------------------------------------------------------------------------------------------

BURN = "while :; do :; done"


def exhausted(call: Callable[[], object]) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded, match="a budget is used up") as caught:
        call()
    return caught.value


def race(client: Client, count: int, seconds: float) -> None:
    """Let sandboxes burn CPU time at once until the budget of their label is used up."""
    budget = client.budgets.set(Budget(cpu=seconds), label=f"race={count}")
    with ThreadPoolExecutor(count) as threads:
        sandboxes = list(
            threads.map(lambda _: Sandbox.create(labels={"race": str(count)}, server=client), range(count))
        )
        try:
            errors = list(threads.map(lambda one: exhausted(lambda: one.run(BURN, timeout=300)), sandboxes))
            assert {error.details["budget"] for error in errors} == {budget.id}
            for sandbox in sandboxes:
                wait_until(lambda s=sandbox: s.info().state == "paused", "the sandbox to be paused")  # type: ignore[misc]
                exhausted(lambda s=sandbox: s.run("true"))  # type: ignore[misc]
            before = sum(sandbox.usage().cpu_s for sandbox in sandboxes)
            (now,) = [one for one in client.budgets.list() if one.id == budget.id]
            after = sum(sandbox.usage().cpu_s for sandbox in sandboxes)
            assert before - 1e-6 * count <= now.used.cpu_s <= after + 1e-6 * count
            assert now.used.cpu_s >= seconds
            assert now.exceeded == ("cpu",)
            kinds = [event.type for event in client.events(type="budget") if f"'race={count}'" in (event.reason or "")]
            assert kinds == ["budget.warning", "budget.exceeded"]
            recorded = [one.type for one in client.audit.records(type="budget", actor="sandbox")
                        if f"'race={count}'" in str(one.params)]  # fmt: skip
            assert recorded == ["budget.exceeded", "budget.warning"]
        finally:
            list(threads.map(lambda one: one.delete(), sandboxes))
    (left,) = [one for one in client.budgets.list() if one.id == budget.id]
    assert left.used.cpu_s >= now.used.cpu_s, "a deletion gives nothing back"
    exhausted(lambda: Sandbox.create(labels={"race": str(count)}, server=client))


def test_concurrent_sandboxes_share_a_budget_exactly(client: Client) -> None:
    race(client, 10, 4.0)


@pytest.mark.soak
def test_fifty_concurrent_sandboxes_share_a_budget_exactly(client: Client) -> None:
    race(client, 50, 20.0)


def test_usage_counts_to_the_labels_in_force_and_survives_a_killed_server(own_server: Server) -> None:
    own_server.start()
    burn = ["python3", "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    with Client(own_server.address) as client:
        for task in "12":
            client.budgets.set(Budget(cpu="1h"), label=f"task={task}")
        sandbox = Sandbox.create(name="dev", labels={"task": "1"}, budget=Budget(cpu="1h"), server=client)
        assert sandbox.run(burn).ok
        sandbox.update(labels={"task": "2"})
        first = {one.label: one.used.cpu_s for one in client.budgets.list()}["task=1"]
        assert first >= 0.5
        client.usage("sandbox")  # the meter stores its figures
        own_server.end(signal.SIGKILL)
        own_server.start()
        assert sandbox.run(burn).ok
        assert sandbox.run(burn).ok
        before = sandbox.usage().cpu_s
        used = {one.label: one.used.cpu_s for one in client.budgets.list()}
        after = sandbox.usage().cpu_s
        assert used["task=1"] == first
        assert used["task=2"] >= 1.0
        assert before - 1e-5 <= used["task=1"] + used["task=2"] <= after + 1e-5
        assert before - 1e-5 <= used[None] <= after + 1e-5, "the sandbox's own budget"
        own_server.end(signal.SIGKILL)
        for lost in own_server.state_dir.glob("usage.db*"):
            lost.unlink()
        own_server.start()
        assert sandbox.run(burn).ok
        sandbox.usage()  # the list may be half a second old
        again = {one.label: one.used.cpu_s for one in client.budgets.list()}
        assert again["task=2"] >= used["task=2"] + 0.5, "budgets do not depend on the stored figures of the meter"
        sandbox.delete()
        assert {one.label for one in client.budgets.list()} == {"task=1", "task=2"}


def test_waiting_calls_end_and_an_idle_sandbox_is_stopped(client: Client) -> None:
    """Code in a context, a background process and no process at all: each uses up its own budget."""
    coding = Sandbox.create(budget=Budget(cost=1.5), server=client)
    behind = Sandbox.create(budget=Budget(cpu=1), server=client)
    idle = Sandbox.create(budget=Budget(wall=3, on_exceeded="stop"), server=client)
    try:
        process = behind.spawn(BURN)
        assert "cost " in exhausted(lambda: coding.code.run("while True: pass", timeout=300)).message
        exhausted(lambda: process.wait(timeout=300))
        wait_until(lambda: idle.info().state == "stopped", "the idle sandbox to be stopped")
        assert "wall time" in (idle.reason or "")
        assert behind.info().state == "paused"
        behind.update(budget=Budget(cpu="1h"))
        behind.resume()
        assert [one.state for one in behind.processes.list()] == ["running"], "a background process goes on"
        coding.update(budget=Budget())
        assert coding.run("true").ok
    finally:
        for sandbox in (coding, behind, idle):
            sandbox.delete()


def test_owner_and_sandboxes_that_come_under_a_used_up_budget(
    server: Server, client: Client, tokens: dict[str, str]
) -> None:
    """The budget of an owner covers all sandboxes of the owner and no others; a used-up budget ends sandboxes that get
    its label later, and another action applies to paused ones."""

    def wait_for(sandbox: Sandbox, state: str) -> None:
        wait_until(lambda: sandbox.info().state == state, f"the sandbox to be {state}")

    client.budgets.set(Budget(wall=1), owner="ann")
    client.budgets.set(Budget(wall=1), label="late=1")
    with as_caller(server, tokens["use"]) as agent, as_caller(server, tokens["bob"]) as bob:
        anns, bobs = Sandbox.create(server=agent), Sandbox.create(server=bob)
        first, later = Sandbox.create(labels={"late": "1"}, server=client), Sandbox.create(server=client)
        try:
            for sandbox in (anns, first):
                wait_for(sandbox, "paused")
            assert exhausted(lambda: Sandbox.create(server=agent)).details["label"] is None
            assert "the owner 'ann'" in (anns.reason or "")
            assert (bobs.info().state, later.info().state) == ("running", "running")
            later.update(labels={"late": "1"})
            wait_for(later, "paused")
            client.budgets.set(Budget(wall=1, on_exceeded="stop"), label="late=1")
            for sandbox in (first, later):
                wait_for(sandbox, "stopped")
        finally:
            for sandbox in (anns, bobs, first, later):
                sandbox.delete()
