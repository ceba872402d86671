"""Hydration: parse, resolve, validate and instantiate a tool call; repair its arguments once."""

from toolcrib.hydration.hydrate import OtherArguments, added_to, hydrate, instance_of
from toolcrib.hydration.parse import Parsed, ParseFailure, parse_arguments, parse_json
from toolcrib.hydration.repair import (
    ModelRepairer,
    Repairer,
    RepairRequest,
    Sanitizer,
    check_repairer,
    repair,
    repairable,
)

__all__ = [
    "ModelRepairer",
    "OtherArguments",
    "ParseFailure",
    "Parsed",
    "RepairRequest",
    "Repairer",
    "Sanitizer",
    "added_to",
    "check_repairer",
    "hydrate",
    "instance_of",
    "parse_arguments",
    "parse_json",
    "repair",
    "repairable",
]
