"""Units by `pint`. A model's text is taken apart here, and each name is looked up.

It never reaches the library's own parser of expressions, which computes what it reads. A name may
have more than one reading ("C" is coulomb and Celsius), and the readings that fit each other win.
If the two units differ only in the case of their letters, case matters, and they are read exactly
as written.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice, product
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from toolcrib.errors import MissingExtraError, ToolError
from toolcrib.kit.arithmetic import Number, tidy
from toolcrib.tools import tool

# How people write a unit: factors with `*`, `/` and powers, or in words. Nothing is computed here,
# and any other form is refused.

_LONGEST_UNIT = 80
_MAX_FACTORS = 6
_FACTOR = re.compile(r"([^\W\d][\w\s-]*|%|°[\w\s-]*)(?:\^\s*(-?[1-9]))?")
_TIMES_SIGNS = str.maketrans("·⋅\N{MULTIPLICATION SIGN}", "***")
_PER = re.compile(r"[\s_-]+per[\s_-]+", re.IGNORECASE)
_POWERS_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}
_WORDS_BEFORE = {"degrees": "", "degree": "", "deg": "", "us": "", "uk": "imperial"}


class Factor(NamedTuple):
    """The words of a unit's name, and its power."""

    words: tuple[str, ...]
    power: int


def read_factors(text: str) -> list[Factor] | None:
    """Read `"square feet / s^2"` as `(("feet",), 2), (("s",), -2)`. Return None for any other form."""
    if len(text) > _LONGEST_UNIT:
        return None
    plain = unicodedata.normalize("NFKC", text).strip().replace("**", "^").translate(_TIMES_SIGNS)
    pieces = re.split(r"\s*([*/])\s*", _PER.sub("/", plain))
    if len(pieces) > 2 * _MAX_FACTORS:
        return None
    factors = []
    for operator, piece in zip(["*", *pieces[1::2]], pieces[::2], strict=True):
        match = _FACTOR.fullmatch(piece)
        if match is None:
            return None
        words, power = _words_and_power(match[1])
        factors.append(Factor(words, power * int(match[2] or 1) * (-1 if operator == "/" else 1)))
    return factors


def _words_and_power(name: str) -> Factor:
    """Return a name's words without those that state its power, or how the rest is meant."""
    words = re.split(r"[\s_-]+", name.strip().removeprefix("°") or name)
    power = 1
    if len(words) > 1 and words[0].lower() in _POWERS_BEFORE:
        power = _POWERS_BEFORE[words.pop(0).lower()]
    if len(words) > 1 and words[-1].lower() in _POWERS_AFTER:
        power *= _POWERS_AFTER[words.pop().lower()]
    if len(words) > 1:
        words[0] = _WORDS_BEFORE.get(words[0].lower(), words[0])
    return Factor(tuple(word for word in words if word), power)


if TYPE_CHECKING:
    import pint

Registry: TypeAlias = "pint.UnitRegistry[Any]"
Reading: TypeAlias = Mapping[str, int]  # unit names in the library's spelling, with their powers

_MAX_READINGS = 32
_DIGITS, _ALL_DIGITS = 10, 17
_LIBRARY_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, Warning)
_REGISTRY_LOCK = Lock()  # the registry changes when a prefixed unit is first used

_KELVIN: Reading = {"kelvin": 1}
_OFFSET_UNITS = ("degree_Celsius", "degree_Fahrenheit")  # differences if they are part of a product
# Other meanings of a name that the library reads differently (mb is a millibarn), or not at all.
_EVERYDAY_UNITS = {
    "ac": "acre",
    "c": "degree_Celsius",
    "centigrade": "degree_Celsius",
    "f": "degree_Fahrenheit",
    "fl_oz": "fluid_ounce",
    "gb": "gigabyte",
    "kb": "kilobyte",
    "kmh": "kilometer_per_hour",
    "kmph": "kilometer_per_hour",
    "lb": "force_pound",
    "lbs": "force_pound",
    "mb": "megabyte",
    "mbps": "megabaud",
    "mhz": "megahertz",
    "oz": "fluid_ounce",
    "pound": "force_pound",
    "pounds": "force_pound",
    "sqft": "square_foot",
    "tb": "terabyte",
}
# A small b after a capital prefix, which the library reads as barns.
_BITS = {"Kb": "kilo", "Mb": "mega", "Gb": "giga", "Tb": "tera"}


_Value: TypeAlias = Annotated[Number, WithJsonSchema({"type": "number"})]
"""A number that a float cannot hold stays an integer."""


class Quantity(TypedDict):
    """`value` in `unit`, to 10 significant digits, or as it was given where the unit is the same.

    It is equal to the given `from_value` in `from_unit`, which is how the given unit was read.
    """

    value: _Value
    unit: str
    from_value: _Value
    from_unit: str


@tool(
    visible=["value", "unit", "from_value", "from_unit"],
    read_only=True,
    idempotent=True,
    timeout=10,
    tags=["units", "measurement", "conversion"],
    answer="{from_value} {from_unit} = {value} {unit}",
    examples=[
        (
            "Convert 10 kilometers to miles",
            {"value": 10, "from_unit": "kilometers", "to_unit": "miles"},
        ),
        ("How many pounds is 70 kg?", {"value": 70, "from_unit": "kg", "to_unit": "pounds"}),
        (
            "What is 350 degrees Fahrenheit in Celsius?",
            {"value": 350, "from_unit": "Fahrenheit", "to_unit": "Celsius"},
        ),
        ("100 km/h in mph", {"value": 100, "from_unit": "km/h", "to_unit": "mph"}),
        (
            "How many cups are in 2.5 liters?",
            {"value": 2.5, "from_unit": "liters", "to_unit": "cups"},
        ),
        ("Change 3 hours into minutes", {"value": 3, "from_unit": "hours", "to_unit": "minutes"}),
        ("How many yards are 40 meters?", {"value": 40, "from_unit": "meters", "to_unit": "yards"}),
        (
            "The box weighs 12 ounces, what is that in grams?",
            {"value": 12, "from_unit": "ounces", "to_unit": "grams"},
        ),
        (
            "The sign says 80 km/h but my car shows mph, how fast is that?",
            {"value": 80, "from_unit": "km/h", "to_unit": "mph"},
        ),
        ("5 GB to MB", {"value": 5, "from_unit": "GB", "to_unit": "MB"}),
    ],
)
def convert_units(value: _Value, from_unit: str, to_unit: str) -> Quantity:
    """Convert a value from one unit of measurement to another: length, mass, temperature, volume …

    Args:
        value: The number to convert.
        from_unit: The unit of the value, by name or symbol, such as kilometers, kg or km/h.
        to_unit: The unit to convert it to.
    """
    if not abs(value) <= sys.float_info.max:
        raise ToolError("value is not a finite number")
    with _REGISTRY_LOCK:
        registry = _registry()
        as_written = from_unit != to_unit and from_unit.lower() == to_unit.lower()
        sources = _readings(registry, "from_unit", from_unit, as_written=as_written)
        targets = _readings(registry, "to_unit", to_unit, as_written=as_written)
        source, target = _matching(sources, targets)
        if _is_temperature(source, target) and _convert(registry, value, source.units, _KELVIN) < 0:
            raise ToolError("that is below absolute zero, 0 K: there is no such temperature")
        is_same = source.units == target.units
        converted = value if is_same else _convert(registry, value, source.units, target.units)
    return {
        "value": tidy(converted, digits=_ALL_DIGITS if is_same else _DIGITS),
        "unit": _unit_text(target.units),
        "from_value": value,
        "from_unit": _unit_text(source.units),
    }


class _Measure(NamedTuple):
    """A reading of a unit, and what it measures, in the library's root units, since angles, counts
    and bits have no dimension there."""

    units: Reading
    root: object


@cache
def _registry() -> Registry:
    """Build pint's registry at the first conversion, since that takes half a second."""
    try:
        import pint
    except ImportError:
        raise MissingExtraError("kit", "the tool 'convert_units'") from None
    return pint.UnitRegistry()


def _readings(registry: Registry, parameter: str, text: str, *, as_written: bool) -> list[_Measure]:
    """Return the ways to read a unit, the likeliest first. Raises ToolError if there is none."""
    factors = read_factors(text)
    if factors is None:
        raise ToolError(
            f"{parameter} is not written as a unit: use names or symbols with * / and ^, "
            "such as km, square feet, m^2 or km/h"
        )
    choices = [_factor_readings(registry, factor, as_written=as_written) for factor in factors]
    measures = []
    for combination in islice(product(*choices), _MAX_READINGS):
        units = _merged(combination)
        try:
            _, root = registry.get_root_units(registry.UnitsContainer(units))
        except _LIBRARY_ERRORS:
            continue
        measures.append(_Measure(units, root))
    if not measures:
        raise ToolError(
            f"{parameter} is not a known unit: use a name or symbol such as km, mile, kg or celsius"
        )
    return measures


def _factor_readings(registry: Registry, factor: Factor, *, as_written: bool) -> list[Reading]:
    """Return the units that a name may stand for, each with its power (`m2` is m^2)."""
    words, power = factor
    for name in ("_".join(words), "".join(words)):
        if names := _unit_names(registry, name, as_written=as_written):
            return [{unit: power} for unit in names]
        digit = name[-1:]
        if digit in ("2", "3") and (
            names := _unit_names(registry, name[:-1], as_written=as_written)
        ):
            return [{unit: power * int(digit)} for unit in names]
    return []


def _unit_names(registry: Registry, name: str, *, as_written: bool) -> list[str]:
    """Return units for a name in its own spelling, then in other cases, and in mixed case only if
    there is no other.

    Another case may not turn a plain unit into a prefixed one: `min` is no mega-inch. A name to be
    read `as_written` is read in another case only if it is no unit in its own spelling.
    """
    lower = name.lower()
    is_bits = name in _BITS
    exact = ((_BITS[name], "bit", ""),) if is_bits else registry.parse_unit_name(name)[:1]
    if as_written and exact:
        return [prefix + unit for prefix, unit, _ in exact]
    other_cases = [
        registry.parse_unit_name(spelling)[:1]
        for spelling in (lower, name.upper(), name.capitalize())
    ]
    parsed_names = [*exact, *(reading for parsed in other_cases for reading in parsed)]
    if any(not prefix for prefix, _, _ in parsed_names):
        parsed_names = [*exact, *(reading for reading in parsed_names if not reading[0])]
    everyday_names = (
        [("", _EVERYDAY_UNITS[lower], "")] if lower in _EVERYDAY_UNITS and not is_bits else []
    )
    if not parsed_names and not everyday_names:
        for variant in (name, lower, name.capitalize()):
            parsed_names += registry.parse_unit_name(variant, case_sensitive=False)
    return list(
        dict.fromkeys(prefix + unit for prefix, unit, _ in everyday_names + parsed_names if unit)
    )


def _merged(factors: Iterable[Reading]) -> Reading:
    """Merge factors into one unit. The powers of a repeated name are added."""
    powers: dict[str, int] = {}
    for factor in factors:
        for unit, power in factor.items():
            powers[unit] = powers.get(unit, 0) + power
    if len(powers) == 1 and 1 in powers.values():
        return powers
    return {
        f"delta_{unit}" if unit in _OFFSET_UNITS else unit: p for unit, p in powers.items() if p
    }


def _matching(sources: list[_Measure], targets: list[_Measure]) -> tuple[_Measure, _Measure]:
    """Return the likeliest two readings that measure the same. Raises ToolError if there are none."""
    ranks = product(range(len(sources)), range(len(targets)))
    for i, j in sorted(ranks, key=sum):
        if sources[i].root == targets[j].root:
            return sources[i], targets[j]
    raise ToolError(
        "the units measure different things: "
        f"from_unit {sources[0].root}, to_unit {targets[0].root}"
    )


def _is_temperature(source: _Measure, target: _Measure) -> bool:
    """Return whether both are temperatures, and neither is a difference, which may be below zero."""
    differences = [name.startswith("delta_") for name in (*source.units, *target.units)]
    return str(source.root) == "kelvin" and not any(differences)


def _convert(registry: Registry, value: Number, source: Reading, target: Reading) -> float:
    container = registry.UnitsContainer
    try:
        converted = float(registry.convert(value, container(source), container(target)))
    except _LIBRARY_ERRORS:
        raise ToolError("there is no conversion between these two units") from None
    if not math.isfinite(converted):
        too_large = value * converted > 0  # else the logarithm of a number that is not positive
        raise ToolError(
            "the result is too large" if too_large else "the value cannot be expressed in that unit"
        )
    return converted


def _unit_text(units: Reading) -> str:
    """Write a unit with full names, so that the reading is clear: `kilometer/hour`, `1/second`."""
    powers = {name.replace("_", " "): power for name, power in units.items()}
    numerator = [_power(name, power) for name, power in powers.items() if power > 0]
    denominator = [f"/{_power(name, -power)}" for name, power in powers.items() if power < 0]
    return ("*".join(numerator) or "1") + "".join(denominator)


def _power(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"
