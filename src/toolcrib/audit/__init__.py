"""What became of every call, kept: for whoever asks later, and for whoever watches now."""

from toolcrib.audit.entry import AuditEntry, AuditFilter, Fault, Head, Verification
from toolcrib.audit.log import AuditLog, verify_jsonl
from toolcrib.audit.otel import OpenTelemetry

__all__ = [
    "AuditEntry",
    "AuditFilter",
    "AuditLog",
    "Fault",
    "Head",
    "OpenTelemetry",
    "Verification",
    "verify_jsonl",
]
