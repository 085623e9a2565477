"""How code failed, in Python's own words: the part of the Python kernel that is compiled when the first run fails."""

from __future__ import annotations

import os
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OURS = "<skerry>"


def describe(kernel: Any, failure: BaseException) -> dict[str, bytes]:
    fields = {"message": message_of(failure), "traceback": traceback_of(kernel, failure)}
    line = line_of(kernel, failure)
    if line:
        fields["line"] = line
    return {name: shortened(text, kernel.max_text >> 2) for name, text in fields.items()}


def message_of(failure: BaseException) -> str:
    try:
        return str(failure.msg if isinstance(failure, SyntaxError) else failure)
    except Exception:
        return "<exception str() failed>"


def line_of(kernel: Any, failure: BaseException) -> str:
    """The innermost line of this run's own code."""
    if isinstance(failure, SyntaxError) and failure.filename == kernel.cell:
        return str(failure.lineno or 1)
    line, at = "", failure.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == kernel.cell and at.tb_lineno:
            line = str(at.tb_lineno)
        at = at.tb_next
    return line


def traceback_of(kernel: Any, failure: BaseException) -> str:
    """Return the traceback without the frames of the kernel and the event loop."""
    if isinstance(failure, SyntaxError) and failure.text is None and failure.filename == kernel.cell:
        lines = kernel.sources[kernel.cell].split("\n")
        failure.text = dict(enumerate(lines, 1)).get(failure.lineno or 1)
    at = failure.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename not in kernel.sources:
        at = at.tb_next
    described = traceback.TracebackException(type(failure), failure, at or failure.__traceback__)
    hide_ours(described)
    return "".join(described.format() if described.stack else described.format_exception_only()).rstrip("\n")


def watch_threads(kernel: Any, threading: Any) -> None:
    """The default hook knows no source lines but those of files, up to Python 3.12."""

    def failed(args: Any) -> None:
        if args.exc_type is not SystemExit:
            name = args.thread.name if args.thread is not None else threading.get_ident()
            text = traceback_of(kernel, args.exc_value or args.exc_type())
            print(f"Exception in thread {name}:\n{text}", file=sys.stderr)

    threading.excepthook = failed


def leave(kernel: Any, failure: BaseException | None) -> None:
    """The end of a process that the code forked and that came to the code's end."""
    status = 0 if failure is None else 1
    if isinstance(failure, SystemExit):
        status = failure.code if isinstance(failure.code, int) else 1 if failure.code else 0
    elif failure is not None:
        kernel.attempt(lambda: print(traceback_of(kernel, failure), file=sys.stderr))
    kernel.attempt(kernel.flush)
    os._exit(status & 255)


def hide_ours(described: Any) -> None:
    """Hide the kernel's frames, also in causes and contexts of the exception."""
    found, seen = [described], set()
    while found:
        one = found.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.stack[:] = [frame for frame in one.stack if frame.filename != OURS]
            found += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def shortened(text: str, most: int) -> bytes:
    """Its head and its tail, where it is long."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data
    head, tail = data[: most // 2], data[-most // 2 :]
    return (head.decode("utf-8", "ignore") + "\n…\n" + tail.decode("utf-8", "ignore")).encode()
