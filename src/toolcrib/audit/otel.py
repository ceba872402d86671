"""Calls as spans and a histogram of OpenTelemetry, in the names of its GenAI conventions.

Rule: a span says that a call was made, what was decided and how it ended, never what was said.
Arguments and results need `content=True`, and then show their public views. The text of an
exception is in no record, and so in no span. The names are those of
github.com/open-telemetry/semantic-conventions-genai, written out here because the constants of the
Python package are deprecated.

An open span lives only in the context of the task that runs the tool. What is started inside the
tool nests below it, and a task that is discarded takes its span with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from toolcrib.errors import ErrorCode, MissingExtraError
from toolcrib.values.definition import offered_tools
from toolcrib.values.json import encodable
from toolcrib.values.record import NO_JSON, Origin, ToolInvocationRecord
from toolcrib.values.run import RunRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

OPERATION = "execute_tool"
INVOCATION = "invoke_agent"
DURATION = "gen_ai.execute_tool.duration"
# In seconds: the conventions give these buckets for model calls, and they fit tools as well.
_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
# Maps the end of a server's name to its well-known `gen_ai.provider.name`. Calls to other servers
# have the name of their wire.
_PROVIDERS = {
    "api.openai.com": "openai",
    ".openai.azure.com": "azure.ai.openai",
    "api.anthropic.com": "anthropic",
    ".amazonaws.com": "aws.bedrock",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "api.mistral.ai": "mistral_ai",
    "api.cohere.com": "cohere",
    "api.groq.com": "groq",
    "api.deepseek.com": "deepseek",
    "api.x.ai": "x_ai",
    "api.perplexity.ai": "perplexity",
}
_Attributes: TypeAlias = dict[str, str | bool | int | float]
_Key: TypeAlias = tuple[str, str, float]


class OpenTelemetry:
    """A sink that makes one span `execute_tool {name}` per call, and measures each that ran.

    Each run of an agent gets one span `invoke_agent {name}`, from its beginning until it ends or
    waits.

    Without providers the global ones are used; without an SDK nothing happens. `tools` supply their
    descriptions, which no record holds. With `content=True` spans hold arguments and results, their
    public views as JSON text. Raises MissingExtraError without opentelemetry-api.

    The span of a call that ran begins when the tool does; the span of a call that was stopped
    earlier covers the time until then. `error.type` is an `ErrorCode`; `toolcrib.*` are toolcrib's
    own names.
    """

    write_ahead = True

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
        agent_name: str = "",
        tools: Iterable[Any] = (),
    ) -> None:
        self._otel = _opentelemetry()
        self._tracer = self._otel.trace.get_tracer(__name__, tracer_provider=tracer_provider)
        self._duration = self._otel.metrics.get_meter(
            __name__, meter_provider=meter_provider
        ).create_histogram(
            DURATION,
            unit="s",
            description="The duration of a single tool execution.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._content = content
        self._agent_name = agent_name
        definitions = (tool.get_definition() for tool in offered_tools(tools))
        self._descriptions = {d.digest: d.description for d in definitions if d.description}

    def write(self, record: ToolInvocationRecord) -> None:
        """Begin the call's span, or end it. Must be called in the task that runs the tool."""
        if record.status in ("planned", "rejected"):
            return  # nobody was asked to run it, so it is no execution
        self._leave()
        key = record.run_id, record.id, record.started_at
        # a name that no tool has was made up by a model, and there is no end of such names
        name = f"{OPERATION} {record.name}" if record.definition_digest else OPERATION
        if record.status == "started":
            self._enter(key, name, self._start_attributes(record))
            return
        opened = _find(self, key)
        if opened is None:
            span = self._start(name, self._start_attributes(record), round(record.started_at * 1e9))
            ended_at = record.started_at if record.ended_at is None else record.ended_at
            self._end(span, record, round(ended_at * 1e9))
            return
        opened.ended = True  # it is left even if a meter or a span processor raises
        try:
            seconds = time.perf_counter() - opened.clock
            # while the span is current, so that it is the exemplar
            self._duration.record(seconds, _metric_attributes(record))
            self._end(opened.span, record, opened.started_ns + round(seconds * 1e9))
        finally:
            self._leave()

    def write_run(self, record: RunRecord) -> None:
        """Begin or end the span `invoke_agent {name}` of a run, which contains those of its calls.

        Must be called in the task that the run is driven in.
        """
        self._leave()
        key = INVOCATION, record.run_id, record.started_at
        opened = _find(self, key)
        if record.status == "running":
            agent = record.agent or self._agent_name
            name = f"{INVOCATION} {encodable(agent)}" if agent else INVOCATION
            attributes = _run_attributes(record, self._agent_name)
            self._enter(key, name, {"gen_ai.operation.name": INVOCATION, **attributes})
        elif opened is not None:
            opened.ended = True
            try:
                self._end_run(opened.span, record)
            finally:
                self._leave()

    def _end_run(self, span: Span, record: RunRecord) -> None:
        span.set_attributes(_run_attributes(record, self._agent_name))
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": record.usage.input_tokens,
                "gen_ai.usage.output_tokens": record.usage.output_tokens,
                "toolcrib.status": record.status,
                "toolcrib.turns": record.turns,
                "toolcrib.calls": record.calls,
            }
        )
        if record.status == "failed":
            span.set_attribute("error.type", "run_failed")
            span.set_status(self._otel.trace.StatusCode.ERROR, "The run failed.")
        span.end()

    def _enter(self, key: _Key, name: str, attributes: Mapping[str, Any]) -> None:
        started_ns = time.time_ns()
        span = self._start(name, attributes, started_ns)
        opened = _OpenSpan(self, key, span, started_ns)
        opened.own_token = _OPEN.set(opened)
        inside = self._otel.trace.set_span_in_context(span)
        opened.otel_token = self._otel.context.attach(inside)

    def _start(self, name: str, attributes: Mapping[str, Any], at: int) -> Span:
        kind = self._otel.trace.SpanKind.INTERNAL
        span: Span = self._tracer.start_span(name, kind=kind, attributes=attributes, start_time=at)
        return span

    def _end(self, span: Span, record: ToolInvocationRecord, at: int) -> None:
        span.set_attributes(_end_attributes(record))
        if self._content and record.status == "completed":
            span.set_attribute("gen_ai.tool.call.result", bytes(record.result_json).decode())
        code = _code(record)
        if code is not None:
            text = code.info.text  # not the error's own text, which an author may have written
            span.set_status(self._otel.trace.StatusCode.ERROR, text)
        span.end(at)

    def _leave(self) -> None:
        """Leave the context of spans that have ended, last in first out.

        Nothing is left in another context than the one that was entered, such as that of a task
        made inside the tool, which may live longer.
        """
        top = _OPEN.get()
        while top is not None and top.ended:
            try:
                _OPEN.reset(top.own_token)
            except (ValueError, RuntimeError):  # RuntimeError: already left where entered
                return
            self._otel.context.detach(top.otel_token)
            top = _OPEN.get()

    def _start_attributes(self, record: ToolInvocationRecord) -> _Attributes:
        """Return what is known when a span begins, which a sampler may use."""
        attributes: _Attributes = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.tool.name": record.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": encodable(record.id),
        }
        optional = {
            "gen_ai.tool.description": self._descriptions.get(record.definition_digest, ""),
            "gen_ai.conversation.id": record.run_id,
        }
        optional |= _origin_attributes(record.origin or Origin(), self._agent_name)
        attributes |= {name: encodable(text) for name, text in optional.items() if text}
        if self._content and record.arguments_json != NO_JSON:
            attributes["gen_ai.tool.call.arguments"] = bytes(record.arguments_json).decode()
        return attributes


def _origin_attributes(origin: Origin, agent_name: str) -> dict[str, str]:
    """Return the agent, the model and the prompt that a call comes from.

    An agent's own name takes precedence.
    """
    wire, _, server = origin.provider.partition(" at ")
    known = (name for end, name in _PROVIDERS.items() if server.endswith(end))
    return {
        "gen_ai.agent.name": origin.agent or agent_name,
        "gen_ai.agent.version": origin.agent_version,
        "gen_ai.request.model": origin.model,
        "gen_ai.provider.name": next(known, wire),
        "server.address": server,
        "toolcrib.prompt_digest": origin.prompt_digest,
        "toolcrib.choice_digest": origin.choice_digest,
    }


class _OpenSpan:
    """A span whose call has not ended yet, and how to leave the two contexts it is current in."""

    __slots__ = (
        "clock",
        "ended",
        "key",
        "otel_token",
        "outer",
        "own_token",
        "owner",
        "span",
        "started_ns",
    )

    own_token: Token[_OpenSpan | None]
    otel_token: Token[Context]

    def __init__(self, owner: OpenTelemetry, key: _Key, span: Span, started_ns: int) -> None:
        self.owner = owner
        self.key = key
        self.span = span
        self.started_ns = started_ns
        self.clock = time.perf_counter()
        self.outer = _OPEN.get()
        self.ended = False


_OPEN: ContextVar[_OpenSpan | None] = ContextVar("toolcrib_open_span", default=None)


def _find(owner: OpenTelemetry, key: _Key) -> _OpenSpan | None:
    """Return the open span of a call or a run, not that of an outer call."""
    opened = _OPEN.get()
    while opened is not None:
        if opened.owner is owner and opened.key == key and not opened.ended:
            return opened
        opened = opened.outer
    return None


def _run_attributes(record: RunRecord, agent_name: str) -> dict[str, str]:
    origin = Origin(
        agent=record.agent,
        agent_version=record.agent_version,
        model=record.model,
        provider=record.provider,
        prompt_digest=record.prompt_digest,
    )
    optional = _origin_attributes(origin, agent_name) | {
        "gen_ai.conversation.id": record.run_id,
        "toolcrib.limit": record.limit or "",
        "toolcrib.parent_run_id": record.parent_run_id,
        "toolcrib.parent_call_id": record.parent_call_id,
    }
    return {name: encodable(text) for name, text in optional.items() if text}


def _end_attributes(record: ToolInvocationRecord) -> _Attributes:
    decision = record.decision
    attributes: _Attributes = {
        "toolcrib.status": record.status,
        "toolcrib.validated": record.validated,
        "toolcrib.repaired": record.repaired,
    }
    optional = {
        "error.type": _code(record) or "",
        "toolcrib.definition_digest": record.definition_digest,
        "toolcrib.decision": "" if decision is None else type(decision).__name__.lower(),
        "toolcrib.policy": "" if decision is None else decision.policy,
        "toolcrib.approved_by": record.approved_by or "",
        "toolcrib.parent_run_id": record.parent_run_id,
        "toolcrib.parent_call_id": record.parent_call_id,
    }
    if record.picked is not None and record.picked.score is not None:
        attributes["toolcrib.pick_score"] = record.picked.score
    return attributes | {name: encodable(text) for name, text in optional.items() if text}


def _metric_attributes(record: ToolInvocationRecord) -> _Attributes:
    code = _code(record)
    failed: _Attributes = {} if code is None else {"error.type": code.value}
    return {"gen_ai.operation.name": OPERATION, "gen_ai.tool.name": record.name, **failed}


def _code(record: ToolInvocationRecord) -> ErrorCode | None:
    """Return why the call failed.

    A call that completed, and whose result may not be shown, did not fail.
    """
    return record.error.code if record.error is not None and record.status == "failed" else None


def _opentelemetry() -> SimpleNamespace:
    """Return the three modules of opentelemetry-api. Raises MissingExtraError without it."""
    try:
        from opentelemetry import context, metrics, trace
    except ImportError:
        raise MissingExtraError("otel", "OpenTelemetry") from None
    return SimpleNamespace(context=context, metrics=metrics, trace=trace)
