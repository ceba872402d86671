"""Running tools: policy, approval, time limits, redaction, records."""

from toolcrib.runner.approval import approval_request
from toolcrib.runner.policy import Policy
from toolcrib.runner.runner import ToolRunner
from toolcrib.runner.scope import CallScope, is_tainted_here

__all__ = ["CallScope", "Policy", "ToolRunner", "approval_request", "is_tainted_here"]
