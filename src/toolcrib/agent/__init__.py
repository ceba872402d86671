"""The loop: agents, sessions, streams of events."""

from toolcrib.agent.agent import Agent
from toolcrib.agent.session import Session
from toolcrib.agent.stream import RunStream
from toolcrib.agent.sync import run_sync

__all__ = ["Agent", "RunStream", "Session", "run_sync"]
