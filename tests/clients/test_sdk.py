"""The providers' own client objects as transports, against servers on this machine."""

from __future__ import annotations

import asyncio
import base64
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import openai
import orjson
import pytest
from aiohttp import web
from rows import each_row
from servers.anthropic import AnthropicServer, anthropic_server

from toolcrib import Agent
from toolcrib.clients import AiohttpTransport, AnthropicClient, OpenAIClient, Retries, Timeouts
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    OverloadedError,
    RateLimitError,
    RequestError,
    WireError,
)
from toolcrib.testing import call, die_after, http_error, openai_server
from toolcrib.testing.scripted import OpenAIServer, RawTurn, serving
from toolcrib.values.message import ChatRequest, Message, Reply, Settings, TextPart, Usage

HI = ChatRequest((Message.user("Hi"),), id_prefix="r_")
TURN: list[Any] = ["Let me see. ", call("f", n=1, x=1.5)]
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ask(client: OpenAIClient | AnthropicClient, *, stream: bool) -> Reply:
    if not stream:
        return await client.chat(HI)
    *parts, last = [part async for part in client.stream(HI)]
    assert isinstance(last, Reply)
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == last.text
    return last


@both
async def test_openai(stream: bool) -> None:
    async with (
        openai_server([TURN, TURN]) as server,
        openai.AsyncOpenAI(api_key="sk-of-the-sdk", base_url=server.url) as sdk,
    ):
        client = OpenAIClient("m", sdk=sdk)
        reply = await ask(client, stream=stream)
        await client.aclose()
        assert (await ask(client, stream=stream)).text == "Let me see. "
    assert [made.arguments for made in reply.tool_calls] == [
        '{"n":1,"x":1.5}']  # fmt: skip
    assert (reply.text, reply.usage) == ("Let me see. ", Usage(1, 11, 7))
    assert server.headers[0]["authorization"] == "Bearer sk-of-the-sdk"
    assert "AsyncOpenAI" in server.headers[0]["user-agent"]
    assert server.requests[0].get("stream", False) is stream


@both
async def test_anthropic(stream: bool) -> None:
    async with (
        anthropic_server([TURN]) as server,
        anthropic.AsyncAnthropic(api_key="sk-of-the-sdk", base_url=server.url) as sdk,
    ):
        reply = await ask(AnthropicClient("m", sdk=sdk), stream=stream)
    assert [(made.name, made.complete) for made in reply.tool_calls] == [("f", True)]
    assert server.headers[0]["authorization"] == "Bearer sk-of-the-sdk"  # as the SDK has it
    assert server.headers[0]["anthropic-version"] == "2023-06-01"


class Anywhere(OpenAIServer):
    """Takes every path, and notes it; `judge` is another server's."""

    def __init__(self, turns: Any, kind: type[OpenAIServer] = OpenAIServer) -> None:
        super().__init__(turns)
        self.paths: list[str] = []
        self._kind = kind

    base = ""
    path = "/{path:.*}"

    def fault(self, body: Any) -> str | None:
        return None

    def answer(self, turn: Any, *, number: int, stream: bool) -> Any:
        return self._kind([]).answer(turn, number=number, stream=stream)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path_qs)
        return await super().handle(request)


def url_of(server: Anywhere) -> str:
    return server.url.removesuffix("/{path:.*}")


@both
async def test_azure(stream: bool) -> None:
    async with (
        serving(Anywhere([TURN])) as server,
        openai.AsyncAzureOpenAI(
            azure_endpoint=url_of(server), api_version="2024-10-21", azure_ad_token="t0k"
        ) as sdk,
    ):
        reply = await ask(OpenAIClient("gpt-x", sdk=sdk), stream=stream)
    assert reply.finish == "tool_calls"
    path = "/openai/deployments/gpt-x/chat/completions?api-version=2024-10-21"
    assert server.paths == [path]
    assert server.headers[0]["authorization"] == "Bearer t0k"


@both
async def test_vertex(stream: bool) -> None:
    async with (
        serving(Anywhere([TURN], AnthropicServer)) as server,
        anthropic.AsyncAnthropicVertex(
            region="r", project_id="p", access_token="t0k", base_url=url_of(server)
        ) as sdk,
    ):
        reply = await ask(AnthropicClient("claude-x", sdk=sdk), stream=stream)
    assert reply.finish == "tool_calls"
    way = "streamRawPredict" if stream else "rawPredict"
    path = f"/projects/p/locations/r/publishers/anthropic/models/claude-x:{way}"
    assert server.paths == [path]
    assert server.headers[0]["authorization"] == "Bearer t0k"
    assert "model" not in server.requests[0]
    assert server.requests[0]["anthropic_version"]


def frame(payload: bytes, **headers: str) -> bytes:
    """One frame: https://smithy.io/2.0/aws/amazon-eventstream.html"""
    packed = b"".join(
        bytes([len(name) + 1]) + b":" + name.replace("_", "-").encode()
        + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in headers.items()
    )  # fmt: skip
    head = struct.pack(">II", 16 + len(packed) + len(payload), len(packed))
    data = head + struct.pack(">I", zlib.crc32(head)) + packed + payload
    return data + struct.pack(">I", zlib.crc32(data))


class Bedrock(Anywhere):
    """Anthropic's events in AWS's frames."""

    def answer(self, turn: Any, *, number: int, stream: bool) -> Any:
        if "invoke-with-response-stream" not in self.paths[-1]:
            return AnthropicServer([]).answer(turn, number=number, stream=False)
        made = AnthropicServer([]).answer(turn, number=number, stream=True)
        lines = [line[6:] for line in made.body.split(b"\n") if line.startswith(b"data: ")]
        body = b"".join(
            frame(
                orjson.dumps({"bytes": base64.b64encode(line).decode(), "p": "abc"}),
                event_type="chunk",
                message_type="event",
            )
            for line in lines
        )
        return type(made)(body, content_type="application/vnd.amazon.eventstream")


@both
async def test_bedrock(stream: bool) -> None:
    async with (
        serving(Bedrock([TURN])) as server,
        anthropic.AsyncAnthropicBedrock(
            aws_region="r", api_key="t0k", base_url=url_of(server)
        ) as sdk,
    ):
        reply = await ask(AnthropicClient("claude-x", sdk=sdk), stream=stream)
    assert (reply.text, reply.finish) == ("Let me see. ", "tool_calls")
    way = "invoke-with-response-stream" if stream else "invoke"
    assert server.paths == [f"/model/claude-x/{way}"]
    assert server.headers[0]["authorization"] == "Bearer t0k"


async def test_bedrock_breaks_off() -> None:
    class Throttled(Bedrock):
        def answer(self, turn: Any, *, number: int, stream: bool) -> Any:
            made = super().answer(turn, number=number, stream=stream)
            said = orjson.dumps({"message": "slow down"})
            end = frame(said, exception_type="throttlingException", message_type="exception")
            return type(made)(end, content_type="application/vnd.amazon.eventstream")

    async with (
        serving(Throttled([TURN])) as server,
        anthropic.AsyncAnthropicBedrock(
            aws_region="r", api_key="t0k", base_url=url_of(server)
        ) as sdk,
    ):
        client = AnthropicClient("claude-x", sdk=sdk, retries=None)
        with pytest.raises(RateLimitError, match="slow down"):
            await ask(client, stream=True)


class Saying(Bedrock):
    """Says `bodies`, one an answer, as the transport's whole body; None for what Bedrock would say."""

    def __init__(self, bodies: Sequence[bytes | None]) -> None:
        super().__init__([TURN] * len(bodies))
        self.whole = b""
        self._bodies = iter(bodies)

    def answer(self, turn: Any, *, number: int, stream: bool) -> Any:
        made = super().answer(turn, number=number, stream=stream)
        self.whole = made.body
        body = next(self._bodies)
        return type(made)(self.whole if body is None else body, content_type=made.content_type)


async def of_bedrock(*bodies: bytes | None) -> tuple[list[Reply | ClientError], bytes]:
    """What is read of each body, and what Bedrock would have said."""
    read: list[Reply | ClientError] = []
    async with (
        serving(Saying(bodies)) as server,
        anthropic.AsyncAnthropicBedrock(
            aws_region="r", api_key="t0k", base_url=url_of(server)
        ) as sdk,
    ):
        client = AnthropicClient("claude-x", sdk=sdk, retries=None)
        for _ in bodies:
            try:
                read.append(await ask(client, stream=True))
            except ClientError as error:
                read.append(error)
        return read, server.whole


async def test_a_torn_frame_behind_an_sdk_ends_the_reply() -> None:
    """Bodies that are cut anywhere, and of which the transport says that they are whole."""
    [reply], whole = await of_bedrock(None)
    assert isinstance(reply, Reply)
    ran = [(made.name, made.arguments, made.complete) for made in reply.tool_calls]
    assert ran == [("f", '{"n":1,"x":1.5}', True)]
    ends = [0]
    while ends[-1] < len(whole):
        ends.append(ends[-1] + int.from_bytes(whole[ends[-1] : ends[-1] + 4]))
    cuts = sorted({*range(0, len(whole), 97), *ends[:-1], *range(ends[-2], len(whole), 9)})
    read, _ = await of_bedrock(*(whole[:cut] for cut in cuts))
    for cut, given in zip(cuts, read, strict=True):
        if cut not in ends:
            assert isinstance(given, ConnectionFailed), (cut, given)
            assert "broke in the middle of the reply" in str(given)
        elif isinstance(given, Reply):  # between two frames it is for the wire to say
            calls = [(c.name, c.arguments, c.complete) for c in given.tool_calls if c.complete]
            assert not calls or (calls == ran and cut == ends[-2]), cut


async def test_a_damaged_frame_behind_an_sdk_ends_the_reply() -> None:
    """One bit that is another one, in heads, headers, payloads and checksums."""
    _, whole = await of_bedrock(None)
    places = range(3, len(whole), 41)
    damaged = (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places)
    read, _ = await of_bedrock(*damaged)
    for at, given in zip(places, read, strict=True):
        assert isinstance(given, WireError | ConnectionFailed), (at, given)


@both
@each_row(
    ("status", "kind"),
    [
        (400, RequestError),
        (401, AuthenticationError),
        (429, RateLimitError),
        (529, OverloadedError),
    ],
)
async def test_refusals_are_ours_and_retries_too(
    status: int, kind: type[Exception], stream: bool
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with (
        openai_server([http_error(status, "because", retry_after=3)] * 2) as server,
        openai.AsyncOpenAI(api_key="k", base_url=server.url) as sdk,
    ):
        client = OpenAIClient("m", sdk=sdk, retries=Retries(attempts=2, sleep=sleep))
        with pytest.raises(kind, match="because") as caught:
            await ask(client, stream=stream)
        assert caught.value.__context__ is None
        assert len(server.requests) == 1 + len(waits)
    assert len(waits) == (1 if status in (429, 529) else 0)
    assert all(3 <= seconds <= 3.5 for seconds in waits)


@both
@pytest.mark.parametrize("after", [0, 60])
async def test_a_server_that_dies(stream: bool, after: int) -> None:
    async with (
        openai_server([die_after(after, TURN)]) as server,
        openai.AsyncOpenAI(api_key="k", base_url=server.url) as sdk,
    ):
        with pytest.raises(ConnectionFailed) as caught:
            await ask(OpenAIClient("m", sdk=sdk, retries=None), stream=stream)
        assert caught.value.__context__ is None
        assert len(server.requests) == 1


@both
@pytest.mark.parametrize("status", [401, 503])
async def test_a_server_that_dies_in_the_middle_of_an_error(status: int, stream: bool) -> None:
    async with (
        openai_server([die_after(20, http_error(status, "because")), TURN]) as server,
        openai.AsyncOpenAI(api_key="k", base_url=server.url) as sdk,
    ):
        client = OpenAIClient("m", sdk=sdk, retries=Retries(first_wait=0))
        assert (await ask(client, stream=stream)).text == "Let me see. "


@pytest.mark.parametrize(
    ("sdk", "written"),
    [
        (openai.AsyncOpenAI(api_key="k"), "OpenAIClient(NAME, sdk=…)"),
        (openai.AsyncOpenAI, "OpenAIClient(NAME, sdk=…)"),
        (anthropic.AsyncAnthropic(api_key="k"), "AnthropicClient(NAME, sdk=…)"),
    ],
)
def test_an_agent_says_how_it_takes_such_an_object(sdk: Any, written: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f": write {written}, of toolcrib.clients")):
        Agent(sdk)


async def test_a_key_goes_to_no_other_server() -> None:
    async with anthropic_server([TURN]) as other:
        elsewhere = RawTurn(b"", 307, "text/plain", {"Location": f"{other.url}/v1/messages"})
        async with (
            anthropic_server([elsewhere]) as server,
            anthropic.AsyncAnthropic(api_key="sk-of-the-sdk", base_url=server.url) as sdk,
        ):
            with pytest.raises(WireError, match=r"HTTP 307.*Check the base URL"):
                await AnthropicClient("m", sdk=sdk).chat(HI)
        assert other.headers == []


async def test_nobody_listens() -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1") as sdk:
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:9: no connection"):
            await OpenAIClient("m", sdk=sdk, retries=None).chat(HI)


async def test_an_sdk_that_is_closed_already() -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1") as sdk:
        client = OpenAIClient("m", sdk=sdk)
    with pytest.raises(RequestError, match="AsyncOpenAI is already closed") as caught:
        await client.chat(HI)
    assert caught.value.__context__ is None


@both
async def test_a_slow_server_is_not_asked_twice(stream: bool) -> None:
    asked: list[asyncio.Task[Any] | None] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(asyncio.current_task())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with openai.AsyncOpenAI(api_key="k", base_url=url, timeout=0.05) as sdk:
            with pytest.raises(ConnectionFailed, match=r"time limit$") as caught:
                await ask(OpenAIClient("m", sdk=sdk), stream=stream)
    await asyncio.gather(*(task for task in asked if task is not None))
    assert not caught.value.retryable
    assert len(asked) == 1


async def test_a_key_that_only_the_sdk_has_is_hidden() -> None:
    key = "0123456789/canary+of+azure=="
    async with (
        openai_server([http_error(401, f"no access for {key}.")]) as server,
        openai.AsyncOpenAI(api_key=key, base_url=server.url) as sdk,
    ):
        with pytest.raises(AuthenticationError, match=r"no access for \[key\]"):
            await OpenAIClient("m", sdk=sdk).chat(HI)


async def test_what_only_the_sdks_requests_hold_is_hidden() -> None:
    """A token that it fetches itself, a header and a member of the query that it always sends."""
    token, header, member = "tok/en+of+entra==canary", "gate+way/canary=", "que/ry+canary="
    told = f"CPython: no access for {token} at {header} with {member}."
    async with (
        serving(Anywhere([http_error(401, told)])) as server,
        openai.AsyncAzureOpenAI(
            azure_endpoint=url_of(server),
            api_version="2024-10-21",
            azure_ad_token_provider=lambda: token,
            default_headers={"x-gateway": header},
            default_query={"code": member},
        ) as sdk,
    ):
        with pytest.raises(AuthenticationError, match="CPython: no access for") as caught:
            await OpenAIClient("m", sdk=sdk).chat(HI)
    assert "canary" not in str(caught.value)


async def test_a_key_for_another_server_in_a_request_is_masked() -> None:
    """The provider asks remote MCP servers with it, and may repeat it when they refuse."""
    token, header, member = "mcp/tok+canary==", "hdr+canary/1", "query+canary/9"
    server_tool: dict[str, Any] = {
        "type": "mcp",
        "server_url": "https://mcp.example/sse?k=query%2Bcanary/9",
        "authorization": token,
        "headers": {"X-Gate": header},
    }
    told = f"https://mcp.example/sse: refused {token}, {header} and k={member}."
    settings = Settings(
        provider_tools=(server_tool,), extra={"mcp_servers": [{"authorization_token": token}]}
    )
    async with serving(Anywhere([http_error(424, told)])) as server:
        client = OpenAIClient("m", retries=None, base_url=url_of(server), settings=settings)
        with pytest.raises(
            ClientError, match=r"https://mcp.example/sse: refused \[key\]"
        ) as caught:
            await client.chat(HI)
        await client.aclose()
    assert "canary" not in str(caught.value)


async def test_an_sdk_that_cannot_authenticate() -> None:
    def no_token() -> str:
        raise OSError("the canary is in here")

    async with openai.AsyncAzureOpenAI(
        azure_endpoint="http://127.0.0.1:9", api_version="x", azure_ad_token_provider=no_token
    ) as sdk:
        with pytest.raises(AuthenticationError, match=r"AsyncAzureOpenAI.*\(OSError\)") as caught:
            await OpenAIClient("m", sdk=sdk).chat(HI)
    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None


WRONG: dict[str, Callable[[Any], Any]] = {
    "base_url=": lambda sdk: OpenAIClient("m", sdk=sdk, base_url="http://h/"),
    "api_key=": lambda sdk: OpenAIClient("m", sdk=sdk, api_key="k"),
    "transport=": lambda sdk: OpenAIClient("m", sdk=sdk, transport=AiohttpTransport()),
    "timeouts=": lambda sdk: OpenAIClient("m", sdk=sdk, timeouts=Timeouts()),
    "is synchronous": lambda _: OpenAIClient("m", sdk=openai.OpenAI(api_key="k")),
    "takes a client of": lambda _: OpenAIClient("m", sdk=object()),  # type: ignore[arg-type]
}


@each_row("said", WRONG)
async def test_what_is_no_such_client(said: str) -> None:
    async with openai.AsyncOpenAI(api_key="k") as sdk:
        with pytest.raises(RequestError, match=said):
            WRONG[said](sdk)
