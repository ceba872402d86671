"""toolcrib: the crib where an agent's tools are kept, picked, checked, run and written down.

A name is imported when it is first used: a program that has tools and no agent loads no clients, no
wires and no scorers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolcrib.agent import Agent, ContextOptions, ResultStore, RunStream, Session, run_sync
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
        per_run,
        tool,
        toolset,
    )
    from toolcrib.values.call import Hydrated, HydrationResult, Rejected, ToolCall
    from toolcrib.values.content import File, Image, Link, ToolContent
    from toolcrib.values.context import CallContext, PolicyContext, StepRunner
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
    from toolcrib.values.message import Message, Offer, Reply, Usage
    from toolcrib.values.record import Completed, Failed, ToolInvocationRecord, Waiting
    from toolcrib.values.run import (
        ApprovalRequested,
        Done,
        Event,
        HandedOver,
        Limits,
        PartialOutput,
        ReasoningDelta,
        ReplyFinished,
        RunError,
        RunInfo,
        RunResult,
        RunStarted,
        RunState,
        TextDelta,
        ToolArgumentsDelta,
        ToolCallFinished,
        ToolCallProgress,
        ToolCallStarted,
        ToolsOffered,
        UsageReported,
    )

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
    "ContextOptions",
    "Deny",
    "Done",
    "ErrorCode",
    "Event",
    "Failed",
    "File",
    "HandedOver",
    "Hydrated",
    "HydrationResult",
    "Image",
    "Injected",
    "Limits",
    "Link",
    "Message",
    "Offer",
    "PartialOutput",
    "PickOptions",
    "PickResult",
    "Policy",
    "PolicyContext",
    "ReadOnly",
    "ReasoningDelta",
    "Refuse",
    "Rejected",
    "Reply",
    "ReplyFinished",
    "ResultStore",
    "RunError",
    "RunInfo",
    "RunResult",
    "RunStarted",
    "RunState",
    "RunStream",
    "Session",
    "StepRunner",
    "TextDelta",
    "Tool",
    "ToolArgumentsDelta",
    "ToolCall",
    "ToolCallFinished",
    "ToolCallProgress",
    "ToolCallStarted",
    "ToolComponent",
    "ToolContent",
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
    "per_run",
    "pick_tools",
    "repair",
    "run_sync",
    "tool",
    "toolset",
]

# The module of each name: the same as above, which only type checkers read.
_NAMES = {
    "agent": "Agent ContextOptions ResultStore RunStream Session run_sync",
    "errors": "ErrorCode ToolError",
    "hydration": "hydrate repair",
    "pick": "PickOptions PickResult pick_tools",
    "runner": "Policy ToolRunner",
    "schema": "bundle_refs",
    "tools": (
        "Catalog Injected ReadOnly Tool ToolComponent Trusted capability discover "
        "function_to_tool_definition get_definition per_call per_run tool toolset"
    ),
    "values.call": "Hydrated HydrationResult Rejected ToolCall",
    "values.content": "File Image Link ToolContent",
    "values.context": "CallContext PolicyContext StepRunner",
    "values.decision": "Allow ApprovalRequest Approve Approver Ask Caller Deny Refuse",
    "values.definition": "ALL ToolDefinition",
    "values.message": "Message Offer Reply Usage",
    "values.record": "Completed Failed ToolInvocationRecord Waiting",
    "values.run": (
        "ApprovalRequested Done Event HandedOver Limits PartialOutput ReasoningDelta ReplyFinished "
        "RunError RunInfo RunResult RunStarted RunState TextDelta ToolArgumentsDelta ToolCallFinished "
        "ToolCallProgress ToolCallStarted ToolsOffered UsageReported"
    ),
}
_HOMES = {name: f"toolcrib.{home}" for home, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
