// Keys that work on every page. One table says what each does; the help dialog (`?`) is made of it.
// Single keys can be switched off, for people whose voice or hands type by accident.

import { element } from "./dom.js";
import { _ } from "./i18n.js";
import { openPalette } from "./palette.js";
import { range, togglePause } from "./time.js";

const SECOND_KEY_MS = 1500;
const ROWS = "main tr a.row, main .events > li > a";

const pages = () => [...document.querySelectorAll(".rail a[data-key]")];
const select = () => document.getElementById("range");

const KEYS = [
  { keys: ["Ctrl K", "⌘ K"], says: _("Search and commands: pages, fleets, instances, decisions, actions") },
  { keys: ["/"], says: _("Search the list on this page, or everything"), act: searchHere },
  { keys: ["t"], says: _("Choose the time range"), act: () => select()?.focus(), when: select },
  { keys: ["p"], says: _("Pause the charts, or jump to now"), act: togglePause, when: select },
  { keys: ["n"], says: _("Jump to now"), act: () => range.goLive(), when: select },
  { keys: ["Esc"], says: _("Close what is open, else back to the range before") },
  { keys: ["j"], says: _("Next row of a list"), act: () => step(1) },
  { keys: ["k"], says: _("Row before"), act: () => step(-1) },
  { keys: ["Enter"], says: _("Open the row") },
  { keys: ["?"], says: _("This help"), act: showHelp },
];

let second = null;

function searchHere() {
  const here = document.querySelector("main [data-search]");
  if (here) here.focus();
  else openPalette();
}

function step(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => row.checkVisibility());
  if (rows.length === 0) return;
  const at = rows.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by;
  const row = rows[Math.min(Math.max(next, 0), rows.length - 1)];
  row.focus({ preventScroll: true });
  (row.closest("tr") ?? row).scrollIntoView({ block: "nearest" });
}

function goTo(key) {
  const page = pages().find((link) => link.dataset.key === key);
  if (page) location.assign(page.href);
  return Boolean(page);
}

const areSingleKeysOn = () => localStorage.getItem("single-keys") !== "off";

function onKey(event) {
  if (event.defaultPrevented || event.isComposing) return;
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openPalette();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return; // the browser closes it on Esc
  if (event.key === "Escape") goBack(event);
  else if (!event.target.closest("input, textarea, select, [contenteditable]")
    && areSingleKeysOn() && pressed(event.key)) event.preventDefault();
}

function goBack({ target }) {
  const open = document.querySelectorAll("details[data-menu][open]");
  for (const menu of open) {
    menu.open = false;
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
  }
  if (open.length > 0) return;
  if (target.closest("input, textarea, select")) target.blur();
  else range.back();
}

function pressed(key) {
  if (second !== null) {
    clearTimeout(second);
    second = null;
    if (goTo(key)) return true;
  }
  if (key === "g") {
    second = setTimeout(() => (second = null), SECOND_KEY_MS);
    return true;
  }
  const found = KEYS.find((one) => one.act && one.keys.includes(key));
  if (!found || (found.when && !found.when())) return false;
  found.act();
  return true;
}

const sequence = (keys) => keys.flatMap((key, i) =>
  [...(i > 0 ? [_(" or ")] : []), ...key.split(" ").map((part) => element("kbd", {}, part))]);

function table(rows) {
  const body = element("tbody", {}, ...rows.map(({ keys, says }) => element("tr", {},
    element("td", { class: "nowrap" }, ...sequence(keys)), element("td", {}, says))));
  return element("table", {}, body);
}

export function showHelp() {
  const help = document.getElementById("keys") ?? makeHelp();
  help.showModal();
}

function makeHelp() {
  const going = pages().map((link) => ({ keys: [`g ${link.dataset.key}`],
    says: link.querySelector("span").textContent }));
  const single = element("input", { type: "checkbox" });
  single.checked = areSingleKeysOn();
  single.addEventListener("change", () => (single.checked
    ? localStorage.removeItem("single-keys") : localStorage.setItem("single-keys", "off")));
  const help = element("dialog", { id: "keys", class: "keys", "aria-labelledby": "keys-title" },
    element("header", {}, element("h2", { id: "keys-title" }, _("Keyboard")),
      element("form", { method: "dialog" }, element("button", { class: "quiet" }, _("Close")))),
    element("div", { class: "keys-tables" },
      element("section", {}, element("h3", {}, _("On every page")), table(KEYS)),
      element("section", {}, element("h3", {}, _("Go to a page")), table(going))),
    element("label", {}, single, _("Single keys do something (Ctrl K always does)")));
  document.body.append(help);
  return help;
}

export function startKeyboard() {
  document.addEventListener("keydown", onKey);
  document.querySelector("[data-keys-open]")?.addEventListener("click", showHelp);
}
