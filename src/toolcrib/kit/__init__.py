"""The kit: ready-made tools for real tasks, with the capabilities that they need.

Importing it imports no library of an extra. `catalog()` fails at once if one is missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from toolcrib.errors import MissingExtraError
from toolcrib.kit.arithmetic import calculate
from toolcrib.kit.database import (
    Database,
    DatabaseLimits,
    ReadOnlyDatabase,
    describe_database,
    query_database,
)
from toolcrib.kit.files import (
    FileRoot,
    FolderLimits,
    JailedFolder,
    SearchLimits,
    list_files,
    read_file,
    search_files,
)
from toolcrib.kit.http import GuardedHttp, HttpAnswer, HttpGetter, HttpLimits
from toolcrib.kit.time import Clock, SystemClock, current_time
from toolcrib.kit.units import convert_units
from toolcrib.kit.weather import OpenMeteo, WeatherService, get_weather
from toolcrib.tools import Catalog, ToolLike
from toolcrib.values.typed import names_wrong_types

__all__ = [
    "Clock",
    "Database",
    "DatabaseLimits",
    "FileRoot",
    "FolderLimits",
    "GuardedHttp",
    "HttpAnswer",
    "HttpGetter",
    "HttpLimits",
    "JailedFolder",
    "OpenMeteo",
    "ReadOnlyDatabase",
    "SearchLimits",
    "SystemClock",
    "WeatherService",
    "calculate",
    "catalog",
    "convert_units",
    "current_time",
    "describe_database",
    "get_weather",
    "list_files",
    "query_database",
    "read_file",
    "search_files",
]

_LIBRARIES = ("pint", "simpleeval")


@names_wrong_types
def catalog(
    root: str | Path = ".", *, database: str | Path | None = None, weather: bool | None = None
) -> Catalog:
    """Return the tools for time, arithmetic, units and the files below `root`, bound to what they
    need.

    With `database`, a SQLite file, there are two tools that read it. With `weather`, by default if
    the extra `http` is installed, there is one that asks Open-Meteo, which is the only one that
    needs a network. Raises MissingExtraError without the extra `kit`, or with `weather` without
    `http`. Raises SourceError if `root` is no folder or `database` no database.
    """
    if not all(map(find_spec, _LIBRARIES)):
        raise MissingExtraError("kit", "toolcrib.kit")
    tools: list[ToolLike] = [current_time, calculate, convert_units]
    tools += [list_files, read_file, search_files]
    bound: dict[type, object] = {Clock: SystemClock(), FileRoot: JailedFolder(root)}
    if find_spec("aiohttp") is not None if weather is None else weather:
        tools.append(get_weather)
        bound[WeatherService] = OpenMeteo(GuardedHttp(allow=OpenMeteo.HOSTS))
    if database is not None:
        tools += [describe_database, query_database]
        bound[Database] = ReadOnlyDatabase(database)
    return Catalog(tools).bind(bound)
