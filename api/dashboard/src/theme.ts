// Light or dark: what the system prefers, unless the reader chose.

export type Theme = "auto" | "light" | "dark";

const KEY = "gpudiag-theme";
const listeners = new Set<() => void>();
const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => applyTheme());

export function chosenTheme(): Theme {
  try {
    const stored = localStorage.getItem(KEY);
    return stored === "light" || stored === "dark" ? stored : "auto";
  } catch {
    return "auto"; // storage is switched off
  }
}

export function chooseTheme(theme: Theme): void {
  try {
    if (theme === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Without storage the choice lasts until the page is left.
  }
  applyTheme(theme);
}

export function applyTheme(theme: Theme = chosenTheme()): void {
  document.documentElement.dataset.theme = theme !== "auto" ? theme : system.matches ? "dark" : "light";
  for (const listener of listeners) listener();
}

// Charts are drawn on canvas and take their colours from the style sheet once: they ask for each change.
export function onThemeChange(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export const colour = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
