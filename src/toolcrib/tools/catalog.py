"""`Catalog`: tools by name, in the order of registration, with their capabilities bound.

Immutable: each method gives a new catalog. A name is taken once; two that differ only in case would
be confused by a model and by its readers, and are refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from toolcrib.errors import BindingError, CatalogError, DefinitionError
from toolcrib.tools.build import check_name
from toolcrib.tools.capability import check_implements
from toolcrib.tools.component import Tool, tool_of
from toolcrib.tools.definitions import tool_from_dict
from toolcrib.values.definition import All, HasDefinition

ToolLike: TypeAlias = HasDefinition | type | Mapping[str, Any]
# Type checkers infer `list[object]` for a list of two different tools, so what stands in a list is
# checked when it is registered: ToolLikes and Catalogs.
Tools: TypeAlias = Iterable[Any]
Handlers: TypeAlias = Mapping[str, Callable[..., Any]]


class Entry(NamedTuple):
    """A tool with the implementations that were bound for it."""

    tool: Tool[..., Any]
    bindings: Mapping[type, object]


class Catalog:
    """Tools by name. Raises CatalogError for a name that is taken, DefinitionError for no tool."""

    __slots__ = ("_entries",)

    def __init__(self, tools: Tools = ()) -> None:
        if isinstance(tools, Catalog):
            tools = [tools]
        self._entries: dict[str, Entry] = {}
        seen: dict[str, str] = {}
        for entry in _entries(tools):
            name = entry.tool.definition.name
            other = seen.setdefault(name.lower(), name)
            if name in self._entries:
                raise CatalogError(f"two tools are called '{name}': rename one, or use .prefixed()")
            if other != name:
                raise CatalogError(f"'{name}' and '{other}' differ only in case: rename one")
            self._entries[name] = entry

    @classmethod
    def from_definitions(
        cls,
        definitions: Iterable[Mapping[str, Any]],
        *,
        handlers: Handlers | None = None,
        visible: Sequence[str] | All = (),
    ) -> Catalog:
        """Tools from dictionaries `{name, description, input_schema, output_schema?}`.

        Without a handler a tool can be offered and planned, and running it is `not_runnable`. A
        handler is called with the arguments by keyword. `visible` is the allowlist for all of them.
        Raises DefinitionError, naming the definition, for unknown keys, bad names and bad schemas.
        """
        handlers = handlers or {}
        tools = [tool_from_dict(d, handlers, visible) for d in definitions]
        unused = handlers.keys() - {tool.definition.name for tool in tools}
        if unused:
            raise CatalogError(f"handlers for no tool: {', '.join(sorted(unused))}")
        return cls(tools)

    def bind(self, capabilities: Mapping[type, object]) -> Catalog:
        """Give implementations to the tools that need them; one bound before is replaced.

        Raises BindingError if an implementation lacks a method.
        """
        made = []
        for entry in self._entries.values():
            bindings = dict(entry.bindings)
            for need in entry.tool.needs:
                if need.interface in capabilities:
                    implementation = capabilities[need.interface]
                    check_implements(need.interface, implementation, entry.tool.definition.name)
                    bindings[need.interface] = implementation
            made.append(entry._replace(bindings=bindings))
        return self._of(made)

    def check_bound(self) -> None:
        """Raises BindingError, naming tool and interface, for what is not bound."""
        for name, entry in self._entries.items():
            for need in entry.tool.needs:
                if need.interface not in entry.bindings:
                    raise BindingError(
                        f"tool '{name}' needs {need.interface.__name__} (its parameter "
                        f"'{need.parameter}'): catalog.bind({{{need.interface.__name__}: …}})"
                    )

    def only(self, *names: str) -> Catalog:
        """The tools of these names, in the order of registration. Raises CatalogError."""
        self._check_known(names)
        return self._of(e for n, e in self._entries.items() if n in names)

    def without(self, *names: str) -> Catalog:
        self._check_known(names)
        return self._of(e for n, e in self._entries.items() if n not in names)

    def prefixed(self, prefix: str) -> Catalog:
        """The same tools, each called `prefix` and its name."""
        return self._of(
            e._replace(tool=e.tool.renamed(check_name(prefix + n)))
            for n, e in self._entries.items()
        )

    def with_tools(self, *tools: ToolLike | Catalog) -> Catalog:
        return Catalog([self, *tools])

    def entry(self, name: str) -> Entry | None:
        return self._entries.get(name)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def __getitem__(self, name: str) -> HasDefinition:
        self._check_known((name,))
        return self._entries[name].tool.registered

    def __iter__(self) -> Iterator[HasDefinition]:
        return (entry.tool.registered for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __repr__(self) -> str:
        return f"Catalog({list(self._entries)})"

    def _check_known(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self._entries]
        if unknown:
            known = ", ".join(self._entries) or "nothing"
            raise CatalogError(f"no tool '{unknown[0]}' in this catalog; it has {known}")

    @staticmethod
    def _of(entries: Iterable[Entry]) -> Catalog:
        made = Catalog()
        made._entries = {entry.tool.definition.name: entry for entry in entries}
        return made


def as_tools(tools: Tools) -> tuple[HasDefinition, ...]:
    """Anything that takes tools takes these: classes, functions, catalogs, definition dictionaries.

    Raises DefinitionError for what is none of them.
    """
    if isinstance(tools, Catalog):
        return tuple(tools)
    return tuple(entry.tool.registered for entry in _entries(tools))


def _entries(tools: Tools) -> Iterator[Entry]:
    if isinstance(tools, Mapping | str | type) or not isinstance(tools, Iterable):
        raise DefinitionError("tools come as a list or a Catalog, not as a single one")
    for thing in tools:
        if isinstance(thing, Catalog):
            yield from thing.entries
        elif isinstance(thing, Mapping):
            yield Entry(tool_from_dict(thing, {}, ()), {})
        else:
            yield Entry(tool_of(thing), {})
