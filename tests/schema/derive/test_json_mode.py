"""What an author's validator passes on is read as what was sent is read, whatever stands behind it."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)
from rows import each_row
from schema.derive.every_hint import HINTS, VALUES, accepts, read

from toolcrib import ALL, Catalog, Hydrated, ToolCall, hydrate, tool
from toolcrib.values.json import canonical_json


class Before(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def check(cls, given: Any) -> Any:
        return given


class Around(BaseModel):
    @model_validator(mode="wrap")
    @classmethod
    def check(cls, given: Any, handler: Any) -> Any:
        return handler(given)


class OfField(BaseModel):
    @field_validator("x", mode="before", check_fields=False)
    @classmethod
    def check(cls, given: Any) -> Any:
        return given


@each_row("hint", HINTS)
def test_a_hint_behind_a_validator_reads_what_it_reads_alone(hint: Any) -> None:
    before = Annotated[hint, BeforeValidator(lambda value: value)]
    around = Annotated[hint, WrapValidator(lambda value, handler: handler(value))]
    classes = [create_model("Made", __base__=base, x=(hint, ...)) for base in (Before, OfField)]
    around_a_class = create_model("Made", __base__=Around, x=(hint, ...))
    for value in filter(accepts(hint), VALUES):
        alone = read(hint, value)
        assert read(before, value) == read(around, value) == alone, canonical_json(value)[:80]
        if alone[0] != "refused":
            for made in (*classes, around_a_class):
                assert read(made, {"x": value}) == ("Made", f"Made(x={alone[1]})")


class Visit(BaseModel):
    day: date
    parts: tuple[Visit, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def today(cls, given: Any) -> Any:
        return {"day": date(2026, 1, 31)} if given == {"day": "2026-01-31"} else given

    @field_validator("day", mode="before")
    @classmethod
    def made(cls, day: Any) -> Any:
        return date(2026, 2, 1) if day == "2026-02-01" else day


def test_what_a_validator_makes_itself_is_taken_too() -> None:
    @tool(visible=ALL)
    def keep(visit: Visit) -> None:
        """Keep it."""

    parts: list[Any] = [{"day": "2026-01-31"}, {"day": "2026-02-02", "parts": []}]
    sent = {"day": "2026-02-01", "parts": parts}
    result = hydrate(ToolCall("1", "keep", canonical_json({"visit": sent})), Catalog([keep]))
    assert isinstance(result, Hydrated)
    parts[0]["parts"] = []
    assert result.arguments == {"visit": sent}
