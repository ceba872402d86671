"""What the official MCP conformance suite says of our server, and of others beside it, as one table.

    python benchmarks/eval_mcp_conformance.py [--beside NAME=PYTHON:FILE …]

FILE is a server that takes a port, run by the interpreter PYTHON: for fastmcp 4.2,
`--beside fastmcp=…/bin/python:benchmarks/peers/fastmcp_conformance.py`. Needs `make mcp-servers`. Each
cell is passed / failed checks.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

from bridges.mcp_suite import OURS, Judgement, judged, serving

GROUPS = {
    "tools-": "tools",
    "json-schema": "tools",
    "input-required": "what a server asks of its client (2026-07-28)",
    "elicitation": "elicitation",
    "server-": "transport",
    "http-": "transport",
    "dns-": "transport",
    "ping": "transport",
    "caching": "caching",
    "tasks-": "tasks (an extension)",
}
VERSIONS = ("", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "tasks")


def group(scenario: str) -> str:
    if scenario in ("tools-call-with-logging", "logging-set-level"):
        return "logging (deprecated)"
    if scenario in ("input-required-result-non-tool-request",):
        return "resources, prompts, completion"
    found = [name for start, name in GROUPS.items() if scenario.startswith(start)]
    return found[0] if found else "resources, prompts, completion"


def counted(found: dict[str, Judgement]) -> dict[str, tuple[int, int]]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for scenario, one in found.items():
        sums[group(scenario)][0] += len(one.passed)
        sums[group(scenario)][1] += len(one.failed)
    return {name: (passed, failed) for name, (passed, failed) in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=PYTHON:FILE")
    servers = {"toolcrib": OURS}
    for given in parser.parse_args().beside:
        name, _, rest = given.partition("=")
        servers[name] = tuple(rest.rsplit(":", 1))
    print(f"| suite | version | what | {' | '.join(servers)} |")
    print("|---|---|---|" + "---|" * len(servers))
    for version in VERSIONS:
        rows: dict[str, dict[str, str]] = defaultdict(dict)
        for name, command in servers.items():
            with tempfile.TemporaryDirectory() as folder:
                into = Path(folder)
                with serving(command, into / "log") as url:
                    found = judged(url, into / "out", version)
            failed = sorted(check for one in found.values() for check in one.failed)
            print(f"<!-- {name} {version}: {' '.join(failed)} -->")
            for what, (passed, failed_here) in counted(found).items():
                rows[what][name] = f"{passed} / {failed_here}"
        suite = "0.2.0-alpha.12" if version else "0.1.16"
        for what, cells in sorted(rows.items()):
            told = " | ".join(cells.get(name, "") for name in servers)
            print(f"| {suite} | {version or 'all'} | {what} | {told} |")


if __name__ == "__main__":
    main()
