"""Charts in the form of E2B's interpreter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skerry.server.wire.e2b.charts import chart_of
from skerry.types.code import Axes, Chart, Series


def chart(*series: Series, **more: Any) -> dict[str, Any]:
    axes = Axes(title="T", xlabel="time (s)", ylabel="height", series=[*series], **more)
    found = chart_of(msgspec.json.encode(Chart(axes=[axes])).decode())
    assert found is not None
    return found


def test_lines_have_points_units_and_ticks() -> None:
    found = chart(
        Series(label="a", x=[1, 2], y=[3, 4]), Series(x=[1], y=[5]),
        xticks=["1", "2"], yticks=["10^{1}", "10^{2}"], xlim=(1, 2), ylim=(10, 100), yscale="log",
    )  # fmt: skip
    assert (found["type"], found["title"], found["x_label"], found["x_unit"], found["y_unit"]) == (
        "line", "T", "time (s)", "s", None,
    )  # fmt: skip
    assert found["elements"] == [{"label": "a", "points": [[1, 3], [2, 4]]}, {"label": "", "points": [[1, 5]]}] or (
        [one["points"] for one in found["elements"]] == [[(1, 3), (2, 4)], [(1, 5)]]
    )
    assert (found["x_ticks"], found["y_ticks"], found["y_scale"]) == ([1.0, 2.0], [10.0, 100.0], "log")


def test_dates_and_words_have_their_own_scales() -> None:
    days = Series(x=["2024-01-01", "2024-01-02"], y=[1, 2])
    found = chart(days, xlim=("2024-01-01T00:00:00", "2024-01-02T00:00:00"), xticks=["2024-01", "2024-01-02", "word"])
    assert (found["x_scale"], found["x_ticks"]) == ("datetime", ["2024-01-01T00:00:00", "2024-01-02T00:00:00"])
    assert chart(Series(x=["red", "blue"], y=[1, 2]))["x_scale"] == "categorical"


@pytest.mark.parametrize(
    ("series", "kind", "element"),
    [
        (Series(kind="scatter", label="s", x=[1], y=[2]), "scatter", {"label": "s", "points": [(1, 2)]}),
        (Series(kind="bar", label="g", x=["a"], y=[2]), "bar", {"label": "a", "group": "g", "value": 2}),
        (Series(kind="pie", x=["a"], y=[0.25]), "pie", {"label": "a", "angle": 90.0, "radius": 1.0}),
        (
            Series(kind="box", label="b", x=["b"], y=[1, 2, 3, 4, 5], z=[9]), "box_and_whisker",
            {"label": "b", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 5, "outliers": [9]},
        ),
    ],
)  # fmt: skip
def test_series_become_elements(series: Series, kind: str, element: dict[str, Any]) -> None:
    found = chart(series)
    assert (found["type"], found["elements"]) == (kind, [element])


def test_axes_of_several_kinds_are_unknown_and_several_axes_a_superchart() -> None:
    assert chart(Series(kind="bar"), Series(kind="line"))["type"] == "unknown"
    assert chart()["type"] == "unknown"
    text = msgspec.json.encode(Chart(title="S", axes=[Axes(series=[Series()]), Axes()])).decode()
    found = chart_of(text)
    assert found is not None
    assert (found["type"], found["title"], [one["type"] for one in found["elements"]]) == (
        "superchart", "S", ["line", "unknown"],
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", '{"axes": 1}', '{"axes": [{"series": [{"x": 1}]}]}'])
def test_text_that_is_no_chart_has_none(text: str) -> None:
    """The program inside can print anything in this format."""
    assert chart_of(text) is None


@pytest.mark.parametrize("label", ["$\\mathdefault{10^{999}}$", "1" * 5000, "10^{-999}", "1e999", ""])
def test_tick_that_is_no_number_is_text_or_a_number(label: str) -> None:
    text = msgspec.json.encode(Chart(axes=[Axes(series=[Series(x=[1], y=[2])], xticks=[label])]))
    found = chart_of(text.decode())
    assert found is not None
    assert len(found["x_ticks"]) == 1


def test_text_in_place_of_an_angle_is_not_repeated() -> None:
    found = chart(Series(kind="pie", x=["a", "b", "c", "d"], y=["long" * 1000, [1], {}, 0.5]))
    assert found["elements"] == [{"label": "d", "angle": 180.0, "radius": 1.0}]


@pytest.mark.parametrize("series", [Series(kind="box", y=[1]), Series(kind="pie", x=[None], y=[0.5]), Series(kind="?")])
def test_incomplete_series_of_a_program_are_no_server_errors(series: Series) -> None:
    assert chart(series)["type"] in ("box_and_whisker", "pie", "unknown")
