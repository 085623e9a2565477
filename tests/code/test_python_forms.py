"""Values in more forms than text, as the Python kernel finds them. Those of pandas, matplotlib and PIL are in
tests/integration/test_rich_results.py."""

from __future__ import annotations

import json

import pytest
from support.kernel import Running

from skerry.types import MAX_PICTURE


def test_objects_define_their_forms(kernel: Running) -> None:
    ran = kernel.run(
        "class Rich:\n"
        "    def __repr__(self): return 'plain'\n"
        "    def _repr_html_(self): return '<b>h</b>'\n"
        "    def _repr_markdown_(self): return '**m**', {'meta': 1}\n"
        "    def _repr_latex_(self): return '$l$'\n"
        "    def _repr_javascript_(self): return 'alert(1)'\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_png_(self): return b'\\x89PNG...'\n"
        "    def _repr_jpeg_(self): return '/9j/4AAQ'\n"
        "    def _repr_json_(self): return {'j': [1, float('nan')]}\n"
        "Rich()"
    )
    assert ran.main == {
        "main": b"1",
        "text/plain": b"plain",
        "text/html": b"<b>h</b>",
        "text/markdown": b"**m**",
        "text/latex": b"$l$",
        "application/javascript": b"alert(1)",
        "image/svg+xml": b"<svg/>",
        "image/png": b"\x89PNG...",
        "image/jpeg": b"\xff\xd8\xff\xe0\x00\x10",
        "application/json": b'{"j":[1,null]}',
    }


def test_a_bundle_is_taken_and_a_charts_description_is_json(kernel: Running) -> None:
    ran = kernel.run(
        "class Chart:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'text/plain': 'a chart', 'application/vnd.x.v1+json': {'mark': 'bar'}}, {}\n"
        "Chart()"
    )
    assert ran.main == {"main": b"1", "text/plain": b"a chart", "application/json": b'{"mark":"bar"}'}
    ran = kernel.run("display({'text/html': '<i>', 'text/plain': 'raw'}, raw=True)")
    assert ran.outputs == [{"main": b"0", "text/html": b"<i>", "text/plain": b"raw"}]


def test_form_that_raises_is_dropped_and_reported(kernel: Running) -> None:
    ran = kernel.run(
        "class Half:\n    def _repr_html_(self): raise KeyError('k')\n    def __repr__(self): return 'H'\nHalf()"
    )
    assert ran.main == {"main": b"1", "text/plain": b"H"}
    assert b"_repr_html_ of Half raised KeyError" in ran.stderr
    assert kernel.run("from unittest.mock import MagicMock\nMagicMock(name='m')").status == "ok"


def test_oversized_image_is_dropped_and_named(kernel: Running) -> None:
    ran = kernel.run(f"class P:\n    def _repr_png_(self): return b'\\x89PNG' + bytes({MAX_PICTURE})\nP()")
    assert ran.main is not None
    assert ran.main["cut"] == b"image/png"
    assert "image/png" not in ran.main


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{'a': [1, None, True], 3: 'é\\n\"'}", '{"a":[1,null,true],"3":"é\\n\\""}'),
        ("[(1, 2), 1e300, float('inf')]", "[[1,2],1e+300,null]"),
        ("[object()]", None),
        ("{(1, 2): 3}", None),
        ("[{1, 2}]", None),
    ],
)
def test_lists_and_dicts_of_plain_values_are_also_json(kernel: Running, value: str, text: str | None) -> None:
    main = kernel.run(value).main
    assert main is not None
    found = main.get("application/json")
    assert (found.decode() if found is not None else None) == text
    assert found is None or json.loads(found) is not None
