"""One run of the agent loop: model → tools → model, until there is nothing left to call.

Rule: a run ends in exactly one way, whatever ends it, and always with a history that a provider
accepts. Every call in it has exactly one result, including calls that were cancelled, denied or
cut. If a call began and did not end, its result says that nobody knows what it did.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, assert_never

import msgspec

from toolcrib.agent.background import Awaited, BackgroundCalls
from toolcrib.agent.context import ContextView
from toolcrib.agent.handover import handover_target, over_limit, with_one_handover
from toolcrib.agent.history import NOT_MADE, ConversationHistory, last_text
from toolcrib.agent.inner import OuterRun
from toolcrib.agent.output import PartialAnswer, TakenAnswer, complaint_of
from toolcrib.agent.picking import Toolbox, is_search
from toolcrib.agent.saved import Restored, check_answers, check_as_asked
from toolcrib.agent.speaker import AgentLabel, Deps, Speaker
from toolcrib.agent.spending import WHOLE_FINISHES, LimitReached, MadeCalls, Spending
from toolcrib.agent.stream import Listener, Watch
from toolcrib.errors import (
    AnswerError,
    ClientError,
    ContextError,
    ErrorCode,
    SourceError,
    ToolcribError,
)
from toolcrib.runner import CallScope, ToolRunner
from toolcrib.runner.running import CALLING, taint
from toolcrib.runner.stopped import record_end
from toolcrib.threads import cancel_requests
from toolcrib.values.call import HydrationResult, ToolCall
from toolcrib.values.context import BegunSteps, Guard, PolicyContext, RunTally, StepRunner, replays
from toolcrib.values.decision import Answer
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Offer,
    ReasoningPart,
    Reply,
    TextPart,
    ToolChoice,
)
from toolcrib.values.record import PEOPLE, Attachment, CallError, Choice, Origin, Waiting, prompt_of
from toolcrib.values.run import (
    Done,
    Limits,
    ReplyFinished,
    RunError,
    RunRecord,
    RunResult,
    RunStarted,
    RunState,
    RunStatus,
    ToolsOffered,
    TurnMark,
    moved,
)
from toolcrib.values.step import ArgumentsStep, ReplyStep, ToolsStep, in_background, offer_of
from toolcrib.values.typed import check_type

# Where the calls of a run come from: which agent, turn, model and prompt.


class Origins:
    """Supplies what one run's records refer to, turn by turn; long attachments are made once."""

    def __init__(self, label: AgentLabel, state: RunState) -> None:
        self._label = label
        self._run_id = state.run_id
        self._forked_from = "" if state.fork is None else state.fork.run_id
        self._prompt_key: tuple[object, ...] = ()
        self._read_messages: tuple[Message, ...] = ()
        self._prompt_messages: list[Message] = []  # by people, among the messages read so far
        self._prompt: Attachment | None = None
        self._choice_attachment: tuple[Choice, Attachment] | None = None
        self.last = state.origin

    def note_reply(self, reply: Reply, model: str, turn: int) -> None:
        """Note the reply that asks for the following calls."""
        self.last = Origin(
            agent=self._label.name,
            agent_version=self._label.version,
            turn=turn,
            model=reply.model or model,
            provider=reply.provider,
            forked_from=self._forked_from,
        )

    def scope(self, scope: CallScope, messages: Sequence[Message], toolbox: Toolbox) -> CallScope:
        """Return the scope of the current reply's calls; `messages` are those up to the reply.

        Calls that a resumed run was asked for earlier keep their origin.
        """
        prompt = self.prompt(messages, toolbox.tools)
        choice = self._choice_of(toolbox.choice)
        origin = self.last or Origin(agent=self._label.name, agent_version=self._label.version)
        if not origin.prompt_digest:
            origin = msgspec.structs.replace(
                origin,
                prompt_digest=prompt.digest,
                choice_digest="" if choice is None else choice.digest,
            )
        self.last = origin
        candidates = [prompt] if self._label.record_prompts else []
        candidates += [] if choice is None else [choice]
        digests = (origin.prompt_digest, origin.choice_digest)
        attachments = tuple(attachment for attachment in candidates if attachment.digest in digests)
        return msgspec.structs.replace(
            scope, origin=origin, choice=toolbox.choice, attachments=attachments
        )

    def prompt(self, messages: Sequence[Message], tools: tuple[HasDefinition, ...]) -> Attachment:
        """Return the present prompt."""
        count = len(self._read_messages)
        if count and (len(messages) < count or messages[count - 1] != self._read_messages[-1]):
            count, self._prompt_messages = 0, []
        unread = messages[count:]
        self._prompt_messages += [
            each for each in unread if each.role in PEOPLE and not each.from_tool
        ]
        self._read_messages = tuple(messages)
        key = (len(self._prompt_messages), tools)
        if self._prompt is None or key != self._prompt_key:
            self._prompt = prompt_of(self._prompt_messages, tools, run_id=self._run_id)
            self._prompt_key = key
        return self._prompt

    def _choice_of(self, choice: Choice | None) -> Attachment | None:
        if choice is None:
            return None
        if self._choice_attachment is None or self._choice_attachment[0] is not choice:
            attachment = Attachment.of("choice", choice, run_id=self._run_id)
            self._choice_attachment = (choice, attachment)
        return self._choice_attachment[1]


_CUT_FINISHES = ("length", "content_filter")
_TOO_EARLY = CallError.of(
    ErrorCode.NOT_RUNNABLE,
    "Calls are still running in the background. Answer when you have their results.",
    retryable=True,
)
_EMPTY_REPLY = "Your reply was empty. Write your answer, or call a tool."
_STREAMED_PARTS = (TextPart, ReasoningPart, ArgumentsPart, Reply)
_PART_KINDS = "a TextPart, ReasoningPart, ArgumentsPart or Reply"


class RunTerms(NamedTuple):
    """Holds the terms of a run, besides those of the agent that speaks.

    `limits` are the strictest of all speakers. `tally` is the tally to continue, if another agent
    has spoken before in this process. If it `begins`, the agent has said nothing in the run yet. If
    `resumed`, the run was given a state, and another process may have executed this part before.
    `check_given` raises BindingError unless the run is given the capabilities that it was given
    when a stored reply was made.
    """

    limits: Limits
    deps: Deps
    state_key: bytes | None
    steps: StepRunner | None
    check_given: Callable[[Iterable[str]], None]
    tally: RunTally | None = None
    guards: tuple[Guard, ...] = ()
    begins: bool = True
    resumed: bool = False


class Run:
    """Drives one run, from a state to a result, and tells its listener what happens."""

    def __init__(
        self,
        speaker: Speaker,
        runner: ToolRunner,
        state: RunState,
        *,
        terms: RunTerms,
        listener: Listener,
        answers: Mapping[str, Answer],
        outer: OuterRun | None = None,
    ) -> None:
        self._speaker, self._client, self._output_type = speaker, speaker.client, speaker.output
        self._runner = runner
        self._terms = terms
        self._settings = speaker.settings_for(state)
        self._instruct = speaker.instructions_for(state, terms.deps)
        self._toolbox = Toolbox.of(runner.catalog, state.offered)
        self.next_agent: str | None = None
        self._answer: str | None = None  # if it is typed, in the terms of its type
        self._output: Any = None
        self._corrections = state.corrections
        self._emit, self._streaming = listener.emit, listener.streaming
        self._run_id = state.run_id
        self._started_at, self._started = time.time(), time.monotonic()
        self._origins = Origins(speaker.label, state)
        self._records = list(state.records)
        self._marks = list(state.marks)
        self._instructions = state.instructions
        self._caller = state.caller
        # The next agent continues this tally. A saved state may be resumed again, so it is copied.
        self.tally = terms.tally or state.tally.copied()
        self.tally.started = time.monotonic() - state.elapsed
        self._steps: StepRunner | None = None
        if outer is None and terms.steps is not None:  # else it is within an outer step
            self._steps = BegunSteps(terms.steps, self._begin_step)
        self._timeout = asyncio.timeout(None)
        self._initial_state = state
        self._waiting: tuple[Waiting, ...] = ()
        self._is_calling = False
        # whether nothing that it waited for has been decided since
        self._is_untouched = bool(state.pending)
        self._cancels = 0
        self._restored = Restored(runner, state)
        self._history = ConversationHistory(state.messages, self._restored.text)
        self._watch = Watch(self._emit, self._records, state, self.tally)
        self._approval_answers = answers
        self._spending = Spending(
            terms.limits,
            state,
            self.tally,
            runner=runner,
            outer=outer,
            steps=terms.steps,
            emit=self._emit,
        )
        self._background = BackgroundCalls(runner, self._watch, state, self._steps, self._spending)
        listener.set_cancel_call(self._background.cancel)
        self._view: ContextView | None = None
        self._choice = ToolChoice()
        answer = "" if self._output_type is None else self._output_type.definition.name
        self._made_calls = MadeCalls(terms.limits, state, answer)
        self._scope = self._scope_of(answers, outer)
        # With steps, each stored reply sets these for its calls; calls of a saved run have none.
        self._makes_arguments = True
        self._background_tools: tuple[str, ...] | None = None

    def _scope_of(self, answers: Mapping[str, Answer], outer: OuterRun | None) -> CallScope:
        """Return the scope of this run's calls, which is within the scope of an `outer` run."""
        state = self._initial_state
        suspended_requests = (
            each.approval[0] for each in state.suspended.values() if each.approval
        )
        requests = {each.id: each for each in (*state.pending, *suspended_requests)}
        return CallScope(
            self.tally,
            answers,
            requests,
            self._watch,
            approver=None if outer is None or self._runner.approver else outer.around.approver,
            suspended=state.suspended,
            account=self._spending,
            within=() if outer is None else (*outer.around.scope.within, outer.call),
            steps=self._steps,
            guards=self._terms.guards,
            paying=() if outer is None else outer.around.paying,
            resumed=self._terms.resumed,
        )

    async def drive(self) -> RunResult:
        """Return the result; if `next_agent` is set, the run is not over: that agent continues it.

        Raises the provider's failure, with `.state`, and CancelledError.
        """
        self._cancels = cancel_requests()
        label, resumed = self._speaker.label, self._initial_state.turn > 0
        if self._terms.tally is None:  # else another agent has reported that it began
            self._emit(RunStarted(self._run_id, label.name, label.version, resumed))
        end: tuple[RunStatus, str | None] | None = None
        self._begin()
        try:
            await self._write_run("running")
            end = await self._outcome()
            status, limit = end
            await self._write_run(status if self.next_agent is None else "handed_over", limit)
            if self.next_agent is not None:
                self._check_cancelled()
        except Exception as error:
            try:
                with suppress(Exception):  # the first error is raised
                    await self._write_run("failed")
            finally:  # also if the run is cancelled while that is written
                self._fail(error)
            raise
        except BaseException as raised:  # KeyboardInterrupt, or the event loop is gone
            if raised.__cause__ is not None or self.next_agent is not None:
                end = None  # a sink failed, too: not all sinks got that end
            self._end(*(end or ("cancelled", None)))  # an end that was written is kept
            continues_elsewhere = getattr(self._steps, "stopping", False)  # in another process
            if (
                end is None
                and isinstance(raised, asyncio.CancelledError)
                and not continues_elsewhere
            ):
                with suppress(Exception):
                    await self._write_run("cancelled")
            raise
        finally:
            self._close()
        return self._end(*end) if self.next_agent is None else self._result(*end, self._state())

    def _begin(self) -> None:
        """Taint the outer runs if this run is tainted, and open its view of the conversation."""
        if self.tally.tainted:
            taint(self.tally)  # its history is tainted, so whoever reads its answer is, too
        if self._speaker.keeper is not None:
            self._view = self._speaker.keeper.open(
                self._run_id, self._caller.id, self._spending, self._steps
            )

    async def _open_toolbox(self) -> Toolbox:
        """Return what this agent offers in the run, if it begins to speak, or offered before."""
        context = PolicyContext(self._caller, self.tally)
        if not self._terms.begins:
            return self._speaker.restored_toolbox(self._initial_state, context)
        steps = None if self._steps is None else self._terms.steps
        return await self._speaker.new_toolbox(self._initial_state, context, steps)

    def _close(self) -> None:
        self._toolbox.close()
        if self._speaker.keeper is not None and self._view is not None:
            self._speaker.keeper.close(self._view, self._run_id)

    async def _outcome(self) -> tuple[RunStatus, str | None]:
        """Return how the run ended, and by which limit, once nothing of it runs any more.

        Raises what `drive` raises.
        """
        try:
            end = await self._drive_in_time()
        except (KeyboardInterrupt, GeneratorExit):  # the event loop may be gone
            raise
        except BaseException as raised:
            try:
                await self._background.stop()
            finally:
                recording = record_end(self._record_begun(), raised, self._cancels)
                if not isinstance(raised, Exception):
                    await recording
                else:
                    with suppress(Exception):  # the first error is raised
                        await recording
            raise
        await self._background.stop()
        await self._record_begun()
        return end

    async def _record_begun(self) -> None:
        """Record which of the calls that the run did not reach had begun before.

        They may have begun in a process that is gone; the model must not read that they did not.
        Nothing is recorded if another process resumes the run.
        """
        if not self._scope.may_have_begun or getattr(self._steps, "stopping", False):
            return
        outcomes = self._watch.outcomes
        not_reached = [call for call in self._history.unanswered() if call.id not in outcomes]
        if not_reached:
            scope = self._origins.scope(self._scope, self._history.messages, self._toolbox)
            await self._runner.record_begun(not_reached, caller=self._caller, scope=scope)

    async def _drive_in_time(self) -> tuple[RunStatus, str | None]:
        seconds = None if replays(self._steps) else self._spending.seconds_left
        self._timeout = timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                await self._take_instructions()
                await self._begin_step()  # it may pick its tools here
                self._toolbox = await self._open_toolbox()
                state = self._initial_state
                is_resumed = state.turn > 0 and state.choice is not None  # it was not handed back
                is_known = is_resumed and self._toolbox.names == state.offered
                if self._toolbox.chosen and not is_known:
                    self._emit(ToolsOffered(self._toolbox.names, self._toolbox.choice))
                await self._turns()
        except LimitReached as error:
            return "limited", error.name
        except TimeoutError:
            if timeout.expired():
                return "limited", "seconds"
            raise
        return ("waiting" if self._waiting else "completed"), None

    async def _take_instructions(self) -> None:
        """Put the instructions of a starting run in their place; they do not change after that."""
        if self._instruct is None:
            return
        if self._steps is None:
            text = await self._instruct()
        else:
            text = await self._steps.run("instructions", self._instruct, str)
        output_type, second = self._output_type, self._history.messages[1:2]
        is_own = (
            output_type is None
            or text != output_type.instructions
            or second == (Message.system(text),)
        )
        self._history.instruct(text, replacing=is_own and self._instructions == "replacing")
        self._instructions = "first" if text else "none"
        if not text:
            self._marks = list(moved(self._marks, -1))

    async def _write_run(
        self, status: RunStatus | Literal["running", "handed_over"], limit: str | None = None
    ) -> None:
        is_begin, parent, origin = status == "running", CALLING.get(), self._origins.last
        messages = self._history.messages
        tools = self._toolbox.tools
        fork = self._initial_state.fork
        record = RunRecord(
            run_id=self._run_id,
            status=status,
            started_at=self._started_at,
            seconds=None if is_begin else time.monotonic() - self._started,
            agent=self._speaker.label.name,
            agent_version=self._speaker.label.version,
            model=self._client.model,
            provider="" if origin is None else origin.provider,
            prompt_digest="" if is_begin else self._origins.prompt(messages, tools).digest,
            caller=self._caller.id,
            caller_roles=self._caller.roles,
            parent_run_id="" if parent is None else parent.tally.run_id,
            parent_call_id="" if parent is None else parent.call_id,
            turns=self._spending.turn,
            calls=self.tally.calls,
            usage=self._spending.usage,
            limit=limit,
            forked_from="" if fork is None else fork.run_id,
            forked_turn=0 if fork is None else fork.turn,
        )
        await self._runner.write_run(record)

    def _check_cancelled(self) -> None:
        """Raise CancelledError if the run was cancelled or timed out and foreign code caught that.

        A client, a scorer or a repairer may do that. Nothing new begins then.
        """
        if cancel_requests() > self._cancels:
            raise asyncio.CancelledError

    async def _decide_waiting(self) -> None:
        """Decide the calls that a saved run has waited for, if there are any."""
        state = self._initial_state
        if not (state.pending or self._history.unanswered()):
            check_answers(state, self._approval_answers)
            return
        if self._view is not None:
            await self._view.open(self._request())
        is_fork = state.fork is not None and not state.pending  # nobody was asked on its behalf
        if is_fork:
            check_answers(state, self._approval_answers)
        await self._call_tools(Offer.of(self._toolbox.tools), None if is_fork else state)

    async def _turns(self) -> None:
        self._check_cancelled()
        await self._decide_waiting()
        if self._has_completed():
            return
        while not await self._is_over():
            reply = await self._ask_in_turn()
            self._check_cancelled()
            self._origins.note_reply(reply, self._client.model, self._spending.turn)
            self._history.append(reply.message, untrusted=self.tally.tainted)
            if self._takes_call(reply):
                return
            if not reply.tool_calls:
                is_typed = self._output_type is not None
                if reply.finish in _CUT_FINISHES or (
                    is_typed and reply.finish not in WHOLE_FINISHES
                ):
                    raise LimitReached(reply.finish)
                if self._background.open_ids:  # too early: ask again, with their results
                    await self._collect_results("one")
                elif self._accepts(reply):
                    return
                continue
            if self._history.unanswered():
                await self._call_tools(reply.offer)
            elif self._background.open_ids:  # its answer was a call
                await self._collect_results("one")

    def _has_completed(self) -> bool:
        """Return whether the run had its answer before it was resumed, and still takes it.

        An answer that its present type refuses goes back to the model.
        """
        answer = self._initial_state.answer
        if answer is None or self._initial_state.pending:
            return False
        if self._output_type is not None:
            self._output, complaint = self._output_type.read(answer, hook=self._runner.on_exception)
            if complaint is not None:
                self._complain(complaint, "corrections")
                return False
        self._answer = answer
        return True

    async def _ask_in_turn(self) -> Reply:
        """Ask in a new turn; there is no turn if no money is left to ask. Raises LimitReached."""
        limit = self._spending.begin_turn()
        if limit is not None:
            raise LimitReached(limit)
        self._mark_turn()
        try:
            return await self._ask_model()
        except LimitReached:
            self._spending.give_turn_back()
            self._marks.pop()
            raise

    async def _is_over(self) -> bool:
        """Return whether the run waits, or is handed over.

        Results of ended background calls are reported before that, and before a request.
        """
        next_agent = None if self._waiting else self._handover_target()
        await self._collect_results("all" if self._waiting or next_agent else "none")
        if next_agent is not None:
            self._check_cancelled()
            self.next_agent = next_agent
        return bool(self._waiting) or next_agent is not None

    async def _collect_results(self, awaited: Awaited) -> None:
        try:
            await self._background.collect(self._spending.turn, awaited)
        finally:
            self._append_arrived()

    def _append_arrived(self) -> None:
        """Add results of background calls to the history, unless other calls in it wait."""
        messages = self._background.arrived
        if messages and not self._history.unanswered():
            self._background.arrived = []
            for message in messages:
                self._history.append(message, untrusted=self.tally.tainted)

    def _mark_turn(self) -> None:
        """Note where a turn begins, so that somebody may go back to it."""
        mark = TurnMark(
            turn=self._spending.turn,
            at=len(self._history.messages),
            usage=self._spending.usage,
            elapsed=self.tally.elapsed,
            corrections=self._corrections,
            offered=len(self._toolbox.tools),
            running=self._spending.used_within(self._background.open_ids),
        )
        self._marks.append(mark)

    def _handover_target(self) -> str | None:
        """Return the agent that continues from here, if it was handed over to."""
        return (
            handover_target(self._history.messages, self._speaker.handover_targets)
            if self._speaker.handover_targets
            else None
        )

    def _takes_call(self, reply: Reply) -> bool:
        """Return whether a call of the reply is the answer.

        A call that should be the answer but is not gets its result here.
        """
        output_type, hook = self._output_type, self._runner.on_exception
        verdict = None if output_type is None else output_type.judge(reply, hook)
        if isinstance(verdict, TakenAnswer):
            if not self._background.open_ids:
                self._output, self._answer = verdict.value, verdict.text
                self._history.append(verdict.result, untrusted=self.tally.tainted)
                return True
            errors = {verdict.result.call_id or "": _TOO_EARLY}
            self._history.add_results({}, errors=errors, untrusted=self.tally.tainted)
        elif verdict is not None:
            self._history.add_results({}, errors=verdict, untrusted=self.tally.tainted)
            if not self._history.unanswered():
                self._count_correction("corrections")
        return False

    def _accepts(self, reply: Reply) -> bool:
        """Read the answer; an empty one, or one of another type, goes back to the model."""
        if self._output_type is None:
            if reply.text.strip():
                self._answer = reply.text
                return True
            self._complain(_EMPTY_REPLY, "empty_reply")
            return False
        answers = (reply.text,) if reply.answers is None else reply.answers
        if len(answers) == 1:
            restorer = reply.offer.output
            hook = self._runner.on_exception
            self._output, complaint = self._output_type.read(answers[0], restorer, hook)
            if complaint is None:
                self._answer = self._output_type.normalized(answers[0], restorer)
        else:
            problem = (
                f"{len(answers)} texts may each be the answer"
                if answers
                else "no text is marked as the answer"
            )
            complaint = complaint_of([problem])
        if complaint is None:
            return True
        self._complain(complaint, "corrections")
        return False

    def _complain(self, complaint: str, limit: str) -> None:
        """Return an answer to the model with a complaint. Raises LimitReached like `_correct`."""
        self._count_correction(limit)
        self._history.append(Message.user(complaint))

    def _count_correction(self, limit: str) -> None:
        """Count a rejected answer. Raises LimitReached if as many as allowed came before it."""
        allowed = self._terms.limits.corrections
        if allowed is not None and self._corrections >= allowed and not replays(self._steps):
            raise LimitReached(limit)
        self._corrections += 1

    async def _ask_model(self) -> Reply:
        turn = self._spending.turn
        inner = self.tally.inner  # demands made before a fork were met, whatever was called
        has_called = bool(self._records or self._background.begun or inner.calls or inner.turns)
        self._choice = self._settings.choice(called=has_called)
        request = self._request()
        if self._view is not None:
            messages = await self._view.fit(request)
            request = msgspec.structs.replace(request, messages=messages)
        reply = await (
            self._request_reply(request)
            if self._steps is None
            else self._stored_reply(request, self._steps)
        )
        reply = self._history.with_new_ids(reply, request.id_prefix)
        model = reply.model or self._client.model
        text = "" if self._output_type is None else self._output_type.text_of(reply)
        if text and self._streaming:
            self._watch.text(text)
        self._emit(ReplyFinished(turn, reply.finish, reply.usage, model, reply.provider))
        self._spending.use(reply.usage)
        return reply

    def _request(self) -> ChatRequest:
        return ChatRequest(
            self._history.messages,
            self._toolbox.tools,
            self._choice,
            settings=self._settings.of_requests,
            parallel_calls=self._settings.parallel_tool_calls,
            id_prefix=f"{self._run_id}_{self._spending.turn - 1}_",
            output=None if self._output_type is None else self._output_type.format,
            search_tool=self._toolbox.search_tool,
            deferred=self._toolbox.deferred,
        )

    async def _request_reply(self, request: ChatRequest) -> Reply:
        ask = self._streamed if self._streaming else self._client.chat
        return await self._spending.paid(self._client, ask, request, self._cancels)

    async def _stored_reply(self, request: ChatRequest, steps: StepRunner) -> Reply:
        """Ask as a step of the run; for a stored reply, the offer is made again."""
        replies: list[Reply] = []

        async def work() -> ReplyStep:
            replies.append(await self._request_reply(request))
            return ReplyStep.of(
                replies[0],
                self.tally.elapsed,
                self._definition,
                given=self._initial_state.given,
                makes_arguments=self._runner.makes_arguments,
            )

        step = await steps.run(f"reply {self._spending.turn}", work, ReplyStep)
        self._makes_arguments, self._background_tools = step.makes_arguments, step.background
        if replies:
            return replies[0]
        if step.given:
            self._terms.check_given(step.given)
        self.tally.add_stored(step.elapsed)
        if self._streaming and step.reply.text:
            self._watch.text(step.reply.text)
        offer = offer_of(self._client, request, step.reply)
        return msgspec.structs.replace(step.with_changes(self._definition), offer=offer)

    def _definition(self, name: str) -> ToolDefinition | None:
        """Return the definition of a tool that the model may be shown, or of the answer tool."""
        output_type = self._output_type
        if output_type is not None and name == output_type.definition.name:
            return output_type.definition
        return self._toolbox.definition(name)

    async def _begin_step(self) -> None:
        """Set the run's time limit, of which another process may have used a part, or all.

        Not while it replays stored steps, which are already done.
        """
        remaining = self._spending.seconds_left
        if remaining is None or replays(self._steps):
            return
        with suppress(RuntimeError):  # that limit is over
            self._timeout.reschedule(asyncio.get_running_loop().time() + remaining)
        if remaining == 0.0:
            await asyncio.sleep(0)  # otherwise what begins here would be cut off at once

    async def _streamed(self, request: ChatRequest) -> Reply:
        reply: Reply | None = None
        partial = PartialAnswer.of(self._client, request)
        async for part in self._client.stream(request):  # to its end, so that it is closed by then
            check_type("each part that the client streams", part, _STREAMED_PARTS, _PART_KINDS)
            match part:
                case TextPart():
                    self._watch.text(part.text, partial)
                case ReasoningPart():
                    self._watch.reasoning(part.text)
                case ArgumentsPart():
                    call_id = self._history.free_id(part.call_id, request.id_prefix)
                    self._watch.arguments(call_id, part, self._toolbox)
                    self._watch.partial([] if partial is None else partial.feed_call(part))
                case Reply():
                    reply = part
                    self._watch.partial([] if partial is None else partial.end())
                case _:
                    assert_never(part)
        if reply is None:
            raise ClientError("the client ended its stream without a reply")
        return reply

    async def _call_tools(self, offer: Offer, saved: RunState | None = None) -> None:
        """Run the calls that have no result yet, and add every result after them, in call order.

        Calls of a `saved` state must be the ones that somebody was asked about.
        """
        tool_calls = self._history.unanswered()
        offer = self._toolbox.offer(offer, tool_calls)
        if saved is None:
            offer = offer.permitted_by(self._choice)
        calls = await self._hydrated(tool_calls, offer)
        self._check_cancelled()
        if saved is not None:
            check_as_asked(saved, calls)
            check_answers(saved, self._approval_answers)
        calls = with_one_handover(calls, self._speaker.handover_targets)
        scope = self._origins.scope(self._scope, self._history.messages, self._toolbox)
        repetition_limit = (
            None if replays(self._steps) else self._repetition_limit(tool_calls, calls, saved)
        )
        limit = repetition_limit or self._spending.begin_calls(calls)
        for call in calls:
            self._watch.started(call)
        if limit is not None:  # none of them runs, but each has its record
            await self._runner.refuse_all(calls, caller=self._caller, scope=scope)
            raise LimitReached(limit)
        self._is_calling, self._is_untouched = True, False
        try:
            turn, background_tools = self._spending.turn, self._background_tools
            outcomes = await self._background.exec_all(calls, scope, turn, background_tools)
        finally:
            self._spending.end_calls()
        self._is_calling = False
        self._waiting = tuple(outcome for outcome in outcomes if isinstance(outcome, Waiting))
        has_new_tools = self._toolbox.take(outcomes)
        self._add_results()
        if self._steps is not None and any(map(is_search, outcomes)):
            await self._store_choice(self._steps)
        if has_new_tools:
            self._emit(ToolsOffered(self._toolbox.names, self._toolbox.choice))

    def _repetition_limit(
        self,
        tool_calls: Sequence[ToolCall],
        calls: Sequence[HydrationResult],
        saved: RunState | None,
    ) -> str | None:
        """Return the limit on repetition or handovers that keeps these calls from being made.

        Calls of a saved state, which were asked about, are not limited for repetition.
        """
        limit = None if saved else self._made_calls.limit(self._history.messages, tool_calls)
        limits, handover_targets = self._terms.limits, self._speaker.handover_targets
        return limit or over_limit(limits, self._initial_state.speakers, calls, handover_targets)

    async def _store_choice(self, steps: StepRunner) -> None:
        """Store the reasons why tools are offered, as a step.

        The score of a found tool is known only in the process that found it. The step does not
        apply to other tools than those offered here.
        """

        async def work() -> ToolsStep:
            return ToolsStep(self._toolbox.names, self._toolbox.choice)

        step = await steps.run(f"found {self._spending.turn}", work, ToolsStep)
        if step.names == self._toolbox.names:
            self._toolbox.choice = step.choice

    async def _hydrated(
        self, tool_calls: Sequence[ToolCall], offer: Offer
    ) -> list[HydrationResult]:
        """Hydrate the calls; with steps, everything that may differ each time is a step.

        A repairer may be a model, and a default factory makes its value once per call.
        """
        if self._steps is None or not self._makes_arguments:
            return [await self._restored.hydrate(call, offer) for call in tool_calls]
        results: list[HydrationResult] = []

        async def work() -> ArgumentsStep:
            results.extend([await self._restored.hydrate(call, offer) for call in tool_calls])
            names = self._background_tools
            return msgspec.structs.replace(
                self._restored.arguments_of(tool_calls),
                background=in_background(tool_calls, self._definition) if names is None else names,
            )

        step = await self._steps.run(f"arguments {self._spending.turn}", work, ArgumentsStep)
        self._background_tools = step.background
        if results:
            return results
        self._restored.take(step)
        return [await self._restored.hydrate(call, offer) for call in tool_calls]

    def _fail(self, error: Exception) -> None:
        """Tell the observers; an error of another library is named only by its class."""
        is_public = isinstance(error, ToolcribError)
        self._emit(
            RunError(type(error).__name__, str(error) if is_public else "an unexpected error")
        )
        result = self._end("failed")
        if isinstance(error, ClientError | AnswerError | ContextError | SourceError):
            error.state = result.state

    def _end(self, status: RunStatus, limit: str | None = None) -> RunResult:
        state = (
            self._initial_state
            if status == "failed" and self._is_untouched
            else self._end_state(status)
        )
        result = self._result(status, limit, state)
        self._emit(Done(result))
        return result

    def _end_state(self, status: RunStatus) -> RunState:
        """Return the state of a run in which every call has a result, unless the run waits."""
        if status != "waiting":
            self._waiting = ()  # none of them waits any more
            code = ErrorCode.BUDGET_EXCEEDED if status == "limited" else ErrorCode.CANCELLED
            error = NOT_MADE if status == "failed" else CallError.of(code)
            if self._is_calling:  # they may have begun, and no outcome was reported
                error = CallError.of(ErrorCode.OUTCOME_UNKNOWN)
            if self._history.unanswered():
                self._toolbox.take(self._watch.outcomes.values())  # from a turn that was cut off
                self._add_results(error)
        self._background.close()
        self._append_arrived()
        return self._state()

    def _add_results(self, error: CallError | None = None) -> None:
        self._history.add_results(
            self._watch.outcomes,
            error,
            loads=self._toolbox.loads,
            begun=self._background.begun,
            untrusted=self.tally.tainted,
        )

    def _state(self) -> RunState:
        pending = tuple(request for waiting in self._waiting for request in waiting.requests)
        suspended = {
            call.record.id: call.suspended for call in self._waiting if call.suspended is not None
        }
        arguments = self._restored.arguments_of(self._history.unanswered())
        next_agent = self._handover_target()
        return RunState(
            run_id=self._run_id,
            turn=self._spending.turn,
            messages=self._history.messages,
            usage=self._spending.usage,
            records=tuple(self._records),
            tally=self.tally.copied(),  # left-behind work may still run, and taint
            caller=self._caller,
            offered=self._toolbox.names,
            elapsed=self.tally.elapsed,
            pending=pending,
            restored=arguments.restored,
            repaired=arguments.repaired,
            origin=self._origins.last,
            choice=self._toolbox.choice,
            pinned=arguments.pinned,
            corrections=self._corrections,
            suspended=suspended,
            settings=self._initial_state.settings,
            marks=tuple(self._marks),
            fork=self._initial_state.fork,
            speakers=(*self._initial_state.speakers, *([] if next_agent is None else [next_agent])),
            emulated=self._initial_state.emulated
            or self._runner.emulates
            or any(record.emulated for record in self._records),
            instructions=self._instructions,
            arrived=tuple(
                msgspec.structs.replace(message, untrusted=message.untrusted or self.tally.tainted)
                for message in self._background.arrived
            ),
            given=self._initial_state.given,
            answer=self._answer,
        )

    def _result(self, status: RunStatus, limit: str | None, state: RunState) -> RunResult:
        if self._terms.state_key is not None:
            state = state.signed(self._terms.state_key)
        text = last_text(self._history.messages)
        if status == "completed" and self._answer is not None:
            text = self._answer
        return RunResult(
            status=status,
            text=text,
            output=text if self._output_type is None else self._output,
            messages=state.messages,
            usage=state.usage,
            records=state.records,
            pending=state.pending,
            state=state,
            limit=limit,
            agent=state.speakers[-1] if state.speakers else self._speaker.label.name,
        )
