from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from kit.kit_helpers import call, example_arguments, fresh
from rows import each_row

from toolcrib import kit
from toolcrib.errors import MissingExtraError, ToolError
from toolcrib.kit import arithmetic
from toolcrib.kit.arithmetic import evaluate, tidy
from toolcrib.tools import Catalog

CATALOG = Catalog([kit.calculate])

TOO_LARGE = "too large"
NO_REAL = "no real result"
MISREAD = "not an arithmetic expression"
NO_PRODUCT = "write 2 * pi"


async def calculated(expression: str) -> Any:
    return await call(CATALOG, "calculate", expression=expression)


@each_row(
    ("expression", "value"),
    [
        ("23*17+5", 396),
        (" 1 + 2 ", 3),
        ("-2**3", -8),
        ("2**-1", 0.5),
        ("2^10", 1024),
        ("2^3+1", 9),
        ("7 // 2", 3),
        ("-7 % 3", 2),
        ("5 - -+-3", 2),
        ("(1 + 2) * (3 + 4)", 21),
        ("0.1 + 0.2", 0.3),
        ("1 / 3", 0.333333333333333),
        ("6 / 2", 3),
        ("1_000 * 2", 2000),
        ("1e3 + .5", 1000.5),
        ("12 \u00d7 7 \u00f7 2 \u2212 1", 41),
        ("sqrt(144) + 10", 22),
        ("sin(30 * pi / 180)", 0.5),
        ("cos(0) + tan(0)", 1),
        ("log(e)", 1),
        ("log(8, 2)", 3),
        ("log10(1000)", 3),
        ("exp(0)", 1),
        ("abs(-3)", 3),
        ("round(2.567, 2)", 2.57),
        ("round(1234, -2)", 1200),
        ("round(2.6)", 3),
        ("floor(2.7) + ceil(2.2)", 5),
        ("min(3, 1, 2) + max(1, 2)", 3),
        ("pi", 3.14159265358979),
        ("10**290 % 7", 2),
        ("10**-400", 0),
        ("9007199254740993", 9007199254740993),
        ("2**63 - 1", 2**63 - 1),
        ("-2**63", -(2**63)),
        ("+".join(["1"] * 200), 200),
        ("(" * 60 + "1" + ")" * 60, 1),
    ],
)
async def test_value(expression: str, value: float) -> None:
    assert await calculated(expression) == {"value": value}


@pytest.mark.parametrize("expression", ["23*17+5", "6/2", "sqrt(16)", "1e3"])
async def test_a_whole_result_is_an_integer(expression: str) -> None:
    assert type((await calculated(expression))["value"]) is int


@pytest.mark.parametrize(
    ("expression", "exact"),
    [("2**100", 2**100), ("-2**63 - 1", -(2**63) - 1), ("10**300", 10**300)],
)
async def test_a_result_beyond_64_bits_keeps_its_digits(expression: str, exact: int) -> None:
    assert await calculated(expression) == {"value": float(exact), "exact": str(exact)}


@each_row(
    ("expression", "says"),
    [
        ("9**9**9", TOO_LARGE),
        ("9**9**9**9", TOO_LARGE),
        ("(9**99)**99", TOO_LARGE),
        ("10**400", TOO_LARGE),
        ("10**300 * 10**300", TOO_LARGE),
        ("9" * 400, TOO_LARGE),
        ("1e308 * 10", TOO_LARGE),
        ("1e400", TOO_LARGE),
        ("-1e400", TOO_LARGE),
        ("1e400 - 1e400", TOO_LARGE),
        ("exp(1000)", TOO_LARGE),
        ("2.5**10000", TOO_LARGE),
        ("min(1, 9**9**9)", TOO_LARGE),
        ("0 * 9**9**9", TOO_LARGE),
        ("1/0", "divides by zero"),
        ("1 // 0", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("(-1)**0.5", NO_REAL),
        ("abs((-1)**0.5)", NO_REAL),
        ("sqrt(-1)", NO_REAL),
        ("log(0)", NO_REAL),
        ("round(1, -10**9)", "decimal places"),
        ("round(1, 999999999)", "decimal places"),
        ("round(1.5, 1.5)", "decimal places"),
        ("1,000 + 2", "write 1000"),
        ("2pi", NO_PRODUCT),
        ("1j", NO_PRODUCT),
        ("0xff", NO_PRODUCT),
        ("1if 1else 2", NO_PRODUCT),
        ("1e5if 1 else 2", NO_PRODUCT),
        ("1.if 1.else 2", NO_PRODUCT),
        ("1.real", NO_PRODUCT),
        ("(1).__class__", MISREAD),
        ("(1).real", NO_PRODUCT),
        ("sqrt.__globals__", MISREAD),
        ('"a" * 10**9', MISREAD),
        ("'a' + 'b'", MISREAD),
        ("f'{1}'", MISREAD),
        ("lambda: 1", MISREAD),
        ("(lambda: 1)()", MISREAD),
        ("[x for x in (1, 2)]", MISREAD),
        ("(x := 5)", MISREAD),
        ("x = 5", MISREAD),
        ("1; 2", MISREAD),
        ("1\n2", MISREAD),
        ("1 if 1 else 2", MISREAD),
        ("1 or 2", MISREAD),
        ("not 1", MISREAD),
        ("1 < 2", MISREAD),
        ("1 << 1000", MISREAD),
        ("~1", MISREAD),
        ("1 @ 2", MISREAD),
        ("True", MISREAD),
        ("True + 1", MISREAD),
        ("None", MISREAD),
        ("...", MISREAD),
        ("abs", MISREAD),
        ("max(abs, 1)", MISREAD),
        ("max(1, 2, key=abs)", MISREAD),
        ("max(*(1, 2))", MISREAD),
        ("max((1, 2))", "write 1000"),
        ("min()", MISREAD),
        ("sqrt()", MISREAD),
        ("sqrt(1, 2)", MISREAD),
        ("sqrt 16", MISREAD),
        ("__import__('os').system('true')", MISREAD),
        ("__import__(1)", MISREAD),
        ("eval(1)", MISREAD),
        ("rand()", MISREAD),
        ("pow(9, 9)", MISREAD),
        ("factorial(5)", MISREAD),
        ("5!", MISREAD),
        ("canary", MISREAD),
        ("canary(1)", MISREAD),
        ("yield", MISREAD),
        ("await 1", MISREAD),
        ("\uff11+\uff11", MISREAD),
        ("1\0", MISREAD),
        ("\ud800", MISREAD),
        ("", MISREAD),
        ("()", "write 1000"),
        ("1 +", MISREAD),
        ("1" + "+1" * 10_000, "longer than"),
        ("^" * 300, "longer than"),
    ],
)
async def test_refused(expression: str, says: str) -> None:
    with pytest.raises(ToolError) as caught:
        await calculated(expression)
    assert says in caught.value.safe_text
    assert "canary" not in caught.value.safe_text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("error", [RecursionError, MemoryError])
async def test_too_deep_for_the_parser_or_the_library(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(*_: object, **__: object) -> None:
        raise error("canary")

    monkeypatch.setattr("toolcrib.kit.arithmetic.ast.parse", overflow)
    with pytest.raises(ToolError) as caught:
        await calculated("((1))")
    assert caught.value.safe_text == "the expression is nested too deeply: calculate it in parts"


@pytest.mark.parametrize("expression", ["(" * 249 + "1" + ")" * 249, "abs(" * 120, "-" * 499])
def test_deep_nesting_ends_in_a_safe_error(expression: str) -> None:
    with pytest.raises(ToolError):
        evaluate(expression)


async def test_the_examples_calculate() -> None:
    for arguments in example_arguments(kit.calculate):
        assert (await call(CATALOG, "calculate", **arguments))["value"] > 0


@each_row(
    ("value", "digits", "tidied"),
    [
        (211.99999999999991, 10, 212),
        (1 / 3, 4, 0.3333),
        (1e300, 15, 1e300),
        (-0.0, 15, 0),
        (7, 1, 7),
        (12345, 2, 12345),
        (12345.0, 2, 12000),
    ],
)
def test_tidy(value: float, digits: int, tidied: float) -> None:
    assert tidy(value, digits=digits) == tidied
    assert math.isfinite(tidy(value, digits=digits))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simpleeval", None)
    with pytest.raises(MissingExtraError, match="calculate"):
        fresh(arithmetic).evaluate("1 + 1")
