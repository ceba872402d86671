/** A question that the server asked: the exact arguments, and yes, no, or yes to others. */

import { useRef, useState } from "react";
import { api } from "../api";
import type { Approval, CallPart } from "../types";
import { useThreadId, useTold } from "../told";
import { sentence, Visible } from "../visible";
import { EditForm, namesOf } from "./edit-form";

export function ApprovalCard({ call, asked }: { call: CallPart; asked: Approval }) {
  const thread = useThreadId();
  const tell = useTold();
  const [sending, setSending] = useState(false);
  const [editing, setEditing] = useState(false);
  const [reason, setReason] = useState<string | null>(null);
  const card = useRef<HTMLElement>(null);
  const send = async (given: Parameters<typeof api.answer>[2]) => {
    const call = card.current?.closest("article");
    setSending(true);
    try {
      await api.answer(thread, asked.id, given);
      const at = document.activeElement;
      if (at === document.body || call?.contains(at)) call?.focus(); // the buttons go, the call stays
    } catch (raised) {
      tell(raised);
    }
    setSending(false); // what is shown of the question goes with the server's next word
  };
  const back = () => {
    setEditing(false);
    setReason(null);
    card.current?.focus();
  };
  const expires = asked.expires_at === null ? null : new Date(asked.expires_at * 1000);
  return (
    <section className="approval" aria-label={`Approval of ${call.name}`} ref={card} tabIndex={-1}>
      <p className="asks">
        <strong>May this call run?</strong> <Visible text={sentence(asked.reason)} />
      </p>
      {editing ? (
        <EditForm
          asked={asked}
          sending={sending}
          onSend={(text) => void send(`{"decision":"approve","arguments":${text}}`)}
          onBack={back}
        />
      ) : (
        <>
          <Exact asked={asked} />
          {reason !== null && (
            <label className="field">
              Why not? The model is told.
              <textarea
                rows={2}
                maxLength={500}
                value={reason}
                autoFocus
                onChange={(event) => setReason(event.target.value)}
              />
            </label>
          )}
          <div className="actions">
            {reason === null ? (
              <>
                <button
                  type="button"
                  className="main"
                  disabled={sending}
                  onClick={() => void send({ decision: "approve" })}
                >
                  Approve
                </button>
                {asked.for_run && (
                  <button
                    type="button"
                    disabled={sending}
                    onClick={() => void send({ decision: "approve", for_run: true })}
                  >
                    Approve for the rest of this answer
                  </button>
                )}
                <button type="button" disabled={sending} onClick={() => setEditing(true)}>
                  Edit
                </button>
                <button type="button" className="no" disabled={sending} onClick={() => setReason("")}>
                  Deny
                </button>
              </>
            ) : (
              <>
                <button
                  type="button"
                  className="no"
                  disabled={sending}
                  onClick={() => void send({ decision: "deny", reason })}
                >
                  Deny the call
                </button>
                <button type="button" disabled={sending} onClick={back}>
                  Back
                </button>
              </>
            )}
          </div>
        </>
      )}
      {asked.for_run && !editing && reason === null && (
        <p className="note">
          For the rest of this answer: other calls of <Visible text={call.name} /> do not ask for this reason
          again, whatever their arguments.
        </p>
      )}
      {expires && (
        <p className="note">
          To be answered before {expires.toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}.
        </p>
      )}
    </section>
  );
}

/** The arguments as the server has them; those that the author filled in are marked. */
function Exact({ asked }: { asked: Approval }) {
  const names = namesOf(asked).filter((name) => name in asked.texts);
  if (!names.length) return <p className="note">It takes no arguments.</p>;
  return (
    <dl className="exact">
      {names.map((name) => (
        <div key={name}>
          <dt>
            <Visible text={name} />
            {asked.defaults.includes(`/${name}`) && <span className="note"> default</span>}
          </dt>
          <dd>
            <Visible text={asked.texts[name] ?? ""} />
          </dd>
        </div>
      ))}
    </dl>
  );
}
