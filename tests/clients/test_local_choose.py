"""The nearest tool, or none."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from rows import each_row

from toolcrib import kit
from toolcrib.clients.local.choosing import NO_TOOL, ToolChooser
from toolcrib.values.definition import Example, ToolDefinition

np = pytest.importorskip("numpy")

if TYPE_CHECKING:
    from numpy.typing import NDArray

with_vectors = pytest.mark.skipif(
    find_spec("wordllama") is None, reason="the extra `pick` is not installed"
)
ROOT = Path(__file__).parents[2]


class Fixed(NamedTuple):
    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


class Words:
    """A vector counts words, by their hash's place: texts are near if they share words."""

    def embed(self, texts: Sequence[str]) -> NDArray[Any]:
        rows: NDArray[Any] = np.zeros((len(texts), 512), "float32")
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[sum(map(ord, word)) * 31 % 512] += 1
        units: NDArray[Any] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return units


def a_tool(name: str, description: str, *requests: str) -> Fixed:
    examples = tuple(Example(request, "{}") for request in requests)
    return Fixed(
        ToolDefinition(
            name=name, description=description, input_schema_json="{}", examples=examples
        )
    )


def chosen(chooser: ToolChooser, request: str, *tools: Fixed, must: bool = False) -> str | None:
    found = chooser.choose(request, tools, must=must)
    return found.name if found else None


LAMP = a_tool("switch_lamp", "Switch a lamp on or off.", "turn the lamp on", "lamp off please")
DOOR = a_tool("lock_door", "Lock or open the door.", "lock the front door", "is the door open")


@each_row(
    ("request_", "must", "expected"),
    [
        ("turn off the lamp in the kitchen", False, "switch_lamp"),
        ("please lock the back door", False, "lock_door"),
        ("Tell me a joke", False, None),
        ("Tell me a joke", True, "lock_door"),
        ("", True, "switch_lamp"),
    ],
)
def test_choice(request_: str, must: bool, expected: str | None) -> None:
    found = chosen(ToolChooser(Words()), request_, LAMP, DOOR, must=must)
    if must:
        assert found in ("switch_lamp", "lock_door")
    else:
        assert found == expected


def test_without_tools_there_is_no_choice() -> None:
    assert ToolChooser(Words()).choose("turn on the lamp", (), must=True) is None


def test_numbers_are_all_alike() -> None:
    tool = a_tool("add", "Sum.", "total of 12 and 30.5", "sum 1,000 with 8")
    chooser = ToolChooser(Words())
    assert chosen(chooser, "total of 977 and 4", tool, LAMP) == "add"


def test_general_requests_on_a_tools_own_ground_do_not_count() -> None:
    """A tool that tells jokes gets the request that otherwise needs no tool."""
    joker = a_tool("tell_joke", "Tell me a joke.")
    chooser = ToolChooser(Words())
    assert chosen(chooser, "Tell me a joke", LAMP, DOOR) is None
    assert chosen(chooser, "Tell me a joke", LAMP, DOOR, joker) == "tell_joke"


def test_the_nearest_examples_come_first() -> None:
    examples = LAMP.definition.examples + DOOR.definition.examples
    found = ToolChooser(Words()).nearest("is the door locked or open", examples, 2)
    assert found[0].request == "is the door open"
    assert len(found) == 2
    assert ToolChooser(Words()).nearest("x", (), 2) == []


@with_vectors
@each_row(
    ("request_", "expected"),
    [
        ("What is 23*17+5?", "calculate"),
        ("What time is it in Asia/Tokyo?", "current_time"),
        ("List the files in the examples folder", "list_files"),
        ("80 kg in pounds", "convert_units"),
        ("Hello, how are you?", None),
    ],
)
def test_the_kit_with_word_vectors(request_: str, expected: str | None) -> None:
    found = ToolChooser().choose(request_, tuple(kit.catalog()))
    assert (found.name if found else None) == expected


@with_vectors
@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Is it raining in Oslo?", "get_weather"),
        ("Send an email to Anna that I am late", "send_email"),
        ("who was Napoleon?", None),
    ],
)
def test_tools_without_examples_compete_by_their_descriptions(
    request_: str, expected: str | None
) -> None:
    weather = a_tool("get_weather", "Get the current weather in a city.")
    mail = a_tool("send_email", "Send an email to a person.")
    assert chosen(ToolChooser(), request_, weather, mail) == expected


def test_no_question_that_is_measured_is_used() -> None:
    def plain(text: str) -> str:
        return " ".join(re.findall(r"\w+", text.lower()))

    files = ("kit_questions.jsonl", "local_questions.jsonl")
    lines = [
        line
        for name in files
        for line in (ROOT / "benchmarks" / name).read_text(encoding="utf-8").splitlines()
    ]
    asked = {plain(json.loads(line)["ask"]) for line in lines if line.strip()}
    used = [e.request for tool in kit.catalog() for e in tool.get_definition().examples]
    shared = sum(plain(text) in asked for text in (*used, *NO_TOOL))
    assert shared == 0, "a count only: which it is must not be shown"
