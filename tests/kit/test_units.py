from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pint
import pytest
from kit.kit_helpers import call, example_arguments, fresh
from rows import each_row

from toolcrib import kit
from toolcrib.errors import MissingExtraError, ToolError
from toolcrib.kit import units
from toolcrib.kit.units import read_factors
from toolcrib.tools import Catalog

CATALOG = Catalog([kit.convert_units])
UNKNOWN = "not a known unit"
UNREADABLE = "not written as a unit"
DIFFERENT = "measure different things"


async def converted(value: float, from_unit: str, to_unit: str) -> Any:
    arguments = {"value": value, "from_unit": from_unit, "to_unit": to_unit}
    return await call(CATALOG, "convert_units", **arguments)


@each_row(
    ("value", "from_unit", "to_unit", "result", "unit"),
    [
        (5, "km", "miles", 3.106855961, "mile"),
        (5, "KM", "Miles", 3.106855961, "mile"),
        (5, "kilo meters", "MILE", 3.106855961, "mile"),
        (1, "inches", "CM", 2.54, "centimeter"),
        (1, "nautical mile", "km", 1.852, "kilometer"),
        (1, "light-years", "light years", 1, "light year"),
        (1, "\u00b5m", "nm", 1000, "nanometer"),
        (70, "kg", "lbs", 154.3235835, "pound"),
        (12, "stone", "kg", 76.20351816, "kilogram"),
        (8, "oz", "g", 226.796185, "gram"),
        (8, "oz", "ml", 236.5882365, "milliliter"),
        (8, "fl oz", "cups", 1, "cup"),
        (2, "US gallons", "liters", 7.570823568, "liter"),
        (2, "UK gallons", "litres", 9.09218, "liter"),
        (100, "degC", "degF", 212, "degree Fahrenheit"),
        (100, "C", "F", 212, "degree Fahrenheit"),
        (100, "c", "f", 212, "degree Fahrenheit"),
        (212, "Fahrenheit", "Celsius", 100, "degree Celsius"),
        (212, "°F", "°C", 100, "degree Celsius"),
        (5, "\u2103", "\u2109", 41, "degree Fahrenheit"),
        (-40, "degrees Celsius", "degrees fahrenheit", -40, "degree Fahrenheit"),
        (180, "centigrade", "F", 356, "degree Fahrenheit"),
        (0, "celsius", "kelvin", 273.15, "kelvin"),
        (0, "C", "k", 273.15, "kelvin"),
        (2, "C", "mC", 2000, "millicoulomb"),
        (1, "F", "uF", 1000000, "microfarad"),
        (1, "c", "m/s", 299792458, "meter/second"),
        (4, "J/kg/degC", "J/kg/degF", 2.222222222, "joule/kilogram/delta degree Fahrenheit"),
        (90, "degrees", "rad", 1.570796327, "radian"),
        (60, "mph", "km/h", 96.56064, "kilometer/hour"),
        (60, "miles per hour", "kilometers per hour", 96.56064, "kilometer/hour"),
        (100, "kmph", "MPH", 62.13711922, "mile per hour"),
        (9.81, "m/s^2", "ft/s**2", 32.18503937, "foot/second^2"),
        (9.81, "meters per second squared", "ft/s\u00b2", 32.18503937, "foot/second^2"),
        (10, "m2", "sq ft", 107.6391042, "foot^2"),
        (10, "square meters", "square feet", 107.6391042, "foot^2"),
        (1, "cubic feet", "liters", 28.31684659, "liter"),
        (1, "cm^3", "cc", 1, "cubic centimeter"),
        (1, "pounds per square inch", "kPa", 6.894757293, "kilopascal"),
        (1, "hpa", "PA", 100, "pascal"),
        (1, "ft lb", "N*m", 1.355817948, "newton*meter"),
        (1, "N\u00b7m", "J", 1, "joule"),
        (1, "GB", "MB", 1000, "megabyte"),
        (1, "gb", "mb", 1000, "megabyte"),
        (1, "Mb", "MB", 0.125, "megabyte"),
        (1, "MB", "Mb", 8, "megabit"),
        (100, "Mb/s", "MB/s", 12.5, "megabyte/second"),
        (100, "mbps", "MB/s", 12.5, "megabyte/second"),
        (60, "rpm", "deg/s", 360, "degree/second"),
        (8, "Gb", "gb", 1, "gigabyte"),
        (8, "Kb", "KB", 1, "kilobyte"),
        (1, "Mbit", "MB", 0.125, "megabyte"),
        (1, "km", "KM", 1, "kilometer"),
        (1, "mW", "MW", 1e-9, "megawatt"),
        (9007199254740993, "m", "meters", 9007199254740993, "meter"),
        (2**80 + 1, "m", "m", 2**80 + 1, "meter"),
        (0.1234567890123, "m", "m", 0.1234567890123, "meter"),
        (8, "bits", "bytes", 1, "byte"),
        (100, "MHz", "ghz", 0.1, "gigahertz"),
        (3, "kwh", "J", 10800000, "joule"),
        (1, "hours", "Minutes", 60, "minute"),
        (1, "%", "ppm", 10000, "ppm"),
        (1, "m/m", "%", 100, "percent"),
    ],
)
async def test_conversion(
    value: float, from_unit: str, to_unit: str, result: float, unit: str
) -> None:
    answer = await converted(value, from_unit, to_unit)
    assert (answer["value"], answer["unit"]) == (result, unit)


@each_row(
    ("from_unit", "to_unit", "read_as"),
    [
        ("C", "F", "degree Celsius"),
        ("C", "coulomb", "coulomb"),
        ("oz", "ml", "fluid ounce"),
        ("oz", "kg", "ounce"),
        ("pounds", "kg", "pound"),
        ("pounds", "newtons", "force pound"),
        ("m^-1", "cm^-1", "1/meter"),
    ],
)
async def test_the_result_says_how_a_unit_was_read(
    from_unit: str, to_unit: str, read_as: str
) -> None:
    assert (await converted(1, from_unit, to_unit))["from_unit"] == read_as


@each_row(
    ("from_unit", "to_unit", "says"),
    [
        ("km", "kg", DIFFERENT),
        ("C", "miles", DIFFERENT),
        ("min", "in", DIFFERENT),
        ("m", "m^2", DIFFERENT),
        ("M", "m", DIFFERENT),
        ("rpm", "Hz", DIFFERENT),
        ("rad/s", "Hz", DIFFERENT),
        ("Bq", "Hz", DIFFERENT),
        ("cd", "lm", DIFFERENT),
        ("degree", "%", DIFFERENT),
        ("byte", "percent", DIFFERENT),
        ("baud", "Hz", DIFFERENT),
        ("kb", "kB", DIFFERENT),
        ("mb", "MB", DIFFERENT),
        ("S", "s", DIFFERENT),
        ("", "m", UNREADABLE),
        ("   ", "m", UNREADABLE),
        ("10**10**10", "m", UNREADABLE),
        ("m**10**10", "m", UNREADABLE),
        ("m^99", "m", UNREADABLE),
        ("m^0", "m", UNREADABLE),
        ("2*m", "m", UNREADABLE),
        ("m + m", "m", UNREADABLE),
        ("m//m", "m", UNREADABLE),
        ("m*", "m", UNREADABLE),
        ("(m)", "m", UNREADABLE),
        ("m;m", "m", UNREADABLE),
        ("m\0", "m", UNREADABLE),
        ("{m}", "m", UNREADABLE),
        ("__import__('os')", "m", UNREADABLE),
        ("m" * 1000, "m", UNREADABLE),
        ("*".join("m" * 7), "m", UNREADABLE),
        ("canary", "m", UNKNOWN),
        ("_", "m", UNKNOWN),
        ("__class__", "m", UNKNOWN),
        ("\ud800", "m", UNREADABLE),
        ("m" * 70, "m", UNKNOWN),
        ("milli celsius", "K", UNKNOWN),
        ("USD", "EUR", UNKNOWN),
        ("m", "canary", "to_unit is " + UNKNOWN),
        ("m", "m^^2", "to_unit is " + UNREADABLE),
    ],
)
async def test_refused(from_unit: str, to_unit: str, says: str) -> None:
    with pytest.raises(ToolError) as caught:
        await converted(1, from_unit, to_unit)
    assert says in caught.value.safe_text
    assert "canary" not in caught.value.safe_text
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_has_to_be_finite(value: float) -> None:
    with pytest.raises(ToolError, match="finite"):
        kit.convert_units(value, "km", "m")


async def test_a_result_has_to_be_finite() -> None:
    with pytest.raises(ToolError, match="too large"):
        await converted(1e308, "km", "nm")


async def test_what_the_library_cannot_convert_is_a_safe_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> float:
        raise pint.errors.OffsetUnitCalculusError("canary")

    monkeypatch.setattr(pint.UnitRegistry, "convert", refuse)
    with pytest.raises(ToolError) as caught:
        await converted(1, "km", "m")
    assert caught.value.safe_text == "there is no conversion between these two units"


async def test_the_examples_convert() -> None:
    for arguments in example_arguments(kit.convert_units):
        answer = await call(CATALOG, "convert_units", **arguments)
        assert answer["value"] > 0
        assert answer["unit"] != answer["from_unit"]


@each_row(
    ("value", "from_unit", "to_unit"),
    [
        (-273.16, "celsius", "kelvin"),
        (-459.68, "fahrenheit", "celsius"),
        (-1, "kelvin", "celsius"),
        (-1, "K", "kelvin"),
        (-1, "rankine", "K"),
        (-1, "millikelvin", "F"),
    ],
)
def test_no_temperature_is_below_absolute_zero(value: float, from_unit: str, to_unit: str) -> None:
    with pytest.raises(ToolError, match="below absolute zero"):
        kit.convert_units(value, from_unit, to_unit)


@each_row(
    ("value", "from_unit", "to_unit", "expected"),
    [
        (-273.15, "celsius", "kelvin", 0),
        (-459.67, "fahrenheit", "kelvin", 0),
        (-459.67, "F", "C", -273.15),
        (0, "K", "F", -459.67),
        (-0.0, "kelvin", "celsius", -273.15),
        (-300, "delta_celsius", "kelvin", -300),
        (-5, "W/m^2/K", "W/m^2/celsius", -5),
    ],
)
def test_absolute_zero_is_a_temperature_and_a_difference_may_be_negative(
    value: float, from_unit: str, to_unit: str, expected: float
) -> None:
    assert kit.convert_units(value, from_unit, to_unit)["value"] == expected


def test_the_registry_is_built_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    real = pint.UnitRegistry

    def build() -> Any:
        built.append(1)
        return real()

    monkeypatch.setattr(pint, "UnitRegistry", build)
    convert = fresh(units).convert_units
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: convert(n, "kilofeet", "mm"), range(16)))
    assert [r["value"] for r in results] == [n * 304800 for n in range(16)]
    assert built == [1]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pint", None)
    with pytest.raises(MissingExtraError, match="convert_units"):
        fresh(units).convert_units(1, "km", "m")


@each_row(
    ("text", "factors"),
    [
        ("km", [(("km",), 1)]),
        ("square feet / s^2", [(("feet",), 2), (("s",), -2)]),
        ("m**-1", [(("m",), -1)]),
        ("m^2/s^-1", [(("m",), 2), (("s",), 1)]),
        ("cu-ft", [(("ft",), 3)]),
        ("UK pints", [(("imperial", "pints"), 1)]),
        ("deg C", [(("C",), 1)]),
        ("°", [(("°",), 1)]),
        ("a per b per c", [(("a",), 1), (("b",), -1), (("c",), -1)]),
        ("per", [(("per",), 1)]),
        ("a/", None),
        ("1", None),
    ],
)
def test_factors(text: str, factors: list[tuple[tuple[str, ...], int]] | None) -> None:
    assert read_factors(text) == factors


@pytest.mark.filterwarnings("ignore:.* encountered in log:RuntimeWarning")
@each_row("value", [0, -10])
async def test_what_is_not_positive_has_no_level(value: float) -> None:
    with pytest.raises(ToolError, match="cannot be expressed in that unit"):
        await converted(value, "mW", "dBm")
