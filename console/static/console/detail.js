// The page of one cluster, instance, link or router: charts over the page's range from what the
// server asks for (`page-data`), values of live frames appended, and its tables fetched again now
// and then. A line is a name of the series endpoint, or a plain signal or histogram of one source.

import { Board, line, token } from "./charts.js";
import { serverNow } from "./clock.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { api, live } from "./live.js";
import { refresh } from "./refresh.js";
import { fetchHistory, SeriesSet } from "./series.js";
import { range } from "./time.js";

const READ_MS = 5000;
const HISTORY_MS = 10000;
const STALE_S = Number(document.body.dataset.staleS);
const data = document.getElementById("page-data");
const page = data ? JSON.parse(data.textContent) : { charts: [] };

const WRITERS = { Gbps: f.gbps, ratio: f.percent, s: f.duration, tok: f.tokens, "req/s": f.rate };
const FORMATS = { ratio: { tickformat: ".1~%" }, Gbps: { tickformat: "~s" }, tok: { tickformat: "~s" },
  s: { tickformat: "~s", ticksuffix: "s" } };
const LIVE = { requests_waiting: "waiting", requests_running: "running",
  kv_cache_usage_ratio: "kv_ratio", prompt_tokens_per_s: "prompt_tokens_per_s",
  generation_tokens_per_s: "generation_tokens_per_s" };

const lines = page.charts.flatMap((chart) => chart.lines);
const nameOf = ({ name, signal, histogram, share }) => name ?? (signal ? `signal:${signal}`
  : `quantile:${histogram}:${share}`);
// Quantiles have bins of their own width: rarer things are counted over longer.
const series = new SeriesSet(lines.filter(({ histogram }) => !histogram).map(nameOf),
  { gapS: STALE_S });
const spread = new SeriesSet(lines.filter(({ histogram }) => histogram).map(nameOf),
  { gapS: STALE_S });
const setOf = ({ histogram }) => (histogram ? spread : series);
const ofSeries = lines.filter((each) => each.name).map(nameOf);
const signals = lines.filter((each) => each.signal);
const histograms = [...new Map(lines.filter((each) => each.histogram)
  .map((each) => [each.histogram, each])).values()];

async function telemetry(where, path, query) {
  // A comma would part one id into two: such a source is asked for by what its id begins with.
  const id = path.includes(",") ? { prefix: path } : { paths: path };
  const asked = new URLSearchParams({ kind: "instance", ...id, ...query });
  const answer = await fetch(`${api}/telemetry/series${where}?${asked}`,
    { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`history: ${answer.status}`);
  return answer.json();
}

async function loadSeries(from, to) {
  if (series.rings.size === 0) return;
  const query = { start_s: from, end_s: to, points: series.points };
  const [named, ...rest] = await Promise.all([
    ofSeries.length ? fetchHistory(api, ofSeries, from, to, series.points) : null,
    ...signals.map((each) => telemetry("", each.path, { ...query, signal: each.signal })),
  ]);
  const { t, bin_s } = named ?? rest[0];
  const found = { ...named?.series };
  signals.forEach((each, i) => {
    found[nameOf(each)] = rest[i].series[each.path] ?? [];
  });
  series.load({ t, bin_s, series: found, decisions: named?.decisions ?? [] }, serverNow());
}

async function loadSpread(from, to) {
  const answers = await Promise.all(histograms.map(({ path, histogram }) =>
    telemetry("/quantiles", path, { start_s: from, end_s: to, points: series.points,
      signal: histogram, quantiles: "0.5,0.9,0.99" })));
  if (answers.length === 0) return;
  const found = {};
  for (const each of lines.filter(({ histogram }) => histogram)) {
    const answer = answers[histograms.findIndex((h) => h.histogram === each.histogram)];
    // Beyond the largest bound of its histogram a quantile is not known.
    found[nameOf(each)] = answer.quantiles[each.share].map((value, i) =>
      (answer.above[each.share][i] ? null : value));
  }
  const { t, bin_s } = answers[0];
  spread.load({ t, bin_s, series: found, decisions: [] }, serverNow());
}

let loading = false;
let loadedFor = null;

async function load() {
  if (loading || lines.length === 0) return;
  loading = true;
  const asked = `${range.name}|${range.pinned}`;
  try {
    await Promise.all([loadSeries(...range.bounds()), loadSpread(...range.bounds())]);
    loadedFor = asked;
  } catch {
    // The console is away: the banner says so, and the next turn asks again.
  }
  loading = false;
  board.markAll();
  if (loadedFor === asked && asked !== `${range.name}|${range.pinned}`) load();
}

// One frame's value of a line: [when it was read, value], null where the frame does not tell it.
function told(frame, { name, signal, path }) {
  if (signal) {
    const read = frame.instances[path];
    return read?.state === "ok" && LIVE[signal] ? [read.at_s, read[LIVE[signal]]] : null;
  }
  if (!name) return null;
  const [kind, rest] = name.split(/:(.*)/);
  const cut = rest.lastIndexOf(":");
  const [where, field] = [rest.slice(0, cut), rest.slice(cut + 1)];
  if (kind === "link") {
    const read = frame.links[where];
    return read?.state === "ok" ? [read.at_s, read[field]] : null;
  }
  if (kind === "pool") {
    const read = frame.pools[where];
    return read?.n_fresh > 0 ? [frame.at_s, read[field]] : null;
  }
  if (!frame.loop) return null;
  const [value, pd] = [where, field];
  const seen = value === "threshold_tokens" ? frame.loop.plan?.clusters[pd]
    : frame.loop.observed.clusters[pd];
  return [frame.loop.at_s, seen?.[value]];
}

function append(frame) {
  for (const each of lines) {
    const found = told(frame, each);
    if (found) series.append(nameOf(each), ...found);
  }
}

function lastFresh(ring, { silenceS, binS }) {
  return serverNow() - ring.lastT <= silenceS + binS ? ring.last : NaN;
}

function traces(chart) {
  const write = WRITERS[chart.unit] ?? ((value) => f.withUnit(value, chart.unit).trim());
  return chart.lines.map((each) => {
    const ring = setOf(each).ring(nameOf(each));
    const [hue, dash] = (each.look || "neutral").split(" ");
    return line(each.label, ring, token(hue), {
      line: { dash: dash ?? "solid", shape: each.name?.includes("threshold") ? "hv" : "linear" },
      trace: { customdata: Array.from(ring.values(), write), hovertemplate: "%{customdata}" },
      legend: { label: each.label, look: each.look, value: write(lastFresh(ring, setOf(each))) },
    });
  });
}

const board = new Board();

function nothing() {
  if (live.silent) return _("No data since %s.", f.moment(live.heardS));
  return loadedFor === null ? _("Asking for the history…") : _("Nothing measured in this range.");
}

function start() {
  for (const chart of page.charts) {
    const node = document.getElementById(`chart-${chart.id}`);
    if (!node) continue;
    board.add({ node, legend: document.getElementById(`legend-${chart.id}`), empty: nothing,
      traces: () => traces(chart), silenceS: () => setOf(chart.lines[0]).silenceS,
      axes: () => ({ yaxis: { nticks: 4, ...FORMATS[chart.unit],
        ...(chart.least && { autorangeoptions: { include: chart.least } }) } }) });
  }
  load();
  range.addEventListener("change", load);
  setInterval(() => {
    if (!document.hidden && !live.silent && range.pinned === null) load();
  }, HISTORY_MS);
}

live.addEventListener("frame", ({ detail: { frame, gap } }) => {
  if (range.pinned !== null) return;
  append(frame);
  series.trim(range.bounds()[0] - series.silenceS);
  board.tick?.();
  if (gap) load();
});
// What is only in the newest reading itself is fetched again while somebody looks.
setInterval(() => document.hidden || live.silent || refresh("signals-now", "pools", "busiest"),
  READ_MS);
document.addEventListener("visibilitychange", () => document.hidden || load());

start();
