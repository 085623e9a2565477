"""`python -I -m skerry.network.worker UID PARENT`, with the server's channel as fd 3: never started by hand."""

from __future__ import annotations

# What is loaded only when it is needed could not be read any more by then, if it lies where root alone can read.
import encodings.idna  # noqa: F401
import socket
import sys
from functools import partial

import cryptography.hazmat.backends.openssl.backend  # noqa: F401
import uvloop

from skerry.network.messages import Ready
from skerry.network.worker.desk import Desk
from skerry.network.worker.egress import Egress, Shared
from skerry.network.worker.inspection import inspection
from skerry.network.worker.posture import become_nobody
from skerry.network.worker.previews import Previews
from skerry.network.worker.relay import Pipes
from skerry.network.worker.resolve import Resolver

_CONTROL = 3


def main() -> None:
    become_nobody(int(sys.argv[1]), int(sys.argv[2]))
    uvloop.run(serve())


async def serve() -> None:
    shared = Shared(Resolver(), Pipes(), inspection)
    desk = Desk(socket.socket(fileno=_CONTROL), partial(Egress, shared=shared))
    desk.previews = Previews(desk.dial, desk.used)
    await desk.run(Ready())


if __name__ == "__main__":
    main()
