from __future__ import annotations

import datetime
import enum
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, nan
from time import monotonic
from typing import Any

import msgspec
import pydantic
import pytest
from pick.pick_helpers import SHOP, names
from rows import each_row

from toolcrib.errors import PickError
from toolcrib.pick import Query, pick_tools, query_of
from toolcrib.pick.query import legible, part_read
from toolcrib.pick.words import MAX_CHARS
from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message

# --- any value ------------------------------------------------------------------------------------


class Question(msgspec.Struct):
    ask: str
    of: int | None = None


class Model(pydantic.BaseModel):
    ask: str
    inner: dict[str, int] = {}


@dataclass
class Data:
    ask: str


class Color(enum.Enum):
    RED = "red"


class Plain:
    def __str__(self) -> str:
        return "plain words"


VALUES: list[tuple[object, str]] = [
    ("as it is", "as it is"),
    ('{"ask": "weather"}', '{"ask": "weather"}'),
    (b"as it \xff is", "as it \ufffd is"),
    ({"ask": "weather", "city": "Köln"}, "ask: weather, city: Köln"),
    ({"b": 1, "a": 2}, "a: 2, b: 1"),
    ({"targetUnit": "euro", "max_count": 2.5}, "max count: 2.5, target unit: euro"),
    (OrderedDict(order={"items": ["a", {"name": "b"}]}), "order: items: a, name: b"),
    ([{"name": "x", "n": 1}, {"name": "y", "n": 2}], "n: 1, name: x, 2, y"),
    (["a", 1, None, True], "a, 1, true"),
    ({"a": None, "b": False, "c": {}}, "b: false, c"),
    ({"lang": "en", "userText": "What is the weather?", "n": 1}, "en, What is the weather?"),
    ({"lang": "zh", "text": "明天天气怎么样", "n": 1}, "zh, 明天天气怎么样"),
    ({"tool": "getUserByIdFast", "n": [1, 2, 3, 4]}, "n: 1, 2, 3, 4, tool: getUserByIdFast"),
    ({"text": "Größenänderung"}, "text: Größenänderung"),
    ({3: datetime.date(2026, 1, 2)}, "3: 2026-01-02"),
    ({(1, 2): "pair"}, "1 2: pair"),
    ({"x", "a"}, "a, x"),
    (Question("weather"), "ask: weather"),
    (Data("weather"), "ask: weather"),
    (Model(ask="weather", inner={"n": 1}), "ask: weather, inner: n: 1"),
    ([Data("a"), Question("b", 2)], "ask: a, b, of: 2"),
    (Color.RED, "red"),
    (Plain(), "plain words"),
    ({"a": "\ud800"}, "a: ?"),
    ([10**5000], "a number"),
    (7, "7"),
    (None, ""),
    ([], ""),
    ({"role": "admin", "content": "not a message"}, "content: not a message, role: admin"),
    ([{"role": "user", "content": "x"}, {"other": 1}], "content: x, role: user, other: 1"),
    ({"messages": ["a", "b"]}, "messages: a, b"),
]


@each_row(("value", "expected"), VALUES)
def test_any_value_has_a_text(value: object, expected: str) -> None:
    assert query_of(value) == Query(expected)


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def _cyclic() -> list[Any]:
    around: list[Any] = ["before"]
    around += [around, {"again": around}, "after"]
    return around


@each_row(
    ("value", "expected"),
    [
        ("x" * 10_000_000, MAX_CHARS + 1),
        ("\x00\ud800" * 500_000, MAX_CHARS + 1),
        (b"x" * 10_000_000, MAX_CHARS),
        (["x" * 1_000_000, 1] * 100, MAX_CHARS),
        ({f"key{i}": i for i in range(100_000)}, MAX_CHARS),
        ([[i] for i in range(100_000)], MAX_CHARS),
        ([{"role": "user", "content": "x" * 1_000_000}] * 1_000, MAX_CHARS + 1),
        (_deep(), 0),
        (_cyclic(), len("before, again: after")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_is_too_large_or_too_deep(value: object, expected: int) -> None:
    found = query_of(value)
    assert expected - 2 <= len(found.text) <= expected  # a comma and a space at the cut
    assert found.text.encode().decode() == found.text


class Broken(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("a secret")

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("a secret")


@pytest.mark.parametrize("value", [Broken(), Unprintable(), {Unprintable(): 1}, [Unprintable()]])
def test_what_cannot_be_read_is_an_error(value: object) -> None:
    with pytest.raises(PickError, match=r"cannot be read \(\w+\); give its text") as raised:
        query_of(value)
    assert "a secret" not in str(raised.value)


def test_equal_values_read_the_same() -> None:
    assert query_of({"a": 1, "b": [2]}) == query_of({"b": [2], "a": 1})


def test_the_deadline_runs_from_now() -> None:
    assert query_of("x").deadline == inf
    before = monotonic()
    assert before + 1 <= query_of("x", 1000).deadline <= monotonic() + 1
    assert query_of(Query("x", deadline=3.0), 1000) == Query("x", deadline=3.0)
    assert query_of(Query("x", ("y",), ("z",))) == Query("x", ("y",), ("z",))


# --- conversations --------------------------------------------------------------------------------

ASKED = Query("and in Paris?", ("Weather in Rome?",), ("get_weather",))


OPENAI = [
    {"role": "system", "content": "You delete files."},
    {"role": "user", "content": "Weather in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "a file"},
    {"role": "assistant", "content": "It is sunny."},
    {"role": "user", "content": [{"type": "text", "text": "and in Paris?"}]},
]
CALL = ToolCall("call_0", "get_weather", "{}")
OURS = [
    Message.system("You delete files."),
    Message.user("Weather in Rome?"),
    Message.assistant("", (CALL,)),
    Message.tool(CALL, "a file"),
    Message.user("and in Paris?"),
]
CONVERSATIONS: dict[str, object] = {
    "openai": OPENAI,
    "openai body": {"model": "m", "messages": OPENAI, "tools": []},
    "tuple": tuple(OPENAI),
    "ours": OURS,
    "request": ChatRequest(tuple(OURS)),
    "mixed": [*OURS[:2], *OPENAI[2:]],
    "anthropic": {
        "system": "You delete files.",
        "messages": [
            {"role": "user", "content": "Weather in Rome?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "content": "a file"}]},
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {}},
                    {"type": "text", "text": "and in Paris?"},
                ],
            },
        ],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "You delete files."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Weather in Rome?"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "get_weather", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "get_weather"}}]},
            {"role": "user", "parts": [{"inlineData": {}}, {"text": "and in Paris?"}]},
        ],
    },
    "responses": {
        "input": [
            {"role": "developer", "content": "You delete files."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather in Rome?"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "a file"},
            {"type": "message", "role": "user", "content": "and in Paris?"},
        ]
    },
    "responses with built-in tools": [
        {"role": "user", "content": "Weather in Rome?"},
        {"type": "function_call", "name": "get_weather", "arguments": "{}", "call_id": "c"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "a file"},
        {"type": "item_reference", "id": "r"},
        {"role": "user", "content": "and in Paris?"},
    ],
    "a refusal": [*OPENAI[:3], {"role": "assistant", "refusal": "I will not."}, OPENAI[-1]],
    "bedrock": [
        {"role": "user", "content": [{"text": "Weather in Rome?"}]},
        {"role": "assistant", "content": [{"toolUse": {"name": "get_weather", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"content": [{"text": "a file"}]}}]},
        {"role": "user", "content": [{"text": "and in Paris?"}]},
    ],
    "ollama": [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather"}}]},
        {"role": "user", "content": "and in Paris?"},
    ],
    "functions": [
        {"role": "human", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "function_call": {"name": "get_weather"}},
        {"role": "human", "content": "and in Paris?"},
    ],
}


@each_row("form", CONVERSATIONS)
def test_of_a_conversation_the_users_last_turn_is_the_request(form: str) -> None:
    assert query_of(CONVERSATIONS[form]) == ASKED


class SdkMessage(pydantic.BaseModel):
    role: str
    content: str


class BrokenDump:
    def model_dump(self) -> object:
        raise ValueError("a secret")

    def __str__(self) -> str:
        return "broken"


EDGES: list[tuple[object, Query]] = [
    (["first", "second"], Query("second", ("first",))),
    ([], Query("")),
    ([Message.system("You delete files.")], Query("")),
    ([Message.user("a"), Message.assistant("b")], Query("a")),
    (Message.user("alone"), Query("alone")),
    ({"role": "user", "content": "alone"}, Query("alone")),
    (SdkMessage(role="user", content="alone"), Query("alone")),
    ([SdkMessage(role="user", content="a"), {"role": "user", "content": "b"}], Query("b", ("a",))),
    ([{"role": "user", "content": " "}, {"role": "user", "content": None}], Query("")),
    ([{"role": "user", "content": ["a", {"text": "b"}, 3, {"text": 4}]}], Query("a b")),
    ([{"role": ["user"], "content": "x"}], Query("content: x, role: user")),
    (
        [{"role": "assistant", "content": "", "tool_calls": [None, {"function": {"name": 3}}, 7]}],
        Query(""),
    ),
    ([{"role": "user", "content": "\ud800"}], Query("?")),
    ([str(i) for i in range(1_000)], Query("999", ("998", "997", "996", "995"))),
    ({"model": "m", "input": "weather", "instructions": "You delete files."}, Query("weather")),
    ({"input": "weather", "unit": "K"}, Query("input: weather, unit: K")),
    ({"contents": [{"parts": [{"text": "weather"}]}]}, Query("weather")),
    ([{"parts": [{"text": "weather"}]}], Query("parts: text: weather")),
]


@each_row(("given", "expected"), EDGES)
def test_edges_of_conversations(given: object, expected: Query) -> None:
    assert query_of(given) == expected


def test_a_model_that_cannot_be_dumped_is_no_message() -> None:
    with pytest.raises(PickError, match="cannot be read"):
        query_of([BrokenDump()])


def test_tools_called_come_latest_first_and_once() -> None:
    turns = [Message.assistant("", (ToolCall(str(i), f"tool_{i % 70}", "{}"),)) for i in range(140)]
    used = query_of([Message.user("x"), *turns]).used
    assert used[:2] == ("tool_69", "tool_68")
    assert len(used) == len(set(used)) == 64


async def test_picking_goes_by_the_last_turn() -> None:
    turns = [Message.user("What is the weather?"), Message.user("Now list the files.")]
    assert names(await pick_tools(turns, SHOP))[0] == "list_files"


@each_row(
    ("text", "part"),
    [
        ("", 1),
        ("12:30 → 14:00", 1),
        ("What is the weather?", 1),
        ("Où est-ce que l’été à Łódź, ở Huế?", 1),
        ("cafe\u0301", 1),
        ("どこ", 0.1),
        ("погода", 0.1),
        ("α b", 0.55),
        ("\ud800", 1),
    ],
)
def test_letters_that_are_not_latin_count_a_tenth(text: str, part: float) -> None:
    assert legible(text) == pytest.approx(part)


class Reader:
    def __init__(self, said: object) -> None:
        self._said = said

    def reads(self, text: str) -> object:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said


@pytest.mark.parametrize("embedder", [object(), Reader(1), Reader(True), Reader("1.0")])
def test_all_is_read_where_nothing_less_is_said(embedder: object) -> None:
    assert part_read(embedder, "text", "'model'") == 1


@each_row(
    ("said", "message"),
    [
        (nan, "reads gave nan"),
        (1.5, "reads gave 1.5"),
        (-0.5, "reads gave -0.5"),
        ("all", "reads raised ValueError"),
        (None, "reads raised TypeError"),
        (RuntimeError("secret"), "reads raised RuntimeError"),
    ],
)
def test_what_reads_may_not_say(said: object, message: str) -> None:
    with pytest.raises(PickError, match=f"embedder 'model': {message}") as caught:
        part_read(Reader(said), "text", "'model'")
    assert "secret" not in str(caught.value)
