"""Why a call was made: by which model, from which prompt, out of which choice of tools.

Rule: what many records share is said once. A record holds an `Origin`, which is small; what is long
(a definition, a prompt, a choice) is an `Attachment`, kept once and referred to by its digest, which is
the SHA-256 of its text, so that whoever reads it can check it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, TypeAlias

import msgspec

from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import Veiled, canonical_json, encodable, sha256_hex
from toolcrib.values.message import Message

PEOPLE = ("system", "user")
_MOST_EXCLUDED = 200
_LONGEST_REASON = 300


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool that a pick looked at: its score in 0..1, None where it was not scored, and the reason."""

    name: str
    score: float | None = None
    reason: str = ""

    @staticmethod
    def of(name: str, score: float | None, reason: str) -> Candidate:
        """Return a candidate whose reason a record can hold, whoever wrote it."""
        text = encodable(reason)
        short = text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
        return Candidate(name, score, short)


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says why a run offered these tools to its model, and not others.

    `offered` are the tools on offer, the best first: those that `scorer` picked have a score, the
    others a reason (offered or called earlier in the conversation). `excluded` are the first of the
    `excluded_count` tools that were not scored or not permitted, each with the reason. `timed_out` says
    that nothing was scored in time, and the first tools of the catalog are offered.
    """

    scorer: str = ""
    offered: tuple[Candidate, ...] = ()
    excluded: tuple[Candidate, ...] = ()
    excluded_count: int = 0
    timed_out: bool = False

    @staticmethod
    def of(
        scorer: str,
        offered: Iterable[Candidate],
        excluded: Iterable[tuple[str, str]],
        *,
        timed_out: bool = False,
    ) -> Choice:
        """Return a choice. `excluded` are names with reasons; only the first ones of many are kept."""
        kept, count = [], 0
        for name, why in excluded:
            count += 1
            if count <= _MOST_EXCLUDED:
                kept.append(Candidate.of(name, None, why))
        return Choice(scorer, tuple(offered), tuple(kept), count, timed_out)

    def with_offered(self, found: Iterable[Candidate]) -> Choice:
        """Return the choice with tools added that were found later."""
        known = {candidate.name for candidate in self.offered}
        new = tuple(candidate for candidate in found if candidate.name not in known)
        return msgspec.structs.replace(self, offered=self.offered + new) if new else self

    def about(self, name: str) -> Candidate | None:
        """Return what the choice says of an offered tool."""
        return next((found for found in self.offered if found.name == name), None)


AttachmentKind: TypeAlias = Literal["definition", "prompt", "choice"]


class Attachment(
    Veiled,
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"digest": "id", "kind": "status"},
):
    """A text that records refer to by digest: a tool's definition, a run's prompt, its choice of tools.

    `digest` is `sha256:` and the SHA-256 of `text`, which is canonical JSON (RFC 8785). `name` is a
    defined tool's; a definition belongs to no run, the others belong to run `run_id`.
    """

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    digest: str
    kind: AttachmentKind
    text: str
    name: str = ""
    run_id: str = ""

    @staticmethod
    def of(kind: AttachmentKind, value: object, *, run_id: str) -> Attachment:
        """Make an attachment of a value that msgspec can write as JSON."""
        text = canonical_json(msgspec.to_builtins(value))
        return Attachment("sha256:" + sha256_hex(text), kind, text, run_id=run_id)

    @property
    def genuine(self) -> bool:
        """Whether the text is the one that the digest was made from."""
        return self.digest == "sha256:" + sha256_hex(self.text)


class Origin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The turn of a run that made a call.

    `model` and `provider` are those of the reply that the call came in. `prompt_digest` is over what
    people wrote (the system's and the user's messages) and over the definitions on offer;
    `choice_digest` over the `Choice` of tools, in a run that picks them. `turn` counts from 1.
    """

    agent: str = ""
    agent_version: str = ""
    turn: int = 0
    model: str = ""
    provider: str = ""
    prompt_digest: str = ""
    choice_digest: str = ""


def prompt_of(
    messages: Iterable[Message], tools: Iterable[HasDefinition], *, run_id: str = ""
) -> Attachment:
    """Return what people wrote and what was on offer: the system's and user's messages, the tools by
    the digests of their definitions.

    What a model said and what its tools gave is no part of it: that is in the records of the calls, as
    far as anybody may see it, and what a tool gave may be secret. Of images there are digests.
    """
    said = [_said(message) for message in messages if message.role in PEOPLE]
    digests = [tool.get_definition().digest for tool in tools]
    return Attachment.of("prompt", {"messages": said, "tools": digests}, run_id=run_id)


def _said(message: Message) -> dict[str, object]:
    told: dict[str, object] = {"role": message.role, "content": encodable(message.content)}
    if message.images:
        told["images"] = ["sha256:" + sha256_hex(each.data or each.url) for each in message.images]
    return told
