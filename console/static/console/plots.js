// What each chart of the overview shows, from the ring buffers: traces, axes, marks of decisions.

import { Marks } from "./annotations.js";
import { line, plain } from "./charts.js";
import { serverNow } from "./clock.js";
import { mix, token } from "./colours.js";
import { tableOf } from "./export.js";
import * as f from "./format.js";
import { heatAxes, heatMargin, heatTraces } from "./heatmap.js";
import { _ } from "./i18n.js";
import { api, fleet, live } from "./live.js";
import { arrow, page, pds, pools } from "./page.js";
import { cluster, ratio, SeriesSet, stacked } from "./series.js";
import { range } from "./time.js";

const MOST_POOLS = 10;
const MOST_LINKS = 5;
const MOST_PDS = 3;
const MOST_ROWS = 14;

const stackedPools = pools.slice(0, MOST_POOLS);
const steered = pds.slice(0, MOST_PDS);
export const isManyLinks = page.links.length > MOST_LINKS;
const links = isManyLinks ? [] : page.links.map((link) => link.id);

export const names = [
  ...stackedPools.map(([pool]) => `pool:${pool}:waiting`),
  ...links.flatMap((id) => ["tx_gbps", "capacity_gbps", "retransmit_ratio"].map((field) =>
    `link:${id}:${field}`)),
  ...steered.flatMap((pd) => ["threshold_tokens", "remote_share"].map((field) =>
    `loop:${field}:${pd}`)),
  `loop:remote_predicted:${pds[0]}`,
  "loop:demand_rps",
  "loop:lambda_max_rps",
];

export const series = new SeriesSet(names, { gapS: Number(document.body.dataset.staleS) });

export const marks = new Marks(api, fleet);

// Of many links the console chooses those used most: rows of a heat map instead of lines.
let ranked = null;
const rankedCall = (from, to) => `${api}/telemetry/series/ranked?${new URLSearchParams({
  kind: "link", signal: "tx_gbps", over: "capacity_gbps", rows: MOST_ROWS, start_s: from, end_s: to,
  points: 120 })}`;

// What charts show beside the series. Raises what fetch raises.
export async function loadMore(from, to) {
  const asked = [marks.load(from, to)];
  if (isManyLinks) {
    asked.push(fetch(rankedCall(from, to), { headers: { Accept: "application/json" } })
      .then(async (answer) => answer.ok && (ranked = await answer.json())));
  }
  await Promise.all(asked);
}

// Long legends get a second line from the start: nothing moves when their values arrive.
export const manyLines = stackedPools.length > 4 || links.length > 1 || pds.length > 1;

// One frame's values, each at the time its source was read.
export function append(frame) {
  const { loop } = frame;
  for (const [pool] of pools) {
    const read = frame.pools[pool];
    if (read?.n_fresh > 0) series.append(`pool:${pool}:waiting`, frame.at_s, read.waiting);
  }
  for (const id of links) {
    const link = frame.links[id];
    if (!link || link.state !== "ok") continue;
    for (const field of ["tx_gbps", "capacity_gbps", "retransmit_ratio"]) {
      series.append(`link:${id}:${field}`, link.at_s, link[field]);
    }
  }
  if (!loop) return;
  for (const pd of pds) {
    series.append(`loop:threshold_tokens:${pd}`, loop.at_s,
      loop.plan?.clusters[pd]?.threshold_tokens);
    series.append(`loop:remote_share:${pd}`, loop.at_s, loop.observed.clusters[pd]?.remote_share);
  }
  series.append(`loop:remote_predicted:${pds[0]}`, loop.at_s, loop.current?.remote_fraction);
  series.append("loop:demand_rps", loop.at_s, loop.observed.demand_rps);
  series.append("loop:lambda_max_rps", loop.at_s, loop.current?.lambda_max_rps);
}

// A queue of nothing is known to be nothing; a queue that nobody read is not.
const idle = (nothing) => () => (live.silent ? _("No data since %s.", f.moment(live.heardS))
  : nothing);

function queueChart() {
  const rings = stackedPools.map(([pool]) => series.ring(`pool:${pool}:waiting`));
  const layers = stacked(rings, series.silenceS, (n) => _("%s waiting", f.significant(n)));
  // The highest sum is drawn first, so that each lower one covers what is not its own.
  return layers.map((layer, i) => {
    const [pool, hue] = stackedPools[i];
    const colour = token(hue);
    const shade = i > 0 && stackedPools[i - 1][1] === hue ? 0.5 : 0.75;
    return {
      name: plain(pool), type: "scatter", mode: "lines", x: layer.x, y: layer.y, customdata: layer.words,
      line: { color: colour, width: 0, shape: "hv" }, fill: "tozeroy",
      fillcolor: mix(colour, token("panel"), shade), hovertemplate: "%{customdata}",
      legend: { order: i, label: pool, look: hue, atS: rings[i].lastT,
        value: f.significant(lastFresh(rings[i])) },
      meta: { unit: "req" },
    };
  }).reverse();
}

// The layers of the chart are sums; a table has what each pool told.
const queueTable = () => tableOf(stackedPools.map(([pool]) => ({
  ...line(pool, series.ring(`pool:${pool}:waiting`)), meta: { unit: "req" } })));

// The newest value, unless its source has fallen silent since.
function lastFresh(ring) {
  return serverNow() - ring.lastT <= series.silenceS + series.binS ? ring.last : NaN;
}

const DASHES = ["solid", "dash", "dot"];

function thresholdChart() {
  const several = pds.length > 1;
  const traces = steered.flatMap((pd, i) => {
    const t = series.ring(`loop:threshold_tokens:${pd}`);
    const share = series.ring(`loop:remote_share:${pd}`);
    const suffix = several ? ` ${pd}` : "";
    return [
      line(`t${suffix}`, t, token("text"), {
        line: { shape: "hv", dash: DASHES[i] },
        trace: { yaxis: "y2", hovertemplate: "%{y:,.0f} tok", meta: { unit: "tok" } },
        legend: { label: `t${suffix}`, look: `text ${DASHES[i]}`, value: f.tokens(lastFresh(t)) },
      }),
      line(`${_("remote")}${suffix}`, share, token("remote"), {
        line: { dash: DASHES[i] }, trace: { hovertemplate: "%{y:.1%}", meta: { unit: "ratio" } },
        legend: { label: `${_("remote")}${suffix}`, look: `remote ${DASHES[i]}`,
          value: f.percent(lastFresh(share)) },
      }),
    ];
  });
  const predicted = series.ring(`loop:remote_predicted:${pds[0]}`);
  traces.push(line(_("predicted"), predicted, token("neutral"), {
    line: { dash: "dot" }, trace: { hovertemplate: "%{y:.1%}", meta: { unit: "ratio" } },
    legend: { label: _("predicted"), look: "dot", value: f.percent(lastFresh(predicted)) },
  }));
  const steps = decisionSteps();
  traces.push({
    name: "decisions", type: "scatter", mode: "markers", yaxis: "y2",
    x: steps.map((m) => m.at_s * 1000), y: steps.map((m) => m.level),
    marker: { symbol: "diamond", size: 9, color: token("panel"),
      line: { color: token("text"), width: 1.5 } },
    customdata: steps.map((m) => ({ text: m.text, href: m.href })),
    hovertemplate: "%{customdata.text}<extra></extra>",
  });
  return traces;
}

// Where t stands after each decision.
function decisionSteps() {
  const [from, to] = range.bounds();
  return cluster(series.decisions, from, to).map(({ at_s, all }) => {
    const last = all.at(-1);
    const moved = Object.values(last.changes)[0]?.threshold_tokens;
    const tag = last.version === null ? _("advised") : `v${last.version}`;
    const reason = f.reasonWords(last.reason);
    const text = all.length > 1 ? _("%s decisions, last %s %s", all.length, tag, reason)
      : `${tag} ${reason}`;
    return { at_s, text: plain(text), level: moved?.[1] ?? NaN,
      href: `/fleets/${encodeURIComponent(fleet)}/decisions/${last.id}/` };
  });
}

const LINK_HEAT = { name: arrow, write: f.percent, unit: "ratio", top: 1 };

function linkChart() {
  if (isManyLinks) return ranked ? heatTraces(ranked, LINK_HEAT) : [];
  const shown = links.length > 1 ? [...links].sort((a, b) => lastUse(b) - lastUse(a)) : links;
  return shown.flatMap((id, i) => {
    const use = ratio(series.ring(`link:${id}:tx_gbps`), series.ring(`link:${id}:capacity_gbps`));
    const lost = series.ring(`link:${id}:retransmit_ratio`);
    const tx = series.ring(`link:${id}:tx_gbps`);
    const suffix = links.length > 1 ? ` ${arrow(id)}` : "";
    const dash = DASHES[i % 3];
    return [
      { name: plain(`${_("use")}${suffix}`), type: "scatter", mode: "lines", x: use.x, y: use.y,
        yaxis: "y2", line: { color: token("remote"), width: 1.5, dash },
        hovertemplate: _("%s of capacity", "%{y:.1%}"),
        meta: { unit: "ratio" },
        legend: { label: links.length > 1 ? arrow(id) : _("use"), look: `remote ${dash}`,
          atS: tx.lastT, value: Number.isNaN(lastFresh(tx)) ? f.NONE : f.gbps(tx.last) } },
      line(`${_("retransmits")}${suffix}`, lost, token("bad"), {
        line: { dash }, trace: { hovertemplate: "%{y:.2%}", meta: { unit: "ratio" } },
        legend: i > 0 ? undefined
          : { label: _("retransmits"), look: "bad", value: f.percent(lastFresh(lost)) },
      }),
    ];
  });
}

function lastUse(id) {
  const capacity = series.ring(`link:${id}:capacity_gbps`).last;
  return (series.ring(`link:${id}:tx_gbps`).last || 0) / (capacity || 1);
}

function demandChart() {
  const demand = series.ring("loop:demand_rps");
  const most = series.ring("loop:lambda_max_rps");
  return [
    line(_("demand"), demand, token("neutral"), {
      trace: { hovertemplate: "%{y:.3s} req/s", meta: { unit: "req/s" } },
      legend: { label: _("demand"), look: "", value: f.rate(lastFresh(demand)) },
    }),
    line(_("capacity"), most, token("good"), {
      line: { dash: "dash" }, trace: { hovertemplate: "%{y:.3s} req/s", meta: { unit: "req/s" } },
      legend: { label: _("capacity λmax"), look: "good dash", value: f.rate(lastFresh(most)) },
    }),
  ];
}

const twoRows = (upper, lower) => ({
  yaxis: { domain: [0, 0.4], ...lower }, yaxis2: { domain: [0.52, 1], ...upper },
});

// What the menu says of a chart: the call of the API that gives these series, and how fine they are.
const about = (prefixes, ...notes) => () => ({
  call: (from, to) => `${api}/series?${new URLSearchParams({
    names: names.filter((name) => prefixes.some((p) => name.startsWith(p))).join(","),
    since: from, until: to, points: series.points })}`,
  binS: series.binS, notes,
});

const aboutLinks = () => (isManyLinks ? { call: rankedCall, binS: ranked?.bin_s,
  notes: [_("The links used most, the highest mean first; empty where nothing was measured.")] }
  : about(["link:"], _("From the agents that watch the links."))());

const common = { silenceS: () => series.silenceS + series.binS };

export const plots = [
  { name: "queue", traces: queueChart, table: queueTable, ...common,
    empty: idle(_("Nothing measured in this range: no engine was read.")),
    about: about(["pool:"], _("Requests that wait in each pool's engines, stacked.")),
    axes: () => ({ yaxis: { ticksuffix: " ", rangemode: "tozero", minallowed: 0 } }) },
  { name: "threshold", traces: thresholdChart, marks: () => marks.all, ...common,
    empty: idle(_("Nothing measured in this range: no gate was read.")),
    about: about(["loop:threshold", "loop:remote"],
      _("t of the plan in force; the remote share that gates counted, and what the model expects.")),
    axes: () => twoRows({ tickformat: "~s", nticks: 4 }, { tickformat: ".0%", nticks: 3 }) },
  { name: "link", traces: linkChart, about: aboutLinks,
    empty: idle(_("Nothing measured in this range: no link was read.")),
    ...(isManyLinks ? { hovermode: "closest", margin: heatMargin(),
      version: () => ranked?.rows.map((row) => row.path).join("|") ?? "",
      click: ({ y }) => `/fleets/${encodeURIComponent(fleet)}/link/?id=${
        encodeURIComponent(ranked.rows[y].path)}`,
      axes: () => (ranked ? heatAxes(ranked, LINK_HEAT) : { yaxis: {} }) }
      // A hair of loss must not look like congestion: half a percent is always in view.
      : { ...common, axes: () => twoRows({ tickformat: ".0%" },
        { tickformat: ".1%", nticks: 3, autorangeoptions: { include: 0.005 } }) }) },
  { name: "demand", traces: demandChart, marks: () => marks.all, ...common,
    empty: idle(_("Nothing measured in this range: no gate was read.")),
    about: about(["loop:demand", "loop:lambda"],
      _("Requests that arrive at the gates, beside what the plan in force could carry.")),
    axes: () => ({ yaxis: {} }) },
];
