"""Classes of another module: their hints mean something else, or nothing, where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal as Money


@dataclass(frozen=True)
class Stay:
    """A stay in a hotel."""

    arrival: date
    price: Money
