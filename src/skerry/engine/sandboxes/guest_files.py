"""Guest files: the files and variables that let programs use the gateway without configuration. Certificates to trust,
variables that point to them, placeholders of secrets, and the files of presets. All are in /run/skerry, which is
memory: no layer ever contains them."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skerry.engine.network.secrets import SecretStore, inspects
from skerry.engine.sandboxes import reproducible
from skerry.engine.sandboxes.record import SandboxRecord
from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.keeper import Keeper
from skerry.network import ca
from skerry.network.messages import PROXY_IP, PROXY_PORT
from skerry.types import Network, Preset

log = logging.getLogger("skerry.engine")
DIRECTORY: Final = "/run/skerry"
BUNDLE: Final = f"{DIRECTORY}/ca.pem"
TRUSTSTORE: Final = f"{DIRECTORY}/truststore.p12"
MAX_CERTIFICATES: Final = 1 << 20
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
    f"-Djavax.net.ssl.trustStorePassword={ca.STORE_PASSWORD}",
}

_TRUST_FILES: Final = {
    "presets/trust/wgetrc": f"ca_certificate = {BUNDLE}\n".encode(),
    "presets/trust/apt.conf": f'Acquire::https::CAInfo "{BUNDLE}";\n'.encode(),
}
# For programs that use a configured proxy. Without these variables their connections would reach the worker too.
_PROXIES: Final = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), f"http://{PROXY_IP}:{PROXY_PORT}"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.0/8,127.0.0.1,::1"),
}
PROVIDED_VARIABLES: Final = frozenset(
    (*_PROXIES, *_TRUST, *reproducible.VARIABLES)
)  # variables that a sandbox may have although neither the image nor the caller set them


def environment(secrets: SecretStore, record: SandboxRecord) -> dict[str, str]:
    """Return a sandbox's variables. From lowest to highest precedence: proxy and certificates, the image, fixed
    values of a reproducible sandbox, presets, the caller, placeholders of secrets."""
    spec = record.spec
    merged: dict[str, str | None] = {**_PROXIES, **(_TRUST if _trusts_more(secrets, record) else {})}
    merged |= spec.image_env
    merged |= reproducible.environment(spec.options)
    for preset in presets(spec.network):
        merged |= preset.env
    merged |= spec.env
    merged |= secrets.placeholders(record)
    return {name: value for name, value in merged.items() if value is not None}


@dataclass(frozen=True)
class GuestFiles:
    """The files below /run/skerry."""

    certificates: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


def build(secrets: SecretStore, record: SandboxRecord) -> GuestFiles:
    """With certificates it takes 10 ms, most of it for Java."""
    files = {f"presets/{name}": text.encode() for p in presets(record.spec.network) for name, text in p.files.items()}
    given = "".join(preset.certificates for preset in presets(record.spec.network))
    own = secrets.authority(record)
    certificates = ca.only_certificates(given) + (own.certificate if own is not None else "")
    if certificates:
        files |= _TRUST_FILES
        files["truststore.p12"] = ca.truststore(_host_bundle(), certificates)
    return GuestFiles(certificates, files)


async def prepare(secrets: SecretStore, record: SandboxRecord, *, new_lifetime: bool = False) -> GuestFiles:
    """Build the files in a thread; a sandbox without any costs no thread. `new_lifetime`: a lifetime begins, so that an
    expiring CA is replaced."""
    if not (record.spec.network.presets or secrets.needed(record)):
        return GuestFiles()
    if new_lifetime:
        secrets.renew(record)
    return await asyncio.to_thread(build, secrets, record)


async def write(keeper: Keeper, record: SandboxRecord, files: GuestFiles, *, renew: bool) -> None:
    """Write it inside: at every start, and, to `renew`, when it may have changed. Root inside can be in the way of
    that, which is its own loss."""
    if not (files.files or files.certificates or renew):
        return
    try:
        await keeper.put_guest_files(files.certificates, files.files)
    except (QuotaExceeded, InvalidRequest) as error:
        log.warning("failed to write guest files", extra={"sandbox": record.id, "error": error.message})


def check(network: Network) -> None:
    """Raise InvalidRequest if the certificates of presets are too large."""
    certificates = ca.only_certificates("".join(preset.certificates for preset in presets(network)))
    if len(certificates) > MAX_CERTIFICATES:
        raise InvalidRequest("network.presets: their certificates are more than 1 MiB")


def files_differ(one: Network, other: Network) -> bool:
    """Return whether the guest files of these policies may differ."""
    return one.presets != other.presets or inspects(one) != inspects(other)


def presets(network: Network) -> tuple[Preset, ...]:
    return tuple(preset for preset in network.presets if isinstance(preset, Preset))


def _trusts_more(secrets: SecretStore, record: SandboxRecord) -> bool:
    return any(p.certificates for p in presets(record.spec.network)) or secrets.authority(record) is not None


@functools.lru_cache(maxsize=1)
def _host_bundle() -> str:
    """Return the certificates that this host trusts: Java programs need them for hosts that are not intercepted."""
    found = ssl.get_default_verify_paths().cafile
    for path in (found, *ca.SYSTEM_BUNDLES) if found else ca.SYSTEM_BUNDLES:
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            continue
    return ""
