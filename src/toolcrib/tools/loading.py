"""Running the code of others to find the tools in it.

Whatever it raises, or ends with, becomes one SourceError that says where; what toolcrib raises passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from toolcrib.errors import SourceError, ToolcribError
from toolcrib.tools.catalog import Catalog, Tools
from toolcrib.tools.component import ATTRIBUTE, Tool
from toolcrib.values.definition import HasDefinition, ToolDefinition

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
    """A tool, a list, a Catalog, or a function that gives one; a function is called."""
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
