"""More than `repr`: the part of the Python kernel that is compiled when a value first needs it.

A form is text or bytes by MIME type; `cut` collects the forms that were shortened or left out for their size."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ROWS, MAX_CELLS = 1000, 50_000  # of a frame, as JSON
MAX_DEPTH = 64
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}


def forms(kernel: Any, value: Any) -> tuple[dict[str, Any], set[str]]:
    found: dict[str, Any] = {}
    cut: set[str] = set()
    kind = type(value)
    if kind in (list, dict):
        add_json(kernel, value, found, cut)
    elif kind.__module__ != "builtins" and not isinstance(value, type):
        of = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in kind.__mro__}
        if not of.isdisjoint(("pandas.DataFrame", "pandas.Series")):
            add_frame(kernel, value, found, cut)
        elif "PIL.Image" in of:
            found["image/png"] = picture_of(value)
        elif "matplotlib.Figure" in of:
            kernel.part("figures")["add_figure"](kernel, value, found, cut)
        else:
            found = bundle_of(kernel, value, cut)
    if "text/plain" not in found:
        text, whole = text_of(value, kernel.max_text)
        found = {"text/plain": text, **found}
        cut |= set() if whole else {"text/plain"}
    return found, cut


def bundle_of(kernel: Any, value: Any, cut: set[str]) -> dict[str, Any]:
    """Return an object's own representations, by the protocol of notebooks."""
    if ask(value, "_no_object_has_this_method_") is not None:
        return {}  # it has every attribute
    given = ask(value, "_repr_mimebundle_", include=None, exclude=None)
    given = dict(given) if isinstance(given, dict) else {}
    for name, method in METHODS.items():
        if name not in given:
            said = ask(value, method)
            if said is not None:
                given[name] = said
    return from_bundle(kernel, given, cut)


def ask(value: Any, method: str, **options: Any) -> Any:
    try:
        called = getattr(value, method, None)
        said = called(**options) if callable(called) else None
    except Exception as failure:
        print(f"skerry: {method} of {type(value).__name__} raised {type(failure).__name__}: {failure}", file=sys.stderr)
        return None
    return said[0] if isinstance(said, tuple) and len(said) == 2 else said  # with metadata


def from_bundle(kernel: Any, given: dict[Any, Any], cut: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, form in given.items():
        if form is None:
            continue
        if name in ("image/png", "image/jpeg"):
            picture = bytes_of(form)
            if picture is not None:
                found[name] = picture
        elif name == "application/json":
            add_json(kernel, form, found, cut)
        elif name == "text/plain" or name in METHODS:
            found[name] = "".join(map(str, form)) if isinstance(form, list) else str(form)
    for name, form in given.items():  # plotly and altair: their description of the chart
        if "application/json" not in given and str(name).startswith("application/vnd.") and str(name).endswith("json"):
            add_json(kernel, form, found, cut)
    return found


def bytes_of(form: Any) -> bytes | None:
    """Return the bytes of a picture, decoded if it was given in base64."""
    if not isinstance(form, (str, bytes, bytearray, memoryview)):
        return None
    data = form.encode("ascii", "replace") if isinstance(form, str) else bytes(form)
    if data[:4] == b"\x89PNG" or data[:3] == b"\xff\xd8\xff":
        return data
    import binascii

    try:
        return binascii.a2b_base64(data)
    except binascii.Error:
        return None


def picture_of(image: Any) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    plain = image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16") else image.convert("RGB")
    plain.save(stream, format="PNG")
    return stream.getvalue()


# -- frames --


def add_frame(kernel: Any, value: Any, found: dict[str, Any], cut: set[str]) -> None:
    """As much HTML and text as pandas is set to show, and the rows as JSON records."""
    import pandas

    series = not hasattr(value, "columns")
    frame = value.to_frame() if series else value
    html = frame._repr_html_()
    if html:
        found["text/html"] = html
    rows, columns = frame.shape
    most_rows, most_columns = pandas.get_option("display.max_rows"), pandas.get_option("display.max_columns")
    if (most_rows and rows > most_rows) or (most_columns and columns > most_columns):
        cut |= {"text/html", "text/plain"}
    try:
        shown, text = records(frame, min(rows, MAX_ROWS, MAX_CELLS // max(columns, 1)), kernel.max_text)
    except Exception:  # pandas cannot write it
        return
    found["application/json"] = text
    if shown < rows:
        cut.add("application/json")


def records(frame: Any, rows: int, most: int) -> tuple[int, str]:
    while True:
        part = frame.iloc[:rows]
        if type(part.index).__name__ != "RangeIndex" or part.index.name is not None:
            part = part.reset_index(allow_duplicates=True)
        part = part.set_axis(column_names(part), axis=1)
        text = part.to_json(orient="records", date_format="iso", double_precision=15, default_handler=str)
        if len(text.encode()) <= most or not rows:
            return rows, text
        rows //= 2


def column_names(frame: Any) -> list[str]:
    """Return a unique text for each column."""
    names: list[str] = []
    for column in frame.columns:
        name = " ".join(str(part) for part in column if part != "") if isinstance(column, tuple) else str(column)
        while name in names:
            name += "_"
        names.append(name)
    return names


# -- JSON --


class NotJson(Exception):
    pass


class TooLarge(Exception):
    pass


def add_json(kernel: Any, value: Any, found: dict[str, Any], cut: set[str]) -> None:
    try:
        found["application/json"] = value if isinstance(value, str) else json_of(value, kernel.max_text)
    except TooLarge:
        cut.add("application/json")
    except NotJson:
        pass


def json_of(value: Any, most: int) -> str:
    """Return JSON of at most `most` characters. NaN and infinity become null."""
    pieces: list[str] = []
    if write_json(value, most, pieces, 0) < 0:
        raise TooLarge
    return "".join(pieces)


def write_json(value: Any, left: int, pieces: list[str], depth: int) -> int:
    if value is None or value is True or value is False:
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, str):
        text = quoted(value[: left + 1])
    elif isinstance(value, int):
        text = int.__repr__(value) if value.bit_length() < 10_000 else "null"
    elif isinstance(value, float):
        text = float.__repr__(value) if value - value == 0 else "null"
    elif isinstance(value, (list, tuple, dict)) and depth < MAX_DEPTH:
        return write_collection(value, left, pieces, depth + 1)
    elif type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return write_json(value.item(), left, pieces, MAX_DEPTH)
    else:
        raise NotJson
    pieces.append(text)
    return left - len(text)


def write_collection(value: Any, left: int, pieces: list[str], depth: int) -> int:
    named = isinstance(value, dict)
    pieces.append("{" if named else "[")
    for number, item in enumerate(value):
        if number:
            pieces.append(",")
        if named:
            if not isinstance(item, (str, int)):
                raise NotJson
            key = quoted(str(item))
            pieces += [key, ":"]
            left -= len(key) + 1
            item = value[item]
        left = write_json(item, left - 1, pieces, depth)
        if left < 0:
            return left
    pieces.append("}" if named else "]")
    return left - 2


def quoted(text: str) -> str:
    from json.encoder import encode_basestring

    return encode_basestring(text)


# -- text --


def text_of(value: object, most: int) -> tuple[str, bool]:
    """As `repr` has it; of built-in collections only as much as fits is ever made."""
    pieces: list[str] = []
    try:
        left = write_text(value, most, pieces, set())
    except Exception as failure:
        kind = type(value).__name__
        try:
            return f"<{kind} whose repr raised {type(failure).__name__}: {failure}>", True
        except Exception:
            return f"<{kind} whose repr raised {type(failure).__name__}>", True
    return ("".join(pieces), True) if left >= 0 else ("".join(pieces)[: most - 3] + "…", False)


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
