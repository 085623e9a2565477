"""The JavaScript kernel runs code: values, state, modules, output and input. On each Node of this host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kernel import Running, running
from support.node import node, nodes


@pytest.fixture(scope="module", params=[".".join(map(str, version)) for version in nodes()] or ["none"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    here = tmp_path_factory.mktemp("workspace")
    (here / "local.mjs").write_text("export const one = 1\nexport default () => 'made'\n")
    package = here / "node_modules" / "twice"
    package.mkdir(parents=True)
    (package / "index.js").write_text("module.exports = (x) => 2 * x\n")
    path = next((path for version, path in nodes().items() if ".".join(map(str, version)) == request.param), node())
    with running("javascript", (path,), cwd=here) as made:
        yield made


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 + 1", "2"),
        ("'é'", "'é'"),
        ("7;", "7"),
        ("let a = 3\na * 2", "6"),
        ("let b = 3", None),
        ("undefined", None),
        ("null", "null"),
        ("", None),
        ("// nothing", None),
        ("#!/usr/bin/env node\n8", "8"),
        ("{ a: 1, b: [1, 2] }", "{ a: 1, b: [ 1, 2 ] }"),
        ("({ a: new Map([[1, new Set([2])]]) })", "{ a: Map(1) { 1 => Set(1) { 2 } } }"),
        ("Buffer.from('ab')", "<Buffer 61 62>"),
        ("(x) => x", "[Function (anonymous)]"),
        ("await 5", "5"),
        ("const c = await Promise.resolve(4)\nfor await (const x of [c]) globalThis.seen = x\nseen", "4"),
        ("async function main() { await null; return 'done' }\nmain()", "'done'"),
        ("if (require.main === module) 'a script'", "'a script'"),
        ("`${[1].map((x) => `${x}`)}` + /import {x}/.source", "'1import {x}'"),
    ],
)
def test_the_last_expression_is_the_result(kernel: Running, code: str, text: str | None) -> None:
    ran = kernel.run(code)
    assert (ran.status, ran.text, ran.error) == ("ok", text, None)


def test_declarations_persist_and_may_be_repeated(kernel: Running) -> None:
    kernel.run("let x = 1; const y = 2; class A {}; function f() { return x + y }; var v = 5")
    assert kernel.run("f()").text == "3"
    kernel.run("let x = 10; const y = await 20; class A { z = 1 }; function f() { return x * y }")
    assert kernel.run("[f(), new A().z, v]").text == "[ 200, 1, 5 ]"
    conflict = kernel.run("const f = 1").error
    assert conflict
    assert conflict["name"] == "SyntaxError"
    assert "one of them must give way" in conflict["message"]
    assert kernel.run("f()").text == "200"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ('import fs from "node:fs"\ntypeof fs.readFileSync', "'function'"),
        ("import { join as j, sep } from 'path'; j('a', 'b') + sep", "'a/b/'"),
        ("import * as os from 'os'\nos.EOL", "'\\n'"),
        ("import made, { one } from './local.mjs'\n[made(), one]", "[ 'made', 1 ]"),
        ("import made, * as all from './local.mjs'\n[made(), all.one]", "[ 'made', 1 ]"),
        ("import './local.mjs'", None),
        ("import {\n  one, // a comment\n  default as d,\n} from './local.mjs';\n[one, d()]", "[ 1, 'made' ]"),
        ("(await import('./local.mjs')).one", "1"),
        ("import twice from 'twice'; twice(4)", "8"),
        ("require('twice')(5)", "10"),
        ("import.meta.url.startsWith('file:///')", "true"),
        ("export const out = 6; export default function named() {}\nexport { out as other }\nout", "6"),
        ("const o = { import: 1, export: 2 }; o.import + o.export", "3"),
        ("'import x from y' // import z from 'z'\n", "'import x from y'"),
        ("4 / 2 / 1; const half = (8) / 2 // import('x')\nhalf", "4"),
    ],
)
def test_modules_are_found_from_the_cwd(kernel: Running, code: str, text: str | None) -> None:
    ran = kernel.run(code)
    assert (ran.status, ran.text, ran.error) == ("ok", text, None)


def test_imported_names_persist(kernel: Running) -> None:
    kernel.run("import { basename } from 'node:path'")
    assert kernel.run("basename('/a/b')").text == "'b'"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("({ a: [1, 'x', null, true], d: new Date(0) })", {"a": [1, "x", None, True], "d": "1970-01-01T00:00:00.000Z"}),
        ("class Money { toJSON() { return { cents: 5 } } }; new Money()", {"cents": 5}),
        ("Object.assign(new TypeError('odd'), { code: 'E' })", {"name": "TypeError", "message": "odd", "code": "E"}),
        ("'text'", "text"),
    ],
)
def test_json_compatible_values_are_json(kernel: Running, code: str, value: object) -> None:
    main = kernel.run(code).main
    assert main
    assert json.loads(main["application/json"]) == value


@pytest.mark.parametrize(
    "code",
    ["new Map()", "10n", "NaN", "Symbol('s')", "[() => 1]", "const r = []; r.push(r); r", "({ get a() { throw 1 } })"],
)
def test_json_incompatible_values_are_not_json(kernel: Running, code: str) -> None:
    main = kernel.run(code).main
    assert main
    assert main.keys() == {"main", "text/plain"}


def test_display_gives_results_before_the_main_one(kernel: Running) -> None:
    ran = kernel.run("display({ a: 1 }, 'b'); 3")
    assert [(out["main"], out["text/plain"]) for out in ran.outputs] == [
        (b"0", b"{ a: 1 }"), (b"0", b"'b'"), (b"1", b"3")]  # fmt: skip


def test_value_can_define_its_forms(kernel: Running) -> None:
    png = "Buffer.from([0x89, 0x50, 0x4e, 0x47, 13, 10, 26, 10])"
    main = kernel.run(
        f"({{ _repr_mimebundle_() {{ return {{ 'text/html': '<b>x</b>', 'image/png': {png} }} }} }})"
    ).main
    assert main
    assert (main["text/html"], main["image/png"][:4]) == (b"<b>x</b>", b"\x89PNG")
    plain = kernel.run(png).main
    assert plain
    assert plain["image/png"] == b"\x89PNG\r\n\x1a\n"


def test_output_is_complete_at_the_end_of_the_run(kernel: Running) -> None:
    ran = kernel.run("for (let i = 0; i < 3000; i++) console.log('x'.repeat(1000)); process.stderr.write('e\\xe9')")
    assert (len(ran.stdout), ran.stderr) == (3000 * 1001, "eé".encode())
    assert kernel.run("process.stdout.write(Buffer.from([0xff, 0]))").stdout == b"\xff\0"


def test_replaced_stdout_is_restored(kernel: Running) -> None:
    assert kernel.run("process.stdout.write = () => true; process.stdout.end(); console.log('gone')").stdout == b""
    assert kernel.run("console.log('back')").stdout == b"back\n"


@pytest.mark.parametrize(
    "code",
    [
        "require('fs').readFileSync(0, 'utf8')",
        "let got = ''; for await (const part of process.stdin) got += part; got",
        "require('child_process').execSync('cat', { stdio: [0, 'pipe', 2] }).toString()",
        "const all = []; process.stdin.on('data', (part) => all.push(part))\n"
        "await new Promise((end) => process.stdin.on('end', end)); Buffer.concat(all).toString()",
    ],
)
def test_given_stdin_is_read_and_a_missing_one_ends_at_once(kernel: Running, code: str) -> None:
    assert kernel.run(code, stdin=b"one\ntwo").text == "'one\\ntwo'"
    assert kernel.run(code).text == "''"


def test_lines_of_stdin_are_read_one_by_one(kernel: Running) -> None:
    code = "const lines = []; for await (const line of require('readline').createInterface({ input: process.stdin }))"
    assert kernel.run(f"{code} lines.push(line); lines", stdin=b"a\nb\n").text == "[ 'a', 'b' ]"


def test_process_exit_ends_the_run_and_not_the_context(kernel: Running) -> None:
    kernel.run("globalThis.kept = 1")
    ended = kernel.run("console.log('a'); process.exit(3); console.log('b')")
    assert ended.error
    assert (ended.status, ended.stdout, ended.error["name"], ended.error["message"]) == (
        "error",
        b"a\n",
        "ExitStatus",
        "3",
    )
    assert (
        kernel.run("setTimeout(() => process.exit(), 1); await new Promise((r) => setTimeout(r, 1e6))").status == "ok"
    )
    assert kernel.run("kept").text == "1"


def test_child_processes_are_not_kernels(kernel: Running, tmp_path: Path) -> None:
    (tmp_path / "child.js").write_text(
        "process.send([process.execArgv, require('fs').readdirSync('/proc/self/fd').length])"
    )
    fork = f"const child = require('child_process').fork('{tmp_path}/child.js')"
    seen = kernel.run(f"{fork}; (await new Promise((r) => child.on('message', r)))[0]")
    assert seen.text == "[]"
    third = "require('child_process').execSync('readlink /proc/self/fd/3 || echo none').toString()"
    assert "socket" not in (kernel.run(third).text or "")
