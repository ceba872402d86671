"""Schemas and names made to do harm, and what becomes of each; for the process that tries them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date
from typing import Any, NamedTuple

from toolcrib import Catalog
from toolcrib.errors import ToolcribError

OBJECT: dict[str, Any] = {"type": "object"}


class Refusal(NamedTuple):
    """The error's type and pointer, its text, and the CPU seconds until it came."""

    kind: str
    pointer: str
    text: str
    seconds: float


def refusal(name: str) -> Refusal | None:
    """What registering this attack ends in; None if it was registered."""
    definition = ATTACKS[name].make()
    started = time.process_time()
    try:
        Catalog.from_definitions([definition])
    except ToolcribError as error:
        pointer = getattr(error, "pointer", "")
        seconds = time.process_time() - started
        return Refusal(type(error).__name__, pointer, str(error), seconds)
    return None


class Attack(NamedTuple):
    """How to make it; what the error says, and where."""

    make: Callable[[], Any]
    text: str
    pointer: str = ""


def of(**schema: Any) -> Callable[[], Any]:
    return lambda: {"name": "x", "description": "", "input_schema": {**OBJECT, **schema}}


def prop(**schema: Any) -> Callable[[], Any]:
    return of(properties={"a": schema})


def later(make: Callable[[], dict[str, Any]]) -> Callable[[], Any]:
    """Large ones are made when they are tried."""

    def made() -> Any:
        return {"name": "x", "description": "", "input_schema": {**OBJECT, **make()}}

    return made


def laughs(count: int, shelf: str = "$defs", keyword: str = "allOf") -> dict[str, Any]:
    layers: dict[str, Any] = {
        str(i): {keyword: [{"$ref": f"#/{shelf}/{i + 1}"}] * 2} for i in range(count)
    }
    return {shelf: {**layers, str(count): {}}, "properties": {"a": {"$ref": f"#/{shelf}/0"}}}


def nested(depth: int, key: str = "not") -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {key: [schema]} if key in ("allOf", "anyOf") else {key: schema}
    return schema


def holds_itself() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["properties"] = {"a": schema, "b": schema}
    return schema


def aliases(depth: int = 45) -> dict[str, Any]:
    """What YAML makes of an alias bomb: few objects, 2**depth nodes."""
    node: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        node = {"anyOf": [node, node]}
    return {"properties": {"a": node}}


def heavy_strings() -> dict[str, Any]:
    text = "x" * 900_000
    return {"properties": {"a": {"enum": [text] * 40_000}}}


def unevaluated(depth: int = 30) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": {}}}
    for _ in range(depth):
        schema = {"anyOf": [schema], "unevaluatedProperties": {"type": "integer"}}
    return schema


def ladder(count: int) -> dict[str, Any]:
    """Each `$ref` leads to the whole chain above it."""
    schema = nested(95)
    places = ["#" + "/not" * i for i in range(1, 95)]
    wide = {"enum": list(range(count))}
    deepest = schema
    while deepest:
        deepest = deepest["not"]
    deepest |= wide
    return {"properties": {"a": {"prefixItems": [{"$ref": place} for place in places]}}, **schema}


def crossing() -> dict[str, Any]:
    bomb = {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(60)}
    inner = {"$id": "urn:x", "$defs": bomb, "q": {"$ref": "#/$defs/0"}}
    small: dict[str, Any] = {str(i): {} for i in range(61)}
    return {"const": inner, "$defs": small, "properties": {"a": {"$ref": "#/const/q"}}}


def circle(*, keyword: str = "$ref") -> dict[str, Any]:
    turns = {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {keyword: "#/$defs/a"}}}
    return {"$defs": turns, "properties": {"x": {"$ref": "#/$defs/a"}}}


def named(name: object) -> Callable[[], Any]:
    return lambda: {"name": name, "description": "", "input_schema": OBJECT}


ATTACKS: dict[str, Attack] = {
    # references
    "billion laughs": Attack(later(lambda: laughs(60)), "expand to more than"),
    "billion laughs, definitions": Attack(later(lambda: laughs(60, "definitions")), "expand to more"),
    "billion laughs, anyOf": Attack(later(lambda: laughs(60, keyword="anyOf")), "expand to more"),
    "laughs by draft 7 anchors": Attack(
        later(
            lambda: {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {
                    f"d{i}": {"$id": f"#n{i}", "allOf": [{"$ref": f"#n{i + 1}"}] * (2 * (i < 60))}
                    for i in range(61)
                },
                "properties": {"a": {"$ref": "#n0"}},
            }
        ),
        "expand to more than",
    ),
    "laughs by dynamic anchors": Attack(
        later(
            lambda: {
                "$defs": {
                    f"d{i}": {
                        "$dynamicAnchor": f"n{i}",
                        "allOf": [{"$dynamicRef": f"#n{i + 1}"}] * (2 * (i < 60)),
                    }
                    for i in range(61)
                },
                "properties": {"a": {"$dynamicRef": "#n0"}},
            }
        ),
        "expand to more than",
    ),
    "laughs in data": Attack(later(lambda: {"default": laughs(60), "$ref": "#/default"}), "nothing"),
    "laughs beyond an $id in data": Attack(
        later(crossing), "has its own $id", "/properties/a/$ref"
    ),
    "a ladder": Attack(later(lambda: ladder(9000)), "expand to more|too many steps"),
    "to itself": Attack(prop(**{"$ref": "#/properties/a"}), "never end", "/properties/a/$ref"),
    "the top to itself": Attack(of(**{"$ref": "#"}), "never end", "/$ref"),
    "in a circle": Attack(later(circle), "never end"),
    "in a circle, dynamic": Attack(later(lambda: circle(keyword="$dynamicRef")), "never end"),
    "$dynamicRef to its own anchor": Attack(
        prop(**{"$dynamicAnchor": "x", "$dynamicRef": "#x"}), "never end", "/properties/a/$dynamicRef"
    ),
    "$dynamicRef outward": Attack(
        prop(**{"$dynamicRef": "http://x/y#z"}), "nothing is fetched", "/properties/a/$dynamicRef"
    ),
    "$recursiveRef": Attack(
        prop(**{"$recursiveRef": "#"}), "not supported", "/properties/a/$recursiveRef"
    ),
    "http": Attack(prop(**{"$ref": "http://127.0.0.1:9/x"}), "bundle_refs", "/properties/a/$ref"),
    "file": Attack(prop(**{"$ref": "file:///etc/passwd"}), "nothing is fetched", "/properties/a/$ref"),
    "relative": Attack(prop(**{"$ref": "../x.json"}), "nothing is fetched", "/properties/a/$ref"),
    "http in an unused definition": Attack(
        of(**{"$defs": {"q": {"$ref": "http://x"}}}), "nothing is fetched", "/$defs/q/$ref"
    ),
    "http in data that is referred to": Attack(
        of(default={"not": {"$ref": "http://x"}}, properties={"a": {"$ref": "#/default"}}),
        "nothing is fetched",
    ),
    "http in dependencies": Attack(
        of(dependencies={"a": {"$ref": "http://x"}}), "nothing is fetched", "/dependencies/a/$ref"
    ),
    "http in contentSchema": Attack(
        prop(contentSchema={"$ref": "http://x"}),
        "nothing is fetched", "/properties/a/contentSchema/$ref",
    ),
    "to what is no schema": Attack(
        of(required=["a"], properties={"a": {"$ref": "#/required"}}), "not a schema",
        "/properties/a/$ref",
    ),
    "to no anchor": Attack(prop(**{"$ref": "#gone"}), "points to nothing", "/properties/a/$ref"),
    "two anchors of one name": Attack(
        of(**{"$defs": {"a": {"$anchor": "n"}, "b": {"$anchor": "n"}}}), "two places", "/$defs/b"
    ),
    "a dialect below": Attack(
        prop(**{"$schema": "http://json-schema.org/draft-07/schema#", "$id": "urn:x"}),
        "use one dialect", "/properties/a/$schema",
    ),
    "a dialect of its own": Attack(
        of(**{"$schema": "http://127.0.0.1:9/d"}), "not supported", "/$schema"
    ),
    "draft 4": Attack(
        of(**{"$schema": "http://json-schema.org/draft-04/schema#"}), "not supported", "/$schema"
    ),
    "2019-09": Attack(
        of(**{"$schema": "https://json-schema.org/draft/2019-09/schema"}), "not supported", "/$schema"
    ),
    "a dialect that is no text": Attack(of(**{"$schema": 7}), "not supported", "/$schema"),
    # patterns
    "backtracking with lookahead": Attack(
        prop(pattern="^(?=(a+)+$)"), "linear time", "/properties/a/pattern"
    ),
    "a backreference": Attack(prop(pattern=r"(a+)\1"), "linear time", "/properties/a/pattern"),
    "a lookbehind as a key": Attack(
        of(patternProperties={"(?<=a)b": {}}), "linear time", "/patternProperties/(?<=a)b"
    ),
    "a lookahead for names": Attack(
        of(propertyNames={"pattern": "(?!x)"}), "linear time", "/propertyNames/pattern"
    ),
    "a million times": Attack(prop(pattern="a{1,1000000}"), "linear time", "/properties/a/pattern"),
    "a thousand thousand times": Attack(
        prop(pattern="(a{1,1000}){1,1000}"), "linear time", "/properties/a/pattern"
    ),
    "parentheses": Attack(
        prop(pattern="(" * 5000 + ")" * 5000), "linear time", "/properties/a/pattern"
    ),
    "many dear patterns": Attack(
        later(lambda: {"allOf": [{"pattern": f"^.{{1,{n}}}$"} for n in range(600, 900)]}),
        "linear time",
        "/allOf/",
    ),
    "thousands of patterns": Attack(
        later(lambda: {"patternProperties": {f"^{n}$": {} for n in range(5000)}}), "1000 different"
    ),
    # size and shape
    "deep": Attack(later(lambda: nested(100_000)), "nested deeper"),
    "deep data": Attack(later(lambda: {"default": nested(100_000)}), "nested deeper", "/default"),
    "a deep type": Attack(later(lambda: {"type": nested(100_000)}), "nested deeper", "/type"),
    "contains itself": Attack(later(holds_itself), "more than 50000 nodes|contains itself"),
    "aliases": Attack(later(aliases), "more than 50000 nodes"),
    "aliases of long texts": Attack(later(heavy_strings), "longer than 1000000 bytes"),
    "10 MB": Attack(later(lambda: {"description": "x" * 10_000_000}), "longer than 1000000 bytes"),
    "a long key": Attack(later(lambda: {"x" * 10_000_000: 1}), "longer than 1000000 bytes"),
    "a million options": Attack(
        prop(enum=list(range(1_000_000))), "50000 nodes", "/properties/a/enum"
    ),
    "a million properties": Attack(
        later(lambda: {"properties": {str(i): True for i in range(1_000_000)}}), "50000 nodes"
    ),
    "deep alternatives": Attack(later(lambda: nested(99, "anyOf")), "nested deeper"),
    "alternatives, judged again on each level": Attack(later(unevaluated), "expand to more"),
    "a lone surrogate": Attack(prop(const="\ud800"), "lone surrogate", "/properties/a/const"),
    "a lone surrogate as a key": Attack(of(properties={"\udfff": {}}), "lone surrogate", "/properties"),
    "NaN": Attack(prop(maximum=float("nan")), "NaN", "/properties/a/maximum"),
    "infinity": Attack(prop(default=[-float("inf")]), "infinity", "/properties/a/default/0"),
    "a huge integer": Attack(prop(maximum=10**400), "64 bits", "/properties/a/maximum"),
    "a set": Attack(prop(enum={1, 2}), "a set", "/properties/a/enum"),
    "bytes": Attack(prop(default=b"x"), "a bytes", "/properties/a/default"),
    "a date": Attack(prop(default=date(2020, 1, 1)), "a date", "/properties/a/default"),
    "a class": Attack(prop(type=str), "a type", "/properties/a/type"),
    "keys that are numbers": Attack(of(properties={1: {}}), "a key is of type int", "/properties"),
    "a key that is None": Attack(prop(default={None: 1}), "of type NoneType", "/properties/a/default"),
    "a list for properties": Attack(of(properties=[]), "not a usable schema", "/properties"),
    "text for a subschema": Attack(of(properties={"a": "x"}), "not a usable schema", "/properties/a"),
    # the top
    "no type": Attack(lambda: {"name": "x", "input_schema": {}}, "has no type"),
    "an object or null": Attack(of(type=["object", "null"]), "has type"),
    "an array": Attack(of(type="array"), "has type 'array'"),
    "a $ref": Attack(
        lambda: {"name": "x", "input_schema": {"$ref": "#/$defs/a", "$defs": {"a": OBJECT}}},
        "write the schema that its $ref leads to",
    ),
    "a $ref that hides the type": Attack(
        of(
            **{
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/a",
                "definitions": {"a": {"type": "string"}},
            }
        ),
        "ignores all other keywords next to a $ref",
    ),
    "true": Attack(lambda: {"name": "x", "input_schema": True}, "must be a dict, not bool"),
    "no schema": Attack(lambda: {"name": "x"}, "has no schema"),
    # names
    "a newline": Attack(named("look\n"), "tool name"),
    "Cyrillic": Attack(named("lооk"), "tool name"),
    "zero width": Attack(named("lo\u200bok"), "tool name"),
    "right to left": Attack(named("\u202elook"), "tool name"),
    "full width": Attack(named("ｌｏｏｋ"), "tool name"),
    "other digits": Attack(named("look١"), "tool name"),
    "a lone surrogate in a name": Attack(named("\ud800"), "tool name"),
    "a NUL": Attack(named("look\0"), "tool name"),
    "empty": Attack(named(""), "tool name"),
    "long": Attack(named("x" * 129), "tool name"),
    "a huge name": Attack(named("é" * 10_000_000), "tool name"),
    "a number": Attack(named(7), "tool name"),
    "a list": Attack(named(["look"]), "tool name"),
    "no name": Attack(lambda: {"input_schema": OBJECT}, "has no name"),
    "an unknown key": Attack(lambda: {**named("x")(), "strickt": True}, "unknown key 'strickt'"),
    "a key that is no text": Attack(lambda: {**named("x")(), 7: True}, "unknown key 7"),
    "no dictionary": Attack(lambda: "look", "str is no tool"),
    "a description that is none": Attack(
        lambda: {**named("x")(), "description": ["x"]}, "description must be a str, not list"
    ),
    "a description with a lone surrogate": Attack(
        lambda: {**named("x")(), "description": "\ud800"}, "lone surrogate"
    ),
    "an output schema": Attack(
        lambda: {**named("x")(), "output_schema": {"$ref": "http://x"}}, "nothing is fetched", "/$ref"
    ),
}  # fmt: skip
