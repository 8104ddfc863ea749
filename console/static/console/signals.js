// The signals page: asks the API for the history that the address names and has it drawn; again
// every quarter of a minute while the range ends now. A change of the form is a new address.

import { serverNow } from "./clock.js";
import { setText } from "./dom.js";
import { clock } from "./format.js";
import { showBands, showBuckets, showLevels, showLines, showNothing, showQuantiles }
  from "./signal_charts.js";
import { range } from "./time.js";

const EVERY_MS = 15000;
const PATIENCE_MS = 30000;
const LEVELS = 24;
const MOST_LEVELS = 60; // as routing/history_api.py

const form = document.getElementById("signals-form");
const data = document.getElementById("page-data");
const page = data ? JSON.parse(data.textContent) : null;
const trouble = document.getElementById("trouble");
let answeredS = null;
let newest = null;

class Refused extends Error {}

// What the API said was wrong, in its words.
async function words(response) {
  if (response.status === 401 || response.status === 403) return "you are not signed in any more";
  try {
    return (await response.json()).error || `it answered ${response.status}`;
  } catch {
    return `it answered ${response.status}`;
  }
}

async function ask(path, [since, until], more = {}) {
  const query = new URLSearchParams({ ...page.query, start_s: since, end_s: until,
    bin_s: page.bin_s, points: 10000, ...more });
  const response = await fetch(`${page.api}${path}?${query}`, {
    headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!response.ok) throw new Refused(await words(response));
  return response.json();
}

function bounds() {
  if (page.bounds) return page.bounds;
  const now = serverNow();
  return [now - page.span_s, now];
}

async function load(span) {
  if (page.view === "quantiles") {
    return Promise.all([ask("/quantiles", span), ask("/heat", span)]);
  }
  if (page.view === "lines" || page.is_counter) return [await ask("", span)];
  const bands = await ask("/bands", span, { quantiles: "0,0.1,0.5,0.9,1" });
  return [bands, await ask("/heat", span, { levels: levels(bands.bands[1]) })];
}

// Few requests are counted one by one: levels between whole numbers would be empty stripes.
function levels(most) {
  const top = Math.ceil(Math.max(...most));
  return page.unit === "req" && top <= MOST_LEVELS ? Math.max(top, 2) : LEVELS;
}

function draw([main, heat], span) {
  newest = [[main, heat], span];
  if (page.view === "quantiles") {
    showQuantiles(page, main, span);
    showBuckets(page, heat, span);
  } else if (page.view === "lines") showLines(page, main, span);
  else {
    showBands(page, main, span);
    if (heat) showLevels(page, heat, span);
  }
}

function say(text) {
  trouble.hidden = text === "";
  setText(trouble.querySelector("span"), text);
  for (const chart of document.querySelectorAll(".signal-chart")) {
    chart.classList.toggle("old", text !== "" && answeredS !== null);
  }
}

let running = false;

async function show() {
  if (running) return;
  running = true;
  const span = bounds();
  try {
    const found = await load(span);
    answeredS = serverNow();
    say("");
    draw(found, span);
  } catch (error) {
    const why = error instanceof Refused ? error.message : "the console does not answer";
    const last = answeredS === null ? "Nothing was read yet."
      : `Below is what it said at ${clock(answeredS)} UTC.`;
    say(`The history cannot be read: ${why}. ${last}`);
    if (answeredS === null) showNothing("No history: see above.");
  } finally {
    running = false;
  }
}

// What a choice makes meaningless leaves the address with it.
const ENDS = { signal: ["side"], cluster: ["source"], role: ["source"], side: [], source: [],
  range: [] };

function go(dropped) {
  const query = new URLSearchParams();
  const isCustom = form.elements.range.value === "custom";
  for (const [name, value] of new FormData(form)) {
    const without = dropped.includes(name) || value === ""
      || (isCustom ? name === "range" : name === "from" || name === "to");
    if (!without) query.set(name, value);
  }
  location.assign(`${location.pathname}?${query}`);
}

function showMoments() {
  const isCustom = form.elements.range.value === "custom";
  for (const name of ["from", "to"]) {
    const input = form.elements[name];
    input.closest(".field").hidden = !isCustom;
    if (isCustom && input.value === "" && page) {
      const [since, until] = bounds();
      input.value = new Date((name === "from" ? since : until) * 1000).toISOString().slice(0, 19);
    }
  }
}

form.addEventListener("change", ({ target }) => {
  if (target.name === "from" || target.name === "to") return;
  if (target.name === "range" && target.value === "custom") {
    showMoments();
    return;
  }
  const dropped = [...ENDS[target.name]];
  const kinds = (value) => value.split(".")[0];
  if (target.name === "signal" && kinds(target.value) !== form.dataset.kind) {
    dropped.push("role", "source");
  }
  go(dropped);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  go([]);
});
form.dataset.kind = form.elements.signal.value.split(".")[0];
showMoments();

// Esc goes back to a live range on every page.
range.addEventListener("change", () => location.reload());

if (page && page.n > 0) {
  const start = () => {
    show();
    document.addEventListener("themechange", () => newest && draw(...newest));
    if (page.bounds) return;
    setInterval(() => document.hidden || show(), EVERY_MS);
    document.addEventListener("visibilitychange", () => document.hidden || show());
  };
  if (window.Plotly) start();
  else document.addEventListener("DOMContentLoaded", start);
}
