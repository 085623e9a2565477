"""A review as a machine: keys and answers in, wishes out. No I/O; `page` draws it.

A decision counts when the server has said so: until then no key is heard, so that none is an answer to what had not
been shown when it was pressed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from skerry.cli.review.stops import Stop, Typing, back_to, is_cut, kept, searched, stops_of
from skerry.cli.review.style import Row
from skerry.cli.review.visible import name_shown
from skerry.cli.review.wishes import Ask, Decide, Edit, Leave, Reload, Suspend, View, Whole, Wish
from skerry.types import REASON_MOST, Decided, DecideRequest, Hunk, LedgerEntry, Review, Why

Mode = Literal["hunk", "reason", "find", "file", "files", "edited", "help", "end"]


@dataclass
class Going:
    """`at`: which stop; `top`: the first row of it that is on the screen, `rows` how many it has and `room` how many
    fit (as the page drew it last)."""

    review: Review
    name: str
    stops: list[Stop] = field(default_factory=list)
    at: int = 0
    top: int = 0
    rows: int = 0
    room: int = 1
    mode: Mode = "hunk"
    typing: Typing = field(default_factory=Typing)
    message: str = ""
    busy: bool = False
    chosen: int = 0
    draft: str = ""
    last_reason: str = ""
    last_find: str = ""
    known: dict[str, tuple[LedgerEntry, ...]] = field(default_factory=dict)
    undoing: list[tuple[str, DecideRequest]] = field(default_factory=list)
    drawn: tuple[object, list[Row]] | None = None  # the page's own: what it made last, and of what
    _asked: set[str] = field(default_factory=set)
    _sent: Decide | None = None

    def __post_init__(self) -> None:
        self.stops = stops_of(self.review)
        self.message = self.review.trouble or ""
        self.at = self._next_open(-1, 1) or 0
        if not any(stop.hunk.state == "open" for stop in self.stops):
            self.mode = "end"

    # -- what is there ------------------------------------------------------------------------------------------------

    @property
    def stop(self) -> Stop | None:
        return self.stops[self.at] if self.stops else None

    def count(self, state: str) -> int:
        return sum(stop.hunk.state == state for stop in self.stops)

    @property
    def files(self) -> list[int]:
        """The first stop of each file."""
        return [at for at, stop in enumerate(self.stops) if not at or self.stops[at - 1].file is not stop.file]

    def _next_open(self, start: int, step: int) -> int | None:
        """Round the end, once."""
        for offset in range(1, len(self.stops) + 1):
            at = (start + step * offset) % len(self.stops)
            if self.stops[at].hunk.state == "open":
                return at
        return None

    # -- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> Wish | None:
        if key == "ctrl-c":
            return Leave(130)
        if key == "ctrl-z":
            return Suspend()
        if self.busy:
            return None
        self.message = ""
        typed: dict[Mode, Callable[[str], Wish | None]] = {
            "reason": self._reason, "find": self._find, "file": self._file, "files": self._files,
            "edited": self._edited, "help": self._help,
        }  # fmt: skip
        return typed[self.mode](key) if self.mode in typed else self._command(key)

    def _command(self, key: str) -> Wish | None:
        if key in ("q", "ctrl-d"):
            return Leave()
        if key == "?":
            self.mode = "help"
        elif key == "u":
            return self._undo()
        elif key == "R":
            return self._wait(Reload())
        elif self.stops and key in _MOVES:
            self._move(key)
        elif self.stops and key in ("g", "/"):
            self._begin("files" if key == "g" else "find")
            self.chosen = max((n for n, first in enumerate(self.files) if first <= self.at), default=0)
        elif self.stops and self.mode == "hunk":
            return self._decide(key)
        return None

    def _decide(self, key: str) -> Wish | None:
        hunk = self.stops[self.at].hunk
        if key in ("y", "Y"):
            return self._accept(hunk, sure=key == "Y")
        if key == "n":
            self._begin("reason", most=REASON_MOST)
        elif key == "e":
            return self._edit(hunk)
        elif key == "s":
            if hunk.splittable:
                return self._send(Decide(DecideRequest(split=(hunk.id,), tip=self.review.tip), "split"))
            self.message = "it can't be split any further"
        elif key == "f":
            self._begin("file")
        elif key == "o":
            return self._reopen(hunk)
        elif key == "v":
            return View(hunk)
        elif len(key) == 1:
            self.message = f"{name_shown(key)} is no key here; ? helps"
        return None

    def _accept(self, hunk: Hunk, *, sure: bool) -> Wish | None:
        if hunk.risk and not sure:
            self.message = "flagged: Y, the capital letter, accepts it"
            return None
        if is_cut(hunk) and not sure:
            self.message = "not all of it is shown: v shows it, Y accepts it"
            return None
        request = DecideRequest(accept=(hunk.id,), tip=self.review.tip)
        return self._send(Decide(request, "accepted", back_to(hunk)))

    def _reopen(self, hunk: Hunk) -> Wish | None:
        if hunk.state == "open":
            self.message = "it is open"
            return None
        return self._send(Decide(DecideRequest(reopen=(hunk.id,)), "open again", back_to(hunk)))

    def _reason(self, key: str) -> Wish | None:
        if key == "escape":
            self.mode = "hunk"
        elif key == "up":
            self.typing.text = self.last_reason
        elif key == "enter":
            hunk = self.stops[self.at].hunk
            self.mode, reason = "hunk", self.typing.text.strip()
            self.last_reason = reason or self.last_reason
            request = DecideRequest(reject=(hunk.id,), reason=reason or None, tip=self.review.tip)
            return self._send(Decide(request, "rejected", back_to(hunk)))
        else:
            self.typing.press(key)
        return None

    def _file(self, key: str) -> Wish | None:
        """The whole file: only what is open, and nothing that is flagged or cut."""
        if key not in ("y", "n"):
            self.mode = "hunk"
            return None
        self.mode = "hunk"
        file = self.stops[self.at].file
        meant = [stop.hunk for stop in self.stops if stop.file is file and stop.hunk.state == "open"]
        taken = tuple(hunk.id for hunk in meant if key == "n" or not (hunk.risk or is_cut(hunk)))
        if not taken:
            self.message = "nothing of it is open" if not meant else "flagged or cut: each by itself, with Y"
            return None
        flagged = len(meant) - len(taken)
        said = f"{len(taken)} {'accepted' if key == 'y' else 'rejected'}"
        said += f"; {flagged} flagged or cut, each by itself" if flagged else ""
        accept, reject = (taken, ()) if key == "y" else ((), taken)
        request = DecideRequest(accept=accept, reject=reject, tip=self.review.tip)
        return self._send(Decide(request, said, DecideRequest(reopen=taken)))

    def _edit(self, hunk: Hunk) -> Wish | None:
        if hunk.kind not in ("text", "added") or hunk.raw is not None:
            self.message = "only lines of text can be edited"
            return None
        if hunk.truncated:
            self.message = "too long to be edited here"
            return None
        text = hunk.edited if hunk.edited is not None else hunk.replacement
        return self._wait(Edit(hunk, self.draft or text))

    def _edited(self, key: str) -> Wish | None:
        hunk = self.stops[self.at].hunk
        if key in ("y", "Y") and not (hunk.risk and key == "y"):
            self.mode, text, self.draft = "hunk", self.draft, ""
            request = DecideRequest(edit={hunk.id: text}, tip=self.review.tip)
            return self._send(Decide(request, "accepted as edited", back_to(hunk)))
        if key == "y":
            self.message = "flagged: Y, the capital letter, accepts it"
        elif key == "e":
            return self._edit(hunk)
        elif key in ("escape", "n", "q"):
            self.mode, self.draft = "hunk", ""
            self.message = "as it was"
        return None

    def _help(self, key: str) -> Wish | None:
        self.mode = "hunk" if self._next_open(-1, 1) is not None else "end"
        return None

    # -- moving -------------------------------------------------------------------------------------------------------

    def _begin(self, mode: Mode, most: int = 200) -> None:
        self.mode, self.typing = mode, Typing(most=most)

    def go(self, at: int) -> None:
        self.at, self.top, self.mode, self.draft = at, 0, "hunk", ""

    def _move(self, key: str) -> None:
        page = max(1, self.room - 2)
        steps = {"down": 1, "up": -1, "pagedown": page, " ": page, "pageup": -page, "b": -page, "home": -self.rows,
                 "end": self.rows}  # fmt: skip
        if key in steps:
            self.top = max(0, min(self.top + steps[key], self.rows - self.room))
        elif key in ("j", "k", "tab"):
            found = self._next_open(self.at, -1 if key == "k" else 1)
            if found is None or found == self.at:
                self.message = "nothing else is open"
            if found is not None:
                self.go(found)
        else:
            self.go((self.at + (1 if key in ("J", "right") else -1)) % len(self.stops))

    def _find(self, key: str) -> Wish | None:
        if key == "escape":
            self.mode = "hunk"
        elif key != "enter":
            self.typing.press(key)
        else:
            self.mode = "hunk"
            self.last_find = self.typing.text or self.last_find
            wanted = self.last_find.casefold()
            order = [(self.at + offset) % len(self.stops) for offset in range(1, len(self.stops) + 1)]
            found = next((at for at in order if wanted in searched(self.stops[at])), None)
            if found is None or not wanted:
                self.message = f"not found: {name_shown(self.last_find)}"
            else:
                self.go(found)
        return None

    def _files(self, key: str) -> Wish | None:
        """A list of the files; letters narrow it."""
        listed = self.listed
        if key == "escape" or (key == "enter" and not listed):
            self.mode = "hunk"
        elif key == "enter":
            self.go(listed[self.chosen])
        elif key in ("up", "down", "pageup", "pagedown"):
            step = {"up": -1, "down": 1, "pageup": -self.room, "pagedown": self.room}[key]
            self.chosen = max(0, min(self.chosen + step, len(listed) - 1))
        else:
            self.typing.press(key)
            self.chosen = 0
        return None

    @property
    def listed(self) -> list[int]:
        wanted = self.typing.text.casefold()
        return [at for at in self.files if wanted in self.stops[at].file.path.casefold()]

    # -- wishes and answers -------------------------------------------------------------------------------------------

    def _wait(self, wish: Wish) -> Wish:
        self.busy = True
        return wish

    def _send(self, wish: Decide) -> Wish:
        self._sent = wish
        return self._wait(wish)

    def _undo(self) -> Wish | None:
        if not self.undoing:
            self.message = "nothing to undo"
            return None
        _, request = self.undoing[-1]
        return self._send(Decide(request, "undone", undoes=True))

    def asks(self) -> list[Wish]:
        """What the screen would like to know: looked up beside, once."""
        if self.stop is None or self.mode == "end" or self.stop.hunk.id in self._asked:
            return []
        hunk = self.stop.hunk
        self._asked.add(hunk.id)
        return [Ask(hunk.id), *([Whole(hunk.id)] if hunk.truncated else [])]

    def told(self, hunk: str, why: Why | None) -> None:
        self.known[hunk] = why.entries if why else ()

    def whole(self, hunk: Hunk) -> None:
        """More of a hunk that its list had cut."""
        self.stops = [
            Stop(stop.file, replace(stop.hunk, text=hunk.text, raw=hunk.raw, truncated=hunk.truncated))
            if stop.hunk.id == hunk.id
            else stop
            for stop in self.stops
        ]

    def decided(self, answer: Decided) -> Wish | None:
        """The server has it."""
        self.busy, sent, self._sent = False, self._sent, None
        if sent is None:
            return None
        request = sent.request
        if sent.undoes:
            label, _ = self.undoing.pop()
            self.message = f"undone: {label}"
        else:
            self.message = sent.said
            if sent.undo is not None:
                path = self.stops[self.at].file.path
                self.undoing.append((f"{name_shown(path)}, {sent.said}", sent.undo))
        if request.split:
            return self._split(request.split[0], answer)
        named = {*request.accept, *request.reject, *request.reopen, *request.edit}
        if {hunk.id for hunk in answer.hunks} - {stop.hunk.id for stop in self.stops} or not answer.hunks:
            return self._wait(Reload())  # neighbours became one: its places are the server's to tell
        now = {hunk.id: hunk for hunk in answer.hunks}
        self.stops = [Stop(stop.file, kept(stop.hunk, now.get(stop.hunk.id))) for stop in self.stops]
        self._after(named, sent)
        return None

    def _after(self, named: set[str], sent: Decide) -> None:
        """On to the next; back to what was undone."""
        self.draft = ""
        if sent.undoes or sent.request.reopen:
            found = next((at for at, stop in enumerate(self.stops) if stop.hunk.id in named), None)
            if found is not None:
                self.go(found)
            return
        following = self._next_open(self.at, 1)
        if following is None:
            self.mode = "end"
        else:
            self.go(following)

    def _split(self, hunk: str, answer: Decided) -> Wish | None:
        if len(answer.hunks) < 2:
            self.message = "it can't be split any further"
            return self._wait(Reload())
        at = next((at for at, stop in enumerate(self.stops) if stop.hunk.id == hunk), None)
        if at is None:
            return self._wait(Reload())
        self.stops[at : at + 1] = [Stop(self.stops[at].file, part) for part in answer.hunks]
        self.message = f"split into {len(answer.hunks)}"
        self.go(at)
        return None

    def edited(self, text: str | None) -> None:
        """None: the editor failed, or nothing was changed."""
        self.busy = False
        if text is None or self.stop is None:
            self.message = self.message or "nothing was changed"
            return
        self.mode, self.draft, self.top = "edited", text, 0

    def failed(self, message: str, *, stale: bool = False) -> Wish | None:
        """`stale`: what was decided about is no longer so."""
        if self._sent is not None and self._sent.undoes:
            self.undoing.pop()  # what it was about is not there any more
        self.busy, self._sent = False, None
        self.message = message
        if stale:
            self.message = "it changed meanwhile: look again"
            return self._wait(Reload())
        return None

    def loaded(self, review: Review) -> None:
        """Everything anew; the place is kept as well as it can be."""
        here, self.busy = self.stop, False
        new = {stop.hunk.id for stop in stops_of(review)} - {stop.hunk.id for stop in self.stops}
        self.message = self.message or (f"{len(new)} new" if new else "nothing new")
        self.review, self.stops = review, stops_of(review)
        self._asked &= {stop.hunk.id for stop in self.stops}
        same = [at for at, stop in enumerate(self.stops) if here and stop.hunk.id == here.hunk.id]
        near = [at for at, stop in enumerate(self.stops) if here and stop.file.path == here.file.path]
        self.at = 0
        if same and self.stops[same[0]].hunk.state == "open":
            self.at = same[0]
        else:
            start = near[0] - 1 if near else -1
            self.go(self._next_open(start, 1) or 0)
        self.mode = "hunk" if self._next_open(-1, 1) is not None else "end"


_MOVES = {
    "down", "up", "pagedown", "pageup", " ", "b", "home", "end", "j", "k", "J", "K", "tab", "left", "right",
}  # fmt: skip
