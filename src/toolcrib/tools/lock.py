"""The lock file: what each tool said of itself when somebody last read it.

A tool that comes from elsewhere can change its description after it was approved ("rug pull",
CVE-2025-54136). A lock holds digests only, one for each part of a definition, so that a change says
which part it is in. Rule: what is not in the lock as it stands was not read by anybody.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from toolcrib.errors import CatalogError, SourceError
from toolcrib.tools.catalog import Catalog
from toolcrib.values.definition import All, ToolDefinition, Visibility
from toolcrib.values.json import JsonValue, digest, json_copy

FORMAT = 1
MARK = "toolcrib_lock"
_NAMED = 8
_MEND = "take it from version control, or write it anew with `toolcrib tools lock`"

Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
ChangeKind: TypeAlias = Literal["added", "removed", "changed"]


class LockedTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`digest` is the definition's own; the others are of its parts, which cover all of it.

    `input_schema` includes the `no_schema_mode` and the defaults that the schema does not tell;
    `annotations` the tags and `strict`; `visibility` is `visible`, `model_visible` and `secret`.
    """

    digest: Digest
    description: Digest
    input_schema: Digest
    output_schema: Digest
    annotations: Digest
    visibility: Digest
    examples: Digest

    def differences(self, other: LockedTool) -> tuple[str, ...]:
        """The parts in which they differ. `digest` alone: the parts agree, the whole does not."""
        if self.digest == other.digest:
            return ()
        parts = [part for part in PARTS if getattr(self, part) != getattr(other, part)]
        return tuple(parts) or ("digest",)


PARTS = tuple(field for field in LockedTool.__struct_fields__ if field != "digest")


class Change(msgspec.Struct, frozen=True):
    """One tool that is not as the lock has it; `parts` for a changed one."""

    tool: str
    kind: ChangeKind
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.tool}: {self.kind}{' in ' if self.parts else ''}{', '.join(self.parts)}"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    toolcrib_lock: int
    tools: dict[str, LockedTool]


class Lock(msgspec.Struct, frozen=True):
    """The tools of a catalog by name, as digests."""

    tools: Mapping[str, LockedTool]

    def to_json(self) -> str:
        """Text that is the same for the same tools in any order; a line for each part."""
        value = {MARK: FORMAT, "tools": msgspec.to_builtins(dict(self.tools))}
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Lock:
        """Raises SourceError, saying what to do, for a torn, foreign or newer text."""
        try:
            value = json.loads(text, object_pairs_hook=_object)
        except json.JSONDecodeError as error:
            raise SourceError(f"the lock is not JSON at line {error.lineno}: {_MEND}") from None
        except (ValueError, RecursionError):
            raise SourceError(f"the lock names something twice, or is no lock: {_MEND}") from None
        if not isinstance(value, dict) or not isinstance(value.get(MARK), int):
            raise SourceError(f"this is no lock of toolcrib: it has no '{MARK}'; {_MEND}")
        if value[MARK] != FORMAT:
            raise SourceError(
                f"the lock has format {value[MARK]}, this toolcrib reads {FORMAT}: "
                "upgrade toolcrib, or write the lock anew with `toolcrib tools lock`"
            )
        try:
            return Lock(msgspec.convert(value, _File).tools)
        except msgspec.ValidationError as error:
            raise SourceError(f"the lock is damaged: {error}; {_MEND}") from None

    def changes(self, catalog: Catalog) -> list[Change]:
        """How the catalog differs from what was locked, sorted by tool."""
        return self.changes_to(lock_catalog(catalog))

    def changes_to(self, new: Lock) -> list[Change]:
        found: list[Change] = []
        for name in sorted(self.tools.keys() | new.tools.keys()):
            before, now = self.tools.get(name), new.tools.get(name)
            if before is None:
                found.append(Change(name, "added"))
            elif now is None:
                found.append(Change(name, "removed"))
            elif parts := before.differences(now):
                found.append(Change(name, "changed", parts))
        return found


def lock_catalog(catalog: Catalog) -> Lock:
    """The lock of what the catalog holds now."""
    definitions = [tool.get_definition() for tool in catalog]
    return Lock({definition.name: _locked(definition) for definition in definitions})


def check_lock(catalog: Catalog, path: str | Path) -> Catalog:
    """The catalog, if each of its tools is as the lock file has it; put it between load and use.

    A tool that is in the lock only is no fault: it reaches no model. Raises CatalogError naming the
    tools and the parts that differ, SourceError for a lock file that is missing or damaged.
    """
    changes = [c for c in read_lock(path).changes(catalog) if c.kind != "removed"]
    if changes:
        raise CatalogError(
            f"tools are not as {path} has them: {_listed(changes)}. Read what changed, then "
            "`toolcrib tools lock` accepts it; do not use them before"
        )
    return catalog


def read_lock(path: str | Path) -> Lock:
    """Raises SourceError, naming the file, if it is missing, unreadable or no whole lock."""
    try:
        return Lock.from_json(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SourceError(
            f"{path}: there is no lock file; `toolcrib tools lock` writes it"
        ) from None
    except UnicodeError:
        raise SourceError(f"{path}: it is not UTF-8 text: {_MEND}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise SourceError(f"{path}: it cannot be read ({why})") from None
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None


def write_lock(lock: Lock, path: str | Path) -> None:
    """Whole or not at all: written beside its place and moved there in one step.

    Raises SourceError if it cannot be written.
    """
    part: Path | None = None
    try:
        target = Path(os.path.realpath(path))  # a link stays one
        handle, name = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".part", dir=target.parent
        )
        part = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(lock.to_json())
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)  # it is kept beside the source, for everybody to read
        part.replace(target)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise SourceError(f"{path}: the lock cannot be written ({why})") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _locked(definition: ToolDefinition) -> LockedTool:
    given = definition
    annotations: JsonValue = msgspec.to_builtins(given.annotations)
    return LockedTool(
        digest=given.digest,
        description=digest(given.description),
        input_schema=digest([given.input_schema, given.no_schema_mode, *_hidden_defaults(given)]),
        output_schema=digest(given.output_schema),
        annotations=digest([annotations, given.tags, given.strict]),
        visibility=digest([_paths(given.visible), _paths(given.model_visible), given.secret]),
        examples=digest([[e.request, e.arguments] for e in given.examples]),
    )


def _hidden_defaults(given: ToolDefinition) -> list[JsonValue]:
    """Nothing for most, so that the digests of locks that were made before stay as they are."""
    return [] if given.defaults_json is None else [json_copy(given.defaults_json)]


def _paths(visible: Visibility | None) -> JsonValue:
    if visible is None:
        return None
    return "*" if isinstance(visible, All) else list(visible)


def _listed(changes: list[Change]) -> str:
    rest = len(changes) - _NAMED
    return "; ".join(map(str, changes[:_NAMED])) + (f"; and {rest} more" if rest > 0 else "")


class _TwiceError(ValueError):
    """A merge may leave two entries for one tool: neither of them is the one that was read."""


def _object(members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in members:
        if key in made:
            raise _TwiceError(key)
        made[key] = value
    return made
