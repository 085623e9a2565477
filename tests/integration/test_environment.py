"""Variables: the image's, the sandbox's, a session's, a command's, each over those before; None unsets everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.server import Server

from skerry import AsyncSandbox, Sandbox
from skerry.errors import InvalidRequest

SHOW = "echo ${A-unset} ${B-unset} ${C-unset} ${D-unset}"


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, env={"A": "sandbox", "B": "sandbox", "C": "sandbox"}) as sandbox:
        yield sandbox


def test_environment_order_is_sandbox_session_command(sandbox: Sandbox) -> None:
    session = sandbox.session("order", env={"B": "session", "C": "session"})
    assert sandbox.run(SHOW).stdout == "sandbox sandbox sandbox unset\n"
    assert session.run(SHOW).stdout == "sandbox session session unset\n"
    assert session.run(SHOW, env={"C": "command", "D": "command"}).stdout == "sandbox session command command\n"
    assert session.run(SHOW).stdout == "sandbox session session unset\n"
    assert sandbox.run(SHOW, env={"C": "command"}).stdout == "sandbox sandbox command unset\n"
    assert sandbox.spawn(SHOW, env={"C": "command"}).wait().stdout == "sandbox sandbox command unset\n"


def test_none_unsets_a_variable_at_every_level(server: Server) -> None:
    with Sandbox(server=server.address, env={"LANG": None, "A": "1", "B": "1", "C": None}) as sandbox:
        assert sandbox.run(["printenv", "LANG"]).exit_code == 1, "the image's own"
        assert sandbox.info().env == {"LANG": None, "A": "1", "B": "1"}
        session = sandbox.session("none", env={"A": None})
        assert session.run(SHOW).stdout == "unset 1 unset unset\n"
        assert session.run(SHOW, env={"B": None}).stdout == "unset unset unset unset\n"
        assert session.run(SHOW).stdout == "unset 1 unset unset\n"
        assert sandbox.run(SHOW, env={"A": None}).stdout == "unset 1 unset unset\n"


def test_sandbox_variables_can_change_while_it_runs(server: Server) -> None:
    with Sandbox(server=server.address, env={"A": "old", "B": "old"}) as sandbox:
        session = sandbox.session("seen")
        session.run("B=mine")
        sandbox.update(env={"A": "new", "B": "new", "C": "added"})
        assert sandbox.run(SHOW).stdout == "new new added unset\n"
        assert session.run(SHOW).stdout == "new mine added unset\n", "a session's own stays its own"
        sandbox.update(env={"A": None, "LANG": None})
        assert sandbox.run(f"{SHOW}; printenv LANG").stdout == "unset new added unset\n"
        assert session.run(SHOW).stdout == "unset mine added unset\n"
        assert sandbox.info().env == {"B": "new", "C": "added", "LANG": None}


def test_changed_variables_survive_a_stop_and_a_pause(server: Server) -> None:
    with Sandbox(server=server.address, env={"A": "old"}) as sandbox:
        sandbox.stop()
        sandbox.update(env={"A": "new", "LANG": None})
        assert sandbox.run("echo $A ${LANG-unset}").stdout == "new unset\n"
        sandbox.pause()
        sandbox.update(env={"A": "newer"})
        assert sandbox.run("echo $A").stdout == "newer\n"


def test_sudo_has_the_sandbox_variables_and_the_preserved_ones(sandbox: Sandbox) -> None:
    session = sandbox.session("sudo", env={"B": "session"})
    assert sandbox.run("sudo printenv A").stdout == "sandbox\n"
    assert session.run("export D=exported; sudo printenv A B D").stdout == "sandbox\nsandbox\n"
    assert session.run("sudo -E printenv B D").stdout == "session\nexported\n"
    assert session.run("sudo D=given printenv D").stdout == "given\n"
    assert session.run("sudo --preserve-env=C printenv B C", env={"C": "command"}).stdout == "sandbox\ncommand\n"


def test_command_variable_persists_in_a_session_only_if_changed(sandbox: Sandbox) -> None:
    session = sandbox.session("changed")
    assert session.run(f"{SHOW}; B=changed; unset C", env={"A": "x", "B": "x", "C": "x"}).stdout == "x x x unset\n"
    assert session.run(SHOW).stdout == "sandbox changed unset unset\n"
    session.run("declare -i D=3")
    assert session.run("echo $D", env={"D": "4+4"}).stdout == "4+4\n"
    assert session.run("D=D+1; echo $D").stdout == "4\n"


def test_odd_values_are_passed_unchanged(sandbox: Sandbox) -> None:
    session = sandbox.session("odd")
    for value in ("", " ", "two\nlines", 'it\'s "quoted" $HOME `id` \\', "ünïcödé", "-n", "=", "x" * 50_000):
        assert sandbox.run(["printenv", "D"], env={"D": value}).stdout == f"{value}\n"
        assert session.run(["printenv", "D"], env={"D": value}).stdout == f"{value}\n"
        sandbox.update(env={"D": value})
        assert session.run(["printenv", "D"]).stdout == f"{value}\n"
        assert sandbox.session(f"odd-{len(value)}-{hash(value) % 997}", env={"D": value}).run("printenv D").stdout == (
            f"{value}\n"
        )
    sandbox.update(env={"D": None})


async def test_async_client_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address, env={"A": "1", "LANG": None}) as sandbox:
        session = await sandbox.session("s", env={"B": "2"})
        assert (await session.run(SHOW, env={"C": "3"})).stdout == "1 2 3 unset\n"
        await sandbox.update(env={"A": None})
        assert (await session.run(SHOW)).stdout == "unset 2 unset unset\n"


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A": 1}, {"A": "x" * 200_000}])
def test_invalid_variable_is_rejected(sandbox: Sandbox, env: dict[str, str]) -> None:
    session = sandbox.session("refusing")
    for call in (sandbox.run, session.run, sandbox.spawn):
        with pytest.raises(InvalidRequest, match="env"):
            call("true", env=env)
    with pytest.raises(InvalidRequest, match="env"):
        sandbox.update(env=env)
    with pytest.raises(InvalidRequest, match="env"):
        sandbox.session("refused", env=env)
    with pytest.raises(InvalidRequest, match="env"):
        Sandbox(env=env)
