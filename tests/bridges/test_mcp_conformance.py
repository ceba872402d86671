"""What the official conformance suite says of our server, and what its inspector can do with it.

Each exception is listed here with its reason, and nothing else fails: a check that passes again has to
be taken out of the list.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bridges.mcp_suite import MCP, NODE, OURS, judged, serving, suite
from conftest import ROOT

pytestmark = pytest.mark.exhaustive  # real programs, for seconds each

NO_RESOURCES = "a catalog has tools: it has no resources"
NO_PROMPTS = "a catalog has tools: it has no prompts"
NO_COMPLETION = "completion is about the arguments of prompts and of templates of resources"
NO_LOGGING = "logging is not served: the protocol has deprecated it (SEP-2577)"

FAILS = {
    "completion-complete": {"completion-complete": NO_COMPLETION},
    "resources-list": {"resources-list": NO_RESOURCES},
    "resources-read-text": {"resources-read-text": NO_RESOURCES},
    "resources-read-binary": {"resources-read-binary": NO_RESOURCES},
    "resources-templates-read": {"resources-templates-read": NO_RESOURCES},
    "prompts-list": {"prompts-list": NO_PROMPTS},
    "prompts-get-simple": {"prompts-get-simple": NO_PROMPTS},
    "prompts-get-with-args": {"prompts-get-with-args": NO_PROMPTS},
    "prompts-get-embedded-resource": {"prompts-get-embedded-resource": NO_PROMPTS},
    "prompts-get-with-image": {"prompts-get-with-image": NO_PROMPTS},
}
BEFORE_2026 = {
    **FAILS,
    "logging-set-level": {"logging-set-level": NO_LOGGING},
    "tools-call-with-logging": {"tools-call-with-logging": NO_LOGGING},
    "resources-subscribe": {"resources-subscribe": NO_RESOURCES},
    "resources-unsubscribe": {"resources-unsubscribe": NO_RESOURCES},
}
FROM_2026 = {
    **FAILS,
    "caching": {
        "sep-2549-prompts-list-caching-hints": NO_PROMPTS,
        "sep-2549-resources-list-caching-hints": NO_RESOURCES,
        "sep-2549-resources-templates-list-caching-hints": NO_RESOURCES,
    },
    "input-required-result-non-tool-request": {"sep-2322-non-tool-incomplete": NO_PROMPTS},
}
WARNS = {
    "server-sse-": "a broken stream is not resumed: no events are stored",
    "sep-2164-": NO_RESOURCES,
    "sep-2322-ignore-unexpected-params": "answers count only with the state of the question",
}


TASKS = {
    "tasks-required-task-error": {
        "sep-2663-server-returns-missing-capability-when-required": "no tool has to be a task: "
        "a client that takes none waits for the result"
    }
}
EXPECTED = {
    "": BEFORE_2026,
    "2025-03-26": {},
    "2025-06-18": BEFORE_2026,
    "2025-11-25": BEFORE_2026,
    "2026-07-28": FROM_2026,
    "tasks": TASKS,
}
LEAST = {"": 32, "2025-03-26": 1, "2025-06-18": 26, "2025-11-25": 33, "2026-07-28": 40, "tasks": 10}


@pytest.mark.parametrize("version", EXPECTED)
def test_all_that_concerns_tools_passes(version: str, tmp_path: Path) -> None:
    if suite(version) is None:
        pytest.skip("the conformance suite of npm: run `make mcp-servers`")
    with serving(OURS, tmp_path / "log") as url:
        found = judged(url, tmp_path / "out", version)
    failed = {name: set(one.failed) for name, one in found.items() if one.failed}
    assert failed == {name: set(checks) for name, checks in EXPECTED[version].items()}
    assert len(found) >= LEAST[version]
    warned = [check for one in found.values() for check in one.warned]
    assert [check for check in warned if not check.startswith(tuple(WARNS))] == []


INSPECTOR = (
    MCP / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
)
SHOP = '''
from toolcrib import ALL, tool


@tool(visible=ALL, read_only=True)
def stock(item: str) -> dict[str, int]:
    """Say how many of an item are left."""
    print("printed by a tool")
    return {item: 3}


@tool(visible=ALL, safe=False)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"
'''


def inspected(shop: Path, *arguments: str) -> tuple[int, str]:
    """Run the inspector's command line against `toolcrib mcp serve`."""
    if not INSPECTOR.exists():
        pytest.skip("the inspector of npm: run `make mcp-servers`")
    shop.write_text(SHOP)
    serve = [sys.executable, "-m", "toolcrib", "mcp", "serve", "--tools", str(shop)]
    node = str(NODE) if NODE.exists() else "node"
    ours = [*serve, "-e", f"PYTHONPATH={ROOT / 'src'}"]
    ended = subprocess.run(
        [node, str(INSPECTOR), "--cli", *ours, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.returncode, ended.stdout


def test_the_inspector_lists_and_calls_ours(tmp_path: Path) -> None:
    shop = tmp_path / "shop.py"
    code, out = inspected(shop, "--method", "tools/list")
    assert (code, [one["name"] for one in json.loads(out)["tools"]]) == (0, ["stock", "refund"])
    call = ("--method", "tools/call", "--tool-name")
    code, out = inspected(shop, *call, "stock", "--tool-arg", "item=nut")
    assert (code, json.loads(out)["structuredContent"]) == (0, {"nut": 3})
    code, out = inspected(shop, *call, "refund", "--tool-arg", "order=7")
    assert (code != 0, "approval_required" in out) == (True, True)
