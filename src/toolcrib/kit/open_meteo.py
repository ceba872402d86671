"""Open-Meteo as a `WeatherService`: one request finds the place, another one asks for its weather.

The wire is that of open-meteo.com/en/docs and open-meteo.com/en/docs/geocoding-api, the words for the
WMO codes are those of the first. It needs no key; without one it is free for non-commercial use, and
asks to be named where its data (CC BY 4.0) are shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from toolcrib.errors import CapabilityError, ToolError
from toolcrib.kit.http import HttpGetter
from toolcrib.kit.opening import printable
from toolcrib.kit.weather import CurrentWeather, DayWeather, Forecast

T = TypeVar("T")

GEOCODING: Final = "https://geocoding-api.open-meteo.com/v1/search"
FORECAST: Final = "https://api.open-meteo.com/v1/forecast"

_CURRENT = (
    "temperature_2m,relative_humidity_2m,apparent_temperature,precipitation,weather_code,"
    "wind_speed_10m"
)
_DAILY = (
    "weather_code,temperature_2m_max,temperature_2m_min,precipitation_sum,"
    "precipitation_probability_max,wind_speed_10m_max"
)
_UNITS = {"temperature_unit": "celsius", "wind_speed_unit": "kmh", "precipitation_unit": "mm"}
_CANDIDATES = 20  # to find the region among; the service ranks them, the largest first
_LONGEST_NAME = 100
_COMMA = re.compile("[,\N{ARABIC COMMA}\N{IDEOGRAPHIC COMMA}\N{FULLWIDTH COMMA}]")
_CODES = {"usa": "us", "uk": "gb"}  # what people say for a country code
_CONDITIONS: Mapping[int, str] = {
    0: "clear sky",
    1: "mainly clear",
    2: "partly cloudy",
    3: "overcast",
    45: "fog",
    48: "depositing rime fog",
    51: "light drizzle",
    53: "moderate drizzle",
    55: "dense drizzle",
    56: "light freezing drizzle",
    57: "dense freezing drizzle",
    61: "slight rain",
    63: "moderate rain",
    65: "heavy rain",
    66: "light freezing rain",
    67: "heavy freezing rain",
    71: "slight snowfall",
    73: "moderate snowfall",
    75: "heavy snowfall",
    77: "snow grains",
    80: "slight rain showers",
    81: "moderate rain showers",
    82: "violent rain showers",
    85: "slight snow showers",
    86: "heavy snow showers",
    95: "thunderstorm",
    96: "thunderstorm with slight hail",
    99: "thunderstorm with heavy hail",
}

_UNKNOWN_PLACE = "no place of that name is known: give a city, and a region or country if need be"
_OTHER_REGION = (
    "no place of that name lies there: write the region or the country in full, or leave it out"
)
_FAILED = "the weather service failed: try again later"
_TOO_MANY = "the weather service is asked too often: try again later"
_FOREIGN = "the weather service gave an answer that cannot be read"


class _Place(msgspec.Struct):
    """Empty fields are left out of the answer."""

    name: str
    latitude: float
    longitude: float
    country: str = ""
    country_code: str = ""
    admin1: str = ""
    admin2: str = ""


class _Places(msgspec.Struct):
    """There are no `results` where nothing was found."""

    results: list[_Place] = []


class _Current(msgspec.Struct):
    time: str
    temperature_2m: float | None = None
    relative_humidity_2m: float | None = None
    apparent_temperature: float | None = None
    precipitation: float | None = None
    weather_code: int | None = None
    wind_speed_10m: float | None = None


class _Daily(msgspec.Struct):
    """One list for each quantity, as long as `time`."""

    time: list[str]
    weather_code: list[int | None]
    temperature_2m_max: list[float | None]
    temperature_2m_min: list[float | None]
    precipitation_sum: list[float | None]
    precipitation_probability_max: list[float | None]
    wind_speed_10m_max: list[float | None]


class _Weather(msgspec.Struct):
    timezone: str
    current: _Current
    daily: _Daily


class OpenMeteo:
    """Asks Open-Meteo through `http`, which has to allow `OpenMeteo.HOSTS`.

    The two URLs are those of another server that speaks the same: one's own, or a customer's.
    """

    HOSTS: ClassVar[tuple[str, ...]] = ("geocoding-api.open-meteo.com", "api.open-meteo.com")

    def __init__(
        self, http: HttpGetter, *, geocoding: str = GEOCODING, forecast: str = FORECAST
    ) -> None:
        self._http = http
        self._geocoding = geocoding
        self._forecast = forecast

    async def forecast(self, place: str, days: int) -> Forecast:
        found = await self._find(place)
        query = {
            "latitude": f"{found.latitude:.5f}",
            "longitude": f"{found.longitude:.5f}",
            "current": _CURRENT,
            "daily": _DAILY,
            "timezone": "auto",
            "forecast_days": str(days),
            **_UNITS,
        }
        weather = await self._ask(self._forecast, query, _Weather)
        return {
            "place": _shown(found),
            "timezone": _plain(weather.timezone),
            "current": _now(weather.current),
            "days": _days(weather.daily)[:days],
        }

    async def _find(self, place: str) -> _Place:
        """The first place of the name that lies where the rest says. Raises ToolError."""
        name, *regions = (part.strip() for part in _COMMA.split(place))
        if not name:
            raise ToolError(_UNKNOWN_PLACE)
        query = {"name": name, "count": str(_CANDIDATES), "language": "en", "format": "json"}
        places = await self._ask(self._geocoding, query, _Places)
        wanted = {_folded(region) for region in regions if region}
        for found in places.results:
            if wanted <= {_folded(part) for part in _regions(found)}:
                return found
        raise ToolError(_OTHER_REGION if places.results else _UNKNOWN_PLACE)

    async def _ask(self, url: str, query: Mapping[str, str], form: type[T]) -> T:
        """Raises CapabilityError."""
        answer = await self._http.get(url, query)
        if answer.status != 200:
            raise CapabilityError(_TOO_MANY if answer.status == 429 else _FAILED)
        try:
            return msgspec.json.decode(answer.body, type=form)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise CapabilityError(_FOREIGN) from None


def _now(current: _Current) -> CurrentWeather:
    return {
        "time": _plain(current.time),
        "conditions": _conditions(current.weather_code),
        "temperature_celsius": current.temperature_2m,
        "feels_like_celsius": current.apparent_temperature,
        "humidity_percent": current.relative_humidity_2m,
        "precipitation_millimeters": current.precipitation,
        "wind_kilometers_per_hour": current.wind_speed_10m,
    }


def _days(daily: _Daily) -> list[DayWeather]:
    """Raises CapabilityError if the lists are not of one length."""
    columns: Sequence[Sequence[Any]] = msgspec.structs.astuple(daily)
    if len({len(column) for column in columns}) != 1:
        raise CapabilityError(_FOREIGN)
    return [
        {
            "date": _plain(date),
            "conditions": _conditions(code),
            "low_celsius": low,
            "high_celsius": high,
            "precipitation_millimeters": rain,
            "precipitation_probability_percent": chance,
            "strongest_wind_kilometers_per_hour": wind,
        }
        for date, code, high, low, rain, chance, wind in zip(*columns, strict=True)
    ]


def _conditions(code: int | None) -> str:
    return "unknown" if code is None else _CONDITIONS.get(code, "unknown")


def _regions(place: _Place) -> Sequence[str]:
    return place.country, place.country_code, place.admin1, place.admin2


def _shown(place: _Place) -> str:
    """`Paris, Île-de-France, France`."""
    parts = (place.name, place.admin1, place.country)
    return ", ".join(dict.fromkeys(_plain(part) for part in parts if part))


def _plain(text: str) -> str:
    """The service's own text, in a form that a terminal can show."""
    return printable(text[:_LONGEST_NAME])


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    folded = "".join(c for c in decomposed if not unicodedata.combining(c)).casefold()
    return _CODES.get(folded, folded)
