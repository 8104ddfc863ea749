// One decision: what was predicted, the band of chance around it, and what came of it, minute by
// minute. The columns come with the page, and again with each refresh of it.

import { Board, token } from "./charts.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { live } from "./live.js";
import { refresh } from "./refresh.js";

const LATE_S = 30;
const read = () => JSON.parse(document.getElementById("page-data").textContent).realised;
const times = (value) => `×${f.significant(value)}`;

let told = read();

const CHARTS = [
  { name: "share", write: f.percent, axis: { tickformat: ".0%" } },
  { name: "headroom", write: times, axis: { tickformat: "~g" } },
  { name: "gbps", write: f.gbps, axis: { tickformat: "~g" } },
];

const ends = () => [told.begins_s * 1000, told.ends_s * 1000];

function flat(name, value, colour, more) {
  return { name, type: "scatter", mode: "lines", x: ends(), y: [value, value],
    line: { color: colour, width: 1, dash: "dash" }, hoverinfo: "skip", ...more };
}

function bandOf([low, high]) {
  const edge = { width: 0 };
  return [
    flat("band", low, token("line-strong"), { line: edge }),
    flat("band to", high, token("line-strong"), { line: edge, fill: "tonexty",
      fillcolor: token("raised") }),
  ];
}

function traces({ name, write }) {
  const { expected, band, values } = told.charts[name];
  const known = values.map((value) => value ?? NaN);
  const found = [];
  if (band) found.push(...bandOf(band));
  if (expected !== null) found.push(flat("predicted", expected, token("muted")));
  found.push({ name: "realised", type: "scatter", mode: "lines+markers",
    x: told.at_s.map((at) => at * 1000), y: known, customdata: known.map((v) => write(v)),
    line: { color: token("text"), width: 1.5 }, marker: { color: token("text"), size: 4 },
    hovertemplate: "%{customdata}<extra></extra>" });
  return found;
}

const board = new Board({ bounds: () => [told.begins_s, told.ends_s], zoom: () => {},
  back: () => {}, isLive: () => false });
for (const chart of CHARTS) {
  board.add({
    node: document.getElementById(`chart-${chart.name}`),
    traces: () => traces(chart),
    axes: () => ({ yaxis: { ...chart.axis, nticks: 4 } }),
    empty: () => _("Nothing measured yet."),
  });
}

document.addEventListener("regions", ({ detail: ids }) => {
  if (!ids.includes("page-data")) return;
  told = read();
  board.markAll();
});

// While the quarter hour lasts, what came of it is asked again with the ticks.
let askedMs = 0;
live.addEventListener("frame", () => {
  const over = Date.now() / 1000 > told.ends_s + LATE_S;
  if (over || document.hidden || Date.now() - askedMs < 15000) return;
  askedMs = Date.now();
  refresh("realised", "page-data");
});
