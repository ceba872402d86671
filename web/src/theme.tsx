/** Light, dark, or as the system has it. */

import { useState } from "react";

const KEY = "toolcrib.theme";
const NEXT = { system: "light", light: "dark", dark: "system" } as const;
type Theme = keyof typeof NEXT;

const kept = (): Theme => {
  const theme = localStorage.getItem(KEY);
  return theme === "light" || theme === "dark" ? theme : "system";
};

const show = (theme: Theme) => {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
};

export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState(kept);
  const turn = () => {
    const next = NEXT[theme];
    localStorage.setItem(KEY, next);
    show(next);
    setTheme(next);
  };
  return [theme, turn];
}

useTheme.begin = () => show(kept());

const SIGNS = { system: "◐", light: "☀", dark: "☾" };

export function ThemeSwitch() {
  const [theme, turn] = useTheme();
  return (
    <button type="button" className="plain" onClick={turn} title={`Colours: ${theme}`}>
      <span aria-hidden="true">{SIGNS[theme]}</span>
      <span className="unseen">Colours: {theme}. Change</span>
    </button>
  );
}
