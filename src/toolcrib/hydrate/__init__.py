"""Hydration: parse, resolve, validate and instantiate a tool call."""

from toolcrib.hydrate.hydrate import hydrate
from toolcrib.hydrate.parse import Parsed, ParseFailure, parse_arguments

__all__ = ["ParseFailure", "Parsed", "hydrate", "parse_arguments"]
