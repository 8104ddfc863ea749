// Makes pictures of one signal's history: lines, bands over the sources, quantiles of observations,
// where sources or observations lay, a row for each source. A picture is {traces, axes, note,
// empty} for a Board. A bin in which nobody told anything stays empty.

import { plain } from "./charts.js";
import { mix, token } from "./colours.js";
import { element } from "./dom.js";
import * as f from "./format.js";
import { heatAxes, heatTraces } from "./heatmap.js";
import { _, n_ } from "./i18n.js";
import { arrow } from "./stages.js";

const HUES = ["local", "remote", "good", "decode"];
const DASHES = ["solid", "dash"];
const SHARES = [0, 0.1, 0.5, 0.9, 1];
const isNarrow = () => matchMedia("(max-width: 760px)").matches;
const ms = (t) => t.map((at) => at * 1000);
const known = (values) => values.some((v) => v !== null);

const WRITERS = { ratio: f.percent, s: f.duration, tok: f.tokens, "req/s": f.rate, Gbps: f.gbps };

function writer({ unit }) {
  return WRITERS[unit] ?? ((value) => f.withUnit(value, unit).trim());
}

function valueAxis({ unit }) {
  if (unit === "ratio") return { tickformat: ".0%", rangemode: "tozero", nticks: 5 };
  const suffix = unit === "s" ? "s" : "";
  return { exponentformat: "SI", minexponent: 3, ticksuffix: suffix, rangemode: "tozero", nticks: 5,
    title: { text: unit === "s" || isNarrow() ? "" : unit, standoff: 4 } };
}

const asked = (page) => `${page.n} ${page.noun[page.n === 1 ? 0 : 1]}`;

// What a source is called on the pages of its fleet.
export const nameOf = (page) => (path) => (page.kind === "link" ? arrow(path)
  : path.slice(page.fleet.length + 1));

const empty = _("Nothing measured in this range.");

function nothing(page, what) {
  const link = element("a", { href: page.onboarding }, _("Onboarding"));
  return { traces: [], axes: { yaxis: valueAxis(page) }, empty,
    note: [_("No value of this signal came from %s.", what), " ", link, " ",
      _("says what each source lacks, why, and what to type next.")] };
}

const picture = (page, traces, note, axes = { yaxis: valueAxis(page) }) =>
  ({ traces, axes, empty, note: [note] });

// A value between two bins without one would be a line of no length: it gets a dot.
const dots = (values) => values.map((v, i) =>
  (v !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? 5 : 0));

const line = (x, y, colour, more = {}) => ({ type: "scatter", mode: "lines+markers", x, y,
  connectgaps: false, line: { color: colour, width: 1.5, ...more.line },
  marker: { color: colour, size: dots(y), opacity: 1, line: { width: 0 } }, ...more.trace });

const scaled = (page, values) => values.map((v) => (v === null ? null : v * page.scale));

// A line of each row of a ranking, in the order of their names: ranks change, colours do not.
function linesOf(page, answer) {
  const [write, name] = [writer(page), nameOf(page)];
  const rows = [...answer.rows].sort((a, b) => (a.path < b.path ? -1 : 1));
  return rows.map(({ path, values }, i) => {
    const [hue, dash] = [HUES[i % 4], DASHES[Math.floor(i / 4) % 2]];
    const y = scaled(page, values);
    const last = y.findLastIndex((v) => v !== null);
    return line(ms(answer.t), y, token(hue), { line: { dash }, trace: {
      name: plain(name(path)), customdata: y.map(write), hovertemplate: "%{customdata}",
      meta: { unit: page.unit },
      legend: { label: name(path), look: `o${i % 4} ${i > 3 ? "dash" : ""}`, atS: answer.t[last] ?? -Infinity, value: write(y[last] ?? null) } } });
  });
}

export function lines(page, answer) {
  const traces = linesOf(page, answer);
  const silent = traces.filter((trace) => !known(trace.y)).map((trace) => trace.legend.label);
  if (silent.length === traces.length) return nothing(page, asked(page));
  const gone = silent.length ? `${_("Nothing measured of %s.", silent.join(", "))} ` : "";
  return picture(page, traces,
    gone + _("One value each %s, the mean of its readings.", f.duration(answer.bin_s)));
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


const bandLegend = (label, look) => ({ label, look, value: "" });

function middleLine(page, x, y, words, label) {
  const last = y.findLastIndex((v) => v !== null);
  return line(x, y, token("accent"), { line: { width: 2 }, trace: {
    name: label, customdata: words, hovertemplate: "%{customdata}<extra></extra>",
    meta: { unit: page.unit },
    legend: { label: _("%s, last", label), look: "accent", value: writer(page)(y[last] ?? null),
      atS: last < 0 ? -Infinity : x[last] / 1000 } } });
}

// Bands over all sources, and the highest of them as lines.
export function bands(page, answer, top) {
  const write = writer(page);
  const { t, n, bands: found, bin_s: binS } = answer;
  const [least, low, middle, high, most] = SHARES.map((share) => found[share]);
  if (!known(middle)) return nothing(page, asked(page));
  const x = ms(t);
  const [accent, panel] = [token("accent"), token("panel")];
  const words = t.map((_at, i) => (n[i] === 0 ? "" : `${_("median %s", write(middle[i]))}<br>${
    _("P10 to P90 %s to %s", write(low[i]), write(high[i]))}<br>${
    _("least %s, most %s", write(least[i]), write(most[i]))}<br>${_("%s of %s", n[i], asked(page))}`));
  const traces = [
    { ...shade(x, least, most, mix(accent, panel, 0.18)), name: "all",
      legend: { order: 2, ...bandLegend(_("least to most"), "band-wide") } },
    { ...shade(x, low, high, mix(accent, panel, 0.4)), name: "most",
      legend: { order: 1, ...bandLegend(_("P10 to P90"), "band-mid") } },
    middleLine(page, x, middle, words, _("median")),
    ...linesOf(page, top).map((each) => ({ ...each, legend: { order: 3, ...each.legend } })),
  ];
  const fewest = Math.min(...n.filter((k) => k > 0));
  const told = fewest < page.n ? `${_("In some bins only %s of %s told.", fewest, asked(page))} ` : "";
  return picture(page, traces, told + highest(top)
    + _("One bin is %s.", f.duration(binS)));
}

const highest = ({ rows }) => (rows.length === 0 ? ""
  : `${n_("The line is the highest mean of the range.", "The %s lines are the highest means.",
    rows.length)} `);

// The highest as lines, and a band over the others.
export function ranked(page, answer) {
  const write = writer(page);
  const { t, rest } = answer;
  const [low, middle, high] = ["0.1", "0.5", "0.9"].map((q) => scaled(page, rest.bands[q]));
  const top = linesOf(page, answer);
  if (!known(middle) && !top.some((trace) => known(trace.y))) return nothing(page, asked(page));
  const x = ms(t);
  const words = t.map((_at, i) => (rest.n[i] === 0 ? "" : `${
    _("median of the others %s", write(middle[i]))}<br>${
    _("P10 to P90 %s to %s", write(low[i]), write(high[i]))}<br>${_("%s others", rest.n[i])}`));
  return picture(page, [
    { ...shade(x, low, high, mix(token("accent"), token("panel"), 0.4)), name: "rest",
      legend: { order: 1, ...bandLegend(_("others, P10 to P90"), "band-mid") } },
    middleLine(page, x, middle, words, _("median of the others")),
    ...top.map((each) => ({ ...each, legend: { order: 3, ...each.legend } })),
  ], highest(answer) + _("One bin is %s.", f.duration(answer.bin_s)));
}

// Every source as a row of a heat map: a page of the ranking.
export function rows(page, answer) {
  const name = nameOf(page);
  const shown = { ...answer, rows: answer.rows.map((row) =>
    ({ ...row, values: scaled(page, row.values) })) };
  const look = { name, write: writer(page), unit: page.unit, top: page.unit === "ratio" ? 1 : null };
  const first = answer.offset + 1;
  return { traces: heatTraces(shown, look), axes: heatAxes(shown, look), empty,
    note: [_("Rows %s to %s of %s, the highest mean of the range first.", first,
      answer.offset + answer.rows.length, answer.n_sources), " ",
    _("Where nothing was measured it is empty. A row leads to its page.")] };
}

// Cells of nobody are left empty. `labels`: each row in words.
function heat(page, answer, { y, labels, axis, note }) {
  const most = Math.max(...answer.counts.flat());
  if (!(most > 0)) return { ...nothing(page, asked(page)), note: ["\u00a0"] };
  const [accent, panel] = [token("accent"), token("panel")];
  const ends = [...answer.t, answer.t.at(-1) + answer.bin_s];
  return picture(page, [{
    name: "levels", type: "heatmap", x: ms(ends), y,
    z: answer.counts.map((row) => row.map((n) => n || null)),
    zmin: 0, zmax: most, colorscale: [[0, mix(accent, panel, 0.15)], [1, accent]],
    hoverongaps: false, text: labels.map((label) => answer.t.map((at) => `${label}<br>${f.clock(at)}`)),
    hovertemplate: "%{z:,}<extra>%{text}</extra>", meta: { rows: labels },
    colorbar: { thickness: 8, outlinewidth: 0, len: 1, x: 1.01, xpad: 4, tickfont: { size: 11 }, nticks: 5,
      tickformat: "~s" },
  }], note, { yaxis: { showgrid: false, ...axis } });
}

export function levels(page, answer) {
  const write = writer(page);
  const edges = answer.edges.map((edge) => edge * page.scale);
  const labels = answer.counts.map((_row, i) =>
    _("%s to %s, %s", write(edges[i]), write(edges[i + 1]), page.noun[1]));
  return heat(page, answer, { y: edges, labels, axis: valueAxis(page),
    note: _("How many %s were at which level; where nobody was it is empty.", page.noun[1]) });
}

const MOST_TICKS = 9;

// Buckets are of very different widths: each gets a row of its own, as far as any was used.
export function buckets(page, answer) {
  const write = writer(page);
  const used = answer.counts.map((row) => row.some((n) => n > 0));
  const [first, last] = [used.indexOf(true), used.lastIndexOf(true)];
  const counts = first < 0 ? [] : answer.counts.slice(first, last + 1);
  const bound = (k) => (k < answer.edges.length ? write(answer.edges[k]) : "");
  const labels = counts.map((_row, i) => (first + i + 1 < answer.edges.length
    ? _("%s to %s, observations", bound(first + i), bound(first + i + 1))
    : _("above %s, observations", bound(first + i))));
  const y = Array.from({ length: counts.length + 1 }, (_row, i) => i);
  const step = Math.ceil(y.length / MOST_TICKS);
  const tickvals = y.filter((i) => i % step === 0 && first + i < answer.edges.length);
  const axis = { tickmode: "array", tickvals, ticktext: tickvals.map((i) => bound(first + i)),
    range: [0, counts.length] };
  const open = last === answer.edges.length - 1
    ? ` ${_("The top row holds what was above %s, the largest bound.", bound(last))}` : "";
  return heat(page, { ...answer, counts }, { y, labels, axis,
    note: _("How many observations fell into which bucket of the histogram.") + open });
}

const QUANTILES = [["0.5", "P50", "local"], ["0.9", "P90", "remote"], ["0.99", "P99", "decode"]];

export function quantiles(page, answer) {
  const write = writer(page);
  const { t, n, quantiles: found, above, largest_bound: bound } = answer;
  const total = n.reduce((sum, k) => sum + k, 0);
  if (total === 0) return nothing(page, asked(page));
  const x = ms(t);
  // Beyond the largest bound nothing is known: no line, a mark at the bound that says so.
  const drawn = QUANTILES.map(([share, name, hue], order) => {
    const y = found[share].map((v, i) => (above[share][i] ? null : v));
    const last = found[share].findLastIndex((v) => v !== null);
    const value = write(found[share][last] ?? null);
    return line(x, y, token(hue), { trace: { name, customdata: y.map(write),
      hovertemplate: "%{customdata}", meta: { unit: page.unit },
      legend: { order, look: hue, label: _("%s, last", name), atS: t[last] ?? -Infinity,
        value: above[share][last] ? _("above %s", value) : value } } });
  });
  const marks = QUANTILES.filter(([share]) => above[share].some(Boolean))
    .map(([share, name, hue]) => {
      const at = [...t.keys()].filter((i) => above[share][i]);
      return { type: "scatter", mode: "markers", x: at.map((i) => x[i]), y: at.map(() => bound),
        name: `${name}+`, marker: { symbol: "triangle-up-open", size: 8, color: token(hue) },
        hovertemplate: _("above %s, the largest bound", write(bound)) };
    });
  return picture(page, [...drawn, ...marks], `${_("%s observations.", f.significant(total))} ${
    aboveWords(answer, write)}${leftOut(answer)}`);
}

// In words, for it is the one thing the line cannot show.
function aboveWords({ t, n, above, largest_bound: bound }, write) {
  const nBins = n.filter((k) => k > 0).length;
  return QUANTILES.map(([share, name]) => {
    const at = t.filter((_at, i) => above[share][i]);
    if (at.length === 0) return "";
    return `${_("%s was above the largest bound, %s, in %s of %s bins, last at %s.", name, write(bound),
      at.length, nBins, f.stamp(at.at(-1)))} ${_("How far above is not known.")} `;
  }).join("");
}

function leftOut({ n_left_out: n }) {
  return n > 0 ? _("%s observations were counted in other buckets and are left out.",
    f.significant(n)) : "";
}
