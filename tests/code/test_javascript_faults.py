"""The JavaScript kernel when code fails, never ends, or attacks the kernel."""

from __future__ import annotations

import json
import select
import signal
from collections.abc import Iterator

import pytest
from support.kernel import KernelDied, Running, running
from support.node import node, nodes


@pytest.fixture(scope="module", params=[".".join(map(str, version)) for version in nodes()] or ["none"])
def program(request: pytest.FixtureRequest) -> str:
    return next((path for version, path in nodes().items() if ".".join(map(str, version)) == request.param), node())


@pytest.fixture(scope="module")
def kernel(program: str) -> Iterator[Running]:
    with running("javascript", (program,)) as made:
        yield made


def test_error_has_name_line_and_code_without_kernel_frames(kernel: Running) -> None:
    ran = kernel.run("function deep() {\n  throw Object.assign(new RangeError('odd'), { code: 'E_ODD' })\n}\n\ndeep()")
    assert ran.error
    assert (ran.status, ran.error["name"], ran.error["message"], ran.error["line"]) == (
        "error",
        "RangeError",
        "odd",
        "2",
    )
    head, stack = ran.error["traceback"].split("\n\n")
    cell = head.partition(":")[0]
    assert head.splitlines()[1] == "  throw Object.assign(new RangeError('odd'), { code: 'E_ODD' })"
    assert stack.splitlines() == [
        "RangeError: odd", f"    at deep ({cell}:2:23)", f"    at {cell}:5:1 {{", "  code: 'E_ODD'", "}"]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "properties"),
    [
        (
            "require('fs').readFileSync('/no/such')",
            {"errno": -2, "code": "ENOENT", "syscall": "open", "path": "/no/such"},
        ),
        ("throw Object.assign(new Error('x'), { status: 404, f() {}, m: new Map() })", {"status": 404}),
        ("throw { a: [1] }", {"a": [1]}),
        ("throw Object.assign(new Error('x'), { big: 'x'.repeat(100_000) })", None),
        ("throw Object.defineProperty(new Error('x'), 'odd', { enumerable: true, get() { throw 1 } })", None),
        ("throw 'text'", None),
        ("throw new Error('x')", None),
    ],
)
def test_error_properties_are_json(kernel: Running, code: str, properties: object) -> None:
    error = kernel.run(code).error
    assert error
    assert json.loads(error.get("properties", "null")) == properties


def test_error_line_refers_to_this_run_for_earlier_definitions_too(kernel: Running) -> None:
    kernel.run("\n\n\nfunction early() { return missing.name }")
    error = kernel.run("1\nearly()").error
    assert error
    assert (error["name"], error["line"]) == ("ReferenceError", "2")
    assert "function early() { return missing.name }" in error["traceback"]


@pytest.mark.parametrize(
    ("code", "line"),
    [("1\nlet x = ;", "2"), ("f(", "1"), ("const q = `abc", "1"), ("return 1", "1"), ("a\nb\nimport from 'x'", "3")],
)
def test_a_syntax_error_has_its_line_and_nothing_ran(kernel: Running, code: str, line: str) -> None:
    error = kernel.run(code).error
    assert error
    assert (error["name"], error["line"]) == ("SyntaxError", line)
    assert "<skerry>" not in error["traceback"]


@pytest.mark.parametrize(
    ("code", "text"), [("throw 'text'", "'text'"), ("throw { a: 1 }", "{ a: 1 }"), ("throw null", "null")]
)
def test_thrown_value_need_not_be_an_error(kernel: Running, code: str, text: str) -> None:
    error = kernel.run(code).error
    assert error
    assert (error["name"], error["message"]) == ("Uncaught", text)


@pytest.mark.parametrize(
    "code",
    [
        "Promise.reject(new Error('missed')); 5",
        "setTimeout(() => { throw new Error('missed') }, 0); await new Promise((r) => setTimeout(r, 1e6))",
        "process.nextTick(() => { throw new Error('missed') }); 5",
        "await 0; throw new Error('missed')",
        "(async () => { await null; throw new Error('missed') })()",
    ],
)
def test_uncaught_exception_is_the_error_of_the_run(kernel: Running, code: str) -> None:
    ran = kernel.run(code)
    assert ran.error
    assert (ran.status, ran.error["message"], ran.error["line"], ran.outputs) == ("error", "missed", "1", [])
    assert "<skerry>" not in ran.error["traceback"]


def test_error_between_runs_is_on_stderr_and_the_context_survives(kernel: Running) -> None:
    assert kernel.run("setTimeout(() => { throw new Error('late') }, 50); 5").text == "5"
    assert kernel.process.stderr
    assert select.select([kernel.process.stderr], [], [], 10)[0]
    assert kernel.process.stderr.read().startswith(b"Uncaught Error: late")
    assert kernel.run("7").text == "7"


def test_missing_module_is_reported_with_the_line(kernel: Running) -> None:
    for code in ("import x from 'no-such-package'", "require('no-such-package')", "await import('no-such-package')"):
        error = kernel.run(f"1\n{code}").error
        assert error
        assert ("no-such-package" in error["message"], error["line"]) == (True, "2")
        assert "eval" not in error["message"]
    wrong = kernel.run("import { raedFile } from 'fs'").error
    assert wrong
    assert wrong["message"] == "The requested module 'fs' does not provide an export named 'raedFile'"


def test_endless_recursion_is_an_error(kernel: Running) -> None:
    error = kernel.run("function r() { r() }; r()").error
    assert error
    assert error["name"] == "RangeError"


def test_value_that_cannot_be_shown_is_text(kernel: Running) -> None:
    throws = kernel.run("({ [require('util').inspect.custom]() { throw new Error('no') } })")
    assert (throws.status, throws.text) == ("ok", "[object that can't be shown: Error: no]")
    assert kernel.run("new Proxy({}, { get() { throw 1 }, ownKeys() { throw 2 } })").status == "ok"
    assert kernel.run("throw Object.defineProperty(new Error(), 'message', { get() { throw 1 } })").status == "error"
    assert kernel.run("throw new Proxy(new Error('x'), { get() { throw 1 }, ownKeys() { throw 2 } })").status == "error"


def test_values_are_bounded_and_truncation_is_named(kernel: Running) -> None:
    long = kernel.run("'x'.repeat(400_000_000)").main
    assert long
    assert (len(long["text/plain"]), long["cut"]) == (1 << 20, b"text/plain application/json")
    many = kernel.run("new Array(1e7).fill(1)").main
    assert many
    assert b"9999900 more items" in many["text/plain"]
    assert many["cut"] == b"application/json"
    assert len(kernel.run("for (let i = 0; i < 100; i++) display(i)").outputs) == 63


@pytest.mark.parametrize(
    "code",
    [
        "console.log('go'); while (true) {}",
        "console.log('go'); while (true) await null",
        "console.log('go'); await 0; for (;;) {}",
        "console.log('go'); (function again() { Promise.resolve().then(again) })(); 5",
        "setTimeout(() => console.log('go'), 1); await new Promise((r) => setTimeout(r, 1e6))",
        "console.log('go'); try { while (true) {} } catch { console.log('caught') } finally { console.log('late') }",
        "console.log('go'); process.nextTick(() => { for (;;); })",
        "require('child_process').execSync('echo go; exec sleep 100', { stdio: 'inherit' })",
        "({ [require('util').inspect.custom]() { console.log('go'); for (;;); } })",
        "({ toJSON() { console.log('go'); for (;;); } })",
        "process.on('SIGINT', () => {}); setTimeout(() => console.log('go'), 1); "
        "await new Promise((r) => setTimeout(r, 1e6))",
        "for (;;) console.log('go')",
    ],
)
def test_endless_code_is_interrupted_and_the_state_is_kept(kernel: Running, code: str) -> None:
    kernel.run("globalThis.kept = 41")
    ran = kernel.run(code, interrupt_at=b"go", timeout=5)
    assert ran.error
    assert (ran.status, ran.error["name"]) == ("interrupted", "Interrupted")
    assert b"caught" not in ran.stdout
    assert kernel.run("kept + 1").text == "42"


def test_an_interrupted_loop_does_not_go_on_with_its_next_timer(kernel: Running) -> None:
    loop = "for (;;) { await new Promise((r) => setTimeout(r, 5)); console.log('tick') }"
    assert kernel.run(loop, interrupt_at=b"tick").status == "interrupted"
    assert kernel.run("await new Promise((r) => setTimeout(r, 50))").stdout == b""


def test_an_interrupt_between_two_runs_does_nothing(kernel: Running) -> None:
    kernel.run("globalThis.kept = 1")
    kernel.interrupt()
    assert kernel.run("kept").text == "1"


def test_await_that_cannot_end_is_reported_at_once(program: str) -> None:
    with running("javascript", (program,)) as kernel:  # earlier code may have left work that could bring it
        error = kernel.run("await new Promise(() => {})").error
        assert error
        assert "never comes" in error["message"]
        assert kernel.run("new Array(1e6).fill().map(() => ({})).length").text == "1000000"  # the collector comes by


def test_server_continues_between_runs(kernel: Running) -> None:
    kernel.run("globalThis.server = require('http').createServer((_, r) => r.end('served')).listen(0)")
    get = "await (await fetch(`http://127.0.0.1:${server.address().port}`)).text()"
    assert kernel.run(get).text == "'served'"
    kernel.run("server.closeAllConnections(); server.close()")


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("process.abort()", -signal.SIGABRT),
        ("process.kill(process.pid, 'SIGKILL'); for (;;);", -signal.SIGKILL),
        ("require('fs').closeSync(3)", 70),
        ("const fs = require('fs'); fs.closeSync(3); fs.openSync('/dev/null', 'w')", 70),
    ],
)
def test_dead_kernel_sends_nothing_more(code: str, ended: int) -> None:
    with running("javascript", (node(),)) as mine, pytest.raises(KernelDied) as died:
        mine.run(code)
    assert died.value.code == ended
    assert died.value.ran.status == ""
