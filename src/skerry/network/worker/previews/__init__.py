"""Previews: what listens inside a sandbox, shown to people outside through a listener that does nothing else.

A *place* is where a request wants to go, read off its Host or its path (`address`). A *share* is a preview as the
server told it: whose port, which token, until when (`shares`). An *exchange* is one request and its answer
(`exchange`), over an *upstream*: a connection to the port inside, kept for the next request (`upstream`). `listener`
brings them together.
"""

from skerry.network.worker.previews.listener import Previews
from skerry.network.worker.previews.upstream import Dial

__all__ = ["Dial", "Previews"]
