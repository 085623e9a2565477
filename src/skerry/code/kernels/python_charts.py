"""The data of a figure: the part of the Python kernel that is compiled when the first figure is drawn.

The names of the fields are those of `Chart`, `Axes` and `Series` in `skerry/types/code.py`."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_POINTS, MAX_SERIES, MAX_AXES, MAX_TICKS, MAX_LABEL = 1000, 100, 64, 64, 500


def chart_of(figure: Any, most: int, rich: Any) -> str | None:
    """With fewer points of each series, if all would be too large."""
    points = MAX_POINTS
    while points:
        axes = [axes_of(one, points) for one in figure.axes[:MAX_AXES] if one.get_label() != "<colorbar>"]
        title = getattr(figure, "_suptitle", None)
        try:
            return str(rich["json_of"]({"title": short(title.get_text()) if title else None, "axes": axes}, most))
        except rich["TooLarge"]:
            points //= 4
    return None


def axes_of(axes: Any, points: int) -> dict[str, Any]:
    series = series_of(axes, points)
    name_by_legend(axes, series)
    title = next(filter(None, (axes.get_title(loc=side) for side in ("center", "left", "right"))), None)
    return {
        "title": short(title),
        "xlabel": short(axes.get_xlabel()),
        "ylabel": short(axes.get_ylabel()),
        "xscale": str(axes.get_xscale()),
        "yscale": str(axes.get_yscale()),
        "xlim": [along(axes.xaxis, value) for value in axes.get_xlim()],
        "ylim": [along(axes.yaxis, value) for value in axes.get_ylim()],
        "xticks": ticks(axes.xaxis),
        "yticks": ticks(axes.yaxis),
        "series": series[:MAX_SERIES],
    }


def series_of(axes: Any, points: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    grouped: set[int] = set()  # parts of containers that are reported as a whole
    for container in axes.containers:
        name = type(container).__name__
        if name == "BarContainer":
            grouped |= {id(patch) for patch in container.patches}
            found.append(bars(axes, container, points))
        elif name == "ErrorbarContainer" and container.lines[0] is not None:
            line, caps, bars_of_errors = container.lines
            grouped |= {id(part) for part in (line, *caps, *bars_of_errors)}
            found.append({**line_of(axes, line, points), "label": label_of(container), "kind": "errorbar"})
        elif name == "StemContainer":
            grouped |= {id(container.markerline), id(container.stemlines), id(container.baseline)}
            found.append({**line_of(axes, container.markerline, points), "label": label_of(container), "kind": "stem"})
    found += boxes_of(axes, grouped, points)
    lines = [line_of(axes, line, points) for line in axes.lines if id(line) not in grouped]
    patches = [patch for patch in axes.patches if id(patch) not in grouped]
    others = [other_of(axes, one, points) for one in (*axes.collections, *axes.images) if id(one) not in grouped]
    return [one for one in (*lines, *found, *pies(patches, points), *outlines(axes, patches, points), *others) if one]


def line_of(axes: Any, line: Any, points: int) -> dict[str, Any]:
    by_x, by_y = line.get_transform().contains_branch_seperately(axes.transData)
    if hasattr(line, "get_data_3d"):
        x, y, z = line.get_data_3d()
        return series(label_of(line), "line", x, y, points, z=z)
    x, y = line.get_xdata(orig=True), line.get_ydata(orig=True)
    if not (by_x or by_y):
        return {}  # a mark on the paper, not in the data
    if not by_x:
        return series(label_of(line), "hline", [], y[:1], points)
    if not by_y:
        return series(label_of(line), "vline", x[:1], [], points)
    dotted = str(line.get_linestyle()) in ("None", "none", " ", "")
    return series(label_of(line), "scatter" if dotted else "line", by_period(axes.xaxis, x), y, points)


def bars(axes: Any, container: Any, points: int) -> dict[str, Any]:
    """Of a histogram, x has the edges of its bins: one more than there are bars."""
    patches = list(container.patches)
    flat = getattr(container, "orientation", None) == "horizontal"
    axis = axes.yaxis if flat else axes.xaxis
    start = [float(patch.get_y() if flat else patch.get_x()) for patch in patches]
    width = [float(patch.get_height() if flat else patch.get_width()) for patch in patches]
    value = [patch.get_width() if flat else patch.get_height() for patch in patches]
    label = label_of(container) or (label_of(patches[0]) if patches else None)
    named = names_on(axis)
    touching = len(patches) > 1 and all(
        math.isclose(a + w, b, rel_tol=1e-6, abs_tol=1e-9) for a, w, b in zip(start, width, start[1:])
    )
    if touching and not named and not flat and len(patches) <= points:
        edges = [along(axis, at) for at in (*start, start[-1] + width[-1])]
        return {"label": label, "kind": "histogram", "x": edges, "y": plain(value), "cut": 0}
    middle = [at + w / 2 for at, w in zip(start, width)]
    where = [nearest(named, at) or along(axis, at) for at in middle]
    x, y = (value, where) if flat else (where, value)
    return series(label, "barh" if flat else "bar", x, y, points)


def boxes_of(axes: Any, grouped: set[int], points: int) -> list[dict[str, Any]]:
    """Box plots have no container: find the lines that `bxp` draws for each box, one after the other. y has the ends of
    the whiskers, the quartiles and the median in ascending order; z has the outliers."""
    found, lines = [], [line for line in axes.lines if id(line) not in grouped]
    for flat in (False, True):
        at = 0
        while at + 1 < len(lines):
            box = box_at(axes, lines, at, flat, grouped, points)
            if box is not None:
                found.append(box)
            at += 1
    return found


def box_at(axes: Any, lines: list[Any], at: int, flat: bool, grouped: set[int], points: int) -> dict[str, Any] | None:
    if id(lines[at]) in grouped:
        return None
    low, high = (places_of(line, flat) for line in lines[at : at + 2])
    if low is None or high is None or not len(low[0]) == len(high[0]) == 2 or len({*low[0], *high[0]}) != 1:
        return None
    where, (first, least), (third, most) = low[0][0], low[1], high[1]
    if not least <= first <= third <= most:
        return None
    before = [lines[at - 1]] if at else []
    patches = [patch for patch in axes.patches if type(patch).__name__ == "PathPatch"]
    box = next((one for one in (*before, *patches) if is_box(one, flat, where, first, third)), None)
    median, outliers, parts = None, [], [box, *lines[at : at + 2]]
    for line in lines[at + 2 :]:
        across, along_it = places_of(line, flat) or ([], [])
        dotted = str(line.get_linestyle()) in ("None", "none", " ", "")
        if dotted and all(place == where for place in across):
            outliers += along_it if str(line.get_marker()) != "^" else []  # a triangle is the mean
        elif len(across) == 2 and math.isclose(sum(across) / 2, where) and along_it[0] == along_it[1]:
            if along_it[0] not in (least, most) or (median is None and len(parts) >= 5):
                median = along_it[0]
        else:
            break
        parts.append(line)
    if box is None or median is None:
        return None
    grouped |= {id(part) for part in parts}
    axis = axes.yaxis if flat else axes.xaxis
    name = nearest(names_on(axis), where) or str(plain_one(float(where)))
    made = series(name, "box", [name], [least, first, median, third, most], max(points, 5))
    return {**made, "z": plain(sorted(outliers)[:points])}


def places_of(line: Any, flat: bool) -> tuple[list[float], list[float]] | None:
    """Return the coordinates of a line across and along the boxes, if they are numbers."""
    try:
        x, y = ([float(value) for value in values] for values in (line.get_xdata(), line.get_ydata()))
    except (TypeError, ValueError):
        return None
    return (y, x) if flat else (x, y)


def is_box(one: Any, flat: bool, where: float, first: float, third: float) -> bool:
    if hasattr(one, "get_xdata"):
        across, along_it = places_of(one, flat) or ([], [])
    else:
        vertices = [(float(x), float(y)) for x, y in one.get_path().vertices]
        across, along_it = ([pair[way] for pair in vertices] for way in ((1, 0) if flat else (0, 1)))
    if len(across) < 5:
        return False
    return math.isclose(min(across) + max(across), 2 * where) and min(along_it) == first and max(along_it) == third


def pies(patches: list[Any], points: int) -> list[dict[str, Any]]:
    wedges = [patch for patch in patches if type(patch).__name__ == "Wedge"]
    if not wedges:
        return []
    labels = [label_of(wedge) for wedge in wedges]
    shares = [(wedge.theta2 - wedge.theta1) / 360 for wedge in wedges]
    return [series(None, "pie", labels, [round(float(share), 6) for share in shares], points)]


def outlines(axes: Any, patches: list[Any], points: int) -> list[dict[str, Any]]:
    found = []
    for patch in patches:
        name = type(patch).__name__
        if name == "StepPatch":
            values, edges = patch.get_data()[:2]
            found.append(series(label_of(patch), "histogram", edges, values, max(points, 2)))
        elif name == "Polygon" and patch.get_transform().contains_branch(axes.transData):
            x, y = patch.get_xy().T
            found.append(series(label_of(patch), "area", x, y, points))
    return found


def other_of(axes: Any, one: Any, points: int) -> dict[str, Any]:
    name = type(one).__name__
    if name == "Path3DCollection":
        x, y, z = one._offsets3d
        return series(label_of(one), "scatter", x, y, points, z=z)
    if name == "PathCollection":
        x, y = one.get_offsets().T
        return series(label_of(one), "scatter", dated(axes.xaxis, x), dated(axes.yaxis, y), points)
    if name == "QuadMesh" or name.endswith("Image"):
        return grid_of(one, points)
    if "PolyCollection" in name and one.get_paths():
        x, y = one.get_paths()[0].vertices.T
        return series(label_of(one), "area", dated(axes.xaxis, x), dated(axes.yaxis, y), points)
    return {}


def grid_of(one: Any, points: int) -> dict[str, Any]:
    """A heat map by rows; of a picture only its size."""
    values = one.get_array()
    if type(one).__name__ == "QuadMesh" and values.ndim == 1:
        height, width = (size - 1 for size in one._coordinates.shape[:2])
        values = values.reshape(height, width)
    height, width = values.shape[:2]
    series = {"label": label_of(one), "kind": "heatmap", "x": [0, width], "y": [0, height], "cut": 0}
    if values.ndim != 2:
        return {**series, "kind": "image"}
    if values.size > 10 * points:
        return {**series, "cut": int(values.size)}
    return {**series, "z": [plain(row) for row in values]}


# -- names and numbers --


def series(label: str | None, kind: str, x: Any, y: Any, points: int, z: Any = ()) -> dict[str, Any]:
    """Evenly thinned out, where there are too many points."""
    x, y, z = list(x), list(y), list(z)
    count = max(len(x), len(y))
    if count > points:
        kept = sorted({at * (count - 1) // max(points - 1, 1) for at in range(points)})
        x, y, z = ([values[at] for at in kept if at < len(values)] for values in (x, y, z))
    series = {"label": label, "kind": kind, "x": plain(x), "y": plain(y), "cut": max(count - points, 0)}
    return {**series, "z": plain(z)} if z else series


def plain(values: Any) -> list[Any]:
    return [plain_one(value) for value in values]


def plain_one(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return None if str(value) == "NaT" else value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[us]").item().isoformat())
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else None
    return short(str(value))


def short(text: Any) -> str | None:
    return str(text)[:MAX_LABEL] if text else None


def label_of(artist: Any) -> str | None:
    label = str(artist.get_label() or "")
    return None if label.startswith("_") else short(label)


def name_by_legend(axes: Any, found: list[dict[str, Any]]) -> None:
    """Name series without a label by `legend(["a", "b"])`."""
    legend = axes.get_legend()
    nameless = [one for one in found if one["label"] is None and one["kind"] != "pie"]
    texts = [text.get_text() for text in legend.get_texts()] if legend is not None else []
    if len(texts) == len(nameless) == len(found):
        for one, text in zip(nameless, texts):
            one["label"] = short(text)


def converter_of(axis: Any) -> str:
    get = getattr(axis, "get_converter", None)
    return type(get() if get is not None else axis.converter).__name__


def along(axis: Any, value: Any) -> Any:
    """A place on an axis: a date where it has dates."""
    if math.isfinite(value) and frequency(axis) is not None:
        return by_period(axis, [value])[0]
    if "Date" in converter_of(axis) and math.isfinite(value):
        from matplotlib.dates import num2date

        return num2date(value).replace(tzinfo=None).isoformat()
    return plain_one(value)


def frequency(axis: Any) -> Any:
    """Return the unit of pandas on a time axis."""
    return getattr(axis.axes, "freq", None) if axis is axis.axes.xaxis and "Period" in converter_of(axis) else None


def by_period(axis: Any, values: Any) -> Any:
    if frequency(axis) is None or not all(isinstance(plain_one(value), (int, float)) for value in values):
        return values
    from pandas import Period

    return [str(Period(ordinal=round(float(value)), freq=frequency(axis))) for value in values]


def dated(axis: Any, values: Any) -> Any:
    return [along(axis, value) for value in values] if "Date" in converter_of(axis) else values


def names_on(axis: Any) -> dict[float, str]:
    """Where an axis has words instead of numbers."""
    if type(axis.get_major_formatter()).__name__ not in ("FixedFormatter", "StrCategoryFormatter", "FuncFormatter"):
        return {}
    labels = [label.get_text() for label in axis.get_ticklabels()]
    return {float(at): text for at, text in zip(axis.get_ticklocs(), labels) if text}


def nearest(named: dict[float, str], at: float) -> str | None:
    """Bars of a group stand beside its name."""
    places = sorted(named)
    room = min((b - a for a, b in zip(places, places[1:])), default=2.0) / 2
    return next((named[place] for place in places if abs(place - at) < room), None)


def ticks(axis: Any) -> list[str]:
    low, high = sorted(axis.get_view_interval())
    found = zip(axis.get_ticklocs(), axis.get_ticklabels())
    shown = [label.get_text() for at, label in found if low <= at <= high]
    return [bare(text)[:MAX_LABEL] for text in shown if text][:MAX_TICKS]


def bare(text: str) -> str:
    """`10^{2}`, which a logarithmic axis sets in a formula."""
    start, end = "$\\mathdefault{", "}$"
    return text[len(start) : -len(end)] if text.startswith(start) and text.endswith(end) else text
