"""Layers and other archives, honest ones and worse, made in memory."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from skerry.storage import ImageStore, LayerStore

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@dataclass
class Item:
    """One entry; `data` makes it a file, unless `kind` says otherwise."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    link: str = ""
    mtime: float = 1_700_000_000
    pax: dict[str, str] = field(default_factory=dict)
    device: tuple[int, int] = (0, 0)


def folder(name: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Item:
    return Item(name, kind=tarfile.DIRTYPE, mode=mode, uid=uid, gid=gid)


def link(name: str, to: str) -> Item:
    return Item(name, kind=tarfile.SYMTYPE, link=to, mode=0o777)


def hard_link(name: str, to: str) -> Item:
    return Item(name, kind=tarfile.LNKTYPE, link=to)


def device(name: str, kind: bytes = tarfile.CHRTYPE, numbers: tuple[int, int] = (1, 3)) -> Item:
    return Item(name, kind=kind, device=numbers, mode=0o666)


def tar(*items: Item, form: int = tarfile.PAX_FORMAT) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=form) as archive:
        for item in items:
            entry = tarfile.TarInfo(item.name)
            entry.type, entry.mode, entry.uid, entry.gid = item.kind, item.mode, item.uid, item.gid
            entry.size, entry.mtime, entry.linkname, entry.pax_headers = len(item.data), item.mtime, item.link, item.pax
            entry.devmajor, entry.devminor = item.device
            archive.addfile(entry, io.BytesIO(item.data))
    return whole.getvalue()


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def zstandard(data: bytes) -> bytes:
    return zstd.compress(data)


def shell_layer(base_store: Path) -> bytes:
    """Return a layer with only a shell and its libraries, from the image `base`."""
    layers = LayerStore(base_store / "layers")
    root = layers.path(ImageStore(base_store / "images", layers).get("base").layers[0])
    library = next(path for path in (root / "usr/lib").glob("*-linux-gnu") if (path / "libc.so.6").exists())
    loader = next(library.glob("ld-linux-*.so.*"))
    place = f"usr/lib/{library.name}"
    return tar(
        folder("tmp", 0o1777), folder("etc"), folder("bin"), folder("proc"), folder("sys"), folder("dev"),
        Item("bin/sh", (root / "usr/bin/dash").read_bytes(), mode=0o755),
        Item(f"{place}/libc.so.6", (library / "libc.so.6").read_bytes(), mode=0o755),
        Item(f"{place}/{loader.name}", loader.read_bytes(), mode=0o755),
        link("lib64", place), link("lib", "usr/lib"),
        Item("etc/passwd", b"root:x:0:0::/root:/bin/sh\nme:x:1234:1234::/srv/me:/bin/sh\n"),
        Item("etc/group", b"root:x:0:\nme:x:1234:\nstaff:x:50:me\n"),
    )  # fmt: skip
