"""What is undone when a terminal is left, and what is not shown a second time."""

from __future__ import annotations

import pytest

from skerry.cli.screen import Modes, Replay, replayed


def undone(*pieces: bytes) -> bytes:
    modes = Modes()
    for piece in pieces:
        modes.see(piece)
    return modes.undoing()


def test_a_terminal_in_which_nothing_was_changed_is_left_alone() -> None:
    assert undone(b"hello\r\n\x1b[1;32mgreen\x1b[0m\x1b[2J\x1b]0;title\x07") == b""


def test_what_vim_switches_on_is_switched_off_and_the_alternate_screen_left_last() -> None:
    vim = b"\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[?1006;1000h\x1b[?25l"
    assert undone(vim) == b"\x1b[?1l\x1b[?1000l\x1b[?1006l\x1b[?2004l\x1b[?1049l\x1b[?25h\x1b>\x1b[0m"


def test_what_a_program_put_back_itself_is_not_touched() -> None:
    assert undone(b"\x1b[?1049h\x1b[?25l\x1b=", b"\x1b>\x1b[?25h\x1b[?1049l") == b""


def test_a_sequence_that_comes_in_two_pieces_is_seen() -> None:
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
def test_an_old_question_is_not_asked_again(question: bytes) -> None:
    assert replayed(b"before" + question + b"after", cut=False) == b"beforeafter"


@pytest.mark.parametrize(
    "shown", [b"\x1b[31m", b"\x1b[2;3H", b"\x1b[K", b"\x1b]0;title\x07", b"\x1b[2 q", b"\x1b[?25h", "é\r\n".encode()]
)
def test_everything_else_is_shown_again(shown: bytes) -> None:
    assert replayed(shown, cut=False) == shown


def test_a_replay_that_begins_in_the_middle_begins_with_something_whole() -> None:
    assert replayed(b"31mred\xa9\n\x1b[0mplain", cut=True) == b"\n\x1b[0mplain"
    assert replayed(b"1;32m\x1b[0mplain\n", cut=True) == b"\x1b[0mplain\n"
    assert replayed(b"plain", cut=True) == b"plain"


def test_a_replay_is_held_back_until_it_is_whole() -> None:
    replay = Replay()
    assert replay.feed(b"ab\x1b[", 4, 8) == b""
    assert replay.feed(b"6nc\n", 8, 8) == b"abc\n"
    assert replay.feed(b"\x1b[6n", 12, 8) == b"\x1b[6n", "what is new is a question that waits for its answer"
    cut = Replay()
    assert cut.feed(b"\xa9x", 102, 200) == b""
    assert cut.rest() == b"\xa9x"
