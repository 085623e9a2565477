"""Build an MCP tool from an async function that takes a ToolCall as its first argument."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, func_metadata
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from skerry.codecs.json_bounds import JsonCounter
from skerry.errors import InvalidRequest, NotFound, SkerryError
from skerry.mcp.call import McpAccess, McpCaller, ToolCall, run_apart, sandbox_exists
from skerry.mcp.failures import argument_errors, error_text

Connect = Callable[[Context[Any, Any]], Awaitable[tuple[McpCaller, McpAccess]]]
_CALL = "at"
MAX_VALUES = 10_000  # values of an argument
log = logging.getLogger(__name__)


class SkerryTool(Tool):
    """A tool that rejects unknown arguments, returns errors with a next step, and is cancelled cleanly."""

    connect: Connect = Field(exclude=True)

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> CallToolResult:
        given = self._validated(arguments)
        caller, access = await self.connect(context)
        try:
            call = ToolCall(caller, access, context)
            return fit(render(await run_apart(self.fn(call, **given))), call.room)
        except SkerryError as error:
            raise ToolError(await _error_text(caller, given, error)) from error
        except Exception as error:
            log.exception("%s failed", self.name)
            raise UnexpectedToolError(
                f"error: {self.name} failed: this is a bug in Skerry, not in your call"
            ) from error

    def _validated(self, arguments: dict[str, Any]) -> dict[str, Any]:
        model = self.fn_metadata.arg_model
        try:
            return model.model_validate(_unquoted(self.parameters["properties"], arguments)).model_dump_one_level()
        except ValidationError as error:
            names = [field.alias or name for name, field in model.model_fields.items()]
            raise ToolError(argument_errors(self.name, names, error)) from error


class ToolSpec(BaseModel):
    """A tool without its callers."""

    fn: Callable[..., Awaitable[Any]]
    title: str
    annotations: ToolAnnotations

    def build(self, connect: Connect) -> SkerryTool:
        metadata = func_metadata(self.fn, skip_names=(_CALL,))
        metadata.arg_model = _strict(metadata.arg_model)
        metadata.output_schema = compact_schema(metadata.output_schema)
        name = self.fn.__name__
        return SkerryTool(
            fn=self.fn, name=name, title=self.title, description=_unwrapped(self.fn.__doc__ or ""), is_async=True,
            parameters=compact_schema(metadata.arg_model.model_json_schema(by_alias=True)), fn_metadata=metadata,
            annotations=self.annotations, context_kwarg=None, connect=connect,
        )  # fmt: skip


def reads(fn: Callable[..., Awaitable[Any]], title: str) -> ToolSpec:
    """Describe a tool that changes nothing."""
    return _described(fn, title, read_only_hint=True, open_world_hint=False)


def changes(
    fn: Callable[..., Awaitable[Any]],
    title: str,
    *,
    destroys: bool = False,
    again: bool = False,
    outside: bool = False,
) -> ToolSpec:
    """Describe a tool that changes something. `destroys`: it may overwrite or delete; `again`: repeating it has no
    effect; `outside`: it may reach systems outside the sandbox, within the policy."""
    return _described(
        fn, title, read_only_hint=False, destructive_hint=destroys, idempotent_hint=again, open_world_hint=outside
    )


def _described(fn: Callable[..., Awaitable[Any]], title: str, **hints: bool) -> ToolSpec:
    return ToolSpec(fn=fn, title=title, annotations=ToolAnnotations(title=title, **hints))


def render(result: BaseModel | CallToolResult, *more: ContentBlock) -> CallToolResult:
    """Return the value, and also as JSON text for clients that show only text. As JSON, its content cannot look like
    anything else. Optional fields without a value are omitted."""
    if isinstance(result, CallToolResult):
        return result
    structured = _with_required(result, result.model_dump(mode="json", by_alias=True, exclude_none=True))
    text = TextContent(type="text", text=json.dumps(structured, ensure_ascii=False))
    return CallToolResult(content=[text, *more], structured_content=structured)


def _with_required(model: BaseModel, shown: dict[str, Any]) -> dict[str, Any]:
    for name, field in type(model).model_fields.items():
        if field.is_required():
            shown.setdefault(field.serialization_alias or name, None)
        if isinstance(value := getattr(model, name), BaseModel):
            _with_required(value, shown[field.serialization_alias or name])
    return shown


def fit(result: CallToolResult, room: int) -> CallToolResult:
    """Limit a result to the size that the client accepts, if needed without its pictures."""
    if size_of(result) <= room:
        return result
    others = [block for block in result.content if not isinstance(block, ImageContent)]
    if len(others) < len(result.content):
        note = "A picture is left out because it is too large. Save a smaller one to a file and use get_file."
        content = [*others, TextContent(type="text", text=note)]
        return fit(result.model_copy(update={"content": content}), room)
    raise InvalidRequest(
        "the call succeeded, but its answer is too large",
        hint="do not repeat a call that changes something; else request less: a lower limit or max_output, or one path",
    )


def size_of(result: CallToolResult) -> int:
    """Return an upper bound of the size in bytes without encoding the result again: escapes in a text are escaped
    twice."""
    size = 0
    for block in result.content:
        if isinstance(block, ImageContent):
            size += len(block.data)
        elif isinstance(block, EmbeddedResource) and isinstance(block.resource, BlobResourceContents):
            size += len(block.resource.blob)
        else:
            size += len(to_json(block))
    first = result.content[0] if result.content else None
    return size + (len(first.text.encode()) if isinstance(first, TextContent) else 0)


def _strict(model: type[ArgModelBase]) -> type[ArgModelBase]:
    body = {"model_config": ConfigDict(extra="forbid"), "__module__": model.__module__}
    return type(model.__name__, (model,), body)


def _unwrapped(text: str) -> str:
    """Return the paragraphs of a docstring, each on one line."""
    paragraphs = text.split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).strip()


def _unquoted(properties: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Parse lists and objects that some clients send as JSON text. Arguments that accept text are kept."""
    return {name: _value(properties.get(name, {}), value) for name, value in arguments.items()}


def _value(schema: Mapping[str, Any], value: Any) -> Any:
    kinds = {one.get("type") for one in schema.get("anyOf", [schema])}
    if not isinstance(value, str) or "string" in kinds or not kinds & {"array", "object"} or _has_many_values(value):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _has_many_values(text: str) -> bool:
    counter = JsonCounter()
    counter.feed(text.encode("utf-8", "replace"))
    return counter.values > MAX_VALUES


async def _error_text(caller: McpCaller, given: Mapping[str, Any], error: SkerryError) -> str:
    """Return the error text. If the default sandbox no longer exists, forget it and report that its files are gone."""
    known = caller.known_default
    if known is None or given.get("sandbox") is not None:
        return error_text(error)
    if isinstance(error, NotFound) and not await sandbox_exists(caller, known):
        caller.forget(known)
        return (
            f"error: the default sandbox {known} no longer exists, and its files are gone\n"
            "next: call again; a new, empty default sandbox is created"
        )
    return error_text(error)


# -- schemas --


def compact_schema(schema: Any) -> Any:
    """Remove titles that repeat a name, and `null` for optional fields: models read schemas in every conversation."""
    if isinstance(schema, list):
        return [compact_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    short = {
        name: {field: compact_schema(one) for field, one in value.items()}
        if name in ("properties", "$defs")
        else compact_schema(value)
        for name, value in schema.items()
        if not (name == "title" and isinstance(value, str)) and not (name == "default" and value is None)
    }
    if "default" not in schema:
        return short
    kinds = [one for one in short.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        del short["anyOf"]
        return {**kinds[0], **short}
    return {**short, "anyOf": kinds} if kinds else short
