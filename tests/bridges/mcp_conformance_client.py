"""The client that the official conformance suite drives: our way to a server's tools, nothing else.

`conformance client --command "python …/mcp_conformance_client.py" --scenario NAME` gives the address of
its server as the last argument, the scenario and what belongs to it in the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import mcp_types as types
from bridges.mcp_oauth import Person
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull

from toolcrib import Approve, Catalog, ToolCall, ToolRunner
from toolcrib.bridges.mcp import HttpServer, mcp_catalog

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
FITS: dict[str, Any] = {"number": 5, "integer": 5, "boolean": True, "object": {}, "array": []}
ARGUMENT = "some text"
CIMD = "https://conformance-test.local/client-metadata.json"


async def approves(_request: object) -> Approve:
    return Approve(by="the suite")


async def takes_defaults(context: Any, params: Any) -> types.ElicitResult:
    """Answer with what the schema has as defaults."""
    del context
    asked = params.requested_schema.get("properties", {})
    content = {name: each["default"] for name, each in asked.items() if "default" in each}
    return types.ElicitResult(action="accept", content=content)


def signs_in(url: str) -> Any:
    if not SCENARIO.startswith("auth/"):
        return None
    person = Person()
    if SCENARIO == "auth/client-credentials-basic":
        known = CONTEXT["client_id"], CONTEXT["client_secret"]
        return ClientCredentialsOAuthProvider(url, person, *known)
    if SCENARIO == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=CONTEXT["client_id"],
            subject=CONTEXT["client_id"],
            signing_algorithm=CONTEXT.get("signing_algorithm", "ES256"),
            signing_key=CONTEXT["private_key_pem"],
        )
        made = signed.create_assertion_provider()
        return PrivateKeyJWTOAuthProvider(url, person, CONTEXT["client_id"], made)
    if "client_id" in CONTEXT:
        person.client = OAuthClientInformationFull(
            redirect_uris=[person.back_to],
            token_endpoint_auth_method="client_secret_basic",
            **{k: CONTEXT[k] for k in ("client_id", "client_secret")},
        )
    return person.signs_in(url, metadata_url=CIMD)


def wanted(catalog: Catalog) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that a scenario names, or else one of each tool, with arguments that fit."""
    named = CONTEXT.get("toolCalls")
    if named:
        return [(each["name"], each["arguments"]) for each in named]
    calls = []
    for name in catalog.names:
        schema: Any = catalog[name].get_definition().input_schema
        if name == "json_schema_echo":  # it wants to see what came of another tool's schema
            others = (catalog[n].get_definition().input_schema for n in catalog.names if n != name)
            calls.append((name, {"schema": next(others)}))
            continue
        asked = schema.get("required") or schema.get("properties", {})
        kinds = {each: schema["properties"][each].get("type") for each in asked}
        calls.append((name, {each: FITS.get(kind, ARGUMENT) for each, kind in kinds.items()}))
    return calls


async def main(url: str) -> None:
    server = HttpServer(url, auth=signs_in(url))
    options = {"elicitation_callback": takes_defaults}
    async with mcp_catalog(server, client=options) as catalog:
        runner = ToolRunner(catalog, approver=approves)
        for at, (name, arguments) in enumerate(wanted(catalog)):
            outcome = await runner.exec(ToolCall(f"call_{at}", name, json.dumps(arguments)))
            print(outcome)  # noqa: T201  the suite shows it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
