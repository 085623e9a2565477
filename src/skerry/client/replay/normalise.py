"""Normalisation: values in the output of a program that may differ between two runs of the same task.

A rule never hides a difference of words, counts, versions or exit codes. Three checks keep it narrow:

- `clock`: the value is a time, and it lies within the run that printed it. The date of a release is compared.
- `identity`: one value of the first run stands for exactly one value of the second run. An output that prints one ID
  twice does not equal an output that prints two IDs.
- `measure`: the value is a duration or a rate, and the words around it show that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from time import gmtime

from skerry.types.replays import ReplayRule
from skerry.types.values import Value

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = "(?:" + "|".join(_MONTHS) + ")"
_MONTH_NAME = re.compile(_MONTH)
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_CLOCK = r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})(?![A-Za-z0-9]))?"
_SECONDS = r"(?:ns|us|µs|ms|s|secs?|seconds?|m|mins?|minutes?)\b"

RULES: tuple[ReplayRule, ...] = (
    ReplayRule(
        name="date-time", check="clock", description="date and time: 2026-11-16T17:03:52.120Z, 2026-11-16 17:03",
        pattern=rf"(?<!\d)\d{{4}}-\d{{2}}-\d{{2}}[T ]\d{{2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d{{1,9}})?)?(?!\d){_ZONE}",
    ),
    ReplayRule(
        name="date-time-words", check="clock",
        description="date and time with words: Mon Nov 16 17:03:52 UTC 2026, Mon, 16 Nov 2026 17:03:52 GMT",
        pattern=rf"\b{_DAY},? (?:{_MONTH} [ \d]?\d {_CLOCK}(?: [A-Z]{{3,4}})? \d{{4}}"
        rf"|\d{{1,2}} {_MONTH} \d{{4}} {_CLOCK}){_ZONE}",
    ),
    ReplayRule(
        name="date-time-log", check="clock", description="date and time of a server's log: 16/Nov/2026:17:03:52 +0000",
        pattern=rf"(?<!\d)\d{{2}}/{_MONTH}/\d{{4}}[: ]{_CLOCK}{_ZONE}",
    ),
    ReplayRule(
        name="date-time-list", check="clock", description="date and time of a list of files: Nov 16 17:03",
        pattern=rf"\b{_MONTH} [ \d]\d \d{{2}}:\d{{2}}(?![\d:])",
    ),
    ReplayRule(
        name="date", check="clock", description="date of the run: 2026-11-16",
        pattern=r"(?<![\d-])\d{4}-\d{2}-\d{2}(?![\d-])",
    ),
    ReplayRule(
        name="time", check="clock", description="time of day: 17:03:52, 17:03:52.120",
        pattern=rf"(?<![\d:.]){_CLOCK}(?![\d:])",
    ),
    ReplayRule(
        name="unix-time", check="clock", description="seconds, milliseconds or nanoseconds since 1970: 1794848632.5",
        pattern=r"(?<![\w.-])(?:\d{10}(?:\.\d{1,9})?|\d{13}|\d{16}|\d{19})(?![\w-]|\.\d)",
    ),
    ReplayRule(
        name="duration", check="measure",
        description="measured duration after a word such as in, took, real or time: 3 passed in 0.03s, real 0m0.004s",
        pattern=r"\b(?:in|took|elapsed|duration|real|user|sys|[Tt]ime|[Tt]otal time|Elapsed|Duration)\b[ :=\t]{1,4}"
        rf"(?P<v>(?:\d{{1,6}}m ?)?\d{{1,9}}(?:\.\d{{1,9}} ?{_SECONDS}| ?(?:ns|us|µs|ms)\b)"
        r"(?: \(\d{1,2}:\d{2}:\d{2}\))?)",
    ),
    ReplayRule(
        name="duration-line", check="measure",
        description="measured duration on a line of a test report: ok example.com/m 0.003s, 0.02s call test.py::test_a",
        pattern=r"(?m:^)(?:(?:ok|FAIL|---|\?)[ \t][^\n\r]{1,300}?[ \t(](?P<v>\d{1,6}\.\d{1,9}s)\)?(?=\r?$)"
        r"|(?P<v2>\d{1,6}\.\d{1,9}s)(?= (?:call|setup|teardown) ))",
    ),
    ReplayRule(
        name="duration-packages", check="measure", description="duration of an installation: added 3 packages in 2s",
        pattern=r"\bpackages? in (?P<v>\d{1,6}(?:m?s|m))\b",
    ),
    ReplayRule(
        name="rate", check="measure", description="measured rate and estimated end: 1.2 MB/s, eta 0:00:01",
        pattern=r"(?<![\w.])(?P<v>\d{1,6}(?:\.\d{1,6})? ?[kKMG]?i?B/s"
        r"(?: eta (?:\d{1,3}:\d{2}:\d{2}|-:--:--))?)(?!\w)",
    ),
    ReplayRule(
        name="uuid", check="identity", description="UUID: 123e4567-e89b-42d3-a456-426614174000",
        pattern=r"(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])",
    ),
    ReplayRule(
        name="sandbox-id", check="identity", description="ID of a sandbox, snapshot or process: sb-q3k2m5n7ab",
        pattern=r"(?<![\w-])(?:sb|sn|p)-[a-z2-7]{10}(?![\w-])",
    ),
    ReplayRule(
        name="address", check="identity", description="memory address: 0x7f3c5a1b2d40",
        pattern=r"\b0x(?:0000)?[1-9a-f][0-9a-f]{8,11}\b",
    ),
    ReplayRule(
        name="temporary-name", check="identity",
        description="random part of a temporary name of a known program in /tmp or /var/tmp: tmp.k3JxQ2pLm0 (mktemp),"
        " tmpab12_cd3 (Python), pip-req-build-x1y2z3w4, pytest-of-root/pytest-3, ccQ2kJ3x.o (gcc), go-build1234567890",
        pattern=r"(?:/tmp)/(?:tmp\.|tmp|cc|go-build|pytest-of-[a-z]{1,32}/pytest-|pip-[a-z-]{1,40}-|cargo-install)"
        r"(?P<v>(?<=tmp\.)[A-Za-z0-9]{6,12}|(?<=/tmp)[a-z0-9_]{8}|(?<=/cc)[A-Za-z0-9]{6}"
        r"|(?<=go-build)\d{6,12}|(?<=/pytest-)\d{1,6}|(?<=-)[a-z0-9_]{8}|(?<=install)[A-Za-z0-9]{6})(?![\w-])",
    ),
    ReplayRule(
        name="temporary-path", check="identity",
        description="name below /tmp or /var/tmp that ends with 6 to 12 random characters, letters and digits:"
        " /tmp/build-k3JxQ2",
        pattern=r"(?<![\w.-])(?:/var)?/tmp/(?:[A-Za-z]{1,40}[-._]){1,4}"
        r"(?P<v>(?=[A-Za-z_]{0,11}\d)(?=\d{0,11}[A-Za-z_])[A-Za-z0-9_]{6,12})(?![\w.-])",
    ),
    ReplayRule(
        name="process-id", check="identity", description="process ID after a word: pid 123, PID: 123, [1] 123",
        pattern=r"(?:\b(?:pid|PID|Pid|process id|process ID)[ :=#]{1,3}|(?m:^)\[\d{1,3}\] )(?P<v>\d{1,7})\b",
    ),
    ReplayRule(
        name="git-commit", check="identity",
        description="hash of a commit, which follows from its time: [main 3f2a1bc] subject, commit 3f2a1bc…",
        pattern=r"(?:(?m:^)(?:commit |HEAD is now at )|(?m:^)\[[^\s\[\]]{1,200} (?:\(root-commit\) )?)"
        r"(?P<v>[0-9a-f]{40}|[0-9a-f]{7,12})(?=[\s\]])",
    ),
    ReplayRule(
        name="wheel-hash", check="identity",
        description="hash of a wheel that pip built, which follows from the times in it: sha256=3f2a…",
        pattern=r"\bCreated wheel for [^\s:]{1,200}: filename=\S{1,300} size=\d{1,12} sha256=(?P<v>[0-9a-f]{64})\b",
    ),
)  # fmt: skip

FILE_RULES = (
    ReplayRule(
        name="compiled-python",
        check="derived",
        description="content of compiled Python, which holds the time of its source: __pycache__/a.cpython-312.pyc",
        pattern=r"/__pycache__/[^/]+\.pyc$",
    ),
)
ALL_RULES = (*RULES, *FILE_RULES)


class Window(Value, frozen=True, kw_only=True):
    """The time of a run, in Unix seconds: a clock value outside of it is not a time of the run."""

    start: float
    end: float

    def has(self, at: float, width: float = 1.0) -> bool:
        """Return whether the span of `width` seconds from `at` meets the window."""
        return at + width >= self.start - _SLACK and at <= self.end + _SLACK

    def has_local(self, at: float, width: float = 1.0) -> bool:
        """Like `has`, for a time without a zone: zones are whole quarters of an hour from UTC."""
        return any(self.has(at - 900.0 * quarters, width) for quarters in range(-48, 57))

    def has_time_of_day(self, at: float) -> bool:
        """Return whether a second of some day, in some time zone, lies within the window."""
        start, end = self.start - _SLACK, self.end + _SLACK
        return end - start >= 900 or (at - start) % 900 <= end - start


_SLACK = 2.0
Token = tuple[str, str]  # of a rule: its name and the number of the value; else "" and the text


class Normalised(Value, frozen=True):
    """A text as a list of tokens. Text from a program cannot imitate the token of a rule."""

    tokens: tuple[Token, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.tokens if name))

    def __str__(self) -> str:
        return "".join(f"<{name}{number and ' ' + number}>" if name else number for name, number in self.tokens)


def normalise(text: str, window: Window) -> Normalised:
    """Replace the values that may differ by tokens: numbered by their first occurrence if their rule has the check
    `identity`."""
    tokens: list[Token] = []
    numbers: dict[tuple[str, str], str] = {}
    counts: dict[str, int] = {}
    at = 0
    for rule, start, end in _values(text, window):
        if start > at:
            tokens.append(("", text[at:start]))
        number = ""
        if rule.check == "identity":
            key = rule.name, text[start:end]
            if key not in numbers:
                counts[rule.name] = counts.get(rule.name, 0) + 1
                numbers[key] = str(counts[rule.name])
            number = numbers[key]
        tokens.append((rule.name, number))
        at = end
    if at < len(text):
        tokens.append(("", text[at:]))
    return Normalised(tuple(tokens))


def _compiled() -> re.Pattern[str]:
    """Return all rules as one expression: the leftmost match counts, then the order of the table. Names of groups are
    unique in an expression, so each group gets the number of its rule."""
    parts = []
    for number, rule in enumerate(RULES):
        pattern = re.sub(r"\(\?P<(v2?)>", lambda match, number=number: f"(?P<{match[1]}_{number}>", rule.pattern)  # type: ignore[misc]
        parts.append(f"(?P<r_{number}>{pattern})")
    return re.compile("|".join(parts))


_ANY = _compiled()


def _values(text: str, window: Window) -> Iterator[tuple[ReplayRule, int, int]]:
    """Yield the values that pass the check of their rule. A time outside of the window stays as a whole: the time of
    day in it is not a time of the run either."""
    at = 0
    while (match := _ANY.search(text, at)) is not None:
        number = int((match.lastgroup or "")[2:])
        rule = RULES[number]
        groups = match.groupdict()
        name = next((name for name in (f"v_{number}", f"v2_{number}") if groups.get(name) is not None), 0)
        start, end = match.span(name)
        if rule.check != "clock" or is_now(rule.name, match[0], window):
            yield rule, start, end
            at = end
        else:
            at = match.end()


_HOURS = re.compile(r"(?<!\d)(\d{2}):(\d{2})(?::(\d{2}))?(?:[.,]\d+)?")
_OFFSET = re.compile(r"(?:(?<=[\d ])(Z|UTC|GMT)\b|([+-])(\d{2}):?(\d{2})$)")
_NUMBER = re.compile(r"\d+")


def is_now(rule: str, text: str, window: Window) -> bool:
    """Return whether a clock value lies within the window. A value that is no time at all does not."""
    if rule == "unix-time":
        whole = text.partition(".")[0]
        return window.has(int(whole) / 10.0 ** (len(whole) - 10))
    hours, offset = _HOURS.search(text), _OFFSET.search(text)
    second = _second_of_day(hours) if hours is not None else 0.0
    if rule == "time":
        return second >= 0 and window.has_time_of_day(second)
    width = 86400.0 if hours is None else 60.0 if hours[3] is None else 1.0
    rest = text[: offset.start()] + text[offset.end() :] if offset is not None and hours is not None else text
    days = [_day(rest.replace(hours[0], " ") if hours else rest, year) for year in _years(window)]
    moments = [day + second for day in days if day is not None and second >= 0]
    if offset is None:
        return any(window.has_local(moment, width) for moment in moments)
    return any(window.has(moment - _offset_seconds(offset), width) for moment in moments)


def _second_of_day(hours: re.Match[str]) -> float:
    """Return the second of the day; -1 if it is no time of day."""
    hour, minute, second = int(hours[1]), int(hours[2]), int(hours[3] or 0)
    return hour * 3600.0 + minute * 60.0 + second if hour < 24 and minute < 60 and second < 61 else -1.0


def _offset_seconds(offset: re.Match[str]) -> float:
    if offset[1]:
        return 0.0
    return (1 if offset[2] == "+" else -1) * (int(offset[3]) * 3600.0 + int(offset[4]) * 60.0)


def _years(window: Window) -> set[int]:
    """Return the years of the window, for dates without a year."""
    return {gmtime(at).tm_year for at in (window.start - 86400, window.end + 86400)}


def _day(text: str, year: int) -> float | None:
    """Return the first second of a date in UTC: of 2026-11-16, or of a day and a month's name, with or without a
    year; None for an impossible one."""
    numbers = _NUMBER.findall(text)
    if (word := _MONTH_NAME.search(text)) is not None:
        month = _MONTHS.index(word[0]) + 1
        year = next((int(number) for number in numbers if len(number) == 4), year)
        day = next((int(number) for number in numbers if len(number) < 4), 0)
    else:
        year, month, day = (int(number) for number in numbers[:3])
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp()
    except ValueError:
        return None
