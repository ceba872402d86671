/** The model's text. No HTML, no pictures from elsewhere: those would tell others what was said. */

import { memo, type ReactNode } from "react";
import Markdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { unturned } from "./visible";

/** A link says where it leads; of what leads nowhere safe there is the text. */
function Link({ href, children }: { href: string | undefined; children?: ReactNode }) {
  if (!href) return <span>{children}</span>;
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
  table: ({ children }) => (
    <div className="scrolled" tabIndex={0} role="group" aria-label="Table">
      <table>{children}</table>
    </div>
  ),
  pre: ({ children }) => (
    <pre tabIndex={0}>{children}</pre>
  ),
};

export const Said = memo(({ text }: { text: string }) => (
  <div className="said">
    <Markdown remarkPlugins={[remarkGfm]} components={SHOWN}>
      {unturned(text)}
    </Markdown>
  </div>
));
