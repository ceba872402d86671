"""fastmcp: a server with the tools that the MCP conformance suite calls, beside our own.

    python fastmcp_conformance.py PORT

It serves tools alone, as ours does: fastmcp has resources, prompts and completion, too. What
a tool asks of its client it asks as fastmcp's documentation has it: within the call up to protocol
2025-11-25, and from 2026-07-28 on by returning what is needed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar

import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import Tool as ServerTool
from fastmcp.utilities.types import Audio, Image
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJg"
    "gg=="
)
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
TEXT = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
COLOR = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}

warnings.simplefilter("ignore")  # sampling and logging are deprecated, and judged
server: Any = FastMCP("fastmcp-conformance")
F = TypeVar("F", bound=Callable[..., Any])


def served(function: F) -> F:
    server.tool(function)
    return function


def resource(uri: str, kind: str, text: str) -> types.EmbeddedResource:
    contents = types.TextResourceContents(uri=uri, mime_type=kind, text=text)
    return types.EmbeddedResource(type="resource", resource=contents)


def image() -> Image:
    return Image(data=base64.b64decode(PNG), format="png")


@served
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@served
def test_image_content() -> Image:
    """Return an image."""
    return image()


@served
def test_audio_content() -> Audio:
    """Return a sound."""
    return Audio(data=base64.b64decode(WAV), format="wav")


@served
def test_embedded_resource() -> types.EmbeddedResource:
    """Return a resource."""
    text = "This is an embedded resource content."
    return resource("test://embedded-resource", "text/plain", text)


@served
def test_multiple_content_types() -> list[Any]:
    """Return a text, an image and a resource."""
    data = resource("test://mixed-content-resource", "application/json", '{"test":"data"}')
    return ["Multiple content types test:", image(), data]


@served
async def test_tool_with_logging(ctx: Context) -> str:
    """Log three times."""
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(said)
        await asyncio.sleep(0.05)
    return "logged"


@served
async def test_logging_tool(ctx: Context) -> str:
    """Log something."""
    await ctx.info("something")
    return "logged"


@served
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@served
async def test_tool_with_progress(ctx: Context) -> str:
    """Say how far it is."""
    for reached in (0, 50, 100):
        await ctx.report_progress(reached, 100)
        await asyncio.sleep(0.05)
    return "done"


def message(text: str) -> list[types.SamplingMessage]:
    return [types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))]


def sample(prompt: str) -> types.CreateMessageRequest:
    wanted = types.CreateMessageRequestParams(messages=message(prompt), max_tokens=100)
    return types.CreateMessageRequest(params=wanted)


def form(text: str, schema: dict[str, Any]) -> types.ElicitRequest:
    params = types.ElicitRequestFormParams(message=text, requested_schema=schema)
    return types.ElicitRequest(params=params)


@served
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Let the client's model answer."""
    given = await ctx.session.create_message(message(prompt), max_tokens=100)
    return f"LLM response: {getattr(given.content, 'text', '')}"


@dataclass
class Person:
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


@served
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask for a name and an address."""
    given = await ctx.elicit(message, Person)
    return f"User response: action={given.action}"


@dataclass
class Defaults:
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


@served
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask with defaults."""
    given = await ctx.elicit("Take the defaults", Defaults)
    return f"Elicitation completed: action={given.action}"


class Option(Enum):
    first = "option1"
    second = "option2"
    third = "option3"


@served
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask for choices, by the session: fastmcp's own `elicit` makes one kind of them at a time."""
    options = [each.value for each in Option]
    titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    schema = {"type": "object", "properties": fields, "required": []}
    given = await ctx.session.elicit_form("Choose", schema, ctx.origin_request_id)
    return f"Elicitation completed: action={given.action}, content={json.dumps(given.content)}"


Result = str | types.InputRequiredResult


def asking(ctx: Context, state: str | None = None, **wanted: types.InputRequest) -> Result | None:
    """Return what is still needed, None if all of it is there."""
    given = ctx.input_responses or {}
    if all(key in given for key in wanted):
        return None
    return types.InputRequiredResult(input_requests=wanted, request_state=state)


@served
async def test_input_required_result_elicitation(ctx: Context) -> Any:
    """Ask for a name, and greet."""
    needed = asking(ctx, user_name=form("What is your name?", TEXT))
    if needed is not None:
        return needed
    given: Any = (ctx.input_responses or {})["user_name"]
    return f"Hello, {(given.content or {}).get('name')}!"


@served
async def test_input_required_result_sampling(ctx: Context) -> Any:
    """Let the client's model answer."""
    wanted = sample("What is the capital of France?")
    return asking(ctx, capital_question=wanted) or "answered"


@served
async def test_input_required_result_list_roots(ctx: Context) -> Any:
    """Ask for the client's folders."""
    return asking(ctx, client_roots=types.ListRootsRequest()) or "answered"


@served
async def test_input_required_result_multiple_inputs(ctx: Context) -> Any:
    """Ask three things at once."""
    return (
        asking(
            ctx,
            "asked",
            user_name=form("What is your name?", TEXT),
            greeting=sample("Generate a greeting"),
            client_roots=types.ListRootsRequest(),
        )
        or "answered"
    )


@served
async def test_input_required_result_request_state(ctx: Context) -> Any:
    """Ask, and say that the state was kept."""
    return asking(ctx, "asked", confirm=form("Please confirm", OK)) or "state-ok"


@served
async def test_input_required_result_tampered_state(ctx: Context) -> Any:
    """Ask with a state that nobody may change."""
    return asking(ctx, "asked", confirm=form("Please confirm", OK)) or "state-ok"


@served
async def test_streaming_elicitation(ctx: Context) -> Any:
    """Ask in a stream."""
    return asking(ctx, "asked", confirm=form("Please confirm", OK)) or "confirmed"


@served
async def test_input_required_result_multi_round(ctx: Context) -> Any:
    """Ask twice, one after the other."""
    if ctx.request_state != "second":
        first = asking(ctx, "first", step1=form("Step 1: What is your name?", TEXT))
        if first is not None:
            return first
    return asking(ctx, "second", step2=form("Step 2: What is your favorite color?", COLOR)) or "ok"


@served
async def test_input_required_result_capabilities(ctx: Context) -> Any:
    """Ask what the client can be asked."""
    told = ctx.session.client_capabilities
    if told is not None and told.sampling is not None:
        return asking(ctx, "asked", sample=sample("Say something")) or "answered"
    return asking(ctx, "asked", confirm=form("Please confirm", OK)) or "answered"


@served
async def test_missing_capability(ctx: Context) -> Any:
    """Ask a client that cannot be asked."""
    if ctx.session.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return asking(ctx, "asked", sample=sample("Say something")) or "answered"
    return await test_sampling("Say something", ctx)


@served
def test_header_param(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Take an argument that is a header, too."""
    return region


ADDRESS = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "allOf": [{"anyOf": [{"required": ["name"]}, {"required": ["address"]}]}],
    "if": {"required": ["address"]},
    "then": {"required": ["name"]},
    "else": {"required": ["name"]},
    "additionalProperties": False,
}
server.add_tool(
    ServerTool(
        name="json_schema_2020_12_tool",
        description="Tool with JSON Schema 2020-12 features",
        parameters=SCHEMA,
    )
)


if __name__ == "__main__":
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
