"""What a message or a tool result can contain besides text and JSON: images, files, links.

Parts are for the application and the model. Records, logs and observers get a `PartInfo` instead,
with the kind, media type, size and digest of the data. They never get the data, a text, a name or
an address. Data is base64 text, as every provider takes it.
"""

from __future__ import annotations

import dataclasses
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, assert_never

import msgspec

from toolcrib.errors import SourceError
from toolcrib.values.json import Redacted, canonical_json, encodable
from toolcrib.values.media import LARGEST, read_file, shown_type, type_of_file
from toolcrib.values.typed import HandWritten, check_type

T = TypeVar("T")
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]{0,99}")


class _WithMediaType(Redacted):
    """Hides a malformed media type from the repr, because it may contain anything."""

    __slots__ = ()
    media_type: str

    def _hides(self, name: str) -> bool:
        is_malformed = name == "media_type" and not _MEDIA_TYPE.fullmatch(self.media_type)
        return is_malformed or super()._hides(name)


class Image(_WithMediaType, HandWritten, frozen=True, omit_defaults=True, tag="image"):
    """A picture: base64 text with its media type (`image/png`), or an address. Raises ValueError.

    The media type of an address may be unknown, although some providers require it.
    """

    redacted: ClassVar[tuple[str, ...]] = ("data", "url")

    media_type: str = ""
    data: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.data) == bool(self.url):
            raise ValueError(
                "an image needs either data or a url; to read a file, use Image.from_path('…')"
            )
        if self.data and not self.media_type:
            raise ValueError("an image with data needs its media type, such as image/png")

    @staticmethod
    def from_bytes(media_type: str, data: bytes) -> Image:
        return Image(media_type, _encoded("Image", data))

    @staticmethod
    def from_path(path: str | Path, *, max_bytes: int = LARGEST) -> Image:
        """Return the picture in a file; its first bytes determine its type.

        Raises SourceError for a file that does not exist, is larger than `max_bytes`, or is not a
        picture of a known type.
        """
        data = read_file(path, max_bytes=max_bytes)
        media_type = shown_type(data)
        if not media_type.startswith("image/"):
            what = (
                f"it looks like {media_type}: use File.from_path"
                if media_type
                else "its type is unknown"
            )
            raise SourceError(f"{path} does not begin like a picture; {what}")
        return Image.from_bytes(media_type, data)

    def to_bytes(self) -> bytes:
        """Return the data. Raises ValueError for an address and for invalid base64."""
        return _bytes_of(self)

    def as_url(self) -> str:
        """Return the address, or the data as a `data:` URL (RFC 2397)."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


class File(_WithMediaType, HandWritten, frozen=True, omit_defaults=True, tag="file"):
    """A document, a recording or anything else with a media type: base64 text, an address, or text.

    Raises ValueError if more than one of `data`, `url` and `text` is given. An empty file has none.
    """

    redacted: ClassVar[tuple[str, ...]] = ("data", "url", "text", "name")

    media_type: str
    data: str = ""
    url: str = ""
    text: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.data) + bool(self.url) + bool(self.text) > 1:
            raise ValueError("a file takes only one of data, url and text")

    @staticmethod
    def from_bytes(media_type: str, data: bytes, *, name: str = "") -> File:
        return File(media_type, _encoded("File", data), name=name)

    @staticmethod
    def from_path(path: str | Path, media_type: str = "", *, max_bytes: int = LARGEST) -> File:
        """Return a file with its name. Its type is `media_type` or else derived from its first
        bytes or its name.

        Raises SourceError for a file that does not exist, is larger than `max_bytes`, or whose type
        cannot be determined.
        """
        data = read_file(path, max_bytes=max_bytes)
        kind = media_type or type_of_file(path, data)
        if not kind:
            raise SourceError(
                f"{path}: neither its bytes nor its name show its media type: pass media_type='…'"
            )
        return File.from_bytes(kind, data, name=Path(path).name)

    def to_bytes(self) -> bytes:
        """Return the data, or the text in UTF-8. Raises ValueError for an address and for invalid
        base64."""
        return self.text.encode() if self.text else _bytes_of(self)

    def as_url(self) -> str:
        """Return the address, or the data as a `data:` URL (RFC 2397)."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


class Link(_WithMediaType, HandWritten, frozen=True, omit_defaults=True, tag="link"):
    """The address of something that a model may ask for. toolcrib never fetches it. `size` is in
    bytes."""

    redacted: ClassVar[tuple[str, ...]] = ("uri", "name", "description")

    uri: str
    name: str = ""
    description: str = ""
    media_type: str = ""
    size: int | None = None


Part: TypeAlias = str | Image | File | Link
Prompt: TypeAlias = str | Sequence[Part]
"""What a user says to an agent: a string, or strings, images and files in order."""
PARTS = (str, Image, File, Link)
NO_TEXT = (Image, File, Link)


class ToolContent(Redacted, msgspec.Struct, Generic[T], frozen=True):
    """A tool's result with content: a structured value, and parts for the model to look at.

    The output schema, `visible` and `model_visible` apply to the value, which is None if there are
    only parts. The parts are kept as a tuple. Raises TypeError for a part of a wrong type.
    """

    redacted: ClassVar[tuple[str, ...]] = ("value", "parts")

    value: T
    parts: Sequence[Part] = ()

    def __post_init__(self) -> None:
        check_type("ToolContent: parts", self.parts, (list, tuple), "a list of parts")
        msgspec.structs.force_setattr(self, "parts", tuple(self.parts))
        for part in self.parts:
            check_type("ToolContent: a part", part, PARTS, "a str, an Image, a File or a Link")

    @staticmethod
    def of(result: object) -> ToolContent[Any] | None:
        """Return the content that a tool gave, or None if its result is JSON."""
        if isinstance(result, ToolContent):
            return result
        if not isinstance(result, list | tuple):
            return ToolContent(None, (result,)) if isinstance(result, NO_TEXT) else None
        if not any(isinstance(part, NO_TEXT) for part in result):
            return None
        are_parts = all(isinstance(part, PARTS) for part in result)
        return ToolContent(None, tuple(result)) if are_parts else None


def holds_content(value: object) -> bool:
    """Return whether a value is content or a part other than text, or contains one."""
    if isinstance(value, dict):
        return any(map(holds_content, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_content, value))
    if isinstance(value, ToolContent | Image | File | Link):
        return True
    if dataclasses.is_dataclass(value):
        return any(holds_content(getattr(value, f.name, None)) for f in dataclasses.fields(value))
    return isinstance(value, msgspec.Struct) and holds_content(msgspec.structs.astuple(value))


# What may be disclosed about a part, and to whom.

Kind: TypeAlias = Literal["text", "image", "audio", "video", "file", "link"]
Media: TypeAlias = Image | File
_SAME_TYPES = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg"} | dict.fromkeys(
    ("audio/x-wav", "audio/wave", "audio/vnd.wave"), "audio/wav"
)
_TEXT_TYPES = frozenset(
    f"application/{name}" for name in ("json", "jsonl", "toml", "x-ndjson", "x-yaml", "xml", "yaml")
)
_LONGEST_NAME = 200
_KINDS: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}


class PartInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Describes a part of a result in a record: its kind, its size in bytes, a digest of its data.

    Texts and addresses have no digest, because a short one could be guessed by trying.
    """

    kind: Kind
    media_type: str = ""
    size: int = 0
    sha256: str = ""

    def __str__(self) -> str:
        """Return a description: `image/png, 1,234 bytes`."""
        size = f", {self.size:,} bytes" if self.size else ""
        return f"{self.media_type or self.kind}{size}"


def info_of(part: Part) -> PartInfo:
    """Describe a part for a record.

    Raises ValueError for invalid base64 and for a text with a lone surrogate.
    """
    if isinstance(part, str):
        return PartInfo("text", "", len(part.encode()))
    for name in part.redacted:
        getattr(part, name).encode()
    kind, media_type = kind_of(part), media_type_of(part)
    if isinstance(part, Link):
        return PartInfo(kind, media_type, part.size or 0)
    if isinstance(part, File) and part.text:
        return PartInfo(kind, media_type, len(part.text.encode()))
    base64_text = inline_data(part)
    if base64_text is None:
        return PartInfo(kind, media_type)
    data = b64decode(base64_text, validate=True)
    return PartInfo(kind, media_type, len(data), sha256(data).hexdigest())


def part_info(part: Media) -> PartInfo:
    """Describe a part without decoding its data. Never raises."""
    base64_text = inline_data(part)
    size = 0 if base64_text is None else len(base64_text) * 3 // 4 - base64_text[-2:].count("=")
    if isinstance(part, File) and part.text:
        size = len(part.text.encode("utf-8", "surrogatepass"))
    return PartInfo(kind_of(part), media_type_of(part), size)


def weight_of(part: Part) -> int:
    """Return roughly how many bytes a part takes in memory and in a request."""
    if isinstance(part, str):
        return len(part)
    return sum(len(getattr(part, name)) for name in part.redacted)


def kind_of(part: Part) -> Kind:
    match part:
        case str():
            return "text"
        case Image():
            return "image"
        case Link():
            return "link"
        case File():
            return _KINDS.get(media_type_of(part).partition("/")[0], "file")
        case _:
            assert_never(part)


def media_type_of(part: Image | File | Link) -> str:
    """Return the media type without parameters, by providers' name for it; empty if malformed."""
    stated_type = part.media_type
    if not isinstance(part, Link) and part.url.startswith("data:"):
        stated_type = part.url.removeprefix("data:").partition(",")[0]
    plain = stated_type.partition(";")[0].strip().lower()
    return _SAME_TYPES.get(plain, plain) if _MEDIA_TYPE.fullmatch(plain) else ""


def inline_data(part: Media) -> str | None:
    """Return the base64 text, also from a `data:` URL (RFC 2397); None for any other address."""
    head, _, data = part.url.partition(";base64,")
    if part.url:
        return data if head.startswith("data:") and data else None
    return part.data


def text_in(part: Part) -> str | None:
    """Return the text of a part, with the name of its file; None if it is not text."""
    match part:
        case str():
            return part
        case Link():
            pieces = [part.name and f"{_quoted(part.name)}: ", part.uri]
            media_type = media_type_of(part)
            pieces += [f" ({media_type})"] if media_type else []
            pieces += [f": {part.description}"] if part.description else []
            return f"[link] {''.join(pieces)}"
        case File():
            text = _text_of(part)
            label = " ".join(filter(None, (part.name and _quoted(part.name), media_type_of(part))))
            return None if text is None else f"[file {label}]\n{text}"
        case Image():
            return None
        case _:
            assert_never(part)


def _text_of(file: File) -> str | None:
    if file.text or not (file.data or file.url):
        return file.text
    media_type = media_type_of(file)
    is_text = media_type.startswith("text/") or media_type.endswith(("+json", "+xml"))
    if not (is_text or media_type in _TEXT_TYPES) or not inline_data(file):
        return None
    try:
        return file.to_bytes().decode()
    except ValueError:
        return None


def as_texts(parts: Iterable[Part], *, why: str = "not shown here") -> list[str]:
    """Return each part as text, for readers that accept only that: its text, or a note about it."""
    texts = []
    for part in parts:
        text = text_in(part)
        if text is None and isinstance(part, Image | File):
            base64_text, info = inline_data(part), part_info(part)
            name = f" {_quoted(part.name)}" if isinstance(part, File) and part.name else ""
            where = f" at {part.url[:_LONGEST_NAME]}" if base64_text is None else ""
            text = f"[{info.kind}{name}: {info}{where}; {why}]"
        texts.append(text or "")
    return [text for text in texts if text.strip()]


def _quoted(name: str) -> str:
    return canonical_json(encodable(name[:_LONGEST_NAME]))


def _encoded(owner: str, data: bytes) -> str:
    check_type(f"{owner}: data", data, (bytes, bytearray, memoryview), "bytes")
    return b64encode(data).decode()


def _bytes_of(part: Media) -> bytes:
    base64_text = inline_data(part)
    if base64_text is None:
        raise ValueError("it has a URL instead of data, and URLs are not fetched")
    return b64decode(base64_text, validate=True)
