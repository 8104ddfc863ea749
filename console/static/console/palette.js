// Search and commands: one field, one list, by keyboard alone. What is found, and what this person
// may do, the server says (console/search.py); every row is a link.

import { element, icon, setText } from "./dom.js";
import { _, n_ } from "./i18n.js";
import { range } from "./time.js";

const REST_MS = 120;

const dialog = document.getElementById("palette");
const input = dialog?.querySelector("input");
const list = dialog?.querySelector("[role=listbox]");
const says = dialog?.querySelector("[role=status]");

let timer = null;
let asking = null;
let chosen = -1;

export function openPalette() {
  if (!dialog || dialog.open || document.querySelector("dialog[open]")) return;
  for (const menu of document.querySelectorAll("details[data-menu][open]")) menu.open = false;
  input.value = "";
  list.replaceChildren();
  dialog.showModal();
  ask();
}

async function ask() {
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  const query = new URLSearchParams({ q: input.value });
  if (document.body.dataset.fleet) query.set("fleet", document.body.dataset.fleet);
  try {
    const answer = await fetch(`${input.dataset.url}?${query}`, {
      headers: { Accept: "application/json" }, signal: mine.signal });
    if (answer.redirected || answer.status === 403) tell(_("You are not signed in any more."));
    else if (!answer.ok) tell(_("The search failed: the console answered %s.", answer.status));
    else show((await answer.json()).rows);
  } catch (error) {
    if (error.name !== "AbortError") tell(_("The console does not answer."));
  }
}

function tell(words) {
  list.replaceChildren();
  choose(-1);
  setText(says, words);
}

function show(rows) {
  list.replaceChildren(...rows.map(option));
  choose(rows.length > 0 ? 0 : -1);
  setText(says, rows.length > 0 ? n_("%s found", "%s found", rows.length)
    : _("Nothing holds every word of “%s”. A version (v41) or a reason finds decisions.",
      input.value));
}

function option(row, i) {
  // A row leads to the page under the range that is shown now.
  const url = range.on(row.url);
  return element("li", { role: "option", id: `found-${i}`, "aria-selected": "false",
    "data-href": url.pathname + url.search + url.hash },
  icon(row.icon), element("bdi", { class: "name", title: row.label }, row.label),
  element("bdi", { class: "muted detail", title: row.detail }, row.detail),
  element("span", { class: "tag" }, row.kind_word));
}

function choose(i) {
  list.children[chosen]?.setAttribute("aria-selected", "false");
  chosen = i;
  const row = list.children[i];
  row?.setAttribute("aria-selected", "true");
  row?.scrollIntoView({ block: "nearest" });
  if (row) input.setAttribute("aria-activedescendant", row.id);
  else input.removeAttribute("aria-activedescendant");
}

function open(row) {
  if (!row) return;
  dialog.close();
  location.assign(row.dataset.href);
}

function onKey(event) {
  const n = list.childElementCount;
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 5, PageUp: -5 }[event.key];
  if (by && n > 0) {
    event.preventDefault();
    const next = chosen + by;
    // One step goes round; a leap ends at the last.
    choose(Math.abs(by) === 1 ? (next + n) % n : Math.min(Math.max(next, 0), n - 1));
  } else if (event.key === "Enter" && !event.isComposing) {
    event.preventDefault();
    open(list.children[chosen]);
  }
}

export function startPalette() {
  if (!dialog) return;
  for (const link of document.querySelectorAll("[data-palette]")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      openPalette();
    });
  }
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, REST_MS);
  });
  input.addEventListener("keydown", onKey);
  list.addEventListener("click", (event) => open(event.target.closest("[role=option]")));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    asking?.abort();
    clearTimeout(timer);
  });
}
