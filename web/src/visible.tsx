/** Text that a model or a tool gave, with whatever cannot be seen shown as what it is. */

import { Fragment, type ReactNode } from "react";

const HIDDEN = /([\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{DI}\u2800])/u;
const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\p{Cc}]/gu;
const PLAIN = /^[\n\t]$/;

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

/** Show in running text what would turn its direction, or be a control. */
export const unturned = (text: string) =>
  text.replace(TURNS, (character) => (/[\n\t\r]/.test(character) ? character : `⟦${named(character)}⟧`));
