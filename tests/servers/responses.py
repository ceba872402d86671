"""A real HTTP server on 127.0.0.1 that speaks OpenAI's Responses and says what a test wrote down."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import orjson

from toolcrib.testing.scripted import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    Said,
    ScriptedCall,
    ServerTurn,
    Spoken,
    halved,
    serving,
    spoken,
)
from toolcrib.values.message import Reply

# What OpenAI's server refuses of a request for a response, in about its words.
#
# Written from the wire's documentation, not from the encoder, so that the one can judge the other.


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_ID = 64
_MEMBERS = frozenset(
    (
        *(
            "model",
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "stream",
        ),
        *(
            "stream_options",
            "store",
            "include",
            "reasoning",
            "text",
            "temperature",
            "top_p",
            "user",
        ),
        *("max_output_tokens", "max_tool_calls", "metadata", "previous_response_id", "truncation"),
        *("conversation", "background", "prompt", "prompt_cache_key", "prompt_cache_retention"),
        *("safety_identifier", "service_tier", "top_logprobs", "context_management"),
    )
)
_TOOL = frozenset(("type", "name", "description", "parameters", "strict"))
_CHOICES = ("auto", "none", "required")
_PARTS = {
    "user": ("input_text", "input_image", "input_file"),
    "system": ("input_text",),
    "developer": ("input_text",),
    "assistant": ("output_text", "refusal"),
}
_SEARCH = frozenset(("type", "execution", "description", "parameters"))
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {f"{kind}_output": kind for kind in _CALLS}


def fault_of(body: Any) -> str | None:
    """What is wrong with a request's body, or None."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    if extra := sorted(set(body) - _MEMBERS):
        return f"Unknown parameter: '{extra[0]}'."
    if not isinstance(body.get("model"), str):
        return "Missing required parameter: 'model'."
    if "stream_options" in body and not body.get("stream"):
        return "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    most = body.get("max_output_tokens")
    if most is not None and (not isinstance(most, int) or most < 16):
        return "Invalid 'max_output_tokens': expected a value >= 16."
    goes_on = bool(body.get("previous_response_id") or body.get("conversation"))
    return (
        _tools_fault(body)
        or _input_fault(body.get("input"), goes_on=goes_on)
        or _found_fault(body.get("input"), body.get("tools") or ())
    )


def _tools_fault(body: dict[str, Any]) -> str | None:
    names: set[str] = set()
    for at, tool in enumerate(body.get("tools") or ()):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            return f"Missing required parameter: 'tools[{at}].type'."
        if tool["type"] == "tool_search" and (extra := sorted(set(tool) - _SEARCH)):
            return f"Unknown parameter: 'tools[{at}].{extra[0]}'."
        if tool["type"] != "function":
            continue
        if extra := sorted(set(tool) - _TOOL):
            return f"Unknown parameter: 'tools[{at}].{extra[0]}'."
        name = tool.get("name")
        if name is None:
            return f"Missing required parameter: 'tools[{at}].name'."
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
            return f"Invalid 'tools[{at}].name': expected a unique string that matches the pattern."
        names.add(name)
        if fault := _schema_fault(tool):
            return f"Invalid schema for function '{name}': {fault}"
    return _choice_fault(body.get("tool_choice"), names, tools=bool(body.get("tools")))


def _schema_fault(tool: dict[str, Any]) -> str | None:
    """Strictness is on where nothing is said of it, and has to be kept only where it is asked for."""
    schema = tool.get("parameters") or {}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "schema must be a JSON Schema of 'type: \"object\"'"
    if not tool.get("strict"):
        return None
    if schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false"
    if set(schema.get("required", ())) != set(schema.get("properties", ())):
        return "'required' is required to be supplied and to include every key in properties"
    return None


def _choice_fault(choice: Any, names: set[str], *, tools: bool) -> str | None:
    if choice is None or choice in ("auto", "none"):
        return None
    if not tools:
        return f"Tool choice {choice!r} must be specified with 'tools' parameter."
    if isinstance(choice, str):
        return None if choice in _CHOICES else f"Invalid value: {choice!r} for 'tool_choice'."
    if not isinstance(choice, dict):
        return "Invalid type for 'tool_choice'."
    wanted = choice.get("tools") if choice.get("type") == "allowed_tools" else [choice]
    for one in wanted if isinstance(wanted, list) else [None]:
        if not isinstance(one, dict):
            return "Missing required parameter: 'tool_choice.tools'."
        if one.get("type") == "function" and one.get("name") not in names:
            return f"Tool choice '{one.get('name')}' not found in 'tools' parameter."
    return None


def _found_fault(items: Any, tools: Any) -> str | None:
    """What is wrong with searches that the client executes, and what they loaded.

    https://developers.openai.com/api/docs/guides/tools-tool-search#client-executed-tool-search
    """
    searches = [tool for tool in tools if tool["type"] == "tool_search"]
    names = {tool.get("name") for tool in tools}
    if fault := _namespace_fault(items if isinstance(items, list) else []):
        return fault
    waiting: set[str] = set()
    for at, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type")
        if item.get("execution") != "client" or kind not in _SEARCHES:
            continue
        if len(searches) != 1:
            return f"Invalid 'input[{at}]': there is no tool_search that the client executes."
        if kind == "tool_search_call":
            if not isinstance(item.get("arguments"), dict) or not item.get("call_id"):
                return f"Invalid type for 'input[{at}].arguments': expected an object."
            waiting.add(item["call_id"])
            continue
        if item.get("call_id") not in waiting:
            return f"No tool call found for tool search output with call_id {item.get('call_id')}."
        waiting.remove(item["call_id"])
        for tool in item["tools"]:
            if tool["name"] in names or not tool.get("defer_loading"):
                return f"Invalid 'input[{at}].tools': {tool['name']} is there already, or not deferred."
            names.add(tool["name"])
    return f"No tool output found for tool search call {min(waiting)}." if waiting else None


_SEARCHES = ("tool_search_call", "tool_search_output")


def _loaded(items: list[Any]) -> set[str]:
    found = (item for item in items if item.get("type") == "tool_search_output")
    return {tool["name"] for item in found for tool in item["tools"] if "name" in tool}


def _namespace_fault(items: list[Any]) -> str | None:
    """A function that was loaded alone is in a namespace of its own name: earendil-works/pi#7709."""
    loaded = _loaded(items)
    for item in items:
        if item.get("type") != "function_call":
            continue
        name, space = item.get("name"), item.get("namespace")
        if name in loaded and space is None:
            return f"Missing namespace for function_call '{name}'."
        if space == name and name not in loaded:
            return f"There is no namespace '{space}'."
    return None


def _input_fault(items: Any, *, goes_on: bool) -> str | None:
    """`goes_on` is whether the server has what came before, and so may have the calls of results."""
    if isinstance(items, str):
        return None
    if not isinstance(items, list) or not items:
        return "Missing required parameter: 'input'."
    waiting: dict[str, str] = {}
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            return f"Invalid type for 'input[{at}]': expected an object."
        kind = item.get("type", "message")
        if kind in _OUTPUTS:
            call_id = str(item.get("call_id"))
            if waiting.pop(call_id, _OUTPUTS[kind] if goes_on else None) != _OUTPUTS[kind]:
                return f"No tool call found for function call output with call_id {call_id}."
            if not isinstance(item.get("output"), str | list):
                return f"Missing required parameter: 'input[{at}].output'."
        elif fault := _item_fault(item, kind, at, items[at + 1 :]):
            return fault
        elif kind in _CALLS:
            waiting[item["call_id"]] = kind
    return f"No tool output found for function call {next(iter(waiting))}." if waiting else None


def _item_fault(item: dict[str, Any], kind: Any, at: int, rest: list[Any]) -> str | None:
    if kind == "message":
        return _message_fault(item, at)
    if kind == "reasoning":
        if not isinstance(item.get("id"), str) or not isinstance(item.get("summary"), list):
            return f"Missing required parameter: 'input[{at}].summary'."
        if not rest:
            return (
                f"Item '{item['id']}' of type 'reasoning' was provided without its required "
                "following item."
            )
        return None
    if kind not in _CALLS:
        return None  # the provider's own tools
    call_id, name = item.get("call_id"), item.get("name")
    if not isinstance(call_id, str) or not call_id:
        return f"Missing required parameter: 'input[{at}].call_id'."
    if len(call_id) > _LONGEST_ID:
        return f"Invalid 'input[{at}].call_id': string too long."
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"Invalid 'input[{at}].name': string does not match pattern."
    if not isinstance(item.get(_CALLS[kind]), str):
        return f"Missing required parameter: 'input[{at}].{_CALLS[kind]}'."
    return None


def _message_fault(item: dict[str, Any], at: int) -> str | None:
    role, content = item.get("role"), item.get("content")
    if role not in _PARTS:
        return f"Invalid value: {role!r} for 'input[{at}].role'."
    if isinstance(content, str):
        return None
    if not isinstance(content, list):
        return f"Missing required parameter: 'input[{at}].content'."
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _PARTS[role]:
            return f"Invalid value for 'input[{at}].content[{number}].type'."
    return None


_PIECE = 5


class ResponsesServer(OpenAIServer):
    """As `OpenAIServer`, in the words of OpenAI's other API, with all events of its streams."""

    path = "/responses"

    def fault(self, body: Any) -> str | None:
        return fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        was_cut = isinstance(turn, CutTurn)
        said = spoken(turn.turn if isinstance(turn, CutTurn) else turn)
        output = _output(halved(said) if was_cut else said, number, was_cut=was_cut)
        asked = self.requests[-1]
        if any(tool["type"] == "tool_search" for tool in asked.get("tools") or ()):
            loaded = _loaded(asked["input"])
            output = [_searched(item, loaded) for item in output]
        response = _response(number) | {
            "status": "incomplete" if was_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if was_cut else None,
            "output": output,
            "usage": _USAGE,
        }
        if not stream:
            return RawTurn(orjson.dumps(response), content_type="application/json")
        events = _events(output, number, response)
        return RawTurn(b"".join(_event(at, event) for at, event in enumerate(events)))


@contextlib.asynccontextmanager
async def responses_server(turns: Iterable[ServerTurn]) -> AsyncIterator[ResponsesServer]:
    """`async with responses_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(ResponsesServer(turns)) as server:
        yield server


_USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 18,
}


def _response(number: int) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1760000000,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "scripted",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _output(said: Spoken, number: int, *, was_cut: bool) -> list[dict[str, Any]]:
    """The items as they are in the end; of a response that was cut, the last is incomplete."""
    items = [_call(made, number, at) for at, made in enumerate(said.calls)]
    if said.text or not items:
        items.insert(0, _message(said.text, number))
    if was_cut:
        items[-1]["status"] = "incomplete"
    return items


def _message(text: str, number: int) -> dict[str, Any]:
    message = {"id": f"msg_{number}", "type": "message", "status": "completed", "role": "assistant"}
    return message | {"content": [_text(text)]}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(made: ScriptedCall, number: int, at: int) -> dict[str, Any]:
    return {
        "id": f"fc_{number}_{at}",
        "type": "function_call",
        "status": "completed",
        "call_id": f"call_{number}_{at}",
        "name": made.name,
        "arguments": made.arguments,
    }


def _searched(item: dict[str, Any], loaded: set[str]) -> dict[str, Any]:
    """A call as a model makes it that has a search in place of the function `search_tools`."""
    if item.get("name") != "search_tools":
        return item | ({"namespace": item["name"]} if item.get("name") in loaded else {})
    call = {key: item[key] for key in ("status", "call_id")} | {"id": f"tsc_{item['id']}"}
    arguments = orjson.loads(item["arguments"])
    return call | {"type": "tool_search_call", "execution": "client", "arguments": arguments}


def _events(output: list[Any], number: int, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """https://platform.openai.com/docs/api-reference/responses-streaming, in the order there."""
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": _response(number)}
    for index, item in enumerate(output):
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        if item["type"] == "tool_search_call":
            empty = {"arguments": {}}
        begun = item | empty | {"status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        grows = _GROWS[item["type"]]
        for event in grows(item):
            yield event | {"item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _text_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    text, place = part["text"], {"content_index": 0}
    yield {"type": "response.content_part.added", "part": _text("")} | place
    for at in range(0, len(text), _PIECE):
        delta = {"delta": text[at : at + _PIECE], "logprobs": []}
        yield {"type": "response.output_text.delta"} | delta | place
    yield {"type": "response.output_text.done", "text": text, "logprobs": []} | place
    yield {"type": "response.content_part.done", "part": part} | place


def _call_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text, kind = item["arguments"], "response.function_call_arguments"
    for at in range(0, len(text), _PIECE):
        yield {"type": f"{kind}.delta", "delta": text[at : at + _PIECE]}
    yield {"type": f"{kind}.done", "name": item["name"], "arguments": text}


_GROWS: dict[str, Callable[[dict[str, Any]], Iterator[dict[str, Any]]]] = {
    "message": _text_events,
    "function_call": _call_events,
    "tool_search_call": lambda _item: iter(()),  # it comes whole: no event has a piece of it
}


def _event(number: int, event: dict[str, Any]) -> bytes:
    data = orjson.dumps(event | {"sequence_number": number})
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + data + b"\n\n"
