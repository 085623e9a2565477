"""Runs some tests with the lowest declared version of every direct dependency, in a separate environment.

The environment, .venv/lowest, is kept until a bound changes. Without a package registry the check is skipped.
    .venv/bin/python scripts/lowest_versions.py [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv" / "lowest"
# Each library is used by one of them: click (cli), rich (progress), pygments (review), httpx2, websockets, zstd,
# msgspec (client), uvicorn, httptools, starlette (listener), dnspython, cryptography, h11, idna (network), mcp,
# pydantic, anyio (mcp), opentelemetry (telemetry).
TESTS = [
    "tests/test_types.py", "tests/test_config.py", "tests/client/test_package.py", "tests/client/test_requests.py",
    "tests/client/test_responses.py", "tests/client/test_pack.py", "tests/server/test_listener.py",
    "tests/server/test_websockets.py", "tests/network/test_rules.py", "tests/network/test_dns.py",
    "tests/network/test_http_proxy.py", "tests/mcp/test_text.py", "tests/mcp/test_offline.py",
    "tests/test_telemetry.py", "tests/client/test_ssh_keys.py", "tests/client/test_progress.py",
    "tests/cli/test_output.py", "tests/cli/test_reference.py",
    "tests/cli/test_prompts.py", "tests/cli/review/test_input.py", "tests/cli/review/test_escape.py",
    "tests/cli/review/test_model.py", "tests/cli/review/test_patch.py",
]  # fmt: skip


def lowest() -> list[str]:
    """Return every direct dependency at its lower bound, and the test tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tests = [line for line in extras["dev"] if line.startswith("pytest")]
    needed = [*project["dependencies"], *extras["server"], *extras["mcp"], *extras["otel"], *extras["ssh"]]
    return sorted({pinned(line) for line in needed}) + tests


def pinned(requirement: str) -> str:
    """Return `name==1.2` and the marker for `name>=1.2,<2; marker`."""
    found = re.fullmatch(r"([\w.-]+)>=([\w.]+)(?:,<[\w.]+)?(;.*)?", requirement)
    if not found:
        raise SystemExit(f"lowest_versions: {requirement!r} in pyproject.toml has no lower bound")
    return f"{found[1]}=={found[2]}{found[3] or ''}"


def prepare(pins: list[str]) -> bool:
    """Install the versions, if needed. Return False without a package registry."""
    wanted = hashlib.sha256("\n".join([sys.version, *pins]).encode()).hexdigest()
    stamp = PLACE / "installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return True
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", PLACE], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python", str(PLACE)]
    if subprocess.run([*pip, "install", "-q", "--only-binary=:all:", *pins], check=False).returncode:
        # An old version, which a directory of wheels beside the registry does not have.
        probe = [*pip, "download", "-q", "--no-deps", "-d", PLACE, "click==8.1.0"]
        if subprocess.run(probe, check=False).returncode == 0:
            raise SystemExit("lowest_versions: pip cannot install the lower bounds of pyproject.toml together")
        return False
    version = "python{}.{}".format(*sys.version_info)
    (PLACE / "lib" / version / "site-packages" / "skerry.pth").write_text(f"{ROOT / 'src'}\n")
    stamp.write_text(wanted)
    return True


def main() -> None:
    if not prepare(lowest()):
        sys.stderr.write("lowest_versions: skipped, because the package registry cannot be reached\n")
        return
    arguments = sys.argv[1:] or ["-q", "-x", *TESTS]
    command = [PLACE / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
