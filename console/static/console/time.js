// One time range for the page, kept in the address: a live range that ends now (?range=15m), or a
// pinned one (?from=..&to=.., epoch seconds) after pausing or zooming. Ages tick here too.

import { serverNow } from "./clock.js";
import { age, clock, duration, stamp } from "./format.js";
import { setText } from "./dom.js";

const SECONDS = { "5m": 300, "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400 };
const DEFAULT = "15m";

class TimeRange extends EventTarget {
  constructor() {
    super();
    const query = new URLSearchParams(location.search);
    this.name = query.get("range") in SECONDS ? query.get("range") : DEFAULT;
    const from = Number(query.get("from"));
    const to = Number(query.get("to"));
    this.pinned = from > 0 && to > from ? [from, to] : null;
  }

  get spanS() {
    return this.pinned ? this.pinned[1] - this.pinned[0] : SECONDS[this.name];
  }

  bounds() {
    if (this.pinned) return this.pinned;
    const now = serverNow();
    return [now - SECONDS[this.name], now];
  }

  choose(name) {
    this.name = name;
    this.pinned = null;
    this.changed();
  }

  pin(from, to) {
    this.pinned = [Math.round(from), Math.round(to)];
    this.changed();
  }

  goLive() {
    if (!this.pinned) return;
    this.pinned = null;
    this.changed();
  }

  changed() {
    const url = new URL(location.href);
    for (const key of ["range", "from", "to"]) url.searchParams.delete(key);
    if (this.name !== DEFAULT) url.searchParams.set("range", this.name);
    if (this.pinned) {
      url.searchParams.set("from", this.pinned[0]);
      url.searchParams.set("to", this.pinned[1]);
    }
    history.replaceState(null, "", url);
    this.dispatchEvent(new Event("change"));
  }
}

export const range = new TimeRange();

export function startTime() {
  const select = document.getElementById("range");
  const pause = document.getElementById("pause");
  if (select) {
    select.value = range.name;
    select.addEventListener("change", () => {
      range.choose(select.value);
      if ("reload" in select.dataset) location.reload();
    });
  }
  pause?.addEventListener("click", togglePause);
  range.addEventListener("change", show);
  document.addEventListener("keydown", onKey);
  show();
  setInterval(tickAges, 1000);
}

function togglePause() {
  if (range.pinned) range.goLive();
  else range.pin(...range.bounds());
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    document.querySelectorAll("details[data-menu][open]").forEach((menu) => (menu.open = false));
    range.goLive();
    return;
  }
  if (event.target.closest("input, textarea, select")) return;
  const act = {
    p: () => document.getElementById("pause") && togglePause(),
    t: () => document.getElementById("range")?.focus(),
    "/": () => document.querySelector("[data-search]")?.focus(),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function show() {
  const word = document.getElementById("live-word");
  const pause = document.getElementById("pause");
  if (word) {
    word.classList.toggle("past", Boolean(range.pinned));
    setText(word, range.pinned ? `To ${clock(range.pinned[1])}` : "Live", {
      title: range.pinned
        ? `Charts show ${stamp(range.pinned[0])} to ${stamp(range.pinned[1])}; figures above are now`
        : "Charts follow the present",
    });
  }
  if (pause) {
    pause.setAttribute("aria-pressed", String(Boolean(range.pinned)));
    pause.querySelector("use").setAttribute("href", range.pinned ? "#i-play" : "#i-pause");
    const says = range.pinned ? "Back to live (key p or Esc)" : "Pause the charts (key p)";
    pause.title = says;
    pause.querySelector(".visually-hidden").textContent = says;
  }
  for (const link of document.querySelectorAll("a[data-keep-range]")) {
    const url = new URL(link.href);
    if (range.name === DEFAULT) url.searchParams.delete("range");
    else url.searchParams.set("range", range.name);
    link.href = url.pathname + url.search;
  }
}

function tickAges() {
  const now = serverNow();
  for (const node of document.querySelectorAll("time[data-ago]")) {
    setText(node, age(now - Number(node.dataset.ago)));
  }
  for (const node of document.querySelectorAll("time[data-since]")) {
    setText(node, duration(Math.max(0, Math.floor(now - Number(node.dataset.since)))));
  }
  for (const node of document.querySelectorAll("time[data-until]")) {
    setText(node, duration(Math.max(0, Math.floor(Number(node.dataset.until) - now))));
  }
  setText(document.getElementById("clock"), `${clock(now)} UTC`);
}
