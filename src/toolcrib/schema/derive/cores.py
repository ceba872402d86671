"""Walk and rewrite pydantic's core schemas, which describe the structure of what a hint reads.

Two rewrites are here. Regular expressions that are arguments (`re.Pattern`) are compiled only after
their cost was counted. Core schemas made only of plain fields are narrowed to values that are read
exactly as they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from typing import Any

from pydantic_core import core_schema

from toolcrib.schema.derive.plain import secrets
from toolcrib.schema.derive.roundtrip import IPS, spend_reading


def is_core(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("type"), str)


def parts_of(node: Any) -> list[Any]:
    """Return the parts of a core schema, list or dict that may contain core schemas."""
    if not isinstance(node, dict):
        return list(node) if isinstance(node, list | tuple) else []
    is_schema = is_core(node)  # otherwise a dict of fields, with any names
    return [part for key, part in node.items() if not (is_schema and key in NO_PARTS)]


def core_schemas(core: Any) -> Iterator[dict[str, Any]]:
    """Yield each core schema in a core schema once, including itself.

    It is walked several times for a tool with a model, so `is_core` and `parts_of` are inlined here
    to avoid a call per node.
    """
    pending: list[Any] = [core] if isinstance(core, _HOLDERS) else []
    seen = set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if not isinstance(node, dict):
            pending += [part for part in node if isinstance(part, _HOLDERS)]
        elif isinstance(node.get("type"), str):
            yield node
            parts = node.items()
            pending += [p for key, p in parts if isinstance(p, _HOLDERS) and key not in NO_PARTS]
        else:
            pending += [part for part in node.values() if isinstance(part, _HOLDERS)]


_HOLDERS = (dict, list, tuple)
CLASSES = frozenset(("model-fields", "dataclass-args", "typed-dict"))
# The members of a core schema that contain no core schemas of values.
NO_PARTS = frozenset(
    ("cls", "config", "default", "expected", "function", "members", "metadata", "serialization")
)


def choices_of(union: Any) -> list[Any]:
    """Return the core schemas of a union's branches, without tags that only refer to another."""
    if union["type"] == "tagged-union":
        return [choice for choice in union["choices"].values() if isinstance(choice, dict)]
    return [choice[0] if isinstance(choice, tuple) else choice for choice in union["choices"]]


def holds_factory(core: Any) -> bool:
    """Return whether a factory makes a default anywhere in this core schema."""
    return any("default_factory" in node for node in core_schemas(core))


def factory_of(core: Any) -> Callable[..., Any] | None:
    """Return the factory that makes a field's default, if there is one."""
    while "default_factory" not in core:
        core = core.get("schema")
        if not isinstance(core, dict):
            return None
    factory: Callable[..., Any] = core["default_factory"]
    return factory


def fields_of(core: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a class, by the names that its author gave them."""
    fields = core.get("fields") if core["type"] in CLASSES else None
    if isinstance(fields, dict):
        yield from fields.items()
    elif isinstance(fields, list):
        yield from ((field["name"], field) for field in fields)


def is_pydantics(core: Any) -> bool:
    """Return whether a step is pydantic's own, or builds a class of the standard library."""
    if not core["type"].startswith("function-"):
        return True
    function = _function_of(core)
    module = getattr(function, "__module__", None) or ""
    if module.startswith("pydantic.experimental"):
        return False
    return module.partition(".")[0] in ("pydantic", "pydantic_core") or function in IPS


def code_name(core: Any) -> str:
    """Return the name of the author's function in a step, or "" if it is not the author's."""
    if is_pydantics(core):
        return ""
    function = _function_of(core)
    return str(getattr(function, "__qualname__", "") or type(function).__name__)


def _function_of(core: Any) -> Any:
    function = core["function"]["function"]
    while isinstance(function, partial):
        function = function.func
    return function


def code_of_class(core: Any) -> tuple[str, ...]:
    """Return the names of an author's code that handles the fields of a class: validators of the
    whole object, a constructor, `__post_init__`."""
    post_init = core.get("post_init")
    method = (
        "__post_init__"
        if post_init is True
        else post_init or (core.get("custom_init") and "__init__")
    )
    names = [f"{core['cls'].__qualname__}.{method}"] if method else []
    inner = core["schema"]
    while inner["type"].startswith("function-") and "schema" in inner:
        names.append(code_name(inner))
        inner = inner["schema"]
    return tuple(filter(None, names))


def codes_in(core: Any) -> tuple[str, ...]:
    """Return the names of all code of the author's in a core schema."""
    names: dict[str, None] = {}
    for node in core_schemas(core):
        if node["type"] in ("model", "dataclass"):
            names |= dict.fromkeys(code_of_class(node))
        names[code_name(node)] = None
    return tuple(filter(None, names))


def makes_secret(core: Any) -> bool:
    """Return whether a step makes one of pydantic's secrets, whatever its schema says."""
    if not core["type"].startswith("function-"):
        return False
    function = core["function"]["function"]
    if isinstance(function, type):
        return issubclass(function, secrets())
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return module == "pydantic.types" and name.startswith("Secret.")


def rewritten(node: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return a core schema with each core schema in it changed, from the inside out.

    `change` is called with one whose parts are changed, and with the original.
    """
    if isinstance(node, list | tuple):
        return type(node)(rewritten(part, change) for part in node)
    if not isinstance(node, dict):
        return node
    is_schema = is_core(node)
    result = {
        key: part if is_schema and key in NO_PARTS else rewritten(part, change)
        for key, part in node.items()
    }
    return change(result, node) if is_schema else result


def with_classes_apart(
    core: Any, change: Callable[[Any, Any], Any]
) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return a core schema that is changed as by `rewritten`, and its definitions, by their refs.

    Each class is a definition, so that the changed core schema may have a part in several places.
    Other parts stay where they are, because they depend on the config of the class around them.
    """
    definitions: dict[str, dict[str, Any]] = {}
    shared = {id(node) for node in definitions_of(core)}

    def change_and_move(result: Any, original: Any) -> Any:
        if original["type"] == "definitions":
            return result["schema"]
        changed = change(result, original)
        ref = changed.get("ref")
        if ref is None:
            return changed
        if id(original) not in shared and original["type"] not in ("model", "dataclass"):
            return {key: part for key, part in changed.items() if key != "ref"}
        definitions[ref] = changed
        return core_schema.definition_reference_schema(ref)

    return rewritten(core, change_and_move), definitions


def reachable(cores: Iterable[Any], shared: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the core schemas in `cores`, and in the definitions of `shared` that they refer to."""
    pending, seen = list(cores), set[str]()
    while pending:
        for node in core_schemas(pending.pop()):
            yield node
            ref = str(node.get("schema_ref"))
            if ref in shared and ref not in seen:
                seen.add(ref)
                pending.append(shared[ref])


def definitions_of(core: Any) -> list[Any]:
    """Return the definitions that references in a core schema point to."""
    containers = [node for node in core_schemas(core) if node["type"] == "definitions"]
    return [definition for container in containers for definition in container["definitions"]]


# Count the work of compiling a regular expression before `re` sees it.
#
# Python compiles a range of a character class (`[a-z]`) letter by letter. A wide one takes up to 20
# ms, so a pattern of a few KB could take seconds. The work is added to what a value makes its
# reader read again. The unit is one byte read again, 0.1 µs, measured with Python 3.11.

_LETTER = 100
_RANGE = 3_000
_WIDE_RANGE = 200_000
_WIDE = re.compile(r"-(?:[^\x00-\xff]|\\[uUN])")
_TOO_MUCH = "The arguments hold regular expressions that take too long to read. Send shorter ones."


def counting_patterns(core: Any) -> Any:
    """Return an equivalent core schema that counts the work of reading regular expressions."""
    if not any(map(_reads_pattern, core_schemas(core))):
        return core
    return rewritten(core, _with_counting)


def _reads_pattern(core: Any) -> bool:
    if core["type"] != "function-plain" or not is_pydantics(core):
        return False
    return str(getattr(core["function"]["function"], "__name__", "")).startswith("pattern_")


def _with_counting(core: Any, _original: Any) -> Any:
    if not _reads_pattern(core):
        return core
    function: Callable[[Any], Any] = core["function"]["function"]

    @wraps(function)  # it is still recognised as pydantic's own
    def read(value: Any) -> Any:
        if isinstance(value, str):
            spend_reading(_reading_cost(value), _TOO_MUCH)
        try:
            return function(value)
        except RecursionError:  # thousands of parentheses in one another
            raise ValueError("the regular expression is nested too deeply") from None

    return {**core, "function": {**core["function"], "function": read}}


def _reading_cost(pattern: str) -> int:
    wide_cost = _WIDE_RANGE * len(_WIDE.findall(pattern))
    return _LETTER * len(pattern) + _RANGE * pattern.count("-") + wide_cost


# Narrow a core schema to values that are read exactly as they were sent.
#
# Rule: reading a value that the narrowed schema accepts, in Python mode, leaves out, adds and
# changes nothing. Each string, number, boolean and null is the one that was sent, and each object
# has all its own fields and no others. So the result need not be compared with what was sent. A
# core schema that uses anything not listed here, such as a default, an alias or an author's
# function, has no narrowed form.

_LENGTH = ("min_length", "max_length")
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
_FIELD = ("schema", "name", "kw_only", "frozen")
# Keys that do not change what is read.
_NEUTRAL_KEYS = frozenset(("type", "ref", "metadata", "serialization", "strict"))
_PLAIN = {
    kind: _NEUTRAL_KEYS.union(keys)
    for kind, keys in {
        "str": ("pattern", "regex_engine", *_LENGTH),
        "int": _BOUNDS,
        "float": ("allow_inf_nan", *_BOUNDS),
        "bool": (),
        "none": (),
        "literal": ("expected",),
        "nullable": ("schema",),
        "list": ("items_schema", *_LENGTH),
        "dict": ("keys_schema", "values_schema", *_LENGTH),
        "definitions": ("schema", "definitions"),
        "definition-ref": ("schema_ref",),
        "model": ("cls", "schema", "config", "frozen", "generic_origin"),
        "model-fields": ("fields", "model_name"),
        "model-field": _FIELD,
        "dataclass": ("cls", "schema", "config", "fields", "slots", "frozen"),
        "dataclass-args": ("fields", "dataclass_name"),
        "dataclass-field": (*_FIELD, "init"),
    }.items()
}
_NARROWED: dict[str, dict[str, Any]] = {
    **{kind: {"strict": True} for kind in ("str", "int", "bool")},
    **{kind: {"extra_behavior": "forbid"} for kind in ("model-fields", "dataclass-args")},
    "list": {"fail_fast": True},
}
_CONFIG = frozenset(("title", "extra_fields_behavior"))
_TEXT = {"type": "str"}
_A_FLOAT = core_schema.is_instance_schema(float)  # pydantic accepts an integer for one


def exactly(kind: type) -> Any:
    """Return a core schema that accepts values of exactly one scalar class, unchanged."""
    return {"type": kind.__name__, "strict": True} if kind is not float else _A_FLOAT


def narrowed(core: Any) -> Any:
    """Return a core schema that accepts only values read as they were sent; None if impossible."""
    if not all(map(_is_plain, core_schemas(core))):
        return None
    return rewritten(core, _narrow)


def _is_plain(core: Any) -> bool:
    kind = core["type"]
    used_keys = {key for key, value in core.items() if value}
    if kind not in _PLAIN or not _PLAIN[kind].issuperset(used_keys):
        return False
    if kind in ("model", "dataclass"):
        config = core.get("config") or {}
        is_open = config.get("extra_fields_behavior") == "allow"
        return core["schema"]["type"] in CLASSES and not is_open and _CONFIG.issuperset(config)
    if kind == "dataclass-field":
        return bool(core.get("init", True))
    if kind == "list":
        return "items_schema" in core
    if kind == "dict":
        return "values_schema" in core and core.get("keys_schema", _TEXT)["type"] == "str"
    return kind != "literal" or all(value.__class__ is str for value in core["expected"])


def _narrow(core: Any, _original: Any) -> Any:
    kind = core["type"]
    result = {key: part for key, part in core.items() if key not in ("strict", "serialization")}
    if kind == "float":
        return core_schema.chain_schema([_A_FLOAT, result], ref=result.pop("ref", None))
    if kind in ("model", "dataclass"):
        result["config"] = {}
    return result | _NARROWED.get(kind, {})
