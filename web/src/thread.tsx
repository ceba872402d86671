/** A conversation: questions, answers, calls, and where the next question is written. */

import {
  AssistantRuntimeProvider,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
  useAuiState,
  useExternalStoreRuntime,
  type AppendMessage,
  type ThreadMessageLike,
} from "@assistant-ui/react";
import { memo, useEffect, useMemo, useState, type FormEvent } from "react";
import { ApiError, api } from "./api";
import { CallCard } from "./card/call-card";
import { Guarded } from "./guarded";
import { Said } from "./markdown";
import type { Connection } from "./stream";
import { ThreadId, useTold } from "./told";
import { lineOf, type CallPart, type ThreadState, type Turn, type TurnStatus } from "./types";
import { sentence, Visible } from "./visible";

interface Shown {
  thread: string;
  turn: Turn;
  role: "user" | "assistant";
}

const ENDED: { [status in TurnStatus]: string } = {
  running: "",
  waiting: "",
  completed: "",
  limited: "This answer is not finished.",
  failed: "This answer failed.",
  cancelled: "This answer was cancelled. What ran before stays as it is shown.",
  interrupted: "This answer was interrupted.",
};

const STATUS = {
  running: { type: "running" },
  waiting: { type: "requires-action", reason: "interrupt" },
} as const;

function messageOf({ thread, turn, role }: Shown): ThreadMessageLike {
  const common = { id: `${turn.id}/${role}`, createdAt: new Date(turn.at * 1000), metadata: { custom: { thread, turn } } };
  if (role === "user") return { ...common, role, content: turn.asked };
  const content = turn.parts.map((part) =>
    part.kind === "call"
      ? ({
          type: "tool-call",
          toolCallId: part.id,
          toolName: part.name,
          argsText: part.args_text,
          artifact: part,
          ...(part.result === null ? {} : { result: part.result }),
          isError: part.error !== null,
        } as const)
      : ({ type: part.kind, text: part.text } as const),
  );
  const status =
    turn.status === "running" || turn.status === "waiting"
      ? STATUS[turn.status]
      : turn.status === "completed"
        ? ({ type: "complete", reason: "stop" } as const)
        : ({ type: "incomplete", reason: turn.status === "cancelled" ? "cancelled" : "error" } as const);
  return { ...common, role, content, status };
}

/**
 * Return a question and an answer for each turn; those of a turn that did not change stay the same. With
 * `until` it is the conversation as it was before that turn was asked.
 */
function useShown(state: ThreadState | null, until: string | null): Shown[] {
  const known = useMemo(() => new WeakMap<Turn, [Shown, Shown]>(), []);
  const thread = state?.thread.id ?? "";
  return useMemo(() => {
    const turns = state?.turns ?? [];
    const end = turns.findIndex((turn) => turn.id === until);
    return lineOf(end < 0 ? turns : turns.slice(0, end)).flatMap((turn) => {
      const made = known.get(turn) ?? [
        { thread, turn, role: "user" as const },
        { thread, turn, role: "assistant" as const },
      ];
      known.set(turn, made);
      return made;
    });
  }, [state, thread, until, known]);
}

/** Whoever uses the keyboard goes on where a question is written. */
export const focusQuestion = () => document.getElementById("question")?.focus();

const textOf = (message: AppendMessage) =>
  message.content.map((part) => (part.type === "text" ? part.text : "")).join("");

interface Props {
  id: string | null;
  state: ThreadState | null;
  connection: Connection;
  open: () => Promise<string>; // makes a thread, where none is open
  onNew: () => void;
}

export function Thread({ id, state, connection, open, onNew }: Props) {
  const tell = useTold();
  const isGone = id !== null && connection === "gone";
  const [until, setUntil] = useState<string | null>(null);
  useEffect(() => setUntil(null), [id]);
  const messages = useShown(state, until);
  const [sending, setSending] = useState(false);
  const ask = async (text: string) => {
    setSending(true);
    try {
      await api.ask(id ?? (await open()), text);
      setUntil(null);
      focusQuestion();
    } catch (raised) {
      const { composer } = runtime.thread;
      if (!composer.getState().text) composer.setText(text); // nothing that somebody wrote is lost
      tell(raised);
    }
    setSending(false);
  };
  const askAnew = async (turn: Turn, text: string) => {
    try {
      await api.ask(id ?? "", text, turn.id);
      return true;
    } catch (raised) {
      tell(raised);
      return false;
    }
  };
  const runtime = useExternalStoreRuntime<Shown>({
    messages,
    convertMessage: messageOf,
    isRunning: state?.turns.some((turn) => turn.status === "running") ?? false,
    isSendDisabled: sending || connection === "refused",
    onNew: (message) => ask(textOf(message)),
    onCancel: async () => {
      try {
        if (id) await api.cancel(id);
        focusQuestion();
      } catch (raised) {
        if (!(raised instanceof ApiError && raised.code === "not_running")) tell(raised);
      }
    },
  });
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ThreadPrimitive.Root className="thread">
        {until !== null && (
          <p className="banner earlier" role="status">
            An earlier version, to be read. It was asked in other words since.
            <button type="button" className="link" onClick={() => setUntil(null)}>
              Back to the newest
            </button>
          </p>
        )}
        <ThreadPrimitive.Viewport className="viewport" tabIndex={0} aria-label="Conversation" role="log">
          {id !== null && state === null && !isGone && <p className="note middle">…</p>}
          {isGone && (
            <div className="welcome">
              <h2>There is no such conversation.</h2>
              <p>It was deleted, or is somebody else’s.</p>
              <button type="button" className="main" onClick={onNew}>
                Begin a new one
              </button>
            </div>
          )}
          {(id === null || state?.turns.length === 0) && <Welcome />}
          <ThreadPrimitive.Messages>
            {({ message }) =>
              message.role === "user" ? (
                <Question
                  turn={message.metadata.custom["turn"] as Turn}
                  askAnew={until === null ? askAnew : null}
                  showEarlier={setUntil}
                />
              ) : (
                <ThreadId value={message.metadata.custom["thread"] as string}>
                  <Answer turn={message.metadata.custom["turn"] as Turn} again={until === null ? ask : null} />
                </ThreadId>
              )
            }
          </ThreadPrimitive.Messages>
        </ThreadPrimitive.Viewport>
        <ThreadPrimitive.ScrollToBottom className="newest" aria-label="To the newest">
          ↓
        </ThreadPrimitive.ScrollToBottom>
        {!isGone && <Composer />}
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

function Welcome() {
  return (
    <div className="welcome">
      <h2>What is to be done?</h2>
      <p>
        Calls of tools show here as they come. What is risky waits for your word, and each call says why it
        ran.
      </p>
    </div>
  );
}

interface QuestionProps {
  turn: Turn;
  askAnew: ((turn: Turn, text: string) => Promise<boolean>) | null;
  showEarlier: (until: string) => void;
}

/** What somebody asked. In other words it is asked anew; what was, and its answer, stay to be read. */
function Question({ turn, askAnew, showEarlier }: QuestionProps) {
  const [text, setText] = useState<string | null>(null);
  const [sending, setSending] = useState(false);
  if (text !== null && askAnew) {
    const submit = async (event: FormEvent) => {
      event.preventDefault();
      setSending(true);
      if (await askAnew(turn, text)) leave();
      setSending(false);
    };
    const leave = () => {
      setText(null);
      focusQuestion();
    };
    return (
      <MessagePrimitive.Root className="question">
        <form className="anew" onSubmit={(event) => void submit(event)}>
          <textarea
            aria-label="The question in other words"
            rows={Math.min(10, text.split("\n").length + 1)}
            value={text}
            autoFocus
            onChange={(event) => setText(event.target.value)}
          />
          <div className="actions">
            <button type="submit" className="main" disabled={sending || !text.trim()}>
              Ask anew
            </button>
            <button type="button" disabled={sending} onClick={leave}>
              Back
            </button>
          </div>
        </form>
      </MessagePrimitive.Root>
    );
  }
  return (
    <MessagePrimitive.Root className="question">
      <div className="bubble">
        <Visible text={turn.asked} />
      </div>
      <div className="under">
        {turn.instead_of && (
          <button type="button" className="link" onClick={() => showEarlier(turn.id)}>
            Earlier version
          </button>
        )}
        {askAnew && (
          <button type="button" className="link" onClick={() => setText(turn.asked)}>
            Edit<span className="unseen"> and ask again</span>
          </button>
        )}
      </div>
    </MessagePrimitive.Root>
  );
}

const ToolPart = ({ artifact }: { artifact?: unknown }) => (
  <Guarded of={artifact} instead={<p className="wrong">A call that cannot be shown.</p>}>
    <CallCard call={artifact as CallPart} />
  </Guarded>
);
const TextPart = ({ text }: { text: string }) => <Said text={text} />;

const ReasoningPart = memo(({ text }: { text: string }) => (
  <details className="reasoning">
    <summary>Reasoning</summary>
    <p>
      <Visible text={text} />
    </p>
  </details>
));

const PARTS = { Text: TextPart, Reasoning: ReasoningPart, tools: { Fallback: ToolPart } };

function Answer({ turn, again }: { turn: Turn; again: ((text: string) => Promise<void>) | null }) {
  const isLast = useAuiState((state) => state.message.isLast);
  const isOver = turn.status !== "running" && turn.status !== "waiting";
  const tokens = turn.usage?.["output_tokens"];
  return (
    <MessagePrimitive.Root className="answer" aria-busy={turn.status === "running"}>
      <MessagePrimitive.Parts components={PARTS} />
      {turn.status === "running" && <span className="running" role="status" aria-label="An answer is coming" />}
      {ENDED[turn.status] && (
        <p className={`ended ${turn.status}`} role="status">
          {ENDED[turn.status]} <Visible text={sentence(turn.note)} />
        </p>
      )}
      {isOver && (
        <div className="under">
          {turn.model && (
            <span className="note">
              <Visible text={turn.model} />
            </span>
          )}
          {typeof tokens === "number" && tokens > 0 && <span className="note">{tokens.toLocaleString("en")} tokens written</span>}
          {isLast && again && (
            <button type="button" className="link" onClick={() => void again(turn.asked)}>
              Ask again
            </button>
          )}
        </div>
      )}
    </MessagePrimitive.Root>
  );
}

function Composer() {
  const isRunning = useAuiState((state) => state.thread.isRunning);
  return (
    <ComposerPrimitive.Root className="composer">
      <ComposerPrimitive.Input
        id="question"
        rows={1}
        maxRows={10}
        autoFocus
        placeholder="Ask, or say what is to be done"
        aria-label="Your question"
        submitMode="enter"
        unstable_focusOnRunStart={false} // a run also starts where somebody approves a call
      />
      {isRunning ? (
        <ComposerPrimitive.Cancel className="no">Stop</ComposerPrimitive.Cancel>
      ) : (
        <ComposerPrimitive.Send className="main">Send</ComposerPrimitive.Send>
      )}
    </ComposerPrimitive.Root>
  );
}
