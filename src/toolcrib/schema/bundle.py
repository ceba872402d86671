"""Combine several schema files into one at build time, with everything they refer to.

Each target of a reference becomes a definition in the first file, once, however often it is
referred to, so files may refer to each other in a circle. The first file keeps its own layout, so
that references to it need no change.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple
from urllib.parse import unquote

import jiter

from toolcrib.errors import SchemaError, SourceError
from toolcrib.schema.guard import MAX_BYTES, MAX_NODES, check_schema, check_shape, schema_text
from toolcrib.schema.references import (
    ROLES,
    Draft,
    Place,
    References,
    Role,
    draft_of,
    pointer_to,
    subschemas,
)
from toolcrib.values.json import JsonObject, json_copy
from toolcrib.values.typed import check_type

# The schema files of one folder, each read once. No reference leads out of the folder or to the
# network.
#
# The check uses the real path, after resolving `..` and links.

MAX_FILES = 200
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MAX_SHOWN = 200


class SchemaFile:
    """One file: `path` is its real location, `shown` its name relative to the folder."""

    __slots__ = ("path", "references", "schema", "shown")

    def __init__(self, path: Path, shown: str, schema: Any) -> None:
        self.path, self.shown, self.schema = path, shown, schema
        self.references = References(schema)

    def error(self, message: str, place: Place = None) -> SchemaError:
        return SchemaError(f"{self.shown}: {message}", pointer_to(place))


class SchemaFiles:
    """The files of the folder `root`, beginning with `main`."""

    def __init__(self, path: Path, root: Path | None) -> None:
        try:
            real_path = path.resolve(strict=True)
            self._root = (path.parent if root is None else root).resolve(strict=True)
        except (OSError, RuntimeError) as error:  # the latter: circular links, before 3.13
            reason = getattr(error, "strerror", None) or "its links form a loop"
            raise SourceError(f"the schema {path} cannot be read: {reason}") from None
        if not real_path.is_relative_to(self._root):
            raise SourceError(f"the schema {path} is outside the root folder {self._root}")
        if not real_path.is_file():
            raise SourceError(f"the schema {path} cannot be read: it is not a file")
        self._files_by_path: dict[Path, SchemaFile] = {}
        self.main = self._load(real_path, None, None)
        if not isinstance(self.main.schema, dict):
            raise self.main.error("a schema to bundle must be a JSON object")

    def follow(self, file: SchemaFile, ref: str, place: Place) -> SchemaFile:
        """Return the file that a `$ref` in another file means. Raises SchemaError naming both."""
        file_reference = ref.partition("#")[0]
        name = unquote(file_reference)
        if _SCHEME.match(name) or name.startswith(("/", "\\")) or "?" in file_reference:
            raise file.error(
                f"$ref {ref[:_MAX_SHOWN]!r} is not a relative path, and nothing is fetched: put a "
                "copy into the folder and refer to it, as in 'other.json#/$defs/x'",
                place,
            )
        try:
            target_path = (file.path.parent / name).resolve()
            is_file = target_path.is_file()
        except (OSError, RuntimeError, ValueError):  # a NUL, an overlong name, circular links
            raise file.error(f"$ref {ref[:_MAX_SHOWN]!r} does not name a file", place) from None
        if not target_path.is_relative_to(self._root):
            raise file.error(
                f"$ref {ref[:_MAX_SHOWN]!r} leads out of the folder: move the file into the "
                "folder, or pass root= to bundle_refs",
                place,
            )
        if not is_file:
            raise file.error(f"$ref {ref[:_MAX_SHOWN]!r}: there is no such file", place)
        return self._files_by_path.get(target_path) or self._load(target_path, file, place)

    def _load(self, path: Path, referrer: SchemaFile | None, place: Place) -> SchemaFile:
        shown = path.relative_to(self._root).as_posix()
        if len(self._files_by_path) >= MAX_FILES:
            raise SchemaError(f"{shown}: the schema refers to more than {MAX_FILES} files")
        try:
            schema = _read(path)
        except OSError as error:
            message = f"{shown} cannot be read: {error.strerror or type(error).__name__}"
            raise (
                SourceError(message) if referrer is None else referrer.error(message, place)
            ) from None
        except ValueError as error:
            raise SchemaError(f"{shown} is not JSON: {error}") from None
        file = SchemaFile(path, shown, schema)
        if not isinstance(schema, bool):
            try:
                check_shape(schema)
            except SchemaError as error:
                raise SchemaError(f"{shown}: {error.message}", error.pointer) from None
        self._files_by_path[path] = file
        return file


def _read(path: Path) -> Any:
    """Parse a file as strict JSON. Raises ValueError, without content of the file, if it is not."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES * 4 + 1)
    if len(content) > MAX_BYTES * 4:
        raise ValueError(f"it is longer than {MAX_BYTES * 4} bytes")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    try:
        return jiter.from_json(
            content.removeprefix(b"\xef\xbb\xbf"), catch_duplicate_keys=True, allow_inf_nan=False
        )
    except ValueError as error:
        message = str(error)
        position = re.search(r"at line \d+ column \d+$", message)
        reason = "a key appears twice" if "duplicate key" in message else "it cannot be parsed"
        raise ValueError(f"{reason} {position[0] if position else ''}".rstrip()) from None


_NOT_ALLOWED_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_SUBSCHEMA_ROLES = frozenset((Role.ONE, Role.MANY, Role.NAMED, Role.PATTERNS, Role.SHELF))


def bundle_refs(path: str | Path, *, root: str | Path | None = None) -> JsonObject:
    """Return the schema in a JSON file (UTF-8), with what it refers to in other local files.

    `$ref`s such as `other.json`, `defs/x.json#/definitions/Y`, `./a.json#anchor` are resolved
    relative to the file that contains them, whatever its `$id`. The definitions are added to
    `$defs` (`definitions` in draft 7) under the last name of their pointer, or the name of their
    file. If that is taken, they get `_2`, `_3` and so on, in the order in which they are met.
    `root` is the folder that no reference may leave; by default the one that the file is in.

    Raises SourceError if the file itself cannot be read, and SchemaError, naming file and pointer,
    for anything else: a reference outside or to nothing, a file that is not JSON, too many files or
    too much text.
    """
    check_type("path", path, (str, Path), "the path of a file, str or Path")
    check_type("root", root, (str, Path, NoneType), "the path of a folder, str or Path, or None")
    files = SchemaFiles(Path(path), None if root is None else Path(root))
    bundled = json_copy(schema_text(_Bundle(files).build()))
    check_schema(bundled)
    return bundled


class _Position(NamedTuple):
    """The position of a copy; `embedded` says that it is below an `$id` that is not its file's."""

    file: SchemaFile
    place: Place
    foreign: bool
    embedded: bool = False

    def step_into(self, key: object) -> _Position:
        return self._replace(place=(self.place, key))


class _Bundle:
    """The definitions so far. The last of them are referred to, but not copied yet."""

    def __init__(self, files: SchemaFiles) -> None:
        self._files, self._main = files, files.main
        self._draft = _draft(files.main, files.main.schema, Draft.D2020)
        self._definitions_keyword = "$defs" if self._draft is Draft.D2020 else "definitions"
        definitions = files.main.schema.get(self._definitions_keyword, {})
        if not isinstance(definitions, dict):
            raise files.main.error(
                f"{self._definitions_keyword} is not an object", (None, self._definitions_keyword)
            )
        self._names: set[str] = set(definitions)
        self._subschema_ids = {id(node) for _, node in subschemas(files.main.schema)}
        # The definitions that are included, by their origin: each one's name, itself, its position.
        self._included: dict[tuple[Path, object], tuple[str, Any, _Position]] = {}
        self._copied_nodes = 0

    def build(self) -> JsonObject:
        bundled: JsonObject = self._rewritten(
            self._main.schema, _Position(self._main, None, foreign=False)
        )
        definitions: dict[str, Any] = {}
        while len(definitions) < len(self._included):  # each copy may include more
            name, node, position = list(self._included.values())[len(definitions)]
            definitions[name] = self._rewritten(node, position)
        if definitions:
            own_definitions: Any = bundled.pop(self._definitions_keyword, {})
            bundled[self._definitions_keyword] = {**own_definitions, **definitions}
        return bundled

    def _rewritten(self, node: Any, position: _Position) -> Any:
        """Return a copy in which each `$ref` points to its target's place in the result."""
        if not isinstance(node, dict):
            return node
        self._copied_nodes += 1 + len(node)
        if self._copied_nodes > MAX_NODES:
            raise SchemaError(f"the files make a schema of more than {MAX_NODES} nodes")
        schema_id = node.get("$id")
        is_top = node is position.file.schema
        if isinstance(schema_id, str) and not schema_id.startswith("#") and not is_top:
            position = position._replace(embedded=True)
        copy = {}
        for key, value in node.items():
            role = ROLES.get(key)
            if role is Role.REF and isinstance(value, str):
                copy[key] = self._reference(key, value, position)
            elif role in _SUBSCHEMA_ROLES:
                if not (position.foreign and role is Role.SHELF):  # nothing refers there any more
                    copy[key] = self._rewritten_value(role, value, position.step_into(key))
            elif position.foreign and role in (Role.ID, Role.ANCHOR, Role.DIALECT):
                # All references to these names have been rewritten, and the names might be taken.
                if key == "$schema":
                    self._check_draft(position.file, {"$schema": value}, position.place)
            else:
                copy[key] = value
        return copy

    def _rewritten_value(self, role: Role | None, value: Any, position: _Position) -> Any:
        if isinstance(value, list):
            return [
                self._rewritten(child, position.step_into(index))
                for index, child in enumerate(value)
            ]
        if role is Role.ONE or not isinstance(value, dict):
            return self._rewritten(value, position)
        return {
            name: self._rewritten(child, position.step_into(name)) for name, child in value.items()
        }

    def _reference(self, keyword: str, ref: str, position: _Position) -> str:
        file, place = position.file, (position.place, keyword)
        name, _, fragment = ref.partition("#")
        if position.embedded:
            raise file.error(f"{keyword} is in a part that has its own $id: remove that $id", place)
        target = self._files.follow(file, ref, place) if name else file
        if keyword == "$dynamicRef":
            if position.foreign or name:
                raise file.error("a $dynamicRef between files cannot be bundled: use $ref", place)
            return ref
        if target is not self._main:
            self._check_draft(target, target.schema)
        node = target.references.resolve(f"#{fragment}")
        if not isinstance(node, dict | bool) or target.references.crosses_id(f"#{fragment}"):
            message = f"$ref {ref[:_MAX_SHOWN]!r} does not lead to a schema in {target.shown}"
            raise file.error(message, place)
        if target is self._main and (isinstance(node, bool) or id(node) in self._subschema_ids):
            return f"#{fragment}"
        return f"#/{self._definitions_keyword}/{self._include(target, node, fragment)}"

    def _include(self, file: SchemaFile, node: Any, fragment: str) -> str:
        key = (file.path, id(node) if isinstance(node, dict) else fragment)
        if key not in self._included:
            last_name = unquote(fragment.rpartition("/")[2]).replace("~1", "/") or file.path.stem
            base_name = _NOT_ALLOWED_IN_NAMES.sub("_", last_name).strip("_") or "schema"
            name, number = base_name, 1
            while name in self._names:
                number += 1
                name = f"{base_name}_{number}"
            self._names.add(name)
            place: Place = None
            for token in fragment.split("/")[1:]:
                place = (place, token)
            self._included[key] = name, node, _Position(file, place, foreign=True)
        return self._included[key][0]

    def _check_draft(self, file: SchemaFile, schema: Any, place: Place = None) -> None:
        draft = _draft(file, schema, self._draft, place)
        if draft is not self._draft:
            raise file.error(
                f"it uses {draft}, but {self._main.shown} uses {self._draft}: use one dialect "
                "in all files",
                (place, "$schema"),
            )


def _draft(file: SchemaFile, schema: Any, default: Draft, place: Place = None) -> Draft:
    try:
        return draft_of(schema if isinstance(schema, dict) else {}, default)
    except SchemaError as error:
        raise file.error(error.message, (place, "$schema")) from None
