"""A union reads a value by a branch whose schema accepts it, whatever its other branches would read."""

from __future__ import annotations

import asyncio
from dataclasses import InitVar, dataclass
from datetime import datetime
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union
from uuid import UUID

from pydantic import BaseModel, BeforeValidator
from rows import each_row
from samples import sampled
from schema.derive.every_hint import HINTS, VALUES, Options, accepts, read

from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool
from toolcrib.values.json import canonical_json


@each_row(("one", "other"), sampled(permutations(HINTS, 2)))
def test_the_only_branch_whose_schema_accepts_a_value_reads_it(one: Any, other: Any) -> None:
    union = Union[one, other]  # noqa: UP007  of hints that are values
    for value in VALUES:
        accepting = [hint for hint in (one, other) if accepts(hint)(value)]
        if len(accepting) == 1:
            assert read(union, value) == read(accepting[0], value), canonical_json(value)[:80]


@dataclass
class Once:
    when: InitVar[datetime | str]

    def __post_init__(self, when: datetime | str) -> None:
        self.got = when


class Words(NamedTuple):
    one: str
    more: list[str]


class Stripped(BaseModel, str_strip_whitespace=True):
    text: str | Options | dict[str, int]
    words: Annotated[Words, BeforeValidator(lambda value: value)]


def test_a_text_of_digits_is_no_moment_and_no_id_wherever_it_stands() -> None:
    @tool(visible=ALL)
    def keep(
        one: datetime | str,
        several: list[UUID | str] | None,
        unique: set[Decimal | str],
        given: Once,
        three: datetime | Path | str,
    ) -> list[str]:
        """Keep them."""
        return [repr(one), repr(several), repr(unique), repr(given.got), type(three).__name__]

    digits = "12345678123456781234567812345678"
    sent = {
        "one": "20260101", "several": [digits], "unique": ["1e5"], "given": {"when": "1714"},
        "three": "1714",
    }  # fmt: skip
    outcome = run(keep, sent)
    assert outcome.record.arguments == sent
    assert outcome.value[:4] == ["'20260101'", f"['{digits}']", "{'1e5'}", "'1714'"]
    assert outcome.value[4] in ("PosixPath", "WindowsPath", "str")


def test_a_class_drops_nothing_that_two_other_branches_take() -> None:
    @tool(visible=ALL)
    def keep(x: Options | dict[str, int] | dict[str, Any]) -> str:
        """Keep it."""
        return repr(x)

    assert run(keep, {"x": {"b": -5}}).value == "{'b': -5}"


def test_a_union_in_a_class_is_read_as_its_class_is_configured() -> None:
    @tool(visible=ALL)
    def keep(x: Stripped) -> str:
        """Keep it."""
        return repr((x.text, *x.words))

    sent = {"text": " a ", "words": [" b", ["c "]]}
    assert run(keep, {"x": sent}).value == repr(("a", "b", ["c"]))


def run(tool: Any, arguments: Any) -> Completed:
    call = ToolCall("1", "keep", canonical_json(arguments))
    outcome = asyncio.run(ToolRunner([tool]).exec(call))
    assert isinstance(outcome, Completed)
    return outcome
