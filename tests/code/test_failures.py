"""Failures of code, read from the real output of its language."""

from __future__ import annotations

import pytest

from skerry.code import failures
from skerry.code.languages import build
from skerry.types import RunResult

AT = "/tmp/skerry-code-0123456789abcdef"
TABLE = build({})
PRINTED = {  # by Debian's own toolchains, and by newer ones where they print something else
    "perl": (f"boom at {AT}/main.pl line 2.\n", "Error", "boom", 2),
    "perl, reading": (f"boom at {AT}/main.pl line 4, <STDIN> line 1.\n", "Error", "boom", 4),
    "ruby": (
        f"{AT}/main.rb:2:in `f': boom (ArgumentError)\n\tfrom {AT}/main.rb:3:in `<main>'\n", "ArgumentError", "boom", 2,
    ),
    "ruby, syntax": (
        f"{AT}/main.rb:2: syntax error, unexpected end-of-input\nputs (\n      ^\n", "syntax error",
        "unexpected end-of-input", 2,
    ),
    "ruby, syntax by prism": (
        f"{AT}/main.rb:1: syntax error found (SyntaxError)\n> 1 | puts (\n    |       ^ unexpected end-of-input\n",
        "SyntaxError", "syntax error found", 1,
    ),
    "php": (
        f"PHP is loud\nFatal error: Uncaught Exception: boom in {AT}/main.php:2\nStack trace:\n#0 {{main}}\n"
        f"  thrown in {AT}/main.php on line 2\n", "Fatal error", "Uncaught Exception: boom", 2,
    ),
    "php, syntax": (f'Parse error: unexpected ";" in {AT}/main.php on line 3\n', "Parse error", 'unexpected ";"', 3),
    "r": ("Error in f() : boom\nExecution halted\n", "Error", "boom", None),
    "r, plain": ("Error: boom\nExecution halted\n", "Error", "boom", None),
    "go": (
        f"panic: boom\n\ngoroutine 1 [running]:\nmain.main()\n\t{AT}/main.go:5 +0x65\n", "panic", "boom", 5,
    ),
    "rust": (
        "thread 'main' (42) panicked at main.rs:3:2:\nboom\nnote: run with …\n", "panicked", "boom", 3,
    ),
    "rust, before 1.73": (
        "thread 'main' panicked at 'boom', main.rs:3:2\nnote: run with …\n", "panicked", "boom", 3,
    ),
    "java": (
        'Exception in thread "main" java.lang.IllegalStateException: boom\n\tat java.base/x.Y.z(Y.java:9)\n'
        "\tat Main.main(Main.java:2)\n", "java.lang.IllegalStateException", "boom", 2,
    ),
    "bash": (f"{AT}/main.sh: line 3: nonsense: command not found\n", "Error", "nonsense: command not found", 3),
    "c": ("", "Error", "exit code 1", None),
}  # fmt: skip


def ended(exit_code: int | None = 1, signal: str | None = None, timed_out: bool = False) -> RunResult:
    return RunResult(id="p-aaaaaaaaaa", exit_code=exit_code, signal=signal, duration_s=1, timed_out=timed_out)


@pytest.mark.parametrize("what", PRINTED)
def test_error_is_parsed_from_the_output_of_its_language(what: str) -> None:
    printed, name, message, line = PRINTED[what]
    error = failures.of_program(TABLE[what.partition(",")[0]], ended(), printed, AT)
    assert error is not None
    assert (error.name, error.message, error.line) == (name, message, line)
    assert AT not in error.traceback
    assert error.traceback == printed.replace(f"{AT}/", "").rstrip("\n")


def test_success_is_no_error_despite_its_output() -> None:
    assert failures.of_program(TABLE["perl"], ended(0), f"boom at {AT}/main.pl line 2.\n", AT) is None


def test_signal_and_timeout_have_names() -> None:
    def told(end: RunResult, printed: str = "") -> tuple[str, str]:
        error = failures.of_program(TABLE["cpp"], end, printed, AT)
        assert error is not None
        return error.name, error.message

    assert told(ended(None, "SEGV")) == ("SIGSEGV", "Segmentation fault")
    assert told(ended(None, "NOSUCH")) == ("SIGNOSUCH", "signal NOSUCH")
    assert told(ended(None, "KILL", timed_out=True))[0] == "Interrupted"
    thrown = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  boom\n"
    assert told(ended(None, "ABRT"), thrown) == ("std::runtime_error", "boom")


@pytest.mark.parametrize(
    ("language", "printed", "message", "line"),
    [
        ("c", "main.c: In function ‘main’:\nmain.c:2:20: error: ‘x’ …\n", "main.c:2:20: error: ‘x’ …", 2),
        ("go", "# command-line-arguments\n./main.go:3:2: undefined: x\n", "./main.go:3:2: undefined: x", 3),
        ("rust", "error[E0425]: cannot find value `x`\n --> main.rs:1:12\n\nerror: aborting\n",
         "error[E0425]: cannot find value `x`", 1),
        ("java", "Main.java:1: error: class Other is public, should be declared in a file named Other.java\n1 error\n",
         "Main.java:1: error: class Other is public, should be declared in a file named Other.java", 1),
        ("c", "", "", None),
    ],
)  # fmt: skip
def test_compiler_output_is_the_error(language: str, printed: str, message: str, line: int | None) -> None:
    error = failures.of_compiler(TABLE[language], printed, AT)
    assert (error.name, error.message, error.line) == ("CompileError", message, line)
    assert error.traceback == printed.rstrip("\n")


@pytest.mark.parametrize("language", TABLE)
@pytest.mark.parametrize(
    "piece", ["Error in ", "thread ' panicked at '", "main.rb:1:in a (a", "\n", "x", "main.go:", "\ufffd"]
)
def test_endless_output_is_read_within_bounds(language: str, piece: str) -> None:
    printed = piece * (1_000_000 // len(piece))
    for error in (
        failures.of_program(TABLE[language], ended(), printed, AT), failures.of_compiler(TABLE[language], printed, AT),
    ):  # fmt: skip
        assert error is not None
        assert len(error.traceback) < failures.MAX_TEXT + 100
        assert len(error.message) <= failures.MAX_MESSAGE
        assert len(error.name) <= 200
