"""Errors of code in compiled languages, and languages without contexts, from its output. Pure.

The output comes from inside: it is read in bounded pieces and only determines the text of an error."""

from __future__ import annotations

import re
import signal
from typing import Final

from skerry.code.languages import Language
from skerry.types import CodeError, RunResult

COMPILE_ERROR: Final = "CompileError"
MAX_TEXT: Final = 64 << 10  # characters of output
MAX_LINE: Final = 1000
MAX_MESSAGE: Final = 2000
_AN_ERROR: Final = re.compile(r"\berror\b", re.IGNORECASE)


def of_compiler(language: Language, printed: str, directory: str) -> CodeError:
    """Return the compiler's error; the message is the first line that mentions an error."""
    text = _own_words(printed, directory)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    message = next((line for line in lines if _AN_ERROR.search(line)), lines[-1] if lines else "")
    place = re.search(rf"{re.escape(language.file)}:([0-9]{{1,7}})\b", text)
    return CodeError(
        name=COMPILE_ERROR, message=message[:MAX_MESSAGE], traceback=text, line=int(place[1]) if place else None
    )


def of_program(language: Language, end: RunResult, printed: str, directory: str) -> CodeError | None:
    """Return the error of a program, or None if it succeeded. `printed`: its stderr."""
    if end.exit_code == 0 and not end.timed_out:
        return None
    text = _own_words(printed, directory)
    if end.timed_out:
        return CodeError(name="Interrupted", message="timed out", traceback=text)
    found = _found(language, text)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    if end.signal is not None:
        name, message = found.get("name") or f"SIG{end.signal}", found.get("message") or _in_words(end.signal)
    else:
        name, message = found.get("name") or "Error", found.get("message") or last or f"exit code {end.exit_code}"
    line = found.get("line")
    return CodeError(
        name=name[:200], message=message[:MAX_MESSAGE], traceback=text, line=int(line[:7]) if line else None
    )


def _own_words(printed: str, directory: str) -> str:
    """Remove the directory of the file, which no longer exists. Truncate long lines, and the middle of a long text."""
    lines = [line[:MAX_LINE] for line in printed.replace(f"{directory}/", "").splitlines()]
    text = "\n".join(lines)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]}\n…\n{text[-MAX_TEXT // 2 :]}"


def _found(language: Language, text: str) -> dict[str, str]:
    """Return the first match of each group of the language's patterns: lines of one failure may have different parts of
    it."""
    found: dict[str, str] = {}
    for pattern in language.errors:
        for match in re.finditer(pattern, text, re.MULTILINE):
            for part, value in match.groupdict().items():
                if value and value.strip():
                    found.setdefault(part, value.strip())
    return found


def _in_words(name: str) -> str:
    try:
        return signal.strsignal(signal.Signals[f"SIG{name}"]) or f"signal {name}"
    except KeyError:
        return f"signal {name}"
