// Draws the history of one signal: lines, bands over the sources, quantiles of observations, and
// where sources or observations lay. A bin in which nobody told anything stays empty.

import { token } from "./charts.js";
import { element } from "./dom.js";
import * as f from "./format.js";
import { draw, say } from "./planner_charts.js";

const CHARTS = ["chart-main", "chart-heat"];
const HUES = ["local", "remote", "good", "decode"];
const DASHES = ["solid", "dash"];
const SHARES = [0, 0.1, 0.5, 0.9, 1];
const DAY_S = 86400;
const byId = (id) => document.getElementById(id);
const isNarrow = () => matchMedia("(max-width: 760px)").matches;
const ms = (t) => t.map((at) => at * 1000);
const known = (values) => values.some((v) => v !== null);
const plural = (n, [one, many]) => `${n} ${n === 1 ? one : many}`;

const WRITERS = { ratio: f.percent, s: f.duration, tok: f.tokens, "req/s": f.rate, Gbps: f.gbps };

function writer({ unit }) {
  return WRITERS[unit] ?? ((value) => f.withUnit(value, unit).trim());
}

function valueAxis({ unit }) {
  if (unit === "ratio") return { tickformat: ".0%", rangemode: "tozero", nticks: 5 };
  const suffix = unit === "s" ? "s" : "";
  return { tickformat: "~s", ticksuffix: suffix, rangemode: "tozero", nticks: 5,
    title: { text: unit === "s" || isNarrow() ? "" : unit, standoff: 4 } };
}

function timeAxis([since, until]) {
  const long = until - since > DAY_S;
  return { type: "date", range: [since * 1000, until * 1000], nticks: isNarrow() ? 4 : 8,
    tickformat: long ? "%d %b\n%H:%M" : "%H:%M", hoverformat: "%Y-%m-%d %H:%M:%S UTC" };
}

// Both charts keep room for the scale of the lower one: their times stand above each other.
const margin = ([since, until]) => ({ l: 56, r: byId("chart-heat") ? 60 : 12, t: 8,
  b: until - since > DAY_S ? 40 : 24 });
const frame = (page, span) => ({ hovermode: "x unified", margin: margin(span),
  xaxis: timeAxis(span), yaxis: valueAxis(page) });

function legend(entries) {
  byId("legend-main").replaceChildren(...entries.map(([look, label, value]) => element("span", {},
    element("i", { class: `line ${look}` }), label, element("b", {}, value ?? ""))));
}

function note(id, ...parts) {
  byId(id)?.replaceChildren(...(parts.length ? parts : ["\u00a0"]));
}

export function showNothing(text) {
  for (const id of CHARTS) if (byId(id)) say(id, text);
}

function nothing(page, id, what) {
  say(id, "Nothing measured in this range.");
  if (id !== "chart-main") return note("note-heat");
  legend([]);
  const link = element("a", { href: page.onboarding }, "Onboarding");
  return note("note-main", `No value of this signal came from ${what}. `, link,
    " says what each source lacks, why, and what to type next.");
}

const asked = (page) => plural(page.n, page.noun);

// A counter as a rate: what it gained from one bin to the next. Without the bin before, and where a
// process began anew, it is not known. The bin that is not over yet has not gained all it will.
function rates({ t, bin_s: binS }, values, until) {
  return values.map((value, i) => {
    const before = i > 0 ? values[i - 1] : null;
    if (value === null || before === null || value < before || t[i] + binS > until) return null;
    return (value - before) / binS;
  });
}

function figures(page, answer, [, until]) {
  return Object.entries(answer.series).map(([path, raw]) => {
    const values = page.is_counter ? rates(answer, raw, until) : raw;
    return [path, values.map((v) => (v === null ? null : v * page.scale))];
  });
}

// A value between two bins without one would be a line of no length: it gets a dot.
const dots = (values) => values.map((v, i) =>
  (v !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? 5 : 0));

const line = (x, y, colour, more = {}) => ({ type: "scatter", mode: "lines+markers", x, y,
  connectgaps: false, line: { color: colour, width: 1.5, ...more.line },
  marker: { color: colour, size: dots(y), opacity: 1, line: { width: 0 } }, ...more.trace });

export function showLines(page, answer, span) {
  const write = writer(page);
  const series = figures(page, answer, span);
  if (!series.some(([, values]) => known(values))) {
    nothing(page, "chart-main", asked(page));
    return;
  }
  const looks = series.map((_, i) => [HUES[i % 4], DASHES[Math.floor(i / 4) % 2]]);
  const short = (path) => path.slice(page.fleet.length + 1);
  draw("chart-main", series.map(([path, y], i) => line(ms(answer.t), y, token(looks[i][0]), {
    line: { dash: looks[i][1] },
    trace: { name: short(path), customdata: y.map(write), hovertemplate: "%{customdata}" },
  })), frame(page, span));
  legend(series.map(([path], i) => [`o${i % 4} ${i > 3 ? "dash" : ""}`, short(path)]));
  const silent = series.filter(([, values]) => !known(values)).map(([path]) => short(path));
  note("note-main", silent.length ? `Nothing measured of ${silent.join(", ")}.` : "",
    ` One value each ${f.duration(answer.bin_s)}, the mean of its readings.`);
}

function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  const next = sorted[Math.min(low + 1, sorted.length - 1)];
  return sorted[low] + (next - sorted[low]) * (at - low);
}

// Rates of many sources have no bands in the API, which reads totals: they are made here.
function bandsOf(page, answer, span) {
  const series = figures(page, answer, span).map(([, values]) => values);
  const columns = answer.t.map((_, i) => series.map((values) => values[i])
    .filter((v) => v !== null).sort((a, b) => a - b));
  return { t: answer.t, bin_s: answer.bin_s, n: columns.map((c) => c.length),
    bands: Object.fromEntries(SHARES.map((share) =>
      [share, columns.map((c) => (c.length ? quantile(c, share) : null))])) };
}

// The outline of an area, one closed piece for each run of bins that are known.
function area(x, low, high) {
  const out = { x: [], y: [] };
  let begin = null;
  for (let i = 0; i <= x.length; i += 1) {
    const there = i < x.length && low[i] !== null;
    if (there && begin === null) begin = i;
    if (there || begin === null) continue;
    const run = [...x.keys()].slice(begin, i);
    const back = [...run].reverse();
    out.x.push(...run.map((k) => x[k]), ...back.map((k) => x[k]), null);
    out.y.push(...run.map((k) => high[k]), ...back.map((k) => low[k]), null);
    begin = null;
  }
  return out;
}

function shade(x, low, high, colour) {
  return { type: "scatter", mode: "lines", ...area(x, low, high), fill: "toself",
    fillcolor: colour, line: { width: 0 }, hoverinfo: "skip" };
}

const rgb = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);

function mix(a, b, share) {
  const [first, second] = [rgb(a), rgb(b)];
  const mixed = first.map((v, i) => Math.round(v * share + second[i] * (1 - share)));
  return `rgb(${mixed.join(", ")})`;
}

export function showBands(page, answer, span) {
  const write = writer(page);
  const { t, n, bands, bin_s: binS } = page.is_counter ? bandsOf(page, answer, span) : answer;
  const [least, low, middle, high, most] = SHARES.map((share) => bands[share]);
  if (!known(middle)) {
    nothing(page, "chart-main", asked(page));
    return;
  }
  const x = ms(t);
  const [accent, panel] = [token("accent"), token("panel")];
  const words = t.map((_, i) => (n[i] === 0 ? "" : `median ${write(middle[i])}<br>P10 to P90 `
    + `${write(low[i])} to ${write(high[i])}<br>least ${write(least[i])}, most ${write(most[i])}`
    + `<br>${n[i]} of ${asked(page)}`));
  draw("chart-main", [
    shade(x, least, most, mix(accent, panel, 0.18)),
    shade(x, low, high, mix(accent, panel, 0.4)),
    line(x, middle, accent, { line: { width: 2 },
      trace: { name: "", customdata: words, hovertemplate: "%{customdata}<extra></extra>" } }),
  ], frame(page, span));
  const last = middle.findLastIndex((v) => v !== null);
  legend([["accent", "median, last", write(middle[last])], ["band-mid", "P10 to P90"],
    ["band-wide", "least to most"]]);
  const fewest = Math.min(...n.filter((k) => k > 0));
  const told = fewest < page.n ? `In some bins only ${fewest} of ${asked(page)} told. ` : "";
  note("note-main", `${told}One bin is ${f.duration(binS)}.`);
}

// Cells of nobody are left empty. `tops`: the upper bound of each row, in words.
function heat(page, answer, span, { y, labels, axis }) {
  const most = Math.max(...answer.counts.flat());
  if (!(most > 0)) {
    nothing(page, "chart-heat", asked(page));
    return false;
  }
  const [accent, panel] = [token("accent"), token("panel")];
  const ends = [...answer.t, answer.t.at(-1) + answer.bin_s];
  draw("chart-heat", [{
    type: "heatmap", x: ms(ends), y, z: answer.counts.map((row) => row.map((n) => n || null)),
    zmin: 0, zmax: most, colorscale: [[0, mix(accent, panel, 0.15)], [1, accent]],
    hoverongaps: false, customdata: labels.map((label) => answer.t.map(() => label)),
    hovertemplate: "%{customdata}: %{z:,}<extra>%{x}</extra>",
    colorbar: { thickness: 8, outlinewidth: 0, len: 1, x: 1.01, xpad: 4, tickfont: { size: 11 }, nticks: 5,
      tickformat: "~s" },
  }], { ...frame(page, span), hovermode: "closest",
    yaxis: { showgrid: false, ...axis } });
  return true;
}

export function showLevels(page, answer, span) {
  const write = writer(page);
  const edges = answer.edges.map((edge) => edge * page.scale);
  const labels = answer.counts.map((_, i) =>
    `${write(edges[i])} to ${write(edges[i + 1])}, ${page.noun[1]}`);
  if (heat(page, answer, span, { y: edges, labels, axis: valueAxis(page) })) {
    note("note-heat", `How many ${page.noun[1]} were at which level; where nobody was it is empty.`);
  }
}

const MOST_TICKS = 9;

// Buckets are of very different widths: each gets a row of its own, as far as any was used.
export function showBuckets(page, answer, span) {
  const write = writer(page);
  const used = answer.counts.map((row) => row.some((n) => n > 0));
  const [first, last] = [used.indexOf(true), used.lastIndexOf(true)];
  const counts = first < 0 ? [] : answer.counts.slice(first, last + 1);
  const bound = (k) => (k < answer.edges.length ? write(answer.edges[k]) : "");
  const labels = counts.map((_, i) => (first + i + 1 < answer.edges.length
    ? `${bound(first + i)} to ${bound(first + i + 1)}, observations`
    : `above ${bound(first + i)}, observations`));
  const y = Array.from({ length: counts.length + 1 }, (_, i) => i);
  const step = Math.ceil(y.length / MOST_TICKS);
  const tickvals = y.filter((i) => i % step === 0 && first + i < answer.edges.length);
  const axis = { tickmode: "array", tickvals, ticktext: tickvals.map((i) => bound(first + i)),
    range: [0, counts.length] };
  if (!heat(page, { ...answer, counts }, span, { y, labels, axis })) return;
  const open = last === answer.edges.length - 1
    ? ` The top row holds what was above ${bound(last)}, the largest bound.` : "";
  note("note-heat", `How many observations fell into which bucket of the histogram.${open}`);
}

const QUANTILES = [["0.5", "P50", "local"], ["0.9", "P90", "remote"], ["0.99", "P99", "decode"]];

export function showQuantiles(page, answer, span) {
  const write = writer(page);
  const { t, n, quantiles, above, largest_bound: bound } = answer;
  const total = n.reduce((sum, k) => sum + k, 0);
  if (total === 0) {
    nothing(page, "chart-main", asked(page));
    return;
  }
  const x = ms(t);
  // Beyond the largest bound nothing is known: no line, a mark at the bound that says so.
  const lines = QUANTILES.map(([share, name, hue]) => {
    const y = quantiles[share].map((v, i) => (above[share][i] ? null : v));
    return line(x, y, token(hue), { trace: { name, customdata: y.map(write),
      hovertemplate: "%{customdata}" } });
  });
  const marks = QUANTILES.filter(([share]) => above[share].some(Boolean))
    .map(([share, name, hue]) => {
      const at = [...t.keys()].filter((i) => above[share][i]);
      return { type: "scatter", mode: "markers", x: at.map((i) => x[i]), y: at.map(() => bound),
        name, marker: { symbol: "triangle-up-open", size: 8, color: token(hue) },
        hovertemplate: `above ${write(bound)}, the largest bound` };
    });
  draw("chart-main", [...lines, ...marks], frame(page, span));
  legend(QUANTILES.map(([share, name, hue]) => {
    const last = quantiles[share].findLastIndex((v) => v !== null);
    const value = `${above[share][last] ? "above " : ""}${write(quantiles[share][last])}`;
    return [hue, `${name}, last`, value];
  }));
  note("note-main", `${f.significant(total)} observations. ${aboveWords(answer, write)}`
    + leftOut(answer));
}

// In words, for it is the one thing the line cannot show.
function aboveWords({ t, n, above, largest_bound: bound }, write) {
  const nBins = n.filter((k) => k > 0).length;
  return QUANTILES.map(([share, name]) => {
    const at = t.filter((_, i) => above[share][i]);
    if (at.length === 0) return "";
    return `${name} was above the largest bound, ${write(bound)}, in ${at.length} of ${nBins} bins, `
      + `last at ${f.stamp(at.at(-1))}: how far above is not known. `;
  }).join("");
}

function leftOut({ n_left_out: n }) {
  return n > 0 ? `${f.significant(n)} observations were counted in other buckets and are left out.`
    : "";
}
