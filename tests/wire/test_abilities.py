"""What can be asked of each provider, and that the docs say the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rows import each_row

from toolcrib.cli.wires import HEADINGS, rows
from toolcrib.errors import RequestError
from toolcrib.wire import OPENAI_CHAT, WIRES, Abilities, abilities

DOCS = Path(__file__).parents[2] / "docs" / "providers.md"

EXPECTED = {
    "openai-chat": Abilities(
        "yes", "yes", "yes", "yes", True, True, True, False, True, "yes", "yes", "no"
    ),
    "openai-responses": Abilities(
        "yes", "yes", "yes", "yes", True, True, True, False, True, "yes", "yes", "by model"
    ),
    "anthropic": Abilities(
        "yes", "yes", "yes", "fewer", True, True, True, True, True, "yes", "yes", "by model"
    ),
    "gemini": Abilities(
        "yes", "yes", "yes", "yes", False, True, True, True, False, "alone", "some", "no"
    ),
    "mistral": Abilities(
        "yes", "yes", "yes", "fewer", True, True, True, False, True, "alone", "yes", "no"
    ),
    "ollama": Abilities(
        "fewer", "no", "no", "fewer", False, True, False, False, False, "alone", "some", "no"
    ),
    "cohere": Abilities(
        "yes", "yes", "fewer", "fewer", False, True, True, False, False, "alone", "yes", "no"
    ),
    "bedrock-converse": Abilities(
        "fewer", "yes", "yes", "fewer", False, True, False, True, True, "yes", "by model", "no"
    ),
}


def test_every_wire_is_listed() -> None:
    assert EXPECTED.keys() == WIRES.keys()


@each_row("name", EXPECTED)
def test_abilities(name: str) -> None:
    assert abilities(name) == EXPECTED[name]


def test_they_are_those_of_the_wire_as_it_was_changed() -> None:
    changed = msgspec.structs.replace(OPENAI_CHAT, allowed_tools=False)
    assert abilities(changed).some_tools == "fewer"


def test_a_wire_that_there_is_not() -> None:
    with pytest.raises(RequestError, match="there is no wire 'telex'"):
        abilities("telex")


def test_the_docs_have_the_table() -> None:
    """Made from the encoders: `toolcrib providers` prints the same."""
    lines = [["", *HEADINGS.values()], ["---"] * (len(HEADINGS) + 1), *rows()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("|  |", "| |")
    assert table in DOCS.read_text(encoding="utf-8"), table
