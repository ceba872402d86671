/** Cards of one's own: what shows the result of a tool, by the tool's name. */

import type { ComponentType } from "react";
import type { CallPart } from "./types";

const CARDS = new Map<string, ComponentType<{ call: CallPart }>>();

/** Show what calls of a tool gave with this component, in place of the usual view of a result. */
export function registerCard(tool: string, card: ComponentType<{ call: CallPart }>): void {
  CARDS.set(tool, card);
}

export const cardOf = (tool: string) => CARDS.get(tool);
