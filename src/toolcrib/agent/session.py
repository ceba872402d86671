"""`Session`: a conversation with an agent; each `send` is a run that knows what was said before.

Rule: a call that was made stays in the conversation with its one result, however its run ended. A
model that is told "try again" must see what it has done already, or it does it twice. A run that
failed or was cancelled before it called anything leaves nothing in the conversation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, Unpack

import msgspec
from typing_extensions import TypeVar

from toolcrib.agent.driving import Team
from toolcrib.agent.history import RunTurn, SaidWithin, joined, settled_messages, split_system
from toolcrib.agent.speaker import Deps
from toolcrib.agent.stream import Drive, Listener, RunStream
from toolcrib.errors import SourceError, ToolcribError, counted
from toolcrib.values.content import Prompt
from toolcrib.values.decision import ANONYMOUS, Answer, Caller
from toolcrib.values.json import canonical_json
from toolcrib.values.message import Message
from toolcrib.values.run import (
    Done,
    Event,
    RunOptions,
    RunResult,
    RunState,
    check_all_read,
    check_signature,
)
from toolcrib.values.typed import check_each, check_type, got_type

_KEPT_STATUSES = ("completed", "limited", "waiting")
_OTHER_CONVERSATION = (
    "the run belongs to another conversation, or to a turn of this one that was not kept"
)
_OUTDATED = (
    "the state is out of date: its run has continued in this conversation. Resume the last state of"
    " the run, or send(…) what is to be done now"
)


class Converses(Protocol):
    """Describes what a conversation needs of an agent."""

    @property
    def team(self) -> Team: ...


A = TypeVar("A", bound=Converses, default=Any)


class _SavedTurn(msgspec.Struct, frozen=True):
    """A turn without its messages: only how many of the conversation's messages it has."""

    run_id: str
    before: int
    count: int
    over: bool = False
    within: dict[str, SaidWithin] = {}


class _SavedSession(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    offered: tuple[str, ...] = ()
    signature: str = ""
    turns: tuple[_SavedTurn, ...] = ()
    speaker: str = ""
    instructed: bool | None = None


_SESSION_PARAMETERS = {  # parameters of `Agent.run` that the session sets itself
    "history": "session.messages",
    "offered": "session.offered",
    "speaker": "session.speaker, who spoke last, or whom you set there",
}


class Session(Generic[A]):
    """Keeps the messages of a conversation with an agent. One `send` or `stream` at a time.

    `offered` names the tools that its runs have offered, if the agent picks them. `speaker` names
    the agent that the next run begins with, "" for `agent` itself. After a handover it is the agent
    that spoke last.
    """

    def __init__(
        self, agent: A, messages: tuple[Message, ...] = (), offered: tuple[str, ...] = ()
    ) -> None:
        if not hasattr(type(agent), "team"):
            raise TypeError(f"agent must be an Agent; {got_type(agent)}")
        self.agent: A = agent
        self._turns: tuple[RunTurn, ...] = ()
        self._messages: tuple[Message, ...] = ()
        self._system: tuple[Message, ...] = ()
        self._instructed: bool | None = None  # whether a run set the instructions in `_system`
        self.messages = messages
        self.offered = check_each("offered", offered, str, "a list of names")
        self.speaker = ""
        self._busy: RunTurn | None = None

    def __repr__(self) -> str:
        """Name the agent and the number of messages."""
        return f"<Session of {self.agent!r}, {counted(len(self.messages), 'message')}>"

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, as the next run will know it."""
        return self._messages

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        """Set other messages; runs stay known if the new messages continue the present ones."""
        previous = split_system(self._messages)[1]
        checked = check_each("messages", messages, Message, "a list of Message")
        system, conversation = split_system(checked)
        self._instructed = self._instructed if system[:1] == self._system[:1] else None
        self._system = system
        is_continued = conversation[: len(previous)] == previous
        turns, added = (
            (self._turns, conversation[len(previous) :]) if is_continued else ((), conversation)
        )
        self._set_turns((*turns, RunTurn(messages=added)))

    def messages_of_run(self, run_id: str) -> tuple[Message, ...]:
        """Return what a run has said here, with this conversation's call ids.

        Messages that belong to no known run are included.
        """
        turns = (turn for turn in self._turns if turn.run_id in (run_id, ""))
        return tuple(message for turn in turns for message in turn.messages)

    async def send(
        self,
        prompt: Prompt,
        *,
        caller: Caller = ANONYMOUS,
        deps: Deps | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run the agent; its messages become the history. Raises ToolcribError during another run.

        Takes and raises what `Agent.run` does; calls made before an error stay in the conversation.
        """
        return await self._run(
            self._next_turn(), lambda: self._new_drive(prompt, caller, deps, options)
        )

    async def resume(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunResult:
        """Continue a run of this conversation that waits, or failed, and keep it.

        Raises what `Agent.resume` does; calls made before an error stay in the conversation. Raises
        ToolcribError, before anything runs, for a run that is not of this conversation, and for a
        state that is not the last one of its run here.
        """
        return await self._run(
            self._turn_of(state), lambda: self.agent.team.resumed_drive(state, answers or {}, deps)
        )

    def _new_drive(
        self, prompt: Prompt, caller: Caller, deps: Deps | None, options: RunOptions
    ) -> Drive:
        for name, source in _SESSION_PARAMETERS.items():
            if name in options:
                raise TypeError(
                    f"{name}= cannot be given to a session, which has its own: {source}"
                )
        team = self.agent.team
        state = team.prepared_state(
            prompt,
            self.messages,
            caller,
            self.offered,
            options,
            speaker=self.speaker,
            instructed=self._instructed,
        )
        return team.new_drive(state, deps)

    async def _run(self, turn: RunTurn, start: Callable[[], Drive]) -> RunResult:
        self._begin(turn)
        results: list[RunResult] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Done):
                results.append(event.result)

        try:
            return await start()(Listener(on_event, streaming=False))
        finally:
            self._end(turn, results[0] if results else None)

    def stream(
        self,
        prompt: Prompt,
        *,
        caller: Caller = ANONYMOUS,
        deps: Deps | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStream:
        """Do what `send` does, with events; the session is busy until the run has ended.

        That holds whether or not the events are read.
        """
        return self._streamed(
            self._next_turn(), lambda: self._new_drive(prompt, caller, deps, options)
        )

    def resume_stream(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunStream:
        """Do what `resume` does, and return its events as a stream."""
        return self._streamed(
            self._turn_of(state), lambda: self.agent.team.resumed_drive(state, answers or {}, deps)
        )

    def _streamed(self, turn: RunTurn, start: Callable[[], Drive]) -> RunStream:
        self._begin(turn)
        try:
            stream = RunStream(start())
        except BaseException:
            self._end(turn, None)
            raise
        stream.when_ended(lambda result: self._end(turn, result))
        return stream

    def keep(self, result: RunResult) -> None:
        """Take a run that an agent has resumed into the conversation.

        `send`, `stream` and `resume` do this themselves. The run keeps its place, even if the
        conversation went on while it waited. Messages that the conversation already has are not
        added again. Raises ToolcribError for a run that is not of this conversation, and for one
        that has continued differently here, since that would be lost.
        """
        check_type("result", result, RunResult, "a RunResult: what agent.resume(…) gives")
        if self._busy is not None and self._busy.run_id == result.state.run_id:
            raise ToolcribError("this session is busy with that run: await its end first")
        previous = self._known_turn(result.state)
        turn = previous.replaced(result.state, over=result.status == "completed")
        if turn.extends(previous):
            self._store_turn(turn, result)
        elif not previous.extends(turn):
            raise ToolcribError("the run has continued differently in this conversation")

    def _next_turn(self) -> RunTurn:
        """Return the turn, still empty, of a run that begins now."""
        return RunTurn(before=len(split_system(self.messages)[1]))

    def _turn_of(self, state: RunState) -> RunTurn:
        """Return the turn of the run whose last state here this is. Raises ToolcribError."""
        check_type("state", state, RunState, "a RunState: RunState.from_json(text)")
        previous = self._known_turn(state)
        turn = previous.replaced(state)
        if not previous.messages and turn.tells_more(previous):
            raise ToolcribError(_OTHER_CONVERSATION)
        if previous.messages and not (turn.extends(previous) and previous.extends(turn)):
            raise ToolcribError(_OUTDATED)
        return previous

    def _known_turn(self, state: RunState) -> RunTurn:
        """Return a run's turn as the conversation has it; empty if the run begins at its end.

        Raises ToolcribError for a run that has no place here.
        """
        for turn in self._turns:
            if turn.run_id == state.run_id:
                return turn
        messages, conversation = settled_messages(state), split_system(self.messages)[1]
        # a run begins with what a user says
        next_ = messages[len(conversation) : len(conversation) + 1]
        if next_ and next_[0].by_user and messages[: len(conversation)] == conversation:
            return RunTurn(state.run_id, len(conversation))
        return self._adopt_turn(RunTurn(state.run_id, messages=messages))

    def _adopt_turn(self, run_turn: RunTurn) -> RunTurn:
        """Return the turn of a run whose messages were given to the session as a list.

        The list begins with the whole turn and, if it continues, does so with a user's message.
        Raises ToolcribError.
        """
        first, *others = self._turns or (RunTurn(),)
        count = len(run_turn.messages)
        is_prefix = first.messages[:count] == run_turn.messages
        same_start = bool(first.messages) and first.messages[:1] == run_turn.messages[:1]
        extends = not others and run_turn.extends(first)  # others began on messages it lacks
        if first.run_id or not (same_start and (is_prefix or extends)):
            raise ToolcribError(_OTHER_CONVERSATION)
        if any(not message.by_user for message in first.messages[count : count + 1]):
            raise ToolcribError(_OUTDATED)
        turn = msgspec.structs.replace(run_turn, messages=first.messages[:count])
        self._set_turns((turn, RunTurn(messages=first.messages[count:]), *others))
        return turn

    def _set_turns(self, turns: tuple[RunTurn, ...]) -> None:
        self._turns = tuple(turn for turn in turns if turn.messages)
        self._messages = (*self._system, *joined(self._turns))

    def _store_turn(self, turn: RunTurn, result: RunResult) -> None:
        """Put a turn in its place: its old place, or after all others."""
        previous = self._messages
        if any(each.run_id == turn.run_id for each in self._turns):
            turns = tuple(turn if t.run_id == turn.run_id else t for t in self._turns)
        else:
            self._system, turns = split_system(result.messages)[0], (*self._turns, turn)
            self._instructed = result.state.instructions != "none"
        self._set_turns(turns)
        speaker = self.agent.team.member((result.state.speakers or ("",))[-1])
        if self._messages != previous and speaker.picking is not None:
            self.offered = result.state.offered or self.offered
        if result.state.speakers and self._turns and self._turns[-1].run_id == turn.run_id:
            self.speaker = result.state.speakers[-1]

    def _begin(self, turn: RunTurn) -> None:
        if self._busy is not None:
            raise ToolcribError("this session is busy: await the send, or the stream, first")
        self._busy = turn

    def _end(self, turn: RunTurn, result: RunResult | None) -> None:
        """Keep the run, unless it ended by failure or cancellation before it called anything.

        A resumed run that failed or was cancelled is kept only if it has more to tell of a call.
        """
        self._busy = None
        if result is None:
            return
        started = msgspec.structs.replace(turn, run_id=result.state.run_id)
        final = started.replaced(result.state, over=result.status == "completed")
        if result.status in _KEPT_STATUSES or final.tells_more(started):
            self._store_turn(final, result)

    def to_json(self) -> str:
        """Return the messages as a JSON list, or an object if more has to be stored.

        That is what was offered if the agent picks, the runs that may continue, and the signature.
        """
        saved = self._saved()
        signature = self._signature(saved)
        extras = (saved.offered, saved.turns, saved.speaker, signature)
        if not any(extras) and saved.instructed is None:
            return msgspec.json.encode(saved.messages).decode()
        return msgspec.json.encode(msgspec.structs.replace(saved, signature=signature)).decode()

    @classmethod
    def from_json(cls, agent: A, text: str | bytes) -> Session[A]:
        """Return the session that was saved as `text`.

        Raises SourceError if the text is not a saved session, or was not saved by an agent with the
        same `state_key`.
        """
        check_type("text", text, (str, bytes), "the JSON of a saved session, str or bytes")
        try:
            saved = msgspec.json.decode(text, type=_SavedSession | tuple[Message, ...])
            check_all_read(text, saved)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"not a saved session: {error}") from None
        if not isinstance(saved, _SavedSession):
            saved = _SavedSession(saved)
        session = cls(agent, saved.messages, saved.offered)
        session._instructed = saved.instructed if session._system else None
        if saved.speaker:
            session.speaker = agent.team.member(saved.speaker).name
        signature = session._signature(saved)
        if signature:
            check_signature(saved.signature, signature, "the saved session")
        if saved.turns:
            session._set_turns(_turns_of(saved))
        return session

    def _saved(self) -> _SavedSession:
        conversation = tuple(message for turn in self._turns for message in turn.messages)
        messages = (*self._system, *conversation)
        turns = tuple(
            _SavedTurn(turn.run_id, turn.before, len(turn.messages), turn.over, turn.within)
            for turn in self._turns
        )
        all_over = all(turn.over or not turn.run_id for turn in turns)
        is_plain = all_over and messages == self._messages
        saved_turns = () if is_plain else turns
        has_instructions = self._system and not self.agent.team.is_instructed
        instructed = self._instructed if has_instructions else None
        return _SavedSession(
            messages, self.offered, turns=saved_turns, speaker=self.speaker, instructed=instructed
        )

    def _signature(self, saved: _SavedSession) -> str:
        parts = (saved.messages, saved.offered, *([saved.turns] if saved.turns else []))
        plain = msgspec.json.decode(msgspec.json.encode(parts))
        plain += [{"speaker": saved.speaker}] if saved.speaker else []
        plain += [] if saved.instructed is None else [{"instructed": saved.instructed}]
        for turn in plain[2] if saved.turns else ():
            if not turn["within"]:
                del turn["within"]  # 0.2 had none, and what it signed stays valid
        return self.agent.team.signature("toolcrib session", canonical_json(plain))


def _turns_of(saved: _SavedSession) -> tuple[RunTurn, ...]:
    """Return the turns with their messages. Raises SourceError if they do not fit the messages."""
    conversation = split_system(saved.messages)[1]
    ids = [turn.run_id for turn in saved.turns if turn.run_id]
    counts = [turn.count for turn in saved.turns]
    is_wrong = min(counts) < 0 or sum(counts) != len(conversation) or len(set(ids)) != len(ids)
    if is_wrong or any(turn.before < 0 for turn in saved.turns):
        raise SourceError("not a saved session: its turns do not fit its messages")
    ends = itertools.accumulate(counts)
    return tuple(
        RunTurn(
            turn.run_id, turn.before, conversation[end - turn.count : end], turn.over, turn.within
        )
        for turn, end in zip(saved.turns, ends, strict=True)
    )
