"""Normalisation: values of a run become tokens, and a real difference stays one."""

from __future__ import annotations

import random
import re
import string
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skerry.client.replay.normalise import ALL_RULES, RULES, Normalised, Window, normalise

FIRST = Window(start=datetime(2026, 11, 16, 17, 3, 0, tzinfo=UTC).timestamp(), end=0)
FIRST = Window(start=FIRST.start, end=FIRST.start + 120)
SECOND = Window(start=FIRST.start + 86400 * 9 + 7777, end=FIRST.start + 86400 * 9 + 7897)


def first(text: str) -> Normalised:
    return normalise(text, FIRST)


def second(text: str) -> Normalised:
    return normalise(text, SECOND)


def moment(window: Window, form: str) -> str:
    return datetime.fromtimestamp(window.start + 60, UTC).strftime(form)


CLOCKS = [
    "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.120000+00:00", "%Y-%m-%d %H:%M:%S,120", "%Y-%m-%d %H:%M", "%Y-%m-%d",
    "at %a %b %d %H:%M:%S UTC %Y.", "Date:   %a %b %d %H:%M:%S %Y +0000", "Date: %a, %d %b %Y %H:%M:%S GMT",
    '127.0.0.1 - - [%d/%b/%Y:%H:%M:%S +0000] "GET / HTTP/1.1" 200', "[%d/%b/%Y %H:%M:%S]",
    "-rw-r--r-- 1 root root 12 %b %d %H:%M a.txt", "%H:%M:%S start", "%H:%M:%S.123456 start", "now %s", "now %s.25",
    "%s123", "%s123456789",
]  # fmt: skip


@pytest.mark.parametrize("form", CLOCKS)
def test_times_of_the_run_are_normalised(form: str) -> None:
    before, after = moment(FIRST, form), moment(SECOND, form)
    assert before != after
    assert first(before) == second(after), (str(first(before)), str(second(after)))


@pytest.mark.parametrize("form", [form for form in CLOCKS if form not in ("%H:%M:%S start", "%H:%M:%S.123456 start")])
def test_times_outside_of_the_run_stay(form: str) -> None:
    """A release date or a date in data is not a time of the run."""
    text = (datetime.fromtimestamp(FIRST.start, UTC) - timedelta(days=400)).strftime(form)
    assert first(text).tokens == (("", text),)


def test_local_times_of_any_zone_are_normalised() -> None:
    for minutes in (-720, -330, 0, 60, 345, 840):
        local = datetime.fromtimestamp(FIRST.start + 5, UTC) + timedelta(minutes=minutes)
        assert first(local.strftime("%Y-%m-%d %H:%M:%S")).rules == ("date-time",)
    for text in ("2026-11-16T22:33:05+05:30", "2026-11-16 12:03:05-0500"):
        assert first(text).rules == ("date-time",)
    assert first("2026-11-16T17:03:05+05:30").tokens == (("", "2026-11-16T17:03:05+05:30"),)


def test_impossible_dates_stay() -> None:
    for text in ("2026-13-45", "2026-02-31 10:00:00", "0000-00-00", "99:99:99", "Nov 31 17:03", "9999999999"):
        assert first(text).tokens == (("", text),)


SAME = [
    ("3 passed in 0.03s", "3 passed in 1.20s"),
    ("Ran 3 tests in 0.001s\n\nOK", "Ran 3 tests in 12.5s\n\nOK"),
    ("real\t0m0.004s\nuser\t0m1.5s", "real\t0m2.1s\nuser\t1m0.25s"),
    ("= 3 passed in 61.03s (0:01:01) =", "= 3 passed in 59.10s ="),
    ("ok  \texample.com/m\t0.003s", "ok  \texample.com/m\t1.123s"),
    ("--- PASS: TestSum (0.00s)", "--- PASS: TestSum (0.12s)"),
    ("0.02s call test_a.py::test_b", "0.11s call test_a.py::test_b"),
    ("added 3 packages in 2s", "added 3 packages in 813ms"),
    ("120.5/120.5 kB 1.2 MB/s eta 0:00:00", "120.5/120.5 kB 915 kB/s eta 0:00:01"),
    ("id 123e4567-e89b-42d3-a456-426614174000", "id 00000000-e89b-42d3-a456-426614174999"),
    ("<object at 0x7f3c5a1b2d40>", "<object at 0x7ffd00aabbcc>"),
    ("wrote /tmp/tmp.k3JxQ2pLm0", "wrote /tmp/tmp.AAAAbbbb11"),
    ("wrote '/tmp/tmpab12_cd3/a.txt'", "wrote '/tmp/tmpzzzzzzzz/a.txt'"),
    ("/tmp/pytest-of-root/pytest-3/test_a0", "/tmp/pytest-of-root/pytest-12/test_a0"),
    ("/tmp/pip-req-build-x1y2z3w4", "/tmp/pip-req-build-abcdefgh"),
    ("/tmp/ccQ2kJ3x.o: undefined", "/tmp/ccabcdef.o: undefined"),
    ("/var/tmp/build-k3JxQ2", "/var/tmp/build-0aBcDe"),
    ("started pid 123", "started pid 4"),
    ("[1] 5512", "[1] 77"),
    ("host sb-q3k2m5n7ab", "host sb-aaaaaaaaaa"),
    ("[main (root-commit) 3f2a1bc] first", "[main (root-commit) 0000abc] first"),
    ("commit " + "a1" * 20 + "\nAuthor: A", "commit " + "b2" * 20 + "\nAuthor: A"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), SAME)
def test_measures_and_ids_are_normalised(before: str, after: str) -> None:
    assert first(before) == second(after), (str(first(before)), str(second(after)))


DIFFERENT = [
    ("3 passed in 0.03s", "4 passed in 0.03s"),
    ("3 passed in 0.03s", "2 passed, 1 failed in 0.03s"),
    ("Ran 3 tests in 0.001s\n\nOK", "Ran 3 tests in 0.001s\n\nFAILED (failures=1)"),
    ("retry in 5s", "retry in 10s"),
    ("timeout 30s", "timeout 5s"),
    ("version 1.2.3", "version 1.2.4"),
    ("released 2019-05-01", "released 2020-05-01"),
    ("crc 0xdeadbeef", "crc 0xdeadbeee"),
    ("sha256 " + "ab" * 32, "sha256 " + "cd" * 32),
    ("d41d8cd98f00b204e9800998ecf8427e  a", "0cc175b9c0f1b6a831c399e269772661  a"),
    ("wrote /tmp/release", "wrote /tmp/testing"),
    ("wrote /tmp/build-release", "wrote /tmp/build-testing"),
    ("wrote /srv/tmpfile_one", "wrote /srv/tmpfile_two"),
    ("port 8080", "port 8081"),
    ("pid 12 and pid 12", "pid 12 and pid 13"),
    ("0x7f3c5a1b2d40 0x7f3c5a1b2d40", "0x7f3c5a1b2d40 0x7f3c5a1b2d48"),
    ("123456 items", "123457 items"),
    ("1234567890", "1234567891"),
    ("[main 3f2a1bc] first", "[main 3f2a1bc] second"),
    ("added 3 packages in 2s", "added 4 packages in 2s"),
    ("sb-short", "sb-other"),
    ("in 0.03s", "in 0.03s\n"),
    ("<duration>", "in 0.03s"),
    ("took <duration>", "took 0.03s"),
    ("<uuid 1>", "123e4567-e89b-42d3-a456-426614174000"),
]


@pytest.mark.parametrize(("before", "after"), DIFFERENT)
def test_real_differences_are_never_normalised_away(before: str, after: str) -> None:
    assert first(before) != second(after), str(first(before))
    assert first(after) != second(before), str(first(after))


def test_numbers_of_a_report_stay_in_random_reports() -> None:
    """Of two random reports, the texts around the values decide: equal if and only if their words and counts are."""
    chance = random.Random(17)
    for _ in range(500):
        words = ["".join(chance.choices(string.ascii_lowercase, k=5)) for _ in range(3)]
        count = chance.randrange(1000)

        def report(window: Window, words: list[str] = words, count: int = count) -> str:
            at = datetime.fromtimestamp(chance.uniform(window.start, window.end), UTC)
            name = "".join(chance.choices(string.ascii_lowercase + string.digits + "_", k=8))
            return (
                f"{at:%Y-%m-%d %H:%M:%S} {words[0]} {count} {words[1]} in {chance.random():.3f}s\n"
                f"{words[2]} /tmp/tmp{name} 0x7f{chance.randrange(16**10):010x} pid={chance.randrange(1, 30000)}\n"
            )

        assert first(report(FIRST)) == second(report(SECOND))
        assert first(report(FIRST)) != second(report(SECOND, count=count + 1))
        assert first(report(FIRST)) != second(report(SECOND, words=[*words[:2], words[2] + "x"]))


def test_tokens_and_text_together_are_the_whole_text() -> None:
    text = "a 2026-11-16T17:03:05Z b in 0.03s c /tmp/tmp.k3JxQ2pLm0/x d"
    found = first(text)
    assert str(found) == "a <date-time> b in <duration> c /tmp/tmp.<temporary-name 1>/x d"
    assert found.rules == ("date-time", "duration", "temporary-name")


def test_hostile_output_is_searched_in_linear_steps() -> None:
    """Patterns are bounded: long runs of their prefixes must not make the search quadratic. A quadratic search of
    these texts takes minutes, so that the suite's time limit ends it."""
    for piece in ("0", "9", "a-", "/tmp/", "/tmp/a-", "/tmp/pip-", "Mon ", "ok ", "ok\t", "in ", "[1] ", "[a", "Jan  ",
                  "0x", "2026-11-16 ", "17:03:05", "-", ":", "Created wheel for a", "\n", "--- (", "sb-"):  # fmt: skip
        normalise(piece * (50_000 // len(piece)), FIRST)


def test_guide_lists_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs/guides/replay.md").read_text()
    rows = [f"| `{rule.name}` | {rule.check} | {rule.description} |" for rule in ALL_RULES]
    assert [line for line in page.splitlines() if line in rows] == rows


def test_every_rule_has_a_case_and_a_description() -> None:
    texts = [text for pair in SAME for text in pair] + [moment(FIRST, form) for form in CLOCKS]
    texts.append("Created wheel for demo: filename=demo-1-py3-none-any.whl size=900 sha256=" + "ab" * 32)
    used = {name for text in texts for name in first(text).rules}
    assert used == {rule.name for rule in RULES}
    for rule in RULES:
        assert re.fullmatch(r"[a-z-]+", rule.name)
        assert rule.description
