"""Values that code gave, as a model gets them: texts bounded, pictures checked and beside the result."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from mcp.types import ImageContent
from pydantic import BaseModel, Field

from skerry.client.code_outcome import CHART, CodeValue
from skerry.errors import SkerryError
from skerry.mcp.pictures import kind_of
from skerry.mcp.text import bounded, shown_all

PICTURES_MOST = 8
PICTURES_BYTES_MOST = 8 << 20
_PLAIN = {"text/plain": "text", "text/markdown": "markdown", "text/latex": "latex"}
_RICH = {"text/html": "html", "image/svg+xml": "svg"}
_DATA = {"application/json": "json", CHART: "chart"}


class ShownValue(BaseModel):
    """One value in the forms that it has."""

    main: bool = Field(default=False, description="It is the last expression's.")
    text: str | None = None
    markdown: str | None = None
    latex: str | None = None
    html: str | None = None
    svg: str | None = None
    data: Any = Field(default=None, alias="json", description="As data: a table's records, an object.")
    chart: Any = Field(default=None, description="What a figure shows, as data: axes, series, labels.")
    picture: int | None = Field(default=None, description="Which of the images beside this result it is, from 1.")
    shortened: list[str] = Field(default=[], description="Forms that are not whole, or left out for their size.")


class Pictures:
    """The pictures of one result, in order, within bounds."""

    def __init__(self) -> None:
        self.blocks: list[ImageContent] = []
        self.left_out = 0
        self._size = 0

    def add(self, data: bytes) -> int | None:
        """Its number; None: it is no picture, or one too many."""
        kind = kind_of(data)
        if kind is None or len(self.blocks) >= PICTURES_MOST or self._size + len(data) > PICTURES_BYTES_MOST:
            self.left_out += 1
            return None
        self._size += len(data)
        self.blocks.append(ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=kind))
        return len(self.blocks)


def shown_values(values: Sequence[CodeValue], pictures: Pictures, most: int, *, rich: bool = False) -> list[ShownValue]:
    """All of them, twice `most` characters together."""
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
            forms[field], left_out = bounded(value.data[kind], most)
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
    """Parsed, unless it is too long; what is no JSON is nothing."""
    if len(text) > most:
        return None
    try:
        return shown_all(json.loads(text, parse_constant=str))
    except (ValueError, RecursionError):
        return None


def _picture(value: CodeValue) -> bytes | None:
    try:
        return value.png if value.png is not None else value.jpeg
    except SkerryError:
        return b""  # said to be one, and none
