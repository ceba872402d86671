/** One call of a tool, from its first letter to what became of it. */

import { memo, useId, useState } from "react";
import { cardOf } from "../cards";
import { Guarded } from "../guarded";
import type { CallPart, CallState } from "../types";
import { sentence, Visible } from "../visible";
import { ApprovalCard } from "./approval";
import { isObject, JsonText, Result } from "./result";
import { WhyPanel } from "./why";

const STATES: { [state in CallState]: [sign: string, text: string] } = {
  streaming: ["…", "is being written"],
  called: ["▸", "runs"],
  waiting: ["?", "waits for an answer"],
  completed: ["✓", "done"],
  failed: ["✕", "failed"],
  denied: ["⊘", "did not run"],
  cancelled: ["◼", "cancelled"],
  unknown: ["⁇", "outcome unknown"],
};

const lasted = (seconds: number) =>
  seconds < 0.001
    ? "< 1 ms"
    : seconds < 1
      ? `${Math.round(seconds * 1000)} ms`
      : `${seconds.toFixed(1)} s`;

export const CallCard = memo(({ call }: { call: CallPart }) => {
  const [sign, text] = STATES[call.state];
  const isOver = !["streaming", "called", "waiting"].includes(call.state);
  const id = useId();
  const [why, setWhy] = useState(false);
  return (
    <article className={`call ${call.state}`} aria-labelledby={id} data-call={call.id} tabIndex={-1}>
      <header>
        <span className="sign" aria-hidden="true">
          {sign}
        </span>
        <div className="facts">
          <h2 id={id}>
            <Visible text={call.name} />
          </h2>
          <span className="state" role="status">
            {text}
          </span>
          {call.seconds !== null && isOver && call.state !== "denied" && <span className="note">{lasted(call.seconds)}</span>}
          {call.approved_by && (
            <span className="note">
              {call.error?.code === "approval_refused" ? "denied" : "approved"} by{" "}
              <Visible text={call.approved_by} />
            </span>
          )}
        </div>
        {isOver && (
          <button type="button" className="link why" aria-expanded={why} onClick={() => setWhy(!why)}>
            Why?<span className="unseen"> {call.name}</span>
          </button>
        )}
      </header>
      {call.approval ? (
        <ApprovalCard key={call.approval.id} call={call} asked={call.approval} />
      ) : (
        <Arguments call={call} isOver={isOver} />
      )}
      {call.progress.length > 0 && !isOver && (
        <div className="progress" aria-live="polite">
          <Visible text={textOf(call.progress.at(-1) ?? null)} />
        </div>
      )}
      {call.error && (
        <p className="error">
          <Visible text={sentence(call.error.message)} /> <code>{call.error.code}</code>
        </p>
      )}
      {call.state === "completed" && <Shown call={call} />}
      {why && <WhyPanel call={call} />}
    </article>
  );
});

const textOf = (value: CallPart["result"]) => (typeof value === "string" ? value : JSON.stringify(value));

function Arguments({ call, isOver }: { call: CallPart; isOver: boolean }) {
  const isEmpty = isObject(call.arguments) && !Object.keys(call.arguments).length;
  if (isEmpty && isOver) return null;
  const text = call.arguments === null ? call.args_text : JSON.stringify(call.arguments);
  if (!text) return null;
  return (
    <details className="arguments" open={!isOver || undefined}>
      <summary>
        <span className="unseen">Arguments </span>
        <code>
          <Visible text={text.slice(0, 160)} />
        </code>
      </summary>
      <JsonText value={call.arguments ?? call.args_text} label={`Arguments of ${call.name}`} />
    </details>
  );
}

function Shown({ call }: { call: CallPart }) {
  const Card = cardOf(call.name);
  if (Card)
    return (
      <Guarded of={call} instead={<Result value={call.result} show="" />}>
        <Card call={call} />
      </Guarded>
    );
  if (call.result === null) return null;
  return (
    <div className="result">
      <Result value={call.result} show={call.show} />
    </div>
  );
}
