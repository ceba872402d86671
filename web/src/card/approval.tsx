/** A question that the server asked: the exact arguments, and yes, no, or yes to others. */

import { useId, useRef, useState } from "react";
import { api } from "../api";
import type { Approval, CallPart } from "../types";
import { useThreadId, useTold } from "../told";
import { sentence, Visible } from "../visible";
import { EditForm, namesOf } from "./edit-form";

type ForRun = false | "exactly" | true;

export function ApprovalCard({ call, asked }: { call: CallPart; asked: Approval }) {
  const thread = useThreadId();
  const tell = useTold();
  const [sending, setSending] = useState(false);
  const [editing, setEditing] = useState(false);
  const [reason, setReason] = useState<string | null>(null);
  const [forRun, setForRun] = useState<ForRun>(false);
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
  const covers = asked.for_run && (
    <Covers tool={call.name} whole={asked.for_tool !== false} value={forRun} onChange={setForRun} />
  );
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
          onSend={(text) =>
            void send(`{"decision":"approve","for_run":${JSON.stringify(forRun)},"arguments":${text}}`)
          }
          onBack={back}
        >
          {covers}
        </EditForm>
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
          {reason === null && covers}
          <div className="actions">
            {reason === null ? (
              <>
                <button
                  type="button"
                  className="main"
                  disabled={sending}
                  onClick={() => void send({ decision: "approve", for_run: forRun })}
                >
                  Approve
                </button>
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
      {expires && (
        <p className="note">
          To be answered before {expires.toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}.
        </p>
      )}
    </section>
  );
}

interface CoversProps {
  tool: string;
  /** Whether it may be the whole tool. */
  whole: boolean;
  value: ForRun;
  onChange: (value: ForRun) => void;
}

/** What a yes covers: this call, or further ones for the rest of the answer, too. */
function Covers({ tool, whole, value, onChange }: CoversProps) {
  const id = useId();
  const choice = (each: ForRun) => ({
    type: "radio",
    name: id,
    checked: value === each,
    onChange: () => onChange(each),
  });
  return (
    <fieldset className="covers" aria-describedby={`${id}-note`}>
      <legend>Your yes is for</legend>
      <label>
        <input {...choice(false)} />
        <span>this call, once</span>
      </label>
      <label>
        <input {...choice("exactly")} />
        <span>exactly this call, for the rest of this answer</span>
      </label>
      {whole && (
        <label>
          <input {...choice(true)} />
          <span>
            any call of <Visible text={tool} />, for the rest of this answer, whatever its arguments
          </span>
        </label>
      )}
      <p className="note" id={`${id}-note`}>
        What asks for another reason asks all the same.
      </p>
    </fieldset>
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
