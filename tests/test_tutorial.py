"""The tutorial, from its first step to its last, as a reader goes through it.

Its files are saved, its commands are typed in a folder that keeps them, and what they print is what the
page shows. The model is a server on this machine that says what a model would, and judges each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from children import run
from test_docs import ROOT, TUTORIAL, is_as_shown

from toolcrib.testing import call, openai_server
from toolcrib.testing.scripted import ServerTurn

STEP = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODEL, SERVED = "http://localhost:11434/v1", "localhost:8000"
ID = re.compile(r"\b(apr|run)_[0-9a-f]{4,}")  # another one each time
SAID: list[ServerTurn] = [
    *(call("price_of", article="tea"), "A tea costs 4.50."),
    *(call("price_of", article="tea"), "A tea costs 4.50."),
    *(call("price_of", article="sofa"), "I could not look up the price."),
    *(call("price_of", article="sofa"), "I could not look up the price."),
    *(call("price_of", article="sofa"), "We have no sofas, only tea and cups."),
    *(call("refund", order=77, cents=450), "I have refunded 4.50 of order 77."),
    *(call("print_invoice", number=7), "Invoice 7 is printed."),
]


class Reader:
    """Somebody who saves what the page says to save, and types what it says to type."""

    def __init__(self, folder: Path, stand_ins: dict[str, str]) -> None:
        self.folder = folder
        self.stand_ins = stand_ins
        self.seen: dict[str, str] = {}
        source = os.pathsep.join([str(ROOT / "src"), str(folder)])
        self.env = os.environ | {"PYTHONPATH": source, "COLUMNS": "100", "PYTHONWARNINGS": "error"}
        self.env["PYTEST_ADDOPTS"] = "-p no:asyncio"  # the reader has no such plugin

    def save(self, text: str) -> None:
        """Save a file under the name in its first line, or add to it: `# shop.py, at the end`."""
        name, _, added = text.partition("\n")[0].removeprefix("# ").partition(", ")
        file = self.folder / name
        before = file.read_text(encoding="utf-8") if added else ""
        file.write_text(before + self.adapted(text), encoding="utf-8")

    def adapted(self, text: str) -> str:
        """Put the addresses of this machine in place of the page's."""
        for shown, real in self.stand_ins.items():
            text = text.replace(shown, real)
        return text

    async def types(self, command: str) -> str:
        known = re.sub(r"\b(apr|run)_\w+…", lambda found: self.seen[found[1]], command)
        name, *arguments = shlex.split(self.adapted(known))
        printed = await asyncio.to_thread(self.printed_by, name, arguments)
        self.seen |= {found[1]: found[0] for found in ID.finditer(printed)}
        return printed.replace("\t", "  ")  # a terminal shows a table there

    def printed_by(self, name: str, arguments: list[str]) -> str:
        if name in ("python", "toolcrib"):
            program = [*(["-m", name] if name != "python" else []), *arguments]
            return run(*program, cwd=self.folder, env=self.env, mixed=True).stdout
        command = [name] if name == "curl" else [sys.executable, "-m", name]
        return subprocess.run(
            [*command, *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        ).stdout


@contextlib.asynccontextmanager
async def serving(reader: Reader, address: str) -> AsyncIterator[None]:
    """`uvicorn web:app`, in a terminal of its own."""
    host, _, port = address.partition(":")
    command = [sys.executable, "-m", "uvicorn", "web:app", "--port", port, "--log-level", "warning"]
    server = await asyncio.create_subprocess_exec(*command, cwd=reader.folder, env=reader.env)
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.close()
                    break
                assert server.returncode is None
                await asyncio.sleep(0.05)
        yield
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def test_each_step_shows_what_the_page_says(tmp_path: Path) -> None:
    steps = STEP.findall(TUTORIAL.read_text(encoding="utf-8"))
    async with openai_server(SAID) as model, contextlib.AsyncExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        reader = Reader(tmp_path, {MODEL: model.url, SERVED: address})
        for kind, text in steps:
            if kind == "python":
                reader.save(text)
                continue
            if SERVED in text:
                await stack.enter_async_context(serving(reader, address))
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                printed = await reader.types(command)
                assert is_as_shown(printed, shown), f"$ {command}\n{printed}"
        assert len(model.requests) == len(SAID)
    assert model.requests[2]["temperature"] == 0
    assert '"The tool failed."' in model.requests[5]["messages"][-1]["content"]


async def test_the_many_tools_may_be_in_the_form_of_openai(tmp_path: Path) -> None:
    """Step 8 says that any list would do."""
    programs = [text for _, text in STEP.findall(TUTORIAL.read_text(encoding="utf-8"))]
    async with openai_server(SAID[-2:]) as model:
        reader = Reader(tmp_path, {MODEL: model.url})
        for name in ("# make_tools.py\n", "# many.py\n"):
            reader.save(next(text for text in programs if text.startswith(name)))
        await reader.types("python make_tools.py")
        file = tmp_path / "tools.json"
        functions = json.loads(file.read_text(encoding="utf-8"))
        for function in functions:
            function["parameters"] = function.pop("input_schema")
        tools = [{"type": "function", "function": function} for function in functions]
        file.write_text(json.dumps(tools), encoding="utf-8")
        await reader.types("toolcrib tools lock --tools tools.json")
        printed = await reader.types('python many.py "Print invoice 7."')
    assert printed.endswith("Invoice 7 is printed.\n"), printed


async def test_the_embedded_model_makes_the_calls(tmp_path: Path, embedded_model: Path) -> None:
    """The page says so to readers who have neither a server nor a key."""
    del embedded_model  # it is installed
    address = f"127.0.0.1:{free_port()}"
    reader = Reader(tmp_path, {f"{MODEL}#qwen3": "local", SERVED: address})
    page = TUTORIAL.read_text(encoding="utf-8")
    for kind, text in STEP.findall(page):
        if kind == "python":
            reader.save(text)
    asked = await reader.types('python ask.py "What does a tea cost?"')
    assert asked.startswith("price_of {'article': 'tea'} → {'cents': 450}\ncompleted: ")
    await reader.types("python make_tools.py")
    await reader.types("toolcrib tools lock --tools tools.json")
    found = await reader.types('python many.py "Print invoice 7."')
    assert "print_invoice {'number': 7} → done with number 7\n" in found
    async with serving(reader, address):
        asks, approves = re.findall(
            r"^\$ (curl .*)$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert '"asked":{"apr_' in await reader.types(asks)
        assert '{"status":"completed"' in await reader.types(approves)
