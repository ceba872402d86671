"""From what a tool returned to checked JSON and its three views.

Rule: nothing of a bad result is passed on, and the views are allowlists: what is not named does not
show. The application's view is the value itself. The model's view is the whole validated result
unless the tool narrows it. The public view of a result is what `visible` names; the public view of
arguments is what is declared and not secret.

The model is told that a result cannot be used. Its author is told where and why: the type of the
value that has no JSON form, and the path to it. In the log, the path has only names that the
definition or a class declares (`*` for others, because the keys of a dictionary are data). The
exception passed to `on_exception` has the whole path.

Content (images, files, text that goes with them) accompanies the structured value and is never
inside it: what is checked and projected is JSON, and no other view contains a part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypedDict, TypeVar

import jiter
import msgspec
import orjson
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from toolcrib.errors import ErrorCode
from toolcrib.failures import log_raised, log_unusable, own_places
from toolcrib.runner.stopped import Reporter
from toolcrib.schema.references import EACH, split_path
from toolcrib.tools import Tool
from toolcrib.values.call import Hydrated, HydrationResult, ToolCall
from toolcrib.values.content import PartInfo, ToolContent, holds_content, info_of, weight_of
from toolcrib.values.definition import ALL, UNDECLARED, All, ToolDefinition, Visibility
from toolcrib.values.json import JsonObject, JsonValue, Redacted, canonical_bytes, fresh, json_bytes
from toolcrib.values.record import NO_JSON, CallError

MAX_RESULT_BYTES = 4 * 1_048_576
_PLAIN = frozenset((dict, list, str, int, float, bool))  # the types of nearly all results
_NOTHING_CONVERTED = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_WRONG = (PydanticSerializationError, ValueError, TypeError, RecursionError)


class PathStep(NamedTuple):
    """One step of the path to a value; `declared` if its name is in the code, not in the data."""

    name: str
    declared: bool


class Unusable(Exception):  # noqa: N818  an outcome; only `on_exception` sees it
    """Says that what a tool gave is not a result, or not a part. `why` is toolcrib's own wording.

    `kind` gives the type of the value at `path`, if that value is what cannot be used.
    """

    def __init__(self, why: str, kind: str = "", path: tuple[PathStep, ...] = ()) -> None:
        super().__init__(why, kind, path)
        self.why = why
        self.kind = kind
        self.path = path

    def __str__(self) -> str:
        return self._told(step.name for step in self.path)

    def for_the_log(self, definition: ToolDefinition) -> str:
        """Return the same text, with `*` for names that neither definition nor class declares."""
        declared_texts = [definition.output_schema_json or ""]
        for paths in (definition.visible, definition.model_visible):
            named_paths = paths if isinstance(paths, tuple) else ()
            declared_texts += [f'"{name}"' for path in named_paths for name in split_path(path)]
        declared_text = "".join(declared_texts)
        return self._told(
            s.name if s.declared or f'"{s.name}"' in declared_text else "*" for s in self.path
        )

    def _told(self, steps: Iterable[str]) -> str:
        if not self.kind:
            return self.why
        return f"{self.why} ({self.kind} at {''.join(f'/{s}' for s in steps) or 'the top'})"

    @property
    def error(self) -> CallError:
        text = f"The tool ran, but gave a result that cannot be used: {self.why}."
        return CallError.of(ErrorCode.INVALID_OUTPUT, text)


NOT_JSON = "it is not JSON"
_NO_CONTENT = "it is not the content that the return type promises"
_NO_PART = "one of its parts has data that is not base64, or text with a lone surrogate"
_ONE_NAME = "two of its keys become the same name in JSON"
_DEEPEST = 50


class CheckedOutput(Redacted, msgspec.Struct, frozen=True, gc=False):
    """A result as valid JSON, and its text.

    For a result with content: its structured value, and what may be said of its parts.
    """

    redacted: ClassVar[tuple[str, ...]] = ("value", "text", "content")

    value: JsonValue
    text: bytes
    content: ToolContent[Any] | None = None
    parts: tuple[PartInfo, ...] = ()


def check_output(
    tool: Tool[..., Any], value: object, max_bytes: int = MAX_RESULT_BYTES
) -> CheckedOutput | Unusable:
    """Return the result as JSON that is valid by the output schema, or what is wrong with it."""
    try:
        checked = _as_it_is(value, max_bytes) if value.__class__ in _PLAIN else None
        if checked is None:
            content = ToolContent.of(value)
            checked = (
                _as_text(value, max_bytes) if content is None else _with_parts(content, max_bytes)
            )
    except Unusable as unusable:
        return unusable
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  inspecting a value may run an author's code
        return not_json(value)
    if checked.content is None and tool.instead is not None and checked.value not in tool.instead:
        return Unusable(_NO_CONTENT)
    validator = tool.output_validator
    try:
        if validator is not None and not validator.is_valid(checked.value):
            violations = validator.violations(checked.value)
            reason = (
                f"{violations[0].path or 'the top'}: {violations[0].message}"
                if violations
                else "it is invalid"
            )
            return Unusable(reason)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  the author's validator, or a panic in Rust
        log_raised(f"the result validator of tool '{tool.definition.name}'", raised)
        unusable_validator = Unusable("the result validator failed")
        unusable_validator.__cause__ = raised
        return unusable_validator
    return checked


def _as_it_is(value: Any, max_bytes: int) -> CheckedOutput | None:
    """Return a copy of a value that is JSON already, as most results are; otherwise None.

    A value that equals itself after a round trip has lost nothing: NaN would have become null, and
    a tuple a list.
    """
    try:
        text = orjson.dumps(value, None, _NOTHING_CONVERTED)
    except TypeError:
        return None
    parsed: JsonValue = orjson.loads(text)
    return CheckedOutput(parsed, text) if parsed == value and len(text) <= max_bytes else None


def _with_parts(content: ToolContent[Any], max_bytes: int) -> CheckedOutput:
    """Return the structured value of a result with content. Raises Unusable, also for bad parts."""
    checked = _as_text(content.value, max_bytes)
    if len(checked.text) + sum(map(weight_of, content.parts)) > max_bytes:
        raise too_large(max_bytes)
    try:
        infos = tuple(map(info_of, content.parts))
    except ValueError:
        raise Unusable(_NO_PART) from None
    return CheckedOutput(checked.value, checked.text, content, infos)


def report_unusable(
    reporter: Reporter, call: ToolCall, definition: ToolDefinition, unusable: Unusable
) -> None:
    """Tell a tool's author what was wrong with the result."""
    log_unusable(f"tool '{definition.name}'", unusable.for_the_log(definition))
    if unusable.kind and unusable.__cause__ is not None:
        log_raised(f"tool '{definition.name}', as its result was written,", unusable.__cause__)
    reporter.debug(call, unusable)


def views(
    definition: ToolDefinition, checked: CheckedOutput
) -> tuple[bytes, bytes, CallError | None]:
    """Return the model's view as JSON, the public view as canonical JSON, and an error.

    The error is `redaction_missing` if no public view is named.
    """
    value, model, error = checked.value, checked.text, None
    if definition.model_visible is not ALL:
        model = json_bytes(project(value, definition.model_visible))
    if definition.visible is not ALL:
        if redaction_missing(value, definition.visible):
            error = CallError.of(ErrorCode.REDACTION_MISSING)
        value = project(value, definition.visible)
    public = canonical_bytes(value)
    return model, model if public == model else public, error  # equal texts are kept once


def as_json(value: object, max_bytes: int) -> JsonValue:
    """Return the value as JSON. Raises Unusable if it is not JSON, or longer than `max_bytes`."""
    return _as_text(value, max_bytes).value


def _as_text(value: object, max_bytes: int) -> CheckedOutput:
    """Write the value as JSON text and read that again. Raises Unusable as `as_json` does."""
    try:
        text = json_text(value, max_bytes)
        return CheckedOutput(read_json(text), text)
    except Unusable as unusable:
        explained = not_json(value) if unusable.why == NOT_JSON else unusable
        raise explained from explained.__cause__


def not_json(value: object) -> Unusable:
    """Find the innermost part of a value that has no JSON form, and say where it is.

    The cause is what the part's own code (a serializer, a computed field) raised.
    """
    path: list[PathStep] = []
    try:
        while len(path) < _DEEPEST:
            parts = ((step, part) for step, part in _parts(value) if not _has_a_form(part))
            unconvertible = next(parts, None)
            if unconvertible is None:
                break
            path.append(unconvertible[0])
            value = unconvertible[1]
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001, S110  an author's code may raise anything
        pass
    unusable = Unusable(NOT_JSON, _kind(value), tuple(path))
    unusable.__cause__ = _raised_by(value)
    return unusable


def _raised_by(value: object) -> BaseException | None:
    """Return what an author's code raises when a value is written as JSON, if it does."""
    try:
        to_jsonable_python(value)
    except KeyboardInterrupt:
        raise
    except PydanticSerializationError as error:
        return error.__cause__
    except BaseException as error:  # noqa: BLE001  an author's code may raise anything
        return error if own_places(error.__traceback__) else None
    return None


def _has_a_form(value: object) -> bool:
    try:
        read_json(json_text(value, MAX_RESULT_BYTES))
    except Unusable:
        return False
    return True


def _parts(value: object) -> Iterator[tuple[PathStep, object]]:
    if isinstance(value, Mapping):
        yield from ((PathStep(str(key), declared=False), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((PathStep(str(index), declared=True), part) for index, part in enumerate(value))
    else:
        kind = type(value)
        names = getattr(kind, "__struct_fields__", None) or getattr(kind, "model_fields", None)
        if names is None and dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
        yield from ((PathStep(name, declared=True), getattr(value, name)) for name in names or ())


def _kind(value: object) -> str:
    """Name the type of a value without showing anything of the value."""
    kind = type(value)
    if kind is float:
        return "a float that is NaN or infinite"
    if kind is str:
        return "a str with a lone surrogate"
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"a value of type {module}{kind.__qualname__}"


def json_text(value: object, max_bytes: int) -> bytes:
    """Write a value as JSON. Raises Unusable; NaN and infinities are found by `read_json`."""
    kind: Any = value.__class__
    if kind not in _PLAIN and _has_no_end(kind):
        raise Unusable("it is an iterator, which may never end")
    try:
        text = to_json(value, inf_nan_mode="constants", fallback=_plain)
    except _WRONG:
        raise Unusable(NOT_JSON) from None
    if len(text) > max_bytes:
        raise too_large(max_bytes)
    return text


@lru_cache(maxsize=256)
def _has_no_end(kind: type[Any]) -> bool:
    """Return whether values of this class are iterators (cached: an abstract class is slow)."""
    return issubclass(kind, Iterator | AsyncIterator)


def _plain(value: object) -> object:
    """Convert a msgspec struct, and what pydantic knows within it.

    Raises TypeError for content, which is not JSON and may not be inside a value.
    """
    if holds_content(value):
        raise TypeError
    return msgspec.to_builtins(value, enc_hook=to_jsonable_python)


def read_json(text: bytes | bytearray) -> JsonValue:
    """Read JSON text. Raises Unusable without any of the text, which orjson's own error contains.

    A dictionary may have keys that are the same name in JSON, such as `1` and `"1"`; one of them
    would be lost. If writing the value again gives the same text, nothing was lost.
    """
    try:
        value: JsonValue = orjson.loads(text)
        if orjson.dumps(value) == text:
            return value  # nothing is lost, not even digits of integers
    except _WRONG:
        pass
    with suppress(*_WRONG):
        value = fresh(text)
        try:
            jiter.from_json(bytes(text), catch_duplicate_keys=True)
        except ValueError as error:
            if "duplicate key" in str(error):
                raise Unusable(_ONE_NAME) from None
        return value
    raise Unusable(NOT_JSON)


def too_large(max_bytes: int) -> Unusable:
    return Unusable(f"it is larger than {max_bytes} bytes")


MASK = "***"
# Decodes an object by its names alone: each value keeps its text in canonical JSON.
_BY_NAME: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CONTAINERS = (dict, list)
_Tree: TypeAlias = dict[str, Any]


def project(value: JsonValue, visible: Visibility | None) -> JsonValue:
    """Return what an allowlist leaves of a value: the named fields; None if nothing is named."""
    if isinstance(visible, All):
        return value
    tree, rows = _named(visible or ())
    if rows is not None:
        with suppress(msgspec.ValidationError):  # a part is not an object or array
            projected: JsonValue = msgspec.convert(value, rows)
            return projected
    return _keep(value, tree)


def redaction_missing(value: JsonValue, visible: Visibility | None) -> bool:
    """Return whether something is withheld because nobody said whether such a value may be seen.

    That is the case if there is no allowlist, or if its shape does not match: it names fields of an
    object and a list came, elements of a list and an object came, or anything and a string or a
    number came. Only `ALL` shows those. An empty allowlist says that nothing may be seen. A named
    field that the value lacks is not missing, because a field may be absent.
    """
    if isinstance(visible, All) or visible == () or value is None or value in ({}, []):
        return False
    if visible is None:
        return True
    tree, _ = _named(visible)
    if isinstance(value, dict):
        return tree.keys() <= {EACH}
    return not isinstance(value, list) or EACH not in tree


def public_arguments(definition: ToolDefinition, arguments: JsonObject) -> JsonObject:
    """Return the declared top-level arguments with secret ones masked, and no undeclared ones."""
    declared = definition.properties
    if not definition.secret and declared.issuperset(arguments):
        return arguments
    return {
        name: MASK if name in definition.secret else value
        for name, value in arguments.items()
        if name in declared
    }


def public_view(call: HydrationResult) -> tuple[msgspec.Raw, tuple[str, ...]]:
    """Return the public arguments as canonical JSON, and the JSON Pointers of defaults in them.

    A rejected call has no effective arguments: `null`. With a closed schema nothing undeclared can
    be sent, but the author's defaults may be undeclared.
    """
    if not isinstance(call, Hydrated):
        return NO_JSON, ()
    definition, defaults = call.definition, call.defaults
    is_plain = not definition.secret and definition.closed
    if is_plain and (not defaults or definition.pointers.issuperset(defaults)):
        return msgspec.Raw(call.canonical), defaults
    pointers = public_pointers(definition, defaults)
    if is_plain and len(pointers) == len(defaults):
        return msgspec.Raw(call.canonical), defaults
    arguments = public_arguments(definition, _BY_NAME.decode(call.canonical))
    return msgspec.Raw(msgspec.json.encode(arguments)), pointers


def public_pointers(
    definition: ToolDefinition | None, pointers: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the JSON Pointers that lead to public arguments."""
    if not pointers or definition is None:
        return ()
    declared = definition.properties
    public = []
    for pointer in pointers:
        name, _ = _argument_at(pointer)
        if name in declared and not _is_below_secret(definition, pointer):
            public.append(pointer)
    return tuple(public)


def masked_arguments(definition: ToolDefinition, arguments: JsonObject) -> JsonObject:
    """Return all arguments with secret ones masked: what an approver has to see."""
    return {n: MASK if is_masked(definition, n) else v for n, v in arguments.items()}


def arguments_for_model(hydrated: Hydrated) -> JsonObject:
    """Return the arguments that the model may be told, with secret ones masked.

    Left out are the author's defaults that the model's schema does not name.
    """
    definition = hydrated.definition
    defaulted_names = {
        _argument_at(pointer)[0] for pointer in hydrated.defaults if pointer.count("/") == 1
    }
    masked = masked_arguments(definition, hydrated.arguments)
    return {
        n: v for n, v in masked.items() if n in definition.properties or n not in defaulted_names
    }


def masked_pointers(definition: ToolDefinition, pointers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the JSON Pointers that exist in masked arguments: none leads below a secret one."""
    return tuple(pointer for pointer in pointers if not _is_below_secret(definition, pointer))


def _is_below_secret(definition: ToolDefinition, pointer: str) -> bool:
    name, is_below = _argument_at(pointer)
    return is_below and is_masked(definition, name)


def is_masked(definition: ToolDefinition, name: str) -> bool:
    secret = definition.secret
    if UNDECLARED not in secret:
        return name in secret
    return name in secret or name not in definition.properties


def _argument_at(pointer: str) -> tuple[str, bool]:
    """Return the name of the argument that a JSON Pointer leads to, and whether it leads below it.

    The name is unescaped for comparison: a pointer writes `a/b` as `a~1b`.
    """
    top, _, rest = pointer[1:].partition("/")
    return top.replace("~1", "/").replace("~0", "~"), bool(rest)


def name_at(pointer: str) -> str:
    """Return the name of the argument that a JSON Pointer leads to, or into."""
    return _argument_at(pointer)[0]


def unmasked(definition: ToolDefinition, edited: JsonObject, original: JsonObject) -> JsonObject:
    """Return edited arguments, with the original of each secret one that came back masked."""
    masked_names = {n for n in original if edited.get(n) == MASK and is_masked(definition, n)}
    return {
        name: original[name] if name in masked_names else value for name, value in edited.items()
    }


def masks_a_part(definition: ToolDefinition, edited: JsonObject) -> bool:
    """Return whether a secret argument contains a mask, also within a string or a name.

    Such an edit is a mistake: its author was shown nothing of the argument.
    """
    return any(
        value != MASK and is_masked(definition, name) and _holds_mask(value)
        for name, value in edited.items()
    )


def _holds_mask(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return any(MASK in name or _holds_mask(inner) for name, inner in value.items())
    if isinstance(value, list):
        return any(map(_holds_mask, value))
    return isinstance(value, str) and MASK in value


_Json = TypeVar("_Json")


def own_copy(value: _Json) -> _Json:
    """Copy a JSON value with every digit; the copy shares no list and no object with it."""
    if not isinstance(value, _CONTAINERS):
        return value
    value_copy: _Json = msgspec.to_builtins(value)
    return value_copy


@lru_cache(maxsize=4096)
def _named(paths: tuple[str, ...]) -> tuple[_Tree, Any]:
    """Return a tree of what paths name and, if they name parts of elements, also a type.

    With the type, msgspec projects many elements much faster; `_keep` handles the rest.

    `("a.b", "c[]")` → `{"a": {"b": {}}, "c": {"[]": {}}}`; an empty node keeps everything below it.
    """
    root: _Tree = {}
    for path in sorted(paths, key=lambda p: len(split_path(p)), reverse=True):
        node = root
        for step in split_path(path)[:-1]:
            node = node.setdefault(step, {})
        node[split_path(path)[-1]] = {}
    return root, _type_of(root) if any(f"{EACH}." in path for path in paths) else None


def _type_of(tree: _Tree) -> Any:
    """Return a type, null included, that keeps only what a tree names."""
    if not tree:
        return Any
    typed_dict: Any = TypedDict
    fields = {name: _type_of(child) for name, child in tree.items() if name != EACH}
    object_type = typed_dict("Shown", fields, total=False) | None
    return object_type | list[_type_of(tree[EACH])] if EACH in tree else object_type  # type: ignore[misc]


def _keep(value: JsonValue, tree: _Tree) -> JsonValue:
    if isinstance(value, dict):
        return {
            name: child if not tree[name] else _keep(child, tree[name])
            for name, child in value.items()
            if name in tree and name != EACH  # no path names a field called that
        }
    if isinstance(value, list) and EACH in tree:
        child_tree = tree[EACH]
        return [child if not child_tree else _keep(child, child_tree) for child in value]
    return None
