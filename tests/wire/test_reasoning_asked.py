"""How much a model is to reason, as each provider is asked for it, and what none of them is asked."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row
from wire.sdk_judges import judge_of

from toolcrib.errors import RequestError
from toolcrib.values.message import ChatRequest, Effort, Message, OutputFormat, Settings
from toolcrib.wire import OPENAI_CHAT, WIRES, encode
from toolcrib.wire.base import Reasoning

ASKED = (Message.user("Hi"),)
FIELDS = "additionalModelRequestFields"


def body_of(wire: str, model: str, **settings: Any) -> dict[str, Any]:
    request = ChatRequest(ASKED, settings=Settings(**settings))
    made: dict[str, Any] = json.loads(encode(wire, request, model=model).body)
    return made


def budget(tokens: int, key: str = "budget_tokens") -> dict[str, Any]:
    return {"thinking": {"type": "enabled", key: tokens}}


def gemini(**config: Any) -> dict[str, Any]:
    return {"generationConfig": {"thinkingConfig": config}}


OFF = {"thinking": {"type": "disabled"}}


def effort(level: str) -> dict[str, Any]:
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}


# What a body has besides what it would have without, at its defaults.
GOLDEN: list[tuple[str, str, Effort, dict[str, Any]]] = [
    *(("openai-chat", "gpt-5", e, {"reasoning_effort": e}) for e in get_args(Effort)),
    *(("openai-responses", "gpt-5", e, {"reasoning": {"effort": e}}) for e in get_args(Effort)),
    *(("mistral", "mistral-large-4-0", e, {"reasoning_effort": e}) for e in get_args(Effort)),
    ("anthropic", "claude-haiku-4-5", "none", OFF),
    ("anthropic", "claude-haiku-4-5", "minimal", budget(1_024) | {"max_tokens": 9_216}),
    ("anthropic", "claude-sonnet-4-20250514", "low", budget(1_024) | {"max_tokens": 9_216}),
    ("anthropic", "claude-opus-4-1", "medium", budget(8_192) | {"max_tokens": 16_384}),
    ("anthropic", "claude-3-7-sonnet-20250219", "high", budget(24_576) | {"max_tokens": 32_768}),
    ("anthropic", "deepseek-chat", "low", budget(1_024) | {"max_tokens": 9_216}),
    ("anthropic", "claude-sonnet-4-6", "low", effort("low") | {"max_tokens": 9_216}),
    ("anthropic", "claude-opus-4-8", "medium", effort("medium") | {"max_tokens": 16_384}),
    ("anthropic", "claude-opus-5-5", "high", effort("high") | {"max_tokens": 32_768}),
    ("anthropic", "claude-sonnet-5", "none", OFF),
    ("anthropic", "claude-sonnet-5-5", "none", {"thinking": {"type": "between_tools"}}),
    ("gemini", "gemini-2.5-flash", "none", gemini(thinkingBudget=0)),
    ("gemini", "gemini-2.5-pro", "low", gemini(thinkingBudget=1_024)),
    ("gemini", "gemini-2.5-flash-lite", "high", gemini(thinkingBudget=24_576)),
    ("gemini", "gemini-3.8-flash", "minimal", gemini(thinkingLevel="MINIMAL")),
    ("gemini", "gemini-flash-latest", "high", gemini(thinkingLevel="HIGH")),
    ("ollama", "qwen3", "none", {"think": False}),
    ("ollama", "gpt-oss", "medium", {"think": "medium"}),
    ("cohere", "command-a-plus-05-2026", "none", OFF),
    ("cohere", "command-a-plus-05-2026", "medium", budget(8_192, "token_budget")),
    (
        "bedrock-converse",
        "us.anthropic.claude-haiku-4-5-20251001-v1:0",
        "low",
        {FIELDS: budget(1_024), "inferenceConfig": {"maxTokens": 9_216}},
    ),
    (
        "bedrock-converse",
        "global.anthropic.claude-opus-4-8",
        "high",
        {FIELDS: effort("high"), "inferenceConfig": {"maxTokens": 32_768}},
    ),
    (
        "bedrock-converse",
        "us.amazon.nova-2-lite-v1:0",
        "low",
        {FIELDS: {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low"}}},
    ),
    (
        "bedrock-converse",
        "us.amazon.nova-2-lite-v1:0",
        "none",
        {FIELDS: {"reasoningConfig": {"type": "disabled"}}},
    ),
    ("bedrock-converse", "openai.gpt-oss-120b-1:0", "high", {FIELDS: {"reasoning_effort": "high"}}),
]


@each_row(("wire", "model", "level", "members"), GOLDEN)
def test_exact_bodies(wire: str, model: str, level: Effort, members: dict[str, Any]) -> None:
    assert body_of(wire, model, reasoning=level) == body_of(wire, model) | members


@pytest.mark.parametrize("wire", WIRES)
def test_they_are_valid_by_the_types_of_the_sdk(wire: str) -> None:
    judge = judge_of(wire)
    for _, model, level, _ in (row for row in GOLDEN if row[0] == wire):
        request = ChatRequest(ASKED, settings=Settings(reasoning=level, max_tokens=100))
        judge(encode(wire, request, model=model).body)


# The limit on tokens leaves room for reasoning that counts towards it and is told a number.
LIMITS: list[tuple[str, str, Any, int]] = [
    ("openai-chat", "gpt-5", ("max_tokens",), 100),
    ("openai-responses", "gpt-5", ("max_output_tokens",), 100),
    ("anthropic", "claude-haiku-4-5", ("max_tokens",), 8_292),
    ("anthropic", "claude-opus-5", ("max_tokens",), 8_292),
    ("gemini", "gemini-2.5-flash", ("generationConfig", "maxOutputTokens"), 8_292),
    ("gemini", "gemini-3.8-flash", ("generationConfig", "maxOutputTokens"), 100),
    ("cohere", "command-a-plus-05-2026", ("max_tokens",), 8_292),
    ("ollama", "qwen3", ("options", "num_predict"), 100),
    ("bedrock-converse", "anthropic.claude-opus-5", ("inferenceConfig", "maxTokens"), 8_292),
    ("bedrock-converse", "openai.gpt-oss-20b-1:0", ("inferenceConfig", "maxTokens"), 100),
]


@each_row(("wire", "model", "path", "most"), LIMITS)
def test_room_for_it(wire: str, model: str, path: tuple[str, ...], most: int) -> None:
    found: Any = body_of(wire, model, reasoning="medium", max_tokens=100)
    for step in path:
        found = found[step]
    assert found == most


REFUSED: list[tuple[str, str, Effort, str]] = [
    (
        "anthropic",
        "claude-opus-5",
        "minimal",
        "claude-opus-5 supports 'none', 'low', 'medium', 'high'",
    ),
    ("anthropic", "claude-opus-5-5", "none", "claude-opus-5-5 supports 'low', 'medium', 'high'"),
    ("anthropic", "claude-fable-5", "none", "claude-fable-5 supports 'low', 'medium', 'high'"),
    ("gemini", "gemini-2.5-pro", "none", "supports 'minimal', 'low', 'medium', 'high'"),
    ("gemini", "gemini-3.1-pro-preview", "none", "supports 'minimal', 'low', 'medium', 'high'"),
    ("ollama", "qwen3", "minimal", "Ollama supports 'none', 'low', 'medium', 'high'"),
    ("bedrock-converse", "us.amazon.nova-2-lite-v1:0", "minimal", "supports 'none', 'low'"),
    ("bedrock-converse", "openai.gpt-oss-20b-1:0", "none", "supports 'low', 'medium', 'high'"),
    ("bedrock-converse", "arn:aws:bedrock:x", "low", f"extra={{'{FIELDS}': {{…}}}}"),
]


@each_row(("wire", "model", "level", "words"), REFUSED)
def test_what_a_model_does_not_have(wire: str, model: str, level: Effort, words: str) -> None:
    with pytest.raises(RequestError) as raised:
        body_of(wire, model, reasoning=level)
    assert str(raised.value).startswith(f"reasoning='{level}': ")
    assert words in str(raised.value)


def test_a_wire_without_a_form_for_it() -> None:
    wire = msgspec.structs.replace(OPENAI_CHAT, reasoning=None)
    request = ChatRequest(ASKED, settings=Settings(reasoning="low"))
    with pytest.raises(RequestError, match="reasoning='low': openai-chat does not support it"):
        encode(wire, request, model="m")


def test_a_level_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="reasoning must be one of 'none', 'minimal', 'low'"):
        Settings(reasoning="lots")  # type: ignore[arg-type]


# What is extra may add to the same object.
ADDED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "openai-responses",
        "gpt-5",
        {"reasoning": {"summary": "auto"}},
        {"reasoning": {"summary": "auto", "effort": "low"}},
    ),
    (
        "gemini",
        "gemini-3.8-flash",
        {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
        gemini(includeThoughts=True, thinkingLevel="LOW"),
    ),
    (
        "anthropic",
        "claude-opus-5",
        {"thinking": {"display": "summarized"}},
        {"thinking": {"display": "summarized", "type": "adaptive"}},
    ),
    (
        "bedrock-converse",
        "openai.gpt-oss-20b-1:0",
        {FIELDS: {"seed": 1}},
        {FIELDS: {"seed": 1, "reasoning_effort": "low"}},
    ),
]


@each_row(("wire", "model", "extra", "members"), ADDED)
def test_what_is_extra_adds_to_it(
    wire: str, model: str, extra: dict[str, Any], members: dict[str, Any]
) -> None:
    before = json.dumps(extra)
    assert body_of(wire, model, reasoning="low", extra=extra).items() >= members.items()
    assert json.dumps(extra) == before


SAID_TWICE: list[tuple[str, str, dict[str, Any], str]] = [
    ("openai-chat", "gpt-5", {"reasoning_effort": "high"}, "reasoning_effort"),
    ("openai-responses", "gpt-5", {"reasoning": {"effort": "high"}}, "effort"),
    ("anthropic", "claude-opus-5", OFF, "type"),
    ("gemini", "gemini-3.8-flash", gemini(thinkingLevel="HIGH"), "thinkingLevel"),
    ("ollama", "qwen3", {"think": True}, "think"),
    ("cohere", "command-a-plus-05-2026", {"thinking": "no object"}, "thinking"),
    (
        "bedrock-converse",
        "openai.gpt-oss-20b-1:0",
        {FIELDS: {"reasoning_effort": "high"}},
        "effort",
    ),
]


@each_row(("wire", "model", "extra", "member"), SAID_TWICE)
def test_neither_is_dropped_for_the_other(
    wire: str, model: str, extra: dict[str, Any], member: str
) -> None:
    with pytest.raises(RequestError, match=f"both say what '\\w*{member}' is: leave out one"):
        body_of(wire, model, reasoning="low", extra=extra)


def test_a_typed_answer_goes_with_it() -> None:
    output = OutputFormat(
        "answer", '{"type":"object","properties":{},"additionalProperties":false}'
    )
    request = ChatRequest(ASKED, settings=Settings(reasoning="low"), output=output)
    body = json.loads(encode("anthropic", request, model="claude-opus-5").body)
    assert body["output_config"].keys() == {"effort", "format"}


def never(_effort: Effort, _model: str) -> Reasoning:
    raise AssertionError("nobody said anything about reasoning")


INTEGERS = st.integers(-(2**63), 2**64 - 1)  # what JSON that others can read has


def test_an_integer_that_no_request_can_carry_is_an_error() -> None:
    request = ChatRequest(ASKED, settings=Settings(extra={"seed": 2**64}))
    for wire in WIRES:
        with pytest.raises(RequestError, match="cannot be sent as JSON: Integer exceeds 64-bit"):
            encode(wire, request, model="m")


@given(
    wire=st.sampled_from(sorted(WIRES)),
    temperature=st.none() | st.floats(0, 1),
    most=st.none() | st.integers(1, 100_000),
    extra=st.dictionaries(st.sampled_from(["seed", "top_k", "user"]), INTEGERS),
    stream=st.booleans(),
)
def test_what_is_not_set_changes_no_byte(
    wire: str,
    temperature: float | None,
    most: int | None,
    extra: dict[str, int],
    *,
    stream: bool,
) -> None:
    settings = Settings(temperature, most, extra)
    request = ChatRequest(ASKED, settings=settings)
    wires = [
        msgspec.structs.replace(WIRES[wire], reasoning=reasoning) for reasoning in (None, never)
    ]
    bare, unasked = (encode(each, request, model="m", stream=stream) for each in wires)
    assert bare == unasked
    body = json.loads(bare.body)
    known = json.loads(encode(WIRES[wire], ChatRequest(ASKED), model="m", stream=stream).body)
    limits = {"max_tokens", "max_output_tokens", "options", "generationConfig", "inferenceConfig"}
    assert body.keys() - known.keys() <= {*extra, "temperature", *limits}


@given(
    one=st.builds(Settings, st.none() | st.just(0), st.none() | st.just(5), st.just({"a": 1})),
    other=st.builds(
        Settings,
        st.none() | st.just(1),
        st.none() | st.just(9),
        st.just({"a": 2, "b": 3}),
        reasoning=st.sampled_from([None, *get_args(Effort)]),
    ),
)
def test_settings_over_others(one: Settings, other: Settings) -> None:
    made = one.over(other)
    for name in ("temperature", "max_tokens", "reasoning"):
        own = getattr(one, name)
        assert getattr(made, name) == (getattr(other, name) if own is None else own)
    assert made.extra == {"a": 1, "b": 3}
    assert Settings().over(other) == other
