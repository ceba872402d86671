"""The weather at a place. A weather service's data comes from outside, which taints the run."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec
from typing_extensions import TypedDict

from toolcrib.errors import CapabilityError, ToolError
from toolcrib.kit.files import printable
from toolcrib.kit.http import HttpGetter
from toolcrib.tools import capability, tool
from toolcrib.values.typed import names_wrong_types

_MAX_DAYS = 7
_LONGEST_PLACE = 100


class CurrentWeather(TypedDict):
    """Now, or within the last quarter of an hour; `time` is local. None for what is not known."""

    time: str
    conditions: str
    temperature_celsius: float | None
    feels_like_celsius: float | None
    humidity_percent: float | None
    precipitation_millimeters: float | None
    wind_kilometers_per_hour: float | None


class DayWeather(TypedDict):
    """A day in local time, `date` in ISO 8601; the precipitation is the day's sum."""

    date: str
    conditions: str
    low_celsius: float | None
    high_celsius: float | None
    precipitation_millimeters: float | None
    precipitation_probability_percent: float | None
    strongest_wind_kilometers_per_hour: float | None


class Forecast(TypedDict):
    """`place` is the one that was found, with its region and country; `days` begin with today."""

    place: str
    timezone: str
    current: CurrentWeather
    days: list[DayWeather]


@capability
class WeatherService(Protocol):
    """Looks up the weather at a place."""

    async def forecast(self, place: str, days: int) -> Forecast:
        """Return the weather now, today and on the following days: `days` in total, 1 to 7.

        Raises ToolError for an unknown place, and CapabilityError if the service gives no answer.
        """


@tool(
    visible=["place", "timezone", "current", "days"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=30,
    tags=["weather", "forecast", "temperature"],
    examples=[  # in the cities of `current_time`, so that a city alone suggests neither
        ("What's the weather like in Paris?", {"place": "Paris"}),
        ("Will it rain tomorrow in Sydney?", {"place": "Sydney"}),
        ("How warm is it in Cairo right now?", {"place": "Cairo"}),
        ("Give me the 7 day forecast for Berlin", {"place": "Berlin", "days": 7}),
        ("Weather in Paris, Texas", {"place": "Paris, Texas"}),
        ("Is it snowing in New York?", {"place": "New York"}),
        ("Do I need an umbrella in Hong Kong today?", {"place": "Hong Kong"}),
        ("How windy will it get in Los Angeles?", {"place": "Los Angeles"}),
        (
            "Forecast for the next 5 days in Berlin, Germany",
            {"place": "Berlin, Germany", "days": 5},
        ),
        ("temperature outside in Sydney", {"place": "Sydney"}),
        ("Is it sunny in Los Angeles today?", {"place": "Los Angeles"}),
    ],
)
async def get_weather(place: str, days: int = 3, *, service: WeatherService) -> Forecast:
    """Get the current weather and the forecast for a place: temperature, rain, snow, wind.

    Args:
        place: A city or a postal code, where needed with a region or country: Portland, Maine.
        days: How many days to forecast, today included: 1 to 7.
    """
    if not place.strip() or len(place) > _LONGEST_PLACE:
        raise ToolError(f"place must be a name of 1 to {_LONGEST_PLACE} characters")
    if not 1 <= days <= _MAX_DAYS:
        raise ToolError(f"days must be 1 to {_MAX_DAYS}, today included")
    return await service.forecast(place, days)


# Open-Meteo as a `WeatherService`: one request finds the place, another one asks for its weather.
#
# The wire is described in open-meteo.com/en/docs and open-meteo.com/en/docs/geocoding-api. The
# words for the WMO codes come from the first. It needs no key. Without one it is free for
# non-commercial use, and asks to be named where its data (CC BY 4.0) is shown.

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
_CANDIDATES = 20  # places to find the region among; the service ranks the largest first
_LONGEST_NAME = 100
_COMMA = re.compile("[,\N{ARABIC COMMA}\N{IDEOGRAPHIC COMMA}\N{FULLWIDTH COMMA}]")
_COUNTRY_CODES = {"usa": "us", "uk": "gb"}  # what people say in place of a country code
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

_UNKNOWN_PLACE = "no place with that name is known: give a city, and a region or country if need be"
_OTHER_REGION = (
    "no place with that name is there: write the region or the country in full, or leave it out"
)
_FAILED = "the weather service failed: try again later"
_TOO_MANY = "the weather service gets too many requests: try again later"
_UNREADABLE = "the weather service gave an answer that cannot be read"


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
    """`results` is missing if nothing was found."""

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
    """Daily values: one list for each quantity, as long as `time`."""

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

    The two URLs may be those of another server that speaks the same wire, such as your own or a
    customer's.
    """

    HOSTS: ClassVar[tuple[str, ...]] = ("geocoding-api.open-meteo.com", "api.open-meteo.com")

    @names_wrong_types
    def __init__(
        self, http: HttpGetter, *, geocoding: str = GEOCODING, forecast: str = FORECAST
    ) -> None:
        self._http = http
        self._geocoding = geocoding
        self._forecast = forecast

    async def forecast(self, place: str, days: int) -> Forecast:
        location = await self._find_place(place)
        query = {
            "latitude": f"{location.latitude:.5f}",
            "longitude": f"{location.longitude:.5f}",
            "current": _CURRENT,
            "daily": _DAILY,
            "timezone": "auto",
            "forecast_days": str(days),
            **_UNITS,
        }
        weather = await self._request(self._forecast, query, _Weather)
        return {
            "place": _place_text(location),
            "timezone": _plain(weather.timezone),
            "current": _current_weather(weather.current),
            "days": _daily_weather(weather.daily)[:days],
        }

    async def _find_place(self, place: str) -> _Place:
        """Return the first place of this name where the rest of the text says. Raises ToolError."""
        name, *regions = (part.strip() for part in _COMMA.split(place))
        if not name:
            raise ToolError(_UNKNOWN_PLACE)
        query = {"name": name, "count": str(_CANDIDATES), "language": "en", "format": "json"}
        places = await self._request(self._geocoding, query, _Places)
        wanted_regions = {_folded(region) for region in regions if region}
        for candidate in places.results:
            parts = (candidate.country, candidate.country_code, candidate.admin1, candidate.admin2)
            if wanted_regions <= {_folded(part) for part in parts}:
                return candidate
        raise ToolError(_OTHER_REGION if places.results else _UNKNOWN_PLACE)

    async def _request(self, url: str, query: Mapping[str, str], answer_type: type[T]) -> T:
        """Ask the service. Raises CapabilityError."""
        answer = await self._http.get(url, query)
        if answer.status != 200:
            raise CapabilityError(_TOO_MANY if answer.status == 429 else _FAILED)
        try:
            return msgspec.json.decode(answer.body, type=answer_type)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise CapabilityError(_UNREADABLE) from None


def _current_weather(current: _Current) -> CurrentWeather:
    return {
        "time": _plain(current.time),
        "conditions": _conditions(current.weather_code),
        "temperature_celsius": current.temperature_2m,
        "feels_like_celsius": current.apparent_temperature,
        "humidity_percent": current.relative_humidity_2m,
        "precipitation_millimeters": current.precipitation,
        "wind_kilometers_per_hour": current.wind_speed_10m,
    }


def _daily_weather(daily: _Daily) -> list[DayWeather]:
    """Raise CapabilityError if the lists have different lengths."""
    columns: Sequence[Sequence[Any]] = msgspec.structs.astuple(daily)
    if len({len(column) for column in columns}) != 1:
        raise CapabilityError(_UNREADABLE)
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


def _place_text(place: _Place) -> str:
    """Write a place as `Paris, Île-de-France, France`."""
    parts = (place.name, place.admin1, place.country)
    return ", ".join(dict.fromkeys(_plain(part) for part in parts if part))


def _plain(text: str) -> str:
    """Return the service's own text in a form that a terminal can show."""
    return printable(text[:_LONGEST_NAME])


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    folded = "".join(c for c in decomposed if not unicodedata.combining(c)).casefold()
    return _COUNTRY_CODES.get(folded, folded)
