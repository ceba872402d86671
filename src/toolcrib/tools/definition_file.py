"""A file of definitions, read into dictionaries of one form: `{name, description, input_schema, …}`.

Nothing is guessed: a duplicate key, a NaN, a page that is not the last, are refused. Whoever wrote the
file, its definitions are imported: their tools ask and taint until the author trusts them. What an MCP
server claims of its tools (annotations) can only make them stricter.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from toolcrib.errors import SourceError
from toolcrib.values.definition import ImportedForm, mcp_form
from toolcrib.values.typed import names_wrong_types


@names_wrong_types
def read_definitions(path: str | Path) -> list[ImportedForm]:
    """The definitions of a `.json` or `.jsonl` file, as dictionaries that are not checked yet.

    A JSON file holds a list of them, a single one, or a saved MCP `tools/list` result
    `{"tools": [{name, description, inputSchema, …}]}` (also as the `result` of a JSON-RPC response);
    a JSONL file one on each line. Those of MCP are put into our form: a `/` in their names becomes `_`,
    what else they hold (title, _meta) is left out. Raises SourceError.
    """
    path = Path(path)
    found = _listed(_parsed(path), path)
    for number, definition in enumerate(found, start=1):
        if not isinstance(definition, dict):
            raise SourceError(
                f"{path}: definition {number} is a {type(definition).__name__}: "
                "a definition is an object with name and input_schema"
            )
    names: dict[str, str] = {}
    return [_own_form(definition, names, path) for definition in found]


def _parsed(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SourceError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise SourceError(f"{path}: it is a directory: name a file in it") from None
    except UnicodeError:
        raise SourceError(f"{path}: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: it cannot be read ({type(error).__name__})") from None
    if path.suffix.lower() != ".jsonl":
        return _loads(text, path)
    lines = enumerate(text.split("\n"), start=1)
    return [_loads(line, path, first=number) for number, line in lines if line.strip()]


def _loads(text: str, path: Path, first: int = 1) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}: not JSON at line {error.lineno + first - 1}") from None
    except ValueError as error:
        where = f" (line {first})" if path.suffix.lower() == ".jsonl" else ""
        raise SourceError(f"{path}: {error}{where}") from None
    except RecursionError:
        raise SourceError(f"{path}: it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {counts.most_common(1)[0][0]!r:.80} appears twice")
    return made


def _not_finite(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _listed(found: Any, path: Path) -> list[Any]:
    """The definitions in it: told from a listing by the key that a listing has and they have not."""
    if isinstance(found, list):
        return found
    if not isinstance(found, dict):
        raise SourceError(f"{path}: it holds a {type(found).__name__}: give a list of definitions")
    result = found.get("result")
    listing = result if "jsonrpc" in found and isinstance(result, dict) else found
    if "tools" not in listing or "name" in listing:
        return [listing]
    if not isinstance(listing["tools"], list):
        raise SourceError(f"{path}: its 'tools' is no list of definitions")
    if listing.get("nextCursor"):
        raise SourceError(f"{path}: it is one page of a longer listing: save all of them as one")
    return listing["tools"]


def _own_form(given: dict[str, Any], names: dict[str, str], path: Path) -> ImportedForm:
    """MCP names may have a `/`; two that become one name cannot both be told apart."""
    made = mcp_form(given)
    if made is None:  # of half the one form and half the other it is said what is wrong
        return ImportedForm(given)
    name, legal = given.get("name"), made.get("name")
    if isinstance(name, str) and isinstance(legal, str):
        other = names.setdefault(legal, name)
        if other != name:
            raise SourceError(
                f"{path}: '{other}' and '{name}' would both be called '{legal}': rename one"
            )
    return made
