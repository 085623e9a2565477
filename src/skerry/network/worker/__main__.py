"""`python -I -m skerry.network.worker UID PARENT`, with the server's channel as fd 3: started only by the
supervisor."""

from __future__ import annotations

# Import these now: after dropping privileges the worker cannot read modules that only root can read.
import encodings.idna  # noqa: F401
import socket
import sys
from functools import partial

import cryptography.hazmat.backends.openssl.backend  # noqa: F401
import uvloop

from skerry.network.messages import Ready
from skerry.network.worker.control import WorkerControl
from skerry.network.worker.dns.resolver import Resolver
from skerry.network.worker.egress import Egress, WorkerResources
from skerry.network.worker.posture import drop_privileges
from skerry.network.worker.previews.listener import PreviewServer
from skerry.network.worker.relay import PipePool
from skerry.network.worker.tls.interception import interceptor_for

_CONTROL = 3


def main() -> None:
    drop_privileges(int(sys.argv[1]), int(sys.argv[2]))
    uvloop.run(serve())


async def serve() -> None:
    resources = WorkerResources(Resolver(), PipePool(), interceptor_for)
    control = WorkerControl(socket.socket(fileno=_CONTROL), partial(Egress, resources=resources), PreviewServer)
    await control.run(Ready())


if __name__ == "__main__":
    main()
