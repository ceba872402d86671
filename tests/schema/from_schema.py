"""Values that a schema accepts, made from the schema itself; as odd as it lets them be."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from hypothesis import strategies as st

from toolcrib.schema import compile_validator
from toolcrib.schema.derive.constraints import DATE

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_NUMBERS = st.one_of(
    st.integers(-(10**39), 10**39),
    st.integers(-20, 20),
    st.sampled_from([0.0, -0.0, 1.0, 3.0, 1e15, 2.0**63, -(2.0**70), 1e300, -1e300, 0.1, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**6), 10**6).map(lambda cents: cents / 100),
)
_ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_TEXT, inner, max_size=2)),
    max_leaves=3,
)
_MOMENTS = st.builds(
    lambda when, fraction, offset, tee: (
        f"{when.date().isoformat()}{tee}{when:%H:%M:%S}{fraction}{offset}"
    ),
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),  # noqa: DTZ001  the offset is drawn
    st.sampled_from(["", ".5", ".123456", ".1234567890123"]),
    st.sampled_from(["Z", "z", "+00:00", "-00:00", "+23:59", "-23:59", "+05:30"]),
    st.sampled_from("Tt"),
)
_FORMATS: dict[str, st.SearchStrategy[str]] = {
    "date-time": _MOMENTS,
    "date": st.dates().map(date.isoformat),
    "uuid": st.uuids().map(str) | st.uuids().map(lambda u: str(u).upper()),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "duration": st.sampled_from(
        ["P1D", "P1W", "P1Y", "P12M", "PT0S", "P1Y2M3DT4H5M6S", "PT99999H", "PT36H", "P999999Y",
         "PT999999999S", "P999999Y999999M999999DT99999H9999999M999999999S"]
    ),
    "uri": st.sampled_from(["http://a", "https://a.b:80/c?d#e", "http://[::1]/", "urn:x", "a:b"]),
}  # fmt: skip


def accepted(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Whatever the schema accepts."""
    return _of(schema, dict(schema), 0).filter(compile_validator(schema).is_valid)


def _of(node: Any, root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:  # noqa: C901
    if node is True or node == {}:
        return _ANYTHING
    if "$ref" in node:
        name, known = node["$ref"].rpartition("/")[2], root.setdefault("known", {})
        if name not in known:
            known[name] = st.deferred(lambda: _of(root["$defs"][name], root, depth + 1))
        found: st.SearchStrategy[Any] = known[name]
        return found
    if "const" in node:
        return st.just(node["const"])
    if "enum" in node:
        return st.sampled_from(node["enum"]).flatmap(_equal_numbers)
    for keyword in ("anyOf", "oneOf"):
        if keyword in node:
            around = {key: value for key, value in node.items() if key == "type"}
            return st.one_of(*(_of(around | part, root, depth) for part in node[keyword]))
    kind = node.get("type")
    if isinstance(kind, list):
        return st.one_of(*(_of({**node, "type": one}, root, depth) for one in kind))
    if kind == "object":
        return _objects(node, root, depth)
    if kind == "array":
        return _arrays(node, root, depth)
    if kind == "string" or "format" in node or "pattern" in node:
        return _texts(node)
    if kind in ("integer", "number"):
        return _numbers(node)
    return {"boolean": st.booleans(), "null": st.none()}[kind]


def _equal_numbers(value: Any) -> st.SearchStrategy[Any]:
    """JSON Schema does not tell 1 from 1.0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return st.sampled_from([value, float(value)])
    return st.just(value)


def _texts(node: dict[str, Any]) -> st.SearchStrategy[str]:
    if node.get("format") in _FORMATS:
        found = _FORMATS[node["format"]]
        return found | st.from_regex(node["pattern"]) if "pattern" in node else found
    if "pattern" in node:
        drawn = st.from_regex(node["pattern"])
        return drawn.filter(_has_a_date) if node["pattern"].startswith(DATE) else drawn
    low = node.get("minLength", 0)
    text = st.characters(exclude_categories=["Cs"])
    return st.text(text, min_size=low, max_size=node.get("maxLength", low + 8))


def _has_a_date(text: str) -> bool:
    """Other days are an exception."""
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _numbers(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    low = node.get("minimum", node.get("exclusiveMinimum"))
    high = node.get("maximum", node.get("exclusiveMaximum"))
    near = [b + d for b in (low, high) if b is not None for d in (0, 1, -1, 0.01, -0.01)]
    drawn = _NUMBERS
    if low is not None or high is not None:
        whole = st.integers(
            None if low is None else int(low) - 1, None if high is None else int(high) + 1
        )
        drawn = whole | whole.filter(lambda n: abs(n) < 10**15).map(float) | st.sampled_from(near)
    if "multipleOf" in node:
        step = node["multipleOf"]
        drawn |= st.integers(-1000, 1000).map(lambda n: round(n * step, 6))
        drawn = drawn.filter(lambda n: abs(n) < 10**15)  # beyond it is an exception
    if node["type"] == "integer":
        # beyond 2^53 one with a fraction or an exponent is an exception
        return drawn.filter(lambda n: n == int(n) and (isinstance(n, int) or abs(n) <= 2**53))
    return drawn


def _arrays(node: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    first = [_of(part, root, depth + 1) for part in node.get("prefixItems", ())]
    low = node.get("minItems", 0)
    most = node.get("maxItems", low + (3 if depth < 3 else 0))
    items = node.get("items", {} if not first else False)
    if first:
        ends = [st.tuples(*first[:n]).map(list) for n in range(low, len(first) + 1)]
        start: st.SearchStrategy[Any] = st.one_of(*ends) if ends else st.tuples(*first).map(list)
        if items is False or most <= len(first):
            return start
        rest = st.lists(_of(items, root, depth + 1), max_size=2)
        return st.tuples(st.tuples(*first).map(list), rest).map(lambda pair: pair[0] + pair[1])
    return st.lists(_of(items, root, depth + 1), min_size=low, max_size=most)


def _objects(node: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    properties = node.get("properties", {})
    required = [name for name in properties if name in node.get("required", ())]
    optional = [name for name in properties if name not in required and depth < 4]
    made = {name: _of(properties[name], root, depth + 1) for name in properties}
    fixed = st.fixed_dictionaries(
        {name: made[name] for name in required}, optional={name: made[name] for name in optional}
    )
    extra = node.get("additionalProperties", True)
    if extra is False or depth >= 4:
        return fixed
    names = (
        _of(node["propertyNames"] | {"type": "string"}, root, depth + 1)
        if ("propertyNames" in node and "$ref" not in node["propertyNames"])
        else _of(node["propertyNames"], root, depth)
        if "propertyNames" in node
        else _TEXT
    )
    names = names.filter(lambda name: name not in properties)
    low = node.get("minProperties", 0)
    more = st.dictionaries(names, _of(extra, root, depth + 1), min_size=low, max_size=low + 2)
    return st.tuples(fixed, more).map(lambda pair: {**pair[1], **pair[0]})
