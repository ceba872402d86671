"""A value of a wrong type raises immediately, where it was given, with a one-sentence message.

A value that applications create checks its fields once, on creation: `Caller("ada", "admin")` is an
error there, and does not become one role per character at the first call. Lists are accepted for
tuples. The message names the parameter, the expected type and the type that came, never the value.

A value that is `HandWritten` answers an unknown keyword with the names of its fields, and a decorated
function with those of its parameters.

Public functions have the decorator `names_wrong_types`. It checks each argument against its hint
before the function begins, as far as a class can tell. What a wrong value causes later is not
explained, with one exception: if an error of Python's own is raised inside (`'int' object has no
attribute 'strip'`) and an element of an argument does not match its hint, the message says so. If
all elements match, the error stays unchanged.
"""

from __future__ import annotations

import contextlib
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

from toolcrib.errors import ToolcribError, no_such

P = ParamSpec("P")
R = TypeVar("R")

_SURROGATE = re.compile("[\ud800-\udfff]")
_TYPE_WORDS = {type(None): "None", Mapping: "mapping", Callable: "function"}
_FIELD_NOTES = {
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
        names = [_TYPE_WORDS.get(kind, getattr(kind, "__name__", str(kind))) for kind in self.types]
        of = f" of {' or '.join(kind.__name__ for kind in self.each)}" if self.each else ""
        return (
            " or ".join(dict.fromkeys(name for name in names if name != "bool" or len(names) < 3))
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
        fits = _FIT_CHECKS.get(kind) or _generated_check(kind)
        if not fits(self):
            _check_fields(self)


class _NamesFields(msgspec.StructMeta):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  a class calls it
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            fields = msgspec.structs.fields(cast("type[msgspec.Struct]", cls))
            names = [field.name for field in fields]
            for name in kwargs:
                if name not in names:
                    raise TypeError(f"{cls.__name__}: {no_such('field', name, names)}") from None
            for field in fields[len(args) :]:
                if field.required and field.name not in kwargs:
                    raise TypeError(f"{cls.__name__}: {field.name}= is missing") from None
            raise


class HandWritten(Checked, msgspec.Struct, frozen=True, metaclass=_NamesFields):
    """A checked value that programs write by hand: its constructor knows how its fields are called.

    That takes 0.3 µs more, so it is not for what is made with each call or message.
    """


_FIT_CHECKS: dict[type, Callable[[Any], bool]] = {}
"""By class, a fast check that accepts most valid values; the others are checked in detail."""


def _generated_check(kind: Any) -> Callable[[Any], bool]:
    """Generate that function for a class, as dataclasses do.

    Each field must be its default, of a class that its hint names, a tuple of such, or one of its
    literal values; logged fields must be ASCII.
    """
    checks = []
    namespace: dict[str, Any] = {"str": str, "tuple": tuple, "type": type, "map": map}
    defaults = {each.name: each.default for each in msgspec.structs.fields(kind)}
    for index, (name, field, plain) in enumerate(_checkable_fields(kind)):
        value = f"made.{name}"
        namespace |= {f"kind_{index}_{n}": each for n, each in enumerate(plain)}
        conditions = [f"{value}.__class__ is kind_{index}_{n}" for n in range(len(plain))]
        if defaults[name] is not msgspec.NODEFAULT:
            namespace[f"default_{index}"] = defaults[name]
            conditions.insert(0, f"{value} is default_{index}")
        if field.each:
            namespace[f"each_{index}"] = frozenset(field.each)
            elements_fit = f"not {value} or each_{index}.issuperset(map(type, {value}))"
            conditions.append(f"{value}.__class__ is tuple and ({elements_fit})")
        if field.choices:
            namespace |= {
                f"kinds_{index}": frozenset(field.types),
                f"words_{index}": frozenset(field.choices),
            }
            conditions.append(f"{value}.__class__ in kinds_{index} and {value} in words_{index}")
        checks.append(f"({' or '.join(conditions) or False})")
        if name in kind.logged:
            is_text_ascii = f"{value}.isascii() if {value}.__class__ is str else not {value}"
            checks.append(f"{value}.isascii()" if plain == {str} else f"({is_text_ascii})")
    fits: Callable[[Any], bool] = eval(f"lambda made: {' and '.join(checks) or True}", namespace)  # noqa: S307  own names
    return _FIT_CHECKS.setdefault(kind, fits)


def _check_fields(struct: Any) -> None:
    for name, kind, plain in _checkable_fields(struct.__class__):
        value = getattr(struct, name)
        if value.__class__ in plain:
            continue
        if value.__class__ is tuple and not value and tuple in kind.types:
            continue
        if value.__class__ is list and tuple in kind.types:
            value = tuple(value)
            msgspec.structs.force_setattr(struct, name, value)
        if not kind.fits(value):
            owner = struct.__class__.__name__
            note = _FIELD_NOTES.get((owner, name), "")
            raise TypeError(
                f"{owner}: {name} must be {_article(str(kind))}{note}; {got_type(value, kind.each)}"
            )
    for name in struct.logged:
        if _SURROGATE.search("".join(getattr(struct, name))):
            raise ValueError(
                f"{struct.__class__.__name__}: {name} holds a lone surrogate, which a log cannot hold:"
                " decode the text as UTF-8"
            )


def check_type(
    name: str, value: object, kind: type | types.UnionType | tuple[type, ...], wanted: str
) -> None:
    """Raise TypeError unless `value` is a `kind`; `wanted` says in words what it has to be."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {wanted}; {got_type(value)}")


def check_each(
    name: str, values: object, kind: type | tuple[type, ...], wanted: str
) -> tuple[Any, ...]:
    """Return the values of an iterable as a tuple. Raises TypeError unless each of them is a
    `kind`."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be {wanted}; {got_type(values)}")
    elements = tuple(values)
    for index, value in enumerate(elements):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {wanted}; {name}[{index}]: {got_type(value)}")
    return elements


def names_wrong_types(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function or constructor: it raises TypeError for a value of a wrong type.

    The message names the parameter.
    """
    return _with_explained_errors(function, _Arguments(function).check)


def explains_wrong_types(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function that checks its arguments itself, with more specific messages.

    Only an error of Python's own from inside becomes the TypeError of `names_wrong_types`.
    """
    return _with_explained_errors(function, lambda _args, _kwargs: None)


def names_parameters(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public constructor or function that checks the types of its arguments itself.

    Only an unknown parameter becomes the TypeError of `names_wrong_types`.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            unknown = _unknown_parameter(function, kwargs)
            if unknown is None:
                raise
        raise unknown

    return called


def _with_explained_errors(
    function: Callable[P, R], check: Callable[[tuple[Any, ...], Mapping[str, Any]], None]
) -> Callable[P, R]:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            check(args, kwargs)
            try:
                return await function(*args, **kwargs)
            except _BUILTIN_ERRORS as error:
                explained = _explained_error(function, error, args, kwargs)
                if explained is error:
                    raise
            raise explained

        return cast("Callable[P, R]", awaited)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        check(args, kwargs)
        try:
            return function(*args, **kwargs)
        except _BUILTIN_ERRORS as error:
            explained = _explained_error(function, error, args, kwargs)
            if explained is error:
                raise
        raise explained

    return called


_OWN = ("self", "cls")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_Hinted: TypeAlias = tuple[str, _FieldKind | None, frozenset[Any]]
"""A parameter's name, its kind if a class can tell it, and classes that need no more checks."""
_ANY: _Hinted = ("", None, frozenset())


class _Arguments:
    """Checks the arguments of one function against its hints, which are read at the first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._hinted: tuple[list[_Hinted], _Hinted, Mapping[str, _Hinted]] | None = None

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        by_position, variadic, by_name = self._hinted or self._read()
        pairs: Iterable[tuple[_Hinted, Any]] = zip(
            chain(by_position, repeat(variadic)), args, strict=False
        )
        if kwargs:
            if not by_name.keys() >= kwargs.keys():
                unknown = _unknown_parameter(self._function, kwargs)
                if unknown is not None:  # before the function says what else it lacks
                    raise unknown
            pairs = chain(pairs, ((by_name.get(name, _ANY), kwargs[name]) for name in kwargs))
        for (name, kind, plain), value in pairs:
            if value.__class__ not in plain and kind is not None and not _is_accepted(kind, value):
                raise self._type_error(name, kind, value)

    def _type_error(self, name: str, kind: _FieldKind, value: object) -> TypeError:
        return TypeError(
            f"{_owner(self._function)}: {name} must be {_article(str(kind))}; {got_type(value)}"
        )

    def _read(self) -> tuple[list[_Hinted], _Hinted, Mapping[str, _Hinted]]:
        try:
            hints = get_type_hints(self._function)
        except NameError:  # from an optional extra that is not installed
            hints = {}
        parameters = inspect.signature(self._function).parameters.values()
        hinted = {
            parameter.name: (
                parameter.name,
                class_kind := kind._replace(each=(), choices=()),
                _certain_classes(class_kind),
            )
            for parameter in parameters
            if parameter.name in hints
            and (kind := _kind_of_hint(hints[parameter.name])) is not None
            if parameter.kind is not parameter.VAR_KEYWORD
            and all(map(_is_checked_by_class, kind.types))
        }
        by_position = [hinted.get(p.name, _ANY) for p in parameters if p.kind < p.VAR_POSITIONAL]
        variadic = [hinted.get(p.name, _ANY) for p in parameters if p.kind is p.VAR_POSITIONAL]
        by_name = {p.name: hinted.get(p.name, _ANY) for p in parameters if p.kind in _BY_NAME}
        by_name |= dict.fromkeys(_unpacked_names(self._function), _ANY)
        self._hinted = by_position, variadic[0] if variadic else _ANY, by_name
        return self._hinted


def _is_accepted(kind: _FieldKind, value: object) -> bool:
    """Return whether a value fits. The function itself judges elements and literal values."""
    if isinstance(value, list) and tuple in kind.types:
        return True
    return _fits(kind, value)


def _is_checked_by_class(kind: Any) -> bool:
    """Return whether only an instance will do. For other classes a lookalike, such as a file, will."""
    return kind in _CHECKED_BY_CLASS or str(getattr(kind, "__module__", "")).startswith("toolcrib")


_CHECKED_BY_CLASS = frozenset(
    (str, bytes, int, float, bool, type(None), tuple, list, dict, frozenset, Mapping, Callable)
)


_BUILTIN_ERRORS = (AttributeError, LookupError, TypeError, ValueError)


def _explained_error(
    function: Callable[..., Any], error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Exception:
    """Return an error about the first argument that does not match its hint, else the original."""
    if isinstance(error, ToolcribError):
        return error
    signature = inspect.signature(function)
    owner = _owner(function)
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return _unknown_parameter(function, kwargs) or error  # of the number, Python speaks well
    hints = get_type_hints(function)
    for name, value in arguments.items():
        is_variadic = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        kind = _kind_of_hint(hints[name]) if name in hints else None
        for argument in value if is_variadic else (value,):
            if kind is not None and not _fits(kind, argument):
                return TypeError(
                    f"{owner}: {name} must be {_article(str(kind))}; {got_type(argument)}"
                )
            for index, element, expected in _wrong_elements(hints.get(name), argument):
                return TypeError(
                    f"{owner}: each item of {name} must be {_article(str(expected))}; "
                    f"{name}[{index}]: {got_type(element)}"
                )
    return error


def _unknown_parameter(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> TypeError | None:
    """Return an error about the first argument whose parameter the function does not have."""
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind in _BY_NAME and each.name not in _OWN]
    unpacked = _unpacked_names(function)
    if not unpacked and any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    names += unpacked
    unknown = next((name for name in kwargs if name not in names), None)
    if unknown is None:
        return None
    return TypeError(f"{_owner(function)}: {no_such('parameter', unknown, names)}")


def _unpacked_names(function: Callable[..., Any]) -> list[str]:
    """Return the keywords of `**options: Unpack[Options]`, a TypedDict."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            with contextlib.suppress(NameError):  # from an optional extra that is not installed
                options = get_args(get_type_hints(function).get(name))
                return list(get_type_hints(options[0])) if options else []
    return []


def _owner(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _wrong_elements(hint: Any, value: object) -> Iterator[tuple[int, object, _FieldKind]]:
    """Yield the elements of a list or tuple that do not match the hint of a collection."""
    kinds = get_args(hint)
    if len(kinds) != 1 or get_origin(hint) is type or not isinstance(value, list | tuple):
        return
    kind = _kind_of_hint(kinds[0])
    for index, element in enumerate(value):
        if kind is not None and not _fits(kind, element):
            yield index, element, kind


def _fits(kind: _FieldKind, value: object) -> bool:
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


def got_type(value: object, each: tuple[Any, ...] = ()) -> str:
    """Describe a wrong value by its type; a tuple with wrong elements by the first of them, and a
    class, which its author may have meant to call, by its name."""
    if each and isinstance(value, tuple):
        value = next(element for element in value if not isinstance(element, each))
        return f"got one that holds {_type_of(value)}"
    return f"got {_type_of(value)}"


def _type_of(value: object) -> str:
    return (
        f"the class {value.__name__}" if isinstance(value, type) else _article(type(value).__name__)
    )


def _article(word: str) -> str:
    if word.startswith(("one of", "None")):
        return word
    return f"{'an' if word[0] in 'aeioAEIO' else 'a'} {word}"


_ALL_VALUES: dict[tuple[Any, ...], tuple[Any, ...]] = {
    (bool,): (False, True),
    (type(None),): (None,),
}


@lru_cache(maxsize=256)
def _checkable_fields(cls: Any) -> tuple[tuple[str, _FieldKind, frozenset[Any]], ...]:
    """Return the fields that can be checked, their kinds, and classes that need no more checks."""
    hints = get_type_hints(cls)
    names = cls.__struct_fields__
    kinds = ((name, _kind_of_hint(hints[name])) for name in names)
    return tuple((name, kind, _certain_classes(kind)) for name, kind in kinds if kind is not None)


def _certain_classes(kind: _FieldKind) -> frozenset[Any]:
    """Return the classes whose values need no more checks. Tuples with typed elements are not among
    them."""
    if kind.choices:
        return frozenset()
    classes = frozenset(kind.types) - ({tuple} if kind.each else set())
    return classes | {dict} if Mapping in classes else classes


def _kind_of_hint(hint: Any) -> _FieldKind | None:
    """Return the kind for a hint, or None if the hint implies nothing that can be checked."""
    origin = get_origin(hint)
    if origin is Literal:
        return _FieldKind(tuple({type(choice) for choice in get_args(hint)}), (), get_args(hint))
    if origin in (Union, types.UnionType):
        kinds = [_kind_of_hint(part) for part in get_args(hint)]
        checkable = [kind for kind in kinds if kind is not None]
        if len(checkable) < len(kinds):
            return None
        each = tuple(kind for checked in checkable for kind in checked.each)
        types_ = tuple(kind for checked in checkable for kind in checked.types)
        parts = [checked.choices or _ALL_VALUES.get(checked.types, ()) for checked in checkable]
        choices = tuple(choice for part in parts for choice in part)
        has_words = all(parts) and any(checked.choices for checked in checkable)
        return _FieldKind(types_, each, choices if has_words else ())
    if origin is tuple:
        element = _kind_of_hint(get_args(hint)[0])
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
