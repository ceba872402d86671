"""What an author says beside the schema: names, annotations, visibility, secrets, examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    Catalog,
    Completed,
    Deny,
    Failed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolDefinition,
    ToolRunner,
    tool,
)
from toolcrib.errors import DefinitionError
from toolcrib.schema.effort import never_compares_much
from toolcrib.schema.guard import inspect_schema
from toolcrib.tools.build import _is_harmless, check_name
from toolcrib.tools.lock import lock_catalog
from toolcrib.values.decision import Decision
from toolcrib.values.definition import All, Annotations

CANARY = SecretStr("canary")


class Account(BaseModel):
    user: str
    password: SecretStr | None = None


class Tree(BaseModel):
    kids: list[Tree] = []
    account: Account | None = None


def look(
    a: int,
    pin: str = "",
    token: SecretStr | None = None,
    account: Account | None = None,
    trees: dict[str, Tree] | None = None,
) -> dict[str, dict[str, int]]:
    """Look."""
    return {}


def made(**options: Any) -> ToolDefinition:
    return tool(**{"visible": ALL, **options})(look).get_definition()


@each_row("name", ["a", "A_1", "_", "0", "x" * 128, "get_weather"])
def test_names(name: str) -> None:
    assert check_name(name) == name
    assert made(name=name).name == name


def test_annotations_have_the_defaults_of_the_api() -> None:
    annotations = made().annotations
    assert annotations == Annotations()
    assert annotations.safe
    assert not annotations.requires_approval
    assert annotations.timeout is None
    assert (made().tags, made().strict) == ((), None)


def test_annotations_are_kept_as_values() -> None:
    definition = made(
        safe=False,
        read_only=True,
        idempotent=True,
        requires_approval=True,
        threat_level="high",
        allowed_roles=["admin", "clerk"],
        features=["stream"],
        cost=2,
        timeout=1,
        exclusive=True,
        untrusted_output=True,
        tags=["a", "b"],
        strict=False,
    )
    assert definition.annotations == Annotations(
        safe=False,
        read_only=True,
        idempotent=True,
        requires_approval=True,
        threat_level="high",
        allowed_roles=("admin", "clerk"),
        features=("stream",),
        cost=2.0,
        timeout=1.0,
        exclusive=True,
        untrusted_output=True,
    )
    assert (definition.tags, definition.strict) == (("a", "b"), False)
    assert hash(definition.annotations)


@each_row(
    ("given", "kept"),
    [
        ([], ()),
        ((), ()),
        (["any"], ("any",)),
        (("any.thing",), ("any.thing",)),
        (ALL, ALL),
        (All(), ALL),
    ],
)
def test_visibility(given: Sequence[str] | All, kept: tuple[str, ...] | All) -> None:
    for option in ("visible", "model_visible"):
        value = getattr(made(**{option: given}), option)
        assert value == kept or (isinstance(kept, All) and isinstance(value, All))


def test_secrets_are_those_named_and_those_of_secret_types() -> None:
    assert made().secret == ("token", "account", "trees")
    assert made(secret=["pin", "token"]).secret == ("pin", "token", "account", "trees")


def test_a_secrets_default_is_not_told_to_the_model() -> None:
    def open_it(key: SecretStr = CANARY) -> None:
        """Open it."""

    definition = tool(visible=ALL)(open_it).get_definition()
    assert "default" not in (definition.input_schema_json or "")
    assert definition.secret == ("key",)


def test_secrets_are_found_behind_references_that_go_round() -> None:
    schema: Any = {
        "type": "object",
        "$defs": {
            "one": {"properties": {"other": {"$ref": "#/$defs/other"}}},
            "other": {"prefixItems": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/last"}]},
            "last": {"anyOf": [{"$ref": "#/$defs/one"}, {"writeOnly": True}]},
            "round": {"properties": {"again": {"$ref": "#/$defs/round"}}},
        },
        "properties": {"a": {"$ref": "#/$defs/one"}, "pin": {"$ref": "#/$defs/round"}},
        "required": ["a"],
    }

    def short(a: Any, pin: Any = None) -> None:
        """Short."""

    assert tool(visible=ALL, input_schema=schema)(short).get_definition().secret == ("a",)


def test_examples() -> None:
    definition = made(examples=[("look at 3", {"a": 3}), ["look", {"a": 1, "pin": "é"}]])
    assert [(e.request, e.arguments) for e in definition.examples] == [
        ("look at 3", {"a": 3}),
        ("look", {"a": 1, "pin": "é"}),
    ]


def test_marks_are_for_policies_to_read_and_for_nobody_to_change() -> None:
    given: Any = {"pii": True, "owners": ["ada"]}

    @tool(visible=ALL, marks=given)
    def look(a: int) -> int:
        """Look."""
        return a

    given["owners"].append("eve")
    marks = look.definition.annotations.marks
    assert marks == {"pii": True, "owners": ["ada"]}
    marks["pii"] = False
    assert look.definition.annotations.marks["pii"] is True
    assert look.definition.annotations.to_dict()["marks"] == {"pii": True, "owners": ["ada"]}


async def test_a_policy_decides_by_the_marks_of_a_tool() -> None:
    def no_pii(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("pii") if hydrated.definition.annotations.marks.get("pii") else Allow()

    ran: list[str] = []

    def look(name: str) -> None:
        """Look."""
        ran.append(name)

    for name, marks in (("people", {"pii": True}), ("prices", {})):
        subject = tool(visible=ALL, name=name, marks=marks)(look)
        call = ToolCall("c", name, json.dumps({"name": name}))
        outcome = await ToolRunner([subject], policy=no_pii).exec(call)
        assert isinstance(outcome, Failed if marks else Completed)
    assert ran == ["prices"]


def test_marks_are_in_the_digest_and_those_without_keep_theirs() -> None:
    def made(**options: Any) -> Any:
        @tool(visible=ALL, **options)
        def look(a: int) -> int:
            """Look."""
            return a

        return look.definition

    assert made(marks={"pii": True}).digest != made().digest
    assert made(marks={"pii": True}).digest != made(marks={"pii": False}).digest
    assert made(marks={"a": 1, "b": 2}).digest == made(marks={"b": 2, "a": 1}).digest
    assert made(marks={}).digest == made().digest
    assert "marks" not in json.dumps(made().annotations.to_dict())


def test_no_roles_are_said_by_leaving_them_out() -> None:
    """In every place that takes annotations: an empty list would read as nobody, and mean everybody."""
    form = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
    listed = {"name": "look", "inputSchema": {"type": "object"}}
    for given in (form, listed):
        with pytest.raises(DefinitionError, match="leave it out for everybody"):
            Catalog.from_definitions([given], marks={"look": {"allowed_roles": []}})
        absent = Catalog.from_definitions([given])["look"].get_definition()
        assert absent.annotations.allowed_roles == ()
        saved = absent.annotations.to_dict()
        again = Catalog.from_definitions([given], marks={"look": saved})["look"].get_definition()  # type: ignore[dict-item]
        assert again.annotations == absent.annotations
        assert lock_catalog(Catalog([absent])).changes(Catalog([again])) == []
    assert "allowed_roles" in made(allowed_roles=["a"]).annotations.to_dict()
    assert "allowed_roles" not in made().annotations.to_dict()


@each_row("marks", [["pii"], {"x": object()}, {1: 2}, {"x": float("nan")}, 5])
def test_marks_are_json(marks: Any) -> None:
    with pytest.raises(DefinitionError, match="marks is a dictionary of JSON values"):
        tool(visible=ALL, name="look", marks=marks)(lambda: None)


class Rate(Enum):
    LOW = 1.5
    HIGH = 2.5


HINTS = [
    *(Rate, list[Rate], Literal[1, 2], Literal["a", 1], Literal["a"] | None, Literal[True]),
    *(
        dict[str, Rate | None],
        Annotated[float, Field(ge=0.5)],
        list[Annotated[float, Field(lt=1e-300)]],
    ),
    *(Annotated[float, Field(multiple_of=0.1)], Literal['a"],"b'], Account, Tree, int, list[float]),
]


@each_row("hint", HINTS, ids=str)
def test_a_schema_is_spared_an_inspection_only_if_its_constants_cost_nothing(hint: Any) -> None:
    """What is not inspected is not counted, so nothing may be in it that would be."""

    def take(x: Any) -> None:
        """Take."""

    take.__annotations__["x"] = hint
    text = tool(visible=ALL)(take).get_definition().input_schema_json
    assert text is not None
    assert not _is_harmless(text) or never_compares_much(inspect_schema(json.loads(text)))
