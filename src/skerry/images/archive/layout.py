"""The documents of an image archive: OCI's image layout, and the files that older versions of `docker load` need.
Pure."""

from __future__ import annotations

import hashlib
import json
import os
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_REFERENCE: Final = re.compile(
    r"(?P<name>[a-z0-9]+(?:[._/:-]+[a-z0-9]+)*?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an archive's image. `directory`: pack only its content. `plain`: a tar without the image around
    it, which the keeper can unpack."""

    name: str | None
    created_at: float
    user: str
    cwd: str
    env: dict[str, str]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    directory: str | None = None
    plain: bool = False


def documents(about: About, layer: str, size: int) -> dict[str, bytes]:
    """Return the documents by path in the archive, for an image with this one layer (its hex digest)."""
    config = _json(_config(about, layer))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": _digest(config), "size": len(config)},
            "layers": [{"mediaType": _LAYER, "digest": f"sha256:{layer}", "size": size}],
        }
    )
    name, tag = _reference(about.name)
    notes = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"{name}:{tag}"} if name else {}
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [
            {
                "mediaType": _MANIFEST,
                "digest": _digest(manifest),
                "size": len(manifest),
                "platform": {"architecture": _architecture(), "os": "linux"},
                **({"annotations": notes} if notes else {}),
            }
        ],
    }
    saved = [
        {"Config": blob(config), "RepoTags": [f"{name}:{tag}"] if name else None, "Layers": [f"blobs/sha256/{layer}"]}
    ]
    return {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(saved),
        blob(config): config,
        blob(manifest): manifest,
    }


def blob(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def _config(about: About, layer: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(about.created_at, UTC).isoformat().replace("+00:00", "Z")
    return {
        "created": created,
        "architecture": _architecture(),
        "os": "linux",
        "config": {
            "User": about.user,
            "WorkingDir": about.cwd,
            "Env": [f"{name}={value}" for name, value in about.env.items()],
            **({"Entrypoint": list(about.entrypoint)} if about.entrypoint else {}),
            **({"Cmd": list(about.cmd)} if about.cmd else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "history": [{"created": created, "created_by": "skerry export"}],
    }


def _architecture() -> str:
    machine = os.uname().machine
    return _MACHINES.get(machine, machine)


def _reference(name: str | None) -> tuple[str | None, str]:
    """Return name and tag in registry form; None for a name that registries do not allow."""
    found = _REFERENCE.fullmatch(name) if name else None
    return (found["name"], found["tag"] or "latest") if found else (None, "latest")


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
