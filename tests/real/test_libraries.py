"""Real functions become tools: what is derived compiles, judges real arguments, and runs."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from pydantic_core import to_jsonable_python
from real import of_humanize, of_idna, of_numpy, of_packaging, of_stdlib, there_and_back, told
from real.hinted import Case, Refusal
from rows import each_row

from toolcrib import (
    ALL,
    Catalog,
    Completed,
    Tool,
    ToolCall,
    ToolRunner,
    function_to_tool_definition,
    tool,
)
from toolcrib.errors import DefinitionError
from toolcrib.lint import check_tools
from toolcrib.schema import compile_validator
from toolcrib.wire import FORMS, encode_tools, tool_views

LIBRARIES: Mapping[str, tuple[Case, ...]] = {
    "stdlib": of_stdlib.CASES,
    "humanize": of_humanize.CASES,
    "idna": of_idna.CASES,
    "numpy": of_numpy.CASES,
    "packaging": of_packaging.CASES,
}
REFUSED: Mapping[str, tuple[Refusal, ...]] = {
    "stdlib": of_stdlib.REFUSED,
    "humanize": of_humanize.REFUSED,
    "idna": of_idna.REFUSED,
    "numpy": of_numpy.REFUSED,
    "packaging": of_packaging.REFUSED,
}


def derived(function: Any) -> dict[str, Any]:
    return function_to_tool_definition(function)


def _id(library: str, function: Any) -> str:
    return f"{library}.{function.__name__}"


every_case = each_row(
    "case",
    [
        pytest.param(case, id=_id(n, case.function))
        for n, cases in LIBRARIES.items()
        for case in cases
    ],
)
every_refusal = each_row(
    "refusal",
    [pytest.param(r, id=_id(n, r.function)) for n, found in REFUSED.items() for r in found],
)


@every_case
def test_what_is_derived_is_a_definition_that_compiles(case: Case) -> None:
    made = derived(case.function)
    assert made["name"] == case.function.__name__
    assert made["input_schema"]["type"] == "object"
    assert compile_validator(made["input_schema"]).is_valid(case.arguments)
    assert Catalog.from_definitions([made]).names == (case.function.__name__,)


@every_case
def test_it_takes_no_property_that_the_function_does_not(case: Case) -> None:
    schema = derived(case.function)["input_schema"]
    with_more = {**case.arguments, "nothing_of_that_name": 1}
    assert not compile_validator(schema).is_valid(with_more)


def as_tool(case: Case) -> Tool[..., Any]:
    """With a description of its own only where the library has none."""
    described = inspect.getdoc(case.function)
    return tool(visible=ALL, description=None if described else "It runs.")(case.function)


@every_case
async def test_the_tool_answers_as_the_library_does(case: Case) -> None:
    made = as_tool(case)
    name = made.definition.name
    text = json.dumps(case.arguments)
    outcome = await ToolRunner([made]).exec(ToolCall("call_0", name, text))
    assert isinstance(outcome, Completed), outcome
    assert outcome.value == case.direct()
    assert outcome.model == to_jsonable_python(case.direct())


@every_refusal
def test_what_cannot_be_a_tool_says_which_function_and_where(refusal: Refusal) -> None:
    with pytest.raises(DefinitionError) as caught:
        derived(refusal.function)
    for part in refusal.says:
        assert part in str(caught.value)


@each_row(
    ("library", "documented", "parameters"),
    [
        ("stdlib", 2, 96),
        ("humanize", 26, 33),
        ("idna", 28, 30),
        ("numpy", 50, 50),
        ("packaging", 3, 5),
    ],
)
def test_parameters_get_what_the_docstring_says_of_them(
    library: str, documented: int, parameters: int
) -> None:
    """The standard library's docstrings have no sections: their text is the tool's description."""
    properties = [
        described
        for case in LIBRARIES[library]
        for described in derived(case.function)["input_schema"]["properties"].values()
    ]
    assert len(properties) == parameters
    assert sum("description" in described for described in properties) == documented


@every_case
def test_the_first_paragraph_of_a_docstring_is_whole(case: Case) -> None:
    documented = inspect.getdoc(case.function)
    first = documented.split("\n\n")[0] if documented else ""
    assert derived(case.function)["description"].split("\n\n")[0] == first


@every_case
def test_what_is_said_of_a_parameter_ends_before_the_examples(case: Case) -> None:
    properties = derived(case.function)["input_schema"]["properties"]
    assert not [
        n for n, described in properties.items() if ">>>" in described.get("description", "")
    ]


def test_they_are_fifty_and_more_from_three_libraries_and_more() -> None:
    assert {name: len(cases) for name, cases in LIBRARIES.items()} == {
        "stdlib": 48,
        "humanize": 17,
        "idna": 15,
        "numpy": 17,
        "packaging": 3,
    }


@each_row("strict", [False, True], ids=["plain", "strict"])
@each_row("form", FORMS)
@each_row("library", LIBRARIES)
def test_arguments_go_out_to_a_provider_and_come_back(
    library: str, form: str, strict: bool
) -> None:
    cases = LIBRARIES[library]
    made = [as_tool(case).definition for case in cases]
    offered = [msgspec.structs.replace(definition, strict=strict) for definition in made]
    for case, view in zip(cases, tool_views(form, offered), strict=True):
        there_and_back.check(view, case.arguments)
    assert len(encode_tools(form, offered)) == (1 if form == "gemini" else len(cases))


@each_row("library", LIBRARIES)
def test_no_provider_refuses_them_and_what_is_lost_is_listed(library: str) -> None:
    found = check_tools([as_tool(case) for case in LIBRARIES[library]])
    assert [finding for finding in found if finding.effect == "refused"] == []
    if library != "stdlib" or sys.version_info[:2] == (3, 11):  # others have other docstrings
        told.check(library, told.of_findings(found))
