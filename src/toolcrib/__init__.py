"""toolcrib: the crib where an agent's tools are kept, picked, checked, run and written down."""

from toolcrib.agent import Agent, RunStream, Session, run_sync
from toolcrib.errors import ErrorCode, ToolError
from toolcrib.hydration import hydrate, repair
from toolcrib.pick import PickOptions, PickResult, pick_tools
from toolcrib.runner import Policy, ToolRunner
from toolcrib.schema import bundle_refs
from toolcrib.tools import (
    Catalog,
    Injected,
    ReadOnly,
    Tool,
    ToolComponent,
    Trusted,
    capability,
    discover,
    function_to_tool_definition,
    get_definition,
    per_call,
    tool,
)
from toolcrib.values.call import Hydrated, HydrationResult, Rejected, ToolCall
from toolcrib.values.context import CallContext, PolicyContext
from toolcrib.values.decision import (
    Allow,
    ApprovalRequest,
    Approve,
    Approver,
    Ask,
    Caller,
    Deny,
    Refuse,
)
from toolcrib.values.definition import ALL, ToolDefinition
from toolcrib.values.event import (
    ApprovalRequested,
    Done,
    Event,
    RunError,
    RunStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
    ToolsOffered,
    UsageReported,
)
from toolcrib.values.message import Message, Reply, Usage
from toolcrib.values.offer import Offer
from toolcrib.values.record import Completed, Failed, ToolInvocationRecord, Waiting
from toolcrib.values.run import Limits, RunResult, RunState

__all__ = [
    "ALL",
    "Agent",
    "Allow",
    "ApprovalRequest",
    "ApprovalRequested",
    "Approve",
    "Approver",
    "Ask",
    "CallContext",
    "Caller",
    "Catalog",
    "Completed",
    "Deny",
    "Done",
    "ErrorCode",
    "Event",
    "Failed",
    "Hydrated",
    "HydrationResult",
    "Injected",
    "Limits",
    "Message",
    "Offer",
    "PickOptions",
    "PickResult",
    "Policy",
    "PolicyContext",
    "ReadOnly",
    "Refuse",
    "Rejected",
    "Reply",
    "RunError",
    "RunResult",
    "RunStarted",
    "RunState",
    "RunStream",
    "Session",
    "TextDelta",
    "Tool",
    "ToolArgumentsDelta",
    "ToolCall",
    "ToolCallFinished",
    "ToolCallProgress",
    "ToolCallStarted",
    "ToolComponent",
    "ToolDefinition",
    "ToolError",
    "ToolInvocationRecord",
    "ToolRunner",
    "ToolsOffered",
    "Trusted",
    "Usage",
    "UsageReported",
    "Waiting",
    "bundle_refs",
    "capability",
    "discover",
    "function_to_tool_definition",
    "get_definition",
    "hydrate",
    "per_call",
    "pick_tools",
    "repair",
    "run_sync",
    "tool",
]
