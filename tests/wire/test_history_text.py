"""What goes into a history as JSON, whatever a provider's state holds."""

from __future__ import annotations

import json

import orjson
import pytest

from toolcrib.errors import RequestError
from toolcrib.wire.history import dumps


def deep(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [{"n": 10**30}, {"n": -(10**20)}, deep(300), {"a": ["é", 1.5]}])
def test_what_is_json_is_written(value: object) -> None:
    assert json.loads(dumps(value)) == value


def test_lone_surrogates_are_replaced() -> None:
    assert json.loads(dumps({"a\ud800": ["\udfff", 10**30]})) == {"a\ufffd": ["\ufffd", 10**30]}


def test_a_fragment_is_written_as_it_stands() -> None:
    assert dumps({"n": 10**30, "said": orjson.Fragment(b'{"a":1}')}).endswith(b'"said":{"a":1}}')


@pytest.mark.parametrize("value", [object(), {"a": object()}, {("a", "b"): 1}])
def test_what_is_none_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match="cannot be sent as JSON"):
        dumps(value)
