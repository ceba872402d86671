"""What is read off a function's code is what `inspect.signature` says of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import DefinitionError
from toolcrib.tools.signature import SignatureParameter, parameters_of


class Several:
    def __call__(self, a: int, b: int = 1) -> None: ...

    def method(self, a: int, /, *rest: int) -> None: ...


def wrapping(a: int, b: str = "x") -> None: ...


@functools.wraps(wrapping)
def wrapped(*args: Any, **kwargs: Any) -> None: ...


def declared(*args: Any) -> None: ...


declared.__signature__ = inspect.signature(wrapping)  # type: ignore[attr-defined]


def none() -> None: ...
def one(a: Any) -> None: ...
def with_locals(a: Any, b: Any = 2) -> None:
    first = second = a  # noqa: F841  names in the code that are no parameters


def only(a: Any, b: Any = 1, /) -> None: ...
def all_kinds(
    a: Any, b: Any = 1, /, c: Any = 2, *d: Any, e: Any, f: Any = None, **g: Any
) -> None: ...
def bare_star(a: Any, *, b: Any, c: Any = 3) -> None: ...
def rest(**rest: Any) -> None: ...
def items(*items: Any) -> None: ...
async def waits(a: Any = None, *, b: Any = ()) -> None: ...


def closed(value: int) -> Callable[..., int]:
    def inner(a: int, *, b: int = value) -> int:
        return a + b + value

    return inner


PLAIN = [none, one, with_locals, only, all_kinds, bare_star, rest, items, waits, closed(3)]
OTHERS = [wrapped, declared, Several, Several(), Several().method, functools.partial(one, 1), len]


@each_row("thing", [*PLAIN, *OTHERS, lambda a, b=1, *c, d=2, **e: a])
def test_it_is_what_inspect_says(thing: Any) -> None:
    expected = [
        SignatureParameter(p.name, p.kind, p.default)
        for p in inspect.signature(thing).parameters.values()
    ]
    assert parameters_of(thing) == expected


def test_what_has_no_signature_is_named() -> None:
    with pytest.raises(
        DefinitionError, match=r"^dict has no signature that can be read: wrap it in a function$"
    ):
        parameters_of(dict)
