"""Tasks in sandboxes by Harbor's own command, as in docs/integrations/harbor.md: oracle, nop, Dockerfile, agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harbor.agents.base import BaseAgent

ENVIRONMENT = "skerry.integrations.harbor:SkerryHarborEnvironment"
TASK = """
version = "1.0"

[agent]
timeout_sec = 120.0
{agent}

[verifier]
timeout_sec = 120.0

[environment]
cpus = 1
memory_mb = 1024
{environment}
"""
IMAGE = 'docker_image = "base"\nnetwork_mode = "no-network"'
TEST = """#!/bin/bash
mkdir -p /logs/verifier
[ "$(cat /tmp/answer)" = 42 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
DOCKERFILE = """FROM base
USER root
COPY prepared /opt/prepared
RUN echo made > /opt/made && chmod 644 /opt/made
WORKDIR /opt
"""


class ScriptedAgent(BaseAgent):
    """Writes the answer, and checks that the network is closed."""

    @staticmethod
    def name() -> str:
        return "scripted"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: Any) -> None:
        await environment.exec("mkdir -p /tmp/agent")

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        assert (await environment.exec("curl -sSf -m 20 http://example.com")).return_code != 0
        done = await environment.exec("echo $((6 * 7)) > /tmp/answer && pwd", cwd="/tmp", env={"A": "1"})
        assert (done.return_code, done.stdout) == (0, "/tmp\n")


def make_task(place: Path, environment: str, solution: str) -> Path:
    task = place / "task"
    for part in ("environment", "solution", "tests"):
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text(TASK.format(environment=environment, agent=""))
    (task / "instruction.md").write_text("Write the product of 6 and 7 to /tmp/answer.\n")
    (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\n{solution}\n")
    (task / "tests" / "test.sh").write_text(TEST)
    return task


def reward(task: Path, *options: str) -> float:
    """Run a task and return its reward."""
    program = Path(sys.executable).with_name("harbor")
    jobs = task.parent / "jobs"
    command = [program, "run", "-p", task, "-e", ENVIRONMENT, "-o", jobs, "-n", "1", "-q", *options]
    env = {**os.environ, "HOME": str(task.parent), "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=task.parent, timeout=600)
    results = [json.loads(file.read_text()) for file in jobs.glob("*/*/result.json")]
    assert len(results) == 1, done.stdout + done.stderr
    assert results[0]["exception_info"] is None, results[0]["exception_info"]
    return float(results[0]["verifier_result"]["rewards"]["reward"])


@pytest.mark.parametrize(("agent", "expected"), [("oracle", 1.0), ("nop", 0.0)])
def test_image_task(tmp_path: Path, agent: str, expected: float) -> None:
    task = make_task(tmp_path, IMAGE, "echo 42 > /tmp/answer")
    assert reward(task, "-a", agent) == expected


def test_dockerfile_task(tmp_path: Path) -> None:
    solution = '[ "$(cat prepared made | xargs) $PWD" = "before made /opt" ] && echo 42 > /tmp/answer'
    task = make_task(tmp_path, "", solution)
    (task / "environment" / "Dockerfile").write_text(DOCKERFILE)
    (task / "environment" / "prepared").write_text("before\n")
    assert reward(task, "-a", "oracle") == 1.0


def test_agent_task_without_network(tmp_path: Path) -> None:
    task = make_task(tmp_path, IMAGE, "true")
    assert reward(task, "-a", "harbor_suite:ScriptedAgent") == 1.0
