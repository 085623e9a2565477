"""Each language that the base image has: its value, its output, its error, its time-out, its state. In one sandbox."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Sandbox
from skerry.client._sync.code import Context

KERNELS = ("python", "javascript", "typescript")
CONTEXTS = (*KERNELS, "bash")
ALL = (*CONTEXTS, "perl")
LOOPS = {
    "python": "print('begun', flush=True)\nwhile True: pass",
    "javascript": "console.log('begun'); while (true) {}",
    "typescript": "console.log('begun' as string); for (;;) await null",
    "bash": "echo begun; while true; do sleep 0.1; done",
    "perl": "$| = 1; print 'begun'; while (1) {}",
}


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        yield sandbox


def test_each_of_them_is_found_with_its_version(box: Sandbox) -> None:
    found = {language.name: language for language in box.code.languages()}
    for name in ALL:
        assert found[name].version, name
        assert found[name].contexts == (name in CONTEXTS)
    assert found["typescript"].version == found["javascript"].version


@pytest.mark.parametrize(
    ("language", "code", "text", "json"),
    [
        ("python", "[1, 2][::-1]", "[2, 1]", None),
        ("javascript", "[1, 2].reverse()", "[ 2, 1 ]", [2, 1]),
        ("typescript", "([1, 2] as number[]).reverse()", "[ 2, 1 ]", [2, 1]),
        ("javascript", "const { sep } = await import('node:path'); ({ sep })", "{ sep: '/' }", {"sep": "/"}),
    ],
)
def test_the_last_value_is_a_result(box: Sandbox, language: str, code: str, text: str, json: object) -> None:
    result = box.code.run(code, language)
    assert (result.text, result.error, result.exit_code, result.language) == (text, None, 0, language)
    if json is not None:
        assert result.results[0].json == json


@pytest.mark.parametrize("language", ["bash", "perl"])
def test_a_language_without_values_has_none(box: Sandbox, language: str) -> None:
    result = box.code.run("1 + 1;" if language == "perl" else "true", language)
    assert (result.text, result.results, result.exit_code) == (None, (), 0)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys; print('out'); print('err', file=sys.stderr); open('made-python', 'w').write('x')"),
        ("javascript", "console.log('out'); console.error('err'); fs.writeFileSync('made-javascript', 'x')"),
        ("typescript", "console.log('out' as string); console.error('err'); fs.writeFileSync('made-typescript', 'x')"),
        ("bash", "echo out; echo err >&2; printf x > made-bash"),
        ("perl", 'print "out\\n"; print STDERR "err\\n"; open(F, ">made-perl"); print F "x";'),
    ],
)
def test_what_it_prints_and_makes_is_told(box: Sandbox, language: str, code: str) -> None:
    result = box.code.run(code, language)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    made = {file.name: file for file in result.files}  # another context's may be of the same tick of the clock
    assert made[f"made-{language}"].read_text() == "x"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys; print(sys.stdin.read().upper(), end='')"),
        ("javascript", "process.stdout.write(fs.readFileSync(0, 'utf8').toUpperCase())"),
        ("typescript", "let all: string = ''; for await (const part of process.stdin) all += part\n"
         "process.stdout.write(all.toUpperCase())"),
        ("bash", "tr a-z A-Z"),
        ("perl", "print uc(join('', <STDIN>))"),
    ],
)  # fmt: skip
def test_it_reads_the_given_stdin_and_nothing_where_none_was_given(box: Sandbox, language: str, code: str) -> None:
    assert box.code.run(code, language, stdin="one\ntwo\n").stdout == "ONE\nTWO\n"
    assert box.code.run(code, language).stdout == ""


@pytest.mark.parametrize(
    ("language", "code", "name", "message", "line"),
    [
        ("python", "\nnot_there", "NameError", "name 'not_there' is not defined", 2),
        ("javascript", "\nnotThere", "ReferenceError", "notThere is not defined", 2),
        ("typescript", "type A = {\n  a: number\n}\nnotThere as A", "ReferenceError", "notThere is not defined", 4),
        ("bash", "true\nnot_there", "Error", "not_there: command not found", 2),
        ("perl", '\ndie "on purpose"', "Error", "on purpose", 2),
    ],
)
def test_its_errors_are_told_with_the_line(
    box: Sandbox, language: str, code: str, name: str, message: str, line: int
) -> None:
    result = box.code.run(code, language)
    assert result.error
    assert (result.error.name, result.error.message, result.error.line) == (name, message, line)
    assert result.exit_code not in (0, None)
    assert "skerry" not in result.error.traceback.lower()


def test_an_error_of_javascript_has_its_properties(box: Sandbox) -> None:
    error = box.code.run("fs.readFileSync('/no/such')", "javascript").error
    assert error
    assert error.properties == {"errno": -2, "code": "ENOENT", "syscall": "open", "path": "/no/such"}


@pytest.mark.parametrize("language", ALL)
def test_its_time_out_ends_it_and_says_what_became_of_its_state(box: Sandbox, language: str) -> None:
    box.code.run({"python": "kept = 1", "bash": "kept=1", "perl": "1;"}.get(language, "globalThis.kept = 1"), language)
    result = box.code.run(LOOPS[language], language, timeout=0.8)
    assert result.error
    assert (result.timed_out, result.stdout.strip()) == (True, "begun")
    assert result.error.name == ("KeyboardInterrupt" if language == "python" else "Interrupted")
    assert "time-out" in (result.hint or "")
    if language in CONTEXTS:
        assert result.after == "kept"
        again = box.code.run("echo $kept" if language == "bash" else "kept", language)
        assert (again.text or again.stdout.strip(), again.lost) == ("1", None)


@pytest.mark.parametrize(
    ("language", "first", "second"),
    [
        ("python", "import math\ndef f(x): return math.floor(x)\ny = 2.5", "print(f(y))"),
        ("javascript", "import { floor } from './floor.mjs'\nconst f = (x) => floor(x); let y = 2.5",
         "console.log(f(y))"),
        ("typescript", "enum E { A = 2 }\nconst f = (x: E): number => x; let y: E = E.A",
         "console.log(f(y) as number)"),
        ("bash", "f() { echo \"${1%.*}\"; }; y=2.5; cd /tmp", 'f "$y"'),
    ],
)  # fmt: skip
def test_its_state_lasts_apart_from_other_contexts_until_it_is_restarted(
    box: Sandbox, language: str, first: str, second: str
) -> None:
    box.files.write("/workspace/floor.mjs", "export const floor = Math.floor\n")
    context = box.code.context(language)
    assert context.run(first).error is None
    result = context.run(second)
    assert (result.stdout, result.context, result.lost) == ("2\n", context.name, None)
    assert box.code.context(language).run(second).error
    assert (context.info().state, context.info().runs) == ("idle", 2)
    context.restart()
    assert context.info().state == "new"
    anew = context.run(second)
    assert (anew.error is None, anew.lost) == (False, "it was restarted")
    context.delete()
    assert context.name not in [other.name for other in box.code.contexts()]


def test_a_bash_context_has_its_directory_and_variables_and_keeps_where_it_stands(box: Sandbox) -> None:
    context = box.code.context("bash", "shelly", cwd="/tmp", env={"GIVEN": "yes"}, user="root")
    assert context.run('echo "$PWD $GIVEN $(id -un)"; cd /usr').stdout == "/tmp yes root\n"
    assert context.run("pwd").stdout == "/usr\n"
    failed = context.run("false")
    assert failed.error
    assert (failed.exit_code, failed.error.message) == (1, "exit code 1")
    assert context.run("exit 7").exit_code == 7
    assert context.run("").exit_code == 0
    context.delete()
    other = box.code.context("bash", "shelly")
    assert other.run("pwd").stdout == "/workspace\n"
    other.delete()


def test_bash_code_may_be_longer_than_an_argument(box: Sandbox) -> None:
    result = box.code.run("# " + "x" * 200_000 + "\nlong=1\nnot_there", "bash")
    assert result.error
    assert (result.error.message, result.error.line) == ("not_there: command not found", 3)
    assert box.code.run("echo $long", "bash").stdout == "1\n"


class Under:
    """A run that has begun, in a thread of its own."""

    def __init__(self, context: Context, code: str) -> None:
        begun = threading.Event()
        self.error = ""

        def run() -> None:
            result = context.run(code, on_output=lambda _: begun.set())
            self.error = result.error.name if result.error else "none"

        self.thread = threading.Thread(target=run)
        self.thread.start()
        assert begun.wait(30)

    def over(self) -> str:
        self.thread.join(30)
        return self.error


@pytest.mark.parametrize("language", CONTEXTS)
def test_an_interrupt_ends_what_runs_and_keeps_the_state(box: Sandbox, language: str) -> None:
    context = box.code.context(language)
    context.run({"python": "kept = 1", "bash": "kept=1"}.get(language, "globalThis.kept = 1"))
    running = Under(context, LOOPS[language])
    context.interrupt()
    assert running.over() in ("Interrupted", "KeyboardInterrupt")
    again = context.run("echo $kept" if language == "bash" else "kept")
    assert (again.text or again.stdout.strip(), again.lost) == ("1", None)
    running = Under(context, LOOPS[language])
    context.delete()
    assert running.over() == "Interrupted"


@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_what_a_fresh_script_left_going_is_waited_for(box: Sandbox, language: str) -> None:
    result = box.code.run("setTimeout(() => console.log('late'), 50); console.log('first')", language, fresh=True)
    assert (result.stdout, result.exit_code, result.context) == ("first\nlate\n", 0, None)


def test_a_javascript_context_that_dies_says_so_and_the_next_run_begins_anew(box: Sandbox) -> None:
    context = box.code.context("javascript")
    context.run("globalThis.kept = 1")
    died = context.run("console.log('a'); process.abort()")
    assert died.error
    assert (died.stdout, died.signal, died.error.name, died.after) == ("a\n", "ABRT", "ContextDied", "replaced")
    anew = context.run("typeof kept")
    assert (anew.text, "ABRT" in (anew.lost or "")) == ("'undefined'", True)
    forged = context.run("fs.writeSync(3, Buffer.from('D\\0\\0\\0\\0')); while (true) {}", timeout=20)
    assert forged.error
    assert "descriptor" in forged.error.message
    context.delete()


def test_a_javascript_context_asks_for_the_memory_of_nobody_else(box: Sandbox) -> None:
    """Twenty of them, each with something in it."""
    contexts = [box.code.context("javascript") for _ in range(20)]
    for at, context in enumerate(contexts):
        assert context.run(f"const mine = {at}; mine").text == str(at)
    assert [context.run("mine").text for context in contexts] == [str(at) for at in range(20)]
    for context in contexts:
        context.delete()
