// What every page has, fleet or not: theme, time zone, menus that close, keys, search, ages that
// tick.

import { startKeyboard } from "./keyboard.js";
import { startLists } from "./lists.js";
import { startPalette } from "./palette.js";
import { startSharing } from "./share.js";
import { startTime } from "./time.js";

const root = document.documentElement;
const choices = document.querySelectorAll("[data-theme-choice]");
const A_YEAR_S = 31_536_000;

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

// The server writes clocks too, so it must know the zone: a cookie, not only this page's storage.
for (const choice of document.querySelectorAll("[data-zone-choice]")) {
  choice.addEventListener("click", () => {
    const zone = choice.dataset.zoneChoice === "utc" ? ""
      : Intl.DateTimeFormat().resolvedOptions().timeZone;
    const secure = location.protocol === "https:" ? "; secure" : "";
    const age = zone ? A_YEAR_S : 0;
    document.cookie = `zone=${zone}; path=/; max-age=${age}; samesite=lax${secure}`;
    location.reload();
  });
}

function onWall(isOn) {
  const url = new URL(location.href);
  if (isOn) url.searchParams.set("wall", "1");
  else url.searchParams.delete("wall");
  return url.href;
}

for (const link of document.querySelectorAll("[data-wall], [data-wall-off]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    location.assign(onWall("wall" in link.dataset));
  });
}

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

// On a phone the rail is a strip wider than the screen.
document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

showTheme();
startTime();
startKeyboard();
startPalette();
startSharing();
startLists();
