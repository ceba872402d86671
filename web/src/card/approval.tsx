/** A question that the server asked: the exact arguments, and yes, no, or yes to others. */

import { useId, useRef, useState } from "react";
import { api } from "../api";
import { Pattern, secondsOf } from "../rules";
import { member, type Approval, type CallPart } from "../types";
import { useThreadId, useTold } from "../told";
import { sentence, Visible } from "../visible";
import { EditForm, namesOf } from "./edit-form";

/** What a yes is for: this call, further ones for the rest of the answer, or always, as a rule. */
type Scope = false | "exactly" | true | "always";
const SECRET = '"***"';

export function ApprovalCard({ call, asked }: { call: CallPart; asked: Approval }) {
  const thread = useThreadId();
  const tell = useTold();
  const [sending, setSending] = useState(false);
  const [editing, setEditing] = useState(false);
  const [reason, setReason] = useState<string | null>(null);
  const [scope, setScope] = useState<Scope>(false);
  const [open, setOpen] = useState<string[]>([]);
  const [span, setSpan] = useState("");
  const [isWrong, setWrong] = useState(false);
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
  const approve = () => {
    if (scope !== "always") return void send({ decision: "approve", for_run: scope });
    const seconds = span.trim() ? secondsOf(span) : null;
    setWrong(span.trim() !== "" && seconds === null);
    if (!span.trim() || seconds !== null) void send({ decision: "approve", always: { open, seconds } });
  };
  const forRun = scope === "always" ? false : scope; // a rule is for the arguments that are shown
  const choose = { asked, tool: call.name, onChange: setScope };
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
          <Covers {...choose} value={forRun} isEdited />
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
          {reason === null && <Covers {...choose} value={scope} />}
          {reason === null && scope === "always" && (
            <RuleForm asked={asked} open={open} onOpen={setOpen} span={span} onSpan={setSpan} isWrong={isWrong} />
          )}
          <div className="actions">
            {reason === null ? (
              <>
                <button
                  type="button"
                  className="main"
                  disabled={sending}
                  onClick={approve}
                >
                  {scope === "always" ? "Approve, always" : "Approve"}
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
  asked: Approval;
  tool: string;
  value: Scope;
  onChange: (value: Scope) => void;
  isEdited?: boolean;
}

/** The choice of what a yes covers, where there is one. */
function Covers({ asked, tool, value, onChange, isEdited = false }: CoversProps) {
  const id = useId();
  const isRule = asked.always === true && asked.title !== undefined && !isEdited;
  if (!asked.for_run && !isRule) return null;
  const choice = (each: Scope) => ({
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
      {asked.for_run && (
        <label>
          <input {...choice("exactly")} />
          <span>exactly this call, for the rest of this answer</span>
        </label>
      )}
      {asked.for_run && asked.for_tool !== false && (
        <label>
          <input {...choice(true)} />
          <span>
            any call of <Visible text={tool} />, for the rest of this answer, whatever its arguments
          </span>
        </label>
      )}
      {isRule && (
        <label>
          <input {...choice("always")} />
          <span>always for this, in every conversation, until you revoke it</span>
        </label>
      )}
      <p className="note" id={`${id}-note`}>
        What asks for another reason asks all the same.
      </p>
    </fieldset>
  );
}

interface RuleFormProps {
  asked: Approval;
  open: string[];
  onOpen: (names: string[]) => void;
  span: string;
  onSpan: (text: string) => void;
  isWrong: boolean;
}

/** A rule before it is given: which arguments may have any value, for how long, and what it is for. */
function RuleForm({ asked, open, onOpen, span, onSpan, isWrong }: RuleFormProps) {
  const id = useId();
  const shown = namesOf(asked).filter((name) => (member(asked.texts, name) ?? SECRET) !== SECRET);
  return (
    <div className="rule">
      {shown.length > 0 && (
        <fieldset className="covers">
          <legend>These may have any value</legend>
          {shown.map((name) => (
            <label key={name}>
              <input
                type="checkbox"
                checked={open.includes(name)}
                onChange={(event) =>
                  onOpen(event.target.checked ? [...open, name] : open.filter((each) => each !== name))
                }
              />
              <span>
                <Visible text={name} />
              </span>
            </label>
          ))}
        </fieldset>
      )}
      <label className="field">
        For how long, such as 12h or 30d? Until you revoke it, if you leave this empty.
        <input
          value={span}
          aria-invalid={isWrong || undefined}
          aria-describedby={isWrong ? `${id}-wrong` : undefined}
          onChange={(event) => onSpan(event.target.value)}
        />
      </label>
      {isWrong && (
        <p className="wrong" id={`${id}-wrong`} role="alert">
          Write a span such as 90s, 15min, 12h or 30d.
        </p>
      )}
      <section aria-label="The rule">
        <p className="note">You will not be asked about</p>
        <Pattern of={{ title: asked.title ?? "", texts: asked.texts, open }} />
      </section>
    </div>
  );
}

/** The arguments as the server has them; those that the author filled in are marked. */
function Exact({ asked }: { asked: Approval }) {
  const names = namesOf(asked).filter((name) => Object.hasOwn(asked.texts, name));
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
