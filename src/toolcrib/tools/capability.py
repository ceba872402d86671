"""Capabilities: the only way for a tool to reach the outside world.

A tool declares what it needs as a parameter whose type is a Protocol marked with `@capability` (or
`Injected[T]` for a type that the author does not control). The model never sees such a parameter.
The application binds it to an implementation in one place, `Catalog.bind`. A need is optional if
its hint accepts None or its parameter has a default. If it is unbound, it gets that default.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from types import MemberDescriptorType, NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec

from toolcrib.errors import BindingError, CapabilityError, DefinitionError
from toolcrib.values.context import CallContext
from toolcrib.values.typed import check_type, explains_wrong_types, names_wrong_types

T = TypeVar("T")
_MARK = "__toolcrib_capability__"


class _InjectedMark:
    def __repr__(self) -> str:
        return "Injected"


_INJECTED = _InjectedMark()
Injected = Annotated[T, _INJECTED]


class Need(NamedTuple):
    """A parameter that the runner fills in with the implementation of `interface`.

    `interface` is a class, or one with type arguments (`Repo[int]`). An `optional` need without a
    binding gets `default`.
    """

    parameter: str
    interface: type
    optional: bool = False
    default: Any = None


class PerCall(msgspec.Struct, frozen=True, eq=False):
    """A factory that makes a new implementation for each call; see `per_call`."""

    factory: Callable[..., Any]
    context_parameter: str | None
    positional: bool

    def make(self, context: CallContext | None) -> Any:
        """Return what the factory returns; it gets `context` if it takes one."""
        if self.context_parameter is None:
            return self.factory()
        if self.positional:
            return self.factory(context)
        return self.factory(**{self.context_parameter: context})


@names_wrong_types
def capability(cls: type[T]) -> type[T]:
    """Mark a Protocol as something that the application gives to tools, never the model."""
    check_type("cls", cls, type, "a class, a Protocol")
    setattr(cls, _MARK, True)
    return cls


@explains_wrong_types
def per_call(factory: Callable[..., Any]) -> PerCall:
    """Bind a factory instead of an implementation: `bind({Db: per_call(open_db)})`.

    `factory` takes a `CallContext` or nothing. It returns the implementation, an awaitable of it,
    or a sync or async context manager, which is entered before the tool runs and exited after it,
    whatever the outcome of the call. Bound to several interfaces, or needed twice, one `per_call`
    makes one implementation per call. Raises BindingError for an unsuitable factory.
    """
    name = getattr(factory, "__qualname__", type(factory).__name__)
    if not callable(factory):
        raise BindingError(f"per_call takes a factory, not a {name}: leave out the parentheses")
    if inspect.isgeneratorfunction(factory) or inspect.isasyncgenfunction(factory):
        manager = "asynccontextmanager" if inspect.isasyncgenfunction(factory) else "contextmanager"
        raise BindingError(f"per_call: {name} yields: decorate it with @contextlib.{manager}")
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (ValueError, TypeError):
        return PerCall(factory, None, positional=False)
    context_parameters = [
        p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC
    ] or [p for p in parameters if p.annotation is CallContext or p.annotation == "CallContext"]
    if len(context_parameters) > 1:
        names = ", ".join(p.name for p in context_parameters)
        raise BindingError(
            f"per_call: {name} takes {names}: a factory takes a CallContext, or nothing"
        )
    if not context_parameters:
        return PerCall(factory, None, positional=False)
    positional = context_parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY
    return PerCall(factory, context_parameters[0].name, positional=positional)


def _not_given() -> NoReturn:
    raise CapabilityError(
        "The capability is given to each run of an agent: agent.run(prompt, deps={…}). It was not given"
        " here.",
        retryable=False,
    )


per_run: Final = PerCall(_not_given, None, positional=False)
"""Bound if each run of an agent is given the implementation: `run(prompt, deps={…})`."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def need_of(parameter: str, hint: Any, default: Any = inspect.Parameter.empty) -> Need | None:
    """Return what a parameter with this hint needs injected, or None for an ordinary parameter.

    Raises DefinitionError for a hint that asks for an injection but not for exactly one thing.
    """
    interface, takes_none = _interface_in(hint)
    if interface is None:
        return None
    if default is inspect.Parameter.empty:
        return Need(parameter, interface, optional=takes_none)
    return Need(parameter, interface, optional=True, default=default)


def _interface_in(hint: Any) -> tuple[type | None, bool]:
    """Return the interface, and whether None is accepted."""
    plain, takes_none = _without_none(hint)
    if get_origin(plain) is Annotated:
        inner, *extras = get_args(plain)
        if not any(extra is _INJECTED for extra in extras):
            interface, inner_takes_none = _interface_in(inner)
            return interface, takes_none or inner_takes_none
        interface, inner_takes_none = _without_none(inner)
        cls = get_origin(interface) or interface
        if cls is UnionType or not isinstance(cls, type):
            raise DefinitionError(f"Injected takes a class, not {inner}")
        return interface, takes_none or inner_takes_none
    if get_origin(plain) in (Union, UnionType):
        if any(_interface_in(arm)[0] is not None for arm in get_args(plain)):
            raise DefinitionError(
                f"{hint}: a capability must be a single type, not a union of types"
            )
        return None, False
    cls = get_origin(plain) or plain
    is_marked = isinstance(cls, type) and _MARK in cls.__dict__
    return (plain, takes_none) if is_marked else (None, False)


def is_context(hint: Any) -> bool:
    return _without_none(hint)[0] is CallContext


_MODULE_PREFIX = re.compile(r"(^|\[|, )[^\[\],]*\.")  # a module may have any name: `my-shop`


def interface_name(interface: type) -> str:
    """Return `Orders`, or with type arguments `Repo[int]`."""
    cls: Any = get_origin(interface) or interface
    arguments = ", ".join(
        getattr(argument, "__name__", str(argument)) for argument in get_args(interface)
    )
    return f"{cls.__name__}[{arguments}]" if arguments else str(cls.__name__)


def interface_path(interface: type) -> str:
    """Return `shop.Orders`, or with type arguments `shop.Repo[shop.Order]`.

    No other interface has the same path, unless one function created both.
    """
    cls: Any = get_origin(interface) or interface
    arguments = ", ".join(
        interface_path(argument)
        if isinstance(argument, type) or get_origin(argument)
        else str(argument)
        for argument in get_args(interface)
    )
    path = f"{cls.__module__}.{getattr(cls, '__qualname__', cls)}"
    return f"{path}[{arguments}]" if arguments else path


def given_names(needed: Mapping[type, Collection[str]], given: Collection[type]) -> set[str]:
    """Return the names under which a run saves which of the `needed` interfaces it was `given`.

    `needed` maps each interface to the places in tools that need it. An interface is named by its
    path. If another one has the same path, the places are added: `shop.till_of.<locals>.Till
    (pay_eur.till)`.
    """
    paths = Counter(map(interface_path, needed))
    names = set()
    for interface, places in needed.items():
        if interface in given:
            path = interface_path(interface)
            names.add(path if paths[path] == 1 else f"{path} ({', '.join(sorted(places))})")
    return names


def check_given_again(
    before: Iterable[str], needed: Mapping[type, Collection[str]], given: Collection[type]
) -> None:
    """Check that a run that was given capabilities `before` is given them again, as far as `needed`.

    What the catalog has in their place may belong to somebody else. Saved names are those of
    `given_names`. If no interface has that path, because its module has another name by now
    (`__main__`, for a program), all interfaces with the same bare name count. Of several, those
    count that the same places need, or all if there are none. For a bare name that an earlier
    version saved, any one of them is enough. Raises BindingError.
    """
    paths = {interface: interface_path(interface) for interface in needed}
    for name in sorted(before):
        path, places = _path_and_places(name)
        candidates = [interface for interface in needed if paths[interface] == path] or [
            interface
            for interface in needed
            if _without_module(paths[interface]) == _without_module(path)
        ]
        matching = [
            interface for interface in candidates if not places.isdisjoint(needed[interface])
        ] or candidates
        given_again = [interface for interface in matching if interface in given]
        is_bare = "." not in path.partition("[")[0]
        if matching and not (given_again if is_bare else len(given_again) == len(matching)):
            raise BindingError(
                f"the run was given its own {name}, and cannot continue with another: give it again,"
                f" with deps={{{_without_module(path)}: implementation}}"
                f"{_places_note(matching, needed)}"
            )


def _places_note(interfaces: Collection[type], needed: Mapping[type, Collection[str]]) -> str:
    """Say where each of several interfaces with the same name is needed."""
    if len(interfaces) == 1:
        return ""
    places = " and ".join(
        f"the one that {', '.join(sorted(needed[interface]))} needs" for interface in interfaces
    )
    return f" for each interface of that name: {places}"


def _path_and_places(name: str) -> tuple[str, frozenset[str]]:
    """Split a name of `given_names` into its path and the places, if it has them."""
    if not name.endswith(")"):
        return name, frozenset()
    path, _, places = name[:-1].rpartition(" (")
    return path, frozenset(places.split(", "))


def _without_module(path: str) -> str:
    """Return `Repo[Order]` for `shop.Repo[shop.Order]`."""
    return _MODULE_PREFIX.sub(r"\1", path)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return `X` and True for `X | None`, if the union has no other members."""
    arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    rest = [arm for arm in arms if arm is not NoneType]
    return (rest[0], True) if len(rest) == 1 and len(arms) == 2 else (hint, False)


# Check whether an object implements an interface. Only what is certainly wrong is refused.
#
# A Protocol says which members there are, which of them are `async def`, and what they take.
# Whether values have the right types is left to a type checker. No property of the implementation
# is evaluated.

_CLASS_HOOKS = frozenset({"__init__", "__new__", "__init_subclass__", "__subclasshook__"})
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ABSENT = object()


@names_wrong_types
def check_implements(interface: type, implementation: object, tool: str) -> None:
    """Raise BindingError, naming the tool, the interface and what the implementation lacks."""
    plain: Any = get_origin(interface) or interface
    where = f"tool '{tool}' needs {interface_name(interface)}"
    if not getattr(plain, "_is_protocol", False):
        if not isinstance(implementation, plain):
            is_own_class = isinstance(implementation, type) and issubclass(implementation, plain)
            problem = (
                _class_problem(implementation)
                if is_own_class
                else _function_problem(implementation, "is not one")
            )
            raise BindingError(f"{where}, and {_name(implementation)} {problem}")
        return
    for member in members(plain):
        _check_member(plain, implementation, member, where)


def check_may_implement(interface: type, cls: type, tool: str, factory: str) -> None:
    """Check a class that a factory's return hint names. Only its methods are known."""
    plain: Any = get_origin(interface) or interface
    where = (
        f"tool '{tool}' needs {interface_name(interface)}, and {factory} returns {cls.__name__}, "
    )
    if not getattr(plain, "_is_protocol", False):
        if not issubclass(cls, plain) and not issubclass(plain, cls):
            raise BindingError(f"{where}which is not one")
        return
    if getattr(cls, "_is_protocol", False) or hasattr(cls, "__getattr__"):
        return
    for member in members(plain):
        if _function(plain, member) is not None and not hasattr(cls, member):
            raise BindingError(f"{where}which has no '{member}'")


@lru_cache(maxsize=256)
def members(protocol: type) -> tuple[str, ...]:
    """Return the names that a Protocol and its bases declare, in order, with special methods."""
    names: dict[str, None] = {}
    for base in reversed(protocol.__mro__):
        if getattr(base, "_is_protocol", False) and base.__module__ not in _TYPING_MODULES:
            declared = (*base.__dict__, *inspect.get_annotations(base))
            names |= dict.fromkeys(
                n for n in declared if not n.startswith("_") or _is_special(base, n)
            )
    return tuple(names)


_TYPING_MODULES = ("typing", "typing_extensions")


def _is_special(base: type, name: str) -> bool:
    """Return whether a special method is defined in the class's own body."""
    attribute = base.__dict__.get(name)
    if not name.endswith("__") or name in _CLASS_HOOKS or name.startswith("__annotate"):
        return False
    return inspect.isfunction(attribute) and attribute.__qualname__ == f"{base.__qualname__}.{name}"


def _function(protocol: type, member: str) -> Callable[..., Any] | None:
    attribute = inspect.getattr_static(protocol, member, None)
    attribute = getattr(attribute, "__func__", attribute)  # of a static or a class method
    return attribute if inspect.isfunction(attribute) else None


def _check_member(protocol: type, implementation: object, member: str, where: str) -> None:
    name = _name(implementation)
    static = inspect.getattr_static(implementation, member, _ABSENT)
    if isinstance(static, property):
        return
    is_unset = static is _ABSENT or isinstance(static, MemberDescriptorType)
    if is_unset and not hasattr(implementation, member):
        missing = _function_problem(implementation, f"has no '{member}'")
        raise BindingError(f"{where}, and {name} {missing}")
    if _function(protocol, member) is None:
        return
    method = getattr(implementation, member, None)
    if not callable(method):
        raise BindingError(f"{where}, and '{member}' of {name} is no method")
    if isinstance(implementation, type) and inspect.isfunction(static):
        raise BindingError(f"{where}, and {name} {_class_problem(implementation)}")
    function = getattr(method, "__func__", None)  # the same for each instance, so checked once
    if inspect.isfunction(function):
        mismatch = _mismatch(protocol, member, function, True)
    else:
        mismatch = _mismatch.__wrapped__(protocol, member, method, False)
    if mismatch:
        raise BindingError(f"{where}, and '{member}' of {name} {mismatch}")


@lru_cache(maxsize=1024)
def _mismatch(protocol: type, member: str, method: Callable[..., Any], bound: bool) -> str:
    """Return what is certainly wrong with a method, or "". The signature that a wrapper shows is
    trusted.

    `bound`: it is called with one more argument, which comes first and is the instance.
    """
    declared: Any = _function(protocol, member)
    is_declared_async, is_async = inspect.iscoroutinefunction(declared), _is_async(method)
    if is_declared_async and (
        inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method)
    ):
        return f"yields: {protocol.__name__} declares it with `async def`, to be awaited"
    if is_declared_async and not is_async and _is_surely_sync(method):
        return f"is not async: {protocol.__name__} declares it with `async def`"
    if is_async and not is_declared_async and _is_surely_sync(declared):
        return f"is async: {protocol.__name__} declares it with a plain `def`"
    is_static = isinstance(inspect.getattr_static(protocol, member), staticmethod)
    return _cannot_take(_signature(declared, not is_static), _signature(method, bound), protocol)


def _is_async(function: Any) -> bool:
    """Return whether it is a coroutine function. `inspect` says yes for any mock made by
    `create_autospec`."""
    while isinstance(function, partial):
        function = function.func
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return isinstance(flags, int) and inspect.iscoroutinefunction(function)


def _is_surely_sync(function: Callable[..., Any]) -> bool:
    """Return whether a return hint shows that the result can't be awaited. A wrapper's hints don't
    count."""
    if hasattr(function, "__wrapped__"):
        return False
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  a hint may name anything, and raise anything
        return False
    return "return" in hints and not _may_await(hints["return"])


def _may_await(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_may_await(arm) for arm in get_args(hint))
    plain = get_origin(hint) or hint
    if plain is None or plain is NoneType:
        return False
    return not isinstance(plain, type) or plain in (Any, object) or issubclass(plain, Awaitable)


def _signature(function: Callable[..., Any], bound: bool) -> inspect.Signature | None:
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):
        return None
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].kind in _BY_POSITION:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def _cannot_take(
    expected: inspect.Signature | None, actual: inspect.Signature | None, protocol: type
) -> str:
    """Say that a method cannot be called as the Protocol declares it, or return "".

    Two calls are tried: with all declared parameters and with the required ones only.
    """
    if expected is None or actual is None:
        return ""
    declared = list(expected.parameters.values())
    if any(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in declared
    ):
        return ""
    required = [parameter for parameter in declared if parameter.default is parameter.empty]
    for parameters in (declared, required):
        if not any(_binds(actual, parameters, by_name) for by_name in (False, True)):
            bare = inspect.Signature(
                [parameter.replace(annotation=parameter.empty) for parameter in declared]
            )
            return f"cannot be called as {protocol.__name__} declares it, {bare}"
    return ""


def _binds(
    signature: inspect.Signature, parameters: list[inspect.Parameter], by_name: bool
) -> bool:
    positional: list[None] = []
    keywords: dict[str, None] = {}
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY or (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD and not by_name
        ):
            positional.append(None)
        elif parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            keywords[parameter.name] = None
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


def _class_problem(implementation: object) -> str:
    name = _name(implementation)
    return f"is a class: bind an instance, {name}(…), or per_call({name})"


def _function_problem(implementation: object, problem: str) -> str:
    """Say what an implementation lacks; for a function, how to make it a factory for each call."""
    if not inspect.isroutine(implementation):
        return problem
    return f"is a function: bind what it returns, or per_call({_name(implementation)})"


def _name(implementation: object) -> str:
    has_name = isinstance(implementation, type) or inspect.isroutine(implementation)
    owner: Any = implementation if has_name else type(implementation)
    return str(owner.__name__)
