/** What the server sends of a thread: see docs/chat.md. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

/** Return a member of an object by a name that somebody else chose: what all objects inherit is none. */
export const member = <T>(of: { [name: string]: T }, name: string): T | undefined =>
  Object.hasOwn(of, name) ? of[name] : undefined;

export type TurnStatus =
  | "running"
  | "waiting"
  | "completed"
  | "limited"
  | "failed"
  | "cancelled"
  | "interrupted";

export type CallState =
  | "streaming"
  | "called"
  | "waiting"
  | "completed"
  | "failed"
  | "denied"
  | "cancelled"
  | "unknown";

export interface Approval {
  id: string;
  /** The tool, behind the agents that want to call it. */
  title?: string;
  reason: string;
  arguments: JsonObject;
  /** Each argument as the server wrote it in JSON: numbers as they are, however large. */
  texts: { [name: string]: string };
  defaults: string[];
  asked_at: number;
  expires_at: number | null;
  /** Whether a yes for the rest of the answer would spare further questions. */
  for_run: boolean;
  /** Whether such a yes may be to the whole tool. */
  for_tool?: boolean;
  /** Whether a yes may be a rule. */
  always?: boolean;
  schema: JsonObject | null;
}

/** A yes to calls of a tool with these arguments, and any value of those that are open. */
export interface Rule {
  title: string;
  texts: { [name: string]: string };
  open: string[];
  by: string;
  given_at: number;
  expires_at: number | null;
}

export interface RuleList {
  keeps_rules: boolean;
  /** Without its rule where that was changed: it lets nothing run. */
  rules: { id: string; rule: Rule | null }[];
}

export interface CallPart {
  kind: "call";
  id: string;
  name: string;
  state: CallState;
  args_text: string;
  arguments: Json;
  approval: Approval | null;
  approved_by: string | null;
  progress: Json[];
  result: Json;
  error: { code: string; message: string } | null;
  seconds: number | null;
  decision: Json;
  show: string;
}

export type Part = { kind: "text" | "reasoning"; text: string } | CallPart;

export interface Turn {
  id: string;
  run_id: string;
  asked: string;
  at: number;
  status: TurnStatus;
  note: string;
  model: string;
  usage: JsonObject | null;
  parts: Part[];
  /** The turn that this one asks anew, if any. */
  instead_of?: string;
}

/** Return the turns that go on with one another: what was asked anew takes the place of what it was. */
export function lineOf(turns: Turn[]): Turn[] {
  return turns.reduce<Turn[]>((line, turn) => {
    const at = turn.instead_of ? line.findIndex((each) => each.id === turn.instead_of) : -1;
    return [...(at < 0 ? line : line.slice(0, at)), turn];
  }, []);
}

export interface ThreadState {
  thread: { id: string; title: string };
  turns: Turn[];
}

export interface ThreadItem {
  id: string;
  title: string;
  created_at: number;
  updated_at: number;
}
