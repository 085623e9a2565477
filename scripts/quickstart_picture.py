"""docs/images/quickstart.svg: the output of `make run` in a terminal, drawn from a real run.

python scripts/quickstart_picture.py  create it: a server and a sandbox
"""

from __future__ import annotations

import re
import subprocess
import sys

from review_picture import ROOT, svg_of

PICTURE = ROOT / "docs" / "images" / "quickstart.svg"
COLS = 98
_STYLES = (
    (r"^\$ ", "bold green"),
    (r"(?<=^\$ ).*", "bold"),
    (r"^sb-\w+", "cyan"),
    (r"^  \$", "green"),
    (r"(?<=^  \$ ).*", "bold"),
    (r"(?<=: )deleted .*", "dim"),
)


def output() -> list[str]:
    """Run the quick start; return the lines that `make run` prints when everything is set up."""
    quickstart = [sys.executable, str(ROOT / "examples" / "quickstart.py")]
    printed = subprocess.run(quickstart, check=True, capture_output=True, text=True).stdout
    recipe = (ROOT / "Makefile").read_text().partition("\nrun:")[2].partition("\n\n")[0]
    after = [line.strip('"') for line in re.findall(r"^\t@echo ?(.*)$", recipe, re.MULTILINE)]
    return ["$ make run", *printed.splitlines(), *(line.replace("$(SKERRY)", ".venv/bin/skerry") for line in after)]


def main() -> None:
    from rich.text import Text

    lines = []
    for line in output():
        text = Text(line)
        for pattern, style in _STYLES:
            text.highlight_regex(pattern, style)
        lines.append(text)
    PICTURE.write_text(svg_of(Text("\n").join(lines), COLS, "skerry", "quickstart"))


if __name__ == "__main__":
    main()
