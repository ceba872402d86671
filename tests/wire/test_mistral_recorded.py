"""Mistral's wire against 93 recorded exchanges, 65 of them with calls, and the edge cases of users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wire.chat_reader import Unsupported, normal, request_of
from wire.recorded_helpers import (
    Row,
    agrees,
    check_errors,
    check_parts,
    check_splits,
    check_torn,
    decoded,
    edge_cases_of,
    recorded,
    unequal_edges,
)

from toolcrib.wire import MISTRAL, encode

CUT_EARLY = {"3e37db617c211f1e", "88e4702a764cc6ca", "9f82952042845433"}
"""Cut by length before the first byte of arguments: those stay empty, as the reply had them. Expected
says `{}`, which only a whole reply's empty arguments mean."""


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return recorded(shared_data, "mistral")


@pytest.fixture(scope="module")
def streams(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["streaming"]]


def test_every_reply_is_as_recorded(rows: list[Row]) -> None:
    good = [row for row in rows if row["kind"] != "error"]
    assert len(good) == 90
    assert {row["id"] for row in good if not agrees(decoded(MISTRAL, row), row)} == CUT_EARLY
    for row in good:
        if row["id"] in CUT_EARLY:
            reply = decoded(MISTRAL, row)
            (call,) = reply.tool_calls
            assert (reply.finish, call.name, call.arguments) == ("length", "file_report", "")
            assert not call.complete


def test_arguments_are_the_recorded_text(rows: list[Row]) -> None:
    for row in rows:
        if row["kind"] == "tool":
            given = [call["arguments_raw"] for call in row["expected"]["tool_calls"]]
            assert [call.arguments for call in decoded(MISTRAL, row).tool_calls] == given


def test_errors_are_typed_and_in_the_providers_words(rows: list[Row]) -> None:
    errors = [row for row in rows if row["kind"] == "error"]
    assert len(errors) == 3
    check_errors(MISTRAL, errors)


def test_streams_are_the_same_in_any_pieces(streams: list[Row]) -> None:
    check_splits(MISTRAL, streams)


def test_parts_make_up_the_reply(streams: list[Row]) -> None:
    check_parts(MISTRAL, streams)


def test_what_breaks_off_gives_nothing_to_run(streams: list[Row]) -> None:
    """Nothing can be told from the reason on; before it, any end is an early one."""
    check_torn(
        MISTRAL, streams, lambda body: body.replace(b'": "', b'":"').find(b'"finish_reason":"')
    )


def test_edge_cases(shared_data: Path) -> None:
    cases = edge_cases_of(shared_data, "mistral")
    assert len(cases) == 3
    # Text is no call unless it is asked for.
    assert unequal_edges(MISTRAL, cases) == {"calls-as-json-list-in-text"}


TYPED = ["94032a74c02d68c6", "c9a77ec4cee41848"]
"""Their tools have the schema `{}`: it goes out as that of an object."""


def test_recorded_requests_are_encoded_again(rows: list[Row]) -> None:
    bodies = {row["id"]: row["request"] for row in rows if row["request"]}
    assert len(bodies) == 89
    unsupported, other = [], []
    for id_, body in bodies.items():
        try:
            request = request_of(body)
        except Unsupported as part:
            unsupported.append(str(part))
            continue
        sent = encode(MISTRAL, request, model=body["model"], stream=body.get("stream", False))
        made, given = normal(json.loads(sent.body)), normal(body)
        other += [(id_, key) for key in given | made if made.get(key) != given.get(key)]
    assert unsupported == ["document_url"]
    assert other == [(id_, "tools") for id_ in TYPED]
