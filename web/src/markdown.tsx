/** The model's text. No HTML, no pictures from elsewhere: those would tell others what was said. */

import { memo, type ReactNode } from "react";
import Markdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { revealed, Visible } from "./visible";

const DEEPEST = 100; // what is nested deeper than a browser's stack bears would end the page

const place = (at: URL | Location) => at.origin + at.pathname.replace(/\/$/, "");

const leadsOut = (href: string) =>
  URL.canParse(href, location.href) && place(new URL(href, location.href)) !== place(location);

/** A link says where it leads; of what leads nowhere safe, or into the page itself, there is the text. */
function Link({ href, children }: { href: string | undefined; children?: ReactNode }) {
  if (!href || !leadsOut(href)) return <span>{children}</span>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer" title={href}>
      {children}
    </a>
  );
}

const SHOWN: Components = {
  a: ({ href, children }) => <Link href={href}>{children}</Link>,
  img: ({ src, alt }) => (
    <Link href={typeof src === "string" ? src : undefined}>picture: {alt || "without a description"}</Link>
  ),
  input: ({ checked }) => (
    <input type="checkbox" checked={checked ?? false} disabled aria-label={checked ? "done" : "not done"} />
  ),
  table: ({ children }) => (
    <div className="scrolled" tabIndex={0} role="group" aria-label="Table">
      <table>{children}</table>
    </div>
  ),
  pre: ({ children }) => (
    <pre tabIndex={0}>{children}</pre>
  ),
};

interface Node {
  children?: Node[];
}

/** Refuses a text that is nested too deeply to be shown. */
const shallow = () => (root: Node) => {
  let level: Node[] = [root];
  for (let depth = 0; level.length; depth++) {
    if (depth > DEEPEST) throw new RangeError("nested too deeply");
    level = level.flatMap((node) => node.children ?? []);
  }
};

/** Return a text as its Markdown says; what is nested too deeply is shown as it was written. */
function formatted(text: string): ReactNode {
  try {
    return Markdown({
      children: revealed(text),
      remarkPlugins: [remarkGfm],
      rehypePlugins: [shallow],
      components: SHOWN,
    });
  } catch {
    return (
      <p className="plain-text">
        <Visible text={text} />
      </p>
    );
  }
}

export const Said = memo(({ text }: { text: string }) => <div className="said">{formatted(text)}</div>);
