"""A tool: an async function whose first argument is the call, made into what a client sees."""

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

from skerry.errors import InvalidRequest, NotFound, SandboxUnavailable, SkerryError
from skerry.mcp.call import Call, apart
from skerry.mcp.callers import Caller, still_there
from skerry.mcp.failures import in_words, refused
from skerry.mcp.schemas import plain

Connect = Callable[[Context[Any, Any]], Awaitable[Caller]]
_CALL = "at"
log = logging.getLogger(__name__)


class SkerryTool(Tool):
    """Takes no argument that it does not know, gives errors that say what to do, and is broken off cleanly."""

    connect: Connect = Field(exclude=True)

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> CallToolResult:
        given = self._taken(arguments)
        caller = await self.connect(context)
        try:
            call = Call(caller, context)
            return fitted(rendered(await apart(self.fn(call, **given))), call.room)
        except SkerryError as error:
            raise ToolError(await _told(caller, given, error)) from error
        except Exception as error:
            log.exception("%s failed", self.name)
            raise UnexpectedToolError(f"error: {self.name} failed, and that is Skerry's to mend, not yours") from error

    def _taken(self, arguments: dict[str, Any]) -> dict[str, Any]:
        model = self.fn_metadata.arg_model
        try:
            return model.model_validate(_unquoted(self.parameters["properties"], arguments)).model_dump_one_level()
        except ValidationError as error:
            names = [field.alias or name for name, field in model.model_fields.items()]
            raise ToolError(refused(self.name, names, error)) from error


class Described(BaseModel):
    """A tool before it is known who calls it."""

    fn: Callable[..., Awaitable[Any]]
    title: str
    annotations: ToolAnnotations

    def made(self, connect: Connect) -> SkerryTool:
        metadata = func_metadata(self.fn, skip_names=(_CALL,))
        metadata.arg_model = _strict(metadata.arg_model)
        metadata.output_schema = plain(metadata.output_schema)
        name = self.fn.__name__
        return SkerryTool(
            fn=self.fn, name=name, title=self.title, description=_unwrapped(self.fn.__doc__ or ""), is_async=True,
            parameters=plain(metadata.arg_model.model_json_schema(by_alias=True)), fn_metadata=metadata,
            annotations=self.annotations, context_kwarg=None, connect=connect,
        )  # fmt: skip


def reads(fn: Callable[..., Awaitable[Any]], title: str) -> Described:
    """A tool that changes nothing."""
    return _described(fn, title, read_only_hint=True, open_world_hint=False)


def changes(
    fn: Callable[..., Awaitable[Any]],
    title: str,
    *,
    destroys: bool = False,
    again: bool = False,
    outside: bool = False,
) -> Described:
    """One that does. `destroys`: what was there may be gone; `again`: twice is as once; `outside`: it may reach what is
    outside of the sandbox, as far as the policy lets it."""
    return _described(
        fn, title, read_only_hint=False, destructive_hint=destroys, idempotent_hint=again, open_world_hint=outside
    )


def _described(fn: Callable[..., Awaitable[Any]], title: str, **hints: bool) -> Described:
    return Described(fn=fn, title=title, annotations=ToolAnnotations(title=title, **hints))


def rendered(result: BaseModel | CallToolResult, *more: ContentBlock) -> CallToolResult:
    """The value, and the same as JSON for clients that show text: nothing in it can pass for anything but a value."""
    if isinstance(result, CallToolResult):
        return result
    structured = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = TextContent(type="text", text=json.dumps(structured, ensure_ascii=False))
    return CallToolResult(content=[text, *more], structured_content=structured)


def fitted(result: CallToolResult, room: int) -> CallToolResult:
    """No larger than the client takes: without its pictures, if need be."""
    if size_of(result) <= room:
        return result
    plain = [block for block in result.content if not isinstance(block, ImageContent)]
    if len(plain) < len(result.content):
        note = "A picture is left out: it is too large. Save a smaller one to a file; get_file brings it back."
        content = [*plain, TextContent(type="text", text=note)]
        return fitted(result.model_copy(update={"content": content}), room)
    raise InvalidRequest(
        "the call was done, but its answer is too large to be given",
        hint="don't do again what changed something; else ask for less: a lower limit or max_output, or one path",
    )


def size_of(result: CallToolResult) -> int:
    """In bytes, at most, without making it into text once more: a text's own escapes are escaped again."""
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
    """A docstring's paragraphs, each as one line."""
    paragraphs = text.split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).strip()


def _unquoted(properties: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Some clients send a list or an object as a text with JSON in it. Where a text itself is meant, it stays."""
    return {name: _value(properties.get(name, {}), value) for name, value in arguments.items()}


def _value(schema: Mapping[str, Any], value: Any) -> Any:
    kinds = {one.get("type") for one in schema.get("anyOf", [schema])}
    if not isinstance(value, str) or "string" in kinds or not kinds & {"array", "object"}:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


async def _told(caller: Caller, given: Mapping[str, Any], error: SkerryError) -> str:
    """A default sandbox that is gone is forgotten, and that is said: what was in it is gone too."""
    known = caller.known_default
    if known is None or given.get("sandbox") is not None:
        return in_words(error)
    if isinstance(error, NotFound) and not await still_there(caller, known):
        caller.forget(known)
        return (
            f"error: the default sandbox {known} is gone, and with it all that was in it\n"
            "next: call again; a new and empty one is made"
        )
    if isinstance(error, SandboxUnavailable):
        return (
            f'{in_words(error)}\nnext: or remove_sandbox(sandbox="{known}"), and the next call makes a new default one'
        )
    return in_words(error)
