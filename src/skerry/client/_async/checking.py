"""`sandbox.review`, checking: a command in a fork that has what was accepted, and nothing else."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from skerry.client import backend_async as backend
from skerry.client import decision_requests as requests
from skerry.client import requests as sandboxes
from skerry.client._async.deciding import AsyncDeciding
from skerry.client.applying.checking import WITHIN, Wanted, lay_out, wanted
from skerry.client.applying.content import Contents
from skerry.client.description import Words
from skerry.client.outcome import Output
from skerry.errors import SkerryError
from skerry.types import Accepted, Result


class AsyncChecking(AsyncDeciding):
    async def _check_in_fork(
        self, contents: Contents, accepted: Accepted, check: Words, on_output: backend.Callback[Output] | None
    ) -> Result:
        fork = (await self._sandbox.fork())[0]
        try:
            files = wanted(await fork.review.changes(), accepted)
            await self._gather(contents, files)
            if files:
                for path in sorted(files):  # a directory before what is in it: what takes its place may be a file
                    with suppress(FileNotFoundError, NotADirectoryError):
                        inside = f"{accepted.path}/{os.fsdecode(path)}"
                        await fork.files.remove(inside, recursive=True, user="root")
                with tempfile.TemporaryDirectory(prefix="skerry-check-") as name:
                    await backend.to_the_end(lay_out, Path(name), files, contents)
                    await fork.files.upload(name, accepted.path)
            return await fork.run(check, cwd=accepted.path, timeout=WITHIN, on_output=on_output)
        finally:
            with suppress(SkerryError):  # its end of life takes it: it has no name
                await fork.client.done(sandboxes.hurried(sandboxes.delete(fork.id)))

    async def _gather(self, contents: Contents, files: Wanted) -> None:
        for side in files.values():
            if side is not None and not contents.has(side.oid):
                async with self._sandbox.client.stream(requests.blob(self._sandbox.id, side.oid)) as chunks:
                    with contents.arriving(side.oid, side.size) as coming:
                        async for chunk in chunks:
                            coming.write(chunk)
