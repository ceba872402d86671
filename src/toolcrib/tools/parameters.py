"""What a function takes, as its own code says it, or else as `inspect` does.

A plain function has names, kinds and defaults in its code object: `inspect.signature` reads them
there too, and takes four times as long for what is not needed here.
"""

from __future__ import annotations

import inspect
from inspect import Parameter
from types import FunctionType
from typing import Any, NamedTuple

from toolcrib.errors import DefinitionError

EMPTY: Any = Parameter.empty
POSITIONAL_ONLY: Any = Parameter.POSITIONAL_ONLY
POSITIONAL_OR_KEYWORD: Any = Parameter.POSITIONAL_OR_KEYWORD
VAR_POSITIONAL: Any = Parameter.VAR_POSITIONAL
KEYWORD_ONLY: Any = Parameter.KEYWORD_ONLY
VAR_KEYWORD: Any = Parameter.VAR_KEYWORD


class Taken(NamedTuple):
    """One parameter; `kind` and the `default` EMPTY are those of `inspect.Parameter`."""

    name: str
    kind: Any
    default: Any


def parameters_of(thing: Any) -> list[Taken]:
    """In the order of the signature. Raises DefinitionError where there is none to be read."""
    if thing.__class__ is FunctionType and not thing.__dict__:  # nothing wrapped, or declared
        return _of_code(thing)
    try:
        signature = inspect.signature(thing)
    except (ValueError, TypeError):
        name = getattr(thing, "__qualname__", repr(thing))
        raise DefinitionError(f"{name} has no signature that can be read: wrap it") from None
    return [Taken(p.name, p.kind, p.default) for p in signature.parameters.values()]


def _of_code(function: Any) -> list[Taken]:
    code = function.__code__
    named, alone = code.co_argcount, code.co_kwonlyargcount
    names, last = code.co_varnames, named + alone
    defaults = function.__defaults__ or ()
    given = (EMPTY,) * (named - len(defaults)) + defaults
    kinds = [POSITIONAL_ONLY] * code.co_posonlyargcount
    kinds += [POSITIONAL_OR_KEYWORD] * (named - len(kinds))
    taken = list(map(Taken, names[:named], kinds, given))
    if code.co_flags & inspect.CO_VARARGS:
        taken.append(Taken(names[last], VAR_POSITIONAL, EMPTY))
        last += 1
    by_name = function.__kwdefaults__ or {}
    taken += [
        Taken(name, KEYWORD_ONLY, by_name.get(name, EMPTY)) for name in names[named : named + alone]
    ]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        taken.append(Taken(names[last], VAR_KEYWORD, EMPTY))
    return taken
