"""Texts with calls, by syntax: the text, its calls (name and arguments), and what else it says."""

from __future__ import annotations

PARIS = '{"city": "Paris"}'
W = "get_weather"
NESTED = r'{"city": "</tool_call> \" } ]; [ARGS] <\/x>", "where": {"a": [1, {"b": "{"}]}}'

B, S, E = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
BB, EE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def hermes(arguments: str, name: str = W) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def coder(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def v3(name: str, arguments: str) -> str:
    return f"{B}function{S}{name}\n```json\n{arguments}\n```{E}"


def dsml(inner: str, name: str = W, outer: str = "function_calls") -> str:
    call = f'<｜DSML｜invoke name="{name}">\n{inner}\n</｜DSML｜invoke>'
    return f"<｜DSML｜{outer}>\n{call}\n</｜DSML｜{outer}>"


def given(key: str, value: str, is_text: str = "true") -> str:
    return f'<｜DSML｜parameter name="{key}" string="{is_text}">{value}</｜DSML｜parameter>'


Case = tuple[str, list[tuple[str, str]], str]

HERMES: list[Case] = [
    (hermes(PARIS), [(W, PARIS)], ""),
    (hermes(NESTED), [(W, NESTED)], ""),
    (f"{hermes(PARIS)}\n{hermes('{}', 'now')}", [(W, PARIS), ("now", "{}")], ""),
    (f"I look.\n\n{hermes(PARIS)}\n", [(W, PARIS)], "I look."),
    (f"\n\n{hermes(PARIS)}", [(W, PARIS)], ""),
    (f"Before {hermes(PARIS)} after", [(W, PARIS)], "Before  after"),
    (f"{hermes(PARIS)}\nSo.", [(W, PARIS)], "So."),
    (f"The `x` and ` it is.\n{hermes(PARIS)}", [(W, PARIS)], "The `x` and ` it is."),
    (f"As `<think>` says: {hermes(PARIS)}", [(W, PARIS)], "As `<think>` says:"),
    (f"```\nx`\n```{hermes(PARIS)}", [(W, PARIS)], "```\nx`\n```"),
    (f"{hermes(PARIS)}<|im_end|>", [(W, PARIS)], ""),
    ('<tool_call>{"arguments":{"city":"Zürich 🌦"},"name":"get_weather"}</tool_call>',
     [(W, '{"city":"Zürich 🌦"}')], ""),
    ('<tool_call>{"name": "now"}</tool_call>', [("now", "{}")], ""),
    ('<tool_call>{"name": "now", "arguments": null}</tool_call>', [("now", "{}")], ""),
    ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>',
     [("now", '{"a": 1}')], ""),
    (("<tool_call>{'name': 'now', 'arguments': {'q': 'it\\'s \"x\"', 'deep': True, 'n': None}}"
     "</tool_call>"), [("now", '{"q": "it\'s \\"x\\"", "deep": true, "n": null}')], ""),
    (f"<think>I could {hermes(PARIS)}</think>{hermes('{}', 'now')}", [("now", "{}")],
     f"<think>I could {hermes(PARIS)}</think>"),
    (f"I could {hermes(PARIS)}</think>\n{hermes('{}', 'now')}", [("now", "{}")],
     f"I could {hermes(PARIS)}</think>"),
    (f'So.</think>{{"name":"now","arguments":{PARIS}}}</tool_call>', [("now", PARIS)],
     "So.</think>"),
    (f"<tool_call><tool_call>{hermes(PARIS)}", [(W, PARIS)], "<tool_call><tool_call>"),
    ('<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>' + hermes(PARIS),
     [(W, PARIS)], '<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>'),
    (f"````md\n```\nx\n```\n````\n{hermes(PARIS)}", [(W, PARIS)], "````md\n```\nx\n```\n````"),
    (f"```md\n```xml\nx\n```\n{hermes(PARIS)}", [(W, PARIS)], "```md\n```xml\nx\n```"),
    (f"> a\n{hermes(PARIS)}> b", [(W, PARIS)], "> a\n> b"),
    (f"\n-> {hermes(PARIS)}", [(W, PARIS)], "\n->"),
    (f"As ``a ` b`` and ``` x ```: {hermes(PARIS)}", [(W, PARIS)], "As ``a ` b`` and ``` x ```:"),
    (f"```xml\n{hermes(PARIS)}\n```\n", [(W, PARIS)], ""),
    (f"~~~~\n{hermes(PARIS)}\n~~~~<|im_end|>", [(W, PARIS)], ""),
    (f"    {hermes(PARIS)}", [(W, PARIS)], ""),
    (f'{{"name": "{W}", "arguments": {PARIS}}}', [(W, PARIS)], ""),
    (f'<think>x</think>```json\n{{"name": "{W}", "arguments": {PARIS}}}```', [(W, PARIS)],
     "<think>x</think>"),
    (f'The 27" one, it\'s "new" and the "so\n\n{hermes(PARIS)}', [(W, PARIS)],
     'The 27" one, it\'s "new" and the "so'),
    (f"The 'one' and don't {hermes(PARIS)}", [(W, PARIS)], "The 'one' and don't"),
    (f'It is "hot": {hermes(PARIS)}', [(W, PARIS)], 'It is "hot":'),
    (f"~~~\nx\n~~~\n{hermes(PARIS)}", [(W, PARIS)], "~~~\nx\n~~~"),
    (f"a ~~~ b\n{hermes(PARIS)}", [(W, PARIS)], "a ~~~ b"),
    (f"<!-- x -->{hermes(PARIS)}", [(W, PARIS)], "<!-- x -->"),
    (f"The `<!--` mark.\n{hermes(PARIS)}", [(W, PARIS)], "The `<!--` mark."),
    (f"- {hermes(PARIS)}", [(W, PARIS)], "-"),
]  # fmt: skip

LLAMA: list[Case] = [
    (f'{{"name": "{W}", "parameters": {PARIS}}}', [(W, PARIS)], ""),
    (f' {{"name": "{W}", "arguments": {PARIS}}}\n<|eot_id|>', [(W, PARIS)], ""),
    (f'<|python_tag|>{{"name": "{W}", "parameters": {PARIS}}}<|eom_id|>', [(W, PARIS)], ""),
    ('<|python_tag|>{"type": "function", "name": "now", "parameters": {}}', [("now", "{}")], ""),
    (f'{{"name": "{W}", "parameters": {PARIS}}}; {{"name": "now", "parameters": {{}}}}',
     [(W, PARIS), ("now", "{}")], ""),
    (f'<|python_tag|>{{"name": "{W}", "parameters": {NESTED}}};{{"name": "now"}}',
     [(W, NESTED), ("now", "{}")], ""),
    (f'[{{"name": "{W}", "parameters": {PARIS}}}]', [(W, PARIS)], ""),
    (f'```json\n{{"name": "{W}", "parameters": {PARIS}}}\n```', [(W, PARIS)], ""),
    ('[get_weather(city="x", days=3), now()]', [(W, '{"city": "x", "days": 3}'), ("now", "{}")],
     ""),
    ("""[search(q='it\\'s "so"', deep=True, none=None, l=[1, 2.5,], d={'a': -1e3})]<|eot|>""",
     [("search", ('{"q": "it\'s \\"so\\"", "deep": true, "none": null, "l": [1, 2.5], '
       '"d": {"a": -1e3}}'))], ""),
    ('[search(q="a\\tb\\u00e9\\x41\\101\\q ) ] é")]', [("search", '{"q": "a\\tbéAA\\\\q ) ] é"}')],
     ""),
    ('<|python_start|>[now()]<|python_end|><|eot|>', [("now", "{}")], ""),
    ('Hm. <|python_tag|>get_weather(city="Paris")', [(W, PARIS)], "Hm."),
    ('<|python_tag|>search.call(query="x")<|eom_id|>', [("search", '{"query": "x"}')], ""),
    (f"<function={W}>{PARIS}</function><|eot_id|>", [(W, PARIS)], ""),
    (f"Yes: <function={W}>{NESTED}</function>", [(W, NESTED)], "Yes:"),
]  # fmt: skip

MISTRAL: list[Case] = [
    (f'[TOOL_CALLS] [{{"name": "{W}", "arguments": {PARIS}}}]', [(W, PARIS)], ""),
    ((f'[TOOL_CALLS][{{"name": "{W}", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]'
     "</s>"), [(W, PARIS), ("now", "{}")], ""),
    (f"[TOOL_CALLS]{W}[ARGS]{PARIS}", [(W, PARIS)], ""),
    (f"[TOOL_CALLS]{W}[ARGS]{NESTED}[TOOL_CALLS]now[ARGS]{{}}", [(W, NESTED), ("now", "{}")], ""),
    (f"[TOOL_CALLS]{W}[CALL_ID]abcDEF123[ARGS]{PARIS}", [(W, PARIS)], ""),
    (f"[TOOL_CALLS]{W}{PARIS}", [(W, PARIS)], ""),
    (f"[TOOL_CALLS]{W}[ARGS]{PARIS}\n\nI look.", [(W, PARIS)], "I look."),
    (f"I look.[TOOL_CALLS]{W}[ARGS]{PARIS}</s>", [(W, PARIS)], "I look."),
    (f'[{{"name": "{W}", "arguments": {PARIS}}}]', [(W, PARIS)], ""),
    (f"[THINK][TOOL_CALLS]{W}{PARIS}[/THINK][TOOL_CALLS]now{{}}", [("now", "{}")],
     f"[THINK][TOOL_CALLS]{W}{PARIS}[/THINK]"),
]  # fmt: skip

QWEN: list[Case] = [
    *HERMES,
    (coder(W, city="Paris"), [(W, PARIS)], ""),
    (coder("now"), [("now", "{}")], ""),
    (f"Let me.\n\n{coder(W, city='Paris')}\n{coder('now')}", [(W, PARIS), ("now", "{}")],
     "Let me."),
    (coder(W, city="5", days="5", warm="true", tags='["a"]', where='{"x": 1}'),
     [(W, '{"city": "5", "days": 5, "warm": true, "tags": ["a"], "where": {"x": 1}}')], ""),
    (coder(W, note="null", unit="1", limit="None", free="[1]", extra="hello", days="many"),
     [(W, ('{"note": null, "unit": "1", "limit": null, "free": [1], "extra": "hello", '
       '"days": "many"}'))], ""),
    (coder(W, city="", note='say "x"\n\n', where="{'a': True}"),
     [(W, '{"city": "", "note": "say \\"x\\"\\n\\n", "where": {"a": true}}')], ""),
    (coder(W, city="a </parameter> b </tool_call> <parameter> c"),
     [(W, '{"city": "a </parameter> b </tool_call> <parameter> c"}')], ""),
    ("<function=now>\n</function>\n</tool_call>", [("now", "{}")], ""),
    (("<function=now><parameter=$top>1</parameter><parameter=first name: é>x</parameter>"
      "</function>"), [("now", '{"$top": 1, "first name: é": "x"}')], ""),
    (("<tool_call><function=now></function><function=get_weather><parameter=city>Paris</parameter>"
     "</function></tool_call>"), [("now", "{}"), (W, PARIS)], ""),
    (f'<tools>\n{{"name": "{W}", "arguments": {PARIS}}}\n</tools>', [(W, PARIS)], ""),
    (f"[Calling tool: {W}({PARIS})]", [(W, PARIS)], ""),
]  # fmt: skip

GEMMA: list[Case] = [
    ('```tool_code\nget_weather(city="Paris")\n```', [(W, PARIS)], ""),
    ("Now:\n```tool_code\nnow()\nget_weather(city='Paris')\n```\n", [("now", "{}"), (W, PARIS)],
     "Now:"),
    ('```tool_code\n[now(), search(q="""a "quoted"\nline""")]\n```',
     [("now", "{}"), ("search", '{"q": "a \\"quoted\\"\\nline"}')], ""),
    (f'```tool_call\n{{"name": "{W}", "arguments": {PARIS}}}\n```', [(W, PARIS)], ""),
    (("<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"
     "<start_function_response>"), [(W, PARIS)], ""),
    (('<start_function_call>call:get_weather{city:<escape>"}, x<escape>,days:3,warm:true,'
     "tags:[<escape>a<escape>],where:{n:null}}<end_function_call>"),
     [(W, '{"city": "\\"}, x", "days": 3, "warm": true, "tags": ["a"], "where": {"n": null}}')],
     ""),
    (("<start_function_call>call:now{}<end_function_call>"
     "<start_function_call>call:now{}<end_function_call>"), [("now", "{}"), ("now", "{}")], ""),
    ('<|tool_call>call:now{$top: 1, first name : {@x:<|"|><|"|>}}<tool_call|>',
     [("now", '{"$top": 1, "first name": {"@x": ""}}')], ""),
    ('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|><|tool_response>',
     [(W, PARIS)], ""),
    (('<|channel>thought\n<|tool_call>call:now{}<tool_call|><channel|><|tool_call>call:search{q:1}'
     "<tool_call|>"), [("search", '{"q": 1}')],
     "<|channel>thought\n<|tool_call>call:now{}<tool_call|><channel|>"),
]  # fmt: skip

DEEPSEEK: list[Case] = [
    (f"{BB}{v3(W, PARIS)}{EE}<｜end▁of▁sentence｜>", [(W, PARIS)], ""),
    (f"{BB}{v3(W, NESTED)}\n{v3('now', '{}')}{EE}", [(W, NESTED), ("now", "{}")], ""),
    (f"I look.{BB}{B}{W}{S}{PARIS}{E}{B}now{S}{{}}{E}{EE}", [(W, PARIS), ("now", "{}")],
     "I look."),
    (f"{B}{W}{S}{PARIS}{E}", [(W, PARIS)], ""),
    (f"<think>\n{BB}{v3(W, PARIS)}{EE}</think>\n\n{BB}{v3('now', '{}')}{EE}", [("now", "{}")],
     f"<think>\n{BB}{v3(W, PARIS)}{EE}</think>"),
    (dsml(given("city", "Paris")), [(W, PARIS)], ""),
    (dsml(f"{given('city', '5')}\n{given('days', '5', 'false')}\n{given('x', '[1, 2]', 'false')}"),
     [(W, '{"city": "5", "days": 5, "x": [1, 2]}')], ""),
    ("Now.\n\n" + dsml("", "now", "tool_calls"), [("now", "{}")], "Now."),
    (dsml(given("@odata.type", "x"), "now"), [("now", '{"@odata.type": "x"}')], ""),
]  # fmt: skip

CASES = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen": QWEN,
    "gemma": GEMMA,
    "deepseek": DEEPSEEK,
}

UNKNOWN = PARIS.replace("Paris", "<tool_call>")

TEXTS: dict[str, list[str]] = {
    "hermes": [
        "",
        "  plain \n",
        "the <tool_call> mark",
        hermes(PARIS, "other"),
        hermes(UNKNOWN, "other"),
        f"Use `{hermes(PARIS)}` for it.",
        f"Use `so {hermes(PARIS).replace(chr(10), '')}` for it.",
        f"`</think>` and `<think>{hermes(PARIS, 'other')}",
        f"```\n{hermes(PARIS)}",
        f"````\n```\n{hermes(PARIS)}\n```\n````",
        f"```markdown\nSo:\n```xml\n{hermes(PARIS)}\n```\n```",
        f"Use ``{hermes(PARIS)}`` for it.",
        f"Use `` ` {hermes(PARIS)}`` for it.",
        f"You said:\n > `x` {hermes(PARIS)}",
        f"<think>{hermes(PARIS)}",
        f"{hermes(PARIS)}</think> no.",
        '<tool_call>["get_weather"]</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "name": "now", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {}, "parameters": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>{}</tool_call>",
        "<tool_call></tool_call>",
        "</tool_call>",
        "<tool_call>{...}</tool_call>",
        f'So: {{"name": "{W}", "arguments": {PARIS}}}',
        f'{{"name": "{W}", "arguments": {PARIS}}} it is',
        "<|im_end|>",
    ],
    "llama": [
        '{"name": "Alice"}',
        '{"name": "Alice", "parameters": {}}',
        f'{{"name": "{W}", "parameters": [1]}}',
        f'{{"name": "{W}", "parameters": {PARIS}, "why": 1}}',
        f'{{"name": "{W}", "parameters": {PARIS}}} is how.',
        f'It is {{"name": "{W}", "parameters": {PARIS}}}',
        f'{{"name": "{W}"}}',
        "[1]",
        "[]",
        "[x]: http://x",
        "[get_weather(city=place)]",
        '[get_weather("Paris")]',
        "[get_weather(city=other())]",
        "[get_weather(city=1 + 1)]",
        '[get_weather(city=f"{x}")]',
        "[get_weather(city=__import__)]",
        '[get_weather(city="\\N{DIGIT ONE}")]',
        "[get_weather(days=007)]",
        "[get_weather(days=(1, 2))]",
        "[get_weather(days=0x1F)]",
        '[get_weather(city="x"), other()]',
        '[get_weather(city="x")] and more',
        '<|python_tag|>print("x")',
        "<|python_tag|>import os",
        "<function=other>{}</function>",
        f"<function={W}>city</function>",
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS]other[ARGS]{}",
        "[TOOL_CALLS]now is a mark",
        "[TOOL_CALLS] get_weather is",
        f'[{{"name": "{W}", "arguments": {PARIS}}}] is it',
        f'[TOOL_CALLS][{{"name": "{W}", "arguments": {PARIS}}}, {{"name": "other"}}]',
        "[1, 2]",
    ],
    "qwen": [
        coder("other", city=hermes(PARIS)),
        "<tool_call>\n<function=get_weather>city</function></tool_call>",
        "<function=get_weather><parameter=>x</parameter></function>",
        "<function=get_weather><parameter=city\n>x</parameter></function>",
        f"<function=get_weather><parameter={'x' * 300}>x</parameter></function>",
        "[Calling tool: other({})]",
        "[Calling tool: get_weather(1)]",
    ],
    "gemma": [
        '```tool_code\nprint("x")\n```',
        "```tool_code\n```",
        "```tool_code\nother()\n```",
        "```python\nnow()\n```",
        "<start_function_call>call:other{}<end_function_call>",
        "<start_function_call>call:get_weather{city:Paris}<end_function_call>",
        "<start_function_call>call:get_weather{...}<end_function_call>",
        "<|tool_call>call:get_weather{...}<tool_call|>",
    ],
    "deepseek": [
        f"{BB}{v3('other', PARIS)}{EE}",
        f"{BB}{B}{W}{S}Paris{E}{EE}",
        f"{BB}{EE}",
        "hello<‖DSML‖tool_calls>world",
        "hello<｜DSML｜tool_calls>world",
        dsml(given("city", "Paris"), "other"),
        dsml("city=Paris"),
        "<｜end▁of▁sentence｜>",
    ],
}
"""Texts in which there is no call: they stay as they are, byte for byte."""

CUT: dict[str, list[tuple[str, str]]] = {
    "hermes": [
        (hermes(PARIS)[:-1], PARIS),
        (hermes(PARIS)[:-14], PARIS),
        (hermes(PARIS)[:-19], '{"city": "Pa'),
        ('<tool_call>{"name": "get_weather"', ""),
    ],
    "llama": [
        (f'{{"name": "{W}", "parameters": {{"city": "Pa', '{"city": "Pa'),
        (f'<|python_tag|>{{"name": "{W}", "parameters": {PARIS}', PARIS),
        ('[get_weather(city="Paris", days=3', '{"city": "Paris", "days": 3'),
        (f"<function={W}>{PARIS}", PARIS),
    ],
    "mistral": [
        (f"[TOOL_CALLS]{W}[ARGS]", ""),
        (f"[TOOL_CALLS]{W}[ARGS]{PARIS[:-1]}", PARIS[:-1]),
        (f'[TOOL_CALLS][{{"name": "{W}", "arguments": {PARIS}}}', PARIS),
    ],
    "qwen": [
        (coder(W, city="Paris")[:-1], PARIS),
        (coder(W, city="Paris", days="3")[:-30], '{"city": "Paris"'),
        (f"<function={W}><parameter=city>x</function>", ""),
    ],
    "gemma": [
        ('```tool_code\nget_weather(city="Paris")\n', PARIS),
        ("<start_function_call>call:get_weather{city:<escape>Pa", '{"city": '),
    ],
    "deepseek": [
        (f"{BB}{v3(W, PARIS)}"[:-1], PARIS),
        (f"{BB}{B}{W}{S}{PARIS[:-1]}", PARIS[:-1]),
        (dsml(given("city", "Paris"))[:-1], PARIS),
    ],
}
"""Texts that end inside a call, and what there is of its arguments."""
