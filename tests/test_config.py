"""Settings: one table, five layers, each value with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.config import BY_NAME, TABLE, ProjectFile, load
from skerry.errors import InvalidRequest


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def project(text: str) -> ProjectFile:
    return ProjectFile(Path("/project/skerry.toml"), text.encode())


def test_each_layer_overrides_the_one_below(tmp_path: Path) -> None:
    operator = write(tmp_path / "operator.toml", '[limits]\nmemory = "1G"\ncpus = 2\npids = 100\ndisk = "9G"\n')
    file = project('[limits]\ncpus = 3\npids = 101\ndisk = "8G"\n')
    environ = {"SKERRY_LIMITS_PIDS": "102", "SKERRY_LIMITS_DISK": "7G"}
    settings = load(operator_file=operator, project=file, environ=environ, flags={"limits.disk": "6G"})
    assert (settings["limits.open_files"], settings.resolved("limits.open_files").source) == (65536, "built-in")
    assert (settings["limits.memory"], settings.resolved("limits.memory").source) == ("1G", "operator's file")
    assert (settings["limits.cpus"], settings.resolved("limits.cpus").source) == (3.0, "project's file")
    assert (settings["limits.pids"], settings.resolved("limits.pids").source) == (102, "environment")
    assert (settings["limits.disk"], settings.resolved("limits.disk").source) == ("6G", "flag")


def test_project_file_cannot_change_operator_settings() -> None:
    with pytest.raises(InvalidRequest, match=r"max\.sandboxes"):
        load(project=project("[max]\nsandboxes = 5\n"), environ={})


@pytest.mark.parametrize("text", ['server = "unix:///s"', '[server]\naddress = "unix:///s"\nidle_exit = "1h"'])
def test_the_server_is_named_alone_or_in_its_table(tmp_path: Path, text: str) -> None:
    write(tmp_path / "config.toml", text)
    settings = load(operator_file=tmp_path / "config.toml", environ={})
    assert settings["server"] == "unix:///s"
    assert settings["server.idle_exit"] == ("1h" if "idle_exit" in text else "10m")


def test_a_server_reads_no_projects_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "skerry.toml", 'image = "evil"\n')
    monkeypatch.chdir(tmp_path)
    assert load(environ={})["image"] == "base"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nonsense = 1", "nonsense"), ("[limits]\nmemory = true", "limits.memory"), ("[limits]\ncpus = 'x'", "cpus"),
        ("[lifecycle]\nidle_timeout = -1", "lifecycle.idle_timeout"), ("env = 3", "env"), ("a = [", "skerry.toml"),
        ("[limits]\npids = 0", "limits.pids"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_its_name(text: str, names: str) -> None:
    with pytest.raises(InvalidRequest, match=names):
        load(project=project(text), environ={})


def test_a_bad_variable_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidRequest, match="SKERRY_LIMITS_MEMORY"):
        load(environ={"SKERRY_LIMITS_MEMORY": "much"})


def test_every_setting_is_in_the_documentation() -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference" / "settings.md").read_text()
    missing = [name for name in BY_NAME if f"`{name}`" not in page]
    assert missing == []
    assert all(f"`{setting.env}`" in page for setting in TABLE)


def test_a_relative_state_directory_stays_where_it_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(environ={"SKERRY_STATE_DIR": "state"})
    monkeypatch.chdir("/")
    assert settings.state_dir == tmp_path / "state"


def test_settings_beside_the_rows_of_a_table(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[languages]\nallow = ["python"]\n[languages.lua]\nrun = ["lua", "{file}"]\n')
    settings = load(environ={}, operator_file=file)
    assert settings["languages.allow"] == ("python",)
    assert settings["languages"].keys() == {"lua"}
