"""The kit: ready-made tools that do something real, with the capabilities that they need.

Importing it costs no library of the extra `kit`; `catalog()` says so at once if one is missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from toolcrib.errors import MissingExtraError
from toolcrib.kit.arithmetic import calculate
from toolcrib.kit.files import FileRoot, list_files, read_file, search_files
from toolcrib.kit.folder import FolderLimits, JailedFolder
from toolcrib.kit.search import SearchLimits
from toolcrib.kit.time import Clock, SystemClock, current_time
from toolcrib.kit.units import convert_units
from toolcrib.tools import Catalog, ToolLike

__all__ = [
    "Clock",
    "FileRoot",
    "FolderLimits",
    "JailedFolder",
    "SearchLimits",
    "SystemClock",
    "calculate",
    "catalog",
    "convert_units",
    "current_time",
    "list_files",
    "read_file",
    "search_files",
]

_LIBRARIES = ("pint", "simpleeval")


def catalog(root: str | Path = ".") -> Catalog:
    """All six tools, bound to the machine's clock and to the folder `root`, which they may read.

    Raises MissingExtraError without the extra `kit`, SourceError if `root` is no folder.
    """
    if not all(map(find_spec, _LIBRARIES)):
        raise MissingExtraError("kit", "toolcrib.kit")
    tools: list[ToolLike] = [current_time, calculate, convert_units]
    tools += [list_files, read_file, search_files]
    return Catalog(tools).bind({Clock: SystemClock(), FileRoot: JailedFolder(root)})
