"""The weather at a place. What a weather service says is data from outside: it taints the run."""

from __future__ import annotations

from typing import Protocol

from typing_extensions import TypedDict

from toolcrib.errors import ToolError
from toolcrib.tools import capability, tool

_MOST_DAYS = 7
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
    """What knows the weather."""

    async def forecast(self, place: str, days: int) -> Forecast:
        """Now, today and the days after it: `days` in all, 1 to 7.

        Raises ToolError for a place that is not known, CapabilityError if the service gives no answer.
        """


@tool(
    visible=["place", "timezone", "current", "days"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=30,
    tags=["weather", "forecast", "temperature"],
    examples=[  # in the cities of `current_time`: a city alone is to speak for neither
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
async def get_weather(
    place: str,
    days: int = 3,
    *,
    service: WeatherService,
) -> Forecast:
    """Get the current weather and the forecast for a place: temperature, rain, snow, wind.

    Args:
        place: A city or a postal code, where needed with a region or country: Portland, Maine.
        days: How many days to forecast, today included: 1 to 7.
    """
    if not place.strip() or len(place) > _LONGEST_PLACE:
        raise ToolError(f"place has to be a name of 1 to {_LONGEST_PLACE} characters")
    if not 1 <= days <= _MOST_DAYS:
        raise ToolError(f"days has to be 1 to {_MOST_DAYS}, today included")
    return await service.forecast(place, days)
