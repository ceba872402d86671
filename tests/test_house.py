"""How the code is laid out, where neither a linter nor the type checker can say it.

Rule: one name is one class; what a library keeps to itself is left alone; and what docs/architecture.md
says of the floors and the rooms is what import-linter checks.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from rows import each_row

from toolcrib.clients.transport import open_session

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    if contract["type"] == "layers"
}
LIBRARIES = ("aiohttp",)
"""Those whose classes we subclass, and whose underscore names may change with any release."""


def classes() -> Iterator[tuple[str, str]]:
    """Yield where each class stands, and its name."""
    for path in sorted(SOURCE.rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found := re.match(r"\s*class (\w+)[:(\[]", line):
                yield f"{path.relative_to(SOURCE)}:{number}", found[1]


def layers(contract: str) -> list[set[str]]:
    return [set(line.split(" | ")) for line in CONTRACTS[contract]["layers"]]


def test_all_that_is_logged_goes_through_a_logger_that_never_raises() -> None:
    own = re.compile(r"""getLogger\(["']toolcrib""")
    files = [p for p in sorted(SOURCE.rglob("*.py")) if own.search(p.read_text(encoding="utf-8"))]
    assert files == []


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for place, name in classes():
        places[name].append(place)
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def private_of_libraries() -> dict[str, str]:
    """Return each underscore name that a class of those libraries has, with one class that has it."""
    found: dict[str, str] = {}
    for library in map(importlib.import_module, LIBRARIES):
        for value in vars(library).values():
            if isinstance(value, type) and value.__module__.partition(".")[0] in LIBRARIES:
                found |= {
                    name: value.__qualname__
                    for kind in value.__mro__
                    if kind.__module__.partition(".")[0] in LIBRARIES
                    for name in vars(kind)
                    if name.startswith("_") and not name.startswith("__")
                }
    return found


async def test_no_private_name_of_a_library_is_overridden_or_read() -> None:
    """The source for what is written, and the made connector for what only its base class knows."""
    async with open_session() as session:
        connector = type(session.connector)
        assert connector is not aiohttp.TCPConnector
        assert not {name for name in vars(connector) if re.match(r"_[^_]", name)}
    private = private_of_libraries()
    assert private["_create_connection"].endswith("Connector")  # else the table says nothing
    transport = SOURCE / "toolcrib/clients/transport.py"
    tree = ast.parse(transport.read_text(encoding="utf-8"))
    outside = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in private
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }
    assert outside == set()


@each_row("contract", CONTRACTS)
def test_every_module_has_its_place_in_a_contract(contract: str) -> None:
    told = CONTRACTS[contract]
    assert told["exhaustive"]
    (container,) = told["containers"]
    modules = {
        module.name for module in pkgutil.iter_modules(importlib.import_module(container).__path__)
    }
    assert set.union(*layers(contract)) | set(told.get("exhaustive_ignores", ())) == modules


def test_the_drawing_of_the_floors_is_their_contract() -> None:
    drawing = ARCHITECTURE.partition("```text\n")[2].partition("```")[0]
    assert [set(line.strip().split(" · ")) for line in drawing.splitlines()] == layers("floors")


@pytest.mark.parametrize("room", ["pick", "schema"])
def test_the_rooms_that_are_named_are_there(room: str) -> None:
    """`pick` is told whole; of `schema` what bears the rest."""
    paragraph = ARCHITECTURE.partition(f"Within `{room}`")[2].partition("\n\n")[0]
    there = set.union(*layers(f"rooms of {room}"))
    named = set(re.findall(r"`(\w+)`", paragraph))
    assert named == there if room == "pick" else named - {"$ref"} <= there
