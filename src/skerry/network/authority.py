"""A sandbox's own certificate authority, for the few hosts whose TLS the worker opens; trusted by that sandbox alone.

Its key is the server's and the worker's; inside there is its certificate only. Pure: values in, values out."""

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

from skerry.network.messages import Authority

# Where machines keep what they trust.
BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
SHORTEST: Final = datetime.timedelta(days=7)
ENDLESS: Final = datetime.timedelta(days=3650)  # for a sandbox whose life has no end
_MARGIN: Final = datetime.timedelta(days=1)
_LEAF_LIFE: Final = datetime.timedelta(days=397)  # clients refuse leaves that promise more
_BACK: Final = datetime.timedelta(hours=1)
_COMMON_NAME_MOST: Final = 64
STORE_PASSWORD: Final = "changeit"  # noqa: S105 -- Java's own; a truststore holds nothing secret
_LEAF_USAGES: Final = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])


def make(sandbox: str, life_s: float | None) -> Authority:
    """A new one. `life_s`: how long the sandbox may run from now; None: without end."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    # A CA that is met again under the same name with another key confuses clients that keep what they have seen.
    name = _name(f"skerry {sandbox} {secrets.token_hex(4)}")
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + lifetime(life_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate=_pem(certificate), key=_key_pem(key))


def lifetime(life_s: float | None) -> datetime.timedelta:
    """Longer than the sandbox can run, and not much."""
    if life_s is None:
        return ENDLESS
    return min(max(datetime.timedelta(seconds=min(life_s, ENDLESS.total_seconds())) + _MARGIN, SHORTEST), ENDLESS)


def outlives(authority: Authority, life_s: float | None) -> bool:
    """Whether it lasts to the end of a life that begins now; one without end asks for a year."""
    end = x509.load_pem_x509_certificate(authority.certificate.encode()).not_valid_after_utc
    life = ENDLESS / 10 if life_s is None else min(datetime.timedelta(seconds=min(life_s, 1e9)), ENDLESS / 10)
    return end > datetime.datetime.now(datetime.UTC) + life


@dataclass(frozen=True)
class Leaf:
    """A host's certificate with its key, as PEM in one text, as a TLS server wants it."""

    host: str
    pem: bytes

    def __repr__(self) -> str:
        return f"Leaf({self.host!r})"


class Minter:
    """Makes a sandbox's leaves. They share one key: nobody but this process ever has it."""

    def __init__(self, authority: Authority) -> None:
        self._certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
        key = serialization.load_pem_private_key(authority.key.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("a sandbox's CA has an EC key")
        self._key = key
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key_pem = _key_pem(self._leaf_key)

    def leaf(self, host: str) -> Leaf:
        """For exactly this host: a name, or an address."""
        now = datetime.datetime.now(datetime.UTC)
        public = self._leaf_key.public_key()
        short = len(host) <= _COMMON_NAME_MOST
        certificate = (
            x509.CertificateBuilder(
                self._certificate.subject, _name(host) if short else x509.Name([]), public, x509.random_serial_number()
            )
            .not_valid_before(max(now - _BACK, self._certificate.not_valid_before_utc))
            .not_valid_after(min(now + _LEAF_LIFE, self._certificate.not_valid_after_utc))
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=not short)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(_LEAF_USAGES, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Leaf(host, (_pem(certificate) + self._leaf_key_pem).encode())


def truststore(*bundles: str) -> bytes:
    """A Java truststore of all certificates in these PEM texts, each once. What can't be read is left out: a machine's
    bundle may hold certificates that only some libraries take."""
    seen: dict[bytes, x509.Certificate] = {}
    for bundle in bundles:
        for certificate in _certificates(bundle):
            seen.setdefault(certificate.fingerprint(hashes.SHA256()), certificate)
    entries = [pkcs12.PKCS12Certificate(c, b"skerry-%d" % number) for number, c in enumerate(seen.values())]
    if not entries:
        raise ValueError("no certificate to trust")
    # One round: the password is public, and each round is time that a start waits for.
    encryption = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(1)
        .key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(STORE_PASSWORD.encode())
    )
    return pkcs12.serialize_java_truststore(entries, encryption)


def readable(bundle: str) -> str:
    """The certificates of a PEM text and nothing else of it: what stands between them never goes inside."""
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
        warnings.simplefilter("ignore")  # of old roots with odd serial numbers
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


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
