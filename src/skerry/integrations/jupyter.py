"""A Jupyter kernel with its code in a sandbox: `python -m skerry.integrations.jupyter install`, then choose "Skerry".

The kernel's process on this machine only passes code and results on. The sandbox is deleted when the kernel ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from jupyter_client.kernelspec import KernelSpecManager

from skerry import CodeResult, NotFound, Output, Sandbox, __version__

MODULE = "skerry.integrations.jupyter"
SETTINGS = "SKERRY_KERNEL"  # a variable of the kernel's specification, with the options of `install` as JSON


class SandboxKernel(Kernel):
    """Runs the cells of a notebook in the Python context of a sandbox. An interrupt stops the cell and keeps the
    variables; a restart of the kernel gets another sandbox."""

    implementation = "skerry"
    implementation_version = __version__
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}  # noqa: RUF012
    banner = "Python in a Skerry sandbox"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sandbox: Sandbox | None = None

    def _opened(self) -> Sandbox:
        if self._sandbox is None:
            settings = json.loads(os.environ.get(SETTINGS, "{}"))
            self._sandbox = Sandbox(settings.get("image", "base"), labels={"jupyter": self.ident}).start()
        return self._sandbox

    def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, Any] | None = None,
        allow_stdin: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        try:
            result = self._opened().code.run(code, timeout=None, on_output=None if silent else self._publish)
        except KeyboardInterrupt:
            return self._failed("KeyboardInterrupt", "", [], silent)
        if not silent:
            self._display(result)
        if result.error is not None:
            lines = result.error.traceback.splitlines()
            return self._failed(result.error.name, result.error.message, lines, silent)
        if not result.ok:
            return self._failed("SandboxError", result.lost or result.hint or "the code was ended", [], silent)
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    def _publish(self, piece: Output) -> None:
        self._send("stream", {"name": piece.stream, "text": piece.text})

    def _display(self, result: CodeResult) -> None:
        for value in result.results:
            content = {"data": dict(value.data), "metadata": {}}
            if value.main:
                self._send("execute_result", {**content, "execution_count": self.execution_count})
            else:
                self._send("display_data", content)

    def _failed(self, name: str, message: str, traceback: list[str], silent: bool) -> dict[str, Any]:
        content = {"ename": name, "evalue": message, "traceback": traceback or [f"{name}: {message}"]}
        if not silent:
            self._send("error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        self.send_response(self.iopub_socket, kind, content)

    def do_shutdown(self, restart: bool) -> dict[str, Any]:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            try:
                sandbox.delete(force=True)
            except NotFound:
                sandbox.close()
        return {"status": "ok", "restart": restart}


def install(name: str, display_name: str, image: str, prefix: str | None) -> str:
    """Write the kernel's specification for Jupyter; return its directory."""
    specification = {
        "argv": [sys.executable, "-m", MODULE, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "env": {SETTINGS: json.dumps({"image": image})},
    }
    with tempfile.TemporaryDirectory() as place:
        Path(place, "kernel.json").write_text(json.dumps(specification, indent=1))
        made = KernelSpecManager().install_kernel_spec(place, name, user=prefix is None, prefix=prefix)
    return str(made)


def main() -> None:
    if sys.argv[1:2] != ["install"]:
        IPKernelApp.launch_instance(kernel_class=SandboxKernel)
        return
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("command", choices=["install"])
    parser.add_argument("--name", default="skerry", help="The kernel's name in Jupyter.")
    parser.add_argument("--display-name", default="Skerry", help="The name that users see.")
    parser.add_argument("--image", default="base", help="The image of its sandboxes.")
    parser.add_argument("--prefix", help="Install below this directory instead of for the current user.")
    given = parser.parse_args()
    sys.stdout.write(f"{install(given.name, given.display_name, given.image, given.prefix)}\n")


if __name__ == "__main__":
    main()
