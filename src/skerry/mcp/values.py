"""Values of code for the model: shortened texts, and checked pictures beside the result."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from mcp.types import ImageContent
from pydantic import BaseModel, Field

from skerry.client.results.code import CHART, CodeValue
from skerry.errors import SkerryError
from skerry.mcp.text import escape_all, shorten

MAX_PICTURES = 8
MAX_PICTURE_BYTES = 8 << 20
_PLAIN = {"text/plain": "text", "text/markdown": "markdown", "text/latex": "latex"}
_RICH = {"text/html": "html", "image/svg+xml": "svg"}
_DATA = {"application/json": "json", CHART: "chart"}


class ShownValue(BaseModel):
    """One value in its available forms."""

    main: bool = Field(default=False, description="The value of the last expression.")
    text: str | None = None
    markdown: str | None = None
    latex: str | None = None
    html: str | None = None
    svg: str | None = None
    data: Any = Field(default=None, alias="json", description="The value as data: the records of a table, an object.")
    chart: Any = Field(default=None, description="The data of a figure: axes, series, labels.")
    picture: int | None = Field(default=None, description="Number of its image in this result, starting at 1.")
    shortened: list[str] = Field(default=[], description="Forms that were shortened or left out because of their size.")


class Pictures:
    """The pictures of one result, in order and limited in number and size."""

    def __init__(self) -> None:
        self.blocks: list[ImageContent] = []
        self.left_out = 0
        self._size = 0

    def add(self, data: bytes) -> int | None:
        """Add a picture and return its number, or None if it is not a picture or exceeds a limit."""
        kind = image_type(data)
        if kind is None or len(self.blocks) >= MAX_PICTURES or self._size + len(data) > MAX_PICTURE_BYTES:
            self.left_out += 1
            return None
        self._size += len(data)
        self.blocks.append(ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=kind))
        return len(self.blocks)


def shown_values(values: Sequence[CodeValue], pictures: Pictures, most: int, *, rich: bool = False) -> list[ShownValue]:
    """Convert all values, to twice `most` characters together."""
    left, shown = 2 * most, []
    for value in values:
        shown.append(one := shown_value(value, pictures, min(most, left), rich=rich))
        left = max(0, left - len(one.model_dump_json()))
    return shown


def shown_value(value: CodeValue, pictures: Pictures, most: int, *, rich: bool = False) -> ShownValue:
    forms: dict[str, Any] = {}
    shortened = list(value.cut)
    for kind, field in {**_PLAIN, **(_RICH if rich else {})}.items():
        if kind in value.data:
            forms[field], left_out = shorten(value.data[kind], most)
            shortened += [kind] if left_out else []
    for kind, field in _DATA.items():
        if kind in value.data:
            forms[field] = _data(value.data[kind], most)
            shortened += [kind] if forms[field] is None else []
    picture = _picture(value)
    return ShownValue(
        main=value.main, picture=None if picture is None else pictures.add(picture), shortened=shortened, **forms
    )  # fmt: skip


def _data(text: str, most: int) -> Any:
    """Parse JSON; return None if it is too long or invalid."""
    if len(text) > most:
        return None
    try:
        return escape_all(json.loads(text, parse_constant=str))
    except (ValueError, RecursionError):
        return None


def _picture(value: CodeValue) -> bytes | None:
    try:
        return value.png if value.png is not None else value.jpeg
    except SkerryError:
        return b""  # declared as a picture, but not valid base64


# -- picture formats --

_PNG = b"\x89PNG\r\n\x1a\n"
MAX_SIDE = 20_000  # pixels


def image_type(data: bytes) -> str | None:
    """Return the media type of a complete PNG, JPEG, GIF or WebP, else None. File names are ignored."""
    if data.startswith(_PNG):
        return "image/png" if _is_png(data) else None
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg" if data.rstrip(b"\0").endswith(b"\xff\xd9") else None
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif" if data.endswith(b"\x3b") and _sane(data[6:8], data[8:10], "little") else None
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp" if int.from_bytes(data[4:8], "little") + 8 <= len(data) else None
    return None


def _is_png(data: bytes) -> bool:
    if data[8:16] != b"\0\0\0\rIHDR" or not data.endswith(b"\0\0\0\0IEND\xaeB`\x82"):
        return False
    return _sane(data[16:20], data[20:24], "big")


def _sane(width: bytes, height: bytes, order: str) -> bool:
    sides = [int.from_bytes(side, "big" if order == "big" else "little") for side in (width, height)]
    return all(0 < side <= MAX_SIDE for side in sides)
