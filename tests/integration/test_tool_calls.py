"""Tool calls that an agent reports: the changes that they made are attributed to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cli import skerry
from support.server import Server

from skerry import Client, Sandbox
from skerry.errors import InvalidRequest, NotFound
from skerry.types import LedgerEntry, ReportedCall

AGENT = 'cd /workspace; while read -r line; do eval "$line"; echo done $((++n)).; done'


class Agent:
    """A shell that runs lines, like an agent that edits files."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.process, self.lines = sandbox, sandbox.spawn(AGENT), 0
        self.tip = sandbox.review.changes().tip

    def edit(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.lines += 1
        self.process.wait_for_output(f"done {self.lines}.", timeout=30)

    def report(self, *calls: ReportedCall) -> None:
        self.sandbox.processes.report_tool_calls(self.process.id, calls)

    def origin(self, path: str) -> LedgerEntry:
        (hunk,) = self.sandbox.review.changes(path).hunks
        (entry,) = self.sandbox.review.origin(hunk).entries
        return entry


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Client(server.address) as client, Sandbox(server=client) as made:
        made.review.start()
        yield made


@pytest.fixture
def agent(sandbox: Sandbox) -> Iterator[Agent]:
    agent = Agent(sandbox)
    yield agent
    agent.process.kill()
    agent.process.wait()


def call(name: str, state: str = "started", *paths: str) -> ReportedCall:
    return ReportedCall(id=name, name=name, state=state, paths=paths)  # type: ignore[arg-type]


def test_change_is_attributed_to_the_tool_call_that_ran(agent: Agent, server: Server) -> None:
    agent.report(call("Write one.txt"))
    agent.edit("echo 1 > one.txt")
    agent.report(call("Write one.txt", "ended"))
    agent.edit("echo own > own.txt")
    agent.sandbox.review.changes()
    agent.report(call("Bash: make"))
    agent.edit("echo 2 > two.txt")
    agent.report(call("Bash: make", "failed"))
    one, two = agent.origin("one.txt"), agent.origin("two.txt")
    assert (one.command, one.within, one.exit_code, one.processes) == (
        "Write one.txt",
        AGENT,
        None,
        (agent.process.id,),
    )
    assert (two.command, two.within, two.exit_code) == ("Bash: make", AGENT, 1)
    own = agent.origin("own.txt")
    assert (own.command, own.within) == (AGENT, None)
    agent.process.stdin.close()
    agent.process.wait()
    history = agent.sandbox.review.history(since=agent.tip)
    assert sorted((entry.command, entry.within) for entry in history) == [
        ("Bash: make", AGENT), ("Write one.txt", AGENT), (AGENT, None),
    ]  # fmt: skip
    assert agent.sandbox.review.changes().failed == ()
    (hunk,) = agent.sandbox.review.changes("two.txt").hunks
    shown = skerry("why", agent.sandbox.id, hunk.id, server=server.address).stdout.decode()
    assert "made by  tool call: Bash: make" in shown
    assert "reported by  $ cd /workspace; while read" in shown


def test_overlapping_tool_calls_are_told_apart_by_the_files_that_they_name(agent: Agent) -> None:
    names = "/workspace/three.txt", "four.txt", "five.txt"
    agent.report(*(call(f"Write {name}", "started", name) for name in names))
    agent.edit("echo 3 > three.txt; echo 4 > four.txt; echo 6 > six.txt")
    agent.report(*(call(f"Write {name}", "ended") for name in names))
    assert agent.origin("three.txt").command == "Write /workspace/three.txt"
    assert agent.origin("four.txt").command == "Write four.txt"
    assert len({agent.origin("six.txt").command, *agent.origin("six.txt").also}) == 3


def test_end_of_the_agent_ends_its_tool_calls(agent: Agent) -> None:
    agent.report(call("Write one.txt"))
    agent.edit("echo 1 > last.txt")
    agent.process.stdin.close()
    agent.process.wait()
    assert agent.origin("last.txt").command == "Write one.txt"
    agent.sandbox.run("echo 2 > after.txt", cwd="/workspace")
    assert agent.origin("after.txt").within is None
    with pytest.raises(NotFound, match="is not running"):
        agent.report(call("late"))


def test_report_is_bounded_and_names_no_file_outside(agent: Agent) -> None:
    agent.report(call("Edit", "started", "/etc/passwd", "../../x", "/workspace/../etc/x", "/workspace"))
    agent.edit("echo 1 > passwd")
    agent.report(call("Edit", "ended"))
    assert agent.origin("passwd").command == "Edit"
    name, paths = "n" * 2000, ("p",) * 100
    for bad in (ReportedCall(id="x" * 200), ReportedCall(id="a", name=name), ReportedCall(id="a", paths=paths)):
        with pytest.raises(InvalidRequest):
            agent.report(bad)
    with pytest.raises(NotFound):
        agent.sandbox.processes.report_tool_calls("p-unknown", [ReportedCall(id="a")])


def test_report_in_a_sandbox_without_a_review_is_not_found(client: Client) -> None:
    with Sandbox(server=client) as other, pytest.raises(NotFound, match="no review"):
        other.processes.report_tool_calls("p-1", [ReportedCall(id="a")])


def test_endless_reports_of_started_tool_calls_are_bounded(agent: Agent) -> None:
    for at in range(4):
        agent.report(*(ReportedCall(id=f"{at}-{number}", name="Edit") for number in range(256)))
    agent.report(ReportedCall(id="last", name="Write one.txt"), ReportedCall(id="last", state="ended"))
    agent.edit("echo 1 > many.txt")
    assert agent.origin("many.txt").command == "Edit"


def test_title_of_a_running_tool_call_is_replaced(agent: Agent) -> None:
    """Adapters of editors report a call first as `Terminal`, and its command later."""
    agent.report(ReportedCall(id="call", name="Terminal"))
    agent.report(ReportedCall(id="call", name="echo 1 > later.txt"))
    agent.edit("echo 1 > later.txt")
    agent.report(ReportedCall(id="call", state="ended"))
    agent.report(ReportedCall(id="call", name="too late"))
    assert agent.origin("later.txt").command == "echo 1 > later.txt"
