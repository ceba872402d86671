"""Recorded bodies of Converse requests, read back into semantic types; and what makes two equal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice

Json = dict[str, Any]

_OWN = ("messages", "system", "toolConfig", "inferenceConfig")


class Unsupported(Exception):  # noqa: N818
    """The body holds what the semantic types have no word for."""


def request_of(body: Json) -> ChatRequest:
    """The request that a recorded body was made of; its cache points are left out."""
    messages = [Message.system(part["text"]) for part in _unmarked(body.get("system", ()))]
    open_calls: list[ToolCall] = []
    for number, message in enumerate(body["messages"]):
        content = _unmarked(message["content"])
        if message["role"] == "assistant":
            said = _model(content, f"c{number}_")
            messages.append(said)
            open_calls = list(said.tool_calls)
        else:
            messages += _user(content, open_calls)
    config = body.get("toolConfig", {})
    generation = dict(body.get("inferenceConfig", {}))
    temperature, most = generation.pop("temperature", None), generation.pop("maxTokens", None)
    extra = {key: body[key] for key in body if key not in _OWN} | {"inferenceConfig": generation}
    tools = tuple(map(_tool, _unmarked(config.get("tools", ()))))
    choice = _choice(config.get("toolChoice", {}))
    return ChatRequest(tuple(messages), tools, choice, Settings(temperature, most, extra))  # type: ignore[arg-type]


def _unmarked(blocks: Iterable[Json]) -> list[Json]:
    return [block for block in blocks if "cachePoint" not in block]


def _tool(form: Json) -> Json:
    if "toolSpec" not in form:
        raise Unsupported("the provider's own tool")
    spec = dict(form["toolSpec"])
    return spec | {"input_schema": spec.pop("inputSchema")["json"]}


def _choice(form: Json) -> ToolChoice:
    if "tool" in form:
        return ToolChoice("tool", form["tool"]["name"])
    return ToolChoice("required" if "any" in form else "auto")


def _model(content: list[Json], ids: str) -> Message:
    calls: list[ToolCall] = []
    for block in content:
        if use := block.get("toolUse"):
            text = json.dumps(use["input"])
            calls.append(
                ToolCall(f"{ids}{len(calls)}", use["name"], text, provider_id=use["toolUseId"])
            )
    text = "".join(block.get("text", "") for block in content)
    state = ProviderState("bedrock-converse", content)
    return Message("assistant", text, tuple(calls), provider_state=state)


def _user(content: list[Json], calls: list[ToolCall]) -> Iterable[Message]:
    for block in content:
        if result := block.get("toolResult"):
            call = next(call for call in calls if call.provider_id == result["toolUseId"])
            calls.remove(call)
            text = text_of(result["content"])
            if text is None:
                raise Unsupported("a result that is not text")
            yield Message.tool(call, text, is_error=result.get("status") == "error")
        elif "text" in block:
            yield Message.user(block["text"])
        elif image := block.get("image"):
            yield Message.user("", (Image(f"image/{image['format']}", image["source"]["bytes"]),))
        else:
            raise Unsupported(f"a user's {next(iter(block))}")


def text_of(content: list[Json]) -> str | None:
    """The text of a result, that of JSON being the JSON; None if it is more than one text."""
    if len(content) != 1 or content[0].keys() - {"text", "json"}:
        return None
    (block,) = content
    return block["text"] if "text" in block else json.dumps(block["json"])


def normal(body: Json) -> Json:
    """A body without the freedom that the format leaves: two that mean the same are equal."""
    form = json.loads(json.dumps(body))
    form["messages"] = _turns(form["messages"])
    form["system"] = _unmarked(form.get("system", ()))
    config = form.get("toolConfig", {})
    if config:
        config["tools"] = _unmarked(config["tools"])
        if config.get("toolChoice") == {"auto": {}}:
            del config["toolChoice"]
        for tool in config["tools"]:
            if "toolSpec" in tool and not tool["toolSpec"].get("strict"):
                tool["toolSpec"].pop("strict", None)
    return {key: value for key, value in form.items() if value not in ({}, [])}


def _turns(messages: list[Json]) -> list[Json]:
    """The messages, those of one role in a row as one."""
    turns: list[Json] = []
    for message in messages:
        content = normal_content(message["content"])
        if turns and turns[-1]["role"] == message["role"]:
            turns[-1]["content"] += content
        else:
            turns.append({"role": message["role"], "content": content})
    return turns


def normal_content(content: list[Json]) -> list[Json]:
    return [_normal_block(json.loads(json.dumps(block))) for block in _unmarked(content)]


def _normal_block(block: Json) -> Json:
    """Results as text, errors alone flagged; the type of a call that is ours says nothing."""
    if result := block.get("toolResult"):
        if result.get("type") in (None, "tool_result"):
            result.pop("type", None)
            text = text_of(result["content"])
            result["content"] = result["content"] if text is None else [{"text": text}]
            if result.get("status") == "success":
                del result["status"]
    elif (use := block.get("toolUse")) and use.get("type") != "server_tool_use":
        use.pop("type", None)
    return block
