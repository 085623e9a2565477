"""A scripted model that speaks the APIs of OpenAI and Anthropic: it runs one command, then answers with its output."""

from __future__ import annotations

import json
from typing import Any

COMMAND = "python3 -c 'print(6*7)'"
ANSWER = "6*7"
CODE = f"print({ANSWER})"
_USED = {"command": COMMAND, "cmd": COMMAND, "code": CODE}  # arguments of tools that the model can use


def completion(path: str, body: bytes) -> dict[str, Any] | None:
    """Return the answer to a request; None for other paths."""
    if path.endswith("/chat/completions"):
        return _openai(json.loads(body))
    if path.endswith("/v1/responses"):
        return _responses(json.loads(body))
    return _anthropic(json.loads(body)) if path.endswith("/v1/messages") else None


def _choose(tools: list[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the first tool that runs commands or code, and its arguments."""
    for tool in tools:
        described = tool.get("function", tool)
        schema = described.get("parameters") or described.get("input_schema") or {"properties": {"command": {}}}
        for name, value in _USED.items():
            if name in schema.get("properties", {}):
                return described["name"], {name: value}
    raise AssertionError(f"no tool runs commands or code: {tools}")


def _openai(request: dict[str, Any]) -> dict[str, Any]:
    last = request["messages"][-1]
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if "tools" not in request:
        message["content"] = f"<code>\nfinal_answer({ANSWER})\n</code>"  # for agents that act by code
    elif last["role"] == "tool":
        assert last["tool_call_id"] == "call_1"
        message["content"] = _final(last["content"])
    else:
        name, arguments = _choose(request["tools"])
        function = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if message["content"] else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "1", "object": "chat.completion", "created": 1, "model": request["model"]}
    return {**head, "choices": [choice], "usage": usage}


def _responses(request: dict[str, Any]) -> dict[str, Any]:
    last = request["input"][-1] if isinstance(request["input"], list) else {}
    item: dict[str, Any]
    if last.get("type") == "function_call_output":
        assert last["call_id"] == "call_1"
        text = {"type": "output_text", "text": _final(last["output"]), "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    else:
        name, arguments = _choose([tool for tool in request["tools"] if tool["type"] == "function"])
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "status": "completed"}
        item["arguments"] = json.dumps(arguments)
    usage = {
        "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
    }  # fmt: skip
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": request["model"],
        "output": [item], "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "usage": usage,
    }  # fmt: skip


def _anthropic(request: dict[str, Any]) -> dict[str, Any]:
    last = request["messages"][-1]["content"]
    if isinstance(last, list) and last[0]["type"] == "tool_result":
        assert last[0]["tool_use_id"] == "toolu_1"
        part = {"type": "text", "text": _final(last[0]["content"])}
    else:
        name, arguments = _choose(request["tools"])
        part = {"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}
    reason = "end_turn" if part["type"] == "text" else "tool_use"
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": request["model"], "content": [part],
        "stop_reason": reason, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


def _final(output: str | list[dict[str, Any]]) -> str:
    text = output if isinstance(output, str) else " ".join(part.get("text", "") for part in output)
    return f"The sandbox printed: {' '.join(text.split())}"
