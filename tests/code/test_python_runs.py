"""The Python kernel runs code: values, state, output, input."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.kernel import Running, running

PYTHONS = [  # 3.8 and newer
    str(path)
    for path in (
        *Path("/usr/bin").glob("python3.*[0-9]"),
        *Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3"),
    )
    if not re.search(r"/(python)?3\.[0-7](\.|$|/)", str(path))
]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 + 1", "2"),
        ("'é' * 2", "'éé'"),
        ("x = 3\nx * 2", "6"),
        ("(1 +\n 2)  # ; not hidden", "3"),
        ("'a;b'", "'a;b'"),
        ("None", None),
        ("x = 4", None),
        ("7;", None),
        ("(7) ; # hidden", None),
        ("if True:\n    5", None),
        ("", None),
        ("# nothing", None),
        ("1\r\n2\r\n", "2"),
        ("\n    x = 3\n    if x:\n        x += 1\n\n    x", "4"),
        ("\tx = 3\n\tx", "3"),
        ('    # only a comment is indented\nx = """\n    kept"""\nlen(x)', "9"),
        ("# a comment\n    5", "5"),
    ],
)
def test_the_last_expression_is_the_result_unless_a_semicolon_hides_it(
    kernel: Running, code: str, text: str | None
) -> None:
    ran = kernel.run(code)
    assert (ran.status, ran.text, ran.error) == ("ok", text, None)


def test_names_persist_across_runs_and_the_last_value_is_kept(kernel: Running) -> None:
    kernel.run("import math\ndef double(x): return 2 * x\nkept = [1]")
    assert kernel.run("kept.append(double(math.floor(2.5)))\nkept").text == "[1, 4]"
    assert kernel.run("_[1]").text == "4"
    assert kernel.run("'_' in globals(), 'kernel' in globals(), 'channel' in globals()").text == "(False, False, False)"


def test_code_is_the_module_main(kernel: Running) -> None:
    ran = kernel.run(
        """
import dataclasses, inspect, pickle, sys
@dataclasses.dataclass
class Point:
    x: int
    def far(self): return self.x
assert sys.modules["__main__"].Point is Point
assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
assert inspect.getsource(Point.far) == "    def far(self): return self.x\\n"
if __name__ == "__main__":
    print("as a program")
sys.argv, __doc__
"""
    )
    assert (ran.error, ran.stdout, ran.text) == (None, b"as a program\n", "([''], None)")


def test_future_import_applies_to_later_runs(kernel: Running) -> None:
    kernel.run("from __future__ import annotations")
    assert kernel.run("def f(x: not_there): pass\nf.__annotations__").text == "{'x': 'not_there'}"


def test_display_is_ordered_with_printed_output(kernel: Running) -> None:
    ran = kernel.run("print('one')\ndisplay(1, 'two')\nprint('three')\n4")
    assert [(o["main"], o["text/plain"]) for o in ran.outputs] == [(b"0", b"1"), (b"0", b"'two'"), (b"1", b"4")]
    assert ran.stdout == b"one\nthree\n"


def test_top_level_await_works_and_tasks_continue_between_runs(kernel: Running) -> None:
    ran = kernel.run(
        "import asyncio, os\nasync def later(x):\n    await asyncio.sleep(0)\n    return x\nawait later(5)"
    )
    assert (ran.error, ran.text) == (None, "5")
    assert kernel.run("await asyncio.gather(later(1), later(2))").text == "[1, 2]"
    kernel.run(
        "there, back = os.pipe(), os.pipe()\n"
        "asyncio.get_running_loop().add_reader(there[0], lambda: os.write(back[1], os.read(there[0], 9)))\n"
        "await asyncio.sleep(0)\n"
        "os.write(there[1], b'between')"
    )
    assert kernel.run("os.read(back[0], 9)").text == "b'between'"  # nothing is awaited here


def test_asyncio_run_works_without_top_level_await(kernel: Running) -> None:
    assert kernel.run("import asyncio\nasync def f(): return 8\nasyncio.run(f())").text == "8"
    assert kernel.run("await f()").text == "8"


def test_input_reads_the_given_stdin_and_children_do_too(kernel: Running) -> None:
    ran = kernel.run("a = input('who? ')\nimport sys\na, sys.stdin.read()", stdin="é\nrest\n".encode())
    assert (ran.text, ran.stdout) == ("('é', 'rest\\n')", b"who? ")
    ran = kernel.run("import subprocess; subprocess.run(['cat'])\nNone", stdin=b"for a child\n" * 100_000)
    assert ran.stdout == b"for a child\n" * 100_000


@pytest.mark.parametrize(("stdin", "why"), [(None, "it was given no stdin"), (b"", "its stdin is at its end")])
def test_input_without_stdin_fails_at_once_with_a_reason(kernel: Running, stdin: bytes | None, why: str) -> None:
    kernel.run("1", stdin=b"left over from another run\n")
    ran = kernel.run("input()", stdin=stdin)
    assert ran.error is not None
    assert ran.error["name"] == "EOFError"
    assert ran.error["message"].endswith(why)
    assert "skerry" not in ran.error["traceback"]


def test_ten_mebibytes_of_output_arrive_completely(kernel: Running) -> None:
    ran = kernel.run("for i in range(10):\n    print('x' * ((1 << 20) - 1))")
    assert len(ran.stdout) == 10 << 20


def test_multiprocessing_works_with_names_of_the_code(kernel: Running) -> None:
    ran = kernel.run(
        "import multiprocessing\ndef square(x): return x * x\n"
        "with multiprocessing.Pool(2) as pool:\n    found = pool.map(square, range(4))\nfound"
    )
    assert (ran.error, ran.text) == (None, "[0, 1, 4, 9]")


def test_kernel_starts_with_builtin_modules_only() -> None:
    listed = "import sys; print(*sorted(sys.modules))"
    bare = subprocess.run(["/usr/bin/python3", "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    with running("python") as kernel:
        more = set(kernel.run(listed).stdout.decode().split()) - set(bare)
    builtin = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.builtin_module_names)"], capture_output=True, text=True
    ).stdout.split()
    assert more <= {"__future__", *builtin}


@pytest.mark.parametrize("program", PYTHONS)
def test_kernel_runs_on_every_python_of_the_host(program: str) -> None:
    with running("python", (program,)) as kernel:
        ran = kernel.run("import asyncio\nawait asyncio.sleep(0, [1, {'a': None}])")
        assert kernel.version is not None
        assert ran.main == {"main": b"1", "text/plain": b"[1, {'a': None}]", "application/json": b'[1,{"a":null}]'}
        ran = kernel.run("def f():\n    return 1 / 0\nf()")
        assert ran.error is not None
        assert (ran.error["name"], ran.error["line"]) == ("ZeroDivisionError", "2")
        assert ran.error["traceback"].startswith(
            'Traceback (most recent call last):\n  File "<cell 2>", line 3, in <module>\n    f()\n'
        )
        assert "<skerry>" not in ran.error["traceback"]
        assert kernel.run("print('\\ud800'); input()", stdin=b"x\n").text == "'x'"
