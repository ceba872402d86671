"""What a tool needs is declared, bound in one place, and missing before anything runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Annotated, Any, Optional, Protocol, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample

from toolcrib import ALL, CallContext, Catalog, Injected, ToolRunner, capability, tool
from toolcrib.errors import BindingError, DefinitionError
from toolcrib.tools import Need, PerCall, per_call, tool_of
from toolcrib.tools.capability import (
    check_given_again,
    interface_name,
    interface_path,
    is_context,
    need_of,
)
from toolcrib.tools.sources import module_at


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
    """Both."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def run(self, clock: Clock, db: Injected[Database], context: CallContext) -> str:
        return f"{self.text} {clock.now()} {db.query()}"


@tool(visible=ALL)
def alone(a: int) -> int:
    """Need nothing."""
    return a


T_co = TypeVar("T_co", covariant=True)


@capability
class Repo(Protocol[T_co]):
    def get(self, key: int) -> T_co: ...


CLOCK = FixedClock()


@each_row(
    ("hint", "need"),
    [
        (Clock | None, Need("p", Clock, optional=True)),
        (Optional[Clock], Need("p", Clock, optional=True)),  # noqa: UP045
        (None | Clock, Need("p", Clock, optional=True)),
        (Injected[Database] | None, Need("p", Database, optional=True)),
        (Injected[Database | None], Need("p", Database, optional=True)),  # type: ignore[misc]
        (Annotated[Clock, "the one on the wall"], Need("p", Clock)),
        (Annotated[Clock | None, "the one on the wall"], Need("p", Clock, optional=True)),
        (Repo[int], Need("p", Repo[int])),
        (Repo[int] | None, Need("p", Repo[int], optional=True)),
        (Repo, Need("p", Repo)),
        (Injected[Repo[int]], Need("p", Repo[int])),
        (Database | None, None),
        (int | None, None),
        (int | str, None),
        (Annotated[int, "x"], None),
        (list[Clock], None),
    ],
    ids=str,
)
def test_what_a_hint_needs(hint: Any, need: Need | None) -> None:
    assert need_of("p", hint) == need
    if need is not None:
        assert need_of("p", hint, CLOCK) == need._replace(optional=True, default=CLOCK)
        assert need_of("p", hint, None) == need._replace(optional=True)


@each_row(
    ("hint", "text"),
    [
        (Clock | int, "a capability must be a single type, not a union of types"),
        (Clock | Calendar, "a capability must be a single type"),
        (Clock | Calendar | None, "a capability must be a single type"),
        (Injected[int | str], "Injected takes a class, not int"),  # type: ignore[misc]
        (Injected["Clock"], "Injected takes a class"),
    ],
    ids=str,
)
def test_hints_that_ask_for_no_one_thing(hint: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        need_of("p", hint)


def test_the_context_is_taken_once() -> None:
    with pytest.raises(DefinitionError, match="a and b are both the CallContext"):

        @tool(visible=ALL)
        def twice(a: CallContext, b: CallContext) -> int:
            """Take it twice."""
            return 1


@pytest.mark.parametrize(
    ("interface", "name"), [(Clock, "Clock"), (Repo[int], "Repo[int]"), (Repo, "Repo")]
)
def test_the_name_of_an_interface(interface: Any, name: str) -> None:
    assert interface_name(interface) == name


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


@each_row(
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
    need = need_of("x", hint)
    assert (None if need is None else need.interface) is interface


def test_a_subclass_of_a_capability_is_none_by_itself() -> None:
    class Other(Clock, Protocol):
        pass

    assert need_of("x", Other) is None


def test_the_context_is_known_by_its_type() -> None:
    assert is_context(CallContext)
    assert is_context(CallContext | None)
    assert not is_context(Clock)


BINDINGS: dict[type, object] = {Clock: FixedClock(), Database: Database()}


@each_row(
    ("tools", "bound", "missing"),
    [
        ([alone], {}, None),
        ([alone, when], {}, r"its parameter 'clock'\): bind it with catalog.bind\(\{Clock: …\}\)"),
        ([when], {Database: Database()}, "tool 'when' needs Clock"),
        ([when], {}, r"needs Clock .*; to give it to each run \(deps=\), bind\(\{Clock: per_run\}\)"),
        ([when, rows], {Clock: FixedClock()}, r"tool 'rows' needs Database \(its parameter 'db'\)"),
        ([Both], {Clock: FixedClock()}, "tool 'Both' needs Database"),
        ([*Catalog([when]).bind(BINDINGS)], {}, r"bound as a whole: Catalog\(\[catalog, …\]\)"),
        ([Catalog([when]).bind(BINDINGS), alone], {}, None),
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


def test_binding_checks_the_implementation_at_once() -> None:
    with pytest.raises(BindingError, match="tool 'when' needs Clock, and object has no 'now'"):
        Catalog([alone, when]).bind({Clock: object()})


def test_binding_what_nobody_needs_is_no_error() -> None:
    """One composition root may serve several catalogs."""
    Catalog([alone]).bind({Clock: object()}).check_bound()


def test_binding_gives_another_catalog_and_replaces() -> None:
    first, second = FixedClock(), FixedClock()
    catalog = Catalog([when])
    bound = catalog.bind({Clock: first})
    again = bound.bind({Clock: second})
    entries = [c.by_name.get("when") for c in (catalog, bound, again)]
    assert [dict(e.bindings) if e else None for e in entries] == [
        {},
        {Clock: first},
        {Clock: second},
    ]


def test_the_original_is_called_with_fakes() -> None:
    assert rows(1, Database()) == [1]
    assert asyncio.run(Both("a").run(FixedClock(), Database(), None)).startswith("a 5.0")  # type: ignore[arg-type]


@tool(visible=ALL)
async def maybe(clock: Clock | None, db: Injected[Database] | None = None) -> bool:
    """Tell the time if there is a clock."""
    return clock is None


def test_what_is_optional_need_not_be_bound_and_is_checked_if_it_is() -> None:
    Catalog([maybe]).check_bound()
    with pytest.raises(BindingError, match="tool 'maybe' needs Database, and int is not one"):
        Catalog([maybe]).bind({Database: 3})
    assert (tool_of(maybe).definition.input_schema or {}).get("properties", {}) == {}


@tool(visible=ALL)
async def stores(ints: Repo[int], texts: Repo[str]) -> int:
    """Read both."""
    return ints.get(len(texts.get(1)))


class Stored:
    def get(self, key: int) -> Any:
        return key


def test_a_generic_protocol_is_bound_with_its_arguments_or_for_all_of_them() -> None:
    ints, rest = Stored(), Stored()
    entry = Catalog([stores]).bind({Repo: rest, Repo[int]: ints}).by_name.get("stores")
    assert entry is not None
    assert dict(entry.bindings) == {Repo[int]: ints, Repo[str]: rest}
    with pytest.raises(BindingError, match=r"needs Repo\[str\] \(its parameter 'texts'\)"):
        Catalog([stores]).bind({Repo[int]: ints}).check_bound()


def test_what_was_bound_for_no_tool_is_told_when_something_is_missing() -> None:
    with pytest.raises(BindingError, match="bound, but needed by no tool: FixedClock, Database"):
        Catalog([when]).bind({FixedClock: FixedClock(), Database: Database()}).check_bound()


@pytest.mark.parametrize(
    ("capabilities", "text"),
    [
        ({"Clock": FixedClock()}, "a str is no interface"),
        ({FixedClock(): Clock}, "a FixedClock is no interface"),
        ([Clock], "bind takes a dictionary"),
    ],
)
def test_what_cannot_be_bound(capabilities: Any, text: str) -> None:
    with pytest.raises(BindingError, match=text):
        Catalog([when]).bind(capabilities)


def yields() -> Iterator[FixedClock]:
    yield FixedClock()


async def async_yields() -> AsyncIterator[FixedClock]:
    yield FixedClock()


@each_row(
    ("factory", "text"),
    [
        (FixedClock(), "takes a factory, not a FixedClock: leave out the parentheses"),
        (yields, "yields yields: decorate it with @contextlib.contextmanager"),
        (async_yields, "@contextlib.asynccontextmanager"),
        (lambda a, b: None, "takes a, b: a factory takes a CallContext, or nothing"),
        (lambda a, *, b: None, "takes a, b: a factory"),
    ],
)
def test_what_is_no_factory(factory: Any, text: str) -> None:
    with pytest.raises(BindingError, match=text):
        per_call(factory)


@each_row(
    ("factory", "parameter"),
    [
        (lambda: 1, None),
        (lambda *args, **kwargs: 1, None),
        (lambda path="x": 1, None),
        (lambda ctx: 1, "ctx"),
        (lambda ctx, path="x": 1, "ctx"),
        (dict, None),
        (FixedClock, None),
    ],
)
def test_which_factories_take_the_context(factory: Any, parameter: str | None) -> None:
    assert per_call(factory).context_parameter == parameter


def gives_clock() -> FixedClock:
    return FixedClock()


def gives_int() -> int:
    return 1


def gives_nothing() -> None:
    pass


def gives_something() -> object:
    return FixedClock()


def gives_any() -> Any:
    return FixedClock()


def gives_protocol() -> Clock:
    return FixedClock()


def gives_awaitable() -> Awaitable[int]:
    raise NotImplementedError


async def gives_int_later() -> int:
    return 1


@contextmanager
def manages() -> Iterator[FixedClock]:
    yield FixedClock()


@contextmanager
def manages_int() -> Iterator[int]:
    yield 1


@asynccontextmanager
async def manages_int_later() -> AsyncIterator[int]:
    yield 1


class ClassMethod:
    zone = "UTC"

    def noon(self) -> float:
        return 12.0


@each_row(
    ("factory", "text"),
    [
        (gives_clock, None),
        (gives_something, None),
        (gives_any, None),
        (gives_protocol, None),
        (manages, None),
        (FixedClock, None),
        (lambda: 1, None),
        (gives_int, "tool 'when' needs Clock, and gives_int returns int, which has no 'now'"),
        (gives_nothing, "returns NoneType, which has no 'now'"),
        (gives_awaitable, "returns int, which has no 'now'"),
        (gives_int_later, "returns int, which has no 'now'"),
        (manages_int, "returns int, which has no 'now'"),
        (manages_int_later, "returns int, which has no 'now'"),
        (ClassMethod, "returns ClassMethod, which has no 'now'"),
    ],
)
def test_what_a_factory_says_to_return(factory: Callable[..., Any], text: str | None) -> None:
    made = per_call(factory)
    if text is None:
        entry = Catalog([when]).bind({Clock: made}).by_name.get("when")
        assert entry is not None
        assert isinstance(entry.bindings[Clock], PerCall)
    else:
        with pytest.raises(BindingError, match=text):
            Catalog([when]).bind({Clock: made})


def test_what_a_factory_says_to_return_for_a_class() -> None:
    Catalog([rows]).bind({Database: per_call(Offline)}).check_bound()
    with pytest.raises(BindingError, match="returns FixedClock, which is not one"):
        Catalog([rows]).bind({Database: per_call(gives_clock)})


SHOP = """
from typing import Generic, TypeVar
A, B = TypeVar("A"), TypeVar("B")
class Order: ...
class Shop:
    class Till: ...
class Repo(Generic[A, B]): ...
"""
INTERFACES: list[Callable[[Any], Any]] = [
    lambda shop: shop.Order,
    lambda shop: shop.Shop.Till,
    lambda shop: shop.Repo[shop.Order, int],
    lambda shop: shop.Repo[shop.Order, shop.Repo[shop.Shop.Till, shop.Order]],
]


def shop_called(name: str) -> ModuleType:
    module = ModuleType(name)
    exec(SHOP, module.__dict__)  # noqa: S102  the text above
    return module


NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1)


@settings(max_examples=sample(1_000), deadline=None)
@given(
    stem=NAMES.filter(lambda stem: len(stem.encode()) < 200),
    imported=NAMES.map(lambda name: name.translate(dict.fromkeys(map(ord, "[],")))),
    began_in_file=st.booleans(),
)
def test_what_a_run_was_given_is_known_again_whatever_its_module_is_called(
    stem: str, imported: str, began_in_file: bool
) -> None:
    """A file of any name that is run, and is loaded by the command line: in either order."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{stem}.py"
        file.write_text(SHOP, encoding="utf-8")
        loaded = module_at(str(file))
    del sys.modules[loaded.__name__]
    for name in ("__main__", imported or "shop"):
        shops = [loaded, shop_called(name)]
        began, now = shops if began_in_file else reversed(shops)
        for of in INTERFACES:
            saved, needed = [interface_path(of(began))], of(now)
            with pytest.raises(BindingError, match="given its own"):
                check_given_again(saved, {needed: ["pay.till"]}, [])
            check_given_again(saved, {needed: ["pay.till"]}, [needed])
            for other in INTERFACES:
                if other is not of:
                    check_given_again(saved, {other(now): ["pay.till"]}, [])
