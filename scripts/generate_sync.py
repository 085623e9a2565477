"""Generate src/skerry/client/_sync from src/skerry/client/_async: the same code without `async` and `await`.

python scripts/generate_sync.py            write the files
python scripts/generate_sync.py --check    fail if a file differs
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "src" / "skerry" / "client"
HEADER = "# Generated from client/_async/{name} by scripts/generate_sync.py. Do not edit.\n"
TOKENS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bbackend_async\b", "backend_sync"),
    (r"\b_async\b", "_sync"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\ba(close|read|iter_raw)\b", r"\1"),
    (r"\bhandle_async_request\b", "handle_request"),
    (r"\banext\(", "next("),
    (r"\bStopAsyncIteration\b", "StopIteration"),
]


def sync(text: str) -> str:
    for pattern, replacement in TOKENS:
        text = re.sub(pattern, replacement, text)
    return text


def generated() -> dict[str, str]:
    found = {}
    for path in sorted((CLIENT / "_async").rglob("*.py")):
        name = str(path.relative_to(CLIENT / "_async"))
        found[name] = HEADER.format(name=name) + sync(path.read_text())
    return found


def differing(wanted: dict[str, str]) -> list[str]:
    sync_files = (CLIENT / "_sync").rglob("*.py")
    there = {str(path.relative_to(CLIENT / "_sync")): path.read_text() for path in sync_files}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def write(wanted: dict[str, str]) -> None:
    for name in differing(wanted):
        path = CLIENT / "_sync" / name
        if name in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[name])
        else:
            path.unlink()


def main() -> int:
    wanted = generated()
    if "--check" not in sys.argv[1:]:
        write(wanted)
        return 0
    stale = differing(wanted)
    for name in stale:
        sys.stderr.write(f"client/_sync/{name} differs from client/_async: run scripts/generate_sync.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
