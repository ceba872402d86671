"""One segment of a run is done at a time, by one worker, on what was signed; its failures are told."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from children import Talking
from msgspec import structs
from samples import sample, sampled, whole_only

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, PROMPT, Model, desk

from toolcrib import ALL, Agent, Approve, Caller, Image, Message, RunResult, Tool, tool
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.durable import DurableAgents
from toolcrib.errors import ApprovalError, ErrorCode, SourceError, ToolcribError
from toolcrib.processes import this_process
from toolcrib.testing import call
from toolcrib.values.content import Prompt
from toolcrib.values.record import CallError, state_of
from toolcrib.values.run import Instructions, ToolCallFinished

ADA = Caller("ada")


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def change(durable: DurableAgents, sql: str, **values: object) -> None:
    assert await durable._store._database.write(sql, **values) > 0


def told(folder: Path) -> list[list[str]]:
    file = folder / "effects"
    return [line.split() for line in file.read_text("utf-8").splitlines()] if file.exists() else []


# A run is cancelled and resumed, at whichever moment.


async def _ended(client: DurableAgents, run_id: str) -> RunResult:
    async with asyncio.timeout(60):
        while (result := await client.result(run_id)).status == "waiting":
            for request in await client.pending():
                try:
                    await client.answer(request.id, Approve(by="grace"))
                except ApprovalError as error:  # who ends another run was first
                    assert error.code is ErrorCode.ALREADY_USED  # noqa: PT017
    return result


@pytest.mark.parametrize("workers", [0, 2], ids=["here", "elsewhere"])
async def test_a_run_that_is_cancelled_and_resumed_at_any_moment_does_nothing_twice(
    tmp_path: Path, file: str, workers: int
) -> None:
    chance = random.Random(27)  # noqa: S311
    async with AsyncExitStack() as opened:
        for _ in range(workers):
            child = opened.enter_context(Talking("-m", "durable.desk", file, str(tmp_path)))
            assert (await asyncio.to_thread(child.stdout.readline)) == "ready\n"
        client = DurableAgents(file, {"desk": desk(tmp_path)})
        if workers:
            opened.push_async_callback(client.aclose)
        else:
            await opened.enter_async_context(client)
        runs = [await client.start("desk", PROMPT) for _ in range(sample(20))]

        async def disturbed(run_id: str) -> RunResult:
            for _ in range(4):
                await asyncio.sleep(chance.uniform(0, 0.5))
                try:
                    await client.cancel(run_id)
                except ToolcribError:
                    break  # it is over
                await client.resume(run_id)
            return await _ended(client, run_id)

        results = await asyncio.gather(*map(disturbed, runs))
        before = told(tmp_path)
        events = [e async for e in client.events(runs[0]) if isinstance(e, ToolCallFinished)]
        assert len(events) == len({event.record.id for event in events}) == 9
        await asyncio.sleep(1)
        assert told(tmp_path) == before
    _check(results, before)


def _check(results: list[RunResult], effects: list[list[str]]) -> None:
    begun = Counter((name, run, call) for what, name, run, call in effects if what == "begin")
    whole = {(name, run, call) for what, name, run, call in effects if what == "end"}
    assert {name for (name, _, _), times in begun.items() if times > 1} <= {"look", "ship"}
    for result in results:
        assert (result.status, result.text, len(result.records)) == ("completed", "All done.", 9)
        for record in result.records:
            known = (record.name, result.state.run_id, record.id)
            if record.error is None:
                assert known in whole
            elif record.name != "nobody":
                assert record.error.code is ErrorCode.OUTCOME_UNKNOWN
                assert record.name in ("pay", "refund")


async def test_a_segment_begins_when_the_one_before_has_stopped(file: str) -> None:
    done: list[str] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def pay(order: int) -> str:
        """Pay, and let nobody stop that."""
        begun.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                done.append("asked to stop")
        done.append(f"paid {order}")
        return "paid"

    asked: list[int] = []
    model = Model(call("pay", order=7), call("pay", order=8), "Paid.", before=asked.append)
    async with DurableAgents(file, {"a": Agent(model, [pay], state_key=KEY)}) as worker:
        run_id = await worker.start("a", PROMPT)
        await begun.wait()
        await worker.cancel(run_id)
        resumed = asyncio.create_task(worker.resume(run_id))
        await asyncio.sleep(0.6)
        assert not resumed.done()
        assert done[0] == "asked to stop"
        go.set()
        await resumed
        result = await worker.result(run_id)
    assert (result.text, asked) == ("Paid.", [0, 1, 2])
    assert [each for each in done if each.startswith("paid")] == ["paid 7", "paid 8"]
    assert [state_of(record) for record in result.records] == ["completed"] * 2


async def test_nobody_waits_forever_for_a_worker_that_does_not_stop(
    file: str, tmp_path: Path
) -> None:
    client = DurableAgents(file, {"desk": desk(tmp_path)}, lease=0.1)
    run_id = await client.start("desk", PROMPT)
    await change(client, "UPDATE durable_runs SET status = 'running', worker = 'gone'")
    await client.cancel(run_id)
    with pytest.raises(ToolcribError, match="cannot be resumed yet"):
        await client.resume(run_id)
    await client.aclose()


def _hanging(begun: asyncio.Event, **marks: Any) -> Tool[..., Any]:
    @tool(visible=ALL, **marks)
    async def hang(at: int) -> str:
        """Take long, the first time."""
        if begun.is_set():
            return "done"
        begun.set()
        await asyncio.Event().wait()
        return "never"

    return hang


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize(
    ("marks", "becomes"),
    [
        ({"read_only": True}, "completed"),
        ({"idempotent": True}, "completed"),
        ({}, "failed (outcome_unknown)"),
    ],
    ids=["read_only", "idempotent", "neither"],
)
async def test_a_call_that_is_cut_is_made_again_only_if_that_does_no_harm(
    file: str, where: str, marks: Any, becomes: str
) -> None:
    begun = asyncio.Event()
    hang = _hanging(begun, **marks)

    def agents() -> dict[str, Agent]:
        return {"a": Agent(Model(call("hang", at=1), "Over."), [hang], state_key=KEY)}

    async with DurableAgents(file, agents()) as worker:
        run_id = await worker.start("a", PROMPT)
        await begun.wait()
        await worker.cancel(run_id)
        cut = await worker.result(run_id)
        assert cut.status == "cancelled"
        assert [state_of(record) for record in cut.records] == ["failed (outcome_unknown)"]
        assert [record.name for record in await worker.unknown_calls(run_id)] == ["hang"]
        if where == "here":
            await worker.resume(run_id)
            result = await worker.result(run_id)
    if where == "elsewhere":
        async with DurableAgents(file, agents()) as other:
            await other.resume(run_id)
            result = await other.result(run_id)
    assert [state_of(record) for record in result.records] == [becomes]
    assert result.text == "Over."


async def test_a_worker_that_lost_its_segment_does_no_more_of_it(file: str, tmp_path: Path) -> None:
    """As one that was taken for dead, and another one took over."""
    asked: list[int] = []
    agent = desk(tmp_path, model=Model(*[call("look", what="x")] * 90, before=asked.append))
    async with DurableAgents(file, {"desk": agent}) as worker:
        run_id = await worker.start("desk", PROMPT)
        while not told(tmp_path):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await change(worker, "UPDATE durable_runs SET worker = 'another'")
        await asyncio.sleep(0.5)
        before = list(asked)
        await asyncio.sleep(0.5)
        assert asked == before
        assert worker._segments == set()
        assert (await worker.show(run_id)).status == "running"
    async with AuditLog(file) as log:
        assert await log.runs(run_id) == []
        known = [entry.record for entry in await log.entries(AuditFilter(run_id=run_id))]
    assert {state_of(record) for record in known} <= {"completed", "failed (outcome_unknown)"}


@pytest.mark.parametrize("then", ["a", "b"], ids=["of the same agent", "of another one"])
async def test_a_worker_that_lost_its_segment_has_its_place_again(file: str, then: str) -> None:
    """Also where a tool ends by itself, as what runs in a thread does."""
    begun, go_on = threading.Event(), threading.Event()

    @tool(visible=ALL)
    def slow() -> str:
        """Take a while."""
        begun.set()
        go_on.wait(20)
        return "done"

    agent = Agent(Model(call("slow"), "Over."), [slow], state_key=KEY)
    async with DurableAgents(file, {"a": agent, "b": agent}, slots=1) as worker:
        lost = await worker.start("a", PROMPT)
        await asyncio.to_thread(begun.wait)
        await worker._store.beat("another", this_process())
        taken = "UPDATE workflow_status SET executor_id = 'another', owner_xid = 'another'"
        await change(worker, f"{taken} WHERE workflow_uuid = :id", id=f"{lost}:0")
        await change(worker, "UPDATE durable_runs SET worker = 'another' WHERE id = :id", id=lost)
        await asyncio.sleep(0.5)
        go_on.set()
        async with asyncio.timeout(20):
            other = await worker.result(await worker.start(then, PROMPT))
        assert (other.status, (await worker.show(lost)).status) == ("completed", "running")


async def test_a_worker_takes_as_many_segments_as_it_has_slots(file: str) -> None:
    """Whatever slots another worker has, and for all agents together: the rest is for others."""
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    @tool(visible=ALL)
    async def slow() -> str:
        """Take a while."""
        begun.release()
        await go_on.wait()
        return "done"

    agents = {name: Agent(Model(call("slow"), "Over."), [slow], state_key=KEY) for name in "abcd"}
    async with DurableAgents(file, agents, slots=2) as worker:
        await change(worker, "UPDATE queues SET worker_concurrency = 9")  # as by another worker
        runs = [await worker.start(name, PROMPT) for name in "abcdabcd"]
        for _ in range(2):
            await begun.acquire()
        await asyncio.sleep(0.5)
        taken = "SELECT count(*) AS n FROM workflow_status WHERE status = 'PENDING'"
        assert await worker._store._database.read(taken) == [{"n": 2}]
        go_on.set()
        async with asyncio.timeout(20):
            results = [await worker.result(run_id) for run_id in runs]
    assert {result.text for result in results} == {"Over."}


async def test_a_call_that_a_stop_cuts_is_told_as_that(file: str) -> None:
    begun = asyncio.Event()

    def agents() -> dict[str, Agent]:
        turns = Model(call("hang", at=1), "Over.")
        return {"a": Agent(turns, [_hanging(begun)], state_key=KEY)}

    worker = DurableAgents(file, agents())
    await worker.__aenter__()
    run_id = await worker.start("a", PROMPT)
    await begun.wait()
    assert await worker.stop(0) is False
    await worker.aclose()
    async with DurableAgents(file, agents()) as other:
        (record,) = (await other.result(run_id)).records
    assert record.error is not None
    assert record.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert "broken off" not in record.error.message


async def test_a_run_that_is_cancelled_when_its_worker_was_killed_says_what_began(
    file: str, tmp_path: Path
) -> None:
    """The next worker only sees how far it had come: that the call began, the log alone knows."""
    agents = {"desk": desk(tmp_path)}
    client = DurableAgents(file, agents)
    with Talking("-m", "durable.desk", file, str(tmp_path), "60") as child:
        assert (await asyncio.to_thread(child.stdout.readline)) == "ready\n"
        run_id = await client.start("desk", PROMPT)
        while not any(line[1] == "pay" for line in told(tmp_path)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        child.kill()
        await asyncio.to_thread(child.wait)
    await client.cancel(run_id)
    async with client:
        result = await client.result(run_id)
        (unknown,) = await client.unknown_calls(run_id)
        assert (result.status, unknown.name) == ("cancelled", "pay")
        paid = {record.name: record for record in result.records}["pay"]
        assert (state_of(paid), paid.idempotency_key != "") == ("failed (outcome_unknown)", True)
        (content,) = [m.content for m in result.messages if m.call_id == paid.id]
        assert '"outcome_unknown"' in content
        await client.resolve(run_id, paid.id, happened=True, by="eve")
        assert await client.unknown_calls(run_id) == []


async def test_the_end_of_an_attempt_that_did_not_begin_hides_no_call_that_did(
    file: str, tmp_path: Path
) -> None:
    """Such an end may be in a log that an earlier version wrote to."""
    begun = asyncio.Event()
    agent = Agent(Model(call("hang", at=1), "Over."), [_hanging(begun)], state_key=KEY)
    async with DurableAgents(file, {"a": agent}) as worker:
        run_id = await worker.start("a", PROMPT)
        await begun.wait()
        await worker.cancel(run_id)
        (cut,) = (await worker.result(run_id)).records
        never = structs.replace(
            cut, idempotency_key="", error=CallError.of(ErrorCode.CANCELLED), notes=()
        )
        async with AuditLog(file) as log:
            await log.write(never)
        assert [each.id for each in await worker.unknown_calls(run_id)] == [cut.id]


# What fails is told.


class PanicError(BaseException):
    """What a Rust library raises: it is no Exception."""


@pytest.mark.parametrize("kind", [RuntimeError, PanicError])
async def test_what_of_the_author_fails_is_logged_whole(
    file: str, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    def fail(_at: int) -> None:
        raise kind("no such model: my-deployment-7")

    broken = Agent(Model("Hi.", before=fail), state_key=KEY)
    async with DurableAgents(file, {"a": broken}) as worker:
        run_id = await worker.start("a", PROMPT)
        with pytest.raises(ToolcribError, match=f"run {run_id} failed: {kind.__name__}$"):
            await asyncio.wait_for(worker.result(run_id), 20)
        assert (await worker.show(run_id)).reason == kind.__name__
    (record,) = [each for each in caplog.records if each.name == "toolcrib.durable"]
    assert record.levelno == logging.ERROR
    assert run_id in record.getMessage()
    assert f"{kind.__name__}: no such model: my-deployment-7" in caplog.text


async def test_the_id_of_a_run_is_that_of_one_run(file: str, tmp_path: Path) -> None:
    client = DurableAgents(file, {"desk": desk(tmp_path), "other": desk(tmp_path)})
    await client.start("desk", PROMPT, caller=ADA, run_id="order-7")
    assert await client.start("desk", PROMPT, caller=ADA, run_id="order-7") == "order-7"
    others: list[tuple[str, str, Caller]] = [
        ("other", PROMPT, ADA),
        ("desk", "My tea was hot.", ADA),
        ("desk", PROMPT, Caller("bob")),
    ]
    for agent, prompt, caller in others:
        with pytest.raises(ToolcribError, match="'order-7' is the id of another run"):
            await client.start(agent, prompt, caller=caller, run_id="order-7")
    with pytest.raises(ToolcribError, match="'order-7' is the id of another run"):
        await client.start("desk", PROMPT, caller=ADA, run_id="order-7", reasoning="low")
    for bad in ("\ud800", "a\nb", "a\0", "  ", "x" * 201):
        with pytest.raises(ToolcribError, match="at most 200 printable characters"):
            await client.start("desk", PROMPT, run_id=bad)
    async with DurableAgents(file, {"desk": desk(tmp_path), "other": desk(tmp_path)}) as worker:
        await worker.result("order-7")
        assert await worker.start("desk", PROMPT, caller=ADA, run_id="order-7") == "order-7"
    await client.aclose()


# Calls of agents that are tools.


async def test_an_unknown_call_is_found_however_deep_and_resolved(file: str) -> None:
    begun = asyncio.Event()

    def agents() -> dict[str, Agent]:
        inner = Agent(Model(call("hang", at=1), "Hung."), [_hanging(begun)], name="inner")
        within = inner.as_tool("inner", "I.", visible=ALL)
        middle = Agent(Model(call("inner", prompt="go"), "Middle."), [within], name="middle")
        tools = [middle.as_tool("middle", "M.", visible=ALL)]
        return {"front": Agent(Model(call("middle", prompt="go"), "Over."), tools, state_key=KEY)}

    worker = DurableAgents(file, agents())
    await worker.__aenter__()
    run_id = await worker.start("front", PROMPT)
    await begun.wait()
    assert await worker.unknown_calls(run_id) == []  # they run
    await worker.stop(0)
    await worker.aclose()
    async with DurableAgents(file, agents()) as other:
        assert (await other.result(run_id)).text == "Over."
    anybody = DurableAgents(file, {})
    found = await anybody.unknown_calls(run_id)
    assert sorted(record.name for record in found) == ["hang", "inner", "middle"]
    for record in found:
        await anybody.resolve(run_id, record.id, happened=True, by="eve")
    assert await anybody.unknown_calls(run_id) == []
    await anybody.aclose()


# What was changed in the store is not gone on with.


async def _stopped_after_a_step(file: str, folder: Path) -> str:
    agent = desk(folder, model=Model(call("pay", to="ada"), call("pay", to="bob"), "Paid."))
    async with DurableAgents(file, {"desk": agent}) as worker:
        run_id = await worker.start("desk", PROMPT)
        while not told(folder)[1:]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return run_id


@pytest.mark.parametrize("again", ["taken over", "cancelled"])
@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("output = replace(output, 'pay done', 'pay FORGED')", "step 2"),
        whole_only("output = replace(output, '\"ada\"', '\"eve\"')", "step 2"),
        ('output = replace(output, \'"signature":"hmac\', \'"signature":"\')', "step 1"),
        whole_only("output = replace(output, '\\\"ada\\\"', '\\\"eve\\\"')", "step 1"),
        whole_only("output = '{\"step\":5}'", "step 1"),
    ],
)
@pytest.mark.exhaustive
async def test_a_kept_step_that_was_changed_is_not_taken_up(
    file: str, tmp_path: Path, sql: str, names: str, again: str
) -> None:
    run_id = await _stopped_after_a_step(file, tmp_path)
    before = told(tmp_path)
    agent = desk(tmp_path, model=Model(call("pay", to="ada"), call("pay", to="bob"), "Paid."))
    client = DurableAgents(file, {"desk": agent})
    await change(client, f"UPDATE operation_outputs SET {sql}")  # noqa: S608
    if again == "cancelled":
        await change(client, "UPDATE durable_runs SET status = 'cancelled', worker = ''")
        await client.resume(run_id)
    async with DurableAgents(file, {"desk": agent}) as worker:
        for _ in range(2):
            with pytest.raises(
                ToolcribError, match=f"SourceError: the signature of {names}|no sig"
            ):
                await worker.result(run_id)
            await worker.resume(run_id)
    with pytest.raises(SourceError, match="signature"):
        async for _ in client.events(run_id):
            pass
    assert told(tmp_path) == before
    await client.aclose()


async def test_what_was_shown_and_is_not_what_is_asked_is_not_approved(
    file: str, tmp_path: Path
) -> None:
    def agents() -> dict[str, Agent]:
        return {"desk": desk(tmp_path, model=Model(call("refund", order=700), "Refunded."))}

    async with DurableAgents(file, agents()) as worker:
        run_id = await worker.start("desk", PROMPT)
        await worker.result(run_id)
        await change(
            worker, "UPDATE durable_questions SET request = replace(request, ':700', ':7')"
        )
        with pytest.raises(SourceError, match="the signature of question apr_"):
            await worker.pending()
        anybody = DurableAgents(file, {})
        (request,) = await anybody.pending()
        assert request.arguments == {"order": 7}
        await anybody.answer(request.id, Approve(by="grace"))
        with pytest.raises(ToolcribError, match="was changed in the store"):
            await worker.result(run_id)
        await anybody.aclose()
    assert told(tmp_path) == []


@pytest.mark.parametrize("broken", ["{", '{"a": 1}', "[]"])
async def test_answers_that_cannot_be_read_are_named(
    file: str, tmp_path: Path, broken: str
) -> None:
    client = DurableAgents(file, {"desk": desk(tmp_path)})
    run_id = await client.start("desk", PROMPT)
    await change(client, "UPDATE durable_runs SET answers = :text", text=broken)
    async with DurableAgents(file, {"desk": desk(tmp_path)}) as worker:
        with pytest.raises(ToolcribError, match="in the store cannot be read"):
            await worker.result(run_id)
    await client.aclose()


async def test_another_answer_that_cannot_be_read_is_named(file: str, tmp_path: Path) -> None:
    turns = ([call("refund", order=7), call("refund", order=8)], "Refunded.")
    agents = {"desk": desk(tmp_path, model=Model(*turns))}
    async with DurableAgents(file, agents) as worker:
        run_id = await worker.start("desk", PROMPT)
        await worker.result(run_id)
    client = DurableAgents(file, agents)
    first, second = await client.pending()
    await change(client, "UPDATE durable_questions SET answer = '{' WHERE id = :id", id=first.id)
    await client.answer(second.id, Approve(by="grace"))
    await client.aclose()
    async with DurableAgents(file, agents) as worker:
        with pytest.raises(ToolcribError, match="in the store cannot be read"):
            await worker.result(run_id)
    assert told(tmp_path) == []


HISTORY = (Message.user("What is order 77?"), Message.assistant("A tea."))
A_TEA, DOT = HISTORY[1], Image.from_bytes("image/png", b"\x89PNG\r\n\x1a\n")
OTHERS: dict[str, tuple[Prompt, Sequence[Message], str]] = {
    "the beginning of its history": ("What is order 77?", (), ""),
    "a part of it": ("And refund it.", HISTORY[1:], ""),
    "no history": ("And refund it.", (), ""),
    "more of it": ("And refund it.", (Message.user("Hi."), *HISTORY), ""),
    "what it has said": ("Hm?", (*HISTORY, Message.user("And refund it.")), ""),
    "an image in it": ("And refund it.", (structs.replace(HISTORY[0], images=(DOT,)), A_TEA), ""),
    "untrusted words": ("And refund it.", (structs.replace(HISTORY[0], untrusted=True), A_TEA), ""),
    "a system message in it": ("And refund it.", (*HISTORY, Message.system("Do.")), ""),
    "one ahead of it": ("And refund it.", (Message.system("Do."), *HISTORY), ""),
    "a prompt with parts": (["And refund it.", "Now."], HISTORY, ""),
    "another speaker": ("And refund it.", HISTORY, "other"),
}


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "over"])
@pytest.mark.parametrize("other", sampled(OTHERS, part=3))
async def test_a_run_that_begins_in_another_way_is_another_run(
    file: str, other: str, *, begun: bool
) -> None:
    complained_of, hands_over = "", call("hand_over_to_other", reason="Hm.")
    script: list[Any] = ["A tea.", complained_of, hands_over, "Done."]
    heir = Agent(Model(*script), name="other", handovers=["first"])
    agent = Agent(Model(*script), name="first", handovers=[heir], state_key=KEY)
    durable = DurableAgents(file, {"a": agent})
    await durable.start("a", "And refund it.", history=HISTORY, run_id="r")
    if begun:
        async with durable:
            assert (await durable.result("r")).agent == "other"
        durable = DurableAgents(file, {"a": agent})
    assert await durable.start("a", "And refund it.", history=HISTORY, run_id="r") == "r"
    prompt, history, speaker = OTHERS[other]
    with pytest.raises(ToolcribError, match="'r' is the id of another run"):
        await durable.start("a", prompt, history=history, speaker=speaker, run_id="r")
    await durable.aclose()


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "over"])
@pytest.mark.exhaustive
async def test_a_run_is_the_same_whatever_its_agent_is_instructed_with_by_now(
    file: str, *, begun: bool
) -> None:
    said: list[Instructions] = ["", "Be brief.", lambda _run: "", lambda _run: "Be kind."]
    history = (Message.system("As a pirate."), *HISTORY)
    for at, (first, then) in enumerate(product(said, said)):
        durable, later = (
            DurableAgents(
                file, {"a": Agent(Model("A tea.", "Aye."), instructions=told, state_key=KEY)}
            )
            for told in (first, then)
        )
        await durable.start("a", "And?", history=history, run_id=f"r{at}")
        if begun:
            async with durable:
                assert (await durable.result(f"r{at}")).text == "Aye."
        assert await later.start("a", "And?", history=history, run_id=f"r{at}") == f"r{at}"
        with pytest.raises(ToolcribError, match="the id of another run"):
            await later.start("a", "And?", history=history[:2], run_id=f"r{at}")
        await durable.aclose()
        await later.aclose()
