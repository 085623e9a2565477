"""What a kernel says, as far as it is believed: its own run, in bounds, in forms that there are."""

from __future__ import annotations

import base64
import tracemalloc

import pytest

from skerry.code import wire
from skerry.engine.code_results import MESSAGES_MOST, Listener, error_of, output_of
from skerry.types import OUTPUT_MOST, PICTURE_MOST, RESULTS_MOST, TEXT_MOST

RUN = b"0123456789abcdef"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


def said(kind: bytes, run: bytes = RUN, **fields: bytes) -> bytes:
    return wire.encode(kind, {"run": run, **fields})


def begun() -> Listener:
    listener = Listener(RUN.decode())
    assert list(listener.feed(said(wire.BEGUN))) == []
    assert listener.begun
    return listener


def test_a_run_is_heard_from_its_hello_to_its_end() -> None:
    listener = Listener(RUN.decode())
    whole = (
        wire.encode(wire.HELLO, {"version": b"3.11.2"})
        + said(wire.BEGUN)
        + said(wire.OUTPUT, main=b"1", **{"text/plain": b"42"})
        + said(wire.ERROR, name=b"ValueError", message=b"no", traceback=b"...", line=b"3")
        + said(wire.DONE, status=b"error")
    )
    results = [fields for at in range(len(whole)) for fields in listener.feed(whole[at : at + 1])]
    assert [output_of(fields).data for fields in results] == [{"text/plain": "42"}]
    assert (listener.version, listener.status) == ("3.11.2", "error")
    assert listener.error is not None
    assert (listener.error.name, listener.error.line) == ("ValueError", 3)


@pytest.mark.parametrize(
    "before",
    [
        b"",
        said(wire.OUTPUT, b"f" * 16, main=b"1", **{"text/plain": b"old"}) + said(wire.DONE, b"f" * 16, status=b"ok"),
        said(wire.OUTPUT, b"f" * 16, **{"text/plain": b"half of a message"})[9:],
        b"\xff" * 300_000,
        wire.encode(wire.HELLO, {"version": b"<script>"}),
    ],
)
def test_what_is_left_of_another_run_counts_for_nothing(before: bytes) -> None:
    listener = Listener(RUN.decode())
    assert list(listener.feed(before)) == []
    assert (listener.begun, listener.status, listener.version) == (False, None, None)
    list(listener.feed(said(wire.BEGUN) + said(wire.DONE, status=b"ok")))
    assert (listener.begun, listener.status, listener.version) == (True, "ok", None)


@pytest.mark.parametrize(
    "lie",
    [
        said(wire.DONE, b"f" * 16, status=b"ok"),
        said(wire.OUTPUT, b"f" * 16, **{"text/plain": b"forged"}),
        wire.encode(wire.DONE, {"status": b"ok"}),
        said(wire.DONE, status=b"splendid"),
        said(wire.DONE),
        said(wire.BEGUN),
        said(wire.HELLO, version=b"4"),
        said(wire.ERROR, name=b"A") * 2,
        b"Xnonsense of some length",
        b"O\xff\xff\xff\xff",
        wire.encode(wire.OUTPUT, {f"f{number}": b"" for number in range(33)}),
        said(wire.ERROR, name=b"A") + b"D\x00\x00\x00\x02\x05r",
    ],
)
def test_what_is_no_message_of_this_run_is_a_violation(lie: bytes) -> None:
    with pytest.raises(wire.Violation):
        list(begun().feed(lie))


def test_endless_results_are_dropped_and_then_a_violation() -> None:
    listener, one = begun(), said(wire.OUTPUT, **{"text/plain": b"x"})
    assert len(list(listener.feed(one * 1000))) == RESULTS_MOST
    assert listener.dropped == 1000 - RESULTS_MOST
    with pytest.raises(wire.Violation):
        list(listener.feed(one * MESSAGES_MOST))


def test_results_have_a_bound_together() -> None:
    listener, one = begun(), said(wire.OUTPUT, **{"image/png": PNG + bytes(7 << 20)})
    assert len(list(listener.feed(one * 6))) == 4
    assert listener.dropped == 2


def test_only_forms_that_there_are_come_through() -> None:
    output = output_of({"text/plain": b"a\xff", "text/x-evil": b"b", "main": b"1", "cut": b"text/html text/x-evil"})
    assert output.data == {"text/plain": "a�"}
    assert (output.main, output.cut) == (True, ("text/html",))


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("image/png", b"GIF89a"),
        ("image/jpeg", PNG),
        ("image/png", PNG + bytes(PICTURE_MOST)),
        ("application/json", b'{"a": NaN}'),
        ("application/json", b'{"a": 1'),
        ("application/json", b"[" * 500_000),
        ("application/json", b'"' + b"a" * TEXT_MOST + b'"'),
        ("application/json", b'"\xff"'),
        ("application/vnd.skerry.chart+json", b'{"axes": "none"}'),
        ("application/vnd.skerry.chart+json", b"[" * 500_000),
        ("application/vnd.skerry.chart+json", b'{"title": "a", "evil": 1}'),
        ("application/vnd.skerry.chart+json", b'{"axes": [' + b"{}," * 300_000 + b"{}]}"),
        ("application/vnd.skerry.chart+json", b'{"axes": [{"series": [{"x": [' + b"[]," * 300_000 + b"[]]}]}]}"),
    ],
)
def test_a_form_that_is_not_what_it_says_is_left_out_and_named(form: str, value: bytes) -> None:
    output = output_of({"text/plain": b"still there", form: value})
    assert output.data == {"text/plain": "still there"}
    assert output.cut == (form,)


def test_forms_that_are_what_they_say_come_through() -> None:
    chart = b'{"title": "t", "axes": [{"series": [{"label": "a", "x": [1, "b"], "y": [2.5, null]}]}]}'
    forms = {"image/png": PNG, "application/json": b'{"a": [1]}', "application/vnd.skerry.chart+json": chart}
    output = output_of(forms)
    assert base64.b64decode(output.data["image/png"]) == PNG
    assert output.data["application/vnd.skerry.chart+json"] == chart.decode()
    assert output.cut == ()


def test_a_long_text_is_cut_and_named() -> None:
    output = output_of({"text/plain": b"a" * (TEXT_MOST + 1)})
    assert len(output.data["text/plain"]) == TEXT_MOST
    assert output.cut == ("text/plain",)


def test_names_of_forms_without_end_cost_nothing() -> None:
    names = b" ".join(b"%x" % number for number in range(1_000_000))
    tracemalloc.start()
    try:
        assert output_of({"text/plain": b"a", "cut": names}).cut == ()
        assert tracemalloc.get_traced_memory()[1] < len(names)
    finally:
        tracemalloc.stop()


def test_a_result_is_never_longer_on_the_wire_than_a_client_takes() -> None:
    texts = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml")
    output = output_of(dict.fromkeys(texts, b"\x01" * TEXT_MOST))
    assert sum(6 * len(text) for text in output.data.values()) <= OUTPUT_MOST
    assert output.data
    assert set(output.cut) == set(texts) - output.data.keys()


def test_an_error_is_words_within_bounds() -> None:
    error = error_of({"name": b"N" * 1000, "message": b"\xff", "traceback": b"t" * (1 << 20), "line": b"-5"})
    assert len(error.name) < 400
    assert error.message == "�"
    assert len(error.traceback) < 70_000
    assert "left out" in error.traceback
    assert error.line is None
    assert error_of({}).name == "Error"
