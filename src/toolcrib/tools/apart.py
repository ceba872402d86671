"""Which functions can run in a process of their own: those that another Python can import.

Nothing of this process goes there but the arguments, as JSON; what cannot be found there by its name,
or needs something that lives here, is refused when it is decorated.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from toolcrib.errors import DefinitionError
from toolcrib.tools.capability import interface_name
from toolcrib.tools.signature import Signature


def check_apart(function: Callable[..., Any], signature: Signature) -> None:
    """Raises DefinitionError, saying what to do, unless `subprocess=True` can be meant for it."""
    found = _obstacle(function, signature)
    if found:
        raise DefinitionError(f"{function.__qualname__}: subprocess=True is not possible: {found}")


def refuse_class(cls: type) -> None:
    """Raises DefinitionError: `run` of a class is async."""
    raise DefinitionError(
        f"{cls.__qualname__}: subprocess=True is not possible: a class tool runs in the event loop; "
        "make a tool of a plain function"
    )


def _obstacle(function: Callable[..., Any], signature: Signature) -> str:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is async, and runs in the event loop; write `def` instead of `async def`"
    if inspect.ismethod(function):
        return "its instance lives in this process; make a tool of a function that makes its own"
    if signature.needs:
        names = ", ".join(interface_name(need.interface) for need in signature.needs)
        return f"{names} is injected, and lives in this process; make it inside of the function"
    if not all(part.isidentifier() for part in function.__qualname__.split(".")):
        return "another process cannot find it; define it by `def` at the top of a module"
    module = sys.modules.get(function.__module__)
    if module is None or (function.__module__ == "__main__" and not hasattr(module, "__file__")):
        return "its module is in no file that another process could load; put it into one"
    return ""
