"""For tests of programs that use toolcrib: a scripted model, a loopback server, cassettes."""

from toolcrib.testing.cassettes import Cassette, cassette
from toolcrib.testing.emulator import ToolEmulator
from toolcrib.testing.scripted import (
    MemorySink,
    OpenAIServer,
    ScriptedCall,
    ScriptedClient,
    call,
    cut,
    die_after,
    http_error,
    openai_server,
    raw,
    raw_call,
)

__all__ = [
    "Cassette",
    "MemorySink",
    "OpenAIServer",
    "ScriptedCall",
    "ScriptedClient",
    "ToolEmulator",
    "call",
    "cassette",
    "cut",
    "die_after",
    "http_error",
    "openai_server",
    "raw",
    "raw_call",
]
