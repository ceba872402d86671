"""Make tools of undecorated code: plain functions in a list, and the methods of one object.

Rule: only the model sees the results of a plain function, until its author declares what is
visible.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Unpack

from toolcrib.errors import DefinitionError, no_such
from toolcrib.tools.build import ToolOptions
from toolcrib.tools.component import Tool
from toolcrib.tools.decorator import make_function_tool
from toolcrib.values.definition import All, AnnotationOptions
from toolcrib.values.typed import check_each, check_type

_NOTHING_SHOWN = ToolOptions(visible=(), is_own=True)


def plain_tool(thing: object) -> Tool[..., Any] | None:
    """Return the tool of a plain function or of a bound method, or None for anything else.

    Raises DefinitionError.
    """
    if not inspect.isroutine(thing) or isinstance(getattr(thing, "__wrapped__", None), Tool):
        return None
    return make_function_tool(thing, _NOTHING_SHOWN, {})


def toolset(
    obj: object,
    *,
    prefix: str = "",
    only: Collection[str] = (),
    visible: Sequence[str] | All | Mapping[str, Sequence[str] | All] = (),
    **annotations: Unpack[AnnotationOptions],
) -> list[Tool[..., Any]]:
    """Return the tools of an object: its public methods, or `only` the named ones, sorted by name.

    A tool is named `prefix` plus the name of the method. `visible` says which result fields UI,
    logs and audit may show, for all methods or, in a dictionary, by method name. By default none
    are shown. `annotations` are those of `@tool`, and apply to all methods. Raises DefinitionError
    for a method that cannot be a tool (it has no docstring, or a parameter without a hint), and for
    a name that no method has.
    """
    check_type("prefix", prefix, str, "a str, such as 'shop_'")
    only = check_each("only", only, str, "a list of names of methods")
    _check_possible(obj, annotations)
    methods = dict(_methods(obj))
    kind = type(obj).__name__
    each = visible if isinstance(visible, Mapping) else {}
    for name in (*only, *each):
        if name not in methods:
            raise DefinitionError(f"toolset({kind}): {no_such('method', name, methods)}")
    if not methods:
        raise DefinitionError(f"toolset({kind}): it has no public methods")
    made = []
    for name, method in methods.items():
        if only and name not in only:
            continue
        shown = each.get(name, ()) if isinstance(visible, Mapping) else visible
        options = ToolOptions(
            visible=shown, name=prefix + name, annotations=annotations, is_own=True
        )
        try:
            made.append(make_function_tool(method, options, {}))
        except DefinitionError as error:
            raise DefinitionError(
                f"toolset({kind}): {error}; to leave a method out, name the others: only=[…]"
            ) from None
    return made


def _check_possible(obj: object, options: Mapping[str, object]) -> None:
    """Raise DefinitionError for an object without usable methods, and for an unknown option."""
    if isinstance(obj, type):
        name = obj.__name__
        raise DefinitionError(
            f"toolset({name}): it takes an object of the class: toolset({name}(…))"
        )
    if isinstance(obj, ModuleType):
        raise DefinitionError(
            f"toolset({obj.__name__}): a module has no methods; give its functions in a list"
        )
    if "subprocess" in options:
        raise DefinitionError(
            "toolset: subprocess= is not possible: an object lives in this process; make a tool of a "
            "function at the top of a module: @tool(visible=…, subprocess=True)"
        )
    for name in options:
        if name not in AnnotationOptions.__annotations__:
            known = ("prefix", "only", "visible", *AnnotationOptions.__annotations__)
            raise DefinitionError(
                f"toolset({type(obj).__name__}): {no_such('option', name, known)}"
            )


def _methods(obj: object) -> Iterator[tuple[str, Any]]:
    """Yield the public methods, without evaluating properties."""
    for name, found in inspect.getmembers_static(type(obj)):
        is_method = inspect.isfunction(found) or isinstance(found, classmethod | staticmethod)
        if is_method and not name.startswith("_"):
            yield name, getattr(obj, name)
