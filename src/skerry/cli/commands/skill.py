"""skill: teach a coding agent how to use Skerry."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

import click

from skerry.cli import output
from skerry.cli.context import CliContext, pass_cli
from skerry.codecs.text import escape
from skerry.mcp.install import config_files
from skerry.mcp.install.installer import ConfigChange

FILE = Path("skerry") / "SKILL.md"


@dataclass(frozen=True)
class Agent:
    """The directories of an agent's skills: in the user's home, or where a variable says; and in a project."""

    user: str
    project: str
    variable: str | None = None

    def path(self, scope: Literal["user", "project"]) -> Path:
        if scope == "project":
            return Path.cwd() / self.project / FILE
        named = os.environ.get(self.variable) if self.variable is not None else None
        return (Path(named) / "skills" if named else Path.home() / self.user) / FILE


AGENTS = {
    "claude-code": Agent(".claude/skills", ".claude/skills", "CLAUDE_CONFIG_DIR"),
    "codex": Agent(".agents/skills", ".agents/skills"),
    "gemini-cli": Agent(".gemini/skills", ".gemini/skills"),
    "opencode": Agent(".config/opencode/skills", ".opencode/skills", "OPENCODE_CONFIG_DIR"),
    "cursor": Agent(".cursor/skills", ".cursor/skills"),
    "copilot": Agent(".copilot/skills", ".github/skills"),
    "agents": Agent(".agents/skills", ".agents/skills"),
}


@click.group()
def skill() -> None:
    """Teach a coding agent how to use Skerry, with a skill file (SKILL.md)."""


@skill.command()
def show() -> None:
    """Print the skill."""
    click.echo(text(), nl=False)


@skill.command()
@click.argument("agent", type=click.Choice(tuple(AGENTS)), metavar="AGENT")
@click.option(
    "--scope", type=click.Choice(("user", "project")), default="user", show_default=True,
    help="Install it for you, or in the project of this directory.",
)  # fmt: skip
@click.option("--remove", is_flag=True, help="Remove the skill.")
@pass_cli
def install(cli: CliContext, agent: str, scope: Literal["user", "project"], remove: bool) -> None:
    """Install the skill for an agent, or update it.

    AGENT is claude-code, codex, gemini-cli, opencode, cursor, copilot, or agents for others that read .agents/skills.

    \b
    skerry skill install claude-code
    skerry skill install codex --scope project
    """
    path = config_files.resolve(AGENTS[agent].path(scope), Path.cwd() if scope == "project" else None)
    before = config_files.read(path)
    change = ConfigChange(path, before, text())
    said = "is up to date"
    if remove:
        said = "removed" if before is not None else "was not installed"
        if before is not None:
            path.unlink()
            with contextlib.suppress(OSError):  # it has other files
                path.parent.rmdir()
    elif change.differs:
        config_files.write(change, private=False)
        said = "installed" if before is None else "updated"
    if not cli.quiet:
        output.info(f"{escape(str(path))}: {said}")


def text() -> str:
    return files("skerry.cli").joinpath("skill.md").read_text(encoding="utf-8")
