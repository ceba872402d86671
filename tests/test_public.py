"""The public surface: what users import, and nothing else."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rows import each_row

import toolcrib

PACKAGE = Path(toolcrib.__file__).parent
PUBLIC = [
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
ROOMS = {
    "toolcrib.approvals": [
        "Always",
        "ApprovalRule",
        "ApprovalStore",
        "KeptRule",
        "TerminalApprover",
    ],
    "toolcrib.audit": ["AuditEntry", "AuditFilter", "AuditLog", "OpenTelemetry", "verify_jsonl"],
    "toolcrib.hydration": ["ModelRepairer", "Repairer", "RepairRequest", "Sanitizer", "repair"],
    "toolcrib.policies": [
        "CountingPolicy",
        "Policy",
        "ReservingPolicy",
        "Standard",
        "ask",
        "budget",
        "deny_by_default",
        "rate_limit",
        "require_roles",
        "standard",
    ],
    "toolcrib.spending": ["SpendStore"],
    "toolcrib.clients": [
        "AnthropicClient",
        "BedrockClient",
        "CohereClient",
        "GeminiClient",
        "LLMClient",
        "LocalClient",
        "MistralClient",
        "OllamaClient",
        "OpenAIClient",
        "Retries",
        "Settings",
        "SigningTransport",
        "Timeouts",
        "Transport",
        "WireClient",
        "client_for",
        "cost_of",
        "fallback",
    ],
    "toolcrib.wire": [
        "OPENAI_CHAT",
        "ChatRequest",
        "Decoder",
        "HttpRequest",
        "Wire",
        "decode",
        "decoder",
        "detect",
        "encode",
        "encode_tools",
    ],
    "toolcrib.testing": ["MemorySink", "ScriptedClient", "call", "cassette", "openai_server"],
    "toolcrib.durable": ["DurableAgents", "StoredRun"],
    "toolcrib.errors": ["ErrorCode", "ToolError", "ToolcribError"],
    "toolcrib.kit": ["catalog"],
    "toolcrib.bridges.openapi": ["ApiServer", "HttpApi", "openapi_catalog"],
}


def test_the_public_names_are_pinned_and_sorted() -> None:
    assert list(toolcrib.__all__) == PUBLIC
    assert sorted(toolcrib.__all__) == list(toolcrib.__all__)
    assert all(hasattr(toolcrib, name) for name in toolcrib.__all__)


def test_each_name_is_imported_from_where_type_checkers_see_it() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (seen,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and not node.orelse and node.lineno < 20
    )
    imports = [node for node in seen.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert homes == toolcrib._HOMES
    assert sorted(homes) == PUBLIC
    assert set(PUBLIC) <= set(dir(toolcrib))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = toolcrib.nothing  # type: ignore[attr-defined]


def modules_after(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_tools_and_a_runner_load_no_clients_wires_or_scorers() -> None:
    loaded = modules_after(
        "from toolcrib import ALL, ToolRunner, tool\n"
        "@tool(visible=ALL)\n"
        "def count(words: list[str], least: int = 1) -> dict[str, int]:\n"
        "    'Count words.'\n"
    )
    rooms = (
        "toolcrib.agent",
        "toolcrib.clients",
        "toolcrib.wire",
        "toolcrib.pick",
        "pydantic.types",
    )
    assert [room for room in rooms if room in loaded] == []


@each_row("module", ROOMS)
def test_the_rooms_that_users_import_have_what_the_docs_promise(module: str) -> None:
    room = importlib.import_module(module)
    assert [name for name in ROOMS[module] if not hasattr(room, name)] == []


MAY_IMPORT_IT = re.compile(
    r"from\s+toolcrib\s+import|^[ \t]+(?:from|import)\b.*toolcrib", re.MULTILINE
)


@each_row("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_the_inside_does_not_import_the_front_door(path: Path) -> None:
    """Imports from `toolcrib` itself would tie every room to every other."""
    text = path.read_text(encoding="utf-8")
    if not MAY_IMPORT_IT.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "toolcrib":
            names = {alias.name for alias in node.names}
            assert all((PACKAGE / name).exists() or name == "kit" for name in names), names
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
            assert not any("toolcrib" in ast.unparse(n) for n in inner), node.name


def test_the_core_imports_no_extra() -> None:
    loaded = modules_after(
        "import toolcrib, toolcrib.approvals, toolcrib.audit, toolcrib.policies, toolcrib.spending\n"
        "for name in toolcrib.__all__: getattr(toolcrib, name)"
    )
    extras = (
        "aiohttp", "typer", "rich", "numpy", "wordllama", "xllamacpp", "pint", "simpleeval",
        "sqlalchemy", "psycopg", "limits", "opentelemetry", "tenacity", "botocore", "genai_prices",
        "cryptography",
    )  # fmt: skip
    assert [module for module in extras if module in loaded] == []
