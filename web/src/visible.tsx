/** Text that a model or a tool gave, with whatever cannot be seen shown as what it is. */

import { Fragment, type ReactNode } from "react";

const HIDDEN = /([\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{DI}\u2800])/u;
const PLAIN = /^[\n\t]$/;
const JOINS = /^[\r\u00ad\u200c\u200d\ufe00-\ufe0f]$/; // ends of lines, and what letters and emoji are written with

export const named = (character: string) =>
  `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Show controls, and characters that are invisible or turn the direction of text, by their code. */
export function Visible({ text }: { text: string }): ReactNode {
  return text.split(HIDDEN).map((piece, at) =>
    at % 2 === 0 || PLAIN.test(piece) ? (
      <Fragment key={at}>{piece}</Fragment>
    ) : (
      <span key={at} className="hidden-character" title="an invisible character">
        {named(piece)}
      </span>
    ),
  );
}

/** Return what a server or a provider says as a sentence of its own. */
export const sentence = (text: string) => {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[\p{L}\p{N})]$/u.test(whole) ? `${whole}.` : whole;
};

export const hidesSome = (text: string) =>
  text.split(HIDDEN).some((piece, at) => at % 2 === 1 && !PLAIN.test(piece));

/** Show in running text by their code what `Visible` shows so, except what joins letters and emoji. */
export const revealed = (text: string) =>
  text
    .split(HIDDEN)
    .map((piece, at) => (at % 2 === 0 || PLAIN.test(piece) || JOINS.test(piece) ? piece : `⟦${named(piece)}⟧`))
    .join("");
