"""The review as a state machine: keys and answers go in, effects come out. No I/O; `view` draws it.

A decision takes effect when the server has confirmed it. Until then keys are ignored, so that no key applies to a hunk
that was not yet on the screen when it was pressed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from skerry.cli.review.effects import Decide, Edit, Effect, Exit, LoadHunk, LoadOrigin, OpenPager, Reload, Suspend
from skerry.cli.review.escape import escape_name
from skerry.cli.review.items import LineInput, ReviewItem, is_cut, merged, restore_request, review_items, search_text
from skerry.cli.review.style import Row
from skerry.errors import InvalidRequest
from skerry.types import MAX_REASON, DecisionResult, Decisions, Hunk, HunkOrigin, LedgerEntry, Review
from skerry.types.globs import Glob, check_globs, matching

Mode = Literal["hunk", "reason", "find", "hide", "file", "files", "edited", "help", "end"]


@dataclass
class ReviewModel:
    """The state of a review. `at` is the current item, `top` its first visible row, `rows` its number of rows and
    `room` the number that fits (set by `view.draw`)."""

    review: Review
    name: str
    items: list[ReviewItem] = field(default_factory=list)
    at: int = 0
    top: int = 0
    rows: int = 0
    room: int = 1
    mode: Mode = "hunk"
    line: LineInput = field(default_factory=LineInput)
    message: str = ""
    busy: bool = False
    chosen: int = 0
    draft: str = ""
    last_reason: str = ""
    last_find: str = ""
    hide: list[Glob] = field(default_factory=list)
    hidden: int = 0  # hunks that `hide` leaves out; they stay as they are
    known: dict[str, tuple[LedgerEntry, ...]] = field(default_factory=dict)
    undo_stack: list[tuple[str, Decisions]] = field(default_factory=list)
    drawn: tuple[object, list[Row]] | None = None  # cache of `view`: the key and the rows drawn last
    _asked: set[str] = field(default_factory=set)
    _sent: Decide | None = None

    def __post_init__(self) -> None:
        self.items = review_items(self.review)
        self.message = self.review.trouble or ""
        self.at = self._next_open(-1, 1) or 0
        if not any(item.hunk.state == "open" for item in self.items):
            self.mode = "end"

    # -- state ------------------------------------------------------------------------------------------------

    @property
    def item(self) -> ReviewItem | None:
        return self.items[self.at] if self.items else None

    def count(self, state: str) -> int:
        return sum(item.hunk.state == state for item in self.items)

    @property
    def files(self) -> list[int]:
        """Return the index of the first item of each file."""
        return [at for at, item in enumerate(self.items) if not at or self.items[at - 1].file is not item.file]

    def _next_open(self, start: int, step: int) -> int | None:
        """Return the next open item in direction `step`, wrapping around once."""
        for offset in range(1, len(self.items) + 1):
            at = (start + step * offset) % len(self.items)
            if self.items[at].hunk.state == "open":
                return at
        return None

    # -- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> Effect | None:
        if key == "ctrl-c":
            return Exit(130)
        if key == "ctrl-z":
            return Suspend()
        if self.busy:
            return None
        self.message = ""
        typed: dict[Mode, Callable[[str], Effect | None]] = {
            "reason": self._reason, "find": self._find, "hide": self._hide, "file": self._file, "files": self._files,
            "edited": self._edited, "help": self._help,
        }  # fmt: skip
        return typed[self.mode](key) if self.mode in typed else self._command(key)

    def _command(self, key: str) -> Effect | None:
        if key in ("q", "ctrl-d"):
            return Exit()
        if key == "?":
            self.mode = "help"
        elif key == "u":
            return self._undo()
        elif key == "R":
            return self._wait(Reload())
        elif key == "X":
            self.hide, self.message = [], "nothing is hidden"
            return self._wait(Reload())
        elif self.items and key in _MOVES:
            self._move(key)
        elif self.items and key == "x":
            self._enter("hide")
            self.line.text = self.items[self.at].file.path
        elif self.items and key in ("g", "/"):
            self._enter("files" if key == "g" else "find")
            self.chosen = max((n for n, first in enumerate(self.files) if first <= self.at), default=0)
        elif self.items and self.mode == "hunk":
            return self._decide(key)
        return None

    def _decide(self, key: str) -> Effect | None:
        hunk = self.items[self.at].hunk
        if key in ("y", "Y"):
            return self._accept(hunk, sure=key == "Y")
        if key == "n":
            self._enter("reason", max_length=MAX_REASON)
        elif key == "e":
            return self._edit(hunk)
        elif key == "s":
            if hunk.splittable:
                return self._send(Decide(Decisions(split=(hunk.id,), tip=self.review.tip), "split"))
            self.message = "cannot be split further"
        elif key == "f":
            self._enter("file")
        elif key == "o":
            return self._reopen(hunk)
        elif key == "v":
            return OpenPager(hunk)
        elif len(key) == 1:
            self.message = f"unknown key {escape_name(key)}; ? shows help"
        return None

    def _accept(self, hunk: Hunk, *, sure: bool) -> Effect | None:
        if hunk.risk and not sure:
            self.message = "flagged: press Y (capital) to accept it"
            return None
        if is_cut(hunk) and not sure:
            self.message = "not all of it is shown: v shows it, Y accepts it"
            return None
        request = Decisions(accept=(hunk.id,), tip=self.review.tip)
        return self._send(Decide(request, "accepted", restore_request(hunk)))

    def _reopen(self, hunk: Hunk) -> Effect | None:
        if hunk.state == "open":
            self.message = "already open"
            return None
        return self._send(Decide(Decisions(reopen=(hunk.id,)), "reopened", restore_request(hunk)))

    def _reason(self, key: str) -> Effect | None:
        if key == "escape":
            self.mode = "hunk"
        elif key == "up":
            self.line.text = self.last_reason
        elif key == "enter":
            hunk = self.items[self.at].hunk
            self.mode, reason = "hunk", self.line.text.strip()
            self.last_reason = reason or self.last_reason
            request = Decisions(reject=(hunk.id,), reason=reason or None, tip=self.review.tip)
            return self._send(Decide(request, "rejected", restore_request(hunk)))
        else:
            self.line.press(key)
        return None

    def _file(self, key: str) -> Effect | None:
        """Decide about all open hunks of the file; accept no flagged or truncated hunk."""
        if key not in ("y", "n"):
            self.mode = "hunk"
            return None
        self.mode = "hunk"
        file = self.items[self.at].file
        selected = [item.hunk for item in self.items if item.file is file and item.hunk.state == "open"]
        taken = tuple(hunk.id for hunk in selected if key == "n" or not (hunk.risk or is_cut(hunk)))
        if not taken:
            self.message = "no open hunks in this file" if not selected else "flagged or cut: accept each with Y"
            return None
        flagged = len(selected) - len(taken)
        label = f"{len(taken)} {'accepted' if key == 'y' else 'rejected'}"
        label += f"; {flagged} flagged or cut, accept each with Y" if flagged else ""
        accept, reject = (taken, ()) if key == "y" else ((), taken)
        request = Decisions(accept=accept, reject=reject, tip=self.review.tip)
        return self._send(Decide(request, label, Decisions(reopen=taken)))

    def _edit(self, hunk: Hunk) -> Effect | None:
        if hunk.kind not in ("text", "added") or hunk.raw is not None:
            self.message = "only text can be edited"
            return None
        if hunk.truncated:
            self.message = "too long to edit here"
            return None
        text = hunk.edited if hunk.edited is not None else hunk.replacement
        return self._wait(Edit(hunk, self.draft or text))

    def _edited(self, key: str) -> Effect | None:
        hunk = self.items[self.at].hunk
        if key in ("y", "Y") and not (hunk.risk and key == "y"):
            self.mode, text, self.draft = "hunk", self.draft, ""
            request = Decisions(edit={hunk.id: text}, tip=self.review.tip)
            return self._send(Decide(request, "accepted as edited", restore_request(hunk)))
        if key == "y":
            self.message = "flagged: press Y (capital) to accept it"
        elif key == "e":
            return self._edit(hunk)
        elif key in ("escape", "n", "q"):
            self.mode, self.draft = "hunk", ""
            self.message = "edit discarded"
        return None

    def _help(self, key: str) -> Effect | None:
        self.mode = "hunk" if self._next_open(-1, 1) is not None else "end"
        return None

    # -- moving -------------------------------------------------------------------------------------------------------

    def _enter(self, mode: Mode, max_length: int = 200) -> None:
        self.mode, self.line = mode, LineInput(max_length=max_length)

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
                self.message = "no other open hunk"
            if found is not None:
                self.go(found)
        else:
            self.go((self.at + (1 if key in ("J", "right") else -1)) % len(self.items))

    def _find(self, key: str) -> Effect | None:
        if key == "escape":
            self.mode = "hunk"
        elif key != "enter":
            self.line.press(key)
        else:
            self.mode = "hunk"
            self.last_find = self.line.text or self.last_find
            wanted = self.last_find.casefold()
            order = [(self.at + offset) % len(self.items) for offset in range(1, len(self.items) + 1)]
            found = next((at for at in order if wanted in search_text(self.items[at])), None)
            if found is None or not wanted:
                self.message = f"not found: {escape_name(self.last_find)}"
            else:
                self.go(found)
        return None

    def _hide(self, key: str) -> Effect | None:
        """Hide the files that match a glob, in this review only: no decision is made about them."""
        if key == "escape":
            self.mode = "hunk"
        elif key != "enter":
            self.line.press(key)
        else:
            self.mode = "hunk"
            try:
                check_globs("hide", [self.line.text.strip()])
            except InvalidRequest as error:
                self.message = error.message
                return None
            self.hide.append(Glob(self.line.text.strip()))
            before = len(self.items)
            self.items = self._visible(self.items)
            self.hidden += before - len(self.items)
            self.message = f"{before - len(self.items)} hidden; X shows them again"
            self._stay_near(min(self.at, len(self.items) - 1))
        return None

    def _visible(self, items: list[ReviewItem]) -> list[ReviewItem]:
        return [item for item in items if matching(self.hide, item.file.path) is None]

    def _stay_near(self, start: int) -> None:
        """Go to the open item at `start` or the next one; without any, to the end."""
        found = self._next_open(start - 1, 1)
        self.go(found or 0)
        self.mode = "hunk" if found is not None else "end"

    def _files(self, key: str) -> Effect | None:
        """Choose from the list of files; typed letters filter it."""
        listed = self.listed
        if key == "escape" or (key == "enter" and not listed):
            self.mode = "hunk"
        elif key == "enter":
            self.go(listed[self.chosen])
        elif key in ("up", "down", "pageup", "pagedown"):
            step = {"up": -1, "down": 1, "pageup": -self.room, "pagedown": self.room}[key]
            self.chosen = max(0, min(self.chosen + step, len(listed) - 1))
        else:
            self.line.press(key)
            self.chosen = 0
        return None

    @property
    def listed(self) -> list[int]:
        wanted = self.line.text.casefold()
        return [at for at in self.files if wanted in self.items[at].file.path.casefold()]

    # -- effects and answers -------------------------------------------------------------------------------------------

    def _wait(self, effect: Effect) -> Effect:
        self.busy = True
        return effect

    def _send(self, effect: Decide) -> Effect:
        """Send decisions with the displayed states: a decision that another reviewer made meanwhile is a conflict."""
        shown = {item.hunk.id: item.hunk.state for item in self.items}
        named = effect.request
        ids = (*named.accept, *named.reject, *named.reopen, *named.split, *named.edit)
        request = replace(named, seen={hunk: shown[hunk] for hunk in ids if hunk in shown})
        self._sent = dataclasses.replace(effect, request=request)
        return self._wait(self._sent)

    def _undo(self) -> Effect | None:
        if not self.undo_stack:
            self.message = "nothing to undo"
            return None
        _, request = self.undo_stack[-1]
        return self._send(Decide(request, "undone", undoes=True))

    def pending_loads(self) -> list[Effect]:
        """Return the loads that the current item needs, once per item."""
        if self.item is None or self.mode == "end" or self.item.hunk.id in self._asked:
            return []
        hunk = self.item.hunk
        self._asked.add(hunk.id)
        return [LoadOrigin(hunk.id), *([LoadHunk(hunk.id)] if hunk.truncated else [])]

    def origin_loaded(self, hunk: str, origin: HunkOrigin | None) -> None:
        self.known[hunk] = origin.entries if origin else ()

    def hunk_loaded(self, hunk: Hunk) -> None:
        """Store the full text of a hunk that the list truncated."""
        self.items = [
            ReviewItem(item.file, replace(item.hunk, text=hunk.text, raw=hunk.raw, truncated=hunk.truncated))
            if item.hunk.id == hunk.id
            else item
            for item in self.items
        ]

    def decided(self, answer: DecisionResult) -> Effect | None:
        """Handle the server's confirmation."""
        self.busy, sent, self._sent = False, self._sent, None
        if sent is None:
            return None
        request = sent.request
        if sent.undoes:
            label, _ = self.undo_stack.pop()
            self.message = f"undone: {label}"
        else:
            self.message = sent.label
            if sent.undo is not None:
                path = self.items[self.at].file.path
                self.undo_stack.append((f"{escape_name(path)}, {sent.label}", sent.undo))
        if request.split:
            return self._split(request.split[0], answer)
        named = {*request.accept, *request.reject, *request.reopen, *request.edit}
        if {hunk.id for hunk in answer.hunks} - {item.hunk.id for item in self.items} or not answer.hunks:
            return self._wait(Reload())  # adjacent hunks were merged: only the server knows the new ones
        now = {hunk.id: hunk for hunk in answer.hunks}
        self.items = [ReviewItem(item.file, merged(item.hunk, now.get(item.hunk.id))) for item in self.items]
        self._after(named, sent)
        return None

    def _after(self, named: set[str], sent: Decide) -> None:
        """Go to the next open item, or back to an undone or reopened one."""
        self.draft = ""
        if sent.undoes or sent.request.reopen:
            found = next((at for at, item in enumerate(self.items) if item.hunk.id in named), None)
            if found is not None:
                self.go(found)
            return
        following = self._next_open(self.at, 1)
        if following is None:
            self.mode = "end"
        else:
            self.go(following)

    def _split(self, hunk: str, answer: DecisionResult) -> Effect | None:
        if len(answer.hunks) < 2:
            self.message = "cannot be split further"
            return self._wait(Reload())
        at = next((at for at, item in enumerate(self.items) if item.hunk.id == hunk), None)
        if at is None:
            return self._wait(Reload())
        self.items[at : at + 1] = [ReviewItem(self.items[at].file, part) for part in answer.hunks]
        self.message = f"split into {len(answer.hunks)}"
        self.go(at)
        return None

    def edited(self, text: str | None) -> None:
        """Handle the edited text; None if the editor failed or nothing was changed."""
        self.busy = False
        if text is None or self.item is None:
            self.message = self.message or "nothing was changed"
            return
        self.mode, self.draft, self.top = "edited", text, 0

    def failed(self, message: str, *, stale: bool = False) -> Effect | None:
        """Handle an error. With `stale`, the hunk has changed since it was shown."""
        if self._sent is not None and self._sent.undoes:
            self.undo_stack.pop()  # its hunks no longer exist
        self.busy, self._sent = False, None
        self.message = message
        if stale:
            self.message = "changed since it was shown: check it again"
            return self._wait(Reload())
        return None

    def loaded(self, review: Review) -> None:
        """Replace the review, and stay at the same or a nearby item."""
        here, self.busy = self.item, False
        found = self._visible(review_items(review))
        new = {item.hunk.id for item in found} - {item.hunk.id for item in self.items}
        self.message = self.message or (f"{len(new)} new" if new else "no new changes")
        self.review, self.items, self.hidden = review, found, len(review_items(review)) - len(found)
        self._asked &= {item.hunk.id for item in self.items}
        same = [at for at, item in enumerate(self.items) if here and item.hunk.id == here.hunk.id]
        near = [at for at, item in enumerate(self.items) if here and item.file.path == here.file.path]
        self.at = 0
        if same and self.items[same[0]].hunk.state == "open":
            self.at = same[0]
        else:
            start = near[0] - 1 if near else -1
            self.go(self._next_open(start, 1) or 0)
        self.mode = "hunk" if self._next_open(-1, 1) is not None else "end"


_MOVES = {
    "down", "up", "pagedown", "pageup", " ", "b", "home", "end", "j", "k", "J", "K", "tab", "left", "right",
}  # fmt: skip
