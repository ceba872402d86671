"""Reads a recorded request of OpenAI Responses into a `ChatRequest`, and says when two are equal."""

from __future__ import annotations

import json
import re
from typing import Any

from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice

Body = dict[str, Any]

_READ = {"model", "input", "tools", "stream", "tool_choice", "temperature", "max_output_tokens",
         "parallel_tool_calls", "instructions"}  # fmt: skip
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")


class Unsupported(Exception):  # noqa: N818
    """The request uses what our types have no word for."""


def read_request(body: Body) -> ChatRequest:
    for key in ("previous_response_id", "conversation"):
        if body.get(key):
            raise Unsupported("what the server remembers")
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = _messages(items)
    if body.get("instructions"):
        messages.insert(0, Message.system(body["instructions"]))
    return ChatRequest(
        tuple(messages),
        tuple(_tool(tool) for tool in body["tools"]),
        _choice(body.get("tool_choice")),
        Settings(
            body.get("temperature"),
            body.get("max_output_tokens"),
            {key: value for key, value in body.items() if key not in _READ},
        ),
        parallel_calls=body.get("parallel_tool_calls"),
    )


def _flat(tool: Body) -> Body:
    """Some clients nest the function as in a chat request, and name it twice."""
    return {"type": tool["type"]} | tool["function"] if "function" in tool else tool


def _tool(tool: Body) -> PlainTool:
    if tool["type"] != "function":
        raise Unsupported("a tool of the provider's own")
    tool = _flat(tool)
    unknown = tool.keys() - {"type", "name", "description", "parameters", "strict"}
    if any(tool[key] not in (None, False) for key in unknown):
        raise Unsupported(f"of a tool: {', '.join(sorted(unknown))}")
    return PlainTool(
        ToolDefinition(
            name=tool["name"],
            description=tool.get("description") or "",
            input_schema_json=json.dumps(tool["parameters"]),
            strict=tool.get("strict"),
        )
    )


def _choice(choice: Any) -> ToolChoice:
    if choice is None or isinstance(choice, str):
        return ToolChoice(choice or "auto")  # type: ignore[arg-type]
    if choice["type"] == "allowed_tools":
        return ToolChoice(choice["mode"], allowed=tuple(tool["name"] for tool in choice["tools"]))
    if "name" not in choice:
        raise Unsupported("a tool choice of another wire's form")
    return ToolChoice("tool", choice["name"])


def _messages(items: list[Body]) -> list[Message]:
    messages: list[Message] = []
    said: list[Body] = []
    calls: dict[str, ToolCall] = {}
    for item in items:
        kind, role = item.get("type", "message"), item.get("role")
        if kind in ("item_reference", "compaction", "additional_tools"):
            raise Unsupported(f"an item: {kind}")
        if role in (None, "assistant") and kind not in _RESULTS:
            said.append(item)
            continue
        if said:
            messages.append(_assistant(said, calls))
            said = []
        if kind in _RESULTS:
            if item["call_id"] not in calls:
                raise Unsupported("the result of a call that is not there")
            if not isinstance(item["output"], str):
                raise Unsupported("a result in parts")
            messages.append(Message.tool(calls[item["call_id"]], item["output"]))
        elif role == "user":
            messages.append(_user(item["content"]))
        else:
            messages.append(Message.system(_text(item["content"])))
    return [*messages, _assistant(said, calls)] if said else messages


def _assistant(items: list[Body], calls: dict[str, ToolCall]) -> Message:
    made = [
        ToolCall(
            f"r_{len(calls) + at}", i["name"], i.get("arguments", ""), provider_id=i["call_id"]
        )
        for at, i in enumerate(item for item in items if item.get("type") in _CALLS)
    ]
    calls |= {call.provider_id: call for call in made}
    text = "".join(_text(item["content"]) for item in items if item.get("role") == "assistant")
    own = any(item.get("type", "message") not in ("message", *_CALLS) or item.keys() & _MORE
              for item in items)  # fmt: skip
    state = ProviderState("openai-responses", items) if own else None
    return Message("assistant", text, tuple(made), provider_state=state)


_MORE = {"phase", "namespace", "caller"}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(part["type"] not in ("input_text", "output_text") for part in content):
        raise Unsupported("a part that is neither text nor an image")
    return "".join(part["text"] for part in content)


def _user(content: Any) -> Message:
    if isinstance(content, str):
        return Message.user(content)
    pictures = [part for part in content if part["type"] == "input_image"]
    images = tuple(Image(url=part["image_url"]) for part in pictures)
    return Message.user(_text([part for part in content if part not in pictures]), images)


def normal_form(body: Body) -> Body:
    """The same for two requests that ask for the same in other words.

    `instructions` and the `developer` role are system messages, text parts are their text, ids of
    items and statuses say nothing, nor does an empty text beside a call; defaults need not be said,
    and a strict view closes objects and says a default in the description; `store` and `include` are
    ours to say.
    """
    items = body["input"]
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if body.get("instructions"):
        items = [{"role": "system", "content": body["instructions"]}, *items]
    unsaid = {"instructions", "store", "include"}
    if body.get("tool_choice") == "auto":
        unsaid.add("tool_choice")
    rest = {key: value for key, value in body.items() if key not in unsaid and value is not False}
    tools = [
        {key: value for key, value in tool.items() if value not in (None, False, "")}
        | {"parameters": _normal_schema(tool["parameters"])}
        for tool in map(_flat, body["tools"])
    ]
    empty = {"role": "assistant", "content": ""}
    items = [item for item in map(_normal_item, items) if item != empty]
    return rest | {"input": items, "tools": tools}


def _normal_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_normal_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    form = {key: _normal_schema(value) for key, value in schema.items() if key != "default"}
    if form.get("additionalProperties") is False:
        del form["additionalProperties"]
    if isinstance(form.get("required"), list):
        form["required"] = sorted(form["required"])
    if isinstance(form.get("description"), str):
        form["description"] = re.sub(r"[. ]*Default: .*", "", form["description"])
    return {key: value for key, value in form.items() if value != ""}


def _normal_item(item: Body) -> Body:
    item = {key: value for key, value in item.items() if key not in ("id", "status")}
    if item.get("type") == "message":
        item.pop("type")
    if item.get("role") == "developer":
        item["role"] = "system"
    content = item.get("content")
    if item.get("role") and isinstance(content, list):
        pictures = [part["image_url"] for part in content if part["type"] == "input_image"]
        text = _text([part for part in content if part["type"] != "input_image"])
        item["content"] = [*pictures, text] if pictures else text
    return item
