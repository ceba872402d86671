from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rows import each_row

import toolcrib
from toolcrib import kit
from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.tools import tool_of

TRUSTED = ("current_time", "calculate", "convert_units")  # what they say is ours
ALWAYS = (
    *TRUSTED,
    "list_files",
    "read_file",
    "search_files",
)
NAMES = (*ALWAYS, "get_weather", "describe_database", "query_database")
PARAMETERS = {
    "current_time": {"timezone": "UTC"},
    "calculate": {"expression": None},
    "convert_units": {"value": None, "from_unit": None, "to_unit": None},
    "list_files": {"path": "."},
    "read_file": {"path": None},
    "search_files": {"query": None, "path": "."},
    "get_weather": {"place": None, "days": 3},
    "describe_database": {},
    "query_database": {"sql": None},
}
# The questions that are shown and measured may not have been seen in an example.
HELD_OUT = ("23*17+5", "tokyo", "examples folder")


@each_row(
    ("weather", "database", "names"),
    [
        (None, False, (*ALWAYS, "get_weather")),
        (True, False, (*ALWAYS, "get_weather")),
        (False, False, ALWAYS),
        (False, True, (*ALWAYS, "describe_database", "query_database")),
        (None, True, NAMES),
    ],
)
def test_the_catalog_has_bound_tools(
    tmp_path: Path, weather: bool | None, database: bool, names: tuple[str, ...]
) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    catalog = kit.catalog(tmp_path, weather=weather, database=file if database else None)
    catalog.check_bound()
    assert catalog.names == names


def test_without_the_extra_http_there_is_no_weather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert kit.catalog(tmp_path).names == ALWAYS
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[http\]'"):
        kit.catalog(tmp_path, weather=True)


def test_what_is_exported_is_sorted_and_there() -> None:
    assert kit.__all__ == sorted(kit.__all__)
    assert all(hasattr(kit, name) for name in kit.__all__)


@each_row("name", NAMES)
def test_definition(name: str) -> None:
    definition = tool_of(getattr(kit, name)).definition
    properties: Any = (definition.input_schema or {})["properties"]
    assert {n: p.get("default") for n, p in properties.items()} == PARAMETERS[name]
    assert all(p["description"] for p in properties.values())
    assert definition.description
    assert "Args" not in definition.description
    assert definition.output_schema is not None
    assert definition.visible
    assert definition.tags
    assert definition.annotations.read_only
    assert definition.annotations.idempotent
    assert definition.annotations.safe
    assert definition.annotations.timeout is not None


@each_row("name", NAMES)
def test_examples_are_valid_varied_and_not_those_of_the_measurement(name: str) -> None:
    tool = tool_of(getattr(kit, name))
    examples = tool.definition.examples
    assert tool.validator is not None
    assert len(examples) >= 4
    assert len({e.request for e in examples}) == len(examples)
    for example in examples:
        assert tool.validator.violations(example.arguments) == ()
        text = f"{example.request} {example.arguments_json}".lower()
        assert not any(held in text for held in HELD_OUT)


@each_row("name", NAMES)
def test_what_others_say_taints_a_run(name: str) -> None:
    tainted = tool_of(getattr(kit, name)).definition.annotations.untrusted_output
    assert tainted == (name not in TRUSTED)


@pytest.mark.parametrize("name", ["read_file", "search_files", "query_database"])
def test_contents_do_not_show_in_records(name: str) -> None:
    visible = tool_of(getattr(kit, name)).definition.visible
    assert isinstance(visible, tuple)
    assert not any("text" in path or "rows" in path for path in visible)


@pytest.mark.parametrize("library", ["pint", "simpleeval"])
def test_a_missing_library_is_named_with_its_extra(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[kit\]'"):
        kit.catalog(tmp_path)


def test_a_missing_root_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        kit.catalog(tmp_path / "nowhere")


def test_importing_the_kit_imports_no_library_of_an_extra() -> None:
    libraries = {"aiohttp", "pint", "simpleeval", "yarl"}
    code = f"import sys, toolcrib.kit; print(sorted({libraries} & sys.modules.keys()))"
    source = Path(toolcrib.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(source)},
    )
    assert done.stdout.strip() == "[]"
