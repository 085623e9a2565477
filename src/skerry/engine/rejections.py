"""What was rejected, as who works inside reads it: /run/skerry/review.json."""

from __future__ import annotations

from typing import Any

import msgspec

from skerry.review.showing import Showing
from skerry.review.survey import Ground, survey, unpacked

REJECTED_S = 10.0  # seconds that telling it may take
TEXT_MOST = 4 << 10
ROOM = 256 << 10
MOST = 500


def rejections(ground: Ground | None) -> bytes:
    """Blocking. Without a ground: that nothing was."""
    found: list[dict[str, Any]] = []
    truncated = False
    if ground is not None:
        rejected = {
            path
            for path, body in ground.decided.items()
            if any(decision.state == "rejected" for decision in unpacked(body))
        }
        room = ROOM
        for changed in survey(ground, lambda delta: delta.path in rejected) if rejected else ():
            showing = Showing(changed, room)
            for unit in changed.units:
                if unit.state != "rejected":
                    continue
                if len(found) == MOST:
                    truncated = True
                    break
                hunk = showing.hunk(unit, TEXT_MOST)
                found.append(
                    {"path": hunk.path, "kind": hunk.kind, "line": hunk.new_start, "reason": hunk.reason,
                     "text": hunk.text, "truncated": hunk.truncated}
                )  # fmt: skip
            room = showing.room or 0
    return msgspec.json.format(msgspec.json.encode({"rejected": found, "truncated": truncated})) + b"\n"
