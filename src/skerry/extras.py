"""Optional parts of the installation: `pip install skerry` is the SDK and the command line, for servers elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from skerry.errors import HostUnsupported

Extra = Literal["server", "mcp", "otel", "audit", "ssh", "worker"]
# The modules that each extra brings; tests/test_packaging.py compares them with pyproject.toml.
MODULES: dict[Extra, tuple[str, ...]] = {
    "server": (
        "cryptography",
        "dns",
        "httptools",
        "prometheus_client",
        "python_multipart",
        "starlette",
        "uvicorn",
        "uvloop",
    ),
    "mcp": ("anyio", "mcp", "mcp_types", "pydantic", "pydantic_core", "starlette"),
    "otel": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk", "opentelemetry.trace"),
    "audit": ("cryptography",),
    "ssh": ("asyncssh", "cryptography"),
    "worker": ("anthropic",),
}
_PURPOSE: dict[Extra, str] = {
    "server": "the server",
    "mcp": "MCP",
    "otel": "OpenTelemetry",
    "audit": "the verification of audit logs",
    "ssh": "SSH",
    "worker": "the SDK for workers",
}


def require(extra: Extra) -> None:
    """Raise an error with the command that installs the extra if one of its modules is missing."""
    missing = [name for name in MODULES[extra] if not _exists(name)]
    if missing:
        raise HostUnsupported(
            f"{_PURPOSE[extra]} is not installed here (missing: {', '.join(missing)})",
            hint=f"pip install 'skerry[{extra}]'",
        )


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
