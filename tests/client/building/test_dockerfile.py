"""A Dockerfile's instructions, read as steps and settled on a base."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from skerry.client.building.dockerfile import Context, Read, read_dockerfile
from skerry.client.building.plan import Command, Placing, Plan, State, planned
from skerry.client.building.steps import Copy, Inline, Local
from skerry.client.building.words import expanded
from skerry.errors import InvalidRequest

CONTEXT = Context("Dockerfile", "/context")
BASE = State("sha256:base", env={"PATH": "/usr/bin"}, user="user", cwd="/workspace", cmd=("bash",))


def read(text: str, arguments: Mapping[str, str] | None = None, target: str | None = None) -> Read:
    return read_dockerfile(text, CONTEXT, arguments=arguments, target=target)


def settled(text: str, arguments: Mapping[str, str] | None = None) -> Plan:
    recipe = read(text, arguments).recipe
    return planned(recipe, dict.fromkeys(recipe.bases, BASE), lambda files, parents: repr((files, parents)))


def commands(text: str, arguments: Mapping[str, str] | None = None) -> list[Command]:
    return [task.action for task in settled(text, arguments).tasks if isinstance(task.action, Command)]


def refusal(text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        settled(text)
    return caught.value.message


def test_a_run_line_goes_to_the_shell_and_a_list_is_an_argv() -> None:
    shell, words, other = commands(
        'FROM base\nRUN echo "$A" | cat\nRUN ["ls", "-l"]\nSHELL ["/bin/bash", "-c"]\nrun id'
    )
    assert shell.cmd == ["/bin/sh", "-c", 'echo "$A" | cat']
    assert (words.cmd, other.cmd) == (["ls", "-l"], ["/bin/bash", "-c", "id"])


def test_lines_are_joined_over_comments_and_empty_lines_between_them() -> None:
    (run,) = commands("FROM base\nRUN one \\\n# not this\n\n    two \\\n  three\n")
    assert run.cmd == ["/bin/sh", "-c", "one     two   three"]


def test_another_escape_character_can_be_named() -> None:
    (run,) = commands("# escape=`\nFROM base\nRUN one `\n  C:\\\n")
    assert run.cmd == ["/bin/sh", "-c", "one   C:\\"]


def test_a_here_document_alone_is_a_script_and_behind_a_command_its_input() -> None:
    script, fed = commands("FROM base\nRUN <<EOF\nset -e\necho $A\nEOF\nRUN python3 <<-'X' > /y\n\tprint(1)\n\tX\n")
    assert script.cmd == ["/bin/sh", "-c", "set -e\necho $A\n"]
    assert fed.cmd == ["/bin/sh", "-c", "python3 <<-'X' > /y\nprint(1)\nX\n"]


def test_variables_are_put_in_where_docker_does_and_left_to_the_shell_in_run() -> None:
    plan = settled(
        "FROM base\nENV PATH=/opt/bin:$PATH A='a b' B=${C:-y}${PATH:+z}\n"
        "WORKDIR /srv/${C:-x}y\nRUN echo $B\nUSER ${D:-me}"
    )
    state = plan.tasks[-1].state
    assert state.env == {"PATH": "/opt/bin:/usr/bin", "A": "a b", "B": "yz"}
    assert (state.cwd, state.user) == ("/srv/xy", "me")
    run = plan.tasks[2].action
    assert isinstance(run, Command)
    assert (run.cmd, run.cwd, run.user) == (["/bin/sh", "-c", "echo $B"], "/srv/xy", "user")


def test_the_old_form_of_env_takes_the_rest_of_the_line() -> None:
    assert settled("FROM base\nENV A b c").tasks[-1].state.env["A"] == "b c"
    assert settled("FROM base\nENV\tA\tb c").tasks[-1].state.env["A"] == "b c"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("he'll'o", "hello"), ("he\\'llo", "he'llo"), ("\"he'llo\"", "he'llo"), ("he$HOME.", "he/home."),
        ("he$NONE.", "he."), ("\"he\\$HOME\"", "he$HOME"), ("'he\\$HOME'", "he\\$HOME"), ("\"he\\llo\"", "he\\llo"),
        ("he\\$HOME", "he$HOME"), ("${NONE:-${HOME:-x}}y", "/homey"), ("${HOME:+${HOME}}", "/home"),
        ("${HOME-x}", "/home"),
        ("${EMPTY-x}", ""), ("${EMPTY:-x}", "x"), ("${EMPTY+x}", "x"), ("he$.x", "he$.x"), ("$", "$"), ("a\\", "a\\"),
        ('"${HOME}"\'${HOME}\'', "/home${HOME}"), ("안녕", "안녕"),
    ],
)  # fmt: skip
def test_words_are_expanded_as_docker_does(text: str, made: str) -> None:
    assert expanded(text, {"HOME": "/home", "EMPTY": ""}) == made


def test_arguments_reach_the_build_and_never_the_image() -> None:
    text = "ARG TAG=1\nFROM base:$TAG\nARG TAG\nARG MODE=slow\nARG NONE\nENV KEPT=$MODE\nRUN x\n"
    assert read(text, {"TAG": "2"}).recipe.base == "base:2"
    (run,) = commands(text, {"MODE": "fast"})
    assert run.env == {"TAG": "1", "MODE": "fast", "KEPT": "fast"}
    assert settled(text).tasks[-1].state.env == {"PATH": "/usr/bin", "KEPT": "slow"}


def test_an_argument_that_no_arg_takes_is_told() -> None:
    assert read("FROM base\n", {"TYPO": "1"}).notices == ["Dockerfile: no ARG takes TYPO"]


def test_a_stage_can_stand_on_an_earlier_one_without_its_arguments() -> None:
    plan = settled("FROM base AS Deps\nARG A=1\nENV E=2\nRUN one\nFROM deps\nRUN two\n")
    one, two = (task.action for task in plan.tasks if isinstance(task.action, Command))
    assert (one.env, two.env) == ({"A": "1", "E": "2"}, {"E": "2"})


def test_copy_from_a_stage_goes_by_that_stages_key() -> None:
    text = "FROM base AS one\nRUN {}\nFROM base\nCOPY --from=one /out /in/\n"
    first, again, other = (settled(text.format(word)) for word in ("a", "a", "b"))
    copy = first.tasks[-1].action
    assert isinstance(copy, Placing)
    assert copy.stage is not None
    assert (copy.sources, copy.target) == (("/out",), "/in/")
    assert first.key == again.key != other.key


def test_a_stage_that_is_no_stage_is_an_image() -> None:
    step = read("FROM base\nCOPY --from=tools:1 /a /b").recipe.steps[0]
    assert isinstance(step, Copy)
    assert step.stage is not None
    assert step.stage.base == "tools:1"


def test_the_stage_to_stop_at_can_be_named() -> None:
    text = "FROM base AS one\nRUN a\nFROM other\nRUN b\n"
    assert read(text, target="one").recipe.base == "base"
    with pytest.raises(InvalidRequest, match="no stage 'three'"):
        read(text, target="three")


def test_copy_means_files_below_the_context_and_relative_targets_the_working_directory() -> None:
    plan = settled('FROM base\nWORKDIR /app\nCOPY --chown=me:us --chmod=750 a "b c" ./x/\nADD . .\n')
    copy, add = plan.tasks[1].action, plan.tasks[2].action
    assert isinstance(copy, Placing)
    assert isinstance(add, Placing)
    assert copy.sources == (Local("/context", "a", contained=True), Local("/context", "b c", contained=True))
    assert (copy.target, copy.owner, copy.mode, add.target, add.unpack) == ("/app/x/", "me:us", 0o750, "/app/", True)


def test_copy_takes_a_here_document_as_a_file() -> None:
    plan = settled("FROM base\nENV A=1\nCOPY <<EOF <<'raw' /etc/\na is $A\nEOF\nb is $A\nraw\n")
    copy = plan.tasks[-1].action
    assert isinstance(copy, Placing)
    assert copy.sources == (Inline("EOF", "a is 1\n"), Inline("raw", "b is $A\n"))


def test_an_entrypoint_drops_the_command_of_the_base_but_not_ones_own() -> None:
    assert settled('FROM base\nENTRYPOINT ["/serve"]').tasks[-1].state.cmd == ()
    state = settled('FROM base\nCMD ["-v"]\nENTRYPOINT exec serve').tasks[-1].state
    assert (state.entrypoint, state.cmd) == (("/bin/sh", "-c", "exec serve"), ("-v",))


def test_what_means_nothing_here_is_left_out_and_told() -> None:
    text = "FROM base\nLABEL a=b\nEXPOSE 80\nVOLUME /x\nHEALTHCHECK CMD true\nMAINTAINER me\nSTOPSIGNAL INT\n"
    found = read(text + "RUN --mount=type=cache,target=/c make\n")
    assert len(found.recipe.steps) == 1
    assert [notice.split(":")[1] for notice in found.notices] == ["2", "3", "4", "5", "6", "7", "8"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RUN x", "Dockerfile:1: RUN before the first FROM"),
        ("# nothing", "there is no FROM"),
        ("FROM base\n\nFETCH x", "Dockerfile:3: there is no instruction 'FETCH'"),
        ("FROM base\nONBUILD RUN x", "Dockerfile:2: ONBUILD is not supported"),
        ("FROM scratch", "Dockerfile:1: FROM scratch"),
        ("FROM a b", "Dockerfile:1: FROM a b: not an image"),
        ("FROM --platform=plan9/mips base", "this machine is another"),
        ("FROM base\nRUN --mount=type=secret,id=x y", "Dockerfile:2: RUN --mount=type=secret,id=x is not supported"),
        ("FROM base\nRUN --network=host y", "Dockerfile:2: RUN --network=host"),
        ("FROM base\nCOPY a", "Dockerfile:2: COPY needs what and where to"),
        ("FROM base\nCOPY a b /c", "does not end with a slash"),
        ("FROM base\nCOPY --exclude=x a b", "Dockerfile:2: COPY --exclude is not supported"),
        ("FROM base\nCOPY --from=7 a b", "there is no such stage"),
        ("FROM base AS me\nCOPY --from=me a b", "this stage itself"),
        ("FROM base\nADD https://example.com/x /x", "only files of this machine"),
        ("FROM base\nENV A", "Dockerfile:2: ENV: A has no value"),
        ('FROM base\nENV A="b', 'Dockerfile:2: ENV: a " is not closed'),
        ("FROM base\nENV A=1\\\nB=${A", "Dockerfile:2: ENV A=1B=${A: a ${ is not closed"),
        ("FROM base\nUSER $NOBODY", "Dockerfile:2: USER $NOBODY: nothing is left"),
        ("FROM base\nWORKDIR ${X:?needed}", "needed"),
        ("FROM base\nRUN <<EOF\nx", "Dockerfile:2: the here-document EOF does not end"),
        ("FROM base\nSHELL bash", "SHELL: not a list"),
        ("FROM base\nRUN", "Dockerfile:2: RUN says nothing"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(text: str, words: str) -> None:
    assert words in refusal(text)
