"""The server that the official MCP conformance suite judges: its tools, as a toolcrib catalog.

python mcp_conformance_server.py PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncGenerator
from typing import Any

import mcp_types as types
import uvicorn

from toolcrib import (
    ALL,
    Catalog,
    File,
    Image,
    ToolContent,
    ToolError,
    ToolInvocationRecord,
    ToolRunner,
    per_call,
    tool,
)
from toolcrib.bridges.mcp import McpClient, calling_client, mcp_server

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJg"
    "gg=="
)
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
AFTER, SLOW = 0.5, 1.0  # seconds after which a call is a task, and that some calls take
TEXT = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

warnings.simplefilter("ignore")  # sampling and logging are deprecated, and judged


@tool(visible=ALL)
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(visible=ALL)
def test_image_content() -> Image:
    """Return an image."""
    return Image("image/png", PNG)


@tool(visible=ALL)
def test_audio_content() -> File:
    """Return a sound."""
    return File("audio/wav", WAV)


@tool(visible=ALL)
def test_embedded_resource() -> File:
    """Return a resource."""
    text = "This is an embedded resource content."
    return File("text/plain", text=text, name="test://embedded-resource")


@tool(visible=ALL)
def test_multiple_content_types() -> ToolContent[None]:
    """Return a text, an image and a resource."""
    data = '{"test":"data","value":123}'
    resource = File("application/json", text=data, name="test://mixed-content-resource")
    return ToolContent(None, ("Multiple content types test:", Image("image/png", PNG), resource))


@tool(visible=ALL)
async def test_tool_with_logging(client: McpClient) -> str:
    """Log three times."""
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await client.session.send_log_message("info", said, related_request_id="this")
        await asyncio.sleep(0.05)
    return "logged"


@tool(visible=ALL)
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(visible=ALL)
async def test_tool_with_progress() -> AsyncGenerator[dict[str, Any], None]:
    """Say how far it is."""
    for reached in (0, 50, 100):
        yield {"progress": reached, "total": 100}
        await asyncio.sleep(0.05)


async def _sampled(client: McpClient, prompt: str, key: str = "") -> str:
    said = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    wanted = types.CreateMessageRequestParams(messages=[said], max_tokens=100)
    given = await client.sample(wanted, key=key)
    return str(getattr(given.content, "text", ""))


@tool(visible=ALL)
async def test_sampling(prompt: str, client: McpClient) -> str:
    """Let the client's model answer."""
    return f"LLM response: {await _sampled(client, prompt)}"


def told(given: types.ElicitResult, before: str) -> str:
    return f"{before}: action={given.action}, content={json.dumps(given.content)}"


@tool(visible=ALL)
async def test_elicitation(message: str, client: McpClient) -> str:
    """Ask for a name and an address."""
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return told(await client.elicit(message, schema), "User response")


@tool(visible=ALL)
async def test_elicitation_sep1034_defaults(client: McpClient) -> str:
    """Ask with defaults."""
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    schema = {"type": "object", "properties": fields, "required": []}
    return told(await client.elicit("Take the defaults", schema), "Elicitation completed")


@tool(visible=ALL)
async def test_elicitation_sep1330_enums(client: McpClient) -> str:
    """Ask for choices."""
    options = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"}
        for n, word in enumerate(("First", "Second", "Third"), 1)
    ]
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
    return told(await client.elicit("Choose", schema), "Elicitation completed")


@tool(visible=ALL)
async def test_input_required_result_elicitation(client: McpClient) -> str:
    """Ask for a name, and greet."""
    given = await client.elicit("What is your name?", TEXT, key="user_name")
    return f"Hello, {(given.content or {}).get('name')}!"


@tool(visible=ALL)
async def test_input_required_result_sampling(client: McpClient) -> str:
    """Let the client's model answer."""
    return await _sampled(client, "What is the capital of France?", "capital_question")


@tool(visible=ALL)
async def test_input_required_result_list_roots(client: McpClient) -> str:
    """Ask for the client's folders."""
    return ", ".join(str(root.uri) for root in await client.roots(key="client_roots"))


@tool(visible=ALL)
async def test_input_required_result_multiple_inputs(client: McpClient) -> str:
    """Ask three things at once."""
    name, greeting, roots = await asyncio.gather(
        client.elicit("What is your name?", TEXT, key="user_name"),
        _sampled(client, "Generate a greeting", "greeting"),
        client.roots(key="client_roots"),
    )
    return f"{greeting} {name.content} {roots}"


async def _confirmed(client: McpClient) -> bool:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    return (await client.elicit("Please confirm", schema, key="confirm")).action == "accept"


@tool(visible=ALL)
async def test_input_required_result_request_state(client: McpClient) -> str:
    """Ask, and say that the state was kept."""
    await _confirmed(client)
    return "state-ok"


@tool(visible=ALL)
async def test_input_required_result_tampered_state(client: McpClient) -> str:
    """Ask with a state that nobody may change."""
    await _confirmed(client)
    return "state-ok"


@tool(visible=ALL)
async def test_streaming_elicitation(client: McpClient) -> str:
    """Ask in a stream."""
    await _confirmed(client)
    return "confirmed"


@tool(visible=ALL)
async def test_input_required_result_multi_round(client: McpClient) -> str:
    """Ask twice, one after the other."""
    name = await client.elicit("Step 1: What is your name?", TEXT, key="step1")
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    color = await client.elicit("Step 2: What is your favorite color?", schema, key="step2")
    return f"{(name.content or {}).get('name')} likes {(color.content or {}).get('color')}"


@tool(visible=ALL)
async def test_input_required_result_capabilities(client: McpClient) -> str:
    """Ask what the client can be asked."""
    told = client.session.client_capabilities
    if told is not None and told.sampling is not None:
        return await _sampled(client, "Say something")
    return str(await _confirmed(client))


@tool(visible=ALL)
async def test_missing_capability(client: McpClient) -> str:
    """Ask a client that cannot be asked."""
    return await _sampled(client, "Say something")


@tool(visible=ALL)
async def test_logging_tool(client: McpClient) -> str:
    """Log something."""
    await client.session.send_log_message("info", "something", related_request_id="this")
    return "logged"


@tool(visible=ALL)
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@tool(visible=ALL)
async def slow_compute(seconds: float, label: str = "") -> str:
    """Take as long as you say."""
    await asyncio.sleep(seconds)
    return f"done {label}"


@tool(visible=ALL)
async def failing_job() -> str:
    """Fail after a while."""
    await asyncio.sleep(SLOW)
    raise ToolError("This job fails")


@tool(visible=ALL)
async def protocol_error_job() -> str:
    """End after a while, and what came of it cannot be recorded."""
    await asyncio.sleep(SLOW)
    return "done"


class Full:
    """A sink that has no room for one of the tools."""

    def write(self, record: ToolInvocationRecord) -> None:
        if record.name == "protocol_error_job":
            raise OSError


@tool(visible=ALL)
async def confirm_delete(client: McpClient, filename: str = "") -> str:
    """Ask after a while."""
    await asyncio.sleep(SLOW)
    return f"deleted {filename}: {await _confirmed(client)}"


@tool(visible=ALL)
async def multi_input(client: McpClient) -> str:
    """Ask two things at once, after a while."""
    await asyncio.sleep(SLOW)
    name, age = await asyncio.gather(
        client.elicit("What is your name?", TEXT), client.elicit("And another one?", TEXT)
    )
    return f"{name.content} {age.content}"


@tool(visible=ALL)
async def test_tool_with_task(client: McpClient) -> str:
    """Ask, and take a while then."""
    given = await client.elicit("What is your name?", TEXT, key="user_name")
    await asyncio.sleep(SLOW)
    return f"Hello, {(given.content or {}).get('name')}!"


SCHEMA = {
    "name": "json_schema_2020_12_tool",
    "description": "Tool with JSON Schema 2020-12 features",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "type": "object",
                "$anchor": "addressDef",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "allOf": [{"anyOf": [{"required": ["name"]}, {"required": ["address"]}]}],
        "if": {"required": ["address"]},
        "then": {"required": ["name"]},
        "else": {"required": ["name"]},
        "additionalProperties": False,
    },
}
HEADERS = {
    "name": "test_header_param",
    "description": "Tool with arguments that are headers, too",
    "input_schema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "query": {"type": "string"},
        },
        "required": ["region"],
        "additionalProperties": False,
    },
}
TASKS: list[Any] = [
    greet,
    slow_compute,
    failing_job,
    protocol_error_job,
    confirm_delete,
    multi_input,
]
TOOLS: list[Any] = [one for name, one in list(globals().items()) if name.startswith("test_")]


def main(port: int) -> None:
    given = Catalog.from_definitions(
        [SCHEMA, HEADERS],
        handlers={
            "json_schema_2020_12_tool": lambda **_: "ok",
            "test_header_param": lambda region, query="": f"{region} {query}",
        },
        visible=ALL,
    )

    @tool(visible=ALL)
    async def test_trigger_tool_change() -> str:
        """Have the list of tools changed."""
        await server.use(server.runner)
        return "changed"

    catalog = given.with_tools(*TOOLS, *TASKS, test_trigger_tool_change)
    catalog = catalog.bind({McpClient: per_call(calling_client)})
    server = mcp_server(
        ToolRunner(catalog, sinks=[Full()]), name="toolcrib-conformance", task_after=AFTER
    )
    app = server.http_app()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", ws="none")


if __name__ == "__main__":
    main(int(sys.argv[1]))
