"""docs/images/review.svg: a review as it looks in a terminal, drawn from the real one.

python scripts/review_picture.py          create it: a server, a sandbox, the example project, a tmux window
python scripts/review_picture.py --check  check that the screen equals the picture
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "review.svg"
TITLE = "skerry review fix-total"
COLS, ROWS = 84, 22
NAME = "fix-total"
BASKET = ROOT / "examples" / "basket"
COMMANDS = (
    ["sed", "-i", "s|discount / 100|min(discount, 100) / 100|", "basket.py"],
    ["sed", "-i", "s/.2f}/.3f}/", "basket.py"],
)
# Values that differ between runs.
_VARYING = ((r"\b\d+ ms|\d+\.\d s", "0.1 s"),)


def repository(place: Path) -> Path:
    """Create the example project as a user's repository."""
    project = place / "basket"
    subprocess.run(["cp", "-r", str(BASKET), str(project)], check=True)
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Count baskets"]):
        command = ["git", "-c", "user.name=You", "-c", "user.email=you@example.com", *words]
        subprocess.run(command, cwd=project, env=environ, check=True)
    return project


def shown(server: str, place: Path) -> str:
    """The first screen of a review, with its colours."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.tmux import Window

    project = repository(place)
    environ = {**os.environ, "SKERRY_SERVER": server}
    skerry = [sys.executable, "-m", "skerry"]
    create = [*skerry, "create", "--repo", str(project), "--name", NAME]
    subprocess.run(create, env=environ, check=True, stdout=subprocess.DEVNULL)
    try:
        for command in COMMANDS:
            subprocess.run([*skerry, "exec", NAME, "--", *command], env=environ, check=True, capture_output=True)
        with Window(place, server, cols=COLS, rows=ROWS) as window:
            window.enter(f"skerry review {NAME}")
            window.shows("exit 0")
            found = window.screen(colours=True)
            window.type("q")
            return found
    finally:
        subprocess.run([*skerry, "rm", NAME], env=environ, check=False, capture_output=True)


def drawn(screen: str) -> str:
    from rich.text import Text

    return svg_of(Text.from_ansi(screen.rstrip("\n")), COLS, TITLE, "review")


def svg_of(text: Text, cols: int, title: str, name: str) -> str:
    """Draw a terminal with this text."""
    from rich.console import Console

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=cols, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(text, soft_wrap=True)
    svg = console.export_svg(title=title, unique_id=name)
    # No web font: the viewer's fonts are used.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    fonts = "font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
    return "\n".join(line.rstrip() for line in re.sub(r"font-family: Fira Code, monospace", fonts, svg).split("\n"))


def words_of(svg: str) -> list[str]:
    """Return the text of a picture, line by line, without values that change between runs."""
    lines: dict[str, list[str]] = {}
    for place, text in re.findall(r'<text class="review-r\d+"[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg, re.DOTALL):
        lines.setdefault(place, []).append(html.unescape(text).replace("\xa0", " "))
    return [_steady("".join(parts).rstrip()) for _, parts in sorted(lines.items(), key=lambda item: float(item[0]))]


def _steady(line: str) -> str:
    for pattern, same in _VARYING:
        line = re.sub(pattern, same, line)
    return line


def main() -> None:
    from skerry.config import load, socket_path

    server = os.environ.get("SKERRY_SERVER") or f"unix://{socket_path(load().state_dir)}"
    with tempfile.TemporaryDirectory(prefix="skerry-picture-") as place:
        made = drawn(shown(server, Path(place)))
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(made)
    elif words_of(made) != words_of(PICTURE.read_text()):
        sys.exit("docs/images/review.svg differs from the screen: run scripts/review_picture.py")


if __name__ == "__main__":
    main()
