"""`Bucket`: object storage as a directory of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.client.secrets import Secret
from skerry.errors import InvalidRequest
from skerry.types import BucketForm, parse_bucket
from skerry.types.volumes import READ_ONLY


@dataclass(frozen=True)
class Bucket:
    """A bucket: `Sandbox(volumes={"/data": Bucket("s3://datasets", secret="S3")}, secrets=[Secret("S3", …)])`.

    `prefix`: only the objects below it. `secret`: a secret of the sandbox with the value KEY_ID:KEY, which stays
    outside; None for a public bucket. `endpoint`: the operator's name of the server; None: the operator lists one.
    """

    url: str
    prefix: str = ""
    read_only: bool = False
    secret: str | Secret | None = None
    endpoint: str | None = None

    def __post_init__(self) -> None:
        _ = self.as_volume  # raises for an invalid value

    @property
    def as_volume(self) -> str:
        given = parse_bucket(self.url)
        secret = self.secret.name if isinstance(self.secret, Secret) else self.secret
        prefix = "/".join(filter(None, (given.prefix, self.prefix.strip("/"))))
        form = BucketForm(
            bucket=given.bucket, prefix=prefix, endpoint=self.endpoint or given.endpoint, secret=secret or given.secret
        )
        if parse_bucket(form.url) != form:
            raise InvalidRequest(f"volumes: {form.url[:80]!r} is not a bucket")
        return form.url + READ_ONLY * self.read_only
