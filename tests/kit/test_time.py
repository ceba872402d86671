from __future__ import annotations

from datetime import UTC
from pathlib import Path
from zoneinfo import available_timezones

import pytest
from kit.kit_helpers import StoppedClock, call, example_arguments, fresh

from toolcrib import kit
from toolcrib.errors import MissingExtraError, ToolError
from toolcrib.kit import time as zones
from toolcrib.tools import Catalog


@pytest.fixture
def catalog() -> Catalog:
    return Catalog([kit.current_time]).bind({kit.Clock: StoppedClock()})


@pytest.mark.parametrize(
    ("given", "timezone", "time", "weekday"),
    [
        ("UTC", "UTC", "2026-07-04T12:30:15+00:00", "Saturday"),
        ("utc", "UTC", "2026-07-04T12:30:15+00:00", "Saturday"),
        ("Europe/Paris", "Europe/Paris", "2026-07-04T14:30:15+02:00", "Saturday"),
        ("europe/paris", "Europe/Paris", "2026-07-04T14:30:15+02:00", "Saturday"),
        ("Tokyo", "Asia/Tokyo", "2026-07-04T21:30:15+09:00", "Saturday"),
        ("TOKYO", "Asia/Tokyo", "2026-07-04T21:30:15+09:00", "Saturday"),
        ("new york", "America/New_York", "2026-07-04T08:30:15-04:00", "Saturday"),
        ("New_York", "America/New_York", "2026-07-04T08:30:15-04:00", "Saturday"),
        ("  Los Angeles ", "America/Los_Angeles", "2026-07-04T05:30:15-07:00", "Saturday"),
        ("São Paulo", "America/Sao_Paulo", "2026-07-04T09:30:15-03:00", "Saturday"),
        ("Port au Prince", "America/Port-au-Prince", "2026-07-04T08:30:15-04:00", "Saturday"),
        ("St. John's", "America/St_Johns", "2026-07-04T10:00:15-02:30", "Saturday"),
        ("Kathmandu", "Asia/Kathmandu", "2026-07-04T18:15:15+05:45", "Saturday"),
        ("Kiritimati", "Pacific/Kiritimati", "2026-07-05T02:30:15+14:00", "Sunday"),
        ("Buenos Aires", "America/Buenos_Aires", "2026-07-04T09:30:15-03:00", "Saturday"),
        ("Japan", "Japan", "2026-07-04T21:30:15+09:00", "Saturday"),
        ("Etc/GMT-5", "Etc/GMT-5", "2026-07-04T17:30:15+05:00", "Saturday"),
        ("Etc/GMT+5", "Etc/GMT+5", "2026-07-04T07:30:15-05:00", "Saturday"),
    ],
)
async def test_time_in_a_zone(
    catalog: Catalog, given: str, timezone: str, time: str, weekday: str
) -> None:
    result = await call(catalog, "current_time", timezone=given)
    assert result == {
        "timezone": timezone,
        "time": time,
        "weekday": weekday,
        "date": time[:10],
        "clock": time[11:16],
    }


async def test_without_a_zone_it_is_utc(catalog: Catalog) -> None:
    assert (await call(catalog, "current_time"))["timezone"] == "UTC"


@pytest.mark.parametrize(
    "hostile",
    [
        "Atlantis",
        "",
        " ",
        "../../etc/passwd",
        "/etc/localtime",
        "localtime",
        "Europe/../Europe/Paris",
        "Europe",
        "Eastern",
        "a\0b",
        "\ud800",
        "x" * 100_000,
        "{timezone}",
    ],
)
async def test_an_unknown_zone_is_a_safe_error(catalog: Catalog, hostile: str) -> None:
    with pytest.raises(ToolError) as caught:
        await call(catalog, "current_time", timezone=hostile)
    assert caught.value.safe_text.startswith("that is not a known time zone: ")


async def test_the_examples_name_zones(catalog: Catalog) -> None:
    for arguments in example_arguments(kit.current_time):
        assert (await call(catalog, "current_time", **arguments))["timezone"]


def test_every_zone_of_the_machine_is_found_by_its_name() -> None:
    for name in available_timezones() - {"Factory", "localtime"}:
        assert zones.find_zone(name) == name


def test_a_machine_without_zones_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    unused = fresh(zones)
    monkeypatch.setattr(unused, "available_timezones", set)
    with pytest.raises(MissingExtraError, match="time zones"):
        unused.find_zone("UTC")


def test_the_system_clock_is_in_utc(tmp_path: Path) -> None:
    assert kit.SystemClock().now().tzinfo is UTC
    entry = kit.catalog(tmp_path).by_name.get("current_time")
    assert entry is not None
    assert isinstance(entry.bindings[kit.Clock], kit.SystemClock)
