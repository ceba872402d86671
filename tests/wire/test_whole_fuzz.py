"""No call runs that the whole recording does not deliver whole.

Every recorded stream is cut after each of its events, and loses, doubles and swaps each event that is
no piece of arguments: beginnings, names, stops, reasons, ends. Where a wire says arguments twice (that
of Responses) the pieces and the copies of them, too. What runs of it must be among what the whole
recording gives to run, by name and by arguments as JSON, and not more often.

Besides, each event of the wires that say of each event what it is becomes one of another type, or at
another index, and each nameless piece of a chat's call goes to another choice: a piece that no call can
have ends those that are open.

A seeded sample runs with the other tests; all of it does with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rows import each_row
from samples import WHOLE, sample, sampled
from servers.bedrock import frame
from wire.recorded_helpers import Row, recorded

from toolcrib.errors import ClientError
from toolcrib.hydration.parse import Parsed, parse_arguments
from toolcrib.wire import WIRES, Wire, decoder, wire_of

SAMPLE = 350
SEED = 13

Runs = Counter[tuple[str, str]]
Json = dict[str, Any]
IN_PIECES = "gemini, in pieces"
GOES_ON: Json = {"willContinue": True}


class Recording(NamedTuple):
    """A stream as its events, in the very bytes, and which of them are pieces of arguments.

    `wire` is how the server that it was recorded from speaks it.
    """

    wire: Wire
    id: str
    events: list[bytes]
    pieces: list[bool]


def blocks(body: bytes) -> list[bytes]:
    """Server-sent events, each with the blank line that ends it."""
    parts = re.split(rb"(\r?\n\r?\n)", body)
    joined = [b"".join(parts[at : at + 2]) for at in range(0, len(parts), 2)]
    return [block for block in joined if block.strip()]


def frames(body: bytes) -> list[bytes]:
    """The frames of an AWS event stream."""
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4])
        found.append(body[at : at + size])
        at += size
    return found


def unframed(data: bytes) -> bytes:
    """An event of Anthropic's out of the frame that carried it."""
    headers = int.from_bytes(data[4:8])
    payload = json.loads(data[12 + headers : -4])
    return b"data: " + base64.b64decode(payload["bytes"]) + b"\n\n"


def says(event: bytes) -> Any:
    """The JSON of an event; empty if it has none."""
    data = b"".join(
        line.partition(b":")[2] for line in event.splitlines() if line.startswith(b"data:")
    )
    try:
        return json.loads(data or event)
    except ValueError:
        return {}


def has_arguments(value: Any) -> bool:
    """Whether a call somewhere in the JSON brings arguments that are more than an empty text."""
    if isinstance(value, list):
        return any(map(has_arguments, value))
    if not isinstance(value, dict):
        return False
    keys = ("arguments", "args", "partialArgs", "partial_json")
    return any(value.get(key) not in (None, "") for key in keys) or any(
        map(has_arguments, value.values())
    )


SPLIT: dict[str, Callable[[bytes], list[bytes]]] = {
    "bedrock-converse": frames,
    "ollama": lambda body: [line + b"\n" for line in body.splitlines() if line.strip()],
}


def is_piece(wire: str, event: bytes) -> bool:
    if wire == "openai-responses":
        return False  # it says arguments up to four times: each of them may be lost
    if wire == "bedrock-converse":
        return b"contentBlockDelta" in event and b'"toolUse"' in event
    return has_arguments(says(event))


def recordings(shared_data: Path, wire: str) -> list[Recording]:
    """The streams of a wire; those of Anthropic's that Bedrock carried in frames of its own, too."""
    if wire == IN_PIECES:
        return [in_pieces(recording) for recording in recordings(shared_data, "gemini")]
    made = []
    rows = recorded(shared_data, wire)
    if wire == "anthropic":
        invoked = recorded(shared_data, "bedrock-invoke")
        rows += [row for row in invoked if "anthropic_version" in (row["request"] or {})]
    for row in rows:
        if row["streaming"] and row["status"] == 200:
            data = bytes_of(row)
            framed = wire == "anthropic" and row.get("response_encoding") == "base64"
            events = list(map(unframed, frames(data))) if framed else SPLIT.get(wire, blocks)(data)
            pieces = [is_piece(wire, event) for event in events]
            spoken = wire_of(wire).at(row["provider"])
            made.append(Recording(spoken, row["id"], events, pieces))
    return made


def bytes_of(row: Row) -> bytes:
    body: str = row["response_body"]
    return base64.b64decode(body) if row.get("response_encoding") == "base64" else body.encode()


def values(value: Any, path: str) -> Iterator[Json]:
    """A call's arguments as Gemini's values, each at its place; a text in two pieces."""
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from values(value[key], f"{path}[{json.dumps(key)}]")
    elif isinstance(value, str):
        half = (len(value) + 1) // 2
        yield {"jsonPath": path, "stringValue": value[:half], "willContinue": True}
        yield {"jsonPath": path, "stringValue": value[half:]}
    elif value is None:
        yield {"jsonPath": path, "nullValue": "NULL_VALUE"}
    else:
        kind = "boolValue" if isinstance(value, bool) else "numberValue"
        yield {"jsonPath": path, kind: value}


def parts_in_pieces(part: Json) -> Iterator[Json]:
    """A part; a call value by value, which ends by an empty piece of it."""
    call = part.get("functionCall") or {}
    told = list(values(call.get("args") or {}, "$"))
    if not call:
        yield part
        return
    yield part | {"functionCall": {key: call[key] for key in call if key != "args"} | GOES_ON}
    for value in told:
        yield {"functionCall": {"partialArgs": [value]} | GOES_ON}
    yield {"functionCall": {}}


def in_pieces(recording: Recording) -> Recording:
    """A stream of Gemini's, with each of its calls in pieces, one in each event."""
    events = []
    for said in map(says, recording.events):
        first, *others = said.get("candidates") or [{}]
        parts = (first.get("content") or {}).get("parts") or []
        told = [piece for part in parts for piece in parts_in_pieces(part)]
        for piece in told[:-1]:
            events.append({"candidates": [{"content": {"role": "model", "parts": [piece]}}]})
        content = {"content": first.get("content", {}) | {"parts": told[-1:]}} if parts else {}
        events.append(said | ({"candidates": [first | content, *others]} if first else {}))
    made = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    pieces = [is_piece("gemini", event) for event in made]
    return recording._replace(events=made, pieces=pieces)


def runs(wire: Wire, body: bytes) -> Runs:
    """What of a reply may run, and would be read as arguments."""
    reading = decoder(wire)
    reading.feed(body)
    try:
        reply = reading.finish()
    except ClientError:
        return Counter()
    found: Runs = Counter()
    for call in reply.tool_calls:
        parsed = parse_arguments(call.arguments)
        if call.complete and call.fault is None and isinstance(parsed, Parsed):
            found[call.name, json.dumps(parsed.value, sort_keys=True)] += 1
    return found


def mutants(recording: Recording) -> Iterator[tuple[str, list[bytes]]]:
    """Every stream that this one could have become, with a name for it."""
    events, pieces = recording.events, recording.pieces
    for at in range(len(events)):
        yield f"cut before {at}", events[:at]
    for at, event in enumerate(events):
        if not pieces[at]:
            yield f"without {at}", events[:at] + events[at + 1 :]
            yield f"twice {at}", [*events[:at], event, *events[at:]]
        if at and not (pieces[at - 1] and pieces[at]):
            yield f"swapped {at}", [*events[: at - 1], event, events[at - 1], *events[at + 1 :]]


TYPES = {
    "anthropic": (
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "later",
    ),
    "cohere": (
        "message-start",
        "content-delta",
        "tool-plan-delta",
        "tool-call-start",
        "tool-call-delta",
        "tool-call-end",
        "citation-end",
        "message-end",
        "later",
    ),
    "bedrock-converse": (
        "messageStart",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
        "later",
    ),
    "openai-responses": (
        "response.output_item.added",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_text.delta",
        "response.completed",
        "response.later",
    ),
    "openai-chat": (),
    "mistral": (),
    IN_PIECES: (),
}
PLACES = ("index", "contentBlockIndex", "output_index")


OTHERS: tuple[Any, ...] = (None, True, False, 0, 5, "x", "", [], {})


def mistaken_piece(said: Json) -> Iterator[tuple[str, bytes]]:
    """A nameless piece of a call of Gemini's in another candidate, in a second entry of the first one,
    and with each of its members of another type, with a name for it."""
    candidate = (said.get("candidates") or [{}])[0]
    (part,) = (candidate.get("content") or {}).get("parts") or [{}]
    call = part.get("functionCall") or {}
    if call.get("name") or not call:
        return
    made: list[tuple[str, Json]] = [
        ("at candidate 1", candidate | {"index": 1}),
        ("with another type", candidate | {"content": {"parts": [{"functionCall": 0}]}}),
    ]
    for value in call.get("partialArgs", ()):
        for key in value.keys() - {"willContinue"}:
            for other in OTHERS:
                if type(other) is not type(value[key]) and (key, other) != ("nullValue", 5):
                    piece = call | {"partialArgs": [value | {key: other}]}
                    parts = {"content": {"parts": [{"functionCall": piece}]}}
                    made.append((f"{key} as {other!r}", candidate | parts))
    for name, changed in made:
        yield name, b"data: " + json.dumps(said | {"candidates": [changed]}).encode() + b"\n\n"
    entries = {"candidates": [{"content": {"parts": [{"text": ""}]}}, candidate]}
    yield "in a second entry", b"data: " + json.dumps(said | entries).encode() + b"\n\n"


def mistaken(wire: str, event: bytes) -> Iterator[tuple[str, bytes]]:
    """The event under another type, or at another place, with a name for it."""
    if wire == "bedrock-converse":
        size = int.from_bytes(event[4:8])
        said = json.loads(event[12 + size : -4] or b"{}")
        (kind,) = [kind for kind in TYPES[wire] if f"{kind}\r".encode() in event[: 12 + size]]
    else:
        said, kind = says(event), ""
    for other in TYPES[wire] if said else ():
        made = {key: value for key, value in said.items() if key != "p"}
        if wire == "bedrock-converse":
            yield f"as {other}", frame(made, event_type=other)
        else:
            yield f"as {other}", b"data: " + json.dumps(made | {"type": other}).encode() + b"\n\n"
    for place in (0, 1, 7, None):
        if choices := said.get("choices"):
            calls = (choices[0].get("delta") or {}).get("tool_calls") or [{"id": "x"}]
            if place and not any(call.get("id") or call["function"].get("name") for call in calls):
                moved = said | {"choices": [choices[0] | {"index": place}]}
                yield f"at choice {place}", b"data: " + json.dumps(moved).encode() + b"\n\n"
        for key in PLACES:
            if key in said and said[key] != place:
                moved = said | {key: place}
                if wire == "bedrock-converse":
                    yield f"at {place}", frame(moved, event_type=kind)
                else:
                    yield f"at {place}", b"data: " + json.dumps(moved).encode() + b"\n\n"


def has_one_choice(recording: Recording) -> bool:
    """Whether there is no other choice whose calls could have a piece of the first one's."""
    choices = [
        choice for event in recording.events for choice in says(event).get("choices") or ()
    ] if recording.wire.name in ("openai-chat", "mistral") else []  # fmt: skip
    return len({choice.get("index", 0) for choice in choices}) < 2


@each_row("wire", TYPES)
def test_a_piece_that_no_call_can_have_ends_those_that_may_lack_it(
    wire: str, shared_data: Path
) -> None:
    random_ = random.Random(f"{SEED} {wire} mistaken")  # noqa: S311
    known = [r for r in sampled(recordings(shared_data, wire), part=3) if has_one_choice(r)]
    calling = [(r, whole) for r in known if (whole := runs(r.wire, b"".join(r.events)))]
    for _ in range(sample(1500, part=120)):
        recording, whole = random_.choice(calling)
        at = random_.randrange(len(recording.events))
        events = recording.events
        event = events[at]
        changed = mistaken_piece(says(event)) if wire == IN_PIECES else mistaken(wire, event)
        for name, event in changed:
            more = too_much(recording, whole, b"".join([*events[:at], event, *events[at + 1 :]]))
            assert not more, (recording.id, at, name)


def too_much(recording: Recording, whole: Runs, body: bytes) -> Runs:
    """What runs of a mutant, and not of the whole recording."""
    return runs(recording.wire, body) - whole


READ = (*WIRES, IN_PIECES)


@each_row("wire", READ)
def test_a_sample_runs_nothing_that_the_recording_does_not_deliver(
    wire: str, shared_data: Path
) -> None:
    random_ = random.Random(f"{SEED} {wire}")  # noqa: S311
    known = sampled(recordings(shared_data, wire), part=3)
    deliver = {r.id: runs(r.wire, b"".join(r.events)) for r in known}
    calling = [r for r in known if deliver[r.id]] or known
    for _ in range(SAMPLE // len(READ)):
        recording = random_.choice(calling if random_.random() < 0.9 else known)
        made = sum(1 for _ in mutants(recording))
        name, events = next(islice(mutants(recording), random_.randrange(made), None))
        more = too_much(recording, deliver[recording.id], b"".join(events))
        assert not more, (recording.id, name)


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="takes minutes; TOOLCRIB_FUZZ=all")
@each_row("wire", READ)
def test_nothing_runs_that_the_recording_does_not_deliver(wire: str, shared_data: Path) -> None:
    found, tried = [], 0
    for recording in recordings(shared_data, wire):
        whole = runs(recording.wire, b"".join(recording.events))
        for name, events in mutants(recording):
            tried += 1
            if more := too_much(recording, whole, b"".join(events)):
                found.append((recording.id, name, dict(more)))
    assert tried > 0
    assert not found, found[:20]
