"""The client: what it answers to what, with the engine stood in for, and with the real one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from toolcrib import Agent, kit, tool
from toolcrib.clients.local import LocalClient
from toolcrib.clients.local import client as client_module
from toolcrib.clients.local import model as model_module
from toolcrib.clients.local.client import NO_EXAMPLES, NO_FIT, NO_REQUEST, NO_TOOLS
from toolcrib.clients.local.model import Completion, GivenUpError, Model, until_given_up
from toolcrib.errors import ErrorCode, MissingExtraError, ProviderError, RequestError, SourceError
from toolcrib.values.call import Hydrated, ToolCall
from toolcrib.values.content import File, Image, Link
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    LLMClient,
    Message,
    Reply,
    Settings,
    TextPart,
    ToolChoice,
    Usage,
)

if find_spec("xllamacpp") is None or find_spec("wordllama") is None:
    pytest.skip("the extra `local` is not installed", allow_module_level=True)

KIT = kit.catalog()
SUM = "What is 23*17+5?"


@tool(
    visible=[],
    examples=[
        ("Three plus four", {"expression": "3 + 4"}),
        ("What is nine times two?", {"expression": "9 * 2"}),
    ],
)
def note(expression: str) -> str:
    """Note an expression: only the model can do it, as the examples' values are not in the requests."""
    return expression


NOTE = ToolChoice("tool", "note")


class Engine:
    """Writes the same arguments for everything, and keeps what it was asked."""

    def __init__(self, text: str = ' {"expression": "1"}', *, whole: bool = True) -> None:
        self.answer = Completion(text, whole, 90, 12)
        self.asked: list[JsonObject] = []

    def complete(self, body: JsonObject, given_up: threading.Event) -> Completion:
        assert threading.current_thread() is not threading.main_thread()
        assert not given_up.is_set()
        self.asked.append(body)
        return self.answer


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalClient]:
    """Makes a client whose engine is a stand-in."""

    def make(engine: Engine | None = None, **options: Any) -> LocalClient:
        monkeypatch.setattr(client_module, "model_at", lambda _path: engine or Engine())
        path = tmp_path / "small.gguf"
        path.touch()
        return LocalClient(path, **options)

    return make


def asking(text: str, *more: Message, **options: Any) -> ChatRequest:
    return ChatRequest((Message.system("Be kind."), Message.user(text), *more), **options)


async def test_a_call(local: Callable[..., LocalClient]) -> None:
    engine = Engine()
    client = local(engine)
    assert isinstance(client, LLMClient)
    assert client.model == "local:small"
    reply = await client.chat(asking(SUM, tools=(*KIT, note), tool_choice=NOTE, id_prefix="run_3_"))
    call = ToolCall("run_3_0", "note", '{"expression": "1"}')
    assert reply.message == Message.assistant("", (call,))
    assert reply.finish == "tool_calls"
    assert reply.usage == Usage(1, 90, 12)
    assert set(reply.offer.tools) == {*KIT.names, "note"}
    assert f"Request: {SUM}\nArguments:" in str(engine.asked[0]["prompt"])


async def test_what_reads_as_an_example_needs_no_model(local: Callable[..., LocalClient]) -> None:
    engine = Engine()
    reply = await local(engine).chat(asking(SUM, tools=tuple(KIT)))
    assert [call.arguments for call in reply.tool_calls] == ['{"expression": "23*17+5"}']
    assert engine.asked == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Convert 12 km", "convert_units"),
        ("What is 8 times 9, and then the third root of it?", "calculate"),
    ],
)
async def test_it_asks_back_when_in_doubt(
    local: Callable[..., LocalClient], text: str, expected: str
) -> None:
    reply = await local(Engine('{"expression": "8 * 10"}')).chat(asking(text, tools=tuple(KIT)))
    assert reply.tool_calls == ()
    assert expected in reply.text
    assert reply.text.endswith("?")


async def test_a_follow_up_goes_on_with_the_call_before(local: Callable[..., LocalClient]) -> None:
    call = ToolCall("c0", "current_time", '{"timezone": "Lima"}')
    said = (Message.assistant("", (call,)), Message.tool(call, "{}"), Message.assistant("It is 1."))
    request = asking(
        "What time is it in Lima?", *said, Message.user("and in Quito?"), tools=tuple(KIT)
    )
    reply = await local().chat(request)
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [
        ("current_time", '{"timezone": "Quito"}')
    ]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asking("Hello, how are you?", tools=tuple(KIT)), NO_FIT),
        (asking(SUM), NO_TOOLS),
        (asking(SUM, tools=tuple(KIT), tool_choice=ToolChoice("none")), NO_TOOLS),
        (asking("  ", tools=tuple(KIT)), NO_REQUEST),
        (ChatRequest((), tuple(KIT)), NO_REQUEST),
        (asking("hi", Message.assistant("hello"), tools=tuple(KIT)), NO_REQUEST),
    ],
)
async def test_without_a_call(
    local: Callable[..., LocalClient], request_: ChatRequest, expected: str
) -> None:
    reply = await local().chat(request_)
    assert reply.text == expected
    assert (reply.finish, reply.tool_calls) == ("stop", ())


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("required"), set(KIT.names)),
        (ToolChoice("tool", "read_file"), {"read_file"}),
        (ToolChoice("required", allowed=("calculate",)), {"calculate"}),
    ],
)
async def test_tool_choice(
    local: Callable[..., LocalClient], choice: ToolChoice, expected: set[str]
) -> None:
    request = asking("Hello, how are you?", tools=tuple(KIT), tool_choice=choice)
    assert {call.name for call in (await local().chat(request)).tool_calls} <= expected
    assert (await local().chat(request)).tool_calls


@pytest.mark.parametrize(
    ("tools", "choice", "text"),
    [
        (KIT, ToolChoice("tool", "gone"), "'gone', which is not among the offered tools"),
        ((), ToolChoice("required"), "needs tools"),
    ],
)
async def test_a_choice_that_cannot_be_kept(
    local: Callable[..., LocalClient], tools: Any, choice: ToolChoice, text: str
) -> None:
    with pytest.raises(RequestError, match=text):
        await local().chat(asking("x", tools=tuple(tools), tool_choice=choice))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(reasoning="low"), "reasoning='low': the embedded model does not reason"),
        (Settings(provider_tools=({"type": "web_search"},)), "provider_tools: the embedded model"),
    ],
)
async def test_what_it_cannot_heed(
    local: Callable[..., LocalClient], settings: Settings, text: str
) -> None:
    with pytest.raises(RequestError, match=text):
        await local().chat(asking("Hello", tools=tuple(KIT), settings=settings))
    with pytest.raises(RequestError, match=text):
        await local(settings=settings).chat(asking("Hello", tools=tuple(KIT)))


async def test_it_gives_no_typed_answer(local: Callable[..., LocalClient]) -> None:
    with pytest.raises(RequestError, match="the embedded model gives no typed answers"):
        await Agent(local(), output=list[int]).run("Which numbers?")


async def test_it_takes_texts_and_names_what_is_none(local: Callable[..., LocalClient]) -> None:
    asked = Message("user", "What is on it?", parts=("And?", Image("image/png", "iVBORw0=")))
    with pytest.raises(
        RequestError, match=r"takes only text, not the image \(image/png, 5 bytes\)"
    ):
        await local().chat(ChatRequest((asked,)))
    told = Message("user", "", parts=("Hello", File("text/plain", text="a note")))
    assert (await local().chat(ChatRequest((told,)))).text == NO_TOOLS


async def test_it_reads_the_files_and_links_of_what_it_is_asked(
    local: Callable[..., LocalClient],
) -> None:
    engine = Engine()
    parts = (File("text/plain", text="6 * 7"), Link("demo://sums"))
    asked = ChatRequest((Message("user", "Note this sum", parts=parts),), (note,), tool_choice=NOTE)
    reply = await local(engine).chat(asked)
    assert [call.name for call in reply.tool_calls] == ["note"]
    told = json.dumps(engine.asked)
    for text in ("Note this sum", "6 * 7", "demo://sums"):
        assert text in told


async def test_it_does_not_reason(local: Callable[..., LocalClient]) -> None:
    reply = await local().chat(asking("Hello", settings=Settings(reasoning="none")))
    assert reply.text == NO_TOOLS


async def test_a_choice_among_some(local: Callable[..., LocalClient]) -> None:
    choice = ToolChoice("auto", allowed=("read_file",))
    reply = await local().chat(asking(SUM, tools=tuple(KIT), tool_choice=choice))
    assert {call.name for call in reply.tool_calls} <= {"read_file"}


async def test_only_offered_tools_are_chosen(local: Callable[..., LocalClient]) -> None:
    reply = await local().chat(asking("read the file notes.txt", tools=(KIT["list_files"],)))
    assert {call.name for call in reply.tool_calls} <= {"list_files"}


async def test_results_are_stated(local: Callable[..., LocalClient]) -> None:
    engine = Engine()
    call = ToolCall("c0", "calculate", "{}")
    said = (Message.assistant("", (call,)), Message.tool(call, '{"value": 396}'))
    reply = await local(engine).chat(asking(SUM, *said, tools=tuple(KIT)))
    assert reply.text == "value: 396"
    assert engine.asked == []


async def test_a_call_that_was_cut(local: Callable[..., LocalClient]) -> None:
    request = asking(SUM, tools=(note,), tool_choice=NOTE)
    plan = await local(Engine('{"expression": "1+', whole=False)).tool_call(request)
    assert plan.reply.finish == "length"
    assert plan.reply.tool_calls[0].complete is False
    assert [error.code for error in plan[0].errors] == [ErrorCode.TRUNCATED]


@tool(visible=[])
def price_of(article: str) -> int:
    """Look up what an article costs."""
    return len(article)


@pytest.mark.parametrize("whole", [True, False])
async def test_what_the_model_makes_up_or_does_not_end_is_no_call(
    local: Callable[..., LocalClient], *, whole: bool
) -> None:
    """Nobody demanded a call: one that was cut would end in an error that helps nobody."""
    engine = Engine('{"article": "A tea is 1 cent. A' + '"}' * whole, whole=whole)
    reply = await local(engine).chat(asking("What does a tea cost?", tools=(price_of,)))
    assert len(engine.asked) == 1
    assert (reply.finish, reply.tool_calls) == ("stop", ())
    assert reply.text == NO_EXAMPLES.format("price_of")


async def test_what_the_model_wrote_is_judged_by_the_schema(
    local: Callable[..., LocalClient],
) -> None:
    request = asking(SUM, tools=(note,), tool_choice=NOTE)
    plan = await local(Engine('{"formula": 1}')).tool_call(request)
    assert {error.code for error in plan[0].errors} == {ErrorCode.INVALID_ARGUMENTS}


async def test_stream(local: Callable[..., LocalClient]) -> None:
    client = local()
    parts = [part async for part in client.stream(asking(SUM, tools=tuple(KIT), id_prefix="r_"))]
    assert parts[0] == ArgumentsPart("r_0", "calculate", '{"expression": "23*17+5"}')
    assert isinstance(parts[-1], Reply)
    parts = [part async for part in client.stream(asking("Hello", tools=tuple(KIT)))]
    assert parts[0] == TextPart(NO_FIT)
    assert len(parts) == 2


async def test_settings_of_client_and_request(local: Callable[..., LocalClient]) -> None:
    engine = Engine()
    client = local(engine, settings=Settings(0.7, 20, {"seed": 1, "top_k": 4}))
    own = Settings(max_tokens=5, extra={"seed": 2})
    request = asking(SUM, tools=(note,), tool_choice=NOTE, settings=own)
    await client.chat(request)
    body = engine.asked[0]
    assert [body[key] for key in ("temperature", "n_predict", "seed", "top_k")] == [0.7, 5, 2, 4]


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="no model file"):
        LocalClient(tmp_path / "gone.gguf")
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="run `toolcrib local install`"):
        LocalClient()
    monkeypatch.setattr(model_module, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"'\.\[local\]'"):
        LocalClient()


async def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF and then nothing of the kind")
    client = LocalClient(path)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"bad\.gguf cannot be loaded.*local install"):
            await client.tool_call(asking(SUM, tools=(note,), tool_choice=NOTE))


class Server:
    """Stands in for the engine's server."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def handle_completions(self, _body: JsonObject) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"error": {"type": "server_error", "message": "odd"}}, "failed: odd"),
        ({"error": "odd"}, "failed: odd"),
        (None, "no answer"),
        (TypeError("canary"), r"cannot handle this request \(TypeError\)"),
    ],
)
def test_what_the_engine_refuses(answer: Any, text: str) -> None:
    model = Model(Path("x.gguf"))
    model._server = Server(answer)
    with pytest.raises(ProviderError, match=text) as raised:
        model.complete({}, threading.Event())
    assert "canary" not in str(raised.value)


async def test_who_gives_up_while_waiting_never_starts() -> None:
    model = Model(Path("x.gguf"))
    model._server = Server(AssertionError("it started"))
    outcome: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def work(given_up: threading.Event) -> None:
        try:
            model.complete({}, given_up)
        except BaseException as error:  # noqa: BLE001  what it was is the point
            loop.call_soon_threadsafe(outcome.set_result, error)

    with model._lock:
        waiting = asyncio.create_task(until_given_up(work))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert isinstance(await outcome, GivenUpError)


@pytest.fixture
def real(embedded_model: Path) -> LocalClient:
    del embedded_model  # it is there, and is kept loaded
    return LocalClient()


class TestReal:
    """With the model itself."""

    @pytest.mark.exhaustive  # it reads all tools of the kit; README.md, whose example runs, does, too
    async def test_the_main_job(self, real: LocalClient) -> None:
        assert real.model == "local"
        async with real:
            plan = await real.tool_call(SUM, KIT)
            found = plan[0]
            assert isinstance(found, Hydrated)
            assert found.definition.name == "calculate"
            assert found.arguments == {"expression": "23*17+5"}
            plan = await real.tool_call(asking(SUM, tools=(note,), tool_choice=NOTE))
            assert isinstance(plan[0], Hydrated)
            assert plan.reply.usage.input_tokens > 20
            assert plan.reply.usage.output_tokens > 5

    async def test_the_choice_is_kept_to(self, real: LocalClient) -> None:
        choice = ToolChoice("tool", "read_file")
        request = ChatRequest((Message.user("docs/guide.md"),), tool_choice=choice)
        plan = await real.tool_call(request, KIT)
        assert [(r.call.name, json.loads(r.call.arguments)) for r in plan] == [
            ("read_file", {"path": "docs/guide.md"})
        ]

    @pytest.mark.exhaustive  # the model reads for seconds
    async def test_two_at_once_and_one_given_up(self, real: LocalClient) -> None:
        given_up = asyncio.create_task(real.tool_call("What is 1 + 2?", KIT))
        await asyncio.sleep(0)
        given_up.cancel()
        plans = await asyncio.gather(
            real.tool_call("What time is it in Asia/Tokyo?", KIT),
            real.tool_call("List the files in the examples folder", KIT),
        )
        assert [json.loads(plan[0].call.arguments) for plan in plans] == [
            {"timezone": "Asia/Tokyo"},
            {"path": "examples"},
        ]
        with pytest.raises(asyncio.CancelledError):
            await given_up

    @pytest.mark.exhaustive  # likewise
    def test_across_event_loops_and_after_closing(self, real: LocalClient) -> None:
        for _ in range(2):
            plan = asyncio.run(real.tool_call("What time is it in Asia/Tokyo?", KIT))
            assert plan[0].call.arguments == '{"timezone": "Asia/Tokyo"}'
            asyncio.run(real.aclose())

    @pytest.mark.exhaustive  # reads as many tokens as the model can: half of the time of this file
    async def test_a_request_beyond_the_context(self, real: LocalClient) -> None:
        text = "Convert 10 km to miles, please. " * 2000
        plan = await real.tool_call(asking(text, tools=(note,), tool_choice=NOTE))
        assert plan[0].call.name == "note"
        assert plan[0].success

    @pytest.mark.exhaustive  # the model reads for seconds
    async def test_a_limit_on_tokens_cuts(self, real: LocalClient) -> None:
        short = Settings(max_tokens=3)
        request = asking(SUM, tools=(note,), tool_choice=NOTE, settings=short)
        plan = await real.tool_call(request)
        assert [error.code for error in plan[0].errors] == [ErrorCode.TRUNCATED]
