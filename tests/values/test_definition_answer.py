"""Sentences by which results are stated."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from rows import each_row

from toolcrib import ALL, ToolCall, tool
from toolcrib.clients.local.telling import tell
from toolcrib.errors import DefinitionError
from toolcrib.values.definition import stated
from toolcrib.values.message import Message, Offer


class Value(TypedDict):
    value: float


@each_row(
    ("template", "arguments", "result", "said"),
    [
        ("{a} is {b}.", {"a": "1+1"}, {"b": 2}, "1+1 is 2."),
        ("{a}", {"a": 1}, {"a": 2}, "2"),  # the result's own comes first
        ("{{a}} {result}", {}, 7, "{a} 7"),
        ("{a}", {}, {"a": True}, "true"),
        ("{a}", {}, {"a": "<b>&{x}"}, "<b>&{x}"),
        ("{a}", {}, {"b": 1}, None),
        ("{a}", {}, {"a": None}, None),
        ("{a}", {}, {"a": [1]}, None),
        ("{a}", {}, {"a": "two\nlines"}, None),
        ("{a}", {}, {"a": "\u202eturned"}, None),
        ("{a}", {}, {"a": "x" * 301}, None),
        ("{a}", {"a": 1}, [1], "1"),
    ],
)
def test_a_sentence_holds_the_values_of_the_call(
    template: str, arguments: Any, result: Any, said: str | None
) -> None:
    assert stated(template, arguments, result) == said


@each_row(
    ("answer", "says"),
    [
        ("{valu}", "answer names {valu} (did you mean 'value'?); it may name a, value"),
        ("{value:>9}", "each pair of braces must hold a name"),
        ("{value.__class__}", "each pair of braces must hold a name"),
        ("{value!r}", "each pair of braces must hold a name"),
        ("{}", "each pair of braces must hold a name"),
        ("{value", "a brace is not closed"),
        (7, "answer is a str or a list of them"),
        ([7], "it must be a str, such as"),
    ],
)
def test_what_is_no_such_sentence_is_refused_when_the_tool_is_made(answer: Any, says: str) -> None:
    with pytest.raises(DefinitionError) as raised:

        @tool(visible=ALL, answer=answer)
        def calculate(a: str) -> Value:
            """Calculate."""
            return {"value": 1.0}

    assert says in str(raised.value)


def test_the_embedded_model_states_a_result_by_the_first_answer_that_it_can_say() -> None:
    @tool(visible=ALL, answer=["{a} is exactly {exact}.", "{a} is {value}."])
    def calculate(a: str) -> dict[str, float]:
        """Calculate."""
        return {"value": float(a)}

    def said(result: str, *, is_error: bool = False) -> str:
        call = ToolCall("c0", "calculate", '{"a": "1+1"}')
        told = Message("tool", result, call_id="c0", name="calculate", is_error=is_error)
        return tell(
            [Message.user("?"), Message.assistant("", (call,)), told], Offer.of([calculate])
        )

    assert said('{"value": 2}') == "1+1 is 2."
    assert said('{"value": 2, "exact": "2"}') == "1+1 is exactly 2."
    assert said('{"other": 2}') == "other: 2"
    assert said('{"error": {"message": "no"}}', is_error=True).endswith("did not succeed: no")


def test_an_answer_is_part_of_what_a_definition_is() -> None:
    def made(**answer: Any) -> str:
        @tool(visible=ALL, **answer)
        def calculate(a: str) -> str:
            """Calculate."""
            return a

        return calculate.definition.digest

    assert made() == made(answer=()) != made(answer="{a}") != made(answer="{a}.")
