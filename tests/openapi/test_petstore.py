"""Real calls to a real server: what is sent, asked about, given, refused, and recorded."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from openapi.petstore import DOCUMENT, KEY, TOKEN, petstore
from rows import each_row

from toolcrib import (
    ALL,
    Approve,
    Caller,
    Catalog,
    Completed,
    Failed,
    ReadOnly,
    ToolCall,
    ToolRunner,
    Trusted,
    per_call,
)
from toolcrib.agent.history import result_message
from toolcrib.bridges.openapi import ApiServer, HttpApi, openapi_catalog
from toolcrib.kit import HttpLimits
from toolcrib.testing import MemorySink
from toolcrib.tools.lock import lock_catalog
from toolcrib.tools.trust import Trusts
from toolcrib.values.context import CallContext
from toolcrib.values.record import Outcome

NAMES = (
    *("addPet", "findPetsByStatus", "getPetById", "updatePet", "updatePetWithForm", "deletePet"),
    *("uploadPhoto", "getInventory", "login"),
)
REX = {"name": "Rex", "status": "available"}


async def yes(_: object) -> Approve:
    return Approve(by="a test")


async def nobody(_: object) -> Approve:
    pytest.fail("somebody was asked")


async def exec_(catalog: Catalog, name: str, arguments: dict[str, Any], **more: Any) -> Outcome:
    id_ = more.pop("id", "call_1")
    runner = ToolRunner(catalog, **{"approver": yes, **more})
    return await runner.exec(ToolCall(id_, name, json.dumps(arguments)))


async def value(catalog: Catalog, name: str, arguments: dict[str, Any], **more: Any) -> Any:
    outcome = await exec_(catalog, name, arguments, **more)
    assert isinstance(outcome, Completed), outcome
    return outcome.value


def told(outcome: Outcome) -> str:
    """What the model reads of it."""
    message = result_message(ToolCall("call_1", "x", "{}"), outcome, None)
    assert message is not None
    return message.content


def test_each_operation_is_a_tool() -> None:
    assert openapi_catalog(DOCUMENT).names == NAMES


async def test_a_pet_is_added_found_changed_and_taken_away() -> None:
    async with petstore() as (shop, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        added = await value(catalog, "addPet", {"body": {**REX, "weight": 4.5, "nickname": None}})
        assert added == {**REX, "weight": 4.5, "nickname": None, "id": 1}
        assert await value(catalog, "getPetById", {"petId": 1}) == added
        found = {"status": ["sold", "available"], "page": {"size": 1}}
        assert await value(catalog, "findPetsByStatus", found) == [added]
        assert shop.asked[-1].query_string == "status=sold&status=available&page[size]=1"
        assert await value(catalog, "getInventory", {}) == {"available": 1}
        form = {"petId": 1, "body": {"name": "Rex & Co", "status": "sold"}}
        assert await value(catalog, "updatePetWithForm", form) is None
        assert shop.pets[1]["name"] == "Rex & Co"
        assert (await value(catalog, "updatePet", {"petId": 1, "body": REX}))["name"] == "Rex"
        assert await value(catalog, "deletePet", {"petId": 1, "X-Reason": "sold"}) is None
        assert shop.asked[-1].headers["X-Reason"] == "sold"
    assert shop.pets == {}


async def test_a_file_is_sent_as_bytes_with_its_fields() -> None:
    data = bytes(range(256))
    body = {"file": base64.b64encode(data).decode(), "caption": 'a "cat"\r\n', "tags": ["a", "b"]}
    async with petstore() as (shop, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        assert await value(catalog, "uploadPhoto", {"petId": 1, "body": body}) == {"bytes": 256}
        given = {"petId": 1, "body": {"file": "no base64!"}}
        broken = await exec_(catalog, "uploadPhoto", given, approver=nobody)
    assert isinstance(broken, Failed)
    assert broken.error.code == "invalid_arguments"
    assert shop.forms == [{"caption": 'a "cat"\r\n', "tags": ["a", "b"], "file": data}]
    assert "file must be bytes in base64" in told(broken)


@each_row(
    ("name", "arguments", "place"),
    [
        ("addPet", {"body": {"id": 1, "name": ""}}, "/body/name"),
        ("addPet", {"body": {"name": "x", "weight": 0}}, "/body/weight"),
        ("addPet", {"body": {"name": "x", "category": {"parent": {"name": 1}}}}, "/parent/name"),
        ("addPet", {}, "body"),
        ("getPetById", {"petId": "1/../2"}, "/petId"),
        ("getPetById", {"petId": 1, "api_key": "mine"}, "/*"),
        ("findPetsByStatus", {"status": ["lost"]}, "/status/0"),
    ],
)
async def test_arguments_are_held_to_the_document(
    name: str, arguments: dict[str, Any], place: str
) -> None:
    async with petstore() as (shop, api):
        outcome = await exec_(openapi_catalog(DOCUMENT, http=api), name, arguments)
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "invalid_arguments"
    assert place in told(outcome)
    assert shop.asked == []


async def test_each_call_asks_until_its_definition_is_trusted() -> None:
    lock = lock_catalog(openapi_catalog(DOCUMENT))
    trust: Trusts = {"getPetById": ReadOnly(), "addPet": Trusted(), "deletePet": Trusted()}
    async with petstore() as (shop, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        for name in NAMES:
            marks = catalog[name].get_definition().annotations
            assert (marks.requires_approval, marks.untrusted_output) == (True, True)
        asked = await exec_(catalog, "getPetById", {"petId": 1}, approver=None)
        assert asked.record.error is not None
        assert asked.record.error.code == "approval_required"
        assert shop.asked == []
        trusted = openapi_catalog(DOCUMENT, http=api, trust=trust, lock=lock)
        await value(trusted, "addPet", {"body": REX}, approver=None)
        await value(trusted, "getPetById", {"petId": 1}, approver=None)
        gone = await exec_(trusted, "deletePet", {"petId": 1}, approver=None)
    assert gone.record.error is not None
    assert gone.record.error.code == "approval_required"  # it destroys, as its method says
    assert list(shop.pets) == [1]


async def test_a_server_sees_one_key_for_one_call() -> None:
    async with petstore() as (shop, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        for _ in range(2):  # two processes that know nothing of each other
            await value(catalog, "addPet", {"body": REX}, id="a")
        await value(catalog, "addPet", {"body": REX}, id="b")
        await value(catalog, "getPetById", {"petId": 1})
    keys = [request.headers.get("Idempotency-Key", "") for request in shop.asked]
    assert (keys[0] == keys[1], keys[0] == keys[2], keys[3]) == (True, False, "")
    assert keys[0].startswith("sha256:")
    assert shop.added == 2


async def test_nothing_of_a_result_shows_unless_it_is_declared() -> None:
    async with petstore() as (_, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        shown = openapi_catalog(DOCUMENT, http=api, visible={"addPet": ["status"]})
        hidden = await exec_(catalog, "addPet", {"body": REX})
        seen = await exec_(shown, "addPet", {"body": REX})
    assert hidden.record.result == {}
    assert hidden.record.error is not None
    assert hidden.record.error.code == "redaction_missing"
    assert seen.record.result == {"status": "available"}


async def test_an_answer_is_held_to_the_schema_of_its_status() -> None:
    async with petstore() as (_, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        waits = await value(catalog, "addPet", {"body": {"name": "Nessie"}})
        wrong = await exec_(catalog, "addPet", {"body": {"name": "Schrödinger"}})
    assert waits == {"ticket": "n-1"}
    assert isinstance(wrong, Failed)
    assert wrong.error.message.startswith("It was done (status 201), but")
    assert not wrong.error.retryable


async def test_the_words_of_the_server_are_for_the_model_alone() -> None:
    sink = MemorySink()
    async with petstore() as (_, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        absent = await exec_(catalog, "getPetById", {"petId": 9}, sinks=[sink])
        refused = await exec_(catalog, "addPet", {"body": {"name": "Cerberus"}}, sinks=[sink])
        login = {"body": {"name": "ada", "password": "canary-pw-1"}}
        wrong = await exec_(catalog, "login", login, sinks=[sink])
    assert "The API answered 404 Not Found. It says:" in told(absent)
    assert "there is no pet 9" in told(absent)
    assert "no Cerberus, and Bearer [key] will not help" in told(refused)
    assert "canary-pw-1 is wrong" in told(wrong)
    recorded = msgspec.json.encode(sink.records).decode()
    for word in ("there is no pet", "Cerberus, and", "canary", TOKEN, KEY):
        assert word not in recorded
    assert [one.error.message for one in sink.records if one.error] == [
        "The API answered 404 Not Found.",
        "The API answered 400 Bad Request.",
        "The API answered 422 Unprocessable Entity.",
    ]


async def test_a_text_is_given_as_text() -> None:
    async with petstore() as (_, api):
        catalog = openapi_catalog(DOCUMENT, http=api)
        login = {"body": {"name": "ada", "password": "open sesame"}}
        assert await value(catalog, "login", login) == "welcome, ada"


@each_row(
    ("name", "arguments", "code", "again"),
    [
        ("addPet", {"body": {"name": "Houdini"}}, "outcome_unknown", False),
        ("addPet", {"body": {"name": "Sloth"}}, "outcome_unknown", False),
    ],
)
async def test_what_was_sent_and_not_answered_may_have_been_done(
    name: str, arguments: dict[str, Any], code: str, again: bool
) -> None:
    async with petstore() as (shop, api):
        quick = ApiServer(
            repr(api)[11:-2], keys={"petstore_auth": TOKEN}, limits=HttpLimits(seconds=0.5)
        )
        outcome = await exec_(openapi_catalog(DOCUMENT, http=quick), name, arguments)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == (code, again)
    assert "it is unknown whether it was done" in outcome.error.message
    assert shop.added == 1


async def test_a_server_that_is_not_there_did_nothing() -> None:
    async with petstore() as (_, api):
        pass
    outcome = await exec_(openapi_catalog(DOCUMENT, http=api), "addPet", {"body": REX})
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == ("capability_error", True)
    assert "could not be reached" in outcome.error.message


async def test_a_key_may_be_the_callers_own() -> None:
    async with petstore() as (shop, api):
        url = repr(api)[11:-2]

        def for_caller(context: CallContext) -> ApiServer:
            return ApiServer(
                url, keys={"petstore_auth": {"ada": TOKEN}.get(context.caller.id, "x" * 9)}
            )

        catalog = openapi_catalog(DOCUMENT, http=per_call(for_caller))
        runner = ToolRunner(catalog, approver=yes)
        call = ToolCall("a", "findPetsByStatus", "{}")
        mine = await runner.exec(call, caller=Caller("ada"))
        theirs = await runner.exec(ToolCall("b", call.name, "{}"), caller=Caller("bob"))
    assert isinstance(mine, Completed)
    assert isinstance(theirs, Failed)
    assert "401 Unauthorized" in theirs.error.message
    assert [one.headers["Authorization"][-9:] for one in shop.asked] == [TOKEN[-9:], "x" * 9]


async def test_without_a_server_the_tools_can_be_planned_and_bound_later() -> None:
    async with petstore() as (_, api):
        catalog = openapi_catalog(DOCUMENT, only=["getInventory"], visible={"getInventory": ALL})
        assert catalog.names == ("getInventory",)
        bound = catalog.bind({HttpApi: api})
        assert await value(bound, "getInventory", {}) == {}


async def test_a_key_that_is_not_here_is_named_before_anything_is_sent() -> None:
    async with petstore() as (shop, api):
        keyless = ApiServer(repr(api)[11:-2])
        outcome = await exec_(openapi_catalog(DOCUMENT, http=keyless), "getPetById", {"petId": 1})
    assert isinstance(outcome, Failed)
    assert (
        outcome.error.message == "the API needs a key that was not given: api_key or petstore_auth"
    )
    assert shop.asked == []


def test_no_repr_shows_a_key() -> None:
    api = ApiServer("https://pets.example/v3", keys={"api_key": KEY})
    assert KEY not in f"{api!r} {openapi_catalog(DOCUMENT, http=api)!r}"
