"""Pulls from registries: from a real one, and from one that lies, stalls and breaks off."""

from __future__ import annotations

import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from support.archives import Item, folder, gzipped, tar, zstandard
from support.registry import (
    IDENTITY,
    INDEX,
    LAYER,
    PASSWORD,
    USER,
    ZSTD,
    Fake,
    Handler,
    Made,
    Real,
    Tokens,
    digest,
    index_of,
    stall,
    with_password,
)
from world import certificates

from skerry.errors import Conflict, InvalidRequest, NotFound, PermissionDenied, RegistryError, SkerryError
from skerry.images.archive.unpack import UnpackLimits
from skerry.images.registry import blobs
from skerry.images.registry.blobs import Blobs
from skerry.images.registry.client import Registry
from skerry.images.registry.pull import Pull
from skerry.storage import Image, ImageStore, LayerStore
from skerry.types import Credentials, Progress, PullRequest, parse_reference

LOWER = tar(folder("etc"), Item("etc/os", b"lower"), folder("opt"), Item("opt/old", b"1"), Item("gone", b"1"))
UPPER = tar(folder("etc"), Item("etc/os", b"upper"), Item(".wh.gone"), folder("opt"), Item("opt/.wh..wh..opq"))
BIG = tar(Item("big", os.urandom(1 << 20)))
LOGIN = Credentials(username=USER, password=PASSWORD)


class PullHarness:
    """An image store and the other arguments of a pull."""

    def __init__(self, root: Path) -> None:
        self.images = ImageStore(root / "images", LayerStore(root / "layers"))
        self.blobs = Blobs(root / "cache/blobs")
        self.progress: list[Progress] = []
        self.pinned: list[str] = []
        self.steps: list[str] = []

    def pull(self, reference: str, *, stall_s: float = 5.0, **rest: object) -> Image:
        return self.work(reference, stall_s=stall_s, **rest).run()

    def work(self, reference: str, *, stall_s: float = 5.0, **rest: object) -> Pull:
        return Pull(
            self.images, self.blobs, PullRequest(reference=reference, **rest),  # type: ignore[arg-type]
            report=self.progress.append, pinned=self.pinned.append, passed=self.steps.append, stall_s=stall_s,
            limits=UnpackLimits(min_free=0),
        )  # fmt: skip

    def messages(self) -> list[str]:
        return [progress.message for progress in self.progress]

    def content(self, image: Image, name: str) -> bytes:
        """Return the file from the topmost layer that has it."""
        for layer in image.layers:
            path = self.images.layers.path(layer) / name
            if path.is_file():
                return path.read_bytes()
        raise FileNotFoundError(name)


@pytest.fixture
def harness(tmp_path: Path) -> PullHarness:
    return PullHarness(tmp_path)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with Real(tmp_path_factory.mktemp("registry")).running() as registry:
        yield registry


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake().running() as registry:
        yield registry


# -- a real registry --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packed", "kind", "docker"),
    [(gzipped, LAYER, False), (zstandard, ZSTD, False), (gzipped, LAYER, True)],
    ids=["oci gzip", "oci zstd", "docker"],
)
def test_a_pulled_image_has_its_layers_and_configuration(
    harness: PullHarness, real: Real, packed: Callable[[bytes], bytes], kind: str, docker: bool
) -> None:
    says = {"Env": ["PATH=/bin", "A=b=c"], "User": "me:group", "WorkingDir": "/srv"}
    says |= {"Entrypoint": ["/run", "x"], "Cmd": ["y"]}
    pushed = real.push("some/app", Made([LOWER, UPPER], packed, kind, says, docker=docker), "v1")
    image = harness.pull(f"{real.host}/some/app:v1")
    assert (image.name, image.source) == (f"{real.host}/some/app:v1", f"{real.host}/some/app:v1@{pushed}")
    assert (image.user, image.cwd, image.env) == ("me:group", "/srv", {"PATH": "/bin", "A": "b=c"})
    assert (image.entrypoint, image.cmd, image.platform) == (("/run", "x"), ("y",), "linux/amd64")
    assert harness.content(image, "etc/os") == b"upper"
    assert len(image.layers) == 2
    assert image.size == sum(harness.images.layers.size(layer) for layer in image.layers) > 0
    assert all(harness.images.layers.verify(layer) for layer in image.layers)
    assert set(harness.pinned) == set(image.layers)
    assert [name for name in os.listdir(harness.blobs.root) if not name.endswith(".json")] == []


def test_a_pulled_image_is_found_by_every_spelling_of_its_name(harness: PullHarness, real: Real) -> None:
    pushed = real.push("names", Made([LOWER]))
    image = harness.pull(f"{real.host}/names", name="mine")
    assert image.name == "mine"
    for name in ("mine", f"{real.host}/names", f"{real.host}/names:latest", f"{real.host}/names@{pushed}"):
        assert harness.images.get(name) == image
    with pytest.raises(NotFound):
        harness.images.get(f"{real.host}/names:other")


def test_an_index_gives_the_image_of_the_requested_platform(harness: PullHarness, real: Real) -> None:
    one, other = Made([tar(Item("is", b"amd64"))]), Made([tar(Item("is", b"arm64"))], platform=("linux", "arm64"))
    real.push("many", one, "a")
    real.push("many", other, "b")
    index_digest = real.put("many", "latest", index_of(other, one, attested=False), INDEX)
    image = harness.pull(f"{real.host}/many")
    assert harness.content(image, "is") == b"amd64"
    assert image.source == f"{real.host}/many:latest@{index_digest}"
    image = harness.pull(f"{real.host}/many@{index_digest}", platform="linux/arm64")
    assert (harness.content(image, "is"), image.platform) == (b"arm64", "linux/arm64")
    with pytest.raises(InvalidRequest, match="linux/s390x") as caught:
        harness.pull(f"{real.host}/many", platform="linux/s390x")
    assert "linux/amd64, linux/arm64" in (caught.value.hint or "")
    with pytest.raises(InvalidRequest, match="for linux/arm64"):
        harness.pull(f"{real.host}/many:b")


def test_index_entries_without_a_platform_are_skipped(harness: PullHarness, fake: Fake) -> None:
    image = Made([LOWER])
    fake.push(image)
    fake.manifests["latest"] = (INDEX, index_of(image))
    assert harness.pull(f"{fake.host}/app").layers


def test_a_layer_that_two_images_share_is_fetched_and_stored_once(harness: PullHarness, real: Real) -> None:
    real.push("shared", Made([LOWER, UPPER]), "one")
    real.push("shared", Made([LOWER, BIG]), "two")
    first = harness.pull(f"{real.host}/shared:one")
    harness.progress.clear()
    second = harness.pull(f"{real.host}/shared:two")
    assert first.layers[1] == second.layers[1]
    assert harness.messages().count("already here") == 1
    assert len(harness.images.layers.digests()) == 3
    harness.progress.clear()
    assert harness.pull(f"{real.host}/shared:two").layers == second.layers
    assert harness.messages().count("already here") == 2


def test_several_pulls_at_once_do_the_same_work_once(harness: PullHarness, real: Real) -> None:
    real.push("busy", Made([BIG, LOWER, UPPER]))
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda n: harness.pull(f"{real.host}/busy", name=f"busy{n}"), range(4)))
    assert len({image.layers for image in images}) == 1
    assert harness.steps.count("pull.layer") == 3
    assert len(harness.images.list()) == 4


def test_empty_and_repeated_layers_are_stacked_once(harness: PullHarness, real: Real) -> None:
    real.push("odd", Made([LOWER, bytes(10240), UPPER, bytes(10240), LOWER]))
    image = harness.pull(f"{real.host}/odd")
    assert len(image.layers) == 2
    assert harness.content(image, "etc/os") == b"lower"


def test_a_missing_image_is_not_found(harness: PullHarness, real: Real) -> None:
    with pytest.raises(NotFound, match="no/such"):
        harness.pull(f"{real.host}/no/such:thing")
    assert harness.images.list() == []


def test_a_password_opens_a_registry(harness: PullHarness, tmp_path: Path) -> None:
    with with_password(tmp_path / "registry").running() as registry:
        registry.push("app", Made([LOWER]))
        for wrong in (None, Credentials(username=USER, password="wrong")):
            with pytest.raises(PermissionDenied) as caught:
                harness.pull(f"{registry.host}/app", credentials=wrong)
            assert "--password-stdin" in (caught.value.hint or "")
            assert "wrong" not in str(caught.value)
        harness.pull(f"{registry.host}/app", credentials=LOGIN)


def test_a_token_opens_a_registry_for_permitted_users(harness: PullHarness, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "registry")
    with tokens.registry() as registry:
        for name in ("public/app", "private/app"):
            registry.headers = {"Authorization": f"Bearer {tokens.token(name, 'pull,push')}"}
            registry.push(name, Made([LOWER, UPPER, BIG]))
        harness.pull(f"{registry.host}/public/app")
        with pytest.raises(PermissionDenied):
            harness.pull(f"{registry.host}/private/app")
        harness.pull(f"{registry.host}/private/app", credentials=LOGIN)
        assert tokens.given <= 3, "one token does for all layers"


# -- one of ours ------------------------------------------------------------------------------------------------------


def nothing_is_left(harness: PullHarness) -> None:
    assert harness.images.list() == []
    assert harness.images.layers.digests() == []
    parts = os.listdir(harness.blobs.root) if harness.blobs.root.exists() else []
    assert [name for name in parts if name.startswith("tree-")] == []


def test_a_token_of_an_earlier_login_opens_a_registry_too(harness: PullHarness, fake: Fake) -> None:
    fake.push(Made([LOWER]))
    fake.token_realm = True
    with pytest.raises(PermissionDenied):
        harness.pull(f"{fake.host}/app", credentials=Credentials(identity_token="another"))
    harness.pull(f"{fake.host}/app", credentials=Credentials(identity_token=IDENTITY))


def test_a_login_is_not_sent_to_redirect_targets(harness: PullHarness, fake: Fake) -> None:
    image = Made([LOWER])
    fake.push(image)
    fake.password = True
    layer = digest(image.layers[0])
    with Fake().running() as elsewhere:
        elsewhere.blobs[layer] = image.layers[0]

        def send_on(handler: Handler) -> bool:
            handler.send(307, b"", {"Location": f"http://localhost:{elsewhere.host.partition(':')[2]}/x/blobs/{layer}"})
            return True

        fake.manners[layer] = send_on
        harness.pull(f"{fake.host}/app", credentials=LOGIN)
        assert [headers.get("Authorization") for _, headers in elsewhere.asked] == [None]


@pytest.mark.parametrize("realm", ["http://192.0.2.1/token", "http://[token"])
def test_a_local_registry_cannot_redirect_a_login_to_plain_http(harness: PullHarness, fake: Fake, realm: str) -> None:
    """The registry itself is allowed without TLS only because it is local."""
    fake.push(Made([LOWER]))

    def ask(handler: Handler) -> bool:
        handler.send(401, b"{}", {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'})
        return True

    fake.manners["*"] = ask
    with pytest.raises(RegistryError, match="an address without TLS"):
        harness.pull(f"{fake.host}/app", credentials=LOGIN)


@pytest.mark.parametrize("what", ["the manifest", "the configuration", "a layer", "more of a layer", "another layer"])
def test_wrong_digests_are_detected(harness: PullHarness, fake: Fake, what: str) -> None:
    image = Made([LOWER])
    tag = fake.push(image)
    layer = digest(image.layers[0])
    if what == "the manifest":
        fake.manifests[tag] = (image.kind, image.manifest + b" ")
    elif what == "the configuration":
        fake.blobs[digest(image.settings)] = image.settings + b" "
    else:
        flipped = bytes([*image.layers[0][:-1], image.layers[0][-1] ^ 1])
        fake.blobs[layer] = {
            "a layer": flipped, "more of a layer": image.layers[0] + b"x", "another layer": gzipped(UPPER)
        }[what]  # fmt: skip
    with pytest.raises(RegistryError) as caught:
        harness.pull(f"{fake.host}/app@{tag}")
    assert caught.value.details["reason"] in ("digest", "stalled"), caught.value
    nothing_is_left(harness)
    if what != "another layer":
        fake.push(image)
        assert harness.pull(f"{fake.host}/app@{tag}").layers


def test_a_layer_with_the_wrong_diff_id_is_rejected(harness: PullHarness, fake: Fake) -> None:
    image, other = Made([LOWER]), Made([UPPER])
    image.manifest = image.manifest.replace(digest(image.layers[0]).encode(), digest(other.layers[0]).encode())
    image.manifest = image.manifest.replace(
        f'"size": {len(image.layers[0])}'.encode(), f'"size": {len(other.layers[0])}'.encode()
    )
    fake.push(other)
    fake.push(image)
    with pytest.raises(InvalidRequest, match="unpacks to"):
        harness.pull(f"{fake.host}/app")
    nothing_is_left(harness)


@pytest.mark.parametrize("where", ["latest", "layer"])
def test_a_stalled_registry_times_out(harness: PullHarness, fake: Fake, where: str) -> None:
    image = Made([LOWER])
    fake.push(image)
    fake.manners[digest(image.layers[0]) if where == "layer" else where] = stall
    with pytest.raises(RegistryError, match="sent no data") as caught:
        harness.pull(f"{fake.host}/app", stall_s=0.2)
    assert caught.value.details["reason"] == "stalled"
    nothing_is_left(harness)


@pytest.mark.parametrize("where", ["before it answers", "in a layer"])
def test_a_stalled_pull_can_be_stopped(harness: PullHarness, fake: Fake, where: str) -> None:
    image = Made([LOWER])
    fake.push(image)
    waits = threading.Event()

    def hold(handler: Handler) -> bool:
        waits.set()
        return stall(handler, answers=where == "in a layer")

    fake.manners[digest(image.layers[0])] = hold
    work = harness.work(f"{fake.host}/app", stall_s=60)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work.run)
        assert waits.wait(20)
        work.stop(SkerryError("the server is stopping"))
        with pytest.raises(SkerryError, match="is stopping"):
            done.result(20)
    nothing_is_left(harness)


@pytest.mark.parametrize("where", ["latest", "layer"])
def test_an_html_page_is_rejected(harness: PullHarness, fake: Fake, where: str) -> None:
    def page(handler: Handler) -> bool:
        handler.send(200, b"<!doctype html><title>Log in to the hotel</title>", {"Content-Type": "text/html"})
        return True

    image = Made([LOWER])
    fake.push(image)
    fake.manners[digest(image.layers[0]) if where == "layer" else where] = page
    with pytest.raises(RegistryError, match="HTML") as caught:
        harness.pull(f"{fake.host}/app")
    assert "hotel" not in str(caught.value)
    nothing_is_left(harness)


@pytest.mark.parametrize(
    "manifest",
    [
        b"", b"[]", b"{}", b"null", b'{"schemaVersion":1}', b"{" * 5000,
        b'{"schemaVersion":2,"config":{"digest":"sha256:../../etc/passwd","size":1},"layers":[]}',
        b'{"manifests":[{"digest":"sha256:1","size":-1}]}',
    ],
    ids=["empty", "list", "object", "null", "version 1", "deep", "path", "negative"],
)  # fmt: skip
def test_invalid_manifests_are_rejected(harness: PullHarness, fake: Fake, manifest: bytes) -> None:
    fake.manifests["latest"] = ("application/vnd.oci.image.manifest.v1+json", manifest)
    with pytest.raises(InvalidRequest):
        harness.pull(f"{fake.host}/app")
    nothing_is_left(harness)


def test_an_interrupted_layer_is_resumed(harness: PullHarness, fake: Fake) -> None:
    """Twice within one pull, and once more from where the last one was given up."""
    image = Made([BIG])
    fake.push(image)
    layer, data = digest(image.layers[0]), image.layers[0]
    cuts = [100_000, 300_000]

    def cut(handler: Handler) -> bool:
        if not cuts:
            return False
        handler.send_blob(data, upto=cuts.pop(0))
        return True

    fake.manners[layer] = cut
    pulled = harness.pull(f"{fake.host}/app")
    ranges = [headers.get("Range") for path, headers in fake.asked if layer in path]
    assert ranges == [None, "bytes=100000-", "bytes=300000-"]
    assert harness.images.layers.verify(pulled.layers[0])


def test_a_registry_that_interrupts_every_transfer_is_given_up(
    harness: PullHarness, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transfer makes progress, so that no single one is a reason to give up."""
    monkeypatch.setattr(blobs, "MAX_TRANSFERS", 7)
    image = Made([BIG])
    fake.push(image)
    layer, data = digest(image.layers[0]), image.layers[0]
    sent = [0]

    def trickle(handler: Handler) -> bool:
        sent[0] += 1000
        handler.send_blob(data, upto=sent[0])
        return True

    fake.manners[layer] = trickle
    with pytest.raises(RegistryError, match="interrupted a layer 7 times"):
        harness.pull(f"{fake.host}/app")
    assert sum(layer in path for path, _ in fake.asked) == 7


@pytest.mark.parametrize("part", ["right", "wrong", "too long"])
def test_valid_partial_blobs_of_an_earlier_pull_are_reused(harness: PullHarness, fake: Fake, part: str) -> None:
    image = Made([BIG])
    fake.push(image)
    layer, data = digest(image.layers[0]), image.layers[0]
    harness.blobs.root.mkdir(parents=True)
    harness.blobs.part(layer).write_bytes({"right": data[:5000], "wrong": bytes(5000), "too long": data + b"x"}[part])
    harness.pull(f"{fake.host}/app")
    ranges = [headers.get("Range") for path, headers in fake.asked if layer in path]
    assert ranges == {"right": ["bytes=5000-"], "wrong": ["bytes=5000-", None], "too long": [None]}[part]


def test_a_registry_without_ranges_restarts_the_blob(harness: PullHarness, fake: Fake) -> None:
    image = Made([BIG])
    fake.push(image)
    layer, data = digest(image.layers[0]), image.layers[0]

    def whole(handler: Handler) -> bool:
        handler.send(200, data, {})
        return True

    fake.manners[layer] = whole
    harness.blobs.root.mkdir(parents=True)
    harness.blobs.part(layer).write_bytes(bytes(5000))
    harness.pull(f"{fake.host}/app")


def test_temporary_registry_failures_are_retried(harness: PullHarness, fake: Fake) -> None:
    fake.push(Made([LOWER]))
    failures = [500, 503]

    def fail(handler: Handler) -> bool:
        if failures:
            handler.send(failures.pop(), b"", {})
            return True
        return False

    fake.manners["latest"] = fail
    harness.pull(f"{fake.host}/app")


def test_a_damaged_layer_stops_the_others_and_leaves_no_tree(harness: PullHarness, fake: Fake) -> None:
    bad = tar(Item("../out", b"x"))
    fake.push(Made([BIG, bad, LOWER]))
    with pytest.raises(InvalidRequest, match="leads out"):
        harness.pull(f"{fake.host}/app")
    assert harness.images.list() == []
    assert [name for name in os.listdir(harness.blobs.root) if name.startswith("tree-")] == []


def test_names_of_other_images_are_rejected(harness: PullHarness, fake: Fake) -> None:
    fake.push(Made([LOWER]))
    with pytest.raises(InvalidRequest, match="Skerry's own"):
        harness.pull(f"{fake.host}/app", name="base")
    image = harness.pull(f"{fake.host}/app", name="mine")
    harness.images.put(Image(name="built", digest="x", layers=image.layers, size=1, created_at=0))
    with pytest.raises(Conflict, match="not pulled"):
        harness.pull(f"{fake.host}/app", name="built")


def test_plain_http_is_used_only_for_local_or_insecure_registries(
    harness: PullHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`registry.test` is this machine too, as the resolver of this test has it; but a name proves nothing."""
    with Fake().running() as fake:
        fake.push(Made([LOWER]))
        port = fake.host.partition(":")[2]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", int(port)))])
        with pytest.raises(RegistryError, match="is not reachable"):
            harness.pull(f"registry.test:{port}/app")
        assert fake.asked == []
        assert harness.pull(f"registry.test:{port}/app", insecure=True).layers
        assert harness.pull(f"localhost:{port}/app").layers


def test_a_certificate_is_trusted_by_environment_or_insecure_flag(
    harness: PullHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path, ["registry.test"], ["127.0.0.1"])
    with Fake(tmp_path).running() as fake:
        fake.push(Made([LOWER]))
        with pytest.raises(RegistryError, match="is not reachable"):
            harness.pull(f"{fake.host}/app")
        assert harness.pull(f"{fake.host}/app", insecure=True).layers
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert harness.pull(f"{fake.host}/app").layers


def test_the_servers_proxy_is_used_but_for_this_machine(
    harness: PullHarness, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.push(Made([LOWER]))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://{fake.host}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert harness.pull("registry.invalid/app", insecure=True).layers
    assert fake.asked[0][0].startswith("http://registry.invalid/v2/")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert harness.pull(f"{fake.host}/app").layers


def test_keeper_files_in_an_image_are_removed(harness: PullHarness, fake: Fake) -> None:
    """An image may be made of a sandbox's files, or forge a sandbox's past."""
    fake.push(Made([tar(Item("var/lib/skerry/p-aaaaaaaaaa/journal", b"x"), Item("var/lib/kept", b"1"))]))
    root = harness.images.layers.path(harness.pull(f"{fake.host}/app").layers[0])
    assert os.listdir(root / "var/lib") == ["kept"]


def test_skipped_devices_are_reported(harness: PullHarness, fake: Fake) -> None:
    fake.push(Made([tar(Item("dev/sda", kind=tarfile.BLKTYPE, device=(8, 0)), Item("f", b"1"))]))
    harness.pull(f"{fake.host}/app")
    notices = [told.message for told in harness.progress if told.stage == "notice"]
    assert len(notices) == 1
    assert notices[0].startswith("left out dev/sda: it is a device")


def test_a_resumed_layer_that_the_registry_rejects_is_restarted(harness: PullHarness, fake: Fake) -> None:
    """416: its blob is shorter, or it does not resume."""
    image = Made([BIG])
    fake.push(image)
    layer, data = digest(image.layers[0]), image.layers[0]

    def reject_ranges(handler: Handler) -> bool:
        if handler.headers.get("Range"):
            handler.send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return True
        return False

    fake.manners[layer] = reject_ranges
    harness.blobs.root.mkdir(parents=True)
    harness.blobs.part(layer).write_bytes(data[:5000])
    assert harness.pull(f"{fake.host}/app").layers
    assert [headers.get("Range") for path, headers in fake.asked if layer in path] == ["bytes=5000-", None]


@pytest.mark.parametrize("status", [429, 503])
def test_the_pause_that_a_registry_requests_is_kept(fake: Fake, status: int) -> None:
    fake.push(Made([LOWER]))
    busy = ["7", format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)]

    def later(handler: Handler) -> bool:
        if busy:
            handler.send(status, b"", {"Retry-After": busy.pop(0)})
            return True
        return False

    fake.manners["latest"] = later
    pauses: list[float] = []
    registry = Registry(parse_reference(f"{fake.host}/app"), pause=pauses.append)
    # After the first pause, the registry requests an hour, which is an error.
    with pytest.raises(RegistryError, match=f"is busy .{status}.") as caught:
        registry.manifest("latest")
    assert pauses == [7.0]
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("it requests a pause of 3")
    assert registry.manifest("latest")
    registry.close()


def test_layers_are_not_requested_again_during_a_requested_pause(harness: PullHarness, fake: Fake) -> None:
    image = Made([LOWER])
    fake.push(image)
    layer = digest(image.layers[0])
    fake.manners[layer] = lambda handler: handler.send(429, b"", {"Retry-After": "3600"}) is None
    with pytest.raises(RegistryError, match="is busy"):
        harness.pull(f"{fake.host}/app")
    assert len([path for path, _ in fake.asked if layer in path]) == 1
