"""From attempts of a program to its policy: learned in one sandbox, read as a patch, used by others."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.cli import skerry
from support.server import Server
from world.world import World

from skerry import Network, Sandbox

CALLS = (
    "http://api.example.test/v1 http://files.example.test:8080/x http://private.example.test/ http://169.254.169.254/"
    " http://metadata.example.test/ http://loopback.example.test/ http://gone.example.test/"
)
SCRIPT = f"for url in {CALLS}; do curl --silent --max-time 20 --output /dev/null $url; done; true"


def test_policy_is_learned_reviewed_and_used(world: World, world_server: Server, tmp_path: Path) -> None:
    world.reset()
    with Sandbox(server=world_server.address, name="learner", network=Network(on_unknown="learn")) as sandbox:
        try:
            assert sandbox.run(SCRIPT, timeout=150).ok
            found = sandbox.network.suggest()
            assert found.allow == (
                "api.example.test:80", "files.example.test:8080", "gone.example.test:80",
                "private.example.test:80@10.20.0.5",
            )  # fmt: skip
            (tmp_path / "skerry.toml").write_text('# ours\n[network]\nallow = ["api.example.test"]  # the API\n')
            told = skerry("network", "suggest", "learner", server=world_server.address, cwd=tmp_path)
            subprocess.run(
                ["patch", "-p1"], input=told.stdout, cwd=tmp_path, check=True, capture_output=True, timeout=20
            )
        finally:
            sandbox.delete()
    text = (tmp_path / "skerry.toml").read_text()
    assert "# the API" in text
    assert '"api.example.test:80"' not in text, "what the file allows already is not added"
    world_before = world.strays()
    fetch = "curl --silent --fail --output /dev/null http://files.example.test:8080/x && ! curl -sf http://evil.test/"
    done = skerry("run", "--trust", "--", "sh", "-c", fetch, server=world_server.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert world.strays() == world_before == []
