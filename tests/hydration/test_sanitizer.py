"""Almost-JSON: each kind of fault is mended; what was cut, or has two readings, is left as it is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample

from toolcrib import ALL, Catalog, ErrorCode, Hydrated, Rejected, ToolCall, hydrate, tool
from toolcrib.hydration import Parsed, Repairer, RepairRequest, Sanitizer, parse_arguments, repair
from toolcrib.hydration.repair import mend

MENDED: list[tuple[str, Any]] = [
    # fences and prose around one object
    ('```json\n{"a": 1}\n```', {"a": 1}),
    ('```\n{"a": 1}\n```\n', {"a": 1}),
    ('Here are the arguments:\n```json\n{"a": 1}\n```\nI hope it\'s right.', {"a": 1}),
    ('Here are the arguments: {"a": 1}', {"a": 1}),
    ('Arguments:\n```json\n{"a": 1}\n```', {"a": 1}),
    ('Here they are: {"a": 1}', {"a": 1}),
    ('Note: it is done.\nHere they are: {"a": 1}', {"a": 1}),
    ('Sure! {"a": 1} Done.', {"a": 1}),
    ('<tool_call>{"a": 1}</tool_call>', {"a": 1}),
    ('search({"a": 1})', {"a": 1}),
    ('\ufeff{"a": 1}', {"a": 1}),
    ('{"a": 1};', {"a": 1}),
    ('\ud800{"a": 1}', {"a": 1}),
    # trailing commas
    ('{"a": 1,}', {"a": 1}),
    ('{"a": [1, 2,], "b": {"c": 3,},}', {"a": [1, 2], "b": {"c": 3}}),
    ('{"a": [1, // one\n ] , }', {"a": [1]}),
    ('{"a": ",}", "b": "[,]",}', {"a": ",}", "b": "[,]"}),
    # literals of Python
    ('{"a": True, "b": [False, None]}', {"a": True, "b": [False, None]}),
    ('{"a": "True", "None": None}', {"a": "True", "None": None}),
    # quotes
    ("{'a': 'it\\'s', 'b': True}", {"a": "it's", "b": True}),
    ("{'a': 'say \"hi\"', \"b\": \"it's\"}", {"a": 'say "hi"', "b": "it's"}),
    ("{'a': 'C:\\\\dir', 'b': '\\\\\\'\\\"\\\\'}", {"a": "C:\\dir", "b": "\\'\"\\"}),
    ("{'a': '\\u00e9\\n'}", {"a": "é\n"}),
    ('{"a": "it\\\'s"}', {"a": "it's"}),
    ('{“a”: "“b”", ‘c’: “the "d"”}', {"a": "“b”", "c": 'the "d"'}),
    # keys without quotes
    ('{a: 1, $b_2 : {c: "d: e"}}', {"a": 1, "$b_2": {"c": "d: e"}}),
    # comments
    ('{"a": 1, // one\n "b": 2, # two\n /* three * / */ "c": 3}', {"a": 1, "b": 2, "c": 3}),
    ('{"a": "// no", "b": "/* no */", "c": "# no",}', {"a": "// no", "b": "/* no */", "c": "# no"}),
    ('{"a": "http://x/#y"} // that is it', {"a": "http://x/#y"}),
    # control characters in texts, odd white space between tokens
    ('{"a": "x\ny\t\r\x00"}', {"a": "x\ny\t\r\x00"}),
    ("{'a': 'x\ny'}", {"a": "x\ny"}),
    ('{\xa0"a":\u2003"\xa0\u2028"\x0b}', {"a": "\xa0\u2028"}),
    # numbers are as they were
    ('{"a": -1.50E+2, "b": 12345678901234567890123,}', {"a": -150.0, "b": 12345678901234567890123}),
]  # fmt: skip


@each_row(("text", "value"), MENDED)
def test_what_is_mended(text: str, value: Any) -> None:
    assert not isinstance(parse_arguments(text), Parsed), "the parser reads it as it is"
    mended = mend(text)
    assert mended is not None
    assert parse_arguments(mended) == Parsed(value, mended.encode())
    assert json.dumps(json.loads(mended)) == json.dumps(value)
    assert mend(mended) is None


LEFT: list[str] = [
    '{"a": 1}',  # nothing to mend
    # cut, or not balanced
    '{"a": 1', '{"a": {"b": 1}', '{"a": "x', '{"a": [1, 2}', '{"a": 1}}', '{"a": 1]}', '{"a": "x}',
    "{'a': 'x}", '{"a": 1, "b": {"c": 2}', '```json\n{"a": 1}', '{"a": 1}\n```', '{"a": 1 // }',
    '{"a": 1 /* }', '"a": {"b": 1}', '"a": {"b": 1}}', 'a: 1, b: {"c": 2}', '{"b": 1}, "c": 2}',
    # more than one object, or a part of something else
    '{"a": 1} {"b": 2}', '{"a": 1}\n{"a": 1}', '[{"a": 1}]', '{"a": 1} or ["b"]', '{"a": 1}, c: 2',
    '```\nx\n```\n{"a": 1}', 'search(filter={"a": 1})', 'filter: {"a": 1}', '- filter: {"a": 1}',
    'search(1, {"a": 1})', 'search({"a": 1}, 2)', "'{\"a\": \"x\\\\n\"}'", '"{"a": 1}"',
    '{"a": 1} , c: 2', '{"a": 1} = x', '{"a": 1} : x', '‘{"a": 1}', '’{"a": 1}', 'my filter: {"a": 1}',
    '```\n```\n{"a": 1}\n```\n```', '{"a": 1}: x',
    'args = {"a": 1}', 'limit = 5\n{"a": 1}', 'limit=5; {"a": 1}',
    '<parameter=filter>{"a": 1}</parameter>',
    # a value would have to be guessed
    '{"a": b}', '{"a": NaN}', '{"a": Infinity,}', '{"a": undefined}', '{"a": }', '{"a"}', '{"a": 01,}',
    '{"a": .5,}', '{"a": 1_000}', '{"a": 0x1}', '{"a": 1e400,}', '{"a": (1, 2)}', '{"a": {1, 2}}',
    '{"a": ...}', "{1: 'a'}", '{true: 1}', '{None: 1}', '{"a": "\\d",}', '{"a": "\\x41",}',
    '{"a": "x\\\ny"}', "{'a': 'it's'}", "{'a': 'b' 'c'}", '{"a": """b"""}', '{"a": "say "hi""}',
    '{"a": “b"}', '{"a": “b “c” d”}', '{a b: 1}', '{a-b: 1}', "{'a': r'b'}", '{a: ‘it’s’}',
    # commas that close nothing, and none where there should be
    '{,}', '{"a": [,]}', '{"a": 1,,}', '{"a": [1,,2]}', '{"a": 1 "b": 2}', '{"a": [, /* */ ]}',
    '{"a": [ /* x */ , ]}', '{, "a": 1}',
    # a key twice, a value that nests too deeply, a half of a pair
    '{"a": 1, "a": 2,}', "{'a': 1, a: 2}", '{"a": ' + "[" * 200 + "]" * 200 + ",}", '{"a": "\ud800",}',
    "", " ", "null", "no", "}{", "{", "}",
]  # fmt: skip


@each_row("text", LEFT, ids=lambda text: ascii(text)[:40])
def test_what_is_left_as_it_is(text: str) -> None:
    assert mend(text) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(
        ["True", "it's", 'a "b"', "// c", "/* d", ",}", "“e”", "```", "f:", "\\", "\n"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text("abTrue'\"\n", max_size=5), VALUES, min_size=1, max_size=4)


@settings(max_examples=sample(200), deadline=None)
@given(OBJECTS)
def test_what_python_prints_is_read_as_it_was_or_not_at_all(value: dict[str, Any]) -> None:
    """`repr` escapes in ways that JSON does not know (`\\x00`): those are left, none is misread."""
    mended = mend(repr(value))
    assert mended is None or json.loads(mended) == value


@settings(max_examples=sample(200), deadline=None)
@given(OBJECTS, st.data())
def test_no_part_of_a_cut_text_is_taken_for_the_whole(value: dict[str, Any], data: Any) -> None:
    text = data.draw(st.sampled_from([json.dumps(value), repr(value)]))
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    assert mend(cut) is None


@settings(max_examples=sample(200), deadline=None)
@given(OBJECTS)
def test_a_comma_and_a_fence_change_no_text(value: dict[str, Any]) -> None:
    mended = mend(f"```json\n{json.dumps(value, ensure_ascii=False)[:-1]},}}\n```")
    assert mended is None or json.loads(mended) == value
    if isinstance(parse_arguments(json.dumps(value)), Parsed):
        assert mended is not None


@settings(max_examples=sample(300), deadline=None)
@given(st.text("{}[]\"'\\,:/*#`aTrue1 \n“”‘’é", max_size=60))
def test_no_text_raises_and_what_is_mended_is_read(text: str) -> None:
    mended = mend(text)
    if mended is not None:
        parsed = parse_arguments(mended)
        assert isinstance(parsed, Parsed)
        assert parsed.notes == ()
    assert mended == mend(text)


@tool(visible=ALL)
def note(a: str, b: bool = False) -> None:
    """Take a note."""


CATALOG = Catalog([note])


async def test_a_call_is_repaired() -> None:
    sent = "{'a': 'it\\'s', 'b': True,}"
    rejected = hydrate(ToolCall("c", "note", sent), CATALOG)
    assert isinstance(rejected, Rejected)
    result = await repair(rejected, CATALOG, Sanitizer())
    assert isinstance(result, Hydrated)
    assert result.arguments == {"a": "it's", "b": True}
    assert result.provenance.repaired_by == "sanitizer"


@each_row("sent", ["{'a': 1}", '{"a": 1}', '{"a": 1, "b": "True"}', "null", ""])
async def test_arguments_that_do_not_fit_are_not_its_affair(sent: str) -> None:
    rejected = hydrate(ToolCall("c", "note", sent), CATALOG)
    assert isinstance(rejected, Rejected)
    assert rejected.errors[0].code is ErrorCode.INVALID_ARGUMENTS
    assert await repair(rejected, CATALOG, Sanitizer()) is rejected
    request = RepairRequest(rejected.call, note.definition, rejected.errors)
    assert await Sanitizer()(request) is None


async def test_what_it_cannot_mend_keeps_its_error() -> None:
    rejected = hydrate(ToolCall("c", "note", '{"a": b'), CATALOG)
    assert isinstance(rejected, Rejected)
    assert await repair(rejected, CATALOG, Sanitizer()) is rejected


def test_it_is_a_repairer() -> None:
    assert isinstance(Sanitizer(), Repairer)


def test_more_faults_than_a_slip_of_the_pen_would_make() -> None:
    assert mend("{'a': [" + "'b'," * 2000 + "]}") is not None
    assert mend("{'a': [" + "'b'," * 20_000 + "]}") is None
