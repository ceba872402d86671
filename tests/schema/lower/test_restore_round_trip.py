"""What is valid under the author's schema survives out and back, in every dialect."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from samples import sample
from schema.lower.lower_helpers import check_view, tools

from toolcrib.schema.lower import Dialect, Lowered, accepts_unchanged, lower
from toolcrib.schema.lower.tree import pointers
from toolcrib.schema.portable import PORTABLE
from toolcrib.schema.validator import JsonSchemaValidator
from toolcrib.wire.anthropic import DIALECT as ANTHROPIC
from toolcrib.wire.anthropic import STRICT_DIALECT as ANTHROPIC_STRICT
from toolcrib.wire.cohere import DIALECT as COHERE
from toolcrib.wire.gemini import DIALECT as GEMINI
from toolcrib.wire.ollama import DIALECT as OLLAMA
from toolcrib.wire.openai_chat import DIALECT as OPENAI
from toolcrib.wire.openai_chat import STRICT_DIALECT as OPENAI_STRICT

VERBATIM = Dialect(name="verbatim")  # as servers take schemas that refuse nothing

ALL = (
    VERBATIM,
    OPENAI,
    OPENAI_STRICT,
    ANTHROPIC,
    ANTHROPIC_STRICT,
    OLLAMA,
    GEMINI,
    COHERE,
    PORTABLE,
)
by_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
patient = settings(
    deadline=None,
    max_examples=sample(25),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def effects(lowered: Lowered) -> set[str]:
    return {loss.effect for loss in lowered.losses}


def keeps(back: Any, value: Any) -> bool:
    """Whether all that was said is there; what is there besides are nulls and defaults."""
    if isinstance(value, dict) and isinstance(back, dict):
        return all(keeps(back.get(name), part) for name, part in value.items())
    if isinstance(value, list) and isinstance(back, list):
        return len(back) == len(value) and all(map(keeps, back, value))
    return bool(back == value)


def without_nulls(value: Any) -> Any:
    """The value without nulls: where null is the default, absent and null are the same."""
    if isinstance(value, dict):
        kept = {key: without_nulls(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


@by_dialect
@given(tool=tools())
@patient
def test_a_view_keeps_to_its_dialect_and_leaves_the_schema_alone(
    dialect: Dialect, tool: tuple[Any, Any]
) -> None:
    schema, value = tool
    before = copy.deepcopy(schema)
    assume(JsonSchemaValidator(schema).is_valid(value))
    lowered = lower(schema, dialect)
    assert schema == before
    places = set(pointers(json.loads(json.dumps(schema))).values())
    assert all(loss.pointer in places for loss in lowered.losses)
    assert lower(schema, dialect).schema == lowered.schema
    if "refused" not in effects(lowered):
        check_view(dialect.name, lowered.schema)
        JsonSchemaValidator(lowered.schema)


@by_dialect
@given(tool=tools())
@patient
def test_what_is_valid_survives_out_and_back(dialect: Dialect, tool: tuple[Any, Any]) -> None:
    schema, value = tool
    canonical = JsonSchemaValidator(schema)
    assume(canonical.is_valid(value))
    lowered = lower(schema, dialect)
    assume("refused" not in effects(lowered))
    restorer = lowered.restorer
    before = copy.deepcopy(value)
    sent = restorer.to_view(value) if restorer else value
    back = restorer.restore(copy.deepcopy(sent)) if restorer else sent
    assert value == before
    assert JsonSchemaValidator(lowered.schema).is_valid(sent)
    assert canonical.is_valid(back)
    assert keeps(back, value)
    if restorer:
        assert restorer.to_view(back) == sent
        assert pickle.loads(pickle.dumps(restorer)) == restorer  # noqa: S301 (its own bytes)


@by_dialect
@given(tool=tools())
@patient
def test_what_is_taken_as_it_is_would_be_lowered_to_itself(
    dialect: Dialect, tool: tuple[Any, Any]
) -> None:
    schema, _ = tool
    if accepts_unchanged(schema, dialect) and dialect != VERBATIM:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("toolcrib.schema.lower.walk.accepts_unchanged", lambda *_: False)
            lowered = lower(schema, dialect)
        assert json.dumps(lowered.schema) == json.dumps(schema)
        assert (lowered.losses, lowered.restorer) == ((), None)


@given(tool=tools())
@patient
def test_what_is_valid_already_is_left_as_it_is(tool: tuple[Any, Any]) -> None:
    schema, value = tool
    assume(JsonSchemaValidator(schema).is_valid(value))
    lowered = lower(schema, OPENAI_STRICT)
    if lowered.restorer:
        back = lowered.restorer.restore(value)
        assert back == value or "doubtful" in effects(lowered)
        assert without_nulls(back) == without_nulls(value)
