"""`--tools openapi:FILE#URL`: a document is read by its name, and asked where its reader says."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import children
import pytest
from openapi.petstore import DOCUMENT, KEY, TOKEN, petstore
from rows import each_row

from toolcrib.cli import run
from toolcrib.tools import discover

ROOT = Path(__file__).parents[2]


async def toolcrib(*arguments: str, **env: str) -> tuple[int | None, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200", **env}
    done = await asyncio.to_thread(children.run, "-m", "toolcrib", *arguments, env=environment)
    return done.returncode, done.stdout, done.stderr


async def test_a_call_asks_the_server_that_was_named_with_the_key_of_the_environment() -> None:
    async with petstore() as (shop, api):
        where = f"openapi:{DOCUMENT}#{repr(api)[11:-2]}"
        command = ("call", "addPet", '{"body": {"name": "Rex"}}', "--tools", where)
        asked = await toolcrib(*command, TOOLCRIB_KEY_PETSTORE_AUTH=TOKEN)
        code, out, err = await toolcrib(*command, "--yes", TOOLCRIB_KEY_PETSTORE_AUTH=TOKEN)
        keyless = await toolcrib(*command, "--yes")
    assert (asked[0], "approval_required" in asked[2]) == (1, True)
    assert (code, json.loads(out), err) == (0, {"name": "Rex", "id": 1}, "")
    assert (keyless[0], "a key that was not given: petstore_auth" in keyless[2]) == (1, True)
    assert shop.added == 1


def test_without_a_server_a_document_can_be_read_checked_and_locked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCRIB_KEY_API_KEY", KEY)
    where = f"openapi:{DOCUMENT}"
    assert run(["tools", "list", "--tools", where]) == 0
    assert "getPetById" in capsys.readouterr().out
    assert run(["tools", "check", "--tools", where, "--provider", "openai"]) == 0
    assert 'trust={"addPet": Trusted("sha256:' in capsys.readouterr().out
    assert run(["tools", "lock", "--tools", where]) == 0
    assert run(["tools", "lock", "--tools", where, "--check"]) == 0
    assert run(["pick", "add a pet", "--tools", where, "--top", "1"]) == 0
    assert "addPet" in capsys.readouterr().out
    assert run(["call", "getInventory", "{}", "--tools", where, "--yes"]) == 1
    assert "name a server: --tools openapi:FILE#https" in capsys.readouterr().err


@each_row(
    ("where", "text"),
    [
        ("openapi:no.yaml", "no.yaml: it cannot be read"),
        ("openapi:https://shop.example/a.json", "a.json': nothing is fetched"),
        ("openapi:", "--tools openapi: needs a document: write openapi:FILE"),
        ("openapi:#https://api.example.com", "--tools openapi: needs a document"),
        (f"openapi:{Path(__file__)}", "not a document of OpenAPI|not YAML"),
        (f"openapi:{DOCUMENT}#api.example.com", "'api.example.com' is not a server"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(
    where: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tools", "list", "--tools", where]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert any(one in said.err for one in text.split("|")), said.err


def test_in_a_program_it_is_a_function() -> None:
    with pytest.raises(Exception, match=r"in a program, use openapi_catalog\(…\)"):
        discover(f"openapi:{DOCUMENT}")
