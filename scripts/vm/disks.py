"""The machine's disks: a Debian root, the working tree, and a state directory with the base image."""

import hashlib
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import initramfs

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
SUITE = "bookworm"  # Debian 12: kernel 6.1, the oldest line that the project promises to run on
PYTHON = "3.11"  # that suite's
KERNEL = "linux-image-cloud-amd64"
PACKAGES = (
    "apparmor", "btrfs-progs", "busybox-static", "ca-certificates", "crun", "e2fsprogs", "git", "iproute2", "kmod",
    "procps", "python3", "runc", "util-linux",
)  # fmt: skip
SKERRY = f"""#!/bin/sh
exec /usr/bin/python{PYTHON} -m skerry "$@"
"""
# The tests compile programs of theirs. Emulated, that takes minutes: they are compiled here, and `go build` there
# uses bytecode compiled for its working directory.
GO = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
exec cp "/project/vm-go${PWD#/project}/program" "$2"
"""


@dataclass(frozen=True)
class System:
    kernel: Path
    initramfs: Path
    root: Path


def system(cache: Path, rebuild: bool) -> System:
    """Kernel, initial RAM disk and root disk, built when one of their ingredients changed."""
    wheels = requirements()
    sources = [(HERE / name).read_text() for name in ("disks.py", "initramfs.py", "init")]
    home = cache / f"system-{digest([SUITE, *PACKAGES, *wheels, *sources])}"
    if rebuild or not home.is_dir():
        fresh(home, lambda work: build_system(work, wheels))
    forget_others(home, "system-")
    return System(home / "vmlinuz", home / "initramfs.gz", home / "root.img")


def build_system(work: Path, wheels: list[str]) -> None:
    root = work / "root"
    # The kernel's package is only unpacked: installing it would make an unused initial RAM disk.
    image = f"apt-cache depends {KERNEL} | sed -n 's/.*Depends: //p'"
    fetch_kernel = f'chroot "$1" sh -ec "cd /tmp; apt-get -qq download \\$({image})"'
    unpack_kernel = 'dpkg-deb --fsys-tarfile "$1"/tmp/linux-image-*.deb | tar -x --keep-directory-symlink -C "$1"'
    command("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}",
            f"--customize-hook={fetch_kernel}", f"--customize-hook={unpack_kernel}", SUITE, str(root))  # fmt: skip
    (version,) = (path.name for path in (root / "lib/modules").iterdir())
    command("chroot", str(root), "depmod", version)
    install_wheels(root / "opt/site", wheels)
    install_file(root / "sbin/vm-init", (HERE / "init").read_text())
    install_file(root / "usr/local/bin/skerry", SKERRY)
    install_file(root / "usr/bin/go", GO)
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (work / "initramfs.gz").write_bytes(initramfs.build(root / "lib/modules" / version, root / "bin/busybox"))
    shutil.copyfile(root / "boot" / f"vmlinuz-{version}", work / "vmlinuz")
    make_disk(work / "root.img", root, "4G")
    shutil.rmtree(root)


def requirements() -> list[str]:
    """Return the dependencies of the server and its tests, by pyproject.toml, without the tools in `dev`."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    tests = [name for name in extras["dev"] if name.startswith("pytest")]
    needed = (word for name in ("server", "mcp", "otel", "ssh") for word in extras[name])
    return sorted({*project["dependencies"], *needed, *tests})


def install_wheels(target: Path, wheels: list[str]) -> None:
    """By the host's pip for the guest's Python, so that the guest needs no network and no pip."""
    platforms = ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")
    command(str(PROJECT / ".venv/bin/python"), "-m", "pip", "install", "-qq", "--only-binary=:all:",
            "--implementation=cp", f"--python-version={PYTHON}", *(f"--platform={name}" for name in platforms),
            f"--target={target}", *wheels)  # fmt: skip


def project_disk(path: Path, script: str, nonce: str) -> None:
    """Write the working tree (not the last commit), the keeper, and the command to run."""
    stage = path.with_suffix(".stage")
    listing = ["git", "-C", str(PROJECT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    keeper = PROJECT / "src/skerry/keeper/bin"
    names += [str(file.relative_to(PROJECT)) for file in keeper.glob("*")]
    for name in names:
        if name and (PROJECT / name).is_file():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, stage / name)
    for module in PROJECT.glob("tests/**/go.mod"):
        compile_program(module.parent, stage / "vm-go" / module.parent.relative_to(PROJECT) / "program")
    (stage / "vm-command").write_text(script)
    (stage / "vm-nonce").write_text(nonce)
    make_disk(path, stage, "512M")
    shutil.rmtree(stage)


def compile_program(source: Path, target: Path) -> None:
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    argv = [str(PROJECT / ".venv/bin/go"), "build", "-trimpath", "-o", str(target), "."]
    subprocess.run(argv, cwd=source, env={**os.environ, **settings}, check=True, stdin=subprocess.DEVNULL)


def state_disk(cache: Path, state: Path) -> Path | None:
    """The host's layers and images, without its database, pool and sandboxes. None without an image."""
    images = sorted((state / "images").glob("*"))
    if not images or not (state / "layers").is_dir():
        return None
    layers = sorted(path.name for path in (state / "layers").iterdir())
    home = cache / f"state-{digest([path.name + str(path.stat().st_mtime_ns) for path in images] + layers)}"
    if not home.is_dir():
        fresh(home, lambda work: build_state(work, state))
    forget_others(home, "state-")
    return home / "state.img"


def build_state(work: Path, state: Path) -> None:
    stage = work / "stage"
    (stage / "skerry").mkdir(parents=True, mode=0o700)
    for name in ("layers", "images"):
        command("cp", "-a", "--reflink=auto", str(state / name), str(stage / "skerry" / name))
    make_disk(work / "state.img", stage, "12G")
    shutil.rmtree(stage)


def make_disk(path: Path, content: Path, size: str) -> None:
    command("mke2fs", "-qq", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0,lazy_itable_init=1",
            "-d", str(content), str(path), size, stdout=subprocess.DEVNULL)  # fmt: skip


def fresh(home: Path, build: Callable[[Path], None]) -> None:
    """Builds beside its place and moves it there when whole: a cut build is never taken for a finished one."""
    work = home.with_name(f"{home.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, mode=0o700)
    build(work)
    shutil.rmtree(home, ignore_errors=True)
    os.rename(work, home)


def forget_others(home: Path, prefix: str) -> None:
    for other in home.parent.glob(f"{prefix}*"):
        if other != home:
            shutil.rmtree(other, ignore_errors=True)


def install_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def digest(parts: list[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def command(*argv: str, stdout: int | None = None) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=stdout)
