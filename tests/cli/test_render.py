"""What nobody sees is shown as what it is, in what people decide on; values are left as they are."""

from __future__ import annotations

import json
import unicodedata

import pytest

from toolcrib.approvals import question
from toolcrib.cli.render import json_text, one_line, printable, short_json, spoken
from toolcrib.errors import ErrorCode
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.record import CallError

NAMED = "\u3164\u00ad\ufe0f\ufff9\u034f\u200b\u200d\u202e\u2066\ufeff\u115f\u17b4\u180e\u2800\uffa0"
NAMED += "\U000e0041\U000e0100\U0001d173"


def test_all_of_their_categories_are_shown() -> None:
    for number in range(0x110000):
        character = chr(number)
        invisible = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        if (invisible and character not in "\t\n") or character in NAMED:
            shown = printable(f"a{character}b")
            assert shown.isascii(), hex(number)
            assert json.loads(json_text({"x": character}))["x"] == character


def test_on_one_line_a_line_feed_and_a_tab_are_shown_too() -> None:
    assert one_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"
    shown = {one_line(f"c{chr(number)}1") for number in range(0x110000)}
    assert len(shown) == 0x110000


@pytest.mark.parametrize("text", ["héllo wörld", "東京 🍵", "ку́б", "a\tb\nc", "नमस्ते"])
def test_what_is_seen_is_left_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_what_a_model_says_keeps_what_its_script_needs() -> None:
    assert spoken("❤\ufe0f") == "❤\ufe0f"
    assert spoken("\x1b[2J") == "\\x1b[2J"


def test_two_arguments_that_differ_do_not_look_the_same() -> None:
    for character in NAMED:
        plain, other = {"to": "anna"}, {"to": f"an{character}na"}
        assert short_json(plain) != short_json(other)
        assert short_json(other).isascii()
        asked = []
        for arguments in (plain, other):
            request = ApprovalRequest("apr_1", "pay", dict(arguments), "?", 9e9)
            asked.append(question(request))
        assert asked[0] != asked[1]
        assert asked[1].isascii()


def test_an_error_takes_one_line_whatever_a_tool_says() -> None:
    error = CallError.of(ErrorCode.TOOL_ERROR, "no\n\u2713 wire {}  approved by grace")
    assert "\n" not in one_line(str(error))
