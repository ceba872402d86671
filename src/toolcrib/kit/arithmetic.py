"""Arithmetic by `simpleeval`. Every intermediate number is real, finite and of limited size.

The size is checked before a number is computed, so that `9**9**9` costs nothing.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NotRequired, TypeAlias

from typing_extensions import TypedDict

from toolcrib.errors import MissingExtraError, ToolError
from toolcrib.tools import tool

Number: TypeAlias = int | float

MAX_CHARACTERS = 500
MAX_BITS = 1000  # of an integer: about 300 digits, below the largest float
_MAX_PLACES = 30
_MAX_EXACT = 2**53
_INT64 = 2**63
_OPERATOR_SPELLINGS = str.maketrans(
    {
        "^": "**",
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{DOT OPERATOR}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{MINUS SIGN}": "-",
    }
)
_DISALLOWED = re.compile(r"[^\w\s.,+*/%()-]")
_NUMBER_BEFORE_NAME = re.compile(r"[\d.](?![eE][+-]?\d)[A-Za-z]|[\d.][eE][+-]?\d+[A-Za-z]")

_TOO_LONG = f"the expression is longer than {MAX_CHARACTERS} characters: calculate it in parts"
_TOO_DEEP = "the expression is nested too deeply: calculate it in parts"
_TOO_LARGE = "a number in the calculation is too large: more than 300 digits"
_NO_REAL = "the calculation has no real result"
_BY_ZERO = "the calculation divides by zero"
_NOT_ARITHMETIC = (
    "that is not an arithmetic expression: use numbers, + - * / // % ** and parentheses, the functions "
    "sqrt sin cos tan log log10 exp abs round floor ceil min max, and pi and e"
)
_COMMAS = "that is a list of numbers, not one: write 1000, not 1,000"
_NO_PRODUCT = "a number runs into a name: write 2 * pi, not 2pi"


class Result(TypedDict):
    """`value` has 15 digits; a whole result beyond 64 bits has all of its digits in `exact`."""

    value: float
    exact: NotRequired[str]


@tool(
    visible=["value", "exact"],
    read_only=True,
    idempotent=True,
    timeout=5,
    tags=["math", "arithmetic", "calculator"],
    answer=["{expression} is {exact}.", "{expression} is {value}."],
    examples=[
        ("What is 12 * 7?", {"expression": "12 * 7"}),
        ("How much is 1250 divided by 8?", {"expression": "1250 / 8"}),
        ("Work out (3.5 + 2) * 4 - 1", {"expression": "(3.5 + 2) * 4 - 1"}),
        ("7 * (21 - 4)", {"expression": "7 * (21 - 4)"}),
        ("What's the square root of 144?", {"expression": "sqrt(144)"}),
        ("15 percent of 240", {"expression": "240 * 15 / 100"}),
        ("How much is 8.5% of 3,200?", {"expression": "3200 * 8.5 / 100"}),
        ("2 to the power of 16", {"expression": "2 ** 16"}),
        ("Add 19.5, 3 and 40", {"expression": "19.5 + 3 + 40"}),
        ("A crate costs 36 dollars for 24 bottles, so what is one?", {"expression": "36 / 24"}),
        ("Share 96 apples among 4 children, what does each get?", {"expression": "96 / 4"}),
        ("I run 7 miles 5 times a week, what does that make in total?", {"expression": "7 * 5"}),
    ],
)
async def calculate(expression: str) -> Result:
    """Calculate the value of an arithmetic expression.

    Operators: + - * / // % (remainder) ** and parentheses; ^ is read as **. Functions: sqrt sin cos
    tan (radians) log (natural) log10 exp abs round floor ceil min max. Constants: pi, e.

    Args:
        expression: The expression, such as (2 + 3) * 4 or sqrt(2) * pi.
    """
    value = evaluate(expression)
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return {"value": float(value), "exact": str(value)}  # JSON readers may round it
    return {"value": tidy(value, digits=15)}


def evaluate(expression: str) -> Number:
    """Return the value of an expression. Raises ToolError, which never contains a part of the
    expression."""
    text = expression.strip().translate(_OPERATOR_SPELLINGS)
    if len(text) > MAX_CHARACTERS:
        raise ToolError(_TOO_LONG)
    if _DISALLOWED.search(text):
        raise ToolError(_NOT_ARITHMETIC)
    if _NUMBER_BEFORE_NAME.search(text):
        raise ToolError(_NO_PRODUCT)
    evaluator = _evaluator()
    try:
        return _bounded(evaluator.eval("", ast.parse(text, mode="eval").body))
    except ToolError:
        raise
    except (RecursionError, MemoryError):  # the parser raises MemoryError for the same reason
        raise ToolError(_TOO_DEEP) from None
    except ZeroDivisionError:
        raise ToolError(_BY_ZERO) from None
    except OverflowError:
        raise ToolError(_TOO_LARGE) from None
    except Exception:  # noqa: BLE001  the library's other errors contain the expression
        raise ToolError(_NOT_ARITHMETIC) from None


def tidy(value: Number, *, digits: int) -> Number:
    """Round a float to that many significant digits. A whole number becomes an integer."""
    if isinstance(value, int):
        return value
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < _MAX_EXACT else rounded


def _bounded(value: object) -> Number:
    if isinstance(value, complex):
        raise ToolError(_NO_REAL)
    if type(value) is int:
        if value.bit_length() > MAX_BITS:
            raise ToolError(_TOO_LARGE)
        return value
    if not isinstance(value, float):
        raise ToolError(_NOT_ARITHMETIC)
    if not math.isfinite(value):
        raise ToolError(_TOO_LARGE)
    return value


def _checked(function: Callable[..., Any]) -> Callable[..., Number]:
    """Wrap a function so that its arguments and its result are numbers of limited size."""

    def apply(*values: object) -> Number:
        numbers = [_bounded(value) for value in values]
        try:
            return _bounded(function(*numbers))
        except ValueError:  # `math` raises it if there is no real result
            raise ToolError(_NO_REAL) from None

    return apply


def _power(base: Number, exponent: Number) -> Any:
    """Refuse a power by the size that its result would have, before it is computed."""
    is_whole = isinstance(base, int) and isinstance(exponent, int)
    if is_whole and abs(base) > 1 and int(base).bit_length() * exponent > 2 * MAX_BITS:
        raise ToolError(_TOO_LARGE)
    return base**exponent


def _round(value: Number, places: int = 0) -> Number:
    if not isinstance(places, int) or abs(places) > _MAX_PLACES:
        raise ToolError(f"round takes at most {_MAX_PLACES} decimal places")
    return round(value, places) if places else round(value)


def _no_tuple(_node: ast.Tuple) -> Number:
    raise ToolError(_COMMAS)


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_MATH_NAMES = ("sqrt", "sin", "cos", "tan", "log", "log10", "exp", "floor", "ceil")
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in _MATH_NAMES},
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_NODES = (ast.Name, ast.UnaryOp, ast.BinOp, ast.Call)


@cache
def _evaluator() -> Any:
    """Return the library's `SimpleEval` with handlers only for the syntax of arithmetic.

    It keeps nothing between calls except the expression, which is not given to it.
    """
    try:
        from simpleeval import SimpleEval  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("kit", "the tool 'calculate'") from None
    evaluator = SimpleEval(
        operators={node: _checked(function) for node, function in _OPERATORS.items()},
        functions={name: _checked(function) for name, function in _FUNCTIONS.items()},
        names=_CONSTANTS,
    )
    evaluator.nodes = {kind: evaluator.nodes[kind] for kind in _NODES}
    evaluator.nodes |= {ast.Constant: lambda node: _bounded(node.value), ast.Tuple: _no_tuple}
    return evaluator
