"""A Dockerfile's instructions, read as steps and settled on a base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from skerry.client.build.builder import text_of
from skerry.client.build.dockerfile import DockerfileContext, DockerfileResult, instructions, read_dockerfile
from skerry.client.build.plan import BuildPlan, CopyAction, ImageState, RunAction, make_plan
from skerry.client.build.shell_words import expand
from skerry.client.build.steps import Copy, Inline, Local
from skerry.errors import InvalidRequest

CONTEXT = DockerfileContext("Dockerfile", "/context")
BASE = ImageState("sha256:base", env={"PATH": "/usr/bin"}, user="user", cwd="/workspace", cmd=("bash",))


def read(text: str, arguments: Mapping[str, str] | None = None, target: str | None = None) -> DockerfileResult:
    return read_dockerfile(text, CONTEXT, arguments=arguments, target=target)


def settled(text: str, arguments: Mapping[str, str] | None = None) -> BuildPlan:
    recipe = read(text, arguments).recipe
    return make_plan(recipe, dict.fromkeys(recipe.bases, BASE), lambda files, parents: repr((files, parents)))


def commands(text: str, arguments: Mapping[str, str] | None = None) -> list[RunAction]:
    return [task.action for task in settled(text, arguments).tasks if isinstance(task.action, RunAction)]


def refusal(text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        settled(text)
    return caught.value.message


def test_run_line_uses_the_shell_and_a_list_is_an_argv() -> None:
    shell, words, other = commands(
        'FROM base\nRUN echo "$A" | cat\nRUN ["ls", "-l"]\nSHELL ["/bin/bash", "-c"]\nrun id'
    )
    assert shell.cmd == ["/bin/sh", "-c", 'echo "$A" | cat']
    assert (words.cmd, other.cmd) == (["ls", "-l"], ["/bin/bash", "-c", "id"])


def test_lines_are_joined_over_comments_and_empty_lines_between_them() -> None:
    (run,) = commands("FROM base\nRUN one \\\n# not this\n\n    two \\\n  three\n")
    assert run.cmd == ["/bin/sh", "-c", "one     two   three"]


def test_escape_character_can_be_changed() -> None:
    (run,) = commands("# escape=`\nFROM base\nRUN one `\n  C:\\\n")
    assert run.cmd == ["/bin/sh", "-c", "one   C:\\"]


def test_here_document_is_a_script_or_the_input_of_a_command() -> None:
    script, fed = commands("FROM base\nRUN <<EOF\nset -e\necho $A\nEOF\nRUN python3 <<-'X' > /y\n\tprint(1)\n\tX\n")
    assert script.cmd == ["/bin/sh", "-c", "set -e\necho $A\n"]
    assert fed.cmd == ["/bin/sh", "-c", "python3 <<-'X' > /y\nprint(1)\nX\n"]


def test_variables_are_expanded_like_in_docker_except_in_run() -> None:
    plan = settled(
        "FROM base\nENV PATH=/opt/bin:$PATH A='a b' B=${C:-y}${PATH:+z}\n"
        "WORKDIR /srv/${C:-x}y\nRUN echo $B\nUSER ${D:-me}"
    )
    state = plan.tasks[-1].state
    assert state.env == {"PATH": "/opt/bin:/usr/bin", "A": "a b", "B": "yz"}
    assert (state.cwd, state.user) == ("/srv/xy", "me")
    run = plan.tasks[2].action
    assert isinstance(run, RunAction)
    assert (run.cmd, run.cwd, run.user) == (["/bin/sh", "-c", "echo $B"], "/srv/xy", "user")


def test_old_form_of_env_uses_the_rest_of_the_line() -> None:
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
def test_words_are_expanded_like_in_docker(text: str, made: str) -> None:
    assert expand(text, {"HOME": "/home", "EMPTY": ""}) == made


def test_build_arguments_are_not_stored_in_the_image() -> None:
    text = "ARG TAG=1\nFROM base:$TAG\nARG TAG\nARG MODE=slow\nARG NONE\nENV KEPT=$MODE\nRUN x\n"
    assert read(text, {"TAG": "2"}).recipe.base == "base:2"
    (run,) = commands(text, {"MODE": "fast"})
    assert run.env == {"TAG": "1", "MODE": "fast", "KEPT": "fast"}
    assert settled(text).tasks[-1].state.env == {"PATH": "/usr/bin", "KEPT": "slow"}


def test_undeclared_argument_is_reported() -> None:
    assert read("FROM base\n", {"TYPO": "1"}).notices == ["Dockerfile: it declares no ARG TYPO"]


def test_stage_can_extend_an_earlier_one_without_its_arguments() -> None:
    plan = settled("FROM base AS Deps\nARG A=1\nENV E=2\nRUN one\nFROM deps\nRUN two\n")
    one, two = (task.action for task in plan.tasks if isinstance(task.action, RunAction))
    assert (one.env, two.env) == ({"A": "1", "E": "2"}, {"E": "2"})


def test_copy_from_a_stage_depends_on_the_key_of_the_stage() -> None:
    text = "FROM base AS one\nRUN {}\nFROM base\nCOPY --from=one /out /in/\n"
    first, again, other = (settled(text.format(word)) for word in ("a", "a", "b"))
    copy = first.tasks[-1].action
    assert isinstance(copy, CopyAction)
    assert copy.stage is not None
    assert (copy.sources, copy.target) == (("/out",), "/in/")
    assert first.key == again.key != other.key


def test_unknown_stage_name_is_an_image() -> None:
    step = read("FROM base\nCOPY --from=tools:1 /a /b").recipe.steps[0]
    assert isinstance(step, Copy)
    assert step.stage is not None
    assert step.stage.base == "tools:1"


def test_target_stage_can_be_chosen() -> None:
    text = "FROM base AS one\nRUN a\nFROM other\nRUN b\n"
    assert read(text, target="one").recipe.base == "base"
    with pytest.raises(InvalidRequest, match="stage 'three' not found"):
        read(text, target="three")


def test_copy_sources_are_below_the_context_and_targets_relative_to_workdir() -> None:
    plan = settled('FROM base\nWORKDIR /app\nCOPY --chown=me:us --chmod=750 a "b c" ./x/\nADD . .\n')
    copy, add = plan.tasks[1].action, plan.tasks[2].action
    assert isinstance(copy, CopyAction)
    assert isinstance(add, CopyAction)
    assert copy.sources == (Local("/context", "a", contained=True), Local("/context", "b c", contained=True))
    assert (copy.target, copy.owner, copy.mode, add.target, add.unpack) == ("/app/x/", "me:us", 0o750, "/app/", True)


def test_copy_accepts_a_here_document() -> None:
    plan = settled("FROM base\nENV A=1\nCOPY <<EOF <<'raw' /etc/\na is $A\nEOF\nb is $A\nraw\n")
    copy = plan.tasks[-1].action
    assert isinstance(copy, CopyAction)
    assert copy.sources == (Inline("EOF", "a is 1\n"), Inline("raw", "b is $A\n"))


def test_entrypoint_drops_only_the_command_of_the_base() -> None:
    assert settled('FROM base\nENTRYPOINT ["/serve"]').tasks[-1].state.cmd == ()
    state = settled('FROM base\nCMD ["-v"]\nENTRYPOINT exec serve').tasks[-1].state
    assert (state.entrypoint, state.cmd) == (("/bin/sh", "-c", "exec serve"), ("-v",))


def test_instruction_without_effect_is_ignored_and_reported() -> None:
    text = "FROM base\nLABEL a=b\nEXPOSE 80\nVOLUME /x\nHEALTHCHECK CMD true\nMAINTAINER me\nSTOPSIGNAL INT\n"
    found = read(text + "RUN --mount=type=cache,target=/c make\n")
    assert len(found.recipe.steps) == 1
    assert [notice.split(":")[1] for notice in found.notices] == ["2", "3", "4", "5", "6", "7", "8"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RUN x", "Dockerfile:1: RUN before the first FROM"),
        ("# nothing", "FROM is missing"),
        ("FROM base\n\nFETCH x", "Dockerfile:3: unknown instruction 'FETCH'"),
        ("FROM base\nONBUILD RUN x", "Dockerfile:2: ONBUILD is not supported"),
        ("FROM scratch", "Dockerfile:1: FROM scratch"),
        ("FROM a b", "Dockerfile:1: FROM a b: not an image"),
        ("FROM --platform=plan9/mips base", "this machine has another platform"),
        ("FROM base\nRUN --mount=type=secret,id=x y", "Dockerfile:2: RUN --mount=type=secret,id=x is not supported"),
        ("FROM base\nRUN --network=host y", "Dockerfile:2: RUN --network=host"),
        ("FROM base\nCOPY a", "Dockerfile:2: COPY needs a source and a target"),
        ("FROM base\nCOPY a b /c", "does not end with a slash"),
        ("FROM base\nCOPY --exclude=x a b", "Dockerfile:2: COPY --exclude is not supported"),
        ("FROM base\nCOPY --from=7 a b", "no earlier stage"),
        ("FROM base AS me\nCOPY --from=me a b", "this stage itself"),
        ("FROM base\nADD https://example.com/x /x", "only files of this machine"),
        ("FROM base\nENV A", "Dockerfile:2: ENV: A has no value"),
        ('FROM base\nENV A="b', 'Dockerfile:2: ENV: a " is not closed'),
        ("FROM base\nENV A=1\\\nB=${A", "Dockerfile:2: ENV A=1B=${A: a ${ is not closed"),
        ("FROM base\nUSER $NOBODY", "Dockerfile:2: USER $NOBODY: empty after its variables"),
        ("FROM base\nWORKDIR ${X:?needed}", "needed"),
        ("FROM base\nRUN <<EOF\nx", "Dockerfile:2: the here-document EOF is not terminated"),
        ("FROM base\nSHELL bash", "SHELL: not a list"),
        ("FROM base\nRUN", "Dockerfile:2: RUN has no arguments"),
    ],
)
def test_unsupported_instruction_is_rejected_with_its_line(text: str, words: str) -> None:
    assert words in refusal(text)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    """As in docker: a character that only Python takes for a line's end could hide an instruction from a reader."""
    file = tmp_path / "Dockerfile"
    for other in ("\u2028", "\x0b", "\x0c", "\x1c", "\x85", "\r"):
        file.write_bytes(f"FROM base\nRUN echo a{other}RUN echo b\n".encode())
        assert [one.name for one in instructions(text_of(file))] == ["FROM", "RUN"], ascii(other)
    file.write_bytes(b"FROM base\r\nRUN echo a\\\r\n b\r\n")
    assert [one.text for one in instructions(text_of(file))] == ["base", "echo a b"]
