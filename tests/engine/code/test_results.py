"""Messages of a kernel: accepted only for the current run, within bounds and in known forms."""

from __future__ import annotations

import base64
import tracemalloc

import pytest

from skerry.code import kernel_protocol
from skerry.engine.code.results import MAX_MESSAGES, ResultParser, error_of, output_of
from skerry.types import MAX_OUTPUT, MAX_PICTURE, MAX_RESULTS, MAX_TEXT

RUN = b"0123456789abcdef"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


def said(kind: bytes, run: bytes = RUN, **fields: bytes) -> bytes:
    return kernel_protocol.encode(kind, {"run": run, **fields})


def begun() -> ResultParser:
    listener = ResultParser(RUN.decode())
    assert list(listener.feed(said(kernel_protocol.BEGUN))) == []
    assert listener.begun
    return listener


def test_run_is_parsed_from_hello_to_end() -> None:
    listener = ResultParser(RUN.decode())
    whole = (
        kernel_protocol.encode(kernel_protocol.HELLO, {"version": b"3.11.2"})
        + said(kernel_protocol.BEGUN)
        + said(kernel_protocol.OUTPUT, main=b"1", **{"text/plain": b"42"})
        + said(kernel_protocol.ERROR, name=b"ValueError", message=b"no", traceback=b"...", line=b"3")
        + said(kernel_protocol.DONE, status=b"error")
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
        said(kernel_protocol.OUTPUT, b"f" * 16, main=b"1", **{"text/plain": b"old"})
        + said(kernel_protocol.DONE, b"f" * 16, status=b"ok"),
        said(kernel_protocol.OUTPUT, b"f" * 16, **{"text/plain": b"half of a message"})[9:],
        b"\xff" * 300_000,
        kernel_protocol.encode(kernel_protocol.HELLO, {"version": b"<script>"}),
    ],
)
def test_messages_of_another_run_are_ignored(before: bytes) -> None:
    listener = ResultParser(RUN.decode())
    assert list(listener.feed(before)) == []
    assert (listener.begun, listener.status, listener.version) == (False, None, None)
    list(listener.feed(said(kernel_protocol.BEGUN) + said(kernel_protocol.DONE, status=b"ok")))
    assert (listener.begun, listener.status, listener.version) == (True, "ok", None)


@pytest.mark.parametrize(
    "lie",
    [
        said(kernel_protocol.DONE, b"f" * 16, status=b"ok"),
        said(kernel_protocol.OUTPUT, b"f" * 16, **{"text/plain": b"forged"}),
        kernel_protocol.encode(kernel_protocol.DONE, {"status": b"ok"}),
        said(kernel_protocol.DONE, status=b"splendid"),
        said(kernel_protocol.DONE),
        said(kernel_protocol.BEGUN),
        said(kernel_protocol.HELLO, version=b"4"),
        said(kernel_protocol.ERROR, name=b"A") * 2,
        b"Xnonsense of some length",
        b"O\xff\xff\xff\xff",
        kernel_protocol.encode(kernel_protocol.OUTPUT, {f"f{number}": b"" for number in range(33)}),
        said(kernel_protocol.ERROR, name=b"A") + b"D\x00\x00\x00\x02\x05r",
    ],
)
def test_invalid_message_is_a_violation(lie: bytes) -> None:
    with pytest.raises(kernel_protocol.Violation):
        list(begun().feed(lie))


def test_excess_results_are_dropped_and_then_a_violation() -> None:
    listener, one = begun(), said(kernel_protocol.OUTPUT, **{"text/plain": b"x"})
    assert len(list(listener.feed(one * 1000))) == MAX_RESULTS
    assert listener.dropped == 1000 - MAX_RESULTS
    with pytest.raises(kernel_protocol.Violation):
        list(listener.feed(one * MAX_MESSAGES))


def test_total_size_of_results_is_bounded() -> None:
    listener, one = begun(), said(kernel_protocol.OUTPUT, **{"image/png": PNG + bytes(7 << 20)})
    assert len(list(listener.feed(one * 6))) == 4
    assert listener.dropped == 2


def test_unknown_forms_are_dropped() -> None:
    output = output_of({"text/plain": b"a\xff", "text/x-evil": b"b", "main": b"1", "cut": b"text/html text/x-evil"})
    assert output.data == {"text/plain": "a�"}
    assert (output.main, output.cut) == (True, ("text/html",))


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("image/png", b"GIF89a"),
        ("image/jpeg", PNG),
        ("image/png", PNG + bytes(MAX_PICTURE)),
        ("application/json", b'{"a": NaN}'),
        ("application/json", b'{"a": 1'),
        ("application/json", b"[" * 500_000),
        ("application/json", b'"' + b"a" * MAX_TEXT + b'"'),
        ("application/json", b'"\xff"'),
        ("application/vnd.skerry.chart+json", b'{"axes": "none"}'),
        ("application/vnd.skerry.chart+json", b"[" * 500_000),
        ("application/vnd.skerry.chart+json", b'{"title": "a", "evil": 1}'),
        ("application/vnd.skerry.chart+json", b'{"axes": [' + b"{}," * 300_000 + b"{}]}"),
        ("application/vnd.skerry.chart+json", b'{"axes": [{"series": [{"x": [' + b"[]," * 300_000 + b"[]]}]}]}"),
    ],
)
def test_mislabelled_form_is_dropped_and_reported(form: str, value: bytes) -> None:
    output = output_of({"text/plain": b"still there", form: value})
    assert output.data == {"text/plain": "still there"}
    assert output.cut == (form,)


def test_valid_forms_are_kept() -> None:
    chart = b'{"title": "t", "axes": [{"series": [{"label": "a", "x": [1, "b"], "y": [2.5, null]}]}]}'
    forms = {"image/png": PNG, "application/json": b'{"a": [1]}', "application/vnd.skerry.chart+json": chart}
    output = output_of(forms)
    assert base64.b64decode(output.data["image/png"]) == PNG
    assert output.data["application/vnd.skerry.chart+json"] == chart.decode()
    assert output.cut == ()


def test_long_text_is_truncated_and_reported() -> None:
    output = output_of({"text/plain": b"a" * (MAX_TEXT + 1)})
    assert len(output.data["text/plain"]) == MAX_TEXT
    assert output.cut == ("text/plain",)


def test_many_form_names_use_no_memory() -> None:
    names = b" ".join(b"%x" % number for number in range(1_000_000))
    tracemalloc.start()
    try:
        assert output_of({"text/plain": b"a", "cut": names}).cut == ()
        assert tracemalloc.get_traced_memory()[1] < len(names)
    finally:
        tracemalloc.stop()


def test_encoded_result_fits_the_limit_of_the_client() -> None:
    texts = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml")
    output = output_of(dict.fromkeys(texts, b"\x01" * MAX_TEXT))
    assert sum(6 * len(text) for text in output.data.values()) <= MAX_OUTPUT
    assert output.data
    assert set(output.cut) == set(texts) - output.data.keys()


def test_error_is_bounded_text() -> None:
    error = error_of({"name": b"N" * 1000, "message": b"\xff", "traceback": b"t" * (1 << 20), "line": b"-5"})
    assert len(error.name) < 400
    assert error.message == "�"
    assert len(error.traceback) < 70_000
    assert "left out" in error.traceback
    assert error.line is None
    assert error_of({}).name == "Error"
