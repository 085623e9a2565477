"""What stands inside so that programs get through the door with no help: certificates to trust, variables that lead to
them, placeholders of secrets, and what presets carry. All in /run/skerry, which is memory: no layer ever holds it."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skerry.engine.rows import Row
from skerry.engine.secrets import Secrets, inspects
from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.keeper import Keeper
from skerry.network import authority
from skerry.network.messages import PROXY, PROXY_PORT
from skerry.types import Network, Preset

log = logging.getLogger("skerry.engine")
DIRECTORY: Final = "/run/skerry"
BUNDLE: Final = f"{DIRECTORY}/ca.pem"
TRUSTSTORE: Final = f"{DIRECTORY}/truststore.p12"
CERTIFICATES_MOST: Final = 1 << 20
_TRUST: Final = {
    **dict.fromkeys(
        (
            "SSL_CERT_FILE",  # OpenSSL, and with it Python, Ruby, Perl, PHP; Go
            "REQUESTS_CA_BUNDLE",
            "PIP_CERT",
            "CURL_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "NODE_EXTRA_CA_CERTS",
            "NPM_CONFIG_CAFILE",
            "CARGO_HTTP_CAINFO",
            "AWS_CA_BUNDLE",
            "DENO_CERT",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
            "NIX_SSL_CERT_FILE",
        ),
        BUNDLE,
    ),
    # GnuTLS, which knows no variable
    "WGETRC": f"{DIRECTORY}/presets/trust/wgetrc",
    "APT_CONFIG": f"{DIRECTORY}/presets/trust/apt.conf",
    "JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={TRUSTSTORE} "
    f"-Djavax.net.ssl.trustStorePassword={authority.STORE_PASSWORD}",
}

_TRUST_FILES: Final = {
    "presets/trust/wgetrc": f"ca_certificate = {BUNDLE}\n".encode(),
    "presets/trust/apt.conf": f'Acquire::https::CAInfo "{BUNDLE}";\n'.encode(),
}
# For programs that prefer to be told: all of their attempts would come to the worker anyway.
_PROXIES: Final = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), f"http://{PROXY}:{PROXY_PORT}"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.0/8,127.0.0.1,::1"),
}
GIVEN: Final = frozenset((*_PROXIES, *_TRUST))  # what a sandbox may have although neither image nor maker set it


def environment(secrets: Secrets, row: Row) -> dict[str, str]:
    """A sandbox's variables: under what the image and its maker set, those that lead to the proxy and to the
    certificates; above all, the placeholders."""
    spec = row.spec
    merged: dict[str, str | None] = {**_PROXIES, **(_TRUST if _trusts_more(secrets, row) else {})}
    merged |= spec.image_env
    for preset in presets(spec.network):
        merged |= preset.env
    merged |= spec.env
    merged |= secrets.placeholders(row)
    return {name: value for name, value in merged.items() if value is not None}


@dataclass(frozen=True)
class Furniture:
    """What is below /run/skerry."""

    certificates: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


def make(secrets: Secrets, row: Row) -> Furniture:
    """With certificates it takes 10 ms, most of it for Java."""
    files = {f"presets/{name}": text.encode() for p in presets(row.spec.network) for name, text in p.files.items()}
    given = "".join(preset.certificates for preset in presets(row.spec.network))
    own = secrets.authority(row)
    certificates = authority.readable(given) + (own.certificate if own is not None else "")
    if certificates:
        files |= _TRUST_FILES
        files["truststore.p12"] = authority.truststore(_host_bundle(), certificates)
    return Furniture(certificates, files)


async def begin(secrets: Secrets, row: Row, *, anew: bool = False) -> Furniture:
    """The same, beside other work; a sandbox that gets nothing costs no thread. `anew`: its life begins."""
    if not (row.spec.network.presets or secrets.needed(row)):
        return Furniture()
    if anew:
        secrets.renew(row)
    return await asyncio.to_thread(make, secrets, row)


async def put(keeper: Keeper, row: Row, furniture: Furniture, *, renew: bool) -> None:
    """Write it inside: at every start, and, to `renew`, when it may have changed. Root inside can be in the way of
    that, which is its own loss."""
    if not (furniture.files or furniture.certificates or renew):
        return
    try:
        await keeper.put_own(furniture.certificates, furniture.files)
    except (QuotaExceeded, InvalidRequest) as error:
        log.warning("not furnished", extra={"sandbox": row.id, "error": error.message})


def check(network: Network) -> None:
    """What presets carry fits."""
    certificates = authority.readable("".join(preset.certificates for preset in presets(network)))
    if len(certificates) > CERTIFICATES_MOST:
        raise InvalidRequest("network.presets: their certificates are more than 1 MiB")


def differ(one: Network, other: Network) -> bool:
    """Whether what goes inside with these policies may differ."""
    return one.presets != other.presets or inspects(one) != inspects(other)


def presets(network: Network) -> tuple[Preset, ...]:
    return tuple(preset for preset in network.presets if isinstance(preset, Preset))


def _trusts_more(secrets: Secrets, row: Row) -> bool:
    return any(p.certificates for p in presets(row.spec.network)) or secrets.authority(row) is not None


@functools.lru_cache(maxsize=1)
def _host_bundle() -> str:
    """What this machine trusts: a Java inside reaches by it what is not inspected."""
    found = ssl.get_default_verify_paths().cafile
    for path in (found, *authority.BUNDLES) if found else authority.BUNDLES:
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            continue
    return ""
