"""The examples of a Markdown page, run in the order of the page in one shell, and their output compared with the page.

| block | effect |
|---|---|
| `console` | each line after `$` is run; the lines below it must appear in its output, in this order |
| `sh` | each line is run |
| `python` | the program is run; `print(x)  # text`, and a `text` block directly below, must appear in its output |
| `toml`, `json`, `python`, `ini`, `nginx`, `text` with `# NAME` as the first line | the file NAME is written |
| other `toml`, `json` | it must be valid |
| `mcp`, `text`, none | shown only |

`…` in a page's output stands for any text. `VARYING` lists the values that differ in each run. A command without
output on the page must succeed. A page begins in an empty home directory that has a clone of this repository
(`skerry`), with an empty server, and must leave both as it found them.

A comment above a block changes this: `<!-- not run: REASON -->` shows the block only; `<!-- run by: FILE -->` names the
test that runs it; `<!-- yours: NAMES -->` runs it with hosts and variables that the reader has to replace;
`<!-- needs: NAME -->` runs it if this machine has the program or Python package."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from world.git import TOKEN

from support.fork_server import bin_directory
from support.server import Server, wait_until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[a-z ]+): (?P<why>.*?) -->\n\n?)?```(?P<kind>\S*)\n(?P<text>.*?)^```$", re.M | re.S
)
FILES = ("toml", "json", "python", "ini", "nginx", "text", "dockerfile")
MARK = "-- next:"
MARKS = ("", "yours", "needs", "not run", "run by")
TIMEOUT_S = 240
HOME = "/home/you"  # on the pages
# A page may contain any command, `rm` too: its shell can write to nothing but /tmp and its home. (`skerry` itself is
# forked off a process outside of this mount namespace, and can.)
READ_ONLY = """
set -e
mount --bind /tmp /tmp
mount --bind "$HOME" "$HOME"
[ ! -d /var/lib/nginx ] || mount -t tmpfs tmpfs /var/lib/nginx
mount -o remount,bind,ro /
while read -r _ target type _; do
    case "$target" in
        / | /tmp | "$HOME" | /var/lib/nginx | /proc* | /sys* | /dev*) ;;
        *) mount -o remount,bind,ro "$target" 2>/dev/null || true ;;
    esac
done < /proc/self/mounts
if touch /var/lib/skerry-page 2>/dev/null; then echo "the file system is not read-only"; exit 99; fi
cd "$HOME"
set +e
exec bash .page.sh
"""
OBJECTS = ("sandboxes", "snapshots", "images", "tokens")
VARYING = (
    (r"\b(p|sb|sn|tk)-[a-z2-7]{10}\b", r"\1-ID"),
    (r"\bh-(?:[0-9a-f]{16}|…)", "h-ID"),
    (r"\bskt_\S+", "skt_TOKEN"),
    (r"skerry_token=\S+", "skerry_token=TOKEN"),
    (r"skerry-secret-(\w+)-[a-z2-7]{32}", r"skerry-secret-\1-MARK"),
    (r"\b[0-9a-f]{40}\b|\b[0-9a-f]{12}\b|\b[0-9a-f]{7}\b(?= )", "COMMIT"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(Z| UTC)?|\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"^ *\d+ +TIME", "N TIME"),  # the number of an event or an attempt
    (r"(localhost|127\.0\.0\.1):\d+\b", r"\1:PORT"),
    (r"\b\d+(\.\d+)? ?(ms|s|min|h|d)\b", "DURATION"),
    (r"\b\d+(\.\d+)? ?(B|KB|MB|GB|KiB|MiB|GiB|bytes)\b", "SIZE"),
    (r"sent \d+, received \d+(, \d+ open now)?", "sent N, received N"),
    (r"^(p-ID) +\d+ ", r"\1 PID "),
    (r"[ \t]+", " "),
)


@dataclass(frozen=True)
class Step:
    """A command or program of a page, with the lines that the page shows below it."""

    line: int
    shown: str  # for messages
    script: str  # for bash
    output: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int
    mark: str
    why: str

    @property
    def file(self) -> str | None:
        """Return the name in the first line."""
        found = re.match(r"# ([\w./~-]+\.[a-z]+|Dockerfile|Caddyfile|[\w./]*/[\w.-]+)\n", self.text)
        return found[1] if found and self.kind in FILES else None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = [
        Block(one["kind"], one["text"], text.count("\n", 0, one.start("kind")) + 1, one["mark"] or "", one["why"] or "")
        for one in BLOCK.finditer(text)
    ]
    assert len(found) * 2 == len(re.findall(r"^ *```", text, re.MULTILINE)), f"{page}: an indented or open block"
    return found


def texts(page: Path, kind: str) -> list[str]:
    """Return the texts of all blocks of a kind, also of those that another test runs."""
    return [block.text for block in blocks(page) if block.kind == kind]


def commands(page: Path) -> list[str]:
    """Return all commands of a page, also those that another test runs."""
    return [line[2:] for text in texts(page, "console") for line in text.splitlines() if line.startswith("$ ")]


def is_example(block: Block) -> bool:
    return block.kind in ("console", "sh", "python", "toml", "json") or block.file is not None


def steps(page: Path) -> Iterator[Step]:
    before: Step | None = None
    for block in blocks(page):
        new: list[Step] = []
        assert block.mark in MARKS, f"{page}:{block.line}: unknown mark {block.mark}"
        if block.mark in ("", "yours") or (block.mark == "needs" and _exists(block.why)):
            if block.kind == "text" and not block.file and before is not None and _adjacent(page, before, block):
                before.output.extend(block.text.splitlines())
            new = list(_steps(block))
            yield from new
        before = new[-1] if new and block.kind == "python" else None


def _exists(program: str) -> bool:
    """Return whether this machine has a program or a Python package."""
    return shutil.which(program) is not None or importlib.util.find_spec(program) is not None


def _adjacent(page: Path, program: Step, block: Block) -> bool:
    between = page.read_text().splitlines()[program.line : block.line - 1]
    return not any(line.strip() for line in between[between.index("```") + 1 :]) if "```" in between else False


def _steps(block: Block) -> Iterator[Step]:
    if block.file is not None:
        parent = os.path.dirname(block.file)
        made = f"mkdir -p {parent} && " if parent else ""
        yield Step(block.line, block.file, f"{made}cat > {block.file} <<'END-OF-FILE'\n{block.text}END-OF-FILE")
    elif block.kind == "toml":
        tomllib.loads(block.text)
    elif block.kind == "json":
        json.loads(block.text)
    elif block.kind == "python":
        said = re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE)
        yield Step(block.line, block.text, f"python3 - <<'END-OF-FILE'\n{block.text}END-OF-FILE", said)
    elif block.kind in ("console", "sh"):
        yield from _commands(block)


def _commands(block: Block) -> Iterator[Step]:
    lines = block.text.splitlines()
    while lines:
        number = block.line + 1 + block.text.count("\n") - len(lines)
        command = lines.pop(0)
        if block.kind == "console":
            assert command.startswith("$ "), f"line {number} of a console block is no command: {command}"
            command = command[2:]
        elif not command or command.startswith("#"):
            continue
        while command.endswith("\\"):
            command += "\n" + lines.pop(0)
        if here := re.search(r"<<'?(\w+)'?", command):
            end = lines.index(here[1])
            command = "\n".join([command, *lines[: end + 1]])
            del lines[: end + 1]
        output: list[str] = []
        while block.kind == "console" and lines and not lines[0].startswith("$ "):
            output.append(lines.pop(0))
        yield Step(number, f"$ {command}", command, output)


class PageRun:
    """One run of a page, as a user with a new home directory."""

    def __init__(self, page: Path, server: Server, home: Path, before: tuple[str, ...]) -> None:
        self.page, self.server, self.home, self.before = page, server, home, before
        self.steps = list(steps(page))

    def check(self) -> None:
        """Run all steps; raise AssertionError with every difference."""
        self._make_home()
        said = self._run("".join(map(_marked, enumerate(self.steps))))
        wrong = [text for number, step in enumerate(self.steps) if (text := self._difference(step, said.get(number)))]
        assert not wrong, "\n\n".join(wrong)
        assert self._left() == []

    def _make_home(self) -> None:
        (self.home / "skerry").symlink_to(ROOT)
        (self.home / ".gitconfig").write_text("[user]\nname = You\nemail = you@example.com\n")
        programs = self.home / ".bin"
        programs.mkdir()
        (programs / "sudo").write_text('#!/bin/sh\n[ "$1" = -E ] && shift\nexec "$@"\n')
        for name in ("ssh", "scp", "sftp"):  # they take the home directory from the account, not from HOME
            config = '[ ! -f "$HOME/.ssh/config" ] || set -- -F "$HOME/.ssh/config" "$@"'
            (programs / name).write_text(f'#!/bin/sh\n{config}\nexec /usr/bin/{name} "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)

    def environment(self) -> dict[str, str]:
        path = [bin_directory(self.before), Path(sys.executable).parent, self.home / ".bin"]
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LC_", "LANG"))}
        return {
            **kept,
            "PATH": ":".join([*map(str, path), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]),
            "HOME": str(self.home),
            "SKERRY_STATE_DIR": str(self.server.state_dir),
            "SKERRY_AUDIT_KEY_DIR": os.environ["SKERRY_AUDIT_KEY_DIR"],
            "SKERRY_CONFIG": str(self.home / ".etc-skerry/config.toml"),
            "SKERRY_POOL_PER_IMAGE": "0",
            "SKERRY_STORAGE_PREALLOCATE": "256M",
            "TERM": "dumb",
            "GIT_TOKEN": TOKEN,
            "MODEL": "scripted",
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": "http://api.example.test/v1",
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": "http://api.example.test",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": "https://index.example.test/simple/",
        }

    def _run(self, script: str) -> dict[int, tuple[int, str]]:
        """Return the exit code and the output of each step. Output goes to a file: a background process may keep it
        open."""
        file, output = self.home / ".page.sh", self.home / ".output"
        etc = str(self.home / ".etc-skerry")
        file.write_text(f"shopt -s expand_aliases\n{script}".replace("/etc/skerry", etc))
        argv = [*self.before, "unshare", "--mount", "bash", "-c", READ_ONLY]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=self.environment(), start_new_session=True
            )
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pass  # the steps that did not end have no exit code
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = output.read_text(errors="replace").replace(etc, "/etc/skerry").replace(str(self.home), HOME)
        *parts, rest = re.split(rf"\n{MARK} (\d+) (\d+)\n", said)
        ended = {int(parts[n + 1]): (int(parts[n + 2]), parts[n]) for n in range(0, len(parts), 3)}
        ended[len(ended)] = (-1, rest)
        return ended

    def _difference(self, step: Step, ended: tuple[int, str] | None) -> str | None:
        """Return a description if the output of a step is not as on the page."""
        if ended is None:
            return None  # an earlier step did not end
        code, said = ended
        found = iter([plain(line) for line in said.splitlines()])
        missing = [line for line in step.output if line.strip() and not any(map(matcher(line), found))][:1]
        if not missing and (code == 0 or (code > 0 and step.output)):
            return None
        where = f"{self.page.relative_to(ROOT)}:{step.line}"
        reason = f"this line does not follow: {missing[0]}" if missing else f"exit code {code}"
        return f"{where}: {reason}\n{step.shown}\n--- printed:\n{said.strip()}\n---"

    def _left(self) -> list[str]:
        """Return the objects on the server and the files at home that the page should have removed."""
        if not self.server.answers():
            self.server.start()
        with self.server.http() as http:
            left = [f"{kind[:-1]} {one.get('name') or one['id']}" for kind in OBJECTS for one in _listed(http, kind)]
            if not self.server.runs():  # the page started another
                http.post("/v1/server/stop")
                wait_until(lambda: not self.server.answers(), "the server of the page to stop")
        files = [one.name for one in self.home.iterdir() if not one.name.startswith(".") and one.name != "skerry"]
        return left + [f"file ~/{name}" for name in files]


def _listed(http: httpx2.Client, kind: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = http.get(f"/v1/{kind}").raise_for_status().json()[kind]
    return [one for one in found if one.get("name") != "base"]


def plain(line: str) -> str:
    for pattern, replacement in VARYING:
        line = re.sub(pattern, replacement, line)
    return line.strip()


def matcher(line: str) -> Callable[[str], object]:
    """Return the test whether a printed line is this line of a page."""
    return re.compile(".*".join(re.escape(plain(part)) for part in line.split("…"))).fullmatch


def _marked(numbered: tuple[int, Step]) -> str:
    """Return the script of a step that ends with its number and exit code, which `$?` still has for the next step."""
    number, step = numbered
    return f"{step.script}\n__code=$?; printf '\\n%s %d %d\\n' '{MARK}' {number} $__code; (exit $__code)\n"
