"""Writes docs/reference/settings.md from the settings table. `--check` compares instead."""

from __future__ import annotations

import sys
from pathlib import Path

from skerry.config import TABLE

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
HEAD = """# Settings

Each setting has one name. It can be set in five places; a later one wins:

1. built in (the default below)
2. the operator's file: `/etc/skerry/config.toml`, or the file that `SKERRY_CONFIG` names
3. the project's file: `skerry.toml` in the directory where you run `skerry` or above it (only the rows marked
   *project*; it must be [trusted](../guides/network.md#trust) if it widens them)
4. the environment
5. flags and arguments

`skerry config show` prints every value and where it came from. In the files, a dot in a name is a table:

```toml
# /etc/skerry/config.toml
[limits]        # defaults of new sandboxes
memory = "1G"

[max]           # maxima
memory = "8G"
sandboxes = 200

[server]
address = "unix:///run/skerry.sock"     # the setting `server`; alone in a file, also: server = "…"
idle_exit = "1h"
```

A maximum can't be exceeded from below: a request for more is refused, and the refusal names the setting.
The server reads the operator's file and its own environment, never a project's file.

## Languages

`skerry languages` lists the supported languages. An operator adds others, and changes built-in ones,
key by key:

```toml
[languages.lua]
aliases = ["luajit"]
file = "main.lua"                                # file name of the code
version = ["lua", "-v"]                          # command that prints its version
run = ["lua", "{file}"]                          # {file}, {out}, {dir}: the code, the compiled program, their directory
packages = ["lua5.4"]                            # packages of the base image's distribution, for the hint
errors = ['^lua: main\\.lua:(?P<line>[0-9]+): (?P<message>.*)$']     # how to find errors in stderr

[languages.c]
compile = ["gcc", "-O2", "-o", "{out}", "{file}", "-lm"]
versions = { "14" = "our/toolchains:14" }        # c@14 runs in a sandbox of this image

[languages.python.images."our/science:2"]        # only in sandboxes of this image
context = ["/opt/conda/bin/python3"]
```

Also `context` and `kernel` (`python`, `javascript`, `typescript` or `shell`: it has contexts, and this runs them),
`env`, `image` (an image with the language) and `note` (a hint for failures). An image can override the command:
`file`, `version`, `compile`, `run`, `context`, `env`, `errors`, `note`. An empty list takes something away.

## All of them

| setting | default | environment | | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    rows = []
    for setting in TABLE:
        default = "" if setting.default in (None, (), {}) else f"`{setting.default}`"
        project = "*project*" if setting.project else ""
        rows.append(f"| `{setting.name}` | {default} | `{setting.env}` | {project} | {setting.help} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        if PAGE.read_text() != page():
            sys.stderr.write(f"{PAGE} is out of date: run python {sys.argv[0]}\n")
            return 1
        return 0
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
