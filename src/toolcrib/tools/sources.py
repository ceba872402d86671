"""Where tools come from: a module, a Python file, a file of definitions, installed entry points.

`discover` makes one catalog of several sources. A source gives tools synchronously; one that has to
start something first (a server) is an async context manager too, entered before it is handed over.
Code is imported as it is: name only sources that may run here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from toolcrib.errors import CatalogError, DefinitionError, SchemaError, SourceError, ToolcribError
from toolcrib.tools.catalog import Catalog, Tools
from toolcrib.tools.component import ATTRIBUTE, Tool
from toolcrib.tools.definitions import read_definitions
from toolcrib.tools.lock import read_lock
from toolcrib.tools.trust import Trusts
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.typed import Checked, names_wrong_types

# Running the code of others to find the tools in it.
#
# Whatever it raises, or ends with, becomes one SourceError that says where; what toolcrib raises
# passes.

T = TypeVar("T")
_ENDS = 'it ends the program when loaded: keep that under `if __name__ == "__main__":`'
FORMS = (
    "module:attribute, a module, a Python file, a .json or .jsonl file of definitions, "
    "or entry-points"
)


def of_module(module: ModuleType, where: str) -> Tools:
    ready = getattr(module, "catalog", None)
    if isinstance(ready, Catalog):
        return ready
    found = [thing for thing in vars(module).values() if _is_tool(thing)]
    if not found:
        raise SourceError(f"{where}: no tools in it; decorate them with @tool(visible=…)")
    return list(dict.fromkeys(found))


def _is_tool(thing: object) -> bool:
    return isinstance(thing, Tool) or (isinstance(thing, type) and ATTRIBUTE in thing.__dict__)


def of_thing(thing: Any, where: str) -> Tools:
    """Return a tool, a list, a Catalog, or a function that gives one; a function is called."""
    if callable(thing) and not _is_tool(thing) and not isinstance(thing, type):
        thing = guarded(thing, where)
    if inspect.iscoroutine(thing):
        thing.close()
        raise SourceError(
            f"{where}: it is async: give a Catalog, or a plain function that gives one"
        )
    if isinstance(thing, Catalog):
        return thing
    if isinstance(thing, type | HasDefinition | ToolDefinition | Mapping):
        return [thing]
    if isinstance(thing, str | bytes) or not isinstance(thing, Iterable):
        raise SourceError(f"{where}: it is no Catalog, no tool and no list of tools")
    return guarded(lambda: list(thing), where)


def guarded(load: Callable[[], T], where: str, module: str = "") -> T:
    """Runs code of others. Raises SourceError for whatever it raises, but what toolcrib raises."""
    try:
        return load()
    except ToolcribError:
        raise
    except ModuleNotFoundError as error:
        absent = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        advice = f" (give {FORMS})" if absent else ""
        raise SourceError(f"{where}: {error}{advice}") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise SourceError(f"{where}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    try:
        text = str(error).partition("\n")[0]
    except Exception:  # noqa: BLE001  an exception of others may fail even here
        text = ""
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{reason} ({_ENDS})" if isinstance(error, SystemExit) else reason


if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "GROUP",
    "DefinitionsFile",
    "EntryPoints",
    "ModuleTools",
    "PythonFile",
    "ToolSource",
    "Where",
    "discover",
    "read_definitions",
    "source_of",
]

GROUP = "toolcrib.tools"
_MODULE = re.compile(r"(?!\d)\w+(\.(?!\d)\w+)*")


@runtime_checkable
class ToolSource(Protocol):
    """Gives tools; `name` says where they come from, in the errors about them.

    Definitions without code that it gives are imported, as those of a server or a file are.
    """

    @property
    def name(self) -> str: ...

    def tools(self) -> Tools:
        """Anything that a Catalog takes. Raises SourceError, DefinitionError or CatalogError."""


Where: TypeAlias = str | Path | ModuleType | ToolSource


@names_wrong_types
def discover(*where: Where, trust: Trusts | None = None, lock: str | Path | None = None) -> Catalog:
    """Return one catalog of the tools of all these sources, in this order.

    Definitions that a file or another source than Python's own brings are imported: their tools ask,
    and taint, until `trust` says otherwise: see `Catalog.trusting`, and `lock` is the path of the lock.

    Each is a ToolSource, a module, or text as on the command line: `package.module`,
    `package.module:attribute`, `tools.py`, `tools.json` or `.jsonl`, `entry-points` or
    `entry-points:NAME,NAME`. Raises SourceError for what cannot be loaded, DefinitionError for what
    is no tool, and CatalogError, naming both sources, for a name that two of them give.
    """
    found = Catalog([_loaded(source_of(one)) for one in where])
    if not trust:
        return found
    return found.trusting(trust, lock=None if lock is None else read_lock(lock))


@names_wrong_types
def source_of(where: Where) -> ToolSource:
    """Return the source that is meant. Raises SourceError. Nothing is loaded yet."""
    if isinstance(where, ModuleType):
        return ModuleTools(where)
    if not isinstance(where, str | Path):
        if isinstance(where, ToolSource) and not isinstance(where, type):
            return where
        raise SourceError(f"a {type(where).__name__} is no source of tools: give {FORMS}")
    return _named(str(where))


def _named(text: str) -> ToolSource:
    if text.lower().endswith((".json", ".jsonl")):
        return DefinitionsFile(Path(text))
    if text.endswith(".py"):
        return PythonFile(Path(text))
    if text.startswith("mcp:"):
        raise SourceError(f"{text}: tools of MCP servers cannot be loaded yet")
    kind, colon, rest = text.partition(":")
    if kind == "entry-points":
        names = tuple(name.strip() for name in rest.split(",") if name.strip())
        if colon and not names:
            raise SourceError(f"{text}: name an entry point after the colon")
        return EntryPoints(names)
    if colon and kind.endswith(".py"):
        raise SourceError(
            f"{text}: name the file alone: its `catalog`, or every tool in it, is taken"
        )
    if not _MODULE.fullmatch(kind) or (colon and not _MODULE.fullmatch(rest)):
        what = "it is a directory" if Path(text).is_dir() else "it is no source of tools"
        raise SourceError(f"{text!r}: {what}: give {FORMS}")
    return ModuleTools(kind, rest or None)


class ModuleTools(Checked, msgspec.Struct, frozen=True):
    """A module (or its name), or one `attribute` of it: a tool, a list, a Catalog, a function for one.

    Of a module by itself its `catalog` is taken, or else every tool in it, in the order of the file.
    """

    module: str | ModuleType
    attribute: str | None = None

    @property
    def name(self) -> str:
        name = self.module if isinstance(self.module, str) else self.module.__name__
        return name if self.attribute is None else f"{name}:{self.attribute}"

    def tools(self) -> Tools:
        module = _imported(self.module, self.name) if isinstance(self.module, str) else self.module
        if self.attribute is None:
            return of_module(module, self.name)
        thing: Any = module
        for part in self.attribute.split("."):
            if not hasattr(thing, part):
                raise SourceError(f"{self.name}: the module has no '{self.attribute}'")
            thing = getattr(thing, part)
        return of_thing(thing, self.name)


def _imported(module: str, where: str) -> ModuleType:
    return guarded(lambda: importlib.import_module(module), where, module)


class PythonFile(Checked, msgspec.Struct, frozen=True):
    """A `.py` file, which may be called like a module of Python's own; it is run at each `tools()`."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def tools(self) -> Tools:
        if not self.path.is_file():
            what = "it is a directory" if self.path.is_dir() else "there is no such file"
            raise SourceError(f"{self.path}: {what}")
        where = hashlib.sha256(str(self.path.resolve()).encode("utf-8", "replace")).hexdigest()[:12]
        name = f"toolcrib_file_{self.path.stem.replace('.', '_')}_{where}"
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None or spec.loader is None:
            raise SourceError(f"{self.path}: not a Python file")
        module, loader = importlib.util.module_from_spec(spec), spec.loader
        sys.modules[name] = module  # hints are looked up there
        try:
            guarded(lambda: loader.exec_module(module), self.name)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return of_module(module, self.name)


class DefinitionsFile(Checked, msgspec.Struct, frozen=True):
    """A `.json` or `.jsonl` file, see `read_definitions`. Its tools can be planned, not run."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def tools(self) -> Tools:
        return read_definitions(self.path)


class EntryPoints(Checked, msgspec.Struct, frozen=True):
    """Loads the tools that installed distributions offer in an entry-point group: all, or by `names`.

    An entry point is what `ModuleTools` takes: a tool, a list, a Catalog, a function that gives one,
    or a module. Only the named ones are imported; they come in the order of distribution and name.
    """

    names: tuple[str, ...] = ()
    group: str = GROUP

    @property
    def name(self) -> str:
        return ":".join(["entry-points", *([",".join(self.names)] if self.names else [])])

    def tools(self) -> Tools:
        from importlib.metadata import entry_points  # 10 ms, which `import toolcrib` need not pay

        found = sorted(entry_points(group=self.group), key=lambda e: (_distribution(e), e.name))
        missing = set(self.names) - {e.name for e in found}
        if missing:
            known = ", ".join(dict.fromkeys(e.name for e in found)) or "none"
            raise SourceError(
                f"{self.name}: no entry point '{min(missing)}' in the group {self.group}; "
                f"there are: {known}"
            )
        return Catalog(
            [_loaded(_Installed(e)) for e in found if not self.names or e.name in self.names]
        )


class _Installed:
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


def _loaded(source: ToolSource) -> Catalog:
    """Return the tools of one source; whatever is wrong with one of them is
    said with the source's name."""
    try:
        imported = not isinstance(source, ModuleTools | PythonFile | EntryPoints | _Installed)
        tools = guarded(source.tools, source.name)
        return Catalog(tools, source=source.name, imported=imported)
    except SourceError:
        raise
    except SchemaError as error:
        raise SchemaError(_located(source, error.message), error.pointer) from error
    except (DefinitionError, CatalogError) as error:
        kind = CatalogError if isinstance(error, CatalogError) else DefinitionError
        raise kind(_located(source, str(error))) from error


def _located(source: ToolSource, text: str) -> str:
    """Return a text with its source, which an entry point has named already."""
    said = source.name in text or isinstance(source, EntryPoints)
    return text if said else f"{source.name}: {text}"
