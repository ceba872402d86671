"""A value of a wrong type raises immediately, where it was given, with a one-sentence message.

A value that applications create checks its fields once, on creation: `Caller("ada", "admin")` is an
error there, and does not become one role per character at the first call. Lists are accepted for
tuples. The message names the parameter, the expected type and the type that came, never the value.

Public functions have the decorator `names_wrong_types`. It checks each argument against its hint
before the function begins, as far as a class can tell. What a wrong value causes later is not
explained, with one exception: if an error of Python's own is raised inside (`'int' object has no
attribute 'strip'`) and an element of an argument does not match its hint, the message says so. If
all elements match, the error stays unchanged.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, wraps
from itertools import chain, repeat
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from toolcrib.errors import ToolcribError

P = ParamSpec("P")
R = TypeVar("R")

_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {type(None): "None", Mapping: "mapping", Callable: "function"}
_NOTES = {
    ("ToolCall", "arguments"): ", the JSON text that the model sent (json.dumps(…))",
    ("Message", "tool_calls"): ", of ToolCall",
}


class _FieldKind(NamedTuple):
    """The values a field takes: instances of `types`, elements of `each`, one of `choices`."""

    types: tuple[Any, ...]
    each: tuple[Any, ...] = ()
    choices: tuple[Any, ...] = ()

    def fits(self, value: Any) -> bool:
        if not isinstance(value, self.types):
            return False
        if value.__class__ is bool and bool not in self.types and object not in self.types:
            return False  # to Python it is an int
        if self.each and isinstance(value, tuple):
            return all(isinstance(element, self.each) for element in value)
        return not self.choices or value in self.choices

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        named = [_WORDS.get(kind, getattr(kind, "__name__", str(kind))) for kind in self.types]
        of = f" of {' or '.join(kind.__name__ for kind in self.each)}" if self.each else ""
        return (
            " or ".join(dict.fromkeys(name for name in named if name != "bool" or len(named) < 3))
            + of
        )


class Checked:
    """A value that checks its fields on creation.

    Raises TypeError for a field that is not of its declared type, and ValueError for a lone
    surrogate in a field that is `logged`.
    """

    __slots__ = ()
    logged: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        kind = self.__class__
        fits = _FITS.get(kind) or _written(kind)
        if not fits(self):
            _checked(self)


_FITS: dict[type, Callable[[Any], bool]] = {}
"""By class, a fast check that accepts most valid values; the others are checked in detail."""


def _written(kind: Any) -> Callable[[Any], bool]:
    """Generate that function for a class, as dataclasses do.

    Each field must be its default, of a class that its hint names, a tuple of such, or one of its
    literal values; logged fields must be ASCII.
    """
    tests = []
    known: dict[str, Any] = {"str": str, "tuple": tuple, "type": type, "map": map}
    defaults = {each.name: each.default for each in msgspec.structs.fields(kind)}
    for at, (name, field, plain) in enumerate(_fields(kind)):
        value = f"made.{name}"
        known |= {f"kind_{at}_{n}": each for n, each in enumerate(plain)}
        either = [f"{value}.__class__ is kind_{at}_{n}" for n in range(len(plain))]
        if defaults[name] is not msgspec.NODEFAULT:
            known[f"default_{at}"] = defaults[name]
            either.insert(0, f"{value} is default_{at}")
        if field.each:
            known[f"each_{at}"] = frozenset(field.each)
            holds = f"not {value} or each_{at}.issuperset(map(type, {value}))"
            either.append(f"{value}.__class__ is tuple and ({holds})")
        if field.choices:
            known |= {
                f"kinds_{at}": frozenset(field.types),
                f"words_{at}": frozenset(field.choices),
            }
            either.append(f"{value}.__class__ in kinds_{at} and {value} in words_{at}")
        tests.append(f"({' or '.join(either) or False})")
        if name in kind.logged:
            of_text = f"{value}.isascii() if {value}.__class__ is str else not {value}"
            tests.append(f"{value}.isascii()" if plain == {str} else f"({of_text})")
    fits: Callable[[Any], bool] = eval(f"lambda made: {' and '.join(tests) or True}", known)  # noqa: S307  own names
    return _FITS.setdefault(kind, fits)


def _checked(made: Any) -> None:
    for name, kind, plain in _fields(made.__class__):
        value = getattr(made, name)
        if value.__class__ in plain:
            continue
        if value.__class__ is tuple and not value and tuple in kind.types:
            continue
        if value.__class__ is list and tuple in kind.types:
            value = tuple(value)
            msgspec.structs.force_setattr(made, name, value)
        if not kind.fits(value):
            owner = made.__class__.__name__
            note = _NOTES.get((owner, name), "")
            raise TypeError(
                f"{owner}: {name} must be {_article(str(kind))}{note}; {came(value, kind.each)}"
            )
    for name in made.logged:
        if _SURROGATE.search("".join(getattr(made, name))):
            raise ValueError(
                f"{made.__class__.__name__}: {name} holds a lone surrogate, which a log cannot hold:"
                " decode the text as UTF-8"
            )


def check_type(
    name: str, value: object, kind: type | types.UnionType | tuple[type, ...], wanted: str
) -> None:
    """Raise TypeError unless `value` is a `kind`; `wanted` says in words what it has to be."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {wanted}; {came(value)}")


def check_each(
    name: str, values: object, kind: type | tuple[type, ...], wanted: str
) -> tuple[Any, ...]:
    """Return the values of an iterable as a tuple. Raises TypeError unless each of them is a
    `kind`."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be {wanted}; {came(values)}")
    given = tuple(values)
    for at, value in enumerate(given):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {wanted}; {name}[{at}]: {came(value)}")
    return given


def names_wrong_types(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function or constructor: it raises TypeError for a value of a wrong type.

    The message names the parameter.
    """
    return _naming(function, _Arguments(function).check)


def explains_wrong_types(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function that checks its arguments itself, with more specific messages.

    Only an error of Python's own from inside becomes the TypeError of `names_wrong_types`.
    """
    return _naming(function, lambda _args, _kwargs: None)


def _naming(
    function: Callable[P, R], check: Callable[[tuple[Any, ...], Mapping[str, Any]], None]
) -> Callable[P, R]:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            check(args, kwargs)
            try:
                return await function(*args, **kwargs)
            except _PYTHONS_OWN as error:
                told = _told(function, error, args, kwargs)
                if told is error:
                    raise
            raise told

        return cast("Callable[P, R]", awaited)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        check(args, kwargs)
        try:
            return function(*args, **kwargs)
        except _PYTHONS_OWN as error:
            told = _told(function, error, args, kwargs)
            if told is error:
                raise
        raise told

    return called


_Hinted: TypeAlias = tuple[str, _FieldKind | None, frozenset[Any]]
"""A parameter's name, its kind if a class can tell it, and classes that need no more checks."""
_ANY: _Hinted = ("", None, frozenset())


class _Arguments:
    """Checks the arguments of one function against its hints, which are read at the first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._known: tuple[list[_Hinted], _Hinted, Mapping[str, _Hinted]] | None = None

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        by_place, others, by_name = self._known or self._read()
        given: Iterable[tuple[_Hinted, Any]] = zip(
            chain(by_place, repeat(others)), args, strict=False
        )
        if kwargs:
            given = chain(given, ((by_name.get(name, _ANY), kwargs[name]) for name in kwargs))
        for (name, kind, plain), value in given:
            if value.__class__ not in plain and kind is not None and not _is_taken(kind, value):
                raise self._wrong(name, kind, value)

    def _wrong(self, name: str, kind: _FieldKind, value: object) -> TypeError:
        owner = self._function.__qualname__.removesuffix(".__init__")
        return TypeError(f"{owner}: {name} must be {_article(str(kind))}; {came(value)}")

    def _read(self) -> tuple[list[_Hinted], _Hinted, Mapping[str, _Hinted]]:
        try:
            hints = get_type_hints(self._function)
        except NameError:  # from an optional extra that is not installed
            hints = {}
        parameters = inspect.signature(self._function).parameters.values()
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = {
            one.name: (one.name, bare := kind._replace(each=(), choices=()), _plain(bare))
            for one in parameters
            if one.name in hints and (kind := _kind(hints[one.name])) is not None
            if one.kind is not one.VAR_KEYWORD and all(map(_is_told_by_class, kind.types))
        }
        by_place = [known.get(p.name, _ANY) for p in parameters if p.kind < p.VAR_POSITIONAL]
        many = [known.get(p.name, _ANY) for p in parameters if p.kind is p.VAR_POSITIONAL]
        by_name = {p.name: known.get(p.name, _ANY) for p in parameters if p.kind in named}
        self._known = by_place, many[0] if many else _ANY, by_name
        return self._known


def _is_taken(kind: _FieldKind, value: object) -> bool:
    """Return whether a value fits. The function itself judges elements and literal values."""
    if isinstance(value, list) and tuple in kind.types:
        return True
    return _is_meant(kind, value)


def _is_told_by_class(kind: Any) -> bool:
    """Return whether only an instance will do. For other classes a lookalike, such as a file, will."""
    return kind in _TOLD or str(getattr(kind, "__module__", "")).startswith("toolcrib")


_TOLD = frozenset(
    (str, bytes, int, float, bool, type(None), tuple, list, dict, frozenset, Mapping, Callable)
)


_PYTHONS_OWN = (AttributeError, LookupError, TypeError, ValueError)


def _told(
    function: Callable[..., Any], error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Exception:
    """Return an error about the first argument that does not match its hint, else the original."""
    if isinstance(error, ToolcribError):
        return error
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # too many or too few; Python's message says so
        return error
    hints = get_type_hints(function)
    owner = function.__qualname__.removesuffix(".__init__")
    for name, value in given.items():
        many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        kind = _kind(hints[name]) if name in hints else None
        for one in value if many else (value,):
            if kind is not None and not _is_meant(kind, one):
                return TypeError(f"{owner}: {name} must be {_article(str(kind))}; {came(one)}")
            for at, element, each in _odd_elements(hints.get(name), one):
                return TypeError(
                    f"{owner}: each item of {name} must be {_article(str(each))}; "
                    f"{name}[{at}]: {came(element)}"
                )
    return error


def _odd_elements(hint: Any, value: object) -> Iterator[tuple[int, object, _FieldKind]]:
    """Yield the elements of a list or tuple that do not match the hint of a collection."""
    kinds = get_args(hint)
    if len(kinds) != 1 or get_origin(hint) is type or not isinstance(value, list | tuple):
        return
    kind = _kind(kinds[0])
    for at, element in enumerate(value):
        if kind is not None and not _is_meant(kind, element):
            yield at, element, kind


def _is_meant(kind: _FieldKind, value: object) -> bool:
    """Return whether a value fits. A string is a sequence to Python, but never meant as one."""
    if isinstance(value, str | bytes) and type(value) not in kind.types:
        return False
    return kind.fits(value)


def takes(function: Callable[..., object], count: int) -> bool:
    """Return whether a function can be called with that many arguments, as far as is known."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it has no signature to inspect
        return True
    return True


def came(value: object, each: tuple[Any, ...] = ()) -> str:
    """Describe a wrong value by its type; a tuple with wrong elements by the first of them."""
    if each and isinstance(value, tuple):
        value = next(element for element in value if not isinstance(element, each))
        return f"got one that holds {_article(type(value).__name__)}"
    return f"got {_article(type(value).__name__)}"


def _article(word: str) -> str:
    if word.startswith(("one of", "None")):
        return word
    return f"{'an' if word[0] in 'aeioAEIO' else 'a'} {word}"


_ALL_OF: dict[tuple[Any, ...], tuple[Any, ...]] = {(bool,): (False, True), (type(None),): (None,)}


@lru_cache(maxsize=256)
def _fields(made: Any) -> tuple[tuple[str, _FieldKind, frozenset[Any]], ...]:
    """Return the fields that can be checked, their kinds, and classes that need no more checks."""
    hints = get_type_hints(made)
    names = made.__struct_fields__
    kinds = ((name, _kind(hints[name])) for name in names)
    return tuple((name, kind, _plain(kind)) for name, kind in kinds if kind is not None)


def _plain(kind: _FieldKind) -> frozenset[Any]:
    """Return the classes whose values need no more checks. Tuples with typed elements are not among
    them."""
    if kind.choices:
        return frozenset()
    classes = frozenset(kind.types) - ({tuple} if kind.each else set())
    return classes | {dict} if Mapping in classes else classes


def _kind(hint: Any) -> _FieldKind | None:
    """Return the kind for a hint, or None if the hint implies nothing that can be checked."""
    origin = get_origin(hint)
    if origin is Literal:
        return _FieldKind(tuple({type(choice) for choice in get_args(hint)}), (), get_args(hint))
    if origin in (Union, types.UnionType):
        kinds = [_kind(part) for part in get_args(hint)]
        known = [kind for kind in kinds if kind is not None]
        if len(known) < len(kinds):
            return None
        each = tuple(kind for one in known for kind in one.each)
        types_ = tuple(kind for one in known for kind in one.types)
        parts = [one.choices or _ALL_OF.get(one.types, ()) for one in known]
        choices = tuple(choice for part in parts for choice in part)
        has_words = all(parts) and any(one.choices for one in known)
        return _FieldKind(types_, each, choices if has_words else ())
    if origin is tuple:
        element = _kind(get_args(hint)[0])
        return _FieldKind((tuple,), element.types if element is not None else ())
    kind = origin or hint
    if kind is Any:
        return None
    if kind is float:
        return _FieldKind((float, int))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return _FieldKind((Mapping,))
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or kind is object:
        return None
    return _FieldKind((kind,))
