/** Light, dark, or as the system has it; remembered in this browser. */

import { useSyncExternalStore } from "react";
import { Shared } from "./api/shared";

export type Theme = "system" | "light" | "dark";
const KEY = "weft.theme";
const ORDER: Theme[] = ["system", "light", "dark"];

const theme = new Shared<Theme>((localStorage.getItem(KEY) as Theme | null) ?? "system");
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = new Shared<boolean>(false);

function apply(): void {
  dark.set(theme.now === "system" ? system.matches : theme.now === "dark");
  document.documentElement.dataset["theme"] = dark.now ? "dark" : "light";
}
system.addEventListener("change", apply);
apply();

export function nextTheme(): void {
  theme.set(ORDER[(ORDER.indexOf(theme.now) + 1) % ORDER.length] ?? "system");
  localStorage.setItem(KEY, theme.now);
  apply();
}

export const useTheme = () => useSyncExternalStore(theme.listen, theme.read);
/** Whether it is dark: for what draws on a canvas. */
export const useDark = () => useSyncExternalStore(dark.listen, dark.read);
