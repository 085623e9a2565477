"""An environment for mini-SWE-agent: `environment_class: skerry.integrations.mini_swe_agent.SkerrySweEnvironment`."""

from __future__ import annotations

from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from skerry import Limits, Network, NotFound, Sandbox, SkerryError
from skerry.client.create_options import CreateTerms
from skerry.integrations.output import FullOutput, exit_code

SUBMITTED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class SkerrySweEnvironmentConfig(BaseModel, extra="forbid"):
    """How the sandbox is created. `allow` and `presets`: network access; `repo`: a repository of this machine,
    copied to /workspace; `timeout`: seconds of a command."""

    image: str = "base"
    cwd: str = "/workspace"
    env: dict[str, str] = {}
    timeout: int = 30
    cpus: float | None = None
    memory: str | None = None
    allow: list[str] = []
    presets: list[str] = []
    repo: str | None = None
    name: str | None = None
    server: str | None = None


class SkerrySweEnvironment:
    """A sandbox that is deleted by `cleanup()`, or kept for a review if it has a `name`."""

    def __init__(self, *, config_class: type = SkerrySweEnvironmentConfig, **given: Any) -> None:
        config = self.config = config_class(**given)
        terms: CreateTerms = {
            "env": config.env,
            "repo": config.repo,
            "limits": Limits(cpus=config.cpus, memory=config.memory),
            "labels": {"agent": "mini-swe-agent"},
            "server": config.server,
        }
        if config.allow or config.presets:
            terms["network"] = Network(allow=config.allow, presets=config.presets)
        self.sandbox = Sandbox(config.image, name=config.name, **terms).start()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        collected, limit = FullOutput(), timeout or self.config.timeout
        try:
            result = self.sandbox.run(
                str(action.get("command", "")) or ":",
                cwd=cwd or self.config.cwd,
                timeout=limit,
                on_output=collected.add,
            )
        except SkerryError as error:
            return _failed(collected.text, error)
        if result.timed_out:
            return _failed(collected.text, TimeoutError(f"the command was ended after {limit} s"))
        output = {"output": collected.text, "returncode": exit_code(result), "exception_info": ""}
        _check_submitted(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the values for the prompts: the sandbox's system, not this machine's."""
        names = {"system": "-s", "node": "-n", "release": "-r", "version": "-v", "machine": "-m"}
        script = "; ".join(f"uname {option}" for option in names.values())
        system = dict(zip(names, self.sandbox.run(script).stdout.splitlines(), strict=False))
        return recursive_merge(self.config.model_dump(), system, kwargs)

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def cleanup(self) -> None:
        """Delete the sandbox, unless it has a name."""
        if self.config.name is not None:
            self.sandbox.close()
            return
        try:
            self.sandbox.delete(force=True)
        except NotFound:
            self.sandbox.close()


def _failed(output: str, error: Exception) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def _check_submitted(output: dict[str, Any]) -> None:
    """Raise the framework's exception if a successful command printed its mark first: the task is finished."""
    first, _, rest = str(output["output"]).lstrip().partition("\n")
    if first.strip() == SUBMITTED and output["returncode"] == 0:
        extra = {"exit_status": "Submitted", "submission": rest}
        raise Submitted({"role": "exit", "content": rest, "extra": extra})
