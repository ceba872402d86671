/** The conversations: find, begin, rename, delete and export them. */

import { useRef, useState, type FormEvent } from "react";
import { api } from "./api";
import { Dialog } from "./dialog";
import { Rules, RulesButton } from "./rules";
import { ThemeSwitch } from "./theme";
import { useTold } from "./told";
import type { ThreadItem } from "./types";
import { Visible } from "./visible";

interface Props {
  threads: ThreadItem[];
  current: string | null;
  search: string;
  isOpen: boolean;
  onSearch: (search: string) => void;
  onPick: (id: string | null) => void;
  onChanged: () => void;
}

export function Sidebar({ threads, current, search, isOpen, onSearch, onPick, onChanged }: Props) {
  const tell = useTold();
  const [renaming, setRenaming] = useState<ThreadItem | null>(null);
  const [deleting, setDeleting] = useState<ThreadItem | null>(null);
  const [showsRules, setRules] = useState(false);
  const searching = useRef<HTMLInputElement>(null);
  const stay = () => {
    if (deleting) focusMenu(deleting.id);
    setDeleting(null);
  };
  const guarded = async (work: () => Promise<unknown>) => {
    try {
      await work();
    } catch (raised) {
      tell(raised);
    }
    onChanged();
  };
  return (
    <>
      <nav className={isOpen ? "sidebar open" : "sidebar"} aria-label="Conversations" id="sidebar">
        <div className="brand">
          <img src="./favicon.svg" alt="" width="22" height="22" />
          <span>toolcrib</span>
          <ThemeSwitch />
        </div>
        <button type="button" className="new" onClick={() => onPick(null)}>
          New conversation
        </button>
        <input
          ref={searching}
          type="search"
          placeholder="Search"
          aria-label="Search conversations"
          value={search}
          onChange={(event) => onSearch(event.target.value)}
        />
        {!threads.length && <p className="note">{search ? "Nothing is called so." : "No conversation yet."}</p>}
        <ul>
          {threads.map((thread) => (
            <li key={thread.id} className={thread.id === current ? "current" : undefined}>
              <a
                href={`#/t/${thread.id}`}
                title={thread.title}
                aria-current={thread.id === current ? "page" : undefined}
                onClick={(event) => {
                  event.preventDefault();
                  onPick(thread.id);
                }}
              >
                <Visible text={thread.title || "No question yet"} />
              </a>
              <details
                className="menu"
                data-thread={thread.id}
                onBlur={(event) => {
                  if (!event.currentTarget.contains(event.relatedTarget)) event.currentTarget.open = false;
                }}
                onKeyDown={(event) => {
                  if (event.key !== "Escape" || !event.currentTarget.open) return;
                  event.stopPropagation();
                  focusMenu(thread.id);
                }}
              >
                <summary aria-label={`More: ${thread.title || "no question yet"}`}>⋯</summary>
                <div>
                  <button type="button" onClick={() => setRenaming(thread)}>
                    Rename
                  </button>
                  <button type="button" onClick={() => void guarded(() => download(thread.id))}>
                    Export
                  </button>
                  <button type="button" className="no" onClick={() => setDeleting(thread)}>
                    Delete
                  </button>
                </div>
              </details>
            </li>
          ))}
        </ul>
        <RulesButton onOpen={() => setRules(true)} />
      </nav>
      {showsRules && <Rules onClose={() => setRules(false)} />}
      {renaming && (
        <Rename
          thread={renaming}
          onDone={(title) => {
            if (title) void guarded(() => api.rename(renaming.id, title));
            setRenaming(null);
            focusMenu(renaming.id);
          }}
        />
      )}
      {deleting && (
        <Dialog label="Delete this conversation?" onClose={stay}>
          <p>
            “<Visible text={deleting.title || "No question yet"} />” cannot be brought back.
          </p>
          <div className="actions">
            <button
              type="button"
              className="no"
              onClick={() => {
                void guarded(async () => {
                  await api.remove(deleting.id);
                  if (deleting.id === current) onPick(null);
                });
                setDeleting(null);
                searching.current?.focus();
              }}
            >
              Delete
            </button>
            <button type="button" onClick={stay}>
              Keep it
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

/** Close the menu of a conversation, and leave whoever uses the keyboard at its place. */
function focusMenu(id: string): void {
  const menu = document.querySelector<HTMLDetailsElement>(`[data-thread="${CSS.escape(id)}"]`);
  if (!menu) return;
  menu.open = false;
  setTimeout(() => menu.querySelector("summary")?.focus()); // behind the dialog, which gives it back
}

async function download(id: string): Promise<void> {
  const url = URL.createObjectURL(await api.export(id));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${id}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function Rename({ thread, onDone }: { thread: ThreadItem; onDone: (title: string | null) => void }) {
  const [title, setTitle] = useState(thread.title);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onDone(title.trim() || null);
  };
  return (
    <Dialog label="Rename this conversation" onClose={() => onDone(null)}>
      <form onSubmit={submit}>
        <label className="field">
          Title
          <input value={title} maxLength={200} autoFocus onChange={(event) => setTitle(event.target.value)} />
        </label>
        <div className="actions">
          <button type="submit" className="main">
            Rename
          </button>
          <button type="button" onClick={() => onDone(null)}>
            Back
          </button>
        </div>
      </form>
    </Dialog>
  );
}
