"""Rules `conflict` and `spelling`: parameters across tools, which a model carries from one to another.

What one tool calls `id` and gives as a number, another should not want as text; what one counts in
seconds, another should not count in milliseconds. One meaning should have one spelling. Each such
parameter is told once for a catalog, at the tool that is in the minority. That two tools mean
different things by a common word (`name`, `query`) is how words are, and no fault.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from toolcrib.lint.finding import Fault
from toolcrib.lint.schemas import Property, properties, types
from toolcrib.schema.references import References
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject

# Words that name a role and no thing: their type is the tool's business.
_ROLES = frozenset(
    """
    a arg args argument arguments array b body c config content criteria data default details
    element elements fields filter filters input inputs item items k key list m metadata n num
    number numbers object operand options order output p parameter parameters params payload
    properties query r range result results sort source t target text threshold type update
    updates v val value values vector x y z
    """.split()  # noqa: SIM905  readable as text
)
_UNITS: dict[str, dict[str, re.Pattern[str]]] = {
    kind: {
        unit: re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)
        for unit, words in units.items()
    }
    for kind, units in {
        "time": {
            "seconds": "seconds|secs",
            "milliseconds": "milliseconds|millis|msecs|ms",
            "minutes": "minutes|mins",
            "hours": "hours",
            "days": "days",
        },
        "length": {
            "metres": "met(?:re|er)s",
            "kilometres": "kilomet(?:re|er)s|km",
            "miles": "miles",
            "feet": "feet",
            "centimetres": "centimet(?:re|er)s|cm",
        },
        "temperature": {
            "Celsius": "celsius",
            "Fahrenheit": "fahrenheit",
            "kelvin": "kelvins?",
        },
        "mass": {"kilograms": "kilograms?|kg", "grams": "grams", "pounds": "pounds|lbs"},
        "money": {"cents": "cents", "dollars": "dollars"},
        "date": {
            "YYYY-MM-DD": "yyyy-mm-dd",
            "MM/DD/YYYY": "mm/dd/yyyy",
            "DD/MM/YYYY": "dd/mm/yyyy",
            "MM-DD-YYYY": "mm-dd-yyyy",
            "DD-MM-YYYY": "dd-mm-yyyy",
        },
        "size": {"bytes": "bytes", "megabytes": "megabytes|mb"},
    }.items()
}
_TOOLS = 3

_Use: TypeAlias = "tuple[int, Property]"


class _Kind(NamedTuple):
    """`what` a parameter is by one measure; those that differ in it conflict."""

    what: str
    of: Callable[[Property, References], str | None]


def check_shared(definitions: Sequence[ToolDefinition]) -> Iterator[tuple[int, Fault]]:
    """Each parameter that is not the same thing everywhere, with the place of the odd tool."""
    schemas = [definition.input_schema or {} for definition in definitions]
    uses: defaultdict[str, list[_Use]] = defaultdict(list)
    spelled: defaultdict[str, dict[str, list[_Use]]] = defaultdict(dict)
    for place, schema in enumerate(schemas):
        for found in _top(schema):
            uses[found.name].append((place, found))
            key = found.name.replace("_", "").replace("-", "").lower()
            spelled[key].setdefault(found.name, []).append((place, found))
    names = [definition.name for definition in definitions]
    roots = [References(schema) for schema in schemas]
    for name, several in uses.items():
        if len(several) > 1 and name.lower() not in _ROLES:
            yield from _conflicts(name, several, roots, names)
    for variants in spelled.values():
        if len(variants) > 1:
            yield _spelling(variants, names)


def _top(schema: JsonObject) -> Iterator[Property]:
    return (p for p in properties(schema) if p.pointer.count("/") == 2)


def _conflicts(
    name: str, several: list[_Use], roots: list[References], names: list[str]
) -> Iterator[tuple[int, Fault]]:
    for kind in _KINDS:
        groups: defaultdict[str, list[_Use]] = defaultdict(list)
        for place, found in several:
            value = kind.of(found, roots[place])
            if value is not None:
                groups[value].append((place, found))
        if len(groups) < 2:
            continue
        (most, many), *rest = sorted(groups.items(), key=lambda group: -len(group[1]))
        for value, few in rest:
            place, found = few[0]
            yield (
                place,
                Fault(
                    "conflict",
                    f"/input_schema{found.pointer}",
                    f"'{name}' is {kind.what} {value} in {_tools(few, names)}, and {most} in "
                    f"{_tools(many, names)}: make them alike, or name them apart",
                ),
            )


def _type(found: Property, root: References) -> str | None:
    """Text and numbers are what is taken for one another; lists and objects show what they are."""
    schema = found.schema
    target = schema.get("$ref")
    if isinstance(target, str):
        led = root.resolve(target)
        schema = led if isinstance(led, dict) else schema
    kinds = types(schema)
    if kinds is None or len(kinds) != 1:
        return None
    (kind,) = kinds
    return kind if kind in ("string", "number", "boolean") else None


def _unit_of(kind: str) -> Callable[[Property, References], str | None]:
    units = _UNITS[kind]

    def unit(found: Property, _root: References) -> str | None:
        """The unit that its description names, if it names just one."""
        text = found.schema.get("description")
        if not isinstance(text, str):
            return None
        named = [unit for unit, pattern in units.items() if pattern.search(text)]
        return named[0] if len(named) == 1 else None

    return unit


def _format(found: Property, _root: References) -> str | None:
    form = found.schema.get("format")
    return form if isinstance(form, str) else None


_KINDS = (
    _Kind("a", _type),
    _Kind("of format", _format),
    *(_Kind("in", _unit_of(kind)) for kind in _UNITS),
)


def _spelling(variants: dict[str, list[_Use]], names: list[str]) -> tuple[int, Fault]:
    ranked = sorted(variants.items(), key=lambda variant: -len(variant[1]))
    (most, many), (_, few) = ranked[0], ranked[-1]
    place, found = few[0]
    others = "; ".join(f"'{name}' in {_tools(uses, names)}" for name, uses in ranked[1:])
    return place, Fault(
        "spelling",
        f"/input_schema{found.pointer}",
        f"one parameter, several spellings: '{most}' in {_tools(many, names)}; {others}: use one",
    )


def _tools(uses: list[_Use], names: list[str]) -> str:
    places = list(dict.fromkeys(place for place, _ in uses))
    shown = ", ".join(names[place] for place in places[:_TOOLS])
    rest = len(places) - _TOOLS
    return f"{shown} and {rest} more" if rest > 0 else shown
