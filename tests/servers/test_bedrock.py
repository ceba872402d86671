"""The loopback server that speaks Converse, driven by our client and by Amazon's own, to one end."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import quote

import pytest
from rows import each_row
from servers.bedrock import BedrockServer, bedrock_server, fault_of, frame

from toolcrib import ALL, Agent, tool
from toolcrib.clients import BedrockClient, SigningTransport
from toolcrib.errors import ConnectionFailed, ProviderError, RequestError, WireError
from toolcrib.testing import call, cut, die_after, raw, raw_call
from toolcrib.testing.scripted import serving
from toolcrib.values.message import ChatRequest, Message, Reply, Settings
from toolcrib.wire import encode

MODEL = "us.anthropic.claude-x-v1:0"
ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/ab12"
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
ASKED = ChatRequest((Message.user("2 + 3?"),), (TOOL,), id_prefix="r_")  # type: ignore[arg-type]
FRAMES = "application/vnd.amazon.eventstream"


class Watched(BedrockServer):
    """Keeps what arrived, byte for byte."""

    def __init__(self, turns: Any) -> None:
        super().__init__(turns)
        self.paths: list[str] = []
        self.bodies: list[bytes] = []

    async def handle(self, request: Any) -> Any:
        self.paths.append(request.raw_path)
        self.bodies.append(await request.read())
        return await super().handle(request)


@tool(visible=ALL)
def double(n: int) -> int:
    """Double a number.

    Args:
        n: The number.
    """
    return 2 * n


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ours(
    server: BedrockServer, request: ChatRequest = ASKED, *, stream: bool, **options: Any
) -> Reply:
    client = BedrockClient(MODEL, base_url=server.url, retries=None, **options)
    async with client:
        if not stream:
            return await client.chat(request)
        reply = [part async for part in client.stream(request)][-1]
    assert isinstance(reply, Reply)
    return reply


def theirs(url: str, model: str, *, stream: bool) -> tuple[str, list[Any], str]:
    """Text, calls and the reason, as Amazon's client reads them."""
    boto3 = pytest.importorskip("boto3")
    config = pytest.importorskip("botocore.config").Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "secret"}
    client = boto3.client(
        "bedrock-runtime", region_name="eu-west-1", endpoint_url=url, config=config, **keys
    )
    body = json.loads(encode("bedrock-converse", ASKED, model=model).body)
    if not stream:
        said = client.converse(modelId=model, **body)
        content = said["output"]["message"]["content"]
        calls = [block["toolUse"] for block in content if "toolUse" in block]
        text = "".join(block.get("text", "") for block in content)
        found = [(use["toolUseId"], use["name"], use["input"]) for use in calls]
        return text, found, said["stopReason"]
    return _merged(client.converse_stream(modelId=model, **body)["stream"])


def _merged(events: Any) -> tuple[str, list[Any], str]:
    text, reason = "", ""
    uses: dict[int, list[Any]] = {}
    for event in events:
        if start := event.get("contentBlockStart"):
            use = start["start"]["toolUse"]
            uses[start["contentBlockIndex"]] = [use["toolUseId"], use["name"], ""]
        elif delta := event.get("contentBlockDelta"):
            text += delta["delta"].get("text", "")
            if "toolUse" in delta["delta"]:
                uses[delta["contentBlockIndex"]][2] += delta["delta"]["toolUse"]["input"]
        elif stop := event.get("messageStop"):
            reason = stop["stopReason"]
    found = [(id_, name, json.loads(pieces or "{}")) for id_, name, pieces in uses.values()]
    return text, found, reason


TURNS: dict[str, Any] = {
    "text": "It is five.",
    "a call": call("add", a=2, b=3),
    "text beside two calls": ["Let me add.", call("add", a=2), call("add", b="grüß 🍯")],
    "a call without arguments": raw_call("add", ""),
    "a text cut": cut("It is five."),
}


@both
@each_row("turn", TURNS.values(), ids=TURNS)
async def test_our_client_and_amazons_hear_the_same(turn: Any, stream: bool) -> None:
    async with bedrock_server([turn, turn]) as server:
        reply = await ours(server, stream=stream)
        heard = await asyncio.to_thread(theirs, server.url, MODEL, stream=stream)
    calls = [(c.provider_id, c.name, json.loads(c.arguments)) for c in reply.tool_calls]
    again = [(id_.replace("_1_", "_2_"), *rest) for id_, *rest in calls]
    assert (reply.text, again, reply.provider_finish) == heard
    assert reply.usage.input_tokens + reply.usage.output_tokens == 18
    assert server.requests[0] == server.requests[1]


@both
async def test_a_call_that_was_cut_may_not_run(stream: bool) -> None:
    async with bedrock_server([cut(call("add", a=12345))]) as server:
        reply = await ours(server, stream=stream)
    assert (reply.finish, [c.complete for c in reply.tool_calls]) == ("length", [False])


HELLO = {"contentBlockIndex": 0, "delta": {"text": "Hi"}}
EVENTS = [frame({}, event_type="messageStart"), frame(HELLO, event_type="contentBlockDelta")]
BROKEN: dict[str, tuple[Any, type[Exception], str]] = {
    "an exception": (
        raw(
            b"".join(EVENTS)
            + frame(
                {"message": "Bad day"},
                message_type="exception",
                exception_type="internalServerException",
            ),
            content_type=FRAMES,
        ),
        ProviderError,
        "Bad day",
    ),
    "a damaged frame": (
        raw(EVENTS[0] + EVENTS[1].replace(b"Hi", b"Ho"), content_type=FRAMES),
        WireError,
        "checksum",
    ),
    "an end in the middle of a frame": (
        raw(EVENTS[0] + EVENTS[1][:-9], content_type=FRAMES),
        ConnectionFailed,
        "before it was complete",
    ),
    "a connection that breaks": (die_after(200, call("add", a=1)), ConnectionFailed, "broke"),
}


@pytest.mark.parametrize(("turn", "kind", "words"), BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_goes_wrong_is_a_named_error(
    turn: Any, kind: type[Exception], words: str
) -> None:
    async with bedrock_server([turn]) as server:
        with pytest.raises(kind, match=words):
            await ours(server, stream=True)


@both
async def test_the_whole_conversation_is_legal(stream: bool) -> None:
    async with serving(Watched([["Hm.", call("add", a=2)], "Five."])) as server:
        first = await ours(server, stream=stream)
        (made,) = first.tool_calls
        messages = (*ASKED.messages, first.message, Message.tool(made, "5"))
        second = await ours(server, ChatRequest(messages), stream=stream)
    assert second.text == "Five."
    method = "converse-stream" if stream else "converse"
    assert server.paths == [f"/model/{MODEL}/{method}"] * 2


async def test_an_agent() -> None:
    async with (
        bedrock_server([["Let me see.", call("double", n=2)], "4"]) as server,
        BedrockClient(MODEL, base_url=server.url) as client,
    ):
        result = await Agent(client, [double]).run("double 2")
    assert result.text == "4"
    (_, made, told) = server.requests[1]["messages"]
    use = {"toolUseId": "tooluse_1_0", "name": "double", "input": {"n": 2}}
    assert made["content"] == [{"text": "Let me see."}, {"toolUse": use}]
    assert told["content"][0]["toolResult"]["content"] == [{"text": "4"}]


@both
@pytest.mark.parametrize("model", [MODEL, ARN])
async def test_a_signature_is_that_of_the_request_that_arrives(model: str, stream: bool) -> None:
    """The same check passes Amazon's own client: the path is encoded once more than it is sent."""
    credentials = pytest.importorskip("botocore.credentials").Credentials
    signing = SigningTransport(region="eu-west-1", credentials=credentials("AKIATEST", "secret"))
    async with serving(Watched(["Hi.", "Hi."])) as server:
        client = BedrockClient(model, base_url=server.url, transport=signing)
        async with client:
            if stream:
                assert [part async for part in client.stream(ASKED)]
            else:
                await client.chat(ASKED)
        await asyncio.to_thread(theirs, server.url, model, stream=stream)
    for path, headers, body in zip(server.paths, server.headers, server.bodies, strict=True):
        assert headers["authorization"].rpartition("Signature=")[2] == signature(
            path, headers, body
        )


def signature(path: str, headers: dict[str, str], body: bytes) -> str:
    """https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html"""
    fields = dict(field.split("=", 1) for field in headers["authorization"][17:].split(", "))
    names, scope = fields["SignedHeaders"], fields["Credential"].partition("/")[2]
    signed = "".join(f"{name}:{headers[name]}\n" for name in names.split(";"))
    parts = ("POST", quote(path, safe="/~"), "", signed, names, hashlib.sha256(body).hexdigest())
    told = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    key = b"AWS4secret"
    text = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, told))
    for step in (*scope.split("/"), text):
        key = hmac.digest(key, step.encode(), "sha256")
    return key.hex()


HI = {"role": "user", "content": [{"text": "Hi"}]}
CALL = {"toolUse": {"toolUseId": "x", "name": "f", "input": {}}}
RESULT = {"toolResult": {"toolUseId": "x", "content": [{"text": "y"}]}}
TOOLS = {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}


def said(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def body(*messages: Any, **members: Any) -> dict[str, Any]:
    return {"messages": list(messages or (HI,)), "toolConfig": TOOLS} | members


def spec(**changes: Any) -> dict[str, Any]:
    return {"tools": [{"toolSpec": TOOLS["tools"][0]["toolSpec"] | changes}]}


MODEL_CALLS = said(CALL, role="assistant")
FAULTS: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    (body(tools=[]), "[tools]"),
    (body(inferenceConfig={"max_tokens": 1}), "[max_tokens]"),
    (body(system=[{"text": " "}]), "blank"),
    (body(toolConfig={"tools": []}), "toolSpec"),
    (body(toolConfig={"tools": TOOLS["tools"] * 2}), "unique"),
    (body(toolConfig=spec(name="a b")), "pattern"),
    (body(toolConfig=spec(description="")), "description"),
    (body(toolConfig=spec(inputSchema={"json": {}})), "object"),
    (body(toolConfig=TOOLS | {"toolChoice": {"none": {}}}), "toolChoice"),
    (body(toolConfig=TOOLS | {"toolChoice": {"tool": {"name": "g"}}}), "'g'"),
    ({"messages": []}, "at least one"),
    (body(said(CALL, role="tool")), "messages.0"),
    (body(MODEL_CALLS), "start with a user"),
    (body(HI, HI), "alternate"),
    (body(said()), "empty"),
    (body(said({"text": " "})), "blank"),
    (body(said({"text": "a", "image": {}})), "exactly one"),
    (body(HI, said({"toolUse": CALL["toolUse"] | {"toolUseId": "a b"}}, role="assistant")), "patt"),
    (body(HI, said({"toolUse": CALL["toolUse"] | {"input": "{}"}}, role="assistant")), "json"),
    (body(HI, MODEL_CALLS), "without toolResult"),
    (body(HI, MODEL_CALLS, HI), "Expected toolResult"),
    (body(said(RESULT)), "Expected toolResult"),
    (body(HI, said(CALL, CALL, role="assistant"), said(RESULT, RESULT)), "unique"),
    (body(said(CALL)), "of the user"),
    (body(HI, MODEL_CALLS, said({"toolResult": {"toolUseId": "x", "content": [{"text": ""}]}})),
     "toolResult.content"),
    (body(HI, MODEL_CALLS, said({"toolResult": RESULT["toolResult"] | {"status": "ok"}})),
     "status"),
    ({"messages": [HI, MODEL_CALLS, said(RESULT)]}, "toolConfig field must be defined"),
]  # fmt: skip


@each_row(("request_", "fault"), FAULTS)
def test_illegal_requests(request_: Any, fault: str) -> None:
    assert fault in (fault_of(request_) or "")


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [HI]},
        body(toolConfig=TOOLS | {"toolChoice": {"any": {}}}),
        body(
            HI, MODEL_CALLS, said(RESULT, {"text": "and?"}), said({"text": "."}, role="assistant")
        ),
    ],
)
def test_legal_requests(request_: Any) -> None:
    assert fault_of(request_) is None


async def test_an_illegal_request_is_refused() -> None:
    settings = Settings(extra={"top_k": 5})
    async with bedrock_server(["Hi."]) as server:
        with pytest.raises(RequestError, match=r"\[top_k\] is not permitted"):
            await ours(server, ChatRequest((Message.user("x"),), settings=settings), stream=False)
