"""Forms of calls that several families share: JSON, Python, and texts in tags."""

from __future__ import annotations

import msgspec

from toolcrib.wire.text_calls.block import Block, Parameters
from toolcrib.wire.text_calls.cursor import Asking, Cursor, Marks, NoCallError, Sink
from toolcrib.wire.text_calls.literal import json_of, keywords, string, written

_ARGUMENTS = ("arguments", "parameters")
_JSON = msgspec.json.Decoder(msgspec.Raw)


def json_call(cursor: Cursor, block: Block) -> Asking[None]:
    """`{"name": …, "arguments": {…}}`, or with `parameters`; the order is free.

    A `type` and an `id` may be there. In a strict block nothing else may, and the arguments have to
    be an object.
    """
    call = block.call()
    seen: set[str] = set()
    yield from cursor.expect("{")
    while True:
        yield from cursor.space()
        key = yield from string(cursor)
        key = "arguments" if key in _ARGUMENTS else key
        if key in seen or (block.strict and key not in ("name", "arguments", "type", "id")):
            raise NoCallError
        seen.add(key)
        yield from cursor.space()
        yield from cursor.expect(":")
        yield from cursor.space()
        char = yield from cursor.char()
        if key == "name":
            block.named(call, (yield from string(cursor)))
        elif key == "arguments" and (char == "{" or not block.strict):
            yield from cursor.value(call.pieces.append)
        elif key == "id" and char in "\"'":
            call.provider_id = yield from string(cursor)
        elif key == "arguments":
            raise NoCallError
        else:
            yield from cursor.value(_nowhere)
        yield from cursor.space()
        if not (yield from cursor.take(",")):
            break
    yield from cursor.expect("}")
    if not call.name or (block.strict and not call.pieces):
        raise NoCallError


def python_call(cursor: Cursor, block: Block) -> Asking[None]:
    """`name(key="value", n=3)`: arguments by keyword only."""
    name = yield from cursor.name()
    call = block.call(name)
    yield from cursor.expect("(")
    yield from keywords(cursor, call.pieces.append)


def some_calls(cursor: Cursor, block: Block) -> Asking[None]:
    """JSON calls with `;` between them, a list of JSON or Python calls, or one Python call."""
    char = yield from cursor.char()
    if char == "[":
        cursor.at += 1
        yield from _listed(cursor, block)
    elif char != "{":
        yield from python_call(cursor, block)
    else:
        yield from json_call(cursor, block)
        while (yield from then(cursor, ";")):
            yield from json_call(cursor, block)


def object_arguments(cursor: Cursor, sink: Sink) -> Asking[None]:
    """Arguments that are an object for certain."""
    yield from cursor.space()
    if (yield from cursor.char()) != "{":
        raise NoCallError
    yield from cursor.value(sink)


def function_tag(cursor: Cursor, block: Block) -> Asking[None]:
    """The rest of `<function=name>`: a JSON object, or `<parameter=key>` tags, and `</function>`.

    The line breaks next to a value's tags are theirs. A value may hold what closes it, as long as
    nothing comes after that which may follow a value.
    """
    name = yield from cursor.name()
    call = block.call(name)
    yield from cursor.expect(">")
    yield from cursor.space()
    if (yield from cursor.sees("{")):
        yield from cursor.value(call.pieces.append)
    else:
        values = TagValues(block.parameters(name), call.pieces.append)
        while (yield from then(cursor, "<parameter=")):
            key = yield from cursor.key()
            yield from cursor.expect(">")
            value = yield from tag_value(cursor, "</parameter>", ("<parameter=", "</function>"))
            values.add(key, value.removeprefix("\n").removesuffix("\n"))
        values.close()
    yield from cursor.space()
    yield from cursor.expect("</function>")


def tag_value(cursor: Cursor, closer: str, after: tuple[str, ...]) -> Asking[str]:
    """The text before a `closer` that one of `after` comes after."""
    pieces: list[str] = []
    marks = Marks((closer,))
    while True:
        yield from cursor.until(marks, pieces.append)
        spaces = len(pieces)
        pieces.append(closer)
        yield from cursor.space(pieces.append)
        for mark in after:
            if (yield from cursor.sees(mark)):
                return "".join(pieces[:spaces])


class TagValues:
    """The arguments of a call whose values stand as bare text in tags; `sink` takes their JSON."""

    def __init__(self, parameters: Parameters, sink: Sink) -> None:
        self._parameters = parameters
        self._sink = sink
        self._before = "{"

    def add(self, key: str, value: str, *, is_text: bool | None = None) -> None:
        """One argument. `is_text` is whether the tag says that it is a text.

        Where it does not, the schema does: a value is a text wherever a text is allowed, but for
        `null` where that is allowed, too. Any other is JSON, or else a Python literal, or else a
        text: so is one of which the schema says nothing.
        """
        kinds = self._parameters.kinds(key)
        if is_text is None and not ("null" in kinds and value.strip() in ("null", "None")):
            is_text = "string" in kinds
        given = written(value) if is_text else _json(value)
        self._sink(f"{self._before}{written(key)}: {given}")
        self._before = ", "

    def close(self) -> None:
        self._sink("{}" if self._before == "{" else "}")


def _json(text: str) -> str:
    bare = text.strip()
    try:
        _JSON.decode(bare)
    except (ValueError, RecursionError):
        return json_of(bare) or written(text)
    return bare


def _listed(cursor: Cursor, block: Block) -> Asking[None]:
    while True:
        yield from cursor.space()
        is_json = (yield from cursor.char()) == "{"
        yield from (json_call if is_json else python_call)(cursor, block)
        yield from cursor.space()
        if not (yield from cursor.take(",")):
            break
    yield from cursor.expect("]")


def then(cursor: Cursor, mark: str) -> Asking[bool]:
    """Whether `mark` comes next; then it is passed over, with the white space around it."""
    yield from cursor.space()
    there = yield from cursor.take(mark)
    if there:
        yield from cursor.space()
    return there


def _nowhere(_text: str) -> None:
    pass
