/** What a tool gave: a table, a plot, a text, or JSON. Never HTML: a tool's result is somebody's data. */

import { Guarded } from "../guarded";
import { member, type Json, type JsonObject } from "../types";
import { Visible } from "../visible";
import { Plot, points } from "./plot";

const MOST_ROWS = 200;
const MOST_NAMES = 100;

export const isObject = (value: Json): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const isPlain = (value: Json) => typeof value !== "object" || value === null;

const isFlat = (value: Json): value is JsonObject => isObject(value) && Object.values(value).every(isPlain);

/** Return the rows of a table, or null where a value is none. */
export function rows(value: Json): JsonObject[] | null {
  if (!Array.isArray(value) || value.length === 0 || !value.every(isFlat)) return null;
  return namesOf(value).length > MOST_NAMES ? null : value;
}

const namesOf = (rows: JsonObject[]) => [...new Set(rows.flatMap(Object.keys))];

const said = (value: Json | undefined) =>
  value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);

function Table({ rows }: { rows: JsonObject[] }) {
  const names = namesOf(rows);
  const kindOf = (name: string) =>
    rows.every((row) => typeof (member(row, name) ?? 0) === "number") ? "number" : undefined;
  return (
    <div className="scrolled" tabIndex={0} role="group" aria-label="Table of results">
      <table>
        <thead>
          <tr>
            {names.map((name) => (
              <th key={name} scope="col" className={kindOf(name)}>
                <Visible text={name} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST_ROWS).map((row, at) => (
            <tr key={at}>
              {names.map((name) => (
                <td key={name} className={typeof member(row, name) === "number" ? "number" : undefined}>
                  <Visible text={said(member(row, name))} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > MOST_ROWS && (
        <p className="note">
          {MOST_ROWS} of {rows.length} rows
        </p>
      )}
    </div>
  );
}

const MOST_FACTS = 24;

/** Tell whether an object is facts and tables, with nothing deeper in it. */
const isRecord = (value: Json): value is JsonObject => {
  const parts = isObject(value) ? Object.values(value) : [];
  return parts.length > 0 && parts.length <= MOST_FACTS && parts.every((part) => isPlain(part) || rows(part));
};

function Facts({ of }: { of: JsonObject }) {
  const facts = Object.entries(of).filter(([, part]) => isPlain(part));
  const tables = Object.entries(of).map(([name, part]) => ({ name, rows: rows(part) }));
  return (
    <>
      {facts.length > 0 && (
        <dl className="exact" tabIndex={0}>
          {facts.map(([name, part]) => (
            <div key={name}>
              <dt>
                <Visible text={name} />
              </dt>
              <dd>
                <Visible text={typeof part === "string" ? part || '""' : JSON.stringify(part)} />
              </dd>
            </div>
          ))}
        </dl>
      )}
      {tables.map(
        (each) =>
          each.rows && (
            <div key={each.name} className="named">
              <p className="note">
                <Visible text={each.name} />
              </p>
              <Table rows={each.rows} />
            </div>
          ),
      )}
    </>
  );
}

export function JsonText({ value, label }: { value: Json; label: string }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return (
    <pre className="json" tabIndex={0} role="group" aria-label={label}>
      <Visible text={text} />
    </pre>
  );
}

/** Show what a tool gave; what no view can show is shown as JSON. */
export function Result({ value, show }: { value: Json; show: string }) {
  return (
    <Guarded of={value} instead={<JsonText value={value} label="Result" />}>
      <View value={value} show={show} />
    </Guarded>
  );
}

function View({ value, show }: { value: Json; show: string }) {
  const { truncated, head, bytes } = isObject(value) ? value : {};
  if (truncated === true && typeof head === "string" && typeof bytes === "number") {
    return (
      <>
        <JsonText value={head} label="Result" />
        <p className="note">The beginning of {bytes.toLocaleString("en")} bytes.</p>
      </>
    );
  }
  const plotted = show === "plot" ? points(value) : null;
  if (plotted) return <Plot points={plotted} />;
  const listed = rows(value);
  if (listed) return <Table rows={listed} />;
  if (isRecord(value)) return <Facts of={value} />;
  return <JsonText value={value} label="Result" />;
}
