"""Running tools: policy, approval, time limits, redaction, records."""

from toolcrib.runner.approval import TerminalApprover, approval_request
from toolcrib.runner.policy import Policy, budget, deny_by_default, require_roles, standard
from toolcrib.runner.runner import ToolRunner
from toolcrib.runner.scope import CallScope

__all__ = [
    "CallScope",
    "Policy",
    "TerminalApprover",
    "ToolRunner",
    "approval_request",
    "budget",
    "deny_by_default",
    "require_roles",
    "standard",
]
