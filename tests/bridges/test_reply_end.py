"""A call of a reply runs only after an end that somebody has listed as a natural one."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

import pytest
from bridges.langchain_helpers import asks, reply
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.bridges.langchain.reply_end import fault_of
from toolcrib.wire import WIRES
from toolcrib.wire.calls import NATURAL

KEYS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "finishReason", "FinishReason")
LISTED = {
    word: meaning in NATURAL
    for wire in WIRES.values()
    for word, meaning in [
        *wire.finish_reasons.items(),
        *((word, "stop") for word in wire.natural_reasons),
    ]
}


class Reason(Enum):
    STOP = "stop"
    LENGTH = "length"


class GeminiReason(IntEnum):
    STOP = 1
    MAX_TOKENS = 2
    MALFORMED_FUNCTION_CALL = 10


def is_whole(*natural: str, **said: Any) -> bool:
    fault = fault_of(reply(asks("pay"), **said), natural)
    assert fault is None or fault.code == "truncated"
    return fault is None


@each_row("key", KEYS)
@each_row(("word", "natural"), sorted(LISTED.items()))
def test_the_lists_of_all_wires_hold(word: str, key: str, *, natural: bool) -> None:
    for said in (word, word.upper(), {"reason": word}):
        assert is_whole(**{key: said}) is natural
    assert is_whole(response={"meta": {key: word}}) is natural
    assert is_whole(choices=[{key: word}]) is natural


@given(st.text(min_size=1).filter(str.strip))
def test_what_nobody_lists_ends_the_calls(word: str) -> None:
    natural = "".join(word.split()).lower() in {name for name, whole in LISTED.items() if whole}
    assert is_whole(finish_reason=word) <= natural
    assert not is_whole(finish_reason=f"x{word}")
    assert is_whole(f"x{word}".strip().lower(), finish_reason=f"x{word}")


def within(held: Any) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda inner, name: {name: inner}, held, st.text(max_size=3)),
        st.builds(lambda inner: ["x", inner], held),
    )


@given(
    st.recursive(
        st.sampled_from(
            [
                *({key: "length"} for key in KEYS),
                {"status": "incomplete"},
                {"Status": "failed"},
                {"finish-reason": "MAX_TOKENS"},
            ]
        ),
        within,
        max_leaves=12,
    )
)
def test_a_reason_forbids_wherever_it_is(held: Any) -> None:
    assert not is_whole(finish_reason="stop", held=held)


def test_what_is_too_large_to_be_read_is_not_taken_as_whole() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    assert not is_whole(held=endless)
    tokens = [{"token": "a", "bytes": [97], "logprob": -0.1, "top_logprobs": []}] * 5_000
    assert is_whole(finish_reason="stop", logprobs={"content": tokens})


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        ({"status": "completed"}, True),
        ({"status": "completed", "incomplete_details": None}, True),
        ({"status": "incomplete"}, False),
        ({"status": "failed"}, False),
        ({"status": "in_progress"}, False),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, False),
        ({"status": "completed", "incomplete_details": {"reason": "content_filter"}}, False),
        ({"finish_reason": "tool_calls", "native_finish_reason": "MAX_TOKENS"}, False),
        ({"finish_reason": "tool_calls", "native_finish_reason": "of_its_own"}, True),
        ({"finish_reason": "stop", "stop_reason": "max_tokens"}, False),
        ({"finish_reason": "content_filter: PROHIBITED_CONTENT"}, False),
        ({"finish_reason": Reason.STOP}, True),
        ({"finish_reason": Reason.LENGTH}, False),
        ({"finish_reason": GeminiReason.STOP}, True),
        ({"finish_reason": GeminiReason.MAX_TOKENS}, False),
        ({"finish_reason": GeminiReason.MALFORMED_FUNCTION_CALL}, False),
        ({"finish_reason": "11"}, False),  # Gemini's IMAGE_SAFETY, and not STOP twice
        ({"finish_reason": "stopstop"}, True),  # LangChain joins what two chunks said
        ({"finish_reason": "tool_callstool_calls"}, True),
        ({"finish_reason": "stoplength"}, False),
        ({"finish_reason": ["stop", None]}, True),
        ({"finish_reason": ["stop", "length"]}, False),
        ({"stop_reason": {"type": "max_tokens"}}, False),
        ({"stop_reason": {"type": "end_turn"}}, False),  # a form that nobody has
        ({"finish_reason": {"reason": "stop"}}, True),
        ({"finish_reason": {"reason": "length"}}, False),
        ({"finish_reason": [{"reason": "length"}]}, False),
        ({"finish_reason": True}, False),
        ({"incomplete_details": {"code": 7}}, False),
    ],
)
def test_reasons_as_providers_put_them(said: dict[str, Any], *, whole: bool) -> None:
    assert is_whole(**said) is whole


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"finish_reason": None, "stop_reason": "", "done_reason": " "},
        {"stop_sequence": "STOP", "headers": {"status": "200 OK"}, "logprobs": {"content": [{}]}},
        {"status": 200, "token_usage": {"completion_tokens": 5}, "incomplete_details": {}},
    ],
)
def test_a_message_without_a_reason_is_taken_as_whole(said: dict[str, Any]) -> None:
    assert is_whole(**said)
    assert fault_of(None, ()) is None


def test_an_unlisted_reason_is_named_with_the_setting_that_lists_it() -> None:
    fault = fault_of(reply(asks("pay"), finish_reason="Of_Its_Own"), ())
    assert fault is not None
    assert "natural_reasons=['Of_Its_Own']" in fault.message
    assert is_whole("of_its_own", finish_reason="Of_Its_Own")
    assert not is_whole("length", finish_reason="length")
