from __future__ import annotations

from pathlib import Path

import pytest
from kit.kit_helpers import call

from toolcrib import kit
from toolcrib.errors import CapabilityError, ToolError
from toolcrib.kit.files import FileMatches, FolderListing, TextFile
from toolcrib.tools import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text("Read me first.\n", encoding="utf-8")
    return kit.catalog(tmp_path)


async def test_the_tools_read_below_the_root_that_was_bound(catalog: Catalog) -> None:
    entry = {"name": "guide.md", "kind": "file", "size": 15}
    here = {"name": "docs", "kind": "folder", "size": 0}
    match = {"path": "docs/guide.md", "line": 1, "text": "Read me first."}
    assert await call(catalog, "list_files", path="docs") == {
        "path": "docs",
        "entries": [entry],
        "truncated": False,
    }
    assert (await call(catalog, "list_files"))["entries"] == [here]
    assert (await call(catalog, "read_file", path="docs/guide.md"))["text"] == "Read me first.\n"
    assert (await call(catalog, "search_files", query="ME FIRST"))["matches"] == [match]
    assert (await call(catalog, "search_files", query="x", path="docs"))["matches"] == []


@pytest.mark.parametrize("name", ["list_files", "read_file", "search_files"])
async def test_a_path_outside_is_an_error_of_the_capability(catalog: Catalog, name: str) -> None:
    arguments = {"path": "../secret"} | ({"query": "x"} if name == "search_files" else {})
    with pytest.raises(CapabilityError) as caught:
        await call(catalog, name, **arguments)
    assert caught.value.safe_text == "the path is outside the folder that may be read"


@pytest.mark.parametrize("query", ["", "  ", "\n", "one\ntwo", "x" * 201])
async def test_a_query_has_a_length(catalog: Catalog, query: str) -> None:
    with pytest.raises(ToolError, match="1 to 200 characters") as caught:
        await call(catalog, "search_files", query=query)
    assert not isinstance(caught.value, CapabilityError)


class PretendRoot:
    """Another adapter: nothing of it is a folder of this machine."""

    def list_folder(self, path: str) -> FolderListing:
        return {"path": path, "entries": [], "truncated": False}

    def read_text(self, path: str) -> TextFile:
        return {"path": path, "text": "pretended", "size": 9, "truncated": False}

    def search(self, query: str, path: str) -> FileMatches:
        return {"matches": [{"path": path, "line": 1, "text": query}], "truncated": False}


async def test_another_adapter_can_be_bound(catalog: Catalog) -> None:
    bound = catalog.bind({kit.FileRoot: PretendRoot()})
    assert (await call(bound, "read_file", path="any"))["text"] == "pretended"
    assert (await call(bound, "list_files"))["path"] == "."
    assert (await call(bound, "search_files", query="q"))["matches"][0]["text"] == "q"
