"""The loop: agents, sessions, streams of events."""

from toolcrib.agent.agent import Agent, Session
from toolcrib.agent.context import WINDOWS, Context
from toolcrib.agent.results import ResultStore
from toolcrib.agent.stream import RunStream, run_sync

__all__ = ["WINDOWS", "Agent", "Context", "ResultStore", "RunStream", "Session", "run_sync"]
