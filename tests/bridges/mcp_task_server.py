"""A server of 2026-07-28 whose calls become tasks (SEP-2663); it notes in a file what it was asked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

LOG = Path(sys.argv[1])
OBJECT = {"type": "object"}
ENDS = (
    *("works", "asks", "fails", "is_cancelled", "never", "dies", "is_empty", "at_once"),
    *("is_forgotten", "is_another", "is_no_state", "is_odd", "ends_odd", "takes_no_answer"),
    *("asks_oddly", "asks_at_once"),
)
EXTENSION = "io.modelcontextprotocol/tasks"
asked: dict[str, int] = {}
answers: dict[str, Any] = {}


def note(text: str) -> None:
    with LOG.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def said(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": False, "resultType": "complete"}


def task(name: str, status: str, **more: Any) -> dict[str, Any]:
    when = "2026-07-28T00:00:00Z"
    times = {"createdAt": when, "lastUpdatedAt": when, "ttlMs": None, "pollIntervalMs": 10}
    return {"taskId": name, "status": status, **times, **more}


QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which name?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}


ODD: dict[str, dict[str, Any]] = {
    "is_another": task("works", "completed", result=said("done")),
    "is_no_state": {"taskId": {}, "status": []},
    "asks_oddly": task("asks_oddly", "input_required", inputRequests={"who": {"method": []}}),
    "ends_odd": task("ends_odd", "completed", result={**said("done"), "resultType": "bogus"}),
}


def state(name: str) -> dict[str, Any]:
    asked[name] = asked.get(name, 0) + 1
    if name == "dies":
        os._exit(3)
    if asked[name] < 3 or name == "never":
        return task(name, "working")
    if name == "is_forgotten":
        raise KeyError(name)
    if name in ODD:
        return ODD[name]
    match name:
        case "fails":
            return task(name, "failed", error={"code": -32603, "message": "out of order"})
        case "is_cancelled":
            return task(name, "cancelled", statusMessage="somebody stopped it")
        case "is_empty":
            return task(name, "completed")
        case "asks" | "takes_no_answer" if name not in answers:
            return task(name, "input_required", inputRequests={"who": QUESTION})
        case "asks":
            return task(name, "completed", result=said(json.dumps(answers[name])))
    return task(name, "completed", result=said("done"))


def called(name: str, responses: dict[str, Any] | None) -> dict[str, Any]:
    match name:
        case "at_once":
            return said("done")
        case "is_odd":
            return {**said("done"), "resultType": "bogus"}
        case "asks_at_once" if responses is None:
            return {"resultType": "input_required", "inputRequests": {"who": QUESTION}}
        case "asks_at_once":
            return said(json.dumps(responses))
    return {**task(name, "working"), "resultType": "task"}


def answered(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "server/discover":
            told: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
            return {"supportedVersions": ["2026-07-28"], "capabilities": told}
        case "tools/list":
            tools = [{"name": n, "description": n, "inputSchema": OBJECT} for n in ENDS]
            return {"tools": tools, "ttlMs": 0, "cacheScope": "private"}
        case "tools/call":
            able = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"]
            assert EXTENSION in able
            return called(params["name"], params.get("inputResponses"))
        case "tasks/get":
            return state(params["taskId"])
        case "tasks/update" if params["taskId"] != "takes_no_answer":
            answers[params["taskId"]] = params["inputResponses"]
            return {}
        case "tasks/cancel":
            note("cancelled")
            return {}
    raise KeyError(method)


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    note(message["method"])
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = answered(message["method"], message.get("params", {}))
        reply["result"] = {"resultType": "complete", **result}
    except KeyError:
        reply["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(reply), flush=True)  # noqa: T201  its wire
