"""How code fails in the Python kernel: in Python's words, with the code's own lines, and none of ours."""

from __future__ import annotations

import pytest
from support.kernel import Ran, Running


def error(ran: Ran) -> dict[str, str]:
    assert ran.error is not None
    assert "<skerry>" not in ran.error["traceback"]
    return ran.error


def test_traceback_has_the_lines_of_all_involved_runs(fresh: Running) -> None:
    fresh.run("def divide(a, b):\n    return a / b")
    told = error(fresh.run("x = 1\ndivide(x, 0)\n"))
    assert (told["name"], told["message"], told["line"]) == ("ZeroDivisionError", "division by zero", "2")
    lines = [line for line in told["traceback"].split("\n") if not set(line) <= set(" ~^")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    divide(x, 0)",
        '  File "<cell 1>", line 2, in divide',
        "    return a / b",
        "ZeroDivisionError: division by zero",
    ]
    assert fresh.run("x").text == "1"


@pytest.mark.parametrize(
    ("code", "name", "line", "shown"),
    [
        ("x = 1\ny = = 2\n", "SyntaxError", "2", "    y = = 2\n        ^\n"),
        ("if True:\nx = 1", "IndentationError", "2", "    x = 1\n    ^\n"),
        ("def f():\n    pass\nreturn 5", "SyntaxError", "3", "    return 5\n"),
        ("print('never ends", "SyntaxError", "1", "    print('never ends\n"),
        ("x = 5\ndef f():\n    nonlocal y", "SyntaxError", "3", "    nonlocal y\n"),
    ],
)
def test_a_syntax_error_shows_the_line_and_the_place(
    kernel: Running, code: str, name: str, line: str, shown: str
) -> None:
    ran = kernel.run(f"{code}")
    told = error(ran)
    assert (ran.status, told["name"], told["line"]) == ("error", name, line)
    assert shown in told["traceback"]
    assert told["traceback"].startswith('  File "<cell ')
    assert told["traceback"].endswith(f"{name}: {told['message']}")


def test_code_with_a_syntax_error_does_not_run(kernel: Running) -> None:
    assert kernel.run("print('ran')\n1 +").stdout == b""


def test_causes_and_groups_are_reported_completely(kernel: Running) -> None:
    told = error(kernel.run("try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError('no') from e"))
    assert "The above exception was the direct cause" in told["traceback"]
    assert (told["name"], told["message"], told["line"]) == ("KeyError", "'no'", "4")
    told = error(kernel.run("raise ExceptionGroup('both', [ValueError('a'), TypeError('b')])"))
    assert told["name"] == "ExceptionGroup"
    assert "ValueError: a" in told["traceback"]
    assert "TypeError: b" in told["traceback"]


def test_exception_that_cannot_be_printed_is_reported(kernel: Running) -> None:
    told = error(kernel.run("class Bad(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise Bad"))
    assert (told["name"], told["message"], told["line"]) == ("Bad", "<exception str() failed>", "3")
    told = error(kernel.run("class Worse(Exception):\n    def __str__(self): raise SystemExit(9)\nraise Worse"))
    assert told["name"] == "Worse"


def test_falsy_exception_is_reported(kernel: Running) -> None:
    ran = kernel.run("class Empty(Exception):\n    def __len__(self): return 0\nraise Empty")
    assert (ran.status, error(ran)["name"]) == ("error", "Empty")


def test_error_behind_await_shows_no_event_loop_frames(kernel: Running) -> None:
    told = error(
        kernel.run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    raise OSError('x')\nawait f()")
    )
    assert "asyncio" not in told["traceback"].replace("await asyncio.sleep(0)", "")
    assert told["line"] == "4"


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        ("sys.exit()", "ok", None),
        ("sys.exit(0)", "ok", None),
        ("sys.exit(False)", "ok", None),
        ("exit()", "ok", None),
        ("sys.exit(3)", "error", "3"),
        ("sys.exit('went wrong')", "error", "went wrong"),
        ("raise SystemExit(4)", "error", "4"),
        ("raise SystemExit([])", "error", "[]"),
    ],
)
def test_an_exit_ends_the_run_and_not_the_context(kernel: Running, call: str, status: str, message: str | None) -> None:
    ran = kernel.run(f"import sys\nmemory = 5\nprint('before')\n{call}\nprint('after')")
    assert (ran.status, ran.stdout) == (status, b"before\n")
    assert (ran.error["name"], ran.error["message"]) == ("SystemExit", message) if ran.error else message is None
    assert kernel.run("memory").text == "5"
    assert kernel.run("input()", stdin=b"still there\n").text == "'still there'"


def test_recursion_to_the_limit_is_an_error_and_the_context_goes_on(kernel: Running) -> None:
    told = error(kernel.run("def deeper(n): return deeper(n + 1)\ndeeper(0)"))
    assert told["name"] == "RecursionError"
    assert "[Previous line repeated " in told["traceback"]
    told = error(kernel.run("def a(n): return b(n)\ndef b(n): return a(n)\na(0)"))
    assert told["name"] == "RecursionError"
    assert kernel.run("deeper.__name__").text == "'deeper'"


def test_a_recursion_limit_set_low_does_not_reach_the_kernel(fresh: Running) -> None:
    fresh.run("import sys\nlimit = sys.getrecursionlimit()\nsys.setrecursionlimit(30)")
    assert error(fresh.run("def f(): f()\nf()"))["name"] == "RecursionError"
    assert error(fresh.run("1 / 0"))["name"] == "ZeroDivisionError"


@pytest.mark.parametrize(
    "forever",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import asyncio\nawait asyncio.sleep(60)",
        "import asyncio; asyncio.run(asyncio.sleep(60))",
        "import subprocess; subprocess.run(['sleep', '60'], check=True)",
        "import threading; threading.Event().wait()",
        "while True: print('x' * 99)",
    ],
)
def test_an_interrupt_ends_the_run_and_keeps_its_names(kernel: Running, forever: str) -> None:
    ran = kernel.run(f"memory = 6\nprint('begun', flush=True)\n{forever}", interrupt_at=b"begun")
    assert ran.status == "interrupted"
    told = error(ran)
    assert told["name"] == "KeyboardInterrupt"
    assert told["line"].isdigit()
    assert kernel.run("memory").text == "6"


def test_interrupt_cancels_awaiting_code_which_can_clean_up(kernel: Running) -> None:
    code = (
        "import asyncio\ntry:\n    print('begun', flush=True)\n    await asyncio.sleep(60)\n"
        "finally:\n    cleaned = True"
    )
    assert kernel.run(code, interrupt_at=b"begun").status == "interrupted"
    assert kernel.run("cleaned").text == "True"


def test_an_interrupt_between_runs_changes_nothing(kernel: Running) -> None:
    kernel.run("memory = 7")
    kernel.interrupt()
    ran = kernel.run("memory")
    assert (ran.status, ran.text) == ("ok", "7")


def test_signal_handler_of_the_code_ends_with_its_run(fresh: Running) -> None:
    fresh.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    ran = fresh.run("print('begun', flush=True)\nwhile True: pass", interrupt_at=b"begun")
    assert ran.status == "interrupted"


def test_excepthook_of_the_code_is_not_used(kernel: Running) -> None:
    ran = kernel.run("import sys\nsys.excepthook = lambda *a: sys.exit(1)\n1 / 0")
    assert error(ran)["name"] == "ZeroDivisionError"


def test_a_warning_is_printed_once_a_run_with_its_line(kernel: Running) -> None:
    code = "import warnings\nfor i in range(3):\n    warnings.warn('careful')"
    for _ in range(2):
        printed = kernel.run(code).stderr.decode()
        assert printed.count("UserWarning: careful") == 1
        assert printed.endswith("  warnings.warn('careful')\n")


def test_an_error_in_a_thread_is_printed_with_its_lines(kernel: Running) -> None:
    ran = kernel.run(
        "import threading\ndef work():\n    raise ValueError('in it')\n"
        "t = threading.Thread(target=work)\nt.start()\nt.join()"
    )
    printed = ran.stderr.decode()
    assert ran.status == "ok"
    assert "Exception in thread Thread-" in printed
    assert "    raise ValueError('in it')\nValueError: in it\n" in printed


def test_magic_without_ipython_has_an_install_hint(kernel: Running) -> None:
    told = error(kernel.run("x = 1\n!ls /"))
    assert (told["name"], told["line"]) == ("SyntaxError", "2")
    assert "pip install ipython" in told["message"]
    assert kernel.run("%matplotlib inline\n7").text == "7"
    assert "pip install" not in error(kernel.run("7 %% 2"))["message"]
    assert "pip install" not in error(kernel.run("text = '''\n% no magic\n'''\nx = = 1"))["message"]
