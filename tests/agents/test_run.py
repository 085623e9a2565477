"""Coding agents in the tests' internet: the real programs, the real host names over TLS, and a scripted model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.cli import skerry
from support.server import Server
from world import model_apis, oauth
from world.world import World

from skerry import Client, Sandbox
from skerry.client.agents.kits import BUILT_IN, load_kit
from skerry.client.agents.oauth import SignIn
from skerry.client.agents.sign_in import service_of
from skerry.client.secret_store import NewSignIn, UserSecrets

ANTHROPIC = {"ANTHROPIC_API_KEY": model_apis.KEY}
OPENAI = {"OPENAI_API_KEY": model_apis.KEY}
VARIABLES = {
    "claude-code": ANTHROPIC, "codex": OPENAI, "gemini-cli": {"GEMINI_API_KEY": model_apis.KEY}, "opencode": ANTHROPIC,
    "aider": ANTHROPIC, "qwen-code": OPENAI, "pi": ANTHROPIC, "mini-swe-agent": ANTHROPIC, "copilot": ANTHROPIC,
    "cline": ANTHROPIC,
}  # fmt: skip
QUICK = ("pi", "claude-code")  # installed and run the fastest: `make test` runs them if a package registry is reachable
OPTIONS: dict[str, list[str]] = {
    "opencode": ["-m", "anthropic/claude-sonnet-4-5"],
    "codex": ["-m", "gpt-5.1", "--", "--model", "gpt-5.1"],  # its prompt follows `--`
    "gemini-cli": ["-m", "gemini-2.5-pro"],
}
FORGETFUL = ("mini-swe-agent", "cline")  # without a terminal, they cannot continue a conversation


def found_inside(sandbox: Sandbox, text: str) -> bool:
    """Search the variables of all processes, and all files that an agent may have written."""
    search = (
        "{ cat /proc/[0-9]*/environ; find /root /home /workspace /tmp /run /etc -type f -exec cat {} +; } 2>/dev/null"
    )
    return sandbox.run(["bash", "-c", f"exec 3<&0; {search} | grep -q -a -F -f /dev/fd/3"], user="root", stdin=text).ok


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.agents) for name in BUILT_IN]
)
def test_agent_edits_tests_and_is_reviewed_applied_and_undone(
    name: str, agent_server: Server, world: World, repository: Path
) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[bytes]:
        return skerry(*words, server=agent_server.address, cwd=repository, **VARIABLES[name])

    box = f"{name}-calc"
    done = call("agent", name, "-p", model_apis.TASK, *OPTIONS.get(name, []))
    assert done.returncode == 0, done.stderr
    assert model_apis.DONE.encode() in done.stdout
    assert b"calc.py" in done.stderr
    assert b"was denied" not in done.stderr
    assert (repository / "calc.py").read_text().endswith("a - b\n")

    again = call("agent", name, "-p", model_apis.AGAIN, *OPTIONS.get(name, []))
    assert again.returncode == 0, again.stderr
    assert (model_apis.FORGOT if name in FORGETFUL else model_apis.REMEMBERED).encode() in again.stdout

    with Client(agent_server.address) as client:
        sandbox = Sandbox.get(box, server=client)
        (hunk,) = sandbox.review.changes("calc.py").hunks
        (origin,) = sandbox.review.origin(hunk).entries
        if load_kit(name).extension.events is None:
            assert origin.within is None  # the agent reports no tool calls: its own command is the origin
        else:
            assert origin.within is not None
            assert model_apis.EDIT in origin.command
        sandbox.files.write("/tmp/control", "the-control-value")
        assert found_inside(sandbox, "the-control-value")
        assert not found_inside(sandbox, model_apis.KEY)
        assert sandbox.run(["git", "config", "user.name"]).stdout == "Ada\n"

    assert call("diff", box, "--stat").stdout.count(b"|") == 1
    assert call("accept", box, "calc.py").returncode == 0
    applied = call("apply", box, "--check", "python3 -m unittest -q test_calc")
    assert applied.returncode == 0, applied.stderr
    assert (repository / "calc.py").read_text().endswith("a + b\n")
    assert call("undo", box).returncode == 0
    assert (repository / "calc.py").read_text().endswith("a - b\n")
    assert call("rm", "--force", "--purge", box).returncode == 0
    assert world.strays() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["claude-code"])
def test_agent_uses_the_token_of_a_subscription_and_the_chosen_model(
    name: str, agent_server: Server, world: World, repository: Path
) -> None:
    done = skerry(
        "agent", name, "--name", "subscribed", "-m", "claude-world-1", "-p", model_apis.TASK,
        server=agent_server.address, cwd=repository, CLAUDE_CODE_OAUTH_TOKEN=model_apis.KEY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert model_apis.DONE.encode() in done.stdout
    with Client(agent_server.address) as client:
        sandbox = Sandbox.get("subscribed", server=client)
        assert [one.name for one in sandbox.cached_info.secrets] == ["CLAUDE_CODE_OAUTH_TOKEN"]
        assert not found_inside(sandbox, model_apis.KEY)
        # The model's answers name the model of the request, and the agent keeps them.
        assert sandbox.run(["grep", "-rqsE", '"model": ?"claude-world-1"', "/home/user/.claude/projects"]).ok
        sandbox.delete(force=True, purge=True)
    assert world.strays() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["claude-code"])
def test_agent_uses_a_stored_sign_in_without_a_key(
    name: str, agent_server: Server, world: World, repository: Path, tmp_path: Path
) -> None:
    """The access token has expired: it is refreshed outside before the agent starts."""
    (credential,) = (one for one in load_kit(name).credentials if one.oauth is not None)
    service = service_of(credential, ())
    stored = SignIn(
        endpoint=service.endpoint, hosts=service.hosts, client_id="c", as_json=True, access="an-expired-token",
        refresh=oauth.STORED, expires_at=1.0, scope="user:inference user:profile",
    )  # fmt: skip
    new = NewSignIn(service.hosts, msgspec.json.encode(stored).decode(), 1.0)
    UserSecrets(tmp_path / "config" / "skerry").change_sign_in(service.name, lambda _: new)
    words = ["-m", "skerry", "agent", name, "--repo", str(repository), "-p", model_apis.TASK]
    done = in_the_internet(words, agent_server, world, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert model_apis.DONE in done.stdout
    with Client(agent_server.address) as client:
        sandbox = Sandbox.get(f"{name}-calc", server=client)
        check_no_token_inside(sandbox, service.variable)
        sandbox.delete(force=True, purge=True)


def in_the_internet(words: list[str], server: Server, world: World, home: Path) -> subprocess.CompletedProcess[str]:
    """Run Python on the host side of the tests' internet, as a user without keys."""
    return subprocess.run(
        [*world.inside, sys.executable, *words],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"),
             "SKERRY_SERVER": server.address, "SSL_CERT_FILE": str(world.home / "ca.pem")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def check_no_token_inside(sandbox: Sandbox, variable: str) -> None:
    assert found_inside(sandbox, f"skerry-secret-{variable}-")  # the control
    for text in (model_apis.KEY, oauth.STORED, "real-refresh-"):
        assert not found_inside(sandbox, text)
