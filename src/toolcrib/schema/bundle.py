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
_SHOWN = 200


class SchemaFile:
    """One file: `path` is its real location, `shown` its name relative to the folder."""

    __slots__ = ("path", "references", "schema", "shown")

    def __init__(self, path: Path, shown: str, schema: Any) -> None:
        self.path, self.shown, self.schema = path, shown, schema
        self.references = References(schema)

    def error(self, what: str, place: Place = None) -> SchemaError:
        return SchemaError(f"{self.shown}: {what}", pointer_to(place))


class SchemaFiles:
    """The files of the folder `root`, beginning with `main`."""

    def __init__(self, path: Path, root: Path | None) -> None:
        try:
            found = path.resolve(strict=True)
            self._root = (path.parent if root is None else root).resolve(strict=True)
        except (OSError, RuntimeError) as error:  # the latter: circular links, before 3.13
            reason = getattr(error, "strerror", None) or "its links form a loop"
            raise SourceError(f"the schema {path} cannot be read: {reason}") from None
        if not found.is_relative_to(self._root):
            raise SourceError(f"the schema {path} is outside the root folder {self._root}")
        if not found.is_file():
            raise SourceError(f"the schema {path} cannot be read: it is not a file")
        self._read: dict[Path, SchemaFile] = {}
        self.main = self._load(found, None, None)
        if not isinstance(self.main.schema, dict):
            raise self.main.error("a schema to bundle must be a JSON object")

    def follow(self, file: SchemaFile, ref: str, place: Place) -> SchemaFile:
        """Return the file that a `$ref` in another file means. Raises SchemaError naming both."""
        written = ref.partition("#")[0]
        name = unquote(written)
        if _SCHEME.match(name) or name.startswith(("/", "\\")) or "?" in written:
            raise file.error(
                f"$ref {ref[:_SHOWN]!r} is not a relative path, and nothing is fetched: put a "
                "copy into the folder and refer to it, as in 'other.json#/$defs/x'",
                place,
            )
        try:
            found = (file.path.parent / name).resolve()
            is_file = found.is_file()
        except (OSError, RuntimeError, ValueError):  # a NUL, an overlong name, circular links
            raise file.error(f"$ref {ref[:_SHOWN]!r} does not name a file", place) from None
        if not found.is_relative_to(self._root):
            raise file.error(
                f"$ref {ref[:_SHOWN]!r} leads out of the folder: move the file into the "
                "folder, or pass root= to bundle_refs",
                place,
            )
        if not is_file:
            raise file.error(f"$ref {ref[:_SHOWN]!r}: there is no such file", place)
        return self._read.get(found) or self._load(found, file, place)

    def _load(self, path: Path, by: SchemaFile | None, place: Place) -> SchemaFile:
        shown = path.relative_to(self._root).as_posix()
        if len(self._read) >= MAX_FILES:
            raise SchemaError(f"{shown}: the schema refers to more than {MAX_FILES} files")
        try:
            schema = _read(path)
        except OSError as error:
            text = f"{shown} cannot be read: {error.strerror or type(error).__name__}"
            raise SourceError(text) if by is None else by.error(text, place) from None
        except ValueError as error:
            raise SchemaError(f"{shown} is not JSON: {error}") from None
        made = SchemaFile(path, shown, schema)
        if not isinstance(schema, bool):
            try:
                check_shape(schema)
            except SchemaError as error:
                raise SchemaError(f"{shown}: {error.message}", error.pointer) from None
        self._read[path] = made
        return made


def _read(path: Path) -> Any:
    """Parse a file as strict JSON. Raises ValueError, without content of the file, if it is not."""
    with path.open("rb") as opened:
        data = opened.read(MAX_BYTES * 4 + 1)
    if len(data) > MAX_BYTES * 4:
        raise ValueError(f"it is longer than {MAX_BYTES * 4} bytes")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    try:
        return jiter.from_json(
            data.removeprefix(b"\xef\xbb\xbf"), catch_duplicate_keys=True, allow_inf_nan=False
        )
    except ValueError as error:
        what = str(error)
        where = re.search(r"at line \d+ column \d+$", what)
        known = "a key appears twice" if "duplicate key" in what else "it cannot be parsed"
        raise ValueError(f"{known} {where[0] if where else ''}".rstrip()) from None


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_HOLDS = frozenset((Role.ONE, Role.MANY, Role.NAMED, Role.PATTERNS, Role.SHELF))


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
    made = json_copy(schema_text(_Bundle(files).whole()))
    check_schema(made)
    return made


class _At(NamedTuple):
    """The position of a copy; `embedded` says that it is below an `$id` that is not its file's."""

    file: SchemaFile
    place: Place
    foreign: bool
    embedded: bool = False

    def below(self, key: object) -> _At:
        return self._replace(place=(self.place, key))


class _Bundle:
    """The definitions so far. The last of them are referred to, but not copied yet."""

    def __init__(self, files: SchemaFiles) -> None:
        self._files, self._main = files, files.main
        self._draft = _draft(files.main, files.main.schema, Draft.D2020)
        self._shelf = "$defs" if self._draft is Draft.D2020 else "definitions"
        own = files.main.schema.get(self._shelf, {})
        if not isinstance(own, dict):
            raise files.main.error(f"{self._shelf} is not an object", (None, self._shelf))
        self._names: set[str] = set(own)
        self._places = {id(node) for _, node in subschemas(files.main.schema)}
        # The definitions that are included, by their origin: each one's name, itself, its position.
        self._taken: dict[tuple[Path, object], tuple[str, Any, _At]] = {}
        self._copied = 0

    def whole(self) -> JsonObject:
        made: JsonObject = self._schema(self._main.schema, _At(self._main, None, foreign=False))
        definitions: dict[str, Any] = {}
        while len(definitions) < len(self._taken):  # each copy may include more
            name, node, at = list(self._taken.values())[len(definitions)]
            definitions[name] = self._schema(node, at)
        if definitions:
            own: Any = made.pop(self._shelf, {})
            made[self._shelf] = {**own, **definitions}
        return made

    def _schema(self, node: Any, at: _At) -> Any:
        """Return a copy in which each `$ref` points to its target's place in the result."""
        if not isinstance(node, dict):
            return node
        self._copied += 1 + len(node)
        if self._copied > MAX_NODES:
            raise SchemaError(f"the files make a schema of more than {MAX_NODES} nodes")
        own = node.get("$id")
        whole = node is at.file.schema
        if isinstance(own, str) and not own.startswith("#") and not whole:
            at = at._replace(embedded=True)
        made = {}
        for key, value in node.items():
            role = ROLES.get(key)
            if role is Role.REF and isinstance(value, str):
                made[key] = self._reference(key, value, at)
            elif role in _HOLDS:
                if not (at.foreign and role is Role.SHELF):  # nothing refers there any more
                    made[key] = self._below(role, value, at.below(key))
            elif at.foreign and role in (Role.ID, Role.ANCHOR, Role.DIALECT):
                # All references to these names have been rewritten, and the names might be taken.
                if key == "$schema":
                    self._check_draft(at.file, {"$schema": value}, at.place)
            else:
                made[key] = value
        return made

    def _below(self, role: Role | None, value: Any, at: _At) -> Any:
        if isinstance(value, list):
            return [self._schema(child, at.below(index)) for index, child in enumerate(value)]
        if role is Role.ONE or not isinstance(value, dict):
            return self._schema(value, at)
        return {name: self._schema(child, at.below(name)) for name, child in value.items()}

    def _reference(self, keyword: str, ref: str, at: _At) -> str:
        file, place = at.file, (at.place, keyword)
        name, _, fragment = ref.partition("#")
        if at.embedded:
            raise file.error(f"{keyword} is in a part that has its own $id: remove that $id", place)
        target = self._files.follow(file, ref, place) if name else file
        if keyword == "$dynamicRef":
            if at.foreign or name:
                raise file.error("a $dynamicRef between files cannot be bundled: use $ref", place)
            return ref
        if target is not self._main:
            self._check_draft(target, target.schema)
        node = target.references.resolve(f"#{fragment}")
        if not isinstance(node, dict | bool) or target.references.crosses_id(f"#{fragment}"):
            text = f"$ref {ref[:_SHOWN]!r} does not lead to a schema in {target.shown}"
            raise file.error(text, place)
        if target is self._main and (isinstance(node, bool) or id(node) in self._places):
            return f"#{fragment}"
        return f"#/{self._shelf}/{self._take(target, node, fragment)}"

    def _take(self, file: SchemaFile, node: Any, fragment: str) -> str:
        key = (file.path, id(node) if isinstance(node, dict) else fragment)
        if key not in self._taken:
            last = unquote(fragment.rpartition("/")[2]).replace("~1", "/") or file.path.stem
            base = _NOT_IN_NAMES.sub("_", last).strip("_") or "schema"
            name, number = base, 1
            while name in self._names:
                number += 1
                name = f"{base}_{number}"
            self._names.add(name)
            place: Place = None
            for token in fragment.split("/")[1:]:
                place = (place, token)
            self._taken[key] = name, node, _At(file, place, foreign=True)
        return self._taken[key][0]

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
