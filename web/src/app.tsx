/** The page: conversations beside the one that is open. */

import { useCallback, useEffect, useState, type FormEvent } from "react";
import { ApiError, api, hasToken, keepToken, setToken } from "./api";
import { Sidebar } from "./sidebar";
import { useThread } from "./stream";
import { focusQuestion, Thread } from "./thread";
import { Told } from "./told";
import type { ThreadItem } from "./types";
import { sentence } from "./visible";

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
  const tell = useCallback((raised: unknown) => {
    if (raised instanceof ApiError && raised.status === 401) setStranger(true);
    else setNotice(raised instanceof Error ? raised.message : String(raised));
  }, []);
  const begin = useCallback(() => {
    setStranger(false);
    setTries((before) => before + 1);
    setTimeout(focusQuestion);
  }, []);
  useEffect(() => {
    const read = () => keepToken() && begin(); // a new address in an open tab
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, [begin]);
  const [state, connection] = useThread(isStranger ? null : id, tries, tell);
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
    const again = () => void list(); // another tab may have asked meanwhile
    addEventListener("focus", again);
    return () => removeEventListener("focus", again);
  }, [list]);
  useEffect(() => {
    document.title = title ? `${title} · toolcrib` : "toolcrib";
  }, [title]);
  useEffect(() => {
    const wide = matchMedia("(min-width: 46.01rem)"); // a telephone that was turned: both fit
    const close = () => wide.matches && setNarrowOpen(false);
    wide.addEventListener("change", close);
    return () => wide.removeEventListener("change", close);
  }, []);
  const open = async () => {
    const made = await api.create();
    pick(made);
    return made;
  };
  return (
    <Told value={tell}>
      {isStranger && <SignIn onToken={begin} />}
      <div
        className="page"
        hidden={isStranger} // and not gone: it has what somebody began to write
        onKeyDown={(event) => {
          const inDialog = (event.target as Element).closest("dialog") !== null;
          if (event.key === "Escape" && isNarrowOpen && !inDialog) setNarrowOpen(false);
        }}
      >
        <button type="button" className="skip main" onClick={focusQuestion}>
          To the question
        </button>
        {!isStranger && (
          <Sidebar
            threads={threads}
            current={id}
            search={search}
            isOpen={isNarrowOpen}
            onSearch={setSearch}
            onPick={(next) => {
              pick(next);
              setNarrowOpen(false);
              setTimeout(focusQuestion);
            }}
            onChanged={() => void list()}
          />
        )}
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
            <h1>{title || (id !== null && connection === "gone" ? "No conversation" : "New conversation")}</h1>
          </header>
          {id !== null && connection === "lost" && (
            <p className="banner" role="status">
              The connection is lost. Trying again; what runs on the server does not need this page.
            </p>
          )}
          {notice && (
            <p className="banner wrong" role="alert">
              {sentence(notice)}
              <button type="button" className="link" onClick={() => setNotice("")}>
                Close
              </button>
            </p>
          )}
          <div className="content" inert={isNarrowOpen}>
            <Thread id={id} state={state} connection={connection} open={open} onNew={() => pick(null)} />
          </div>
        </main>
      </div>
    </Told>
  );
}

function SignIn({ onToken }: { onToken: () => void }) {
  const [token, setTyped] = useState("");
  const [wasRefused] = useState(hasToken); // it has asked all the same
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setToken(token.trim());
    onToken();
  };
  return (
    <main className="sign-in">
      <h1>
        <img src="./favicon.svg" alt="" width="28" height="28" /> toolcrib
      </h1>
      <p>
        This server asks for a token. <code>toolcrib serve</code> prints an address that has it; or whoever
        runs the server knows it.
      </p>
      <form onSubmit={submit}>
        {wasRefused && (
          <p className="wrong" role="alert">
            That token is not the server’s.
          </p>
        )}
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
          <button type="submit" className="main" disabled={!token.trim()}>
            Sign in
          </button>
        </div>
      </form>
    </main>
  );
}
