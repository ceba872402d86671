/** What every card needs to know: its thread, and where to say that something went wrong. */

import { createContext, useContext } from "react";

export const ThreadId = createContext("");
export const Told = createContext<(raised: unknown) => void>(() => undefined);

export const useThreadId = () => useContext(ThreadId);
export const useTold = () => useContext(Told);
