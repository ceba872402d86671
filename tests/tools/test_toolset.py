"""Methods of one object are tools, and so is a plain function in a list; nothing of them is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel
from rows import each_row

from toolcrib import ALL, Agent, Approve, Catalog, Completed, ToolCall, ToolRunner, tool, toolset
from toolcrib.errors import DefinitionError
from toolcrib.testing import MemorySink, ScriptedClient, call


class Shelf(BaseModel):
    name: str


class Shop:
    """A shop."""

    def __init__(self) -> None:
        self.sold: list[int] = []
        self.on_close = print  # what is stored on it is no method

    @property
    def till(self) -> int:
        raise AssertionError("nobody asks for it")

    async def sell(self, n: int) -> dict[str, int]:
        """Sell.

        Args:
            n: How many.
        """
        self.sold.append(n)
        return {"sold": n, "left": 7}

    def look(self, shelf: str) -> str:
        """Look at a shelf."""
        return f"{shelf} is empty"

    @classmethod
    def hours(cls) -> str:
        """Say when it is open."""
        return "9 to 5"

    @staticmethod
    def address() -> str:
        """Say where it is."""
        return "here"

    def _count(self) -> int:
        return len(self.sold)


class Branch(Shop):
    def look(self, shelf: str) -> str:
        """Look at a shelf of the branch."""
        return f"{shelf} is full"


async def total(prices: list[float]) -> float:
    """Add prices up."""
    return sum(prices)


def public(outcome: Any) -> Any:
    assert isinstance(outcome, Completed), outcome
    return outcome.record.result


async def test_the_public_methods_of_an_object_are_tools() -> None:
    shop = Shop()
    made = toolset(shop, prefix="shop_", visible={"sell": ["sold"], "hours": ALL}, safe=False)
    names = [each.definition.name for each in made]
    assert names == ["shop_address", "shop_hours", "shop_look", "shop_sell"]
    assert "How many." in (made[3].definition.input_schema_json or "")
    assert {each.definition.annotations.safe for each in made} == {False}

    async def yes(_request: Any) -> Approve:
        return Approve("ada")

    runner = ToolRunner(made, approver=yes)
    sold = await runner.exec(ToolCall("1", "shop_sell", '{"n": 2}'))
    looked = await runner.exec(ToolCall("2", "shop_look", '{"shelf": "a"}'))
    open_at = await runner.exec(ToolCall("3", "shop_hours", "{}"))
    assert (public(sold), public(looked), public(open_at)) == ({"sold": 2}, None, "9 to 5")
    assert isinstance(looked, Completed)
    assert (looked.value, shop.sold) == ("a is empty", [2])


async def test_only_some_methods_and_those_of_the_class_of_the_object() -> None:
    (look,) = toolset(Branch(), only=["look"])
    assert look.definition.description == "Look at a shelf of the branch."
    assert look.definition.visible == ()


@each_row(
    ("obj", "options", "said"),
    [
        (Shop(), {"only": ["sel"]}, "there is no method 'sel'.* 'sell'"),
        (Shop(), {"visible": {"buy": ALL}}, "there is no method 'buy'"),
        (object(), {}, r"toolset\(object\): it has no public methods"),
        (Shop, {}, r"toolset\(Shop\): it takes an object of the class: toolset\(Shop\(…\)\)"),
        (math, {}, r"toolset\(math\): a module has no methods; give its functions in a list"),
        (Shop(), {"subprocess": True}, "subprocess= is not possible.* at the top of a module"),
        (7, {"only": ["bit_count"]}, "there is no method 'bit_count'"),
        (
            Shop(),
            {"names": ["sell"]},
            r"toolset\(Shop\): there is no option 'names'; .* only, visible",
        ),
    ],
)
def test_what_makes_no_toolset_is_named(obj: object, options: Any, said: str) -> None:
    with pytest.raises((DefinitionError, TypeError), match=said):
        toolset(obj, **options)


def test_a_method_without_a_docstring_is_named_and_how_to_leave_it_out() -> None:
    class Bare:
        def look(self, shelf: str) -> str:
            return shelf

    with pytest.raises(DefinitionError, match=r"look.* leave a method out.* only=\[…\]"):
        toolset(Bare())


async def test_a_plain_function_in_a_list_is_a_tool_of_which_nothing_shows() -> None:
    sink = MemorySink()
    client = ScriptedClient([call("total", prices=[1.5, 2]), call("look", shelf="a"), "Done."])
    agent = Agent(client, ToolRunner([total, Shop().look], sinks=[sink]))
    result = await agent.run("How much?")
    told = [message.content for message in result.messages if message.role == "tool"]
    assert told == ["3.5", "a is empty"]
    assert [record.result for record in sink.finished()] == [None, None]


def test_what_is_no_tool_is_still_named() -> None:
    def no_hints(a, b):  # type: ignore[no-untyped-def]
        """Add."""
        return a + b

    @tool(visible=ALL)
    async def one() -> int:
        """One."""
        return 1

    for thing, said in (
        (no_hints, "no schema"),
        (lambda: 1, "<lambda>"),
        (Shop, r"Shop is no tool: .*; toolset\(Shop\(…\)\) makes tools of its methods"),
        (Shop(), r"Shop is no tool: toolset\(…\) makes tools of an object's methods"),
        (Shop.look, "method without its instance"),
        (len, "len"),
        (7, "int"),
        ("look", r"str is no tool: give the function itself, or discover\(…\)"),
        (math, r"module is no tool: .* discover\(…\)"),
        (Agent(ScriptedClient([])), r"Agent is no tool: convert it with agent.as_tool\(\)"),
        (Shelf(name="a"), r"Shelf is no tool: toolset\(…\)"),  # iterates over its fields
    ):
        with pytest.raises((DefinitionError, TypeError), match=said):
            Catalog([one, thing])
