"""Modes that are reset at the end of a connection, and queries that are not replayed."""

from __future__ import annotations

import pytest

from skerry.cli.commands.shell.escapes import Replay, TerminalModes, safe_replay


def undone(*pieces: bytes) -> bytes:
    modes = TerminalModes()
    for piece in pieces:
        modes.feed(piece)
    return modes.reset_sequence()


def test_unchanged_terminal_needs_no_reset() -> None:
    assert undone(b"hello\r\n\x1b[1;32mgreen\x1b[0m\x1b[2J\x1b]0;title\x07") == b""


def test_modes_of_vim_are_reset_and_the_alternate_screen_last() -> None:
    vim = b"\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[?1006;1000h\x1b[?25l"
    assert undone(vim) == b"\x1b[?1l\x1b[?1000l\x1b[?1006l\x1b[?2004l\x1b[?1049l\x1b[?25h\x1b>\x1b[0m"


def test_modes_that_a_program_reset_are_not_reset_again() -> None:
    assert undone(b"\x1b[?1049h\x1b[?25l\x1b=", b"\x1b>\x1b[?25h\x1b[?1049l") == b""


def test_split_sequence_is_recognised() -> None:
    whole = b"x" * 200 + b"\x1b[?1049h"
    for at in range(195, len(whole)):
        assert undone(whole[:at], whole[at:]) == b"\x1b[?1049l\x1b[0m"


@pytest.mark.parametrize(
    "question",
    [
        b"\x1b[c",
        b"\x1b[>c",
        b"\x1b[0c",
        b"\x1b[=0c",
        b"\x1b[5n",
        b"\x1b[6n",
        b"\x1b[?6n",
        b"\x1b[>q",
        b"\x1b[18t",
        b"\x1b[?2026$p",
        b"\x1b[?u",
        b"\x1bP+q544e\x1b\\",
        b"\x1bP$qm\x1b\\",
        b"\x1b]11;?\x07",
        b"\x1b]10;?\x1b\\",
        b"\x1b]4;1;?\x07",
        b"\x1bZ",
        b"\x05",
    ],
)
def test_queries_are_not_replayed(question: bytes) -> None:
    assert safe_replay(b"before" + question + b"after", cut=False) == b"beforeafter"


@pytest.mark.parametrize(
    "shown", [b"\x1b[31m", b"\x1b[2;3H", b"\x1b[K", b"\x1b]0;title\x07", b"\x1b[2 q", b"\x1b[?25h", "é\r\n".encode()]
)
def test_other_output_is_replayed(shown: bytes) -> None:
    assert safe_replay(shown, cut=False) == shown


def test_cut_replay_starts_at_a_sequence_or_line() -> None:
    assert safe_replay(b"31mred\xa9\n\x1b[0mplain", cut=True) == b"\n\x1b[0mplain"
    assert safe_replay(b"1;32m\x1b[0mplain\n", cut=True) == b"\x1b[0mplain\n"
    assert safe_replay(b"plain", cut=True) == b"plain"


def test_replay_is_held_back_until_it_is_complete() -> None:
    replay = Replay()
    assert replay.feed(b"ab\x1b[", 4, 8) == b""
    assert replay.feed(b"6nc\n", 8, 8) == b"abc\n"
    assert replay.feed(b"\x1b[6n", 12, 8) == b"\x1b[6n", "what is new is a question that waits for its answer"
    cut = Replay()
    assert cut.feed(b"\xa9x", 102, 200) == b""
    assert cut.rest() == b"\xa9x"
