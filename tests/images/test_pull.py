"""Pulls from registries: from a real one, and from one that lies, stalls and breaks off."""

from __future__ import annotations

import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from archives import Item, folder, gzipped, tar, zstandard
from registries import (
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

from skerry.errors import Conflict, Denied, InvalidRequest, NotFound, RegistryFailed, SkerryError
from skerry.images.blobs import Blobs
from skerry.images.pull import Pull
from skerry.images.unpack import Bounds
from skerry.storage import Image, ImageStore, LayerStore
from skerry.types import Credentials, Progress, PullRequest

LOWER = tar(folder("etc"), Item("etc/os", b"lower"), folder("opt"), Item("opt/old", b"1"), Item("gone", b"1"))
UPPER = tar(folder("etc"), Item("etc/os", b"upper"), Item(".wh.gone"), folder("opt"), Item("opt/.wh..wh..opq"))
BIG = tar(Item("big", os.urandom(1 << 20)))
LOGIN = Credentials(username=USER, password=PASSWORD)


class House:
    """A store of images and what a pull needs."""

    def __init__(self, root: Path) -> None:
        self.images = ImageStore(root / "images", LayerStore(root / "layers"))
        self.blobs = Blobs(root / "cache/blobs")
        self.told: list[Progress] = []
        self.pinned: list[str] = []
        self.steps: list[str] = []

    def pull(self, reference: str, *, stall_s: float = 5.0, **rest: object) -> Image:
        return self.work(reference, stall_s=stall_s, **rest).run()

    def work(self, reference: str, *, stall_s: float = 5.0, **rest: object) -> Pull:
        return Pull(
            self.images, self.blobs, PullRequest(reference=reference, **rest),  # type: ignore[arg-type]
            tell=self.told.append, pinned=self.pinned.append, passed=self.steps.append, stall_s=stall_s,
            bounds=Bounds(reserve=0),
        )  # fmt: skip

    def messages(self) -> list[str]:
        return [progress.message for progress in self.told]

    def content(self, image: Image, name: str) -> bytes:
        """What the upmost layer that has it says."""
        for layer in image.layers:
            path = self.images.layers.path(layer) / name
            if path.is_file():
                return path.read_bytes()
        raise FileNotFoundError(name)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


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
def test_an_image_comes_with_its_layers_and_what_it_says_of_itself(
    house: House, real: Real, packed: Callable[[bytes], bytes], kind: str, docker: bool
) -> None:
    says = {"Env": ["PATH=/bin", "A=b=c"], "User": "me:group", "WorkingDir": "/srv"}
    says |= {"Entrypoint": ["/run", "x"], "Cmd": ["y"]}
    pushed = real.push("some/app", Made([LOWER, UPPER], packed, kind, says, docker=docker), "v1")
    image = house.pull(f"{real.host}/some/app:v1")
    assert (image.name, image.source) == (f"{real.host}/some/app:v1", f"{real.host}/some/app:v1@{pushed}")
    assert (image.user, image.cwd, image.env) == ("me:group", "/srv", {"PATH": "/bin", "A": "b=c"})
    assert (image.entrypoint, image.cmd, image.platform) == (("/run", "x"), ("y",), "linux/amd64")
    assert house.content(image, "etc/os") == b"upper"
    assert len(image.layers) == 2
    assert image.size == sum(house.images.layers.size(layer) for layer in image.layers) > 0
    assert all(house.images.layers.verify(layer) for layer in image.layers)
    assert set(house.pinned) == set(image.layers)
    assert [name for name in os.listdir(house.blobs.root) if not name.endswith(".json")] == []


def test_it_is_found_by_every_way_to_write_its_name(house: House, real: Real) -> None:
    pushed = real.push("names", Made([LOWER]))
    image = house.pull(f"{real.host}/names", name="mine")
    assert image.name == "mine"
    for name in ("mine", f"{real.host}/names", f"{real.host}/names:latest", f"{real.host}/names@{pushed}"):
        assert house.images.get(name) == image
    with pytest.raises(NotFound):
        house.images.get(f"{real.host}/names:other")


def test_of_an_index_the_image_for_this_machine_is_taken_or_the_one_that_was_asked_for(
    house: House, real: Real
) -> None:
    one, other = Made([tar(Item("is", b"amd64"))]), Made([tar(Item("is", b"arm64"))], platform=("linux", "arm64"))
    real.push("many", one, "a")
    real.push("many", other, "b")
    index_digest = real.put("many", "latest", index_of(other, one, attested=False), INDEX)
    image = house.pull(f"{real.host}/many")
    assert house.content(image, "is") == b"amd64"
    assert image.source == f"{real.host}/many:latest@{index_digest}"
    image = house.pull(f"{real.host}/many@{index_digest}", platform="linux/arm64")
    assert (house.content(image, "is"), image.platform) == (b"arm64", "linux/arm64")
    with pytest.raises(InvalidRequest, match="linux/s390x") as caught:
        house.pull(f"{real.host}/many", platform="linux/s390x")
    assert "linux/amd64, linux/arm64" in (caught.value.hint or "")
    with pytest.raises(InvalidRequest, match="for linux/arm64"):
        house.pull(f"{real.host}/many:b")


def test_what_is_for_no_machine_in_an_index_is_passed_over(house: House, fake: Fake) -> None:
    image = Made([LOWER])
    fake.push(image)
    fake.manifests["latest"] = (INDEX, index_of(image))
    assert house.pull(f"{fake.host}/app").layers


def test_a_layer_that_two_images_share_is_fetched_and_stored_once(house: House, real: Real) -> None:
    real.push("shared", Made([LOWER, UPPER]), "one")
    real.push("shared", Made([LOWER, BIG]), "two")
    first = house.pull(f"{real.host}/shared:one")
    house.told.clear()
    second = house.pull(f"{real.host}/shared:two")
    assert first.layers[1] == second.layers[1]
    assert house.messages().count("already here") == 1
    assert len(house.images.layers.digests()) == 3
    house.told.clear()
    assert house.pull(f"{real.host}/shared:two").layers == second.layers
    assert house.messages().count("already here") == 2


def test_several_pulls_at_once_do_the_same_work_once(house: House, real: Real) -> None:
    real.push("busy", Made([BIG, LOWER, UPPER]))
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda n: house.pull(f"{real.host}/busy", name=f"busy{n}"), range(4)))
    assert len({image.layers for image in images}) == 1
    assert house.steps.count("pull.layer") == 3
    assert len(house.images.list()) == 4


def test_layers_that_hold_nothing_or_come_twice_are_stacked_once(house: House, real: Real) -> None:
    real.push("odd", Made([LOWER, bytes(10240), UPPER, bytes(10240), LOWER]))
    image = house.pull(f"{real.host}/odd")
    assert len(image.layers) == 2
    assert house.content(image, "etc/os") == b"lower"


def test_what_is_not_there_is_not_found(house: House, real: Real) -> None:
    with pytest.raises(NotFound, match="no/such"):
        house.pull(f"{real.host}/no/such:thing")
    assert house.images.list() == []


def test_a_password_opens_a_registry(house: House, tmp_path: Path) -> None:
    with with_password(tmp_path / "registry").running() as registry:
        registry.push("app", Made([LOWER]))
        for wrong in (None, Credentials(username=USER, password="wrong")):
            with pytest.raises(Denied) as caught:
                house.pull(f"{registry.host}/app", credentials=wrong)
            assert "--password-stdin" in (caught.value.hint or "")
            assert "wrong" not in str(caught.value)
        house.pull(f"{registry.host}/app", credentials=LOGIN)


def test_a_token_opens_a_registry_to_those_who_may_have_one(house: House, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "registry")
    with tokens.registry() as registry:
        for name in ("public/app", "private/app"):
            registry.headers = {"Authorization": f"Bearer {tokens.token(name, 'pull,push')}"}
            registry.push(name, Made([LOWER, UPPER, BIG]))
        house.pull(f"{registry.host}/public/app")
        with pytest.raises(Denied):
            house.pull(f"{registry.host}/private/app")
        house.pull(f"{registry.host}/private/app", credentials=LOGIN)
        assert tokens.given <= 3, "one token does for all layers"


# -- one of ours ------------------------------------------------------------------------------------------------------


def nothing_is_left(house: House) -> None:
    assert house.images.list() == []
    assert house.images.layers.digests() == []
    parts = os.listdir(house.blobs.root) if house.blobs.root.exists() else []
    assert [name for name in parts if name.startswith("tree-")] == []


def test_a_token_of_an_earlier_login_opens_a_registry_too(house: House, fake: Fake) -> None:
    fake.push(Made([LOWER]))
    fake.token_realm = True
    with pytest.raises(Denied):
        house.pull(f"{fake.host}/app", credentials=Credentials(identity_token="another"))
    house.pull(f"{fake.host}/app", credentials=Credentials(identity_token=IDENTITY))


def test_a_login_is_for_the_registry_alone_and_not_for_where_it_sends_one(house: House, fake: Fake) -> None:
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
        house.pull(f"{fake.host}/app", credentials=LOGIN)
        assert [headers.get("Authorization") for _, headers in elsewhere.asked] == [None]


@pytest.mark.parametrize("realm", ["http://192.0.2.1/token", "http://[token"])
def test_a_registry_here_can_not_have_a_login_sent_in_the_clear_to_elsewhere(
    house: House, fake: Fake, realm: str
) -> None:
    """That it may be asked without TLS itself is because nobody listens in between."""
    fake.push(Made([LOWER]))

    def ask(handler: Handler) -> bool:
        handler.send(401, b"{}", {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'})
        return True

    fake.manners["*"] = ask
    with pytest.raises(RegistryFailed, match="an address without TLS"):
        house.pull(f"{fake.host}/app", credentials=LOGIN)


@pytest.mark.parametrize("what", ["the manifest", "the configuration", "a layer", "more of a layer", "another layer"])
def test_a_registry_that_lies_about_a_digest_is_found_out(house: House, fake: Fake, what: str) -> None:
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
    with pytest.raises(RegistryFailed) as caught:
        house.pull(f"{fake.host}/app@{tag}")
    assert caught.value.details["reason"] in ("digest", "stalled"), caught.value
    nothing_is_left(house)
    if what != "another layer":
        fake.push(image)
        assert house.pull(f"{fake.host}/app@{tag}").layers


def test_a_layer_that_is_not_what_the_configuration_says_is_refused(house: House, fake: Fake) -> None:
    image, other = Made([LOWER]), Made([UPPER])
    image.manifest = image.manifest.replace(digest(image.layers[0]).encode(), digest(other.layers[0]).encode())
    image.manifest = image.manifest.replace(
        f'"size": {len(image.layers[0])}'.encode(), f'"size": {len(other.layers[0])}'.encode()
    )
    fake.push(other)
    fake.push(image)
    with pytest.raises(InvalidRequest, match="unpacks to"):
        house.pull(f"{fake.host}/app")
    nothing_is_left(house)


@pytest.mark.parametrize("where", ["latest", "layer"])
def test_a_registry_that_stalls_is_given_up(house: House, fake: Fake, where: str) -> None:
    image = Made([LOWER])
    fake.push(image)
    fake.manners[digest(image.layers[0]) if where == "layer" else where] = stall
    with pytest.raises(RegistryFailed, match="sent nothing") as caught:
        house.pull(f"{fake.host}/app", stall_s=0.2)
    assert caught.value.details["reason"] == "stalled"
    nothing_is_left(house)


@pytest.mark.parametrize("where", ["before it answers", "in a layer"])
def test_a_stalled_pull_ends_when_it_is_told_to(house: House, fake: Fake, where: str) -> None:
    image = Made([LOWER])
    fake.push(image)
    waits = threading.Event()

    def hold(handler: Handler) -> bool:
        waits.set()
        return stall(handler, answers=where == "in a layer")

    fake.manners[digest(image.layers[0])] = hold
    work = house.work(f"{fake.host}/app", stall_s=60)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work.run)
        assert waits.wait(20)
        work.stop(SkerryError("the server is stopping"))
        with pytest.raises(SkerryError, match="is stopping"):
            done.result(20)
    nothing_is_left(house)


@pytest.mark.parametrize("where", ["latest", "layer"])
def test_a_page_of_html_is_no_image(house: House, fake: Fake, where: str) -> None:
    def page(handler: Handler) -> bool:
        handler.send(200, b"<!doctype html><title>Log in to the hotel</title>", {"Content-Type": "text/html"})
        return True

    image = Made([LOWER])
    fake.push(image)
    fake.manners[digest(image.layers[0]) if where == "layer" else where] = page
    with pytest.raises(RegistryFailed, match="HTML") as caught:
        house.pull(f"{fake.host}/app")
    assert "hotel" not in str(caught.value)
    nothing_is_left(house)


@pytest.mark.parametrize(
    "manifest",
    [
        b"", b"[]", b"{}", b"null", b'{"schemaVersion":1}', b"{" * 5000,
        b'{"schemaVersion":2,"config":{"digest":"sha256:../../etc/passwd","size":1},"layers":[]}',
        b'{"manifests":[{"digest":"sha256:1","size":-1}]}',
    ],
    ids=["empty", "list", "object", "null", "version 1", "deep", "path", "negative"],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(house: House, fake: Fake, manifest: bytes) -> None:
    fake.manifests["latest"] = ("application/vnd.oci.image.manifest.v1+json", manifest)
    with pytest.raises(InvalidRequest):
        house.pull(f"{fake.host}/app")
    nothing_is_left(house)


def test_a_layer_that_breaks_off_is_gone_on_with(house: House, fake: Fake) -> None:
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
    pulled = house.pull(f"{fake.host}/app")
    ranges = [headers.get("Range") for path, headers in fake.asked if layer in path]
    assert ranges == [None, "bytes=100000-", "bytes=300000-"]
    assert house.images.layers.verify(pulled.layers[0])


@pytest.mark.parametrize("part", ["right", "wrong", "too long"])
def test_what_an_earlier_pull_left_is_used_if_it_is_right(house: House, fake: Fake, part: str) -> None:
    image = Made([BIG])
    fake.push(image)
    layer, data = digest(image.layers[0]), image.layers[0]
    house.blobs.root.mkdir(parents=True)
    house.blobs.part(layer).write_bytes({"right": data[:5000], "wrong": bytes(5000), "too long": data + b"x"}[part])
    house.pull(f"{fake.host}/app")
    ranges = [headers.get("Range") for path, headers in fake.asked if layer in path]
    assert ranges == {"right": ["bytes=5000-"], "wrong": ["bytes=5000-", None], "too long": [None]}[part]


def test_a_registry_that_does_not_know_ranges_begins_anew(house: House, fake: Fake) -> None:
    image = Made([BIG])
    fake.push(image)
    layer, data = digest(image.layers[0]), image.layers[0]

    def whole(handler: Handler) -> bool:
        handler.send(200, data, {})
        return True

    fake.manners[layer] = whole
    house.blobs.root.mkdir(parents=True)
    house.blobs.part(layer).write_bytes(bytes(5000))
    house.pull(f"{fake.host}/app")


def test_a_registry_that_fails_now_and_then_is_asked_again(house: House, fake: Fake) -> None:
    fake.push(Made([LOWER]))
    failures = [500, 503]

    def fail(handler: Handler) -> bool:
        if failures:
            handler.send(failures.pop(), b"", {})
            return True
        return False

    fake.manners["latest"] = fail
    house.pull(f"{fake.host}/app")


def test_a_damaged_layer_stops_the_others_and_leaves_no_tree(house: House, fake: Fake) -> None:
    bad = tar(Item("../out", b"x"))
    fake.push(Made([BIG, bad, LOWER]))
    with pytest.raises(InvalidRequest, match="leads out"):
        house.pull(f"{fake.host}/app")
    assert house.images.list() == []
    assert [name for name in os.listdir(house.blobs.root) if name.startswith("tree-")] == []


def test_names_that_are_anothers_are_not_taken(house: House, fake: Fake) -> None:
    fake.push(Made([LOWER]))
    with pytest.raises(InvalidRequest, match="Skerry's own"):
        house.pull(f"{fake.host}/app", name="base")
    image = house.pull(f"{fake.host}/app", name="mine")
    house.images.put(Image(name="built", digest="x", layers=image.layers, size=1, created_at=0))
    with pytest.raises(Conflict, match="not pulled"):
        house.pull(f"{fake.host}/app", name="built")


def test_a_registry_without_tls_is_not_asked_unless_it_is_this_machine_or_vouched_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`registry.test` is this machine too, as the resolver of this test has it; but a name proves nothing."""
    with Fake().running() as fake:
        fake.push(Made([LOWER]))
        port = fake.host.partition(":")[2]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", int(port)))])
        with pytest.raises(RegistryFailed, match="can't be reached"):
            house.pull(f"registry.test:{port}/app")
        assert fake.asked == []
        assert house.pull(f"registry.test:{port}/app", insecure=True).layers
        assert house.pull(f"localhost:{port}/app").layers


def test_a_certificate_counts_if_the_servers_environment_trusts_it_or_the_caller_vouches(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path, ["registry.test"], ["127.0.0.1"])
    with Fake(tmp_path).running() as fake:
        fake.push(Made([LOWER]))
        with pytest.raises(RegistryFailed, match="can't be reached"):
            house.pull(f"{fake.host}/app")
        assert house.pull(f"{fake.host}/app", insecure=True).layers
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert house.pull(f"{fake.host}/app").layers


def test_the_servers_proxy_is_used_but_for_this_machine(
    house: House, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.push(Made([LOWER]))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://{fake.host}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert house.pull("registry.invalid/app", insecure=True).layers
    assert fake.asked[0][0].startswith("http://registry.invalid/v2/")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert house.pull(f"{fake.host}/app").layers


def test_what_a_keeper_left_in_an_image_does_not_come_along(house: House, fake: Fake) -> None:
    """An image may be made of a sandbox's files, or forge a sandbox's past."""
    fake.push(Made([tar(Item("var/lib/skerry/p-aaaaaaaaaa/journal", b"x"), Item("var/lib/kept", b"1"))]))
    root = house.images.layers.path(house.pull(f"{fake.host}/app").layers[0])
    assert os.listdir(root / "var/lib") == ["kept"]


def test_devices_that_are_left_out_are_told(house: House, fake: Fake) -> None:
    fake.push(Made([tar(Item("dev/sda", kind=tarfile.BLKTYPE, device=(8, 0)), Item("f", b"1"))]))
    house.pull(f"{fake.host}/app")
    notices = [told.message for told in house.told if told.stage == "notice"]
    assert len(notices) == 1
    assert notices[0].startswith("left out dev/sda: it is a device")
