"""`--tools WHERE`: a catalog from a module, a Python file or a file of definitions; else the kit."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import orjson

from toolcrib import kit
from toolcrib.errors import DefinitionError, SourceError, ToolcribError
from toolcrib.tools import Catalog, Tool, Tools, tool_of
from toolcrib.tools.component import ATTRIBUTE
from toolcrib.values.definition import HasDefinition, ToolDefinition


class UnusableError(SourceError):
    """The command line names something that cannot be used."""


class Listed(msgspec.Struct, frozen=True):
    """A definition to choose among: it may have a name or a schema that no provider would take."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


def load_catalog(where: str | None) -> Catalog:
    """Raises UnusableError if there is nothing to load, DefinitionError for a wrong definition."""
    if where is None:
        return kit.catalog()
    if _is_definitions(where):
        return Catalog.from_definitions(_read_definitions(Path(where)))
    return _load_python(where)


def load_for_picking(where: str | None) -> tuple[HasDefinition, ...]:
    """Like `load_catalog`; a file of definitions is taken as it is, since nothing of it will run."""
    if where is None or not _is_definitions(where):
        return tuple(load_catalog(where))
    return tuple(_listed(d, where) for d in _read_definitions(Path(where)))


def _is_definitions(where: str) -> bool:
    return where.endswith((".json", ".jsonl"))


def _load_python(where: str) -> Catalog:
    if where.startswith("mcp:"):
        raise UnusableError("tools of MCP servers cannot be loaded yet")
    if where.endswith(".py"):
        return _from_module(_load_file(Path(where)), where)
    name, colon, attribute = where.partition(":")
    if not colon or not attribute:
        raise UnusableError(
            f"--tools {where}: give module:attribute, a Python file, or a .json or .jsonl file"
        )
    module = _import(name, where)
    if not hasattr(module, attribute):
        raise UnusableError(f"--tools {where}: the module has no '{attribute}'")
    return _as_catalog(getattr(module, attribute), where)


def _import(name: str, where: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ToolcribError:
        raise
    except (Exception, SystemExit) as error:
        raise UnusableError(f"--tools {where}: {_reason(error)}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnusableError(f"--tools {path}: there is no such file")
    name = f"toolcrib_file_{path.stem}"  # a file may be called as a module of ours or of Python's
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnusableError(f"--tools {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for what the command says
            spec.loader.exec_module(module)
    except ToolcribError:
        raise
    except (Exception, SystemExit) as error:
        raise UnusableError(f"--tools {path}: {_reason(error)}") from error
    return module


def _from_module(module: ModuleType, where: str) -> Catalog:
    """Its `catalog`, or else every tool that it defines, in the order of the file."""
    ready = getattr(module, "catalog", None)
    if isinstance(ready, Catalog):
        return ready
    found = [thing for thing in vars(module).values() if _is_tool(thing)]
    if not found:
        raise UnusableError(f"--tools {where}: no tools in it; decorate them with @tool(visible=…)")
    return Catalog(list(dict.fromkeys(found)))


def _is_tool(thing: object) -> bool:
    return isinstance(thing, Tool) or (inspect.isclass(thing) and ATTRIBUTE in thing.__dict__)


def _as_catalog(thing: Any, where: str) -> Catalog:
    if callable(thing) and not _is_tool(thing):
        try:
            with contextlib.redirect_stdout(sys.stderr):
                thing = thing()
        except ToolcribError:
            raise
        except (Exception, SystemExit) as error:
            raise UnusableError(f"--tools {where}: {_reason(error)}") from error
    if isinstance(thing, Catalog):
        return thing
    tools: Tools = [thing] if _is_tool(thing) else thing
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UnusableError(f"--tools {where}: it is no Catalog, no tool and no list of tools")
    return Catalog(tool_of(item) if _is_tool(item) else item for item in tools)


def _read_definitions(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UnusableError(f"--tools {path}: there is no such file") from None
    except (OSError, UnicodeError) as error:
        raise UnusableError(f"--tools {path}: it cannot be read ({_reason(error)})") from None
    try:
        found = _parse(text, lines=path.suffix == ".jsonl")
    except json.JSONDecodeError as error:
        raise UnusableError(f"--tools {path}: not JSON at line {error.lineno}") from None
    except RecursionError:
        raise UnusableError(f"--tools {path}: it is nested too deeply") from None
    if not all(isinstance(definition, dict) for definition in found):
        raise UnusableError(f"--tools {path}: a definition is an object with name and input_schema")
    return found


def _parse(text: str, *, lines: bool) -> list[Any]:
    if not lines:
        found = json.loads(text)
        return found if isinstance(found, list) else [found]
    rows: list[Any] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                error.lineno = number
                raise
    return rows


def _listed(given: Mapping[str, Any], where: str) -> Listed:
    name, schema = given.get("name"), given.get("input_schema")
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"--tools {where}: a definition has no name")
    return Listed(
        ToolDefinition(
            name=name,
            description=str(given.get("description") or ""),
            input_schema_json=orjson.dumps(schema if isinstance(schema, dict) else {}).decode(),
        )
    )


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
