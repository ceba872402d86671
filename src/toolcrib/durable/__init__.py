"""Runs that outlive their process, their machine and the weekend. Needs the extra `durable`."""

from toolcrib.durable.agents import DurableAgents
from toolcrib.durable.store import STATUSES, StoredRun, StoredStatus

__all__ = ["STATUSES", "DurableAgents", "StoredRun", "StoredStatus"]
