"""A cassette's file: JSON that people read, review and mend.

What is written is what is read. A body is kept byte by byte, as text in lines where it is UTF-8, else
as base64; `chunks` are the lengths (bytes) of the pieces in which it came, left out where it came in
one piece.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from toolcrib.errors import SourceError
from toolcrib.storage import create_private, mode_of
from toolcrib.values.json import Veiled

_VERSION = 1
_ANEW = "record it anew"
_LINE = re.compile(r"[^\n]*\n+|[^\n]+")


class Asked(
    Veiled,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A request without its headers. `body` is its JSON; `base64` what is none."""

    veiled: ClassVar[tuple[str, ...]] = ("url", "body", "base64")

    method: str
    url: str
    body: Any = None
    base64: str = ""


class Answer(
    Veiled,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A response. `error` is how its connection broke, and `retryable` whether trying again may help;
    `left` says that its reader went away, `delimited` whether its body said where it ends.
    """

    veiled: ClassVar[tuple[str, ...]] = ("headers", "text", "base64")

    status: int
    headers: dict[str, str] = {}
    text: list[str] = []
    base64: str = ""
    chunks: list[int] = []
    error: str = ""
    retryable: bool = True
    left: bool = False
    delimited: bool = True

    @staticmethod
    def of(status: int, headers: dict[str, str], chunks: list[bytes], **more: Any) -> Answer:
        """The answer with this body; `more` are the other members."""
        body = b"".join(chunks)
        sizes = [len(chunk) for chunk in chunks] if len(chunks) > 1 else []
        try:
            text = _LINE.findall(body.decode())
        except UnicodeDecodeError:
            coded = base64.b64encode(body).decode()
            return Answer(status=status, headers=headers, base64=coded, chunks=sizes, **more)
        return Answer(status=status, headers=headers, text=text, chunks=sizes, **more)

    def pieces(self) -> list[bytes]:
        """The body in the pieces in which it came. Raises ValueError where that cannot be."""
        if self.text and self.base64:
            raise ValueError("a body is either text or base64")
        body = "".join(self.text).encode() or base64.b64decode(self.base64, validate=True)
        if not self.chunks:
            return [body] if body else []
        if sum(self.chunks) != len(body) or min(self.chunks) < 1:
            raise ValueError(
                f"its chunks measure {sum(self.chunks)} bytes and its body {len(body)}; without "
                "`chunks` it comes in one piece"
            )
        ends = itertools.accumulate(self.chunks, initial=0)
        return [body[start:end] for start, end in itertools.pairwise(ends)]


class Exchange(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A request, and its answer or the `error` that there was instead of one."""

    request: Asked
    response: Answer | None = None
    error: str = ""
    retryable: bool = True


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    toolcrib_cassette: int
    exchanges: list[Exchange]


def read(path: Path) -> list[Exchange]:
    """The exchanges in a file. Raises SourceError for one that cannot be read or is no cassette."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
        version = data.get("toolcrib_cassette") if isinstance(data, dict) else None
        if isinstance(version, int) and version > _VERSION:
            raise SourceError(
                f"{path} was recorded by a newer toolcrib: its format is {version}, and this one "
                f"reads {_VERSION}. Upgrade toolcrib, or {_ANEW}"
            )
        exchanges = msgspec.convert(data, _File).exchanges
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, not in this form
        raise SourceError(f"{path} is no cassette: {error}. Mend it, or {_ANEW}") from None
    for at, exchange in enumerate(exchanges):
        _check(path, at, exchange)
    return exchanges


def _check(path: Path, at: int, exchange: Exchange) -> None:
    answer = exchange.response
    try:
        if (answer is None) is (not exchange.error):
            raise ValueError("it needs either a response or an error")
        urlsplit(exchange.request.url)
        if answer is not None:
            answer.pieces()
    except (ValueError, binascii.Error) as error:
        raise SourceError(
            f"{path} is no cassette: $.exchanges[{at}]: {error}. Mend it, or {_ANEW}"
        ) from None


def check_writable(path: Path) -> None:
    """Raises SourceError where `write` could not put a file. Nothing is changed."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SourceError(f"{path} cannot be written: no file can be put there")


def write(path: Path, exchanges: list[Exchange]) -> None:
    """Put them in the file, all or nothing: until they are whole, the old file stands.

    Raises SourceError where that cannot be written.
    """
    data = {"toolcrib_cassette": _VERSION, "exchanges": msgspec.to_builtins(exchanges)}
    text = json.dumps(data, ensure_ascii=False, indent=1)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        text = json.dumps(data, indent=1)  # half of a surrogate pair has no UTF-8
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with create_private(aside, mode=mode_of(path)) as file:
                file.write(f"{text}\n".encode())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise SourceError(f"{path} cannot be written ({error.strerror})") from None
