"""Languages of a sandbox: really probed, with hostile probes too."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from integration.test_presets import reaches
from msgspec.structs import replace
from support.cli import skerry
from support.server import Server

from skerry import Sandbox, ToolchainMissing, execute_code
from skerry.client._sync.run_once import run_code
from skerry.storage import ImageStore, LayerStore, image_digest
from skerry.types import is_version

OPERATORS = """
[languages.awk]
version = ["awk", "-W", "version"]
run = ["awk", "-f", "{file}"]

[languages.go.images.base]
version = ["echo", "9.9.9"]
"""


def listed(server: Server, sandbox: Sandbox | None = None) -> dict[str, dict[str, Any]]:
    path = "/v1/languages" if sandbox is None else f"/v1/sandboxes/{sandbox.id}/languages"
    with server.http() as http:
        return {row["name"]: row for row in http.get(path).json()["languages"]}


def put(sandbox: Sandbox, program: str, script: str) -> None:
    sandbox.files.write(f"/usr/local/bin/{program}", f"#!/bin/bash\n{script}\n", user="root")
    sandbox.files.chmod(f"/usr/local/bin/{program}", stat.S_IRWXU | 0o055, user="root")


def test_language_table_is_listed_without_a_sandbox(server: Server) -> None:
    rows = listed(server)
    assert len(rows) == 14
    assert rows["python"]["versions"]["3.12"] == "python:3.12-slim"
    assert rows["c"]["how"] == "gcc -o ./main main.c -lm && ./main"
    assert not any(row["version"] or row["missing"] for row in rows.values())


def test_sandbox_lists_installed_versions_and_install_hints(server: Server, sandbox: Sandbox) -> None:
    rows = listed(server, sandbox)
    there = {name: row["version"] for name, row in rows.items() if row["version"]}
    assert there.keys() == {"python", "javascript", "typescript", "bash", "c", "cpp", "perl", "awk", "go"}
    assert sandbox.run("python3 --version").stdout == f"Python {there['python']}\n"
    assert sandbox.run("node --version").stdout == f"v{there['javascript']}\n"
    assert all(rows[name]["missing"] is None for name in there)
    for name in ("python", "javascript", "typescript", "c", "cpp"):
        versions = rows[name]["versions"]
        assert [is_version(version, there[name]) for version, image in versions.items() if image == "base"] == [True]
    assert "apt-get install rustc" in rows["rust"]["missing"]
    assert all(rows[name]["missing"] for name in rows.keys() - there.keys())
    assert {process.cached_info.state for process in sandbox.processes.list()} <= {"exited"}


def test_toolchain_installed_later_is_found(server: Server, sandbox: Sandbox) -> None:
    assert listed(server, sandbox)["ruby"]["version"] is None
    put(sandbox, "ruby", "echo ruby 3.3.8")
    assert listed(server, sandbox)["ruby"]["version"] == "3.3.8"
    put(sandbox, "ruby", "echo ruby 3.4.1")
    assert listed(server, sandbox)["ruby"]["version"] == "3.4.1"


@pytest.mark.parametrize(
    ("script", "version"),
    [
        (r"printf '\033]0;owned\007 8.1.0\nmore <script>'", "0"),
        (r"printf '\377\376 php\0 8.4.5'", "8.4.5"),
        ("yes 8.4.5", None),
        ("echo 8.4.5; exit 3", None),
        ("kill -9 $$", None),
        ("cat; echo 8.4.5 >&2", "8.4.5"),
        ("printf '%01000d.1' 0", "0" * 40),
    ],
)
def test_hostile_version_output_is_harmless(server: Server, sandbox: Sandbox, script: str, version: str | None) -> None:
    put(sandbox, "php", script)
    row = listed(server, sandbox)["php"]
    assert row["version"] == version
    assert bool(row["missing"]) == (version is None)


def test_operator_can_add_languages_globally_and_per_image(server: Server, sandbox: Sandbox) -> None:
    rows = listed(server, sandbox)
    assert (rows["awk"]["how"], bool(rows["awk"]["version"])) == ("awk -f main", True)
    assert (rows["go"]["version"], listed(server)["go"]["version"]) == ("9.9.9", None)


def test_command_line_lists_the_languages(server: Server, sandbox: Sandbox) -> None:
    table = skerry("languages", server=server.address).stdout.decode()
    assert re.search(r"^python +py python3 py3 +yes +3\.9 .* +python3 main\.py$", table, re.MULTILINE)
    inside = skerry("languages", sandbox.id, server=server.address).stdout.decode()
    assert re.search(r"^rust +- +- +`sudo apt-get install rustc`, or the image base-rust", inside, re.MULTILINE)
    rows = json.loads(skerry("languages", "--json", sandbox.id, server=server.address).stdout)
    assert {row["name"]: row for row in rows} == listed(server, sandbox)
    nobody = skerry("languages", "nobody", server=server.address)
    assert (nobody.returncode, b"not found" in nobody.stderr) == (2, True)
    words = {"_SKERRY_COMPLETE": "bash_complete", "COMP_WORDS": "skerry languages sb-", "COMP_CWORD": "2"}
    assert sandbox.id.encode() in skerry(server=server.address, **words).stdout


# -- the images with the tools of a language ---------------------------------------------------------------------------


def images(server: Server) -> ImageStore:
    return ImageStore(server.state_dir / "images", LayerStore(server.state_dir / "layers"))


def store_tools(server: Server, name: str, program: str, script: str) -> None:
    """Store `base` with one more program under the name of an image of Skerry's own."""
    store, tree = images(server), server.state_dir / f"tree-{name}"
    file = tree / "usr/local/bin" / program
    file.parent.mkdir(parents=True)
    for directory in (tree, *file.parent.relative_to(tree).parents, file.parent.relative_to(tree)):
        (tree / directory).chmod(0o755)
    file.write_text(script)
    file.chmod(0o755)
    base = store.get("base")
    layers = (*base.layers, store.layers.add_directory(tree))
    store.put(replace(base, name=name, layers=layers, digest=image_digest(layers, base.env, base.user, base.cwd)))


def test_code_runs_in_the_image_that_has_its_tools(server: Server) -> None:
    store_tools(server, "base-php", "php", "#!/bin/sh\necho PHP 8.2.1\n")
    rows = listed(server)
    assert (rows["php"]["image"], rows["php"]["installed"]) == ("base-php", True)
    assert (rows["rust"]["image"], rows["rust"]["installed"]) == ("base-rust", False)
    assert {rows[name]["image"] for name in ("python", "javascript", "typescript", "bash", "c", "cpp")} == {None}
    assert run_code("<?php", "php", server=server.address).stdout == "PHP 8.2.1\n"
    assert execute_code("php", "<?php", server=server.address).stdout == "PHP 8.2.1\n"
    assert execute_code("php", "<?php", session_id="kept", server=server.address)["status"] == "success"
    with Sandbox.get("kept", server=server.address) as kept:
        assert kept.cached_info.image == "base-php"
        kept.delete()
    done = skerry("run", "-l", "php", "--code", "<?php", server=server.address)
    assert (done.returncode, done.stdout) == (0, b"PHP 8.2.1\n")


def test_an_existing_sandbox_gets_no_tools_and_nothing_is_installed(server: Server) -> None:
    with Sandbox(name="mine", server=server.address) as mine:
        result = execute_code("rust", "fn main() {}", session_id="mine", server=server.address)
        assert result.status == "setup_error"
        assert "rustc" in (result.error_message or "")
        mine.delete()
    named = execute_code("rust", "fn main() {}", image="base", server=server.address)
    assert named.status == "setup_error"
    assert "base-rust" not in {image.name for image in images(server).list()}


def test_operator_decides_whether_users_install_languages(own_server: Server) -> None:
    own_server.start(SKERRY_LANGUAGES_INSTALL="never")
    assert listed(own_server)["rust"]["image"] is None
    with pytest.raises(ToolchainMissing, match="rust code needs rustc"):
        run_code("fn main() {}", "rust", server=own_server.address)
    with own_server.http() as http:
        denied = http.post("/v1/languages/rust/install")
        assert (denied.status_code, denied.json()["error"]["code"]) == (403, "permission_denied")
        assert http.post("/v1/languages/python/install").status_code == 404
        assert http.post("/v1/languages/klingon/install").status_code == 400
    store_tools(own_server, "base-rust", "rustc", "#!/bin/sh\nexit 1\n")
    assert listed(own_server)["rust"]["image"] == "base-rust", "the operator has built it"
    own_server.end()


@pytest.mark.timeout(600)
def test_missing_tools_are_installed_once(
    own_server: Server, base_store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not reaches("apt"):
        pytest.skip("this machine's own apt reaches no mirror")
    subprocess.run(["cp", "-al", str(base_store / "cache"), str(own_server.state_dir / "cache")], check=True)
    own_server.start()
    assert run_code("<?php echo 6 * 7;", "php", server=own_server.address).stdout == "42"
    assert "installing php" in capfd.readouterr().err
    made = images(own_server).get("base-php")
    assert made.layers[:-1] == images(own_server).get("base").layers
    assert execute_code("php", "<?php echo PHP_MAJOR_VERSION > 6;", server=own_server.address)["stdout"] == "1"
    assert capfd.readouterr().err == ""
    assert images(own_server).get("base-php") == made
    own_server.end()
