"""Mirrors of registries.conf and certificates of certs.d, as an operator sets them up for podman and docker."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.archives import Item, tar
from support.registry import PASSWORD, USER, Fake, Made
from world import certificates

from skerry.errors import HostUnsupported, PermissionDenied, RegistryError
from skerry.images.archive.unpack import UnpackLimits
from skerry.images.registry import host_config
from skerry.images.registry.blobs import Blobs
from skerry.images.registry.host_config import RegistryEndpoint, endpoints
from skerry.images.registry.pull import Pull
from skerry.storage import Image, ImageStore, LayerStore
from skerry.types import Credentials, Progress, PullRequest, parse_reference

LOGIN = Credentials(username=USER, password=PASSWORD)
IMAGE = Made([tar(Item("file", b"content"))])


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another /etc for this process."""
    monkeypatch.setattr(host_config, "ETC", tmp_path / "etc")
    (tmp_path / "etc/containers/registries.conf.d").mkdir(parents=True)
    return tmp_path / "etc"


def configure(etc: Path, text: str, file: str = "registries.conf") -> None:
    (etc / "containers" / file).write_text(text)


def pull(root: Path, reference: str, **rest: object) -> tuple[Image, list[str]]:
    progress: list[Progress] = []
    images = ImageStore(root / "images", LayerStore(root / "layers"))
    request = PullRequest(reference=reference, **rest)  # type: ignore[arg-type]
    work = Pull(
        images, Blobs(root / "cache/blobs"), request, report=progress.append, pinned=lambda _: None,
        passed=lambda _: None, stall_s=20.0, limits=UnpackLimits(min_free=0),
    )  # fmt: skip
    return work.run(), [one.message for one in progress]


def places(etc: Path, reference: str) -> list[RegistryEndpoint]:
    return endpoints(parse_reference(reference), etc)


def test_longest_prefix_counts_and_is_replaced_by_the_location(etc: Path) -> None:
    configure(etc, """
        unqualified-search-registries = ["docker.io"]
        [[registry]]
        prefix = "quay.io"
        location = "mirror.test:5000/quay"
        [[registry]]
        location = "quay.io/team"
        insecure = true
        [[registry.mirror]]
        location = "near.test/team"
        [[registry.mirror]]
        location = "far.test"
        insecure = true
        [[registry]]
        prefix = "*.internal.test"
        [[registry.mirror]]
        location = "near.test/internal"
        """)  # fmt: skip
    assert places(etc, "quay.io/other/app") == [RegistryEndpoint("mirror.test:5000", "quay/other/app")]
    assert places(etc, "quay.io/team/app") == [
        RegistryEndpoint("near.test", "team/app", mirror=True),
        RegistryEndpoint("far.test", "app", insecure=True, mirror=True),
        RegistryEndpoint("quay.io", "team/app", insecure=True),
    ]
    assert places(etc, "quay.io/teams/app") == [RegistryEndpoint("mirror.test:5000", "quay/teams/app")]
    assert places(etc, "a.internal.test/app")[0] == RegistryEndpoint("near.test", "internal/app", mirror=True)
    assert places(etc, "python") == [RegistryEndpoint("docker.io", "library/python")]


def test_mirrors_for_digests_or_tags_only(etc: Path) -> None:
    configure(etc, """
        [[registry]]
        location = "quay.io"
        mirror-by-digest-only = true
        [[registry.mirror]]
        location = "digests.test"
        [[registry.mirror]]
        location = "tags.test"
        pull-from-mirror = "tag-only"
        """)  # fmt: skip
    assert [one.host for one in places(etc, "quay.io/app:v1")] == ["tags.test", "quay.io"]
    assert [one.host for one in places(etc, f"quay.io/app@sha256:{'0' * 64}")] == ["digests.test", "quay.io"]


def test_later_file_replaces_a_table_and_an_invalid_file_is_an_error(etc: Path) -> None:
    configure(etc, '[[registry]]\nlocation = "quay.io"\nblocked = true\n')
    with pytest.raises(PermissionDenied, match="blocked"):
        places(etc, "quay.io/app")
    configure(etc, '[[registry]]\nlocation = "quay.io"\n', "registries.conf.d/50-open.conf")
    assert places(etc, "quay.io/app") == [RegistryEndpoint("quay.io", "app")]
    for text in ("[[registry", "[[registry]]\nlocation = 1\n", '[[registry]]\nprefix="quay.io"\nlocation = "a b"\n'):
        configure(etc, text, "registries.conf.d/60-bad.conf")
        with pytest.raises(HostUnsupported):
            places(etc, "quay.io/app")


def test_mirror_is_used_first_and_without_the_login(etc: Path, tmp_path: Path) -> None:
    with Fake().running() as mirror, Fake().running() as upstream:
        mirror.push(IMAGE)
        upstream.push(IMAGE)
        configure(
            etc, f'[[registry]]\nlocation = "{upstream.host}"\n[[registry.mirror]]\nlocation = "{mirror.host}/near"\n'
        )
        image, _ = pull(tmp_path, f"{upstream.host}/app", credentials=LOGIN)
    assert upstream.asked == []
    assert {path.split("/")[2] for path, _ in mirror.asked} == {"near"}
    assert [headers for _, headers in mirror.asked if "Authorization" in headers] == []
    assert image.source is not None
    assert image.source.startswith(f"{upstream.host}/app:latest@sha256:")


@pytest.mark.parametrize("failure", ["missing", "login", "unreachable"])
def test_registry_itself_is_used_if_the_mirror_fails(etc: Path, tmp_path: Path, failure: str) -> None:
    with Fake().running() as mirror, Fake().running() as upstream:
        upstream.password = True
        mirror.password = failure == "login"
        upstream.push(IMAGE)
        where = "127.0.0.1:1" if failure == "unreachable" else mirror.host
        configure(etc, f'[[registry]]\nlocation = "{upstream.host}"\n[[registry.mirror]]\nlocation = "{where}"\n')
        image, messages = pull(tmp_path, f"{upstream.host}/app", credentials=LOGIN)
    assert image.layers
    assert [message for message in messages if message.startswith(f"mirror not used: {where}")]


def test_authority_of_certs_d_is_trusted_for_its_registry_only(etc: Path, tmp_path: Path) -> None:
    certificates.make(tmp_path, ["registry.test"], ["127.0.0.1"])
    with Fake(tmp_path).running() as known, Fake(tmp_path).running() as other:
        known.push(IMAGE)
        other.push(IMAGE)
        place = etc / "docker/certs.d" / known.host
        place.mkdir(parents=True)
        os.link(tmp_path / "ca.pem", place / "ca.crt")
        assert pull(tmp_path, f"{known.host}/app")[0].layers
        with pytest.raises(RegistryError, match="is not reachable"):
            pull(tmp_path, f"{other.host}/app")
        (place / "broken.crt").write_text("no certificate")
        with pytest.raises(HostUnsupported, match=r"certs\.d"):
            pull(tmp_path, f"{known.host}/app")


def test_client_certificate_of_certs_d_is_presented(etc: Path, tmp_path: Path) -> None:
    certificates.make(tmp_path, ["registry.test"], ["127.0.0.1"])
    with Fake(tmp_path).running() as fake:
        fake.push(IMAGE)
        place = etc / "containers/certs.d" / fake.host
        place.mkdir(parents=True)
        os.link(tmp_path / "ca.pem", place / "ca.crt")
        context = fake._server.socket.context  # type: ignore[attr-defined]
        make_client_certificate(tmp_path)
        context.load_verify_locations(tmp_path / "client.cert")
        context.verify_mode = ssl.CERT_REQUIRED
        with pytest.raises(RegistryError):
            pull(tmp_path, f"{fake.host}/app")
        for name in ("client.cert", "client.key"):
            os.link(tmp_path / name, place / name)
        assert pull(tmp_path, f"{fake.host}/app")[0].layers


def make_client_certificate(place: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the server of the tests")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (place / "client.cert").write_bytes(made.public_bytes(pem))
    (place / "client.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
