"""The weather tool, over HTTP, against a server on this machine with Open-Meteo's wire.

The answers have the shape, and the fields in it, of the examples in open-meteo.com/en/docs and
open-meteo.com/en/docs/geocoding-api; fields without a value are left out of places.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kit.kit_helpers import call
from kit.loopback_http import PRIVATE, answer, serving

from toolcrib import kit
from toolcrib.errors import CapabilityError, ToolError
from toolcrib.kit import GuardedHttp, HttpAnswer, OpenMeteo, WeatherService, get_weather
from toolcrib.kit.weather import Forecast
from toolcrib.tools import Catalog

PORTLANDS: Any = {
    "results": [
        {
            "id": 5746545,
            "name": "Portland",
            "latitude": 45.52345,
            "longitude": -122.67621,
            "elevation": 12.0,
            "feature_code": "PPLA2",
            "country_code": "US",
            "admin1_id": 5744337,
            "timezone": "America/Los_Angeles",
            "population": 652503,
            "country": "United States",
            "admin1": "Oregon",
            "admin2": "Multnomah",
        },
        {
            "id": 4975802,
            "name": "Portland",
            "latitude": 43.65737,
            "longitude": -70.2589,
            "country_code": "US",
            "country": "United States",
            "admin1": "Maine",
        },
        {
            "id": 2640054,
            "name": "Île de Portland",
            "latitude": 50.55,
            "longitude": -2.43333,
            "country_code": "GB",
            "country": "United Kingdom",
            "admin1": "England",
        },
        {"id": 1, "name": "Port\u202eland", "latitude": 0, "longitude": 0, "country": "Nowhere"},
    ],
    "generationtime_ms": 0.66,
}
WEATHER: Any = {
    "latitude": 43.66,
    "longitude": -70.25,
    "generationtime_ms": 0.2,
    "utc_offset_seconds": -14400,
    "timezone": "America/New_York",
    "timezone_abbreviation": "EDT",
    "elevation": 12.0,
    "current_units": {"time": "iso8601", "interval": "seconds", "temperature_2m": "°C"},
    "current": {
        "time": "2026-07-04T08:30",
        "interval": 900,
        "temperature_2m": 17.4,
        "relative_humidity_2m": 83,
        "apparent_temperature": 17.9,
        "precipitation": 0.1,
        "weather_code": 51,
        "wind_speed_10m": 9.7,
    },
    "daily_units": {"time": "iso8601", "weather_code": "wmo code"},
    "daily": {
        "time": ["2026-07-04", "2026-07-05"],
        "weather_code": [61, 0],
        "temperature_2m_max": [22.5, 27.0],
        "temperature_2m_min": [15.1, None],
        "precipitation_sum": [4.2, 0.0],
        "precipitation_probability_max": [88, 3],
        "wind_speed_10m_max": [21.3, 12.0],
    },
}
FOUND: Forecast = {
    "place": "Portland, Maine, United States",
    "timezone": "America/New_York",
    "current": {
        "time": "2026-07-04T08:30",
        "conditions": "light drizzle",
        "temperature_celsius": 17.4,
        "feels_like_celsius": 17.9,
        "humidity_percent": 83,
        "precipitation_millimeters": 0.1,
        "wind_kilometers_per_hour": 9.7,
    },
    "days": [
        {
            "date": "2026-07-04",
            "conditions": "slight rain",
            "low_celsius": 15.1,
            "high_celsius": 22.5,
            "precipitation_millimeters": 4.2,
            "precipitation_probability_percent": 88,
            "strongest_wind_kilometers_per_hour": 21.3,
        },
        {
            "date": "2026-07-05",
            "conditions": "clear sky",
            "low_celsius": None,
            "high_celsius": 27.0,
            "precipitation_millimeters": 0.0,
            "precipitation_probability_percent": 3,
            "strongest_wind_kilometers_per_hour": 12.0,
        },
    ],
}


class Server:
    """Answers both paths; `asked` are the queries, in their order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.said = {"/v1/search": _json(PORTLANDS), "/v1/forecast": _json(WEATHER)}

    def __call__(self, target: str) -> bytes:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.asked.append((parts.path, query))
        return self.said[parts.path]


def _json(value: Any) -> bytes:
    return answer(json.dumps(value).encode())


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def catalog(server: Server) -> AsyncIterator[Catalog]:
    async with serving(server) as origin:
        http = GuardedHttp(allow=[origin], private=PRIVATE)
        service = OpenMeteo(http, geocoding=f"{origin}/v1/search", forecast=f"{origin}/v1/forecast")
        yield Catalog([get_weather]).bind({WeatherService: service})


async def test_a_place_is_looked_up_and_its_weather_asked_for(
    catalog: Catalog, server: Server
) -> None:
    assert await call(catalog, "get_weather", place="Portland, Maine", days=2) == FOUND
    (search, place), (forecast, query) = server.asked
    assert (search, forecast) == ("/v1/search", "/v1/forecast")
    assert place == {"name": "Portland", "count": "20", "language": "en", "format": "json"}
    assert (query["latitude"], query["longitude"]) == ("43.65737", "-70.25890")
    assert (query["timezone"], query["forecast_days"]) == ("auto", "2")
    units = ("temperature_unit", "wind_speed_unit", "precipitation_unit")
    assert [query[unit] for unit in units] == ["celsius", "kmh", "mm"]
    assert set(query["current"].split(",")) < WEATHER["current"].keys()
    assert set(query["daily"].split(",")) < WEATHER["daily"].keys()


async def test_three_days_if_not_said_otherwise(catalog: Catalog, server: Server) -> None:
    assert len((await call(catalog, "get_weather", place="Portland"))["days"]) == 2  # all it has
    assert server.asked[1][1]["forecast_days"] == "3"
    assert len((await call(catalog, "get_weather", place="Portland", days=1))["days"]) == 1


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("Portland", "Portland, Oregon, United States"),
        (" portland ,MAINE", "Portland, Maine, United States"),
        ("Portland, US", "Portland, Oregon, United States"),
        ("Portland, USA", "Portland, Oregon, United States"),
        ("Portland, Multnomah, Oregon", "Portland, Oregon, United States"),
        ("Portland, Oregon, United States", "Portland, Oregon, United States"),
        ("Portland, UK", "Île de Portland, England, United Kingdom"),
        ("Portland، Maine", "Portland, Maine, United States"),
        ("Portland、Maine", "Portland, Maine, United States"),
        ("Portland，Maine", "Portland, Maine, United States"),
        ("Portland, england,", "Île de Portland, England, United Kingdom"),
        ("Portland, Nowhere", "Port\ufffdland, Nowhere"),
    ],
)
async def test_which_place_is_meant_is_said(catalog: Catalog, place: str, found: str) -> None:
    assert (await call(catalog, "get_weather", place=place))["place"] == found


@pytest.mark.parametrize(
    ("place", "places", "why"),
    [
        ("Atlantis", {"generationtime_ms": 0.4}, "no place with that name is known"),
        ("Atlantis", {"results": []}, "no place with that name is known"),
        ("Portland, Texas", PORTLANDS, "no place with that name is there"),
        (", Texas", PORTLANDS, "no place with that name is known"),
        ("  ", PORTLANDS, "place must be a name"),
        ("x" * 101, PORTLANDS, "place must be a name"),
    ],
)
async def test_a_place_that_is_not_known_is_the_models_to_correct(
    catalog: Catalog, server: Server, place: str, places: Any, why: str
) -> None:
    server.said["/v1/search"] = _json(places)
    with pytest.raises(ToolError, match=why) as caught:
        await call(catalog, "get_weather", place=place)
    assert not isinstance(caught.value, CapabilityError)


def _without(key: str) -> Any:
    return {name: value for name, value in WEATHER.items() if name != key}


@pytest.mark.parametrize("path", ["/v1/search", "/v1/forecast"])
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(b'{"error":true,"reason":"canary"}', status=400), "the weather service failed"),
        (answer(b"canary", status=503), "the weather service failed"),
        (answer(b'{"error":true,"reason":"canary"}', status=429), "gets too many requests"),
        (answer(b"<html>canary"), "cannot be read"),
        (answer(b""), "cannot be read"),
        (answer(b"\xff\xfe"), "cannot be read"),
        (answer(b"[" * 100_000), "cannot be read"),
        (_json([]), "cannot be read"),
        (_json({"results": [{"name": "canary"}]}), "cannot be read"),
        (_json({"results": [{"name": "a", "latitude": "x", "longitude": 1}]}), "cannot be read"),
    ],
)
async def test_an_answer_that_is_none_is_told_without_its_text(
    catalog: Catalog, server: Server, path: str, said: bytes, why: str
) -> None:
    server.said[path] = said
    with pytest.raises(CapabilityError, match=why) as caught:
        await call(catalog, "get_weather", place="Portland")
    assert "canary" not in caught.value.safe_text


@pytest.mark.parametrize(
    "weather",
    [
        _without("current"),
        _without("daily"),
        _without("timezone"),
        {**WEATHER, "daily": {**WEATHER["daily"], "weather_code": [1]}},
        {**WEATHER, "daily": {**WEATHER["daily"], "time": None}},
        {**WEATHER, "current": {**WEATHER["current"], "temperature_2m": "warm"}},
    ],
)
async def test_a_forecast_that_lacks_a_part(catalog: Catalog, server: Server, weather: Any) -> None:
    server.said["/v1/forecast"] = _json(weather)
    with pytest.raises(CapabilityError, match="cannot be read"):
        await call(catalog, "get_weather", place="Portland")


@pytest.mark.parametrize(
    ("code", "conditions"),
    [
        (0, "clear sky"),
        (77, "snow grains"),
        (99, "thunderstorm with heavy hail"),
        (4, "unknown"),
        (-1, "unknown"),
        (None, "unknown"),
    ],
)
async def test_codes_in_words(
    catalog: Catalog, server: Server, code: int | None, conditions: str
) -> None:
    current = {**WEATHER["current"], "weather_code": code}
    server.said["/v1/forecast"] = _json({**WEATHER, "current": current})
    found = await call(catalog, "get_weather", place="Portland")
    assert found["current"]["conditions"] == conditions


async def test_what_is_not_known_is_none(catalog: Catalog, server: Server) -> None:
    server.said["/v1/forecast"] = _json({**WEATHER, "current": {"time": "2026-07-04T08:30"}})
    current = (await call(catalog, "get_weather", place="Portland"))["current"]
    assert current.pop("time") == "2026-07-04T08:30"
    assert current.pop("conditions") == "unknown"
    assert set(current.values()) == {None}


@pytest.mark.parametrize("days", [0, 8, -1, 2**70])
async def test_days_are_one_to_seven(catalog: Catalog, server: Server, days: int) -> None:
    with pytest.raises(ToolError, match="days must be 1 to 7"):
        await call(catalog, "get_weather", place="Portland", days=days)
    assert server.asked == []


class Elsewhere:
    """A place has its weather wherever it comes from."""

    async def forecast(self, place: str, days: int) -> Forecast:
        return {**FOUND, "place": place, "days": FOUND["days"][:days]}


async def test_another_service_can_be_bound(catalog: Catalog) -> None:
    bound = catalog.bind({WeatherService: Elsewhere()})
    assert (await call(bound, "get_weather", place="any", days=1))["place"] == "any"


class Recorded:
    def __init__(self) -> None:
        self.urls: list[str] = []

    async def get(self, url: str, query: Any) -> HttpAnswer:
        self.urls.append(url)
        return HttpAnswer(status=500, body=b"")


async def test_without_a_network_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(*_arguments: Any, **_options: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "canary")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(CapabilityError, match="could not be reached: is there a network") as caught:
        await call(kit.catalog(tmp_path, weather=True), "get_weather", place="Portland")
    assert caught.value.safe_text.startswith("geocoding-api.open-meteo.com ")
    assert "canary" not in caught.value.safe_text


async def test_its_own_servers_are_those_that_it_says() -> None:
    http = Recorded()
    with pytest.raises(CapabilityError):
        await OpenMeteo(http).forecast("Portland", 1)
    assert {urlsplit(url).hostname for url in http.urls} < set(OpenMeteo.HOSTS)
