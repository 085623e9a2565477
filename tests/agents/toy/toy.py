#!/usr/bin/python3
"""An agent without a model: its prompts are commands. It remembers its conversation in ~/.toy/conversation."""

# ruff: noqa: T201

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path.home() / ".toy"
CONVERSATION = HOME / "conversation"


def say(text):
    if "--events" in sys.argv:
        content = [{"type": "text", "text": text}]
        print(json.dumps({"type": "assistant", "message": {"content": content}}), flush=True)
    else:
        print(text, flush=True)


def event(kind, **part):
    if "--events" in sys.argv:
        print(json.dumps({"type": kind, "message": {"content": [part]}}), flush=True)


def wait_for(name):
    """Wait until the test has written a file."""
    end = time.monotonic() + 60
    while not Path("/tmp", name).exists() and time.monotonic() < end:
        time.sleep(0.02)


def edit(line, *, slowly=False):
    """Change a file, as a tool call that is reported before and after it. `slowly`: let the test see the report."""
    name, _, text = line.partition(" ")
    event("assistant", type="tool_use", id="1", name="Edit", input={"file_path": f"/workspace/{name}"})
    if slowly:
        wait_for("one")
        say("reported")
        wait_for("two")
    Path("/workspace", name).write_text(text + "\n")
    event("user", type="tool_result", tool_use_id="1", content="ok")
    say(f"edited {name}")


def follow(prompt):
    earlier = CONVERSATION.read_text().splitlines() if CONVERSATION.exists() and "--continue" in sys.argv else []
    CONVERSATION.write_text("".join(f"{line}\n" for line in [*earlier, prompt]))
    word, _, rest = prompt.partition(" ")
    if word in ("edit", "slowly"):
        edit(rest, slowly=word == "slowly")
    elif word == "run":
        say(subprocess.run(["sh", "-c", rest], capture_output=True, text=True, check=False).stdout.strip())
    elif word == "error":
        print(json.dumps({"type": "result", "is_error": True, "result": rest}), flush=True)
    elif word == "fail":
        say("failed")
        return int(rest)
    elif word == "wait":
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        say("waiting")
        time.sleep(600)
    else:
        say(f"prompt {len(earlier) + 1}: {prompt}")
    return 0


def open_terminal():
    if "--continue" in sys.argv and not CONVERSATION.exists():
        print("no conversation found")
        return 1
    cols, rows = os.get_terminal_size()
    print(f"\x1b[1mtoy\x1b[0m {cols}x{rows} {os.environ.get('COLORTERM', '')}", flush=True)
    while True:
        line = input("toy> ")
        if line.startswith("quit"):
            return int(line[5:] or 0)
        follow(line)
        if "--continue" not in sys.argv:
            sys.argv.append("--continue")


def speak():
    """Follow prompts of an editor, and ask for what no agent in a sandbox may have."""

    def send(**message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def update(**found):
        send(method="session/update", params={"sessionId": "s1", "update": found})

    cwd = ""
    print("starting", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        method, params, answer = message.get("method"), message.get("params", {}), {"id": message.get("id")}
        if method == "initialize":
            login = {"id": "login", "name": "Log in", "_meta": {"terminal-auth": {"command": "touch", "args": ["x"]}}}
            capabilities = {"loadSession": True, "offered": params["clientCapabilities"]}
            send(**answer, result={"protocolVersion": 1, "authMethods": [login], "agentCapabilities": capabilities})
        elif method == "session/new":
            cwd = params["cwd"]
            padding = {"padding": "x" * params["size"]} if "size" in params else {}
            send(**answer, result={"sessionId": "s1", "servers": params["mcpServers"], **padding})
        elif method == "session/prompt":
            uris = [block["uri"] for block in params["prompt"] if block.get("type") == "resource_link"]
            text = params["prompt"][0]["text"]
            update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": f"{cwd} {uris}"})
            locations = [{"path": "/workspace/app.py"}, {"path": "/etc/passwd"}]
            update(sessionUpdate="tool_call", toolCallId="c1", title="Edit app.py", kind="edit", locations=locations)
            wait_for("reported")
            Path("/workspace/app.py").write_text(f"{text}\n")
            update(sessionUpdate="tool_call_update", toolCallId="c1", status="completed")
            send(id="w1", method="fs/write_text_file", params={"path": "/workspace/app.py", "content": "stolen"})
            answer_to_write = json.loads(sys.stdin.readline())
            update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": str(answer_to_write)})
            send(**answer, result={"stopReason": "end_turn"})
    return 0


if "--acp" in sys.argv:
    sys.exit(speak())
if "--prompt" in sys.argv:
    sys.exit(follow(sys.argv[sys.argv.index("--prompt") + 1]))
sys.exit(open_terminal())
