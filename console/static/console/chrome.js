// What every page has, fleet or not: the theme, menus that close, ages that tick.

import { startTime } from "./time.js";

const root = document.documentElement;
const choices = document.querySelectorAll("[data-theme-choice]");

function showTheme() {
  const chosen = root.dataset.theme ?? "system";
  for (const choice of choices) {
    choice.setAttribute("aria-pressed", String(choice.dataset.themeChoice === chosen));
  }
}

for (const choice of choices) {
  choice.addEventListener("click", () => {
    const wanted = choice.dataset.themeChoice;
    if (wanted === "system") {
      delete root.dataset.theme;
      localStorage.removeItem("theme");
    } else {
      root.dataset.theme = wanted;
      localStorage.setItem("theme", wanted);
    }
    showTheme();
    document.dispatchEvent(new Event("themechange"));
  });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  document.dispatchEvent(new Event("themechange"));
});

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

showTheme();
startTime();
