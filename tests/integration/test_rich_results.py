"""Values of pandas, matplotlib and PIL, from a sandbox with an image built by the pip preset. Pictures are decoded
and checked, charts are compared with the drawn data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration.test_presets import reaches
from support.png import Picture, decode_png
from support.server import Server

from skerry import Image, Sandbox
from skerry.types import Axes, Series

BLUE, RED = (31, 119, 180), (255, 0, 0)  # matplotlib's first colour is that blue


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    if not reaches("pip"):
        pytest.skip("this machine's own pip reaches no registry")
    quick = Image.base().env(PIP_NO_COMPILE="0")  # which means yes to pip: half of the time would be bytecode
    image = quick.pip("pandas", "matplotlib", "pillow", "ipython")
    with Sandbox(image=image.build(server=server.address), server=server.address) as made:
        made.code.run("import matplotlib.pyplot as plt, numpy as np, pandas as pd", check=True)
        yield made


def drawn(sandbox: Sandbox, code: str) -> tuple[Picture, Axes]:
    """Return the picture of the only figure, and the content of its only coordinate system."""
    result = sandbox.code.run(code)
    assert result.error is None, result.error.traceback
    (figure,) = [value for value in result.results if value.png is not None]
    assert figure.png is not None
    assert figure.chart is not None
    (axes,) = figure.chart.axes
    picture = decode_png(figure.png)
    assert not picture.blank
    return picture, axes


pytestmark = pytest.mark.timeout(300)  # the first one waits for the image


def test_data_frame_has_text_html_and_records(sandbox: Sandbox) -> None:
    result = sandbox.code.run("df = pd.DataFrame({'a': [1, 2], 'when': pd.to_datetime(['2024-01-02', None])}); df")
    (value,) = result.results
    assert value.main
    assert value.cut == ()
    assert value.json == [{"a": 1, "when": "2024-01-02T00:00:00.000"}, {"a": 2, "when": None}]
    assert "<td>2024-01-02</td>" in (value.html or "")
    assert result.text == "   a       when\n0  1 2024-01-02\n1  2        NaT"


def test_series_and_index_are_in_the_records(sandbox: Sandbox) -> None:
    (value,) = sandbox.code.run("pd.Series([1.5, 0.1], index=['p', 'q'], name='s')").results
    assert value.json == [{"index": "p", "s": 1.5}, {"index": "q", "s": 0.1}]
    assert "<td>1.5</td>" in (value.html or "")
    (value,) = sandbox.code.run("pd.DataFrame([[1, 2]], columns=['x', 'x'])").results
    assert value.json == [{"x": 1, "x_": 2}]


def test_large_data_frame_is_truncated_and_marked(sandbox: Sandbox) -> None:
    (value,) = sandbox.code.run("pd.DataFrame({'n': range(10**6), 'text': 'x' * 5000})").results
    assert set(value.cut) == {"text/plain", "text/html", "application/json"}
    assert 100 < len(value.json) < 1000
    assert value.json[1]["n"] == 1
    assert len(value.html or "") < 10_000
    assert "1000000 rows" in (value.text or "")


def test_numpy_values_are_text(sandbox: Sandbox) -> None:
    assert sandbox.code.run("np.arange(4.0)").text == "array([0., 1., 2., 3.])"
    (value,) = sandbox.code.run("{'a': [np.int64(3), np.float64(0.5)]}").results
    assert value.json == {"a": [3, 0.5]}
    (value,) = sandbox.code.run("np.zeros(10**7)").results
    assert len(value.text or "") < 100


def test_pil_image_is_a_png(sandbox: Sandbox) -> None:
    (value,) = sandbox.code.run("from PIL import Image\nImage.new('RGB', (20, 10), 'red')").results
    assert value.png is not None
    picture = decode_png(value.png)
    assert (picture.width, picture.height, picture.colours) == (20, 10, {RED})
    (value,) = sandbox.code.run("Image.new('CMYK', (3, 2))").results
    assert value.png is not None
    assert decode_png(value.png).width == 3


def test_shown_image_is_a_result_although_a_viewer_is_installed(sandbox: Sandbox) -> None:
    sandbox.run("printf '#!/bin/sh\\n' > /usr/local/bin/xdg-open; chmod +x /usr/local/bin/xdg-open", user="root")
    (value,) = sandbox.code.run("from PIL import Image\nImage.new('RGB', (4, 3), 'red').show()", fresh=True).results
    assert value.png is not None
    assert decode_png(value.png).colours == {RED}


def test_figure_is_returned_without_show_or_a_file(sandbox: Sandbox) -> None:
    picture, axes = drawn(
        sandbox,
        "plt.plot([1, 2, 3], [4.0, float('nan'), 6.5], label='up')\nplt.plot([3, 2, 1], [4, 5, 6], '--')\n"
        "plt.title('Title'); plt.xlabel('time'); plt.ylabel('height'); plt.yscale('log')\n"
        "plt.ylim(1, 10); plt.legend();",
    )
    assert 400 < picture.width < 700
    assert 300 < picture.height < 520
    assert BLUE in picture.colours
    assert (axes.title, axes.xlabel, axes.ylabel, axes.yscale) == ("Title", "time", "height", "log")
    assert axes.ylim == (1, 10)
    assert "2.0" in axes.xticks or "2.00" in axes.xticks
    assert axes.series == [
        Series(label="up", kind="line", x=[1, 2, 3], y=[4.0, None, 6.5]),
        Series(label=None, kind="line", x=[3, 2, 1], y=[4, 5, 6]),
    ]


@pytest.mark.parametrize(
    ("code", "series"),
    [
        ("plt.bar(['a', 'b'], [3, 4.5]);", [Series(kind="bar", x=["a", "b"], y=[3, 4.5])]),
        ("plt.barh(['a', 'b'], [3, 4]);", [Series(kind="barh", x=[3, 4], y=["a", "b"])]),
        ("plt.scatter([1, 2], [3, 4], label='s');", [Series(label="s", kind="scatter", x=[1, 2], y=[3, 4])]),
        ("plt.pie([1, 3], labels=['x', 'y']);", [Series(kind="pie", x=["x", "y"], y=[0.25, 0.75])]),
        ("plt.hist([1, 1, 2, 5], bins=[1, 2, 4, 5]);", [Series(kind="histogram", x=[1, 2, 4, 5], y=[2, 1, 1])]),
        ("plt.errorbar([1, 2], [3, 4], yerr=1, label='e');", [Series(label="e", kind="errorbar", x=[1, 2], y=[3, 4])]),
        (
            "plt.plot([1, 2], [1, 2]); plt.plot([1, 2], [2, 1]); plt.legend(['one', 'two']);",
            [Series(label="one", x=[1, 2], y=[1, 2]), Series(label="two", x=[1, 2], y=[2, 1])],
        ),
        (
            "import datetime\nplt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)], [1, 2]);",
            [Series(x=["2024-01-01", "2024-01-03"], y=[1, 2])],
        ),
        (
            "plt.imshow([[0, 1], [2, 3]]); plt.colorbar();",
            [Series(kind="heatmap", x=[0, 2], y=[0, 2], z=[[0, 1], [2, 3]])],
        ),
        (
            "pd.DataFrame({'m': [1, 2], 'n': [3, 4]}, index=['r', 's']).plot(kind='bar');",
            [Series(label=name, kind="bar", x=["r", "s"], y=y) for name, y in (("m", [1, 2]), ("n", [3, 4]))],
        ),
        (
            "plt.hist([[1, 1, 2], [2, 2, 2]], bins=[1, 2, 3], label=['p', 'q']);",
            [
                Series(label="p", kind="bar", x=[1.3, 2.3], y=[2, 1]),
                Series(label="q", kind="bar", x=[1.7, 2.7], y=[0, 3]),
            ],
        ),
        (
            "pd.Series([1, 2], index=pd.date_range('2024-01-31', periods=2)).plot();",
            [Series(x=["2024-01-31", "2024-02-01"], y=[1, 2])],
        ),
        ("plt.axhline(2, label='limit');", [Series(label="limit", kind="hline", y=[2])]),
        (
            "plt.boxplot([[1, 2, 3, 4, 20], [5, 6, 7]]); plt.xticks([1, 2], ['a', 'b']); plt.plot([0, 3], [1, 2]);",
            [
                Series(x=[0, 3], y=[1, 2]), Series(label="a", kind="box", x=["a"], y=[1, 2, 3, 4, 4], z=[20]),
                Series(label="b", kind="box", x=["b"], y=[5, 5.5, 6, 6.5, 7]),
            ],
        ),
        (
            "plt.boxplot([[1, 2, 3], [2, 2, 2]], vert=False, patch_artist=True, showmeans=True);",
            [
                Series(label="1", kind="box", x=["1"], y=[1, 1.5, 2, 2.5, 3]),
                Series(label="2", kind="box", x=["2"], y=[2, 2, 2, 2, 2]),
            ],
        ),
    ],
)  # fmt: skip
def test_chart_describes_the_drawn_data(sandbox: Sandbox, code: str, series: list[Series]) -> None:
    _, axes = drawn(sandbox, code)
    assert axes.series == series


def test_many_points_are_sampled_and_counted(sandbox: Sandbox) -> None:
    _, axes = drawn(sandbox, "plt.plot(np.linspace(0, 1, 50_000), np.linspace(5, 6, 50_000));")
    (line,) = axes.series
    assert (len(line.x), len(line.y), line.cut) == (1000, 1000, 49_000)
    assert (line.x[0], line.x[-1], line.y[0], line.y[-1]) == (0, 1, 5, 6)


def test_each_figure_is_shown_once_and_then_closed(sandbox: Sandbox) -> None:
    result = sandbox.code.run(
        "plt.plot([1, 2])\nprint('before')\nplt.show()\nprint('after')\n"
        "plt.figure(); plt.plot([3, 4])\nfigure, axes = plt.subplots(1, 2); axes[1].set_title('right')\nfigure"
    )
    pictures = [value for value in result.results if value.png]
    assert [value.main for value in pictures] == [False, True, False]
    assert [len(value.chart.axes) for value in pictures if value.chart] == [1, 2, 1]
    assert result.stdout == "before\nafter\n"
    assert sandbox.code.run("plt.get_fignums()").text == "[]"


def test_figures_of_failed_code_are_shown_and_not_repeated(sandbox: Sandbox) -> None:
    result = sandbox.code.run("plt.plot([1, 2])\n1 / 0")
    assert result.error is not None
    assert [bool(value.png) for value in result.results] == [True]
    assert sandbox.code.run("plt.close('all')").results == ()


def test_saved_figure_is_among_the_files(sandbox: Sandbox) -> None:
    result = sandbox.code.run("plt.plot([1, 2]); plt.savefig('plot.png'); plt.close()")
    (file,) = result.files
    assert (file.name, file.media_type) == ("plot.png", "image/png")
    assert not decode_png(file.read_bytes()).blank


def test_oversized_figure_is_drawn_smaller(sandbox: Sandbox) -> None:
    (value,) = sandbox.code.run("f = plt.figure(figsize=(200, 100), dpi=300); f.text(0.5, 0.5, 'x'); f").results
    assert value.png is not None
    assert "image/png" in value.cut
    assert decode_png(value.png).width < 6000


def test_ipython_magics_work_if_installed(sandbox: Sandbox) -> None:
    result = sandbox.code.run(
        "answer = 6\n%timeit -n1 -r1 answer\n!echo from a shell\nlines = !echo one; echo two\nlines"
    )
    assert result.error is None, result.error.traceback
    assert "per loop" in result.stdout
    assert "from a shell\n" in result.stdout
    assert result.text == "['one', 'two']"
    assert sandbox.code.run("%%bash\necho $((6 * 7))").stdout == "42\n"
    assert sandbox.code.run("%matplotlib inline\nanswer").text == "6"
    (value,) = sandbox.code.run("from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))").results
    assert value.html == "<b>x</b>"
    error = sandbox.code.run("x = 1\n%nosuchmagic").error
    assert error is not None
    assert (error.name, error.line) == ("UsageError", 2)
    assert not sandbox.files.exists("/home/user/.ipython")
