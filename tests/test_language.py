"""The English of comments, docstrings, messages and docs: words per 10,000 that plain sentences rarely need.

A sentence with "who", "told" or "what" usually lacks a named subject or has a riddle in place of a noun; see
CONTRIBUTING.md. Five areas are measured, each as a whole and by package: Python under src/skerry without the
generated client/_sync (comments, docstrings, help, log and error strings), the same under tests/ and in TOOLS, Go
comments under keeper/, and Markdown. Names of tests have a limit too, MAX_NAMES.
Code does not count: fenced blocks, `spans`, link targets. Areas and packages have the same limits, MAX_RATE.

`python tests/test_language.py` prints the numbers of every package. With a package or folder ("engine", "go",
"docs/guides") it also prints every line to rewrite, as file:line: text.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from skerry import errors

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "skerry"
TOOLS = ("bench/", "scripts/", "examples/")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")

# -- limits -----------------------------------------------------------------------------------------------------------

FAMILIES = {
    "who": r"who|whom|whose|whoever|who's|nobody|somebody|anybody|someone|no one",
    "told": r"tell|tells|told",
    "what": r"what|whatever|what's",
}
MAX_RATE = {"who": 8, "told": 5, "what": 40}  # per 10,000 words
ALLOWED = 2  # occurrences per package that always pass: a small package has few words
PHRASES = (  # regular expressions; at most ALLOWED_PHRASES lines each in all areas together
    r"anew", r"of its own", r"make[s]? no sense", r"wish(?:es|ed)?", r"it is said",
    r"is none", r"the one that", r"as it is", r"there is no",
)  # fmt: skip
ALLOWED_PHRASES = 5
MAX_NAMES = 20  # names of tests with such a word or phrase

# -- texts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of prose in a file."""

    path: str  # from the root of the repository
    number: int
    text: str

    @property
    def prose(self) -> str:
        return re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", " ", self.text)


KEYWORDS = {"help", "short_help", "epilog", "hint", "summary", "description"}
MESSAGES = {"debug", "info", "warning", "error", "exception", "critical", "say", "confirm", "echo"}  # of these objects:
SPEAKERS = re.compile(r"\b_?(log|logger|output|talk|click)$")
ERRORS = frozenset(name for name in dir(errors) if isinstance(getattr(errors, name), type))
TABLES = {"Route", "Setting"}  # a string of several words among the arguments is a summary or a help text


def python_lines(path: Path) -> Iterator[Line]:
    """Yield comments, docstrings, and the strings that users read: KEYWORDS, MESSAGES, TABLES, errors."""
    text, where = path.read_text(), str(path.relative_to(ROOT))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|fmt:|mypy:|pragma|!)", token.string):
            yield Line(where, token.start[0], token.string.lstrip("#").strip())
    for node in ast.walk(ast.parse(text)):
        strings: list[ast.expr] = []
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                strings.append(first.value)
        elif isinstance(node, ast.Call):
            strings += [keyword.value for keyword in node.keywords if keyword.arg in KEYWORDS]
            if isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                strings += node.args[:1]  # also of an error that is returned or kept, not raised
            elif isinstance(node.func, ast.Name) and node.func.id in TABLES:
                strings += [a for a in node.args if isinstance(a, ast.Constant) and str(a.value).count(" ") > 1]
            elif isinstance(node.func, ast.Attribute) and node.func.attr in MESSAGES:
                strings += node.args[:1] if SPEAKERS.search(ast.unparse(node.func.value)) else []
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            known = isinstance(node.exc.func, ast.Name) and node.exc.func.id in ERRORS
            strings += [] if known else node.exc.args[:1]
        for string in strings:
            for number, part in literals(string):
                for offset, line in enumerate(part.split("\n")):
                    if line.strip():
                        yield Line(where, number + offset, line.strip())


def literals(node: ast.expr) -> Iterator[tuple[int, str]]:
    """Yield the text of a string, also of one that is put together."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
    elif isinstance(node, ast.BinOp):
        yield from literals(node.left)
        yield from literals(node.right)
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)


GO_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|`[^`]*`|'(?:\\.|[^'\\\n])*'""", re.DOTALL)


def go_lines(path: Path) -> Iterator[Line]:
    text, where = path.read_text(), str(path.relative_to(ROOT))
    for match in GO_TOKEN.finditer(text):
        if match[0].startswith(("//", "/*")) and not match[0].startswith("//go:"):
            number = text.count("\n", 0, match.start()) + 1
            for offset, line in enumerate(match[0].split("\n")):
                if line.strip("/* \t"):
                    yield Line(where, number + offset, line.strip("/* \t"))


def markdown_lines(path: Path) -> Iterator[Line]:
    where, fence = str(path.relative_to(ROOT)), None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or line.strip().startswith(fence)):
            fence = mark[1] if fence is None else None
        elif fence is None and line.strip():
            yield Line(where, number, line.strip())


def files_of_tests() -> list[Path]:
    """Return the Python files under tests/ except this one, which lists the words themselves."""
    return [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]


@cache
def odd_test_names() -> list[str]:
    """Return the tests with a word of FAMILIES or a phrase of PHRASES in their names, as file: name."""
    odd = "|".join([*FAMILIES.values(), *PHRASES])
    found = []
    for path in files_of_tests():
        for name in re.findall(r"^\s*(?:async )?def test_(\w+)\(", path.read_text(), re.MULTILINE):
            if re.search(rf"\b(?:{odd})\b", name.replace("_", " ")):
                found.append(f"{path.relative_to(ROOT)}: test_{name}")
    return found


@cache
def texts() -> dict[str, list[Line]]:
    """Return the lines of each area."""
    python = [p for p in sorted(SOURCE.rglob("*.py")) if "_sync" not in p.relative_to(SOURCE).parts]
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(SOURCE.rglob("*.md")), *(ROOT / name for name in PAGES)]
    tools = [path for place in TOOLS for path in sorted((ROOT / place).rglob("*.py"))]
    return {
        "python": [line for path in python for line in python_lines(path)],
        "go": [line for path in sorted((ROOT / "keeper").rglob("*.go")) for line in go_lines(path)],
        "docs": [line for path in pages for line in markdown_lines(path)],
        "tests": [line for path in files_of_tests() for line in python_lines(path)],
        "tools": [line for path in tools for line in python_lines(path)],
    }


def package_of(path: str) -> str:
    """Return the package, "go" or the docs folder that a file is counted under."""
    parts = Path(path.removeprefix("src/skerry/")).parts
    if path.startswith("src/") and path.endswith(".md"):
        return "pages"
    if path.startswith("src/"):
        return parts[0] if len(parts) > 1 else "skerry"  # the modules directly below src/skerry
    if path.startswith("keeper/"):
        return "go"
    if path.startswith("tests/"):
        return "tests"
    if path.startswith(TOOLS):
        return "tools"
    if path.startswith("docs/") and len(parts) > 2:
        return "/".join(parts[:2])
    return "pages"  # README.md, CHANGELOG.md and the like


# -- measures ---------------------------------------------------------------------------------------------------------


@dataclass
class Measure:
    words: int
    hits: dict[str, list[Line]]  # by family, one line per occurrence

    def rate(self, family: str) -> float:
        return 10_000 * len(self.hits[family]) / self.words if self.words else 0.0


def measure(lines: list[Line]) -> Measure:
    words, hits = 0, {family: [] for family in FAMILIES}
    for line in lines:
        prose = line.prose
        words += len(re.findall(r"[A-Za-z]+(?:['’-][A-Za-z]+)*", prose))
        for family, pattern in FAMILIES.items():
            hits[family] += [line] * len(
                re.findall(rf"(?<![\w.'/-])(?:{pattern})(?![\w/]|-\w|\.\w)", prose, re.IGNORECASE)
            )
    return Measure(words, hits)


@cache
def areas() -> dict[str, Measure]:
    return {area: measure(lines) for area, lines in texts().items()}


@cache
def packages() -> dict[str, Measure]:
    lines = defaultdict(list)
    for line in (line for area in texts().values() for line in area):
        lines[package_of(line.path)].append(line)
    return {package: measure(found) for package, found in sorted(lines.items())}


@cache
def phrases() -> dict[str, list[Line]]:
    everything = [line for area in texts().values() for line in area]
    return {
        phrase: [line for line in everything if re.search(rf"\b(?:{phrase})\b", line.prose, re.IGNORECASE)]
        for phrase in PHRASES
    }


def show(lines: list[Line]) -> str:
    ordered = sorted(lines, key=lambda line: (line.path, line.number))
    return "\n".join(f"{line.path}:{line.number}: {line.text}" for line in ordered)


# -- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("area", ["python", "go", "docs", "tests"])
def test_area_is_within_its_limit(area: str, family: str) -> None:
    rate, limit = areas()[area].rate(family), MAX_RATE[family]
    assert rate <= limit, f"{area}: {family} {rate:.1f} per 10,000 words; run python tests/test_language.py {area}"


@pytest.mark.parametrize("family", FAMILIES)
def test_package_is_within_its_limit(family: str) -> None:
    wrong = []
    for package, found in packages().items():
        limit = MAX_RATE[family]
        if found.rate(family) > limit and len(found.hits[family]) > ALLOWED:
            wrong.append(f"{package}: {family} {found.rate(family):.1f} per 10,000 words, limit {limit}")
            wrong.append(show(found.hits[family][:20]))
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrase_is_within_its_limit(phrase: str) -> None:
    found = phrases()[phrase]
    assert len(found) <= ALLOWED_PHRASES, show(found)


def test_names_of_tests_are_plain() -> None:
    found = odd_test_names()
    assert len(found) <= MAX_NAMES, "\n".join(found)


def main(only: str | None = None) -> None:
    def row(name: str, found: Measure) -> None:
        cells = [f"{family} {found.rate(family):6.1f} (≤ {MAX_RATE[family]})" for family in FAMILIES]
        print(f"{name:24} {found.words:7} words   " + "   ".join(cells))

    if only is None:
        for area, found in areas().items():
            row(area, found)
        print()
        for package, found in packages().items():
            row(package, found)
        print()
        for phrase, lines in phrases().items():
            print(f"{phrase:24} {len(lines):4} (≤ {ALLOWED_PHRASES})")
        print(f"{'names of tests':24} {len(odd_test_names()):4} (≤ {MAX_NAMES})")
        return
    only = only.rstrip("/").removeprefix("src/skerry/")
    if only in texts():
        lines = texts()[only]
    else:
        starts = [f"src/skerry/{only}", *([] if only == "keeper" else [only])]  # "go" is keeper/
        everything = [line for area in texts().values() for line in area]
        lines = [
            line
            for line in everything
            if package_of(line.path) == only
            or any(line.path in (start, f"{start}.py") or line.path.startswith(f"{start}/") for start in starts)
        ]
    found = measure(lines)
    row(only, found)
    for family in FAMILIES:
        print(f"\n{family}: {len(found.hits[family])}\n{show(list(dict.fromkeys(found.hits[family])))}")
    for phrase in PHRASES:
        matching = [line for line in lines if line in phrases()[phrase]]
        if matching:
            print(f"\n{phrase}: {len(matching)}\n{show(matching)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
