"""The certificate authority of one sandbox, for the few hosts whose TLS the worker intercepts. Only that sandbox trusts
it.

The server and the worker have its key; the sandbox has only its certificate. Pure: values in, values out.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import secrets
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skerry.network.messages import CaKeyPair

# Where distributions keep the system's trusted certificates.
SYSTEM_BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
MIN_LIFETIME: Final = datetime.timedelta(days=7)
MAX_LIFETIME: Final = datetime.timedelta(days=3650)  # for a sandbox without a maximum lifetime
_MARGIN: Final = datetime.timedelta(days=1)
_LEAF_LIFETIME: Final = datetime.timedelta(days=397)  # clients reject leaves with a longer lifetime
_BACKDATED: Final = datetime.timedelta(hours=1)
_MAX_COMMON_NAME: Final = 64
STORE_PASSWORD: Final = "changeit"  # noqa: S105 -- Java's default; a truststore holds nothing secret
_LEAF_USAGES: Final = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])


def create_ca(sandbox: str, lifetime_s: float | None, clock: int | None = None) -> CaKeyPair:
    """Create a CA. `lifetime_s`: how long the sandbox may run from now; None: without end. `clock`: the Unix time at
    which the clock inside stands still: the CA is valid then and now."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    inside = now if clock is None else datetime.datetime.fromtimestamp(clock, datetime.UTC)
    # A second CA with the same name and another key would confuse clients that cache certificates.
    name = _name(f"skerry {sandbox} {secrets.token_hex(4)}")
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(min(now, inside) - _BACKDATED)
        .not_valid_after(max(now, inside) + lifetime(lifetime_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return CaKeyPair(certificate=_pem(certificate), key=_key_pem(key), fixed_clock=clock is not None)


def lifetime(lifetime_s: float | None) -> datetime.timedelta:
    """Return a lifetime that is a little longer than the sandbox can run."""
    if lifetime_s is None:
        return MAX_LIFETIME
    return min(
        max(datetime.timedelta(seconds=min(lifetime_s, MAX_LIFETIME.total_seconds())) + _MARGIN, MIN_LIFETIME),
        MAX_LIFETIME,
    )


def outlives(ca: CaKeyPair, lifetime_s: float | None) -> bool:
    """Return whether the CA lasts for a lifetime that begins now; a lifetime without end requires a year."""
    end = x509.load_pem_x509_certificate(ca.certificate.encode()).not_valid_after_utc
    life = (
        MAX_LIFETIME / 10
        if lifetime_s is None
        else min(datetime.timedelta(seconds=min(lifetime_s, 1e9)), MAX_LIFETIME / 10)
    )
    return end > datetime.datetime.now(datetime.UTC) + life


@dataclass(frozen=True)
class LeafCertificate:
    """A host's certificate with its key, as PEM in one text for a TLS server."""

    host: str
    pem: bytes

    def __repr__(self) -> str:
        return f"LeafCertificate({self.host!r})"


class LeafIssuer:
    """Issues a sandbox's leaf certificates. They share one key, which never leaves this process."""

    def __init__(self, ca: CaKeyPair) -> None:
        self._certificate = x509.load_pem_x509_certificate(ca.certificate.encode())
        key = serialization.load_pem_private_key(ca.key.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("a sandbox's CA has an EC key")
        self._key, self._fixed_clock = key, ca.fixed_clock
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key_pem = _key_pem(self._leaf_key)

    def leaf(self, host: str) -> LeafCertificate:
        """Issue a certificate for exactly this host: a name or an address."""
        start, end = self._validity()
        public = self._leaf_key.public_key()
        short = len(host) <= _MAX_COMMON_NAME
        certificate = (
            x509.CertificateBuilder(
                self._certificate.subject, _name(host) if short else x509.Name([]), public, x509.random_serial_number()
            )
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=not short)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_ca=False), critical=True)
            .add_extension(_LEAF_USAGES, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return LeafCertificate(host, (_pem(certificate) + self._leaf_key_pem).encode())

    def _validity(self) -> tuple[datetime.datetime, datetime.datetime]:
        first, last = self._certificate.not_valid_before_utc, self._certificate.not_valid_after_utc
        if self._fixed_clock:
            return first, last
        now = datetime.datetime.now(datetime.UTC)
        return max(now - _BACKDATED, first), min(now + _LEAF_LIFETIME, last)


def truststore(*bundles: str) -> bytes:
    """Return a Java truststore of all certificates in these PEM texts, each once. Skip unreadable ones: a system's
    bundle may hold certificates that only some libraries accept."""
    seen: dict[bytes, x509.Certificate] = {}
    for bundle in bundles:
        for certificate in _certificates(bundle):
            seen.setdefault(certificate.fingerprint(hashes.SHA256()), certificate)
    entries = [pkcs12.PKCS12Certificate(c, b"skerry-%d" % number) for number, c in enumerate(seen.values())]
    if not entries:
        raise ValueError("no certificate to trust")
    # One round: the password is public, and every round delays the start of a sandbox.
    encryption = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(1)
        .key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(STORE_PASSWORD.encode())
    )
    return pkcs12.serialize_java_truststore(entries, encryption)


def only_certificates(bundle: str) -> str:
    """Return only the certificates of a PEM text: any text between them must not enter the sandbox."""
    return "".join(_pem(certificate) for certificate in _certificates(bundle))


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


@functools.lru_cache(maxsize=8)
def _certificates(bundle: str) -> tuple[x509.Certificate, ...]:
    return tuple(_parsed(_blocks(bundle)))


def _blocks(bundle: str) -> Iterable[str]:
    for piece in bundle.split(_BEGIN)[1:]:
        body, end, _ = piece.partition(_END)
        if end:
            yield f"{_BEGIN}{body}{_END}\n"


def _parsed(blocks: Iterable[str]) -> Iterable[x509.Certificate]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old roots with odd serial numbers
        for block in blocks:
            try:
                certificate = x509.load_pem_x509_certificate(block.encode())
                certificate.public_bytes(serialization.Encoding.DER)
            except ValueError:
                continue
            yield certificate


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=is_ca, crl_sign=is_ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
