"""Cassettes, over real HTTP: what is replayed is what was recorded, and holds no key."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rows import each_row
from servers.anthropic import anthropic_server
from servers.bedrock import bedrock_server
from servers.gemini import gemini_server
from servers.mistral import mistral_server
from servers.ollama import ollama_server
from testing.cassette_helpers import Wired

from toolcrib import ALL, Agent, ContextOptions, Limits, RunResult, TextDelta, tool
from toolcrib.clients import (
    AiohttpTransport,
    AnthropicClient,
    BedrockClient,
    CohereClient,
    GeminiClient,
    MistralClient,
    OllamaClient,
    OpenAIClient,
    Outgoing,
    Response,
    Retries,
    WireClient,
)
from toolcrib.errors import (
    AuthenticationError,
    ConnectionFailed,
    RateLimitError,
    SourceError,
    ToolcribError,
)
from toolcrib.testing import Cassette, call, cassette, die_after, http_error, openai_server, raw
from toolcrib.testing.cassettes import Record
from toolcrib.testing.scripted import RawTurn, ServerTurn
from toolcrib.values.message import ChatRequest, Message

CANARY = "sk-canary-8f3b/52+e1d0=77"
SERVERS: dict[str, tuple[Any, Any]] = {
    "openai": (openai_server, OpenAIClient),
    "anthropic": (anthropic_server, AnthropicClient),
    "ollama": (ollama_server, OllamaClient),
    "mistral": (mistral_server, MistralClient),
    "bedrock": (bedrock_server, partial(BedrockClient, region="eu-west-1")),
}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def content(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def replaced(path: Path, old: str, new: str) -> None:
    path.write_text(content(path).replace(old, new), encoding="utf-8")


def glob(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tapes" / "one.json"


@tool(visible=ALL)
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def ask(client: WireClient, *, streaming: bool) -> tuple[RunResult, str]:
    agent = Agent(client, [double], instructions="Use the tool.")
    if not streaming:
        return await agent.run("double things"), ""
    async with agent.stream("double things") as stream:
        events = [event async for event in stream]
    text = "|".join(event.text for event in events if isinstance(event, TextDelta))
    return await stream.result(), text


def plain(result: RunResult) -> Any:
    """What a run came to, without what is another one each time: its id."""
    return (
        result.status,
        result.text,
        result.usage,
        [
            (m.role, m.content, [(c.name, c.arguments) for c in m.tool_calls])
            for m in result.messages
        ],
    )


TURNS: list[ServerTurn] = [
    ["let me see", call("double", n=1), call("double", n=2)],
    call("double", n="three"),
    [call("double", n=3)],
    "2, 4 und 6: das wär’s ✓",
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", SERVERS)
async def test_an_agent_gets_the_same_from_the_file(name: str, streaming: bool, path: Path) -> None:
    serve, make = SERVERS[name]
    with cassette(path, transport=(live := Wired(AiohttpTransport(), 17))) as tape:
        async with (
            serve(TURNS) as server,
            make("model", base_url=server.url, api_key=CANARY, transport=tape) as client,
        ):
            assert not tape.replaying
            recorded = await ask(client, streaming=streaming)
        assert content(path) == ""
    assert content(path)
    assert CANARY not in content(path)

    with cassette(path, record="none") as tape:
        again = Wired(tape, 0)
        assert (tape.replaying, tape.remaining) == (True, 4)
        client = make("model", base_url=NOWHERE + server.base, transport=again)
        replayed = await ask(client, streaming=streaming)
        assert tape.remaining == 0
    assert plain(replayed[0]) == plain(recorded[0])
    assert replayed[1] == recorded[1]
    assert again.pieces == live.pieces
    assert all(live.pieces)


@tool(visible=ALL)
async def report(number: int) -> str:
    """Give a long report."""
    return f"{number} " * 20_000


@tool(visible=ALL, background=True)
async def work(number: int) -> str:
    """Work for a while."""
    await asyncio.sleep(0.3)
    return f"{number} is done"


def body_of(**body: Any) -> RawTurn:
    return raw(json.dumps(body), content_type="application/json")


def reads(body: Any) -> Any:
    """Return a call that reads on in the last result."""
    [mark] = re.findall("r_[0-9a-f]+", body["messages"][-1]["content"])
    return call("read_result", id=mark, end=10)


ADDS = {"function": {"name": "double", "arguments": {"n": 1}}}
NAMELESS_CALL = {
    "message": {"role": "assistant", "tool_calls": [{"type": "function", **ADDS}]},
    "finish_reason": "tool_calls",
}
GEMINI_CALL = {"functionCall": {"name": "double", "args": {"n": 1}}}
NAMELESS: dict[str, tuple[Any, Any, list[Any]]] = {
    "a call without an id, of Ollama": (
        ollama_server,
        OllamaClient,
        [
            body_of(message={"role": "assistant", "tool_calls": [ADDS, ADDS]}, done=True),
            body_of(message={"role": "assistant", "content": "2"}, done=True),
        ],
    ),
    "calls without ids, of Gemini": (
        gemini_server,
        GeminiClient,
        [
            body_of(candidates=[{"content": {"parts": [GEMINI_CALL] * 2}, "finishReason": "STOP"}]),
            body_of(candidates=[{"content": {"parts": [{"text": "2"}]}, "finishReason": "STOP"}]),
        ],
    ),
    "a call without an id, where ids have nine characters": (
        openai_server,
        MistralClient,
        [body_of(choices=[NAMELESS_CALL]), "2"],
    ),
    "a call in the background": (
        openai_server,
        OpenAIClient,
        [call("work", number=1), "Wait.", "It is done."],
    ),
    "a result that is shortened": (
        openai_server,
        OpenAIClient,
        [call("report", number=1), reads, "Read."],
    ),
}


@pytest.mark.parametrize("kind", NAMELESS)
async def test_what_a_run_names_by_itself_is_no_difference(kind: str, path: Path) -> None:
    """Its own ids, which are others in each run, stand in its requests where no provider gave one."""
    serve, make, turns = NAMELESS[kind]

    async def program(url: str, tape: Cassette) -> Any:
        async with make("gemini-2.5-pro", base_url=url, transport=tape) as client:
            context = ContextOptions(tokens=8_000)
            result = await Agent(client, [double, report, work], context=context).run("Go.")
        return result.text, [(each.status, each.result) for each in result.records]

    with cassette(path, record="all") as tape:
        async with serve(turns) as server:
            recorded = await program(server.url, tape)
    with cassette(path, record="none") as tape:
        assert await program(server.url, tape) == recorded
        assert tape.remaining == 0


def once(url: str, tape: Cassette) -> WireClient:
    """A client that tries nothing twice."""
    keys = {"Authorization": f"Bearer {CANARY}"}
    return WireClient("openai-chat", "m", base_url=url, headers=keys, transport=tape, retries=None)


async def record_all(path: Path, turns: list[ServerTurn], **options: Any) -> None:
    """Each turn asked for once, the n-th by the prompt `n`; its error does not matter."""
    async with openai_server(turns) as server:
        with cassette(path, record="all", **options) as tape:
            async with once(server.url, tape) as client:
                for at in range(len(turns)):
                    await outcome(client, str(at))


@contextlib.contextmanager
def missing(path: Path, told: str) -> Iterator[Cassette]:
    """A replay that ends with a request that was not recorded."""
    with (
        pytest.raises(ToolcribError, match=re.escape(told)),
        cassette(path, record="none") as tape,
    ):
        yield tape


async def outcome(client: WireClient, prompt: str) -> Any:
    try:
        return (await client.tool_call(prompt)).reply.message.content
    except ToolcribError as error:
        return type(error), re.sub(r"http://127\.0\.0\.1:\d+(/v1)?", "…", str(error))


BINARY = bytes(range(256)) * 3


@pytest.mark.parametrize(
    "turn",
    [
        raw(b'{"choices": [\xe2\x82\xac', content_type="application/json"),
        raw(BINARY, content_type="application/octet-stream"),
        raw("data: {}\r\n\r\n\r\ndata:" + "ä€🙂" * 50 + "\x00\x1f\u2028\n"),
        raw(b""),
        raw(b"\xef\xbb\xbfhello"),
    ],
)
async def test_bytes_and_chunks_are_kept(turn: RawTurn, path: Path) -> None:
    live = Wired(AiohttpTransport(), 17)
    await record_all(path, [turn], transport=live)
    request = json.loads(content(path))["exchanges"][0]["request"]
    with cassette(path, record="none") as tape:
        response = await tape.send(
            Outgoing(
                method="POST",
                url="http://elsewhere/v1/chat/completions",
                headers={},
                body=json.dumps(request["body"]).encode(),
            )
        )
        assert response.status == 200
        assert response.headers["content-type"] == turn.content_type
        assert [data async for data in response.chunks()] == live.pieces[0]
        await response.aclose(whole=True)
    assert b"".join(live.pieces[0]) == turn.body


FAILURES: list[ServerTurn] = [
    die_after(0, "a text that is long enough"),
    die_after(70, "a text that is long enough"),
    http_error(401, "Incorrect API key provided"),
    http_error(429, "slow down", retry_after=7),
    http_error(500),
]


async def test_failures_are_replayed(path: Path) -> None:
    async with openai_server(FAILURES) as server:
        with cassette(path) as tape:
            async with once(server.url, tape) as client:
                recorded = [await outcome(client, str(at)) for at in range(len(FAILURES))]
    kinds = [kind for kind, _ in recorded]
    assert kinds[:4] == [ConnectionFailed, ConnectionFailed, AuthenticationError, RateLimitError]
    with cassette(path, record="none") as tape:
        client = once(server.url, tape)
        assert [await outcome(client, str(at)) for at in range(len(FAILURES))] == recorded
    with cassette(path, record="none") as tape:
        client = once(server.url, tape)
        with pytest.raises(RateLimitError) as limited:
            await client.tool_call("3")
    assert limited.value.retry_after == 7


async def test_a_server_that_is_not_there_is_replayed(path: Path) -> None:
    for mode in ("all", "none"):
        with cassette(path, record=mode) as tape:
            async with once(NOWHERE, tape) as client:
                with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:9: no connection"):
                    await client.tool_call("hi")


async def test_equal_requests_get_their_answers_one_after_the_other(path: Path) -> None:
    async with openai_server(["one", "two"]) as server:
        with cassette(path) as tape:
            async with OpenAIClient("m", base_url=server.url, transport=tape) as client:
                assert [await outcome(client, "go") for _ in "12"] == ["one", "two"]
    with missing(path, "was recorded 2×, but is now sent once more") as tape:
        client = OpenAIClient("m", base_url=server.url, transport=tape)
        assert [await outcome(client, "go") for _ in "12"] == ["one", "two"]
        await client.tool_call("go")


async def test_requests_side_by_side_are_recorded_in_the_order_of_sending(path: Path) -> None:
    def echo(body: dict[str, Any]) -> str:
        return f"to {body['messages'][-1]['content']}"

    async with openai_server([echo] * 8) as server:
        with cassette(path) as tape:
            async with OpenAIClient("m", base_url=server.url, transport=tape) as client:
                await asyncio.gather(*(client.tool_call(str(at)) for at in range(8)))
    with cassette(path) as tape:
        client = OpenAIClient("m", base_url=NOWHERE + "/v1", transport=tape)
        plans = await asyncio.gather(*(client.tool_call(str(at)) for at in reversed(range(8))))
    assert [plan.reply.text for plan in plans] == [f"to {at}" for at in reversed(range(8))]


async def test_what_was_not_recorded_says_what_differs_and_how_to_record(path: Path) -> None:
    await record_all(path, ["a", "b", "c"])
    told = (
        f"{path}: POST /v1/chat/completions was not recorded. Nearest is exchanges[1]: "
        '/messages/0/content: recorded "1", now "7". To record it: cassette(…, record="all"), '
        'pytest --toolcrib-record=all, or delete the file where record is "once"'
    )
    with missing(path, told) as tape:
        client = OpenAIClient("m", base_url=NOWHERE + "/v1", transport=tape)
        await outcome(client, "0")
        await client.tool_call("7")


async def test_a_miss_that_somebody_caught_is_told_in_the_end(path: Path) -> None:
    await record_all(path, ["a"])
    with missing(path, "was not recorded") as tape:
        client = OpenAIClient("other", base_url=NOWHERE + "/v1", transport=tape)
        kind, _ = await outcome(client, "0")
        assert kind is ToolcribError


@tool(visible=ALL)
async def rows(postgres: str, password: bool) -> int:
    """Count the rows of a database, of postgres or by a password."""
    return 3


SECRETS = [None, "postgres", "password", "database,"]


@each_row("there", SECRETS)
@each_row("here", SECRETS)
async def test_what_is_secret_on_one_machine_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, there: str | None, here: str | None
) -> None:
    """A word that is somebody's password there is any other word here."""

    async def program(url: str, tape: Cassette, secret: str | None, prompt: str) -> str:
        monkeypatch.delenv("DB_PASSWORD", raising=False)
        if secret is not None:
            monkeypatch.setenv("DB_PASSWORD", secret)
        client = OpenAIClient("m", base_url=url, api_key="none", transport=tape)
        return (await Agent(client, [rows]).run(prompt)).text

    said = "Is my postgres password postgres?"
    async with openai_server(["No."]) as server:
        with cassette(path, record="all") as tape:
            await program(server.url, tape, there, said)
            await tape.aclose()
    with cassette(path, record="none") as tape:
        assert await program(server.url, tape, here, said) == "No."
    for other in (f"{said} No?", f"No. {said}", "My postgres password?"):
        with pytest.raises(ToolcribError) as raised, cassette(path, record="none") as tape:
            await program(server.url, tape, here, other)
        told = str(raised.value)
        assert "was not recorded. Nearest is exchanges[0]: /messages/0/content: recorded" in told
        assert "/tools" not in told or None not in (here, there)


async def test_the_very_same_request_comes_before_one_with_masks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "tangerine")
    prompts = ["I like tangerine", "I like oranges"]
    async with openai_server(prompts) as server:
        with cassette(path, record="all") as tape:
            async with once(server.url, tape) as client:
                for prompt in prompts:
                    await outcome(client, prompt)
    with cassette(path, record="none") as tape:
        again = [await outcome(once(server.url, tape), prompt) for prompt in reversed(prompts)]
    assert again == ["I like oranges", "I like [key]"]


async def test_compare_says_what_has_to_be_the_same(path: Path) -> None:
    def without_model(body: Any) -> Any:
        del body["model"]
        return body

    await record_all(path, ["a"], compare=without_model)
    with cassette(path, compare=without_model) as tape:
        client = OpenAIClient("other", base_url=NOWHERE + "/v1", transport=tape)
        assert await outcome(client, "0") == "a"
    with missing(path, 'Nearest is exchanges[0]: /model: recorded "m", now "other". To') as tape:
        await outcome(OpenAIClient("other", base_url=NOWHERE + "/v1", transport=tape), "0")


@pytest.mark.parametrize(
    ("make", "variable"),
    [
        (OpenAIClient, "OPENAI_API_KEY"),
        (AnthropicClient, "ANTHROPIC_API_KEY"),
        (GeminiClient, "GEMINI_API_KEY"),
        (MistralClient, "MISTRAL_API_KEY"),
        (CohereClient, "CO_API_KEY"),
    ],
)
async def test_no_key_is_needed_while_it_replays(
    make: Callable[..., WireClient], variable: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        variable,
        "GOOGLE_API_KEY",
        "COHERE_API_KEY",
        "OPENAI_BASE_URL",
        "ANTHROPIC_BASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    with cassette(path) as tape, pytest.raises(AuthenticationError, match="there is no API key"):
        make("m", transport=tape)
    assert content(path) == ""  # nothing was recorded
    with cassette(path, record="none") as tape:
        make("m", transport=tape)
        assert os.environ[variable] == "replay"
    assert variable not in os.environ
    monkeypatch.setenv(variable, "mine")
    with cassette(path, record="none"):
        assert os.environ[variable] == "mine"
    assert os.environ[variable] == "mine"


def test_no_key_is_needed_until_the_last_of_several_has_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    first, second = (cassette(tmp_path / name, record="none") for name in ("a.json", "b.json"))
    with contextlib.ExitStack() as stack:
        with first:
            stack.enter_context(second)
        OpenAIClient("m", transport=second)
    assert "OPENAI_API_KEY" not in os.environ


async def test_no_credentials_are_needed_while_it_replays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key nothing is signed: the request gets to the tape, which has no answer to it."""
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    replayed = pytest.raises(ToolcribError, match="converse cannot be replayed")
    with replayed, cassette(path, record="none") as tape:
        client = BedrockClient("m", region="us-east-1", transport=tape)
        await client.tool_call("Hi")


@pytest.mark.parametrize(
    "stop", [RuntimeError("no"), KeyboardInterrupt(), asyncio.CancelledError()]
)
async def test_a_block_that_fails_leaves_the_file_as_it_was(
    stop: BaseException, path: Path
) -> None:
    await record_all(path, ["old"])
    before = content(path)

    async def fails(tape: Cassette, url: str) -> None:
        with tape:
            async with once(url, tape) as client:
                assert await outcome(client, "0") == "new"
            raise stop

    async with openai_server(["new"]) as server:
        with pytest.raises(type(stop)):
            await fails(cassette(path, record="all"), server.url)
    assert content(path) == before
    assert glob(path.parent) == [path]


async def test_an_answer_that_was_not_read_to_its_end(path: Path) -> None:
    request = ChatRequest((Message.user("go"),))

    async def first_part(client: WireClient) -> Any:
        async with contextlib.aclosing(client.stream(request)) as parts:  # type: ignore[type-var]
            return await anext(parts)

    async with openai_server(["a long text " * 2_000]) as server:
        with cassette(path) as tape:
            async with OpenAIClient("m", base_url=server.url, transport=tape) as client:
                recorded = await first_part(client)
    assert json.loads(content(path))["exchanges"][0]["response"]["left"]
    client = OpenAIClient("m", base_url=server.url, transport=tape)
    with tape:
        assert await first_part(client) == recorded
    with pytest.raises(ToolcribError, match="did not read an answer to its end"), tape:
        assert [part async for part in client.stream(request)] == []


class Stalls:
    """Sends requests on, and gives the first bytes of the answer, or nothing of it."""

    def __init__(self, inner: AiohttpTransport, after: int) -> None:
        self.inner, self.after = inner, after

    async def send(self, request: Outgoing) -> Any:
        response: Any = await self.inner.send(request)
        if not self.after:
            await response.aclose(whole=False)
            await asyncio.Event().wait()
        chunks = response.chunks

        async def first() -> AsyncIterator[bytes]:
            async for data in chunks():
                yield data[: self.after]
                await asyncio.Event().wait()

        response.chunks = first
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


async def record_stalled(
    path: Path, after: int, program: Callable[[Agent], Any]
) -> tuple[str, Any]:
    async with openai_server(["a long text " * 2_000]) as server:
        with cassette(path, transport=Stalls(AiohttpTransport(), after)) as tape:
            async with OpenAIClient("m", base_url=server.url, transport=tape) as client:
                return server.url, await program(Agent(client, []))


async def out_of_time(agent: Agent) -> Any:
    timed = Agent(agent.client, [], limits=Limits(seconds=0.3))
    result = await timed.run("go")
    return result.status, result.limit


async def out_of_time_in_a_stream(agent: Agent) -> Any:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3), agent.stream("go") as stream:
            return [event.text async for event in stream if isinstance(event, TextDelta)]
    return "too late"


async def left_at_its_first_text(agent: Agent) -> Any:
    async with agent.stream("go") as stream:
        return await anext(aiter(stream.text()))


@pytest.mark.parametrize(
    ("after", "program"),
    [
        (0, out_of_time),
        (0, out_of_time_in_a_stream),
        (300, out_of_time),
        (300, out_of_time_in_a_stream),
        (300, left_at_its_first_text),
    ],
)
async def test_who_left_while_it_was_recorded_leaves_when_it_is_replayed(
    path: Path, after: int, program: Callable[[Agent], Any]
) -> None:
    url, recorded = await record_stalled(path, after, program)
    with cassette(path, record="none") as tape:
        client = OpenAIClient("m", base_url=url, transport=tape)
        assert await program(Agent(client, [])) == recorded
        assert tape.remaining == 0


async def test_who_now_waits_for_what_was_given_up_is_told(path: Path) -> None:
    url, _ = await record_stalled(path, 0, out_of_time)
    error = pytest.raises(ToolcribError, match="gave up a request in the recording, but now")
    with error, cassette(path, record="none") as tape:
        await OpenAIClient("m", base_url=url, transport=tape).tool_call("go")


def test_modes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaying(**options: Any) -> bool:
        with cassette(path, **options) as tape:
            return tape.replaying

    assert [replaying(record=mode) for mode in ("once", "none", "all")] == [False, True, False]
    assert not replaying()
    monkeypatch.setenv("CI", "true")
    assert replaying()
    path.parent.mkdir()
    path.write_text('{"toolcrib_cassette": 1, "exchanges": []}', encoding="utf-8")
    assert replaying(record="once")
    with pytest.raises(ToolcribError, match="there are: once, none, all"):
        cassette(path, record="new")  # type: ignore[arg-type]


async def test_outside_of_its_block_it_does_nothing(path: Path) -> None:
    tape = cassette(path)
    client = OpenAIClient("m", base_url=NOWHERE, transport=tape, retries=Retries(first_wait=0))
    with pytest.raises(ToolcribError, match="is not in use: open it with"):
        await client.tool_call("hi")
    with tape, pytest.raises(ToolcribError, match="no connection"):
        await client.tool_call("hi")
    await client.aclose()
    with pytest.raises(ToolcribError, match="is not in use"):
        await client.tool_call("hi")


async def test_without_a_file_a_replay_says_so(path: Path) -> None:
    with missing(path, "cannot be replayed: the file does not exist. To record it") as tape:
        await OpenAIClient("m", base_url=NOWHERE, transport=tape).tool_call("hi")


def test_a_file_that_is_none_is_told_at_the_beginning(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(SourceError, match="cannot be read"), cassette(path, record="none"):
        pytest.fail("it began")


class Hanging:
    """A transport without an end, and one that fails without a word."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    async def send(self, request: Outgoing) -> Response:
        if self.failure is not None:
            raise self.failure
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        """There is nothing to free."""


class Answered:
    """A transport whose answers have no body."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers

    async def send(self, request: Outgoing) -> Response:
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        chunks: list[bytes] = []
        for data in chunks:
            yield data

    async def aclose(self, *, whole: bool = True) -> None:
        """There is nothing to free."""


async def test_what_was_still_under_way_is_not_recorded(path: Path) -> None:
    await record_all(path, ["old"])
    before = json.loads(content(path))["exchanges"]
    with cassette(path, record="all", transport=Hanging()) as tape:
        task = asyncio.create_task(once(NOWHERE, tape).tool_call("hi"))
        await asyncio.sleep(0)
    assert json.loads(content(path))["exchanges"] == before
    task.cancel()
    with cassette(path, record="all", transport=Hanging(ConnectionFailed(""))) as tape:
        assert await outcome(once(NOWHERE, tape), "0") == (ConnectionFailed, "")
    with cassette(path, record="none") as tape:
        assert (await outcome(once(NOWHERE, tape), "0"))[0] is ConnectionFailed


@pytest.mark.parametrize("failure", [AuthenticationError("no key"), ValueError("x")])
async def test_what_is_no_failure_of_the_connection_is_not_recorded(
    failure: Exception, path: Path
) -> None:
    with cassette(path, transport=Hanging(failure)) as tape, pytest.raises(type(failure)):
        await once(NOWHERE, tape).tool_call("hi")
    assert content(path) == ""


async def test_what_is_not_worth_another_attempt_is_not_on_replay(path: Path) -> None:
    slow = ConnectionFailed("it did not answer within the time limit")
    slow.retryable = False
    for mode in ("all", "none"):
        with cassette(path, record=mode, transport=Hanging(slow)) as tape:
            client = OpenAIClient("m", base_url=NOWHERE, api_key="x", transport=tape)
            with pytest.raises(ConnectionFailed, match=r"within the time limit$") as failed:
                await client.tool_call("hi")
            assert not failed.value.retryable


async def test_a_date_to_wait_for_is_not_past_on_replay(path: Path) -> None:
    later = email.utils.formatdate(time.time() + 3600, usegmt=True)
    refused = Answered(429, {"Retry-After": later, "Set-Cookie": "canary", "X-Request-Id": "1"})
    with cassette(path, transport=refused) as tape:
        assert (await outcome(once(NOWHERE, tape), "0"))[0] is RateLimitError
    (exchange,) = json.loads(content(path))["exchanges"]
    assert list(exchange["response"]["headers"]) == ["retry-after"]
    assert 3590 <= int(exchange["response"]["headers"]["retry-after"]) <= 3601


async def test_headers_that_were_written_by_hand(path: Path) -> None:
    await record_all(path, [http_error(429, "slow down", retry_after=7)])
    replaced(path, '"retry-after"', '"Retry-After"')
    with cassette(path) as tape, pytest.raises(RateLimitError) as limited:
        await once(NOWHERE + "/v1", tape).tool_call("0")
    assert limited.value.retry_after == 7


async def test_the_same_request_to_two_servers(path: Path) -> None:
    async with openai_server(["one"]) as one, openai_server(["two"]) as two:
        with cassette(path) as tape:
            for server in (one, two):
                async with once(server.url, tape) as client:
                    await client.tool_call("go")
    with cassette(path) as tape:
        answers = [await outcome(once(server.url, tape), "go") for server in (two, one)]
    assert answers == ["two", "one"]


@pytest.mark.parametrize(
    ("compare", "told"),
    [(lambda body: body.clear(), "a return missing"), (set, "that JSON can")],
)
async def test_compare_that_compares_nothing(
    compare: Callable[[Any], Any], told: str, path: Path
) -> None:
    await record_all(path, ["a"])
    with pytest.raises(ToolcribError, match=told), cassette(path, compare=compare):
        pytest.fail("it began")


async def test_compare_gets_no_body_where_there_is_none(path: Path) -> None:
    request = Outgoing(method="GET", url="http://host/v1/models", headers={}, body=b"")
    for _ in range(2):
        with cassette(
            path, transport=Answered(204, {}), compare=lambda body: body["model"]
        ) as tape:
            response = await tape.send(request)
            assert [data async for data in response.chunks()] == []
            assert response.status == 204


def test_where_no_file_can_be_is_told_before_anything_is_asked(path: Path) -> None:
    path.parent.write_text("a file", encoding="utf-8")
    with pytest.raises(SourceError, match="cannot be written"), cassette(path):
        pytest.fail("it began")
    with pytest.raises(SourceError, match="cannot be"), cassette(path.parents[1], record="all"):
        pytest.fail("it began")


def test_a_block_within_its_own_block(path: Path) -> None:
    with cassette(path) as tape:
        with pytest.raises(ToolcribError, match="already in use"), tape:
            pytest.fail("it began")
        assert not tape.replaying


async def test_a_folder_that_changes_leaves_the_file_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    modes: tuple[Record, ...] = ("all", "none")
    for record in modes:
        monkeypatch.chdir(tmp_path)
        async with openai_server(["one"]) as server:
            with cassette("tape.json", record=record) as tape:
                monkeypatch.chdir(elsewhere)
                async with OpenAIClient("m", base_url=server.url, transport=tape) as client:
                    assert await outcome(client, "go") == "one"
    found = await asyncio.to_thread(lambda: sorted(path.name for path in tmp_path.rglob("*")))
    assert found == ["elsewhere", "tape.json"]
