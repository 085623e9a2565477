"""The JavaScript kernel accepts TypeScript: types are stripped, other syntax is transformed, lines stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.kernel import Running, running
from support.node import STRIPPING, node, nodes


@pytest.fixture(scope="module")
def kernel() -> Iterator[Running]:
    with running("typescript", (node(STRIPPING),)) as made:
        yield made


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("let x: number = 1; interface A { a: string }; x", "1"),
        ("function f<T>(a: T): T { return a }\nf<number>(5)", "5"),
        ("enum Color { Red, Green }\nconst c: Color = Color.Green\nc", "1"),
        ("namespace N { export const q = 2 }\nN.q", "2"),
        ("class P { constructor(private a: number) {} }\nnew P(1)", "P { a: 1 }"),
        ("import { sep, type ParsedPath } from 'node:path'; import type { X } from './x'; sep", "'/'"),
        ("const twice = async (n: number): Promise<number> => 2 * n\nawait twice(4)", "8"),
        ("1 satisfies number", "1"),
    ],
)
def test_types_are_stripped(kernel: Running, code: str, text: str) -> None:
    ran = kernel.run(code)
    assert (ran.status, ran.text, ran.error, ran.stderr) == ("ok", text, None, b"")


def test_state_lasts(kernel: Running) -> None:
    kernel.run("let kept: number = 1; enum E { A = 7 }")
    assert kernel.run("kept = kept + E.A\nkept as number").text == "8"


@pytest.mark.parametrize(
    ("code", "name", "line"),
    [
        ("type Q = {\n  a: number\n}\nthrow new Error('x' as string)", "Error", "4"),
        ("enum Big {\n  A,\n  B,\n}\n\nthrow new TypeError('x' as string)", "TypeError", "6"),
        ("let a = 1\nlet z: = 5", "SyntaxError", "2"),
        ("enum Small {\n  A }\nlet z: = 5", "SyntaxError", "3"),
    ],
)
def test_lines_are_those_of_the_code_as_it_was_given(kernel: Running, code: str, name: str, line: str) -> None:
    error = kernel.run(code).error
    assert error
    assert (error["name"], error["line"]) == (name, line)
    assert code.splitlines()[int(line) - 1] in error["traceback"]


def test_a_node_that_can_not_strip_types_says_so() -> None:
    old = [path for version, path in nodes().items() if version < STRIPPING]
    if not old:
        pytest.skip(f"needs a Node older than {'.'.join(map(str, STRIPPING))}")
    with running("typescript", (old[0],)) as made:
        error = made.run("let x: number = 1").error
    assert error
    assert "TypeScript needs 22.13 or newer" in error["message"]
