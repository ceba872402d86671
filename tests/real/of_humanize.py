"""humanize: Google's docstring style; hinted with names that it imports for type checkers only."""

from __future__ import annotations

import datetime
import gettext
import os
from collections.abc import Callable, Iterable
from typing import Any

import humanize
from real.hinted import Case, Refusal, resolved

_NAMES = {
    "Any": Any,
    "Callable": Callable,
    "Iterable": Iterable,
    "NumberOrString": float | str,
    "dt": datetime,
    "os": os,
    "gettext_module": gettext,
}
_DAY = datetime.date(2007, 6, 5)
_NOON = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
_EARLIER = "2026-03-01T11:57:00Z"
_LATER = datetime.timedelta(days=2, seconds=3633)

CASES = (
    Case(
        resolved(humanize.apnumber, _NAMES),
        {"value": 5},
        lambda: humanize.apnumber(5),
    ),
    Case(humanize.deactivate, {}, humanize.deactivate),
    Case(humanize.decimal_separator, {}, humanize.decimal_separator),
    Case(resolved(humanize.fractional, _NAMES), {"value": 0.3}, lambda: humanize.fractional(0.3)),
    Case(
        resolved(humanize.intcomma, _NAMES),
        {"value": "1234.5454545", "ndigits": 2},
        lambda: humanize.intcomma("1234.5454545", 2),
    ),
    Case(
        resolved(humanize.intword, _NAMES),
        {"value": 1234000, "format": "%0.3f"},
        lambda: humanize.intword(1234000, "%0.3f"),
    ),
    Case(
        humanize.metric,
        {"value": 1500, "unit": "V"},
        lambda: humanize.metric(1500, "V"),
    ),
    Case(
        resolved(humanize.natural_list, _NAMES),
        {"items": ["one", 2, "three"]},
        lambda: humanize.natural_list(["one", 2, "three"]),
    ),
    Case(
        resolved(humanize.naturaldate, _NAMES),
        {"value": "2007-06-05"},
        lambda: humanize.naturaldate(_DAY),
    ),
    Case(
        resolved(humanize.naturalday, _NAMES),
        {"value": "2007-06-05", "format": "%d %b"},
        lambda: humanize.naturalday(_DAY, "%d %b"),
    ),
    Case(
        resolved(humanize.naturaldelta, _NAMES),
        {"value": "P2DT1H0M33S", "minimum_unit": "seconds"},
        lambda: humanize.naturaldelta(_LATER),
    ),
    Case(
        humanize.naturalsize,
        {"value": 3000000, "binary": True},
        lambda: humanize.naturalsize(3000000, binary=True),
    ),
    Case(
        resolved(humanize.naturaltime, _NAMES),
        {"value": _EARLIER, "when": "2026-03-01T12:00:00Z"},
        lambda: humanize.naturaltime(_NOON - datetime.timedelta(minutes=3), when=_NOON),
    ),
    Case(
        resolved(humanize.ordinal, _NAMES),
        {"value": 103, "gender": "female"},
        lambda: humanize.ordinal(103, "female"),
    ),
    Case(
        resolved(humanize.precisedelta, _NAMES),
        {"value": "P2DT1H0M33S", "suppress": ["days"]},
        lambda: humanize.precisedelta(_LATER, suppress=["days"]),
    ),
    Case(
        resolved(humanize.scientific, _NAMES),
        {"value": 12345, "precision": 3},
        lambda: humanize.scientific(12345, 3),
    ),
    Case(humanize.thousands_separator, {}, humanize.thousands_separator),
)

REFUSED = (
    Refusal(humanize.intword, ("intword", "'value'", "NumberOrString")),
    Refusal(resolved(humanize.activate, _NAMES), ("activate", "return type")),
    Refusal(resolved(humanize.clamp, _NAMES), ("clamp", "'format'", "JSON has no callable")),
)
