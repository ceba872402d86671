"""An author's own kind of our errors may lack what our constructors give: its call ends, alone."""

import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from pydantic import BaseModel, Field, field_validator
from rows import each_row

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    CallContext,
    Catalog,
    ErrorCode,
    Failed,
    ToolCall,
    ToolError,
    ToolRunner,
    capability,
    per_call,
    tool,
)
from toolcrib.errors import CapabilityError, MissingExtraError, OutcomeUnknown
from toolcrib.testing import MemorySink
from toolcrib.values.decision import Answer

RAISED: dict[str, Callable[[], Exception]] = {}


def here(place: str) -> int:
    if place in RAISED:
        error = RAISED[place]()
        raise error
    return 1


class Model(BaseModel):
    a: int = Field(default_factory=lambda: here("factory"))
    b: int = 1

    @field_validator("b")
    @classmethod
    def judge(cls, value: int) -> int:
        return value * here("validator")


@dataclasses.dataclass
class Plain:
    b: int

    def __post_init__(self) -> None:
        here("post_init")


@capability
class Shop(Protocol):
    def price(self) -> int: ...


class Cheap:
    def price(self) -> int:
        return here("capability")


@asynccontextmanager
async def shop(_context: CallContext) -> AsyncIterator[Cheap]:
    here("opening")
    yield Cheap()
    here("closing")


@tool(visible=ALL)
async def pay(model: Model, plain: Plain, shop: Shop) -> str:
    """Pay."""
    return f"paid {shop.price() + model.a + plain.b + here('tool')}"


@tool(visible=ALL, requires_approval=True)
def note(model: Model) -> str:
    """Note."""
    return f"noted {model.a + here('plain')}"


async def approver(request: ApprovalRequest) -> Answer:
    if request.call_id == "1":
        here("approver")
    return Approve("ada")


def own(kind: type[Exception]) -> Callable[[], Exception]:
    class Own(kind):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            pass

    return Own


class OddError(ToolError):
    """Its attributes are of other types, or raise."""

    safe_text = 7  # type: ignore[assignment]
    model_text = None  # type: ignore[assignment]

    def __init__(self) -> None:
        pass

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        raise RuntimeError


KINDS: list[tuple[Callable[[], Exception], ErrorCode]] = [
    (own(ToolError), ErrorCode.TOOL_ERROR),
    (own(OutcomeUnknown), ErrorCode.OUTCOME_UNKNOWN),
    (own(CapabilityError), ErrorCode.CAPABILITY_ERROR),
    (own(MissingExtraError), ErrorCode.NOT_RUNNABLE),
    (OddError, ErrorCode.TOOL_ERROR),
]
PLACES = ["tool", "plain", "validator", "post_init", "factory", "capability", "opening", "closing"]


@each_row(("raised", "code"), KINDS)
@each_row("where", [*PLACES, "approver"])
async def test_an_error_without_words_ends_its_own_call(
    raised: Callable[[], Exception], code: ErrorCode, where: str
) -> None:
    sink = MemorySink()
    catalog = Catalog([pay, note]).bind({Shop: per_call(shop)})
    runner = ToolRunner(catalog, sinks=[sink], approver=approver)
    name = "note" if where in ("plain", "approver") else "pay"
    sent = {"model": {"b": 2}} if name == "note" else {"model": {"b": 2}, "plain": {"b": 1}}
    RAISED[where] = raised
    try:
        failed = await runner.exec(ToolCall("1", name, json.dumps(sent)))
    finally:
        RAISED.clear()
    assert isinstance(failed, Failed)
    assert failed.error.message.strip()
    if where in ("tool", "plain"):
        assert failed.error.code is code
    (record,) = sink.finished()
    assert record.error == failed.error
