"""The rows of `docs/compared.md`, and what the scripts that try them share.

A script (`try_NAME.py`) has one function for each row, by the row's id, that lets an agent of its
library do it and says what happened. It runs in an environment of its library's own, so this module
needs the standard library alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A feature: its id is the name of the function that tries it."""

    id: str
    question: str


GROUPS: dict[str, tuple[Row, ...]] = {
    "Which calls run": (
        Row("truncated_call", "A call in a reply that was cut does not run"),
        Row(
            "unknown_keys",
            "A key that the tool does not declare is refused, also in an object within",
        ),
        Row("string_for_int", 'The text `"5"` for an integer is refused, and the model told'),
        Row(
            "async_policy",
            "A check before each call denies it if the check raises, or hangs",
        ),
        Row(
            "approval_bound",
            "What was approved is what runs, if the saved run is changed before it goes on",
        ),
        Row(
            "always_rule", "A yes may be a rule for calls with these arguments, in later runs, too"
        ),
        Row("spend_per_caller", "What a user spends is limited, over all runs"),
        Row("audit_verifies", "A log of the calls, in which a later change is found"),
    ),
    "Runs that go wrong, and go on": (
        Row("repeated_calls", "A model that makes the same call over and over is stopped"),
        Row("empty_reply", "An empty reply is not taken for an answer"),
        Row(
            "resume_after_failure",
            "A run goes on after the provider failed, and makes no call twice",
        ),
        Row("fork", "Go back to an earlier turn, and be told which calls have happened since"),
        Row("plan", "See what would be called, and what is decided of it, with nothing run"),
    ),
    "What goes in and out": (
        Row("settings_refused", "A setting that the provider does not take is an error"),
        Row("image_prompt", "Ask about an image"),
        Row("image_result", "A tool returns an image, and the model sees it"),
        Row("typed_retries", "A typed answer that does not fit goes back to the model"),
        Row("partial_output", "A typed answer can be read while it grows"),
        Row("context_spill", "Of a result of 1 MB the model gets a part, and can read the rest"),
    ),
    "Many tools, many agents": (
        Row("handover", "Another agent takes the conversation over, with its history"),
        Row("methods_as_tools", "The methods of an object become tools"),
        Row("background_tools", "A tool runs in the background, and its result comes later"),
        Row("deferred_tools", "Of 60 tools few are offered, and the model finds the others"),
    ),
    "What toolcrib leaves to others": (
        Row("graph", "A workflow of steps and branches, as a graph"),
        Row("memory", "An agent remembers, from one conversation to the next"),
        Row("shell", "A tool that runs commands"),
    ),
}
ROWS = tuple(row for rows in GROUPS.values() for row in rows)


# What the agents' tools are made of.


@dataclass
class Line:
    article: str
    amount: int = 1


class Notes:
    """Two methods that are to be tools."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def add_note(self, text: str) -> int:
        """Keep a note."""
        self.kept.append(text)
        return len(self.kept)

    def read_notes(self) -> list[str]:
        """Read the notes."""
        return self.kept


class Cell(NamedTuple):
    """What one library did of one row, and in a few words how."""

    verdict: str
    what: str


def yes(what: str) -> Cell:
    return Cell("yes", what)


def partly(what: str) -> Cell:
    return Cell("partly", what)


def no(what: str) -> Cell:
    return Cell("no", what)


Try = Callable[[], Coroutine[Any, Any, Cell]]
SECONDS = 60


def main(tries: dict[str, Any], *packages: str) -> None:
    """Run the functions of the rows, or of those that the command line names, and print what was seen.

    One JSON object: the `versions` of the packages, the `cells`, and what `failed`: a function that
    raised has no cell, so a library that changed leaves a gap and no wrong word.
    """
    wanted = [row.id for row in ROWS if row.id in (sys.argv[1:] or tries) and row.id in tries]
    cells: dict[str, Cell] = {}
    failed: dict[str, str] = {}
    warnings.simplefilter("ignore")
    logging.disable()
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                cells[name] = asyncio.run(asyncio.wait_for(tries[name](), SECONDS))
            except Exception as error:  # noqa: BLE001  a library may raise what it likes
                failed[name] = f"{type(error).__name__}: {error}"
            os.chdir("/")
    found = {"versions": {name: version(name) for name in packages}}
    sys.stdout.write(json.dumps(found | {"cells": cells, "failed": failed}) + "\n")
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # whatever threads a library has left behind


def write(name: str, text: str) -> None:
    """Write a file into the folder of the row."""
    Path(name).write_text(text, encoding="utf-8")


async def ended(run: Coroutine[Any, Any, Any], seconds: float = 3) -> BaseException | Any | None:
    """Return what a run gave or raised, or None if it is still waiting after some seconds."""
    done, waiting = await asyncio.wait({asyncio.ensure_future(run)}, timeout=seconds)
    for task in waiting:
        task.cancel()
    for task in done:
        return task.exception() or task.result()
    return None


# A server on this machine that speaks OpenAI's chat wire, for what only a wire shows.


class Call(NamedTuple):
    """A call of a scripted reply, with the text of its arguments."""

    name: str
    arguments: str


class Turn(NamedTuple):
    """A reply: `finish` is why it ended, or None where the stream breaks off before it says so."""

    calls: Sequence[Call] = ()
    text: str = ""
    finish: str | None = "stop"


class Wire:
    """`url` is for a client, `requests` are the bodies that came; each gets the next of the turns.

    A turn may be a number, a status that is given as an error. After the last turn that one is said
    again.
    """

    def __init__(self, turns: Sequence[Turn | int]) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self._turns = list(turns)

    def next(self, body: dict[str, Any]) -> Turn | int:
        self.requests.append(body)
        return self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]


@contextlib.contextmanager
def wire(*turns: Turn | int) -> Iterator[Wire]:
    """Run the server in a thread."""
    served = Wire(turns)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # a body ends with its connection, whole or not

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = served.next(body)
            status = turn if isinstance(turn, int) else 200
            streams = not isinstance(turn, int) and body.get("stream", False)
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
            self.end_headers()
            if isinstance(turn, int):
                said = [json.dumps({"error": {"message": "scripted", "type": "scripted"}})]
            else:
                said = list(_events(turn)) if streams else [json.dumps(_whole(turn))]
            for piece in said:
                self.wfile.write(piece.encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


_HEAD = {"id": "chatcmpl-1", "created": 1_800_000_000, "model": "gpt-4o"}
_SPOKEN = 7
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def _tool_calls(turn: Turn) -> list[dict[str, Any]]:
    return [
        {
            "index": at,
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for at, call in enumerate(turn.calls)
    ]


def _whole(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = _tool_calls(turn)
    choice = {"index": 0, "message": message, "finish_reason": turn.finish}
    return {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}


def _events(turn: Turn) -> Iterator[str]:
    """Say it in small pieces, as a stream does."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _pieces(turn.text)]
    for at, call in enumerate(_tool_calls(turn)):
        text = call["function"]["arguments"]
        begun = call | {"function": call["function"] | {"arguments": ""}}
        deltas.append({"tool_calls": [begun]})
        for piece in _pieces(text):
            deltas.append({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    for delta in deltas:
        yield _event([{"index": 0, "delta": delta, "finish_reason": None}])
    if turn.finish is not None:
        yield _event([{"index": 0, "delta": {}, "finish_reason": turn.finish}])
        yield _event([], usage=_USAGE)
        yield "data: [DONE]\n\n"


def _event(choices: list[dict[str, Any]], **more: Any) -> str:
    chunk = {**_HEAD, "object": "chat.completion.chunk", "choices": choices, **more}
    return f"data: {json.dumps(chunk)}\n\n"


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + _SPOKEN] for at in range(0, len(text), _SPOKEN))


# What all of them are asked.

CUT = '{"order": 7, "cents": 90'  # of 9000, say: the reply ended here
"""Arguments that were cut: closed by a kind parser they refund another sum."""
CLOSED = '{"order": 7, "cents": 90}'
CUT_TURNS: dict[str, Turn] = {
    "arguments that were cut": Turn((Call("refund", CUT),), finish="length"),
    "whole arguments of a cut reply": Turn((Call("refund", CLOSED),), finish="length"),
    "a stream that broke off": Turn((Call("refund", CLOSED),), finish=None),
}
CUT_WAYS = [
    (name, stream)
    for name, turn in CUT_TURNS.items()
    for stream in ((False, True) if turn.finish else (True,))
]
"""What is cut, and whether the reply is asked for as a stream."""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""A picture, as PNG."""
_NOTHING = "Nothing to tell.\n" * 30_000
LONG = f"Report of 2025.\n{_NOTHING}The surplus was 12.\n{_NOTHING}"
"""A result of 1 MB, with one line in its middle to know."""


WRONG_KEYS: tuple[dict[str, Any], ...] = (
    {"line": {"article": "tea"}, "note": "", "colour": "red"},
    {"line": {"article": "tea", "amonut": 5}, "note": ""},
)
"""Arguments for a tool that takes a `line` (of `article` and `amount`) and a `note`."""


def judged_keys(by_itself: list[bool], told_to: list[bool]) -> Cell:
    """Say which of `WRONG_KEYS` were refused, and which only where the tool's classes forbid them."""
    if all(by_itself):
        return yes("the model reads where")
    if not any(told_to):
        return no("dropped, and the call runs")
    if all(told_to) and not any(by_itself):
        return partly("if the tool's classes forbid it; else dropped, and the call runs")
    places = zip(("outside", "within"), by_itself, told_to, strict=True)
    where = [p if own else f"{p}, if its class forbids it" for p, own, can in places if own or can]
    return partly(f"{'; '.join(where)}; else dropped, and the call runs")


def judged_cuts(ran: dict[tuple[str, bool], bool]) -> Cell:
    """Say which of the calls that were cut (of `CUT_WAYS`) were run."""
    seen = {name: [ran[way] for way in ran if way[0] == name] for name, _ in ran}
    bad = [
        name if all(each) else f"{name}, if streamed" for name, each in seen.items() if any(each)
    ]
    if not bad:
        return yes("none of the three is run")
    verdict = no if len(bad) == len(seen) else partly
    return verdict(f"runs {'; '.join(bad)}")
