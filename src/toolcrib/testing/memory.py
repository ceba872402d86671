"""A sink that keeps records in memory."""

from __future__ import annotations

from toolcrib.values.origin import Attachment
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunRecord

_ENDS = ("completed", "failed", "waiting")


class MemorySink:
    """All records that were written, in order: one for each call, when it is over.

    `attachments` are the definitions, prompts and choices of tools that the records refer to; `runs`
    says of each run of an agent that it began, and how it ended.
    """

    def __init__(self) -> None:
        self.records: list[ToolInvocationRecord] = []
        self.attachments: list[Attachment] = []
        self.runs: list[RunRecord] = []

    def write_run(self, record: RunRecord) -> None:
        self.runs.append(record)

    def attach(self, attachment: Attachment) -> None:
        self.attachments.append(attachment)

    def write(self, record: ToolInvocationRecord) -> None:
        self.records.append(record)

    def finished(self) -> list[ToolInvocationRecord]:
        """Return the records that say how a call ended, or that it waits."""
        return [record for record in self.records if record.status in _ENDS]
