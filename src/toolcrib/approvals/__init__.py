"""Ready-made approvers: at the terminal, or stored until somebody answers."""

from toolcrib.approvals.store import ApprovalStore
from toolcrib.approvals.terminal import TerminalApprover

__all__ = ["ApprovalStore", "TerminalApprover"]
