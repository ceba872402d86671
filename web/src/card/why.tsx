/** The record of a call: what it was chosen from, who decided, what was done to its arguments. */

import { useEffect, useState } from "react";
import { api, type Spent, type Why } from "../api";
import { useThreadId, useTold } from "../told";
import type { CallPart, Json, JsonObject } from "../types";
import { Visible } from "../visible";
import { isObject, JsonText } from "./result";

const DECISIONS: { [type: string]: string } = {
  allow: "allowed",
  ask: "a person was asked",
  deny: "not permitted",
};
const FIRST = 20; // candidates

const text = (value: Json | undefined) =>
  value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);

const inner = (value: Json | undefined): JsonObject => (value !== undefined && isObject(value) ? value : {});

const list = (value: Json | undefined) =>
  Array.isArray(value) ? value.map((each) => text(each)).join("; ") : "";

const count = (value: number, what: string) => `${value.toLocaleString("en")} ${what}`;

function spent(of: Spent | null): string {
  if (!of || of.input_tokens + of.output_tokens === 0) return "";
  const dollars = of.cost === null ? "" : `, $${Number(of.cost).toLocaleString("en", { maximumSignificantDigits: 3 })}`;
  return `${count(of.input_tokens, "tokens read")}, ${count(of.output_tokens, "written")}${dollars}`;
}

function byRule(rule: JsonObject): string {
  const given = new Date(Number(rule["given_at"]) * 1000);
  return rule["id"] ? `${text(rule["id"])}, given by ${text(rule["by"])}, ${given.toLocaleString()}` : "";
}

function factsOf({ record, reply, turn }: Why): [name: string, value: string][] {
  const decision = inner(record["decision"]);
  const origin = inner(record["origin"]);
  const verdict = DECISIONS[text(decision["type"])] ?? text(decision["type"]);
  const model = [text(origin["provider"]), text(origin["model"])].filter(Boolean).join(": ");
  return [
    ["Asked for by", [model, origin["turn"] ? `turn ${text(origin["turn"])}` : ""].filter(Boolean).join(", ")],
    ["On behalf of", text(record["caller"])],
    ["Decision", [verdict, text(decision["reason"])].filter(Boolean).join(": ")],
    [
      inner(record["error"])["code"] === "approval_refused" ? "Denied by" : "Approved by",
      text(record["approved_by"]) + (record["edited"] ? ", with other arguments" : ""),
    ],
    ["By a rule", byRule(inner(record["rule"]))],
    ["Refused", text(record["refusal"])],
    ["Its reply", spent(reply)],
    ["Whole answer", turn && turn.requests > 1 ? [count(turn.requests, "replies"), spent(turn)].filter(Boolean).join(": ") : ""],
    ["Arguments", record["validated"] ? "checked against the tool's own schema" : ""],
    ["Repaired", record["repaired"] ? [text(record["repaired_by"]), list(record["notes"])].filter(Boolean).join(": ") : ""],
    ["Filled in", list(record["defaulted"])],
    ["Definition", text(record["definition_digest"])],
    ["Prompt", text(origin["prompt_digest"])],
    ["Run", text(record["run_id"])],
  ];
}

export function WhyPanel({ call }: { call: CallPart }) {
  const thread = useThreadId();
  const tell = useTold();
  const [why, setWhy] = useState<Why | null>(null);
  useEffect(() => {
    let isShown = true;
    api.why(thread, call.id).then((found) => isShown && setWhy(found), tell);
    return () => {
      isShown = false;
    };
  }, [thread, call.id, tell]);
  if (!why) return <p className="note">…</p>;
  return (
    <section className="whole" aria-label={`Why ${call.name}: ${call.id}`}>
      <Candidates choice={why.choice} called={call.name} />
      <dl>
        {factsOf(why).map(
          ([name, value]) =>
            value && (
              <div key={name}>
                <dt>{name}</dt>
                <dd>
                  <Visible text={value} />
                </dd>
              </div>
            ),
        )}
      </dl>
      <details>
        <summary>The whole record</summary>
        <JsonText value={why.record} label={`Record of ${call.name}`} />
      </details>
    </section>
  );
}

function Candidates({ choice, called }: { choice: Why["choice"]; called: string }) {
  if (!choice) return null;
  const [offered, excluded] = [choice["offered"], choice["excluded"]].map((each) =>
    Array.isArray(each) ? each.filter(isObject) : [],
  ) as [JsonObject[], JsonObject[]];
  if (!offered.length) return null;
  const others = Number(choice["excluded_count"] ?? 0);
  return (
    <table>
      <caption>
        Offered by {text(choice["scorer"]) || "the run"}: {offered.length} of {offered.length + others} tools
      </caption>
      <thead>
        <tr>
          <th scope="col">Tool</th>
          <th scope="col" className="number">
            Score
          </th>
          <th scope="col">Because</th>
        </tr>
      </thead>
      <tbody>
        {[...offered, ...excluded].slice(0, FIRST).map((each, at) => (
          <tr key={at} className={each["name"] === called ? "chosen" : at < offered.length ? undefined : "left-out"}>
            <td>
              <Visible text={text(each["name"])} />
            </td>
            <td className="number">{typeof each["score"] === "number" ? each["score"].toFixed(3) : "–"}</td>
            <td>
              <Visible text={text(each["reason"])} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
