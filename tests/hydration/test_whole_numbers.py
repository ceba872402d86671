"""An integer has the digits that were written, whoever reads them: held against `decimal`.

A number with a fraction or an exponent is an integer if it is one by its text, and up to 2^53.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from pydantic import Json
from rows import each_row
from samples import WHOLE

from toolcrib import ALL, Agent, Catalog, Reply, ToolCall, hydrate, tool
from toolcrib.hydration.hydrate import instance_of
from toolcrib.testing import ScriptedClient
from toolcrib.values.call import Hydrated
from toolcrib.values.message import Message

LIMIT = 2**53
SPECIAL = [
    "9007199254740993.0", "9.007199254740993e15", "-9007199254740993.0", "9007199254740992.9",
    "4503599627370497.5", "4503599627370496.5", "-4503599627370495.75", "123456789012345.01",
    "7.0000000000000001", "6.9999999999999999", "1.5", "1e-400", "-1e-324", "0e-400", "-0.0",
    "0.000e999999", "1e-99999999999999999999", "70000000000000001e-16", "7.000", "70e-1", "7E0",
    "9007199254740992.0", "9007199254740991.00000", "9007199254740994.0", "1e22", "1e300",
    f"7.{'0' * 5000}1", f"7.{'0' * 5000}", f"0.{'0' * 400}1e401", "9007199254740993", "-7", "1e2",
]  # fmt: skip


def drawn(seed: int, count: int) -> list[str]:
    """Numbers near integers that floats hold only just, in any way of writing them."""
    dice = random.Random(seed)  # noqa: S311  a fuzzer's
    texts = []
    for _ in range(count):
        whole = dice.choice(
            [
                dice.randrange(-LIMIT - 9, LIMIT + 10),
                dice.choice([-1, 1]) * (2 ** dice.randrange(54) + dice.randrange(-3, 4)),
                dice.randrange(-9, 10),
            ]
        )
        off = dice.choice(
            [
                Decimal(0),
                Decimal(1) / 2 ** dice.randrange(1, 8),
                Decimal(10) ** -dice.randrange(1, 40),
            ]
        )
        number = Decimal(whole) + dice.choice([-1, 1]) * off
        shift = dice.randrange(-20, 21)
        texts.append(
            dice.choice(
                [
                    f"{number:f}",
                    f"{number:f}0" if "." in f"{number:f}" else f"{number:f}.0",
                    f"{number.scaleb(shift):f}e{-shift}",
                ]
            )
        )
    return texts


def integer(text: str) -> int | None:
    """Return the integer that a number is, by its text."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        exact = Decimal(text)
    except ArithmeticError:
        return None
    if exact == 0:
        return 0
    if exact.adjusted() > 17 or exact != exact.to_integral_value() or abs(exact) > LIMIT:
        return None
    return int(exact)


@tool(visible=ALL)
def plain(n: int) -> None:
    """Take a number."""


@tool(visible=ALL)
def nested(of: list[dict[str, int | str]]) -> None:
    """Take numbers."""


@tool(visible=ALL)
def within(text: Json[list[int]]) -> None:
    """Take numbers in a text."""


def schema(kind: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]}


@tool(visible=ALL, input_schema=schema("number"))
def looser(n: int) -> None:
    """Take a number that the schema does not say is whole."""


@tool(visible=ALL, input_schema=schema("integer"))
def given(n: Any) -> None:
    """Take a number that the schema alone says is whole."""


@tool(visible=ALL)
def real(n: float) -> None:
    """Take a number with a fraction."""


@tool(visible=ALL)
def either(n: int | float) -> None:  # noqa: PYI041  the two are read differently
    """Take a number of either kind."""


CATALOG = Catalog([plain, nested, within, looser, given, real, either])


def got(name: str, arguments: str, key: str = "n") -> Any:
    """Return what the tool gets, None where the call is refused."""
    result = hydrate(ToolCall("1", name, arguments), CATALOG)
    if not isinstance(result, Hydrated):
        return None
    return instance_of(result, CATALOG.by_name[name].tool).arguments[key]


def check(text: str) -> None:
    expected = integer(text)
    value = got("plain", f'{{"n": {text}}}')
    assert (value, type(value)) == (expected, type(expected)), text
    padded = " " * 300  # no short text, which is read otherwise
    assert got("plain", f'{{"n": {text}{padded}}}') == expected, text
    found = got("nested", f'{{"of": [{{"a": "x", "b": {text}}}]}}', "of")
    assert found == (None if expected is None else [{"a": "x", "b": expected}]), text
    found = got("within", f'{{"text": "[{text}]"}}', "text")
    assert found is None or found == [expected], text  # `7.000` is refused there, `7.0` is not
    assert got("looser", f'{{"n": {text}}}') == expected, text
    found = got("given", f'{{"n": {text}}}')
    if found is not None and abs(found) <= LIMIT:
        assert found == expected, text
    nearest = float(text)
    assert got("real", f'{{"n": {text}}}') == nearest, text
    assert got("either", f'{{"n": {text}}}') == (nearest if expected is None else expected), text


@each_row("text", SPECIAL)
def test_an_integer_is_one_by_its_text(text: str) -> None:
    check(text)


@pytest.mark.parametrize("seed", range(40 if WHOLE else 2))
def test_no_integer_has_other_digits_than_were_written(seed: int) -> None:
    for text in drawn(seed, 500):
        check(text)


@each_row("text", [text for text in SPECIAL if integer(text) is None])
async def test_a_typed_answer_has_the_digits_that_were_written(text: str) -> None:
    replies = [Reply(Message.assistant(said), "stop") for said in (text, "[7]", f"[{text}]", "7")]
    assert (await Agent(ScriptedClient(replies[::3]), output=int).run("go")).output == 7
    assert (await Agent(ScriptedClient(replies[2:0:-1]), output=list[int]).run("go")).output == [7]
