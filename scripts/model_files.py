"""Writes the pages for models from the docs and the command table: llms.txt, and the skill that `skerry skill install`
installs. `--check` compares instead."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from skerry.cli.app import SECTIONS

ROOT = Path(__file__).parent.parent
SUMMARY = (
    "Self-hosted sandboxes for AI agents: isolated Linux machines with files, shells, processes, terminals, languages "
    "and snapshots, whose network opens only where a policy allows it, and whose changes a person reviews hunk by hunk."
)
SKILL = """---
name: skerry
description: Run commands, code and untrusted programs in isolated Linux sandboxes with the `skerry` command or its
  Python SDK. Use it to try something without touching this machine, to run tests on a copy of a repository, to compare
  several attempts, or to start a service and reach its port.
---

# Skerry

{summary}

Rules that save time:
- `skerry run -- COMMAND` is for one command; `skerry create --name NAME` and `skerry exec NAME -- COMMAND` for more.
- The network is closed. A denied attempt prints a `hint:` with the option that allows it; ask the user first.
- Work is in `/workspace`. `--repo .` copies the user's repository into it; the user's files change only by
  `skerry apply`, after the user has accepted the changes. Do not accept changes for the user.
- Every error ends with a `hint:`: follow it. `--json` prints values for programs, `skerry help COMMAND` all options.
- Delete what you created: `skerry rm NAME`.

## From the shell

```console
{shell}
```

## From Python

```python
{python}
```

Run code, with its values, output and errors:

```python
{code}
```

A session keeps its directory, variables and functions:

```python
{session}
```

A snapshot saves the files, and starts other sandboxes:

```python
{snapshot}
```

## Commands

{commands}
"""


def blocks(page: str, language: str, heading: str | None = None) -> str:
    """Return the first block of a language below a heading, or of the page."""
    text = (ROOT / "docs" / page).read_text()
    below = text if heading is None else text[text.index(f"\n## {heading}\n") :]
    found = re.search(rf"```{language}\n(.*?)\n```", below, re.DOTALL)
    if found is None:
        raise SystemExit(f"{page}: no {language} block below {heading!r}")
    return found[1]


def skill() -> str:
    commands = "\n".join(
        f"- {section.heading}: " + ", ".join(f"`{entry.name}`" for entry in section.entries) for section in SECTIONS
    )
    return SKILL.format(
        summary=SUMMARY, commands=commands,
        shell=blocks("guides/quickstart.md", "console", "Keep a sandbox"),
        python=blocks("guides/quickstart.md", "python", "Use Python"),
        code=blocks("guides/code.md", "python", "From Python"),
        session=blocks("guides/sessions.md", "python", "Sessions"),
        snapshot=blocks("guides/snapshots.md", "python"),
    )  # fmt: skip


def llms() -> str:
    """Return the index of the docs in the form of llmstxt.org."""
    lines = ["# Skerry", "", f"> {SUMMARY}", ""]
    for line in (ROOT / "docs" / "README.md").read_text().splitlines():
        if heading := re.fullmatch(r"\*\*(.+)\*\*", line):
            lines += [f"## {heading[1]}", ""]
        elif line.startswith("- ["):
            lines.append(re.sub(r"\]\((?:\.\./)?([^)]*)\)", lambda m: f"]({_place(m[0], m[1])})", line))
        elif not line and lines[-1]:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _place(link: str, path: str) -> str:
    return path if "](../" in link else f"docs/{path}"


def main() -> int:
    wanted = {ROOT / "llms.txt": llms(), ROOT / "src" / "skerry" / "cli" / "skill.md": skill()}
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        sys.stderr.write(f"{path.relative_to(ROOT)} differs from the docs: run scripts/model_files.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
