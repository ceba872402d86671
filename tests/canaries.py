"""Where the canaries of `test_canaries.py` are planted: for each row a reply of a model, and tools.

Every tool has a text of the row's name; a plant is one call of one of them, or what surrounds it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, NoReturn, Protocol

import orjson
from pydantic import AfterValidator, BaseModel, SecretStr
from pydantic_core import PydanticCustomError

from toolcrib import (
    ALL,
    Approve,
    Ask,
    CallContext,
    Catalog,
    Deny,
    File,
    Image,
    Link,
    Refuse,
    ToolContent,
    ToolError,
    capability,
    tool,
)
from toolcrib.errors import CapabilityError
from toolcrib.hydration import RepairRequest
from toolcrib.testing import call, cut, raw, raw_call
from toolcrib.testing.scripted import ServerTurn
from toolcrib.tools import per_call
from toolcrib.values.decision import Answer
from toolcrib.values.json import JsonObject
from toolcrib.values.record import ToolInvocationRecord

CANARY = "canary-3e7c"
OPEN: JsonObject = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "additionalProperties": True,
}
released = threading.Event()


class Plant(NamedTuple):
    """What the model says, the tools that it has, how they are answered for, and what the runner is
    given besides."""

    turn: ServerTurn
    tools: Any
    answer: Answer | Exception = Approve("grace")
    options: Mapping[str, Any] = MappingProxyType({})


@tool(visible=["saved"])
async def note(text: str, count: int = 0) -> dict[str, str]:
    """Save a text."""
    return {"saved": "yes", "where": "here"}


@tool(visible=["saved"])
async def note_below(text: dict[str, Any]) -> dict[str, str]:
    """Save an object."""
    return {"saved": "yes"}


@tool(visible=ALL, input_schema=OPEN)
async def note_open(**given: Any) -> int:
    """Save anything."""
    return len(given)


@tool(visible=ALL, secret=["pin"])
async def locked(pin: str, count: int = 0) -> bool:
    """Open with a pin."""
    return True


@tool(visible=ALL)
async def locked_by_type(pin: SecretStr) -> bool:
    """Open with a pin."""
    return pin.get_secret_value() == CANARY


class Door(BaseModel):
    pin: SecretStr


@tool(visible=ALL)
async def locked_below(door: Door) -> bool:
    """Open a door."""
    return door.pin.get_secret_value() == CANARY


@tool(visible=ALL, allow_no_schema=True, no_schema_mode="full")
async def note_anything(**given: Any) -> int:
    """Save anything, and check nothing."""
    return len(given)


def _refuse(text: str) -> str:
    raise ValueError(f"no such text: {text}")


@tool(visible=ALL)
async def choosy(text: Annotated[str, AfterValidator(_refuse)]) -> bool:
    """Take no text."""
    return True


def _refuse_oddly(text: str) -> NoReturn:
    raise PydanticCustomError(text, text)


@tool(visible=ALL)
async def odd(text: Annotated[str, AfterValidator(_refuse_oddly)]) -> bool:
    """Take no text, in words of its own."""
    return True


@tool(visible=ALL)
@dataclass(frozen=True)
class Choosy:
    """Take no text, and say why."""

    text: str

    def __post_init__(self) -> None:
        _refuse(self.text)

    async def run(self) -> bool:
        return True


def gives(result: Any, **options: Any) -> Any:
    """A tool with this result."""

    @tool(**({"visible": ["saved"], "output_schema": {}} | options))
    async def given() -> Any:
        """Give it."""
        return result

    return given


class _Odd:
    """Whatever is asked of it, it raises."""

    def __repr__(self) -> NoReturn:
        raise ValueError(CANARY)

    __str__ = __iter__ = __hash__ = __bool__ = __repr__

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError(CANARY)


class _Dying:
    def __del__(self) -> None:
        raise ValueError(CANARY)


@tool(visible=ALL, output_schema={})
async def dies() -> Any:
    """Give what raises when it goes away."""
    return _Dying()


@tool(visible=ALL)
async def raises() -> bool:
    """Raise."""
    raise ValueError(CANARY)


@tool(visible=ALL)
def raises_in_thread() -> bool:
    """Raise."""
    raise ValueError(CANARY)


@tool(visible=ALL, subprocess=True)
def raises_in_process() -> bool:
    """Raise, and say so."""
    print(CANARY, flush=True)  # noqa: T201  it goes nowhere
    raise ValueError(CANARY)


@tool(visible=ALL)
class RaisesInClass:
    """Raise."""

    def __init__(self, text: str) -> None: ...

    async def run(self) -> bool:
        raise ValueError(CANARY)


@tool(visible=ALL)
async def raises_in_parts() -> AsyncIterator[int]:
    """Raise after the first part."""
    yield 1
    raise ValueError(CANARY)


@tool(visible=ALL)
async def raises_a_group() -> bool:
    """Raise two."""
    raise BaseExceptionGroup("two", [ValueError(CANARY), SystemExit(CANARY)])


@tool(visible=ALL)
async def raises_with_context() -> bool:
    """Raise one because of the other."""
    error = ValueError("harmless")
    error.add_note(CANARY)
    try:
        raise KeyError(CANARY)
    except KeyError as cause:
        raise error from cause


@tool(visible=ALL)
async def raises_safely_with_context() -> bool:
    """Say what is safe, because of what is not."""
    try:
        raise KeyError(CANARY)
    except KeyError:
        raise ToolError("there is no such order")  # noqa: B904  an author may forget it


@tool(visible=ALL, timeout=0.02)
async def raises_when_stopped() -> bool:
    """Raise in place of being cancelled."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError(CANARY) from None
    return True


@tool(visible=ALL, timeout=0.02)
def raises_too_late() -> bool:
    """Raise when nobody waits for it any more."""
    released.wait(10)
    raise ValueError(CANARY)


@tool(visible=ALL)
async def says_safely() -> bool:
    """Fail, and say why."""
    raise ToolError(CANARY)


@tool(visible=ALL)
async def says_to_the_model() -> bool:
    """Fail, and say why."""
    raise ToolError("no", model_text=CANARY)


@tool(visible=ALL)
async def tells(ctx: CallContext) -> bool:
    """Tell of its progress."""
    ctx.progress({"done": CANARY})
    return True


@tool(visible=ALL)
def tells_in_thread(ctx: CallContext) -> bool:
    """Tell of its progress."""
    ctx.progress({"done": CANARY})
    return True


def streams(part: Any) -> Any:
    @tool(visible=["saved"])
    async def streamed() -> AsyncIterator[dict[str, str]]:
        """Give parts."""
        yield part
        yield {"saved": "yes"}

    return streamed


@capability
class Shop(Protocol):
    error: Exception

    async def order(self) -> int: ...


class _Shop:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def order(self) -> int:
        raise self.error


@tool(visible=ALL)
async def orders(shop: Shop) -> int:
    """Order."""
    return await shop.order()


@tool(visible=ALL)
def orders_in_thread(shop: Shop) -> int:
    """Order, in vain."""
    raise shop.error


@tool(visible=ALL)
async def needs_shop(shop: Shop) -> int:
    """Need a shop and do nothing with it."""
    return 1


def shop_made() -> NoReturn:
    raise ValueError(CANARY)


@contextmanager
def shop_closed() -> Iterator[_Shop]:
    yield _Shop(ValueError())
    raise ValueError(CANARY)


def fails(*_: Any) -> NoReturn:
    raise ValueError(CANARY)


def asks(*_: Any) -> Ask:
    return Ask(CANARY, "mine")


def denies(*_: Any) -> Deny:
    return Deny(CANARY, "mine")


class Repairs:
    """Makes this of every text, or raises it."""

    name = "mender"

    def __init__(self, made: str | Exception) -> None:
        self._made = made

    async def __call__(self, _request: RepairRequest) -> str:
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


class FailingSink:
    def write(self, _record: ToolInvocationRecord) -> None:
        raise ValueError(CANARY)


class FullSink:
    def write(self, _record: ToolInvocationRecord) -> None:
        raise OSError("the disk is full")


def _with_raw(_body: Any) -> ServerTurn:
    """A reply whose payload holds more than anybody asked for."""
    function = {"name": "note", "arguments": '{"text": "x"}', "x_more": CANARY}
    made = {"index": 0, "id": "c1", "type": "function", "function": function, "x_more": CANARY}
    choice = {"index": 0, "delta": {"tool_calls": [made], "x_more": CANARY}, "x_more": CANARY}
    first = {"id": CANARY, "x_more": CANARY, "choices": [choice]}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return raw(
        b"".join(b"data: %s\n\n" % orjson.dumps(c) for c in (first, last)) + b"data: [DONE]\n\n"
    )


def _with_id(_body: Any) -> ServerTurn:
    made = {"index": 0, "id": CANARY, "type": "function"}
    made["function"] = {"name": "note", "arguments": '{"text": "x"}'}
    choice = {"index": 0, "delta": {"tool_calls": [made]}, "finish_reason": "tool_calls"}
    return raw(b"data: %s\n\ndata: [DONE]\n\n" % orjson.dumps({"choices": [choice]}))


_ERROR = b'data: {"error": {"message": "%s"}}\n\n' % CANARY.encode()
TWICE = raw_call("note", orjson.dumps(f'{{"text": "{CANARY}"}}').decode())
DOUBLE = f'{{"text": "x", "text": "{CANARY}"}}'
WELL = call("note", text="x")
BROKEN = raw_call("note", "{text: x}")
CUT = cut([raw_call("note", f'{{"text": "{CANARY}{"." * 40}"}}')])
CUT_UNDECLARED = cut([raw_call("note", f'{{"{CANARY}": "{CANARY}{"." * 60}"}}')])
RESULT = {"properties": {"saved": {"type": "integer"}}, "additionalProperties": False}
SAID = {"saved": "yes"}
SHOPS = Catalog([orders])
PICTURE = Image("image/png", "aGk=")

PLANTS: dict[str, Plant] = {
    "argument, declared": Plant(call("note", text=CANARY), [note]),
    "below a declared one": Plant(call("note_below", text={CANARY: 1}), [note_below]),
    "argument, undeclared": Plant(call("note_open", other=CANARY), [note_open]),
    "argument, no schema": Plant(call("note_anything", text=CANARY), [note_anything]),
    "argument, encoded twice": Plant(TWICE, [note]),
    "name of an undeclared one": Plant(call("note_open", **{CANARY: 1}), [note_open]),
    "secret argument": Plant(call("locked", pin=CANARY), [locked]),
    "SecretStr argument": Plant(call("locked_by_type", pin=CANARY), [locked_by_type]),
    "SecretStr below one": Plant(call("locked_below", door={"pin": CANARY}), [locked_below]),
    "rejected: wrong type": Plant(call("note", text="x", count=CANARY), [note]),
    "rejected: undeclared name": Plant(call("note", text="x", **{CANARY: 1}), [note]),
    "rejected: undeclared": Plant(call("note", text="x", other=CANARY), [note]),
    "rejected: name below": Plant(call("note", text={CANARY: 1}), [note]),
    "rejected: a secret": Plant(call("locked", pin=CANARY, count="x"), [locked]),
    "rejected: a validator": Plant(call("choosy", text=CANARY), [choosy]),
    "rejected: its own error": Plant(call("odd", text=CANARY), [odd]),
    "rejected: a constructor": Plant(call("Choosy", text=CANARY), [Choosy]),
    "malformed, undeclared": Plant(raw_call("note", f'{{"x": "{CANARY}", oops'), [note]),
    "malformed, after a fault": Plant(raw_call("note", f'{{"text": oops "{CANARY}"'), [note]),
    "malformed, before a fault": Plant(raw_call("note", f'{{"text": "{CANARY}" oops'), [note]),
    "malformed, a name twice": Plant(raw_call("note", DOUBLE), [note]),
    "cut call, declared": Plant(CUT, [note]),
    "cut call, undeclared": Plant(CUT_UNDECLARED, [note]),
    "invented tool, a name": Plant(raw_call(CANARY, "{}"), [note]),
    "invented tool, no name": Plant(raw_call(f"{CANARY}!", "{}"), [note]),
    "its arguments": Plant(call("nobody", text=CANARY), [note]),
    "provider's id of a call": Plant(_with_id, [note]),
    "provider's payload": Plant(_with_raw, [note]),
    "result field, shown": Plant(call("given"), [gives({"saved": CANARY})]),
    "result field, hidden": Plant(call("given"), [gives(SAID | {"token": CANARY})]),
    "name of a hidden field": Plant(call("given"), [gives(SAID | {CANARY: 1})]),
    "hidden from the model": Plant(
        call("given"), [gives({"saved": CANARY, "other": 1}, model_visible=["other"])]
    ),
    "hidden from both": Plant(
        call("given"), [gives(SAID | {"token": CANARY}, model_visible=["saved"])]
    ),
    "result of visible=()": Plant(call("given"), [gives({"saved": CANARY}, visible=())]),
    "result, a SecretStr": Plant(call("given"), [gives(SecretStr(CANARY), visible=ALL)]),
    "result, not by its schema": Plant(
        call("given"), [gives({"saved": CANARY, CANARY: CANARY}, output_schema=RESULT)]
    ),
    "result, too large": Plant(
        call("given"), [gives({"saved": CANARY * 99})], options={"max_result_bytes": 99}
    ),
    "result, no JSON": Plant(call("given"), [gives({"saved": CANARY, "x": float("nan")})]),
    "content, a text": Plant(call("given"), [gives([CANARY, PICTURE], visible=ALL)]),
    "content, an address": Plant(
        call("given"), [gives(Image(url=f"https://a.test/{CANARY}"), visible=ALL)]
    ),
    "content, a file of text": Plant(
        call("given"), [gives(File("text/plain", text=CANARY, name=CANARY), visible=ALL)]
    ),
    "content, a file's name": Plant(
        call("given"), [gives(File("audio/wav", "aGk=", name=CANARY), visible=ALL)]
    ),
    "content, a link": Plant(call("given"), [gives(Link(CANARY, CANARY, CANARY), visible=ALL)]),
    "content, its type": Plant(call("given"), [gives(File(CANARY, "aGk="), visible=ALL)]),
    "content, no base64": Plant(
        call("given"), [gives(ToolContent(SAID, [Image("image/png", CANARY)]), visible=ALL)]
    ),
    "content, in a value": Plant(
        call("given"), [gives({"saved": Image("image/png", CANARY)}, visible=ALL)]
    ),
    "content, hidden": Plant(
        call("given"), [gives([CANARY, PICTURE], visible=ALL, model_visible=())]
    ),
    "content, streamed": Plant(call("streamed"), [streams([CANARY, PICTURE])]),
    "exception of its __repr__": Plant(call("given"), [gives({"saved": _Odd()})]),
    "exception, async": Plant(call("raises"), [raises]),
    "exception, thread": Plant(call("raises_in_thread"), [raises_in_thread]),
    "exception, call's thread": Plant(
        call("orders_in_thread"),
        Catalog([orders_in_thread]).bind({Shop: per_call(lambda: _Shop(ValueError(CANARY)))}),
    ),
    "exception, subprocess": Plant(call("raises_in_process"), [raises_in_process]),
    "exception, class": Plant(call("RaisesInClass", text="x"), [RaisesInClass]),
    "exception, streaming": Plant(call("raises_in_parts"), [raises_in_parts]),
    "exception, a group": Plant(call("raises_a_group"), [raises_a_group]),
    "exception, when cancelled": Plant(call("raises_when_stopped"), [raises_when_stopped]),
    "exception, too late": Plant(call("raises_too_late"), [raises_too_late]),
    "its cause and notes": Plant(call("raises_with_context"), [raises_with_context]),
    "context of a ToolError": Plant(
        call("raises_safely_with_context"), [raises_safely_with_context]
    ),
    "ToolError, safe text": Plant(call("says_safely"), [says_safely]),
    "ToolError, model's text": Plant(call("says_to_the_model"), [says_to_the_model]),
    "capability's factory": Plant(
        call("needs_shop"), Catalog([needs_shop]).bind({Shop: per_call(shop_made)})
    ),
    "capability's method": Plant(call("orders"), SHOPS.bind({Shop: _Shop(ValueError(CANARY))})),
    "capability's closing": Plant(
        call("needs_shop"), Catalog([needs_shop]).bind({Shop: per_call(shop_closed)})
    ),
    "CapabilityError": Plant(call("orders"), SHOPS.bind({Shop: _Shop(CapabilityError(CANARY))})),
    "progress": Plant(call("tells"), [tells]),
    "progress, thread": Plant(call("tells_in_thread"), [tells_in_thread]),
    "part, shown": Plant(call("streamed"), [streams({"saved": CANARY})]),
    "part, hidden": Plant(call("streamed"), [streams(SAID | {"token": CANARY})]),
    "policy's exception": Plant(WELL, [note], options={"policy": [fails]}),
    "policy's reason to ask": Plant(WELL, [note], options={"policy": [asks]}),
    "policy's reason to deny": Plant(WELL, [note], options={"policy": [denies]}),
    "approver's exception": Plant(WELL, [note], ValueError(CANARY)),
    "repairer's exception": Plant(
        BROKEN, [note], options={"repairer": Repairs(ValueError(CANARY))}
    ),
    "repaired, declared": Plant(
        BROKEN, [note], options={"repairer": Repairs(f'{{"text": "{CANARY}"}}')}
    ),
    "repaired, still wrong": Plant(
        BROKEN, [note], options={"repairer": Repairs(f'{{"{CANARY}": "{CANARY}"}}')}
    ),
    "edited, declared": Plant(WELL, [note], Approve("grace", {"text": CANARY})),
    "edited, undeclared": Plant(
        call("note_open", text="x"), [note_open], Approve("grace", {"other": CANARY})
    ),
    "edited, secret": Plant(call("locked", pin="1"), [locked], Approve("grace", {"pin": CANARY})),
    "edited, not valid": Plant(WELL, [note], Approve("grace", {CANARY: CANARY})),
    "who approves": Plant(WELL, [note], Approve(CANARY)),
    "who refuses": Plant(WELL, [note], Refuse("no", CANARY)),
    "reason to refuse": Plant(WELL, [note], Refuse(CANARY, "grace")),
    "provider's error": Plant(raw(_ERROR), [note]),
    "sink's exception": Plant(WELL, [note], options={"sinks": [FailingSink()]}),
    "exception of its __del__": Plant(call("dies"), [dies]),
}
