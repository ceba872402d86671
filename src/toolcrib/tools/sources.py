"""Load tools from a module, a Python file, a file of definitions, or installed entry points.

`discover` makes one catalog of several sources. A source returns its tools synchronously. A source
that has to start something first (a server) is also an async context manager, entered before it is
passed on. Code is imported and runs, so name only sources that may run here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import msgspec

from toolcrib.errors import CatalogError, DefinitionError, SchemaError, SourceError, ToolcribError
from toolcrib.failures import own_places
from toolcrib.tools.catalog import Catalog, Tools
from toolcrib.tools.component import ATTRIBUTE, Tool
from toolcrib.tools.lock import read_lock
from toolcrib.tools.trust import Trusts
from toolcrib.urls import without_passwords
from toolcrib.values.definition import (
    HasDefinition,
    ImportedForm,
    ToolDefinition,
    mcp_form,
    single_forms,
)
from toolcrib.values.json import refuse_constant, with_unique_keys
from toolcrib.values.typed import Checked, names_wrong_types

# Run another author's code to find its tools.
#
# Whatever it raises, including SystemExit, becomes one SourceError that says where. Exceptions of
# toolcrib pass through.

T = TypeVar("T")
_ENDS_PROGRAM = 'it ends the program when loaded: keep that under `if __name__ == "__main__":`'
FORMS = (
    "module:attribute, a module, a Python file, a .json or .jsonl file of definitions, "
    "or entry-points"
)


def of_module(module: ModuleType, where: str) -> Tools:
    declared = getattr(module, "catalog", None)
    if isinstance(declared, Catalog):
        return declared
    tools = [thing for thing in vars(module).values() if _is_tool(thing)]
    if not tools:
        raise SourceError(f"{where}: no tools in it; decorate them with @tool(visible=…)")
    return list(dict.fromkeys(tools))


def _is_tool(thing: object) -> bool:
    return isinstance(thing, Tool) or (isinstance(thing, type) and ATTRIBUTE in thing.__dict__)


def of_thing(thing: Any, where: str) -> Tools:
    """Return a tool, a list, a Catalog, or what a function returns.

    A plain function that cannot return tools is a tool itself, and is not called.
    """
    if inspect.isroutine(thing) and not _is_tool(thing) and not _gives_tools(thing):
        return [thing]
    if callable(thing) and not _is_tool(thing) and not isinstance(thing, type):
        thing = guarded(thing, where)
    if inspect.iscoroutine(thing):
        thing.close()
        raise SourceError(
            f"{where}: it is async: give a Catalog, or a plain function that returns one"
        )
    if isinstance(thing, Catalog):
        return thing
    if isinstance(thing, type | HasDefinition | ToolDefinition | Mapping):
        return [thing]
    if isinstance(thing, str | bytes) or not isinstance(thing, Iterable):
        raise SourceError(f"{where}: it is not a Catalog, a tool or a list of tools")
    return guarded(lambda: list(thing), where)


_DATA_TYPES = (str, bytes, int, float, Mapping, NoneType)


def _gives_tools(function: Callable[..., Any]) -> bool:
    """Return whether a function may be called for tools.

    It may not if it requires an argument or if its return hint, as far as it can be read, shows
    that it returns data.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some of Python's own have none
        return False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(
        parameter.default is parameter.empty and parameter.kind not in variadic
        for parameter in parameters
    ):
        return False
    try:
        hints = get_type_hints(function)
    except Exception:  # noqa: BLE001  a hint may be any code, or be imported under TYPE_CHECKING
        return True
    return "return" not in hints or not _is_data(hints["return"])


def _is_data(hint: Any) -> bool:
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return all(map(_is_data, arguments))
    if not isinstance(kind, type):
        return False
    # a subclass of tuple is a NamedTuple
    if issubclass(kind, _DATA_TYPES) or (issubclass(kind, tuple) and kind is not tuple):
        return True
    return issubclass(kind, Iterable) and bool(arguments) and _is_data(arguments[0])


def guarded(load: Callable[[], T], where: str, module: str = "") -> T:
    """Run another author's code. Raises SourceError for any exception except toolcrib's own."""
    try:
        return load()
    except ToolcribError:
        raise
    except ModuleNotFoundError as error:
        is_absent = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        path_note = f"{_what_is_there(where)}: " if Path(where).is_file() else ""
        advice = f" ({path_note}give {FORMS})" if is_absent else ""
        raise SourceError(f"{where}: {error}{_location(error)}{advice}") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise SourceError(f"{where}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    try:
        text = str(error).partition("\n")[0]
    except Exception:  # noqa: BLE001  another author's exception may fail even here
        text = ""
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    reason += _location(error)
    return f"{reason} ({_ENDS_PROGRAM})" if isinstance(error, SystemExit) else reason


def _location(error: BaseException) -> str:
    """Return the line that raised, if known, because an import may run thousands of lines."""
    frames = own_places(error.__traceback__)
    # if it ends in `import_module`, no line of the module ran
    is_own_line = frames and not frames[-1].endswith(" in import_module")
    return f", at {frames[-1]}" if is_own_line else ""


if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "toolcrib.tools"
_MODULE_NAME = re.compile(r"(?!\d)\w+(\.(?!\d)\w+)*")


@runtime_checkable
class ToolSource(Protocol):
    """Provides tools; `name` says where they come from, in errors about them.

    Definitions without code that it provides are imported, as those of a server or a file are.
    """

    @property
    def name(self) -> str: ...

    def tools(self) -> Tools:
        """Return anything that a Catalog takes. Raises SourceError, DefinitionError or
        CatalogError."""


Where: TypeAlias = str | Path | ModuleType | ToolSource


@names_wrong_types
def discover(*where: Where, trust: Trusts | None = None, lock: str | Path | None = None) -> Catalog:
    """Return one catalog of the tools of all these sources, in this order.

    Definitions from a file, or from any source that is not Python code, are imported: their tools
    ask and taint the run until `trust` says otherwise (see `Catalog.trusting`). `lock` is the path
    of the lock.

    Each source is a ToolSource, a module, or a string as on the command line: `package.module`,
    `package.module:attribute`, `tools.py`, `tools.json` or `.jsonl`, `entry-points` or
    `entry-points:NAME,NAME`. Raises SourceError for a source that cannot be loaded, DefinitionError
    for an object that is not a tool, and CatalogError, naming both sources, for a name that two of
    them provide.
    """
    catalog = Catalog([_loaded_catalog(source_of(source)) for source in where])
    if not trust:
        return catalog
    return catalog.trusting(trust, lock=None if lock is None else read_lock(lock))


@names_wrong_types
def source_of(where: Where) -> ToolSource:
    """Return the source that is meant. Raises SourceError. Nothing is loaded yet."""
    if isinstance(where, ModuleType):
        return ModuleTools(where)
    if not isinstance(where, str | Path):
        if isinstance(where, ToolSource) and not isinstance(where, type):
            return where
        raise SourceError(f"a {type(where).__name__} is not a source of tools: give {FORMS}")
    return _source_named(str(where))


def _source_named(text: str) -> ToolSource:
    if text.startswith("mcp:"):
        raise SourceError(
            f"{text}: a server has to be started and stopped: async with mcp_catalog(…) as catalog "
            "(toolcrib.bridges.mcp)"
        )
    if text.startswith("openapi:"):
        raise SourceError(
            f"{text}: in a program, use openapi_catalog(…) (toolcrib.bridges.openapi)"
        )
    if "://" in text:
        raise SourceError(
            f"{without_passwords(text)}: nothing is fetched: save it, and name the file; for an MCP "
            "server, write mcp:URL on the command line, or mcp_catalog(URL) in a program"
        )
    if text.lower().endswith((".json", ".jsonl")):
        return DefinitionsFile(Path(text))
    if text.endswith(".py"):
        return PythonFile(Path(text))
    kind, colon, rest = text.partition(":")
    if kind == "entry-points":
        names = tuple(name.strip() for name in rest.split(",") if name.strip())
        if colon and not names:
            raise SourceError(f"{text}: name an entry point after the colon")
        return EntryPoints(names)
    if colon and kind.endswith(".py"):
        raise SourceError(
            f"{text}: name the file alone, to take its `catalog` or every tool in it; to take one of "
            f"them, name its module: MODULE:{rest}"
        )
    if not _MODULE_NAME.fullmatch(kind) or (colon and not _MODULE_NAME.fullmatch(rest)):
        raise SourceError(f"{text!r}: {_what_is_there(text)}: give {FORMS}")
    return ModuleTools(kind, rest or None)


def _what_is_there(text: str) -> str:
    if not text:
        return "it names nothing"
    path = Path(text)
    if path.is_file():
        return f"it is a file, and its name ends in {path.suffix or 'nothing'}, not in .py"
    return "it is a directory" if path.is_dir() else "it is not a source of tools"


class ModuleTools(Checked, msgspec.Struct, frozen=True):
    """A module (or its name) or one `attribute`: a tool, a list, a Catalog, a function for one.

    For a whole module, its `catalog` is used, or else every tool in it, in the order of the file. A
    plain function that requires an argument, or whose return hint shows that it returns data, is a
    tool itself. Any other function is called for tools.
    """

    module: str | ModuleType
    attribute: str | None = None

    @property
    def name(self) -> str:
        name = self.module if isinstance(self.module, str) else self.module.__name__
        return name if self.attribute is None else f"{name}:{self.attribute}"

    def tools(self) -> Tools:
        module = (
            _imported_module(self.module, self.name)
            if isinstance(self.module, str)
            else self.module
        )
        if self.attribute is None:
            return of_module(module, self.name)
        thing: Any = module
        for part in self.attribute.split("."):
            if not hasattr(thing, part):
                raise SourceError(f"{self.name}: the module has no '{self.attribute}'")
            thing = getattr(thing, part)
        return of_thing(thing, self.name)


def _imported_module(module: str, where: str) -> ModuleType:
    return guarded(lambda: importlib.import_module(module), where, module)


class PythonFile(Checked, msgspec.Struct, frozen=True):
    """A `.py` file, which may have the name of a standard module. It is run at each `tools()`."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def tools(self) -> Tools:
        return of_module(_module_of_file(self.path), self.name)


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        what = "it is a directory" if path.is_dir() else "there is no such file"
        raise SourceError(f"{path}: {what}")
    path_digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "replace")).hexdigest()[:12]
    stem = re.sub(r"\W", "_", path.stem)
    name = f"toolcrib_file_{stem}_{path_digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{path}: not a Python file")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[name] = module  # hints are resolved there
    try:
        guarded(lambda: loader.exec_module(module), str(path))
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def module_at(where: str) -> ModuleType:
    """Return the module of a name or of a `.py` file, which is run. Raises SourceError if there is
    none."""
    return _module_of_file(Path(where)) if where.endswith(".py") else _imported_module(where, where)


class DefinitionsFile(Checked, msgspec.Struct, frozen=True):
    """A `.json` or `.jsonl` file, see `read_definitions`. Its tools can be planned, not run."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def tools(self) -> Tools:
        return read_definitions(self.path)


class EntryPoints(Checked, msgspec.Struct, frozen=True):
    """The tools that installed distributions offer in an entry-point group: all, or those in `names`.

    An entry point is anything that `ModuleTools` takes: a tool, a list, a Catalog, a function
    returning one, or a module. Only the named ones are imported, in the order of distribution and
    name.
    """

    names: tuple[str, ...] = ()
    group: str = GROUP

    @property
    def name(self) -> str:
        return ":".join(["entry-points", *([",".join(self.names)] if self.names else [])])

    def tools(self) -> Tools:
        from importlib.metadata import entry_points  # 10 ms that `import toolcrib` need not spend

        entries = sorted(entry_points(group=self.group), key=lambda e: (_distribution(e), e.name))
        missing = set(self.names) - {e.name for e in entries}
        if missing:
            available = ", ".join(dict.fromkeys(e.name for e in entries)) or "none"
            raise SourceError(
                f"{self.name}: no entry point '{min(missing)}' in the group {self.group}; "
                f"there are: {available}"
            )
        return Catalog(
            [
                _loaded_catalog(_EntryPointSource(e))
                for e in entries
                if not self.names or e.name in self.names
            ]
        )


class _EntryPointSource:
    """The tools of one entry point."""

    def __init__(self, entry: EntryPoint) -> None:
        self._entry = entry
        self.name = f"entry point '{entry.name}' of {_distribution(entry)}"

    def tools(self) -> Tools:
        thing = guarded(self._entry.load, f"{self.name} ({self._entry.value})")
        if isinstance(thing, ModuleType):
            return of_module(thing, self.name)
        return of_thing(thing, self.name)


def _distribution(entry: EntryPoint) -> str:
    dist = entry.dist
    return "an unknown distribution" if dist is None else f"{dist.name} {dist.version}"


def _loaded_catalog(source: ToolSource) -> Catalog:
    """Return the tools of one source. Errors about them include the source's name."""
    try:
        imported = not isinstance(
            source, ModuleTools | PythonFile | EntryPoints | _EntryPointSource
        )
        tools = guarded(source.tools, source.name)
        return Catalog(tools, source=source.name, imported=imported)
    except SourceError:
        raise
    except SchemaError as error:
        raise SchemaError(_with_source_name(source, error.message), error.pointer) from error
    except (DefinitionError, CatalogError) as error:
        kind = CatalogError if isinstance(error, CatalogError) else DefinitionError
        raise kind(_with_source_name(source, str(error))) from error


def _with_source_name(source: ToolSource, text: str) -> str:
    """Return a message with the name of its source, unless an entry point has added it already."""
    is_named = source.name in text or isinstance(source, EntryPoints)
    return text if is_named else f"{source.name}: {text}"


# Parse a file of definitions into dictionaries of one form: `{name, description, input_schema, …}`.
#
# Nothing is guessed: a duplicate key, a NaN, or a page that is not the last is refused. Whoever
# wrote the file, its definitions are imported: their tools ask and taint the run until the author
# trusts them. What an MCP server claims of its tools (annotations) can only make them stricter.


@names_wrong_types
def read_definitions(path: str | Path) -> list[ImportedForm]:
    """Return the definitions of a `.json` or `.jsonl` file, as dictionaries that are not checked yet.

    A JSON file holds a list of them, a single one, or a saved MCP `tools/list` result `{"tools":
    [{name, description, inputSchema, …}]}` (also as the `result` of a JSON-RPC response). A JSONL
    file holds one on each line. Gemini's form gives one definition per function. MCP's form is
    converted to toolcrib's: a `/` in names becomes `_`, and other members (title, _meta) are
    dropped. Raises SourceError.
    """
    path = Path(path)
    definitions = _definitions_in(_parsed(path), path)
    for number, definition in enumerate(definitions, start=1):
        if not isinstance(definition, dict):
            raise SourceError(
                f"{path}: definition {number} is a {type(definition).__name__}: "
                "a definition is an object with name and input_schema"
            )
    names: dict[str, str] = {}
    try:
        forms = [form for definition in definitions for form in single_forms(definition)]
    except DefinitionError as error:
        raise SourceError(f"{path}: {error}") from None
    return [_own_form(form, names, path) for form in forms]


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
        return json.loads(text, object_pairs_hook=with_unique_keys, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}: not JSON at line {error.lineno + first - 1}") from None
    except ValueError as error:
        where = f" (line {first})" if path.suffix.lower() == ".jsonl" else ""
        raise SourceError(f"{path}: {error}{where}") from None
    except RecursionError:
        raise SourceError(f"{path}: it is nested too deeply") from None


def _definitions_in(content: Any, path: Path) -> list[Any]:
    """Return the definitions in a file. A listing is recognised by a key that definitions lack."""
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        raise SourceError(
            f"{path}: it holds a {type(content).__name__}: give a list of definitions"
        )
    result = content.get("result")
    listing = result if "jsonrpc" in content and isinstance(result, dict) else content
    if "tools" not in listing or "name" in listing:
        return [listing]
    if not isinstance(listing["tools"], list):
        raise SourceError(f"{path}: its 'tools' is not a list of definitions")
    if listing.get("nextCursor"):
        raise SourceError(
            f"{path}: it is one page of a longer listing: save all pages as one listing"
        )
    return listing["tools"]


def _own_form(definition: Mapping[str, Any], names: dict[str, str], path: Path) -> ImportedForm:
    """Return a definition in toolcrib's form, MCP names without their `/`."""
    form = mcp_form(definition)
    if form is None:  # mixed forms get an error later
        return ImportedForm(definition)
    name, valid_name = definition.get("name"), form.get("name")
    if isinstance(name, str) and isinstance(valid_name, str):
        other_name = names.setdefault(valid_name, name)
        if other_name != name:
            raise SourceError(
                f"{path}: '{other_name}' and '{name}' would both be called '{valid_name}': rename one"
            )
    return form
