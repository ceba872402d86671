"""A typed answer in each provider's own form: what is sent, to whom, and what comes back of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from rows import each_row
from wire.sdk_judges import judge_of

from toolcrib.agent.output import OutputType
from toolcrib.clients import OpenAIClient, WireClient
from toolcrib.errors import RequestError
from toolcrib.schema import compile_validator
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, OutputFormat, Settings
from toolcrib.wire import MISTRAL, OPENAI_CHAT, WIRES, HttpRequest, encode
from toolcrib.wire.forms import OutputForm

MODELS = {
    "openai-chat": "gpt-4o",
    "openai-responses": "gpt-5.1",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
    "mistral": "mistral-small-latest",
    "ollama": "qwen3",
    "cohere": "command-a-03-2025",
    "bedrock-converse": "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
}
BESIDE_TOOLS = {"openai-chat", "openai-responses", "anthropic", "bedrock-converse"}
each_wire = pytest.mark.parametrize("wire", MODELS)


def test_every_wire_is_here() -> None:
    assert MODELS.keys() == WIRES.keys()


@dataclass
class Place:
    city: str
    degrees: float


@dataclass
class Optional:
    city: str
    note: str = "none"
    nights: int | None = None
    kind: Literal["a", "b"] = "a"


@dataclass
class Answered:
    answer: int


@dataclass
class Tree:
    name: str
    below: list[Tree]


def plain(strict: bool = False) -> tuple[PlainTool, ...]:
    schema = '{"type":"object","properties":{},"additionalProperties":false}'
    given = ToolDefinition(name="f", description="f", input_schema_json=schema, strict=strict)
    return (PlainTool(given),)


def asked(kind: Any, **members: Any) -> ChatRequest:
    """Without the tool that may take the format's place: tests/agent/test_output_tool.py has that."""
    bare = msgspec.structs.replace(OutputType(kind).format, tool=None, strict_tool=None)
    return ChatRequest((Message.user("Hi"),), output=bare, **members)


def sent(wire: str, request: ChatRequest, *, stream: bool = False) -> HttpRequest:
    return encode(wire, request, model=MODELS[wire], stream=stream)


def bare(wire: str, request: ChatRequest, *, stream: bool = False) -> bytes:
    return sent(wire, msgspec.structs.replace(request, output=None), stream=stream).body


PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "number"}},
    "required": ["city", "degrees"],
}
CLOSED = PLACE | {"title": "Place", "additionalProperties": False}
TOLD = PLACE | {"description": "No other properties."}

GOLDEN: dict[str, dict[str, Any]] = {
    "openai-chat": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Place", "schema": CLOSED, "strict": True},
        }
    },
    "openai-responses": {
        "text": {
            "format": {"type": "json_schema", "name": "Place", "schema": CLOSED, "strict": True}
        }
    },
    "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": CLOSED}}},
    "gemini": {
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": CLOSED}
    },
    "ollama": {"format": PLACE},
    "cohere": {"response_format": {"type": "json_object", "json_schema": TOLD}},
}
GOLDEN["mistral"] = GOLDEN["openai-chat"]


@each_wire
def test_what_is_sent(wire: str) -> None:
    request = asked(Place)
    body = json.loads(sent(wire, request).body)
    without = json.loads(bare(wire, request))
    more = {key: value for key, value in body.items() if key not in without}
    if wire == "bedrock-converse":
        told = more["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
        assert json.loads(told.pop("schema")) == CLOSED  # it is text there
        told["schema"] = "…"
        assert more == {
            "outputConfig": {
                "textFormat": {
                    "type": "json_schema",
                    "structure": {"jsonSchema": {"name": "Place", "schema": "…"}},
                }
            }
        }
    else:
        assert more == GOLDEN[wire]
    assert {key: body[key] for key in without} == without
    assert sent(wire, request).offer.output is None  # there is nothing to undo


KINDS = [Place, Optional, Tree, int, list[int], Place | Optional, dict[str, int], Literal["a", "b"]]


@each_row("kind", KINDS, ids=str)
@each_row("stream", [False, True], ids=["whole", "streamed"])
@each_wire
def test_what_is_sent_is_what_the_sdk_would_send(wire: str, stream: bool, kind: Any) -> None:
    judge = judge_of(wire)
    judge(sent(wire, asked(kind), stream=stream).body)
    judge(sent(wire, asked(kind, tools=plain()), stream=stream).body)


@each_wire
def test_a_request_without_an_output_is_as_it_was(wire: str) -> None:
    changed = msgspec.structs.replace(WIRES[wire], output=None)
    request = asked(Place, tools=plain())
    assert encode(changed, request, model=MODELS[wire]).body == bare(wire, request)


@each_wire
def test_beside_tools_only_where_the_provider_takes_both(wire: str) -> None:
    request = asked(Place, tools=plain())
    assert (sent(wire, request).body != bare(wire, request)) == (wire in BESIDE_TOOLS)


@pytest.mark.parametrize("wire", ["anthropic", "bedrock-converse"])
def test_strict_tools_have_the_limits_to_themselves(wire: str) -> None:
    request = asked(Place, tools=plain(strict=True))
    assert sent(wire, request).body == bare(wire, request)


@each_row(
    ("wire", "model"),
    [
        ("openai-chat", "gpt-3.5-turbo"),
        ("openai-chat", "gpt-4-turbo"),
        ("openai-responses", "o1-mini"),
        ("anthropic", "claude-sonnet-4-20250514"),
        ("anthropic", "claude-opus-4-1"),
        ("anthropic", "claude-3-5-haiku-latest"),
        ("bedrock-converse", "amazon.nova-pro-v1:0"),
        ("bedrock-converse", "anthropic.claude-3-haiku-20240307-v1:0"),
        ("gemini", "gemini-2.0-flash"),
        ("gemini", "gemma-3-27b-it"),
        ("mistral", "open-codestral-mamba"),
    ],
)
def test_a_model_that_is_not_known_to_take_it_is_not_asked(wire: str, model: str) -> None:
    request = asked(Place)
    without = msgspec.structs.replace(request, output=None)
    assert encode(wire, request, model=model).body == encode(wire, without, model=model).body


@each_row(
    ("wire", "extra"),
    [
        ("openai-chat", {"response_format": {"type": "json_object"}}),
        ("mistral", {"response_format": {"type": "json_object"}}),
        ("cohere", {"response_format": {"type": "json_object"}}),
        ("openai-responses", {"text": {"format": {"type": "text"}}}),
        ("anthropic", {"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
        ("gemini", {"generationConfig": {"responseMimeType": "text/plain"}}),
        ("ollama", {"format": "json"}),
        ("bedrock-converse", {"outputConfig": {"textFormat": {}}}),
    ],
)
def test_what_the_author_says_of_it_stands(wire: str, extra: dict[str, Any]) -> None:
    request = asked(list[int], settings=Settings(extra=extra))
    assert sent(wire, request).body == bare(wire, request)
    assert sent(wire, request).offer.output is None


def test_other_members_of_the_same_place_stay() -> None:
    settings = Settings(extra={"text": {"verbosity": "low"}})
    body = json.loads(sent("openai-responses", asked(Place, settings=settings)).body)
    assert body["text"] == {"verbosity": "low"} | GOLDEN["openai-responses"]["text"]
    settings = Settings(temperature=0.5)
    body = json.loads(sent("gemini", asked(Place, settings=settings)).body)
    assert body["generationConfig"] == {"temperature": 0.5} | GOLDEN["gemini"]["generationConfig"]


ANSWERS: list[tuple[Any, Any, Any]] = [
    (int, 7, 7),
    (list[int], [1, 2], [1, 2]),
    (Place | Optional, {"city": "Oslo", "degrees": 3.0}, Place("Oslo", 3.0)),
    (dict[str, int], {"answer": 1}, {"answer": 1}),
    (Tree, {"name": "a", "below": []}, Tree("a", [])),
    (Literal["a", "b"], "b", "b"),
]


@each_row(("kind", "value", "read"), ANSWERS)
@each_wire
def test_an_answer_under_one_property_is_taken_out(
    wire: str, kind: Any, value: Any, read: Any
) -> None:
    """Whether the provider held the model to it or not; what is an object already is left alone."""
    output = OutputType(kind)
    request = ChatRequest((Message.user("Hi"),), output=output.format)
    restorer = sent(wire, request).offer.output
    assert output.read(json.dumps(value), restorer) == (read, None)
    if restorer is not None:
        assert output.read(json.dumps({"answer": value}), restorer) == (read, None)


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "mistral"])
def test_nulls_that_strict_mode_wants_stand_for_nothing(wire: str) -> None:
    output = OutputType(Optional)
    made = sent(wire, ChatRequest((Message.user("Hi"),), output=output.format))
    text = '{"city": "Oslo", "note": null, "nights": null, "kind": null}'
    assert output.read(text, made.offer.output) == (Optional("Oslo"), None)
    assert output.read(text)[1] is not None  # the author's schema has no such nulls


@each_wire
def test_what_comes_back_is_judged_by_the_authors_schema(wire: str) -> None:
    output = OutputType(list[int])
    restorer = sent(wire, ChatRequest((Message.user("Hi"),), output=output.format)).offer.output
    for text in ('{"answer": ["7"]}', '{"answer": [1], "more": 2}', '{"other": [1]}', "null"):
        value, complaint = output.read(text, restorer)
        assert (value, complaint is None) == (None, False)


def test_a_type_that_refers_to_itself_keeps_its_definition() -> None:
    told = json.loads(sent("openai-chat", asked(Tree)).body)["response_format"]["json_schema"]
    assert told["strict"] is True
    schema = compile_validator(told["schema"])
    assert schema.is_valid({"name": "a", "below": [{"name": "b", "below": []}]})
    assert not schema.is_valid({"name": "a", "below": [{"name": 1, "below": []}]})


def test_a_map_is_asked_for_where_that_can_be_said() -> None:
    for wire in MODELS:
        request = asked(dict[str, int])
        said = sent(wire, request).body != bare(wire, request)
        assert said == (wire not in ("anthropic", "bedrock-converse", "cohere")), wire
    told = json.loads(sent("openai-chat", asked(dict[str, int])).body)["response_format"]
    assert told["json_schema"]["strict"] is False


def test_what_refers_to_itself_and_is_no_object_is_not_sent() -> None:
    schema = '{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#"}}]}'
    request = ChatRequest((Message.user("Hi"),), output=OutputFormat("list[…]", schema))
    assert sent("openai-chat", request).body == bare("openai-chat", request)


def test_a_property_of_the_authors_own_is_not_taken_for_the_one_around() -> None:
    output = OutputType(Answered | Place)
    made = sent("gemini", ChatRequest((Message.user("Hi"),), output=output.format))
    for text in ('{"answer": 7}', '{"answer_": {"answer": 7}}'):
        assert output.read(text, made.offer.output) == (Answered(7), None)


@pytest.mark.parametrize("text", ["true", "[]", "no JSON"])
def test_an_output_has_a_schema_that_is_an_object(text: str) -> None:
    with pytest.raises(ValueError, match=r"object|Expecting"):
        OutputFormat("a", text)


def test_a_name_is_made_legal() -> None:
    request = ChatRequest(
        (Message.user("Hi"),), output=OutputFormat("Page[int]", json.dumps(PLACE))
    )
    told = json.loads(sent("openai-chat", request).body)["response_format"]["json_schema"]
    assert told["name"] == "Page_int_"


def test_servers_that_are_not_known_to_take_it_are_not_asked() -> None:
    for host in ("api.openai.com", "my.openai.azure.com"):
        assert OPENAI_CHAT.at(host).output == OPENAI_CHAT.output
    for host in ("localhost", "api.deepseek.com", "notapi.openai.com.example.org"):
        assert OPENAI_CHAT.at(host).output is None
        assert MISTRAL.at(host).output == MISTRAL.output


URL = "http://localhost:1/v1"


def test_an_author_can_say_whether_a_server_takes_it() -> None:
    assert OpenAIClient("m", base_url=URL).wire.output is None
    form = OpenAIClient("m", base_url=URL, native_output=True).wire.output
    assert isinstance(form, OutputForm)
    assert (form.servers, form.models) == (frozenset(), "")
    assert WireClient("gemini", "m", base_url=URL).wire.output is not None
    assert WireClient("gemini", "m", base_url=URL, native_output=False).wire.output is None
    none = msgspec.structs.replace(OPENAI_CHAT, output=None)
    with pytest.raises(RequestError, match="openai-chat has no native form for a typed answer"):
        WireClient(none, "m", base_url=URL, native_output=True)
