"""Where a canary may appear: each row plants one in a run, and each cell looks for it in one place.

`x` is where it shows, on purpose; everywhere else it must not. A run is a real one: a server that
speaks a provider's wire, a policy that has every call approved, an audit log in SQLite, OpenTelemetry,
and a second reply that is the provider's failure, so that there is an exception to look at. The places:

    delta     what streams of the arguments (`ToolArgumentsDelta`), before anything was judged
    event     all other events, but for questions, and but for the history that `Done` brings
    record    the records of calls and runs that sinks are given, and what those refer to
    log       all that is logged, by whomever, at any level
    span      spans and metrics; content: those with `content=True`
    audit     every byte of the SQLite files, and the export
    told      what the model is told of its calls; own: its own calls, which it is sent again
    question  what somebody is asked, at the terminal and by an event
    output    stdout and stderr
    caller    the exception that leaves the run, with all it came from; not its `.state`, which is
              the application's and holds the history
    hook      what `on_exception` is given, which is for the application's debugging
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from canaries import CANARY, PLANTS, FullSink, Plant, gives, locked, note, released
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rows import each_row
from samples import sampled

from toolcrib import (
    Agent,
    ApprovalRequest,
    ApprovalRequested,
    Ask,
    Done,
    Event,
    PickOptions,
    ToolArgumentsDelta,
    ToolCall,
    ToolRunner,
)
from toolcrib.approvals import question
from toolcrib.audit import AuditLog
from toolcrib.audit.otel import OpenTelemetry
from toolcrib.clients import OpenAIClient
from toolcrib.testing import MemorySink, ScriptedClient, call, openai_server, raw
from toolcrib.values.decision import Answer

TABLE = """
                          delta event record log span content audit told own question output caller hook
argument, declared          x     x     x     .   .      x      x    .    x     x       .      .     .
below a declared one        x     x     x     .   .      x      x    .    x     x       .      .     .
argument, undeclared        .     .     .     .   .      .      .    .    x     x       .      .     .
argument, no schema         .     .     .     .   .      .      .    .    x     x       .      .     .
argument, encoded twice     .     x     x     .   .      x      x    .    x     x       .      .     .
name of an undeclared one   .     .     .     .   .      .      .    .    x     x       .      .     .
secret argument             .     .     .     .   .      .      .    .    x     .       .      .     .
SecretStr argument          .     .     .     .   .      .      .    .    x     .       .      .     .
SecretStr below one         .     .     .     .   .      .      .    .    x     .       .      .     .
rejected: wrong type        x     .     .     .   .      .      .    .    x     .       .      .     .
rejected: undeclared name   .     .     .     .   .      .      .    .    x     .       .      .     .
rejected: undeclared        .     .     .     .   .      .      .    .    x     .       .      .     .
rejected: name below        x     .     .     .   .      .      .    .    x     .       .      .     .
rejected: a secret          .     .     .     .   .      .      .    .    x     .       .      .     .
rejected: a validator       x     .     .     .   .      .      .    .    x     .       .      .     .
rejected: its own error     x     .     .     .   .      .      .    .    x     .       .      .     .
rejected: a constructor     x     .     .     .   .      .      .    .    x     .       .      .     x
malformed, undeclared       .     .     .     .   .      .      .    .    .     .       .      .     .
malformed, after a fault    .     .     .     .   .      .      .    .    .     .       .      .     .
malformed, before a fault   x     .     .     .   .      .      .    .    .     .       .      .     .
malformed, a name twice     x     .     .     .   .      .      .    .    .     .       .      .     .
cut call, declared          x     .     .     .   .      .      .    .    .     .       .      .     .
cut call, undeclared        .     .     .     .   .      .      .    .    .     .       .      .     .
invented tool, a name       .     x     x     .   x      x      x    .    x     .       .      .     .
invented tool, no name      .     .     .     .   .      .      .    .    x     .       .      .     .
its arguments               .     .     .     .   .      .      .    .    x     .       .      .     .
provider's id of a call     .     x     x     .   .      .      x    x    x     .       .      .     .
provider's payload          .     .     .     .   .      .      .    .    .     .       .      .     .
result field, shown         .     x     x     .   .      x      x    x    .     .       .      .     .
result field, hidden        .     .     .     .   .      .      .    x    .     .       .      .     .
name of a hidden field      .     .     .     .   .      .      .    x    .     .       .      .     .
hidden from the model       .     x     x     .   .      x      x    .    .     .       .      .     .
hidden from both            .     .     .     .   .      .      .    .    .     .       .      .     .
result of visible=()        .     .     .     .   .      .      .    x    .     .       .      .     .
result, a SecretStr         .     .     .     .   .      .      .    .    .     .       .      .     .
result, not by its schema   .     .     .     .   .      .      .    .    .     .       .      .     .
result, too large           .     .     .     .   .      .      .    .    .     .       .      .     .
result, no JSON             .     .     .     .   .      .      .    .    .     .       .      .     .
content, a text             .     .     .     .   .      .      .    x    .     .       .      .     .
content, an address         .     .     .     .   .      .      .    x    .     .       .      .     .
content, a file of text     .     .     .     .   .      .      .    x    .     .       .      .     .
content, a file's name      .     .     .     .   .      .      .    x    .     .       .      .     .
content, a link             .     .     .     .   .      .      .    x    .     .       .      .     .
content, its type           .     .     .     .   .      .      .    .    .     .       .      .     .
content, no base64          .     .     .     .   .      .      .    .    .     .       .      .     .
content, in a value         .     .     .     .   .      .      .    .    .     .       .      .     .
content, hidden             .     .     .     .   .      .      .    .    .     .       .      .     .
content, streamed           .     .     .     .   .      .      .    .    .     .       .      .     .
exception of its __repr__   .     .     .     .   .      .      .    .    .     .       .      .     .
exception, async            .     .     .     .   .      .      .    .    .     .       .      .     x
exception, thread           .     .     .     .   .      .      .    .    .     .       .      .     x
exception, call's thread    .     .     .     .   .      .      .    .    .     .       .      .     x
exception, subprocess       .     .     .     .   .      .      .    .    .     .       .      .     .
exception, class            .     .     .     .   .      .      .    .    .     .       .      .     x
exception, streaming        .     .     .     .   .      .      .    .    .     .       .      .     x
exception, a group          .     .     .     .   .      .      .    .    .     .       .      .     x
exception, when cancelled   .     .     .     .   .      .      .    .    .     .       .      .     x
exception, too late         .     .     .     .   .      .      .    .    .     .       .      .     x
its cause and notes         .     .     .     .   .      .      .    .    .     .       .      .     x
context of a ToolError      .     .     .     .   .      .      .    .    .     .       .      .     x
ToolError, safe text        .     x     x     .   .      .      x    x    .     .       .      .     x
ToolError, model's text     .     .     .     .   .      .      .    x    .     .       .      .     x
capability's factory        .     .     .     .   .      .      .    .    .     .       .      .     x
capability's method         .     .     .     .   .      .      .    .    .     .       .      .     x
capability's closing        .     .     .     .   .      .      .    .    .     .       .      .     x
CapabilityError             .     x     x     .   .      .      x    x    .     .       .      .     x
progress                    .     x     .     .   .      .      .    .    .     .       .      .     .
progress, thread            .     x     .     .   .      .      .    .    .     .       .      .     .
part, shown                 .     x     .     .   .      .      .    .    .     .       .      .     .
part, hidden                .     .     .     .   .      .      .    .    .     .       .      .     .
policy's exception          .     .     .     .   .      .      .    .    .     .       .      .     .
policy's reason to ask      .     x     x     .   .      .      x    .    .     x       .      .     .
policy's reason to deny     .     x     x     .   .      .      x    .    .     .       .      .     .
approver's exception        .     .     .     .   .      .      .    .    .     .       .      .     x
repairer's exception        .     .     .     .   .      .      .    .    .     .       .      .     .
repaired, declared          .     x     x     .   .      x      x    .    x     x       .      .     .
repaired, still wrong       .     .     .     .   .      .      .    .    .     .       .      .     .
edited, declared            .     x     x     .   .      x      x    x    .     .       .      .     .
edited, undeclared          .     .     .     .   .      .      .    x    .     .       .      .     .
edited, secret              .     .     .     .   .      .      .    .    .     .       .      .     .
edited, not valid           .     .     .     .   .      .      .    .    .     .       .      .     .
who approves                .     x     x     .   x      x      x    .    .     .       .      .     .
who refuses                 .     x     x     .   x      x      x    .    .     .       .      .     .
reason to refuse            .     x     x     .   .      .      x    .    .     .       .      .     .
provider's error            .     x     .     .   .      .      .    .    .     .       .      x     .
sink's exception            .     .     .     .   .      .      .    .    .     .       .      x     .
exception of its __del__    .     .     .     .   .      .      .    .    .     .       x      .     .
"""
# The last row is Python's doing: it prints what `__del__` raises, by `sys.unraisablehook`.

_LINES = TABLE.strip("\n").splitlines()
PLACES = _LINES[0].split()
CELLS = [
    (line[:26].strip(), place, mark == "x")
    for line in _LINES[1:]
    for place, mark in zip(PLACES, line[26:].split(), strict=True)
]
PICK = PickOptions(min_score=0.0, max_candidates=9, allow_unsafe=True)
LIBRARIES = ("aiohttp", "asyncio", "opentelemetry", "sqlalchemy", "toolcrib")
DOWN = raw(b'data: {"error": {"message": "the provider is down"}}\n\n')


def test_the_table_is_whole() -> None:
    assert [row for row, place, _ in CELLS if place == "delta"] == list(PLANTS)


@each_row("row", sampled(PLANTS, part=6))
def test_a_canary_shows_only_where_it_may(
    row: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    seen = asyncio.run(_run(PLANTS[row], tmp_path))
    seen["output"] = "".join(capfd.readouterr())
    marks = {place: mark for name, place, mark in CELLS if name == row}
    assert {place: CANARY in seen[place] for place in PLACES} == marks


@pytest.mark.parametrize("row", [row for row in PLANTS if "thread" in row or "late" in row])
def test_asyncio_logs_no_canary_when_it_debugs(row: str, tmp_path: Path) -> None:
    """It logs callbacks that are slow, with their arguments: here, every one."""

    async def slowly() -> str:
        asyncio.get_running_loop().slow_callback_duration = 0
        return (await _run(PLANTS[row], tmp_path))["log"]

    logged = asyncio.run(slowly(), debug=True)
    assert "Executing" in logged
    assert CANARY not in logged


@each_row("row", sampled(PLANTS, part=8))
def test_a_sink_that_fails_brings_no_canary_along(row: str, tmp_path: Path) -> None:
    """What it raises leaves the run, with nothing hanging on it that was raised before."""
    plant = PLANTS[row]
    if row in ("sink's exception", "provider's error"):
        plant = PLANTS["exception, async"]
    failing = plant._replace(options={**plant.options, "sinks": [FullSink()]})
    seen = asyncio.run(_run(failing, tmp_path))
    assert "the disk is full" in seen["caller"]
    assert CANARY not in seen["caller"]


async def test_no_later_prompt_or_choice_holds_what_a_tool_gave_or_was_given(
    tmp_path: Path,
) -> None:
    """Arguments and results of earlier turns are in the history, and secrets in them are nobody's."""
    memory, audit = MemorySink(), AuditLog(f"sqlite:///{tmp_path}/crib.db", key="k" * 16)
    hidden = gives({"saved": "yes", "token": CANARY})
    turns: list[Any] = [
        call("given"),
        call("locked", pin=CANARY),
        call("note", text="x", more=CANARY),
        "done",
    ]
    runner = ToolRunner([hidden, locked, note], sinks=[memory, audit])
    agent = Agent(ScriptedClient(turns), runner, pick=PICK, search_tools=True, record_prompts=True)
    async with audit:
        result = await agent.run("go")
        exported = "".join([line async for line in audit.export()])
    assert [record.name for record in memory.records] == ["given", "locked", "note"]
    assert CANARY in _both_ways(result.messages)
    assert CANARY not in _both_ways([memory.records, memory.attachments, memory.runs])
    assert CANARY not in exported + _bytes_of(tmp_path)
    assert CANARY not in _both_ways((result.state.origin, result.state.choice))
    digests = [record.arguments_mac for record in memory.records]
    # what was refused may have been meant for the tool that has a secret
    assert [bool(told) for told in digests] == [False, True, True]


async def _run(plant: Plant, folder: Path) -> dict[str, str]:
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
    full_spans, full_metrics = InMemorySpanExporter(), InMemoryMetricReader()
    memory, questions, hooked, events = MemorySink(), list[str](), list[str](), list[Event]()

    async def approver(request: ApprovalRequest) -> Answer:
        questions.append(_both_ways(request) + question(request))
        if isinstance(plant.answer, Exception):
            raise plant.answer
        return plant.answer

    def hook(call: ToolCall, raised: BaseException) -> None:
        hooked.append(_both_ways(call) + _whole(raised))

    options = dict(plant.options)
    audit = AuditLog(f"sqlite:///{folder}/crib.db")
    sinks = [
        memory,
        audit,
        _telemetry(spans, metrics),
        _telemetry(full_spans, full_metrics, content=True),
    ]
    runner = ToolRunner(
        plant.tools,
        policy=[*options.pop("policy", ()), lambda *_: Ask("to be sure", "mine")],
        approver=approver,
        sinks=[*options.pop("sinks", ()), *sinks],
        on_exception=hook,
        **options,
    )

    def down(_body: Any) -> Any:
        released.set()
        return DOWN

    released.clear()
    with _young(), _logged() as logged, _hooks_of_python():
        async with (
            openai_server([plant.turn, down]) as server,
            OpenAIClient("m", base_url=server.url, retries=None) as client,
            audit,
        ):
            agent = Agent(client, runner, pick=PICK, name="shop", version="1", record_prompts=True)
            stream = agent.stream("go")
            events += [event async for event in stream]
            (raised,) = await asyncio.gather(stream.result(), return_exceptions=True)
            exported = [line async for line in audit.export()]
            files = _bytes_of(folder)
        released.set()
        await asyncio.sleep(0)
        gc.collect(0)
    files += _bytes_of(folder)
    assert isinstance(raised, Exception)
    messages = [m for body in server.requests for m in body["messages"]]
    return {
        "delta": "".join(e.text for e in events if isinstance(e, ToolArgumentsDelta)),
        "event": "".join(map(_public, events)),
        "record": "".join(map(_both_ways, (memory.records, memory.attachments, memory.runs))),
        "log": "\n".join(logged),
        "span": _measured(spans, metrics),
        "content": _measured(full_spans, full_metrics),
        "audit": files + "".join(exported),
        "told": _text([m for m in messages if m["role"] != "assistant"]),
        "own": _text([m for m in messages if m["role"] == "assistant"]),
        "question": "".join(questions) + "".join(map(_asked, events)),
        "caller": _whole(raised),
        "hook": "".join(hooked),
    }  # fmt: skip


def _both_ways(values: object) -> str:
    return repr(values) + msgspec.json.encode(values).decode()


def _bytes_of(folder: Path) -> str:
    """Of all files: the database, its write-ahead log, what is shared between its readers."""
    return "".join(path.read_bytes().decode("latin-1") for path in folder.iterdir())


def _asked(event: Event) -> str:
    return _both_ways(event) if isinstance(event, ApprovalRequested) else ""


def _public(event: Event) -> str:
    match event:
        case ToolArgumentsDelta() | ApprovalRequested():
            return ""
        case Done(result=result):
            return _both_ways((result.text, result.records, result.usage, result.limit))
    return _both_ways(event)


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _telemetry(spans: InMemorySpanExporter, metrics: InMemoryMetricReader, **options: Any) -> Any:
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    meters = MeterProvider([metrics], shutdown_on_exit=False)
    return OpenTelemetry(tracer_provider=tracers, meter_provider=meters, **options)


def _measured(spans: InMemorySpanExporter, metrics: InMemoryMetricReader) -> str:
    data = metrics.get_metrics_data()
    found = "".join(span.to_json() for span in spans.get_finished_spans())
    return found + ("" if data is None else data.to_json())


def _whole(raised: BaseException, seen: frozenset[int] = frozenset()) -> str:
    """An exception with all that hangs on it, printed or not."""
    if id(raised) in seen:
        return ""
    seen |= {id(raised)}
    held = {name: value for name, value in vars(raised).items() if name != "state"}
    texts = [repr(raised), str(raised), repr(raised.args), repr(held)]
    texts += traceback.format_exception(raised)
    below = [raised.__cause__, raised.__context__, *getattr(raised, "exceptions", ())]
    return "\n".join([*texts, *(_whole(error, seen) for error in below if error is not None)])


@contextmanager
def _young() -> Iterator[None]:
    """Keep all that a run makes in the youngest generation, where it is quickly collected."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _logged() -> Iterator[list[str]]:
    """All that anybody logs who is asked for it, with its arguments and its exception."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record) + repr(vars(record)))

    handler, root = Lines(), logging.getLogger()
    levels = [(logger, logger.level) for logger in (root, *map(logging.getLogger, LIBRARIES))]
    root.addHandler(handler)
    for logger, _ in levels:
        logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        for logger, level in levels:
            logger.setLevel(level)


@contextmanager
def _hooks_of_python() -> Iterator[None]:
    """What nobody can catch goes where Python puts it, not to pytest."""
    unraisable, in_thread = sys.unraisablehook, threading.excepthook
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook = unraisable, in_thread
