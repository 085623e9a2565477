"""The image `base`: what is in it, and that its build can be cut and repeated."""

from __future__ import annotations

import os
import re
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry.errors import Conflict, HostUnsupported
from skerry.images import base, build_base, finish
from skerry.storage import Image, ImageStore, LayerStore
from skerry.types import Progress


@pytest.fixture(scope="session")
def built(base_store: Path) -> tuple[Image, Path]:
    layers = LayerStore(base_store / "layers")
    image = ImageStore(base_store / "images", layers).get("base")
    return image, layers.path(image.layers[0])


def read(root: Path, name: str) -> str:
    return (root / name).read_text()


def test_it_is_small_and_starts_as_user_in_the_workspace(built: tuple[Image, Path]) -> None:
    image, _ = built
    assert image.size < 600 << 20
    assert (image.user, image.cwd, image.env["LANG"]) == ("user", "/workspace", "C.UTF-8")
    assert {"/usr/bin", "/usr/sbin", "/run/skerry/bin", "/home/user/.local/bin"} <= set(image.env["PATH"].split(":"))


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_login_shell_keeps_its_path_and_puts_the_users_programs_first(tmp_path: Path, shell: str) -> None:
    """Twice: a login shell inside a login shell adds nothing more."""
    script = tmp_path / "profile"
    script.write_text((finish._PROFILE + finish._LOCAL_BIN).replace("/etc/", "/nonexistent/"))
    twice = f". {script}; . {script}; echo $PATH"
    given = {"HOME": "/home/user", "PATH": f"/opt/mine:{finish.ENV['PATH']}"}
    run = subprocess.run([f"/bin/{shell}", "-c", twice], env=given, capture_output=True, text=True, check=True)
    path = run.stdout.strip()
    assert path == f"/home/user/.local/bin:/opt/mine:{finish.SYSTEM_PATH}:/run/skerry/bin"


def test_mount_points_are_real_empty_directories(built: tuple[Image, Path]) -> None:
    for name in ("proc", "sys", "dev", "run", "tmp"):
        assert stat.S_ISDIR(os.lstat(built[1] / name).st_mode)
        assert os.listdir(built[1] / name) == []


def test_the_manual_has_its_sections_but_no_pages(built: tuple[Image, Path]) -> None:
    """Some packages put links there, and can't be installed where there is nothing."""
    manual = built[1] / "usr/share/man"
    assert sorted(os.listdir(manual)) == [f"man{section}" for section in range(1, 9)]
    assert [page for section in manual.iterdir() for page in section.iterdir()] == []


def test_the_user_owns_its_home_and_the_workspace(built: tuple[Image, Path]) -> None:
    root = built[1]
    assert "user:x:1000:1000::/home/user:/bin/bash" in read(root, "etc/passwd").splitlines()
    for name in ("home/user", "home/user/.bashrc", "home/user/.local/bin", "workspace"):
        found = os.lstat(root / name)
        assert (found.st_uid, found.st_gid) == (1000, 1000)
    assert os.readlink(root / "usr/local/bin/sudo") == "/run/skerry/bin/sudo"


@pytest.mark.parametrize(
    "program", ["bash", "python3", "python", "pip", "git", "curl", "ps", "adduser", "vim", "vi", "tmux", "less"]
)
def test_what_was_promised_is_there(built: tuple[Image, Path], program: str) -> None:
    assert any(os.path.lexists(built[1] / folder / program) for folder in ("usr/bin", "usr/sbin"))


@pytest.mark.parametrize("terminal", ["xterm-256color", "tmux-256color", "screen-256color", "linux", "vt100"])
def test_common_terminals_are_known(built: tuple[Image, Path], terminal: str) -> None:
    assert any((built[1] / top / "terminfo" / terminal[0] / terminal).is_file() for top in ("lib", "usr/lib"))


def test_git_has_an_identity_below_the_users_own(built: tuple[Image, Path], tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_SYSTEM": str(built[1] / "etc/gitconfig")
    }  # fmt: skip

    def ask(*words: str) -> str:
        done = subprocess.run(["git", "config", *words], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert (ask("user.name"), ask("user.email")) == ("Skerry Agent", "agent@skerry.invalid")
    assert (ask("safe.directory"), ask("init.defaultBranch"), ask("advice.detachedHead")) == ("*", "main", "false")
    ask("--global", "user.name", "Mine")
    assert ask("user.name") == "Mine"


@pytest.mark.parametrize("program", ["node", "npm", "npx", "corepack"])
def test_node_is_there_with_its_tools(built: tuple[Image, Path], program: str) -> None:
    target = Path(os.path.realpath(built[1] / "usr/local/bin" / program))
    assert built[1] in target.parents
    assert target.stat().st_mode & 0o111 == 0o111


def test_pip_works_without_tricks(built: tuple[Image, Path]) -> None:
    assert list((built[1] / "usr/lib").glob("python3*/EXTERNALLY-MANAGED")) == []
    assert "EXTERNALLY-MANAGED" in "".join(f.read_text() for f in (built[1] / "etc/dpkg/dpkg.cfg.d").iterdir())


def test_nothing_of_the_host_or_of_the_build_is_in_it(built: tuple[Image, Path]) -> None:
    root = built[1]
    assert read(root, "etc/resolv.conf") == read(root, "etc/machine-id") == ""
    assert read(root, "etc/hostname") == "skerry\n"
    assert "localhost" in read(root, "etc/hosts")
    assert os.listdir(root / "var/lib/apt/lists") in ([], ["partial"], ["auxfiles", "partial"], ["partial", "auxfiles"])
    assert [name for name in os.listdir(root / "etc") if name.endswith("-")] == []
    assert all(line.split(":")[2] == "1" for line in read(root, "etc/shadow").splitlines())
    assert not re.search(r"^URIs:.*@", read(root, "etc/apt/sources.list.d/base.sources"), re.MULTILINE)
    logs = [name for _, _, names in os.walk(root / "var/log") for name in names]
    assert logs == []


def test_python_does_not_read_its_sources_to_import_them(built: tuple[Image, Path]) -> None:
    for library in (built[1] / "usr/lib").glob("python3.*"):
        source = library / "os.py"
        for compiled in library.glob("__pycache__/os.cpython-*.pyc"):
            flags, when, size = struct.unpack_from("<III", compiled.read_bytes(), 4)
            assert (flags, when, size) == (0, int(source.stat().st_mtime), source.stat().st_size)


def test_a_second_build_at_the_same_time_is_refused(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", LayerStore(tmp_path / "layers"))
    (tmp_path / "cache").mkdir()
    with (
        base._only_one_build(tmp_path / "cache"),
        pytest.raises(Conflict, match="already"),
    ):
        build_base(store, store.layers, tmp_path / "cache", lambda _: None)


def test_a_host_without_mmdebstrap_is_told_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_TOOLS", {"no-such-bootstrap": "mmdebstrap"})
    store = ImageStore(tmp_path / "images", LayerStore(tmp_path / "layers"))
    with pytest.raises(HostUnsupported) as caught:
        build_base(store, store.layers, tmp_path / "cache", lambda _: None)
    assert caught.value.hint == "apt-get install mmdebstrap"


class Cut(Exception):
    """Stands for a user's Ctrl-C."""


def cut_at(stage: str, share: float) -> Callable[[Progress], None]:
    def progress(step: Progress) -> None:
        if step.stage == stage and step.done >= share * step.total:
            raise Cut

    return progress


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_build_cut_anywhere_leaves_nothing_half_and_goes_on_to_the_same_image(
    tmp_path: Path, base_store: Path
) -> None:
    store = ImageStore(tmp_path / "images", LayerStore(tmp_path / "layers"))
    cache = tmp_path / "cache"
    for stage, share in (("packages", 0.3), ("packages", 0.9), ("node", 0.0), ("install", 0.5), ("store", 0.5)):
        with pytest.raises(Cut):
            build_base(store, store.layers, cache, cut_at(stage, share))
        assert (store.list(), store.layers.digests()) == ([], [])
        assert [name for name in os.listdir(cache) if name.startswith("build-")] == []
    steps: list[Progress] = []
    image = build_base(store, store.layers, cache, steps.append)
    downloads = [step for step in steps if step.stage == "packages"]
    assert downloads[0].done == downloads[0].total > 10 << 20, "nothing is downloaded twice"
    assert [step for step in steps if step.stage == "node"] == []
    assert all(0 <= step.done <= step.total or step.total == 0 for step in steps)
    assert store.get("base") == image

    old = os.umask(0o077)
    try:
        again = build_base(store, store.layers, cache, lambda _: None)
    finally:
        os.umask(old)
    assert again.digest == image.digest
    assert store.layers.verify(image.layers[0])
