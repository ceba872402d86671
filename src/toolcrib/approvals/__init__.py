"""Ready-made approvers: at the terminal, stored until somebody answers, or left open."""

from toolcrib.approvals.later import answer_later
from toolcrib.approvals.store import ApprovalStore
from toolcrib.approvals.terminal import TerminalApprover

__all__ = ["ApprovalStore", "TerminalApprover", "answer_later"]
