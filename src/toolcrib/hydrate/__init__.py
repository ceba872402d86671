"""Hydration: parse, resolve, validate and instantiate a tool call; repair its arguments once."""

from toolcrib.hydrate.hydrate import hydrate
from toolcrib.hydrate.parse import Parsed, ParseFailure, parse_arguments
from toolcrib.hydrate.repair import Repairer, RepairRequest, repair, repairable

__all__ = [
    "ParseFailure",
    "Parsed",
    "RepairRequest",
    "Repairer",
    "hydrate",
    "parse_arguments",
    "repair",
    "repairable",
]
