"""The count of values in a JSON text, in pieces of any size."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from skerry.codecs.json_bounds import JsonCounter


def count(text: bytes, *sizes: int) -> int:
    counter, at = JsonCounter(), 0
    for size in sizes or (len(text),):
        counter.feed(text[at : at + size])
        at += size
    return counter.values


def brackets_and_commas(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(brackets_and_commas, inner))


def random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(6 if depth else 3)
    text = "".join(chance.choice('a\\",[{]}:\n') for _ in range(chance.randrange(12)))
    if kind < 3:
        return text if kind else 7
    inner = [random_value(chance, depth - 1) for _ in range(chance.randrange(5))]
    return inner if kind < 5 else {f"{text}{n}": one for n, one in enumerate(inner)}


@pytest.mark.parametrize("seed", range(200))
def test_values_are_counted_in_any_pieces(seed: int) -> None:
    chance = random.Random(seed)
    value = random_value(chance, 6)
    text = json.dumps(value).encode()
    assert count(text) == brackets_and_commas(value)
    assert count(text, *(chance.randrange(4) for _ in range(2 * len(text))), len(text)) == brackets_and_commas(value)


@pytest.mark.parametrize("text", [b"", b'"', b'"\\', b"[,,", b'\\"[', b'"a\\\\",['])
def test_incomplete_text_is_counted_too(text: bytes) -> None:
    assert count(text) == count(text, *[1] * len(text))
