"""Standard input, line by line: whole, bounded, answered, and left at any time."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import mcp_types as types
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR
from rows import each_row
from samples import sample

from toolcrib import ALL, ToolRunner, tool
from toolcrib.bridges.mcp import mcp_server, pipes
from toolcrib.bridges.mcp.pipes import StandardInput
from toolcrib.testing import MemorySink


@pytest.fixture
def pipe() -> Iterator[int]:
    """The end of a pipe that whoever writes has, whose other end is standard input."""
    before = os.dup(0)
    reads, writes = os.pipe()
    os.dup2(reads, 0)
    os.close(reads)
    yield writes
    os.dup2(before, 0)
    os.close(before)


async def test_lines_come_whole_however_they_are_cut(pipe: int) -> None:
    sent = "\n".join([ping("one"), ping("two"), ping("thr€"), '{"cut'])
    at = sent.index("€")
    pieces = [
        sent[:7].encode(),
        sent[7:at].encode(),
        b"\xe2",
        b"\x82\xac" + sent[at + 1 :].encode(),
    ]
    answers = Answers()
    async with StandardInput() as source:
        source.answered_by(answers)
        for piece in pieces:
            os.write(pipe, piece)
            await asyncio.sleep(0.01)
        os.close(pipe)
        assert [line async for line in source] == [ping("one"), ping("two"), ping("thr€")]
        assert [told.error.code for told in answers.told] == [PARSE_ERROR]  # the last line, too
        assert os.read(0, 1) == b""  # meanwhile nobody else reads what the client sends


DEEP = "[" * 100_000
CALL = '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"id":8,"x":'
LATE = '{"method":"tools/call","params":{"id":8,"x":'
UNREADABLE: list[tuple[str | bytes, int, str | int | None]] = [
    (CALL + '"a\\ud800"}}', PARSE_ERROR, 7),
    (CALL + "9" * 6_000 + "}}", PARSE_ERROR, 7),
    (CALL + DEEP, PARSE_ERROR, 7),
    (CALL + '"' + "y" * 100_000 + '"}}', PARSE_ERROR, 7),  # too long here
    ((CALL + '"').encode() + b"\xff" + b'"}}', PARSE_ERROR, 7),
    (CALL.replace("7", '"a\\n7"') + '"\\ud800"}}', PARSE_ERROR, "a\n7"),
    (LATE + '"a\\ud800"},"jsonrpc":"2.0","id":9}', PARSE_ERROR, 9),
    (LATE + '"' + "y" * 100_000 + '"}, "jsonrpc": "2.0", "id": 9}', PARSE_ERROR, 9),
    (LATE + '"a\\ud800"}', PARSE_ERROR, None),  # its end may be within its params
    ('{"method":"m","params":{"a":"\\ud800","id":8}', PARSE_ERROR, None),
    ("no JSON", PARSE_ERROR, None),
    ('"' * 99_999, PARSE_ERROR, None),
    ("[]", INVALID_REQUEST, None),
    ('{"jsonrpc":"2.0","id":7,"method":1}', INVALID_REQUEST, 7),
    ('{"id":7,"method":"m","jsonrpc":"1.0"}', INVALID_REQUEST, 7),
    ('{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', PARSE_ERROR, None),  # nobody can write it
    ('{"method":"ping","jsonrpc":"2.0","id":"\\udfff7"}', PARSE_ERROR, None),
    (b'{"jsonrpc":"2.0","id":"a\xff","method":"ping"}', PARSE_ERROR, None),
    *(
        (
            f'{{"jsonrpc":"2.0","id":{odd},"method":"tools/call","params":{{}}}}',
            INVALID_REQUEST,
            None,
        )
        for odd in ("1.0", "1.5", "1e3", "true", "null", "{}", '{"id":7}', "[]", "[7]")
    ),
    ('{"method":"ping","jsonrpc":"2.0","id":1.0}', INVALID_REQUEST, None),
    *(  # the SDK would make something of it that nobody has written
        (f'{CALL}"x","arguments":{{"a":{odd}}}}}}}', INVALID_REQUEST, 7)
        for odd in ("9007199254740993.0", "1.00000000000000000000001", '1,"a":2')
    ),
]


@each_row(("line", "code", "id_"), UNREADABLE)
async def test_what_is_no_message_is_answered_and_passed_over(
    line: str | bytes,
    code: int,
    id_: str | int | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pipes, "MAX_MESSAGE", 100_000)
    data = line if isinstance(line, bytes) else line.encode()
    (told,), lines = await passed_over(data)
    assert lines == [ping("after")]
    assert isinstance(told, types.JSONRPCError)
    assert (told.error.code, told.id) == (code, id_)
    assert json.loads(told.model_dump_json())["error"]["code"] == code
    assert "a line from the client was ignored" in caplog.text
    assert "yyy" not in caplog.text + told.error.message


async def test_an_answer_that_cannot_be_read_is_an_error_to_whoever_waits_for_it() -> None:
    """It is not answered itself: the client would take that for the answer to a request of its own."""
    told, lines = await passed_over(
        b'{"jsonrpc":"2.0","id":3,"result":{"content":{"x":"\\ud800"}}}'
    )
    assert told == []
    assert json.loads(lines[0])["id"] == 3
    assert json.loads(lines[0])["error"]["code"] == PARSE_ERROR


TEXT = st.text(st.characters(exclude_categories=()), max_size=5)  # half surrogate pairs, too
ID = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.lists(st.integers())
REQUEST = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": st.just("ping") | TEXT, "id": ID},
    optional={"params": st.dictionaries(st.sampled_from(["id", "x"]), ID)},
)


@given(
    st.binary(max_size=200)
    | st.text(max_size=100).map(str.encode)
    | REQUEST.map(lambda said: json.dumps(said).encode())
)
@settings(max_examples=sample(200), deadline=None)
async def test_any_line_is_a_message_or_answered_or_blank(data: bytes) -> None:
    data = data.replace(b"\n", b" ")
    told, lines = await passed_over(data)
    assert lines[-1] == ping("after")
    assert len(told) + len(lines) == (2 if data.strip() else 1)
    assert all(json.loads(each.model_dump_json())["error"] for each in told)


@given(REQUEST)
@settings(max_examples=sample(200), deadline=None)
async def test_a_request_is_answered_unless_it_is_a_message_with_its_id(
    said: dict[str, Any],
) -> None:
    told, lines = await passed_over(json.dumps(said).encode())
    if len(lines) == 1:
        (answer,) = told
        assert answer.id is None or answer.id == said["id"]
        return
    read = types.jsonrpc_message_adapter.validate_json(lines[0], by_name=False)
    assert isinstance(read, types.JSONRPCRequest)
    assert (read.id, type(read.id)) == (said["id"], type(said["id"]))


@each_row(
    ("of_file", "answers", "left"),
    [(True, True, False), (True, False, True), (False, True, False), (False, False, True)],
)
async def test_what_was_read_is_answered_before_the_stream_ends(
    of_file: bool, answers: bool, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line needs no end. Who leaves is told once, and is not waited for without end."""
    for name in ("_OF_FILE", "_OF_PIPE", "_TO_STOP"):
        monkeypatch.setattr(pipes, name, 10.0 if answers else 0.05)
    calls: list[str] = []

    async def leave() -> None:
        calls.append("leave")

    async def answer(stream: Any) -> None:
        await asyncio.sleep(0.1)
        said = types.JSONRPCResponse(jsonrpc="2.0", id="two", result={})
        await stream.send(SessionMessage(said))

    given = "\n".join([LISTENS, ping("two")])
    with standard_input(given.encode(), of_file=of_file):
        async with StandardInput(None, leave) as source, asyncio.timeout(5):
            stream = source.answered_by(Answers())
            answering = asyncio.create_task(answer(stream)) if answers else None
            found = [line async for line in source]
            assert answering is None or answering.done()
    assert found[-1] == ping("two")
    assert bool(calls) is left


GO: list[asyncio.Event] = []


@tool(visible=ALL, read_only=True)
async def waits() -> str:
    """Wait until all that was sent has been read."""
    await GO[-1].wait()
    return "went on"


@tool(visible=ALL, read_only=True)
def go() -> str:
    """Let those that wait go on."""
    GO[-1].set()
    return "gone"


IDS = st.sampled_from([1, "1", "01", 2, "two"])
CALLS = st.tuples(st.just("call"), IDS)
CANCELS = st.tuples(st.just("cancel"), IDS | st.sampled_from([True, 1.0, "2", None, [1]]))
UNREADABLE_CALLS = st.tuples(st.just("unreadable"), IDS)


@given(st.lists(CALLS | CANCELS | UNREADABLE_CALLS, max_size=8))
@settings(max_examples=sample(60), deadline=None)
@example([("call", 1), ("call", 1)])
@example([("call", 1), ("unreadable", 1)])
@example([("call", 1), ("call", "1"), ("cancel", 1)])
@example([("call", "1"), ("call", 1), ("cancel", "1")])
@example([("call", 1), ("cancel", "01"), ("cancel", True), ("cancel", 1.0)])
@example([("call", 1), ("call", 1), ("cancel", 1)])
async def test_an_id_is_known_by_its_type_and_value_and_stands_for_one_open_request(
    said: list[tuple[str, Any]],
) -> None:
    """All is read before a call ends. Each that was taken and not given up has its own result."""
    open_: set[str] = set()
    given_up: set[str] = set()
    errors: list[str] = []
    lines = [HELLO]
    for what, id_ in said:
        name = json.dumps(id_)
        if what == "cancel":
            given_up |= open_ & {name}
            open_.discard(name)
            lines.append(cancelled(id_))
        elif name not in given_up:  # it may not have ended yet
            if what == "unreadable" or name in open_:
                errors.append("null" if name in open_ else name)
            if what == "call":
                open_.add(name)
            lines.append(calls(id_, "waits", ', "x": "\\ud800"' if what == "unreadable" else ""))
    told, sink = await served("\n".join([*lines, calls("last", "go")]))
    results = [json.dumps(each["id"]) for each in told if "result" in each]
    assert sorted(results) == sorted(["0", '"last"', *open_])
    assert sorted(json.dumps(one["id"]) for one in told if "error" in one) == sorted(errors)
    assert [one.status for one in sink.records].count("completed") == 1 + len(open_)


HELLO = (
    '{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25", '
    '"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}'
)


def calls(id_: Any, name: str, more: str = "") -> str:
    params = f'{{"name": "{name}"{more}}}'
    return (
        f'{{"jsonrpc": "2.0", "id": {json.dumps(id_)}, "method": "tools/call", "params": {params}}}'
    )


async def served(lines: str) -> tuple[list[dict[str, Any]], MemorySink]:
    """Return what is answered to a file, and what is recorded."""
    GO.append(asyncio.Event())
    sink, written = MemorySink(), io.BytesIO()
    output = io.TextIOWrapper(written, encoding="utf-8")
    with standard_input(lines.encode(), of_file=True), redirect_stdout(output):
        async with asyncio.timeout(20):
            await mcp_server(ToolRunner([waits, go], sinks=[sink])).run_stdio()
    return [json.loads(line) for line in written.getvalue().splitlines()], sink


@contextmanager
def standard_input(data: bytes, *, of_file: bool) -> Iterator[None]:
    before = os.dup(0)
    with tempfile.TemporaryFile() as file:
        if of_file:
            file.write(data)
            file.seek(0)
            os.dup2(file.fileno(), 0)
        else:
            reads, writes = os.pipe()
            os.write(writes, data)
            os.close(writes)
            os.dup2(reads, 0)
            os.close(reads)
        try:
            yield
        finally:
            os.dup2(before, 0)
            os.close(before)


LISTENS = '{"jsonrpc":"2.0","id":"news","method":"subscriptions/listen"}'


def cancelled(name: Any) -> str:
    said = {"method": "notifications/cancelled", "params": {"requestId": name}}
    return json.dumps({"jsonrpc": "2.0", **said})


def ping(name: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": name, "method": "ping"}, ensure_ascii=False)


async def passed_over(data: bytes) -> tuple[list[Any], list[str]]:
    """Return what is answered to a line, and the messages that come of it and of one more."""
    given = data + b"\n" + ping("after").encode() + b"\n"
    with standard_input(given, of_file=True):
        answers = Answers()
        async with StandardInput() as source:
            source.answered_by(answers)
            return answers.told, [line async for line in source]


class Answers:
    def __init__(self) -> None:
        self.told: list[Any] = []

    async def send(self, item: SessionMessage, /) -> None:
        self.told.append(item.message)

    async def aclose(self) -> None: ...


async def test_it_can_be_left_while_nobody_writes(pipe: int) -> None:
    stop = asyncio.Event()
    async with StandardInput(stop) as source:
        stop.set()
        async with asyncio.timeout(5):
            assert [line async for line in source] == []
    os.close(pipe)
