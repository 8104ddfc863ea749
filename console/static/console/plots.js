// What each chart of the overview shows, from the ring buffers: traces, axes, marks of decisions.

import { token } from "./charts.js";
import { serverNow } from "./clock.js";
import * as f from "./format.js";
import { fleet, live } from "./live.js";
import { arrow, page, pds, pools } from "./page.js";
import { axisTimes, cluster, ratio, SeriesSet, stacked } from "./series.js";
import { range } from "./time.js";

const MOST_POOLS = 10;
const MOST_LINKS = 5;
const MOST_PDS = 3;

const stackedPools = pools.slice(0, MOST_POOLS);
const steered = pds.slice(0, MOST_PDS);
const links = page.links.map((link) => link.id).slice(0, MOST_LINKS);

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

function line(name, ring, colour, extra = {}) {
  return { name, type: "scatter", mode: "lines", x: axisTimes(ring), y: [...ring.values()],
    line: { color: colour, width: 1.5, ...(extra.line ?? {}) }, hovertemplate: "%{y:.3s}",
    ...extra.trace, legend: extra.legend };
}

// A queue of nothing is known to be nothing; a queue that nobody read is not.
const idle = (what) => () => {
  if (live.silent) return `No data since ${f.clock(live.heardS)} UTC.`;
  return `Nothing measured in this range: no ${what} was read.`;
};

function queueChart() {
  const rings = stackedPools.map(([pool]) => series.ring(`pool:${pool}:waiting`));
  const layers = stacked(rings, series.silenceS, (n) => `${f.significant(n)} waiting`);
  // The highest sum is drawn first, so that each lower one covers what is not its own.
  return layers.map((layer, i) => {
    const [pool, hue] = stackedPools[i];
    const colour = token(hue);
    const shade = i > 0 && stackedPools[i - 1][1] === hue ? 0.5 : 0.75;
    return {
      name: pool, type: "scatter", mode: "lines", x: layer.x, y: layer.y, customdata: layer.words,
      line: { color: colour, width: 0, shape: "hv" }, fill: "tozeroy",
      fillcolor: mix(colour, token("panel"), shade), hovertemplate: "%{customdata}",
      legend: { order: i, label: pool, look: hue, value: f.significant(lastFresh(rings[i])) },
    };
  }).reverse();
}

function mix(a, b, share) {
  const [first, second] = [a, b].map((c) => c.match(/[\d.]+/g).map(Number));
  const mixed = first.slice(0, 3).map((v, i) => Math.round(v * share + second[i] * (1 - share)));
  return `rgb(${mixed.join(", ")})`;
}

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
        line: { shape: "hv", dash: DASHES[i] }, trace: { yaxis: "y2", hovertemplate: "%{y:,.0f} tok" },
        legend: { label: `t${suffix}`, look: `text ${DASHES[i]}`, value: f.tokens(lastFresh(t)) },
      }),
      line(`remote${suffix}`, share, token("remote"), {
        line: { dash: DASHES[i] }, trace: { hovertemplate: "%{y:.1%}" },
        legend: { label: `remote${suffix}`, look: `remote ${DASHES[i]}`,
          value: f.percent(lastFresh(share)) },
      }),
    ];
  });
  const predicted = series.ring(`loop:remote_predicted:${pds[0]}`);
  traces.push(line("predicted", predicted, token("neutral"), {
    line: { dash: "dot" }, trace: { hovertemplate: "%{y:.1%}" },
    legend: { label: "predicted", look: "dot", value: f.percent(lastFresh(predicted)) },
  }));
  const marks = decisionMarks();
  traces.push({
    name: "decisions", type: "scatter", mode: "markers", yaxis: "y2",
    x: marks.map((m) => m.at_s * 1000), y: marks.map((m) => m.level),
    marker: { symbol: "diamond", size: 9, color: token("panel"),
      line: { color: token("text"), width: 1.5 } },
    customdata: marks.map((m) => ({ text: m.text, href: m.href })),
    hovertemplate: "%{customdata.text}<extra></extra>",
  });
  return traces;
}

function decisionMarks() {
  const [from, to] = range.bounds();
  return cluster(series.decisions, from, to).map(({ at_s, all }) => {
    const last = all.at(-1);
    const moved = Object.values(last.changes)[0]?.threshold_tokens;
    const tag = last.version === null ? "advised" : `v${last.version}`;
    const text = all.length > 1 ? `${all.length} decisions, last ${tag} ${last.reason}`
      : `${tag} ${last.reason}`;
    return { at_s, text: escape(text), level: moved?.[1] ?? 0,
      href: `/fleets/${encodeURIComponent(fleet)}/decisions/${last.id}/` };
  });
}

const escape = (text) => text.replace(/[<>&]/g, (c) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;" }[c]));

function decisionLines() {
  return decisionMarks().map(({ at_s }) => ({
    type: "line", xref: "x", yref: "paper", x0: at_s * 1000, x1: at_s * 1000, y0: 0, y1: 1,
    layer: "below", line: { color: token("line-strong"), width: 1, dash: "dot" },
  }));
}

function linkChart() {
  const shown = links.length > 1
    ? [...links].sort((a, b) => lastUse(b) - lastUse(a)).slice(0, MOST_LINKS) : links;
  return shown.flatMap((id, i) => {
    const use = ratio(series.ring(`link:${id}:tx_gbps`), series.ring(`link:${id}:capacity_gbps`));
    const lost = series.ring(`link:${id}:retransmit_ratio`);
    const tx = series.ring(`link:${id}:tx_gbps`);
    const suffix = links.length > 1 ? ` ${arrow(id)}` : "";
    const dash = DASHES[i % 3];
    return [
      { name: `use${suffix}`, type: "scatter", mode: "lines", x: use.x, y: use.y, yaxis: "y2",
        line: { color: token("remote"), width: 1.5, dash }, hovertemplate: "%{y:.1%} of capacity",
        legend: { label: links.length > 1 ? arrow(id) : "use", look: `remote ${dash}`,
          value: Number.isNaN(lastFresh(tx)) ? f.NONE : f.gbps(tx.last) } },
      line(`retransmits${suffix}`, lost, token("bad"), {
        line: { dash }, trace: { hovertemplate: "%{y:.2%}" },
        legend: i > 0 ? undefined
          : { label: "retransmits", look: "bad", value: f.percent(lastFresh(lost)) },
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
    line("demand", demand, token("neutral"), {
      trace: { hovertemplate: "%{y:.3s} req/s" },
      legend: { label: "demand", look: "", value: f.rate(lastFresh(demand)) },
    }),
    line("capacity", most, token("good"), {
      line: { dash: "dash" }, trace: { hovertemplate: "%{y:.3s} req/s" },
      legend: { label: "capacity λmax", look: "good dash", value: f.rate(lastFresh(most)) },
    }),
  ];
}

const twoRows = (upper, lower) => ({
  yaxis: { domain: [0, 0.4], ...lower }, yaxis2: { domain: [0.52, 1], ...upper },
});

export const plots = [
  { name: "queue", traces: queueChart, empty: idle("engine"),
    axes: () => ({ yaxis: { ticksuffix: " ", rangemode: "tozero", minallowed: 0 } }) },
  { name: "threshold", traces: thresholdChart, shapes: decisionLines, empty: idle("gate"),
    axes: () => twoRows({ tickformat: "~s", nticks: 4 }, { tickformat: ".0%", nticks: 3 }) },
  { name: "link", traces: linkChart, empty: idle("link"),
    // A hair of loss must not look like congestion: half a percent is always in view.
    axes: () => twoRows({ tickformat: ".0%" },
      { tickformat: ".1%", nticks: 3, autorangeoptions: { include: 0.005 } }) },
  { name: "demand", traces: demandChart, shapes: decisionLines, empty: idle("gate"),
    axes: () => ({ yaxis: {} }) },
];
