"""Tools that give images, files, links and texts beside a value: who sees what, and for how long."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner import process_tools
from runner.process_tools import CANARY
from samples import sample

from toolcrib import (
    ALL,
    CallContext,
    Completed,
    ErrorCode,
    Failed,
    File,
    Image,
    Link,
    ToolCall,
    ToolContent,
    ToolRunner,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.errors import DefinitionError
from toolcrib.runner import CallScope
from toolcrib.runner.idempotency import MAX_BYTES
from toolcrib.testing import MemorySink
from toolcrib.values.content import Part, info_of
from toolcrib.values.context import RunTally
from toolcrib.values.record import Outcome, result_with_parts

PNG = Image.from_bytes("image/png", CANARY.encode())
DATA = base64.b64encode(CANARY.encode()).decode()
PARTS: list[Part] = [
    CANARY,
    PNG,
    Image(url=f"https://a.test/{CANARY}"),
    File("audio/wav", DATA, name=CANARY),
    File("text/plain", text=CANARY),
    Link(f"demo://{CANARY}", CANARY, CANARY),
]


class Sales(TypedDict):
    sum: int
    secret: str


SALES = Sales(sum=7, secret=CANARY)


def gives(result: Any, **options: Any) -> Any:
    @tool(**({"visible": ["sum"], "output_schema": {}} | options))
    async def look() -> Any:
        """Look."""
        return result

    return look


async def run(subject: Any, *, call_id: str = "c", **options: Any) -> Outcome:
    runner = ToolRunner([subject], **options)
    return await runner.exec(ToolCall(call_id, subject.definition.name, "{}"))


def parts_of(outcome: Outcome) -> tuple[Part, ...]:
    assert isinstance(outcome, Completed)
    return outcome.parts


async def test_the_application_the_model_and_the_record_each_get_their_own() -> None:
    sink = MemorySink()
    outcome = await run(gives(ToolContent(SALES, PARTS)), sinks=[sink])
    assert isinstance(outcome, Completed)
    assert outcome.value is SALES
    assert outcome.model == SALES
    assert outcome.public == {"sum": 7}
    assert outcome.parts == outcome.model_parts == tuple(PARTS)
    (record,) = sink.records
    assert record == outcome.record
    assert record.parts == tuple(map(info_of, PARTS))
    assert [info.kind for info in record.parts] == [
        *("text", "image", "image", "audio", "file", "link")
    ]


@pytest.mark.parametrize("result", [PNG, PARTS, tuple(PARTS), ToolContent(None, PARTS)])
async def test_content_alone_has_no_structured_value(result: Any) -> None:
    outcome = await run(gives(result, visible=ALL))
    assert isinstance(outcome, Completed)
    assert outcome.value is outcome.model is outcome.public is outcome.record.result is None
    assert outcome.parts == ((PNG,) if result is PNG else tuple(PARTS))
    assert outcome.record.error is None


@given(
    visible=st.sampled_from([ALL, (), ("sum",)]),
    model_visible=st.sampled_from([ALL, (), ("sum",)]),
    parts=st.lists(st.sampled_from(PARTS), max_size=4),
    value=st.sampled_from([None, SALES]),
)
@settings(max_examples=sample(120))
async def test_no_record_has_anything_of_a_part(
    visible: Any, model_visible: Any, parts: list[Part], value: Any
) -> None:
    shows = value is not None and visible is ALL
    subject = gives(ToolContent(value, parts), visible=visible, model_visible=model_visible)
    outcome = await run(subject)
    assert isinstance(outcome, Completed)
    shown = [repr(outcome), repr(outcome.record), str(result_with_parts(outcome.record))]
    shown.append(msgspec.json.encode(outcome.record).decode())
    assert [DATA in text for text in shown] == [False] * 4
    assert [CANARY in text for text in shown] == [False, False, shows, shows]
    assert len(outcome.record.parts) == len(parts)
    assert outcome.parts == tuple(parts)
    assert outcome.model_parts == (tuple(parts) if model_visible is ALL else ())


async def test_the_output_schema_holds_for_the_structured_value() -> None:
    @tool(visible=ALL)
    async def sell(sum: Any) -> ToolContent[Sales] | Sales:
        """Sell."""
        if sum == "nothing":
            return ToolContent[Any](None, [PNG])
        return ToolContent({"sum": sum, "secret": CANARY}, [PNG])

    assert sell.definition.output_schema is not None
    assert sell.definition.output_schema["required"] == ["sum", "secret"]
    runner = ToolRunner([sell])
    assert isinstance(await runner.exec(ToolCall("a", "sell", '{"sum": 7}')), Completed)
    for at, wrong in enumerate(('{"sum": "x"}', '{"sum": "nothing"}')):
        outcome = await runner.exec(ToolCall(f"b{at}", "sell", wrong))
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.INVALID_OUTPUT
        assert outcome.record.parts == ()


@pytest.mark.parametrize(
    "hint",
    [
        Image,
        Image | None,
        Annotated[File, "a note"],
        list[str | Image],
        tuple[Image, ...],
        Sequence[File | Link],
        list[Image] | str,
        ToolContent,
        ToolContent[Any],
    ],
)
def test_a_hint_of_content_alone_has_no_output_schema(hint: Any) -> None:
    def look() -> Any:
        """Look."""

    look.__annotations__["return"] = hint
    assert tool(visible=ALL)(look).definition.output_schema is None


def test_a_hint_of_content_beside_a_value_has_the_values_schema() -> None:
    def look() -> Any:
        """Look."""

    for hint in (ToolContent[int], Annotated[ToolContent[int], "a note"]):
        look.__annotations__["return"] = hint
        schema = tool(visible=ALL)(look).definition.output_schema
        assert schema == {"type": "integer"}
    look.__annotations__["return"] = ToolContent[int] | str
    schema = tool(visible=ALL)(look).definition.output_schema
    assert schema == {"anyOf": [{"type": "integer"}, {"type": "string"}]}


@pytest.mark.parametrize("hint", [dict[str, Image], list[dict[str, File]], set[Link]])
def test_a_hint_of_content_within_a_value_is_refused(hint: Any) -> None:
    def look() -> Any:
        """Look."""

    look.__annotations__["return"] = hint
    with pytest.raises(DefinitionError, match=r"tool 'look': .* content inside a value"):
        tool(visible=ALL)(look)


BESIDE = ToolContent({"a": 1}, [CANARY])


@dataclass
class Framed:
    picture: Any


class FramedStruct(msgspec.Struct):
    pictures: Any


@pytest.mark.parametrize(
    "result",
    [
        {"a": PNG},
        [{"a": [PNG]}],
        [PNG, {"a": 1}],
        Framed(PNG),
        FramedStruct([PNG]),
        ToolContent({"a": PNG}, []),
        ToolContent(PNG, []),
        {"a": BESIDE},
        [BESIDE],
        Framed(BESIDE),
        FramedStruct({"a": BESIDE}),
        FramedStruct(Framed(PNG)),
        ToolContent(BESIDE, []),
    ],
)
async def test_content_within_a_value_is_no_result(
    result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = await run(gives(result, visible=ALL))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert DATA not in caplog.text + repr(outcome)
    assert CANARY not in caplog.text + repr(outcome)
    assert "toolcrib.values.content." in caplog.text or "Framed" in caplog.text


CONTENT_HINTS: list[tuple[Any, list[Any], list[Any]]] = [
    (Image, [PNG, ToolContent(None, [PNG]), [PNG]], ["a", None, [], {"a": 1}, 7]),
    (ToolContent, [PNG, ToolContent(1, [])], ["a", None, [PNG.data]]),
    (Image | None, [PNG, None], ["a", []]),
    (Annotated[Image | File, "a note"], [PNG], ["a", None]),
    (list[Image], [[PNG], []], ["a", None, [1]]),
    (list[Image] | None, [[PNG], [], None], ["a"]),
    (tuple[Image, ...] | Image, [(PNG,), PNG, ()], ["a", None]),
    (list[Image] | str, [[PNG], "a"], []),
    (Image | int, [PNG, 7], []),
]


@pytest.mark.parametrize(("hint", "fit", "misfit"), CONTENT_HINTS)
async def test_a_hint_of_content_is_kept(hint: Any, fit: list[Any], misfit: list[Any]) -> None:
    def look() -> Any:
        """Look."""
        return result

    look.__annotations__["return"] = hint
    subject = tool(visible=ALL)(look)
    for result in fit:
        assert isinstance(await run(subject), Completed), result
    for result in misfit:
        outcome = await run(subject)
        assert isinstance(outcome, Failed), result
        assert outcome.error.code is ErrorCode.INVALID_OUTPUT


@pytest.mark.parametrize(
    "part", [Image("image/png", CANARY), File("text/plain", text="\ud800"), "\ud800"]
)
async def test_a_part_that_no_provider_could_be_sent_is_no_result(
    part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = await run(gives(ToolContent(1, [part])))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert "one of its parts has data" in outcome.error.message
    assert CANARY not in caplog.text + repr(outcome)


async def test_the_bound_of_results_counts_parts() -> None:
    result = ToolContent({"a": "b"}, [PNG, "text"])
    size = len('{"a":"b"}') + len(PNG.data) + len("text")
    assert isinstance(await run(gives(result), max_result_bytes=size), Completed)
    outcome = await run(gives(result), max_result_bytes=size - 1)
    assert isinstance(outcome, Failed)
    assert outcome.error.message.endswith(f"it is larger than {size - 1} bytes.")


async def test_asked_again_the_same_content_is_given() -> None:
    subject = gives(ToolContent(SALES, PARTS), model_visible=("sum",))
    runner = ToolRunner([subject])
    first, again = [await runner.exec(ToolCall("c", "look", "{}")) for _ in range(2)]
    assert isinstance(first, Completed)
    assert isinstance(again, Completed)
    assert again.replayed
    assert (again.parts, again.model_parts) == (first.parts, ()) == (tuple(PARTS), ())
    assert (again.value, again.model, again.record) == (SALES, {"sum": 7}, first.record)


async def test_what_is_remembered_of_content_is_bounded() -> None:
    half = Image("image/png", "AAAA" * (MAX_BYTES // 8 + 1))
    runner = ToolRunner([gives(half)], max_result_bytes=MAX_BYTES)
    for number in range(2):
        assert parts_of(await runner.exec(ToolCall(f"c{number}", "look", "{}"))) == (half,)
    evicted = await runner.exec(ToolCall("c0", "look", "{}"))
    assert isinstance(evicted, Failed)
    assert "no longer kept" in evicted.error.message


async def test_what_a_ledger_alone_remembers_says_what_was_lost(tmp_path: Path) -> None:
    subject, call = gives(ToolContent(SALES, PARTS)), ToolCall("c", "look", "{}")
    scope = CallScope(RunTally("run_1"))
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    async with AuditLog(url) as log:
        await ToolRunner([subject], sinks=[log]).exec(call, scope=scope)
    async with AuditLog(url) as log:
        again = await ToolRunner([subject], sinks=[log]).exec(call, scope=scope)
        assert (await log.verify()).fault is None
    assert isinstance(again, Completed)
    assert again.replayed
    assert (again.parts, again.model, again.record.parts) == (
        (),
        {"sum": 7},
        tuple(map(info_of, PARTS)),
    )
    assert again.notice == (
        "The result of this call had content that was not kept: text, 11 bytes; "
        "image/png, 11 bytes; image; audio/wav, 11 bytes; text/plain, 11 bytes; link."
    )
    kept = all_bytes(tmp_path)
    assert CANARY.encode() not in kept
    assert DATA.encode() not in kept


async def test_a_tool_in_a_process_of_its_own_gives_content() -> None:
    runner = ToolRunner([process_tools.looks])
    outcome = await runner.exec(ToolCall("c", "looks", '{"count": 2}'))
    image = Image.from_bytes("image/png", CANARY.encode() * 9)
    assert isinstance(outcome, Completed)
    assert outcome.value == {"count": 2, "canary": CANARY}
    assert outcome.public == {"count": 2}
    assert outcome.parts == ("a text", image, image, Link("demo://1"))


async def test_the_content_of_a_process_is_bounded() -> None:
    runner = ToolRunner([process_tools.looks], max_result_bytes=10_000)
    outcome = await runner.exec(ToolCall("c", "looks", '{"count": 1, "size": 1000}'))
    assert isinstance(outcome, Failed)
    assert "larger than 10000 bytes" in outcome.error.message


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


class Watch:
    def __init__(self) -> None:
        self.parts: list[Any] = []

    def progress(self, _call_id: str, part: Any) -> None:
        self.parts.append(part)

    def approval_requested(self, _request: object) -> None: ...

    def finished(self, _outcome: Outcome) -> None: ...


async def test_a_stream_may_end_with_content_which_nobody_is_told_before() -> None:
    @tool(visible=ALL)
    async def draw() -> AsyncIterator[str | Image]:
        """Draw."""
        yield "half"
        yield PNG

    watch = Watch()
    outcome = await ToolRunner([draw]).exec(
        ToolCall("c", "draw", "{}"), scope=CallScope(RunTally("r"), observer=watch)
    )
    assert parts_of(outcome) == (PNG,)
    assert watch.parts == ["half"]


async def test_content_is_no_progress() -> None:
    @tool(visible=ALL)
    async def draw(ctx: CallContext) -> int:
        """Draw."""
        ctx.progress({"shown": PNG})  # type: ignore[dict-item]
        return 1

    outcome = await run(draw)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
