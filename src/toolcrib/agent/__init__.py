"""The loop: agents, sessions, streams of events."""

from toolcrib.agent.agent import Agent, Session
from toolcrib.agent.stream import RunStream, run_sync

__all__ = ["Agent", "RunStream", "Session", "run_sync"]
