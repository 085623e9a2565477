"""Variables: the image's, the sandbox's, a session's, a command's, each over those before; None unsets everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server

from skerry import AsyncSandbox, Sandbox
from skerry.errors import InvalidRequest

SHOW = "echo ${A-unset} ${B-unset} ${C-unset} ${D-unset}"


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, env={"A": "sandbox", "B": "sandbox", "C": "sandbox"}) as sandbox:
        yield sandbox


def test_sandbox_session_and_command_each_over_the_one_before(box: Sandbox) -> None:
    session = box.session("order", env={"B": "session", "C": "session"})
    assert box.run(SHOW).stdout == "sandbox sandbox sandbox unset\n"
    assert session.run(SHOW).stdout == "sandbox session session unset\n"
    assert session.run(SHOW, env={"C": "command", "D": "command"}).stdout == "sandbox session command command\n"
    assert session.run(SHOW).stdout == "sandbox session session unset\n"
    assert box.run(SHOW, env={"C": "command"}).stdout == "sandbox sandbox command unset\n"
    assert box.spawn(SHOW, env={"C": "command"}).wait().stdout == "sandbox sandbox command unset\n"


def test_none_unsets_at_every_level(server: Server) -> None:
    with Sandbox(server=server.address, env={"LANG": None, "A": "1", "B": "1", "C": None}) as sandbox:
        assert sandbox.run(["printenv", "LANG"]).exit_code == 1, "the image's own"
        assert sandbox.info().env == {"LANG": None, "A": "1", "B": "1"}
        session = sandbox.session("none", env={"A": None})
        assert session.run(SHOW).stdout == "unset 1 unset unset\n"
        assert session.run(SHOW, env={"B": None}).stdout == "unset unset unset unset\n"
        assert session.run(SHOW).stdout == "unset 1 unset unset\n"
        assert sandbox.run(SHOW, env={"A": None}).stdout == "unset 1 unset unset\n"


def test_the_sandboxs_variables_change_while_it_runs(server: Server) -> None:
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


def test_what_was_changed_lasts_over_a_stop_and_a_pause(server: Server) -> None:
    with Sandbox(server=server.address, env={"A": "old"}) as sandbox:
        sandbox.stop()
        sandbox.update(env={"A": "new", "LANG": None})
        assert sandbox.run("echo $A ${LANG-unset}").stdout == "new unset\n"
        sandbox.pause()
        sandbox.update(env={"A": "newer"})
        assert sandbox.run("echo $A").stdout == "newer\n"


def test_sudo_has_the_sandboxs_variables_and_those_that_are_kept(box: Sandbox) -> None:
    session = box.session("sudo", env={"B": "session"})
    assert box.run("sudo printenv A").stdout == "sandbox\n"
    assert session.run("export D=exported; sudo printenv A B D").stdout == "sandbox\nsandbox\n"
    assert session.run("sudo -E printenv B D").stdout == "session\nexported\n"
    assert session.run("sudo D=given printenv D").stdout == "given\n"
    assert session.run("sudo --preserve-env=C printenv B C", env={"C": "command"}).stdout == "sandbox\ncommand\n"


def test_what_a_command_got_for_itself_lasts_in_a_session_only_if_it_changed_it(box: Sandbox) -> None:
    session = box.session("changed")
    assert session.run(f"{SHOW}; B=changed; unset C", env={"A": "x", "B": "x", "C": "x"}).stdout == "x x x unset\n"
    assert session.run(SHOW).stdout == "sandbox changed unset unset\n"
    session.run("declare -i D=3")
    assert session.run("echo $D", env={"D": "4+4"}).stdout == "4+4\n"
    assert session.run("D=D+1; echo $D").stdout == "4\n"


def test_odd_values_arrive_as_they_are(box: Sandbox) -> None:
    session = box.session("odd")
    for value in ("", " ", "two\nlines", 'it\'s "quoted" $HOME `id` \\', "ünïcödé", "-n", "=", "x" * 50_000):
        assert box.run(["printenv", "D"], env={"D": value}).stdout == f"{value}\n"
        assert session.run(["printenv", "D"], env={"D": value}).stdout == f"{value}\n"
        box.update(env={"D": value})
        assert session.run(["printenv", "D"]).stdout == f"{value}\n"
        assert box.session(f"odd-{len(value)}-{hash(value) % 997}", env={"D": value}).run("printenv D").stdout == (
            f"{value}\n"
        )
    box.update(env={"D": None})


async def test_the_async_twin_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address, env={"A": "1", "LANG": None}) as sandbox:
        session = await sandbox.session("s", env={"B": "2"})
        assert (await session.run(SHOW, env={"C": "3"})).stdout == "1 2 3 unset\n"
        await sandbox.update(env={"A": None})
        assert (await session.run(SHOW)).stdout == "unset 2 unset unset\n"


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A": 1}, {"A": "x" * 200_000}])
def test_what_can_t_be_a_variable_is_refused(box: Sandbox, env: dict[str, str]) -> None:
    session = box.session("refusing")
    for call in (box.run, session.run, box.spawn):
        with pytest.raises(InvalidRequest, match="env"):
            call("true", env=env)
    with pytest.raises(InvalidRequest, match="env"):
        box.update(env=env)
    with pytest.raises(InvalidRequest, match="env"):
        box.session("refused", env=env)
    with pytest.raises(InvalidRequest, match="env"):
        Sandbox(env=env)
