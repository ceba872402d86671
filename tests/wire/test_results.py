"""Content in the results of tools: what each wire sends as it is, and what it tells in text."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample
from wire.forms_helpers import TOOLS
from wire.sdk_judges import judge_of

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import File, Image, Link, Part, inline_data, text_in
from toolcrib.values.definition import PlainTool
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import OPENAI_CHAT, WIRES, encode
from toolcrib.wire.base import Memo

MODELS = {
    "openai-chat": "gpt-9",
    "openai-responses": "gpt-9",
    "anthropic": "claude-9",
    "gemini": "gemini-3-pro",
    "mistral": "mistral-large",
    "ollama": "qwen3-vl",
    "cohere": "command-a-plus-05-2026",
    "bedrock-converse": "anthropic.claude-9",
}
OTHERS = (
    *MODELS.items(),
    ("gemini", "gemini-2.5-pro"),
    ("cohere", "command-r"),
    ("bedrock-converse", "meta.llama4"),
)
SEES = [row for row in OTHERS if row[1] not in ("command-r", "meta.llama4")]
TOOL = PlainTool(TOOLS["plain"].renamed("f"))
CALLS = (ToolCall("call_0", "f", '{"city": "Rome"}'), ToolCall("call_1", "f", "{}"))
PNG = Image("image/png", base64.b64encode(b"a picture").decode())
PDF = File("application/pdf", base64.b64encode(b"a document").decode(), name="a.pdf")
WAV = File("audio/wav", base64.b64encode(b"a recording").decode())
WEB = Image(url="https://a.test/b.png")

each_model = pytest.mark.parametrize(("wire", "model"), OTHERS, ids="/".join)


def asked(*parts: Part, content: str = "said", is_error: bool = False) -> ChatRequest:
    results = (
        Message.tool(CALLS[0], content, parts, is_error=is_error),
        Message.tool(CALLS[1], "of the other"),
    )
    said = (Message.user("Look."), Message.assistant("", CALLS), *results)
    return ChatRequest(said, (TOOL,))


def body_of(wire: str, model: str, *parts: Part, **options: Any) -> Any:
    sent = encode(wire, asked(*parts, **options), model=model)
    judge_of(wire)(sent.body)
    return json.loads(sent.body)


def sent_to(wire: str, *parts: Part, model: str = "", **options: Any) -> Any:
    """What stands where the results stand, and behind them."""
    body = body_of(wire, model or MODELS[wire], *parts, **options)
    items = body.get("messages") or body.get("contents") or body["input"]
    return items[-3:] if wire == "openai-responses" else items


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_of(each)


IMAGE = {
    "openai-chat": {"type": "image_url", "image_url": {"url": PNG.as_url()}},
    "cohere": {"type": "image_url", "image_url": {"url": PNG.as_url()}},
    "mistral": {"type": "image_url", "image_url": {"url": PNG.as_url()}},
    "openai-responses": {"type": "input_image", "image_url": PNG.as_url(), "detail": "auto"},
    "anthropic": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PNG.data},
    },
    "bedrock-converse": {"image": {"format": "png", "source": {"bytes": PNG.data}}},
    "gemini": {"inlineData": {"mimeType": "image/png", "data": PNG.data}},
    "ollama": PNG.data,
}


def test_anthropic_has_blocks_in_the_result() -> None:
    block = sent_to("anthropic", PNG, "then", PDF)[-1]["content"][0]
    assert (block["type"], block["tool_use_id"]) == ("tool_result", "call_0")
    document = {"type": "base64", "media_type": "application/pdf", "data": PDF.data}
    assert block["content"] == [
        {"type": "text", "text": "said"},
        IMAGE["anthropic"],
        {"type": "text", "text": "then"},
        {"type": "document", "source": document, "title": "a.pdf"},
    ]


def test_openai_responses_have_a_list_as_output() -> None:
    item = sent_to("openai-responses", PNG, PDF, File("application/pdf", url="https://a.test/b"))[
        -2
    ]
    assert item == {
        "type": "function_call_output",
        "call_id": "call_0",
        "output": [
            {"type": "input_text", "text": "said"},
            IMAGE["openai-responses"],
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF.as_url()},
            {"type": "input_file", "file_url": "https://a.test/b"},
        ],
    }


@pytest.mark.parametrize("wire", ["openai-chat", "cohere"])
def test_what_takes_text_alone_in_results_has_the_rest_behind_all_of_them(wire: str) -> None:
    items = sent_to(wire, PNG, WEB)
    assert [item["role"] for item in items] == ["user", "assistant", "tool", "tool", "user"]
    assert items[2]["content"] == (
        "said\n\n[image: image/png, 9 bytes; attachment 1]\n\n"
        "[image: image at https://a.test/b.png; attachment 2]"
    )
    call_id = items[2]["tool_call_id"]
    assert items[-1]["content"] == [
        {"type": "text", "text": f"[attachment 1 of the result of f, call {call_id}]"},
        IMAGE[wire],
        {"type": "text", "text": f"[attachment 2 of the result of f, call {call_id}]"},
        {"type": "image_url", "image_url": {"url": WEB.url}},
    ]


def test_openai_chat_has_files_and_recordings_where_the_server_takes_them() -> None:
    wire = msgspec.structs.replace(
        OPENAI_CHAT, result_media=frozenset(("audio/wav", "application/pdf"))
    )
    sent = encode(wire, asked(PNG, WAV, PDF), model="m")
    judge_of("openai-chat")(sent.body)
    messages = json.loads(sent.body)["messages"]
    assert messages[-1]["content"][1::2] == [
        {"type": "input_audio", "input_audio": {"data": WAV.data, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF.as_url()}},
    ]
    assert "[image: image/png, 9 bytes; not shown here]" in messages[2]["content"]


def test_mistral_has_chunks_in_the_result_and_no_user_behind_it() -> None:
    items = sent_to("mistral", PNG, "then")
    assert [item["role"] for item in items] == ["user", "assistant", "tool", "tool"]
    assert items[2]["content"] == [
        {"type": "text", "text": "said"},
        IMAGE["mistral"],
        {"type": "text", "text": "then"},
    ]
    wire = msgspec.structs.replace(
        WIRES["mistral"], result_media=frozenset(("audio/wav", "application/pdf"))
    )
    sent = encode(wire, asked(WAV, PDF), model="m").body
    judge_of("mistral")(sent)
    assert json.loads(sent)["messages"][2]["content"][1:] == [
        {"type": "input_audio", "input_audio": WAV.data},
        {"type": "document_url", "document_url": PDF.as_url()},
    ]


def test_ollama_has_images_in_the_result() -> None:
    result = sent_to("ollama", PNG, WEB)[2]
    assert result["images"] == [PNG.data]
    assert "[image: image at https://a.test/b.png; not shown here]" in result["content"]


def test_bedrock_has_blocks_in_the_result() -> None:
    kept = Image("image/png", url="s3://bucket/a.png")
    block = sent_to("bedrock-converse", PNG, PDF, kept, WEB)[-1]["content"][0]["toolResult"]
    assert block["content"] == [
        {"text": "said"},
        IMAGE["bedrock-converse"],
        {"document": {"format": "pdf", "name": "call-0 2", "source": {"bytes": PDF.data}}},
        {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/a.png"}}}},
        {"text": "[image: image at https://a.test/b.png; not shown here]"},
    ]


def test_gemini_3_has_what_it_takes_in_the_result_and_the_rest_behind() -> None:
    results, behind = sent_to("gemini", PNG, WAV)[-2:]
    response = results["parts"][0]["functionResponse"]
    assert response["parts"] == [IMAGE["gemini"]]
    assert response["response"]["output"] == (
        "said\n\n[image: image/png, 9 bytes; attachment 1]\n\n"
        "[audio: audio/wav, 11 bytes; attachment 2]"
    )
    assert behind == {
        "role": "user",
        "parts": [
            {"text": "[attachment 2 of the result of f, call call_0]"},
            {"inlineData": {"mimeType": "audio/wav", "data": WAV.data}},
        ],
    }


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "models/gemini-2.0-flash", "gemma-4"])
def test_older_gemini_models_have_all_of_it_behind(model: str) -> None:
    results, behind = sent_to("gemini", PNG, model=model)[-2:]
    assert [list(part) for part in results["parts"]] == [["functionResponse"]] * 2
    assert "parts" not in results["parts"][0]["functionResponse"]
    assert behind["parts"][1] == IMAGE["gemini"]


@pytest.mark.parametrize(("wire", "model"), SEES, ids="/".join)
def test_an_image_reaches_a_model_as_an_image(wire: str, model: str) -> None:
    assert json.dumps(IMAGE[wire]) in json.dumps(body_of(wire, model, PNG))
    as_file = File("image/png", PNG.data, name="a.png")
    assert json.dumps(IMAGE[wire]) in json.dumps(body_of(wire, model, as_file))


@each_model
def test_a_model_that_takes_text_alone_is_told_of_it(wire: str, model: str) -> None:
    blind = msgspec.structs.replace(WIRES[wire], result_media=frozenset())
    text = encode(blind, asked(PNG, "and"), model=model).body.decode()
    assert PNG.data not in text
    assert "[image: image/png, 9 bytes; not shown here]" in text
    if (wire, model) not in SEES:
        assert text == encode(wire, asked(PNG, "and"), model=model).body.decode()


def numbered(kind: str, number: int) -> Part:
    """A part that no other part of the request is like."""
    text = f"{kind} {number}"
    data = base64.b64encode(text.encode().ljust(SIZE + number, b".")).decode()
    match kind:
        case "text":
            return text
        case "link":
            return Link(f"demo://{text}", text)
        case "file of text":
            return File("text/csv", text=text, name=text)
        case "address":
            return Image(url=f"https://a.test/{number}.png")
    return Image(kind, data) if kind.startswith("image/") else File(kind, data)


SIZE = 100
KINDS = (
    *("text", "link", "file of text", "address", "image/png", "image/tiff", "image/jpg"),
    *("application/pdf", "audio/wav", "video/mp4", "application/zip", "no media type"),
)


EVERYTHING = frozenset(kind for kind in KINDS if "/" in kind)


@each_model
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=sample(120))
def test_nothing_is_dropped_and_the_order_stays(
    wire: str, model: str, kinds: list[str], has_text: bool, is_error: bool, takes_all: bool
) -> None:
    parts = [numbered(kind, number) for number, kind in enumerate(kinds)]
    chosen = WIRES[wire]
    if takes_all:
        chosen = msgspec.structs.replace(chosen, result_media=EVERYTHING, result_models="")
    request = asked(*parts, content="said" if has_text else "", is_error=is_error)
    sent = encode(chosen, request, model=model).body
    judge_of(wire)(sent)
    body = json.loads(sent)
    said = "\n".join(texts_of(body))
    places = []
    for number, part in enumerate(parts):
        text = text_in(part)
        if text is None:
            assert isinstance(part, Image | File)
            named = part.url or f", {SIZE + number} bytes"
            assert named in said or (inline_data(part) or "?") in said
            text = named if named in said else inline_data(part)
        assert text
        assert text in said
        places.append(said.index(text))
    attached = wire in ("openai-chat", "cohere", "gemini", "ollama")
    if attached or all(text_in(part) is not None for part in parts):
        assert places == sorted(places)


@each_model
def test_what_is_blank_is_no_content(wire: str, model: str) -> None:
    for content in ("", "said"):
        for parts in ((" ",), ("", File("text/plain"))):
            body_of(wire, model, *parts, content=content)
            body_of(wire, model, *parts, content=content, is_error=True)


PARTLY = {
    "assistant": Message("assistant", "Hi", parts=(PNG,)),
    "system": Message("system", "Hi", parts=(PNG,)),
}


@each_row("role", PARTLY)
def test_only_a_result_and_a_prompt_have_parts(role: str) -> None:
    for wire in WIRES:
        with pytest.raises(RequestError, match="and results of calls may have parts"):
            encode(wire, ChatRequest((Message.user("Hi"), PARTLY[role])), model="m")


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_remembered_is_for_models_that_take_the_same(wire: str) -> None:
    memo, request = Memo(), asked(PNG)
    blind = msgspec.structs.replace(WIRES[wire], result_media=frozenset())
    for chosen, model in ((wire, MODELS[wire]), (blind, MODELS[wire]), (wire, "gemini-2.5-pro")):
        alone = encode(chosen, request, model=model).body
        assert encode(chosen, request, model=model, memo=memo).body == alone
