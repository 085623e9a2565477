"""The items of a review: hunks, each with its file; and a line of text input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from skerry.cli.review.rows import is_too_long
from skerry.types import Decisions, FileChange, Hunk, Review


class ReviewItem(NamedTuple):
    """A hunk to decide about, and its file."""

    file: FileChange
    hunk: Hunk


@dataclass
class LineInput:
    """A line of text that the user is typing."""

    text: str = ""
    max_length: int = 200

    def press(self, key: str) -> None:
        if key == "backspace":
            self.text = self.text[:-1]
        elif key == "ctrl-u":
            self.text = ""
        elif key == "ctrl-w":
            self.text = self.text.rstrip().rpartition(" ")[0]
        elif key.startswith("paste:"):
            self.text += " ".join(key.removeprefix("paste:").split())
        elif len(key) == 1:
            self.text += key
        self.text = self.text[: self.max_length]


def review_items(review: Review) -> list[ReviewItem]:
    return [ReviewItem(file, hunk) for file in review.files for hunk in file.hunks if hunk.state != "applied"]


def merged(old: Hunk, new: Hunk | None) -> Hunk:
    """Return the new state of a hunk with the longer of the two known texts."""
    if new is None:
        return old
    longer = old if len(old.text) > len(new.text) else new
    return replace(new, text=longer.text, raw=longer.raw, truncated=longer.truncated)


def is_cut(hunk: Hunk) -> bool:
    """Return whether the screen cannot show all of a hunk, even with scrolling."""
    return hunk.truncated or is_too_long(hunk.text.split("\n"))


def restore_request(hunk: Hunk) -> Decisions:
    """Return the decision that restores the current state of a hunk."""
    if hunk.state == "rejected":
        return Decisions(reject=(hunk.id,), reason=hunk.reason)
    if hunk.state == "accepted":
        return Decisions(edit={hunk.id: hunk.edited}) if hunk.edited is not None else Decisions(accept=(hunk.id,))
    return Decisions(reopen=(hunk.id,))


def search_text(item: ReviewItem) -> str:
    return f"{item.file.path}\n{item.hunk.heading}\n{item.hunk.text}".casefold()
