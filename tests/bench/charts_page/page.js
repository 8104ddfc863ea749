// Twenty charts of ten lines of 300 points that get a value a second, drawn by ours, by Plotly.react
// or by uPlot (`?by=`). `begin()` starts the seconds.

import { Board, line } from "/static/console/charts.js";
import { heard, serverNow } from "/static/console/clock.js";
import { token } from "/static/console/colours.js";
import { element } from "/static/console/dom.js";
import * as f from "/static/console/format.js";
import { SeriesSet } from "/static/console/series.js";

const CHARTS = 20;
const LINES = 10;
const POINTS = 300;
const HUES = ["local", "remote", "decode", "good", "neutral"];
const by = new URLSearchParams(location.search).get("by");

const names = Array.from({ length: CHARTS * LINES }, (_, i) => `s${i}`);
const set = new SeriesSet(names, { points: POINTS, gapS: 15 });
const value = (i, t) => 50 + 30 * Math.sin(t / 40 + i) + 10 * Math.sin(t * 1.7 + i * 3);

heard(Date.now() / 1000);
const begun = Math.floor(serverNow());
const t = Array.from({ length: POINTS }, (_, k) => begun - POINTS + k);
set.load({ bin_s: 1, t, decisions: [],
  series: Object.fromEntries(names.map((name, i) => [name, t.map((at) => value(i, at))])) }, begun);

const nodes = Array.from({ length: CHARTS }, (_, c) => {
  const node = element("div", { class: "chart", id: `chart-${c}` });
  const legend = element("div", { class: "legend" });
  document.getElementById("charts").append(element("section", { class: "panel chart-panel" },
    element("header", {}, element("h2", {}, `Chart ${c}`), legend), node));
  return { node, legend };
});
const mine = (c) => names.slice(c * LINES, (c + 1) * LINES).map((name) => [name, set.ring(name)]);

function ours() {
  const board = new Board();
  nodes.forEach((where, c) => board.add({
    ...where, name: `chart-${c}`, empty: () => "Nothing measured.",
    axes: () => ({ yaxis: {} }),
    traces: () => mine(c).map(([name, ring], i) => line(name, ring, token(HUES[i % HUES.length]), {
      legend: i < 3 ? { label: name, look: HUES[i], value: f.significant(ring.last) } : undefined })),
  }));
  return () => board.tick();
}

// What a page does that knows no better: new traces and a new layout for every chart at once.
function react() {
  const now = () => {
    nodes.forEach(({ node }, c) => Plotly.react(node, mine(c).map(([name, ring], i) => ({
      name, type: "scatter", mode: "lines", x: Array.from(ring.times(), (s) => new Date(s * 1000)),
      y: [...ring.values()], line: { color: token(HUES[i % HUES.length]), width: 1.5 } })), {
      margin: { l: 52, r: 12, t: 8, b: 24 }, showlegend: false, hovermode: "x unified",
      height: 216 }, { displayModeBar: false, responsive: true }));
  };
  now();
  return now;
}

function uplot() {
  const columns = (c) => [Float64Array.from(mine(c)[0][1].times()),
    ...mine(c).map(([, ring]) => Float64Array.from(ring.values()))];
  const charts = nodes.map(({ node }, c) => new uPlot({ width: node.clientWidth, height: 216,
    legend: { show: false },
    series: [{}, ...mine(c).map(([name], i) => ({ label: name, stroke: token(HUES[i % HUES.length]),
      width: 1.5 }))] }, columns(c), node));
  return () => charts.forEach((chart, c) => chart.setData(columns(c)));
}

function begin() {
  const draw = { ours, react, uplot }[by]();
  draw();
  setInterval(() => {
    const now = Date.now() / 1000;
    heard(now);
    names.forEach((name, i) => set.append(name, now, value(i, now)));
    set.trim(now - POINTS);
    draw();
  }, 1000);
}

// Five minutes: as wide as the 300 points.
document.addEventListener("DOMContentLoaded", begin);
if (document.readyState === "complete") begin();
