"""Names of images in registries, in the usual notation: `python:3.12` is docker.io/library/python:3.12."""

from __future__ import annotations

import ipaddress
import re

from skerry.errors import InvalidRequest
from skerry.types.values import Answer, Value

HUB = "docker.io"
# Built here, not pulled: the default image, its lower layer, its variants, and the tools of languages that it lacks.
OWN_IMAGES = (
    *("base", "base-slim", "data", "browser"),
    *("base-go", "base-rust", "base-java", "base-ruby", "base-php", "base-r"),
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 255
_PLATFORM = re.compile(r"linux/[a-z0-9]{1,20}(?:/[a-z0-9]{1,10})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
                   r"|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")  # fmt: skip


class Reference(Value, frozen=True, kw_only=True):
    """The location of an image. At least one of `tag` and `digest` is set; the digest has precedence."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def which(self) -> str:
        """The tag or digest to request."""
        return self.digest or self.tag or "latest"

    @property
    def local(self) -> bool:
        """Whether the registry is on the requesting machine itself, where the traffic cannot be intercepted."""
        host = self.registry.rpartition(":")[0] if re.search(r":\d+$", self.registry) else self.registry
        return is_loopback(host)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_reference(text: str) -> Reference:
    """Parse a reference by Docker's rules: without a host it is in Docker's registry, with official images in
    `library`."""
    given = text.removeprefix("docker://")
    if len(given) > _LONGEST or "://" in given:
        raise _wrong(text)
    given, at, digest = given.partition("@")
    first, slash, rest = given.partition("/")
    if slash and (set(".:[") & set(first) or first == "localhost" or first != first.lower()):
        registry = first
    else:
        registry, rest = HUB, given
    path, _, tail = rest.rpartition("/")
    name, colon, tag = tail.partition(":")
    repository = f"{path}/{name}" if path else name
    if registry in (HUB, f"index.{HUB}"):
        registry, repository = HUB, repository if "/" in repository else f"library/{repository}"
    if (
        not _HOST.fullmatch(registry)
        or not _REPOSITORY.fullmatch(repository)
        or (colon and not _TAG.fullmatch(tag))
        or (at and not DIGEST.fullmatch(digest))
    ):
        raise _wrong(text)
    return Reference(
        registry=registry, repository=repository, digest=digest or None, tag=tag or (None if at else "latest")
    )


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"image: {text[:80]!r} is no name of an image in a registry",
        hint="[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST], in lower case: python:3.12, ghcr.io/owner/app:v1",
    )


class Credentials(Value, frozen=True, kw_only=True):
    """For one registry: a user and a password, or a token instead of a password. They are used once and not stored."""

    username: str = ""
    password: str = ""
    identity_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"

    __str__ = __repr__


class PullRequest(Value, frozen=True, kw_only=True):
    """POST /v1/images/pull. `name`: the name in the store; None: `reference` as written. `platform`: os/architecture;
    None: the host's. `insecure`: permit a registry without TLS, or with an unverified certificate."""

    reference: str
    name: str | None = None
    platform: str | None = None
    insecure: bool = False
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        parse_reference(self.reference)
        if self.platform is not None and not _PLATFORM.fullmatch(self.platform):
            raise InvalidRequest(
                f"platform: {self.platform[:40]!r} is not a platform", hint="linux/amd64, linux/arm64, …"
            )


class PruneResult(Answer, frozen=True, kw_only=True):
    """The result of a prune: removed images by name, the number of layers, and the freed bytes."""

    images: tuple[str, ...]
    layers: int
    bytes: int


class LayerState(Answer, frozen=True, kw_only=True):
    """The state of a layer on disk, with the images that use it."""

    layer: str
    ok: bool
    images: tuple[str, ...] = ()


class VerifyResult(Answer, frozen=True, kw_only=True):
    """All verified layers."""

    layers: tuple[LayerState, ...]

    @property
    def ok(self) -> bool:
        return all(state.ok for state in self.layers)
