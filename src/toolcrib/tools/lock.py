"""The lock file: digests of each tool's definition at the time somebody last read it.

A tool from elsewhere can change its description after it was approved ("rug pull", CVE-2025-54136).
A lock holds only digests, one for each part of a definition, so that a change can be located. Rule:
a definition that is not in the lock unchanged has not been read by anybody.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from toolcrib.errors import CatalogError, SourceError, listed
from toolcrib.schema.guard import schema_text
from toolcrib.storage import replacing
from toolcrib.tools.catalog import Catalog
from toolcrib.tools.trust import ClaimName, Imported, TrustName
from toolcrib.values.definition import All, ToolDefinition, Visibility
from toolcrib.values.json import JsonObject, JsonValue, digest, json_copy, with_unique_keys
from toolcrib.values.typed import names_wrong_types

FORMAT = 3
OPEN_FORMAT = 1  # written while toolcrib left nested objects open
_CLAIMS_FORMAT = 3  # the first with the claims of imported tools
MARK = "toolcrib_lock"
CLOSED_NOW = (
    "the tool is the same: toolcrib now refuses undeclared properties in its nested objects, and pins "
    "the defaults that its schema does not state"
)
CLAIMS_UNKNOWN = (
    "the lock was written by a toolcrib that did not record claims: the tool now claims to read only "
    "(readOnlyHint), and whether it did so then is not known"
)
_CLOSING_KEYWORDS = ("additionalProperties", "unevaluatedProperties")
_MAX_COMBINED = 8  # nested objects to try in all combinations: 256 digests, only at a mismatch
_MAX_NAMED = 8
_ADVICE = "restore it from version control, or write it again with `toolcrib tools lock`"

Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


class LockedTool(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Digests of a definition: `digest` covers all of it, and each of the others one part.

    For an imported tool they belong to the definition before anybody trusts it. `origin` is the
    digest of what was imported, which an author's trust is bound to. `claims` is what the tool's
    publisher claims without anything enforcing it, and `trust` is the author's trust.

    `input_schema` includes the `no_schema_mode` and the defaults that the schema does not state;
    `annotations` includes the tags and `strict`; `examples` includes the `answer`; `visibility`
    covers `visible`, `model_visible` and `secret`.
    """

    digest: Digest
    description: Digest
    input_schema: Digest
    output_schema: Digest
    annotations: Digest
    visibility: Digest
    examples: Digest
    origin: Digest | Literal[""] = ""
    claims: ClaimName | Literal[""] = ""
    trust: TrustName | Literal[""] = ""

    def differences(self, other: LockedTool) -> tuple[str, ...]:
        """Return the parts that differ. `digest` or `origin` alone means that only the whole
        differs."""
        whole_differences = [
            name for name in _WHOLE_DIGESTS if getattr(self, name) != getattr(other, name)
        ]
        if not whole_differences and self.trust == other.trust:
            return ()
        part_differences = [part for part in PARTS if getattr(self, part) != getattr(other, part)]
        return tuple(part_differences or whole_differences)


_WHOLE_DIGESTS = ("digest", "origin")
PARTS = tuple(field for field in LockedTool.__struct_fields__ if field not in _WHOLE_DIGESTS)


class Change(msgspec.Struct, frozen=True):
    """A tool that differs from the lock; a changed one lists its `parts`.

    `closing` is True if the tool is the same and only toolcrib states more of it now: see
    `closing_only`. `unknown_claims` is True if claims are missing only because the lock is too old
    to have them.
    """

    tool: str
    kind: Literal["added", "removed", "changed"]
    parts: tuple[str, ...] = ()
    closing: bool = False
    unknown_claims: bool = False

    def __str__(self) -> str:
        text = f"{self.tool}: {self.kind}{' in ' if self.parts else ''}{', '.join(self.parts)}"
        notes = [CLOSED_NOW] * self.closing + [CLAIMS_UNKNOWN] * self.unknown_claims
        return f"{text} ({'; '.join(notes)})" if notes else text


def closing_only(definition: ToolDefinition, earlier_digest: str) -> bool:
    """Return whether a definition differs from an earlier one only by what is now closed or pinned.

    Earlier versions left nested objects of an input schema open, and did not pin defaults that the
    schema does not state. A digest cannot be reversed, so the objects are opened again in all
    combinations. The one with the earlier digest was the earlier definition.
    """
    for plain in (definition, msgspec.structs.replace(definition, defaults_json=None)):
        if any(opened.digest == earlier_digest for opened in _opened_variants(plain)):
            return True
    return False


def _opened_variants(definition: ToolDefinition) -> Iterator[ToolDefinition]:
    """Yield the definition with nested objects open: all, then combinations of the first few."""
    schema = definition.input_schema
    if schema is None:
        yield definition
        return
    closed = _closed_below(schema)
    first_closed = closed[:_MAX_COMBINED]
    selections = chain(
        [closed],
        *(combinations(first_closed, number) for number in range(len(first_closed), -1, -1)),
    )
    for nodes in selections:
        removed = [(node, node.pop(key)) for node, key in nodes]
        text = schema_text(schema)
        for (node, key), value in zip(nodes, removed, strict=True):
            node[key] = value[1]
        yield msgspec.structs.replace(definition, input_schema_json=text)


def _closed_below(schema: JsonObject) -> list[tuple[JsonObject, str]]:
    """Return the objects below the top that refuse undeclared properties, with their keyword."""
    closed: list[tuple[JsonObject, str]] = []
    pending: list[JsonValue] = list(schema.values())
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            closed += [
                (node, key) for key in _CLOSING_KEYWORDS if key in node and node[key] is False
            ]
            pending += node.values()
    return closed


class _LockFile(msgspec.Struct, forbid_unknown_fields=True):
    toolcrib_lock: int
    tools: dict[str, LockedTool]


class Lock(msgspec.Struct, frozen=True):
    """The tools of a catalog by name, as digests.

    `definitions` are those that the digests were computed from, if the lock was made from a
    catalog; lock files do not contain them. `format` is that of the file it was read from.
    """

    tools: Mapping[str, LockedTool]
    definitions: Mapping[str, ToolDefinition] = msgspec.field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> str:
        """Return text that is the same for the same tools in any order, a line for each part."""
        value = {MARK: FORMAT, "tools": msgspec.to_builtins(dict(self.tools))}
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Lock:
        """Parse a lock. Raises SourceError, saying what to do, for a truncated, foreign or newer
        text."""
        try:
            value = json.loads(text, object_pairs_hook=with_unique_keys)
        except json.JSONDecodeError as error:
            raise SourceError(f"the lock is not JSON at line {error.lineno}: {_ADVICE}") from None
        except (ValueError, RecursionError):
            raise SourceError(
                f"the lock names something twice, or is not a lock: {_ADVICE}"
            ) from None
        if not isinstance(value, dict) or not isinstance(value.get(MARK), int):
            raise SourceError(f"this is not a lock of toolcrib: it has no '{MARK}'; {_ADVICE}")
        if value[MARK] not in range(OPEN_FORMAT, FORMAT + 1):
            raise SourceError(
                f"the lock has format {value[MARK]}, but this toolcrib reads formats up to {FORMAT}: "
                "upgrade toolcrib, or write the lock again with `toolcrib tools lock`"
            )
        try:
            return Lock(msgspec.convert(value, _LockFile).tools, format=value[MARK])
        except msgspec.ValidationError as error:
            raise SourceError(f"the lock is damaged: {error}; {_ADVICE}") from None

    def origins(self) -> frozenset[str]:
        """Return the digests of the imported definitions that were read, for `Catalog.trusting`."""
        return frozenset(locked.origin for locked in self.tools.values() if locked.origin)

    def changes(self, catalog: Catalog) -> list[Change]:
        """Return how the catalog differs from what was locked, sorted by tool."""
        return self.changes_to(lock_catalog(catalog))

    def changes_to(self, new: Lock) -> list[Change]:
        changes: list[Change] = []
        for name in sorted(self.tools.keys() | new.tools.keys()):
            locked, current = self.tools.get(name), new.tools.get(name)
            if locked is None:
                changes.append(Change(name, "added"))
            elif current is None:
                changes.append(Change(name, "removed"))
            elif parts := locked.differences(current):
                definition = new.definitions.get(name) if self.format == OPEN_FORMAT else None
                closing = (
                    definition is not None
                    and locked.digest != current.digest
                    and closing_only(definition, locked.digest)
                )
                unknown_claims = "claims" in parts and self.format < _CLAIMS_FORMAT
                changes.append(Change(name, "changed", parts, closing, unknown_claims))
        return changes


@names_wrong_types
def lock_catalog(catalog: Catalog) -> Lock:
    """Return the lock of the catalog's current tools."""
    tools = {entry.tool.definition.name: entry.tool for entry in catalog.entries}
    definitions = {
        name: tool.definition if tool.imported is None else tool.imported.definition
        for name, tool in tools.items()
    }
    return Lock(
        {n: _locked_tool(definition, tools[n].imported) for n, definition in definitions.items()},
        definitions,
    )


@names_wrong_types
def check_lock(catalog: Catalog, path: str | Path) -> Catalog:
    """Return the catalog if each of its tools matches the lock file. Call it between loading and
    using tools.

    A tool that is only in the lock is no error, because it reaches no model. Raises CatalogError
    naming the tools and the parts that differ, and SourceError for a missing or damaged lock file.
    """
    refuse_changes(
        [change for change in read_lock(path).changes(catalog) if change.kind != "removed"], path
    )
    return catalog


def refuse_changes(changes: list[Change], path: str | Path) -> None:
    """Raise CatalogError for tools that differ from the lock file, if there are any."""
    if changes:
        named = listed([str(change) for change in changes], _MAX_NAMED, "; ")
        raise CatalogError(
            f"the tools differ from {path}: {named}. Review the changes, then accept them "
            "with `toolcrib tools lock`; do not use the tools before"
        )


@names_wrong_types
def read_lock(path: str | Path) -> Lock:
    """Read a lock file. Raises SourceError naming the file if it is missing, unreadable or not a
    complete lock."""
    try:
        return Lock.from_json(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SourceError(
            f"{path}: there is no lock file; `toolcrib tools lock` writes one"
        ) from None
    except UnicodeError:
        raise SourceError(f"{path}: it is not UTF-8 text: {_ADVICE}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise SourceError(f"{path}: it cannot be read ({reason})") from None
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None


@names_wrong_types
def write_lock(lock: Lock, path: str | Path) -> None:
    """Write the file atomically.

    Raises SourceError if it cannot be written, and for a device or a pipe, which is not replaced.
    """
    try:
        target = Path(os.path.realpath(path))  # keep a symbolic link
        if target.exists() and not target.is_file():
            raise SourceError(f"{path}: the lock cannot be written (it is not a regular file)")
        with replacing(target, mode=0o644) as file:  # stored with the source, for everybody
            file.write(lock.to_json().encode())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise SourceError(f"{path}: the lock cannot be written ({reason})") from None


def _locked_tool(definition: ToolDefinition, imported: Imported | None) -> LockedTool:
    # Most tools have no defaults that no schema shows, which keeps the digests of older locks valid.
    defaults = [] if definition.defaults_json is None else [json_copy(definition.defaults_json)]
    annotations = definition.annotations.facts()
    return LockedTool(
        digest=definition.digest,
        description=digest(definition.description),
        input_schema=digest([definition.input_schema, definition.no_schema_mode, *defaults]),
        output_schema=digest(definition.output_schema),
        annotations=digest([annotations, definition.tags, definition.strict]),
        visibility=digest(
            [_paths(definition.visible), _paths(definition.model_visible), definition.secret]
        ),
        examples=digest(
            [
                *([example.request, example.arguments] for example in definition.examples),
                *definition.answer,
            ]
        ),
        origin="" if imported is None else imported.origin,
        claims="" if imported is None else imported.claims,
        trust="" if imported is None else imported.trust,
    )


def _paths(visible: Visibility | None) -> JsonValue:
    if visible is None:
        return None
    return "*" if isinstance(visible, All) else list(visible)
