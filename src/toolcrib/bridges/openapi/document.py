"""An OpenAPI document as it was written: read from JSON or YAML, with `$ref`s to local files.

Rules: nothing is fetched, and no reference leads out of the document's folder. Nothing is guessed:
a repeated key is refused, and YAML is read with JSON's types, as OpenAPI requires (`no` is a
string, and so is a date). Merge keys (`<<: *base`) of YAML 1.1 include what they name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import jiter

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.schema.references import resolve_ref, steps_of
from toolcrib.urls import without_password

Reason: TypeAlias = Literal[
    "form", "media type", "name", "pattern", "reference", "schema", "too large"
]
"""Why an operation becomes no tool: the document is wrong there (`form`), its body has a media type
that cannot be sent, no name is left for it, a pattern in its schema cannot be matched in linear
time, a reference leads nowhere or out of the folder, its schema cannot be used, or it is too large.
"""

_MAX_BYTES = 64 * 1024 * 1024
_MAX_FILES = 200
_MOST_STEPS = 20  # from reference to reference
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SHOWN = 120


class NoTool(Exception):  # noqa: N818  an outcome, which becomes a `RefusedOperation`
    """An operation cannot be made a tool, with the reason and a text."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class DocumentFile:
    """Holds the content of one file, and its path, which is None for a document given as a
    dictionary."""

    __slots__ = ("content", "path")

    def __init__(self, content: Any, path: Path | None) -> None:
        self.content, self.path = content, path


class Node(NamedTuple):
    """A part of a document, with the file in which its references are read."""

    file: DocumentFile
    node: Any

    def _member(self, key: str) -> Any:
        return self.node.get(key) if isinstance(self.node, dict) else None

    def get(self, key: str) -> Node | None:
        """Return a member, or None if there is none or this is no object."""
        value = self._member(key)
        return None if value is None else Node(self.file, value)

    def members(self, key: str) -> dict[str, Node]:
        """Return the members of an object below `key` by name, or none if there is no object.

        A name is a string, as in JSON. YAML's own reader makes a number of a response's `200`.
        """
        value = self._member(key)
        if not isinstance(value, dict):
            return {}
        return {str(name): Node(self.file, child) for name, child in value.items()}

    def items(self, key: str) -> list[Node]:
        """Return the elements of a list below `key`, or none if there is no list."""
        value = self._member(key)
        return [Node(self.file, element) for element in value] if isinstance(value, list) else []

    def text(self, key: str) -> str:
        value = self._member(key)
        return value if isinstance(value, str) else ""

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._member(key)
        return value if isinstance(value, bool) else default


class RefTarget(NamedTuple):
    """The target of a `$ref`. `key` is the same for all references to one place."""

    part: Node
    key: tuple[int, str]
    name: str


class Document:
    """A document with the files that it refers to, each read once.

    `is_swagger` is True for Swagger 2.0. Otherwise it is OpenAPI 3.0 or 3.1. Raises SourceError for
    a file that cannot be read, or that is no such document.
    """

    def __init__(self, given: str | Path | Mapping[str, Any]) -> None:
        self._files: dict[Path, DocumentFile] = {}
        self._folder: Path | None = None
        if isinstance(given, Mapping):
            self.name = "the document"
            self.main = DocumentFile(dict(given), None)
        else:
            _check_path(str(given))
            path = Path(given)
            self.name = str(path)
            self.main = self._load(path)
            self._folder = self.main.path.parent if self.main.path else None
        self.root = Node(self.main, self.main.content)
        self.version = self._version()
        self.is_swagger = self.version == "2.0"

    def _version(self) -> str:
        """Return the version that the document states. It may be a number: `2.0` without quotes in
        YAML."""
        declared = self.root.get("openapi") or self.root.get("swagger")
        version = str(declared.node) if declared and isinstance(declared.node, str | float) else ""
        if version == "2.0" or (self.root.get("openapi") and version.startswith(("3.0", "3.1"))):
            return version
        detail = f"it says {version!r:.40}" if version else "it does not say its version"
        raise SourceError(
            f"{self.name}: it is not a document of OpenAPI 3.0, 3.1 or Swagger 2.0: {detail}"
        )

    def _load(self, path: Path) -> DocumentFile:
        try:
            real_path = path.resolve(strict=True)
            with real_path.open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
        except (OSError, RuntimeError) as error:  # RuntimeError: circular links, before 3.13
            reason = getattr(error, "strerror", None) or "its links form a loop"
            raise SourceError(f"{path}: it cannot be read: {reason}") from None
        if len(data) > _MAX_BYTES:
            raise SourceError(f"{path}: it is longer than {_MAX_BYTES} bytes")
        loaded = self._files[real_path] = DocumentFile(_parsed(data, path), real_path)
        return loaded

    def follow(self, file: DocumentFile, ref: str) -> RefTarget:
        """Return the target of a `$ref` in a file. Raises NoTool, which names the reference."""
        name, _, fragment = ref.partition("#")
        target = self._file(file, name, ref) if name else file
        if fragment and not fragment.startswith("/"):
            raise NoTool("reference", f"$ref {ref[:_SHOWN]!r} is not a path within the document")
        pointer = f"#{fragment}" if fragment else "#"
        node = resolve_ref(target.content, pointer)
        if node is None:
            raise NoTool("reference", f"$ref {ref[:_SHOWN]!r} leads nowhere")
        last = ["", *steps_of(unquote(fragment))][-1]
        stem = target.path.stem if target.path else "schema"
        return RefTarget(Node(target, node), (id(target), pointer), last or stem)

    def main_from(self, file: DocumentFile) -> str:
        """Return the beginning of references to the document's own file from one of its files."""
        if file is self.main or file.path is None or self.main.path is None:
            return ""
        return f"./{quote(os.path.relpath(self.main.path, file.path.parent))}"

    def resolved(self, part: Node) -> Node:
        """Return a part, or the final target if it is a reference. Raises NoTool."""
        for _ in range(_MOST_STEPS):
            ref = part.node.get("$ref") if isinstance(part.node, dict) else None
            if not isinstance(ref, str):
                return part
            part = self.follow(part.file, ref).part
        raise NoTool("reference", "its references form a loop")

    def _file(self, source: DocumentFile, quoted_name: str, ref: str) -> DocumentFile:
        name = unquote(quoted_name)
        label = f"$ref {ref[:_SHOWN]!r}"
        if _SCHEME.match(name) or name.startswith(("/", "\\")) or "?" in quoted_name:
            raise NoTool("reference", f"{label} leads outward: nothing is fetched")
        if self._folder is None or source.path is None:
            raise NoTool(
                "reference", f"{label} names a file, but the document was not read from a file"
            )
        try:
            path = (source.path.parent / name).resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError):  # a NUL, a too long name, circular links
            is_file, path = False, self._folder
        if not path.is_relative_to(self._folder):
            raise NoTool("reference", f"{label} leads out of the folder of the document")
        if not is_file or len(self._files) >= _MAX_FILES:
            raise NoTool("reference", f"{label}: there is no such file")
        if path not in self._files:
            try:
                self._load(path)
            except SourceError as error:
                raise NoTool("reference", f"{label}: {error}") from None
        return self._files[path]


def _check_path(text: str) -> None:
    """Raise SourceError, without repeating the text, for a value that is clearly no path."""
    if _SCHEME.match(text) and "://" in text:
        shown = without_password(text)[:_SHOWN]
        raise SourceError(
            f"{shown!r}: nothing is fetched: save the document, and pass the path of that file"
        )
    if "\n" in text or text.lstrip()[:1] == "{":
        raise SourceError(
            "this is the text of a document, not a file name: pass the parsed document, or a path"
        )


def _parsed(data: bytes, path: Path) -> Any:
    """Read JSON, or else YAML. Raises SourceError, which shows nothing of the content."""
    try:
        return jiter.from_json(
            data.removeprefix(b"\xef\xbb\xbf"), catch_duplicate_keys=True, allow_inf_nan=False
        )
    except ValueError as error:
        if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") and path.suffix != ".yaml":
            position = re.search(r"at line \d+ column \d+$", str(error))
            reason = "a key appears twice" if "uplicate key" in str(error) else "it is not JSON"
            raise SourceError(
                f"{path}: {reason} {position[0] if position else ''}".rstrip()
            ) from None
    yaml = _yaml()
    try:
        return yaml.load(data, Loader=_loader(yaml))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = "" if mark is None else f" at line {mark.line + 1}"
        reason = error.problem if error.problem in (_TWICE, _MERGE, _MERGES) else "it is not YAML"
        raise SourceError(f"{path}: {reason}{line}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SourceError(f"{path}: it is not readable as JSON or YAML") from None


def _yaml() -> ModuleType:
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("openapi", "an OpenAPI document in YAML") from None
    return yaml


_TWICE = "a key appears twice"
_MERGE = "a merge key (<<) merges something that is not a mapping"
_MERGES = "its merge keys (<<) merge too much"
_MOST_MERGED = 200_000  # members that all merge keys of a file may add
# YAML 1.2's core schema without its octal and hexadecimal numbers: https://yaml.org/spec/1.2.2/#103-core-schema
_TAGS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+0123456789.")),
)


def _loader(yaml: ModuleType) -> Any:
    """Return a loader with JSON's types: a date, a `yes` and an `on` are strings, and so are all
    keys."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class JsonTypes(base):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  like its base class
        merged_members = 0

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            del deep
            members: dict[str, Any] = {}
            merged: dict[str, Any] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, yaml.ScalarNode) or key_node.value in members:
                    raise yaml.constructor.ConstructorError(None, None, _TWICE, key_node.start_mark)
                members[key_node.value] = self.construct_object(value_node, deep=True)
                if key_node.value == "<<" and not key_node.style:
                    merged = {**self.merged(members.pop("<<"), key_node.start_mark), **merged}
            return {**merged, **members}

        def merged(self, merge_value: Any, mark: Any) -> dict[str, Any]:
            """Return what a merge key includes. The first in a list wins:
            https://yaml.org/type/merge.html"""
            mappings = merge_value if isinstance(merge_value, list) else [merge_value]
            if not all(isinstance(mapping, dict) for mapping in mappings):
                raise yaml.constructor.ConstructorError(None, None, _MERGE, mark)
            self.merged_members += sum(map(len, mappings))
            if self.merged_members > _MOST_MERGED:
                raise yaml.constructor.ConstructorError(None, None, _MERGES, mark)
            return {key: value for mapping in reversed(mappings) for key, value in mapping.items()}

        def construct_decimal(self, node: Any) -> int:
            return int(node.value)  # `010` is ten

    for tag, pattern, first in _TAGS:
        JsonTypes.add_implicit_resolver(
            f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), first
        )
    JsonTypes.add_constructor("tag:yaml.org,2002:int", JsonTypes.construct_decimal)
    return JsonTypes
