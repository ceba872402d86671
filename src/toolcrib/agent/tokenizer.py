"""Counting tokens: the installed tokenizer that knows a model by its name, tiktoken for OpenAI's.

Rule: nothing is downloaded. tiktoken fetches a vocabulary that its cache lacks, so it is asked for
one only if the cache has the whole file, by the digest that tiktoken itself expects. Otherwise
tokens are estimated, and the reason is given.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias, assert_never

import msgspec

from toolcrib.errors import ContextError
from toolcrib.values.content import File, Image, Link, Part, inline_data, text_in
from toolcrib.values.definition import HasDefinition
from toolcrib.values.message import Message

Count: TypeAlias = Callable[[str], int]
_PIECE = 10_000
"""How many characters are counted at a time.

tiktoken panics at a million blanks, and takes seconds for a million of one letter. Each piece may
add a token.
"""
_CACHES = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BUILTINS = frozenset(dir(builtins))
TOKEN_BYTES = 3
_MESSAGE_TOKENS = 8
_TOOL_TOKENS = 16
_IMAGE_TOKENS = 1_600
_FILE_BYTES = 40  # bytes of a document in base64 per token
_MOST_BYTES_PER_TOKEN = 16
"""A text with more than this many bytes per token of the window is estimated, not tokenized."""


class Tokenizer(msgspec.Struct, frozen=True):
    """Says how a text's tokens become known: `count`, or None if they are estimated.

    `how` is for error messages, and `why` for the log.
    """

    count: Count | None
    how: str
    why: str


def own_tokenizer(count: Count | None) -> Tokenizer:
    """Return an application's own tokenizer, or an estimate."""
    if count is None:
        return _estimate("no count= was given")
    return Tokenizer(count, "counted", "count= was given")


def installed_tokenizer(models: Sequence[str]) -> Tokenizer:
    """Return an installed tokenizer that counts as all these models do, otherwise an estimate."""
    try:
        library = import_module("tiktoken")
        registry = import_module("tiktoken.registry")
    except ImportError:
        return _estimate("tiktoken is not installed")
    try:
        names = {library.encoding_name_for_model(each.rpartition("/")[2]) for each in models}
    except KeyError:
        return _estimate("tiktoken does not know the model")
    if len(names) != 1:
        return _estimate("the models count in different ways")
    (name,) = names
    try:
        reason = _why_missing(registry, name)
        if reason:
            return _estimate(f"{reason}, and nothing is downloaded")
        encoding = library.get_encoding(name)
    except Exception as raised:  # noqa: BLE001  such as a failing plugin: an estimate will do
        return _estimate(f"tiktoken has failed ({type(raised).__name__})")

    def count(text: str) -> int:
        pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
        return sum(len(encoding.encode_ordinary(piece)) for piece in pieces)

    return Tokenizer(count, "counted by tiktoken", f"tiktoken has {name}")


def _estimate(why: str) -> Tokenizer:
    return Tokenizer(None, "estimated", why)


def _why_missing(registry: Any, name: str) -> str:
    """Return why an encoding is unavailable; "" if tiktoken has it, or can make it from its cache.

    The addresses and digests of its files are constants in the code that makes it.
    """
    if name in registry.ENCODINGS:
        return ""
    registry.list_encoding_names()  # finds the constructors
    constants = _constants_of(registry.ENCODING_CONSTRUCTORS, name)
    files = [text for text in constants if "://" in text]
    if not files:
        return f"it is not known from which files tiktoken makes {name}"
    is_cached = _in_cache(files, {text for text in constants if _DIGEST.fullmatch(text)})
    return "" if is_cached else f"tiktoken's cache does not have {name}"


def _constants_of(makers: Mapping[str, Any], name: str) -> list[str]:
    """Return the strings in the code that makes an encoding, and in encodings that it calls.

    For example `o200k_harmony` calls `o200k_base`. The list is empty if any of the code has no
    address and calls something else, which may fetch a file.
    """
    names, constants = [name], list[str]()
    for each in names:
        code = getattr(makers.get(each), "__code__", None)
        called = set(getattr(code, "co_names", ()))
        strings = [text for text in getattr(code, "co_consts", ()) if isinstance(text, str)]
        if not (
            any("://" in text for text in strings) or (called and called <= {*makers, *_BUILTINS})
        ):
            return []
        constants += strings
        names += sorted(called.intersection(makers).difference(names))
    return constants


def _in_cache(files: Iterable[str], digests: set[str]) -> bool:
    folders = [os.environ[name] for name in _CACHES if name in os.environ]
    folder = folders[0] if folders else str(Path(tempfile.gettempdir(), "data-gym-cache"))
    if not folder:  # set empty, tiktoken caches nothing
        return False
    for address in files:
        key = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()  # named by tiktoken
        try:
            content = Path(folder, key).read_bytes()
        except OSError:
            return False
        if hashlib.sha256(content).hexdigest() not in digests:
            return False
    return True


# Counting or estimating tokens.


class Meter:
    """Measures strings and messages in tokens, counted or estimated."""

    def __init__(self, tokenizer: Tokenizer, window: int) -> None:
        self._count, self.how = tokenizer.count, tokenizer.how
        self._max_bytes = window * _MOST_BYTES_PER_TOKEN

    def text(self, text: str) -> int:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if self._count is None or size > self._max_bytes:
            return size // TOKEN_BYTES + 1 if size else 0
        return _counted(self._count, text)

    def message(self, message: Message) -> int:
        """Return the tokens of a message; if larger, what its provider wants back counts."""
        tokens = self.text(message.content)
        for call in message.tool_calls:
            tokens += self.text(call.name) + self.text(call.arguments) + _MESSAGE_TOKENS
        if message.provider_state is not None:
            tokens = max(tokens, self.json(message.provider_state.data))
        parts = sum(map(self.part, message.parts))
        return _MESSAGE_TOKENS + tokens + parts + _IMAGE_TOKENS * len(message.images)

    def json(self, data: object) -> int:
        try:
            text = msgspec.json.encode(data).decode()
        except (TypeError, ValueError, RecursionError):  # the wire refuses it, or fixes it
            text = repr(data)
        return self.text(text)

    def part(self, part: Part) -> int:
        """Return the tokens of a part; a text file counts as text, however it is stored."""
        match part:
            case Image():
                return _IMAGE_TOKENS
            case str() | Link() | File():
                text = text_in(part)
                if text is None and isinstance(part, File):
                    return len(inline_data(part) or "") // _FILE_BYTES
                return self.text(text or "")
            case _:
                assert_never(part)

    def tool(self, offered: HasDefinition) -> int:
        definition = offered.get_definition()
        schema = definition.input_schema_json or ""
        tokens = self.text(definition.name) + self.text(definition.description) + self.text(schema)
        return tokens + _TOOL_TOKENS


_NOT_COUNTED = (
    "ContextOptions(count=…) {}; it must return the tokens of any text, an int of at least 0"
)


def _counted(count: Count, text: str) -> int:
    """Return the tokens of a text by the application's own tokenizer. Raises ContextError."""
    try:
        tokens: Any = count(text)
    except Exception as raised:
        raise ContextError(_NOT_COUNTED.format(f"raised {type(raised).__name__}")) from raised
    if not isinstance(tokens, SupportsIndex):
        raise ContextError(_NOT_COUNTED.format(f"returned a {type(tokens).__name__}"))
    if index(tokens) < 0:
        raise ContextError(_NOT_COUNTED.format("returned less than 0"))
    return index(tokens)
