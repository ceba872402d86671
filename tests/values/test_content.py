"""Images, files and links: what they are made of, and what may be said of them."""

from __future__ import annotations

import base64
import copy
import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib import File, Image, Link, Message, ToolCall, ToolContent
from toolcrib.values.content import (
    Part,
    PartInfo,
    as_texts,
    holds_content,
    info_of,
    inline_data,
    media_type_of,
    weight_of,
)

CANARY = "canary-4ad1"
DATA = base64.b64encode(CANARY.encode()).decode()
CALL = ToolCall("c", "look", "{}")
SHA256 = hashlib.sha256(CANARY.encode()).hexdigest()


@given(st.binary(min_size=1))
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    assert Image.from_bytes("image/png", data).to_bytes() == data
    assert File.from_bytes("application/pdf", data, name="a.pdf").to_bytes() == data
    by_address = Image(url=f"data:image/png;base64,{base64.b64encode(data).decode()}")
    assert by_address.to_bytes() == data


def test_an_empty_file_is_a_file() -> None:
    assert File("text/csv").to_bytes() == b""
    assert as_texts([File("text/csv", name="a.csv")]) == ['[file "a.csv" text/csv]\n']


def test_a_repr_shows_a_media_type_and_nothing_else_in_its_place() -> None:
    assert "image/png" in repr(Image("image/png", DATA))
    for part in (Image(CANARY, DATA), File(CANARY), Link("demo://a", media_type=f"a/b; {CANARY}")):
        assert CANARY not in repr(part)


def test_an_address_has_no_bytes_here() -> None:
    for part in (
        Image(url="https://a.test/b.png"),
        File("application/pdf", url="https://a.test/b"),
    ):
        with pytest.raises(ValueError, match="URLs are not fetched"):
            part.to_bytes()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Image("image/png", "aGk=", "https://a.test"), "either data or a url"),
        (
            lambda: Image("a.png"),
            r"either data or a url; to read a file, use Image.from_path\('…'\)",
        ),
        (lambda: Image(data="aGk="), "needs its media type"),
        (lambda: File("text/plain", data="aGk=", text="hi"), "takes only one of"),
    ],
)
def test_what_is_no_part_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Image.from_bytes("image/png", "text"), "Image: data must be bytes; got a str"),  # type: ignore[arg-type]
        (lambda: File(b"text/plain"), "File: media_type must be a str"),  # type: ignore[arg-type]
        (lambda: ToolContent(1, "text"), "parts must be a list of parts; got a str"),
        (lambda: ToolContent(1, [{}]), "a part must be a str, an Image, a File or a Link"),  # type: ignore[list-item]
        (lambda: Message.tool(CALL, "", (1,)), "parts must be a tuple of"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_type_is_named(make: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        make()


def test_nothing_that_a_part_holds_is_in_its_repr() -> None:
    parts: tuple[Part, ...] = (
        CANARY,
        Image("image/png", DATA),
        Image(url=f"https://a.test/{CANARY}"),
        File("text/plain", text=CANARY, name=CANARY),
        File("application/pdf", DATA),
        Link(f"demo://{CANARY}", CANARY, CANARY),
    )
    shown = [*map(repr, parts[1:]), repr(ToolContent({"a": CANARY}, parts))]
    shown.append(repr(Message.tool(CALL, CANARY, parts)))
    shown += [repr(info_of(part)) for part in parts]
    assert not [text for text in shown if CANARY in text or DATA in text]


INFOS: dict[str, tuple[Part, PartInfo]] = {
    "a text": ("hé", PartInfo("text", "", 3)),
    "an image": (Image("image/png", DATA), PartInfo("image", "image/png", 11, SHA256)),
    "an image at an address": (Image(url="https://a.test/b"), PartInfo("image")),
    "an image as an address": (
        Image(url=f"data:image/gif;base64,{DATA}"),
        PartInfo("image", "image/gif", 11, SHA256),
    ),
    "a recording": (File("audio/x-wav", DATA), PartInfo("audio", "audio/wav", 11, SHA256)),
    "a film": (File("video/mp4", DATA), PartInfo("video", "video/mp4", 11, SHA256)),
    "a picture in a file": (File("Image/JPG", DATA), PartInfo("image", "image/jpeg", 11, SHA256)),
    "a document": (File("application/pdf", DATA), PartInfo("file", "application/pdf", 11, SHA256)),
    "a text in a file": (
        File("text/plain; charset=utf-8", text="hé"),
        PartInfo("file", "text/plain", 3),
    ),
    "no media type": (File(f"{CANARY}\n", DATA), PartInfo("file", "", 11, SHA256)),
    "a link": (Link("demo://a", size=7), PartInfo("link", "", 7)),
}


@each_row("name", INFOS)
def test_what_a_record_says_of_a_part(name: str) -> None:
    part, info = INFOS[name]
    assert info_of(part) == info
    assert CANARY not in str(info)


@pytest.mark.parametrize(
    "part",
    [
        Image("image/png", "aGk"),
        Image("image/png", f"{DATA}\n"),
        File("application/pdf", CANARY),
        "\ud800",
        File("text/plain", text="\ud800"),
        Link("demo://a", "\ud800"),
    ],
)
def test_what_no_provider_could_be_sent_is_found(part: Part) -> None:
    with pytest.raises(ValueError, match=r"."):
        info_of(part)


def test_what_is_text_is_told_as_text_and_the_rest_is_named() -> None:
    parts: list[Part] = [
        "a",
        File("text/csv", base64.b64encode(b"1,2").decode(), name='a "b".csv'),
        File("application/json", text="{}"),
        File("text/plain", base64.b64encode(b"\xff").decode()),
        Link("demo://1", "one", "the first", "text/html"),
        Image("image/png", DATA),
        File("application/pdf", DATA, name="a.pdf"),
        Image(url="https://a.test/b.png"),
        " ",
    ]
    assert as_texts(parts) == [
        "a",
        '[file "a \\"b\\".csv" text/csv]\n1,2',
        "[file application/json]\n{}",
        "[file: text/plain, 1 bytes; not shown here]",
        '[link] "one": demo://1 (text/html): the first',
        "[image: image/png, 11 bytes; not shown here]",
        '[file "a.pdf": application/pdf, 11 bytes; not shown here]',
        "[image: image at https://a.test/b.png; not shown here]",
    ]


def test_content_is_parts_alone_or_in_a_list_or_beside_a_value() -> None:
    image = Image("image/png", DATA)
    assert ToolContent.of(image) == ToolContent(None, [image])
    assert ToolContent.of(["a", image]) == ToolContent(None, ["a", image])
    beside = ToolContent({"a": 1}, [image])
    assert ToolContent.of(beside) is beside
    for json in ({"a": 1}, "a", ["a"], [], None, {"a": image}, [image, {"a": 1}]):
        assert ToolContent.of(json) is None


def test_content_is_found_wherever_it_is() -> None:
    class Own(msgspec.Struct):
        shown: Any

    @dataclass
    class Framed:
        shown: Any

    image, beside = Image("image/png", DATA), ToolContent(1, ["a"])
    with_one = (image, [image], {"a": (image,)}, Own({"a": image}), ToolContent(1, [image]))
    assert all(map(holds_content, (*with_one, beside, {"a": beside}, Own(Framed([beside])))))
    assert not any(map(holds_content, ("a", ["a"], {"a": 1}, Own({"a": "b"}), Own(Framed("a")))))


def test_weights_are_of_what_is_held() -> None:
    assert weight_of("abc") == 3
    assert weight_of(Image("image/png", DATA)) == len(DATA)
    assert weight_of(File("text/plain", text="abc", name="de")) == 5


def test_parts_are_saved_with_their_message() -> None:
    parts = ("a", Image("image/png", DATA), File("text/plain", text="b"), Link("demo://a"))
    message = Message.tool(CALL, "x", parts)
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    assert copy.deepcopy(message) == message


def test_an_image_that_was_saved_before_images_were_parts_is_read() -> None:
    saved = b'{"role":"user","images":[{"media_type":"image/png","data":"aGk="}]}'
    read = msgspec.json.decode(saved, type=Message)
    assert read == Message.user("", (Image("image/png", "aGk="),))


def test_a_media_type_has_no_parameters_and_one_name() -> None:
    assert media_type_of(File("Audio/WAVE;codec=1", "aGk=")) == "audio/wav"
    assert media_type_of(Image(url="data:image/jpg;base64,aGk=")) == "image/jpeg"
    assert media_type_of(Link("a", media_type="none")) == ""
    assert inline_data(File("text/plain", url="data:text/plain,hi")) is None
