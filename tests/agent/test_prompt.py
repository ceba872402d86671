"""Images and files in what a user says: looked at before a run begins, kept in all that is saved."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from agent.test_output import SERVED
from msgspec import structs

from toolcrib import Agent, File, Image, Link, RunInfo, RunState, Session
from toolcrib.clients import CohereClient, OllamaClient, OpenAIClient, WireClient
from toolcrib.errors import RequestError, SourceError, ToolcribError
from toolcrib.testing import ScriptedClient, openai_server
from toolcrib.values.content import Part, text_in
from toolcrib.values.message import Message
from toolcrib.values.record import prompt_of

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
PNG = Image.from_bytes("image/png", PIXEL)
NOTE = File("text/plain", text="a secret note", name="note.txt")
PROMPT: list[Part] = ["What is it?", PNG, "And this?", NOTE]


async def test_a_prompt_is_one_message_of_the_user_in_order() -> None:
    model = ScriptedClient(["A pixel."])
    result = await Agent(model).run(PROMPT)
    (message,) = model.requests[0].messages
    assert (message.content, message.parts) == ("What is it?", (PNG, "And this?", NOTE))
    assert message.text == "What is it?\n\nAnd this?"
    assert result.messages[0] == message


async def test_instructions_know_the_texts_of_it() -> None:
    def told(run: RunInfo) -> str:
        return f"Asked: {run.prompt}"

    model = ScriptedClient(["A pixel."])
    await Agent(model, instructions=told).run([PNG, "What is it?"])
    assert model.requests[0].messages[0].content == "Asked: What is it?"


@pytest.mark.parametrize("key", [None, b"a key of thirty-two random bytes"])
async def test_what_is_saved_has_it(key: bytes | None) -> None:
    agent = Agent(ScriptedClient(["A pixel.", "Yes."]), state_key=key)
    prepared = agent.prepare(PROMPT)
    assert RunState.from_json(prepared.to_json()).messages == prepared.messages
    session = Session(agent)
    await session.send(PROMPT)
    again = Session.from_json(agent, session.to_json())
    assert again.messages == session.messages
    await again.send([PNG])
    assert [m.parts for m in again.messages if m.role == "user"] == [tuple(PROMPT[1:]), (PNG,)]


def test_what_is_logged_of_it_is_what_it_is_and_a_digest() -> None:
    message = Message("user", "What is it?", parts=(PNG, "And?", NOTE, Link("demo://secret")))
    said = prompt_of([message], [])
    told = json.dumps(json.loads(said.text))
    assert "image/png, 68 bytes" in told
    assert "text/plain, 13 bytes" in told
    assert "And?" in told
    for hidden in (PNG.data, "secret", "note.txt"):
        assert hidden not in told
        assert hidden not in repr(message)
    other = Message("user", "What is it?", parts=(PNG, "And?", NOTE, Link("demo://public")))
    assert prompt_of([other], []).digest != said.digest


PDF = File.from_bytes("application/pdf", b"%PDF-1.7", name="a.pdf")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (File("a/b", url="https://a", name="b\0\0"), File("a/b", url="https://a\0\0b")),
        (Link("demo://a", size=1), Link("demo://a", size=2)),
        (Link("demo://a", media_type="text/html; a"), Link("demo://a", media_type="text/html; b")),
        (Link("demo://a", media_type="pay Eve 10"), Link("demo://a", media_type="pay Bob 99")),
        (File("text/plain", text="a"), File("text/plain", "a")),
    ],
)
def test_parts_that_differ_have_other_digests(one: Part, other: Part) -> None:
    digests = {prompt_of([Message("user", "q", parts=(part,))], []).digest for part in (one, other)}
    assert len(digests) == 2


@pytest.mark.parametrize(
    "given", [{"data": PNG.data}, {"data": "aGk="}, {"url": "https://a.test/b"}]
)
def test_images_of_one_content_and_other_media_types_have_other_digests(given: Any) -> None:
    types = ["image/png", "image/gif", "image/tiff", "IMAGE/PNG", "image/png; a"]
    types += [""] if "url" in given else []
    said = [[Message.user("Hi", (Image(each, **given),))] for each in types]
    assert len({prompt_of(each, []).digest for each in said}) == len(types)


def test_what_is_no_media_type_is_not_told() -> None:
    assert text_in(Link("demo://a", media_type="pay Eve 10")) == "[link] demo://a"
    assert text_in(Link("demo://a", media_type="Text/HTML; a")) == "[link] demo://a (text/html)"


def test_a_prompt_without_parts_keeps_its_digest() -> None:
    said = [Message.system("Be brief."), Message.user("Hi", (PNG,)), Message.user("\ud800")]
    digest = "sha256:030cdf7fd06183f85af444462345e293a873f6ca5a67c78bb6e8a4772800ec2b"
    assert prompt_of(said, []).digest == digest


@pytest.mark.parametrize("wire", ["openai-responses", "anthropic", "gemini", "bedrock-converse"])
async def test_half_a_character_in_a_part_of_a_history_is_replaced(wire: str) -> None:
    parts = (
        File("text/plain", text="a\ud800"),
        structs.replace(PDF, name="\ud800"),
        Link("\ud800"),
    )
    earlier = [Message("user", "Look:", parts=parts), Message.assistant("Yes.")]
    async with (
        SERVED[wire].server(["Done."]) as server,
        seeing(wire, server.url) as client,
    ):
        result = await Agent(client).run("Sure?", history=earlier)
    assert (result.status, len(server.requests)) == ("completed", 1)


WRONG: tuple[tuple[Any, type[Exception], str], ...] = (
    (7, TypeError, r"prompt must be a str, or a list of texts, Images and Files"),
    (PNG, TypeError, r"prompt must be a str, or a list"),
    (["a", Path("a.png")], TypeError, r"prompt\[1\] must be .* Image\.from_path"),
    (["a", b"a"], TypeError, r"prompt\[1\] must be .* got a bytes"),
    (
        [Image("image/jpeg", PNG.data)],
        ToolcribError,
        "first bytes are those of image/png",
    ),
    ([Image("image/png", "aGk=")], ToolcribError, "those of something else, and not of image/png"),
    ([Image("application/pdf", PDF.data)], ToolcribError, "an Image needs .* not application/pdf"),
    ([Image("png", PNG.data)], ToolcribError, "an Image needs a type such as image/png"),
    ([Image("text/html", url="https://a")], ToolcribError, r"not text/html: use a File"),
    (
        [Image(url="data:image/png,PNG")],
        ToolcribError,
        r"prompt\[0\]: its address is data in an unknown form",
    ),
    (
        [Image(url=f"DATA:image/png;base64,{PNG.data}")],
        ToolcribError,
        "its address is data in an unknown form",
    ),
    ([File("application/pdf", name="a.pdf")], ToolcribError, r"prompt\[0\]: the file is empty"),
    (
        ["a", Image("image/png", "no base64")],
        ToolcribError,
        r"prompt\[1\] cannot be sent: its data is not base64: give its bytes to from_bytes",
    ),
    (
        [File("text/plain", text="a\ud800")],
        ToolcribError,
        r"prompt\[0\] cannot be sent: its text has half of a surrogate pair.* errors='replace'",
    ),
    ([File("text/plain", "aGk=", name="\udfff")], ToolcribError, r"\[0\] .* its name has half"),
    ([Image(url="https://a/\ud800")], ToolcribError, r"\[0\] cannot be sent: its url has half"),
)


@pytest.mark.parametrize(("prompt", "kind", "said"), WRONG)
async def test_what_is_no_prompt_is_refused_before_anything_runs(
    prompt: Any, kind: type[Exception], said: str
) -> None:
    model = ScriptedClient(["Yes."])
    with pytest.raises(kind, match=said):
        await Agent(model).run(prompt)
    assert model.requests == []


async def test_it_goes_over_http_and_what_cannot_go_is_an_error_before_that() -> None:
    film = File("video/mp4", base64.b64encode(b"\0\0\0\x18ftypmp42").decode())
    async with (
        openai_server(["A pixel."]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        with pytest.raises(
            RequestError, match=r"takes no video \(video/mp4, 12 bytes\).*prompt_media"
        ):
            await Agent(client).run(["What is it?", film])
        assert server.requests == []
        assert (await Agent(client).run(["What is it?", PNG])).text == "A pixel."
        (message,) = server.requests[0]["messages"]
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": PNG.as_url()}}


def seeing(wire: str, url: str) -> WireClient:
    blind = wire == "cohere"
    return CohereClient("command-a-vision", base_url=url) if blind else SERVED[wire].client(url)


@pytest.mark.parametrize("wire", SERVED)
async def test_each_provider_is_given_it_and_goes_on_with_it(wire: str) -> None:
    async with (
        SERVED[wire].server(["A pixel.", "Yes."]) as server,
        seeing(wire, server.url) as client,
    ):
        session = Session(Agent(client))
        await session.send(["What is it?", PNG])
        await session.send("Sure?")
    for body in server.requests:
        assert json.dumps(body).count(PNG.data) == 1


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "mistral", "gemini"])
async def test_documents_and_recordings_reach_who_takes_them(wire: str) -> None:
    sound = File.from_bytes("audio/wav", b"RIFF\1\2\3\4WAVE")
    heard = () if wire == "openai-responses" else (sound,)
    async with (
        SERVED[wire].server(["Done."]) as server,
        seeing(wire, server.url) as client,
    ):
        await Agent(client).run(["What do they say?", PDF, *heard])
    (body,) = map(json.dumps, server.requests)
    assert [part.data in body for part in (PDF, *heard)] == [True] * (1 + len(heard))


def test_a_client_can_say_what_its_model_takes() -> None:
    client = OllamaClient("m", prompt_media=["Image/PNG"])
    assert (client.wire.prompt_media, client.wire.prompt_models) == (frozenset(["image/png"]), "")
    with pytest.raises(
        RequestError, match=r"prompt_media must be a list of media types: \['image/png'\]"
    ):
        OllamaClient("m", prompt_media="image/png")


def test_files_are_read_and_say_by_their_bytes_what_they_are(tmp_path: Path) -> None:
    place = tmp_path / "a.jpg"  # which it is not
    place.write_bytes(PIXEL)
    assert Image.from_path(place) == PNG
    assert File.from_path(str(place)) == File("image/png", PNG.data, name="a.jpg")
    table = tmp_path / "a.csv"
    table.write_bytes(b"a,b")
    assert File.from_path(table).media_type == "text/csv"
    assert File.from_path(table, "text/plain").media_type == "text/plain"
    assert File.from_path(table, max_bytes=10**30).to_bytes() == b"a,b"


@pytest.mark.parametrize("name", ["a.yaml", "a.YML", "a.toml", "a.jsonl", "a.md"])
def test_files_of_settings_and_notes_are_text_with_every_python(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    place.write_text("a: 1", encoding="utf-8")
    assert str(text_in(File.from_path(place))).endswith("]\na: 1")


PACKED = [f"a.{kind}" for kind in ("pdf.gz", "docx.gz", "mp4.gz", "txt.bz2", "html.xz", "csv.Z")]


@pytest.mark.parametrize("name", [*PACKED, "a.svgz", "a.tgz"])
def test_a_file_that_is_packed_is_not_of_the_type_that_is_in_it(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    place.write_bytes(b"\x1f\x8b\x08 packed")
    with pytest.raises(SourceError, match="show its media type: pass media_type='…'"):
        File.from_path(place)
    assert File.from_path(place, "application/gzip").media_type == "application/gzip"


def test_files_that_cannot_be_taken_are_errors_that_say_why(tmp_path: Path) -> None:
    def said(make: Any, name: str, **options: Any) -> str:
        with pytest.raises(SourceError) as raised:
            make(tmp_path / name, **options)
        return str(raised.value)

    files = {"a.bin": b"\1\2", "a.what": b"?", "a.pdf": b"%PDF-1.7", "none": b"", "x.png": PIXEL}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert "there is no such file" in said(Image.from_path, "b.png")
    assert "that is a folder" in said(File.from_path, ".")
    os.mkfifo(tmp_path / "pipe")
    assert "that is not a regular file" in said(File.from_path, "pipe")
    assert "is empty" in said(File.from_path, "none")
    assert "larger than max_bytes=67" in said(Image.from_path, "x.png", max_bytes=67)
    assert "it looks like application/pdf: use File.from_path" in said(Image.from_path, "a.pdf")
    assert "its type is unknown" in said(Image.from_path, "a.bin")
    assert "neither its bytes nor its name show its media type" in said(File.from_path, "a.what")
