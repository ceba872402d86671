"""`Catalog`: tools by name, in the order of registration, with their capabilities bound.

Catalogs are immutable: each method returns a new one. Wherever names are combined or changed, they
are checked again (`Names`): a name can be used only once, and names that could be confused are
refused.
"""

from __future__ import annotations

import difflib
import re
import sys
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast, get_args, get_origin

from toolcrib.errors import BindingError, CatalogError, DefinitionError, did_you_mean, listed
from toolcrib.schema import ValidatorFactory
from toolcrib.schema.portable import check_portable
from toolcrib.tools.build import check_name
from toolcrib.tools.capability import (
    PerCall,
    check_implements,
    check_may_implement,
    interface_name,
    per_run,
)
from toolcrib.tools.component import Tool, tool_of
from toolcrib.tools.decorator import plain_tool, tool_from_dict
from toolcrib.tools.trust import Pins, ReadOnly, Trusted, Trusts
from toolcrib.values.definition import (
    All,
    AnnotationOptions,
    HasDefinition,
    ImportedForm,
    ToolDefinition,
    tools_in,
)
from toolcrib.values.typed import check_each, check_type, got_type, names_wrong_types

# Which implementation goes to which need, for `Catalog.bind` and `Catalog.check_bound`.
#
# A need for `Repo[int]` takes what is bound for exactly that, or else what is bound for `Repo`.


def check_interfaces(capabilities: Mapping[type, object]) -> None:
    """Raise BindingError for a key that is not an interface."""
    if not isinstance(capabilities, Mapping):
        raise BindingError("bind takes a dictionary {Interface: implementation}")
    for interface in capabilities:
        if not isinstance(get_origin(interface) or interface, type):
            raise BindingError(
                f"bind takes {{Interface: implementation}}, and a {type(interface).__name__} is no "
                "interface"
            )


def bound_for(tool: Tool[..., Any], capabilities: Mapping[type, object]) -> dict[type, object]:
    """Return the capabilities that a tool needs, checked. Raises BindingError."""
    bound: dict[type, object] = {}
    for need in tool.needs:
        plain = cast("type", get_origin(need.interface) or need.interface)
        for interface in (need.interface, plain):
            if interface in capabilities:
                implementation = capabilities[interface]
                _check(need.interface, implementation, tool.definition.name)
                bound[need.interface] = implementation
                break
    return bound


def check_all_bound(
    tool: Tool[..., Any], bindings: Mapping[type, object], spare: tuple[type, ...]
) -> None:
    """Raise BindingError for unbound needs, listing the bindings that no tool needs (`spare`)."""
    for need in tool.needs:
        if need.optional or need.interface in bindings:
            continue
        name = interface_name(need.interface)
        unneeded = ", ".join(map(interface_name, spare))
        raise BindingError(
            f"tool '{tool.definition.name}' needs {name} (its parameter '{need.parameter}'): "
            f"bind it with catalog.bind({{{name}: …}}), or give a catalog that has it bound as a "
            f"whole: Catalog([catalog, …]); to give it to each run (deps=), bind({{{name}: per_run}})"
            + (f"; bound, but needed by no tool: {unneeded}" if unneeded else "")
        )


def _check(interface: type, implementation: object, tool: str) -> None:
    if not isinstance(implementation, PerCall):
        check_implements(interface, implementation, tool)
        return
    factory = implementation.factory
    promised_class = _promised_class(factory)
    if promised_class is not None:
        factory_name = getattr(factory, "__qualname__", type(factory).__name__)
        check_may_implement(interface, promised_class, tool, factory_name)


def _promised_class(factory: Any) -> type | None:
    """Return the class that a factory's return hint promises, or None if it promises none."""
    if isinstance(factory, type):
        is_context_manager = hasattr(factory, "__aenter__") or hasattr(factory, "__enter__")
        return None if is_context_manager else factory
    try:
        hint = typing.get_type_hints(factory).get("return", Any)
    except Exception:  # noqa: BLE001  a hint may name anything, and raise anything
        return None
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, _WRAPPERS) and get_args(hint):
        hint = get_args(hint)[-1 if issubclass(origin, Awaitable) else 0]
        origin = get_origin(hint)
    elif hasattr(factory, "__wrapped__") and get_args(hint):  # made by @contextmanager
        hint = get_args(hint)[0]
        origin = get_origin(hint)
    plain = origin or hint
    is_vague = plain in (Any, object) or not isinstance(plain, type) or issubclass(plain, _WRAPPERS)
    return None if is_vague else plain


_WRAPPERS = (Awaitable, AbstractContextManager, AbstractAsyncContextManager)


# Names in one catalog: each is unique, and no two could be confused by a reader or a model.
#
# Two names are confused if they differ only in case, underscores, hyphens and dots (`getUser`,
# `get_user`, `get-user`), which some wires replace, or only in characters that look alike: `I`, `1`
# and `l`; `O`, `0` and `o`. An underscore between two digits counts, since it separates numbers:
# `v1_1` is not `v11`. A small `i` does not look like `l`: `get_mail` is not `get_mall`.

_UNDERSCORES = re.compile(r"(?<![0-9_.-])[_.-]+|[_.-]+(?![0-9_.-])|(?<=[_.-])[_.-]+")
_SEPARATORS = str.maketrans("-.", "__")
_LOOKALIKES = str.maketrans("I10", "llo")


class Names:
    """The names that are taken, and the source of each."""

    __slots__ = ("_seen", "_sources")

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def take(self, name: str, source: str = "") -> None:
        """Take a name. Raises CatalogError, naming both tools and their sources, if it is
        refused."""
        if name in self._sources:
            raise CatalogError(
                f"two tools are called '{name}'{self._sources_note(name, source)}: {_ADVICE}"
            )
        bare = _UNDERSCORES.sub("", name).translate(_SEPARATORS)
        for key in {bare.casefold(), bare.translate(_LOOKALIKES).casefold()}:
            other = self._seen.setdefault(key, name)
            if other != name:
                raise CatalogError(
                    f"'{name}' and '{other}' {_difference(name, other)}"
                    f"{self._sources_note(other, source)}: {_ADVICE}"
                )
        self._sources[name] = source

    def _sources_note(self, other: str, source: str) -> str:
        first = self._sources[other]
        if first == source:
            return f" (both from {source})" if source else ""
        return f" (from {source or 'the application'} and from {first or 'the application'})"


_ADVICE = "rename one, or use .prefixed()"


def _difference(name: str, other: str) -> str:
    if name.casefold() == other.casefold():
        return "differ only in case"
    bare_name, bare_other = (re.sub("[_.-]", "", text.casefold()) for text in (name, other))
    if bare_name == bare_other:
        return "differ only in case and underscores"
    return "look alike"


ToolLike: TypeAlias = HasDefinition | type | Mapping[str, Any]
# Type checkers infer `list[object]` for a list of two different tools, so the items are checked at
# registration: ToolLikes, Catalogs and lists of them.
Tools: TypeAlias = Iterable[Any] | HasDefinition | type
Handlers: TypeAlias = Mapping[str, Callable[..., Any]]
_MARKS_FORM = "a dictionary {name: {'requires_approval': True}}"


class Entry(NamedTuple):
    """A tool with the implementations bound for it, and the source it was found in (or "")."""

    tool: Tool[..., Any]
    bindings: Mapping[type, object] = MappingProxyType({})
    source: str = ""


def _check_by_name(handlers: Handlers, marks: Mapping[str, AnnotationOptions]) -> None:
    check_type("handlers", handlers, Mapping, "a dictionary {name: function}")
    check_type("marks", marks, Mapping, _MARKS_FORM)
    for options in marks.values():
        check_type("marks", options, Mapping, _MARKS_FORM)


def _check_all_used(names: set[str], **options: Mapping[str, object]) -> None:
    for option, by_name in options.items():
        if by_name.keys() - names:
            unknown = ", ".join(
                f"{name}{did_you_mean(str(name), names)}" for name in sorted(by_name.keys() - names)
            )
            raise CatalogError(f"{option} for tools that are not given as dictionaries: {unknown}")


_SHOWN = 10  # names in a catalog's repr


class Catalog:
    """Tools by name; `by_name` has an entry for each. `source` says where they come from, for errors.

    With `imported`, definitions without code count as somebody else's (a server, a file): their
    tools need approval and taint the run, until the author trusts them (`trusting`). Raises
    CatalogError for a name that is taken or too similar to another, DefinitionError for an object
    that is not a tool.
    """

    __slots__ = ("__weakref__", "_entries", "_has_secrets", "_spare", "by_name")

    @names_wrong_types
    def __init__(self, tools: Tools = (), *, source: str = "", imported: bool = False) -> None:
        self._entries = _registered(_entries(tools, imported=imported), source)
        self.by_name: Mapping[str, Entry] = MappingProxyType(self._entries)
        self._spare: tuple[type, ...] = ()  # bound, but needed by no tool
        self._has_secrets: bool | None = None  # not known yet

    @classmethod
    def from_definitions(
        cls,
        definitions: Tools,
        *,
        handlers: Handlers | None = None,
        visible: Sequence[str] | All | Mapping[str, Sequence[str] | All] | None = None,
        marks: Mapping[str, AnnotationOptions] | None = None,
        trust: Trusts | None = None,
        lock: Pins | None = None,
        validator: ValidatorFactory | None = None,
        lazy: bool = False,
    ) -> Catalog:
        """Return a catalog of tools from `{name, description, input_schema, output_schema?}`.

        Dictionaries in the forms of OpenAI, Anthropic, Gemini and MCP are accepted, too. Existing
        tools (a definition, a catalog, decorated code) stay as they are.

        Dictionaries that you pass are treated as your own code: their tools ask only if `marks` say
        so. Content from a file or a server does not become yours by `json.loads`. Read it with
        `read_definitions` or `discover`, whose tools ask until they are trusted.

        Without a handler a tool can be offered and planned, but running it is `not_runnable`. A
        handler is called with the arguments as keywords. It gets no argument that the schema does
        not name, unless the schema explicitly allows others, or a server's tool has a handler that
        takes only `**arguments`.

        `visible` is the allowlist for all of them, or a dictionary of allowlists by name; without
        it none of their results is shown. `marks` are their annotations by name, as `@tool` takes
        them: `{"refund": {"requires_approval": True}}`. Imported tools (`read_definitions`, MCP's
        form) ask whatever their marks say. `trust` and `lock` are as for `trusting`. `validator`
        makes the validators, with `lazy` at the first call.

        Raises DefinitionError, naming the definition, for unknown keys, bad names, marks and
        schemas, and CatalogError for a handler, marks or visible fields of no dictionary's name.
        """
        handlers, marks = handlers or {}, marks or {}
        _check_by_name(handlers, marks)
        frame_locals = sys._getframe(1).f_locals  # noqa: SLF001  hints may name the caller's own types
        tools: list[Any] = []
        names = set[str]()
        for form in tools_in(definitions, whole=Catalog):
            if not isinstance(form, Mapping):
                single = Catalog([form])
                tools.append(
                    single if validator is None else single.validated_by(validator, lazy=lazy)
                )
                continue
            tool = tool_from_dict(
                form,
                handlers,
                visible,
                marks=marks,
                factory=validator,
                lazy=lazy,
                frame_locals=frame_locals,
            )
            tools.append(tool)
            names.add(tool.definition.name)
        visible_by_name = visible if isinstance(visible, Mapping) else {}
        _check_all_used(names, handlers=handlers, marks=marks, visible=visible_by_name)
        catalog = cls(tools)
        return catalog.trusting(trust, lock=lock) if trust else catalog

    def trusting(self, trust: Trusts, *, lock: Pins | None = None) -> Catalog:
        """Return a catalog in which the named imported tools are trusted.

        `{"read_file": ReadOnly()}` trusts the definition whose digest is in `lock` (`read_lock`),
        or that `ReadOnly("sha256:…")` names. If the definition has changed since, the tool is not
        trusted: it asks, as all imported tools not named here do, and a warning is logged. Raises
        CatalogError for a name that is not in the catalog, and DefinitionError for a tool that was
        not imported or has no digest.
        """
        if isinstance(trust, ReadOnly | Trusted):
            kind = type(trust).__name__
            raise TypeError(
                f"trust is given to each tool by name, not as one {kind} for all of them: write "
                f"{{name: {kind}() for name in catalog.names}}, with lock=read_lock(…)"
            )
        check_type("trust", trust, Mapping, "a dictionary {name: ReadOnly()}")
        if lock is not None and not hasattr(lock, "origins"):
            raise TypeError(f"lock must be a result of read_lock(…); {got_type(lock)}")
        self._check_known(tuple(trust))
        return self._of(
            e._replace(tool=e.tool.trusted(trust[name], lock)) if name in trust else e
            for name, e in self._entries.items()
        )

    def validated_by(self, factory: ValidatorFactory, *, lazy: bool = False) -> Catalog:
        """Return a catalog whose arguments and results are checked by validators that `factory` makes.

        They are made now, or at their first use if `lazy`. Raises SchemaError naming the tool.
        """
        return self._of(
            e._replace(tool=e.tool.validated_by(factory, lazy=lazy)) for e in self._entries.values()
        )

    def bind(self, capabilities: Mapping[type, object]) -> Catalog:
        """Give implementations to the tools that need them, replacing earlier ones.

        A value is an implementation, shared by all calls, or `per_call(factory)`. Interfaces that
        no tool here needs are ignored, because one composition root may serve several catalogs.
        Raises BindingError if an implementation lacks a method or cannot be called as declared.
        """
        check_interfaces(capabilities)
        entries = [
            e._replace(bindings={**e.bindings, **bound_for(e.tool, capabilities)})
            for e in self._entries.values()
        ]
        used = {interface for entry in entries for interface in entry.bindings}
        return self._of(entries, spare=tuple(i for i in capabilities if i not in used))

    def check_bound(self) -> None:
        """Raise BindingError, naming tool, interface and parameter, for an unbound need."""
        for entry in self._entries.values():
            check_all_bound(entry.tool, entry.bindings, self._spare)

    def given_each_run(self) -> str:
        """Describe the first need that is bound as `per_run`; "" if there is none."""
        for name, entry in self._entries.items():
            for need in entry.tool.needs:
                if entry.bindings.get(need.interface) is per_run:
                    interface = interface_name(need.interface)
                    return f"tool '{name}' needs {interface} (its parameter '{need.parameter}')"
        return ""

    def demand_portable(self) -> Catalog:
        """Return this catalog if every provider accepts its input schemas.

        Merely doubtful features (a nullable value) are allowed. Raises DefinitionError with the
        tool, JSON Pointer and keyword of anything that some provider refuses.
        """
        problems: list[str] = []
        for name, entry in self._entries.items():
            schema = entry.tool.definition.input_schema
            if schema is None:
                problems.append(f"tool '{name}': it has no schema")
                continue
            problems += (
                f"tool '{name}': {loss.keyword} at {loss.pointer or 'the top'}"
                for loss in check_portable(schema)
                if loss.effect != "doubtful"
            )
        if problems:
            raise DefinitionError(f"not portable: {listed(problems, _SHOWN, '; ')}")
        return self

    def only(self, *names: str) -> Catalog:
        """Return a catalog of the named tools, in the order of registration. Raises
        CatalogError."""
        self._check_known(names)
        wanted = frozenset(names)
        return self._of(e for n, e in self._entries.items() if n in wanted)

    def without(self, *names: str) -> Catalog:
        """Return a catalog without the named tools. Raises CatalogError."""
        self._check_known(names)
        unwanted = frozenset(names)
        return self._of(e for n, e in self._entries.items() if n not in unwanted)

    def where(self, holds: Callable[[ToolDefinition], bool]) -> Catalog:
        """Return the tools whose definition `holds`: `.where(lambda d: "mail" in d.tags)`."""
        if not callable(holds):
            raise TypeError(
                f"holds must be a function that takes a ToolDefinition; {got_type(holds)}"
            )
        return self._of(e for e in self._entries.values() if holds(e.tool.definition))

    def prefixed(self, prefix: str) -> Catalog:
        """Return a catalog with `prefix` before each name, so that two catalogs can be merged."""
        check_type("prefix", prefix, str, "a str")
        renamed = [e._replace(tool=e.tool.renamed(prefix + n)) for n, e in self._entries.items()]
        return self._of(_registered(renamed).values())

    def with_tools(self, *tools: ToolLike | Catalog) -> Catalog:
        return Catalog([self, *tools])

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @property
    def has_secrets(self) -> bool:
        """Whether an argument of any tool is a secret."""
        if self._has_secrets is None:
            self._has_secrets = any(entry.tool.definition.secret for entry in self.entries)
        return self._has_secrets

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
        names = ", ".join(map(repr, islice(self._entries, _SHOWN)))
        more = f", and {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
        return f"Catalog([{names}]{more})"

    def _check_known(self, names: Iterable[str]) -> None:
        check_each("names", names, str, "the names of tools, one by one, such as 'a', 'b'")
        unknown = [name for name in names if name not in self._entries]
        if unknown:
            available = ", ".join(self._entries) or "nothing"
            if len(self._entries) > _SHOWN:
                alike = difflib.get_close_matches(unknown[0], self._entries, n=3)
                available = ", ".join([*alike, f"{len(self._entries)} tools"])
            raise CatalogError(
                f"no tool '{unknown[0]}'{did_you_mean(unknown[0], self._entries)} in this catalog;"
                f" it has {available}"
            )

    def _of(self, entries: Iterable[Entry], spare: tuple[type, ...] | None = None) -> Catalog:
        """Return a catalog of some of these entries, whose names have been checked."""
        catalog = Catalog()
        catalog._entries = {entry.tool.definition.name: entry for entry in entries}
        catalog.by_name = MappingProxyType(catalog._entries)
        catalog._spare = self._spare if spare is None else spare
        return catalog


@names_wrong_types
def as_tools(tools: Tools) -> tuple[HasDefinition, ...]:
    """Return the tools in any accepted form, such as functions, dictionaries, catalogs or lists.

    Raises DefinitionError for anything else.
    """
    return tuple(entry.tool.registered for entry in _entries(tools))


def _registered(entries: Iterable[Entry], source: str = "") -> dict[str, Entry]:
    """Return the tools by name, each name checked alone and against the others."""
    by_name: dict[str, Entry] = {}
    names = Names()
    for entry in entries:
        name = check_name(entry.tool.definition.name)
        names.take(name, entry.source or source)
        by_name[name] = entry if entry.source or not source else entry._replace(source=source)
    return by_name


def _entries(tools: Tools, *, imported: bool = False) -> Iterator[Entry]:
    for thing in tools_in(tools, whole=Catalog):
        if isinstance(thing, Catalog):
            entries = thing.entries
        elif isinstance(thing, Mapping):
            is_own = not imported or isinstance(thing, ImportedForm)
            entries = (Entry(tool_from_dict(thing if is_own else ImportedForm(thing), {}, ())),)
        else:
            entries = (Entry(plain_tool(thing) or tool_of(thing)),)
        yield from map(_imported_entry, entries) if imported else entries


def _imported_entry(entry: Entry) -> Entry:
    """Return the entry, marked as imported if it has no code. Trust in an already imported tool is
    kept."""
    tool = entry.tool
    if tool.runnable or tool.imported is not None:
        return entry
    return entry._replace(tool=tool.brought(tool.definition))
