"""`Query`: a request in the form that scorers read, whatever it was given as.

Rule: a scorer sees only text and names, which are already cut to a fixed length, and knows its
deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from time import monotonic
from typing import Any, Literal

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.words import MAX_CHARS, clip, fields, spaced_name, words
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import encodable
from toolcrib.values.message import ChatRequest, Message
from toolcrib.values.typed import names_wrong_types

# Conversations in any form: who said what, and which tools were called.
#
# Rule: only the user's text is the request. System text, tool results and a model's text are not.
# From a model's turns, only the names of the tools that it called count.

_MAX_TURNS = 256
_USER = frozenset({"user", "human"})
_ROLES = _USER | {"assistant", "model", "ai", "system", "developer", "tool", "function"}
# The members of a request body that hold its conversation.
_CONVERSATION_MEMBERS = ("messages", "contents", "input")
_TEXT_TYPES = (None, "text", "input_text")


def _conversation_of(value: object) -> tuple[list[str], list[str]] | None:
    """Return the user's turns and the names of the called tools, both in order and with
    repetitions; None for anything but a ChatRequest, a message, or a list of messages or texts.

    Messages are `Message` or objects `{role, content | parts}` in the form of OpenAI, Anthropic,
    Gemini, Mistral, Ollama, Cohere and Bedrock, or dumped from an SDK's model class. A list of
    texts is what the user said. The last 256 turns are read.
    """
    turns = _turns(value)
    if turns is None:
        return None
    user_turns: list[str] = []
    called_names: list[str] = []
    for turn in turns:
        if isinstance(turn, Message):
            text = turn.text if turn.by_user else ""
            called_names += [call.name for call in turn.tool_calls]
        elif isinstance(turn, str):
            text = turn
        else:
            text = " ".join(_texts(_content(turn))) if turn.get("role") in _USER else ""
            called_names += _called_names(turn)
        if text.strip():
            user_turns.append(text)
    return user_turns, called_names


def _turns(value: object) -> list[Any] | None:
    if isinstance(value, ChatRequest):
        return list(value.messages[-_MAX_TURNS:])
    if isinstance(value, list | tuple):
        turns = [_dumped(turn) for turn in value[-_MAX_TURNS:]]
        if turns and all(isinstance(turn, str) for turn in turns):
            return turns
        has_message = any(isinstance(turn, Message) or _has_role(turn) for turn in turns)
        return turns if has_message and all(map(_is_turn, turns)) else None
    value = _dumped(value)
    if isinstance(value, Message) or _has_role(value):
        return [value]
    return _conversation_in(value) if isinstance(value, Mapping) else None


def _conversation_in(body: Mapping[Any, Any]) -> list[Any] | None:
    """Return the conversation in a request body."""
    for name in _CONVERSATION_MEMBERS:
        member = body.get(name)
        if isinstance(member, str) and name == "input" and "model" in body:
            return [member]
        if isinstance(member, list | tuple) and not all(isinstance(turn, str) for turn in member):
            turns = [_dumped(turn) for turn in member[-_MAX_TURNS:]]
            return _turns([*map(_as_user, turns)] if name == "contents" else turns)
    return None


def _as_user(turn: Any) -> Any:
    """Add the role `user` where there is none, as in Gemini's form."""
    return {"role": "user", **turn} if isinstance(turn, Mapping) and "parts" in turn else turn


def _dumped(turn: Any) -> Any:
    """Return a pydantic model, which SDKs use for messages, as its dictionary."""
    if isinstance(turn, type) or not callable(getattr(turn, "model_dump", None)):
        return turn
    try:
        return turn.model_dump()
    except Exception:  # noqa: BLE001  in any case it is no message
        return turn


def _has_role(turn: object) -> bool:
    if not isinstance(turn, Mapping):
        return False
    role = turn.get("role")
    return isinstance(role, str) and role in _ROLES and bool({"content", "parts"} & turn.keys())


def _is_turn(turn: object) -> bool:
    """Return whether it may be a part of a conversation. OpenAI Responses has items with a type and
    no role."""
    if isinstance(turn, Mapping):
        role = turn.get("role")
        return (isinstance(role, str) and role in _ROLES) or isinstance(turn.get("type"), str)
    return isinstance(turn, Message)


def _content(turn: Mapping[Any, Any]) -> object:
    return turn.get("content", turn.get("parts"))


def _parts(content: object) -> Sequence[Any]:
    return content if isinstance(content, list | tuple) else [content]


def _texts(content: object) -> Iterator[str]:
    for part in _parts(content):
        text = part.get("text") if isinstance(part, Mapping) else part
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(text, str) and kind in _TEXT_TYPES:
            yield text


def _called_names(turn: Mapping[Any, Any]) -> Iterable[str]:
    """Yield names of tools, from all the places where providers put their calls."""
    calls: list[Any] = [turn] if turn.get("type") == "function_call" else []
    calls += [*_parts(turn.get("tool_calls")), turn.get("function_call")]
    for part in _parts(_content(turn)):
        if isinstance(part, Mapping):
            calls += [part] if part.get("type") == "tool_use" else []
            calls += [part.get(key) for key in ("functionCall", "function_call", "toolUse")]
    for call in calls:
        if isinstance(call, Mapping):
            function = call.get("function")
            name = (function if isinstance(function, Mapping) else call).get("name")
            if isinstance(name, str) and name:
                yield name


# Any value as words, for a request that is neither a text nor a conversation.
#
# Rule: equal values give equal text, no value is too large or too deep, and only the end is cut.

_MAX_VALUES = 10_000


_END = object()
_SENTENCE_WORDS = 4


class _Piece(msgspec.Struct, frozen=True):
    """A text, a key (as words), or another value: a number or a boolean."""

    kind: Literal["text", "key", "value"]
    content: str


def stringified(value: object) -> str:
    """Return a value as words: `{"targetUnit": "euro", "of": [1, 2]}` reads "of: 1, 2, target unit:
    euro".

    Keys are sorted and written as words, each once. None values are left out. If one of the texts
    is a sentence of four words or more, only the texts are read, because everything else is then an
    envelope whose words should not be looked for among the tools. Values without a JSON form are
    read by `str`, whose exceptions are raised.
    """
    pieces, size = [], 0
    for piece in _pieces(value):
        pieces.append(piece)
        size += len(piece.content) + 2
        if size > MAX_CHARS:
            break
    if any(piece.kind == "text" and _is_sentence(piece.content) for piece in pieces):
        pieces = [piece for piece in pieces if piece.kind == "text"]
    text = "".join(f"{p.content}: " if p.kind == "key" else f"{p.content}, " for p in pieces)
    return clip(text[:-2][:MAX_CHARS])


def _is_sentence(text: str) -> bool:
    sentence_words = text.split() if text.isascii() else words(text, stop_words=True)
    return len(sentence_words) >= _SENTENCE_WORDS


def _pieces(value: object) -> Iterator[_Piece]:
    """Yield keys and texts in order. A container is read only once, wherever it occurs, which ends
    cycles."""
    iterators, seen_keys, seen_containers = [iter((value,))], set[str](), dict[int, object]()
    for _ in range(_MAX_VALUES):
        current = next(iterators[-1], _END)
        if current is _END:
            iterators.pop()
            if not iterators:
                return
        elif isinstance(current, _Piece):
            if current.content not in seen_keys:
                seen_keys.add(current.content)
                yield current
        elif isinstance(current, list | tuple | dict | Mapping | AbstractSet):
            if id(current) not in seen_containers:
                # The object is kept, so that no other one can get its id.
                seen_containers[id(current)] = current
                iterators.append(_inside(current))
        elif current is not None:
            leaf = _leaf(current)
            if isinstance(leaf, _Piece):
                yield leaf
            else:
                iterators.append(iter((leaf,)))


def _inside(container: Any) -> Iterator[object]:
    if isinstance(container, list | tuple):
        yield from container
    elif isinstance(container, AbstractSet):
        yield from sorted(container, key=str)
    else:
        for key in sorted(container, key=str):
            value = container[key]
            if value is not None:
                text = str(key)[:MAX_CHARS]
                yield _Piece("key", spaced_name(text) or text)
                yield value


def _leaf(leaf: object) -> Any:
    """Return the piece, or the plain value that it stands for."""
    if isinstance(leaf, str):
        return _Piece("text", leaf[:MAX_CHARS])
    if isinstance(leaf, bytes | bytearray | memoryview):
        return bytes(leaf[:MAX_CHARS]).decode(errors="replace")
    if isinstance(leaf, bool):
        return _Piece("value", "true" if leaf else "false")
    if isinstance(leaf, int | float):  # str refuses integers with thousands of digits
        return _Piece("value", str(leaf) if abs(leaf) < 1e300 else "a number")
    return msgspec.to_builtins(leaf, enc_hook=_plain, str_keys=True)


def _plain(value: Any) -> Any:
    """Convert what msgspec does not know: a pydantic model by its own dump, anything else by `str`."""
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else str(value)


_MAX_EARLIER = 4
_MAX_USED = 64


class Query(msgspec.Struct, frozen=True):
    """Holds what a request asks for.

    `text` is the request, or the user's last turn in a conversation. `earlier` has up to four turns
    before it, the latest first, and `used` the names of the tools that were called in it, the
    latest first. `deadline` is in seconds of `time.monotonic()`. A later answer is of no use, and a
    scorer may give up then.
    """

    text: str
    earlier: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    deadline: float = inf


@names_wrong_types
def query_of(request: object, timeout_ms: float | None = None) -> Query:
    """Return a query from a request in any form.

    A string is the request. In a conversation (a ChatRequest, a `Message`, dictionaries in a
    provider's form, a list of these or of strings) the user's last turn is the request, and system
    text and tool results never are. Anything else is read as words: its sentences, or if there are
    none, all its texts and numbers with their keys. Texts are cut to 16,384 characters, in the
    middle. Raises PickError for an object that cannot be read.
    """
    deadline = inf if timeout_ms is None else monotonic() + timeout_ms / 1000
    if isinstance(request, Query):
        return msgspec.structs.replace(request, deadline=min(deadline, request.deadline))
    if isinstance(request, str):
        return Query(clip(request), deadline=deadline)
    try:
        conversation = _conversation_of(request)
        if conversation is None:
            return Query(stringified(request), deadline=deadline)
    except Exception as error:
        raise PickError(
            f"the input, a {type(request).__name__}, cannot be read ({type(error).__name__}); "
            "give its text"
        ) from error
    user_turns, called_names = conversation
    turns = [clip(turn) for turn in reversed(user_turns[-_MAX_EARLIER - 1 :])]
    used = tuple(dict.fromkeys(encodable(name) for name in reversed(called_names)))[:_MAX_USED]
    return Query(turns[0] if turns else "", tuple(turns[1:]), used, deadline)


# The texts that are embedded for a tool: its definition as plain text.
#
# Rule: a text depends on the definition alone, so each digest has one set of vectors.

_PARAMETER_WEIGHT = 0.3
"""The weight of a tool's parameters, relative to its name and description."""


def parts_of(definition: ToolDefinition) -> list[tuple[float, str]]:
    """Return a tool's texts, each with its weight, for an embedder that adds parts up."""
    texts = fields(definition)
    tags = f" [{texts.tags}]" if texts.tags else ""
    return [
        (1.0, f"{spaced_name(texts.name)}: {texts.description}{tags}"),
        (_PARAMETER_WEIGHT, spaced_name(texts.parameters)),
        (_PARAMETER_WEIGHT, texts.parameter_text),
    ]


def texts_of(definition: ToolDefinition) -> list[str]:
    """Return a tool's texts for any embedder: the description, then the request of each example."""
    texts = fields(definition)
    text = f"{spaced_name(texts.name)}: {texts.description}"
    if texts.parameters:
        text += f" ({spaced_name(texts.parameters)})"
    if texts.tags:
        text += f" [{texts.tags}]"
    return [text, *(example.request for example in definition.examples)]


# The share of a text that an embedder can read, since a model knows the words of some languages
# only.
#
# Rule: only the embedder knows. One that does not say counts as reading everything.

_FOREIGN_LETTER = 0.1


def legible(text: str) -> float:
    """Return the share of a text that a model made for English can read, 0.1 to 1.

    A letter that is not Latin counts a tenth, since such a model knows it only by itself, not in
    its word.
    """
    if text.isascii():
        return 1.0
    letters = [c for c in clip(text) if c.isalpha()]
    latin = sum(c < "\u0250" or "\u1e00" <= c <= "\u1eff" for c in letters)
    return (latin + _FOREIGN_LETTER * (len(letters) - latin)) / len(letters) if letters else 1.0


def part_read(embedder: object, text: str, name: str) -> float:
    """Return the share of a text that the embedder says it reads, 0..1, or 1 if it does not say.

    Raises PickError, which names the embedder, if that raises or is no such number.
    """
    reads = getattr(embedder, "reads", None)
    if not callable(reads):
        return 1.0
    try:
        share = float(reads(text))
    except Exception as error:
        raise PickError(f"embedder {name}: reads raised {type(error).__name__}") from error
    if not 0 <= share <= 1:
        raise PickError(f"embedder {name}: reads gave {share}, not a share from 0 to 1")
    return share
