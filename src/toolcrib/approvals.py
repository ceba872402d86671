"""Ready-made approvers: at the terminal, or stored until somebody answers."""

from toolcrib.runner.approval import TerminalApprover
from toolcrib.runner.approval_store import ApprovalStore

__all__ = ["ApprovalStore", "TerminalApprover"]
