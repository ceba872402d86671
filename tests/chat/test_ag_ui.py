"""AG-UI: what is sent is valid by its validator and its own types, and interrupts are approvals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui import core
from ag_ui_validate.pytest_plugin import assert_valid_agui
from chat.chat_helpers import RAN, add, endless_tool, pay, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from rows import each_row
from samples import sample
from starlette.applications import Starlette
from starlette.requests import Request
from stops import STOPS, stopped

from toolcrib import ALL, Agent, Caller, Limits, ToolRunner, tool
from toolcrib.approvals import ApprovalStore
from toolcrib.chat import ChatLimits, ThreadStore
from toolcrib.chat.ag_ui import _Events, _Input, ag_ui_route
from toolcrib.chat.messages import LARGEST_ARGUMENTS, LARGEST_RESULT
from toolcrib.clients import OpenAIClient
from toolcrib.errors import ProviderError, SourceError
from toolcrib.policies import ask
from toolcrib.testing import MemorySink, ScriptedClient, call, cut, openai_server, raw_call
from toolcrib.values.message import ChatRequest, ReasoningPart, StreamPart, TextPart
from toolcrib.values.run import Done, ToolCallStarted

Json = dict[str, Any]
EVENT: TypeAdapter[Any] = TypeAdapter(core.Event)


@tool(visible=ALL, read_only=True)
async def echo(text: str) -> str:
    """Give it back twice."""
    return text * 2


def agent(*turns: object, **options: Any) -> Agent:
    RAN.clear()
    return Agent(ScriptedClient([*turns]), ToolRunner([add, pay, echo]), **options)  # type: ignore[list-item]


def who(request: Request) -> Caller | None:
    name = request.headers.get("x-user", "ada")
    return Caller(name) if name in ("ada", "eve") else None


class Client:
    """Posts to an agent, and keeps the messages as an AG-UI client does."""

    def __init__(self, base: str, http: httpx.AsyncClient) -> None:
        self.base = base
        self.http = http
        self.messages: list[Json] = []
        self.events: list[Json] = []

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post(self.base, json=body, headers=headers)

    async def run(self, *more: Json, thread: str = "t", **given: Any) -> Json:
        """Run with further messages; return the event that ends it."""
        headers = given.pop("headers", {})
        self.messages += more
        asked = core.RunAgentInput(thread_id=thread, run_id="r", messages=self.messages, **given)  # type: ignore[arg-type]
        answer = await self.post(asked.model_dump(mode="json", by_alias=True), **headers)
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        assert "\r" not in answer.text  # @ag-ui/client splits events at two line feeds alone
        self.events = [
            json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")
        ]
        for event in self.events:
            EVENT.validate_python(event)
            self._take(event)
        return self.events[-1]

    def _take(self, event: Json) -> None:
        match event["type"]:
            case "TEXT_MESSAGE_START":
                self.messages.append({"id": event["messageId"], "role": "assistant", "content": ""})
            case "TEXT_MESSAGE_CONTENT":
                self.messages[-1]["content"] += event["delta"]
            case "TOOL_CALL_START":
                if self.messages[-1]["id"] != event["parentMessageId"]:
                    self.messages.append({"id": event["parentMessageId"], "role": "assistant"})
                function = {"name": event["toolCallName"], "arguments": ""}
                made = {"id": event["toolCallId"], "type": "function", "function": function}
                self.messages[-1].setdefault("toolCalls", []).append(made)
            case "TOOL_CALL_ARGS":
                calls = self.messages[-1]["toolCalls"]
                calls[-1]["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                kept = ("toolCallId", "content", "role")
                made = {"id": event["messageId"], **{name: event[name] for name in kept}}
                self.messages.append(made)

    def of(self, kind: str) -> list[Json]:
        return [event for event in self.events if event["type"] == kind]


@asynccontextmanager
async def client(of: Agent, **options: Any) -> AsyncIterator[Client]:
    route = ag_ui_route(of, authenticate=who, **options)
    async with serving(Starlette(routes=[route])) as base, httpx.AsyncClient(verify=False) as http:  # noqa: S501
        yield Client(base, http)


def user(text: str = "Go.") -> Json:
    return {"id": "u", "role": "user", "content": text}


def resolved(interrupt: Json, **payload: Any) -> Json:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}


def interrupts(ended: Json) -> list[Json]:
    assert ended["outcome"]["type"] == "interrupt"
    found: list[Json] = ended["outcome"]["interrupts"]
    return found


async def test_a_run_is_valid_and_its_conversation_goes_on() -> None:
    calls = [call("echo", text="a"), call("echo", text="b")]
    turns = (["One moment.", *calls], call("echo", text="c"), "Here.", "Again.")
    async with client(agent(*turns)) as page:
        ended = await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        assert ended["outcome"] == {"type": "success"}
        assert [m["role"] for m in page.messages] == [
            *("user", "assistant", "tool", "tool"),
            *("assistant", "tool", "assistant"),
        ]
        assert [len(m.get("toolCalls", ())) for m in page.messages] == [0, 2, 0, 0, 1, 0, 0]
        assert {m["content"] for m in page.messages if m["role"] == "tool"} == {"aa", "bb", "cc"}
        await page.run(user("Once more."))
        assert page.messages[-1]["content"] == "Again."


async def test_an_interrupt_is_an_approval_and_runs_once() -> None:
    async with client(agent([call("pay", cents=5), call("add", a=1, b=2)], "Done.")) as page:
        ended = await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        (asked,) = interrupts(ended)
        assert asked["reason"] == "tool_call"
        assert asked["toolCallId"] in {c["toolCallId"] for c in page.of("TOOL_CALL_START")}
        assert asked["metadata"] == {"tool": "pay", "arguments": {"cents": 5}}
        edited = asked["responseSchema"]["properties"]["editedArgs"]
        assert edited["properties"]["cents"]["type"] == "integer"
        assert "forRun" not in asked["responseSchema"]["properties"]  # it asks each time
        assert RAN == [1]
        yes = resolved(asked, approved=True)
        assert (await page.run(resume=[yes]))["outcome"] == {"type": "success"}
        # The validator reads each run alone; the call of this result was told before the interrupt.
        assert_valid_agui(page.events, severity_overrides={"AGUI207": "off"}, max_warnings=0)
        assert not page.of("TOOL_CALL_START")
        (result,) = page.of("TOOL_CALL_RESULT")
        assert (result["toolCallId"], result["content"]) == (asked["toolCallId"], "paid 5")
        assert (await page.run(resume=[yes]))["code"] == "unknown_interrupt"
        assert RAN == [1, 5]


async def test_what_an_agent_within_asks_is_an_interrupt_of_its_call() -> None:
    RAN.clear()
    pays = [call("pay", cents=5), call("pay", cents=7)]
    clerk = Agent(ScriptedClient([pays, "Both."]), [pay]).as_tool("clerk", "Pays.", visible=ALL)
    desk = Agent(ScriptedClient([call("clerk", prompt="Pay."), "Done."]), [clerk])
    async with client(desk) as page:
        ended = await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        (started,) = page.of("TOOL_CALL_START")
        asked = interrupts(ended)
        assert {each["toolCallId"] for each in asked} == {started["toolCallId"]}
        assert asked[0]["message"].startswith('Run clerk > pay {"cents": 5}? (')
        answers = [resolved(asked[0], approved=True), resolved(asked[1], approved=False)]
        assert (await page.run(resume=answers))["outcome"] == {"type": "success"}
        (result,) = page.of("TOOL_CALL_RESULT")
        assert (result["toolCallId"], result["content"], RAN) == (
            started["toolCallId"],
            "Both.",
            [5],
        )


@each_row("nothing", [{"content": ""}, {}])
async def test_an_answer_that_said_nothing_is_taken_back(nothing: Json) -> None:
    async with client(agent("Hi.")) as page:
        page.messages += [user(), {"id": "a", "role": "assistant", **nothing}]
        assert (await page.run(user()))["type"] == "RUN_FINISHED"


async def test_a_number_that_was_shown_as_a_text_stays_a_number() -> None:
    account, ran = 2**60 + 1, list[Any]()

    @tool(visible=ALL, safe=False)
    async def move(account: int | str, cents: int = 1) -> str:
        """Move."""
        ran.append((account, cents))
        return "moved"

    moving = ScriptedClient([call("move", account=account), "Done."])
    async with client(Agent(moving, ToolRunner([move]))) as page:
        (asked,) = interrupts(await page.run(user()))
        (sent,) = page.of("TOOL_CALL_ARGS")
        assert asked["metadata"]["arguments"]["account"] == str(account)
        assert json.loads(sent["delta"])["account"] == account
        odd = resolved(asked, approved=True, editedArgs={"account": 5, "cents": str(account)})
        assert (await page.run(resume=[odd]))["code"] == "invalid_arguments"
        edited = {"account": str(account), "cents": 2}
        await page.run(resume=[resolved(asked, approved=True, editedArgs=edited)])
    assert ran == [(account, 2)]


@each_row(
    ("answer", "ran", "content"),
    [
        ({"status": "resolved", "payload": {"approved": False}}, [], "approval_refused"),
        ({"status": "cancelled"}, [], "approval_refused"),
        (
            {"status": "resolved", "payload": {"approved": True, "editedArgs": {"cents": 4}}},
            [4],
            "paid 4",
        ),
    ],
)
async def test_answers(answer: Json, ran: list[int], content: str) -> None:
    async with client(agent(call("pay", cents=5), "Well.", "Again.")) as page:
        (asked,) = interrupts(await page.run(user()))
        await page.run(resume=[{"interruptId": asked["id"], **answer}])
        assert content in page.of("TOOL_CALL_RESULT")[0]["content"]
        assert ran == RAN
        await page.run(user())
        assert page.messages[-1]["content"] == "Again."


@tool(visible=ALL, requires_approval=True)
async def send(cents: int) -> int:
    """Send money."""
    return cents


@each_row(
    ("for_run", "sent", "asks"),
    [(False, 5, True), (True, 6, False), ("exactly", 5, False), ("exactly", 6, True)],
)
async def test_a_yes_may_be_for_the_rest_of_the_run(for_run: Any, sent: int, asks: bool) -> None:
    model = ScriptedClient([call("send", cents=5), call("send", cents=sent), "Done."])
    async with client(Agent(model, [send])) as page:
        (asked,) = interrupts(await page.run(user()))
        choices = asked["responseSchema"]["properties"]["forRun"]["enum"]
        assert for_run in choices
        ended = await page.run(resume=[resolved(asked, approved=True, forRun=for_run)])
        assert (ended["outcome"]["type"] == "interrupt") is asks
        assert [json.loads(one["content"]) for one in page.of("TOOL_CALL_RESULT")] == (
            [5] if asks else [5, sent]
        )


async def test_a_yes_may_be_for_always_where_rules_are_kept(tmp_path: Path) -> None:
    """It is for the fields that were left open, and is listed and revoked elsewhere."""
    calls = [call("send", cents=5), call("send", cents=6)]
    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=b"k" * 32) as rules:
        model = Agent(ScriptedClient([*calls, "Done."]), ToolRunner([send], rules=rules))
        async with client(model) as page:
            (asked,) = interrupts(await page.run(user()))
            offered = asked["responseSchema"]["properties"]["always"]["properties"]
            assert offered["open"]["items"] == {"enum": ["cents"]}
            for wrong in ({"open": ["cent"]}, {"givenAt": 1}, {"given_at": 1}, {"seconds": 0}):
                ended = await page.run(resume=[resolved(asked, approved=True, always=wrong)])
                assert (ended["type"], ended["code"]) == ("RUN_ERROR", "invalid_answer")
            given = resolved(asked, approved=True, always={"open": ["cents"]})
            ended = await page.run(resume=[given])
            assert ended["outcome"]["type"] == "success"
            assert [json.loads(one["content"]) for one in page.of("TOOL_CALL_RESULT")] == [5, 6]
            [kept] = await rules.rules()
            assert kept.rule is not None
            assert kept.rule.open == ("cents",)


async def test_nobody_approves_beyond_what_they_may() -> None:
    def small(_caller: Caller, asked: Any) -> bool:
        return bool(asked.arguments["cents"] <= 5)

    model = ScriptedClient([call("send", cents=5), "Done."])
    async with client(Agent(model, [send]), may_approve=small) as page:
        (asked,) = interrupts(await page.run(user()))
        assert asked["responseSchema"]["properties"]["forRun"]["enum"] == [False, "exactly"]
        for beyond in ({"editedArgs": {"cents": 6}}, {"forRun": True}):
            ended = await page.run(resume=[resolved(asked, approved=True, **beyond)])
            assert (ended["type"], ended["code"]) == ("RUN_ERROR", "may_not_approve")
        within = {"editedArgs": {"cents": 4}, "forRun": "exactly"}
        await page.run(resume=[resolved(asked, approved=True, **within)])
        assert page.of("TOOL_CALL_RESULT")[-1]["content"].endswith("4")


WRONG: dict[str, tuple[Any, str]] = {
    "no answer": (None, "open_interrupts"),
    "another question": ([{"interruptId": "x", "status": "resolved"}], "open_interrupts"),
    "one more": ([{}, {"interruptId": "x", "status": "resolved"}], "open_interrupts"),
    "two answers": ([{}, {"payload": {"approved": True}}], "open_interrupts"),
    "no payload": ([{"payload": None}], "invalid_answer"),
    "a payload that is a yes to Python": ([{"payload": {"approved": 1}}], "invalid_answer"),
    "another member": ([{"payload": {"approved": True, "args": {}}}], "invalid_answer"),
    "a yes for the run to something else": (
        [{"payload": {"approved": True, "forRun": "all"}}],
        "invalid_answer",
    ),
    "a no with an edit": (
        [{"payload": {"approved": False, "editedArgs": {"cents": 5}}}],
        "invalid_answer",
    ),
    "a no with an empty edit": (
        [{"payload": {"approved": False, "editedArgs": {}}}],
        "invalid_answer",
    ),
    "a no for the run": ([{"payload": {"approved": False, "forRun": True}}], "invalid_answer"),
    "a rule that was not offered": (
        [{"payload": {"approved": True, "always": {}}}],
        "invalid_answer",
    ),
    "a no for always": ([{"payload": {"approved": False, "always": {}}}], "invalid_answer"),
    "a yes for the run that was not offered": (
        [{"payload": {"approved": True, "forRun": True}}],
        "invalid_answer",
    ),
    "a yes to exactly this that was not offered": (
        [{"payload": {"approved": True, "forRun": "exactly"}}],
        "invalid_answer",
    ),
    "an edit of another type": (
        [{"payload": {"approved": True, "editedArgs": {"cents": "5"}}}],
        "invalid_arguments",
    ),
    "an edit with another key": (
        [{"payload": {"approved": True, "editedArgs": {"cents": 5, "to": "eve"}}}],
        "invalid_arguments",
    ),
}


@each_row(("given", "code"), WRONG.values(), ids=WRONG)
async def test_a_wrong_answer_is_an_error_event_and_the_question_stays(
    given: Any, code: str
) -> None:
    async with client(agent(call("pay", cents=5), "Done.")) as page:
        (asked,) = interrupts(await page.run(user()))
        base = {"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}
        resume = None if given is None else [base | each for each in given]
        ended = await page.run(resume=resume)
        assert (ended["type"], ended["code"], RAN) == ("RUN_ERROR", code, [])
        assert_valid_agui(page.events)
        await page.run(resume=[base])
        assert RAN == [5]


async def test_nobody_else_answers_and_no_other_thread() -> None:
    def no_may(caller: Caller, _asked: Any) -> bool:
        return caller.id == "eve"

    async with client(agent(call("pay", cents=5), "Done.")) as page:
        (asked,) = interrupts(await page.run(user()))
        yes = [resolved(asked, approved=True)]
        other = await page.run(resume=yes, headers={"x-user": "eve"})
        assert other["code"] == "unknown_interrupt"
        assert (await page.run(resume=yes, thread="u"))["code"] == "unknown_interrupt"
        told = await asyncio.gather(page.run(resume=yes), page.run(resume=yes))
        assert len([each for each in told if each["type"] == "RUN_FINISHED"]) == 1
        assert RAN == [5]
    async with client(agent(call("pay", cents=5), "Done."), may_approve=no_may) as page:
        (asked,) = interrupts(await page.run(user()))
        ended = await page.run(resume=[resolved(asked, approved=True)])
        assert (ended["code"], RAN) == ("may_not_approve", [])


async def test_a_question_that_nobody_answers_in_time_is_over() -> None:
    runner = ToolRunner([pay], approval_seconds=0.05)
    late = Agent(ScriptedClient([call("pay", cents=5), "Well."]), runner)
    async with client(late) as page:
        (asked,) = interrupts(await page.run(user()))
        await asyncio.sleep(0.1)
        ended = await page.run(resume=[resolved(asked, approved=True)])
        assert (ended["type"], ended["code"]) == ("RUN_ERROR", "approval_expired")
        await page.run(user("Never mind."))  # the call has no result, and is said to have none
        assert page.messages[-1]["content"] == "Well."


@each_row("store", [None, "sqlite://"])
async def test_runs_that_wait_are_kept_up_to_a_number_of_each_caller(
    store: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.chat.threads.MOST_WAITING", 2)
    monkeypatch.setattr("toolcrib.chat.ag_ui.MOST_WAITING", 2)
    turns = [*[call("pay", cents=5)] * 4, "Done.", "Done."]
    async with client(agent(*turns), store=store) as page:
        asked = {}
        for thread, name in (("a", "ada"), ("b", "eve"), ("c", "ada"), ("d", "ada")):
            page.messages = []
            (asked[thread],) = interrupts(
                await page.run(user(), thread=thread, headers={"x-user": name})
            )
        for thread, name, kept in (("a", "ada", False), ("b", "eve", True), ("c", "ada", True)):
            yes = [resolved(asked[thread], approved=True)]
            ended = await page.run(resume=yes, thread=thread, headers={"x-user": name})
            assert (ended["type"] == "RUN_FINISHED") == kept
    assert RAN == [5, 5]


@each_row("where", ["memory", "database"])
async def test_of_two_runs_of_a_thread_the_first_that_asks_keeps_its_question(
    where: str, url: str
) -> None:
    charged, both = list[int](), asyncio.Event()
    RAN.clear()

    @tool(visible=ALL)
    async def charge(cents: int) -> str:
        """Charge."""
        charged.append(cents)
        if len(charged) == 2:
            both.set()
        await both.wait()
        return f"charged {cents}"

    turns = [call("charge", cents=1), call("charge", cents=1), *[call("pay", cents=5)] * 2]
    made = Agent(ScriptedClient([*turns, "Done.", "Again."]), ToolRunner([charge, pay]))
    async with (
        ThreadStore(url) as store,
        client(made, store=store if where == "database" else None) as page,
    ):
        tabs = page, Client(page.base, page.http)
        ends = await asyncio.gather(*(tab.run(user()) for tab in tabs))
        by_end = {end["type"]: (end, tab) for end, tab in zip(ends, tabs, strict=True)}
        first, second = by_end["RUN_FINISHED"], by_end["RUN_ERROR"]
        assert second[0]["code"] == "busy"
        assert "waiting for an answer: answer it first" in second[0]["message"]
        assert_valid_agui(second[1].events, max_warnings=0)
        (asked,) = interrupts(first[0])
        assert (await first[1].run(resume=[resolved(asked, approved=True)]))["outcome"]
        assert RAN == [5]
        await second[1].run(user("And?"))  # the thread is free
        assert second[1].messages[-1]["content"] == "Again."
    assert charged == [1, 1]


async def test_what_waits_in_a_database_goes_on_in_any_process_and_once(url: str) -> None:
    first, *others = [agent(call("pay", cents=5), "Done."), agent("Done."), agent("Done.")]
    async with ThreadStore(url) as store, client(first, store=store) as page:
        (asked,) = interrupts(await page.run(user()))
    yes = [resolved(asked, approved=True)]
    async with (
        ThreadStore(url) as one,
        ThreadStore(url) as two,
        client(others[0], store=one) as page,
        client(others[1], store=two, limits=ChatLimits(runs=0)) as full,
    ):
        assert (await full.run(resume=yes))["code"] == "too_many_runs"  # and the question stays
        for wrong in ({"thread": "u"}, {"headers": {"x-user": "eve"}}):
            assert (await page.run(resume=yes, **wrong))["code"] == "unknown_interrupt"
        assert (await page.run(user()))["code"] == "open_interrupts"
        both = Client(page.base, page.http), Client(page.base, page.http)
        told = await asyncio.gather(*(each.run(resume=yes) for each in both))
        assert sorted(each["type"] for each in told) == ["RUN_ERROR", "RUN_FINISHED"]
        assert RAN == [5]


async def test_a_question_that_cannot_be_kept_is_not_asked(tmp_path: Path) -> None:
    gone = f"sqlite:///{tmp_path}/no/folder.db"
    async with client(agent(call("pay", cents=5)), store=gone) as page:
        answer = await page.post({"threadId": "t", "runId": "r", "messages": [user()]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")

    class Full(ThreadStore):
        async def keep_waiting(self, *_given: Any) -> bool:
            raise SourceError("the disk is full")

    async with Full("sqlite://") as full, client(agent(call("pay", cents=5)), store=full) as page:
        ended = await page.run(user())
        assert (ended["type"], ended["code"]) == ("RUN_ERROR", "unavailable")
        assert_valid_agui(page.events, max_warnings=0)


async def test_what_a_client_says_taints_and_approves_nothing() -> None:
    add_it = call("add", a=1, b=2)
    async with client(agent(add_it, "3", add_it, "3")) as page:
        await page.run(user(), thread="first")
        assert RAN == [1]
        (asked,) = interrupts(await page.run(user(), thread="second"))
        assert (asked["metadata"]["tool"], RAN) == ("add", [1])


async def test_the_ends_of_a_run() -> None:
    failing = agent(call("add", a=1, b=2), ProviderError("the provider is away"))
    async with client(failing) as page:
        ended = await page.run(user())
        assert (ended["type"], ended["code"]) == ("RUN_ERROR", "ProviderError")
        assert ended["message"] == "the provider is away"
        assert_valid_agui(page.events, max_warnings=0)
    async with client(agent(call("add", a=1, b=2), "3", limits=Limits(turns=1))) as page:
        ended = await page.run(user())
        assert (ended["type"], ended["code"]) == ("RUN_ERROR", "limited")
        assert_valid_agui(page.events, max_warnings=0)


@each_row("how", STOPS)
async def test_the_result_of_a_stopped_call_says_whether_it_has_run(how: str) -> None:
    """A client sends it back: a model that reads `cancelled` alone would make the call again."""
    events, begun = await stopped(how)
    front = _Events(_Input("t", "r", []))
    names = {event.id: event.name for event in events if isinstance(event, ToolCallStarted)}
    for event in events:
        told = [] if isinstance(event, Done) else list(front.of(event))
        for result in (each for each in told if isinstance(each, core.ToolCallResultEvent)):
            may_have_run = "error" not in result.content or "is not known" in result.content
            assert may_have_run is (names[result.tool_call_id] in begun), result.content


class Breaking(ScriptedClient):
    """Says half of a text, and fails."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        yield TextPart("Half of")
        raise ProviderError("the connection broke")


async def test_a_message_ends_before_a_run_that_fails() -> None:
    async with client(Agent(Breaking([]))) as page:
        await page.run(user())
        assert [e["type"] for e in page.events[-2:]] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
        assert_valid_agui(page.events, max_warnings=0)


class Slow(ScriptedClient):
    """Says a text in two pieces, between which what runs in the background ends."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        async for part in super().stream(request):
            yield part
            if isinstance(part, TextPart):
                OPEN.set()
                await asyncio.sleep(0.02)


OPEN = asyncio.Event()


@tool(visible=ALL, background=True)
async def later(text: str) -> str:
    """End while a text is told."""
    await OPEN.wait()
    return text


async def test_a_result_that_comes_later_is_between_messages_and_can_be_sent_back() -> None:
    OPEN.clear()
    model = Slow([call("later", text="tea"), ["I wait.", call("add", a=1, b=2)], "Here.", "Again."])
    async with client(Agent(model, [later, add])) as page:
        ended = await page.run(user())
        assert ended["type"] == "RUN_FINISHED"
        assert_valid_agui(page.events, max_warnings=0)
        kinds = [event["type"] for event in page.events]
        results = [event["toolCallId"] for event in page.of("TOOL_CALL_RESULT")]
        assert len(results) == len(set(results)) == 2
        assert kinds.index("TOOL_CALL_RESULT") > kinds.index("TEXT_MESSAGE_END")
        assert [m["role"] for m in page.messages[1:]].count("tool") == 2
        said = [m.get("content") for m in page.messages if m["role"] == "assistant"]
        assert said == [None, "I wait.", "Here."]
        assert (await page.run(user()))["type"] == "RUN_FINISHED"
        told = model.requests[-1].messages
        assert [m.content for m in told if m.role == "tool"] == ["tea", "3"]
        at = next(at for at, m in enumerate(told) if m.tool_calls)
        assert told[at + 1].call_id == told[at].tool_calls[0].id


async def test_what_is_text_is_cut_by_its_own_length() -> None:
    quotes = '"' * (LARGEST_RESULT // 2 - 2)
    async with client(agent(call("echo", text=quotes), "Here.")) as page:
        await page.run(user())
        assert page.of("TOOL_CALL_RESULT")[0]["content"] == quotes * 2


async def test_what_is_large_can_be_sent_back() -> None:
    large = agent(call("echo", text='"' * 30_000), "Large.", "Again.")
    async with client(large) as page:
        await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        (result,) = page.of("TOOL_CALL_RESULT")
        assert len(result["content"].encode()) <= LARGEST_RESULT
        assert not page.of("TOOL_CALL_ARGS")
        await page.run(user())
        assert page.messages[-1]["content"] == "Again."


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["x" * (LARGEST_ARGUMENTS - 12), "é" * LARGEST_ARGUMENTS, "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
ARGUMENTS = (
    st.dictionaries(st.sampled_from(["value", "more", "other"]), VALUES, max_size=3).map(json.dumps)
    | st.builds(lambda value: json.dumps({"value": value}, ensure_ascii=False), VALUES)
    | st.sampled_from(["", "{", "[1]", '{"value": 1, "value": 2}', '{"value": NaN}'])
)


@given(arguments=ARGUMENTS)
@settings(deadline=None, max_examples=sample(160))
async def test_arguments_are_told_as_they_are_or_not_at_all(arguments: str) -> None:
    """What a page was told of a call it may send back, and it is never another call."""

    @tool(visible=ALL, read_only=True)
    async def keep(value: Any, more: Any = 2**60) -> None:
        """Keep it."""

    sink = MemorySink()
    keeper = Agent(
        ScriptedClient([raw_call("keep", arguments), "Kept.", "Again."]),
        ToolRunner([keep], sinks=[sink]),
    )
    app = Starlette(routes=[ag_ui_route(keeper, authenticate=who)])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        page = Client("/", http)
        await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        (record,) = [each for each in sink.records if each.status != "started"]
        told = [json.loads(each["delta"]) for each in page.of("TOOL_CALL_ARGS")]
        assert all(len(e["delta"].encode()) <= LARGEST_ARGUMENTS for e in page.of("TOOL_CALL_ARGS"))
        if record.status == "failed":
            assert told == []
        elif told or len(json.dumps(record.arguments)) <= LARGEST_ARGUMENTS:
            assert repr(told) == repr([record.arguments])
        ended = await page.run(user())
        assert ended["outcome"] == {"type": "success"}


async def test_arguments_of_a_call_that_was_cut_are_not_told() -> None:
    async with (
        openai_server([cut(call("echo", text="orders")), "Well."]) as server,
        OpenAIClient("m", base_url=server.url) as model,
        client(Agent(model, [echo])) as page,
    ):
        await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        assert not page.of("TOOL_CALL_ARGS")
        assert "truncated" in page.of("TOOL_CALL_RESULT")[0]["content"]


async def test_a_refused_answer_is_a_message_of_its_own_before_the_accepted_one() -> None:
    async with client(agent('{"a": 9.5}', '{"a": 5}', output=dict[str, int])) as page:
        await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        assert [m["content"] for m in page.messages[1:]] == ['{"a": 9.5}', '{"a": 5}']


async def test_what_is_not_visible_is_nowhere() -> None:
    @tool(visible=["kept"], read_only=True)
    async def mixed() -> dict[str, str]:
        """Give some."""
        return {"kept": "yes", "hidden": "canary"}

    async with client(Agent(ScriptedClient([call("mixed"), "Done."]), [mixed])) as page:
        await page.run(user())
        assert "canary" not in json.dumps(page.events)


async def test_what_no_text_can_hold_ends_no_stream() -> None:
    """Halves of characters from a model or a policy, and an approval that may take for ever."""
    half = "\ud83d"
    runner = ToolRunner([pay], policy=[ask("pay", reason=half)], approval_seconds=1e15)
    client_ = ScriptedClient([[half, call("pay", cents=5)], ProviderError(half)])
    async with client(Agent(client_, runner)) as page:
        (asked,) = interrupts(await page.run(user()))
        assert asked["expiresAt"].startswith("9999-12-31")
        ended = await page.run(resume=[resolved(asked, approved=True)])
        assert (ended["type"], ended["message"]) == ("RUN_ERROR", "?")


SENT: dict[str, tuple[Any, dict[str, str], str]] = {
    "nobody": ({}, {"x-user": "mallory"}, "401 unauthenticated"),
    "another origin": ({}, {"origin": "https://evil.example"}, "403 wrong_origin"),
    "no messages": ({"messages": 5}, {}, "422 invalid_body"),
    "no thread": ({"threadId": ""}, {}, "422 invalid_body"),
    "an edit beside its payload": (
        {
            "resume": [
                {
                    "interruptId": "x",
                    "status": "resolved",
                    "payload": {"approved": True},
                    "editedArgs": {"cents": 1},
                }
            ]
        },
        {},
        "422 invalid_body",
    ),
    "no question": ({"messages": []}, {}, "422 no_question"),
    "a picture": (
        {"messages": [{**user(), "content": [{"type": "image", "source": {}}]}]},
        {},
        "422 invalid_content",
    ),
    "an orphan": (
        {"messages": [{"id": "m", "role": "tool", "toolCallId": "c", "content": "3"}]},
        {},
        "422 orphan_result",
    ),
    "too long": ({"messages": [user("x" * 50_000)]}, {}, "413 too_long"),
    "too large": ({"messages": [user("x" * 300_000)]}, {}, "413 too_large"),
}


@each_row(("sent", "headers", "refused"), SENT.values(), ids=SENT)
async def test_what_is_refused_and_how(sent: Json, headers: dict[str, str], refused: str) -> None:
    async with client(agent("never")) as page:
        body = {"threadId": "t", "runId": "r", "messages": [user()]} | sent
        answer = await page.post(body, **headers)
        assert f"{answer.status_code} {answer.json()['error']['code']}" == refused


async def test_parts_and_asides_are_taken() -> None:
    messages: list[Json] = [
        {"id": "1", "role": "system", "content": "Be brief.", "metadata": {"a": 1}},
        {"id": "2", "role": "activity", "activityType": "x", "content": {}},
        {"id": "3", "role": "reasoning", "content": "Hm."},
        {**user(), "content": [{"type": "text", "text": "Hi.", "id": "p", "metadata": 1}]},
    ]
    async with client(agent("Hello.")) as page:
        await page.run(*messages)
        assert page.messages[-1]["content"] == "Hello."


async def test_a_client_that_leaves_cancels_its_run() -> None:
    endless, begun, ended = endless_tool()
    waiting = Agent(ScriptedClient([call("endless")]), [endless])
    async with client(waiting, limits=ChatLimits(runs=1)) as page:
        asking = asyncio.create_task(page.run(user()))
        async with asyncio.timeout(10):
            await begun.wait()
            busy = await page.post({"threadId": "t", "runId": "r", "messages": [user()]})
            assert (busy.status_code, busy.json()["error"]["code"]) == (429, "too_many_runs")
            asking.cancel()
            await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking


class Musing(ScriptedClient):
    """Thinks, speaks and thinks again before it says what it was given to say."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        for thought in ("Let me ", "see.\ud83d"):
            yield ReasoningPart(thought)
        yield TextPart("So. ")
        yield ReasoningPart("Or not?")
        async for part in super().stream(request):
            yield part


async def test_reasoning_is_told_as_reasoning_and_ends_before_what_comes_next() -> None:
    async with client(Agent(Musing([call("add", a=1, b=2), "Done.", "Again."]), [add])) as page:
        await page.run(user())
        assert_valid_agui(page.events, max_warnings=0)
        told = [each["delta"] for each in page.of("REASONING_MESSAGE_CONTENT")]
        assert told == ["Let me ", "see.?", "Or not?"] * 2
        kinds = [event["type"] for event in page.events]
        after = [kinds[at + 1] for at, kind in enumerate(kinds) if kind == "REASONING_END"]
        assert after == [*("TEXT_MESSAGE_START", "TEXT_MESSAGE_END"), *after[2:]]
        assert "see" not in "".join(m.get("content", "") for m in page.messages)
        aside = {"id": "m", "role": "reasoning", "content": "Let me see."}
        page.messages.insert(1, aside)
        assert (await page.run(user()))["type"] == "RUN_FINISHED"


async def test_reasoning_ends_before_a_run_that_fails() -> None:
    class Broken(Musing):
        async def chat(self, request: ChatRequest) -> Any:
            raise ProviderError("the connection broke")

        async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
            yield ReasoningPart("Let me ")
            raise ProviderError("the connection broke")

    async with client(Agent(Broken([]))) as page:
        await page.run(user())
        assert [e["type"] for e in page.events[-2:]] == ["REASONING_END", "RUN_ERROR"]
        assert_valid_agui(page.events, max_warnings=0)
