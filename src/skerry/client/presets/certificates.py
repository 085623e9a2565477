"""The certificates that this machine trusts in addition to those of every image with ca-certificates: a company's, or
those of a proxy that intercepts TLS."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from skerry.client.presets.machine import Machine
from skerry.errors import InvalidRequest
from skerry.types.network import MAX_PEM

_VARIABLES: Final = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "GIT_SSL_CAINFO",
)  # fmt: skip
_SYSTEM: Final = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
_DISTRIBUTED: Final = Path(
    "/usr/share/ca-certificates"
)  # Debian's certificates, from Mozilla; an administrator's additions are elsewhere
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----\r?\n([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")


def additions(machine: Machine, bundles: Iterable[Path], texts: Iterable[str] = ()) -> str:
    """Return PEM certificates. If the standard set is unknown, return all certificates that the machine trusts."""
    named = [machine.path(machine.environ[name]) for name in _VARIABLES if machine.environ.get(name)]
    found: dict[bytes, str] = {}
    for text in (*texts, *(machine.read(path) or "" for path in dict.fromkeys((*bundles, *named, *_SYSTEM)))):
        found |= _certificates(text)
    for path in sorted(_DISTRIBUTED.rglob("*.crt")):
        for known in _certificates(machine.read(path) or ""):
            found.pop(known, None)
    pem = "".join(found.values())
    if len(pem) > MAX_PEM:
        raise InvalidRequest(
            f"network.presets: the certificates that this machine trusts are more than {MAX_PEM >> 20} MiB",
            hint="point SSL_CERT_FILE to a bundle of those that are needed",
        )
    return pem


def _certificates(text: str) -> dict[bytes, str]:
    found = {}
    for match in _PEM.finditer(text):
        try:
            der = ssl.PEM_cert_to_DER_cert(match[0].replace("\r", ""))
        except ValueError:
            continue
        found[der] = ssl.DER_cert_to_PEM_cert(der)
    return found
