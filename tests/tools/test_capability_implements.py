"""What surely does not implement an interface is refused when it is bound; nothing else is."""

from __future__ import annotations

import functools
import types
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar, overload, runtime_checkable
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest
from rows import each_row

from toolcrib.errors import BindingError
from toolcrib.tools.capability import check_implements, members

T_co = TypeVar("T_co", covariant=True)


class Clock(Protocol):
    zone: str

    def now(self) -> float: ...


class Calendar(Clock, Protocol):
    def holidays(self, year: int) -> list[str]: ...


class Orders(Protocol):
    async def cancel(self, order_id: int, *, key: str) -> int: ...


@runtime_checkable
class Sync(Protocol):
    def count(self, table: str, limit: int = 10) -> int: ...


class Loose(Protocol):
    def count(self, table: str) -> Any: ...

    def later(self) -> Awaitable[int]: ...


class Streams(Protocol):
    def lines(self) -> AsyncIterator[str]: ...


class Repo(Protocol[T_co]):
    @property
    def size(self) -> int: ...

    def get(self, key: int, /) -> T_co: ...


class Called(Protocol):
    def __call__(self, text: str) -> None: ...


class Mapped(Protocol):
    def __getitem__(self, key: str) -> int: ...


class Overloaded(Protocol):
    @overload
    def get(self, key: int) -> int: ...
    @overload
    def get(self, key: str) -> str: ...


class Statics(Protocol):
    @staticmethod
    def add(a: int, b: int) -> int: ...

    @classmethod
    def make(cls, text: str) -> int: ...


class Store(ABC):
    @abstractmethod
    def read(self) -> int: ...


class FixedClock:
    zone = "UTC"

    def now(self) -> float:
        return 5.0


class NoMethod:
    zone = "UTC"


class NoZone:
    def now(self) -> float:
        return 1.0


class NoCallable:
    zone = "UTC"
    now = 3.0


class Unset:
    __slots__ = ("zone",)

    def now(self) -> float:
        return 1.0


def impl(**methods: Any) -> Any:
    return type("Impl", (), methods)()


async def async_count(self: Any, table: str, limit: int = 10) -> int:
    return limit


def plain_cancel(self: Any, order_id: int, *, key: str) -> int:
    return 1


async def yields(self: Any, order_id: int, *, key: str) -> AsyncIterator[int]:
    yield 1


@each_row(
    ("interface", "implementation", "text"),
    [
        (Clock, NoMethod(), "tool 't' needs Clock, and NoMethod has no 'now'"),
        (Clock, NoZone(), "tool 't' needs Clock, and NoZone has no 'zone'"),
        (Clock, Unset(), "Unset has no 'zone'"),
        (Clock, NoCallable(), "tool 't' needs Clock, and 'now' of NoCallable is no method"),
        (Clock, None, "NoneType has no 'now'"),
        (Calendar, FixedClock(), "tool 't' needs Calendar, and FixedClock has no 'holidays'"),
        (int, FixedClock(), "tool 't' needs int, and FixedClock is not one"),
        (Store, FixedClock(), "needs Store, and FixedClock is not one"),
        (Clock, FixedClock, "FixedClock is a class: bind an instance, FixedClock\\(…\\), or per_call"),
        (FixedClock, FixedClock, "FixedClock is a class: bind an instance"),
        (int, str, "needs int, and str is not one"),
        (int, async_count, r"async_count is a function: .* per_call\(async_count"),
        (Clock, async_count, r"async_count is a function: .*, or per_call\(async_count\)"),
        (Repo[int], impl(size=1), r"needs Repo\[int\], and Impl has no 'get'"),
        (Called, impl(), "Impl has no '__call__'"),
        (Mapped, 3, "int has no '__getitem__'"),
        (Sync, impl(count=async_count), "'count' of Impl is async: Sync declares it with a plain"),
        (Streams, impl(lines=async_count), "'lines' of Impl is async"),
        (Orders, impl(cancel=plain_cancel), "'cancel' of Impl is not async: Orders declares it"),
        (Orders, impl(cancel=yields), "'cancel' of Impl yields: Orders declares it"),
        (Sync, impl(count=lambda self: 1), r"cannot be called as Sync declares it, \(table, limit"),
        (Sync, impl(count=lambda self, table: 1), "cannot be called as Sync declares it"),
        (Sync, impl(count=lambda self, table, limit, more: 1), "cannot be called as Sync"),
        (Sync, impl(count=lambda self, table, limit: 1), "cannot be called as Sync declares it"),
        (Repo, impl(size=1, get=lambda self, *, key: 1), "cannot be called as Repo declares it"),
        (Statics, impl(add=lambda self, a: 1, make=lambda self, text: 1), r"it, \(a, b\)"),
        (Statics, impl(add=lambda self, a, b: 1, make=lambda self: 1), r"it, \(text\)"),
    ],
)  # fmt: skip
def test_what_is_surely_wrong(interface: type, implementation: object, text: str) -> None:
    with pytest.raises(BindingError, match=text):
        check_implements(interface, implementation, "t")


class Dynamic:
    """Answers to anything."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None


class Lazy:
    """Its properties connect to something, and must not be evaluated here."""

    @property
    def zone(self) -> str:
        raise ConnectionError

    @property
    def now(self) -> Callable[[], float]:
        raise ConnectionError


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def cancel(self: Any, order_id: int, *, key: str) -> int:
    return 1


def unhinted_cancel(self: Any, order_id: int, *, key: str):  # type: ignore[no-untyped-def]
    return cancel(self, order_id, key=key)


def any_cancel(self: Any, order_id: int, *, key: str) -> Any:
    return cancel(self, order_id, key=key)


def awaitable_cancel(self: Any, order_id: int, *, key: str) -> Awaitable[int]:
    return cancel(self, order_id, key=key)


def strange_cancel(self: Any, order_id: int, *, key: str) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    return cancel(self, order_id, key=key)


async def streams(self: Any) -> AsyncIterator[str]:
    yield ""


class AllStatic:
    zone = "UTC"

    @staticmethod
    def now() -> float:
        return 1.0


MODULE: Any = types.ModuleType("clock_module")
MODULE.zone, MODULE.now = "UTC", lambda: 5.0


@each_row(
    ("interface", "implementation"),
    [
        (Clock, FixedClock()),
        (Clock, Dynamic()),
        (Clock, Lazy()),
        (Clock, AllStatic),
        (Clock, MODULE),
        (Clock, Mock()),
        (Clock, types.SimpleNamespace(zone="UTC", now=lambda: 5.0)),
        (int, True),
        (Repo[int], impl(size=property(lambda self: 1), get=lambda self, key: key)),
        (Repo[int], impl(size=3, get=lambda self, k, /: k)),
        (Called, print),
        (Called, lambda text: None),
        (Mapped, {}),
        (Overloaded, impl(get=lambda self, key: key)),
        (Statics, impl(add=lambda self, a, b: 1, make=lambda self, text: 1)),
        (Streams, impl(lines=streams)),
        (Orders, impl(cancel=cancel)),
        (Orders, impl(cancel=decorated(cancel))),
        (Orders, impl(cancel=unhinted_cancel)),
        (Orders, impl(cancel=any_cancel)),
        (Orders, impl(cancel=awaitable_cancel)),
        (Orders, impl(cancel=strange_cancel)),
        (Orders, impl(cancel=lambda self, number, key, more=1: 1)),
        (Orders, impl(cancel=lambda self, *args, **kwargs: 1)),
        (Orders, AsyncMock()),
        (Orders, create_autospec(Orders, instance=True)),
        (Sync, create_autospec(Sync, instance=True)),
        (Sync, impl(count=lambda self, name, n=1: 1)),
        (Sync, impl(count=decorated(async_count))),
        (Loose, impl(count=async_count, later=lambda self: 1)),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)  # fmt: skip
def test_what_may_be_right(interface: type, implementation: object) -> None:
    check_implements(interface, implementation, "t")


@each_row(
    ("protocol", "names"),
    [
        (Clock, ["now", "zone"]),
        (Calendar, ["now", "zone", "holidays"]),
        (Repo, ["size", "get"]),
        (Called, ["__call__"]),
        (Mapped, ["__getitem__"]),
        (Sync, ["count"]),
        (Statics, ["add", "make"]),
    ],
)
def test_what_a_protocol_declares(protocol: type, names: list[str]) -> None:
    assert list(members(protocol)) == names
