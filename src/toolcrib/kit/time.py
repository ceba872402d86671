"""The time in a zone. A zone's name is looked up among the known ones and never becomes a path."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from typing_extensions import TypedDict

from toolcrib.errors import MissingExtraError, ToolError
from toolcrib.tools import capability, tool

_AREAS = (
    *("Africa", "America", "Antarctica", "Arctic", "Asia"),
    *("Atlantic", "Australia", "Europe", "Indian", "Pacific"),
)
_NO_ZONES = frozenset({"Factory", "localtime"})  # the machine's own setting is no place
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_APOSTROPHES = ".'\N{RIGHT SINGLE QUOTATION MARK}"  # St. John's
_LONGEST_NAME = 100
_UNKNOWN = (
    "that is not a known time zone: use an IANA name such as Europe/Paris, "
    "or the name of a city that has a zone of its own, such as Paris"
)


@capability
class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class ZoneTime(TypedDict):
    """`timezone` is the IANA name; `time` is ISO 8601 with the offset, to the second; `clock` is its
    hour and minute, as `13:05`."""

    timezone: str
    time: str
    weekday: str
    date: str
    clock: str


@tool(
    visible=["timezone", "time", "weekday", "date", "clock"],
    read_only=True,
    idempotent=True,
    timeout=5,
    tags=["time", "date", "clock"],
    answer="It is {clock} on {weekday}, {date}, in {timezone}.",
    examples=[
        ("What time is it in Paris?", {"timezone": "Paris"}),
        ("Tell me the current time in America/New_York", {"timezone": "America/New_York"}),
        ("What's the time in UTC right now?", {"timezone": "UTC"}),
        ("Which day of the week is it in Sydney?", {"timezone": "Sydney"}),
        ("time in Europe/Berlin please", {"timezone": "Europe/Berlin"}),
        ("Is it morning already in Los Angeles?", {"timezone": "Los Angeles"}),
        ("Cairo time", {"timezone": "Cairo"}),
        ("How late is it over there in Hong Kong?", {"timezone": "Hong Kong"}),
        ("What date do we have today?", {"timezone": "UTC"}),
    ],
)
def current_time(timezone: str = "UTC", *, clock: Clock) -> ZoneTime:
    """Tell the current time, date and weekday in a time zone or city.

    Args:
        timezone: An IANA time zone such as Europe/Paris, or a city such as Paris.
    """
    name = find_zone(timezone)
    now = clock.now().astimezone(ZoneInfo(name))
    return {
        "timezone": name,
        "time": now.isoformat(timespec="seconds"),
        "weekday": _WEEKDAYS[now.weekday()],
        "date": now.date().isoformat(),
        "clock": f"{now:%H:%M}",
    }


def find_zone(name: str) -> str:
    """Return the IANA name of a zone, given that name or its city in any case, with or without
    accents and spaces.

    Raises ToolError for an unknown zone, and MissingExtraError if the machine has no zones.
    """
    zone = _zones().get(_folded(name)) if len(name) <= _LONGEST_NAME else None
    if zone is None:
        raise ToolError(_UNKNOWN)
    return zone


@cache
def _zones() -> Mapping[str, str]:
    """Return IANA names by their folded form, and by city; of two with one city, the shorter."""
    names = sorted(available_timezones() - _NO_ZONES, key=lambda n: (n.count("/"), n))
    if not names:
        raise MissingExtraError("kit", "the tool 'current_time' (time zones)")
    zones = {_folded(name): name for name in names}
    for name in names:
        area, _, place = name.partition("/")
        if area in _AREAS:
            zones.setdefault(_folded(place.rpartition("/")[2]), name)
    return zones


def _folded(name: str) -> str:
    decomposed = unicodedata.normalize("NFKD", name.strip())
    bare = "".join(c for c in decomposed if not unicodedata.combining(c) and c not in _APOSTROPHES)
    return re.sub(r"[\s_-]+", "_", bare).casefold()
