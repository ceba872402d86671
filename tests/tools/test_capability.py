"""What a tool needs is declared, bound in one place, and missing before anything runs."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pytest

from toolcrib import ALL, CallContext, Catalog, Injected, ToolRunner, capability, tool
from toolcrib.errors import BindingError
from toolcrib.tools import Need, tool_of
from toolcrib.tools.capability import check_implements, interface_of, is_context


@capability
class Clock(Protocol):
    zone: str

    def now(self) -> float: ...


@capability
class Calendar(Clock, Protocol):
    def holidays(self, year: int) -> list[str]: ...


class Database:
    """A type that one doesn't own."""

    def query(self) -> list[int]:
        return [1]


class FixedClock:
    zone = "UTC"

    def now(self) -> float:
        return 5.0


class Offline(Database):
    pass


@tool(visible=ALL)
async def when(plus: int, clock: Clock, ctx: CallContext) -> float:
    """Tell the time."""
    return clock.now() + plus


@tool(visible=ALL)
def rows(limit: int, db: Injected[Database]) -> list[int]:
    """Read rows."""
    return db.query()[:limit]


@tool(visible=ALL)
class Both:
    def __init__(self, text: str) -> None:
        self.text = text

    async def run(self, clock: Clock, db: Injected[Database], context: CallContext) -> str:
        return f"{self.text} {clock.now()} {db.query()}"


@tool(visible=ALL)
def alone(a: int) -> int:
    """Need nothing."""
    return a


@pytest.mark.parametrize(
    ("thing", "properties", "needs", "context"),
    [
        (when, ["plus"], (Need("clock", Clock),), "ctx"),
        (rows, ["limit"], (Need("db", Database),), None),
        (Both, ["text"], (Need("clock", Clock), Need("db", Database)), "context"),
        (alone, ["a"], (), None),
    ],
)
def test_needs_are_no_parameters_of_the_model(
    thing: Any, properties: list[str], needs: tuple[Need, ...], context: str | None
) -> None:
    made = tool_of(thing)
    schema: Any = made.definition.input_schema
    assert list(schema["properties"]) == properties
    assert schema["required"] == properties
    assert (made.needs, made.context_parameter) == (needs, context)


@pytest.mark.parametrize(
    ("hint", "interface"),
    [
        (Clock, Clock),
        (Calendar, Calendar),
        (Injected[Database], Database),
        (Database, None),
        (int, None),
        (Injected[int], int),
        (FixedClock, None),
        (list[Clock], None),
        (None, None),
    ],
    ids=str,
)
def test_what_is_injected(hint: Any, interface: type | None) -> None:
    assert interface_of(hint) is interface


def test_a_subclass_of_a_capability_is_none_by_itself() -> None:
    class Other(Clock, Protocol):
        pass

    assert interface_of(Other) is None


def test_the_context_is_known_by_its_type() -> None:
    assert is_context(CallContext)
    assert not is_context(Clock)


BINDINGS: dict[type, object] = {Clock: FixedClock(), Database: Database()}


@pytest.mark.parametrize(
    ("tools", "bound", "missing"),
    [
        ([alone], {}, None),
        ([alone, when], {}, r"its parameter 'clock'\): catalog.bind\(\{Clock: …\}\)"),
        ([when], {Database: Database()}, "tool 'when' needs Clock"),
        ([when, rows], {Clock: FixedClock()}, r"tool 'rows' needs Database \(its parameter 'db'\)"),
        ([Both], {Clock: FixedClock()}, "tool 'Both' needs Database"),
        ([when, rows, Both, alone], BINDINGS, None),
    ],
)  # fmt: skip
def test_what_is_not_bound_is_named(
    tools: list[Any], bound: dict[type, object], missing: str | None
) -> None:
    catalog = Catalog(tools).bind(bound)
    if missing is None:
        catalog.check_bound()
    else:
        with pytest.raises(BindingError, match=missing):
            catalog.check_bound()
        with pytest.raises(BindingError, match=missing):
            ToolRunner(catalog)


class NoMethod:
    zone = "UTC"


class NoZone:
    def now(self) -> float:
        return 1.0


class NoCallable:
    zone = "UTC"
    now = 3.0


@pytest.mark.parametrize(
    ("interface", "implementation", "text"),
    [
        (Clock, NoMethod(), "tool 't' needs Clock, and NoMethod has no 'now'"),
        (Clock, NoZone(), "tool 't' needs Clock, and NoZone has no 'zone'"),
        (Clock, NoCallable(), "tool 't' needs Clock, and 'now' of NoCallable is no method"),
        (Clock, None, "NoneType has no 'now'"),
        (Calendar, FixedClock(), "tool 't' needs Calendar, and FixedClock has no 'holidays'"),
        (Database, FixedClock(), "tool 't' needs Database, and FixedClock is not one"),
    ],
)
def test_an_implementation_that_lacks_something(
    interface: type, implementation: object, text: str
) -> None:
    with pytest.raises(BindingError, match=text):
        check_implements(interface, implementation, "t")


class Dynamic:
    """Answers to anything."""

    def __getattr__(self, name: str) -> Any:
        return lambda: None


@pytest.mark.parametrize(
    ("interface", "implementation"),
    [(Clock, FixedClock()), (Clock, Dynamic()), (Database, Database()), (Database, Offline())],
)
def test_an_implementation_that_does(interface: type, implementation: object) -> None:
    check_implements(interface, implementation, "t")


def test_binding_checks_the_implementation_at_once() -> None:
    with pytest.raises(BindingError, match="tool 'when' needs Clock, and NoMethod has no 'now'"):
        Catalog([alone, when]).bind({Clock: NoMethod()})


def test_binding_what_nobody_needs_is_no_error() -> None:
    """One composition root may serve several catalogs."""
    Catalog([alone]).bind({Clock: object()}).check_bound()


def test_binding_gives_another_catalog_and_replaces() -> None:
    first, second = FixedClock(), FixedClock()
    catalog = Catalog([when])
    bound = catalog.bind({Clock: first})
    again = bound.bind({Clock: second})
    entries = [c.entry("when") for c in (catalog, bound, again)]
    assert [dict(e.bindings) if e else None for e in entries] == [
        {},
        {Clock: first},
        {Clock: second},
    ]


def test_the_original_is_called_with_fakes() -> None:
    assert rows(1, Database()) == [1]
    assert asyncio.run(Both("a").run(FixedClock(), Database(), None)).startswith("a 5.0")  # type: ignore[arg-type]
