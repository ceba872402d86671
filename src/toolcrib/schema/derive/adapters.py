"""What reads typed values from JSON: pydantic's adapters, kept, and converters for what they miss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from pydantic import (
    BaseModel,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
)
from pydantic_core import PydanticOmit
from pydantic_core import SchemaError as CoreSchemaError

from toolcrib.errors import DefinitionError
from toolcrib.schema.derive.flat import FlatAdapter, flat_adapter
from toolcrib.schema.derive.hints import identity, show, with_lists
from toolcrib.schema.derive.reading import Reader
from toolcrib.schema.derive.typed_dicts import make_readable

Converter: TypeAlias = Callable[[Any], Any]
Adapter: TypeAlias = TypeAdapter[Any] | FlatAdapter
_SHOWN = 200
# pydantic's advice is for those who need no JSON.
_ADVICE = ". Set `arbitrary_types_allowed"
_SAYS_ITSELF = (PydanticUserError, CoreSchemaError, TypeError, NameError)


def whole(value: float) -> int:
    """JSON Schema takes `3.0` for an integer; Python's `int` does not.

    A schema given by the author may let other values through: they are refused, not rounded.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("not a whole number")


def real(value: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError("not a number")


def text(value: str) -> str:
    """What a derived schema says by itself, and one given by the author need not."""
    if isinstance(value, str):
        return value
    raise ValueError("not a text")


def truth(value: bool) -> bool:
    """Likewise."""
    if isinstance(value, bool):
        return value
    raise ValueError("not true or false")


KEPT_AS_IT_IS: Mapping[Converter, type] = {whole: int, real: float, text: str, truth: bool}
"""What a converter gives back as it came, which saves the call of most of them."""


def reader(adapter: Adapter) -> Reader:
    """What makes a typed value of valid JSON."""
    return Reader(adapter.core_schema, adapter.validator.validate_json)


def whole_numbers(value: Any) -> Any:
    """The same JSON with `3.0` as `3`, which strict readers want for an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


def adapter_for(hint: Any, what: str) -> Adapter:
    """Raises DefinitionError, which begins with `what`, for a hint that pydantic cannot read."""
    try:
        return _adapter(hint)
    except Exception as error:  # noqa: BLE001  a type of others may have hooks that raise anything
        raise inexpressible(hint, what, error) from None


def inexpressible(hint: Any, what: str, error: Exception) -> DefinitionError:
    """Why there is no schema for `hint`, in the words of pydantic; of other code only the type."""
    if isinstance(error, PydanticOmit):
        said = "SkipJsonSchema leaves it out"
    elif isinstance(error, PydanticUndefinedAnnotation):
        said = f"the name '{error.name}' in it is not defined where it is written"
    elif isinstance(error, RecursionError):
        said = "it is nested too deep"
    elif isinstance(error, _SAYS_ITSELF):
        said = str(error).partition("\n\nFor further information")[0].partition(_ADVICE)[0]
        said = " ".join(said.split())[:_SHOWN]
    else:
        said = f"a hook of its own raised {type(error).__name__}"
    return DefinitionError(
        f"{what}: {show(hint)} cannot be expressed in JSON Schema ({said}); use a JSON type, a "
        "dataclass, a TypedDict or a pydantic model"
    )


def _adapter(hint: Any) -> Adapter:
    if inspect.isroutine(hint):  # such as `any` and `callable`; pydantic would call it
        raise TypeError("a function is no type")
    if isinstance(hint, dict):  # pydantic takes it for a core schema
        raise TypeError("a dict is no type; use a TypedDict")
    hint = with_lists(hint)
    try:
        return _kept_adapter(_Key(hint))
    except PydanticUserError as error:
        if error.code != "typed-dict-version":
            raise
    make_readable(hint)
    return _kept_adapter(_Key(hint))


class _Key:
    """A hint that is equal to what is made of the same parts, and keeps them alive."""

    __slots__ = ("hint", "parts")

    def __init__(self, hint: Any) -> None:
        self.hint = hint
        self.parts = identity(hint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)


@lru_cache(maxsize=4096)
def _kept_adapter(key: _Key) -> Adapter:
    hint = key.hint
    if isinstance(hint, type) and issubclass(hint, BaseModel) and hint.__pydantic_complete__:
        return FlatAdapter(hint.__pydantic_core_schema__, hint.__pydantic_validator__)
    return flat_adapter(hint) or _pydantic_adapter(hint)


def _pydantic_adapter(_toolcrib_hint: Any) -> TypeAdapter[Any]:
    """pydantic looks up names in the frame that calls it, too: no annotation has that of the local."""
    if (_toolcrib_made := TypeAdapter(_toolcrib_hint)).pydantic_complete:
        return _toolcrib_made
    _toolcrib_made.rebuild(force=True, raise_errors=True)  # says which name it is that is missing
    return _toolcrib_made
