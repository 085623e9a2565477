"""The program inside the sandbox of a session of Claude Managed Agents. `skerry worker claude` copies this file into
its image and starts it for each work item; nothing imports it. It runs the SDK's own worker: tools, skills, memory
stores, the heartbeat, and the end of the item.

Its token is a placeholder: the sandbox's gateway sets the real one on requests to the API. Exit code HANDLED: the run
failed, and the SDK has stopped the item or has given its lease up. At any other end but 0, the host stops the item.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import os
import shutil
import signal
import sys

HANDLED = 3
MEMORY = "/mnt/memory"


def set_aside(work: str, workdir: str) -> None:
    """Move memory folders of a killed run away: the SDK does not start a session whose folders exist."""
    found = os.listdir(MEMORY) if os.path.isdir(MEMORY) else []
    for name in found:
        place = os.path.join(workdir, f"unsaved-memory-{work}")
        os.makedirs(place, exist_ok=True)
        shutil.move(os.path.join(MEMORY, name), os.path.join(place, name))
        logging.warning("moved the memory of an interrupted run to %s", place)


async def serve(given: argparse.Namespace) -> None:
    from anthropic import AsyncAnthropic
    from anthropic.lib.environments import EnvironmentWorker

    token = os.environ["ANTHROPIC_WORK_TOKEN"]
    secret = base64.urlsafe_b64encode(json.dumps({"sessions_token": token}).encode()).decode()
    async with AsyncAnthropic(auth_token=token) as client:
        worker = EnvironmentWorker(client, workdir=given.workdir, max_idle=given.max_idle)
        await worker.handle_item(
            work_id=given.work, environment_id=given.environment, session_id=given.session, work_secret=secret
        )


async def interruptible(given: argparse.Namespace) -> None:
    """Serve; after a signal, the SDK saves the memory stores and stops the item."""
    task = asyncio.create_task(serve(given))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("work", "environment", "session", "workdir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-idle", type=float, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    os.makedirs(given.workdir, exist_ok=True)
    set_aside(given.work, given.workdir)
    try:
        asyncio.run(interruptible(given))
    except asyncio.CancelledError:
        logging.error("interrupted")
        return HANDLED
    except Exception as error:
        logging.exception("the run failed")
        cause: BaseException = error
        while isinstance(found := getattr(cause, "exceptions", None), tuple) and found:  # groups of the SDK's tasks
            cause = found[0]
        logging.error("%s: %s", type(cause).__name__, str(cause).replace("\n", " "))  # the host reports the last line
        return HANDLED
    return 0


if __name__ == "__main__":
    sys.exit(main())
