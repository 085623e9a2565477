"""What a review goes through: hunks, each with its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from skerry.cli.review.rows import is_too_long
from skerry.types import DecideRequest, FileChange, Hunk, Review


class Stop(NamedTuple):
    file: FileChange
    hunk: Hunk


@dataclass
class Typing:
    """A line that is being typed."""

    text: str = ""
    most: int = 200

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
        self.text = self.text[: self.most]


def stops_of(review: Review) -> list[Stop]:
    return [Stop(file, hunk) for file in review.files for hunk in file.hunks if hunk.state != "applied"]


def kept(old: Hunk, new: Hunk | None) -> Hunk:
    """As it is now; of its lines as many as were known."""
    if new is None:
        return old
    shown = old if len(old.text) > len(new.text) else new
    return replace(new, text=shown.text, raw=shown.raw, truncated=shown.truncated)


def is_cut(hunk: Hunk) -> bool:
    """Is there more of it than the screen shows, however far one goes down?"""
    return hunk.truncated or is_too_long(hunk.text.split("\n"))


def back_to(hunk: Hunk) -> DecideRequest:
    """What brings it to where it is now."""
    if hunk.state == "rejected":
        return DecideRequest(reject=(hunk.id,), reason=hunk.reason)
    if hunk.state == "accepted":
        return (
            DecideRequest(edit={hunk.id: hunk.edited}) if hunk.edited is not None else DecideRequest(accept=(hunk.id,))
        )
    return DecideRequest(reopen=(hunk.id,))


def searched(stop: Stop) -> str:
    return f"{stop.file.path}\n{stop.hunk.heading}\n{stop.hunk.text}".casefold()
