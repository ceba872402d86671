"""Read JSON as a typed value by a plan, which is made once from pydantic's core schema of a hint.

`TypedReader` is the only way from JSON to a typed value; `roundtrip` says what it may change.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

import jiter
import msgspec
import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator, core_schema
from pydantic_core import SchemaError as CoreSchemaError

from toolcrib.schema.derive import constraints
from toolcrib.schema.derive.cores import (
    choices_of,
    code_name,
    code_of_class,
    codes_in,
    core_schemas,
    exactly,
    factory_of,
    fields_of,
    holds_factory,
    is_pydantics,
    narrowed,
)
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.schema.derive.plain import (
    MISSING,
    extras_of,
    mark_of,
    own_copy,
    plain_default,
    same_json,
)
from toolcrib.schema.derive.roundtrip import (
    A_VALIDATOR,
    ADDS_TOO_MUCH,
    MAX_ADDED,
    OF_THREAD,
    AnythingPart,
    At,
    AuthoredPart,
    CachedWeights,
    ChoicePart,
    DictPart,
    Differs,
    Findings,
    InsidePart,
    LeafPart,
    ListPart,
    NullablePart,
    Part,
    PartCompiler,
    PartReader,
    RemovedDefaults,
    Rereading,
    RootPart,
    ScalarPart,
    SetPart,
    TooMuchWorkError,
    UnionPart,
    changes_text,
    compile_alone,
    steps,
    unchanged,
    weight_of_default,
)
from toolcrib.schema.references import read_text
from toolcrib.values.json import JsonObject, JsonValue, canonical_json, json_bytes, read_unrounded

# Check objects of declared fields against what was sent: models, dataclasses, TypedDicts,
# NamedTuples.
#
# Rule: each property that was sent is the attribute of its field, or an extra that the author's
# type allows. Each field that was not sent is a default, and is shown and noted as one. A value
# that a class receives but does not keep (an `InitVar`) is read a second time, by its own hint.

_UNCHANGING = frozenset((str, int, float, bool, bytes, type(None)))
_NO_SUCH_PROPERTY = "the tool would not get this property"


class FieldPart(msgspec.Struct):
    """A field: its attribute, the names that it is sent under (the first is shown), and its plan.

    `default` is what is passed if the field was not sent: MISSING if it is required, a FactoryValue
    if a factory makes it. `reader` reads the field without the class around it. An InitVar
    (`init_only`) is read that way a second time, because no attribute keeps it.
    """

    name: str
    keys: tuple[str, ...]
    node: Part
    factory: Callable[..., Any] | None
    reader: PartReader
    init_only: bool
    default: Any
    required: bool

    def alone(self, sent: JsonValue) -> Any:
        """Return the value as it is read separately. Raises what its reader raises."""
        return self.reader.read(self.node.with_integers(sent))

    def may_be(self, sent: JsonValue) -> bool:
        return not isinstance(self.node, ChoicePart) or self.node.may_take(sent)

    @property
    def weight(self) -> int:
        """The weight that this field adds if it was not sent."""
        return 0 if self.default is MISSING else len(self.keys[0]) + _weight(self.default)


class FieldsPart(Part):
    """An object of declared fields: a model, a dataclass, a TypedDict (`cls` is None), a NamedTuple.

    `code` names the author's code that receives the whole object, and must not change any of its
    fields.
    """

    def __init__(
        self, cls: Any, fields: Sequence[FieldPart], extras: Part, code: tuple[str, ...] = ()
    ) -> None:
        self.code = code
        self._cls = cls
        self._fields = fields
        self._extras = extras
        self._indexed = cls is not None and issubclass(cls, tuple)

    def with_integers(self, sent: JsonValue) -> JsonValue:
        if isinstance(sent, list) and self._indexed:
            nodes = [field.node for field in self._fields][: len(sent)]
            items = [node.with_integers(item) for node, item in zip(nodes, sent, strict=False)]
            return unchanged(sent, items + sent[len(nodes) :])
        if not isinstance(sent, dict):
            return sent
        result = {key: self._extras.with_integers(item) for key, item in sent.items()}
        for field in self._fields:
            for key in field.keys:
                if key in sent:
                    result[key] = field.node.with_integers(sent[key])
        return unchanged(sent, result)

    def may_take(self, sent: JsonValue) -> bool:
        if not isinstance(sent, dict):
            return self._indexed and isinstance(sent, list)
        for field in self._fields:
            key = next((key for key in field.keys if key in sent), None)
            if key is None and field.required and field.default is MISSING:
                return False
            if key is not None and not field.may_be(sent[key]):
                return False
        return True

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        if self._indexed and isinstance(sent, list):
            pairs = zip(self._fields, sent, strict=False)
            nested_weight = sum(field.node.added_weight(item, cached) for field, item in pairs)
            return nested_weight + sum(weight for _, weight in self._weighed[len(sent) :])
        if not isinstance(sent, dict):
            return 0
        total = sent_count = 0
        for field, weight in self._weighed:
            key = next((key for key in field.keys if key in sent), None)
            if key is None:
                total += weight
            else:
                sent_count += 1
                total += field.node.added_weight(sent[key], cached)
        if sent_count < len(sent):
            field_keys = {key for field in self._fields for key in field.keys}
            total += sum(
                self._extras.added_weight(sent[key], cached) for key in sent.keys() - field_keys
            )
        return total

    @cached_property
    def _weighed(self) -> list[tuple[FieldPart, int]]:
        return [(field, field.weight) for field in self._fields]

    def fits(self, value: Any) -> bool:
        """Return whether a value is of exactly this class. A subclass has fields unknown here."""
        if self._cls is None:
            return isinstance(value, dict)
        return value.__class__ is self._cls

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if not self.fits(value):
            raise Differs(at, code=self.code)
        if self._indexed and isinstance(sent, list):
            return self._check_items(value, sent, at, findings)
        if sent is MISSING:
            return self._shown(value, at, findings)
        if not isinstance(sent, dict):
            raise Differs(at)
        shown: dict[str, Any] = {}
        for field in self._fields:
            item = self._attribute(value, field.name)
            key = next((key for key in field.keys if key in sent), None)
            if key is None:
                self._check_default(value, field, shown, at, findings)
            else:
                shown[key] = self._check_field(field, item, sent[key], (at, key), findings)
        if len(shown) < len(sent) or not shown.keys() >= sent.keys():
            self._check_extras(value, sent, shown, at, findings)
        return shown

    def remove_defaults(
        self, value: Any, sent: Any, dumped: Any, at: At, removed: RemovedDefaults
    ) -> None:
        if not isinstance(sent, dict):
            return
        shown: dict[str, Any] = {}
        for field in self._fields:
            name = field.name
            if name not in dumped:
                return
            if name not in sent:
                self._check_default(value, field, shown, at, removed.found)
                if not same_json(shown[name], dumped[name]):
                    return
                removed.add(dumped, name)
            elif dumped[name] != sent[name]:
                item = self._attribute(value, name)
                field.node.remove_defaults(item, sent[name], dumped[name], (at, name), removed)

    def _check_default(
        self, value: Any, field: FieldPart, shown: dict[str, Any], at: At, findings: Findings
    ) -> None:
        """Show and note a field that was not sent, and give the object its own default."""
        item = field.default if field.init_only else self._attribute(value, field.name)
        if item is MISSING:
            return
        key = field.keys[0]
        shown[key], own_value = _default(field, item, (at, key), findings)
        if own_value is not item and not field.init_only:
            self._set(value, field.name, own_value)
        if isinstance(value, BaseModel):
            value.__pydantic_fields_set__.discard(field.name)

    def _set(self, value: Any, name: str, own_value: Any) -> None:
        if self._cls is None:
            value[name] = own_value
        elif not self._indexed:
            object.__setattr__(value, name, own_value)

    def _check_field(
        self, field: FieldPart, item: Any, sent: Any, at: At, findings: Findings
    ) -> Any:
        if field.init_only:
            shown = field.node.check(field.alone(sent), sent, at, findings)
            reread = field.node.check(field.alone(sent), sent, at, Findings())
            if not same_json(reread, shown):  # a factory or a validator made a part of it
                raise Differs(at, "the tool would get a different value each time it is read")
            return shown
        if item is MISSING:
            raise Differs(at, _NO_SUCH_PROPERTY, self.code)
        if not self.code:
            return field.node.check(item, sent, at, findings)
        try:
            return field.node.check(item, sent, at, findings)
        except Differs as differs:
            if not differs.code and _reads_alone(field, sent):
                differs.code = self.code
            raise

    def _attribute(self, value: Any, name: str) -> Any:
        if self._cls is None:
            return value.get(name, MISSING)
        return getattr(value, name, MISSING)

    def _shown(self, value: Any, at: At, findings: Findings) -> Any:
        """Return the JSON of an object that was not sent, or `MISSING` if a part has none.

        An object that a validator made gets its own copies of its parts, because a part may be a
        default of its class. Such a part is shown by its type if it has no JSON form.
        """
        shown_parts = {}
        for field in self._fields:
            item = self._attribute(value, field.name)
            if item is MISSING or field.init_only:
                continue
            item_place = (at, field.keys[0])
            shown_parts[field.keys[0]] = shown = _shown_part(field.node, item, item_place, findings)
            if not findings.made:
                continue
            if shown is MISSING:
                shown_parts[field.keys[0]] = _mark_default(value, field, item, item_place, findings)
            if item.__class__ not in _UNCHANGING:
                own_value = own_copy(item) if shown is MISSING else copy.deepcopy(item)
                self._set(value, field.name, own_value)
        for name, item in self._extras_of(value).items():
            shown_parts[name] = _shown_part(self._extras, item, (at, name), findings)
        if any(shown is MISSING for shown in shown_parts.values()):
            return MISSING
        return list(shown_parts.values()) if self._indexed else shown_parts

    def _check_extras(
        self, value: Any, sent: Any, shown: dict[str, Any], at: At, findings: Findings
    ) -> None:
        """Check properties that no field declares, if the author's type allows them."""
        extras = self._extras_of(value)
        field_names = {name for field in self._fields for name in (field.name, *field.keys)}
        for key in sent.keys() - shown.keys():
            # An extra with the name of a field is not that field.
            if key not in extras or key in field_names:
                raise Differs((at, key), _NO_SUCH_PROPERTY)
            shown[key] = self._extras.check(extras[key], sent[key], (at, key), findings)

    def _extras_of(self, value: Any) -> Mapping[str, Any]:
        return extras_of(value, {field.name for field in self._fields})

    def _check_items(self, value: Any, sent: list[Any], at: At, findings: Findings) -> Any:
        """Check a NamedTuple that was sent as an array; its last fields may have defaults."""
        if len(sent) > len(self._fields):
            raise Differs(at)
        items: list[Any] = []
        for index, field in enumerate(self._fields):
            item = getattr(value, field.name)
            if index < len(sent):
                items.append(self._check_field(field, item, sent[index], (at, index), findings))
            else:
                items.append(_default(field, item, (at, index), findings)[0])
        return items


def _reads_alone(field: FieldPart, sent: JsonValue) -> bool:
    """Return whether a field, read separately, equals what was sent, so that its hint changed nothing.

    A field whose reading would ask a factory is not read again.
    """
    if holds_factory(field.reader.core):
        return False
    try:
        field.node.check(field.alone(sent), sent, None, Findings())
    except (Differs, ValidationError, CoreSchemaError, ValueError):
        return False
    return True


def _default(field: FieldPart, value: Any, at: At, findings: Findings) -> tuple[Any, Any]:
    """Show a value that was not sent, and note its place; also return a copy for this instance alone.

    Objects that pydantic does not take apart (a sentinel, a connection) are not copied.
    """
    findings.defaults.append((at, value, field.factory))
    shown = _shown_part(field.node, value, at, Findings())
    if shown is MISSING:
        return mark_of(type(value)), own_copy(value)
    if value.__class__ in _UNCHANGING:
        return shown, value
    try:
        return shown, copy.deepcopy(value)
    except Exception:
        if field.factory is not None:  # it was made for this call
            return shown, value
        raise


def _shown_part(node: Part, value: Any, at: At, findings: Findings) -> Any:
    """Return the JSON of a part of an object that was not sent; `MISSING` if it has none.

    In an object that a validator made, defaults without JSON form are noted.
    """
    if not findings.made:
        findings = Findings()
    mark = findings.mark()
    try:
        shown = node.check(value, MISSING, at, findings)
    except Differs:  # a default, or a validator's result, need not fit its hint
        shown = plain_default(value)
    except RecursionError:  # it contains itself
        shown = MISSING
    if shown is MISSING:
        findings.rewind(mark)
    return shown


def _mark_default(value: Any, field: FieldPart, item: Any, at: At, findings: Findings) -> Any:
    """Show by its type a default without JSON form, in an object that a validator made.

    Raises Differs if the value was sent and became a value without JSON form.
    """
    was_sent = isinstance(value, BaseModel) and field.name in value.model_fields_set
    if was_sent or field.default is MISSING:
        raise Differs(at, code=A_VALIDATOR)
    findings.defaults.append((at, item, field.factory))
    return mark_of(type(item))


def _weight(default: Any) -> int:
    if isinstance(default, FactoryValue):
        return weight_of_default(MISSING, factory=True)
    return weight_of_default(plain_default(default))


class TypedReader:
    """Makes a typed value of valid JSON. Calling it returns just the value.

    If a hint consists of plain fields only, a narrowed schema accepts most values, and only exactly
    as they were sent. For the others, pydantic's own dump of the value is compared with what was
    sent, except for defaults. A value that differs, or whose hint makes the dump unreliable, is
    walked.
    """

    __slots__ = (
        *("_at_once", "_compile_part", "_core", "_hashes", "_most_added", "_node", "_serializer"),
        *("_validate", "has_factories", "reads_texts"),
    )

    def __init__(
        self,
        core: Any,
        validate_json: Callable[..., Any],
        compile_part: PartCompiler = compile_alone,
    ) -> None:
        self._at_once: Any = MISSING  # made when first needed
        self._core = core
        self._compile_part = compile_part
        self._validate = validate_json
        self._hashes = _holds_hashes(core)
        self.has_factories = holds_factory(core)
        self._most_added: int | None = None
        # JSON inside a string: pydantic names places in there as if they were not in a string.
        self.reads_texts = any(node["type"] == "json" for node in core_schemas(core))
        self._node: Part | None = None
        self._serializer: SchemaSerializer | None = None

    def __call__(self, sent: JsonValue) -> Any:
        return self.read(sent, None, Findings())[0]

    @property
    def code(self) -> tuple[str, ...]:
        """The names of the author's code that runs while this hint is read."""
        return codes_in(self._core)

    @property
    def narrowed(self) -> Any:
        """The core schema that accepts only values read as they were sent, or None."""
        return narrowed(self._core)

    def shown(self, value: Any) -> Any:
        """Return the JSON of a value that was not sent; `MISSING` if it has none. Raises
        Differs."""
        return self.node.check(value, MISSING, None, Findings())

    def read(
        self, sent: JsonValue, at: At, findings: Findings, values: FactoryValues | None = None
    ) -> tuple[Any, JsonValue]:
        """Return the typed value and its JSON; default factories ask `values`.

        Raises Differs, ValidationError, SchemaError, ValueError for numbers that Python does not
        write, TooMuchWorkError, and whatever an author's validator raises.
        """
        at_once = self._at_once
        if at_once is MISSING:
            narrow = self.narrowed
            if narrow is not None:
                narrow = SchemaValidator(narrow, _use_prebuilt=False).validate_python
            at_once = self._at_once = narrow
        if at_once is not None:
            try:
                return at_once(sent), sent
            except ValidationError:
                pass  # the difference is found below
        outer, OF_THREAD.rereading = OF_THREAD.rereading, Rereading()
        try:
            return self._read(sent, at, findings, values)
        finally:
            OF_THREAD.rereading = outer

    def _read(
        self, sent: JsonValue, at: At, findings: Findings, values: FactoryValues | None
    ) -> tuple[Any, JsonValue]:
        written = json_bytes(sent)
        text = self._with_integers(written, sent)
        self._check_added(text, sent, findings)
        if values is None or not self.has_factories:
            value = self._validate(text, strict=True)
        else:
            scope = "".join(map(str, steps(at)))
            value = values.reading(scope, lambda: self._validate(text, strict=True))
        if self._serializer is not None:
            mark = findings.mark()
            shown = self._dumped(value, written, sent, at, findings)
            if shown is not MISSING:
                return value, shown
            findings.rewind(mark)
        return value, self.node.check(value, sent, at, findings)

    def _check_added(self, text: bytes, sent: JsonValue, findings: Findings) -> None:
        """Raise TooMuchWorkError if the defaults of all objects that were sent would be too large.

        They are counted only if there may be that many: short texts contain few objects.
        """
        max_weight = self._most_added
        if max_weight is None:
            default_cores = filter(_has_default, core_schemas(self._core))
            max_weight = self._most_added = sum(
                _weight(_constant_default(node)) + _NAME_LENGTH for node in default_cores
            )
        if max_weight * len(text) <= _LITTLE_ADDED:
            return
        object_count = len(text) if self.reads_texts else text.count(b"{") + text.count(b"[")
        if max_weight * object_count > _LITTLE_ADDED:
            findings.added += self.node.added_weight(sent, {})
            if findings.added > MAX_ADDED:
                raise TooMuchWorkError(ADDS_TOO_MUCH)

    def _with_integers(self, written: bytes, sent: JsonValue) -> bytes:
        """Return the text of what was sent, with whole floats as integers for int hints."""
        if (
            _POINT.search(written) is not None
            or _EXPONENT.search(written) is not None
            or (len(written) > _LONG_TEXT and self._hashes)
        ):
            return json_bytes(self.node.with_integers(sent))
        return written

    def _dumped(
        self, value: Any, written: bytes, sent: JsonValue, at: At, findings: Findings
    ) -> Any:
        """Return pydantic's own dump of the value if it is exactly what was sent, apart from defaults.

        Otherwise return `MISSING`. `written` is the text of what was sent.
        """
        try:
            serializer = cast("SchemaSerializer", self._serializer)
            if serializer.to_json(value, warnings=False) == written:
                return sent  # everything, and in the order of the fields
            sent_text = orjson.dumps(sent, option=_SORTED)
            dumped = serializer.to_python(value, mode="json", warnings=False)
            if orjson.dumps(dumped, option=_SORTED) == sent_text:
                return sent
            removed = RemovedDefaults(findings)
            self.node.remove_defaults(value, sent, dumped, at, removed)
            if orjson.dumps(dumped, option=_SORTED) != sent_text:
                return MISSING
        except (PydanticSerializationError, TypeError, Differs):
            return MISSING
        removed.put_back()
        return dumped

    @property
    def node(self) -> Part:
        """The plan of this hint, made when first needed."""
        if self._node is None:
            self._node = _Planner(self._compile_part).plan(self._core, {})
            if _is_faithful(self._core, {}):
                self._serializer = SchemaSerializer(self._core)
        return self._node


def reading_at_once(
    converters: Mapping[str, Callable[..., Any]], unchanged: Mapping[Callable[..., Any], type]
) -> Callable[[JsonObject], dict[str, Any]] | None:
    """Return a function that reads all arguments exactly as sent, or raises ValidationError.

    It uses the readers of their hints, and treats converters in `unchanged` as accepting one class.
    Return None if a hint has no narrowed form.
    """
    fields = {}
    for name, converter in converters.items():
        core = converter.narrowed if isinstance(converter, TypedReader) else None
        if converter in unchanged:
            core = exactly(unchanged[converter])
        if core is None:
            return None
        fields[name] = core_schema.typed_dict_field(core, required=False)
    try:
        arguments_core = core_schema.typed_dict_schema(fields, extra_behavior="allow")
        return SchemaValidator(arguments_core, _use_prebuilt=False).validate_python
    except CoreSchemaError:  # two hints refer to one class
        return None


_SORTED = orjson.OPT_SORT_KEYS
# Whole floats, as `json_bytes` writes them. A match inside a string is a false positive. The two
# patterns are fast to search for separately.
_POINT = re.compile(rb"\.0(?![0-9])")
_EXPONENT = re.compile(rb"e[+-]?[0-9]")
_LONG_TEXT = 1_000  # bytes; from here on a set may hold enough items to be slow
_SCALARS = frozenset(("str", "int", "float", "bool", "none"))
_LEAVES = frozenset(
    ("literal", "enum", "date", "time", "datetime", "uuid", "decimal", "definition-ref")
)
_UNIONS = frozenset(("union", "tagged-union"))
_REALS = {"decimal": constraints.decimal, "fraction": constraints.fraction}
_FAITHFUL = _SCALARS.union(
    _LEAVES, _UNIONS, ("default", "nullable", "list", "tuple", "dict", "model", "dataclass")
)
_PLAIN_FIELD = frozenset(("type", "name", "schema", "kw_only", "metadata"))
_TEXT = {"type": "str"}
_CONTAINERS = (ListPart, SetPart, DictPart, FieldsPart, InsidePart, NullablePart, UnionPart)
_NAME_LENGTH = 30  # letters of a field's name, on average at most
_LITTLE_ADDED = MAX_ADDED // 16  # by one parameter


def _has_default(core: Any) -> bool:
    return "default" in core or "default_factory" in core


class JsonTextPart(Part):
    """JSON inside a string (`Json[…]`). No schema checks it, so all its checks are made here.

    A repeated key, or one that no field takes, is refused. A default is added to the text, which
    then is the canonical text of what was read.
    """

    def __init__(self, inner: Part) -> None:
        self._inner = inner

    def with_integers(self, sent: JsonValue) -> JsonValue:
        """Rewrite the text only if that changes a number, such as `1.0` for an `int` in it."""
        if not isinstance(sent, str):
            return sent
        try:
            parsed = read_text(sent)
            if read_unrounded(sent.encode()) is not None:
                return sent  # none of its floats is an integer, so it is read as it is
            text = json_bytes(parsed)
            rewritten = json_bytes(self._inner.with_integers(parsed))
        except ValueError:  # `check` reports the error; pydantic still reads the text
            with suppress(ValueError):
                self._inner.with_integers(jiter.from_json(sent.encode()))
            return sent
        return sent if rewritten == text else rewritten.decode()

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        if not isinstance(sent, str):
            return 0
        with suppress(ValueError):
            return self._inner.added_weight(jiter.from_json(sent.encode()), {})
        return 0

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if sent is MISSING:
            return self._inner.check(value, MISSING, at, findings)
        if not isinstance(sent, str):
            raise Differs(at)
        inner_findings = Findings()
        try:
            parsed = read_text(sent)
            shown = self._inner.check(value, parsed, None, inner_findings)
            text = canonical_json(shown)
        except Differs as differs:
            raise Differs(at, differs.text) from None
        except ValueError:  # a repeated key, or an invalid number
            raise Differs(at) from None
        if inner_findings.normalised:
            findings.normalised.append(at)
        return sent if same_json(shown, parsed) else text


class _Planner:
    """Makes the plan of a hint from its core schema, which describes the structure of the value."""

    def __init__(self, compile_part: PartCompiler) -> None:
        self._compile_part = compile_part
        self._cores: dict[str, Any] = {}
        self._plans: dict[str, Part] = {}

    def plan(self, core: Any, config: Mapping[str, Any]) -> Part:
        kind = core["type"]
        if kind in ("str", "int", "float", "bool", "none"):
            return ScalarPart(kind, changes_text=kind == "str" and changes_text(core, config))
        make = getattr(self, f"_{kind.replace('-', '_')}", None)
        if make is not None:
            return cast("Part", make(core, config))
        real = _REALS.get(kind)
        as_number = real is not None and real(core).get("type") == "number"
        return LeafPart(self._reader(core, config), as_number=as_number)

    def _any(self, _core: Any, _config: Any) -> Part:
        return AnythingPart()

    def _literal(self, core: Any, _config: Any) -> Part:
        return ChoicePart(core["expected"])

    def _enum(self, core: Any, _config: Any) -> Part:
        return ChoicePart(core["members"])

    def _nullable(self, core: Any, config: Any) -> Part:
        return NullablePart(self.plan(core["schema"], config))

    def _union(self, core: Any, config: Any) -> Part:
        choices = [self.plan(choice, config) for choice in choices_of(core)]
        return UnionPart(choices, self._part_reader(core, config))

    _tagged_union = _union

    def _default(self, core: Any, config: Any) -> Part:
        return self.plan(core["schema"], config)

    _custom_error = _default

    def _lax_or_strict(self, core: Any, config: Any) -> Part:
        return self.plan(core["strict_schema"], config)

    def _json_or_python(self, core: Any, config: Any) -> Part:
        return self.plan(core["json_schema"], config)

    def _list(self, core: Any, config: Any) -> Part:
        items = core.get("items_schema")
        return ListPart([AnythingPart() if items is None else self.plan(items, config)], 0)

    _deque = _generator = _list

    def _tuple(self, core: Any, config: Any) -> Part:
        items = [self.plan(item, config) for item in core["items_schema"]]
        return ListPart(items, core.get("variadic_item_index"))

    def _set(self, core: Any, config: Any) -> Part:
        items = core.get("items_schema") or core_schema.any_schema()
        kind = set if core["type"] == "set" else frozenset
        return SetPart(self.plan(items, config), kind, self._part_reader(items, config))

    _frozenset = _set

    def _dict(self, core: Any, config: Any) -> Part:
        values = core.get("values_schema")
        node = AnythingPart() if values is None else self.plan(values, config)
        keys = core.get("keys_schema")
        plain_keys = keys is None or keys["type"] in ("any", "str")
        if plain_keys and not changes_text(keys or {}, config):
            return DictPart(node, None)
        return DictPart(node, self._reader(core_schema.dict_schema(keys), config))

    _ordered_dict = _counter = _dict

    def _definitions(self, core: Any, config: Any) -> Part:
        self._cores |= {definition["ref"]: definition for definition in core["definitions"]}
        return self.plan(core["schema"], config)

    def _definition_ref(self, core: Any, _config: Any) -> Part:
        ref = core["schema_ref"]
        return InsidePart(lambda: self._planned(ref))

    def _planned(self, ref: str) -> Part:
        if ref not in self._plans:
            self._plans[ref] = self.plan(self._cores[ref], {})
        return self._plans[ref]

    def _json(self, core: Any, config: Any) -> Part:
        inner_core = core.get("schema")
        return JsonTextPart(AnythingPart() if inner_core is None else self.plan(inner_core, config))

    def _function_plain(self, core: Any, config: Any) -> Part:
        is_from_pydantic = is_pydantics(core)
        return (
            LeafPart(self._reader(core, config))
            if is_from_pydantic
            else AuthoredPart(AnythingPart())
        )

    def _function_after(self, core: Any, config: Any) -> Part:
        """Plan a validator around a part. A validator of a whole object must not change its
        fields."""
        inner = self.plan(core["schema"], config)
        if is_pydantics(core):
            choices = inner.choices if isinstance(inner, UnionPart) else (inner,)
            # From scalars alone pydantic makes one value, such as a size in bytes.
            if isinstance(inner, _CONTAINERS) and not all(
                isinstance(c, ScalarPart) for c in choices
            ):
                return InsidePart(lambda: inner)
            reader = self._reader(core, config)
            return inner if isinstance(inner, AuthoredPart) else LeafPart(reader, inner)
        if not isinstance(inner, FieldsPart):
            return AuthoredPart(inner)
        inner.code += (code_name(core),)
        return inner

    _function_before = _function_wrap = _function_after

    def _chain(self, core: Any, config: Any) -> Part:
        inner = self.plan(core["steps"][0], config)
        if not all(is_pydantics(step) for step in core["steps"]):
            return AuthoredPart(inner)
        return inner if isinstance(inner, _CONTAINERS) else LeafPart(self._reader(core, config))

    def _model(self, core: Any, _config: Any) -> Part:
        config = core.get("config") or {}
        inner = core["schema"]
        while inner["type"].startswith("function-") and "schema" in inner:
            inner = inner["schema"]
        if inner["type"] != "model-fields":
            return RootPart(core["cls"], self.plan(core["schema"], config))
        fields = [
            self._field(name, field_core, config) for name, field_core in inner["fields"].items()
        ]
        return FieldsPart(core["cls"], fields, self._extras(inner, config), code_of_class(core))

    def _dataclass(self, core: Any, _config: Any) -> Part:
        config = core.get("config") or {}
        inner = core["schema"]
        while inner["type"] != "dataclass-args":
            inner = inner["schema"]
        init_fields = [field_core for field_core in inner["fields"] if field_core.get("init", True)]
        fields = [self._field(field_core["name"], field_core, config) for field_core in init_fields]
        return FieldsPart(core["cls"], fields, self._extras(inner, config), code_of_class(core))

    def _typed_dict(self, core: Any, config: Any) -> Part:
        config = core.get("config") or config  # it uses the config of the class around it
        fields = [
            self._field(name, field_core, config) for name, field_core in core["fields"].items()
        ]
        return FieldsPart(None, fields, self._extras(core, config))

    def _named_tuple(self, core: Any, config: Any) -> Part:
        fields = [
            self._field(field_core["name"], field_core, config) for field_core in core["fields"]
        ]
        return FieldsPart(core["cls"], fields, AnythingPart())

    def _call(self, core: Any, config: Any) -> Part:
        cls, arguments_core = core["function"], core["arguments_schema"]
        if not (isinstance(cls, type) and issubclass(cls, tuple)):
            return LeafPart(self._reader(core, config))
        inner_core = (
            arguments_core["schema"]
            if arguments_core["type"].startswith("function-")
            else arguments_core
        )
        fields = [
            self._field(field_core["name"], field_core, config)
            for field_core in inner_core["arguments_schema"]
        ]
        return FieldsPart(cls, fields, AnythingPart())

    def _extras(self, core: Any, config: Any) -> Part:
        extras_core = core.get("extras_schema")
        return AnythingPart() if extras_core is None else self.plan(extras_core, config)

    def _field(self, name: str, field_core: Any, config: Mapping[str, Any]) -> FieldPart:
        alias = field_core.get("validation_alias", field_core.get("alias"))
        paths = alias if isinstance(alias, list) else [alias]
        aliases = [p[0] if isinstance(p, list) and len(p) == 1 else p for p in paths]
        keys = [key for key in aliases if isinstance(key, str)]
        if config.get("validate_by_alias") is False:
            keys = []
        by_name = config.get("populate_by_name") or config.get("validate_by_name")
        if by_name or not keys:
            keys.append(name)
        core = field_core["schema"]
        core_without_factory = core
        while "default_factory" in core_without_factory:
            core_without_factory = core_without_factory["schema"]
        return FieldPart(
            name=name,
            keys=tuple(keys),
            node=self.plan(core, config),
            factory=factory_of(core),
            reader=self._part_reader(core_without_factory, config),
            init_only=bool(field_core.get("init_only")),
            default=_constant_default(core),
            required=field_core.get("required", True),
        )

    def _part_reader(self, core: Any, config: Any) -> PartReader:
        """Return a reader for this part alone, with the definitions that it may refer to."""
        return self._reader(
            core_schema.definitions_schema(core, list(self._cores.values())), config
        )

    def _reader(self, core: Any, config: Any) -> PartReader:
        return PartReader(core, config, self._compile_part)


def _holds_hashes(core: Any) -> bool:
    """Return whether Python hashes parts of the value: set items, or keys that are not strings."""
    return any(
        node["type"] in ("set", "frozenset")
        or (node["type"] == "dict" and node.get("keys_schema", _TEXT)["type"] != "str")
        for node in core_schemas(core)
    )


class FactoryValue:
    """Stands for what a factory made for a constructor, which nothing else can see."""


def _constant_default(core: Any) -> Any:
    """Return what a constructor gets for a field that was not sent; MISSING if required."""
    while "default" not in core:
        if "default_factory" in core:
            return FactoryValue()
        core = core.get("schema")
        if not isinstance(core, dict):
            return MISSING
    return core["default"]


def _is_faithful(core: Any, config: Mapping[str, Any]) -> bool:
    """Return whether pydantic writes a value as it reads it, or as a different text.

    That holds for plain fields under their own names, without serializers, aliases, secrets or
    validators anywhere.
    """
    kind = core["type"]
    if kind == "definitions":
        return all(_is_faithful(part, {}) for part in (core["schema"], *core["definitions"]))
    if "serialization" in core or kind not in _FAITHFUL:
        return False
    if kind in _SCALARS:
        return not changes_text(core, config)
    if kind in _LEAVES:
        return True
    if kind in ("default", "nullable"):
        return _is_faithful(core["schema"], config)
    if kind in _UNIONS:
        return all(_is_faithful(choice, config) for choice in choices_of(core))
    if kind == "tuple":
        return all(_is_faithful(item, config) for item in core["items_schema"])
    if kind in ("list", "dict"):
        plain_keys = core.get("keys_schema", _TEXT)["type"] == "str"
        items = core.get("items_schema") or core.get("values_schema")
        return plain_keys and (items is None or _is_faithful(items, config))
    config, inner = core.get("config") or {}, core["schema"]
    if inner["type"] not in ("model-fields", "dataclass-args") or inner.get("computed_fields"):
        return False
    return config.get("extra_fields_behavior") != "allow" and all(
        _PLAIN_FIELD.issuperset(field) and _is_faithful(field["schema"], config)
        for _, field in fields_of(inner)
    )
