/** A form made from a tool's schema. What nobody touches is sent as the server wrote it. */

import { useEffect, useId, useRef, useState, type FormEvent, type ReactNode } from "react";
import { member, type Approval, type Json, type JsonObject } from "../types";
import { hidesSome, revealed, Visible } from "../visible";
import { isObject } from "./result";

type Kind = "text" | "number" | "choice" | "json";

interface Field {
  name: string;
  kind: Kind;
  choices: string[]; // as JSON
  help: string;
  isRequired: boolean;
  /** Whether the server has null there: what is not given is null again. */
  isNull: boolean;
}

const inner = (schema: JsonObject): JsonObject => {
  const branches = Array.isArray(schema["anyOf"]) ? schema["anyOf"].filter(isObject) : [];
  const some = branches.filter((branch) => branch["type"] !== "null");
  return branches.length === 2 && some.length === 1 && some[0] ? some[0] : schema;
};

function fieldOf(name: string, schema: Json, isRequired: boolean, text: string | undefined): Field {
  const known = isObject(schema) ? schema : {};
  const help = typeof known["description"] === "string" ? known["description"] : "";
  const held = inner(known);
  let kind: Kind = "json";
  let choices: string[] = [];
  if (Array.isArray(held["enum"])) {
    kind = "choice";
    choices = held["enum"].map((each) => JSON.stringify(each));
  } else if (held["type"] === "boolean") {
    kind = "choice";
    choices = ["true", "false"];
  } else if (held["type"] === "string") kind = "text";
  else if (held["type"] === "integer" || held["type"] === "number") kind = "number";
  if (held !== known && kind === "choice") choices.push("null");
  if (kind === "choice" && text !== undefined && !choices.includes(text)) kind = "json";
  const isNull = text === "null" && held !== known && (kind === "text" || kind === "number");
  if (kind === "text" && text !== undefined && !isNull && !text.startsWith('"')) kind = "json";
  return { name, kind, choices, help, isRequired, isNull };
}

const propertiesOf = ({ schema }: Approval): JsonObject => {
  const properties = schema?.["properties"] ?? null;
  return isObject(properties) ? properties : {};
};

/** Return the names of arguments in the order in which the tool has them. */
export const namesOf = (asked: Approval) => [
  ...new Set([...Object.keys(propertiesOf(asked)), ...Object.keys(asked.texts)]),
];

function fieldsOf(asked: Approval): Field[] {
  const properties = propertiesOf(asked);
  const required = Array.isArray(asked.schema?.["required"]) ? asked.schema["required"] : [];
  return namesOf(asked).map((name) =>
    fieldOf(name, member(properties, name) ?? null, required.includes(name), member(asked.texts, name)),
  );
}

const shown = (field: Field, text: string) => (field.kind === "text" ? (JSON.parse(text) as string) : text);

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/** Return what was typed as JSON, or what is wrong with it. */
function written(field: Field, typed: string): { text: string } | { wrong: string } {
  if (field.kind === "text") return { text: JSON.stringify(typed) };
  const text = typed.trim();
  if (field.kind === "number" && !NUMBER.test(text) && text !== "null") return { wrong: "Write a number." };
  try {
    JSON.parse(text);
  } catch {
    return { wrong: "Write JSON: a text stands in quotes." };
  }
  return { text };
}

interface Props {
  asked: Approval;
  sending: boolean;
  onSend: (text: string) => void;
  onBack: () => void;
  children: ReactNode; // stands before the buttons
}

export function EditForm({ asked, sending, onSend, onBack, children }: Props) {
  const fields = fieldsOf(asked);
  const [typed, setTyped] = useState<{ [name: string]: string | null }>(() =>
    Object.fromEntries(
      fields.map((field) => {
        const text = member(asked.texts, field.name);
        return [field.name, text === undefined || field.isNull ? null : shown(field, text)];
      }),
    ),
  );
  const [wrong, setWrong] = useState<ReadonlyMap<string, string>>(new Map());
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const members: string[] = [];
    const found = new Map<string, string>();
    for (const field of fields) {
      const value = typed[field.name] ?? null;
      if (value === null && !field.isNull) continue;
      const text = member(asked.texts, field.name);
      const isTouched = value !== null && (text === undefined || field.isNull || value !== shown(field, text));
      const made = isTouched ? written(field, value) : { text: text ?? "null" };
      if ("wrong" in made) found.set(field.name, made.wrong);
      else members.push(`${JSON.stringify(field.name)}:${made.text}`);
    }
    setWrong(found);
    if (!found.size) onSend(`{${members.join(",")}}`);
  };
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    form.current?.querySelector<HTMLElement>("input, textarea, select")?.focus();
  }, []);
  useEffect(() => {
    form.current?.querySelector<HTMLElement>("[aria-invalid]")?.focus();
  }, [wrong]);
  return (
    <form onSubmit={submit} noValidate ref={form}>
      {fields.map((field) => (
        <FieldInput
          key={field.name}
          field={field}
          value={typed[field.name] ?? null}
          wrong={wrong.get(field.name)}
          onChange={(value) => setTyped({ ...typed, [field.name]: value })}
        />
      ))}
      {children}
      <div className="actions">
        <button type="submit" className="main" disabled={sending}>
          Approve these arguments
        </button>
        <button type="button" disabled={sending} onClick={onBack}>
          Back
        </button>
      </div>
    </form>
  );
}

interface InputProps {
  field: Field;
  value: string | null;
  wrong: string | undefined;
  onChange: (value: string | null) => void;
}

function FieldInput({ field, value, wrong, onChange }: InputProps) {
  const id = useId();
  const isHiding = value !== null && field.kind !== "choice" && hidesSome(value);
  const told = [field.help && `${id}-help`, isHiding && `${id}-hidden`, wrong && `${id}-wrong`].filter(Boolean).join(" ");
  const common = { id, "aria-describedby": told || undefined, "aria-invalid": wrong ? true : undefined };
  const empty = field.kind === "choice" ? (field.choices[0] ?? "null") : "";
  return (
    <div className="field">
      <div className="label">
        <label htmlFor={id}>
          <Visible text={field.name} />
        </label>
        {(!field.isRequired || field.isNull) && (
          <button type="button" className="link" onClick={() => onChange(value === null ? empty : null)}>
            {value === null ? "Give it" : field.isNull ? "No value" : "Leave out"}
            <span className="unseen"> {field.name}</span>
          </button>
        )}
      </div>
      {value === null ? (
        <input {...common} disabled placeholder={field.isNull ? "null: no value" : "left out: the tool's own default"} value="" readOnly />
      ) : field.kind === "choice" ? (
        <select {...common} value={value} onChange={(event) => onChange(event.target.value)}>
          {field.choices.map((choice) => (
            <option key={choice} value={choice}>
              {revealed(choice.startsWith('"') ? (JSON.parse(choice) as string) : choice)}
            </option>
          ))}
        </select>
      ) : field.kind === "number" ? (
        <input
          {...common}
          inputMode="decimal"
          value={value}
          onChange={(event) => onChange(event.target.value)}
        />
      ) : (
        <textarea
          {...common}
          className={field.kind === "json" ? "code" : undefined}
          rows={Math.min(8, value.split("\n").length)}
          value={value}
          onChange={(event) => onChange(event.target.value)}
        />
      )}
      {field.help && (
        <p className="note" id={`${id}-help`}>
          <Visible text={field.help} />
        </p>
      )}
      {isHiding && (
        <p className="note" id={`${id}-hidden`}>
          With what cannot be seen above: <Visible text={value} />
        </p>
      )}
      {wrong && (
        <p className="wrong" id={`${id}-wrong`}>
          {wrong}
        </p>
      )}
    </div>
  );
}
