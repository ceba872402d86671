"""Before a tool runs: whoever wants to know is told, and a ledger says whether it may begin at all.

A call that a ledger knows to have ended gives what is in its record. One that began and never ended,
in a process that is gone or in another one, has done nobody knows what: it runs again only if its
tool is marked as idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.runner.recorder import Draft, Recorder, own_record, to_the_end
from toolcrib.runner.stopped import EndedBefore, Stopped
from toolcrib.values.call import Hydrated
from toolcrib.values.json import canonical_json
from toolcrib.values.record import (
    CallError,
    Completed,
    Failed,
    Ledger,
    Sink,
    ToolInvocationRecord,
    is_final,
)


class Intents:
    """The sinks that are told before a call, and the ledger among them, if there is one.

    A record has the call's key if its entry is about what became of it: this attempt has claimed the
    key, or could not know how the one that did has ended.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        ledgers = [sink for sink in sinks if isinstance(sink, Ledger)]
        if len(ledgers) > 1:
            raise ToolcribError("a call is begun in one ledger: give a runner at most one")
        self.ledger = ledgers[0] if ledgers else None
        self._told = [s for s in sinks if getattr(s, "intents", False) and s is not self.ledger]
        self.wanted = bool(ledgers or self._told)

    async def check(self, key: str, draft: Draft, hydrated: Hydrated) -> None:
        """Raises what `begin` does, before somebody is asked about a call that will not run."""
        if self.ledger is not None:
            _judge(await self.ledger.find(draft.intent(key)), key, draft, hydrated)

    async def begin(self, key: str, draft: Draft, hydrated: Hydrated, recorder: Recorder) -> None:
        """Write the intent. Raises EndedBefore, and Stopped if the call must not run."""
        intent = draft.intent(key)
        if self.ledger is not None:
            (await recorder.attach(self.ledger, draft)).check()
            await _claim(self.ledger, intent, draft, hydrated)
        draft.key = key
        for sink in self._told:
            (await recorder.write(sink, intent, draft)).check()


async def _claim(
    ledger: Ledger, intent: ToolInvocationRecord, draft: Draft, hydrated: Hydrated
) -> None:
    begun = await to_the_end(ledger.begin(own_record(intent)))
    known = cast("ToolInvocationRecord | None", begun.given)
    if begun.error is None and known is None:
        draft.key = intent.idempotency_key  # it is ours, also if this is cancelled now
    begun.check()
    if known is not None:
        _judge(known, intent.idempotency_key, draft, hydrated)
        pending = ledger.write(own_record(intent))  # begun before, and begun again
        if pending is not None:
            (await to_the_end(pending)).check()


def replayed(known: ToolInvocationRecord) -> Completed | Failed:
    """The outcome of a call as its record has it: that is the public view."""
    if known.status == "completed" or known.error is None:
        return Completed(known, known.result, known.result, known.result, replayed=True)
    return Failed(known, known.error, replayed=True)


def _judge(known: ToolInvocationRecord | None, key: str, draft: Draft, hydrated: Hydrated) -> None:
    if known is None:
        return
    if not _same(known, draft.record("started")):
        raise Stopped(CallError.of(ErrorCode.DUPLICATE_CALL))
    if is_final(known):
        raise EndedBefore(replayed(known))
    if hydrated.definition.annotations.idempotent:
        return
    if known.error is not None:  # it was said before that nobody knows
        raise EndedBefore(replayed(known))
    draft.key = key  # the record is about the call that was begun with this key
    raise Stopped(CallError.of(ErrorCode.OUTCOME_UNKNOWN))


def _same(known: ToolInvocationRecord, asked: ToolInvocationRecord) -> bool:
    """Whether two records under one key are of one call: the same tool, caller and arguments."""
    return (
        known.definition_digest == asked.definition_digest
        and known.caller == asked.caller
        and known.arguments_sha256 == asked.arguments_sha256
        and known.arguments_bytes == asked.arguments_bytes
        and (known.arguments_sha256 != "" or _same_secrets(known, asked))
    )


def _same_secrets(known: ToolInvocationRecord, asked: ToolInvocationRecord) -> bool:
    """Of a call with secrets there is a digest by a key, which says it if both are by the same key.

    Otherwise (the ledger has no key, and the earlier record is another process's or an old one) what
    shows of the call has to do, if nobody changed it.
    """
    if known.arguments_mac == asked.arguments_mac != "":
        return True
    if _key_of_mac(known) == _key_of_mac(asked) != "":
        return False
    changed = known.edited or asked.edited or known.repaired or asked.repaired
    return changed or canonical_json(known.arguments) == canonical_json(asked.arguments)


def _key_of_mac(record: ToolInvocationRecord) -> str:
    return record.arguments_mac.rpartition(":")[0]
