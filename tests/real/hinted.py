"""Functions of libraries as they are, with the type hints that they do not have.

Most of the standard library has its hints in a book apart (typeshed), and so does numpy: what is
given here by hand is what their documentation says. Docstring, name and defaults stay their own.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A function, arguments as a model would send them, and the library's own answer to them."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    direct: Callable[[], Any]


class Refusal(NamedTuple):
    """A function that no tool is made of as it is, and what the error must say."""

    function: Callable[..., Any]
    says: tuple[str, ...]


def hinted(
    function: Callable[..., Any],
    returns: Any,
    hints: Mapping[str, Any],
    *,
    through: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """`function` with these parameters and no others; `through` makes plain values of its result.

    What it takes by position only is taken by name, and passed on by position.
    """
    known = _parameters(function)
    by_position = [
        name
        for name in hints
        if name not in known or known[name].kind is inspect.Parameter.POSITIONAL_ONLY
    ]

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        first = [arguments.pop(name) for name in by_position if name in arguments]
        result = function(*first, **arguments)
        return result if through is None else through(result)

    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hint,
            default=known[name].default if name in known else inspect.Parameter.empty,
        )
        for name, hint in hints.items()
    ]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=returns
    )
    call.__annotations__ = {**hints, "return": returns}
    return call


def resolved(function: Callable[..., Any], names: Mapping[str, Any]) -> Callable[..., Any]:
    """`function` with its own hints, read with the names that it imports for type checkers only."""
    hints = typing.get_type_hints(function, localns=dict(names), include_extras=True)
    return hinted(function, hints.pop("return", Any), hints)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # written in C, with defaults that Python cannot say
        return {}
