"""Recorded bodies of Gemini requests, read back into semantic types; and what makes two equal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice

Json = dict[str, Any]

_OWN = ("contents", "systemInstruction", "tools")
_DATA = frozenset(("args", "response", "parameters", "parametersJsonSchema", "responseSchema",
                   "responseJsonSchema", "labels"))  # fmt: skip
"""Members whose keys are an application's own."""
_DECLARED = {"name": "name", "description": "description", "parametersJsonSchema": "input_schema"}
_TYPES = ("", "string", "number", "integer", "boolean", "array", "object")
STAND_IN = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="


class Unsupported(Exception):  # noqa: N818
    """The body holds what the semantic types have no word for."""


def request_of(body: Json) -> ChatRequest:
    """The request that a recorded body (with keys as `camel` leaves them) was made of."""
    system = body.get("systemInstruction", {}).get("parts", ())
    messages = [Message.system(part["text"]) for part in system]
    open_calls: list[ToolCall] = []
    for number, content in enumerate(_turns(body)):
        if content["role"] == "model":
            message, open_calls = _model(content["parts"], f"c{number}_")
            messages.append(message)
        else:
            messages += _user(content["parts"], open_calls)
    generation = dict(body.get("generationConfig", {}))
    temperature, most = generation.pop("temperature", None), generation.pop("maxOutputTokens", None)
    choice, config = _choice(body.get("toolConfig", {}))
    extra = {key: body[key] for key in body if key not in _OWN}
    extra |= {"generationConfig": generation, "toolConfig": config}
    tools = tuple(map(_tool, declared(body)))
    return ChatRequest(tuple(messages), tools, choice, Settings(temperature, most, extra))  # type: ignore[arg-type]


def _turns(body: Json) -> list[Json]:
    """The contents, those of one role in a row as one."""
    turns: list[Json] = []
    for content in body["contents"]:
        role = content.get("role") or "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] = turns[-1]["parts"] + content["parts"]
        else:
            turns.append({"role": role, "parts": content["parts"]})
    return turns


def declared(body: Json) -> list[Json]:
    if any(tool.keys() != {"functionDeclarations"} for tool in body.get("tools", ())):
        raise Unsupported("the provider's own tools")
    return [form for tool in body.get("tools", ()) for form in tool["functionDeclarations"]]


def _tool(form: Json) -> Json:
    if not form.keys() <= _DECLARED.keys():
        raise Unsupported(f"a declaration with {sorted(form.keys() - _DECLARED.keys())}")
    return {_DECLARED[key]: value for key, value in form.items()}


def _choice(config: Json) -> tuple[ToolChoice, Json]:
    """What the choice says, and what else there is."""
    said = config.get("functionCallingConfig", {})
    rest = {key: value for key, value in config.items() if key != "functionCallingConfig"}
    names = tuple(said.get("allowedFunctionNames", ()))
    match said.get("mode", "AUTO"):
        case "ANY" if len(names) == 1:
            return ToolChoice("tool", names[0]), rest
        case "ANY":
            return ToolChoice("required", allowed=names), rest
        case "NONE":
            return ToolChoice("none"), rest
        case "AUTO":
            return ToolChoice(), rest
        case "VALIDATED" if names:
            return ToolChoice(allowed=names), rest
    return ToolChoice(), config


def _model(parts: list[Json], ids: str) -> tuple[Message, list[ToolCall]]:
    calls: list[ToolCall] = []
    forms: list[Json] = []
    for part in parts:
        form = part
        if call := part.get("functionCall"):
            made = f"{ids}{len(calls)}"
            text = json.dumps(call.get("args", {}))
            calls.append(ToolCall(made, call["name"], text, provider_id=call.get("id", "")))
            form = form | {"functionCall": {"id": made}}
        forms.append(form)
    text = "".join(form["text"] for form in forms if "text" in form and not form.get("thought"))
    state = ProviderState("gemini", forms)
    return Message("assistant", text, tuple(calls), provider_state=state), list(calls)


def _user(parts: list[Json], calls: list[ToolCall]) -> Iterable[Message]:
    for part in parts:
        if result := part.get("functionResponse"):
            if "parts" in result:
                raise Unsupported("a result that is not text")
            call = next((c for c in calls if _answers(result, c)), None)
            if call is None:
                raise Unsupported("a result of no call")
            calls.remove(call)
            key, text = answer_of(result["response"])
            yield Message.tool(call, text, is_error=key == "error")
        elif "text" in part:
            yield Message.user(part["text"])
        elif data := part.get("inlineData"):
            yield Message.user("", (Image(data["mimeType"], data["data"]),))
        else:
            raise Unsupported(f"a user's {sorted(part)}")


def _answers(result: Json, call: ToolCall) -> bool:
    return bool(result["name"] == call.name and result.get("id", "") in ("", call.provider_id))


def answer_of(response: Json) -> tuple[str, str]:
    """Error or output, and its text; that of an object with other keys is the object."""
    if len(response) == 1:
        ((key, text),) = response.items()
        if key in ("output", "error") and isinstance(text, str):
            return key, text
    return "output", json.dumps(response)


def camel(value: Any) -> Any:
    """A copy with keys as the format has them: Google's own SDK sends some in snake case."""
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {re.sub("_([a-z])", lambda m: m[1].upper(), key): item for key, item in value.items()}
    form = {key: item if key in _DATA else camel(item) for key, item in named.items()}
    for key in ("tools", "functionDeclarations", "contents", "parts"):
        if isinstance(form.get(key), dict):  # one thing, and no list
            form[key] = [form[key]]
    if "parameters" in form:
        form["parametersJsonSchema"] = _json_schema(form.pop("parameters"))
    return form


def _json_schema(value: Any) -> Any:
    """OpenAPI's form, in which types are in upper case, or numbers."""
    if isinstance(value, list):
        return [_json_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    form = {key: _json_schema(item) for key, item in value.items()}
    kind = form.get("type")
    if isinstance(kind, int | str):
        form["type"] = _TYPES[kind] if isinstance(kind, int) else kind.lower()
    return form


def normal(body: Json, *, like: Json | None = None) -> Json:
    """A body without the freedom that the format leaves: two that mean the same are equal.

    Of what was made for want of a better, ids and signatures, only that counts which is in `like`.
    """
    body = json.loads(json.dumps(body))
    body["contents"] = _turns(body)
    for part in _parts(body):
        if result := part.get("functionResponse"):
            result["response"] = answer_of(result["response"])
    if like is not None:
        for part, model in zip(_parts(body), _parts(normal(like)), strict=False):
            _forget(part, model)
    return {key: value for key, value in map(_plain, body.items()) if value not in ({}, [])}


def _forget(part: Json, model: Json) -> None:
    for key in ("functionCall", "functionResponse"):
        if key in part and not model.get(key, {}).get("id"):
            part[key].pop("id")
    if part.get("thoughtSignature") == STAND_IN and "thoughtSignature" not in model:
        del part["thoughtSignature"]


def _plain(member: tuple[str, Any]) -> tuple[str, Any]:
    key, value = member
    if key == "systemInstruction":
        return key, value["parts"]
    if key == "toolConfig" and value.get("functionCallingConfig") == {"mode": "AUTO"}:
        return key, {name: value[name] for name in value if name != "functionCallingConfig"}
    if key == "tools":
        forms = [form for tool in value for form in tool["functionDeclarations"]]
        return key, [{k: v for k, v in form.items() if v != ""} for form in forms]
    return key, value


def _parts(body: Json) -> list[Json]:
    return [part for content in body["contents"] for part in content["parts"]]
