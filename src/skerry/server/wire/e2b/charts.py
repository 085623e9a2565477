"""Charts in the form of E2B's interpreter. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

import msgspec

from skerry.types.code import Axes, Chart, Series, chart_json

_UNIT: Final = re.compile(r"\(([^()]*)\)")
_POWER: Final = re.compile(r"10\^\{?(-?\d{1,3})\}?")
_POINTS: Final = {"line": "line", "step": "line", "scatter": "scatter"}


def chart_of(text: str) -> dict[str, Any] | None:
    """Return the chart of a figure; None if E2B's form cannot hold it."""
    try:
        chart: Chart = chart_json.decode(text)
    except msgspec.MsgspecError:
        return None
    shown = [_axes(axes, chart.title) for axes in chart.axes]
    if len(shown) == 1:
        return shown[0]
    return {"type": "superchart", "title": chart.title, "elements": shown} if shown else None


def _axes(axes: Axes, title: str | None) -> dict[str, Any]:
    kinds = {series.kind for series in axes.series}
    head: dict[str, Any] = {"title": axes.title or title}
    if not axes.series:
        return {"type": "unknown", **head, "elements": []}
    if kinds == {"pie"}:
        return {"type": "pie", **head, "elements": _slices(axes.series)}
    plane = {
        **head, "x_label": axes.xlabel, "y_label": axes.ylabel, "x_unit": _unit(axes.xlabel),
        "y_unit": _unit(axes.ylabel),
    }  # fmt: skip
    if kinds == {"box"}:
        return {"type": "box_and_whisker", **plane, "elements": [_box(one) for one in axes.series if len(one.y) == 5]}
    if kinds == {"bar"}:
        return {"type": "bar", **plane, "elements": _bars(axes)}
    if kinds <= set(_POINTS):
        kind = _POINTS[next(iter(sorted(kinds)))]
        xs, ys = ([value for one in axes.series for value in (one.x, one.y)[way]] for way in (0, 1))
        x_scale, y_scale = _scale(axes.xscale, axes.xlim, xs), _scale(axes.yscale, axes.ylim, ys)
        scales = {
            "x_ticks": _ticks(axes.xticks, x_scale), "x_tick_labels": axes.xticks, "x_scale": x_scale,
            "y_ticks": _ticks(axes.yticks, y_scale), "y_tick_labels": axes.yticks, "y_scale": y_scale,
        }  # fmt: skip
        elements = [
            {"label": one.label or "", "points": list(zip(one.x, one.y, strict=False))} for one in axes.series
        ]  # fmt: skip
        return {"type": kind, **plane, **scales, "elements": elements}
    return {"type": "unknown", **head, "elements": []}


def _unit(label: str | None) -> str | None:
    match = _UNIT.search(label or "")
    return match[1].strip() if match is not None else None


def _scale(name: str, limits: tuple[Any, Any] | None, values: list[Any]) -> str:
    if limits is not None and isinstance(limits[0], str):
        return "datetime"
    return "categorical" if any(isinstance(value, str) for value in values) else name


def _ticks(labels: list[str], scale: str) -> list[Any]:
    """Return the positions of ticks: numbers, and complete dates on a scale of dates."""
    ticks: list[Any] = []
    for label in labels:
        try:
            ticks.append(_date(label) if scale == "datetime" else _number(label))
        except (ValueError, OverflowError):
            if scale != "datetime":
                ticks.append(label)
    return ticks


def _number(label: str) -> float:
    """Read a number, also one in the notation of a logarithmic scale."""
    power = _POWER.search(label)
    return 10.0 ** int(power[1]) if power is not None else float(label.replace("\N{MINUS SIGN}", "-"))


def _date(label: str) -> str:
    text = label + "-01-01"[3 * label.count("-") :] if len(label) < 10 else label
    return datetime.fromisoformat(text).isoformat()


def _slices(series: list[Series]) -> list[dict[str, Any]]:
    found = []
    for one in series:
        labels = one.x or [one.label or ""] * len(one.y)
        for label, angle in zip(labels, one.y, strict=False):
            if isinstance(angle, (int, float)):  # text would be repeated
                found.append({"label": str(label), "angle": angle * 360, "radius": 1.0})
    return found


def _box(series: Series) -> dict[str, Any]:
    least, first, median, third, most = series.y
    return {
        "label": series.label or "", "min": least, "first_quartile": first, "median": median, "third_quartile": third,
        "max": most, "outliers": series.z,
    }  # fmt: skip


def _bars(axes: Axes) -> list[dict[str, Any]]:
    """Return one element for each bar; its group is the name of its series."""
    found = []
    for one in axes.series:
        for place, value in zip(one.x, one.y, strict=False):
            found.append({"label": str(place), "group": one.label or "", "value": value})
    return found
