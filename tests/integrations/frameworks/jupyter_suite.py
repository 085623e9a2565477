"""The kernel, installed as in docs/integrations/jupyter.md and started by Jupyter's own client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from skerry import Sandbox


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    prefix = tmp_path_factory.mktemp("prefix")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(prefix / "share" / "jupyter"))
        command = [sys.executable, "-m", "skerry.integrations.jupyter", "install", "--prefix", str(prefix)]
        made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert (Path(made) / "kernel.json").is_file()
        manager = KernelManager(kernel_name="skerry")
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=120)
        yield manager, client
        client.stop_channels()
        manager.shutdown_kernel()
    assert [box.labels for box in Sandbox.list() if "jupyter" in box.labels] == []


def run(client: Any, code: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a cell; return its reply and the messages that it published."""
    found: list[dict[str, Any]] = []
    reply = client.execute_interactive(code, timeout=120, output_hook=found.append)
    return reply["content"], found


def test_cell_returns_its_output_and_value(kernel: Any) -> None:
    _, client = kernel
    reply, found = run(client, "x = 6\nprint('on')\nx * 7")
    assert reply["status"] == "ok"
    assert [m["content"]["text"] for m in found if m["msg_type"] == "stream"] == ["on\n"]
    assert [m["content"]["data"]["text/plain"] for m in found if m["msg_type"] == "execute_result"] == ["42"]
    _, found = run(client, "import os; print(os.getcwd())")
    assert [m["content"]["text"] for m in found if m["msg_type"] == "stream"] == ["/workspace\n"]


def test_error_has_its_name_and_traceback(kernel: Any) -> None:
    _, client = kernel
    reply, found = run(client, "x / 0")
    assert (reply["status"], reply["ename"]) == ("error", "ZeroDivisionError")
    [error] = [message["content"] for message in found if message["msg_type"] == "error"]
    assert "ZeroDivisionError" in "\n".join(error["traceback"])


def test_interrupt_ends_the_cell_and_keeps_the_variables(kernel: Any) -> None:
    manager, client = kernel
    pending = client.execute("print('started', flush=True)\nimport time\ntime.sleep(600)")
    while client.get_iopub_msg(timeout=120)["msg_type"] != "stream":
        continue
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=120))["parent_header"].get("msg_id") != pending:
        continue
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
    _, found = run(client, "print(x)")
    assert [m["content"]["text"] for m in found if m["msg_type"] == "stream"] == ["6\n"]
