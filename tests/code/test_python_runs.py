"""The Python kernel runs code: values, state, output, what it reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_harness import Running, running


@pytest.fixture(scope="module")
def kernel() -> Iterator[Running]:
    with running("python") as made:
        yield made


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
    ],
)
def test_the_last_expression_is_the_result_unless_a_semicolon_hides_it(
    kernel: Running, code: str, text: str | None
) -> None:
    ran = kernel.run(code)
    assert (ran.status, ran.text, ran.error) == ("ok", text, None)
