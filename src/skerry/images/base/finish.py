"""Turn a bare tree of packages into the image `base-slim`: add its user, workspace and shell files; remove traces of
the host."""

from __future__ import annotations

import os
import shutil
import stat
import struct
from pathlib import Path

from skerry.storage import tree

USER, UID = "user", 1000
HOME = f"/home/{USER}"
WORKSPACE = "/workspace"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The user's own programs come last here and first in login shells: root uses this PATH too, and programs written by
# `user` must not precede the system's programs there.
ENV = {"PATH": f"{SYSTEM_PATH}:/run/skerry/bin:{HOME}/.local/bin", "LANG": "C.UTF-8"}

_PROFILE = f"""\
# PATH comes with the sandbox's environment and is kept; this is for a shell that has none.
: "${{PATH:={SYSTEM_PATH}}}"
case ":$PATH:" in *:/run/skerry/bin:*) ;; *) PATH="$PATH:/run/skerry/bin" ;; esac
export PATH

if [ "${{PS1-}}" ] && [ "${{BASH-}}" ] && [ "$BASH" != /bin/sh ] && [ -f /etc/bash.bashrc ]; then
  . /etc/bash.bashrc
fi
for i in /etc/profile.d/*.sh; do
  if [ -r "$i" ]; then
    . "$i"
  fi
done
unset i
"""

_LOCAL_BIN = """\
case "$PATH" in
  "${HOME:-/root}/.local/bin":*) ;;
  *) PATH="${HOME:-/root}/.local/bin:${PATH%":${HOME:-/root}/.local/bin"}" ;;
esac
"""

# The distribution's file puts ~/.local/bin on PATH a second time.
_USER_PROFILE = """\
if [ "${BASH-}" ] && [ -f "$HOME/.bashrc" ]; then
  . "$HOME/.bashrc"
fi
"""

# A commit works at once, in a directory of any owner. This is the system's file: settings of a user or a repository
# override it. The server writes the included file if an identity was requested.
_GIT = """\
[user]
\tname = Skerry Agent
\temail = agent@skerry.invalid
[include]
\tpath = /run/skerry/gitconfig
[safe]
\tdirectory = *
[init]
\tdefaultBranch = main
[advice]
\tdetachedHead = false
"""

# vim-tiny looks for this file and complains if it is missing; the complete one is in the package vim-runtime.
_VIM_DEFAULTS = """\
set backspace=indent,eol,start display=truncate nrformats=bin,hex ruler scrolloff=5 showcmd
set ttimeout ttimeoutlen=100 wildmenu
"""

_FILES = {
    "etc/profile": _PROFILE,
    "etc/profile.d/skerry.sh": _LOCAL_BIN,
    "etc/hostname": "skerry\n",
    "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "",
    "etc/default/locale": "LANG=C.UTF-8\n",
    "etc/gitconfig": _GIT,
    "etc/machine-id": "",
    "etc/pip.conf": "[global]\ndisable-pip-version-check = true\nroot-user-action = ignore\n",
    "usr/local/lib/node_modules/npm/npmrc": "update-notifier=false\nfund=false\n",
}

_HOST_AND_BUILD_TRACES = (
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/subuid-",
    "etc/subgid-",
    "etc/.pwd.lock",
    "var/cache/ldconfig/aux-cache",
    "var/cache/debconf/config.dat-old",
    "var/cache/debconf/templates.dat-old",
    "var/lib/dpkg/status-old",
    "var/lib/dpkg/diversions-old",
    "var/lib/dpkg/statoverride-old",
    "var/lib/dpkg/available",
    "var/lib/systemd/random-seed",
    "var/lib/dbus/machine-id",
)


def make_directories(path: Path) -> None:
    """Make a directory with parents; modes are 0755 regardless of the umask, which threads share."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir()
        path.chmod(0o755)


def finish(root: Path, sources: str, keys: list[str], epoch: int) -> None:
    """Run all steps in order. So far the tree contains only packages of the distribution: its links can be trusted."""
    _add_user(root)
    for name, text in _FILES.items():
        _write(root / name, text)
    _replace_sources(root, sources)
    _copy_keys(root, keys)
    _add_links(root)
    _add_manual(root)
    _add_home(root)
    _empty_mount_points(root)
    remove_traces(root)
    clamp_times(root, epoch)
    check_by_time(root)
    clamp_times(root, epoch)


def _add_user(root: Path) -> None:
    lines = {
        "passwd": f"{USER}:x:{UID}:{UID}::{HOME}:/bin/bash\n",
        "group": f"{USER}:x:{UID}:\n",
        "shadow": f"{USER}:!:1::::::\n",
        "gshadow": f"{USER}:!::\n",
    }
    for name, line in lines.items():
        with open(root / "etc" / name, "a", encoding="utf-8") as file:
            file.write(line)
    shadow = root / "etc/shadow"
    # The third field is the day of the build: days since 1970 of the last password change; no password is set.
    kept = [line.split(":") for line in shadow.read_text().splitlines()]
    _write(shadow, "".join(":".join([*fields[:2], "1", *fields[3:]]) + "\n" for fields in kept), mode=0o640)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace the content; set the mode of a new file. Owner and group of an existing file stay."""
    make_directories(path.parent)
    if path.is_symlink():
        path.unlink()
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _replace_sources(root: Path, sources: str) -> None:
    etc = root / "etc/apt"
    for old in [etc / "sources.list", *(etc / "sources.list.d").glob("*")]:
        old.unlink(missing_ok=True)
    _write(etc / "sources.list.d/base.sources", sources)


def _copy_keys(root: Path, keys: list[str]) -> None:
    """Copy the keys of an operator's own mirror; the distribution's keys are in a package."""
    for key in keys:
        inside = root / key.lstrip("/")
        if Path(key).is_file() and ".." not in Path(key).parts and not inside.exists():
            make_directories(inside.parent)
            shutil.copyfile(key, inside)
            inside.chmod(0o644)


def _add_links(root: Path) -> None:
    os.symlink("/run/skerry/bin/sudo", root / "usr/local/bin/sudo")
    if not (root / "usr/bin/python").exists():
        os.symlink("python3", root / "usr/bin/python")
    if not os.path.lexists(root / "usr/bin/vim"):  # a link, because the alternatives of a full vim replace it
        os.symlink("vim.tiny", root / "usr/bin/vim")
    for runtime in (root / "usr/share/vim").glob("vim[0-9]*"):
        if not (runtime / "defaults.vim").exists():
            _write(runtime / "defaults.vim", _VIM_DEFAULTS)


def _add_manual(root: Path) -> None:
    """Add the sections of the manual without pages: some packages (for example a JDK) put links there and fail if the
    directories are missing."""
    for section in range(1, 9):
        make_directories(root / f"usr/share/man/man{section}")


def _add_home(root: Path) -> None:
    home = root / HOME.lstrip("/")
    shutil.copytree(root / "etc/skel", home, symlinks=True, dirs_exist_ok=True)
    _write(home / ".profile", _USER_PROFILE)
    # `npm install -g` without root installs beside pip's programs.
    _write(home / ".npmrc", "prefix=${HOME}/.local\n")
    make_directories(home / ".local/bin")
    make_directories(root / WORKSPACE.lstrip("/"))
    for top in (home, root / WORKSPACE.lstrip("/")):
        for entry in tree.walk(top):
            os.chown(entry.name, UID, UID, dir_fd=entry.parent, follow_symlinks=False)
        top.chmod(0o755)


def _empty_mount_points(root: Path) -> None:
    for name in ("proc", "sys", "dev", "run", "tmp", "var/tmp"):
        path = root / name
        tree.remove(path)
        path.mkdir()
        path.chmod(0o1777 if name.endswith("tmp") else 0o755)


def remove_traces(root: Path) -> None:
    """Remove logs, caches and backups from the image, or from one layer of it."""
    for name in _HOST_AND_BUILD_TRACES:
        (root / name).unlink(missing_ok=True)
    for folder in ("var/log", "var/cache/apt", "var/lib/apt/lists"):
        for entry in tree.walk(root / folder) if (root / folder).is_dir() else ():
            if stat.S_ISREG(entry.stat.st_mode):
                os.unlink(entry.name, dir_fd=entry.parent)
    for marker in (root / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
        marker.unlink()


def clamp_times(root: Path, epoch: int) -> None:
    """Clamp time stamps to the date of the packages, so that new files look as old as they are."""
    latest = epoch * 10**9
    for entry in tree.walk(root):
        if entry.stat.st_mtime_ns > latest and not stat.S_ISDIR(entry.stat.st_mode):
            os.utime(entry.name, ns=(latest, latest), dir_fd=entry.parent, follow_symlinks=False)
    for entry in tree.walk(root):
        if stat.S_ISDIR(entry.stat.st_mode) and entry.stat.st_mtime_ns > latest:
            os.utime(entry.name, ns=(latest, latest), dir_fd=entry.parent, follow_symlinks=False)


# Make Python's compiled files of a tree check their source by time stamp.
#
# With SOURCE_DATE_EPOCH set, packages compile to files that contain a hash of their source, and every import then reads
# and hashes that source. The tree's time stamps are as reproducible as its contents, so the faster check is sufficient.

_CHECKED_HASH = 0b11


def check_by_time(root: Path) -> None:
    """Rewrite the compiled files. Call it when the sources have their final time stamps."""
    for folder, _, names in os.walk(root):
        if os.path.basename(folder) == "__pycache__":
            for name in names:
                if name.endswith(".pyc"):
                    _rewrite(Path(folder, name))


def _rewrite(compiled: Path) -> None:
    """Header: magic, flags, then either eight bytes of hash or four of time and four of size."""
    source = compiled.parent.parent / f"{compiled.name.partition('.')[0]}.py"
    with open(compiled, "r+b") as file:
        header = file.read(16)
        if len(header) < 16 or struct.unpack_from("<I", header, 4)[0] != _CHECKED_HASH or not source.is_file():
            return
        found = source.stat()
        file.seek(4)
        file.write(struct.pack("<III", 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF))
