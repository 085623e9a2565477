"""From a bare tree of packages to the image `base`: its user, its workspace, its shells; and no trace of the host."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from skerry.images.bytecode import check_by_time
from skerry.storage import tree

USER, UID = "user", 1000
HOME = f"/home/{USER}"
WORKSPACE = "/workspace"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The user's own programs come last here and first in login shells: this PATH is also root's, and what `user` wrote must
# not stand before the system's programs there.
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

# The distribution's own puts ~/.local/bin on PATH a second time.
_USER_PROFILE = """\
if [ "${BASH-}" ] && [ -f "$HOME/.bashrc" ]; then
  . "$HOME/.bashrc"
fi
"""

# A commit works at once, in a directory of whoever's. It is the system's file: what a user sets for themselves, or a
# repository for itself, stands above it. The included one is written by the server where an identity was asked for.
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

# vim-tiny looks for this file and complains if it is missing; the whole one comes with the package vim-runtime.
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
    """With parents; modes are 0755 whatever the umask, which threads share."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir()
        path.chmod(0o755)


def finish(root: Path, sources: str, keys: list[str], epoch: int) -> None:
    """All of it, in order. The tree holds only packages of the distribution so far: its links are to be trusted."""
    _add_user(root)
    for name, text in _FILES.items():
        _write(root / name, text)
    _replace_sources(root, sources)
    _copy_keys(root, keys)
    _add_links(root)
    _add_manual(root)
    _add_home(root)
    _empty_mount_points(root)
    _remove_traces(root)
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
    # The third field is the day of the build: days since 1970 of the last change of a password that nobody has.
    kept = [line.split(":") for line in shadow.read_text().splitlines()]
    _write(shadow, "".join(":".join([*fields[:2], "1", *fields[3:]]) + "\n" for fields in kept), mode=0o640)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces the content and, of a new file, sets the mode; owner and group of an existing one stay."""
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
    """The keys of an operator's own mirror; the distribution's came with a package."""
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
    if not os.path.lexists(root / "usr/bin/vim"):  # a link is what the alternatives of a whole vim replace
        os.symlink("vim.tiny", root / "usr/bin/vim")
    for runtime in (root / "usr/share/vim").glob("vim[0-9]*"):
        if not (runtime / "defaults.vim").exists():
            _write(runtime / "defaults.vim", _VIM_DEFAULTS)


def _add_manual(root: Path) -> None:
    """Its sections without its pages: some packages (a JDK is one) put links there, and fail where there is nothing."""
    for section in range(1, 9):
        make_directories(root / f"usr/share/man/man{section}")


def _add_home(root: Path) -> None:
    home = root / HOME.lstrip("/")
    shutil.copytree(root / "etc/skel", home, symlinks=True, dirs_exist_ok=True)
    _write(home / ".profile", _USER_PROFILE)
    # `npm install -g` without root goes beside pip's programs.
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


def _remove_traces(root: Path) -> None:
    for name in _HOST_AND_BUILD_TRACES:
        (root / name).unlink(missing_ok=True)
    for folder in ("var/log", "var/cache/apt", "var/lib/apt/lists"):
        for entry in tree.walk(root / folder):
            if stat.S_ISREG(entry.stat.st_mode):
                os.unlink(entry.name, dir_fd=entry.parent)
    for marker in (root / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
        marker.unlink()


def clamp_times(root: Path, epoch: int) -> None:
    """No time stamp younger than the packages: what was made now looks as old as they are."""
    latest = epoch * 10**9
    for entry in tree.walk(root):
        if entry.stat.st_mtime_ns > latest and not stat.S_ISDIR(entry.stat.st_mode):
            os.utime(entry.name, ns=(latest, latest), dir_fd=entry.parent, follow_symlinks=False)
    for entry in tree.walk(root):
        if stat.S_ISDIR(entry.stat.st_mode) and entry.stat.st_mtime_ns > latest:
            os.utime(entry.name, ns=(latest, latest), dir_fd=entry.parent, follow_symlinks=False)
