"""Runs that outlive their process, their machine and the weekend. Needs the extra `durable`."""

from toolcrib.durable.agents import DurableAgents
from toolcrib.durable.store import StoredRun, StoredStatus

__all__ = ["DurableAgents", "StoredRun", "StoredStatus"]
