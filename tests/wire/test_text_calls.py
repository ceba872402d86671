"""Calls in a text, syntax by syntax: what becomes a call, what stays text, and what was cut."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from wire.text_calls_cases import CASES, CUT, PARIS, TEXTS, Case, hermes
from wire.text_calls_helpers import OFFER, calls_in, chat_body, offer_of, read

from toolcrib.errors import RequestError
from toolcrib.values.message import Reply
from toolcrib.values.offer import Offer
from toolcrib.wire import OPENAI_CHAT, SYNTAXES, TextSyntax, decode, decoder
from toolcrib.wire.text_calls import Block, Cursor


@pytest.mark.parametrize(
    ("syntax", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_calls(syntax: str, case: Case) -> None:
    text, calls, rest = case
    reply = read(syntax, text)
    assert (calls_in(reply), reply.text, reply.finish) == (calls, rest, "tool_calls")
    assert [call.id for call in reply.tool_calls] == [f"call_{n}" for n in range(len(calls))]
    for call in reply.tool_calls:
        assert call.complete
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    ("syntax", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts]
)
def test_what_is_no_call_stays_text(syntax: str, text: str) -> None:
    assert read(syntax, text) == decode(OPENAI_CHAT, chat_body(text), offer=OFFER)


@pytest.mark.parametrize("text", [case[0] for cases in CASES.values() for case in cases])
def test_a_text_is_text_where_nobody_asked_for_calls(text: str) -> None:
    reply = decode(OPENAI_CHAT, chat_body(text), offer=OFFER)
    assert (reply.text, reply.finish, reply.tool_calls) == (text, "stop", ())


@pytest.mark.parametrize(
    ("syntax", "text"), [(name, case[0]) for name, cases in CASES.items() for case in cases]
)
def test_only_what_is_on_offer_is_called(syntax: str, text: str) -> None:
    reply = read(syntax, text, offer=Offer())
    assert (reply.text, reply.finish, reply.tool_calls) == (text, "stop", ())


@pytest.mark.parametrize(
    ("syntax", "text", "arguments"),
    [(name, *case) for name, cases in CUT.items() for case in cases],
)
@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
def test_a_call_that_is_cut_never_runs(syntax: str, text: str, arguments: str, reason: str) -> None:
    reply = (
        read(syntax, f"Well.\n{text}", reason)
        if text[0] not in "{["
        else read(syntax, text, reason)
    )
    (call,) = reply.tool_calls
    assert (call.name, call.arguments, call.complete) == ("get_weather", arguments, False)
    assert reply.finish == ("length" if reason == "stop" else reason)
    assert reply.text in ("Well.", "")


@pytest.mark.parametrize(
    ("syntax", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_no_call_of_a_cut_reply_runs(syntax: str, case: Case) -> None:
    reply = read(syntax, case[0], "length")
    assert [call.name for call in reply.tool_calls] == [name for name, _ in case[1]]
    assert not any(call.complete for call in reply.tool_calls)
    assert reply.finish == "length"


def prefixes() -> list[tuple[str, str]]:
    return [(name, case[0]) for name, cases in CASES.items() for case in cases[:6]]


@pytest.mark.parametrize(("syntax", "text"), prefixes())
def test_the_beginning_of_a_text_runs_nothing_that_the_whole_does_not(
    syntax: str, text: str
) -> None:
    whole = [(call.name, call.arguments) for call in read(syntax, text).tool_calls]
    for end in range(len(text)):
        reply = read(syntax, text[:end])
        run = [(call.name, call.arguments) for call in reply.tool_calls if call.complete]
        assert run == whole[: len(run)], text[:end]
        assert (reply.finish == "tool_calls") is bool(run)


def test_one_call_that_is_cut_stops_those_before_it() -> None:
    reply = read("hermes", hermes("{}", "now") + hermes(PARIS)[:-3])
    assert [call.complete for call in reply.tool_calls] == [False, False]
    reply = read("hermes", hermes("{}", "now") + '\n<tool_call>\n{"na')
    assert [call.complete for call in reply.tool_calls] == [False]
    assert (reply.finish, reply.text) == ("length", '<tool_call>\n{"na')


def test_calls_of_the_wires_own_kind_win() -> None:
    function = {"name": "now", "arguments": "{}"}
    native = [{"id": "1", "type": "function", "function": function}]
    body = chat_body(hermes(PARIS), "tool_calls", tool_calls=native)
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="hermes")
    reply = decode(wire, body, offer=OFFER)
    assert (calls_in(reply), reply.text) == ([("now", "{}")], hermes(PARIS))


def test_the_text_of_a_refusal_is_text() -> None:
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="hermes")
    reply = decode(wire, chat_body("", refusal=hermes(PARIS)), offer=OFFER)
    assert (reply.finish, reply.text, reply.tool_calls) == ("refusal", hermes(PARIS), ())


def test_ids_and_names() -> None:
    offer = Offer.of(offer_of("my.tool").tools.values(), own_names={"my_tool": "my.tool"})
    text = "[TOOL_CALLS]my_tool[CALL_ID]abcDEF123[ARGS]{}[TOOL_CALLS]my_tool{}"
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="mistral")
    reply = decode(wire, chat_body(text), offer=offer, ids="r1_")
    assert [(c.id, c.provider_id, c.name) for c in reply.tool_calls] == [
        ("r1_0", "abcDEF123", "my.tool"),
        ("r1_1", "", "my.tool"),
    ]
    listed = '[TOOL_CALLS][{"name": "my_tool", "arguments": {}, "id": "VvvODy9mT"}]'
    (call,) = decode(wire, chat_body(listed), offer=offer).tool_calls
    assert call.provider_id == "VvvODy9mT"


def test_a_syntax_that_nobody_knows() -> None:
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="klingon")
    with pytest.raises(
        RequestError, match=r"klingon.*deepseek, gemma, hermes, llama, mistral, qwen"
    ):
        decoder(wire)


def test_the_syntaxes_have_their_names() -> None:
    assert {name: syntax.name for name, syntax in SYNTAXES.items()} == {n: n for n in SYNTAXES}
    assert repr(SYNTAXES["qwen"]) == "TextSyntax('qwen')"


def kimi(cursor: Cursor, block: Block):  # type: ignore[no-untyped-def]
    """Kimi K2: `functions.name:0`, and JSON."""
    yield from cursor.expect("functions.")
    name = yield from cursor.name()
    call = block.call(name.rpartition(":")[0])
    call.provider_id = f"functions.{name}"
    yield from cursor.expect("<|tool_call_argument_begin|>")
    yield from cursor.value(call.pieces.append)
    yield from cursor.expect("<|tool_call_end|>")


KIMI = TextSyntax(
    name="kimi",
    marks={"<|tool_call_begin|>": kimi},
    endings=("<|tool_calls_section_end|>",),
)


def test_a_syntax_of_ones_own() -> None:
    call = f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{PARIS}"
    reply: Reply = read(KIMI, f"So.{call}<|tool_call_end|><|tool_calls_section_end|>")
    assert (calls_in(reply), reply.text) == ([("get_weather", PARIS)], "So.")
    assert reply.tool_calls[0].provider_id == "functions.get_weather:0"
    assert not read(KIMI, call).tool_calls[0].complete


def test_a_fence_can_be_the_mark_of_a_syntax() -> None:
    fenced = TextSyntax(name="fenced", marks={"```": SYNTAXES["gemma"].marks["```tool_code"]})
    reply = read(fenced, "So:\n```\nnow()\n```")
    assert (calls_in(reply), reply.text) == ([("now", "{}")], "So:")
    assert read(fenced, "`x ``` now()```").tool_calls == ()


@pytest.mark.parametrize(
    "part",
    [
        {"marks": {"": kimi}},
        {"endings": ("",)},
        {"thinking": {"": "</t>"}},
        {"thinking": {"<t>": ""}},
        {"marks": {5: kimi}},
    ],
)
def test_a_mark_is_a_text_that_is_not_empty(part: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"'odd'.*is no text, or an empty one"):
        TextSyntax(**{"name": "odd", "marks": {"<a>": kimi}, **part})


def test_thoughts_are_taken_back_as_often_as_they_end() -> None:
    text = f"a {hermes(PARIS)} \n</think> b {hermes(PARIS)}{hermes(PARIS)}</think>"
    assert read("hermes", text).text == text
    reply = read("hermes", f"{text}c{hermes('{}', 'now')}")
    assert (calls_in(reply), reply.text) == ([("now", "{}")], f"{text}c")


HALF = r'{"city": "\ud83c"}'


@pytest.mark.parametrize(
    ("syntax", "text", "calls"),
    [
        ("hermes", hermes(HALF), [("get_weather", HALF)]),
        ("hermes", hermes(HALF.replace('"', "'")), [("get_weather", HALF.replace('"', "'"))]),
        ("llama", r"[get_weather(city='\ud83c')]", []),
    ],
)
def test_half_a_surrogate_pair_is_never_mended(
    syntax: str, text: str, calls: list[tuple[str, str]]
) -> None:
    """Such arguments are refused when they are read, as those of the wire's own calls are."""
    assert calls_in(read(syntax, text)) == calls
