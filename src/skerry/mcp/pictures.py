"""Pictures that come from inside: only what is one is passed on as one."""

from __future__ import annotations

_PNG = b"\x89PNG\r\n\x1a\n"
SIDE_MOST = 20_000  # pixels


def kind_of(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, GIF or WebP that is whole; None for all else, whatever its name says."""
    if data.startswith(_PNG):
        return "image/png" if _is_png(data) else None
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg" if data.rstrip(b"\0").endswith(b"\xff\xd9") else None
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif" if data.endswith(b"\x3b") and _sane(data[6:8], data[8:10], "little") else None
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp" if int.from_bytes(data[4:8], "little") + 8 <= len(data) else None
    return None


def _is_png(data: bytes) -> bool:
    if data[8:16] != b"\0\0\0\rIHDR" or not data.endswith(b"\0\0\0\0IEND\xaeB`\x82"):
        return False
    return _sane(data[16:20], data[20:24], "big")


def _sane(width: bytes, height: bytes, order: str) -> bool:
    sides = [int.from_bytes(side, "big" if order == "big" else "little") for side in (width, height)]
    return all(0 < side <= SIDE_MOST for side in sides)
