"""Going back: a new run that continues from an earlier turn of another one.

Rule: a fork takes what was said and spent up to its turn, and nothing else. No answer that somebody
gave in the first run counts in it. What that run did later is known to the fork but not part of it:
if such a call is made again, `RepeatGuard` decides about it, before all other policies. So no
effect is silently repeated, as far as the state knows what happened.

What was spent is in the tally in the same form as the spending of agents within the run
(`RunTally.inner`): it counts against limits and budgets, and the fork needs no records for it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, get_args

import msgspec

from toolcrib.agent.history import (
    ConversationHistory,
    is_later,
    last_calls_and_results,
    running_calls,
)
from toolcrib.agent.output import ANSWER_TAKEN
from toolcrib.agent.prompt import prompt_message
from toolcrib.errors import ErrorCode, SourceError, Stage, ToolcribError
from toolcrib.runner import is_tainted_here
from toolcrib.runner.output import public_view
from toolcrib.runner.policy import FORK
from toolcrib.schema.references import steps_of
from toolcrib.values.call import Hydrated
from toolcrib.values.content import Prompt
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Allow, Ask, Decision, Deny
from toolcrib.values.json import JsonObject, canonical_json, json_copy, sha256_hex
from toolcrib.values.message import Message, Usage
from toolcrib.values.record import Expense, Origin, ToolInvocationRecord, has_begun, state_of
from toolcrib.values.run import (
    Effect,
    Fork,
    Repeat,
    RunState,
    TurnMark,
    check_run_id,
    saved_run,
    spent_in,
)

_ALLOWED = Allow("nothing that happened after the fork is repeated", "fork")
_FORK_EARLIER = "fork it at an earlier turn, where the model is asked again"
_NEVER_BEGAN = (ErrorCode.NOT_RUNNABLE, ErrorCode.NOT_RECORDED, ErrorCode.DUPLICATE_CALL)


class KnowsTools(Protocol):
    """Answers what a fork asks about the tool `name` of the agent `by`.

    For a tool that is gone, the answer is the one that lets less be repeated.
    """

    def only_reads(self, name: str, by: str) -> bool: ...
    def may_run_agent(self, name: str, by: str) -> bool: ...
    def is_untrusted(self, past: Iterable[Message]) -> bool: ...


class ForkPoint(msgspec.Struct, frozen=True):
    """Where to go back to, and with what prompt.

    `fork_id` is the id of the fork, if the application chooses one. Raises ToolcribError for
    invalid values.
    """

    turn: int
    prompt: Message | None = None
    reopen: bool = False
    repeat: Repeat = "deny"
    fork_id: str | None = None

    def __post_init__(self) -> None:
        is_integer = isinstance(self.turn, int) and not isinstance(self.turn, bool)
        if not is_integer or self.turn < 0:
            raise ToolcribError(
                "turn= is the number of a turn of the run, from 1, or 0 for its beginning"
            )
        if self.repeat not in get_args(Repeat):
            raise ToolcribError("repeat= is 'deny', 'ask' or 'allow'")
        if self.reopen and self.prompt is not None:
            raise ToolcribError(
                "give reopen=True, to decide calls again, or prompt=, for what the user says, not both"
            )
        check_run_id("fork_id", self.fork_id)

    @staticmethod
    def of(
        turn: int, prompt: Prompt | None, *, reopen: bool, repeat: Repeat, fork_id: str | None
    ) -> ForkPoint:
        """Return a fork point with a user's prompt.

        If it is made in a tool that has read untrusted content, the prompt may quote that.
        """
        message = None if prompt is None else prompt_message(prompt)
        if message is not None:
            message = msgspec.structs.replace(message, untrusted=is_tainted_here())
        return ForkPoint(turn, message, reopen, repeat, fork_id)

    @property
    def digest(self) -> str:
        """The digest of what is asked for, whichever run it is asked of."""
        options = {"turn": self.turn, "reopen": self.reopen, "repeat": self.repeat}
        prompt = msgspec.to_builtins(self.prompt)
        return sha256_hex(canonical_json({**options, "prompt": prompt}))


def fork_of(
    state: RunState,
    point: ForkPoint,
    team: KnowsTools,
    *,
    handover_targets: Collection[str],
    begun: Iterable[ToolInvocationRecord] = (),
) -> RunState:
    """Return the state in which a fork begins.

    `handover_targets` are the tools that hand the conversation over. `begun` are calls that have begun
    according to the log: those that the state does not know may have happened, at any turn. Raises
    ToolcribError for a turn that does not exist, or that cannot be continued this way, and
    SourceError for a state that does not say where its turns began.
    """
    _check_at(state, point)
    later_mark = next((mark for mark in state.marks if mark.turn > point.turn), None)
    end_mark = later_mark or _end_of(state)
    messages, reopened = _kept_messages(state, point, end_mark)
    offer_mark = next((m for m in state.marks if point.reopen and m.turn == point.turn), end_mark)
    results = last_calls_and_results(messages)[1].values() if reopened and not point.reopen else ()
    if any(each.name in handover_targets and not each.is_error for each in results):
        raise ToolcribError(
            f"turn {point.turn} hands the conversation over while other calls of it wait: give"
            " reopen=True, to decide all of them again"
        )
    later_results = _later_results(state, messages)
    closed = [r for r in state.records if _turn_of(r) <= point.turn and r.id not in reopened]
    spent = _spent(state, closed, end_mark.turn - 1)
    own_begun = [record for record in state.records if has_begun(record)]
    closed_ids, known_ids = {r.id for r in closed}, {*(r.id for r in own_begun), *state.suspended}
    effects = [  # calls that have begun, of tools that do more than read
        *_effects((each for each in own_begun if each.id not in closed_ids), reopened, team),
        *_effects_within(state, team),
        *_effects((each for each in begun if each.id not in known_ids), reopened, team),
    ]
    earlier_effects = () if state.fork is None else state.fork.effects
    tainted = team.is_untrusted((*messages, *later_results))
    usage = _usage_by(state, end_mark, later_results)
    end = len(messages) - (point.prompt is not None)  # later results come before a prompt
    tally = _tally(state, closed, spent, usage, tainted=tainted, run_id=point.fork_id or "")
    return RunState(
        run_id=tally.run_id,
        turn=0,
        messages=messages if reopened else (*messages[:end], *later_results, *messages[end:]),
        usage=usage,
        tally=tally,
        caller=state.caller,
        offered=state.offered[: offer_mark.offered],  # what a reopened search found is found again
        elapsed=end_mark.elapsed,
        restored={id_: value for id_, value in state.restored.items() if id_ in reopened},
        repaired={id_: value for id_, value in state.repaired.items() if id_ in reopened},
        pinned={id_: value for id_, value in state.pinned.items() if id_ in reopened},
        corrections=end_mark.corrections,
        origin=_origin(state, point.turn) if reopened else None,
        settings=state.settings,
        speakers=state.speakers,
        fork=Fork(
            state.run_id, point.turn, (*earlier_effects, *effects), point.repeat, point.digest
        ),
        emulated=_has_made_up(state, messages, closed),
        instructions=state.instructions,
        arrived=later_results if reopened else (),
        given=state.given,
    )


def _has_made_up(
    state: RunState, kept: Iterable[Message], closed: Iterable[ToolInvocationRecord]
) -> bool:
    """Return whether a stand-in produced one of the results that a fork keeps.

    For results of an earlier run (of the session, or the forked one), nobody can say which did.
    """
    recorded = {record.id for record in state.records}
    earlier = (
        message for message in kept if message.role == "tool" and message.call_id not in recorded
    )
    return (state.emulated and any(True for _ in earlier)) or any(map(_was_stood_in, closed))


def _was_stood_in(record: ToolInvocationRecord) -> bool:
    """Return whether a stand-in ran for the tool of a call, which had not ended before."""
    if not record.emulated or record.error is None:
        return record.emulated and record.status == "completed"
    has_run = record.error.stage in (Stage.RUN, Stage.OUTPUT)
    return has_run and record.error.code not in _NEVER_BEGAN


def _check_at(state: RunState, point: ForkPoint) -> None:
    if len(state.speakers) > 1:
        raise ToolcribError(
            f"run {state.run_id} was handed over to '{state.speakers[-1]}': it cannot be forked"
        )
    if state.turn and not state.marks:
        raise SourceError(
            "the saved state does not say where its turns began: it was saved by an earlier version"
        )
    if point.turn > state.turn:
        raise ToolcribError(f"run {state.run_id} has no turn {point.turn}: it has {state.turn}")
    if point.fork_id == state.run_id:
        raise ToolcribError(
            f"fork_id= {point.fork_id!r} is the id of the run that is forked: choose another"
        )


def _end_of(state: RunState) -> TurnMark:
    """Return the mark where the turn after the last one would begin."""
    return TurnMark(
        turn=state.turn + 1,
        at=len(state.messages),
        usage=state.usage,
        elapsed=state.elapsed,
        corrections=state.corrections,
        offered=len(state.offered),
        running={each.id: each.spent.usage for each in state.records if each.spent is not None},
    )


def _kept_messages(
    state: RunState, point: ForkPoint, end_mark: TurnMark
) -> tuple[tuple[Message, ...], frozenset[str]]:
    """Return what was said up to the turn, and the ids of the calls to decide again."""
    messages = state.messages[: end_mark.at]
    history = ConversationHistory(messages, lambda call: call.arguments)
    reopened = frozenset(call.id for call in history.unanswered())
    if point.reopen:
        reopened |= _reopened(state, point.turn, messages)
        messages = _without_later(tuple(m for m in messages if m.call_id not in reopened))
    if point.prompt is not None:
        if reopened:
            raise ToolcribError(
                f"calls of turn {point.turn} still wait: prompt= is only possible at an earlier turn"
            )
        before_prompt = messages[:-1] if messages and messages[-1].by_user else messages
        return (*before_prompt, point.prompt), reopened
    if _is_answer(state, point.turn, messages) and not (
        reopened or _later_results(state, messages)
    ):
        raise ToolcribError(f"turn {point.turn} is an answer: give prompt=, to say what follows it")
    return messages, reopened


def _is_answer(state: RunState, turn: int, messages: Sequence[Message]) -> bool:
    """Return whether a turn ended with an answer: a text, or a call without a record.

    Where the run began there is no answer, although a run that was itself forked has calls without
    records.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != "tool":
        return last is not None and last.role == "assistant"
    recorded = {record.id for record in state.records}
    return turn > 0 and last.content == ANSWER_TAKEN and last.call_id not in recorded


def _later_results(state: RunState, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return later results of background calls that the kept messages still show as running.

    They have happened, and nothing else in the fork would say so.
    """
    running = running_calls(messages)
    all_messages = (*state.messages, *state.arrived)
    return tuple(
        message for message in all_messages if is_later(message) and message.call_id in running
    )


def _usage_by(state: RunState, end_mark: TurnMark, later: Iterable[Message]) -> Usage:
    """Return what the run had used by then, plus later use by agents in the background.

    Only agents whose results are told `later` are included, and no reply of a turn that the fork
    does not have.
    """
    known_ids = {message.call_id for message in state.messages[: end_mark.at] if is_later(message)}
    later_ids, usage = {message.call_id for message in later} - known_ids, end_mark.usage
    for record in state.records:
        if record.id in later_ids and record.spent is not None:
            usage += record.spent.usage.beyond(end_mark.running.get(record.id, Usage()))
    return usage


def _without_later(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without background results after the last reply.

    These come after the results of that reply's calls, which are to be decided again.
    """
    last = (
        max(
            (i for i, m in enumerate(messages) if m.role == "assistant"),
            default=-1,
        )
        + 1
    )
    return (*messages[:last], *(m for m in messages[last:] if not is_later(m)))


def _reopened(state: RunState, turn: int, messages: Sequence[Message]) -> frozenset[str]:
    """Return the calls of a turn that were decided.

    Other calls could not have run, and keep their results. Raises ToolcribError for a call that the
    state does not have in its original form.
    """
    answered_ids = {message.call_id for message in messages if message.role == "tool"}
    decided = [
        record
        for record in state.records
        if _turn_of(record) == turn and record.decision is not None and record.id in answered_ids
    ]
    for record in decided:
        if record.repaired or "restored" in record.notes:
            reason = (
                "its arguments were repaired, or converted from a provider's view of its schema"
            )
            raise ToolcribError(f"call '{record.id}' cannot be reopened: {reason}; {_FORK_EARLIER}")
    waiting = state.pending if turn == state.turn else ()
    reopened = frozenset((*(r.id for r in decided), *(w.call_in(state.run_id) for w in waiting)))
    if not reopened or not turn:
        raise ToolcribError(f"no call of turn {turn} was decided: {_FORK_EARLIER}")
    return reopened


def _turn_of(record: ToolInvocationRecord) -> int:
    return 0 if record.origin is None else record.origin.turn


def _origin(state: RunState, turn: int) -> Origin:
    """Return the origin of the calls that a fork begins with: the reply that the first run got."""
    origins = (r.origin for r in state.records if r.origin is not None and r.origin.turn == turn)
    origin = next(origins, None) or state.origin or Origin()
    return msgspec.structs.replace(
        origin, turn=0, prompt_digest="", choice_digest="", forked_from=state.run_id
    )


def _spent(state: RunState, closed: Sequence[ToolInvocationRecord], turns: int) -> Expense:
    """Return what a run had spent in its first turns, whose calls are `closed`.

    That is what was spent on the calls, within them, and in the run that it was itself forked from.
    """
    within = Expense()
    for suspended in state.suspended.values():
        within = within.plus(spent_in(saved_run(suspended)).expense)
    for record in state.records:
        within = within.plus(_within(record))
    spent = state.tally.inner.beyond(within).plus(Expense(turns=turns))
    for record in closed:
        spent = spent.plus(_within(record))
        if has_begun(record) or _was_stood_in(record):
            spent = spent.plus(_of_call(state, record.name))
    return spent


def _tally(
    state: RunState,
    closed: Sequence[ToolInvocationRecord],
    spent: Expense,
    usage: Usage,
    *,
    tainted: bool,
    run_id: str,
) -> RunTally:
    return RunTally(
        run_id or f"run_{os.urandom(8).hex()}",
        os.urandom(16).hex(),
        calls=spent.calls,
        cost=spent.cost,
        tokens=usage.input_tokens + usage.output_tokens,
        tainted=tainted,
        seconds_per_tool=_seconds(state, closed, spent),
        inner=spent,
    )


def _within(record: ToolInvocationRecord) -> Expense:
    return Expense() if record.spent is None else record.spent.expense


def _of_call(state: RunState, tool: str) -> Expense:
    """Return what one call of a tool cost: the same for each call in a run."""
    tally = state.tally
    cost = tally.cost_per_tool.get(tool, 0.0) / max(1, tally.per_tool.get(tool, 0))
    return Expense(0, 1, cost, {tool: 1}, {tool: cost} if cost else {})


def _seconds(
    state: RunState, closed: Sequence[ToolInvocationRecord], spent: Expense
) -> dict[str, float]:
    """Return how long each tool had run, including the run that this one was forked from.

    That is everything it has by now, without the calls that are not `closed`.
    """
    closed_ids = {id(record) for record in closed}
    seconds = dict(state.tally.seconds_per_tool)
    for record in state.records:
        if id(record) not in closed_ids and record.name in seconds and has_begun(record):
            seconds[record.name] -= record.seconds or 0.0
    return {tool: max(0.0, total) for tool, total in seconds.items() if tool in spent.per_tool}


def _effects(
    records: Iterable[ToolInvocationRecord], reopened: Collection[str], team: KnowsTools
) -> Iterator[Effect]:
    for record in records:
        tool, agent = record.name, "" if record.origin is None else record.origin.agent
        if team.only_reads(tool, agent):
            continue
        yield Effect(
            record.run_id,
            record.id,
            _turn_of(record),
            tool,
            state_of(record),
            record.arguments or {},
            record.defaulted,
            any_arguments=record.spent is not None or team.may_run_agent(tool, agent),
            reopened=record.id in reopened,
        )


def _effects_within(state: RunState, team: KnowsTools) -> Iterator[Effect]:
    speaker = state.speakers[-1] if state.speakers else ""
    for call_id, suspended in state.suspended.items():
        tool = suspended.call.tool
        if not team.only_reads(tool, speaker):
            yield Effect(state.run_id, call_id, state.turn, tool, "waiting", any_arguments=True)


class RepeatGuard:
    """The policy of a fork on calls that would repeat an effect.

    Two calls of a tool count as the same if the arguments that a record may show are the same,
    ignoring arguments that were sent in neither call. Where only a secret differs, nobody can say
    that they differ. A call that is decided again also counts as the same, whatever arguments it
    ran with. Of several matches, the reason names the one with exactly these arguments, so that the
    person asked reads which effect it is. If an edit leads to another reason, nobody has read that,
    and the edited call does not run.
    """

    __name__ = FORK  # no rule may answer a question under this name

    def __init__(self, fork: Fork) -> None:
        self._repeat = fork.repeat
        self._effects: dict[str, list[Effect]] = {}
        for effect in fork.effects:
            self._effects.setdefault(effect.tool, []).append(effect)

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        del context
        effects = self._effects.get(hydrated.definition.name)
        if effects is None or self._repeat == "allow":
            return _ALLOWED
        shown, defaulted = public_view(hydrated)
        arguments = msgspec.json.decode(shown)
        identical = [each for each in effects if _is_same(each, arguments, defaulted)]
        reopened = [each for each in effects if each.reopened and each.call_id == hydrated.call.id]
        effect = next(iter((*identical, *reopened, *(e for e in effects if e.any_arguments))), None)
        if effect is None:
            return _ALLOWED
        reason = (
            f"this run was forked, and its first run has made this call: {effect.call_id} in turn"
            f" {effect.turn} of {effect.run_id}, {effect.ended}"
        )
        if self._repeat == "ask":
            return Ask(reason, FORK)
        return Deny(reason, "fork", ErrorCode.REPEATED_EFFECT)


def _is_same(effect: Effect, arguments: JsonObject, defaulted: Collection[str]) -> bool:
    unsent = {*_below(effect.defaulted, defaulted), *_below(defaulted, effect.defaulted)}
    first, second = (_without(each, unsent) for each in (effect.arguments, arguments))
    return canonical_json(first) == canonical_json(second)


def _below(pointers: Iterable[str], others: Collection[str]) -> Iterator[str]:
    """Yield the places (JSON Pointers) that are among others, or within one of those."""
    for pointer in pointers:
        if any(pointer == other or pointer.startswith(f"{other}/") for other in others):
            yield pointer


def _without(arguments: JsonObject, pointers: Iterable[str]) -> JsonObject:
    remaining = json_copy(canonical_json(arguments))
    for pointer in pointers:
        *steps, last = steps_of(pointer)
        node: Any = remaining
        for step in steps:
            if isinstance(node, list):
                node = node[int(step)] if step.isdecimal() and int(step) < len(node) else None
            else:
                node = node.get(step) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(last, None)
    return remaining
