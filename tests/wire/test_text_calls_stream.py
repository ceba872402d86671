"""Calls in a text that streams: the same reply in whatever pieces, and what is shown of it when."""

from __future__ import annotations

import random
from typing import SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled
from wire.recorded_helpers import without_payload
from wire.test_text_calls import MEANT, SHOWN, shown_as
from wire.text_calls_cases import CASES, CUT, PARIS, TEXTS, B, S, hermes
from wire.text_calls_helpers import OFFER, chat_stream, offer_of, with_syntax

from toolcrib.values.message import ArgumentsPart, Reply, TextPart
from toolcrib.wire import SYNTAXES, WIRES, decoder
from toolcrib.wire.text_calls import reading
from toolcrib.wire.text_calls.reading import Marks
from toolcrib.wire.text_decoder import Scanner

ALL = [
    (syntax, text)
    for syntax in CASES
    for text in (
        *(case[0] for case in CASES[syntax]),
        *TEXTS[syntax],
        *(case[0] for case in CUT[syntax]),
    )
]
ALL += [("hermes", shown_as(shown, hermes(PARIS))) for shown in SHOWN]
ALL += [("hermes", meant.format(hermes(PARIS))) for meant in MEANT.values()]
TAKEN_BACK = "</think>"


def told(syntax: str, pieces: list[str]) -> str:
    """What a scanner tells of a text in pieces."""
    scanner = Scanner(SYNTAXES[syntax], OFFER)
    return "".join([*map(scanner.feed, pieces), scanner.end()])


def streamed(syntax: str, data: bytes, sizes: list[int]) -> tuple[str, Reply]:
    reading = decoder(with_syntax(syntax), offer=OFFER)
    parts = []
    at = 0
    for size in [*sizes, len(data)]:
        parts += reading.feed(data[at : at + size])
        at += size
    return "".join(part.text for part in parts if isinstance(part, TextPart)), reading.finish()


@each_row(("syntax", "text"), sampled(ALL, part=3))
def test_pieces_make_no_difference(syntax: str, text: str) -> None:
    shown, whole = streamed(syntax, chat_stream([text]), [])
    data = chat_stream(list(text))
    for sizes in ([], [1] * len(data)):
        again, reply = streamed(syntax, data, sizes)
        assert without_payload(reply.message) == without_payload(whole.message)
        assert reply.finish == whole.finish
        if TAKEN_BACK not in text:
            assert again == shown
            assert whole.text.startswith(shown)


@each_row("syntax", CASES)
def test_what_is_told_is_what_the_whole_text_says(syntax: str) -> None:
    random_ = random.Random(syntax)  # noqa: S311
    pool = [text for name, text in ALL if name == syntax and TAKEN_BACK not in text]
    for _ in range(60):
        text = random_.choice([" ", "\n", " and "]).join(random_.choices(pool, k=3))
        scanner = Scanner(SYNTAXES[syntax], OFFER)
        said = scanner.read(text)
        cuts = sorted(random_.choices(range(len(text) + 1), k=random_.randrange(9)))
        ends = [*cuts, len(text)]
        pieces = [text[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
        assert told(syntax, pieces) == told(syntax, list(text)) == said


ATOMS = [
    *{mark for syntax in SYNTAXES.values() for mark in (*syntax.marks, *syntax.endings)},
    *{mark for syntax in SYNTAXES.values() for pair in syntax.thinking.items() for mark in pair},
    "</tool_call>", "</function>", "<parameter=a>", "</parameter>", "<end_function_call>", "[ARGS]",
    "call:now", "now", "get_weather", '{"name": "now", "arguments": {', "}}", "}", "{", "(", ")",
    "[", "]", '"', "'", "\\", ",", ":", "=", "```", "`", "json\n", "<escape>", "1", "a", " ", "\n",
    '"""', S, B, "<", "｜", "é", "🌦", "~~~", "“", "”", "it's ", "<!--", "-->", "\n> ", "\n    ",
    "\n\n", "- ", "\t", "1. ", "/", "*", "/* ", "*/", "**/", "#", "\n# ", "\n//", "\r", "\r\n", "\r# ",
    hermes(PARIS),
    "[TOOL_CALLS]now{}",
]  # fmt: skip


@settings(max_examples=sample(400), deadline=None)
@given(
    syntax=st.sampled_from(sorted(SYNTAXES)),
    atoms=st.lists(st.sampled_from(sorted(ATOMS)), max_size=14),
    data=st.data(),
)
def test_any_text_in_any_pieces(syntax: str, atoms: list[str], data: st.DataObject) -> None:
    text = "".join(atoms)
    whole = Scanner(SYNTAXES[syntax], OFFER)
    said = whole.read(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    scanner = Scanner(SYNTAXES[syntax], OFFER)
    ends = [*cuts, len(text)]
    shown = "".join(scanner.feed(text[a:b]) for a, b in zip([0, *cuts], ends, strict=True))
    shown += scanner.end()
    assert [(c.name, c.pieces) for c in scanner.calls if c.name] == [
        (c.name, c.pieces) for c in whole.calls
    ] or [(c.name, "".join(c.pieces)) for c in scanner.calls] == [
        (c.name, "".join(c.pieces)) for c in whole.calls
    ]
    assert scanner.cut == whole.cut
    if not whole.calls:
        assert said == text
    if not any(mark in text for mark in SYNTAXES[syntax].thinking.values()):
        assert shown == said


def test_text_is_shown_at_once_and_a_call_never() -> None:
    scanner = Scanner(SYNTAXES["hermes"], OFFER)
    pieces = ["I lo", "ok < up", " <to", "ols> \n", " <tool", "_call>", '{"name": "now"', "}</tool_",
              "call>", "\n", "Done", "."]  # fmt: skip
    shown = [scanner.feed(piece) for piece in pieces]
    assert shown == ["I lo", "ok < up", "", " <tools>", "", "", "", "", "", "", " \n \nDone", "."]
    assert [call.name for call in scanner.calls] == ["now"]


def test_what_turns_out_to_be_no_call_is_shown_then() -> None:
    scanner = Scanner(SYNTAXES["llama"], OFFER)
    shown = [scanner.feed(piece) for piece in ('{"na', 'me": "Al', 'ice"', ', "age": 5}')]
    assert shown == ["", "", '{"name": "Alice"', ', "age": 5}']
    scanner = Scanner(SYNTAXES["hermes"], OFFER)
    assert [scanner.feed(hermes(PARIS, "other")), scanner.feed("!")] == [
        hermes(PARIS, "other"),
        "!",
    ]


def test_arguments_of_the_wires_own_calls_are_shown() -> None:
    call = b'{"index":0,"id":"1","function":{"name":"now","arguments":"{}"}}'
    data = b'data: {"choices":[{"delta":{"content":"x <tool","tool_calls":[' + call + b"]}}]}\n\n"
    reading = decoder(with_syntax("hermes"), offer=OFFER)
    assert reading.feed(data) == [ArgumentsPart("call_0", "now", "{}"), TextPart("x")]
    assert reading.done is False
    reading.feed(b"data: [DONE]\n\n")
    assert reading.done is True
    assert reading.finish().text == "x <tool"


def bodies(text: str) -> dict[str, bytes]:
    """A whole reply with that text, on each wire."""
    said = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    chat = f'{{"choices": [{{"message": {{"content": {said}}}, "finish_reason": "stop"}}]}}'
    item = f'{{"type": "message", "content": [{{"type": "output_text", "text": {said}}}]}}'
    block = f'[{{"type": "text", "text": {said}}}]'
    output = f'{{"message": {{"role": "assistant", "content": [{{"text": {said}}}]}}}}'
    parts = f'{{"content": {{"parts": [{{"text": {said}}}]}}, "finishReason": "STOP"}}'
    return {
        "openai-chat": chat.encode(),
        "mistral": chat.encode(),
        "openai-responses": f'{{"status": "completed", "output": [{item}]}}'.encode(),
        "anthropic": f'{{"type": "message", "stop_reason": "end_turn", "content": {block}}}'.encode(),
        "gemini": f'{{"candidates": [{parts}]}}'.encode(),
        "ollama": f'{{"message": {{"content": {said}}}, "done": true}}\n'.encode(),
        "cohere": f'{{"finish_reason": "COMPLETE", "message": {{"content": {block}}}}}'.encode(),
        "bedrock-converse": f'{{"output": {output}, "stopReason": "end_turn"}}'.encode(),
    }


@each_row("wire", WIRES)
def test_every_wire_reads_them(wire: str) -> None:
    body = bodies(f"So.\n{hermes(PARIS)}")[wire]
    plain = decoder(wire, streaming=False, offer=OFFER)
    plain.feed(body)
    assert (plain.finish().finish, plain.finish().tool_calls) == ("stop", ())
    reading = decoder(with_syntax("hermes", WIRES[wire]), streaming=False, offer=OFFER)
    reading.feed(body)
    reply = reading.finish()
    (call,) = reply.tool_calls
    assert (reply.finish, reply.text) == ("tool_calls", "So.")
    assert (call.id, call.name, call.arguments, call.complete) == (
        "call_0", "get_weather", PARIS, True,
    )  # fmt: skip


HOSTILE = {
    "hermes": ["<tool_call>", '<tool_call>{"name":"now","arguments":', "<think>", "</think>", "`",
               "```", " ", "<", "~~~\n", "    ", "<!--", '"', " '", "`\n", " “", " \"`\n",
               f' "{hermes("{}", "now")}', f' "\n{hermes("{}", "now")}', f" '“„\n{hermes('{}', 'now')}",
               "/*", "a/* ", "*/", "\n#", "/", f"a/* {hermes('{}', 'now')}",
               f"a/*{hermes('{}', 'now')}*/", f"a/* </think>{hermes('{}', 'now')}", "\n```\n", "\n ",
               hermes("{}", "now"), "```` ``` ", '{"name":"now","arguments":{"a":'],
    "llama": ["[", "{", "<|python_tag|>[", "[now(a=", "<function=now>{", "[]", "<|python_tag|>"],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]now[ARGS]{", "[TOOL_CALLS]now{}",
                "a/*[TOOL_CALLS]now{}"],
    "qwen": ["<tool_call><function=now><parameter=a>", "</parameter>\n", "<parameter=a>", "<tools>"],
    "gemma": ["```tool_code\nnow(", '```tool_code\nnow(a="""', "<start_function_call>call:now{a:",
              "<escape>", "<|tool_call>call:now{a:["],
    "deepseek": [B, f"{B}now{S}{{}}", "<｜DSML｜tool_calls>", "</｜DSML｜parameter>", "<｜"],
}  # fmt: skip
OPEN = {
    "hermes": '<tool_call>{"name":"now","arguments":',
    "llama": "<|python_tag|>now(a=",
    "mistral": '[TOOL_CALLS]now[ARGS]{"a":',
    "qwen": "<tool_call><function=now><parameter=a>",
    "gemma": "<start_function_call>call:now{a:<escape>",
    "deepseek": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="now"><｜DSML｜parameter name="a" string="true">'
    ),
}


@each_row(
    ("syntax", "unit"),
    sampled([(name, unit) for name, units in HOSTILE.items() for unit in units], part=3),
)
@each_row("opened", [False, True])
@each_row("step", [0, 1, 64])
@pytest.mark.exhaustive
def test_the_work_is_linear_in_the_text(
    syntax: str, unit: str, opened: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    end, search = reading._end, Marks.search

    def counted_end(pattern: object, text: str, at: int) -> int:
        nonlocal looked_at
        found = end(pattern, text, at)  # type: ignore[arg-type]
        looked_at += found - at + 1
        return found

    def counted_search(self: Marks, text: str, at: int, *, ended: bool) -> tuple[int, str]:
        nonlocal looked_at
        found = search(self, text, at, ended=ended)
        looked_at += found[0] - at + 1 + (0 if ended else self._longest)
        return found

    class Counted(str):
        """A text that counts what is copied of it."""

        def __getitem__(self, key: SupportsIndex | slice) -> str:
            nonlocal looked_at
            copied = super().__getitem__(key)
            looked_at += len(copied)
            return copied

        def __radd__(self, before: str) -> str:
            return Counted(str(before) + str(self))

    monkeypatch.setattr(reading, "_end", counted_end)
    monkeypatch.setattr(Marks, "search", counted_search)
    text = (OPEN[syntax] if opened else "") + unit * (4000 // len(unit))
    scanner = Scanner(SYNTAXES[syntax], offer_of("now"))
    if step:
        for at in range(0, len(text), step):
            scanner.feed(text[at : at + step])
        scanner.end()
    else:
        scanner.read(Counted(text))
    assert 0 < looked_at < 100 * len(text)


def test_what_is_taken_back_is_copied_once() -> None:
    copied = 0

    class Counted(str):
        def __getitem__(self, key: SupportsIndex | slice) -> str:
            nonlocal copied
            part = super().__getitem__(key)
            copied += len(part)
            return part

        def __radd__(self, before: str) -> str:
            return Counted(str(before) + str(self))

    text = (hermes("{}", "now") + " </think>\n") * 500
    scanner = Scanner(SYNTAXES["hermes"], offer_of("now"))
    assert scanner.read(Counted(text)) == text
    assert copied >= len(text)
    assert copied < 10 * len(text)
