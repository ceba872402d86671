"""For tests of what is built with toolcrib: a scripted model, a loopback server, cassettes."""

from toolcrib.testing.cassettes import Cassette, cassette
from toolcrib.testing.loopback import (
    OpenAIServer,
    cut,
    die_after,
    http_error,
    openai_server,
    raw,
)
from toolcrib.testing.memory import MemorySink
from toolcrib.testing.scripted import ScriptedCall, ScriptedClient, call, raw_call

__all__ = [
    "Cassette",
    "MemorySink",
    "OpenAIServer",
    "ScriptedCall",
    "ScriptedClient",
    "call",
    "cassette",
    "cut",
    "die_after",
    "http_error",
    "openai_server",
    "raw",
    "raw_call",
]
