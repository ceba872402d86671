"""`--tools WHERE`: a catalog from a source that is named; left out, the kit.

Code is imported from the working folder too, and what a Python file imports from beside it; what it
prints goes to stderr: stdout is for what the command says.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from toolcrib import kit
from toolcrib.errors import DefinitionError, MissingExtraError, SourceError
from toolcrib.tools import Catalog, DefinitionsFile, discover, read_definitions, source_of
from toolcrib.values.definition import HasDefinition, ToolDefinition, marks_of_form, own_form

_LISTED = 20


class UnusableError(SourceError):
    """The command line names something that cannot be used."""


class Listed(msgspec.Struct, frozen=True):
    """A definition to choose among: it may have a name or a schema that no provider would take."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


def given_once(where: str | None, tools: str | None) -> str | None:
    """What was named as WHERE or as --tools WHERE."""
    if where is not None and tools is not None:
        raise UnusableError(f"the tools are named twice, {where} and --tools {tools}: choose one")
    return tools if where is None else where


def load_catalog(where: str | None, *, database: Path | None = None) -> Catalog:
    """The tools of a source, or the kit's, which may read a `database`.

    Raises UnusableError if there is nothing to load, DefinitionError for a wrong definition.
    """
    if where is None:
        try:
            return kit.catalog(database=database)
        except SourceError as error:
            raise UnusableError(str(error)) from error
        except MissingExtraError as error:
            raise UnusableError(f"{error}, or name tools of your own: --tools WHERE") from error
    if database is not None:
        raise UnusableError(f"--database is for the kit: leave it out, or --tools {where}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    folder = str(Path(os.path.realpath(where)).parent)
    if where.endswith(".py") and folder not in sys.path:
        sys.path.append(folder)  # last: nothing in it hides a module of Python's own
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = discover(where)
    except SourceError as error:
        raise UnusableError(f"--tools {error}") from error
    if not found:
        raise UnusableError(f"--tools {where}: there are no tools in it")
    return found


def names_to_try(names: Sequence[str], wanted: str) -> str:
    """All names of a small catalog; of a large one those that are like the one that is not there."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    near = difflib.get_close_matches(wanted, names, n=5, cutoff=0.5) or names[:5]
    return f"{', '.join(near)}, … ({len(names):,} in all)"


def load_for_picking(where: str | None) -> tuple[HasDefinition, ...]:
    """Like `load_catalog`; a file of definitions is taken as it is, since nothing of it will run."""
    try:
        source = None if where is None else source_of(where)
        if isinstance(source, DefinitionsFile):
            return tuple(_listed(given, source.name) for given in read_definitions(source.path))
    except SourceError as error:
        raise UnusableError(f"--tools {error}") from error
    return tuple(load_catalog(where))


def _listed(given: Mapping[str, Any], where: str) -> Listed:
    given = own_form(given)
    name, schema = given.get("name"), given.get("input_schema")
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"--tools {where}: a definition has no name")
    try:
        text = orjson.dumps(schema if isinstance(schema, dict) else {}).decode()
    except TypeError:
        raise DefinitionError(
            f"--tools {where}: the schema of {name!r} is nested too deeply, or holds an integer "
            "beyond 64 bits"
        ) from None
    return Listed(
        ToolDefinition(
            name=name,
            description=str(given.get("description") or ""),
            input_schema_json=text,
            annotations=marks_of_form(given),
        )
    )
