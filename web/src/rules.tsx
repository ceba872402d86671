/** Rules: what somebody has allowed for always. Each can be looked at, and revoked. */

import { useEffect, useRef, useState } from "react";
import { api } from "./api";
import { Dialog } from "./dialog";
import { useTold } from "./told";
import type { Rule, RuleList } from "./types";
import { Visible } from "./visible";

const SPAN = /^(\d{1,6})\s*(s|min|h|d)$/;
const SECONDS: { [unit: string]: number } = { s: 1, min: 60, h: 3_600, d: 86_400 };

/** Return the seconds of `90s`, `15min`, `12h`, `30d`; null for anything else. */
export function secondsOf(span: string): number | null {
  const found = SPAN.exec(span.trim());
  return Number(found?.[1] ?? 0) * (SECONDS[found?.[2] ?? ""] ?? 0) || null;
}

/** What a rule is for: the arguments that have to be the same, and those that may have any value. */
export function Pattern({ of }: { of: Pick<Rule, "title" | "texts" | "open"> }) {
  const closed = Object.entries(of.texts).filter(([name]) => !of.open.includes(name));
  return (
    <p className="pattern">
      <strong>
        <Visible text={of.title} />
      </strong>
      {closed.map(([name, text], at) => (
        <span key={name}>
          {at > 0 && ","}{" "}
          <span className="note">
            <Visible text={name} />:
          </span>{" "}
          <code>
            <Visible text={text} />
          </code>
        </span>
      ))}
      {of.open.length > 0 && (
        <>
          {" with any "}
          {of.open.map((name, at) => (
            <span key={name}>
              {at > 0 && ", "}
              <code>
                <Visible text={name} />
              </code>
            </span>
          ))}
        </>
      )}
    </p>
  );
}

/** Opens the rules, where the server keeps any. */
export function RulesButton({ onOpen }: { onOpen: () => void }) {
  const tell = useTold();
  const [isKept, setKept] = useState(false);
  useEffect(() => {
    api.rules().then((found) => setKept(found.keeps_rules), tell);
  }, [tell]);
  if (!isKept) return null;
  return (
    <button type="button" className="link rules" onClick={onOpen}>
      Rules
    </button>
  );
}

const at = (seconds: number) =>
  new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

export function Rules({ onClose }: { onClose: () => void }) {
  const tell = useTold();
  const [list, setList] = useState<RuleList | null>(null);
  const [sending, setSending] = useState(false);
  const close = useRef<HTMLButtonElement>(null);
  const load = () => api.rules().then(setList, tell);
  useEffect(() => void load(), []);
  const revoke = async (id: string) => {
    setSending(true);
    await api.revoke(id).catch(tell);
    await load();
    setSending(false);
    close.current?.focus(); // its own button is gone
  };
  return (
    <Dialog label="Rules" onClose={onClose}>
      <p>Calls like these do not ask you. Revoke one, and they ask again.</p>
      {list?.rules.length === 0 && <p className="note">There are none.</p>}
      <ul className="kept">
        {list?.rules.map(({ id, rule }) => (
          <li key={id}>
            {rule ? (
              <>
                <Pattern of={rule} />
                <p className="note">
                  Given by <Visible text={rule.by} />, {at(rule.given_at)}
                  {rule.expires_at !== null &&
                    (rule.expires_at * 1000 < Date.now() ? "; it has lapsed" : `; until ${at(rule.expires_at)}`)}
                </p>
              </>
            ) : (
              <p className="wrong">It is not as it was given: it lets nothing run.</p>
            )}
            <button type="button" className="no" disabled={sending} onClick={() => void revoke(id)}>
              Revoke
              <span className="unseen">
                {" "}
                <Visible text={rule?.title ?? id} />
              </span>
            </button>
          </li>
        ))}
      </ul>
      <div className="actions">
        <button type="button" ref={close} onClick={(event) => event.currentTarget.closest("dialog")?.close()}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
