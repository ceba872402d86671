"""The messages of a Converse request: content blocks, and all results of a turn in one message.

Users and the model take turns, the user first; several messages of one of them in a row are one. What
says nothing is left out: "The text field in the ContentBlock object … is blank" is a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.errors import RequestError
from toolcrib.values.message import Image, Message
from toolcrib.wire.bedrock_converse.blocks import replayed
from toolcrib.wire.history import History, IdRule, SentCall, SentResult

_FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
_HEADS = (b'{"role":"user","content":[', b'{"role":"assistant","content":[')
_END = b"]}"
_NOBODY = {"text": "."}
"""Stands for a user who has said nothing, where the model's message is the first."""


class BedrockHistory(History):
    """https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html"""

    ids = IdRule("A-Za-z0-9_-", 64)
    given_ids = IdRule("A-Za-z0-9_.:-", 64)

    def system(self, message: Message) -> Sequence[Any]:
        if message.content.strip():
            self.instructions.append(message.content)
        return []

    def user(self, message: Message) -> Sequence[Any]:
        return _message("user", [*map(_image, message.images), *_text(message.content)])

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        said = _message("assistant", replayed(self.state(message), message.content, calls))
        return _message("user", [_NOBODY]) + said if self.silent and said else said

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return _message("user", [_result(result) for result in results])

    def encoded(self, last: bytes = b"") -> bytes:
        """The JSON text of the list; `last` is a block to be added to the last message."""
        pieces: list[bytes] = []
        before = b""
        for item in self._encoded:
            head = _HEADS[not item.startswith(_HEADS[0])]
            if head is before:
                pieces += [b",", item[len(head) : -len(_END)]]
            else:
                pieces += [_END + b"," if before else b"", item[: -len(_END)]]
            before = head
        if last:
            pieces += [b",", last]
        return b"".join((b"[", *pieces, _END, b"]"))


def _message(role: str, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content}] if content else []


def _text(text: str) -> list[dict[str, Any]]:
    return [{"text": text}] if text.strip() else []


def _result(result: SentResult) -> dict[str, Any]:
    is_error = result.message.is_error
    content = _text(result.message.content) or _text("error" if is_error else "(empty)")
    form: dict[str, Any] = {"toolUseId": result.id, "content": content}
    return {"toolResult": form | {"status": "error"} if is_error else form}


def _image(image: Image) -> dict[str, Any]:
    """Data, or an address in S3; Bedrock fetches from nowhere else."""
    head, _, data = image.url.partition(";base64,")
    if image.url.startswith("s3://"):
        kind = image.media_type or image.url.rpartition(".")[2]
        source: dict[str, Any] = {"s3Location": {"uri": image.url}}
    elif image.data or (head.startswith("data:") and data):
        kind = image.media_type or head.removeprefix("data:").partition(";")[0]
        source = {"bytes": image.data or data}
    else:
        raise RequestError("Bedrock takes images as data, or as an s3:// address, but no other URL")
    known = _FORMATS.get(kind.lower().rpartition("/")[2])
    if known is None:
        raise RequestError(f"Bedrock takes images as png, jpeg, gif or webp, and not as {kind!r}")
    return {"image": {"format": known, "source": source}}
