"""Check that a typed value, converted from JSON once and strictly, is what was sent.

Rule: a tool gets what was sent, or the call is refused. A value is read once, in pydantic's strict
JSON mode. That alone is not enough: validators of a whole model, `Enum._missing_`, aliases and
`Field(strict=False)` can still turn it into another value. So the value that was read is compared
with what was sent, attribute by attribute (serializers and excluded fields do not matter), and
written as JSON again. A difference between the two is one of these:

- a canonical form (an equal number, the same instant, the order of a set, a UUID in lower case):
  the form that was read is used;
- made by an author's own validator on that very value, or by `strip_whitespace` and the like: the
  new value is used, and noted as `normalised`;
- anything else: `Differs`, with its place. The call does not run.

A value that was not sent (a default) is written, too, and its place is noted. Objects of classes
that pydantic does not take apart are not examined: what their code was given is what was sent.
Objects of declared fields are handled in `reading`.
"""

from __future__ import annotations

import ipaddress
import math
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from fractions import Fraction
from operator import is_
from types import NoneType
from typing import Any, Protocol, TypeAlias, cast

import msgspec
from pydantic import ValidationError
from pydantic_core import (
    CoreConfig,
    PydanticSerializationError,
    SchemaError,
    SchemaValidator,
    to_jsonable_python,
)

from toolcrib.schema.derive.plain import (
    MISSING,
    NUMBERS,
    is_object,
    is_secret,
    number_of,
    plain,
    plain_default,
    same_json,
)
from toolcrib.schema.references import nodes_of
from toolcrib.values.json import JsonValue, canonical_json, is_whole, json_bytes

At: TypeAlias = "tuple[At, str | int] | None"
FoundDefault: TypeAlias = tuple[At, Any, Callable[..., Any] | None]
"""A default that was not sent: its place, the value itself, and the factory that made it."""
_MAX_OF_ONE_HASH = 100
_TWO_ITEMS_AS_ONE = "the tool would treat two of these items as one"
_TOO_DEEP_TO_REREAD = (
    "A part of the arguments that has to be read twice is nested too deeply. Send less."
)
_TOO_MANY_OF_ONE_HASH = "The arguments hold too many items with the same hash. Send fewer items."
IPS = tuple(
    getattr(ipaddress, f"IPv{version}{kind}")
    for version in (4, 6)
    for kind in ("Address", "Network", "Interface")
)
OWN_STEP = "toolcrib: "
"""How a step begins that our core schemas, and not what was sent, add to the place of an error."""
_TEXT_CHANGES = ("strip_whitespace", "to_lower", "to_upper")


def changes_text(core: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether pydantic strips a string of this core schema, or changes its case."""
    return any(core.get(name) or config.get(f"str_{name}") for name in _TEXT_CHANGES)


class Differs(Exception):  # noqa: N818  an internal finding; it never leaves the reader
    """The value that was read is not what was sent. Holds the place and a safe description.

    `code` names the author's code that caused it, if nothing else can have.
    """

    def __init__(
        self,
        at: At,
        text: str = "the tool would get a different value than the one sent",
        code: tuple[str, ...] = (),
    ) -> None:
        super().__init__(text)
        self.at = at
        self.text = text
        self.code = code


A_VALIDATOR = ("a validator",)
"""The code that turned what was sent into None. Readers never do that."""


class TooMuchWorkError(Exception):
    """Reading a value would take too long; `text` says why, and what to send."""

    def __init__(
        self, text: str = "The arguments fit too many alternatives of the tool's schema. Send less."
    ) -> None:
        super().__init__(text)
        self.text = text


class Findings:
    """Collects the places that were not sent, and the places that an author's validator changed.

    `defaults` holds places in the value as it is shown (the items of a set are sorted, and keys are
    in canonical form), with the values themselves. `normalised` and `sets` point into what was
    sent; the items of the latter are not shown in the order in which they were sent. `made` says
    that an author's validator made the value being checked.
    """

    __slots__ = ("added", "defaults", "known", "made", "normalised", "sets")

    def __init__(self, *, made: bool = False) -> None:
        self.made = made
        self.added = 0
        self.defaults: list[FoundDefault] = []
        self.normalised: list[At] = []
        self.sets: list[At] = []
        self.known: dict[tuple[int, int, int], Any] = {}

    def mark(self) -> tuple[int, int, int]:
        return len(self.defaults), len(self.normalised), len(self.sets)

    def shown_at(self, at: At, step: str | int, noted: slice) -> None:
        """Move the noted defaults below one item of `at` to where they are shown, below `step`."""
        depth = len(steps(at))
        for index in range(*noted.indices(len(self.defaults))):
            old_place, value, factory = self.defaults[index]
            moved = at
            for key in (step, *steps(old_place)[depth + 1 :]):
                moved = (moved, key)
            self.defaults[index] = (moved, value, factory)

    def rewind(self, mark: tuple[int, int, int]) -> None:
        del self.defaults[mark[0] :]
        del self.normalised[mark[1] :]
        del self.sets[mark[2] :]

    def since(self, mark: tuple[int, int, int]) -> tuple[list[FoundDefault], list[At], list[At]]:
        return self.defaults[mark[0] :], self.normalised[mark[1] :], self.sets[mark[2] :]


class RemovedDefaults:
    """The defaults that were taken out of JSON, with their places, so that they can be put back."""

    __slots__ = ("_places", "found")

    def __init__(self, findings: Findings) -> None:
        self.found = findings
        self._places: list[tuple[dict[str, Any], str, JsonValue]] = []

    def add(self, holder: dict[str, Any], name: str) -> None:
        self._places.append((holder, name, holder.pop(name)))

    def put_back(self) -> None:
        for holder, name, value in self._places:
            holder[name] = value


def steps(at: At) -> tuple[str | int, ...]:
    """Return a place as the steps that lead to it."""
    path: list[str | int] = []
    while at is not None:
        at, step = at
        path.append(step)
    return tuple(reversed(path))


MAX_ADDED = 1 << 20
"""What defaults may add to the arguments of a call, in bytes of JSON; a second to build."""
_NODE_WEIGHT = 20  # bytes that take as long to build as one value
_FACTORY_WEIGHT = 8 * _NODE_WEIGHT  # the cost of asking a factory
ADDS_TOO_MUCH = "Defaults would make the arguments too large. Send fewer objects."
CachedWeights: TypeAlias = dict[tuple[int, int], int]


def weight_of_default(shown: Any, *, factory: bool = False) -> int:
    """Return the weight of one default, as JSON; `MISSING` if it has none or is not known yet."""
    weight = _FACTORY_WEIGHT if factory else 0
    if shown.__class__ is str:
        return weight + _NODE_WEIGHT + len(shown)
    for node in nodes_of(shown):
        weight += _NODE_WEIGHT
        if isinstance(node, str):
            weight += len(node)
        elif isinstance(node, dict):
            weight += sum(map(len, node))
    return weight


class Part:
    """Walks one part of a hint. The base class accepts values that are equal as JSON."""

    def with_integers(self, sent: JsonValue) -> JsonValue:
        """Return what was sent, with whole numbers as integers where integers are required."""
        return sent

    def fits(self, _value: Any) -> bool:
        """Return whether a value may come from this part, so that unions can choose quickly."""
        return True

    def check(self, value: Any, sent: Any, at: At, _findings: Findings) -> Any:
        """Return the JSON of `value` if it is what was sent. Raises Differs.

        For a default, `sent` is `MISSING`. The result is `MISSING` for a default without JSON form.
        """
        shown = plain(value)
        if sent is MISSING or (shown is not MISSING and same_json(shown, sent)):
            return shown
        raise Differs(at)

    def remove_defaults(
        self, value: Any, sent: Any, dumped: Any, at: At, removed: RemovedDefaults
    ) -> None:
        """Remove from `dumped`, pydantic's dump of `value`, the defaults that were not sent."""

    def may_take(self, _sent: JsonValue) -> bool:
        """Return whether what was sent may be meant for this branch of a union."""
        return True

    def added_weight(self, _sent: JsonValue, _cached: CachedWeights) -> int:
        """Return the weight of the defaults that reading adds to what was sent; in a union, at most."""
        return 0


MAX_REREAD = 10_000_000  # bytes of the parts of one value, about a second; arguments have a million
_REREAD_CALL = 24  # the cost of a call, in bytes


class Rereading(msgspec.Struct):
    """Counts what is read again of one value, because nesting in sets or `InitVar` multiplies.

    `known` maps a union and a part of what was sent, both kept alive, to what its branches made of
    it.
    """

    spent: int = 0
    known: dict[tuple[int, int], tuple[JsonValue, JsonValue]] = {}


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.rereading = Rereading()


OF_THREAD = _OfThread()
"""The count for the value that this thread is reading."""


def spend_reading(units: int, text: str) -> None:
    """Count work of reading one value, in bytes that are read again. Raises TooMuchWorkError."""
    count = OF_THREAD.rereading
    count.spent += units
    if count.spent > MAX_REREAD:
        raise TooMuchWorkError(text)


class JsonValidator(Protocol):
    """What is used of a SchemaValidator."""

    def validate_json(self, text: bytes, /, *, strict: bool | None = None) -> Any: ...


PartCompiler: TypeAlias = Callable[[Any, CoreConfig], JsonValidator]
"""Makes the validator of a part of a core schema, with the config of the class around it."""


def compile_alone(core: Any, config: CoreConfig) -> JsonValidator:
    return SchemaValidator(core, config, _use_prebuilt=False)


class PartReader:
    """Reads JSON by one part of a hint alone, as its class would. `config` is the config of that
    class."""

    __slots__ = ("_compile", "_config", "_made", "core")

    def __init__(self, core: Any, config: Mapping[str, Any], compile_part: PartCompiler) -> None:
        self.core = core
        self._config = config
        self._compile = compile_part
        self._made: JsonValidator | None = None

    def read(self, sent: JsonValue) -> Any:
        """Return the value. Raises TooMuchWorkError, ValidationError, SchemaError, ValueError."""
        text = json_bytes(sent)
        spend_reading(len(text) + _REREAD_CALL, _TOO_DEEP_TO_REREAD)
        if self._made is None:
            config = {key: value for key, value in self._config.items() if key != "title"}
            self._made = self._compile(self.core, cast("CoreConfig", config))
        return self._made.validate_json(text, strict=True)

    def try_read(self, sent: JsonValue) -> Any:
        """Return the value, or `MISSING` if it cannot be read."""
        try:
            return self.read(sent)
        except (ValidationError, SchemaError, ValueError):
            return MISSING


READ_FROM_TEXT = (bytes, bytearray, datetime, time, re.Pattern)
"""Types whose usual text a hint may read as a different value: as base64, or without flags."""


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of one class (times: with the same offset, too)."""
    if one.__class__ is not other.__class__ or one != other:
        return False
    return not isinstance(one, datetime | time) or bool(one.utcoffset() == other.utcoffset())


class LeafPart(Part):
    """A value that is one string or number in JSON, or one that only pydantic understands.

    The canonical form of a string is the value's own text, if that is read as this same value (just
    the address of "Ada <ada@example.org>", but never what a Base64 text decodes to). With
    `as_number` the schema accepts only numbers, so a default is shown as a number, too, if that
    loses nothing.
    """

    def __init__(
        self, reader: PartReader, inner: Part | None = None, *, as_number: bool = False
    ) -> None:
        self._reader = reader
        self._inner = inner
        self._as_number = as_number

    def with_integers(self, sent: JsonValue) -> JsonValue:
        return sent if self._inner is None else self._inner.with_integers(sent)

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        return 0 if self._inner is None else self._inner.added_weight(sent, cached)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        shown = plain(value)
        if sent is MISSING:
            if isinstance(value, READ_FROM_TEXT) and not self._reads_as(shown, value):
                return MISSING  # a default would be shown as another value
            return number_of(value, shown) if self._as_number else shown
        if shown is not MISSING and same_json(shown, sent):
            return shown
        unwrapped = value.get_secret_value() if is_secret(value) else value
        if unwrapped is not value and same_json(plain(unwrapped), sent):
            return sent
        if not self._reads_as(sent, value):
            raise Differs(at)
        if (
            isinstance(sent, float)
            and sent.is_integer()
            and isinstance(unwrapped, Decimal | Fraction)
        ):
            # Beyond 2^53, pydantic reads the digits that a float is written with.
            return int(unwrapped)
        are_texts = isinstance(shown, str) and isinstance(sent, str)
        return shown if are_texts and self._reads_as(shown, value) else sent

    def _reads_as(self, sent: Any, value: Any) -> bool:
        """Return whether a text, read by this type alone, gives this value."""
        return _is_same(self._reader.try_read(sent), value)


_KINDS: dict[str, Any] = {"none": NoneType, "str": str, "int": int, "float": NUMBERS}


class ScalarPart(Part):
    """JSON's own strings, numbers, booleans and null: equal, or a different value."""

    def __init__(self, kind: str, *, changes_text: bool = False) -> None:
        self._kind = kind
        self._kinds = _KINDS.get(kind, bool)
        self._changes_text = changes_text
        self.takes_float = kind == "float"

    def with_integers(self, sent: JsonValue) -> JsonValue:
        return _whole_number(sent) if self._kind == "int" else sent

    def fits(self, value: Any) -> bool:
        is_bool = value.__class__ is bool
        return is_bool if self._kind == "bool" else isinstance(value, self._kinds) and not is_bool

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if value.__class__ is sent.__class__ and value == sent:
            return sent
        shown = plain(value)
        if sent is MISSING:
            return shown
        if not self.fits(value) or shown is MISSING:
            raise Differs(at)
        if not same_json(shown, sent):
            if self._changes_text and isinstance(sent, str):
                findings.normalised.append(at)
            elif not (self.takes_float and _as_float(sent) == shown):
                raise Differs(at)
        return shown


def unchanged(sent: JsonValue, replaced: JsonValue) -> JsonValue:
    """Return the original list or object if no part of it was replaced."""
    before: Any = sent.values() if isinstance(sent, dict) else sent
    after: Any = replaced.values() if isinstance(replaced, dict) else replaced
    return sent if all(map(is_, before, after)) else replaced


def _whole_number(sent: JsonValue) -> JsonValue:
    return int(sent) if isinstance(sent, float) and is_whole(sent) else sent


def _as_float(sent: Any) -> float | None:
    """Return the float nearest to an integer, which policies, records and the tool then see."""
    try:
        return float(sent) if sent.__class__ is int else None
    except OverflowError:
        return None


_LITERALS = frozenset((str, int, bool, float, bytes, type(None)))


class ChoicePart(Part):
    """A Literal or an Enum: exactly one of the listed values, not another value that equals it."""

    def __init__(self, members: Sequence[Any]) -> None:
        values = [plain(member) for member in members]
        self._has_integers = any(value.__class__ is int for value in values)
        self._scalars = {(m.__class__, m) for m in members if m.__class__ in _LITERALS}
        self._texts = {value for value in values if isinstance(value, str)}
        self._members = {id(m): m for m in members}  # each Enum member exists once

    def with_integers(self, sent: JsonValue) -> JsonValue:
        return _whole_number(sent) if self._has_integers else sent

    def may_take(self, sent: JsonValue) -> bool:
        return not isinstance(sent, str) or sent in self._texts

    def fits(self, value: Any) -> bool:
        kind = value.__class__  # a lookup, because there may be as many members as values
        return (kind, value) in self._scalars if kind in _LITERALS else id(value) in self._members


class AnythingPart(Part):
    """Keeps a value without a type hint as the JSON that was sent."""

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if sent is not MISSING and same_json(value, sent):
            return sent
        if sent is MISSING:
            return plain_default(value)
        return super().check(value, sent, at, findings)


class AroundPart(Part):
    """A part around another part, resolved when first needed because hints may be recursive."""

    def __init__(self, inner: Part | Callable[[], Part]) -> None:
        self._part_or_factory = inner

    @property
    def inner(self) -> Part:
        if not isinstance(self._part_or_factory, Part):
            self._part_or_factory = self._part_or_factory()
        return self._part_or_factory

    def with_integers(self, sent: JsonValue) -> JsonValue:
        return self.inner.with_integers(sent)

    def may_take(self, sent: JsonValue) -> bool:
        return self.inner.may_take(sent)

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        return self.inner.added_weight(sent, cached)

    def fits(self, value: Any) -> bool:
        return self.inner.fits(value)


class AuthoredPart(AroundPart):
    """A value with an author's own validator: its result is used, and noted."""

    def may_take(self, _sent: JsonValue) -> bool:
        return True

    def fits(self, _value: Any) -> bool:
        return True

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        mark = findings.mark()
        try:
            return self.inner.check(value, sent, at, findings)
        except Differs:
            findings.rewind(mark)
        default_findings = Findings(made=sent is not MISSING)
        try:
            shown = self.inner.check(value, MISSING, at, default_findings)
        except Differs:
            shown = MISSING
        if shown is MISSING:
            shown, default_findings = plain(value), Findings()
        if sent is MISSING:
            return shown
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        if shown is MISSING and (is_infinite or self._has_parts(value)):
            raise Differs(at, code=A_VALIDATOR)  # nobody who decides on the call could see it
        if shown is MISSING or same_json(shown, sent):  # an object: its code got what was sent
            return sent
        findings.normalised.append(at)
        findings.defaults += default_findings.defaults
        return shown

    def _has_parts(self, value: Any) -> bool:
        """Return whether a value has parts, according to its hint."""
        kinds = (dict, list, tuple, set, frozenset, deque)
        return isinstance(value, kinds) or (is_object(value) and self.inner.fits(value))


class NullablePart(AroundPart):
    def fits(self, value: Any) -> bool:
        return value is None or self.inner.fits(value)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if value is not None:
            return self.inner.check(value, sent, at, findings)
        if sent is None or sent is MISSING:
            return None
        raise Differs(at, code=A_VALIDATOR)

    def remove_defaults(
        self, value: Any, sent: Any, dumped: Any, at: At, removed: RemovedDefaults
    ) -> None:
        if value is not None:
            self.inner.remove_defaults(value, sent, dumped, at, removed)


class InsidePart(AroundPart):
    """Handles pydantic's own wrappers: it unwraps a secret and follows a reference."""

    def fits(self, value: Any) -> bool:
        return is_secret(value) or self.inner.fits(value)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if is_secret(value):
            value = value.get_secret_value()
        return self.inner.check(value, sent, at, findings)


class RootPart(AroundPart):
    """A RootModel, which stands for the value it holds."""

    def __init__(self, cls: Any, inner: Part) -> None:
        super().__init__(inner)
        self._cls = cls

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._cls)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if not self.fits(value):
            raise Differs(at)
        return self.inner.check(value.root, sent, at, findings)


class UnionPart(Part):
    """The first branch that the value can come from. Each pair of value and JSON is checked once,
    at any depth.

    A value that a branch normalised must stay in that branch. If the form that everybody sees would
    be read by another branch (a string stripped to a date), the call is refused.
    """

    def __init__(self, choices: Sequence[Part], reader: PartReader) -> None:
        self.choices = choices
        self._reader = reader
        self.takes_float = any(getattr(c, "takes_float", False) for c in choices)

    def with_integers(self, sent: JsonValue) -> JsonValue:
        """Return what all branches make of it. Each part is done once per union, as nested branches
        multiply."""
        if sent.__class__ is float and self.takes_float:
            return sent
        cached, result = OF_THREAD.rereading.known, sent
        entry = cached.get((id(self), id(sent)))
        if entry is not None:
            return entry[1]
        for choice in self.choices:
            result = choice.with_integers(result)
        if sent.__class__ in (list, dict):
            cached[id(self), id(sent)] = sent, result
            cached[id(self), id(result)] = result, result
        return result

    def may_take(self, sent: JsonValue) -> bool:
        return any(choice.may_take(sent) for choice in self.choices)

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        if sent.__class__ not in (list, dict, str):
            return 0
        key = id(self), id(sent)
        if key not in cached:
            choices = [choice for choice in self.choices if choice.may_take(sent)] or self.choices
            cached[key] = max(choice.added_weight(sent, cached) for choice in choices)
        return cached[key]

    def fits(self, value: Any) -> bool:
        return any(choice.fits(value) for choice in self.choices)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        key = (id(self), id(value), id(sent))
        if key in findings.known:
            if findings.known[key] is None:
                raise Differs(at)
            shown, (defaults, normalised, sets) = findings.known[key]
            findings.defaults += defaults
            findings.normalised += normalised
            findings.sets += sets
            return shown
        mark = findings.mark()
        for choice in self.choices:
            if not choice.fits(value):
                continue
            try:
                shown = choice.check(value, sent, at, findings)
                if sent is not MISSING and len(findings.normalised) > mark[1]:
                    reread = self._reader.try_read(shown)  # validity is for the schema to judge
                    if reread is not MISSING and reread.__class__ is not value.__class__:
                        raise Differs(at)
            except Differs:
                findings.rewind(mark)
                continue
            if sent.__class__ in (list, dict):
                findings.known[key] = shown, findings.since(mark)
            return shown
        if sent.__class__ in (list, dict):
            findings.known[key] = None
        raise Differs(at, code=A_VALIDATOR if value is None and sent is not None else ())

    def remove_defaults(
        self, value: Any, sent: Any, dumped: Any, at: At, removed: RemovedDefaults
    ) -> None:
        fitting = [choice for choice in self.choices if choice.fits(value)]
        if len(fitting) == 1:
            fitting[0].remove_defaults(value, sent, dumped, at, removed)


class ListPart(Part):
    """Lists, tuples and other arrays that keep their order."""

    def __init__(self, items: Sequence[Part], variadic: int | None) -> None:
        self._items = items
        self._variadic = variadic

    def _nodes(self, count: int) -> Sequence[Part]:
        if self._variadic is None:
            return self._items
        index, items = self._variadic, self._items
        return [*items[:index], *[items[index]] * (count - len(items) + 1), *items[index + 1 :]]

    def with_integers(self, sent: JsonValue) -> JsonValue:
        if not isinstance(sent, list):
            return sent
        nodes = self._nodes(len(sent))
        if len(nodes) != len(sent):
            return sent
        return unchanged(
            sent, [node.with_integers(item) for node, item in zip(nodes, sent, strict=True)]
        )

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        if not isinstance(sent, list):
            return 0
        nodes = self._nodes(len(sent))
        return sum(node.added_weight(item, cached) for node, item in zip(nodes, sent, strict=False))

    def fits(self, value: Any) -> bool:
        return isinstance(value, Sequence | deque) and not isinstance(value, str | bytes)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if not self.fits(value) or not (sent is MISSING or isinstance(sent, list)):
            raise Differs(at)
        nodes = self._nodes(len(value))
        if len(nodes) != len(value) or (sent is not MISSING and len(sent) != len(value)):
            raise Differs(at)
        sent_items = [MISSING] * len(value) if sent is MISSING else sent
        items = [
            node.check(item, sent_item, (at, index), findings)
            for index, (node, item, sent_item) in enumerate(
                zip(nodes, value, sent_items, strict=True)
            )
        ]
        return MISSING if any(item is MISSING for item in items) else items

    def remove_defaults(
        self, value: Any, sent: Any, dumped: Any, at: At, removed: RemovedDefaults
    ) -> None:
        if not (isinstance(sent, list) and len(sent) == len(dumped) == len(value)):
            return
        for index, node in enumerate(self._nodes(len(sent))):
            if dumped[index] != sent[index]:
                node.remove_defaults(value[index], sent[index], dumped[index], (at, index), removed)


def _check_spread(items: Iterable[Any]) -> None:
    """Raise TooMuchWorkError if too many items have one hash, as a set compares all pairs.

    Python hashes numbers, and values made of them, predictably, so a sender could exploit this.
    """
    counts: Counter[int] = Counter()
    for item in items:
        try:
            item_hash = hash(item)
        except TypeError:  # it fits no set, as the reader will report
            continue
        counts[item_hash] += 1
        if counts[item_hash] > _MAX_OF_ONE_HASH:
            raise TooMuchWorkError(_TOO_MANY_OF_ONE_HASH)


class SetPart(Part):
    """Sets, in any order, with items sent any number of times.

    Items that are equal in Python but differ for everybody else are refused.
    """

    def __init__(self, item: Part, kind: type, reader: PartReader) -> None:
        self._item = item
        self._kind = kind
        self._reader = reader

    def with_integers(self, sent: JsonValue) -> JsonValue:
        if not isinstance(sent, list):
            return sent
        items = [self._item.with_integers(item) for item in sent]
        if len(items) > _MAX_OF_ONE_HASH:
            values = map(self._reader.try_read, items)
            _check_spread(item for item in values if item is not MISSING)
        return unchanged(sent, items)

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        return (
            sum(self._item.added_weight(item, cached) for item in sent)
            if isinstance(sent, list)
            else 0
        )

    def fits(self, value: Any) -> bool:
        return isinstance(value, self._kind)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if not self.fits(value) or not (sent is MISSING or isinstance(sent, list)):
            raise Differs(at)
        if sent is MISSING:
            # A copy inside an item may have another hash.
            items = [self._item.check(item, MISSING, (at, 0), Findings()) for item in value]
            is_complete = not any(item is MISSING for item in items)
            return sorted(items, key=canonical_json) if is_complete else MISSING
        findings.sets.append(at)
        actual_items = {item: item for item in value}
        by_text: dict[str, JsonValue] = {}
        seen: dict[Any, tuple[str, slice]] = {}
        for index, sent_item in enumerate(sent):
            item = self._reader.try_read(self._item.with_integers(sent_item))
            if item is MISSING or item not in actual_items:
                raise Differs((at, index))
            mark = len(findings.defaults)
            if item in seen:  # sent twice; in Python `1` is `True`, and an instant has many texts
                shown_again = self._item.check(item, sent_item, (at, index), findings)
                if canonical_json(shown_again) != seen[item][0]:
                    raise Differs(at, _TWO_ITEMS_AS_ONE)
                del findings.defaults[mark:]
                continue
            shown = self._check_own(actual_items[item], sent_item, (at, index), findings)
            text = canonical_json(shown)
            by_text[text] = shown
            seen[item] = text, slice(mark, len(findings.defaults))
        if len(seen) != len(value):
            raise Differs(at)
        if len(by_text) != len(value):
            raise Differs(at, _TWO_ITEMS_AS_ONE)
        positions = {text: position for position, text in enumerate(sorted(by_text))}
        for text, noted in seen.values():
            findings.shown_at(at, positions[text], noted)
        return [by_text[text] for text in sorted(by_text)]

    def _check_own(self, item: Any, sent: JsonValue, at: At, findings: Findings) -> Any:
        """Check the actual item that the tool gets, because an equal one may differ from it."""
        hash_before = hash(item)
        shown = self._item.check(item, sent, at, findings)
        if hash(item) != hash_before:  # a copied default made it a different item
            raise Differs(at, "a default inside this set item cannot be copied. Send that field")
        return shown


class DictPart(Part):
    """Mappings, whose keys are strings in JSON, whatever they are read as."""

    def __init__(self, value: Part, keys: PartReader | None) -> None:
        self._value = value
        self._keys = keys

    def with_integers(self, sent: JsonValue) -> JsonValue:
        if not isinstance(sent, dict):
            return sent
        if self._keys is not None and len(sent) > _MAX_OF_ONE_HASH:
            key_dicts = (self._keys.try_read({name: None}) for name in sent)
            _check_spread(next(iter(key_dict)) for key_dict in key_dicts if key_dict is not MISSING)
        return unchanged(sent, {key: self._value.with_integers(item) for key, item in sent.items()})

    def added_weight(self, sent: JsonValue, cached: CachedWeights) -> int:
        if not isinstance(sent, dict):
            return 0
        return sum(self._value.added_weight(item, cached) for item in sent.values())

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def check(self, value: Any, sent: Any, at: At, findings: Findings) -> Any:
        if not self.fits(value) or not (sent is MISSING or isinstance(sent, dict)):
            raise Differs(at)
        if sent is MISSING:
            result = {
                self._name(key): self._value.check(v, sent, (at, str(key)), findings)
                for key, v in value.items()
            }
            is_missing = len(result) < len(value) or any(
                v is MISSING for v in (*result, *result.values())
            )
            return MISSING if is_missing else result
        if len(value) != len(sent):
            raise Differs(at)
        result = {}
        for (key, item), (name, sent_item) in zip(value.items(), sent.items(), strict=True):
            if not (key == name and key.__class__ is str) and not self._reads_as(name, key):
                raise Differs((at, name))
            if key.__class__ is str and key != name:
                findings.normalised.append((at, name))
            mark, shown = len(findings.defaults), self._name(key)
            result[shown] = self._value.check(item, sent_item, (at, name), findings)
            if shown != name:
                findings.shown_at(at, shown, slice(mark, None))
        if len(result) < len(sent):
            raise Differs(at)
        return result

    def remove_defaults(
        self, value: Any, sent: Any, dumped: Any, at: At, removed: RemovedDefaults
    ) -> None:
        if not (isinstance(sent, dict) and sent.keys() == dumped.keys() == value.keys()):
            return
        for key, item in sent.items():
            if dumped[key] != item:
                self._value.remove_defaults(value[key], item, dumped[key], (at, key), removed)

    def _name(self, key: Any) -> Any:
        if is_secret(key):  # two secrets are two names; the display masks them
            key = plain(key)
        if key.__class__ is str:
            return key
        try:
            return next(iter(to_jsonable_python({key: None})))
        except (PydanticSerializationError, ValueError, TypeError):
            shown = plain(key)
            return shown if isinstance(shown, str) or shown is MISSING else canonical_json(shown)

    def _reads_as(self, name: str, key: Any) -> bool:
        """Return whether the name, read as a key of this type alone, gives this key."""
        if self._keys is None:
            return bool(name == key)
        reread = self._keys.try_read({name: None})
        return reread is not MISSING and _is_same(next(iter(reread)), key)
