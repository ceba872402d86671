"""Validators: does a value match a schema, and if not, where and why.

Any library can be behind the small protocol here. A schema is checked before a validator is made of
it, whichever it is: what a validator is given is JSON, of a bearable size, and refers to itself only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

import jsonschema_rs

from toolcrib.errors import SchemaError
from toolcrib.schema.effort import explainable
from toolcrib.schema.guard import Inspected, inspect_schema
from toolcrib.schema.keywords import Draft
from toolcrib.schema.matching import LARGEST_PATTERN, matchable
from toolcrib.schema.messages import describe, kind_of, reasons
from toolcrib.schema.references import References, escape_pointer, subschemas
from toolcrib.schema.shape import check_shape
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.json import JsonObject

__all__ = [
    "MAX_VIOLATIONS",
    "JsonSchemaValidator",
    "Validator",
    "ValidatorFactory",
    "Violation",
    "check_keywords",
    "compile_validator",
    "kind_of",
]
MAX_VIOLATIONS = 20
_PATTERNS_BYTES = 1 << 24  # of all compiled patterns together
_UNDECLARED = (["additionalProperties"], ["unevaluatedProperties"])
_COMPILERS = {
    Draft.D2020: jsonschema_rs.Draft202012Validator,
    Draft.D7: jsonschema_rs.Draft7Validator,
}
# The drafts' own schemas, which come with the library.
_META = {
    Draft.D2020: "https://json-schema.org/draft/2020-12/schema",
    Draft.D7: "http://json-schema.org/draft-07/schema#",
}


class Violation(NamedTuple):
    """`path` is a JSON Pointer into the value, with `*` for keys that the schema does not declare."""

    path: str
    keyword: str
    message: str


_TOO_LONG = Violation("", "pattern", "the texts are too long for the patterns of the schema")


class Validator(Protocol):
    """What a pluggable validator has to do; `info` goes into the provenance of each call.

    It changes nothing in a value. One that raises, or answers anything but True, finds it not valid.
    """

    @property
    def info(self) -> ValidatorInfo:
        """The validator's name, its version, and when it was compiled (seconds since the epoch)."""
        ...

    def is_valid(self, value: object, /) -> bool: ...

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        """Why a value is not valid; nothing where the reasons would take too long to list.

        A message reaches the model and the records: it must not repeat the value.
        """
        ...


# Makes a validator of a schema that `check_schema` took; raises SchemaError if it cannot. What a
# library of others makes of patterns is its own affair: most of them backtrack.
ValidatorFactory: TypeAlias = Callable[[JsonObject], Validator]


class JsonSchemaValidator:
    """`jsonschema-rs`, offline, with formats checked and patterns in linear time.

    A value whose texts would take too long to be matched with patterns is not valid.
    `inspected` is given where `check_schema` has taken the schema already. Raises SchemaError if the
    schema cannot be used or compiled.
    """

    def __init__(self, schema: dict[str, Any], inspected: Inspected | None = None) -> None:
        if inspected is None:
            check_shape(schema)
            inspected = inspect_schema(schema)
        compiled = _compiled(schema, inspected)
        self._schema, self._inspected = schema, inspected
        self._references: References | None = None
        self._declared: frozenset[str] = frozenset()
        self._iter_errors = compiled.iter_errors
        self._judge: Callable[[object], bool] = compiled.is_valid
        self.is_valid = self._matched if inspected.patterns else self._judge
        self._compiled_at = time.time()

    @cached_property
    def info(self) -> ValidatorInfo:
        """Its version is looked up when it is first asked for: that takes as long as some imports."""
        return ValidatorInfo("jsonschema-rs", _installed_version(), self._compiled_at)

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        if self._references is None:  # most schemas never need to explain anything
            self._declared = frozenset(_declared_names(self._schema))
            self._references = References(self._schema)
        found: list[Violation] = []
        if self._inspected.patterns and not self._matchable(value):
            return (_TOO_LONG,)
        if not explainable(self._references, self._schema, value):
            return ()
        for error in self._iter_errors(value):
            for reason in reasons(error):
                if len(found) == MAX_VIOLATIONS:
                    return tuple(found)
                found.append(Violation(self._path(reason), reason.kind.name, describe(reason)))
        return tuple(found)

    def _matched(self, value: object, /) -> bool:
        return self._matchable(value) and self._judge(value)

    def _matchable(self, value: object) -> bool:
        return matchable(self._inspected, self._schema, value)

    def _path(self, error: jsonschema_rs.ValidationError) -> str:
        path = "".join(
            f"/{escape_pointer(token) if isinstance(token, int) or token in self._declared else '*'}"
            for token in error.instance_path
        )
        return f"{path}/*" if error.schema_path[-1:] in _UNDECLARED else path


def compile_validator(schema: dict[str, Any]) -> Validator:
    """The default validator for a schema. Raises SchemaError."""
    return JsonSchemaValidator(schema)


def check_keywords(schema: dict[str, Any], inspected: Inspected) -> None:
    """Whether each keyword has a value of its form, for what `jsonschema-rs` does not compile (yet).

    Raises SchemaError, with a pointer.
    """
    meta = _meta(inspected.draft)
    for pointer, part in _judged(schema):
        try:
            meta.validate(part)
        except jsonschema_rs.ValidationError as error:
            raise _unusable(error, pointer) from None


def _judged(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schema, and what its `$ref`s lead to outside of the places where subschemas lie."""
    references = References(schema)
    known: set[int] = set()
    stack: list[tuple[str, Any]] = [("", schema)]
    while stack:
        pointer, part = stack.pop()
        if id(part) in known:
            continue
        yield pointer, part
        for _, node in subschemas(part):
            known.add(id(node))
            ref = node.get("$ref")
            if isinstance(ref, str) and ref.startswith("#/"):
                stack.append((unquote(ref[1:]), references.resolve(ref)))


def _unusable(error: jsonschema_rs.ValidationError, above: str = "") -> SchemaError:
    pointer = "".join(f"/{escape_pointer(p)}" for p in error.instance_path)
    return SchemaError(f"not a usable schema: {_why(error)}", above + pointer)


def _compiled(schema: dict[str, Any], inspected: Inspected) -> Any:
    try:
        return _COMPILERS[inspected.draft](
            schema,
            validate_formats=True,
            offline=True,
            pattern_options=_pattern_options(len(inspected.patterns)),
        )
    except jsonschema_rs.ValidationError as error:
        raise _unusable(error) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaError(f"not a usable schema: {_first_line(error)}") from None


@lru_cache(maxsize=64)
def _pattern_options(patterns: int) -> jsonschema_rs.RegexOptions:
    """Compiling a pattern takes time in proportion to its limit: the many share one budget."""
    shared = _PATTERNS_BYTES // max(patterns, 1)
    return jsonschema_rs.RegexOptions(size_limit=min(LARGEST_PATTERN, shared))


def _why(error: jsonschema_rs.ValidationError) -> str:
    """A pattern is refused under the one word `format`, whatever is wrong with it."""
    where = error.instance_path
    if where[-1:] == ["pattern"] or where[-2:-1] == ["patternProperties"]:
        text = str(error.instance if where[-1:] == ["pattern"] else where[-1])
        return (
            f"the pattern {text[:80]!r} is no regular expression, or cannot be matched in linear "
            "time (no lookaround, no backreferences, no large repetitions: maxLength bounds a length)"
        )
    return _first_line(error)


@cache
def _meta(draft: Draft) -> Any:
    return _COMPILERS[draft]({"$ref": _META[draft]}, offline=True)


@cache
def _installed_version() -> str:
    from importlib.metadata import version  # 10 ms, which `import toolcrib` need not pay

    return version("jsonschema-rs")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _declared_names(schema: Any) -> Iterator[str]:
    """The names of properties, in data too: a `$ref` may make a schema of it."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            if isinstance(properties, dict):
                yield from properties
            stack += node.values()
        elif isinstance(node, list):
            stack += node
