/** Requests to the server. A token (`#token=…`) is kept for this tab, and leaves the address at once. */

import type { JsonObject, RuleList, ThreadItem } from "./types";

const KEY = "toolcrib.token";
const SENDABLE = /^[ -~]+$/; // no server has another one, and no header can bring it

/** What replies of the model have used; `cost` is US dollars, null where a price is not known. */
export interface Spent {
  requests: number;
  input_tokens: number;
  output_tokens: number;
  cost: string | null;
}

export interface Why {
  record: JsonObject;
  choice: JsonObject | null;
  reply: Spent | null;
  turn: Spent | null;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** Tell whether the address had a token. */
export function keepToken(): boolean {
  const given = /^#token=([^&]+)/.exec(location.hash);
  if (!given?.[1]) return false;
  history.replaceState(null, "", location.pathname);
  try {
    sessionStorage.setItem(KEY, decodeURIComponent(given[1]));
  } catch {
    // an address that was cut: the page asks for the token
  }
  return true;
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

export function setToken(token: string): void {
  sessionStorage.setItem(KEY, token);
}

export async function request(
  method: string,
  path: string,
  body?: unknown, // a text is sent as it is: it is JSON
  signal?: AbortSignal,
): Promise<Response> {
  const headers: Record<string, string> = {};
  const token = sessionStorage.getItem(KEY);
  if (token && SENDABLE.test(token)) headers["authorization"] = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body),
      signal: signal ?? null,
    });
  } catch (raised) {
    if (signal?.aborted) throw raised;
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  if (response.ok) return response;
  let code = "error";
  let message = `The server answered with status ${response.status}.`;
  try {
    const told = (await response.json()) as { error?: { code?: string; message?: string } };
    code = told.error?.code ?? code;
    message = told.error?.message ?? message;
  } catch {
    // an answer of something else than the server, as of a proxy
  }
  throw new ApiError(response.status, code, message);
}

async function json<T>(method: string, path: string, body?: unknown): Promise<T> {
  return (await (await request(method, path, body)).json()) as T;
}

const at = (thread: string) => `threads/${encodeURIComponent(thread)}`;

export const api = {
  threads: async (search: string) => {
    const query = search ? `?search=${encodeURIComponent(search)}` : "";
    return (await json<{ threads: ThreadItem[] }>("GET", `threads${query}`)).threads;
  },
  create: async () => (await json<{ id: string }>("POST", "threads", {})).id,
  rename: (thread: string, title: string) => json("PATCH", at(thread), { title }),
  remove: (thread: string) => request("DELETE", at(thread)),
  ask: (thread: string, text: string, insteadOf = "") =>
    json("POST", `${at(thread)}/messages`, insteadOf ? { text, instead_of: insteadOf } : { text }),
  cancel: (thread: string) => json("POST", `${at(thread)}/cancel`, {}),
  answer: (thread: string, approval: string, given: JsonObject | string) =>
    json("POST", `${at(thread)}/approvals/${encodeURIComponent(approval)}`, given),
  why: (thread: string, call: string) =>
    json<Why>(
      "GET",
      `${at(thread)}/calls/${encodeURIComponent(call)}`,
    ),
  rules: () => json<RuleList>("GET", "rules"),
  revoke: (rule: string) => request("DELETE", `rules/${encodeURIComponent(rule)}`),
  export: async (thread: string) => (await request("GET", `${at(thread)}/export`)).blob(),
};
