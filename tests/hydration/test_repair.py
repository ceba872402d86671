"""One repair, judged whole, both texts kept; what is no matter of repair comes back as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from named import named
from pydantic import AfterValidator
from rows import each_row

from toolcrib import ALL, Catalog, ErrorCode, Hydrated, Offer, Rejected, ToolCall, hydrate, tool
from toolcrib.errors import Stage, ToolcribError
from toolcrib.hydration import RepairRequest, repair, repairable
from toolcrib.hydration.parse import MAX_BYTES
from toolcrib.tools import Tool
from toolcrib.values.call import HydrationError
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject

CANARY = "CANARY_9b1d"
GOOD = '{"text": "x", "times": 2}'


def no_canary(value: str) -> str:
    if CANARY in value:
        raise ValueError(value)
    return value


@tool(visible=ALL)
def write(text: Annotated[str, AfterValidator(no_canary)], times: int = 1) -> None:
    """Write."""


@tool(visible=ALL, allow_no_schema=True, no_schema_mode="human-approval")
def unchecked(**anything: Any) -> None:
    """Have no schema."""


CATALOG = Catalog([write, unchecked])


class Fixed:
    """Gives the same text whatever it is asked, and keeps what it was asked."""

    name = "fixed"

    def __init__(self, gives: Any) -> None:
        self.gives = gives
        self.asked: list[RepairRequest] = []

    async def __call__(self, request: RepairRequest, /) -> str | None:
        self.asked.append(request)
        await asyncio.sleep(0)
        if isinstance(self.gives, BaseException):
            try:
                raise ValueError(request.call.arguments)
            except ValueError:
                raise self.gives from ValueError(request.call.arguments)
        given: str | None = self.gives
        return given


def rejected(text: str, *, name: str = "write", where: Offer | Catalog = CATALOG) -> Rejected:
    result = hydrate(ToolCall("c1", name, text, provider_id="p1"), where)
    assert isinstance(result, Rejected)
    return result


SENT = [
    pytest.param("{'text': x}", id="parse"),
    pytest.param('{"text": 1}', id="validate"),
    pytest.param(json.dumps({"text": CANARY}), id="instantiate"),
]


@pytest.mark.parametrize("sent", SENT)
async def test_a_repaired_call_may_run_and_both_texts_are_told(sent: str) -> None:
    before = rejected(sent)
    repairer = Fixed(GOOD)
    result = await repair(before, CATALOG, repairer)
    assert isinstance(result, Hydrated)
    assert result.call is before.call
    assert result.arguments == {"text": "x", "times": 2}
    assert result.tool.arguments == {"text": "x", "times": 2}
    told = result.provenance
    assert (told.arguments, told.repaired_arguments) == (sent, GOOD)
    assert (told.repaired, told.repaired_by, told.validated) == (True, "fixed", True)
    assert (told.provider_id, told.parsed) == ("p1", {"text": "x", "times": 2})
    assert told.seconds > before.provenance.seconds
    (request,) = repairer.asked
    assert request == RepairRequest(before.call, write.definition, before.errors)


@each_row("sent", SENT)
@each_row(
    ("given", "still"),
    [
        ('{"text": 2}', [(Stage.VALIDATE, "/text")]),
        ("{}", [(Stage.VALIDATE, "")]),
        (json.dumps({"text": CANARY}), [(Stage.INSTANTIATE, "/text")]),
        (json.dumps({"text": "x", CANARY: 1}), [(Stage.VALIDATE, "/*")]),
        # not read: what was wrong at first is what the model can do something about
        (f"{{{CANARY}", None),
        (f'{{"text": "{CANARY}", "text": "x"}}', None),
        ("\ud800", None),
        ('{"text": "' + "x" * MAX_BYTES + '"}', None),
        ("[" * 1000, None),
    ],
    ids=named,
)
async def test_a_repair_that_fails(
    sent: str, given: str, still: list[tuple[Stage, str]] | None
) -> None:
    before = rejected(sent)
    result = await repair(before, CATALOG, Fixed(given))
    assert isinstance(result, Rejected)
    first, *rest = result.errors
    assert first.code is ErrorCode.INVALID_REPAIR
    assert first.message == ErrorCode.INVALID_REPAIR.info.text
    if still is None:
        assert tuple(rest) == before.errors
    else:
        assert [(e.stage, e.path) for e in rest] == still
    assert CANARY not in repr(result.errors)
    assert (result.call, result.definition) == (before.call, before.definition)
    told = result.provenance
    assert (told.arguments, told.repaired_arguments) == (sent, given)
    assert (told.repaired, told.repaired_by, told.validated) == (True, "fixed", False)


@each_row(
    "given",
    [ValueError(CANARY), SystemExit(CANARY), BaseException(CANARY), 7, {"text": "x"}, b"{}", True],
    ids=lambda x: type(x).__name__,
)
async def test_a_repairer_that_raises_or_gives_no_text(given: Any) -> None:
    before = rejected(json.dumps({"text": CANARY}))
    result = await repair(before, CATALOG, Fixed(given))
    assert isinstance(result, Rejected)
    assert [e.code for e in result.errors] == [
        ErrorCode.INVALID_REPAIR,
        ErrorCode.INVALID_ARGUMENTS,
    ]
    assert CANARY not in repr(result.errors)
    told = result.provenance
    assert (told.repaired, told.repaired_arguments, told.repaired_by) == (False, None, "fixed")
    assert not repairable(result)


async def test_an_interrupt_goes_on_and_carries_no_arguments() -> None:
    # awaited by hand: a task would be broken off by it
    raised = KeyboardInterrupt()
    going = repair(rejected(f'{{"text": {CANARY}'), CATALOG, Fixed(raised)).__await__()
    next(going)
    with pytest.raises(KeyboardInterrupt) as caught:
        next(going)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


class Waiting:
    """Handles what holds the arguments while it is cancelled."""

    name = "waiting"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __call__(self, request: RepairRequest) -> str:
        try:
            raise ValueError(request.call.arguments)
        except ValueError:
            self.asked.set()
            await asyncio.Event().wait()
        return GOOD


async def test_a_cancellation_goes_on_and_carries_no_arguments() -> None:
    repairer = Waiting()

    async def stopped() -> asyncio.CancelledError:
        with pytest.raises(asyncio.CancelledError) as caught:
            await repair(rejected(f'{{"text": {CANARY}'), CATALOG, repairer)
        return caught.value

    task = asyncio.ensure_future(stopped())
    await repairer.asked.wait()
    task.cancel()
    told = await task
    assert told.__context__ is None
    assert told.__cause__ is None


async def unnamed(_request: RepairRequest) -> str:
    return GOOD


class Waits:
    name = "waits"

    def __call__(self, _request: RepairRequest) -> str:
        return GOOD


class Renamed(Fixed):
    def __init__(self, name: Any) -> None:
        super().__init__(GOOD)
        self.name = name


class NameRaises(Fixed):
    @property
    def name(self) -> str:  # type: ignore[override]
        raise ValueError(CANARY)

    def __init__(self) -> None:
        super().__init__(GOOD)


@each_row(
    ("given", "why"),
    [
        (unnamed, "needs a `name`.*: function is not one"),
        (Waits(), "Waits.__call__ is a plain function"),
        (Fixed, "not a class"),
        (Renamed(3), "needs a `name`"),
        (NameRaises(), "needs a `name`"),
        ("fixed", ": str is not one"),
    ],
    ids=lambda x: type(x).__name__,
)
async def test_what_is_no_repairer_is_told_to_the_program(given: Any, why: str) -> None:
    with pytest.raises(ToolcribError, match=why) as caught:
        await repair(rejected("{'text': x}"), CATALOG, given)
    assert CANARY not in str(caught.value)
    assert caught.value.__context__ is None


async def test_the_name_of_a_repairer_can_be_written_down() -> None:
    result = await repair(rejected("{'text': x}"), CATALOG, Renamed("a\ud800"))
    assert result.provenance.repaired_by == "a?"


async def test_nothing_to_mend() -> None:
    before = rejected("{'text': x}")
    assert await repair(before, CATALOG, Fixed(None)) is before


def cut() -> Rejected:
    result = hydrate(ToolCall("c1", "write", '{"text": 1', complete=False), CATALOG)
    assert isinstance(result, Rejected)
    return result


def of_an_incomplete_call() -> Rejected:
    """As an application could make one: the arguments are at fault, but the reply was cut, too."""
    error = HydrationError(Stage.PARSE, ErrorCode.INVALID_JSON, "")
    call = ToolCall("c1", "write", "{", complete=False)
    return Rejected(call, (error,), rejected("{").provenance, write.definition)


def without_a_schema() -> Rejected:
    bare = ToolDefinition(name="bare", description="", input_schema_json=None)
    untold: Tool[..., Any] = Tool(bare, None)
    return rejected("{}", name="bare", where=Offer.of([untold]))


@each_row(
    "make",
    [
        cut,
        of_an_incomplete_call,
        without_a_schema,
        lambda: rejected("[" * 1000),
        lambda: rejected(" " * (MAX_BYTES + 1)),
        lambda: rejected(f'{{"times": {10**50}}}'),
        lambda: rejected("{", name="nobody"),
        lambda: rejected("{", where=Offer.of([unchecked], known=["write"])),
    ],
)
async def test_what_is_never_repaired(make: Callable[[], Rejected]) -> None:
    before = make()
    repairer = Fixed(GOOD)
    assert await repair(before, CATALOG, repairer) is before
    assert repairer.asked == []
    assert not repairable(before)


@pytest.mark.parametrize("gave", ["{", '{"text": 1}', ValueError()])
async def test_once_only(gave: Any) -> None:
    failed = await repair(rejected("{"), CATALOG, Fixed(gave))
    assert isinstance(failed, Rejected)
    again = Fixed(GOOD)
    assert await repair(failed, CATALOG, again) is failed
    assert again.asked == []


def test_what_may_run_is_not_repairable() -> None:
    assert not repairable(hydrate(ToolCall("c1", "write", GOOD), CATALOG))


class Unwrapped:
    """A restorer for a view that wraps the arguments."""

    def restore(self, arguments: JsonObject) -> JsonObject:
        inner = arguments.get("wrapped")
        return inner if isinstance(inner, dict) else arguments

    def to_view(self, arguments: JsonObject) -> JsonObject:
        return {"wrapped": arguments}


@pytest.mark.parametrize("given", ['{"wrapped": {"text": "x"}}', '{"text": "x"}'])
async def test_the_text_of_a_repair_may_be_in_the_terms_of_the_view(given: str) -> None:
    offer = Offer.of([write], restorers={"write": Unwrapped()})
    result = await repair(rejected('{"wrapped": {"text": x', where=offer), offer, Fixed(given))
    assert isinstance(result, Hydrated)
    assert result.arguments == {"text": "x", "times": 1}
    assert result.defaults == ("/times",)


async def test_the_form_of_arguments_without_a_schema_can_be_repaired() -> None:
    result = await repair(rejected("{a: 1}", name="unchecked"), CATALOG, Fixed('{"a": 1}'))
    assert isinstance(result, Hydrated)
    assert result.provenance.repaired
    assert not result.provenance.validated
    assert result.provenance.no_schema_mode == "human-approval"


async def test_liberties_taken_with_the_repaired_text_are_noted() -> None:
    result = await repair(rejected("{"), CATALOG, Fixed("{'text': 'x'}"))
    assert isinstance(result, Hydrated)
    assert result.provenance.notes == ("single_quotes",)


class Guarded(str):
    """Text of a class of its own, as template engines have it."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise ValueError(CANARY)


async def test_text_of_another_class_is_text() -> None:
    repaired = await repair(rejected('{"text": 1}'), CATALOG, Fixed(Guarded(GOOD)))
    assert isinstance(repaired, Hydrated)
    assert type(repaired.provenance.repaired_arguments) is str
