"""Running tools: policy, approval, time limits, redaction, records."""

from toolcrib.runner.approval import approval_request
from toolcrib.runner.policy import Policy
from toolcrib.runner.runner import ToolRunner
from toolcrib.runner.running import is_tainted_here
from toolcrib.values.context import CallScope

__all__ = ["CallScope", "Policy", "ToolRunner", "approval_request", "is_tainted_here"]
