"""Calls in a text, syntax by syntax: what becomes a call, what stays text, and what was cut."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled
from wire.text_calls_cases import CASES, CUT, PARIS, TEXTS, Case, hermes
from wire.text_calls_helpers import OFFER, calls_in, chat_body, offer_of, read

from toolcrib.errors import RequestError
from toolcrib.values.message import Offer, Reply
from toolcrib.wire import OPENAI_CHAT, SYNTAXES, TextSyntax, decode, decoder
from toolcrib.wire.text_calls import Cursor, FoundCalls
from toolcrib.wire.text_decoder import Scanner


@each_row(("syntax", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_calls(syntax: str, case: Case) -> None:
    text, calls, rest = case
    reply = read(syntax, text)
    assert (calls_in(reply), reply.text, reply.finish) == (calls, rest, "tool_calls")
    assert [call.id for call in reply.tool_calls] == [f"call_{n}" for n in range(len(calls))]
    for call in reply.tool_calls:
        assert call.complete
        assert isinstance(json.loads(call.arguments), dict)


@each_row(("syntax", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts])
def test_what_is_no_call_stays_text(syntax: str, text: str) -> None:
    assert read(syntax, text) == decode(OPENAI_CHAT, chat_body(text), offer=OFFER)


@each_row("text", [case[0] for cases in CASES.values() for case in cases])
def test_a_text_is_text_where_nobody_asked_for_calls(text: str) -> None:
    reply = decode(OPENAI_CHAT, chat_body(text), offer=OFFER)
    assert (reply.text, reply.finish, reply.tool_calls) == (text, "stop", ())


@each_row(("syntax", "text"), [(name, case[0]) for name, cases in CASES.items() for case in cases])
def test_only_what_is_on_offer_is_called(syntax: str, text: str) -> None:
    reply = read(syntax, text, offer=Offer())
    assert (reply.text, reply.finish, reply.tool_calls) == (text, "stop", ())


@each_row(
    ("syntax", "text", "arguments"),
    [(name, *case) for name, cases in CUT.items() for case in cases],
)
@each_row("reason", ["stop", "length", "content_filter"])
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


@each_row(("syntax", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_no_call_of_a_cut_reply_runs(syntax: str, case: Case) -> None:
    reply = read(syntax, case[0], "length")
    assert [call.name for call in reply.tool_calls] == [name for name, _ in case[1]]
    assert not any(call.complete for call in reply.tool_calls)
    assert reply.finish == "length"


def prefixes() -> list[tuple[str, str]]:
    return [(name, case[0]) for name, cases in CASES.items() for case in cases[:6]]


@each_row(("syntax", "text"), prefixes())
def test_the_beginning_of_a_text_runs_nothing_that_the_whole_does_not(
    syntax: str, text: str
) -> None:
    whole = [(call.name, call.arguments) for call in read(syntax, text).tool_calls]
    for end in sampled(range(len(text))):
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


NATIVE = [
    (name, text)
    for name, cases in CASES.items()
    for text, calls, rest in cases
    if not rest and text.startswith(tuple(SYNTAXES[name].marks)) and "<|python_tag|>{" not in text
]
"""Texts that are nothing but calls at the marks of their syntax."""

SHOWN: dict[str, str] = {
    "double quotes": 'Never write "{}" here.',
    "double quotes over lines": 'You write "\n{}\n" for that.',
    "a longer quotation": 'He said "first\n{}\nthen more" to me.',
    "double quotes after a stray one": 'He said "hi.\nNever write "{}" here.',
    "single quotes": "Never write '{}' here.",
    "curly quotes": "Never write “{}” here.",
    "German quotes": "Schreib „hier {} bitte“ nie.",
    "angle quotes": "N'écris jamais « {} » ici.",
    "corner quotes": "「{}」 is how.",
    "an open quote": 'Never write "{}',
    "inline code": "Use `{}` for it.",
    "inline code of two": "Use ``{}`` for it.",
    "inline code over lines": "Use `a\n{}\nb` for it.",
    "inline code of three": "Use ```{}``` for it.",
    "a fence": "Like so:\n```\n{}\n```\nUnderstood?",
    "a fence of another language": "Like so:\n\n```text\n{}\n```\n",
    "a fence first": "```\n{}\n```\nThat is how.",
    "a fence in a line": "Like so: ```text\nx\n\n{}\n\n``` Understood?",
    "a fence that holds one": "So:\n````\n```\n{}\n```\n````\n",
    "a fence that says fences": "So:\n```\nprint('```')\n{}\n```\n",
    "a fence without an end": "So:\n```\n{}\n",
    "a fence in a list": "- So:\n  ```\n  {}\n  ```\n",
    "a fence of tildes": "So:\n~~~\n{}\n~~~\nOK?",
    "a fence of tildes with a word": "So:\n  ~~~~ xml\n~~~\n{}\n~~~~\nOK?",
    "tildes first": "~~~\n{}\n~~~\nOK?",
    "tildes in a list": "1. ~~~\n   {}\n   ~~~\n",
    "a block quote": "You said:\n> {}\nOK?",
    "a block quote in a list": "- You said:\n- > {}\n",
    "a block quote twice": ">> {}",
    "indented code": "You write:\n\n    {}\n\nfor that.",
    "indented by a tab": "You write:\n\t{}\n",
    "indented code first": "    {}\nis how.",
    "a comment": "It is <!-- {} --> so.",
    "a comment over lines": "<!--\n{}\n-->\nOK.",
    "a comment without an end": "<!-- {}",
    "code in HTML": "Use <code>{}</code> for it.",
    "preformatted text": "Use <pre class='x'>\n{}\n</pre> for it.",
    "preformatted text in capitals": "Use <PRE>\n{}\n</PRE> for it.",
    "code in capitals": "Use <CODE>{}</CODE> for it.",
    "a quotation with a capital": "<Blockquote>\n{}\n</Blockquote>",
    "a quotation in HTML": "<blockquote>\n{}\n</blockquote>",
    **{
        f"an element of HTML, {name}": f"Use <{name}>{{}}</{name}> for it."
        for name in (
            "samp",
            "kbd",
            "xmp",
            "TextArea",
            "Listing",
            "PLAINTEXT",
            "tt",
            "script",
            "STYLE",
            "q",
            "option",
        )
    },
    "an element in its like": "<blockquote>a <BlockQuote>b</BlockQuote>\n{}\n</blockquote>",
    "an element in its like twice": "<pre><pre>a</pre><pre b>c</pre><prex>{}</pre>",
    "data in XML": "You send <![CDATA[{}]]> so.",
    **{
        f"quotation marks, {marks}": f"Never write {marks[0]}then {{}}{marks[1]} here."
        for marks in (
            "‛’",
            "‟”",
            "⹂‟",
            "〝〞",
            "〝〟",
            "﹁﹂",
            "﹃﹄",
            "＂＂",
            "＇＇",
            "｢｣",
            "❝❞",
            "❛❜",
        )
    },
    "an element with attributes": "Use <textarea rows=3>\n{}\n</textarea> for it.",
    "an element without an end": "Use <plaintext>\n{}",
    "a thought": "<think>I could {}</think>No.",
    "a thought of gpt-oss": "<|channel|>analysis<|message|>I could {}<|end|><|start|>assistant",
    "a thought of gpt-oss without an end": "<|channel|>analysis<|message|>I could {}<|end|>",
    "a line of comment": "So:\n# {}\nOK.",
    "a line of comment first": "# {}\nOK.",
    "a line of comment alone": "#{}",
    "a line that is a heading": "So:\n## How: {}",
    "a line that is a shebang": "#!/bin/x {}\nOK.",
    "a line of comment in C": "So:\n  // {}\nOK.",
    "a line of comment in C first": "//{}",
    "a line of comment with words": "So:\n// Never {} here.",
    "a line of comment in a list": "- a\n- // Never {} here.",
    "a line of comment in a long list": f"{'- ' * 33}# x {{}}",
    "a line of comment after blanks": f"{'- ' * 32} # x {{}}",
    "a line of comment after other blanks": "So:\n\u3000\xa0# x {}",
    "a line of comment after a thought": "# <think>a</think>{}",
    "a line of comment that a thought ends": "# a</think>{}",
    "a comment in C": "Never call /* {} */ here.",
    "a comment in C after words": "Never call x;/*{}*/x; here.",
    "a comment in C over lines": "So:\n/*\n * Never\n\n{}\n\n */\nOK.",
    "a comment in C first": "/*{}*/",
    "a comment in C with stars": "So:\n/** {} **/",
    "a comment in C without an end": "So:\n /* {}",
    "a comment in C after a path": "I see src/**/*.py. /* **/a {} */ So.",
    "a comment in C with a path": "I see x: /* src/**/*.py {} */ So.",
    "a comment in C over a fence": "So: /*\n```\na */\n```\n{}\n*/",
    "a comment in C after inline code": "So: /* `a` {} */",
    "a comment in C after a thought": "So /* <think>a</think> {} */",
    "a comment in C that a thought ends": "/* a</think> {} */ So.",
}


THOUGHTS = [
    *(("<think>", "</think>"), ("<Think>", "</THINK>"), ("<thinking>", "</thinking>")),
    *(("<thought>", "</thought>"), ("<reasoning>", "</Reasoning>"), ("[THINK]", "[/THINK]")),
    *(("<antThinking>", "</antThinking>"), ("<seed:think>", "</seed:think>")),
    *(("◁think▷", "◁/think▷"), ("<|START_THINKING|>", "<|END_THINKING|>")),
    *(("<|begin_of_thought|>", "<|end_of_thought|>"), ("<|channel>thought\n", "<channel|>")),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]


@each_row(("thought", "native"), sampled(product(THOUGHTS, NATIVE)))
def test_what_a_model_thinks_is_no_call(thought: tuple[str, str], native: tuple[str, str]) -> None:
    (begins, ends), (syntax, text) = thought, native
    for said in (f"{begins}I could {text}{ends}No.", f"I could {text}{ends}No.", f"{begins}{text}"):
        assert (read(syntax, said).tool_calls, read(syntax, said).text) == ((), said)
    thinks = f"{begins}I could.{ends}"
    reply = read(syntax, f"{thinks}\n{text}")
    assert reply.text == thinks
    asked = [
        [(c.name, c.arguments) for c in each.tool_calls] for each in (reply, read(syntax, text))
    ]
    assert asked[0] == asked[1] != []


def shown_as(shown: str, text: str) -> str:
    """The text, shown so; what quotes a line stands before each of them, or else it is one line."""
    form = SHOWN[shown]
    line = next(line for line in form.split("\n") if "{}" in line)
    lead = line[: line.index("{}")]
    if not lead.strip(" \t->#/"):
        return form.format(text.replace("\n", "\n" + lead))
    return form.format(text.replace("\n", " ") if " line " in shown else text)


@each_row(("shown", "native"), sampled(product(SHOWN, NATIVE)))
def test_a_call_that_is_shown_is_text(shown: str, native: tuple[str, str]) -> None:
    syntax, text = native
    said = shown_as(shown, text)
    for whole in (said, f"First.\n\n{said}", f"{said}\n\nSo."):
        assert read(syntax, whole) == decode(OPENAI_CHAT, chat_body(whole), offer=OFFER)


@each_row("end", ["\n", "\r\n", "\r"])
@each_row("shown", sampled(SHOWN, part=3))
def test_a_line_ends_with_lf_cr_or_both(shown: str, end: str) -> None:
    """As CommonMark has it, in any pieces: also between the two halves of an end."""
    said = shown_as(shown, hermes(PARIS).replace("\n", "")).replace("\n", end)
    for whole in (said, f"First.{2 * end}{said}", f"First.{end}{said}{2 * end}So."):
        for size in (1, 2, len(whole)):
            scanner = Scanner(SYNTAXES["hermes"], OFFER)
            told = [scanner.feed(whole[at : at + size]) for at in range(0, len(whole), size)]
            assert "".join(told) + scanner.end() == whole
            assert scanner.calls == []
    for before in ("So:", "It's so:", "# So:", f"> a{2 * end}So:", f"```{end}x{end}```", "/* a */"):
        scanner = Scanner(SYNTAXES["hermes"], OFFER)
        scanner.read(before + end + hermes(PARIS).replace("\n", end))
        assert [call.name for call in scanner.calls] == ["get_weather"]


@each_row("before", ["# ", "So:\n// ", "#!", "- # a "])
def test_a_call_over_lines_that_begins_in_a_comment_is_text(before: str) -> None:
    said = f"{before}{hermes(PARIS)}"
    assert "\n" in hermes(PARIS)
    assert (read("hermes", said).tool_calls, read("hermes", said).text) == ((), said)


@each_row("shown", SHOWN)
def test_two_calls_that_are_shown_are_text(shown: str) -> None:
    calls = hermes('{"city": "5\\" `x` \'"}').replace("\n", "") + hermes("{}", "now")
    said = SHOWN[shown].format(calls)
    assert read("hermes", said).tool_calls == ()


@each_row(("syntax", "text"), NATIVE)
def test_the_native_syntax_alone_is_a_call(syntax: str, text: str) -> None:
    calls = calls_in(read(syntax, text))
    assert calls
    for whole in (f"\n{text}\n", f"So:\n{text}", f"So:\n\n{text}\n\nOK.", f"    {text}"):
        assert calls_in(read(syntax, whole)) == calls
    if "```" not in text:
        for fence in ("```", "```xml", "~~~", "````"):
            closer = fence.removesuffix("xml")
            assert calls_in(read(syntax, f"{fence}\n{text}\n{closer}")) == calls
            assert read(syntax, f"{fence}\n{text}\n{closer}\nOK.").tool_calls == ()


MEANT = {
    "a heading above": "# How\n{}",
    "a comment above": "So:\n// I look.\n\n{}",
    "a comment that ended": "I use /* a */ so. {}",
    "a comment that ended before a line": "/* a\n# b\n*/\n{}",
    "a comment with stars that ended": "/** a **/ {}",
    "a path": "I look in src/*.\n{}",
    "a path in code": "I look in `src/**/*.py` and `**/x`: {}",
    "a path of all": "Accept: */*\n{}",
    "an address": "I read https://a.org/# b and //c: {}",
    "a slash": "/ {}",
    "a slash and tildes": "/~~~\n{}",
    "a fence that began in a comment": "# So: ```\nx\n``` {}",
    "a number": "It's #1: {}",
    "a path that was thought of": "/* src/*\n</think>\n{}",
    "a path before and after": "I look in src/*.\n{}\nThen in **/*.py",
}


@each_row(("meant", "native"), sampled(product(MEANT, NATIVE)))
def test_a_call_beside_a_comment_is_made(meant: str, native: tuple[str, str]) -> None:
    syntax, text = native
    assert calls_in(read(syntax, MEANT[meant].format(text))) == calls_in(read(syntax, text))


def test_a_call_after_a_thought_that_a_path_was_in_is_made() -> None:
    unopened = f'{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>'
    said = f"src/*\n</think>\n{unopened}"
    assert calls_in(read("hermes", said)) == [("get_weather", PARIS)]
    for shown in (f"{said} */", f"/* {said} */", f"// <think>a</think>{unopened}"):
        assert read("hermes", shown).tool_calls == ()


PROSE = [
    *("I look", " at ", "it's ", "\n", "\n\n", '"', "'", "“", "”", "`", "``", "```", "~~~", "> "),
    *("    ", "<!--", "-->", "- ", "1. ", "\t", ". ", "(", ")", ":", "«", "»", "<pre>", "</pre>"),
    *("# ", "// ", "/* ", " */", "/", "*", "src/**/*.py"),
]


@settings(max_examples=sample(300), deadline=None)
@given(
    native=st.sampled_from(NATIVE),
    shown=st.sampled_from(sorted(set(SHOWN) - {"a thought"})),
    before=st.lists(
        st.sampled_from(
            [
                "I look. ",
                "It's 5\" long.",
                "'so'",
                '"so"',
                "`x`",
                "# So",
                "src/*",
                "`**/x`",
                "/* a */",
            ]
        ),
        max_size=4,
    ),
    after=st.lists(st.sampled_from(PROSE), max_size=6),
)
def test_a_call_that_is_shown_in_any_prose_never_runs(
    native: tuple[str, str], shown: str, before: list[str], after: list[str]
) -> None:
    syntax, text = native
    said = "\n\n".join([*before, shown_as(shown, text)]) + "".join(after)
    assert read(syntax, said).tool_calls == ()


COMMENTS = [
    "-- ",
    "; ",
    "% ",
    "- ",
    "* ",
    "1. ",
    "| a | ",
    "** ",
]
AROUND = [
    ("", ""),
    ("{# ", " #}"),
    ("<sample>", "</sample>"),
    ("<code-block>", "</code-block>"),
    ("[code]", "[/code]"),
    ("\\\\verb|", "|"),
    ("\u3008", "\u3009"),
    ("\u300a", "\u300b"),
    ("**", "**"),
    ('"First.\n\n', '\n\nLast."'),
]
TRUST = [
    (hermes(PARIS), True),
    (f"I look.\n{hermes(PARIS)}", True),
    (f"I look. {hermes(PARIS)}\n<|im_end|>", True),
    (f"```\n{hermes(PARIS)}\n```", False),
    *((f"{before}{hermes(PARIS)}", False) for before in COMMENTS),
    *((f"So: {before}{hermes(PARIS)}{after} and so on.", False) for before, after in AROUND),
    (f'{{"name": "get_weather", "arguments": {PARIS}}}', False),
    (f'{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>', False),
]


@each_row(("text", "native"), TRUST)
@each_row("trusted", [False, True])
def test_a_call_is_trusted_at_a_mark_of_the_syntax_only(
    text: str, native: bool, trusted: bool
) -> None:
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="hermes", text_calls_trusted=trusted)
    (call,) = decode(wire, chat_body(text), offer=OFFER).tool_calls
    assert call.notes == ("written_in_text", *("text_call_trusted",) * (native and trusted))


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ('<tool_call>{"name": "now"}</tool_call>', ("empty_arguments",)),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', ("empty_arguments",)),
        ('<tool_call>{"name": "now", "arguments": ""}</tool_call>', None),
        ('<tool_call>{"name": "now", "arguments": {}}</tool_call>', ()),
    ],
)
def test_what_was_doubtful_about_the_arguments_is_noted(
    text: str, notes: tuple[str, ...] | None
) -> None:
    (call,) = read("hermes", text).tool_calls
    if notes is None:
        assert call.arguments == '""'
    else:
        assert (call.arguments, call.notes) == ("{}", ("written_in_text", *notes))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"city":  "Paris"}', "I look."),
        ('{"city": "Rome"}', None),
        ('{"city": "Paris", "x": 1}', None),
    ],
)
def test_a_copy_of_a_structured_call_is_dropped(written: str, text: str | None) -> None:
    function = {"name": "get_weather", "arguments": PARIS}
    native = [{"id": "1", "type": "function", "function": function}]
    said = f"I look.\n{hermes(written)}"
    body = chat_body(said, "tool_calls", tool_calls=native)
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="hermes")
    reply = decode(wire, body, offer=OFFER)
    assert (calls_in(reply), reply.text) == ([("get_weather", PARIS)], text or said)


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


def kimi(cursor: Cursor, block: FoundCalls):  # type: ignore[no-untyped-def]
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


@each_row(
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
    with pytest.raises(RequestError, match=r"'odd'.*is not a string, or is empty"):
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


# Two forms of a call in one block, between which nobody can choose.

DSML = (
    '<｜DSML｜invoke name="now"><｜DSML｜parameter name="a" string="false">{}'
    "</｜DSML｜parameter></｜DSML｜invoke>"
)
FORMS_OF: dict[str, list[tuple[str, str, str]]] = {
    "hermes": [("<tool_call>", '{{"name": "now", "arguments": {{"a": {}}}}}', "</tool_call>")],
    "qwen": [
        ("<tool_call>", '{{"name": "now", "arguments": {{"a": {}}}}}', "</tool_call>"),
        ("<tools>", '{{"name": "now", "arguments": {{"a": {}}}}}', "</tools>"),
        ("<tool_call>", "<function=now><parameter=a>{}</parameter></function>", "</tool_call>"),
        ("", "<function=now><parameter=a>{}</parameter></function>", "</tool_call>"),
        ("<function=now>", '{{"a": {}}}', "</function>"),
        ("<function=now>", "<parameter=a>{}</parameter>", "</function>"),
        ("[Calling tool:", 'now({{"a": {}}}', ")]"),
    ],
    "llama": [
        ("<function=now>", '{{"a": {}}}', "</function>"),
        ("<|python_tag|>", "now(a={})", ""),
    ],
    "gemma": [
        ("<start_function_call>", "call:now{{a:{}}}", "<end_function_call>"),
        ("<|tool_call>", "call:now{{a:{}}}", "<tool_call|>"),
    ],
    "deepseek": [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
            'now<｜tool▁sep｜>{{"a": {}}}',
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        ("<｜tool▁call▁begin｜>", 'now<｜tool▁sep｜>{{"a": {}}}', "<｜tool▁call▁end｜>"),
        (
            "<｜DSML｜tool_calls>",
            DSML,
            "</｜DSML｜tool_calls>",
        ),
    ],
}
TWO_FORMS = [
    (syntax, before, between, one, two)
    for syntax, forms in FORMS_OF.items()
    for one, two in product(forms, repeat=2)
    for before, between in product(["", "Well.\n"], ["", "\n", " or rather ", ", "])
]


@each_row(("syntax", "before", "between", "one", "two"), TWO_FORMS)
def test_of_two_forms_in_one_block_none_is_chosen(
    syntax: str, before: str, between: str, one: tuple[str, ...], two: tuple[str, ...]
) -> None:
    """Both are calls, as where a block may hold several, or the block is text."""
    opener, form, closer = one
    inner = two[0] + two[1].format(6) + two[2]
    text = f"{before}{opener}{form.format(5)}{between}{inner}{closer} and so on."
    whole = [call for call in read(syntax, text).tool_calls if call.complete]
    ran = {json.loads(call.arguments)["a"] for call in whole}
    assert ran & {5, 6} in (set(), {5, 6}), text  # a text that has both chooses neither
