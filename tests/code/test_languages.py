"""The languages: rows that fit each other, the operator's rows over them, which one a word means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skerry import config
from skerry.code.languages import BUILT_IN, Language, build, find, read_version
from skerry.errors import InvalidRequest
from skerry.types import image_of, is_version, parse_reference

SHIPPED = "python javascript typescript bash c cpp go rust java ruby php r perl"
TABLE = build({})
every_language = pytest.mark.parametrize("language", BUILT_IN, ids=lambda language: language.name)


def operators(tmp_path: Path, text: str) -> dict[str, Language]:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return dict(build(config.load(environ={}, operator_file=path)["languages"]))


@every_language
def test_rows_are_consistent(language: Language) -> None:
    words = [*language.version, *language.compile, *language.run, *language.context, *language.env.values()]
    assert not [word for word in words if re.search(r"\{(?!file\}|out\}|dir\})\w+\}", word)]
    assert "{out}" in " ".join(language.compile) or language.run[0] != "{out}"
    assert "{file}" in language.compile if language.compile else "{file}" in language.run
    assert bool(language.context) == (language.kernel is not None)
    assert language.version
    assert language.program == (language.context or language.compile or language.run)[0]
    assert language.packages or language.image
    groups = [re.compile(pattern, re.MULTILINE).groupindex.keys() for pattern in language.errors]
    assert all(found <= {"name", "message", "line"} for found in groups)


@every_language
def test_every_image_that_a_row_names_can_be_pulled_by_that_name(language: Language) -> None:
    for image in {*language.versions.values(), language.image or "base"} - {"base"}:
        assert parse_reference(image).tag
    for version, image in language.versions.items():
        assert image_of(language, version) == image


def test_builtin_languages_are_listed() -> None:
    assert " ".join(TABLE) == SHIPPED
    assert [name for name, row in TABLE.items() if row.context] == ["python", "javascript", "typescript", "bash"]


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("python", "python", None), ("Py@3.12", "python", "3.12"), ("node", "javascript", None), ("R", "r", None),
        ("ts", "typescript", None), ("sh", "bash", None), ("C++", "cpp", None), ("golang@1.24", "go", "1.24"),
    ],
)  # fmt: skip
def test_alias_names_a_language(text: str, name: str, version: str | None) -> None:
    language, asked = find(TABLE, text)
    assert (language.name, asked) == (name, version)


@pytest.mark.parametrize("text", ["cobol", "", "@3", "python 3", "py\x1b[2J", "x" * 10_000])
def test_unknown_language_error_lists_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not known") as caught:
        find(TABLE, text)
    assert caught.value.hint == "known: " + SHIPPED.replace(" ", ", ")
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("version", ["", "latest", "3..1", "3.12;id", "-1", "9" * 100])
def test_invalid_version_is_rejected(version: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a version of python") as caught:
        find(TABLE, f"python@{version}")
    assert "3.12" in (caught.value.hint or "")


def test_version_selects_an_image() -> None:
    python = TABLE["python"]
    assert image_of(python, "3.12") == "python:3.12-slim"
    assert image_of(python, "3") == f"python:{max(python.versions, key=lambda v: int(v[2:]))}-slim"
    with pytest.raises(InvalidRequest, match=r"no image is known for python 2\.7") as caught:
        image_of(python, "2.7")
    assert "3.9" in (caught.value.hint or "")
    with pytest.raises(InvalidRequest) as caught:
        image_of(TABLE["bash"], "5")
    assert caught.value.hint == "bash has no versions to choose from"


def test_versions_are_compared_part_by_part() -> None:
    assert all(is_version(asked, "3.12.4") for asked in ("3", "3.12", "3.12.4"))
    assert not any(is_version(asked, "3.12") for asked in ("3.1", "3.12.4", "2"))


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        (b"Python 3.13.5\n", "3.13.5"), (b"v22.14.0\n", "22.14.0"), (b"javac 21\n", "21"), (b"14.2.0\n", "14.2.0"),
        (b"GNU bash, version 5.2.37(1)-release (x86_64-pc-linux-gnu)\n", "5.2.37"), (b"3.15.0rc1\n", "3.15.0rc1"),
        (b"go version go1.24.4 linux/amd64\n", "1.24.4"), (b"Rscript (R) version 4.5.0 (2025-04-11)\n", "4.5.0"),
        (b"rustc 1.85.0 (4d91de4e4 2025-02-17)\n", "1.85.0"), (b"PHP 8.4.5 (cli)\n", "8.4.5"), (b"", None),
        (b"ruby 3.1.2p20 (2022-04-12)\n", "3.1.2"),
        (b"\x1b]owned\x07\xff\xfe no number here\n", None), (b"9." * 4000, "9." * 20),
    ],
)  # fmt: skip
def test_version_is_parsed_from_any_output(printed: bytes, version: str | None) -> None:
    found = read_version(printed)
    assert found == version
    assert found is None or (len(found) <= 40 and found.isprintable())


# -- the operator's rows ----------------------------------------------------------------------------------------------


def test_an_operator_adds_a_language_and_changes_another(tmp_path: Path) -> None:
    table = operators(
        tmp_path,
        """
        [languages.lua]
        aliases = ["luajit"]
        file = "main.lua"
        version = ["lua", "-v"]
        run = ["lua", "{file}"]
        packages = ["lua5.4"]

        [languages.python.versions]
        "3.12" = "our/python:3.12"

        [languages.python.images."our/python:3.12"]
        run = ["python3.12", "-I", "{file}"]
        context = ["python3.12", "-I"]
        """,
    )
    assert find(table, "LuaJIT@5.4")[0].run == ("lua", "{file}")
    assert "lua5.4" in table["lua"].needs
    assert not table["lua"].context
    assert dict(table["python"].versions) == {"3.12": "our/python:3.12"}
    assert table["python"].context == ("python3",)
    inside = table["python"].inside("our/python:3.12")
    assert (inside.run[0], inside.context, inside.name) == ("python3.12", ("python3.12", "-I"), "python")
    assert table["python"].inside("base") is table["python"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[languages.lua]\nfile = "main.lua"', "languages.lua: `run` is missing"),
        ("[languages.lua]\nrun = []", "languages.lua: run: it is empty"),
        ('[languages.lua]\nrun = "lua"', "languages.lua: Expected `array | null`"),
        ('[languages.lua]\nrun = ["lua", "{script}"]', "languages.lua: run: unknown placeholder {script}"),
        ('[languages.lua]\nrun = ["lua", "a\\u0000b"]', "languages.lua: run: a NUL byte"),
        ('[languages.lua]\nrun = ["lua"]\nfile = "../x"', "languages.lua: file: '../x' is not the plain name"),
        ('[languages.lua]\nrun = ["lua"]\nerrors = ["("]', "languages.lua: errors: missing )"),
        ('[languages.lua]\nrun = ["lua"]\nerrors = ["(?P<why>x)"]', "languages.lua: errors: the group 'why'"),
        ('[languages.lua]\nrun = ["lua"]\ncontext = ["lua"]', "languages.lua: contexts need a kernel"),
        ('[languages.lua]\nrun = ["lua"]\nkernel = "lua"', "languages.lua: Invalid enum value 'lua'"),
        ('[languages.lua]\nrun = ["lua"]\naliases = ["py"]', "languages.lua: 'py' already belongs to python"),
        ('[languages.lua]\nrun = ["lua"]\ncolour = "blue"', "unknown field `colour`"),
        ('[languages.lua.images.x]\naliases = ["y"]', "unknown field `aliases`"),
        ('[languages.python.versions]\nnewest = "python:3"', "languages.python: versions: 'newest' is not a version"),
        ('[languages."Lu a"]\nrun = ["lua"]', "languages: 'Lu a' can't be a language's name"),
        ('languages = "python"', "languages: not a table of languages"),
    ],
)
def test_invalid_row_is_rejected_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        operators(tmp_path, text)
    assert says in caught.value.message


def test_the_example_of_the_settings_page_is_a_table(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text()
    table = operators(
        tmp_path, next(text for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "lua" in text)
    )
    assert find(table, "luajit")[0].errors
    assert image_of(table["c"], "14") == "our/toolchains:14"
    assert table["python"].inside("our/science:2").context == ("/opt/conda/bin/python3",)


def test_project_cannot_set_language_commands(tmp_path: Path) -> None:
    file = config.ProjectFile(tmp_path / "skerry.toml", b'[languages.python]\nrun = ["evil", "{file}"]')
    with pytest.raises(InvalidRequest, match="cannot be set here"):
        config.load(environ={}, operator_file=tmp_path / "none", project=file)
