// The signals page: asks the API for the history that the address names and has it drawn; again
// every quarter of a minute while the range ends now. A change of the form is a new address, and so
// is a zoom.

import { Board } from "./charts.js";
import { serverNow } from "./clock.js";
import { setText } from "./dom.js";
import { moment } from "./format.js";
import { heatMargin, heightOf } from "./heatmap.js";
import { _ } from "./i18n.js";
import * as pictures from "./signal_charts.js";
import { range } from "./time.js";

const EVERY_MS = 15000;
const PATIENCE_MS = 30000;
const LEVELS = 24;
const MOST_LEVELS = 60; // as routing/history_api.py
const DAY_S = 86400;
const CHARTS = ["main", "rows", "heat"];

const form = document.getElementById("signals-form");
const data = document.getElementById("page-data");
const page = data ? JSON.parse(data.textContent) : null;
const trouble = document.getElementById("trouble");
let answeredS = null;
let answers = null;
let span = null;
let offset = 0;
let failure = _("Asking for the history…");

class Refused extends Error {}

// What the API said was wrong, in its words.
async function words(response) {
  if (response.status === 401 || response.status === 403) return _("you are not signed in any more");
  try {
    return (await response.json()).error || _("it answered %s", response.status);
  } catch {
    return _("it answered %s", response.status);
  }
}

function address(path, [since, until], more = {}) {
  const query = new URLSearchParams({ ...page.query, start_s: since, end_s: until,
    bin_s: page.bin_s, points: 10000, ...more });
  return `${page.api}${path}?${query}`;
}

async function ask(...asked) {
  const response = await fetch(address(...asked), {
    headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!response.ok) throw new Refused(await words(response));
  return response.json();
}

function bounds() {
  if (page.bounds) return page.bounds;
  const now = serverNow();
  return [now - page.span_s, now];
}

// What each chart asks: [path, what more], by chart.
const asks = () => ({
  quantiles: { main: ["/quantiles"], heat: ["/heat"] },
  lines: { main: ["/ranked", { rows: page.n }] },
  ranked: { main: ["/ranked", { rows: page.top_lines }], rows: rowsAsk() },
  bands: { main: ["/bands", { quantiles: "0,0.1,0.5,0.9,1" }], rows: rowsAsk(),
    top: ["/ranked", { rows: page.top_lines }] },
}[page.view]);

const rowsAsk = () => ["/ranked", { rows: page.most_rows, offset }];

async function load(of) {
  const get = ([path, more]) => ask(path, of, more);
  const asked = asks();
  const [main, rows, heat, top] = await Promise.all([asked.main, asked.rows, asked.heat, asked.top]
    .map((each) => each && get(each)));
  if (page.view !== "bands") return { main, rows, heat };
  return { main, top, rows, heat: await get(["/heat", { levels: levels(main.bands[1]) }]) };
}

// Few requests are counted one by one: levels between whole numbers would be empty stripes.
function levels(most) {
  const top = Math.ceil(Math.max(...most));
  return page.unit === "req" && top <= MOST_LEVELS ? Math.max(top, 2) : LEVELS;
}

const MAKERS = {
  main: ({ main, top }) => ({ quantiles: pictures.quantiles, lines: pictures.lines,
    ranked: pictures.ranked, bands: (...of) => pictures.bands(...of, top) }[page.view])(page, main),
  rows: ({ rows }) => pictures.rows(page, rows),
  heat: ({ heat }) => (page.view === "quantiles" ? pictures.buckets : pictures.levels)(page, heat),
};

// One chart of the page: its picture is made of the newest answers each time it is drawn.
function spec(id, node) {
  let made = null;
  const picture = () => {
    if (made?.of !== answers) made = answers && { of: answers, ...MAKERS[id](answers) };
    return made ?? { traces: [], axes: { yaxis: {} }, empty: failure };
  };
  const isMap = id !== "main";
  const hasRows = document.getElementById("chart-rows") !== null;
  const below = page.span_s > DAY_S ? 40 : 24;
  return {
    node, legend: document.getElementById(`legend-${id}`), picture,
    forget: () => (made = null),
    traces: () => picture().traces, axes: () => picture().axes, empty: () => picture().empty,
    hovermode: isMap ? "closest" : undefined,
    // All charts of the page keep the same room beside them: their times stand above each other.
    margin: { ...(hasRows ? heatMargin() : { l: 56, r: isMap || heatNode ? 60 : 12 }), b: below },
    silenceS: isMap ? undefined : () => 3 * page.bin_s + 15,
    click: id === "rows" ? ({ y }) => pageOf(answers.rows.rows[y].path) : undefined,
    about: () => {
      const path = id === "heat" ? ["/heat", {}] : asks()[id];
      return { call: (since, until) => address(path[0], [since, until], path[1]), binS: page.bin_s,
        csv: page.csv && id !== "heat" && ((since, until) => `${page.csv}?${
          new URLSearchParams({ ...page.csv_query, from: since, to: until })}`),
        notes: [page.label] };
    },
  };
}

const heatNode = document.getElementById("chart-heat");

function pageOf(path) {
  const id = page.kind === "link" ? path : path.slice(page.fleet.length + 1);
  return `${page.page_of}?id=${encodeURIComponent(id)}`;
}

let board = null;

function makeBoard() {
  const zoomed = new URLSearchParams(location.search).has("from")
    && document.referrer.includes(location.pathname);
  board = new Board({
    bounds: () => span ?? bounds(),
    zoom: (from, to) => go(["range"], { from: Math.floor(from), to: Math.ceil(to) }),
    back: () => (zoomed ? history.back() : range.goLive()),
    isLive: () => page.bounds === null,
  });
  for (const id of CHARTS) {
    const node = document.getElementById(`chart-${id}`);
    if (!node) continue;
    node.replaceChildren();
    board.add(spec(id, node));
  }
}

// Until there is an answer, or none to be had, the charts say that they ask.
function draw() {
  if (board === null) makeBoard();
  for (const chart of board.charts) {
    chart.forget();
    const id = chart.node.id.slice("chart-".length);
    const { note } = chart.picture();
    document.getElementById(`note-${id}`)?.replaceChildren(...(note ?? ["\u00a0"]));
    if (id === "rows" && answers) showPager(chart.node, answers.rows);
    board.renew(chart);
  }
}

function showPager(node, { rows, n_sources: n }) {
  node.style.height = `${heightOf(rows.length)}px`;
  const pager = document.getElementById("rows-pager");
  pager.hidden = n <= page.most_rows;
  const [before, after] = pager.querySelectorAll("button");
  before.hidden = offset === 0;
  after.hidden = offset + rows.length >= n;
}

document.getElementById("rows-pager")?.addEventListener("click", ({ target }) => {
  const step = Number(target.closest("button")?.dataset.rows ?? 0);
  if (step === 0) return;
  offset = Math.max(0, offset + step * page.most_rows);
  show();
});

function say(text) {
  trouble.hidden = text === "";
  setText(trouble.querySelector("span"), text);
  for (const chart of document.querySelectorAll(".signal-chart")) {
    chart.classList.toggle("old", text !== "" && answeredS !== null);
  }
}

let running = false;
let again = false;

async function show() {
  again = running;
  if (running) return;
  running = true;
  const of = bounds();
  const found = await load(of).catch((error) => error);
  running = false;
  if (found instanceof Error) {
    const why = found instanceof Refused ? found.message : _("the console does not answer");
    const last = answeredS === null ? _("Nothing was read yet.")
      : _("Below is what it said at %s.", moment(answeredS));
    say(`${_("The history cannot be read: %s.", why)} ${last}`);
    failure = _("No history: see above.");
    if (answeredS === null) draw();
  } else {
    answers = found;
    span = of;
    answeredS = serverNow();
    say("");
    draw();
  }
  if (again) show();
}

// What a choice makes meaningless leaves the address with it.
const ENDS = { signal: ["side"], cluster: ["source"], role: ["source"], side: [], source: [],
  range: [] };

function go(dropped, more = {}) {
  const query = new URLSearchParams();
  const isCustom = form.elements.range.value === "custom";
  for (const [name, value] of new FormData(form)) {
    const without = dropped.includes(name) || value === ""
      || (isCustom ? name === "range" : name === "from" || name === "to");
    if (!without) query.set(name, value);
  }
  for (const [name, value] of Object.entries(more)) query.set(name, value);
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
  show();
  draw();
  document.addEventListener("themechange", draw);
  if (!page.bounds) {
    setInterval(() => document.hidden || show(), EVERY_MS);
    document.addEventListener("visibilitychange", () => document.hidden || show());
  }
}
