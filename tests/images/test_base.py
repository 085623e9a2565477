"""The image `base`: its content, and that its build can be interrupted and repeated."""

from __future__ import annotations

import http.server
import os
import re
import ssl
import stat
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from world import certificates

from skerry.errors import HostUnsupported, SkerryError
from skerry.images import RECIPES, build_image
from skerry.images.base import build as base
from skerry.images.base import downloads, finish, node
from skerry.images.base.downloads import Pinned
from skerry.images.base.recipe import chain
from skerry.storage import Image, ImageStore, LayerStore
from skerry.types import OWN_IMAGES, Progress


@pytest.fixture(scope="session")
def built(base_store: Path) -> tuple[Image, Path]:
    """Return `base`, and the tree of `base-slim`, its lower layer."""
    layers = LayerStore(base_store / "layers")
    image = ImageStore(base_store / "images", layers).get("base")
    return image, layers.path(image.layers[0])


@pytest.fixture(scope="session")
def upper(base_store: Path) -> Path:
    """Return the tree of the layer that `base` adds to `base-slim`."""
    layers = LayerStore(base_store / "layers")
    return layers.path(ImageStore(base_store / "images", layers).get("base").layers[-1])


def read(root: Path, name: str) -> str:
    return (root / name).read_text()


def test_base_is_small_and_starts_as_user_in_the_workspace(built: tuple[Image, Path]) -> None:
    image, _ = built
    assert image.size < 800 << 20
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
def test_documented_programs_exist(built: tuple[Image, Path], program: str) -> None:
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
def test_node_and_its_tools_exist(built: tuple[Image, Path], program: str) -> None:
    target = Path(os.path.realpath(built[1] / "usr/local/bin" / program))
    assert built[1] in target.parents
    assert target.stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize(
    "program",
    [*("bin/gcc", "bin/g++", "bin/pkg-config", "bin/sqlite3", "bin/rsync"),
     *("local/bin/uv", "local/bin/uvx", "local/bin/pnpm", "local/bin/yarn")],
)  # fmt: skip
def test_compilers_and_package_managers_are_in_the_layer_of_base(upper: Path, program: str) -> None:
    target = Path(os.path.realpath(upper / "usr" / program))
    assert upper in target.parents
    assert target.stat().st_mode & 0o111 == 0o111


def test_gh_is_in_base_if_the_distribution_has_it(upper: Path) -> None:
    known = subprocess.run(["apt-cache", "show", "--no-all-versions", "gh"], capture_output=True, check=False)
    assert (upper / "usr/bin/gh").exists() == (known.returncode == 0)


def test_the_layer_of_base_has_no_trace_of_the_host_or_the_build(upper: Path, base_store: Path) -> None:
    assert not os.path.lexists(upper / "usr/sbin/policy-rc.d")
    assert not os.path.lexists(upper / "etc/apt/sources.list.d")
    for folder in ("var/log", "var/cache/apt", "var/lib/apt/lists", "dev", "proc", "run", "tmp"):
        assert [name for _, _, names in os.walk(upper / folder) for name in names] == []
    assert [place.name for place in upper.rglob("*") if stat.S_ISCHR(os.lstat(place).st_mode)] == []
    owned = {str(place.relative_to(upper)) for place in upper.rglob("*") if os.lstat(place).st_uid == 1000}
    assert owned == {"home/user", "home/user/.config", "home/user/.config/pnpm", "home/user/.config/pnpm/rc"}


def test_every_own_image_has_a_recipe_and_stands_on_base() -> None:
    assert set(RECIPES) == set(OWN_IMAGES)
    assert {name: [one.name for one in chain(name)][:2] for name in RECIPES if name != "base-slim"} == {
        name: ["base-slim", "base"] for name in RECIPES if name != "base-slim"
    }


def test_pip_works_without_tricks(built: tuple[Image, Path]) -> None:
    assert list((built[1] / "usr/lib").glob("python3*/EXTERNALLY-MANAGED")) == []
    assert "EXTERNALLY-MANAGED" in "".join(f.read_text() for f in (built[1] / "etc/dpkg/dpkg.cfg.d").iterdir())


def test_base_has_no_trace_of_the_host_or_the_build(built: tuple[Image, Path]) -> None:
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


def test_a_host_without_mmdebstrap_gets_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_TOOLS", {"no-such-bootstrap": "mmdebstrap"})
    store = ImageStore(tmp_path / "images", LayerStore(tmp_path / "layers"))
    with pytest.raises(HostUnsupported) as caught:
        build_image("base", store, store.layers, tmp_path / "cache", lambda _: None)
    assert caught.value.hint == "apt-get install mmdebstrap"


def test_a_download_with_another_hash_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "yarn-1.22.22.tgz").write_bytes(b"not yarn")
    (yarn,) = (item for item in RECIPES["base"].npm if item.name == "yarn")
    assert Pinned(tmp_path, yarn).present() is None
    assert os.listdir(tmp_path) == []


class NotFoundHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *args: object) -> None:
        return


def test_npm_trusts_the_certificates_of_the_host_and_names_its_error(
    built: tuple[Image, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path, ["localhost"], ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotFoundHandler) as index:
        index.socket = context.wrap_socket(index.socket, server_side=True)
        threading.Thread(target=index.serve_forever, daemon=True).start()
        monkeypatch.delenv("NODE_EXTRA_CA_CERTS", raising=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("npm_config_registry", f"https://127.0.0.1:{index.server_port}/")
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
        (yarn,) = (item for item in RECIPES["base"].npm if item.name == "yarn")
        npm = [str(built[1] / name) for name in ("usr/local/bin/node", downloads.NPM_CLI)]
        try:
            with pytest.raises(SkerryError, match="E404"):
                list(Pinned(tmp_path / "cache", yarn).download(npm))
        finally:
            index.shutdown()


class Cut(Exception):
    """Stands for a user's Ctrl-C."""


def cut_at(stage: str, share: float) -> Callable[[Progress], None]:
    def progress(step: Progress) -> None:
        if step.stage == stage and step.done >= share * step.total:
            raise Cut

    return progress


def test_a_build_waits_for_another_one_and_can_be_cancelled_meanwhile(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", LayerStore(tmp_path / "layers"))
    (tmp_path / "cache").mkdir()
    with base._only_one_build(tmp_path / "cache", lambda _: None), pytest.raises(Cut):
        build_image("base", store, store.layers, tmp_path / "cache", cut_at("wait", 0))
    with base._only_one_build(tmp_path / "cache", cut_at("wait", 0)):
        assert os.listdir(tmp_path / "cache") == ["build.lock"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_interrupted_build_leaves_nothing_and_continues_to_the_same_image(tmp_path: Path, base_store: Path) -> None:
    store = ImageStore(tmp_path / "images", LayerStore(tmp_path / "layers"))
    cache = tmp_path / "cache"
    stages = (("packages", 0.3), ("packages", 0.9), (node.NODE.name, 0.0), ("install", 0.5), ("store", 0.5))
    for name, cuts in (
        ("base-slim", stages),
        ("base", (("packages", 0.3), ("pnpm", 0.0), ("install", 0.5), ("store", 0.5))),
    ):
        before = store.list(), store.layers.digests()
        for stage, share in cuts:
            with pytest.raises(Cut):
                build_image(name, store, store.layers, cache, cut_at(stage, share))
            assert (store.list(), store.layers.digests()) == before
            assert [name for name in os.listdir(cache) if name.startswith("build-")] == []
        steps: list[Progress] = []
        image = build_image(name, store, store.layers, cache, steps.append)
        downloads = [step for step in steps if step.stage == "packages"]
        assert downloads[0].done == downloads[0].total > 10 << 20, "nothing is downloaded twice"
        assert {step.stage for step in steps} == {"lists", "packages", "install", "finish", "store"}
    assert all(0 <= step.done <= step.total or step.total == 0 for step in steps)
    assert store.get("base") == image

    old = os.umask(0o077)
    try:
        again = build_image("base", store, store.layers, cache, lambda _: None, rebuild=True)
    finally:
        os.umask(old)
    assert again.digest == image.digest
    assert all(map(store.layers.verify, image.layers))
