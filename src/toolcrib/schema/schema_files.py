"""Schema files of one folder, each read once. No reference leads out of the folder, or to the network.

What is checked is where a path really leads: after `..` and links.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jiter

from toolcrib.errors import SchemaError, SourceError
from toolcrib.schema.references import Place, References, pointer_to
from toolcrib.schema.shape import MAX_BYTES, check_shape

MAX_FILES = 200
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SHOWN = 200


class SchemaFile:
    """One file: `path` is where it really lies, `shown` how it is called below the folder."""

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
        except (OSError, RuntimeError) as error:  # the latter: links in a circle, before 3.13
            reason = getattr(error, "strerror", None) or "links in a circle"
            raise SourceError(f"the schema {path} cannot be read: {reason}") from None
        if not found.is_relative_to(self._root):
            raise SourceError(f"the schema {path} lies outside of the root {self._root}")
        if not found.is_file():
            raise SourceError(f"the schema {path} cannot be read: it is no file")
        self._read: dict[Path, SchemaFile] = {}
        self.main = self._load(found, None, None)
        if not isinstance(self.main.schema, dict):
            raise self.main.error("a schema to bundle is a JSON object")

    def follow(self, file: SchemaFile, ref: str, place: Place) -> SchemaFile:
        """The file that a `$ref` in another file means. Raises SchemaError, naming both."""
        written = ref.partition("#")[0]
        name = unquote(written)
        if _SCHEME.match(name) or name.startswith(("/", "\\")) or "?" in written:
            raise file.error(
                f"$ref {ref[:_SHOWN]!r} is no path relative to the file: nothing is fetched; put "
                "a copy into the folder and refer to it, as in 'other.json#/$defs/x'",
                place,
            )
        try:
            found = (file.path.parent / name).resolve()
            is_file = found.is_file()
        except (OSError, RuntimeError, ValueError):  # a NUL, a name too long, links in a circle
            raise file.error(f"$ref {ref[:_SHOWN]!r} names no file", place) from None
        if not found.is_relative_to(self._root):
            raise file.error(
                f"$ref {ref[:_SHOWN]!r} leads out of the folder: move the file below it, or pass "
                "root= to bundle_refs",
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
    """Raises ValueError, without a word of the file's, for what is not strictly JSON."""
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
