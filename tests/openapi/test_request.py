"""From arguments to a request: the styles of the specification, and that nothing leaves its place."""

from __future__ import annotations

import email
import json
import re
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openapi.documents import one, plan_of, with_body
from rows import each_row

from toolcrib import ToolError
from toolcrib.bridges.openapi.definition import RequestPlan
from toolcrib.bridges.openapi.request import ApiRequest, Sendable, request_of
from toolcrib.schema.validator import compile_validator

TEXT, LIST = "blue", ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}


def sent(place: str, value: Any, **said: Any) -> ApiRequest:
    """What is sent for one parameter called `color`."""
    path = "/c/{color}/d" if place == "path" else "/c"
    parameter = {"name": "color", "in": place, "required": True, "schema": {}, **said}
    plan = plan_of(one({"parameters": [parameter]}, path=path, method="get"))
    return request_of(plan, {"color": value}, "key")


# https://spec.openapis.org/oas/v3.1.1.html#style-examples
STYLES = [
    ("matrix", False, TEXT, ";color=blue"),
    ("matrix", False, LIST, ";color=blue,black,brown"),
    ("matrix", False, OBJECT, ";color=R,100,G,200,B,150"),
    ("matrix", True, TEXT, ";color=blue"),
    ("matrix", True, LIST, ";color=blue;color=black;color=brown"),
    ("matrix", True, OBJECT, ";R=100;G=200;B=150"),
    ("label", False, TEXT, ".blue"),
    ("label", False, LIST, ".blue,black,brown"),
    ("label", False, OBJECT, ".R,100,G,200,B,150"),
    ("label", True, TEXT, ".blue"),
    ("label", True, LIST, ".blue.black.brown"),
    ("label", True, OBJECT, ".R=100.G=200.B=150"),
    ("simple", False, TEXT, "blue"),
    ("simple", False, LIST, "blue,black,brown"),
    ("simple", False, OBJECT, "R,100,G,200,B,150"),
    ("simple", True, TEXT, "blue"),
    ("simple", True, LIST, "blue,black,brown"),
    ("simple", True, OBJECT, "R=100,G=200,B=150"),
    ("form", False, TEXT, "color=blue"),
    ("form", False, LIST, "color=blue,black,brown"),
    ("form", False, OBJECT, "color=R,100,G,200,B,150"),
    ("form", True, TEXT, "color=blue"),
    ("form", True, LIST, "color=blue&color=black&color=brown"),
    ("form", True, OBJECT, "R=100&G=200&B=150"),
    ("spaceDelimited", False, LIST, "color=blue%20black%20brown"),
    ("spaceDelimited", False, OBJECT, "color=R%20100%20G%20200%20B%20150"),
    ("pipeDelimited", False, LIST, "color=blue%7Cblack%7Cbrown"),
    ("pipeDelimited", False, OBJECT, "color=R%7C100%7CG%7C200%7CB%7C150"),
    ("deepObject", True, OBJECT, "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"),
]


@each_row(("style", "explode", "value", "told"), STYLES)
def test_the_styles_of_the_specification(style: str, explode: bool, value: Any, told: str) -> None:
    in_path = style in ("matrix", "label", "simple")
    request = sent("path" if in_path else "query", value, style=style, explode=explode)
    assert request.path == (f"/c/{told}/d" if in_path else f"/c?{told}")


@each_row(
    ("place", "said", "value", "path", "headers", "cookies"),
    [
        ("query", {}, True, "/c?color=true", {}, ()),
        ("query", {}, 1.5, "/c?color=1.5", {}, ()),
        ("query", {}, "a b&c=d#é", "/c?color=a%20b%26c%3Dd%23%C3%A9", {}, ()),
        ("query", {}, "", "/c?color=", {}, ()),
        ("query", {}, [], "/c", {}, ()),
        ("query", {"required": False}, None, "/c", {}, ()),
        ("query", {}, {"a": [1, 2], "b": {"c": 3}}, "/c?a=1&a=2&b=%7B%22c%22%3A3%7D", {}, ()),
        ("query", {"allowReserved": True}, "a/b?c=d&e", "/c?color=a/b?c=d%26e", {}, ()),
        (
            "query",
            {"style": "deepObject", "explode": True},
            {"a": {"b": [1, 2]}},
            "/c?color%5Ba%5D%5Bb%5D=1&color%5Ba%5D%5Bb%5D=2",
            {},
            (),
        ),
        (
            "query",
            {"content": {"application/json": {"schema": {}}}},
            {"a": [1]},
            "/c?color=%7B%22a%22%3A%5B1%5D%7D",
            {},
            (),
        ),
        ("header", {}, ["a", 1], "/c", {"color": "a,1"}, ()),
        ("header", {"explode": True}, {"a": 1}, "/c", {"color": "a=1"}, ()),
        ("cookie", {}, "a;b", "/c", {}, (("color", "a%3Bb"),)),
        ("path", {}, "a/../b?c#d", "/c/a%2F..%2Fb%3Fc%23d/d", {}, ()),
        ("path", {}, "{color}", "/c/%7Bcolor%7D/d", {}, ()),
    ],
)
def test_where_a_value_is_sent(
    place: str, said: Any, value: Any, path: str, headers: dict[str, str], cookies: Any
) -> None:
    request = sent(place, value, **said)
    assert request.path == path
    accept = {"Accept": "application/json, */*;q=0.1"}
    assert (dict(request.headers), request.cookies) == ({**accept, **headers}, cookies)


@each_row(
    ("place", "value", "text"),
    [
        ("path", "", "cannot be empty"),
        ("path", [], "cannot be empty"),
        ("path", ".", "cannot be '.' or '..'"),
        ("path", "..", "cannot be '.' or '..'"),
        ("header", "a\r\nHost: evil.example", "printable ASCII"),
        ("header", "é", "printable ASCII"),
        ("header", ["a,b"], "with ',' between them"),
        ("header", {"a": "b,c,d"}, "with ',' between them"),
        ("header", {"a,b": "c"}, "with ',' between them"),
        ("header", [[1, 2]], "with ',' between them"),
        *(
            ("header", value, "loses spaces at the beginning and the end")
            for value in (" a", "a ", " ", ["a", " b"], {"a": "b "}, {" a": "b"})
        ),
        ("header", [""], "cannot hold just one empty string"),
        ("path", [""], "cannot hold just one empty string"),
        *(
            (place, value, "cannot be or hold null")
            for place in ("path", "query", "header", "cookie")
            for value in (None, [None], ["a", None], {"a": None})
        ),
        *((place, {"a": []}, "cannot hold empty values") for place in ("query", "cookie")),
    ],
)
def test_what_cannot_be_sent_in_its_place(place: str, value: Any, text: str) -> None:
    with pytest.raises(ToolError, match=text):
        sent(place, value)


@each_row(("value",), [([["a"]],), ([{"a": "b"}],), ({"a": [[]]},)])
def test_a_list_in_a_deep_object_holds_single_values(value: Any) -> None:
    with pytest.raises(ToolError, match="cannot hold lists or objects"):
        sent("query", value, style="deepObject", explode=True)


NAMED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("account", "query", {}),
    ("f", "query", {}),
    ("g", "query", {}),
    ("page", "query", {"style": "deepObject", "explode": True}),
    ("page[size]", "query", {}),
    ("theme", "cookie", {}),
    ("f", "cookie", {}),
    ("id", "path", {"style": "matrix"}),
    ("f", "path", {"style": "matrix", "explode": True}),
)
MIXED: dict[str, Any] = {
    "parameters": [
        {"name": name, "in": place, "schema": {}, **said} for name, place, said in NAMED
    ],
    "requestBody": {
        "content": {
            "application/x-www-form-urlencoded": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "role": {"enum": ["user"]},
                        "meta": {},
                        "id": {"readOnly": True},
                    },
                }
            }
        }
    },
}
SCHEMES = {
    "q": {"type": "apiKey", "in": "query", "name": "api_key"},
    "c": {"type": "apiKey", "in": "cookie", "name": "session"},
}
WHOLE = one(
    MIXED, path="/x{id}{f}?fixed=1", components={"securitySchemes": SCHEMES}, version="3.0.3"
)


def sent_of(**arguments: Any) -> ApiRequest:
    plan = plan_of(WHOLE)
    names = [one.argument for one in plan.parameters]
    assert names == [
        *("account", "f", "g", "page", "page_size", "theme", "f_cookie", "id", "f_path"),
    ]
    return request_of(plan, {"id": 7, "f_path": 1, **arguments}, "key")


@each_row(
    ("arguments", "other"),
    [
        ({"f": {"account": "9"}}, "account"),
        ({"f": {"Account": "9"}}, "account"),
        ({"f": {"account[]": "9"}}, "account"),
        ({"f": {" account": "9"}}, "account"),
        ({"f": {"account\0x": "9"}}, "account"),
        ({"f": {"g": "9"}}, "g"),
        ({"f": {"api_key": "mine"}}, "api_key"),
        ({"f": {"api.key": "mine"}}, "api_key"),
        ({"f": {"fixed": "2"}}, "fixed"),
        ({"f": {"page[size]": "2"}}, "page"),
        ({"page": {"size": 3}}, "page[size]"),
        ({"f_cookie": {"session": "mine"}}, "session"),
        ({"f_cookie": {"theme": "mine"}}, "theme"),
        ({"f_path": {"id": 8}}, "id"),
        ({"body": {"role": "user", "meta": {"role": "admin"}}}, "role"),
        ({"body": {"role": "user", "other": {"ROLE": "admin"}}}, "role"),
        ({"body": {"role": "user", "role[]": "admin"}}, "role"),
        ({"body": {"ID": 7}}, "id"),
    ],
)
def test_no_member_of_an_object_is_sent_as_something_else(arguments: Any, other: str) -> None:
    with pytest.raises(ToolError, match=rf"would be sent as '{re.escape(other)}'"):
        sent_of(**arguments)


@each_row(
    ("arguments", "text"),
    [
        ({"f": {"a": "1"}, "g": {"a": "2"}}, "as one of another object"),
        ({"f": {"a": "1"}, "g": {"A[0]": "2"}}, "as one of another object"),
        ({"body": {"meta": {"a": 1}, "a": 2}}, "as one of another object"),
        ({"body": {"meta": {"a": 1}, "more": {"a": 2}}}, "as one of another object"),
        ({"page": {"a][b": 1, "a": {"b": 2}}}, "a bracket in its name"),
        ({"f_cookie": {"a=1; session": "mine"}}, "no cookie can have"),
        ({"f_cookie": {"a\r\nX": "mine"}}, "no cookie can have"),
    ],
)
def test_no_name_is_made_twice_or_of_what_is_no_name(arguments: Any, text: str) -> None:
    with pytest.raises(ToolError, match=text) as caught:
        sent_of(**arguments)
    assert "mine" not in str(caught.value)


@each_row(
    ("arguments", "query", "cookies", "body"),
    [
        ({"f": {"f": "1", "a": "2", "A": "3"}}, "fixed=1&f=1&a=2&A=3", (), None),
        ({"f": {"a": "1"}, "g": {"b": "2"}}, "fixed=1&a=1&b=2", (), None),
        (
            {"page": {"number": 3}, "page_size": 2},
            "fixed=1&page%5Bnumber%5D=3&page%5Bsize%5D=2",
            (),
            None,
        ),
        ({"f_cookie": {"a": "1"}, "theme": "x"}, "fixed=1", (("theme", "x"), ("a", "1")), None),
        ({"body": {"meta": {"a": [1, 2]}, "b": 1}}, "fixed=1", (), b"a=1&a=2&b=1"),
        ({"f": {"theme": "1", "session": "2"}}, "fixed=1&theme=1&session=2", (), None),
    ],
)
def test_what_has_a_name_of_its_own_is_sent(
    arguments: Any, query: str, cookies: Any, body: bytes | None
) -> None:
    request = sent_of(**arguments)
    assert request.path.partition("?")[2] == query
    assert (request.cookies, request.body) == (cookies, body)


TEXTS = st.text(alphabet="aA[]. _=;&\0r%", max_size=6)


@given(
    st.dictionaries(TEXTS, st.text(max_size=2), max_size=3),
    st.dictionaries(TEXTS, st.text(max_size=2), max_size=3),
)
def test_each_name_in_a_query_is_one_arguments(
    one_object: dict[str, str], other: dict[str, str]
) -> None:
    """As each server reads it that cuts names at a bracket, or folds their case."""
    parameters: list[Any] = [
        {"name": name, "in": "query", "schema": {}} for name in ("a", "x", "y")
    ]
    plan = plan_of(one({"parameters": parameters}))
    given: dict[str, Any] = {"a": "mine", "x": one_object, "y": other}
    try:
        path = request_of(plan, given, "key").path
    except ToolError:
        return
    pairs = parse_qsl(path.partition("?")[2], keep_blank_values=True)
    read = [name.partition("[")[0].strip().lower() for name, _ in pairs]
    assert read.count("a") == 1
    assert not {name for name in one_object if name in other} - {"x", "y"}


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_text_in_a_path_is_one_step_of_it(value: str) -> None:
    try:
        path = sent("path", value).path
    except ToolError:
        assert value in ("", ".", "..")
        return
    assert path.isascii()
    assert [unquote(step) for step in path.split("/")] == ["", "c", value, "d"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.booleans())
def test_a_text_in_a_query_is_one_value(value: str, reserved: bool) -> None:
    path, _, query = sent("query", value, allowReserved=reserved).path.partition("?")
    assert path == "/c"
    assert parse_qsl(query, keep_blank_values=True) == [("color", value)]
    assert "#" not in query


@each_row(
    ("path", "sent_as"),
    [
        ("/a b/é", "/a%20b/%C3%A9"),
        ("/a HTTP/1.1\r\nX: y", "/a%20HTTP/1.1%0D%0AX:%20y"),
        ("/a%2Fb/{", "/a%2Fb/%7B"),
        ("/a?b=c d&e=f#g", "/a?b=c%20d&e=f"),
        ("/a/%2e%2e%2Fb", "/a/%2e%2e%2Fb"),
        ("//evil.example/x", "//evil.example/x"),
    ],
)
def test_the_path_of_a_document_is_encoded_as_well(path: str, sent_as: str) -> None:
    assert request_of(plan_of(one({}, path=path)), {}, "key").path == sent_as


def test_a_variable_may_have_any_name_and_stand_in_a_query() -> None:
    named: list[Any] = [
        {"name": name, "in": "path", "schema": {}} for name in ("user id", "+rest", "q")
    ]
    plan = plan_of(one({"parameters": named}, path="/u/{user id}/{+rest}?q={q}"))
    request = request_of(plan, {"user_id": "a/b", "rest": "{q}", "q": "x&y"}, "key")
    assert request.path == "/u/a%2Fb/%7Bq%7D?q=x%26y"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)  # fmt: skip


@given(ANY_JSON, st.sampled_from(STYLES), st.booleans())
def test_any_value_is_sent_or_refused_in_words(value: Any, style: Any, reserved: bool) -> None:
    in_path = style[0] in ("matrix", "label", "simple")
    said = {"style": style[0], "explode": style[1], "allowReserved": reserved}
    try:
        path = sent("path" if in_path else "query", value, **said).path
    except ToolError:
        return
    assert re.fullmatch(r"[!$&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~%]*", path)
    assert path.count("/") == 3 if in_path else path.partition("?")[0] == "/c"


QUERY_STYLES = ("form", "spaceDelimited", "pipeDelimited")
DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|", "label": ".", "matrix": ";"}
PIECES = st.sampled_from(["a", "b", "=", ",", "|", " ", ".", ";", "&", "%2C", "%7C", "/"])
PIECED = st.lists(PIECES, min_size=1, max_size=4).map("".join)
ITEMS = st.lists(PIECED, min_size=1, max_size=3) | st.dictionaries(
    PIECED, PIECED, min_size=1, max_size=2
)
IN_HEADERS = [("header", False, None, None), ("header", True, None, None)]
DELIMITED = [
    one for one in (*STYLES, *IN_HEADERS) if one[0] not in ("deepObject", "form") or not one[1]
]


@given(ITEMS, st.booleans())
def test_values_that_share_one_text_are_told_apart_or_refused(value: Any, reserved: bool) -> None:
    """By whoever splits the text as its style says, before the values are decoded or after."""
    for style in DELIMITED:
        assert _read_back(value, style, reserved=reserved) in (value, None)


SHORT_LISTS = st.lists(
    st.sampled_from(["", "a", " ", "%20", ",", "%2C", "|", "a,b", "."]), max_size=3
)
EVERYWHERE: list[tuple[str, dict[str, Any]]] = [
    (place, {"style": style, "explode": explode})
    for place, styles in {
        "path": ("simple", "label", "matrix"),
        "query": (*QUERY_STYLES, "deepObject"),
        "header": ("simple",),
        "cookie": ("form",),
    }.items()
    for style in styles
    for explode in (True, False)
]


@given(SHORT_LISTS, SHORT_LISTS)
def test_no_two_lists_are_one_request(one_list: list[str], other: list[str]) -> None:
    for place, said in EVERYWHERE:
        made = []
        for value in (one_list, other):
            with suppress(ToolError):
                request = sent(place, value, **said)
                made.append((request.path, request.headers, request.cookies))
        assert len(made) < 2 or (made[0] == made[1]) == (one_list == other)


NULLABLE = st.sampled_from(["a", "null", None])
FEW = st.lists(NULLABLE, max_size=2)
MEMBERS = st.dictionaries(st.sampled_from("kl"), NULLABLE, max_size=2)
NESTED: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "text": ("string", NULLABLE),
    "list": ("array", st.none() | FEW),
    "list of lists": ("array", st.lists(FEW, max_size=2)),
    "list of objects": ("array", st.lists(MEMBERS, max_size=2)),
    "object": ("object", st.none() | MEMBERS),
    "object of lists": ("object", st.dictionaries(st.sampled_from("kl"), FEW, max_size=2)),
    "object of objects": ("object", st.dictionaries(st.sampled_from("mn"), MEMBERS, max_size=2)),
}
IN_FORMS: list[dict[str, Any]] = [
    {},
    {"contentType": "text/plain"},
    *(
        {"style": style, "explode": explode}
        for style in (*QUERY_STYLES, "deepObject")
        for explode in (True, False)
    ),
]
IN_BODIES = [
    (media_type, encoding)
    for media_type in ("application/x-www-form-urlencoded", "multipart/form-data")
    for encoding in IN_FORMS
]


ABSENT = ()  # no value of JSON, and as empty as one
DEFAULT_IN: dict[str, Any] = {
    "itself": lambda schema, default: {**schema, **default},
    "a reference": lambda schema, default: {"$ref": "#/components/schemas/D"},
    "beside a reference": lambda schema, default: {"$ref": "#/components/schemas/S", **default},
    "a part": lambda schema, default: {"allOf": [schema, {"$ref": "#/components/schemas/D"}]},
    "an alternative": lambda schema, default: {"anyOf": [{"oneOf": [{**schema, **default}]}]},
}


@given(st.data(), st.sampled_from(sorted(NESTED)), st.booleans())
def test_no_two_values_are_one_request(data: st.DataObject, kind: str, required: bool) -> None:
    """Whatever is null, empty or nested, and what is not given: that is the default of the document.
    Without one, an optional argument that is empty as a whole is left out."""
    type_, strategy = NESTED[kind]
    values = data.draw(st.lists(strategy, min_size=3, max_size=40, unique_by=json.dumps))
    default = data.draw(st.just(ABSENT) | strategy)
    how = data.draw(st.sampled_from(sorted(DEFAULT_IN)))
    schema = _with_default({"type": [type_, "null"]}, default, how)
    for place, said in (*EVERYWHERE, *IN_BODIES):
        plan, is_body = _nullable(place, *map(json.dumps, (schema, said)), required), "/" in place
        made: dict[str, Any] = {}
        for value in values if required else [*values, ABSENT]:
            argument = {} if value == ABSENT else {"color": value}
            try:
                request = request_of(plan, {"body": argument} if is_body else argument, "key")
            except ToolError:
                continue
            meant = default if value == ABSENT else value
            before = made.setdefault(_all_of(request), meant)
            is_left_out = default == ABSENT and not required and place != "path"
            assert before == meant or (is_left_out and not before and not meant)


NUMBERS = st.integers(-(2**53), 2**53)
SHAPES: dict[str, Callable[[Any], Any]] = {
    "number": lambda number: number,
    "array": lambda number: [number, "a"],
    "object": lambda number: {"k": number},
}


@given(NUMBERS, st.sampled_from(sorted(SHAPES)))
def test_a_whole_number_is_sent_as_it_is_shown(number: int, kind: str) -> None:
    """Some models write 7.0 for 7; approvals and records show 7."""
    schemas = json.dumps({"color": {"type": kind}})
    for place, said in (*EVERYWHERE, *IN_BODIES, ("application/json", {})):
        plan, is_body = _nullable(place, schemas, json.dumps(said), True), "/" in place
        made = set()
        for one_of in (number, float(number)):
            argument = {"color": SHAPES[kind](one_of)}
            with suppress(ToolError):
                request = request_of(plan, {"body": argument} if is_body else argument, "key")
                made.add(_all_of(request))
        assert len(made) < 2, (place, said)


def _with_default(schema: Any, default: Any, how: str) -> Any:
    """Return a document's schemas: `S`, `D` with the default, and the one that has it that way."""
    has = {} if default == ABSENT else {"default": default}
    made = DEFAULT_IN[how](schema, has)
    return {"S": schema, "D": {**schema, **has}, "color": made}


@cache
def _nullable(place: str, schemas: str, said: str, required: bool) -> RequestPlan:
    components = {"schemas": json.loads(schemas)}
    schema = components["schemas"].pop("color")
    if "/" not in place:
        parameter = {"name": "color", "in": place, "schema": schema, **json.loads(said)}
        given_at = {"parameters": [{**parameter, "required": required}]}
        path = "/c/{color}/d" if place == "path" else "/c"
        return plan_of(one(given_at, path=path, components=components))
    form = {"type": "object", "properties": {"color": schema}, "required": ["color"] * required}
    content = {"schema": form, "encoding": {"color": json.loads(said)}}
    body = {"requestBody": {"content": {place: content}}}
    return plan_of(one(body, version="3.1.0", components=components))


Q, FORM_TYPE, PARTS_TYPE = "query", "application/x-www-form-urlencoded", "multipart/form-data"
OPEN: Any = {"type": ["array", "null"], "default": ["open", "paid"]}
FIELDS = {"type": "object", "properties": {"a": OPEN}}
KINDS = {
    "type": "object",
    "required": ["kind"],
    "properties": {"kind": {"type": "string"}},
    "discriminator": {"propertyName": "kind", "mapping": {"b": "#/components/schemas/B"}},
}
B = {"allOf": [{"$ref": "#/components/schemas/Kinds"}, FIELDS]}
EMPTY: list[tuple[str, Any]] = [  # an empty header is sent
    ("query", None), ("query", []), ("header", None), ("cookie", None), ("cookie", [])
]  # fmt: skip


@each_row(
    ("operation", "path", "arguments"),
    [
        *(
            ({"parameters": [{"name": "a", "in": place, "schema": OPEN}]}, "/x", {"a": value})
            for place, value in EMPTY
        ),
        ({"parameters": [{"name": "a", "in": "query", "schema": {}}]}, "/x?a=1", {"a": None}),
        (
            {"parameters": [{"name": "a", "in": "query", "required": True, "schema": OPEN}]},
            "/x",
            {"a": []},
        ),
        (
            {
                "parameters": [
                    {"name": "a", "in": "query", "content": {"application/json": {"schema": OPEN}}}
                ]
            },
            "/x",
            {"a": None},
        ),
        *(
            (
                {"requestBody": {"content": {media_type: {"schema": schema}}}},
                "/x",
                {"body": {"kind": "b", "a": []}},
            )
            for media_type in (FORM_TYPE, PARTS_TYPE)
            for schema in (
                FIELDS,
                {"allOf": [FIELDS]},
                {"oneOf": [{"$ref": "#/components/schemas/B"}]},
                {"$ref": "#/components/schemas/Kinds"},
                {"if": True, "then": FIELDS},
                {"dependentSchemas": {"kind": FIELDS}},
            )
        ),
        *(
            ({"requestBody": {"content": {media_type: {"schema": schema}}}}, "/x", {"body": empty})
            for media_type, schema, empty in [
                (FORM_TYPE, {"type": "object", "default": {"a": "1"}}, {}),
                (FORM_TYPE, {"type": "object", "default": {"a": "1"}}, {"b": []}),
                (PARTS_TYPE, {"type": "object", "default": {"a": "1"}}, {}),
                ("text/plain", {"type": "string", "default": "a"}, ""),
                ("application/pdf", {"type": "string", "default": "a"}, ""),
            ]
        ),
    ],
)
def test_what_the_api_takes_otherwise_is_not_left_out(
    operation: Any, path: str, arguments: Any
) -> None:
    components = {"schemas": {"Kinds": KINDS, "B": B}}
    plan = plan_of(one(operation, path=path, version="3.1.0", components=components))
    with pytest.raises(ToolError, match="the API would use its default"):
        request_of(plan, arguments, "key")
    whole = compile_validator({})
    (why,) = Sendable(whole, plan).violations(arguments)
    (argument,) = arguments
    field = "/a" if argument == "body" and "a" in arguments["body"] else ""
    assert why.path == f"/{argument}{field}"


def test_a_default_of_another_kind_is_none_of_this_one() -> None:
    """In an `allOf` a schema is itself, and no other of its kinds."""
    own = {"allOf": [{"$ref": "#/components/schemas/Kinds"}]}
    content = {"application/x-www-form-urlencoded": {"schema": own}}
    components = {"schemas": {"Kinds": KINDS, "B": B}}
    source = one({"requestBody": {"content": content}}, version="3.1.0", components=components)
    assert request_of(plan_of(source), {"body": {"kind": "c", "a": []}}, "key").body == b"kind=c"


def _all_of(request: ApiRequest) -> str:
    """Return all that a server gets, with one boundary."""
    body = re.sub(rb"--[0-9a-f]{32}", b"--", request.body or b"")
    headers = [one for one in request.headers if one[0] != "Content-Type"]
    return repr((request.path, headers, request.cookies, body))


def _read_back(value: Any, style: Any, *, reserved: bool) -> Any:
    """Return what a server reads of a list or an object; None where it was refused."""
    name, explode = style[:2]
    place = "header" if name == "header" else "query" if name in QUERY_STYLES else "path"
    said: Any = {} if place == "header" else {"style": name, "allowReserved": reserved}
    try:
        request = sent(place, value, explode=explode, **said)
    except ToolError:
        return None
    delimiter = DELIMITERS.get(name, ",") if explode or place == "query" else ","
    decode: Any = _itself
    if place == "header":
        text, decode = dict(request.headers)["color"], _itself
    else:
        text, decode = request.path, unquote
        text = text.partition("?color=")[2] if place == "query" else text.split("/")[2]
    text = text.removeprefix({"label": ".", "matrix": ";"}.get(name, ""))
    if name == "matrix" and not (explode and isinstance(value, dict)):
        text = text.replace("color=", "") if explode else text.removeprefix("color=")
    if delimiter in " |":
        text = unquote(text)
        decode = _itself
    pieces = text.split(delimiter)
    if isinstance(value, list):
        return [decode(piece) for piece in pieces]
    if explode:
        pairs = [piece.partition("=") for piece in pieces]
        return {decode(key): decode(said) for key, _, said in pairs}
    names = [decode(piece) for piece in pieces]
    return dict(zip(names[::2], names[1::2], strict=False))


def _itself(text: str) -> str:
    return text


@each_row(
    ("arguments", "path"),
    [
        ({}, "/c?x=1&y=2&x=3"),
        ({"x": 7}, "/c?y=2&x=7"),
        ({"x": 7, "y": [8, 9]}, "/c?x=7&y=8&y=9"),
    ],
)
def test_a_parameter_wins_over_what_stands_in_the_path(arguments: Any, path: str) -> None:
    parameters: list[Any] = [{"name": name, "in": "query", "schema": {}} for name in ("x", "y")]
    plan = plan_of(one({"parameters": parameters}, path="/c?x=1&y=2&x=3"))
    assert request_of(plan, arguments, "key").path == path


@given(ANY_JSON, st.booleans())
def test_any_value_in_a_header_is_one_line_of_ascii(value: Any, explode: bool) -> None:
    try:
        text = dict(sent("header", value, explode=explode).headers).get("color", "")
    except ToolError:
        return
    assert text.isascii()
    assert text.isprintable()


FORM = {"a": "x y&z", "list": [1, 2], "object": {"p": 1}, "none": None, "yes": True}


@each_row(
    ("media_type", "schema", "encoding", "value", "kind", "body"),
    [
        (
            "application/json",
            {},
            {},
            FORM,
            "application/json",
            json.dumps(FORM, separators=(",", ":")),
        ),
        ("application/vnd.x+json; v=1", {}, {}, [1], "application/vnd.x+json; v=1", "[1]"),
        *(
            (f"application/json{said}", {}, {}, ["é"], f"application/json{kept}", '["é"]')
            for said, kept in [
                ("; charset=utf-16", ""),
                (';CharSet="latin1"; v=1', "; v=1"),
                ("; v=1; charset=us-ascii", "; v=1"),
                ("; charset=UTF-8", "; charset=UTF-8"),
                ('; charset="utf-8"; v=1', '; charset="utf-8"; v=1'),
            ]
        ),
        ("*/*", {}, {}, None, "application/json", "null"),
        ("text/plain", {"type": "string"}, {}, "é", "text/plain; charset=utf-8", "é"),
        ("text/*", {"type": "string"}, {}, "é", "text/plain; charset=utf-8", "é"),
        ("application/pdf", {}, {}, "aGk=", "application/pdf", "hi"),
        ("image/*", {}, {}, "aGk=", "application/octet-stream", "hi"),
        (
            "application/x-www-form-urlencoded",
            {"type": "object", "properties": {"object": {}}},
            {"object": {"style": "deepObject", "explode": True}, "list": {"explode": False}},
            FORM,
            "application/x-www-form-urlencoded",
            "a=x%20y%26z&list=1&list=2&object%5Bp%5D=1&yes=true",
        ),
        (
            "application/x-www-form-urlencoded",
            {"type": "object", "properties": {"list": {}, "object": {}}},
            {"object": {"contentType": "application/json"}, "list": {"explode": False}},
            {"list": [1, 2], "object": {"p": 1}},
            "application/x-www-form-urlencoded",
            "list=1,2&object=%7B%22p%22%3A1%7D",
        ),
    ],
)
def test_a_body_is_sent_in_its_media_type(
    media_type: str, schema: Any, encoding: Any, value: Any, kind: str, body: str
) -> None:
    content = {media_type: {"schema": schema, "encoding": encoding}}
    plan = plan_of(one({"requestBody": {"content": content}}))
    request = request_of(plan, {"body": value}, "key")
    assert request.body == body.encode()
    assert dict(request.headers)["Content-Type"] == kind


STYLED = {
    "type": "object",
    "properties": {"list": {}, "object": {}, "deep": {}, "text": {}, "plain": {}},
}
ENCODED = {
    "list": {"style": "pipeDelimited", "explode": False},
    "object": {"explode": False},
    "deep": {"style": "deepObject", "explode": True},
    "text": {"explode": False, "contentType": "text/plain; charset=utf-16"},
    "plain": {"contentType": "text/plain; charset=utf-16"},
}
PARTS: Any = {
    "list": ["a b", "ü,"],
    "object": {"p": 1},
    "deep": {"p": [1, "é"]},
    "text": "a|",
    "plain": "é",
}


@each_row(
    ("version", "parts"),
    [
        (
            "3.1.0",
            [
                ("list", "", "a b|ü,"),
                ("object", "", "p,1"),
                ("deep[p]", "", "1"),
                ("deep[p]", "", "é"),
                ("text", "", "a|"),
                ("plain", "text/plain", "é"),
            ],
        ),
        (  # which says that a style counts in no parts
            "3.0.3",
            [
                ("list", "", "a b"),
                ("list", "", "ü,"),
                ("object", "application/json", '{"p":1}'),
                ("deep", "application/json", '{"p":[1,"é"]}'),
                ("text", "text/plain", "a|"),
                ("plain", "text/plain", "é"),
            ],
        ),
    ],
)
def test_a_field_of_a_form_in_parts_is_sent_in_its_style(version: str, parts: Any) -> None:
    content = {"multipart/form-data": {"schema": STYLED, "encoding": ENCODED}}
    plan = plan_of(one({"requestBody": {"content": content}}, version=version))
    assert _parts(request_of(plan, {"body": PARTS}, "key")) == parts


@each_row("schema", [{}, {"type": "string", "format": "binary"}, {"type": "array", "items": {}}])
def test_a_null_in_parts_is_left_out_or_refused(schema: Any) -> None:
    """Most servers would read the text `null`: few look at the media type of a part."""
    for required in ([], ["b"]):
        form = {"type": "object", "properties": {"a": {}, "b": schema}, "required": required}
        plan = plan_of(with_body(form, "multipart/form-data"))
        if required:
            with pytest.raises(ToolError, match="b cannot be or hold null"):
                request_of(plan, {"body": {"a": "x", "b": None}}, "key")
        else:
            request = request_of(plan, {"body": {"a": "x", "b": None}}, "key")
            assert _parts(request) == [("a", "", "x")]


@each_row("name", ["ro\\le", "role\\", "a%22", "a%0d"])
def test_a_part_has_no_name_that_is_read_otherwise(name: str) -> None:
    """By whoever reads quoted pairs, or takes an escape for what it stands for."""
    form = {"type": "object", "properties": {"role": {}, "deep": {}}}
    styled = {"deep": {"style": "deepObject", "explode": True}}
    content = {"multipart/form-data": {"schema": form, "encoding": styled}}
    plan = plan_of(one({"requestBody": {"content": content}}, version="3.1.0"))
    refused: list[Any] = [{name: "admin"}, {"deep": {name: "admin"}}]
    for fields in refused:
        with pytest.raises(ToolError, match="the name of a part"):
            request_of(plan, {"body": fields}, "key")
    assert _parts(request_of(plan, {"body": {'a"b': "x"}}, "key")) == [("a%22b", "", "x")]


def test_a_null_in_a_part_of_json_is_sent() -> None:
    form = {"type": "object", "properties": {"a": {}}}
    encoding = {"a": {"contentType": "application/json"}}
    content = {"multipart/form-data": {"schema": form, "encoding": encoding}}
    plan = plan_of(one({"requestBody": {"content": content}}))
    assert _parts(request_of(plan, {"body": {"a": None}}, "key")) == [
        ("a", "application/json", "null")
    ]


def test_a_list_in_a_form_of_swagger_is_sent_as_its_collection_format_says() -> None:
    formats = ("csv", "pipes", "multi")
    fields = [
        {"name": name, "in": "formData", "type": "array", "items": {}, "collectionFormat": name}
        for name in formats
    ]
    source = one({"parameters": fields, "consumes": ["multipart/form-data"]}, version="2.0")
    request = request_of(plan_of(source), {"body": {key: ["a", "b"] for key in formats}}, "key")
    told = [("csv", "", "a,b"), ("pipes", "", "a|b"), ("multi", "", "a"), ("multi", "", "b")]
    assert _parts(request) == told
    with pytest.raises(ToolError, match="with ',' between them"):
        request_of(plan_of(source), {"body": {"csv": ["a,b"]}}, "key")


def _parts(request: ApiRequest) -> list[tuple[str, str, str]]:
    """Return the name, the media type and the text of each part of a form."""
    kind = dict(request.headers)["Content-Type"].encode()
    assert request.body is not None
    message = email.message_from_bytes(b"Content-Type: " + kind + b"\r\n\r\n" + request.body)
    return [
        (
            str(part.get_param("name", header="content-disposition")),
            part.get("content-type", ""),
            cast("bytes", part.get_payload(decode=True)).decode(),
        )
        for part in cast("list[Message]", message.get_payload())
    ]


def test_a_body_that_is_not_given_is_not_sent() -> None:
    request = request_of(plan_of(with_body({})), {}, "key")
    assert request.body is None
    assert "Content-Type" not in dict(request.headers)


@each_row("method", ["get", "head", "options", "trace", "post", "put", "patch", "delete"])
def test_what_may_change_something_is_sent_with_the_key_of_its_call(method: str) -> None:
    headers = dict(request_of(plan_of(one({}, method=method)), {}, "the key").headers)
    changes = method in ("post", "put", "patch", "delete")
    assert headers.get("Idempotency-Key") == ("the key" if changes else None)


def test_no_repr_shows_what_is_sent() -> None:
    request = sent("header", "canary-1")
    assert "canary-1" not in repr(request)
