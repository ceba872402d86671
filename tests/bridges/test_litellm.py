"""A model behind LiteLLM, whose providers are servers on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import httpx
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from clients.exchanges import ADD, HI, answered, both, reply_of
from rows import each_row
from samples import sample, sampled
from servers.anthropic import anthropic_server
from servers.bedrock import bedrock_server
from servers.gemini import gemini_server
from servers.mistral import mistral_server
from servers.ollama import OllamaServer

import toolcrib.bridges.litellm as bridge
from toolcrib import ALL, Agent, tool
from toolcrib.bridges.litellm import litellm_client
from toolcrib.clients import (
    AnthropicClient,
    OllamaClient,
    OpenAIClient,
    Retries,
    Timeouts,
    WireClient,
)
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    ContentFilterError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RequestError,
    WireError,
)
from toolcrib.testing import call, cut, die_after, http_error, openai_server, raw
from toolcrib.testing.scripted import OpenAIServer
from toolcrib.testing.scripted import serving as serve
from toolcrib.values.message import Settings, TextPart, Usage

litellm: Any = bridge._litellm
Serving: TypeAlias = Callable[[Any], AbstractAsyncContextManager[OpenAIServer]]

OPENAI, ANTHROPIC, OLLAMA = "openai/m", "anthropic/claude-sonnet-4-5", "ollama_chat/llama3.1"
KEY = "sk-canary-0123456789abcdef"
TURN: list[Any] = ["Let me see. ", call("f", n=1, x="a longer text")]
F: dict[str, Any] = {
    "name": "f",
    "description": "Do it.",
    "input_schema": {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "x": {"type": "string"}},
    },
}
ASKED = msgspec.structs.replace(HI, tools=(F,))


class LenientOllama(OllamaServer):
    """Takes results without `tool_name`, as LiteLLM sends them, and Ollama's own server takes them."""

    def fault(self, body: Any) -> str | None:
        for message in body.get("messages", []):
            if message["role"] == "tool":
                message.setdefault("tool_name", "left out")
        return super().fault(body)


PROVIDERS: dict[str, Serving] = {
    OPENAI: openai_server,
    ANTHROPIC: anthropic_server,
    OLLAMA: lambda turns: serve(LenientOllama(turns)),
}
pytestmark = [  # what pydantic says of LiteLLM's classes
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings(  # LiteLLM leaves httpx's generators to the garbage collector
        "ignore:Exception ignored in. <async_generator object Response.aiter"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]
each_provider = pytest.mark.parametrize(
    ("model", "serving"),
    [pytest.param(*row, id=row[0]) for row in sampled(PROVIDERS.items(), part=2)],
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """LiteLLM prints where to get help, at each error, into what pytest shows."""
    before, litellm.suppress_debug_info = litellm.suppress_debug_info, True
    yield
    litellm.suppress_debug_info = before


def client_of(model: str, server: OpenAIServer, **options: Any) -> WireClient:
    given = {"api_base": server.url, "api_key": KEY}
    return litellm_client(model, given=given, **({"retries": None} | options))


@each_provider
@both
async def test_a_reply_is_that_of_the_provider(model: str, serving: Serving, stream: bool) -> None:
    async with serving([TURN]) as server:
        reply = await reply_of(client_of(model, server), ASKED, stream=stream)
    (made,) = reply.tool_calls
    assert (made.name, made.complete) == ("f", True)
    assert json.loads(made.arguments) == {"n": 1, "x": "a longer text"}
    assert (reply.text, reply.finish, reply.usage) == (
        "Let me see. ",
        "tool_calls",
        Usage(1, 11, 7),
    )
    assert (reply.model, reply.provider) == (
        model,
        f"openai-chat at {model.partition('/')[0]}.litellm",
    )


@each_provider
@both
async def test_calls_and_their_results_go_back(model: str, serving: Serving, stream: bool) -> None:
    """The server of the test refuses what its provider would; names are too long for some."""

    def twice(body: dict[str, Any]) -> Any:
        """Two calls of the tool, by the name that the request has for it."""
        (asked,) = body["tools"]
        name = asked.get("function", asked)["name"]
        return ["Let me add. ", call(name, a=1), call(name, a=2)]

    async with serving([twice, "Both are done."]) as server:
        client = client_of(model, server)
        request = msgspec.structs.replace(HI, tools=(ADD,))
        first = await reply_of(client, request, stream=stream)
        assert [made.name for made in first.tool_calls] == [ADD["name"]] * 2
        second = await reply_of(client, answered(request, first), stream=stream)
    assert (second.text, second.finish, len(server.requests)) == ("Both are done.", "stop", 2)


@each_provider
async def test_an_agent_runs_on_it(model: str, serving: Serving) -> None:
    @tool(visible=ALL)
    def f(n: int, x: str) -> str:
        """Do it."""
        return x * n

    async with serving([TURN, "It is done."]) as server:
        result = await Agent(client_of(model, server), [f]).run("Do it.")
    assert (result.text, [record.result for record in result.records]) == (
        "It is done.",
        ["a longer text"],
    )


@each_provider
@both
async def test_a_reply_at_the_limit_on_tokens_has_no_whole_call(
    model: str, serving: Serving, stream: bool
) -> None:
    async with serving([cut(TURN)]) as server:
        reply = await reply_of(client_of(model, server), ASKED, stream=stream)
    assert reply.finish == "length"
    assert not any(made.complete for made in reply.tool_calls)


BROKEN = (ConnectionFailed, ProviderError, WireError)
_REASON = {OPENAI: b'"finish_reason":"t', ANTHROPIC: b'"stop_reason":"t', OLLAMA: b"true"}


@each_provider
@each_row("clean", [True, False], ids=["ended", "dropped"])
async def test_a_stream_that_stops_before_its_reason_is_the_usual_error(
    model: str, serving: Serving, clean: bool
) -> None:
    """LiteLLM itself says `stop` of most of them, and `tool_calls` of those with a call."""
    async with serving([]) as server:
        whole = server.answer(TURN, number=1, stream=True)
    said = whole.body.index(_REASON[model])
    stops = [*range(0, said, max(1, said // sample(60, part=20))), said]
    turns = [
        raw(whole.body[:at], content_type=whole.content_type) if clean else die_after(at, whole)
        for at in stops
    ]
    async with serving(turns) as server:
        client = client_of(model, server)
        for at in stops:
            with pytest.raises(BROKEN):
                assert not await reply_of(client, ASKED, stream=True), at


@each_provider
async def test_a_connection_that_breaks_after_the_end_of_a_stream_breaks_nothing(
    model: str, serving: Serving
) -> None:
    async with serving([]) as server:
        whole = server.answer(TURN, number=1, stream=True)
    async with serving([die_after(len(whole.body), whole)]) as server:
        assert await _complete(client_of(model, server)) == [True]


@each_provider
async def test_a_stream_may_pause_anywhere(model: str, serving: Serving) -> None:
    """LiteLLM stops reading at the first line after the reason."""
    async with serving([]) as server:
        whole = server.answer(TURN, number=1, stream=True)
    body, at = whole.body, 0

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": whole.content_type})
        await response.prepare(request)
        for piece in (body[:at], body[at:]):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with TestServer(app) as slow:
        given = {"api_base": str(slow.make_url("")), "api_key": KEY}
        client = litellm_client(model, given=given, retries=None)
        for at in sampled(range(len(body) - 100, len(body)), part=10):
            assert await _complete(client) == [True], body[at - 20 : at]


@each_provider
async def test_a_body_that_stops_is_the_usual_error(model: str, serving: Serving) -> None:
    async with serving([]) as server:
        whole = server.answer(TURN, number=1, stream=False)
    async with serving([die_after(at, whole) for at in (0, 20, 150)]) as server:
        for _ in range(3):
            with pytest.raises(BROKEN):
                await client_of(model, server).chat(ASKED)


def _openai(reason: str | None) -> Any:
    function = {"name": "f", "arguments": '{"n": 1}'}
    message = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    choice = {"index": 0, "message": message, "finish_reason": reason}
    body = {"object": "chat.completion", "choices": [choice]}
    return raw(json.dumps(body), content_type="application/json")


def _openai_stream(reason: str) -> Any:
    function = {"name": "f", "arguments": '{"n": 1}'}
    made = {"index": 0, "id": "c", "type": "function", "function": function}
    choices: list[Any] = [{"delta": {"tool_calls": [made]}}, {"delta": {}, "finish_reason": reason}]
    lines = [json.dumps({"choices": [{"index": 0} | choice]}) for choice in choices]
    return raw("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]))


def _anthropic(reason: str | None) -> Any:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"n": 1}}
    body = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [use]}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return raw(
        json.dumps(body | {"stop_reason": reason, "usage": usage}), content_type="application/json"
    )


def _ollama(reason: str | None) -> Any:
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"n": 1}}}],
    }
    last = {"done": True, "done_reason": reason, "prompt_eval_count": 1, "eval_count": 1}
    return raw(
        json.dumps({"model": "l", "message": message} | last), content_type="application/json"
    )


OWN: dict[str, Any] = {
    OPENAI: OpenAIClient,
    ANTHROPIC: AnthropicClient,
    OLLAMA: OllamaClient,
}
REASONS = [
    (OPENAI, _openai, "tool_calls stop length content_filter error gone_fishing"),
    (ANTHROPIC, _anthropic, "tool_use end_turn max_tokens refusal pause_turn gone_fishing"),
    (OLLAMA, _ollama, "stop length load gone_fishing"),
]


async def _told_by(client: WireClient) -> tuple[Any, list[bool]]:
    try:
        reply = await client.chat(ASKED)
    except (ConnectionFailed, ProviderError) as error:
        return type(error), []
    return reply.finish, [made.complete and not made.fault for made in reply.tool_calls]


@each_row(("model", "turn", "reasons"), REASONS, ids=lambda row: None)
async def test_the_providers_own_reason_counts_as_with_our_own_client(
    model: str, turn: Callable[[Any], Any], reasons: str
) -> None:
    """LiteLLM calls most of these `stop` or `tool_calls`."""
    for reason in (*reasons.split(), "", None):
        async with PROVIDERS[model]([turn(reason)] * 2) as server:
            own = OWN[model]("m", base_url=server.url, api_key=KEY, retries=None)
            async with own:
                expected = await _told_by(own)
            assert (reason, await _told_by(client_of(model, server))) == (reason, expected)


@each_row("reason", ["gone_fishing", "length"])
async def test_a_reason_in_a_stream_counts_as_it_was_said(reason: str) -> None:
    async with openai_server([_openai_stream(reason)]) as server:
        reply = await reply_of(client_of(OPENAI, server), ASKED, stream=True)
    assert reply.finish == ("length" if reason == "length" else "doubtful")
    assert not any(made.complete and not made.fault for made in reply.tool_calls)


@each_provider
@both
async def test_a_reply_that_used_up_its_tokens_was_cut(
    model: str, serving: Serving, stream: bool
) -> None:
    """LiteLLM has one reason for calls of Ollama's, `tool_calls`, whatever the server's own was."""
    limited = msgspec.structs.replace(ASKED, settings=Settings(max_tokens=7))
    async with serving([TURN, TURN]) as server:
        client = client_of(model, server)
        reply = await reply_of(client, limited, stream=stream)
        more = msgspec.structs.replace(ASKED, settings=Settings(max_tokens=8))
        assert (await reply_of(client, more, stream=stream)).finish == "tool_calls"
    assert (reply.finish, [made.complete for made in reply.tool_calls]) == ("length", [False])


COMPATIBLE = ("mistral", "deepseek", "hosted_vllm", "openrouter", "groq", "databricks", "openai")
"""Servers of OpenAI's wire; of these LiteLLM asks only the last through the SDK of OpenAI."""


def _compatible(provider: str, server: OpenAIServer, **given: Any) -> WireClient:
    given = {"api_base": server.url, "api_key": KEY, "api_version": "2024-10-21"} | given
    return litellm_client(f"{provider}/m", given=given, retries=None)


def _choice(**members: Any) -> str:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices = [{"index": 0, "delta": {}} | members]
    return f"data: {json.dumps(chunk | {'choices': choices})}\n\n"


_MADE = _choice(
    delta={
        "role": "assistant",
        "tool_calls": [
            {
                "index": 0,
                "id": "c",
                "type": "function",
                "function": {"name": "f", "arguments": '{"n": 1}'},
            }
        ],
    }
)
_DONE = "data: [DONE]\n\n"
_STOPPED = _choice(finish_reason="stop")
NO_ENDS = {
    "no reason": (_MADE, _DONE),
    "null": (_MADE, _choice(finish_reason=None), _DONE),
    "empty": (_MADE, _choice(finish_reason=""), _DONE),
    "unknown": (_MADE, _choice(finish_reason="gone_fishing"), _DONE),
    "cut": (_MADE, _choice(finish_reason="insufficient_system_resource"), _DONE),
    "the model was cut": (
        _MADE,
        _choice(finish_reason="stop", native_finish_reason="length"),
        _DONE,
    ),
    "two": (_MADE, _choice(finish_reason="length"), _STOPPED, _DONE),
    "an error": (_MADE, 'data: {"error": {"message": "overloaded"}}\n\n', _STOPPED, _DONE),
    "a choice's error": (_MADE, _choice(finish_reason="stop", error={"code": 502}), _DONE),
    "of another choice": (_MADE, _choice(finish_reason="stop", index=1), _DONE),
    "a call after it": (_MADE, _STOPPED, _MADE),
    "an event that is cut": (_MADE, _STOPPED, _DONE[:9]),
}


@pytest.mark.parametrize("provider", COMPATIBLE)
async def test_a_stream_ends_as_its_provider_says_whoever_asks(provider: str) -> None:
    """LiteLLM says `stop` or `tool_calls` of most of these, as what it received."""
    ends = [raw("".join(said)) for said in NO_ENDS.values()]
    whole = raw(_MADE + _STOPPED + _DONE)
    broken = die_after(len(_MADE + _STOPPED) - 1, whole)
    async with openai_server([whole, *ends, broken]) as server:
        client = _compatible(provider, server)
        assert await _complete(client) == [True]
        for name in (*NO_ENDS, "broken"):
            assert not any(await _complete(client)), name


async def test_a_stream_that_says_it_is_done_may_go_on_after_its_reason() -> None:
    """As of servers that give a reason with each call."""
    second = _MADE.replace('"index": 0, "id": "c"', '"index": 1, "id": "d"')
    assert second != _MADE
    async with openai_server([raw(_MADE + _STOPPED + second + _DONE)]) as server:
        assert await _complete(client_of(OPENAI, server)) == [True, True]


async def test_a_reason_of_geminis_counts_with_or_after_the_last_call() -> None:
    """Some of its models give one in each event."""
    parts = [{"functionCall": {"name": "f", "args": {"n": 1}}}]
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}}
    open_, ended = (
        f"data: {json.dumps({'candidates': [candidate | end]})}\n\n"
        for end in ({}, {"finishReason": "STOP"})
    )
    async with gemini_server([raw(ended + ended), raw(ended + open_)]) as server:
        client = client_of("gemini/gemini-2.5-flash", server)
        assert await _complete(client) == [True, True]
        assert not any(await _complete(client))


def _of_choice(index: int, reason: str, *, calls: bool, with_call: bool) -> list[str]:
    """Return the pieces of one choice: a call or a text, and its end."""
    function = {"name": "f", "arguments": '{"n": '}
    first = {"index": 0, "id": f"c{index}", "type": "function", "function": function}
    rest = {"index": 0, "function": {"arguments": "1}"}}
    deltas: list[Any] = [{"content": "a"}, {"content": "b"}]
    if calls:
        deltas = [{"tool_calls": [first]}, {"tool_calls": [rest]}]
    pieces: list[Any] = [{"delta": delta} for delta in deltas]
    if with_call:
        pieces[-1]["finish_reason"] = reason
    else:
        pieces.append({"finish_reason": reason})
    return [_choice(**{"index": index} | piece) for piece in pieces]


def _interleaved(chance: random.Random) -> str:
    reasons = ["tool_calls", "stop", "length", "content_filter"]
    pending = [
        _of_choice(
            index,
            chance.choice(reasons),
            calls=chance.random() < 0.7,
            with_call=chance.random() < 0.5,
        )
        for index in (0, 1)
    ]
    said = ""
    while any(pending):
        said += chance.choice([pieces for pieces in pending if pieces]).pop(0)
    return said + _DONE


async def test_no_call_runs_of_a_stream_of_several_choices() -> None:
    """LiteLLM makes one of their pieces: a call may be of the one that was cut."""
    chance = random.Random(27)  # noqa: S311
    streams = [_interleaved(chance) for _ in range(sample(60, part=10))]
    async with openai_server([raw(said) for said in streams]) as server:
        client = client_of(OPENAI, server)
        for said in streams:
            assert not any(await _complete(client)), said


@pytest.mark.parametrize("indices", [(0,), (0, 1), (1, 0), (1,)])
async def test_no_call_runs_of_a_body_of_several_choices(indices: tuple[int, ...]) -> None:
    """Nor of one that is not the first; that one alone is a reply."""
    body = json.loads(_openai("tool_calls").body)
    (made,) = body["choices"]
    body["choices"] = [{**made, "index": index} for index in indices]
    candidate = {"content": {"parts": [{"functionCall": {"name": "f", "args": {"n": 1}}}]}}
    ended = candidate | {"finishReason": "STOP"}
    gemini = {"candidates": [{**ended, "index": index} for index in indices], "usageMetadata": {}}
    for serving, model, said in (
        (openai_server, OPENAI, body),
        (gemini_server, "gemini/gemini-2.5-flash", gemini),
    ):
        turn = raw(json.dumps(said), content_type="application/json")
        async with serving([turn]) as server:
            runs = await _complete(client_of(model, server), stream=False)
            assert any(runs) == (indices == (0,)), model


async def test_a_text_of_several_choices_stays() -> None:
    text = _of_choice(0, "stop", calls=False, with_call=False)
    other = _of_choice(1, "stop", calls=False, with_call=False)
    async with openai_server([raw("".join([*text, *other, _DONE]))]) as server:
        reply = await reply_of(client_of(OPENAI, server), ASKED, stream=True)
    assert (reply.finish, reply.provider_finish) == ("doubtful", "several_choices")
    assert reply.text.startswith("ab")


async def _complete(client: WireClient, *, stream: bool = True) -> list[bool]:
    try:
        reply = await reply_of(client, ASKED, stream=stream)
    except (ClientError, WireError):
        return []
    return [made.complete and not made.fault for made in reply.tool_calls]


BEDROCK = "bedrock/converse/anthropic.claude-3-sonnet-20240229-v1:0"
_AWS = {
    "aws_access_key_id": "a",
    "aws_secret_access_key": KEY,
    "aws_region_name": "us-east-1",
}
OTHERS: dict[str, tuple[Any, Callable[[str], dict[str, Any]]]] = {
    "gemini/gemini-2.5-flash": (gemini_server, lambda url: {"api_base": url}),
    "mistral/m": (mistral_server, lambda url: {"api_base": url}),
    BEDROCK: (bedrock_server, lambda url: {"aws_bedrock_runtime_endpoint": url} | _AWS),
}


@both
@pytest.mark.parametrize(("model", "how"), OTHERS.items(), ids=OTHERS)
async def test_the_end_is_heard_on_every_wire(model: str, how: Any, stream: bool) -> None:
    """Server-sent events, frames of AWS, or one value. LiteLLM cannot read Cohere's streams."""
    serving, given = how
    async with serving([TURN, cut(TURN)]) as server:
        asked = given(server.url) | ({} if model == BEDROCK else {"api_key": KEY})
        client = litellm_client(model, given=asked, retries=None)
        assert await _complete(client, stream=stream) == [True]
        reply = await reply_of(client, ASKED, stream=stream)
    assert (reply.finish, any(made.complete for made in reply.tool_calls)) == ("length", False)


async def test_the_end_of_a_fallback_is_its_own() -> None:
    async with openai_server(
        [http_error(500), _openai("gone_fishing"), http_error(500), _openai("stop")]
    ) as server:
        client = _compatible("openai", server, fallbacks=["openai/m2"])
        assert await _complete(client, stream=False) == [False]
        assert await _complete(client, stream=False) == [True]


@each_row(
    ("turns", "kind"),
    [
        ([http_error(500), die_after(0, "Hi.")], ConnectionFailed),
        ([die_after(0, "Hi."), http_error(429)], RateLimitError),
        ([http_error(429), http_error(401)], AuthenticationError),
    ],
)
async def test_where_all_fallbacks_fail_the_last_says_why(
    turns: Any, kind: type[ClientError]
) -> None:
    async with openai_server(turns) as server:
        with pytest.raises(kind):
            await _compatible("openai", server, fallbacks=["openai/m2"]).chat(HI)


async def test_a_null_is_no_end_of_a_stream_of_anthropic() -> None:
    async with anthropic_server([]) as server:
        whole = server.answer(TURN, number=1, stream=True).body.decode()
    nothing = whole.replace('"stop_reason":"tool_use"', '"stop_reason":null')
    assert nothing != whole
    async with anthropic_server([raw(nothing)]) as server:
        with pytest.raises(ConnectionFailed):
            await reply_of(client_of(ANTHROPIC, server), ASKED, stream=True)


@each_row("done", [False, "", {}])
async def test_a_body_that_says_it_is_not_done_is_not_whole(done: Any) -> None:
    body = json.loads(_ollama("stop").body) | {"done": done}
    turn = raw(json.dumps(body), content_type="application/json")
    async with serve(LenientOllama([turn])) as server:
        with pytest.raises(ConnectionFailed):
            await client_of(OLLAMA, server).chat(ASKED)


async def test_one_value_in_place_of_a_stream_is_no_reply() -> None:
    """LiteLLM reads nothing of it, and says `stop`."""
    async with openai_server([_openai("stop")]) as server:
        with pytest.raises(ConnectionFailed):
            await reply_of(client_of(OPENAI, server), ASKED, stream=True)


async def test_what_the_model_wrote_is_no_reason_of_the_providers() -> None:
    """Ollama's arguments are objects, in which a model may write any name."""
    body = json.loads(_ollama("length").body)
    made = {"done": True, "done_reason": "stop", "finish_reason": "stop", "error": "no"}
    body["message"]["tool_calls"][0]["function"]["arguments"] = made
    turn = raw(json.dumps(body) + "\n", content_type="application/x-ndjson")
    async with serve(LenientOllama([turn, turn])) as server:
        for stream in (True, False):
            assert await _complete(client_of(OLLAMA, server), stream=stream) in ([], [False])


async def test_a_reply_that_nobody_heard_has_no_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of LiteLLM's cache, or of a provider that it asks by other means than httpx."""
    function = {"name": "f", "arguments": "{}"}
    made = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    kept = litellm.ModelResponse(choices=[{"finish_reason": "tool_calls", "message": made}])

    async def from_cache(**_given: Any) -> Any:
        return kept

    monkeypatch.setattr(litellm, "acompletion", from_cache)
    reply = await litellm_client(OPENAI).chat(ASKED)
    assert (reply.text, reply.finish, reply.tool_calls[0].fault is None) == (
        "Let me see.",
        "doubtful",
        False,
    )
    reply = await litellm_client(OPENAI, natural_reasons=["unheard"]).chat(ASKED)
    assert reply.finish == "tool_calls"


ERRORS: list[tuple[int, type[ClientError], bool]] = [
    (400, RequestError, False),
    (401, AuthenticationError, False),
    (403, AuthenticationError, False),
    (404, RequestError, False),
    (429, RateLimitError, True),
    (500, ProviderError, True),
    (503, OverloadedError, True),
]


@each_provider
@both
@each_row(("status", "kind", "retryable"), ERRORS)
async def test_an_error_is_typed_and_repeats_no_key(
    model: str,
    serving: Serving,
    stream: bool,
    status: int,
    kind: type[ClientError],
    retryable: bool,
) -> None:
    async with serving([http_error(status, f"no: {KEY} {KEY[:20]}")]) as server:
        client = client_of(model, server)
        with pytest.raises(kind) as caught:
            await reply_of(client, HI, stream=stream)
    assert (type(caught.value), caught.value.retryable) == (kind, retryable)
    told = "".join(traceback.format_exception(caught.value)) + repr(client) + repr(vars(client))
    assert "canary" not in told


async def test_a_key_that_litellm_found_for_itself_is_in_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-of-the-environment")
    monkeypatch.setattr(litellm, "openai_key", None)
    async with openai_server([http_error(400, "with canary-of-the-environment")] * 2) as server:
        client = litellm_client(OPENAI, given={"api_base": server.url}, retries=None)
        with pytest.raises(RequestError, match=r"with \[key\]"):
            await client.chat(HI)
        monkeypatch.setattr(litellm, "openai_key", "canary-of-the-environment")
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(RequestError, match=r"with \[key\]"):
            await client.chat(HI)


@each_row("name", ["X-Team", "Proxy-Authorization", "X-Api-Key"])
async def test_what_is_sent_in_a_header_is_in_no_error(name: str) -> None:
    canary = "canary-of-the-team"  # which looks like no key
    async with openai_server([http_error(400, f"no: {canary}")]) as server:
        given = {
            "api_base": server.url,
            "api_key": "sk-of-the-shop",
            "extra_headers": {name: canary},
        }
        with pytest.raises(RequestError, match=r"no: \[key\]"):
            await litellm_client(OPENAI, given=given, retries=None).chat(HI)


async def test_errors_say_what_they_are() -> None:
    filtered = {"error": {"message": "no", "code": "content_policy_violation", "type": None}}
    long = "This model's maximum context length is 4 tokens."
    turns = [
        raw(json.dumps(filtered), status=400, content_type="application/json"),
        http_error(400, long),
        http_error(429, retry_after=3),
    ]
    async with openai_server(turns) as server:
        client = client_of(OPENAI, server)
        with pytest.raises(ContentFilterError):
            await client.chat(HI)
        with pytest.raises(RequestError, match="maximum context length"):
            await client.chat(HI)
        with pytest.raises(RateLimitError) as caught:
            await client.chat(HI)
    assert caught.value.retry_after == 3


@each_provider
@both
async def test_a_status_is_told_whatever_litellm_makes_of_it(
    model: str, serving: Serving, stream: bool
) -> None:
    """LiteLLM's error for a 408 is that of its own time limits; most of its errors have no headers."""
    async with serving([http_error(408, retry_after=3)]) as server:
        with pytest.raises(RequestError) as caught:
            await reply_of(client_of(model, server), HI, stream=stream)
    assert (caught.value.status, caught.value.retry_after) == (408, 3)


FAILED = [
    *(http_error(status, retry_after=7) for status in (302, 400, 408, 500, 503, 504, 529)),
    die_after(0, "Hi."),
    die_after(20, "Hi."),
]
_OVERLOADED = {"error": {"message": "no", "type": "overloaded_error", "code": 529}}
IN_PLACE_OF_A_STREAM = raw(json.dumps(_OVERLOADED), content_type="application/json")
IN_STREAMS = {
    OPENAI: raw('data: {"error": {"message": "no", "code": "rate_limit_exceeded"}}\n\n'),
    ANTHROPIC: raw(
        'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n'
    ),
    OLLAMA: raw('{"error": "out of memory"}\n', content_type="application/x-ndjson"),
}


@each_provider
async def test_an_error_is_the_one_of_our_own_client(model: str, serving: Serving) -> None:
    """LiteLLM has a 500 for a server that is not there, and a 400 for a line that it cannot read."""
    others = [IN_PLACE_OF_A_STREAM] if model == OPENAI else []
    for turn in (*FAILED, IN_STREAMS[model], *others):
        async with serving([turn] * 2) as server:
            async with OWN[model]("m", base_url=server.url, api_key=KEY, retries=None) as own:
                expected = await _error_of(own)
            assert await _error_of(client_of(model, server)) == expected, turn


@each_row("told", [raw("{}"), IN_STREAMS[OLLAMA], http_error(500), die_after(0, "Hi.")])
@each_row("turn", [*FAILED, raw("<html>")])
async def test_what_a_callback_is_answered_is_no_error_of_the_providers(
    told: Any, turn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a logger over HTTP, which LiteLLM calls before it raises an error."""

    class Logger(litellm.integrations.custom_logger.CustomLogger):  # type: ignore[misc]
        async def async_log_failure_event(self, **_given: Any) -> None:
            async with httpx.AsyncClient() as http:
                with contextlib.suppress(httpx.HTTPError):
                    await http.post(f"{log.url}/chat/completions", json={"model": "m"})

    async with openai_server([told]) as log, openai_server([turn] * 2) as server:
        client = client_of(OPENAI, server)
        expected = await _error_of(client, stream=False)
        monkeypatch.setattr(litellm, "_async_failure_callback", [Logger()])
        assert await _error_of(client, stream=False) == expected
        assert log.headers


async def _error_of(client: WireClient, *, stream: bool = True) -> tuple[Any, ...]:
    with pytest.raises(ClientError) as caught:
        await reply_of(client, HI, stream=stream)
    error = caught.value
    return type(error), error.retryable, getattr(error, "retry_after", None)


@each_provider
async def test_an_answer_that_litellm_cannot_read_is_told_as_that(
    model: str, serving: Serving
) -> None:
    """It is not asked for again: nobody knows what it cost."""
    async with serving([raw("<html>", content_type="application/json")]) as server:
        with pytest.raises(WireError, match="cannot read"):
            await client_of(model, server, retries=Retries(first_wait=0)).chat(HI)
        assert len(server.requests) == 1


@each_provider
@both
async def test_what_failed_is_asked_again_and_by_nobody_else(
    model: str, serving: Serving, stream: bool
) -> None:
    """One attempt is one request: neither LiteLLM nor an SDK below it makes more of them."""
    async with serving([http_error(500), http_error(429), TURN]) as server:
        client = client_of(model, server, retries=Retries(attempts=2, first_wait=0))
        with pytest.raises(RateLimitError, match="after 2 attempts"):
            await reply_of(client, ASKED, stream=stream)
        assert len(server.requests) == 2
        assert (await reply_of(client, ASKED, stream=stream)).finish == "tool_calls"


@both
async def test_a_server_that_is_slow_has_a_limit(stream: bool) -> None:
    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_it.append(writer)
        await asyncio.sleep(60)

    with_it: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        given = {"api_base": f"http://127.0.0.1:{port}/v1", "api_key": KEY}
        client = litellm_client(OPENAI, given=given, timeouts=Timeouts(read=0.2))
        with pytest.raises(ConnectionFailed, match="time limit") as caught:
            await reply_of(client, HI, stream=stream)
        assert (caught.value.retryable, len(with_it)) == (False, 1)
        with_it[0].transport.abort()


@both
@each_row("model", [OPENAI, ANTHROPIC, OLLAMA, "gemini/g", "mistral/m"])
async def test_a_server_that_is_not_there(stream: bool, model: str) -> None:
    given = {"api_base": "http://127.0.0.1:9/v1", "api_key": KEY}
    with pytest.raises(ConnectionFailed) as caught:
        await reply_of(litellm_client(model, given=given, retries=None), HI, stream=stream)
    assert caught.value.retryable


async def test_a_stream_that_is_left_is_closed() -> None:
    async with openai_server(
        ["A long text, of which nobody reads more than the beginning."]
    ) as server:
        parts = client_of(OPENAI, server).stream(HI)
        assert isinstance(await anext(parts), TextPart)
        await parts.aclose()  # type: ignore[attr-defined]


async def test_an_error_of_litellms_own_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(**_given: Any) -> Any:
        raise raised

    client = litellm_client(OPENAI, given={"api_key": KEY}, retries=None)
    monkeypatch.setattr(litellm, "acompletion", fails)
    raised: Exception = ValueError(KEY)
    with pytest.raises(RequestError, match=r"^LiteLLM sent no request \(ValueError\)$"):
        await client.chat(HI)
    raised = litellm.InternalServerError("no", llm_provider="sagemaker", model="m")
    with pytest.raises(ProviderError, match="HTTP 500"):  # which is asked by other means than httpx
        await client.chat(HI)
    raised = ModuleNotFoundError(KEY, name="fastapi")
    with pytest.raises(RequestError, match=r"request \(ModuleNotFoundError: fastapi\)$"):
        await client.chat(HI)


async def test_what_is_given_goes_with_every_request() -> None:
    heard: list[Any] = []
    given = {"extra_headers": {"X-Team": "shop"}, "logger_fn": heard.append, "api_key": KEY}
    async with openai_server(["Hi."]) as server:
        given["api_base"] = server.url
        client = litellm_client(OPENAI, given=given, settings=Settings(temperature=0.5))
        await client.chat(HI)
    assert server.headers[0]["x-team"] == "shop"
    assert server.requests[0]["temperature"] == 0.5
    assert heard


@each_row(
    ("model", "options", "says"),
    [
        ("nobody-knows-this", {}, "no provider for 'nobody-knows-this'"),
        (OPENAI, {"headers": {"X": "y"}}, "headers= cannot be used here"),
        (OPENAI, {"transport": object()}, "transport= cannot be used here"),
        (OPENAI, {"api_key": "k"}, "api_key= cannot be used here"),
        (OPENAI, {"base_url": "http://127.0.0.1:9"}, "base_url= cannot be used here"),
    ],
    ids=lambda row: None,
)
def test_what_cannot_be_is_refused_at_once(model: str, options: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        litellm_client(model, **options)


async def test_a_reply_that_no_provider_made_is_taken_as_it_is() -> None:
    """A reply of LiteLLM's own making has no body of a provider: what LiteLLM says counts."""
    client = litellm_client(OPENAI, given={"mock_response": "Hello.", "api_key": KEY})
    reply = await client.chat(HI)
    assert (reply.text, reply.finish) == ("Hello.", "stop")


@pytest.mark.exhaustive
def test_it_asks_the_network_nothing_on_its_own() -> None:
    """LiteLLM fetches price lists and more in its import and its first requests, unless told not to."""
    code = (
        "import socket\n"
        "def refuse(*_a, **_k): raise SystemExit('asked the network')\n"
        "socket.getaddrinfo = refuse\n"
        "import toolcrib.bridges.litellm as b\n"
        "from litellm.anthropic_beta_headers_manager import get_beta_headers_config as c\n"
        "c('https://example.com')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
