/** The page: conversations beside the one that is open. */

import { useCallback, useEffect, useState, type FormEvent } from "react";
import { ApiError, api, setToken } from "./api";
import { Sidebar } from "./sidebar";
import { useThread } from "./stream";
import { Thread } from "./thread";
import { Told } from "./told";
import type { ThreadItem } from "./types";

const idOf = () => /^#\/t\/([\w-]+)$/.exec(location.hash)?.[1] ?? null;

function useOpenThread(): [string | null, (id: string | null) => void] {
  const [id, setId] = useState(idOf);
  useEffect(() => {
    const read = () => setId(idOf());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  const pick = useCallback((next: string | null) => {
    history.pushState(null, "", next === null ? location.pathname : `#/t/${next}`);
    setId(next);
  }, []);
  return [id, pick];
}

export function App() {
  const [id, pick] = useOpenThread();
  const [threads, setThreads] = useState<ThreadItem[]>([]);
  const [search, setSearch] = useState("");
  const [notice, setNotice] = useState("");
  const [isNarrowOpen, setNarrowOpen] = useState(false);
  const [isStranger, setStranger] = useState(false);
  const [tries, setTries] = useState(0);
  const [state, connection] = useThread(isStranger ? null : id, tries);
  const tell = useCallback((raised: unknown) => {
    if (raised instanceof ApiError && raised.status === 401) setStranger(true);
    else setNotice(raised instanceof Error ? raised.message : String(raised));
  }, []);
  const list = useCallback(async () => {
    try {
      setThreads(await api.threads(search));
    } catch (raised) {
      tell(raised);
    }
  }, [search, tell]);
  const title = state?.thread.title ?? "";
  const turns = state?.turns.length ?? 0;
  useEffect(() => {
    const timer = setTimeout(() => void list(), search ? 200 : 0);
    return () => clearTimeout(timer);
  }, [list, search, title, turns, id, tries]);
  useEffect(() => {
    document.title = title ? `${title} · toolcrib` : "toolcrib";
  }, [title]);
  const open = async () => {
    const made = await api.create();
    pick(made);
    return made;
  };
  if (isStranger)
    return (
      <SignIn
        onToken={() => {
          setStranger(false);
          setTries(tries + 1);
        }}
      />
    );
  return (
    <Told value={tell}>
      <div className="page">
        <Sidebar
          threads={threads}
          current={id}
          search={search}
          isOpen={isNarrowOpen}
          onSearch={setSearch}
          onPick={(next) => {
            pick(next);
            setNarrowOpen(false);
          }}
          onChanged={() => void list()}
        />
        <main>
          <header className="bar">
            <button
              type="button"
              className="plain narrow"
              aria-expanded={isNarrowOpen}
              aria-controls="sidebar"
              onClick={() => setNarrowOpen(!isNarrowOpen)}
            >
              <span aria-hidden="true">☰</span>
              <span className="unseen">Conversations</span>
            </button>
            <h1>{title || "New conversation"}</h1>
          </header>
          {id !== null && connection === "lost" && (
            <p className="banner" role="status">
              The connection is lost. Trying again; what runs goes on.
            </p>
          )}
          {notice && (
            <p className="banner wrong" role="alert">
              {notice}
              <button type="button" className="link" onClick={() => setNotice("")}>
                Close
              </button>
            </p>
          )}
          <Thread id={id} state={state} connection={connection} open={open} />
        </main>
      </div>
    </Told>
  );
}

function SignIn({ onToken }: { onToken: () => void }) {
  const [token, setTyped] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setToken(token.trim());
    onToken();
  };
  return (
    <main className="sign-in">
      <h1>toolcrib</h1>
      <form onSubmit={submit}>
        <label className="field">
          The token of this server
          <input
            type="password"
            autoComplete="off"
            autoFocus
            value={token}
            onChange={(event) => setTyped(event.target.value)}
          />
        </label>
        <div className="actions">
          <button type="submit" className="main">
            Sign in
          </button>
        </div>
      </form>
    </main>
  );
}
