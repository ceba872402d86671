"""An approver that leaves every question open: the run waits, and is resumed with an answer."""

from __future__ import annotations

from toolcrib.values.decision import Answer, ApprovalRequest


async def answer_later(_request: ApprovalRequest) -> Answer | None:
    """Answer nothing: the call waits, and its run ends as `waiting`, with the question in `pending`.

    For agents whose runs are resumed by `Agent.resume(state, answers)`, as a web page does.
    """
    return None
