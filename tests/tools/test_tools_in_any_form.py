"""Every place that takes tools takes them in every form: a table of places by a table of forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rows import each_row

from toolcrib import ALL, Agent, Catalog, Offer, ToolCall, ToolRunner, hydrate, pick_tools, tool
from toolcrib.audit import OpenTelemetry
from toolcrib.clients import OpenAIClient, fallback, request_of
from toolcrib.errors import CatalogError, DefinitionError, ToolcribError
from toolcrib.hydration import repair
from toolcrib.lint import check_tools
from toolcrib.pick import PickOptions, explain_pick
from toolcrib.testing import ScriptedClient, call, openai_server
from toolcrib.tools import as_tools, get_definition
from toolcrib.values.call import Hydrated, Rejected
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import FORMS, WIRES, encode, encode_tools, tool_views

DICTIONARY: dict[str, Any] = {
    "name": "echo",
    "description": "Say it again.",
    "input_schema": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What to say."}},
        "required": ["text"],
        "additionalProperties": False,
    },
}


SCHEMA = DICTIONARY["input_schema"]
BARE = {"name": "echo", "description": "Say it again."}
OPENAI: dict[str, Any] = {
    "type": "function",
    "function": {**BARE, "parameters": SCHEMA, "strict": False},
}
RESPONSES = {"type": "function", **BARE, "parameters": SCHEMA}
ANTHROPIC = {
    "type": "custom",
    **DICTIONARY,
    "cache_control": {"type": "ephemeral"},
    "input_examples": [{"text": "tea"}],
}
GEMINI = {"functionDeclarations": [{**BARE, "parametersJsonSchema": SCHEMA}]}
MCP = {**BARE, "title": "Echo", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}


@tool(visible=ALL)
def echo(text: str) -> str:
    """Say it again.

    Args:
        text: What to say.
    """
    return text


@tool(visible=ALL, name="echo")
class Echo:
    """Say it again."""

    text: str

    def __init__(self, text: str) -> None:
        self.text = text

    async def run(self) -> str:
        return self.text


DEFINITION = get_definition(echo)
MADE = Catalog([echo])

FORMS_OF_TOOLS: dict[str, Callable[[], Any]] = {
    "a function": lambda: echo,
    "a class": lambda: Echo,
    "a definition": lambda: DEFINITION,
    "a dictionary": lambda: DICTIONARY,
    "OpenAI's form": lambda: OPENAI,
    "that of Responses": lambda: RESPONSES,
    "Anthropic's form": lambda: ANTHROPIC,
    "Gemini's form": lambda: GEMINI,
    "MCP's form": lambda: MCP,
    "a list of Anthropic's form": lambda: [ANTHROPIC],
    "a list of Gemini's form": lambda: [GEMINI],
    "a list of MCP's form": lambda: [MCP],
    "a catalog": lambda: MADE,
    "a list of a function": lambda: [echo],
    "a list of a class": lambda: [Echo],
    "a list of a definition": lambda: [DEFINITION],
    "a list of a dictionary": lambda: [DICTIONARY],
    "a list of a catalog": lambda: [MADE],
    "a tuple of a catalog": lambda: (MADE,),
    "a tuple of a dictionary": lambda: (DICTIONARY,),
    "a list of lists": lambda: [[], [[MADE]], ()],
    "a generator": lambda: (thing for thing in [echo]),
    "a catalog of dictionaries": lambda: Catalog.from_definitions([DICTIONARY]),
}


def request(tools: Any) -> ChatRequest:
    return ChatRequest((Message.user("Say tea."),), tools, id_prefix="r_")


CALL = ToolCall("1", "echo", '{"text": "tea"}')


async def planned_by_a_client(tools: Any) -> list[str]:
    async with (
        openai_server([call("echo", text="tea")]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        (made,) = await client.tool_call("Say tea.", tools)
    assert isinstance(made, Hydrated)
    return [made.definition.name]


async def asked_of_a_client(tools: Any) -> list[str]:
    async with (
        openai_server([call("echo", text="tea")]) as server,
        OpenAIClient("m", base_url=server.url) as client,
    ):
        reply = await client.chat(request(tools))
    return [made.name for made in reply.tool_calls]


async def planned_by_a_script(tools: Any) -> list[str]:
    async with fallback([ScriptedClient([call("echo", text="tea")])]) as client:
        return [made.call.name for made in await client.tool_call("Say tea.", tools)]


async def asked_of_a_script(tools: Any) -> list[str]:
    return list((await ScriptedClient(["Tea."]).chat(request(tools))).offer.tools)


async def run_by_an_agent(tools: Any) -> list[str]:
    agent = Agent(ScriptedClient([call("echo", text="tea"), "Tea."]), tools)
    return [record.name for record in (await agent.run("Say tea.")).records]


async def repaired(tools: Any) -> list[str]:
    class Mender:
        name = "mender"

        async def __call__(self, request: object, /) -> str | None:
            return CALL.arguments

    rejected = hydrate(ToolCall("1", "echo", "{"), MADE)
    assert isinstance(rejected, Rejected)
    mended = await repair(rejected, tools, Mender())
    assert isinstance(mended, Hydrated)
    return [mended.definition.name]


def encoded(tools: Any) -> list[str]:
    return [
        name for wire in WIRES for name in encode(wire, request(tools()), model="m").offer.tools
    ]


PLACES: dict[str, Callable[[Any], Any]] = {
    "Catalog": lambda tools: Catalog(tools).names,
    "Catalog.from_definitions": lambda tools: Catalog.from_definitions(tools).names,
    "Catalog.with_tools": lambda tools: Catalog().with_tools(tools).names,
    "ToolRunner": lambda tools: ToolRunner(tools).catalog.names,
    "ToolRunner.with_tools": lambda tools: ToolRunner([]).with_tools(tools).catalog.names,
    "Agent": lambda tools: Agent(ScriptedClient([]), tools).runner.catalog.names,
    "Agent.replace": lambda tools: (
        Agent(ScriptedClient([])).replace(tools=tools).runner.catalog.names
    ),
    "Agent.run": run_by_an_agent,
    "Offer.of": lambda tools: Offer.of(tools).tools,
    "hydrate": lambda tools: [hydrate(CALL, tools).definition.name],  # type: ignore[union-attr]
    "repair": repaired,
    "as_tools": lambda tools: [get_definition(one).name for one in as_tools(tools)],
    "request_of": lambda tools: [one.get_definition().name for one in request_of("?", tools).tools],
    "tool_call of a client": planned_by_a_client,
    "tool_call of a script": planned_by_a_script,
    "chat of a client": asked_of_a_client,
    "chat of a script": asked_of_a_script,
    "check_tools": lambda tools: [f.tool for f in check_tools(tools, ["openai"])] or ["echo"],
}
MANY: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "encode_tools": lambda make: [
        name for form in FORMS for name in _names(encode_tools(form, make()))
    ],
    "tool_views": lambda make: [
        view.definition.name for form in FORMS for view in tool_views(form, make())
    ],
    "encode": encoded,
}


def _names(forms: list[Any]) -> list[str]:
    flat = [one for form in forms for one in form.get("functionDeclarations", [form])]
    return [(one.get("function") or one.get("toolSpec") or one)["name"] for one in flat]


async def _settled(given: Any) -> list[str]:
    return list(await given if isinstance(given, Awaitable) else given)


@each_row("form", FORMS_OF_TOOLS)
@each_row("place", PLACES)
async def test_every_place_takes_every_form(place: str, form: str) -> None:
    assert await _settled(PLACES[place](FORMS_OF_TOOLS[form]())) == ["echo"]


@each_row("form", FORMS_OF_TOOLS)
@each_row("place", MANY)
def test_every_wire_takes_every_form(place: str, form: str) -> None:
    assert set(MANY[place](FORMS_OF_TOOLS[form])) == {"echo"}


@each_row("form", FORMS_OF_TOOLS)
@each_row("quota", [None, {"echo": 1}, lambda name: 1.0])
async def test_tools_are_picked_from_every_form(form: str, quota: Any) -> None:
    options = PickOptions(min_score=0.0, quota=quota)
    for _ in range(2):  # what a tuple holds is found once
        (picked,) = await pick_tools("say it again", FORMS_OF_TOOLS[form](), options)
        assert picked.definition.name == "echo"
    report = await explain_pick("say it again", FORMS_OF_TOOLS[form](), options)
    assert [scored.name for scored in report.scored] == ["echo"]


@each_row("form", FORMS_OF_TOOLS)
def test_telemetry_knows_the_descriptions_of_every_form(form: str) -> None:
    telemetry = OpenTelemetry(tools=FORMS_OF_TOOLS[form]())
    assert list(telemetry._descriptions.values()) == ["Say it again."]


NO_TOOL = r"^give tools, definitions, or a list or Catalog|is no tool: |has no definition$"
NO_TOOLS = ["echo", b"echo", None, 5]
PLACES_OF_ALL: dict[str, Callable[[Any], Any]] = {
    **PLACES,
    "encode_tools": lambda tools: encode_tools("anthropic", tools),
    "tool_views": lambda tools: tool_views("anthropic", tools),
    "pick_tools": lambda tools: pick_tools("say", tools),
    "explain_pick": lambda tools: explain_pick("say", tools),
    "OpenTelemetry": lambda tools: [OpenTelemetry(tools=tools)],
}


@each_row("given", NO_TOOLS)
@each_row("place", sorted(PLACES_OF_ALL.keys() - {"Agent.replace"}))
async def test_what_is_no_tools_is_said_in_one_sentence(place: str, given: Any) -> None:
    if (place, given) == ("check_tools", 5):
        assert [finding.effect for finding in check_tools(given)] == ["refused"]
        return
    with pytest.raises(ToolcribError, match=NO_TOOL):
        await _settled(PLACES_OF_ALL[place](given))


@each_row("given", [["echo"], [5], [None], [[object()]]])
@each_row("place", sorted(PLACES_OF_ALL.keys() - {"check_tools"}))
async def test_what_is_no_tool_in_a_list_is_an_error(place: str, given: Any) -> None:
    with pytest.raises(ToolcribError, match=NO_TOOL):
        await _settled(PLACES_OF_ALL[place](given))


def test_examples_of_anthropics_form_are_those_of_the_tool() -> None:
    (made,) = Catalog.from_definitions(ANTHROPIC)
    assert [one.arguments for one in made.get_definition().examples] == [{"text": "tea"}]
    for tools in (ANTHROPIC, Catalog(ANTHROPIC)):
        (form,) = encode_tools("anthropic", tools)
        assert form["input_examples"] == [{"text": "tea"}]
        assert "cache_control" not in form  # of one request: a setting of the client says it
    with pytest.raises(DefinitionError, match="'echo': the example '' does not fit input_schema"):
        Catalog({**ANTHROPIC, "input_examples": [{"text": 5}]})
    for wrong in ({"text": "tea"}, ["tea"]):
        given = {**ANTHROPIC, "input_examples": wrong}
        for take in (Catalog, Catalog.from_definitions, Offer.of):
            with pytest.raises(DefinitionError, match="'echo' are not a list of objects"):
                take(given)


def test_a_dictionary_of_mcps_form_is_imported() -> None:
    claims = {"readOnlyHint": True, "destructiveHint": True}
    for take in (Catalog, Catalog.from_definitions):
        (made,) = take([{**MCP, "name": "fs/e-c.ho", "annotations": claims}])
        definition = made.get_definition()
        marks = definition.annotations
        assert definition.name == "fs_e-c.ho"
        assert (marks.requires_approval, marks.untrusted_output) == (True, True)
        assert (marks.safe, marks.read_only) == (False, False)


def test_what_is_a_tool_already_stays_it_beside_dictionaries() -> None:
    def other(text: str) -> str:
        return text

    made = Catalog.from_definitions(
        [echo, {**RESPONSES, "name": "other"}],
        handlers={"other": other},
        marks={"other": {"read_only": True}},
        visible=ALL,
    )
    assert made["echo"] is echo
    assert made["other"].get_definition().annotations.read_only
    with pytest.raises(
        CatalogError,
        match=r"handlers for tools that are not given as dictionaries: echo$",
    ):
        Catalog.from_definitions([echo], handlers={"echo": other})
    with pytest.raises(
        CatalogError,
        match=r"marks for tools that are not given as dictionaries: echo$",
    ):
        Catalog.from_definitions([echo], marks={"echo": {"read_only": True}})


def test_a_list_that_holds_itself_ends() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(DefinitionError, match="list is no tool"):
        Catalog(endless)
