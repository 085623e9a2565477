"""More than `repr`: the part of the Python kernel that is compiled when a value or a figure first needs it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def forms(kernel: Any, value: object) -> tuple[dict[str, Any], set[str]]:
    text, whole = text_of(value, kernel.text_most)
    return {"text/plain": text}, set() if whole else {"text/plain"}


def text_of(value: object, most: int) -> tuple[str, bool]:
    """As `repr` has it; of built-in collections only as much as fits is ever made."""
    pieces: list[str] = []
    try:
        left = write_text(value, most, pieces, set())
    except (Exception, RecursionError) as failure:
        kind = type(value).__name__
        try:
            return f"<{kind} whose repr raised {type(failure).__name__}: {failure}>", True
        except Exception:
            return f"<{kind} whose repr raised {type(failure).__name__}>", True
    return "".join(pieces), left >= 0


def write_text(value: Any, left: int, pieces: list[str], above: set[int]) -> int:
    """How much room is left; below 0: it did not fit."""
    kind = type(value)
    if kind in (str, bytes, bytearray):
        whole = len(value) <= left
        pieces.append(repr(value if whole else value[:left]))
        return left - len(pieces[-1]) if whole else -1
    if kind not in (list, tuple, dict, set, frozenset) or not value:
        pieces.append(repr(value))
        return left - len(pieces[-1])
    if id(value) in above:
        pieces.append("{...}" if kind is dict else "(...)" if kind is tuple else "[...]")
        return left - 5
    above.add(id(value))
    opening, closing = BRACKETS[kind]
    pieces.append(opening)
    for number, item in enumerate(value):
        if number:
            pieces.append(", ")
        left = write_text(item, left - 2, pieces, above)
        if kind is dict and left >= 0:
            pieces.append(": ")
            left = write_text(value[item], left - 2, pieces, above)
        if left < 0:
            return left
    above.discard(id(value))
    pieces.append(",)" if kind is tuple and len(value) == 1 else closing)
    return left


BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    dict: ("{", "}"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}
