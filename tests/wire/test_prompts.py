"""Images and files in what a user says: each wire's own form, or an error before anything is sent."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from wire.sdk_judges import judge_of
from wire.test_results import IMAGE, MODELS, PDF, PNG, WAV, WEB, texts_of

from toolcrib.errors import RequestError
from toolcrib.values.content import File, Image, Link, Part
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import WIRES, encode
from toolcrib.wire.base import Memo

PAPER = File("application/pdf", url="https://a.test/b.pdf")
DOCX = File(
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    base64.b64encode(b"PK").decode(),
    name="a.docx",
)
NOTE = File("text/csv", text="a,b", name="a.csv")
MP4 = File("video/mp4", base64.b64encode(b"a film").decode())
TIFF = Image("image/tiff", base64.b64encode(b"II*").decode())
ODD = File("application/x-odd", base64.b64encode(b"odd").decode(), name="odd.bin")


def asked(*parts: Part, content: str = "What is it?") -> ChatRequest:
    return ChatRequest((Message("user", content, parts=parts),))


def body_of(wire: str, *parts: Part, content: str = "What is it?") -> Any:
    sent = encode(wire, asked(*parts, content=content), model=MODELS[wire])
    judge_of(wire)(sent.body)
    return json.loads(sent.body)


def said_to(wire: str, *parts: Part, content: str = "What is it?") -> Any:
    body = body_of(wire, *parts, content=content)
    (message,) = body.get("messages") or body.get("contents") or body["input"]
    return message if wire == "ollama" else message.get("content", message.get("parts"))


FIRST = {
    "openai-chat": {"type": "text", "text": "What is it?"},
    "cohere": {"type": "text", "text": "What is it?"},
    "mistral": {"type": "text", "text": "What is it?"},
    "openai-responses": {"type": "input_text", "text": "What is it?"},
    "anthropic": {"type": "text", "text": "What is it?"},
    "bedrock-converse": {"text": "What is it?"},
    "gemini": {"text": "What is it?"},
}


@pytest.mark.parametrize("wire", FIRST)
def test_an_image_stands_where_it_was_given(wire: str) -> None:
    text = {**FIRST[wire], "text": "And this?"}
    assert said_to(wire, PNG, "And this?", PNG) == [FIRST[wire], IMAGE[wire], text, IMAGE[wire]]
    assert said_to(wire, PNG, "And this?", content="") == [IMAGE[wire], text]


def test_ollama_has_texts_and_images_apart() -> None:
    assert said_to("ollama", PNG, "And this?", PNG) == {
        "role": "user",
        "content": "What is it?\n\nAnd this?",
        "images": [PNG.data, PNG.data],
    }


DOCUMENTS: dict[str, tuple[tuple[Part, ...], list[Any]]] = {
    "openai-chat": (
        (PDF,),
        [{"type": "file", "file": {"filename": "a.pdf", "file_data": PDF.as_url()}}],
    ),
    "openai-chat: a recording": (
        (WAV,),
        [{"type": "input_audio", "input_audio": {"data": WAV.data, "format": "wav"}}],
    ),
    "openai-responses": (
        (PDF, PAPER, DOCX),
        [
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF.as_url()},
            {"type": "input_file", "file_url": PAPER.url},
            {"type": "input_file", "filename": "a.docx", "file_data": DOCX.as_url()},
        ],
    ),
    "anthropic": (
        (PDF, PAPER),
        [
            {
                "type": "document",
                "source": {"type": "base64", "media_type": PDF.media_type, "data": PDF.data},
                "title": "a.pdf",
            },
            {"type": "document", "source": {"type": "url", "url": PAPER.url}},
        ],
    ),
    "gemini": (
        (PDF, WAV, MP4, PAPER, WEB),
        [
            *(
                {"inlineData": {"mimeType": each.media_type, "data": each.data}}
                for each in (PDF, WAV, MP4)
            ),
            {"fileData": {"fileUri": PAPER.url, "mimeType": "application/pdf"}},
            {"fileData": {"fileUri": WEB.url}},
        ],
    ),
    "mistral": (
        (PDF, PAPER, WAV),
        [
            {"type": "document_url", "document_url": PDF.as_url()},
            {"type": "document_url", "document_url": PAPER.url},
            {"type": "input_audio", "input_audio": WAV.data},
        ],
    ),
    "bedrock-converse": (
        (PDF, DOCX),
        [
            {"document": {"format": "pdf", "name": "prompt 1 1", "source": {"bytes": PDF.data}}},
            {"document": {"format": "docx", "name": "prompt 1 2", "source": {"bytes": DOCX.data}}},
        ],
    ),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_documents_and_recordings(case: str) -> None:
    wire, (parts, forms) = case.partition(":")[0], DOCUMENTS[case]
    assert said_to(wire, *parts)[1:] == forms


REFUSED = {
    "openai-chat": (MP4, PAPER, TIFF, ODD),
    "openai-responses": (WAV, MP4, TIFF, ODD),
    "anthropic": (WAV, DOCX, Image(url="http://a.test/b.png"), TIFF, ODD),
    "gemini": (ODD, TIFF),
    "mistral": (MP4, DOCX, TIFF, ODD),
    "ollama": (PDF, WEB, WAV, TIFF, ODD),
    "cohere": (PDF, WAV, TIFF, ODD),
    "bedrock-converse": (WEB, PAPER, WAV, MP4, TIFF, ODD),
}


EACH_REFUSED = [(wire, part) for wire, parts in REFUSED.items() for part in parts]


@pytest.mark.parametrize(("wire", "part"), EACH_REFUSED)
def test_what_a_wire_cannot_take_is_refused_and_named(wire: str, part: Image | File) -> None:
    with pytest.raises(RequestError, match=f"{wire}.* takes no (image|audio|video|file)") as raised:
        encode(wire, asked(PNG, part), model=MODELS[wire])
    assert part.media_type in str(raised.value)
    assert part.data[:8] not in str(raised.value) or not part.data


@pytest.mark.parametrize("wire", WIRES)
def test_texts_of_files_and_links_are_text(wire: str) -> None:
    said = "\n".join(texts_of(body_of(wire, NOTE, Link("demo://1", "one"), " ")))
    assert '[file "a.csv" text/csv]\na,b' in said
    assert '[link] "one": demo://1' in said


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("media_type", ["text/csv", "application/json", "image/svg+xml"])
def test_a_file_that_is_text_is_text_also_at_an_address_that_is_data(
    wire: str, media_type: str
) -> None:
    data = base64.b64encode(b"a,b").decode()
    kept = [File(media_type, data), File("", url=f"data:{media_type};base64,{data}")]
    first, second = ("\n".join(texts_of(body_of(wire, part))) for part in kept)
    assert first == second
    assert f"[file {media_type}]\na,b" in first


def test_a_model_of_cohere_that_reads_only_texts_is_given_no_image() -> None:
    with pytest.raises(
        RequestError, match=r"cohere takes no image \(image/png, 9 bytes\): with this"
    ):
        encode("cohere", asked(PNG), model="command-r")


def test_bedrock_takes_a_document_only_with_a_text() -> None:
    with pytest.raises(RequestError, match="only together with text"):
        encode("bedrock-converse", asked(PDF, content=""), model="m")
    two = ChatRequest((*asked(PDF).messages, Message.assistant("A."), *asked(PDF).messages))
    body = json.loads(encode("bedrock-converse", two, model="m").body)
    names = [m["content"][1]["document"]["name"] for m in body["messages"] if m["role"] == "user"]
    assert names == ["prompt 1 1", "prompt 2 1"]  # two of one name would be refused


@pytest.mark.parametrize("wire", WIRES)
def test_what_was_encoded_once_is_the_same_again_and_for_models_that_take_the_same(
    wire: str,
) -> None:
    memo, request = Memo(), asked(PNG, "And?")
    for _ in range(2):
        alone = encode(wire, request, model=MODELS[wire]).body
        assert encode(wire, request, model=MODELS[wire], memo=memo).body == alone
    blind = msgspec.structs.replace(WIRES[wire], prompt_media=frozenset())
    with pytest.raises(RequestError, match="it takes none"):
        encode(blind, request, model=MODELS[wire], memo=memo)
