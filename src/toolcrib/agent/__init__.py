"""The loop: agents, sessions, and streams of events."""

from toolcrib.agent.agent import Agent
from toolcrib.agent.context import WINDOWS, ContextOptions
from toolcrib.agent.results import ResultStore
from toolcrib.agent.session import Session
from toolcrib.agent.stream import RunStream, run_sync

__all__ = ["WINDOWS", "Agent", "ContextOptions", "ResultStore", "RunStream", "Session", "run_sync"]
