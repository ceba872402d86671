"""Judges of request bodies: the request types of the providers' own SDKs, made strict.

An SDK's types let unknown members pass, or look at a list only when it is read. Here each type is
rebuilt from its core schema: lists are looked into, and what the SDK has no member for is refused.
"""

from __future__ import annotations

import functools
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator
from typing_extensions import TypedDict

from toolcrib.wire.openai_chat_reply import MEMBERS

Judge = Callable[[bytes], Any]
_LEFT_ALONE = frozenset(("cls", "metadata", "serialization"))
_NAMING = frozenset(("validate_by_name", "validate_by_alias", "populate_by_name", "val_json_bytes"))


@functools.cache
def judge_of(wire: str) -> Judge:
    """The judge for a wire's bodies, which raises ValueError; the test is skipped without its SDK."""
    module, make = _MAKERS[wire]
    return make(pytest.importorskip(module, reason=f"the SDK of {wire} is not installed"))


def _strict(type_: Any) -> Judge:
    """A validator of JSON text by this type, closed wherever the type is open."""
    adapter: TypeAdapter[Any] = TypeAdapter(type_)
    adapter.rebuild()
    validator = SchemaValidator(_closed(adapter.core_schema))
    return functools.partial(validator.validate_json, strict=True)


def _closed(node: Any) -> Any:
    """The core schema of the same JSON, without members that nobody knows, without lazy lists.

    A model becomes the schema of its members: pydantic would take the model's own validator.
    """
    if isinstance(node, list | tuple):
        return type(node)(map(_closed, node))
    if not isinstance(node, Mapping):
        return node
    made = {key: v if key in _LEFT_ALONE else _closed(v) for key, v in node.items()}
    kind = made.get("type")
    if kind == "generator":
        made["type"] = "list"
    elif kind == "typed-dict":
        made |= {"extra_behavior": "forbid"}
    elif kind == "model":
        return _members(made)
    return made


def _members(model: dict[str, Any]) -> dict[str, Any]:
    inner = model["schema"]
    if model.get("root_model"):
        return cast("dict[str, Any]", inner)
    while inner["type"] != "model-fields":
        inner = inner["schema"]
    fields = {
        name: field | {"type": "typed-dict-field", "required": field["schema"]["type"] != "default"}
        for name, field in inner["fields"].items()
    }
    config = {k: v for k, v in model.get("config", {}).items() if k in _NAMING}
    members = {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid", "config": config}
    return members | ({"ref": model["ref"]} if "ref" in model else {})


def _chat(params: Any) -> Judge:
    """OpenAI's types know nothing of the thoughts and signatures of the servers that have them."""
    judge = _strict(params.CompletionCreateParams)

    def judged(body: bytes) -> None:
        members = json.loads(body)
        for message in members["messages"]:
            for holder in (message, *message.get("tool_calls", ())):
                for name in MEMBERS & holder.keys():
                    del holder[name]
        judge(json.dumps(members).encode())

    return judged


def _anthropic(params: Any) -> Judge:
    """The SDK is of the API's version 2026-10-21, which refuses a temperature; 2023-06-01, which the
    wire asks for, takes it."""
    judge = _strict(params.MessageCreateParams)

    def judged(body: bytes) -> None:
        members = json.loads(body)
        members.pop("temperature", None)
        judge(json.dumps(members).encode())

    return judged


def _gemini(genai: Any) -> Judge:
    """The SDK has a type for each member of a body, and none for the body."""
    types: Any = genai.types
    members = {
        "contents": list[types.Content],
        "systemInstruction": types.Content,
        "tools": list[types.Tool],
        "toolConfig": types.ToolConfig,
        "generationConfig": types.GenerationConfig,
    }
    return _strict(TypedDict("Body", members, total=False))  # type: ignore[operator]


def _mistral(models: Any) -> Judge:
    """The SDK calls an answer's schema otherwise until it is sent."""
    judge = _strict(models.ChatCompletionRequestTypedDict)

    def judged(body: bytes) -> None:
        members = json.loads(body)
        told = members.get("response_format", {}).get("json_schema", {})
        if "schema" in told:
            told["schema_definition"] = told.pop("schema")
        judge(json.dumps(members).encode())

    return judged


def _ollama(types: Any) -> Judge:
    """The SDK's type takes any mapping for a message, so its messages are judged as such.

    It has no word for what newer servers decode besides: ids of calls, and what a property says of
    what is in it (ollama-python#429). Images are a type of its own until they are sent.
    """
    judge, judge_messages = _strict(types.ChatRequest), _strict(list[types.Message])

    def judged(body: bytes) -> None:
        members = json.loads(body)
        for tool in members.get("tools", ()):
            for part in tool["function"]["parameters"].get("properties", {}).values():
                for key in ("anyOf", "properties", "required") if isinstance(part, dict) else ():
                    part.pop(key, None)
        judge(json.dumps(members).encode())
        for message in members["messages"]:
            message.pop("tool_call_id", None)
            for call in message.get("tool_calls", ()):
                del call["id"], call["type"]
            if "images" in message:
                message["images"] = [{"value": image} for image in message["images"]]
        judge_messages(json.dumps(members["messages"]).encode())

    return judged


def _cohere(raw_client: Any) -> Judge:
    """A body's members are the parameters of the SDK's method, which come as they are.

    Of `tool_choice` the SDK says `REQUIRED`, `NONE`, or anything: the words that it knows are meant.
    """
    members = typing.get_type_hints(raw_client.RawV2Client.chat)
    for other in ("return", "request_options"):
        del members[other]
    words = next(filter(typing.get_args, typing.get_args(members["tool_choice"])))
    members |= {"stream": bool, "tool_choice": words}
    return _strict(TypedDict("Body", members, total=False))  # type: ignore[operator]


def _bedrock(session: Any) -> Judge:
    """The SDK has a service model: its validator, and what the model says besides."""
    service = session.get_session().get_service_model("bedrock-runtime")
    shape = service.operation_model("Converse").input_shape
    validator = pytest.importorskip("botocore.validate").ParamValidator()

    def judged(body: bytes) -> None:
        members = json.loads(body) | {"modelId": "m"}
        report = validator.validate(members, shape).generate_report()
        if found := "".join([report, *_beyond(members, shape)]):
            raise ValueError(f"validation error: {found}")

    return judged


def _beyond(value: Any, shape: Any) -> Iterator[str]:
    """Patterns, enums, unions, and members that are not in the model."""
    metadata = shape.metadata
    if shape.type_name == "structure" and not getattr(shape, "is_document_type", False):
        if not isinstance(value, dict) or value.keys() - shape.members.keys():
            yield f"{shape.name} is not {value}; "
            return
        for key, member in value.items():
            yield from _beyond(member, shape.members[key])
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            yield f"{shape.name} is a union; "
    elif shape.type_name == "list":
        for item in value:
            yield from _beyond(item, shape.member)
    elif shape.type_name == "string" and "pattern" in metadata and shape.name != "S3Uri":
        if re.fullmatch(metadata["pattern"], value) is None:
            yield f"{shape.name} is not {value!r}; "
    elif shape.type_name == "string" and value not in getattr(shape, "enum", ()) and shape.enum:
        yield f"{shape.name} is not {value!r}; "


_MAKERS: dict[str, tuple[str, Callable[[Any], Judge]]] = {
    "openai-chat": ("openai.types.chat.completion_create_params", _chat),
    "openai-responses": (
        "openai.types.responses.response_create_params",
        lambda params: _strict(params.ResponseCreateParams),
    ),
    "anthropic": ("anthropic.types.message_create_params", _anthropic),
    "gemini": ("google.genai", _gemini),  # whole: its parts import one another in a circle
    "mistral": ("mistralai.client.models", _mistral),
    "ollama": ("ollama._types", _ollama),
    "cohere": ("cohere.v2.raw_client", _cohere),
    "bedrock-converse": ("botocore.session", _bedrock),
}
