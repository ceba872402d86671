"""Tighten pydantic's schemas, so that each value that a schema accepts can be built.

This module has functions from constraints to schemas, and the list of what JSON Schema cannot
express. Patterns run in linear time and use no look-around. They stay short, because a model reads
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum, Flag
from math import isfinite
from typing import Any

from toolcrib.values.json import JsonObject, JsonValue

# The complete list of values that a derived schema accepts and its hint does not. A call with one
# ends as `invalid_arguments` at the stage `instantiate`. Each has a row in
# tests/schema/derive/test_constraints_exceptions.py.
EXCEPTIONS: Mapping[str, str] = {
    "author's code": "validators of fields and models, and constructors, that raise",
    "leap seconds": "a time whose second is 60, which Python cannot hold",
    "year 0": "dates and times in the year 0000, which Python does not have",
    "present": "past and future dates (PastDate, FutureDatetime …): they depend on the day",
    "files": "paths that have to exist, or must not (FilePath, DirectoryPath, NewPath)",
    "addresses": "hosts and ports that are none, in URLs and DSNs; e-mail addresses",
    "networks": "IP networks and interfaces: the bits beyond the mask, the length of the mask",
    "encoded": "text that holds something encoded: JSON (`Json`), Base64, units (`ByteSize`)",
    "regular expressions": "text that is one (`re.Pattern`), where ECMAScript and Python differ",
    "changed text": "text that is stripped or changed in case before a pattern or length is checked",
    "other letters": "patterns with \\W, \\D, \\S or flags, on letters beyond ASCII",
    "equal values": "`min_length` of a set whose items differ as JSON and are equal in Python",
    "keys": "`gt`, `ge` and the like on the keys of a dict",
    "bytes": "`min_length` and `max_length` of bytes count bytes; JSON Schema counts characters",
    "tags": "unions told apart by a function (`Discriminator`)",
    "large numbers": (
        "bounds and `multiple_of` on numbers beyond 10^15, and integers beyond 2^53 that are written "
        "with a fraction or an exponent: floats hold them inexactly"
    ),
    "flags": "sums of members of a Flag of more than six bits with gaps between them",
    "digits": "`max_digits` of a Decimal that has bounds as well",
    "time zones": "names of time zones that the machine does not know (`ZoneInfo`)",
    "impossible dates": "30 February and the like, where a date-time has no offset (NaiveDatetime)",
}

WHOLE_KEY = r"^(0|-?[1-9][0-9]{0,39})$"
REAL_KEY = r"^-?[0-9]{1,40}(\.[0-9]{1,40})?$"
TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
OFFSET = r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
DATE = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
LOCAL = r"T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?$"
# ISO 8601, with a sign and fractions of a second. With these numbers of digits, no sum exceeds
# 999,999,999 days, and no time part 2^32 seconds.
_DAYS = "[0-9]{1,5}[YMWD]"
_HOURS = "[0-9]{1,5}H|[0-9]{1,7}M"
_SECONDS = r"[0-9]{1,9}(\.[0-9]{1,6})?S"
DURATION = rf"^-?P(({_DAYS}){{1,4}}|({_DAYS}){{0,4}}T({_HOURS}){{0,2}}({_HOURS}|{_SECONDS}))$"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FRACTION = r"^-?[0-9]{1,40}(/0*[1-9][0-9]{0,39})?$"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_UNSIGNED = r"[0-9]+(\.[0-9]+)?"
_LISTED_BITS = 6
_SCALARS = ["string", "number", "boolean", "null"]

# By the `format` that pydantic writes, if no validator knows that format.
FORMATS: Mapping[str, JsonObject] = {
    "ipvanyaddress": {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    "fraction": {"type": ["number", "string"], "pattern": FRACTION},  # before pydantic 2.14
    "ipv4network": {"pattern": rf"^{_IPV4}(/(3[0-2]|[12]?[0-9]))?$"},
    "ipv4interface": {"pattern": rf"^{_IPV4}(/(3[0-2]|[12]?[0-9]))?$"},
    **{
        f"uuid{version}": {
            "format": "uuid",
            "pattern": f"^[0-9A-Fa-f]{{8}}-[0-9A-Fa-f]{{4}}-{version}[0-9A-Fa-f]{{3}}-[89ABab]",
        }
        for version in range(1, 9)
    },
}


def decimal(limits: Mapping[str, Any]) -> JsonObject:
    """Return the schema of a `Decimal`, without exponents that would exhaust memory.

    JSON Schema can bound only numbers, and limit digits only in strings. So a decimal with bounds
    is a number, and one with only `max_digits` is a string.
    """
    digits, places = limits.get("max_digits"), limits.get("decimal_places")
    bounds = _bounds(limits)
    step = _finite(limits.get("multiple_of"))
    if step is not None:
        bounds["multipleOf"] = step
    text: JsonObject = {"type": "string", "pattern": _decimal_pattern(digits, places)}
    if digits is not None and not bounds:
        if places is None:
            return text | {"maxLength": digits}
        if digits == places:  # then 0 is refused, and 0.0 is not
            return {"type": "string", "pattern": rf"^-?0?\.[0-9]{{1,{places}}}$"}
    number: JsonObject = {"type": "number", **bounds}
    if places is not None:
        number.setdefault("multipleOf", float(Decimal(1).scaleb(-places)))
        if step is not None:  # both at once
            number["allOf"] = [{"multipleOf": float(Decimal(1).scaleb(-places))}]
    if digits is not None and places is not None:
        limit = _finite(10 ** (digits - places)) or 1
        lower, upper = bounds.get("exclusiveMinimum"), bounds.get("exclusiveMaximum")
        number["exclusiveMinimum"] = -limit if lower is None else max(-limit, lower)
        number["exclusiveMaximum"] = limit if upper is None else min(limit, upper)
    return number if bounds else {"anyOf": [number, text]}


def _decimal_pattern(digits: int | None, places: int | None) -> str:
    if digits is not None and places is None:
        return f"^-?{_UNSIGNED}$"
    fraction = "+" if places is None else f"{{1,{places}}}"
    decimals = rf"(\.[0-9]{fraction})?" if places != 0 else ""
    if digits is None or places is None:
        return f"^-?[0-9]+{decimals}$"
    return f"^-?0*[0-9]{{1,{max(digits - places, 1)}}}{decimals}$"


def fraction(limits: Mapping[str, Any]) -> JsonObject:
    """Return the schema of a `Fraction`, as a number or as a string of two whole numbers."""
    bounds = _bounds(limits)
    text: JsonObject = {"type": "string", "pattern": FRACTION}
    number: JsonObject = {"type": "number", **bounds}
    return number if bounds else {"anyOf": [number, text]}


def _bounds(limits: Mapping[str, Any]) -> dict[str, float | int]:
    return {
        keyword: bound
        for name, keyword in _BOUNDS.items()
        if (bound := _finite(limits.get(name))) is not None
    }


def stripped(minimum: int) -> str:
    """Return a pattern for at least `minimum` characters without surrounding whitespace."""
    solid = r"[^\s\x85]"
    return solid if minimum == 1 else rf"{solid}[\s\S]{{{minimum - 2},}}{solid}"


def url(limits: Mapping[str, Any]) -> JsonObject:
    schemes: Sequence[str] = limits.get("allowed_schemes") or ()
    schema: JsonObject = {"type": "string", "format": "uri", "minLength": 1}
    if schemes:
        schema["pattern"] = f"^({'|'.join(schemes)})://[^/?#]"
        if set(schemes) == {"http", "https"}:
            schema["pattern"] = "^https?://[^/?#]"
    if limits.get("max_length") is not None:
        schema["maxLength"] = limits["max_length"]
    return schema


def moment(limits: Mapping[str, Any]) -> JsonObject:
    """Return the schema of an instant, with an offset (RFC 3339) unless the hint requires none."""
    if limits.get("tz_constraint") == "naive":
        return {"type": "string", "pattern": DATE + LOCAL}
    return {"type": "string", "format": "date-time"}


def clock(limits: Mapping[str, Any]) -> JsonObject:
    """Return the schema of a time of day. RFC 3339 requires an offset, which is optional here."""
    offset = {"naive": "", "aware": OFFSET}.get(str(limits.get("tz_constraint")), f"{OFFSET}?")
    return {"type": "string", "pattern": f"{TIME}{offset}$"}


def choices(values: Sequence[Any]) -> list[Any] | None:
    """Return these values as JSON gives them back; None if JSON cannot represent one of them."""
    json_values = [value.value if isinstance(value, Enum) else value for value in values]
    are_json = all(
        value is None
        or isinstance(value, str | bool | int)
        or (isinstance(value, float) and isfinite(value))
        for value in json_values
    )
    return json_values if are_json else None


def flags(kind: type[Flag]) -> JsonObject | None:
    """Return the schema of the sums of a Flag's members; None for one with negative values."""
    members = kind.__members__.values()
    if any(member.value < 0 for member in members):
        return None
    all_bits = 0
    for member in members:
        all_bits |= member.value
    if all_bits.bit_count() > _LISTED_BITS:
        return {"type": "integer", "minimum": 0, "maximum": all_bits}
    bits = 0
    sums: list[JsonValue] = [0]
    while bits != all_bits:
        bits = (bits - all_bits) & all_bits  # the next larger number of the same bits
        sums.append(bits)
    return {"type": "integer", "enum": sums}


def distinct(values: Sequence[Any]) -> list[Any]:
    """Return the values without those equal as JSON: aliases, and members next to their values."""
    distinct_values: dict[tuple[type, str], Any] = {}
    for value in values:
        json_value = value.value if isinstance(value, Enum) else value
        distinct_values.setdefault((type(json_value), repr(json_value)), value)
    return list(distinct_values.values())


def scalar_items(items: Mapping[str, Any]) -> JsonObject:
    """Return the schema of a set's items: scalars, if the hint does not say."""
    return dict(items) if items else {"type": list(_SCALARS)}


def _finite(bound: Any) -> float | int | None:
    """Return a bound as JSON represents it: an integer of 64 bits, or a float."""
    if bound is None or not isfinite(bound):
        return None
    integer = int(bound)
    number = integer if bound == integer and abs(integer) < 2**63 else float(bound)
    return number if isfinite(number) else None
