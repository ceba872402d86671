"""Our tools as an MCP server, called by the SDK's own client, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError
from mcp.server.session import ServerSession
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, FileUrl
from rows import each_row
from samples import sample

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    CallContext,
    Caller,
    Catalog,
    Failed,
    File,
    Image,
    Link,
    Policy,
    Refuse,
    ToolCall,
    ToolContent,
    ToolError,
    ToolRunner,
    per_call,
    run_sync,
    tool,
)
from toolcrib.approvals import ApprovalStore
from toolcrib.audit import AuditLog
from toolcrib.bridges.mcp import McpClient, McpServer, calling_client, mcp_server
from toolcrib.bridges.mcp.calls import Progress
from toolcrib.bridges.mcp.elicitation import YES as YES_ANSWERS
from toolcrib.bridges.mcp.elicitation import answer_of, form_of, offered
from toolcrib.doors import MayApprove, anything
from toolcrib.testing import MemorySink
from toolcrib.values.decision import Always, Answer

Era = Literal["legacy", "2026-07-28"]
PNG = "iVBORw0KGgo="
ERAS = pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
RAN: list[str] = []


class Stock(BaseModel):
    item: str
    left: int | None


@tool(visible=ALL, read_only=True)
def stock(item: str, limit: int | None = None) -> Stock:
    """Say how many of an item are left."""
    return Stock(item=item, left=limit)


@tool(visible=ALL, safe=False, idempotent=True)
def refund(order: int, amount: float = 1.0) -> str:
    """Refund an order."""
    RAN.append(f"refund {order} {amount:g}")
    return f"refunded {order}"


@tool(visible=ALL, safe=False)
def mail(to: list[str]) -> str:
    """Send a mail."""
    return f"sent to {len(to)}"


@tool(visible=ALL, model_visible=("item",), untrusted_output=True)
def search(text: str) -> dict[str, str]:
    """Search the web."""
    return {"item": text, "secret": "not for the model"}


@tool(visible=ALL)
def picture() -> ToolContent[Stock]:
    """Draw the stock."""
    wav = File("audio/wav", "UklGRg==")
    text = File("text/plain", text="read me", name="file:///readme.txt")
    pdf = File("application/pdf", "JVBERi0=", name="a b.pdf")
    parts = (
        "a picture",
        Image("image/png", PNG),
        wav,
        text,
        pdf,
        Link("https://example.com/x", "x"),
    )
    return ToolContent(Stock(item="nut", left=3), parts)


@tool(visible=ALL)
def broken() -> str:
    """Fail with a secret."""
    raise RuntimeError("canary-in-an-exception")


@tool(visible=ALL)
def sorry() -> str:
    """Fail, and say why."""
    raise ToolError("the shop is closed", model_text="closed: tell the user to come back at nine")


@tool(visible=ALL)
def many() -> list[int]:
    """Give a list, which is no object."""
    return [1, 2, 3]


@tool(visible=ALL)
async def counting(context: CallContext, steps: int) -> AsyncGenerator[str, None]:
    """Count, and say how far."""
    for step in range(steps):
        yield f"step {step}"
    context.progress({"progress": 40, "total": 50, "message": "nearly"})
    context.progress({"progress": 39, "message": "it never shrinks"})
    yield "done"


TOOLS: list[Any] = [stock, refund, search, picture, broken, sorry, many, counting]


def serving(
    *,
    tools: list[Any] | None = None,
    approver: Any = None,
    policy: Policy | tuple[Policy, ...] = (),
    **options: Any,
) -> tuple[McpServer, MemorySink]:
    RAN.clear()
    sink = MemorySink()
    runner = ToolRunner(tools or TOOLS, sinks=[sink], approver=approver, policy=policy)
    return mcp_server(runner, **options), sink


def answering(
    action: Literal["accept", "decline", "cancel"], **content: Any
) -> tuple[list[types.ElicitRequestFormParams], Any]:
    asked: list[types.ElicitRequestFormParams] = []

    async def answer(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        asked.append(params)
        return types.ElicitResult(action=action, content=content or None)

    return asked, answer


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def code_of(result: types.CallToolResult) -> str:
    assert result.is_error
    return str(json.loads(text_of(result))["error"]["code"])


@ERAS
async def test_schemas_go_out_as_their_author_wrote_them(era: Era) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"size": {"enum": ["s", None]}},
        "properties": {"size": {"$ref": "#/$defs/size", "default": None}, "any": True},
        "patternProperties": {"^x-": {"const": None}},
        "anyOf": [{"required": ["size"]}, {"required": ["any"]}],
        "x-own": {"kept": [1, None]},
    }
    form = {"name": "given", "description": "Take it.", "input_schema": schema}
    catalog = Catalog.from_definitions([form], handlers={"given": lambda **_: 1}, visible=ALL)
    runner = ToolRunner(catalog.with_tools(*TOOLS))
    async with Client(mcp_server(runner).server, mode=era) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
    assert listed["given"].input_schema == schema
    for each in TOOLS:
        definition = each.get_definition()
        assert listed[definition.name].input_schema == definition.input_schema
        assert listed[definition.name].description == definition.description


@ERAS
async def test_only_an_output_schema_of_a_whole_object_goes_out(era: Era) -> None:
    server, _ = serving()
    async with Client(server.server, mode=era) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        whole = await client.call_tool("stock", {"item": "nut"})
        rows = await client.call_tool("many", {})
        narrowed = await client.call_tool("search", {"text": "nuts"})
    assert listed["stock"].output_schema == stock.get_definition().output_schema
    assert [name for name, one in listed.items() if one.output_schema] == ["stock", "picture"]
    assert whole.structured_content == {"item": "nut", "left": None} == json.loads(text_of(whole))
    assert narrowed.structured_content is None
    assert text_of(narrowed) == '{"item":"nuts"}'
    assert rows.structured_content is None
    assert text_of(rows) == "[1,2,3]"


async def test_marks_are_told_only_where_the_author_set_them() -> None:
    server, _ = serving()
    async with Client(server.server) as client:
        told = {
            one.name: one.annotations.model_dump(exclude_none=True)
            for one in (await client.list_tools()).tools
            if one.annotations is not None
        }
    assert told["stock"] == {"read_only_hint": True}
    assert told["refund"] == {
        "read_only_hint": False,
        "destructive_hint": True,
        "idempotent_hint": True,
    }
    assert told["search"] == {"read_only_hint": False, "open_world_hint": True}
    assert told["many"] == {"read_only_hint": False}


@ERAS
async def test_content_comes_in_its_order(era: Era) -> None:
    server, _ = serving()
    async with Client(server.server, mode=era) as client:
        given = await client.call_tool("picture", {})
    assert [block.type for block in given.content] == [
        "text", "text", "image", "audio", "resource", "resource", "resource_link",
    ]  # fmt: skip
    assert given.structured_content == {"item": "nut", "left": 3}
    image, audio, text, pdf = given.content[2:6]
    assert isinstance(image, types.ImageContent)
    assert (image.mime_type, image.data) == ("image/png", PNG)
    assert isinstance(audio, types.AudioContent)
    assert audio.mime_type == "audio/wav"
    assert isinstance(text, types.EmbeddedResource)
    assert text.resource.uri == "file:///readme.txt"
    assert isinstance(pdf, types.EmbeddedResource)
    assert pdf.resource.uri == "attachment:///a%20b.pdf"


@ERAS
async def test_errors_are_results_with_our_codes_and_nothing_else(era: Era) -> None:
    server, sink = serving()
    async with Client(server.server, mode=era) as client:
        failed = await client.call_tool("broken", {})
        closed = await client.call_tool("sorry", {})
        wrong = await client.call_tool("stock", {"item": 7, "colour": "canary-in-arguments"})
        with pytest.raises(MCPError, match="no tool of that name"):
            await client.call_tool("stok", {})
    assert (code_of(failed), code_of(closed)) == ("tool_error", "tool_error")
    assert "come back at nine" in text_of(closed)
    assert code_of(wrong) == "invalid_arguments"
    assert "/item" in text_of(wrong)
    assert "canary" not in text_of(failed) + text_of(wrong)
    assert [record.status for record in sink.records] == ["failed"] * 4


@ERAS
async def test_without_leave_nobody_approves_their_own_call(era: Era) -> None:
    server, sink = serving()
    asked, answer = answering("accept", answer="yes")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        refused = await client.call_tool("refund", {"order": 7})
    assert code_of(refused) == "approval_required"
    assert (asked, RAN) == ([], [])
    assert sink.records[-1].approved_by is None


@ERAS
async def test_an_elicited_yes_runs_the_call_and_says_who_gave_it(era: Era) -> None:
    may: list[tuple[str, str]] = []

    def may_approve(caller: Caller, request: ApprovalRequest) -> bool:
        may.append((caller.id, request.tool))
        return True

    server, sink = serving(may_approve=may_approve, caller=lambda _token: Caller("grace"))
    asked, answer = answering("accept", answer="yes")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        done = await client.call_tool("refund", {"order": 7})
    assert (text_of(done), RAN) == ("refunded 7", ["refund 7 1"])
    assert asked[0].message.startswith('Run refund {"amount": 1, "order": 7} (defaults: /amount)?')
    assert set(may) == {("grace", "refund")}
    record = sink.records[-1]
    assert (record.status, record.approved_by, record.caller) == ("completed", "grace", "grace")


@ERAS
@pytest.mark.parametrize(
    ("action", "content"),
    [
        ("decline", {}),
        ("accept", {}),
        ("accept", {"answer": "no"}),
        ("accept", {"answer": "Yes"}),
        ("accept", {"answer": True}),
        ("accept", {"approve": "yes"}),
        ("accept", {"answer": "no", "arguments": "not JSON"}),
        ("accept", {"answer": "yes", "argument": "{}"}),
        ("accept", {"answer": "yes, and to this tool for the session"}),  # it was not offered
    ],
)
async def test_anything_but_a_clear_yes_is_a_no(
    era: Era, action: Literal["accept", "decline", "cancel"], content: dict[str, Any]
) -> None:
    server, sink = serving(may_approve=lambda *_: True)
    _, answer = answering(action, **content)
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        refused = await client.call_tool("refund", {"order": 7})
    assert code_of(refused) == "approval_refused"
    assert RAN == []
    assert sink.records[-1].approved_by == "anonymous"


@ERAS
@each_row("mistyped", ["[1]", "not JSON", "null", '{"order": 8', "{'order': 8}", '{"order": 8}}'])
async def test_other_arguments_that_are_mistyped_are_no_no(era: Era, mistyped: str) -> None:
    """The user said yes: nothing runs, and nothing is recorded as a no that nobody said."""
    server, sink = serving(may_approve=lambda *_: True)
    _, answer = answering("accept", answer="yes", arguments=mistyped)
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        refused = await client.call_tool("refund", {"order": 7})
    assert refused.is_error
    assert '"code":"invalid_arguments"' in text_of(refused)
    assert RAN == []
    record = sink.records[-1]
    assert (record.approved_by, record.edited) == ("anonymous", True)
    assert record.arguments == {"order": 7, "amount": 1.0}  # what was asked about
    assert record.error is not None
    assert (record.error.code, record.error.retryable) == ("invalid_arguments", False)


@ERAS
async def test_the_last_of_many_items_is_seen_before_it_is_approved(era: Era) -> None:
    server, _ = serving(tools=[mail], may_approve=lambda *_: True)
    asked, answer = answering("decline")
    for many in (31, 3_000):
        to = [*(f"user{n}@example.org" for n in range(many)), "attacker@evil.example"]
        async with Client(server.server, mode=era, elicitation_callback=answer) as client:
            await client.call_tool("mail", {"to": to})
        assert '"attacker@evil.example"' in asked[-1].message
        assert ("more items>" in asked[-1].message) == (many > 31)
        assert '"user0@example.org"' in asked[-1].message


@ERAS
async def test_who_dismisses_the_question_has_not_said_no(era: Era) -> None:
    server, sink = serving(may_approve=lambda *_: True)
    asked, answer = answering("cancel")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        refused = await client.call_tool("refund", {"order": 7})
    assert code_of(refused) == "approval_required"
    assert "has not answered" in text_of(refused)
    assert (len(asked), RAN, sink.records[-1].approved_by) == (1, [], None)


def _raises(_caller: Caller, _request: ApprovalRequest) -> bool:
    raise RuntimeError("canary-in-may-approve")


async def _later(_caller: Caller, _request: ApprovalRequest) -> bool:
    return True


@ERAS
@pytest.mark.parametrize("may", [_raises, _later, lambda *_: 1, lambda *_: None])
async def test_what_is_no_leave_is_none(era: Era, may: Any) -> None:
    server, _ = serving(may_approve=may)
    asked, answer = answering("accept", answer="yes")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        refused = await client.call_tool("refund", {"order": 7})
    assert code_of(refused) == "approval_required"
    assert "canary" not in text_of(refused)
    assert (asked, RAN) == ([], [])


@ERAS
async def test_what_may_approve_changes_changes_nothing_of_the_question(era: Era) -> None:
    def may(_caller: Caller, request: ApprovalRequest) -> bool:
        request.arguments["order"] = 5
        return True

    server, sink = serving(may_approve=may)
    asked, answer = answering("accept", answer="yes")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("refund", {"order": 900})) == "refunded 900"
    assert [each.message.split("?")[0] for each in asked] == [
        'Run refund {"amount": 1, "order": 900} (defaults: /amount)'
    ]
    ran = [each.arguments for each in sink.records if each.status == "completed"]
    assert ran == [{"order": 900, "amount": 1}]


@ERAS
async def test_what_fails_in_the_authors_code_is_told_nobody(era: Era) -> None:
    def nobody(_token: object) -> Caller:
        raise RuntimeError("canary-in-caller")

    server, _ = serving(caller=nobody)
    with pytest.raises((MCPError, BaseExceptionGroup)) as raised:
        async with Client(server.server, mode=era) as client:
            await client.list_tools()
    assert "canary" not in repr(raised.value)


@ERAS
async def test_whoever_approves_may_give_other_arguments(era: Era) -> None:
    server, sink = serving(may_approve=lambda *_: True)
    _, answer = answering("accept", answer="yes", arguments='{"order": 8, "amount": 2}')
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        done = await client.call_tool("refund", {"order": 7})
    assert RAN == ["refund 8 2"]
    assert text_of(done).endswith("refunded 8")
    assert sink.records[-1].edited


def _small(_caller: Caller, request: ApprovalRequest) -> bool:
    amount = request.arguments["amount"]
    assert isinstance(amount, int | float)
    return amount <= 20


@ERAS
@given(given_amount=st.none() | st.integers(-50, 50) | st.floats(-50, 50))
@settings(max_examples=sample(30), deadline=None)
async def test_who_may_approve_is_asked_about_the_arguments_that_run(
    era: Era, given_amount: float | None
) -> None:
    """Also those that an answer leaves out, which are the author's defaults (1 here)."""
    other = {"order": 8} if given_amount is None else {"order": 8, "amount": given_amount}
    _, answer = answering("accept", answer="yes", arguments=json.dumps(other))
    server, sink = serving(may_approve=_small)
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        done = await client.call_tool("refund", {"order": 7, "amount": 2})
    amount = 1 if given_amount is None else given_amount
    record = sink.records[-1]
    assert (record.edited, record.approved_by) == (True, "anonymous")
    if amount <= 20:
        assert [f"refund 8 {amount:g}"] == RAN
        return
    assert (code_of_last(done), record.status, RAN) == ("approval_required", "failed", [])
    assert record.arguments == {"order": 7, "amount": 2}
    assert "not allowed to approve the edited arguments" in text_of(done)
    assert "do not fit" not in text_of(done)


def code_of_last(result: types.CallToolResult) -> str:
    assert result.is_error
    return str(json.loads(text_of(result).splitlines()[-1])["error"]["code"])


@ERAS
@pytest.mark.parametrize("may", [_small, anything])
async def test_a_yes_for_the_session_reaches_no_further_than_its_caller_may(
    era: Era, may: MayApprove
) -> None:
    @tool(visible=ALL, requires_approval=True)
    def send(amount: float = 1.0) -> str:
        """Send money."""
        return f"sent {amount:g}"

    server, sink = serving(tools=[send], may_approve=may)
    asked, answer = answering("accept", answer="yes, and to this tool for the session")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        told = [await client.call_tool("send", {"amount": amount}) for amount in (1, 1000)]
    whole = may is anything
    offers = asked[0].requested_schema["properties"]["answer"]["enum"]
    assert ("yes, and to this tool for the session" in offers) is whole
    assert [one.is_error for one in told] == ([False, False] if whole else [True, True])
    assert len([one for one in sink.records if one.status == "completed"]) == (2 if whole else 0)


@ERAS
async def test_a_yes_for_the_session_is_not_asked_for_again(era: Era) -> None:
    @tool(visible=ALL, requires_approval=True)
    def mail(to: str) -> str:
        """Send a mail."""
        return to

    server, sink = serving(tools=[mail], may_approve=lambda *_: True)
    asked, answer = answering("accept", answer="yes, and to exactly this for the session")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        for _ in range(2):
            assert text_of(await client.call_tool("mail", {"to": "ada"})) == "ada"
        await client.call_tool("mail", {"to": "bob"})
    assert len(asked) == 2
    assert [record.approved_by for record in sink.records if record.status == "completed"] == [
        "anonymous"
    ] * 3


@ERAS
@pytest.mark.parametrize("may", [lambda *_: True, anything])
async def test_a_yes_may_be_for_always_where_who_calls_may_approve_anything(
    era: Era, may: MayApprove, tmp_path: Path
) -> None:
    RAN.clear()
    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=b"k" * 32) as rules:
        server = mcp_server(ToolRunner([refund], rules=rules), may_approve=may)
        text = "yes, and always to exactly this"
        asked, answer = answering("accept", answer=text)
        async with Client(server.server, mode=era, elicitation_callback=answer) as client:
            for _ in range(2):
                done = await client.call_tool("refund", {"order": 7})
                assert bool(done.is_error) is (may is not anything)
        offers = asked[0].requested_schema["properties"]["answer"]["enum"]
        assert (text in offers) is (may is anything)
        assert len(asked) == (1 if may is anything else 2)
        assert [bool(kept.rule) for kept in await rules.rules()] == [True] * (may is anything)


async def test_a_client_that_answers_wrongly_is_not_told_that_it_cannot_ask() -> None:
    async def fails(context: Any, params: Any) -> types.ErrorData:
        del context, params
        return types.ErrorData(code=-32000, message="no")

    server, _ = serving(may_approve=lambda *_: True)
    async with Client(server.server, mode="legacy", elicitation_callback=fails) as client:
        refused = await client.call_tool("refund", {"order": 7})
    assert code_of(refused) == "approval_required"
    assert "answered with an error, or not at all" in text_of(refused)
    assert RAN == []


@ERAS
async def test_a_client_that_cannot_ask_is_told_so(era: Era) -> None:
    server, _ = serving(may_approve=lambda *_: True)
    async with Client(server.server, mode=era) as client:
        refused = await client.call_tool("refund", {"order": 7})
    assert code_of(refused) == "approval_required"
    assert "cannot ask its user" in text_of(refused)


@ERAS
async def test_an_approver_of_the_runner_is_asked_where_the_client_may_not_answer(era: Era) -> None:
    answers: list[Answer | None] = [None, Approve("ada"), Refuse("no", "ada")]

    async def later(_request: ApprovalRequest) -> Answer | None:
        return answers.pop(0)

    server, sink = serving(approver=later)
    async with Client(server.server, mode=era) as client:
        done = await client.call_tool("refund", {"order": 7})  # it waits for the answer
        refused = await client.call_tool("refund", {"order": 8})
    assert text_of(done) == "refunded 7"
    assert code_of(refused) == "approval_refused"
    assert [r.approved_by for r in sink.records] == ["ada", "ada"]


@ERAS
async def test_what_was_read_from_others_makes_later_calls_ask(era: Era) -> None:
    server, _ = serving()
    async with Client(server.server, mode=era) as client:
        assert not (await client.call_tool("many", {})).is_error
        await client.call_tool("search", {"text": "x"})
        assert code_of(await client.call_tool("many", {})) == "approval_required"
        assert not (await client.call_tool("stock", {"item": "nut"})).is_error


@ERAS
async def test_progress_reaches_a_client_that_wants_it(era: Era) -> None:
    server, _ = serving()
    told: list[tuple[float, float | None, str | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with Client(server.server, mode=era) as client:
        done = await client.call_tool("counting", {"steps": 2}, progress_callback=tell)
        await asyncio.sleep(0)
        await client.call_tool("counting", {"steps": 2})
    assert text_of(done) == "done"
    assert told == [
        (1.0, None, "step 0"),
        (2.0, None, "step 1"),
        (40.0, 50.0, "nearly"),
        (41.0, None, "done"),
    ]


@ERAS
@pytest.mark.parametrize(
    "part",
    [
        {"progress": 10**400},
        {"progress": 1, "total": 10**400},
        {"progress": 2.5, "total": -(10**309)},
        {"progress": -(10**309), "message": "x"},
        {"progress": True},
    ],
)
async def test_no_progress_keeps_a_result_from_its_client(era: Era, part: Any) -> None:
    @tool(visible=ALL)
    async def tells(context: CallContext) -> str:
        """Tell a part."""
        context.progress(part)
        context.progress({"progress": 3})
        return "done"

    told: list[float] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        del total, message
        told.append(progress)

    server, _ = serving(tools=[tells])
    async with asyncio.timeout(5), Client(server.server, mode=era) as client:
        done = await client.call_tool("tells", {}, progress_callback=tell)
    assert text_of(done) == "done"
    assert told[-1] == 3


async def test_whatever_a_client_does_with_progress_its_result_comes() -> None:
    class Session:
        async def report_progress(self, *_told: object) -> None:
            raise RuntimeError("it went wrong")

    progress = Progress(cast("ServerSession", Session()))
    for part in range(3):
        progress.progress("call_1", part)
    async with asyncio.timeout(5):
        await progress.told()
    progress.stop()


@ERAS
async def test_a_call_that_its_client_gives_up_is_cancelled_and_recorded(era: Era) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def slow() -> str:
        """Take long."""
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # it cleans up: a scope of anyio would break this off
            ended.set()
        return "never"

    server, sink = serving(tools=[slow])
    async with Client(server.server, mode=era) as client:
        calling = asyncio.ensure_future(client.call_tool("slow", {}))
        await began.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await asyncio.wait_for(ended.wait(), 5)
        for _ in range(100):
            if sink.records:
                break
            await asyncio.sleep(0.01)
    (record,) = sink.records
    assert record.error is not None
    assert record.error.code == "cancelled"


def _message(**said: Any) -> SessionMessage:
    said = {"jsonrpc": "2.0", **said}
    return SessionMessage(types.jsonrpc_message_adapter.validate_python(said, by_name=False))


@tool(visible=ALL)
async def greet(client: McpClient) -> str:
    """Greet the user."""
    await client.elicit("Who?", {"type": "object", "properties": {}})
    return "hello"


@pytest.mark.parametrize("name", ["refund", "greet"])
async def test_a_call_whose_user_is_asked_as_the_input_ends_is_cancelled(name: str) -> None:
    catalog = Catalog([refund, greet]).bind({McpClient: per_call(calling_client)})
    sink = MemorySink()
    server = mcp_server(ToolRunner(catalog, sinks=[sink]), may_approve=lambda *_: True).server
    to_server, reads = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    writes, from_server = anyio.create_memory_object_stream[SessionMessage](10)
    options = server.create_initialization_options()
    running = asyncio.create_task(server.run(reads, writes, options))
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "x", "version": "1"},
    }
    await to_server.send(_message(id=0, method="initialize", params=hello))
    await from_server.receive()
    await to_server.send(_message(method="notifications/initialized"))
    params = {"name": name, "arguments": {"order": 7} if name == "refund" else {}}
    await to_server.send(_message(id=1, method="tools/call", params=params))
    asked = (await from_server.receive()).message
    assert isinstance(asked, types.JSONRPCRequest)
    assert asked.method == "elicitation/create"
    await to_server.aclose()
    async with asyncio.timeout(10):
        await running
    assert [(each.status, each.error and each.error.code) for each in sink.records] == [
        ("failed", "cancelled")
    ]
    await from_server.aclose()


async def test_a_page_at_a_time_and_only_what_a_caller_may_call() -> None:
    @tool(visible=ALL, allowed_roles=["admin"])
    def reset() -> str:
        """Reset it."""
        return "reset"

    roles: tuple[str, ...] = ()
    server, _ = serving(
        tools=[reset, *TOOLS], page_size=3, caller=lambda _token: Caller("ada", roles)
    )

    async def names(client: Client) -> list[list[str]]:
        pages, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            pages.append([one.name for one in page.tools])
            cursor = page.next_cursor
            if cursor is None:
                return pages

    async with Client(server.server, cache=None) as client:
        everybody = await names(client)
        roles = ("admin",)
        admin = await names(client)
        with pytest.raises(MCPError, match="cursor"):
            await client.list_tools(cursor="nonsense")
    assert everybody == [
        ["stock", "refund", "search"],
        ["picture", "broken", "sorry"],
        ["many", "counting"],
    ]
    assert admin[0] == ["reset", "stock", "refund"]


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_clients_hear_of_a_new_list(era: Literal["legacy", "auto"]) -> None:
    server, _ = serving(tools=[stock])
    heard = asyncio.Event()

    async def handle(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.set()

    async with Client(server.server, mode=era, message_handler=handle) as client:
        assert len((await client.list_tools()).tools) == 1
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed
        if era == "legacy":
            await server.use(ToolRunner([stock, many]))
            await asyncio.wait_for(heard.wait(), 5)
        else:
            async with client.listen(tools_list_changed=True) as changes:
                await server.use(ToolRunner([stock, many]))
                async for _ in changes:
                    break
        assert len((await client.list_tools(cache_mode="refresh")).tools) == 2


async def test_a_sink_that_fails_is_an_error_without_its_words() -> None:
    class Full:
        def write(self, _record: object) -> None:
            raise OSError("canary-of-a-disk")

    server = mcp_server(ToolRunner([stock], sinks=[Full()]))
    async with Client(server.server) as client:
        with pytest.raises(MCPError, match="could not be recorded") as raised:
            await client.call_tool("stock", {"item": "nut"})
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("wrong", [{"page_size": 0}, {"state_key": "short"}], ids=["page", "key"])
def test_options_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"page_size|32 bytes"):
        mcp_server(ToolRunner([stock]), **wrong)


@tool(visible=ALL)
async def book(date: str, client: McpClient) -> dict[str, Any]:
    """Book a seat, which the user chooses."""
    RAN.append(f"began {date}")
    schema = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
    first = await client.elicit("Which seat?", schema)
    second = await client.elicit("Really?", schema)
    return {"first": [first.action, first.content], "second": second.content}


def booking(**options: Any) -> tuple[McpServer, MemorySink]:
    RAN.clear()
    sink = MemorySink()
    catalog = Catalog([book, refund]).bind({McpClient: per_call(calling_client)})
    return mcp_server(ToolRunner(catalog, sinks=[sink]), **options), sink


@ERAS
@each_row(
    "schema",
    [
        {},
        {"type": "object"},
        {"properties": {"seat": {"type": "string"}}},
        {"type": ["object"], "properties": {}},
        {"type": "string"},
        {"type": 5},
    ],
)
async def test_what_is_no_form_is_an_error_of_the_tool_and_not_asked(
    era: Era, schema: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    @tool(visible=ALL)
    async def ask(client: McpClient) -> str:
        """Ask something."""
        return str(await client.elicit("Which seat?", schema))

    sink = MemorySink()
    catalog = Catalog([ask]).bind({McpClient: per_call(calling_client)})
    asked, answer = answering("accept")
    server = mcp_server(ToolRunner(catalog, sinks=[sink])).server
    async with Client(server, mode=era, elicitation_callback=answer) as client:
        assert code_of(await client.call_tool("ask", {})) == "tool_error"
    assert asked == []
    assert sink.records[-1].status == "failed"
    assert "tool 'ask' failed" in caplog.text


@ERAS
async def test_a_plain_tool_asks_the_clients_user(era: Era) -> None:
    @tool(visible=ALL)
    def book_plainly(date: str, client: McpClient) -> str:
        """Book a seat, in a thread of its own."""
        form = {"type": "object", "properties": {"seat": {"type": "string"}}}
        given = run_sync(client.elicit(f"Which seat on {date}?", form))
        return f"{given.content}, {run_sync(client.roots())[0].name}"

    async def roots(context: Any) -> types.ListRootsResult:
        del context
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///a"), name="a")])

    catalog = Catalog([book_plainly]).bind({McpClient: per_call(calling_client)})
    asked, answer = answering("accept", seat="7a")
    async with Client(
        mcp_server(ToolRunner(catalog)).server,
        mode=era,
        elicitation_callback=answer,
        list_roots_callback=roots,
    ) as client:
        async with asyncio.timeout(10):
            done = await client.call_tool("book_plainly", {"date": "monday"})
    assert text_of(done) == "{'seat': '7a'}, a"
    assert len(asked) == 1


@ERAS
async def test_a_tool_asks_the_clients_user_and_runs_once(era: Era) -> None:
    server, sink = booking()
    asked, answer = answering("accept", seat="7a")
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        done = await client.call_tool("book", {"date": "monday"})
    assert json.loads(text_of(done)) == {
        "first": ["accept", {"seat": "7a"}],
        "second": {"seat": "7a"},
    }
    assert [each.message for each in asked] == ["Which seat?", "Really?"]
    assert RAN == ["began monday"]
    assert [record.status for record in sink.records] == ["completed"]


@ERAS
async def test_questions_that_nobody_answers_stop_no_other_call(era: Era) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        del context, params
        asked.set()
        await answered.wait()
        return types.ElicitResult(action="accept", content={"seat": "7a"})

    catalog = Catalog([book, stock]).bind({McpClient: per_call(calling_client)})
    server = mcp_server(ToolRunner(catalog, concurrency=1))
    async with (
        Client(server.server, mode=era, elicitation_callback=answer) as client,
        Client(server.server, mode=era) as other,
    ):
        waiting = asyncio.create_task(client.call_tool("book", {"date": "monday"}))
        async with asyncio.timeout(10):
            await asked.wait()
            done = await other.call_tool("stock", {"item": "nut"})
            assert not done.is_error
            answered.set()
            assert not (await waiting).is_error


@ERAS
async def test_each_question_gets_its_own_answer_whatever_keys_they_have(era: Era) -> None:
    """Keys that are taken, and those that are made for questions without one, are no other's."""

    @tool(visible=ALL)
    async def fill(keys: list[str], client: McpClient) -> list[Any]:
        """Ask several questions at once."""
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        asking = (client.elicit(f"{at}", schema, key=key) for at, key in enumerate(keys))
        return [one.content for one in await asyncio.gather(*asking)]

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        del context
        return types.ElicitResult(action="accept", content={"text": params.message})

    catalog = Catalog([fill]).bind({McpClient: per_call(calling_client)})
    server = mcp_server(ToolRunner(catalog))
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        for keys in product(["", "name", "question_1", "question_2", "question_3"], repeat=3):
            async with asyncio.timeout(10):
                done = await client.call_tool("fill", {"keys": list(keys)})
            assert json.loads(text_of(done)) == [{"text": str(n)} for n in range(3)], keys


@ERAS
@pytest.mark.parametrize("content", [{"seat": 7}, {"sea": "7a"}, {}])
async def test_a_tool_gets_what_fits_its_form_or_nothing(era: Era, content: Any) -> None:
    server, sink = booking()
    _, answer = answering("accept", **content)
    async with Client(server.server, mode=era, elicitation_callback=answer) as client:
        failed = await client.call_tool("book", {"date": "monday"})
    assert code_of(failed) == "tool_error"
    assert "do not fit the form" in text_of(failed)
    assert [record.error.code for record in sink.records if record.error] == ["tool_error"]


@ERAS
async def test_a_tool_is_told_where_a_client_cannot_ask(era: Era) -> None:
    server, sink = booking()
    async with Client(server.server, mode=era) as client:
        if era == "legacy":
            failed = await client.call_tool("book", {"date": "monday"})
            assert code_of(failed) == "tool_error"
            assert "has not declared elicitation" in text_of(failed)
        else:  # which has an error for that
            with pytest.raises(MCPError, match="has not declared") as raised:
                await client.call_tool("book", {"date": "monday"})
            assert raised.value.error.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
            assert raised.value.error.data == {"requiredCapabilities": {"elicitation": {}}}
    assert [record.error.code for record in sink.records if record.error] == ["tool_error"]


async def test_a_tool_is_told_where_there_is_no_client() -> None:
    catalog = Catalog([book]).bind({McpClient: per_call(calling_client)})
    outcome = await ToolRunner(catalog).exec(ToolCall("1", "book", '{"date": "monday"}'))
    assert isinstance(outcome, Failed)
    assert "does not come from an MCP client" in outcome.error.message


async def begin(client: Client, name: str, arguments: dict[str, Any]) -> types.InputRequiredResult:
    given = await client.session.call_tool(name, arguments, allow_input_required=True)
    assert isinstance(given, types.InputRequiredResult)
    return given


async def retry(
    client: Client, state: str | None, order: int = 7, answers: types.InputResponses | None = None
) -> types.CallToolResult:
    return await client.session.call_tool(
        "refund", {"order": order}, input_responses=answers or YES, request_state=state
    )


YES: types.InputResponses = {
    "approval": types.ElicitResult(action="accept", content={"answer": "yes"}),
}


async def test_a_question_outlives_the_process_that_asked_it() -> None:
    _, answer = answering("accept", answer="yes")
    before, _ = serving(state_key="k" * 32, may_approve=lambda *_: True)
    async with Client(before.server, mode="2026-07-28", elicitation_callback=answer) as client:
        state = (await begin(client, "refund", {"order": 7})).request_state
        assert RAN == []
    assert state is not None
    after, sink = serving(state_key="k" * 32, may_approve=lambda *_: True)
    async with Client(after.server, mode="2026-07-28", elicitation_callback=answer) as client:
        for _ in range(2):  # a client that did not hear the first time asks once more
            assert text_of(await retry(client, state)) == "refunded 7"
        with pytest.raises(MCPError, match="requestState"):
            await retry(client, state, order=8)
        with pytest.raises(MCPError, match="requestState"):
            await retry(client, state[:-2] + ("xx" if state[-2:] != "xx" else "yy"))
    assert RAN == ["refund 7 1"]
    assert [r.approved_by for r in sink.records if r.status == "completed"] == ["anonymous"]
    other, _ = serving(may_approve=lambda *_: True)  # with a key of its own
    async with Client(other.server, mode="2026-07-28", elicitation_callback=answer) as client:
        with pytest.raises(MCPError, match="requestState"):
            await retry(client, state)
    assert RAN == []


async def test_with_a_log_a_yes_runs_once_in_whichever_process(tmp_path: Path) -> None:
    RAN.clear()
    states: list[str | None] = []
    for _ in range(3):  # each with a memory of its own
        async with AuditLog(f"sqlite:///{tmp_path / 'log.db'}") as log:
            runner = ToolRunner(TOOLS, sinks=[log])
            server = mcp_server(runner, state_key="k" * 32, may_approve=lambda *_: True)
            _, answer = answering("accept", answer="yes")
            async with Client(
                server.server, mode="2026-07-28", elicitation_callback=answer
            ) as client:
                if not states:
                    states.append((await begin(client, "refund", {"order": 7})).request_state)
                    continue
                done = await retry(client, states[0])
                assert (done.is_error, text_of(done)) == (False, "refunded 7")
    assert RAN == ["refund 7 1"]


NOT_YES: dict[str, types.ElicitResult] = {
    "a no": types.ElicitResult(action="accept", content={"answer": "no"}),
    "a decline": types.ElicitResult(action="decline"),
    "what does not fit": types.ElicitResult(
        action="accept", content={"answer": "yes", "arguments": '{"order": "x"}'}
    ),
    "what is no JSON": types.ElicitResult(
        action="accept", content={"answer": "yes", "arguments": '{"order":'}
    ),
    "what its caller may not approve": types.ElicitResult(
        action="accept", content={"answer": "yes", "arguments": '{"order": 7, "amount": 21}'}
    ),
}


@pytest.mark.parametrize("first", NOT_YES.values(), ids=NOT_YES)
@pytest.mark.parametrize("where", ["one process", "two processes with a log"])
async def test_a_question_that_was_answered_is_used_up(
    first: types.ElicitResult, where: str, tmp_path: Path
) -> None:
    RAN.clear()
    logged = where != "one process"
    told: list[str] = []
    state: str | None = None
    sink = MemorySink()

    async def answered(runner: ToolRunner, answers: list[Any]) -> None:
        nonlocal state
        server = mcp_server(runner, state_key="k" * 32, may_approve=_small)
        _, answer = answering("accept")
        async with Client(server.server, mode="2026-07-28", elicitation_callback=answer) as client:
            state = state or (await begin(client, "refund", {"order": 7})).request_state
            for each in answers:
                told.append(code_of_last(await retry(client, state, answers={"approval": each})))

    answers: list[Any] = [first, *([YES["approval"]] * 2)]
    if not logged:
        await answered(ToolRunner(TOOLS, sinks=[sink]), answers)
    for each in answers if logged else ():
        async with AuditLog(f"sqlite:///{tmp_path / 'log.db'}") as log:
            await answered(ToolRunner(TOOLS, sinks=[log, sink]), [each])
    assert (len(set(told)), RAN) == (1, [])
    assert {one.status for one in sink.records} == {"waiting", "failed"}


async def test_who_has_not_answered_may_still_do_so() -> None:
    """Somebody who dismissed the form, or gave up the call, has used up nothing."""
    server, _ = serving(may_approve=_small)
    _, answer = answering("accept")
    async with Client(server.server, mode="2026-07-28", elicitation_callback=answer) as client:
        state = (await begin(client, "refund", {"order": 7})).request_state
        dismissed = types.ElicitResult(action="cancel")
        assert (await retry(client, state, answers={"approval": dismissed})).is_error
        assert text_of(await retry(client, state)) == "refunded 7"


async def test_an_answer_counts_only_while_its_caller_may_give_it() -> None:
    may = {"grace"}
    who = "grace"
    server, sink = serving(
        may_approve=lambda caller, _request: caller.id in may, caller=lambda _token: Caller(who)
    )
    _, answer = answering("accept", answer="yes")
    async with Client(server.server, mode="2026-07-28", elicitation_callback=answer) as client:
        asked = await begin(client, "refund", {"order": 7})
        who = "ada"
        may.add("ada")
        other = await retry(client, asked.request_state)
        assert code_of(other) == "approval_mismatch"
        who = "grace"
        may.clear()
        late = await retry(client, asked.request_state)
        assert code_of(late) == "approval_required"
    assert RAN == []
    assert not [record for record in sink.records if record.status == "completed"]


async def test_without_an_answer_the_question_comes_again() -> None:
    server, _ = serving(may_approve=lambda *_: True)
    _, answer = answering("accept")
    async with Client(server.server, mode="2026-07-28", elicitation_callback=answer) as client:
        asked = await begin(client, "refund", {"order": 7})
        again = await client.session.call_tool(
            "refund",
            {"order": 7},
            input_responses={"wrong": YES["approval"]},
            request_state=asked.request_state,
            allow_input_required=True,
        )
        assert isinstance(again, types.InputRequiredResult)
        assert again.input_requests == asked.input_requests
    assert RAN == []


async def test_no_callers_questions_put_out_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.bridges.mcp.serve._MOST_OPEN", 4)
    who, monday = "bob", {"date": "monday"}
    server, _ = booking(caller=lambda _token: Caller(who))
    _, answer = answering("accept")
    async with Client(server.server, mode="2026-07-28", elicitation_callback=answer) as client:

        async def go_on(asked: types.InputRequiredResult) -> object:
            seat = types.ElicitResult(action="accept", content={"seat": "7a"})
            return await client.session.call_tool(
                "book",
                monday,
                input_responses=dict.fromkeys(asked.input_requests or {}, seat),
                request_state=asked.request_state,
                allow_input_required=True,
            )

        bobs = await begin(client, "book", monday)
        who = "ada"
        adas = [await begin(client, "book", monday) for _ in range(6)]
        for asked in adas[:3]:
            with pytest.raises(MCPError, match="is no longer waiting for an answer"):
                await go_on(asked)
        for asked in adas[3:]:
            assert isinstance(await go_on(asked), types.InputRequiredResult)
        who = "bob"
        assert isinstance(await go_on(bobs), types.InputRequiredResult)


async def test_a_call_that_waits_for_an_answer_is_cancelled_where_the_server_ends() -> None:
    server, sink = booking()
    _, answer = answering("accept")
    async with Client(server.server, mode="2026-07-28", elicitation_callback=answer) as client:
        asked = await begin(client, "book", {"date": "monday"})
        assert asked.input_requests is not None
        assert list(asked.input_requests) == ["question_1"]
        assert sink.records == []
    assert [record.error.code for record in sink.records if record.error] == ["cancelled"]


VALUES = st.none() | st.booleans() | st.floats() | st.text() | st.lists(st.text())
ANSWERS = st.sampled_from(["yes", "no", "YES", "yes ", *YES_ANSWERS]) | VALUES


@given(
    action=st.sampled_from(["accept", "decline", "cancel"]),
    content=st.none()
    | st.fixed_dictionaries({}, optional={"answer": ANSWERS, "arguments": VALUES, "x": VALUES}),
    for_run=st.booleans(),
    always=st.booleans(),
    may=st.sampled_from([anything, lambda *_: True]),
)
def test_only_a_clear_yes_that_was_offered_approves(
    action: Any, content: dict[str, Any] | None, for_run: bool, always: bool, may: MayApprove
) -> None:
    request = ApprovalRequest(
        "apr_1", "refund", {}, "it is risky", 1.0, for_run=for_run, always=always
    )
    given_back = types.ElicitResult.model_construct(action=action, content=content)
    yes = offered(request, may)
    answer = answer_of(given_back, yes, "ada")
    form = form_of(request, yes).requested_schema["properties"]["answer"]["enum"]
    assert (True in yes.values()) == (for_run and may is anything)
    assert ("always" in yes.values()) == (always and may is anything)
    said = (content or {}).get("answer")
    if isinstance(answer, Approve):
        assert action == "accept"
        assert said in form
        assert said != "no"
        what = YES_ANSWERS[str(said)]
        assert answer.for_run == (what != "always" and what)
        assert answer.always == (Always() if what == "always" else None)
        assert "x" not in (content or {})
    else:
        clear = action == "accept" and isinstance(said, str) and said in form and said != "no"
        assert not clear or (content or {}).get("arguments") or "x" in (content or {})
    assert answer.by == "ada"
