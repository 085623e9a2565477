"""The certificates that this machine trusts beyond those which every image with ca-certificates has: a company's own,
or those of a proxy that opens TLS."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from skerry.client.presets.machine import Machine
from skerry.errors import InvalidRequest
from skerry.types.network import PEM_MOST

_VARIABLES: Final = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "GIT_SSL_CAINFO",
)  # fmt: skip
_SYSTEM: Final = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
_DISTRIBUTED: Final = Path(
    "/usr/share/ca-certificates"
)  # Debian's own, from Mozilla; what an administrator adds is not
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----\r?\n([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")


def additions(machine: Machine, bundles: Iterable[Path], texts: Iterable[str] = ()) -> str:
    """PEM, one after the other. Where it can't be told what every image has, it is all that the machine trusts."""
    named = [machine.path(machine.environ[name]) for name in _VARIABLES if machine.environ.get(name)]
    found: dict[bytes, str] = {}
    for text in (*texts, *(machine.read(path) or "" for path in dict.fromkeys((*bundles, *named, *_SYSTEM)))):
        found |= _certificates(text)
    for path in sorted(_DISTRIBUTED.rglob("*.crt")):
        for known in _certificates(machine.read(path) or ""):
            found.pop(known, None)
    pem = "".join(found.values())
    if len(pem) > PEM_MOST:
        raise InvalidRequest(
            f"network.presets: the certificates that this machine trusts are more than {PEM_MOST >> 20} MiB",
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
