"""OpenTelemetry: one span a call, the tool's own spans below it, and nothing of what was said."""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import gc
import json
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from toolcrib import (
    ALL,
    Agent,
    Approve,
    CallContext,
    Catalog,
    Deny,
    ToolCall,
    ToolError,
    ToolRunner,
    tool,
)
from toolcrib.audit import AuditLog, OpenTelemetry
from toolcrib.errors import ErrorCode, MissingExtraError
from toolcrib.runner import CallScope
from toolcrib.testing import ScriptedClient
from toolcrib.testing import call as script
from toolcrib.values.context import RunTally
from toolcrib.values.record import CallError, Candidate, Origin, Sink, ToolInvocationRecord

CANARY = "canary-5d21"


class Telemetry:
    """Real providers that keep what they are given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def sink(self, **options: Any) -> OpenTelemetry:
        return OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """Those that have ended, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.name == name)
        return span

    @property
    def points(self) -> list[HistogramDataPoint]:
        data = self._reader.get_metrics_data()
        metrics = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        assert {(m.name, m.unit) for m in metrics} <= {("gen_ai.execute_tool.duration", "s")}
        return [p for m in metrics for p in m.data.data_points if isinstance(p, HistogramDataPoint)]

    def text(self) -> str:
        """All that would leave the process."""
        shown = [span.to_json() for span in self.spans]
        data = self._reader.get_metrics_data()
        return "\n".join([*shown, data.to_json() if data else ""])


@pytest.fixture
def telemetry(caplog: pytest.LogCaptureFixture) -> Iterator[Telemetry]:
    """Whatever the test does: no context is left wrongly, none stays entered."""
    before = otel_context.get_current()
    given = Telemetry()
    yield given
    assert [record.getMessage() for record in caplog.records] == []
    assert otel_context.get_current() == before
    given.tracers.shutdown()
    given.meters.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def call(tool_name: str, call_id: str = "call_1", /, **arguments: object) -> ToolCall:
    return ToolCall(call_id, tool_name, json.dumps(arguments))


def scope(run_id: str) -> CallScope:
    return CallScope(RunTally(run_id=run_id))


@tool(visible=["shown"])
async def look(word: str) -> dict[str, str]:
    """Look a word up."""
    return {"shown": word, "hidden": f"{word} {CANARY}"}


@tool(visible=ALL)
async def leak(word: str) -> str:
    """Raise a secret."""
    raise RuntimeError(word)


@tool(visible=ALL)
async def hang() -> None:
    """Never come back."""
    await asyncio.Event().wait()


@tool(visible=ALL, safe=False)
async def risky() -> None:
    """Needs to be asked about."""


TOOLS = Catalog([look, leak, hang, risky])


async def test_a_span_has_the_names_of_the_conventions(telemetry: Telemetry) -> None:
    sink = telemetry.sink(agent_name="shop", tools=TOOLS)
    await ToolRunner(TOOLS, sinks=[sink]).exec(call("look", word="w"), scope=scope("run_7"))
    (span,) = telemetry.spans
    assert (span.name, span.kind, span.status.status_code) == (
        "execute_tool look",
        SpanKind.INTERNAL,
        StatusCode.UNSET,
    )
    assert attributes(span) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Look a word up.",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.conversation.id": "run_7",
        "gen_ai.agent.name": "shop",
        "toolcrib.status": "completed",
        "toolcrib.decision": "allow",
        "toolcrib.policy": "standard",
        "toolcrib.definition_digest": look.get_definition().digest,
        "toolcrib.validated": True,
        "toolcrib.repaired": False,
    }


async def test_the_measurement_is_as_long_as_the_span(telemetry: Telemetry) -> None:
    runner = ToolRunner(TOOLS, sinks=[telemetry.sink()])
    await runner.exec(call("look", "1", word="w"))
    await runner.exec(call("leak", "2", word="w"))
    spans = {span.name: span for span in telemetry.spans}
    points = {(point.attributes or {})["gen_ai.tool.name"]: point for point in telemetry.points}
    for name, error in (("look", {}), ("leak", {"error.type": "tool_error"})):
        span, point = spans[f"execute_tool {name}"], points[name]
        assert dict(point.attributes or {}) == {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            **error,
        }
        assert point.count == 1
        assert span.end_time is not None
        assert span.start_time is not None
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(point.sum, abs=1e-8)
        assert point.explicit_bounds[0] == 0.01
        assert [e.span_id for e in point.exemplars] == [span.context.span_id]


def deny(*_: object) -> Deny:
    return Deny(f"because {CANARY}")


NOT_RUN: list[tuple[str, ToolCall, Mapping[str, Any], str | None, str]] = [
    ("rejected", call("look", word=1), {}, "invalid_arguments", "execute_tool look"),
    ("unknown", call("made_up"), {}, "unknown_tool", "execute_tool"),
    ("denied", call("look", word="w"), {"policy": deny}, "denied", "execute_tool look"),
    ("nobody asked", call("risky"), {}, "approval_required", "execute_tool risky"),
]


@pytest.mark.parametrize(("_case", "asked", "options", "code", "name"), NOT_RUN)
async def test_a_call_that_never_began_has_a_span_and_no_measurement(
    telemetry: Telemetry,
    _case: str,
    asked: ToolCall,
    options: Mapping[str, Any],
    code: str,
    name: str,
) -> None:
    outcome = await ToolRunner(TOOLS, sinks=[telemetry.sink()], **options).exec(asked)
    (span,) = telemetry.spans
    assert (span.name, span.status.status_code) == (name, StatusCode.ERROR)
    assert (attributes(span)["error.type"], attributes(span)["toolcrib.status"]) == (code, "failed")
    assert span.start_time == round(outcome.record.started_at * 1e9)
    assert span.end_time == round((outcome.record.ended_at or 0) * 1e9)
    assert telemetry.points == []
    assert CANARY not in telemetry.text()


async def test_a_call_that_waits_and_then_runs_has_two_spans(telemetry: Telemetry) -> None:
    answers: list[Approve | None] = [None, Approve(by="grace")]

    async def later(_: object) -> Approve | None:
        return answers.pop(0)

    runner = ToolRunner(TOOLS, sinks=[telemetry.sink()], approver=later)
    await runner.exec(call("risky"))
    await runner.exec(call("risky"))
    waited, ran = (attributes(span) for span in telemetry.spans)
    assert (waited["toolcrib.status"], waited.get("error.type")) == ("waiting", None)
    assert (ran["toolcrib.status"], ran["toolcrib.approved_by"]) == ("completed", "grace")
    assert [span.status.status_code for span in telemetry.spans] == [StatusCode.UNSET] * 2
    assert [point.count for point in telemetry.points] == [1]


async def test_spans_made_inside_a_tool_are_below_it(telemetry: Telemetry) -> None:
    tracer = telemetry.tracers.get_tracer("test")

    @tool(visible=ALL)
    async def asynchronous() -> None:
        """Make a span after waiting."""
        await asyncio.sleep(0)
        tracer.start_span("in a task").end()

    @tool(visible=ALL)
    def blocking() -> None:
        """Make a span in a thread."""
        tracer.start_span("in a thread").end()

    runner = ToolRunner([asynchronous, blocking], sinks=[telemetry.sink()])
    with tracer.start_as_current_span("agent"):
        await runner.exec_all([call("asynchronous", "a"), call("blocking", "b")])
        tracer.start_span("after").end()
    parents = {
        "in a task": "execute_tool asynchronous",
        "in a thread": "execute_tool blocking",
        "execute_tool asynchronous": "agent",
        "execute_tool blocking": "agent",
        "after": "agent",
    }
    for name, parent in parents.items():
        assert telemetry.named(name).parent == telemetry.named(parent).context, name


async def test_a_call_made_inside_a_tool_is_below_it_and_ends_first(telemetry: Telemetry) -> None:
    inner = ToolRunner(TOOLS, sinks=[sink := telemetry.sink()])

    @tool(visible=ALL)
    async def outer(name: str, context: CallContext) -> None:
        """Make a call under this call's own id."""
        await inner.exec(call(name, context.call_id, word="w"))
        assert trace.get_current_span().get_span_context() != trace.INVALID_SPAN_CONTEXT

    await ToolRunner([outer], sinks=[sink]).exec_all([call("outer", "1", name="look")])
    await ToolRunner([outer], sinks=[sink]).exec(call("outer", "2", name="made_up"))
    look_, outer_, unknown, other = telemetry.spans
    assert [s.name for s in telemetry.spans] == [
        "execute_tool look",
        "execute_tool outer",
        "execute_tool",
        "execute_tool outer",
    ]
    assert (look_.parent, unknown.parent) == (outer_.context, other.context)


async def test_two_runs_interleaved_do_not_mix(telemetry: Telemetry) -> None:
    tracer = telemetry.tracers.get_tracer("test")
    reached, go = asyncio.Barrier(4), asyncio.Event()

    @tool(visible=ALL)
    async def meet(name: str) -> None:
        """Wait until all are here."""
        await reached.wait()
        tracer.start_span(f"in {name}").end()

    runner = ToolRunner([meet], sinks=[telemetry.sink()])

    async def run(run_id: str) -> None:
        await go.wait()
        with tracer.start_as_current_span(run_id):
            calls = [call("meet", n, name=f"{run_id}/{n}") for n in ("1", "2")]
            await runner.exec_all(calls, scope=scope(run_id))
            assert trace.get_current_span().get_span_context().is_valid

    runs = [asyncio.create_task(run(run_id)) for run_id in ("a", "b")]
    go.set()
    await asyncio.gather(*runs)
    by_id = {
        (attributes(s)["gen_ai.conversation.id"], attributes(s)["gen_ai.tool.call.id"]): s
        for s in telemetry.spans
        if s.name == "execute_tool meet"
    }
    assert len(by_id) == 4
    for (run_id, n), span in by_id.items():
        assert span.parent == telemetry.named(run_id).context
        assert telemetry.named(f"in {run_id}/{n}").parent == span.context


class Began:
    """Counts the tools that run."""

    write_ahead = True

    def __init__(self) -> None:
        self.count = asyncio.Semaphore(0)

    def write(self, record: ToolInvocationRecord) -> None:
        if record.status == "started":
            self.count.release()


async def test_a_cancelled_call_ends_its_span(telemetry: Telemetry) -> None:
    began = Began()
    runner = ToolRunner(TOOLS, sinks=[telemetry.sink(), began])
    alone = asyncio.create_task(runner.exec(call("hang")))
    together = asyncio.create_task(runner.exec_all([call("hang", "a"), call("hang", "b")]))
    for _ in range(3):
        await began.count.acquire()
    assert not telemetry.spans
    for task in (alone, together):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [attributes(span)["error.type"] for span in telemetry.spans] == ["cancelled"] * 3
    assert [point.count for point in telemetry.points] == [3]


async def test_cancelled_or_out_of_time_in_this_very_task_the_context_is_left(
    telemetry: Telemetry,
) -> None:
    runner = ToolRunner(TOOLS, sinks=[telemetry.sink()], timeout=0.01)
    await runner.exec(call("hang"))
    assert not trace.get_current_span().get_span_context().is_valid
    slow = ToolRunner(TOOLS, sinks=[telemetry.sink()])
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await slow.exec(call("hang"))
    assert not trace.get_current_span().get_span_context().is_valid
    codes = [attributes(span)["error.type"] for span in telemetry.spans]
    assert codes == ["timeout", "cancelled"]


async def test_an_intent_that_another_sink_cannot_write_ends_the_span(telemetry: Telemetry) -> None:
    class Full:
        write_ahead = True

        def write(self, record: ToolInvocationRecord) -> None:
            if record.status == "started":
                raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        await ToolRunner(TOOLS, sinks=[telemetry.sink(), Full()]).exec(call("look", word="w"))
    span = telemetry.named("execute_tool look")
    assert span.status.status_code == StatusCode.ERROR


async def test_beside_a_log_that_has_to_wait(telemetry: Telemetry, tmp_path: Path) -> None:
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db") as log:
        for first in (True, False):
            begun, sink = Began(), telemetry.sink()
            sinks: list[Sink] = [sink, log, begun] if first else [log, sink, begun]
            runner = ToolRunner(TOOLS, sinks=sinks)
            await runner.exec(call("look", f"{first}", word="w"))
            assert not trace.get_current_span().get_span_context().is_valid
            calls = [call("hang", f"{first}-{n}") for n in range(3)]
            running = asyncio.create_task(runner.exec_all(calls))
            for _ in range(4):
                await begun.count.acquire()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        ids = {entry.record.id for entry in await log.entries()}
    assert {attributes(span)["gen_ai.tool.call.id"] for span in telemetry.spans} == ids
    assert len(telemetry.spans) == 8


def test_a_call_that_completed_did_not_fail_though_its_result_may_not_be_shown(
    telemetry: Telemetry,
) -> None:
    error = CallError.of(ErrorCode.REDACTION_MISSING)
    telemetry.sink().write(
        ToolInvocationRecord(id="c", name="t", status="completed", started_at=1.0, error=error)
    )
    (span,) = telemetry.spans
    assert (span.status.status_code, attributes(span).get("error.type")) == (StatusCode.UNSET, None)


async def test_two_sinks_in_one_runner_leave_in_order(telemetry: Telemetry) -> None:
    runner = ToolRunner(TOOLS, sinks=[telemetry.sink(agent_name="a"), telemetry.sink()])
    for id_ in ("1", "2"):
        await runner.exec(call("look", id_, word="w"))
        assert not trace.get_current_span().get_span_context().is_valid
    assert len(telemetry.spans) == 4


async def test_a_final_record_from_another_task_ends_the_span(telemetry: Telemetry) -> None:
    """No runner does that; a sink that passes records on may."""
    sink = telemetry.sink()
    started = ToolInvocationRecord(id="c", name="look", status="started", started_at=1.0)
    sink.write(started)

    async def finish() -> None:
        sink.write(
            ToolInvocationRecord(
                id="c", name="look", status="completed", started_at=1.0, ended_at=2.0
            )
        )

    await asyncio.create_task(finish())
    sink.write(ToolInvocationRecord(id="d", name="look", status="waiting", started_at=3.0))
    assert [span.parent for span in telemetry.spans] == [None, None]


async def test_a_task_that_outlives_the_tool_it_was_made_in_makes_calls(
    telemetry: Telemetry,
) -> None:
    """Its context is a copy, in which the tool's span is the current one for good."""
    over = asyncio.Event()
    made: list[asyncio.Task[list[str]]] = []

    @tool(visible=ALL)
    async def spawn() -> None:
        """Leave a task behind."""

        async def later() -> list[str]:
            await over.wait()
            outcomes = [await runner.exec(call("look", id_, word="w")) for id_ in ("1", "2")]
            return [outcome.record.status for outcome in outcomes]

        made.append(asyncio.create_task(later()))

    runner = ToolRunner(Catalog([spawn, look]), sinks=[telemetry.sink()])
    await runner.exec(call("spawn"))
    over.set()
    assert await made[0] == ["completed", "completed"]
    above, *below = telemetry.spans
    assert above.name == "execute_tool spawn"
    assert [span.parent and span.parent.span_id for span in below] == [above.context.span_id] * 2


class Failing(SpanProcessor):
    """One of others, that raises when a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError(span.name)


async def test_a_processor_that_raises_leaves_no_span_entered(telemetry: Telemetry) -> None:
    telemetry.tracers.add_span_processor(Failing())
    sink = telemetry.sink()
    sink.write(ToolInvocationRecord(id="c", name="look", status="started", started_at=1.0))
    with pytest.raises(RuntimeError):
        sink.write(ToolInvocationRecord(id="c", name="look", status="failed", started_at=1.0))
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_call_that_is_thrown_away_keeps_nothing(telemetry: Telemetry) -> None:
    opened: list[weakref.ref[Any]] = []

    class Watch:
        write_ahead = True

        def write(self, record: ToolInvocationRecord) -> None:
            del record
            span = trace.get_current_span()
            assert span.is_recording()
            opened.append(weakref.ref(span))

    sink = telemetry.sink()
    runner = ToolRunner(TOOLS, sinks=[sink, Watch()], timeout=None)
    for n in range(3):
        thrown = contextvars.copy_context()
        coroutine = runner.exec(call("hang", f"call_{n}"))
        thrown.run(coroutine.send, None)
        thrown.run(coroutine.close)
        del coroutine, thrown
    for _ in range(3):
        await asyncio.sleep(0)  # the loop lets go of the tasks that were to run the tools
    gc.collect()
    assert [ref() for ref in opened] == [None] * 3
    assert telemetry.spans == ()


@tool(visible=["shown"], secret=["key"])
async def talk(word: str, key: str) -> dict[str, str]:
    """Say a word, with a key."""
    if word.startswith("fail"):
        raise ToolError(f"could not say {CANARY}")
    return {"shown": word, "hidden": key}


CANARIES = [
    call("talk", "1", word=CANARY, key=CANARY),
    call("talk", "2", word=f"fail {CANARY}", key=CANARY),
    call("talk", "3", word=CANARY, key=CANARY, **{CANARY: 1}),
    call("talk", "4", word=[CANARY], key=CANARY),
    ToolCall("5", "talk", f'{{"word": "{CANARY}', provider_id=CANARY),
    call("leak", "6", word=CANARY),
    call(f"tool {CANARY}", "7"),
]


async def test_nothing_of_what_was_said_is_told_without_asking_for_it(telemetry: Telemetry) -> None:
    runner = ToolRunner([talk, leak], sinks=[telemetry.sink()])
    await runner.exec_all(CANARIES)
    assert len(telemetry.spans) == len(CANARIES)
    assert CANARY not in telemetry.text()
    assert all(not span.events for span in telemetry.spans)


async def test_content_is_the_public_view(telemetry: Telemetry) -> None:
    runner = ToolRunner([talk, leak], sinks=[telemetry.sink(content=True)])
    await runner.exec_all(
        [call("talk", "1", word="été\u2028", key=CANARY), call("leak", "2", word="w")]
    )
    said, failed = (
        attributes(telemetry.named("execute_tool talk")),
        attributes(telemetry.named("execute_tool leak")),
    )
    assert said["gen_ai.tool.call.arguments"] == '{"key":"***","word":"été\u2028"}'
    assert said["gen_ai.tool.call.result"] == '{"shown":"été\u2028"}'
    assert failed["gen_ai.tool.call.arguments"] == '{"word":"w"}'
    assert "gen_ai.tool.call.result" not in failed
    assert CANARY not in telemetry.text()


async def test_content_of_a_rejected_call_is_none(telemetry: Telemetry) -> None:
    await ToolRunner([talk], sinks=[telemetry.sink(content=True)]).exec_all(CANARIES[3:5])
    assert CANARY not in telemetry.text()
    assert all("gen_ai.tool.call.arguments" not in attributes(span) for span in telemetry.spans)


def test_without_the_api_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"'\.\[otel\]'"):
        OpenTelemetry()


async def test_without_an_sdk_nothing_happens() -> None:
    await ToolRunner(TOOLS, sinks=[OpenTelemetry()]).exec(call("look", word="w"))
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(
    ("provider", "name", "server"),
    [
        ("openai-chat at api.openai.com", "openai", "api.openai.com"),
        ("openai-chat at crib.openai.azure.com", "azure.ai.openai", "crib.openai.azure.com"),
        ("anthropic at api.anthropic.com", "anthropic", "api.anthropic.com"),
        ("openai-chat at 127.0.0.1", "openai-chat", "127.0.0.1"),
        ("local", "local", None),
        ("", None, None),
    ],
)
def test_a_span_says_where_its_call_comes_from(
    telemetry: Telemetry, provider: str, name: str | None, server: str | None
) -> None:
    origin = Origin(
        agent="shop",
        agent_version="1.2",
        turn=2,
        model="gpt-x",
        provider=provider,
        prompt_digest="sha256:aa",
        choice_digest="sha256:bb",
    )
    telemetry.sink(agent_name="another").write(
        ToolInvocationRecord(
            id="c",
            name="t",
            status="completed",
            started_at=1.0,
            origin=origin,
            picked=Candidate("t", 0.5, "name: t"),
            parent_run_id="run_0",
            parent_call_id="call_0",
        )
    )
    (span,) = telemetry.spans
    told = attributes(span)
    assert (told.get("gen_ai.provider.name"), told.get("server.address")) == (name, server)
    assert (told["gen_ai.agent.name"], told["gen_ai.agent.version"]) == ("shop", "1.2")
    assert told["gen_ai.request.model"] == "gpt-x"
    assert told["toolcrib.prompt_digest"] == "sha256:aa"
    assert told["toolcrib.choice_digest"] == "sha256:bb"
    assert told["toolcrib.pick_score"] == 0.5
    assert (told["toolcrib.parent_run_id"], told["toolcrib.parent_call_id"]) == ("run_0", "call_0")


async def test_a_run_is_a_span_and_its_calls_are_below_it(telemetry: Telemetry) -> None:
    model = ScriptedClient([script("look", word="w"), [script("look", word="x")] * 2, "done"])
    runner = ToolRunner(TOOLS, sinks=[telemetry.sink()])
    result = await Agent(model, runner, name="shop", version="1.2").run("Look.")
    assert not trace.get_current_span().get_span_context().is_valid
    span = telemetry.named("invoke_agent shop")
    told = attributes(span)
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert (told["gen_ai.agent.name"], told["gen_ai.agent.version"]) == ("shop", "1.2")
    assert told["gen_ai.conversation.id"] == result.state.run_id
    assert told["gen_ai.request.model"] == "scripted"
    assert told["toolcrib.prompt_digest"].startswith("sha256:")
    assert (told["toolcrib.turns"], told["toolcrib.calls"]) == (3, 3)
    assert (told["gen_ai.usage.input_tokens"], told["toolcrib.status"]) == (0, "completed")
    calls = [each for each in telemetry.spans if each.name == "execute_tool look"]
    assert len(calls) == 3
    assert {each.parent and each.parent.span_id for each in calls} == {span.context.span_id}
    assert {attributes(each)["toolcrib.prompt_digest"] for each in calls} == {
        told["toolcrib.prompt_digest"]
    }


async def test_a_run_that_fails_or_is_cancelled_leaves_its_context(telemetry: Telemetry) -> None:
    for turns, tools in (([ValueError("x")], TOOLS), ([script("hang")], TOOLS)):
        agent = Agent(ScriptedClient(turns), ToolRunner(tools, sinks=[telemetry.sink()]))
        with suppress(ValueError, TimeoutError):
            async with asyncio.timeout(0.05):
                await agent.run("Go.")
        assert not trace.get_current_span().get_span_context().is_valid
    first, second = (each for each in telemetry.spans if each.name == "invoke_agent")
    assert (attributes(first)["error.type"], first.status.status_code) == (
        "run_failed",
        StatusCode.ERROR,
    )
    assert attributes(second)["toolcrib.status"] == "cancelled"
