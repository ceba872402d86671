"""The record of what happened to every call, for later questions and for live telemetry."""

from toolcrib.audit.checkpoint import (
    Checkpoint,
    Checkpoints,
    PublicKey,
    SigningKey,
    verify_inclusion,
)
from toolcrib.audit.entry import AuditEntry, AuditFilter, Fault, Head, Verification
from toolcrib.audit.log import AuditLog, verify_jsonl
from toolcrib.audit.otel import OpenTelemetry
from toolcrib.values.record import Attachment, Candidate, Choice, Origin
from toolcrib.values.run import RunRecord

__all__ = [
    "Attachment",
    "AuditEntry",
    "AuditFilter",
    "AuditLog",
    "Candidate",
    "Checkpoint",
    "Checkpoints",
    "Choice",
    "Fault",
    "Head",
    "OpenTelemetry",
    "Origin",
    "PublicKey",
    "RunRecord",
    "SigningKey",
    "Verification",
    "verify_inclusion",
    "verify_jsonl",
]
