"""The APIs of model providers, with a scripted model: it edits a file, runs the tests, and says so; in the dialects of
Anthropic, OpenAI (responses, also over a WebSocket; chat) and Gemini, streamed or not. Only a request with the real key
is answered. Pure: requests in, events out.

The position in the script follows from the request, so that the model needs no memory.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HOSTS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com")
KEY = "sk-world-real-key-0123456789abcdef"
TASK = "Fix the function add, so that the test passes."
AGAIN = "Say again."  # a prompt that continues the conversation
EDIT = "perl -pi -e 's/a - b/a + b/' calc.py"  # some agents check the files of other editors
COMMANDS = (EDIT, "python3 -m unittest -q test_calc")
DONE = "The world's model fixed add."
REMEMBERED = "The world's model remembers the task."
FORGOT = "The world's model forgot the task."
SHELL = re.compile(
    r"bash|shell|exec_command|execute_command|run_commands?|run_shell_command|terminal|local_shell", re.I
)
BLOCK = """\
calc.py
```python
<<<<<<< SEARCH
    return a - b
=======
    return a + b
>>>>>>> REPLACE
```
"""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # ends a task of mini-swe-agent; the rest is its answer
SCRIPTED = "functions.exec"  # codex: a tool that runs JavaScript, with the others as functions
SCRIPT = "text(await tools.exec_command({cmd: %s}))"
Json = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """An answer: a command for the shell tool, or a text. `id`: a different one for each turn, as some agents drop
    a call with an ID that they know."""

    id: str
    text: str | None = None
    tool: str = ""
    arguments: Json | None = None


def authorized(headers: Mapping[str, str]) -> bool:
    given = headers.get("x-api-key"), headers.get("x-goog-api-key"), headers.get("authorization", "")[len("Bearer ") :]
    return KEY in given


def turn(tools: Mapping[str, Json], done: int, prompts: list[str], system: str = "") -> Turn:
    """Return the answer after `done` commands of the last prompt. `tools`: name to JSON schema."""
    id_ = f"{len(prompts)}_{done}"
    submits = SUBMIT.split()[1] in system + "".join(prompts)
    if prompts and AGAIN in prompts[-1] and not submits:
        remembers = any(TASK in one for one in prompts[:-1])
        return Turn(id_, REMEMBERED if remembers else FORGOT)
    name = next((one for one in tools if SHELL.fullmatch(one)), None) or next(filter(SHELL.search, tools), None)
    if SCRIPTED in tools:
        name = SCRIPTED
    if name is None:  # aider edits with blocks of text; other requests without tools are for titles
        return Turn(id_, f"{BLOCK}\n{DONE}" if "SEARCH" in system else DONE)
    commands: tuple[str, ...] = COMMANDS
    if submits:
        known = any(TASK in one for one in prompts)
        submit = f"{SUBMIT}; echo {shlex.quote(DONE if known else FORGOT)}"
        commands = (*COMMANDS, submit) if known else (submit,)
    if done >= len(commands):
        return Turn(id_, DONE)
    if name == SCRIPTED:
        return Turn(id_, tool=name, arguments={"input": SCRIPT % json.dumps(commands[done])})
    return Turn(id_, tool=name, arguments=_arguments(tools[name], commands[done]))


def _arguments(schema: Json, command: str) -> Json:
    """Fill the schema of a shell tool."""
    found: Json = {}
    properties = schema.get("properties", {})
    for name, one in properties.items():
        one = next((each for each in one.get("anyOf", ()) if each.get("type") != "null"), one)
        kind = one.get("type")
        kind = str(
            next((k for k in kind if k != "null"), "string") if isinstance(kind, list) else kind or "string"
        ).lower()
        if name in ("command", "cmd", "commands", "script"):
            items = str(one.get("items", {}).get("type", "string")).lower() if kind == "array" else ""
            found[name] = (["bash", "-lc", command] if name != "commands" else [command]) if items else command
        elif name in schema.get("required", ()):
            found[name] = {"boolean": False, "integer": 60_000, "number": 60_000, "array": [], "object": {}}.get(
                kind, one.get("enum", ["run a command"])[0]
            )
    return found


def _sample(schema: Json) -> Any:
    """Return a value of a JSON schema."""
    kind = str(schema.get("type", "string")).lower()
    if kind == "object":
        return {name: _sample(one) for name, one in schema.get("properties", {}).items()}
    return {"integer": 1, "number": 1, "boolean": False, "array": []}.get(kind, schema.get("enum", ["a reason"])[0])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


# -- the dialects ------------------------------------------------------------------------------------------------------


def answer(method: str, path: str, body: bytes) -> tuple[str, list[bytes]] | None:
    """Return the media type and the pieces of the answer to a request; None for other paths."""
    if method != "POST":
        return None
    request = json.loads(body or b"{}")
    if path.endswith("/v1/messages"):
        return _sse(anthropic(request), named=True) if request.get("stream") else _json(_whole_message(request))
    if path.endswith("/messages/count_tokens"):
        return _json({"input_tokens": 100})
    if path.endswith("/responses"):
        return (
            _sse(responses(request), named=True)
            if request.get("stream")
            else _json(list(responses(request))[-1]["response"])
        )
    if path.endswith("/chat/completions"):
        return _chat(request)
    if match := re.fullmatch(r".*/models/[^/:]+:(\w+)", path):
        if match[1] == "countTokens":
            return _json({"totalTokens": 100})
        return _sse([gemini(request)]) if match[1] == "streamGenerateContent" else _json(gemini(request))
    return None


def _json(value: Json) -> tuple[str, list[bytes]]:
    return "application/json", [json.dumps(value).encode()]


def _sse(events: Any, *, named: bool = False, end: bytes = b"") -> tuple[str, list[bytes]]:
    pieces = [
        (f"event: {event['type']}\n" if named else "").encode() + f"data: {json.dumps(event)}\n\n".encode()
        for event in events
    ]
    return "text/event-stream", [*pieces, *([end] if end else [])]


def _parts(content: Any) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _anthropic_turn(request: Json) -> Turn:
    done, prompts = 0, []
    for message in request["messages"]:
        content = (
            message["content"]
            if isinstance(message["content"], list)
            else [{"type": "text", "text": message["content"]}]
        )
        if message["role"] != "user":
            continue
        results = sum(part["type"] == "tool_result" for part in content)
        text = _text([part for part in content if "<system-reminder>" not in str(part.get("text", ""))])
        done += results
        if text.strip() and not results:
            done = 0
            prompts.append(text)
    tools = {tool["name"]: tool.get("input_schema", {}) for tool in request.get("tools", ())}
    return turn(tools, done, prompts, _text(request.get("system", "")))


def _blocks(found: Turn) -> Json:
    if found.text is not None:
        return {"type": "text", "text": found.text}
    return {"type": "tool_use", "id": f"toolu_{found.id}", "name": found.tool, "input": found.arguments}


def _message(request: Json, found: Turn) -> Json:
    return {
        "id": f"msg_{found.id}", "type": "message", "role": "assistant", "model": request.get("model", "world"),
        "content": [_blocks(found)], "stop_reason": "end_turn" if found.text is not None else "tool_use",
        "stop_sequence": None, "usage": {"input_tokens": 100, "output_tokens": 10},
    }  # fmt: skip


def _whole_message(request: Json) -> Json:
    return _message(request, _anthropic_turn(request))


def anthropic(request: Json) -> Iterator[Json]:
    found = _anthropic_turn(request)
    whole = _message(request, found)
    block = _blocks(found)
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    start = {**block, "text": ""} if found.text is not None else {**block, "input": {}}
    yield {"type": "content_block_start", "index": 0, "content_block": start}
    text = found.text if found.text is not None else json.dumps(found.arguments)
    kind, key = ("text_delta", "text") if found.text is not None else ("input_json_delta", "partial_json")
    for at in range(0, len(text), 20):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": kind, key: text[at : at + 20]}}
    yield {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 10}}
    yield {"type": "message_stop"}


def _responses_turn(request: Json) -> tuple[Turn, int, bool]:
    """Return the answer, its number, and whether the task was the prompt. Over a WebSocket, a request has only the new
    items: the ID of the response before it tells the rest."""
    before = re.fullmatch(r"resp_(\d+)_(task|other)_.*", str(request.get("previous_response_id") or ""))
    done, prompts = (int(before[1]), [TASK] if before[2] == "task" else []) if before else (0, [])
    items = request["input"] if isinstance(request["input"], list) else [{"role": "user", "content": request["input"]}]
    for item in items:
        if item.get("type") in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
            done += 1
        elif item.get("role") == "user" and not (text := _text(item["content"])).lstrip().startswith(("<", "#")):
            prompts.append(text)
            done = 0
    given = [*request.get("tools", ()), *(one for item in items for one in item.get("tools", ()))]
    given += [one for group in given if group.get("type") == "namespace" for one in group["tools"]]
    tools = {one["name"]: one.get("parameters") or {} for one in given if one.get("type") == "function"}
    scripted = any(one.get("type") == "custom" and one["name"] == "exec" for one in given)
    if scripted or (before and not tools):
        tools[SCRIPTED] = {}
    return turn(tools, done, prompts, request.get("instructions") or ""), done, any(TASK in one for one in prompts)


def responses(request: Json) -> Iterator[Json]:
    found, done, task = _responses_turn(request)
    base = {"id": f"resp_{done}_{'task' if task else 'other'}_world", "object": "response", "created_at": 1,
            "status": "in_progress", "model": request.get("model", "world"), "output": []}  # fmt: skip
    if found.text is not None:
        part = {"type": "output_text", "text": found.text, "annotations": []}
        item: Json = {
            "type": "message",
            "id": f"msg_{found.id}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    elif found.tool == SCRIPTED:
        item = {"type": "custom_tool_call", "id": f"ctc_{found.id}", "call_id": f"call_{found.id}", "name": "exec",
                "namespace": "functions", "status": "completed", **(found.arguments or {})}  # fmt: skip
    else:
        item = {"type": "function_call", "id": f"fc_{found.id}", "call_id": f"call_{found.id}", "name": found.tool,
                "status": "completed", "arguments": json.dumps(found.arguments)}  # fmt: skip
    events: list[Json] = [{"type": "response.created", "response": base}]
    empty = {"content": [], "arguments": "", "input": ""}
    opened = {**item, "status": "in_progress"} | {key: value for key, value in empty.items() if key in item}
    events.append({"type": "response.output_item.added", "output_index": 0, "item": opened})
    where = {"item_id": item["id"], "output_index": 0}
    if found.text is not None:
        events.append(
            {"type": "response.content_part.added", **where, "content_index": 0, "part": {**part, "text": ""}}
        )
        events += [{"type": "response.output_text.delta", **where, "content_index": 0, "delta": word}
                   for word in re.findall(r"\S+\s*", found.text)]  # fmt: skip
        events.append({"type": "response.output_text.done", **where, "content_index": 0, "text": found.text})
        events.append({"type": "response.content_part.done", **where, "content_index": 0, "part": part})
    elif found.tool == SCRIPTED:
        events.append({"type": "response.custom_tool_call_input.delta", **where, "delta": item["input"]})
        events.append({"type": "response.custom_tool_call_input.done", **where, "input": item["input"]})
    else:
        events.append({"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]})
        events.append({"type": "response.function_call_arguments.done", **where, "arguments": item["arguments"]})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 10,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 110}  # fmt: skip
    events.append(
        {"type": "response.completed", "response": {**base, "status": "completed", "output": [item], "usage": usage}}
    )
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _chat(request: Json) -> tuple[str, list[bytes]]:
    done, prompts = 0, []
    system = ""
    for message in request["messages"]:
        text = _text(message.get("content"))
        if message["role"] == "tool":
            done += 1
        elif message["role"] == "user":
            prompts.append(text)
            done = 0
        elif message["role"] in ("system", "developer"):
            system += text
    tools = {one["function"]["name"]: one["function"].get("parameters", {}) for one in request.get("tools", ())}
    found = turn(tools, done, prompts, system)
    message: Json = {"role": "assistant", "content": found.text}
    if found.text is None:
        function = {"name": found.tool, "arguments": json.dumps(found.arguments)}
        message["tool_calls"] = [{"index": 0, "id": f"call_{found.id}", "type": "function", "function": function}]
    reason = "stop" if found.text is not None else "tool_calls"
    base = {"id": "chat_world", "created": 1, "model": request.get("model", "world")}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    if not request.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return _json({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    chunk = {**base, "object": "chat.completion.chunk"}
    events = [
        {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {**chunk, "choices": [], "usage": usage},
    ]
    return _sse(events, end=b"data: [DONE]\n\n")


def gemini(request: Json) -> Json:
    done, prompts = 0, []
    for content in request.get("contents", ()):
        if content.get("role") not in (None, "user"):
            continue
        results = sum("functionResponse" in part for part in content["parts"])
        text = _text(content["parts"])
        done += results
        if text.strip() and not results:
            prompts.append(text)
            done = 0
    tools = {
        one["name"]: one.get("parametersJsonSchema") or one.get("parameters") or {}
        for group in request.get("tools", ())
        for one in group.get("functionDeclarations", ())
    }
    found = turn(tools, done, prompts, _text((request.get("systemInstruction") or {}).get("parts")))
    part: Json = {"text": found.text}
    config = request.get("generationConfig") or {}
    if config.get("responseMimeType") == "application/json":  # a question about the task, such as its difficulty
        part = {"text": json.dumps(_sample(config.get("responseJsonSchema") or config.get("responseSchema") or {}))}
    elif found.text is None:
        part = {"functionCall": {"name": found.tool, "args": found.arguments}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "world"}
