/**
 * A thread as the server tells it: a snapshot, then operations; connected again whenever it breaks. A page
 * that nobody sees does not read: a browser opens six connections to a server, for all its tabs together.
 */

import { DataStreamDecoder } from "assistant-stream";
import { useEffect, useState } from "react";
import { ApiError, request } from "./api";
import type { ThreadState } from "./types";

export interface Operation {
  type: "set" | "append-text";
  path: readonly string[];
  value: unknown;
}

export type Connection = "connecting" | "open" | "lost" | "gone" | "refused";

const SILENT = 45_000; // ms; the server says something every 15 s
const LONGEST_WAIT = 8_000;

/** Apply one operation; what it does not touch stays the same object. */
export function applied(state: unknown, operation: Operation): unknown {
  const change = (place: unknown, at: number): unknown => {
    const name = operation.path[at];
    if (name === undefined) {
      return operation.type === "set" ? operation.value : String(place ?? "") + operation.value;
    }
    if (Array.isArray(place)) {
      const copy = [...place];
      copy[Number(name)] = change(place[Number(name)], at + 1);
      return copy;
    }
    const known = (place ?? {}) as Record<string, unknown>;
    return { ...known, [name]: change(known[name], at + 1) };
  };
  return change(state, 0);
}

async function follow(
  thread: string,
  signal: AbortSignal,
  tell: (operations: readonly Operation[]) => void,
): Promise<void> {
  const stopped = new AbortController();
  const stop = () => stopped.abort();
  signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, SILENT);
  try {
    const path = `threads/${encodeURIComponent(thread)}/stream`;
    const response = await request("GET", path, undefined, stopped.signal);
    const heard = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
      transform(piece, controller) {
        clearTimeout(timer);
        timer = setTimeout(stop, SILENT);
        controller.enqueue(piece);
      },
    });
    const reader = response.body!.pipeThrough(heard).pipeThrough(new DataStreamDecoder()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      if (value.type === "update-state") tell(value.operations as readonly Operation[]);
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    stop();
  }
}

/** Wait until the page is in sight, or out of it. */
const sight = (wanted: DocumentVisibilityState, signal: AbortSignal) =>
  new Promise<void>((resolve) => {
    const look = () => document.visibilityState === wanted && resolve();
    document.addEventListener("visibilitychange", look, { signal });
    look();
  });

/** Return what the server shows of a thread, and whether it can be heard; `tell` hears why it is refused. */
export function useThread(
  thread: string | null,
  tries: number,
  tell: (raised: unknown) => void,
): [ThreadState | null, Connection] {
  const [state, setState] = useState<ThreadState | null>(null);
  const [connection, setConnection] = useState<Connection>("connecting");
  useEffect(() => {
    setState(null);
    setConnection("connecting");
    if (thread === null) return;
    const over = new AbortController();
    let wait = 500;
    const take = (operations: readonly Operation[]) => {
      wait = 500;
      setConnection("open");
      setState((known) => operations.reduce<unknown>(applied, known) as ThreadState);
    };
    const keep = async () => {
      while (!over.signal.aborted) {
        await sight("visible", over.signal);
        const unseen = new AbortController();
        const either = AbortSignal.any([over.signal, unseen.signal]);
        void sight("hidden", either).then(() => unseen.abort());
        try {
          await follow(thread, either, take);
        } catch (raised) {
          if (over.signal.aborted) return;
          if (raised instanceof ApiError && raised.status === 404) return setConnection("gone");
          if (raised instanceof ApiError && [401, 403].includes(raised.status)) {
            tell(raised);
            return setConnection("refused");
          }
        }
        if (over.signal.aborted) return;
        if (unseen.signal.aborted) continue;
        unseen.abort();
        setConnection("lost");
        await new Promise((resolve) => setTimeout(resolve, wait));
        wait = Math.min(wait * 2, LONGEST_WAIT);
      }
    };
    void keep();
    return () => over.abort();
  }, [thread, tries, tell]);
  return [state?.thread.id === thread ? state : null, connection];
}
