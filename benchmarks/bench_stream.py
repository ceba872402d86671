"""C: a stream of tool calls, decoded: 50,000 argument deltas of 8 parallel calls, 256 bytes each.

The bytes come in pieces of 64 kB, as from a socket, in one row event by event. The floor splits the
stream on bytes and parses each event with orjson, and keeps nothing. The shorter streams show that the
time is linear, the long call that pieces are joined once. CPU milliseconds; the minimum of the rounds,
which take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import orjson

from toolcrib.values.message import Reply
from toolcrib.wire import decoder

ROUNDS = 7
CALLS = 8
EVENT = 256
SOCKET = 65_536
HEAD = (
    b'data: {"id":"chatcmpl-BQ1d4e5f6a7b8c9d","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"gpt-5","choices":[{"index":0,"delta":{"tool_calls":[{"index":'
)
TAIL = b'}}]},"finish_reason":null}]}\n\n'


class Stream(NamedTuple):
    """A body in pieces; `text` is what the arguments of each call come to. `reach` in ms."""

    name: str
    pieces: list[bytes]
    calls: int
    text: str
    reach: int | None


def main() -> None:
    print(f"{'stream':<34}{'MB':>6}{'floor ms':>10}{'toolcrib ms':>13}{'ratio':>8}{'reach ms':>10}")
    streams = _streams()
    floors, ours = ([float("inf")] * len(streams) for _ in range(2))
    for _ in range(ROUNDS):
        for at, stream in enumerate(streams):
            floors[at] = min(floors[at], _timed(_floor, stream))
            ours[at] = min(ours[at], _timed(_decoded, stream))
    for stream, floor, own in zip(streams, floors, ours, strict=True):
        size = sum(map(len, stream.pieces)) / 1e6
        print(
            f"{stream.name:<34}{size:>6.1f}{floor:>10.1f}{own:>13.1f}{own / floor:>8.2f}"
            f"{'–' if stream.reach is None else stream.reach:>10}"
        )


def _streams() -> list[Stream]:
    made = {count: stream(count, CALLS) for count in (12_500, 25_000, 50_000)}
    found = [
        Stream(f"{count:,} deltas", cut(events), CALLS, text, 250 if count == 50_000 else None)
        for count, (events, text) in made.items()
    ]
    events, text = made[50_000]
    found.append(Stream("50,000 deltas, event by event", events, CALLS, text, None))
    events, text = stream(50_000, 1, piece=4)
    found.append(Stream("one call of 200 kB, 50,000 deltas", cut(events), 1, text, 250))
    return found


def stream(deltas: int, calls: int, *, piece: int | None = None) -> tuple[list[bytes], str]:
    """The events, and the arguments of each call. Pieces fill an event's 256 bytes, or have a size."""
    events = [
        HEAD + b'%d,"id":"call_%d","type":"function","function":{"name":"write","arguments":""' % (
            (at, at)
        ) + TAIL
        for at in range(calls)
    ]  # fmt: skip
    most = EVENT - len(HEAD + b'0,"function":{"arguments":""' + TAIL)
    size = most if piece is None else piece
    each = deltas // calls
    whole = '{"text":"' + "x" * (size * each - 11) + '"}'
    escaped = [
        orjson.dumps(whole[at * size : (at + 1) * size])  # quotes cost a backslash
        for at in range(each)
    ]
    for text in escaped:
        for at in range(calls):
            events.append(HEAD + b'%d,"function":{"arguments":%b' % (at, text) + TAIL)
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    return [*events, end, b"data: [DONE]\n\n"], whole


def cut(events: Iterable[bytes]) -> list[bytes]:
    body = b"".join(events)
    return [body[at : at + SOCKET] for at in range(0, len(body), SOCKET)]


def _timed(work: Callable[[Stream], None], stream: Stream) -> float:
    started = time.process_time()
    work(stream)
    return (time.process_time() - started) * 1e3


def _floor(stream: Stream) -> None:
    rest = b""
    for piece in stream.pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            data = event[6:]
            if data != b"[DONE]":
                orjson.loads(data)


def _decoded(stream: Stream) -> None:
    reading = decoder("openai-chat")
    for piece in stream.pieces:
        reading.feed(piece)
    reply: Reply = reading.finish()
    assert [call.arguments for call in reply.tool_calls] == [stream.text] * stream.calls


if __name__ == "__main__":
    main()
