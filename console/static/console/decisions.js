// The timeline's strip: t and roles as plans asked for them, and a mark for each decision. It comes
// with the page and again with each refresh of it.

import { Board, token } from "./charts.js";
import { element } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { live } from "./live.js";
import { refresh } from "./refresh.js";
import { range } from "./time.js";

const REFRESH_MS = 15000;
const read = () => JSON.parse(document.getElementById("page-data").textContent).strip;
const ms = (values) => values.map((at) => at * 1000);

let strip = read();

// Steps last until the next one; the newest until the range ends.
function held(values) {
  const known = values.map((value) => value ?? NaN);
  return { x: ms([...strip.at_s, strip.until_s]), y: [...known, known.at(-1) ?? NaN] };
}

function step(name, values, colour, axis, write, legend) {
  const { x, y } = held(values);
  return { name, type: "scatter", mode: "lines", x, y, yaxis: axis,
    line: { color: colour, width: 1.5, shape: "hv" }, customdata: y.map((v) => write(v)),
    hovertemplate: "%{customdata}", legend: { ...legend, value: write(y.at(-1)) } };
}

const count = (n) => (Number.isNaN(n) ? "–" : String(n));
const tokens = (t) => (Number.isNaN(t) ? "–" : f.tokens(t));

// A mark stands on the line of t, or at the bottom where a plan had no t.
function marks() {
  const t = (atS) => strip.t_tokens[strip.at_s.indexOf(atS)] ?? 0;
  return { name: "decisions", type: "scatter", mode: "markers",
    x: ms(strip.marks.map((mark) => mark.at_s)), y: strip.marks.map((mark) => t(mark.at_s)),
    yaxis: "y2", customdata: strip.marks.map((mark) => ({ href: mark.href, text: mark.text })),
    marker: { color: token("text"), size: 7, line: { color: token("panel"), width: 1 } },
    hovertemplate: "%{customdata.text}" };
}

function traces() {
  return [
    step("t", strip.t_tokens, token("text"), "y2", tokens, { label: "t", look: "text" }),
    step("prefill", strip.n_prefill, token("local"), "y", count,
      { label: _("prefill"), look: "local" }),
    step("decode", strip.n_decode, token("decode"), "y", count,
      { label: _("decode"), look: "decode" }),
    marks(),
  ];
}

const board = new Board();
board.add({
  node: document.getElementById("chart-strip"),
  legend: document.getElementById("legend-strip"),
  traces,
  axes: () => ({
    yaxis: { domain: [0, 0.36], tickformat: "d", nticks: 3 },
    yaxis2: { domain: [0.46, 1], anchor: "x", tickformat: "~s", nticks: 4 },
  }),
  anchor: { anchor: "y" },
  empty: () => (strip.at_s.length ? "" : _("No plan was pushed by then: gates sent all local.")),
});

function cutWords() {
  const title = document.getElementById("strip-title");
  title.parentNode.querySelector(".cut")?.remove();
  if (!strip.is_cut) return;
  title.after(element("span", { class: "muted cut" },
    _("the newest since %s", f.clock(strip.at_s[0]))));
}

document.addEventListener("regions", ({ detail: ids }) => {
  if (!ids.includes("page-data")) return;
  strip = read();
  cutWords();
  board.markAll();
});
cutWords();

// What goes on is counted by the page; what else the loop said is asked for again now and then.
const isNewest = () => !new URLSearchParams(location.search).has("before");
setInterval(() => document.hidden || live.silent || range.pinned || !isNewest()
  || refresh("timeline", "page-data"), REFRESH_MS);
