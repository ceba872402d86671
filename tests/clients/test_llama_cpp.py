"""A server that is not ours, with a real model: llama.cpp's own, over HTTP, asked on three wires.

The embedded model was never taught to call tools. It does as it was shown: the history holds calls of
the same tool, and so is judged besides, for the server renders every message of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import sampled

from toolcrib.clients import AnthropicClient, OpenAIClient, WireClient
from toolcrib.errors import AuthenticationError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Reply,
    Settings,
    TextPart,
    ToolChoice,
)

KEY = "sk-llama-0123456789"
TEMPLATE = (
    """\
{%- if tools %}<|im_start|>system
You may call these tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Call one as <tool_call>
{"name": <name>, "arguments": <object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|im_start|>assistant
{{ message.content or '' }}
{%- for tool_call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ tool_call.function.name }}", """
    """"arguments": {{ tool_call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
)
"""The template of models that call tools as Hermes does; the model's own has no place for tools."""

ADD: Any = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def shown(*sums: tuple[int, int]) -> list[Message]:
    """A conversation in which each of these was added."""
    messages = []
    for number, (a, b) in enumerate(sums):
        made = ToolCall(
            f"r_0_{number}", "add", json.dumps({"a": a, "b": b}), provider_id=f"call{number:05}"
        )
        messages += [
            Message.user(f"What is {a} + {b}?"),
            Message.assistant("", (made,)),
            Message.tool(made, str(a + b)),
            Message.assistant(f"It is {a + b}."),
        ]
    return messages


EXACT = Settings(temperature=0.0, max_tokens=64)
TEXT = ChatRequest((Message.system("Be brief."), Message.user("What is 2 + 3?")), settings=EXACT)
CALL = ChatRequest(
    (*shown((1, 4), (7, 2), (5, 5)), Message.user("What is 2 + 3?")),
    (ADD,),
    ToolChoice("required"),
    EXACT,
    id_prefix="r_1_",
)


@pytest.fixture(scope="module")
def server(embedded_model: Path) -> Iterator[str]:
    """Where llama.cpp listens."""
    if find_spec("xllamacpp") is None:
        pytest.skip("the extra `local`")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(embedded_model)
    params.chat_template, params.use_jinja = TEMPLATE, True
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [KEY]
    params.n_ctx, params.n_parallel, params.n_threads_http = 2048, 1, 2
    params.cpuparams.n_threads = 1
    params.verbosity, params.ui, params.fit_params, params.cache_ram_mib = -1, False, False, 0
    running = xllamacpp.Server(params)
    yield running.listening_address
    del running


CLIENTS: dict[str, Callable[..., WireClient]] = {
    "openai-chat": lambda url, key=KEY: OpenAIClient("m", base_url=f"{url}/v1", api_key=key),
    "openai-responses": lambda url, key=KEY: OpenAIClient(
        "m", api="responses", base_url=f"{url}/v1", api_key=key
    ),
    "anthropic": lambda url, key=KEY: AnthropicClient("m", base_url=url, api_key=key),
}
ways = pytest.mark.parametrize(("name", "stream"), sampled(product(CLIENTS, [False, True]), part=6))


async def asked(
    client: WireClient, request: ChatRequest, *, stream: bool
) -> tuple[list[Any], Reply]:
    async with client:
        if not stream:
            return [], await client.chat(request)
        *parts, reply = [part async for part in client.stream(request)]
    assert isinstance(reply, Reply)
    return parts, reply


@ways
async def test_text(server: str, name: str, stream: bool) -> None:
    parts, reply = await asked(CLIENTS[name](server), TEXT, stream=stream)
    assert (reply.finish, reply.tool_calls) == ("stop", ())
    assert "5" in reply.text
    assert reply.usage.input_tokens > 10
    assert reply.usage.output_tokens > 3
    told = [part.text for part in parts if isinstance(part, TextPart)]
    assert "".join(told) == (reply.text if stream else "")
    assert len(told) > 3 or not stream


@pytest.mark.exhaustive  # it reads a long prompt
@ways
async def test_a_call_and_what_comes_after_it(server: str, name: str, stream: bool) -> None:
    parts, reply = await asked(CLIENTS[name](server), CALL, stream=stream)
    assert reply.finish == "tool_calls"
    (made,) = reply.tool_calls
    assert (made.id, made.name, json.loads(made.arguments)) == ("r_1_0", "add", {"a": 2, "b": 3})
    assert made.complete
    pieces = [part.text for part in parts if isinstance(part, ArgumentsPart)]
    assert "".join(pieces) == (made.arguments if stream else "")
    messages = (*CALL.messages, reply.message, Message.tool(made, "5"))
    answered = msgspec.structs.replace(CALL, messages=messages, tool_choice=ToolChoice("none"))
    _, last = await asked(CLIENTS[name](server), answered, stream=stream)
    assert (last.finish, last.tool_calls) == ("stop", ())
    assert "5" in last.text


@ways
async def test_a_wrong_key(server: str, name: str, stream: bool) -> None:
    with pytest.raises(AuthenticationError):
        await asked(CLIENTS[name](server, "no"), TEXT, stream=stream)


@pytest.mark.exhaustive  # likewise
@pytest.mark.parametrize(
    ("wire", "stream"), list(product(["openai-chat", "anthropic"], [False, True]))
)
async def test_a_reply_that_is_cut(server: str, wire: str, stream: bool) -> None:
    """Its Responses do not say so: such a reply is `completed` there."""
    request = msgspec.structs.replace(CALL, settings=Settings(temperature=0.0, max_tokens=14))
    _, reply = await asked(CLIENTS[wire](server), request, stream=stream)
    assert reply.finish == "length"
    assert not any(made.complete for made in reply.tool_calls)
