"""Ready-made approvers: at the terminal, or stored until somebody answers."""

from toolcrib.runner.approval_store import ApprovalStore
from toolcrib.runner.approval_terminal import TerminalApprover

__all__ = ["ApprovalStore", "TerminalApprover"]
