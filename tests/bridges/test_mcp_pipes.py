"""Standard input, line by line: whole, bounded, answered, and left at any time."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR
from rows import each_row
from samples import sample

from toolcrib.bridges.mcp import pipes
from toolcrib.bridges.mcp.pipes import StandardInput


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
]


@each_row(("line", "code", "id_"), UNREADABLE)
async def test_what_is_no_message_is_answered_and_passed_over(
    line: str | bytes,
    code: int,
    id_: str | int | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pipes, "MAX_LINE", 100_000)
    data = line if isinstance(line, bytes) else line.encode()
    (told,), lines = await passed_over(data)
    assert lines == [ping("after")]
    assert isinstance(told, types.JSONRPCError)
    assert (told.error.code, told.id) == (code, id_)
    assert json.loads(told.model_dump_json())["error"]["code"] == code
    assert "a line of the client was passed over" in caplog.text
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

    given = "\n".join([ping("one"), cancelled("one"), LISTENS, ping("two")])
    with standard_input(given.encode(), of_file=of_file):
        async with StandardInput(None, leave) as source, asyncio.timeout(5):
            stream = source.answered_by(Answers())
            answering = asyncio.create_task(answer(stream)) if answers else None
            found = [line async for line in source]
            assert answering is None or answering.done()
    assert found[-1] == ping("two")
    assert bool(calls) is left


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


def cancelled(name: str) -> str:
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
