"""One server of the protocol for both transports."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.mcpserver import MCPServer

from skerry._version import __version__
from skerry.mcp import (
    code,
    commands,
    executing,
    files,
    finding,
    network,
    processes,
    prompts,
    resources,
    review,
    sandboxes,
)
from skerry.mcp.tool import Connect

TOOLS = (
    *commands.TOOLS, *processes.TOOLS, *code.TOOLS, *executing.TOOLS, *files.TOOLS, *finding.TOOLS,
    *sandboxes.TOOLS, *review.TOOLS, *network.TOOLS,
)  # fmt: skip
_SAME_FOR_ALL: tuple[CacheableMethod, ...] = ("tools/list", "prompts/list", "resources/templates/list")


def make(connect: Connect) -> MCPServer:
    """The server. `connect` says of each request whose it is."""
    with _log_left_alone():
        server = MCPServer(
            "skerry",
            title="Skerry",
            description="Isolated Linux machines for AI agents.",
            instructions=prompts.INSTRUCTIONS,
            version=__version__,
            tools=[tool.made(connect) for tool in TOOLS],
            subscriptions=False,
            cache_hints=dict.fromkeys(_SAME_FOR_ALL, CacheHint(ttl_ms=3_600_000, scope="public")),
        )
    resources.add(server, connect)
    prompts.add(server)
    return server


@contextmanager
def _log_left_alone() -> Iterator[None]:
    """The library would set up the root logger of the whole program, which is not its to do."""
    root, nothing = logging.getLogger(), logging.NullHandler()
    root.addHandler(nothing)
    try:
        yield
    finally:
        root.removeHandler(nothing)
