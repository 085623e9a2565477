"""Code that misbehaves in the Python kernel's own process."""

from __future__ import annotations

import os

import pytest
from support.kernel import KernelDied, Running, running

from skerry.types import MAX_PICTURE, MAX_RESULTS, MAX_TEXT

# -- values --


def test_repr_that_raises_is_reported_as_text(kernel: Running) -> None:
    ran = kernel.run("class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()")
    assert (ran.status, ran.text) == ("ok", "<Bad whose repr raised ValueError: no>")
    assert kernel.run("[Bad()]").text == "<list whose repr raised ValueError: no>"
    assert kernel.run("10 ** 10000").text.startswith("<int whose repr raised ValueError: ")  # type: ignore[union-attr]
    assert "RecursionError" in kernel.run("x = []\nfor _ in range(100000): x = [x]\nx").text  # type: ignore[operator]


def test_a_repr_that_never_ends_can_be_interrupted(kernel: Running) -> None:
    code = "class Slow:\n    def __repr__(self):\n        print('begun', flush=True)\n        while True: pass\nSlow()"
    assert kernel.run(code, interrupt_at=b"begun").status == "interrupted"
    assert kernel.run("1").text == "1"


@pytest.mark.parametrize("value", ["bytes(10 ** 9)", "[{'deep': (bytes(10 ** 9),)}]"])
def test_a_value_of_a_gigabyte_is_shown_in_part_and_never_copied(value: str) -> None:
    with running("python", ("prlimit", f"--as={1300 << 20}", "/usr/bin/python3")) as kernel:
        ran = kernel.run(value)
        assert (ran.status, ran.error) == ("ok", None)
        assert ran.main is not None
        assert ran.main["cut"] == b"text/plain"
        assert b"b'\\x00\\x00" in ran.main["text/plain"]
        assert MAX_TEXT - 8 < len(ran.main["text/plain"]) <= MAX_TEXT


def test_long_collections_are_cut_and_their_json_is_left_out(kernel: Running) -> None:
    ran = kernel.run("list(range(10 ** 6))")
    assert ran.main is not None
    assert ran.main["cut"] == b"application/json text/plain"
    assert ran.main["text/plain"].startswith(b"[0, 1, 2,")
    assert ran.main["text/plain"].endswith("…".encode())
    assert len(ran.main["text/plain"]) <= MAX_TEXT
    assert "application/json" not in ran.main


@pytest.mark.parametrize(
    "value",
    [
        "[]", "{}", "()", "set()", "frozenset()", "(1,)", "{1: (2, [3])}", "{'a'}", "frozenset({1})",
        "[1, 'x', b'y', None, 2.5, {'k': [()]}]", "bytearray(b'z')", "range(3)", "...",
    ],
)  # fmt: skip
def test_built_in_collections_look_as_they_do_in_python(kernel: Running, value: str) -> None:
    assert kernel.run(value).text == repr(eval(value))


def test_a_collection_that_holds_itself_is_shown(kernel: Running) -> None:
    assert kernel.run("x = [1]\nx.append({'me': x})\nx").text == "[1, {'me': [...]}]"


def test_results_are_bounded_in_number_and_the_last_value_is_kept(kernel: Running) -> None:
    ran = kernel.run("for i in range(1000): display(i)\n'last'")
    assert len(ran.outputs) == MAX_RESULTS
    assert ran.text == "'last'"
    assert b"left out" in ran.stderr


def test_results_are_bounded_in_size(kernel: Running) -> None:
    ran = kernel.run(
        f"class P:\n    def _repr_png_(self): return b'\\x89PNG' + bytes({MAX_PICTURE} - 4)\n"
        "    def __repr__(self): return 'P'\nfor i in range(9): display(P())\n'last'"
    )
    assert 2 <= len(ran.outputs) <= 5
    assert ran.text == "'last'"


# -- output --


def test_non_utf8_output_is_harmless(kernel: Running) -> None:
    ran = kernel.run("import sys\nprint('\\ud800', '\\x00\\x1b')\nsys.stdout.buffer.write(b'\\xff\\xfe\\n')\n'\\udcff'")
    assert ran.stdout == b"\\ud800 \x00\x1b\n\xff\xfe\n"
    assert ran.text == "'\\udcff'"


@pytest.mark.parametrize(
    "harm",
    [
        "sys.stdout = sys.stderr = io.StringIO()",
        "sys.stdout = sys.stderr = None",
        "sys.stdout = 5; sys.stderr = []",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout.detach()",
        "os.close(1); os.close(2)",
        "f = open('/dev/null', 'w'); os.dup2(f.fileno(), 1); os.dup2(f.fileno(), 2)",
        "os.closerange(0, 3)",
        "sys.stdin = None; sys.stdin",
        "sys.stdin.close()",
        "class W:\n    def write(self, x): raise OSError\n    def flush(self): raise SystemExit(3)\nsys.stdout = W()",
    ],
)
def test_streams_and_descriptors_are_put_back_after_the_run(kernel: Running, harm: str) -> None:
    assert kernel.run(f"import io, os, sys\n{harm}\nmemory = 8").error is None
    ran = kernel.run(
        "print('out'); print('err', file=sys.stderr); os.system('echo child')\ninput(), memory", stdin=b"in\n"
    )
    assert (ran.error, ran.stdout, ran.stderr) == (None, b"out\nchild\n", b"err\n")
    assert ran.text == "('in', 8)"


def test_other_buffers_are_flushed_before_the_end_of_the_run(kernel: Running) -> None:
    ran = kernel.run(
        "import ctypes, io, sys\nctypes.CDLL(None).printf(b'from C\\n')\n"
        "sys.stdout = io.TextIOWrapper(open(1, 'wb', closefd=False))\nprint('replaced')\nprint('no end', end='')\nNone"
    )
    assert sorted(ran.stdout) == sorted(b"from C\nreplaced\nno end"), "all of it, in whatever order it was flushed"


# -- the channel --


@pytest.mark.parametrize(
    "harm", ["os.dup2(1, 100)", "os.close(100)", "os.closerange(3, 200)", "os.dup2(os.open('/dev/null', 2), 100)"]
)
def test_kernel_without_its_channel_ends_and_writes_nowhere_else(fresh: Running, harm: str) -> None:
    fresh.run("1")
    with pytest.raises(KernelDied) as died:
        fresh.run(f"import os\n{harm}\n'a value'")
    assert died.value.code == 70
    assert died.value.ran.stdout == b""


def test_an_interrupt_never_leaves_half_a_message(kernel: Running) -> None:
    code = "print('begun', flush=True)\nwhile True: display('x' * 9000)"
    for _ in range(3):
        ran = kernel.run(code, interrupt_at=b"begun")
        assert ran.status == "interrupted"


def test_the_end_of_the_process_is_seen(fresh: Running) -> None:
    with pytest.raises(KernelDied) as died:
        fresh.run("print('last words', flush=True)\nimport os; os._exit(5)")
    assert (died.value.code, died.value.ran.stdout) == (5, b"last words\n")


def test_the_kernel_ends_with_its_channel(fresh: Running) -> None:
    fresh.run("import atexit; atexit.register(print, 'bye')")
    fresh.channel.close()
    assert fresh.process.wait(30) == 0
    assert fresh.process.stdout is not None
    assert os.read(fresh.process.stdout.fileno(), 99) == b"bye\n"


# -- processes and threads --


def test_a_forked_child_never_comes_back_into_the_kernel(kernel: Running) -> None:
    ran = kernel.run(
        "import os\npid = os.fork()\nif pid == 0:\n    display('child')\n    3 / 0\nos.waitpid(pid, 0)[1] >> 8"
    )
    assert ran.text == "1"
    assert ran.stdout == b"'child'\n"
    assert b"ZeroDivisionError" in ran.stderr
    ran = kernel.run("pid = os.fork()\nif pid == 0:\n    raise SystemExit(9)\nos.waitpid(pid, 0)[1] >> 8")
    assert (ran.text, ran.stderr) == ("9", b"")
    assert kernel.run("pid != 0").text == "True"


def test_threads_outlive_the_run_with_restricted_display(kernel: Running) -> None:
    kernel.run(
        "import threading\ngo, done = threading.Event(), threading.Event()\n"
        "def work():\n    go.wait()\n    display('shown')\n    print('printed')\n    done.set()\n"
        "thread = threading.Thread(target=work, daemon=True)\nthread.start()"
    )
    ran = kernel.run("go.set(), done.wait()\nNone")
    assert [output["text/plain"] for output in ran.outputs] == [b"'shown'"]
    assert ran.stdout == b"printed\n"
    kernel.run(
        "go.clear(); done.clear()\nthreading.Thread(target=work, daemon=True).start()\n"
        "threading.Timer(0.01, go.set).start()"
    )
    ran = kernel.run("done.wait()\nNone")
    assert ran.stdout.endswith(b"printed\n")


def test_child_processes_outlive_the_run(kernel: Running) -> None:
    ran = kernel.run("import subprocess\nchild = subprocess.Popen(['sleep', '60'])\nchild.poll() is None")
    assert ran.text == "True"
    assert kernel.run("child.poll() is None and (child.kill(), child.wait())[1]").text == "-9"
