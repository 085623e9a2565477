"""Figures of matplotlib and images of PIL: the part of the Python kernel that is compiled when the code imports pyplot.

All figures that are open at a run's end are drawn and closed; `plt.show()` does so at once."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PIXELS = 16_000_000
CHART = "application/vnd.skerry.chart+json"
shown: list[int] = []  # numbers of open figures that the run has shown as values


def take_figures(kernel: Any, pyplot: Any) -> None:
    """Draw into memory unless the code chose a backend: no window can open."""
    import matplotlib
    from matplotlib.figure import Figure

    chosen = dict.get(matplotlib.rcParams, "backend")
    if not isinstance(chosen, str):
        matplotlib.use("agg")

    def show(*_given: Any, **_options: Any) -> None:
        """Shows all open figures as results of the run."""
        draw_open_figures(kernel, True)

    def show_one(figure: Any, *_given: Any, **_options: Any) -> None:
        kernel.show(figure)

    pyplot.show = show
    Figure.show = show_one


def take_images(kernel: Any, image_show: Any) -> None:
    """Make `image.show()` show a result: PIL prefers programs that open a window, if there are any."""

    class ResultViewer(image_show.Viewer):  # type: ignore[misc]
        def show(self, image: Any, **_options: Any) -> bool:
            kernel.show(image)
            return True

    image_show.register(ResultViewer, 0)


def draw_open_figures(kernel: Any, drawing: bool) -> None:
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return
    try:
        for number in sorted(helpers.Gcf.figs) if drawing else ():
            figure = helpers.Gcf.figs[number].canvas.figure
            if number not in shown and (figure.axes or figure.lines or figure.images or figure.texts):
                kernel.show(figure)
    finally:
        shown.clear()
        helpers.Gcf.destroy_all()


def add_figure(kernel: Any, figure: Any, found: dict[str, Any], cut: set[str]) -> None:
    if getattr(figure, "number", None) is not None:
        shown.append(figure.number)
    found["text/plain"] = repr(figure)
    found["image/png"] = picture_of(kernel, figure, cut)
    try:
        chart = kernel.part("charts")["chart_of"](figure, kernel.max_text, kernel.part("rich"))
    except Exception as failure:  # a kind of axes that we don't know
        print(f"skerry: the figure's data could not be read: {type(failure).__name__}: {failure}", file=sys.stderr)
        return
    if chart is not None:
        found[CHART] = chart


def picture_of(kernel: Any, figure: Any, cut: set[str]) -> bytes:
    from io import BytesIO

    box, width, height = extent(figure)
    dpi = min(figure.dpi, (MAX_PIXELS / (width * height)) ** 0.5)
    while True:
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=dpi, bbox_inches=box)
        if dpi < figure.dpi:
            cut.add("image/png")
        if len(stream.getvalue()) <= kernel.max_picture or dpi < 10:
            return stream.getvalue()
        dpi /= 2


def extent(figure: Any) -> tuple[Any, float, float]:
    """All that was drawn, with a little room around it, unless something lies far outside; in inches."""
    width, height = figure.get_size_inches()
    if width * height * figure.dpi**2 > MAX_PIXELS:
        return None, width, height
    try:
        figure.draw_without_rendering()
        box = figure.get_tightbbox().padded(0.1)
    except Exception:  # matplotlib before 3.6; something that lies too far outside to be measured
        return None, width, height
    if not (0 < box.width < 3 * width and 0 < box.height < 3 * height):
        return None, width, height
    return box, box.width, box.height
