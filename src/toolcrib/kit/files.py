"""Reading files. What a file or its name says is data from outside: it taints the run.

Contents are not in the public view: a log that shows which file was read does not repeat what was
in it.
"""

from __future__ import annotations

from typing import Literal, Protocol

from typing_extensions import TypedDict

from toolcrib.errors import ToolError
from toolcrib.tools import capability, tool

_LONGEST_QUERY = 200


class FolderEntry(TypedDict):
    """`size` is in bytes, 0 for a folder; `other` is what can be neither read nor listed."""

    name: str
    kind: Literal["file", "folder", "other"]
    size: int


class FolderListing(TypedDict):
    """Folders come first; `truncated` says that there are more entries than these."""

    path: str
    entries: list[FolderEntry]
    truncated: bool


class TextFile(TypedDict):
    """`size` is that of the whole file in bytes; `truncated` says that `text` is its beginning."""

    path: str
    text: str
    size: int
    truncated: bool


class LineMatch(TypedDict):
    """A line that has the text in it, numbered from 1; a long one is cut around the match."""

    path: str
    line: int
    text: str


class FileMatches(TypedDict):
    """`truncated` says that the search ended early, so that there may be more."""

    matches: list[LineMatch]
    truncated: bool


@capability
class FileRoot(Protocol):
    """A folder that may be read, and nothing outside of it.

    Paths are relative to it, with `/` between names; "." is the folder itself. All raise
    CapabilityError for a path that is outside, missing or of the wrong kind.
    """

    def list_folder(self, path: str) -> FolderListing:
        """What is directly in a folder."""

    def read_text(self, path: str) -> TextFile:
        """A text file, decoded."""

    def search(self, query: str, path: str) -> FileMatches:
        """The lines with a text in them, ignoring case: of a file, or of all below a folder."""


@tool(
    visible=["path", "entries", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=10,
    tags=["files", "folder", "directory"],
    examples=[
        ("List the files in the docs folder", {"path": "docs"}),
        ("What files are here?", {"path": "."}),
        ("Show me what is inside src/app", {"path": "src/app"}),
        ("Which folders are in the current directory?", {"path": "."}),
        ("What's in the config directory?", {"path": "config"}),
        ("ls tests/data", {"path": "tests/data"}),
        ("Show the contents of the images folder", {"path": "images"}),
        ("Give me the names of all files in lib", {"path": "lib"}),
    ],
)
def list_files(path: str = ".", *, root: FileRoot) -> FolderListing:
    """List the files and folders that are directly in a folder.

    Args:
        path: The folder, such as docs or src/app; "." is the current one.
    """
    return root.list_folder(path)


@tool(
    visible=["path", "size", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=10,
    tags=["files", "text", "contents"],
    examples=[
        ("Show me the contents of notes.txt", {"path": "notes.txt"}),
        ("Open docs/setup.md", {"path": "docs/setup.md"}),
        ("What does pyproject.toml say?", {"path": "pyproject.toml"}),
        ("Read the file src/main.py to me", {"path": "src/main.py"}),
        ("What is written in config/app.json?", {"path": "config/app.json"}),
        ("cat report.csv", {"path": "report.csv"}),
        ("Summarize the text of guide.md", {"path": "guide.md"}),
        ("Print tests/test_api.py", {"path": "tests/test_api.py"}),
    ],
)
def read_file(path: str, *, root: FileRoot) -> TextFile:
    """Read a text file: its contents, of a large file the beginning.

    Args:
        path: The file, such as notes.txt or docs/setup.md.
    """
    return root.read_text(path)


@tool(
    visible=["matches[].path", "matches[].line", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=20,
    tags=["files", "search", "grep"],
    examples=[
        ("Search for TODO in src", {"query": "TODO", "path": "src"}),
        ("Find the word timeout in the docs folder", {"query": "timeout", "path": "docs"}),
        ("Which files mention license?", {"query": "license", "path": "."}),
        ("Where is parse_args used?", {"query": "parse_args", "path": "."}),
        ('grep for "import json" in tests', {"query": "import json", "path": "tests"}),
        (
            "Look for 'connection lost' in logs/app.log",
            {"query": "connection lost", "path": "logs/app.log"},
        ),
        ("In which file is the class Session defined?", {"query": "class Session", "path": "."}),
        ("Show me every place where retry occurs", {"query": "retry", "path": "."}),
        ("In lib, look for 'async def'", {"query": "async def", "path": "lib"}),
        ("Does anything in web/ use fetch?", {"query": "fetch", "path": "web/"}),
        ("Show the lines with 'warning' in build.log", {"query": "warning", "path": "build.log"}),
    ],
)
def search_files(query: str, path: str = ".", *, root: FileRoot) -> FileMatches:
    """Find the lines that contain a text, in all files below a folder or in one file.

    Args:
        query: The text to find, as it is written in the files; upper and lower case are the same.
        path: The folder or file to search, such as src; "." is the current folder.
    """
    if not query.strip() or len(query) > _LONGEST_QUERY:
        raise ToolError(f"query has to be a text of 1 to {_LONGEST_QUERY} characters")
    return root.search(query, path)
