// One backtest: while it runs its results are asked for again and drawn, each policy the mean of
// its seeds so far. Tables are the server's, swapped in; charts take columns and compute nothing.

import { token } from "./charts.js";
import { setText } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { refresh } from "./refresh.js";
import { addStillMenu } from "./still_menu.js";

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
const LEAST_MS = 1500;
const REGIONS = ["backtest-state", "backtest-results", "backtest-drift", "backtest-facts",
  "backtest-runs"];
const MOST_LINES = 10;
// An overloaded policy's waits would press all others to the floor of a linear axis.
const SECONDS = { type: "log", rangemode: "normal", ticksuffix: " s", tickformat: "~g",
  dtick: "D2" };

const page = JSON.parse(document.getElementById("page-data").textContent);
const byId = (id) => document.getElementById(id);
const chosen = (id, names) => byId(id)?.value ?? names[0];

// The same policy has the same line on every backtest; local and remote keep their hues.
const LOOKS = {
  adaptive: ["text", "solid"],
  paper: ["accent", "solid"],
  always_local: ["local", "solid"],
  always_remote: ["remote", "solid"],
  least_loaded: ["decode", "solid"],
  oracle: ["accent", "dash"],
  lived: ["neutral", "dash"],
};
const OTHERS = [["decode", "dash"], ["local", "dash"], ["remote", "dash"], ["accent", "dot"],
  ["text", "dot"], ["neutral", "dot"], ["decode", "dot"], ["local", "dot"], ["remote", "dot"]];

function looks() {
  const free = [...OTHERS];
  return new Map(page.policies.slice(0, MOST_LINES)
    .map(({ policy }) => [policy, LOOKS[policy] ?? free.shift() ?? ["muted", "dot"]]));
}
const look = looks();

// node, the column of a policy's series, the live column beside it, axis
const CHARTS = [
  ["chart-ttft-p50", (s) => s.ttft_p50_s, () => null, SECONDS, "%{y:.3g} s"],
  ["chart-ttft-p90", (s) => s.ttft_p90_s, () => null, SECONDS, "%{y:.3g} s"],
  ["chart-goodput", (s) => s.goodput_rps, (live) => live.demand_rps, {}, "%{y:.3s} req/s"],
  ["chart-remote", (s) => s.remote_fraction, (live) => live.remote_fraction,
    { tickformat: ".0%", range: [0, 1.02] }, "%{y:.1%}"],
  ["chart-t", (s) => s.threshold_tokens[chosen("t-cluster", page.clusters)], () => null,
    { tickformat: ".2s" }, "%{y:.3s} tok"],
  ["chart-link", (s) => s.link_gbps[chosen("link-name", page.links)],
    (live) => live.link_gbps[chosen("link-name", page.links)], {}, "%{y:.3s} Gbps"],
];

const minutes = (series) => series.at_s.map((s, i) => (s + (series.row_s / 2)) / 60);

function traces(results, column, liveColumn, hover, liveName) {
  const found = [];
  for (const { policy, name } of page.policies.slice(0, MOST_LINES)) {
    const series = results.series[policy];
    const [hue, dash] = look.get(policy);
    found.push({ type: "scatter", mode: "lines", name, connectgaps: false,
      x: series ? minutes(series) : [], y: (series && column(series)) ?? [],
      line: { color: token(hue), width: policy === "adaptive" ? 2.5 : 1.5, dash },
      hovertemplate: hover });
  }
  const live = results.live && liveColumn(results.live);
  if (live) {
    found.push({ type: "scatter", mode: "lines", name: liveName, x: minutes(results.live), y: live,
      connectgaps: false, line: { color: token("muted"), width: 1.5, dash: "dot" },
      hovertemplate: hover });
  }
  return found;
}

function layout(axis, shapes) {
  const line = { gridcolor: token("grid"), zerolinecolor: token("line"), tickcolor: token("line"),
    tickfont: { size: 11 }, automargin: false };
  return {
    uirevision: "page", margin: { l: 52, r: 12, t: 8, b: 36 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: token("muted") },
    hovermode: "x unified", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    hoverlabel: { bgcolor: token("raised"), bordercolor: token("line-strong"),
      font: { color: token("text"), size: 12 } },
    shapes,
    xaxis: { ...line, rangemode: "tozero", nticks: 7, hoverformat: ".1f",
      title: { text: _("minutes since the start"), standoff: 4 }, zeroline: false },
    yaxis: { ...line, rangemode: "tozero", nticks: 5, fixedrange: true, ...axis },
  };
}

let shown = null;
let drawing = 0;

function draw(results) {
  shown = results;
  drawing += 1;
  const mine = drawing;
  const over = ["done", "failed", "cancelled"].includes(results.state);
  const nothing = over && page.policies.every(({ policy }) => !results.series[policy]);
  for (const id of ["backtest-charts", "backtest-legend"]) byId(id).hidden = nothing;
  const left = nothing ? [] : [...CHARTS];
  const next = () => {
    if (mine !== drawing || left.length === 0) return;
    drawOne(results, ...left.shift());
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
  showLegend(results);
}

function drawOne(results, id, column, liveColumn, axis, hover) {
  const node = byId(id);
  const liveName = id === "chart-goodput" ? _("live demand") : _("live");
  const lines = traces(results, column, liveColumn, hover, liveName);
  const known = lines.some(({ y }) => y.some((v) => v !== null));
  if (!known) {
    say(node, empty(results, id));
    return;
  }
  const key = `${lines.map(({ name }) => name).join("|")} ${token("text")}`;
  node.querySelector(":scope > .empty")?.remove();
  if (node.dataset.key === key) {
    Plotly.restyle(node, { x: lines.map(({ x }) => x), y: lines.map(({ y }) => y) });
    return;
  }
  node.dataset.key = key;
  const slo = id.startsWith("chart-ttft") && page.slo_ttft_s ? [{ type: "line", xref: "paper",
    x0: 0, x1: 1, y0: page.slo_ttft_s, y1: page.slo_ttft_s,
    line: { color: token("bad"), width: 1, dash: "dot" } }] : [];
  Plotly.react(node, lines, layout(axis, slo), CONFIG);
}

function empty(results, id) {
  if (results.state === "queued") return _("Waiting for a worker.");
  if (id === "chart-t" && page.policies.some(({ policy }) => results.series[policy])) {
    return _("No policy that was simulated so far has a threshold.");
  }
  if (["running", "cancelling"].includes(results.state)) {
    return _("The first minutes are being simulated.");
  }
  return _("Nothing was measured.");
}

function say(node, text) {
  if (node.dataset.key) Plotly.purge(node);
  delete node.dataset.key;
  const words = document.createElement("p");
  words.className = "empty";
  words.textContent = text;
  node.replaceChildren(words);
}

function showLegend(results) {
  const items = page.policies.slice(0, MOST_LINES).map(({ policy, name }) => {
    const n = results.series[policy]?.n_seeds ?? 0;
    return [name, look.get(policy), n === 1 ? _("%s seed", n) : _("%s seeds", n)];
  });
  if (results.live) items.push([_("live (beside goodput: its demand)"), ["muted", "dot"], ""]);
  if (page.slo_ttft_s) {
    items.push([_("SLO, first token %s", f.duration(page.slo_ttft_s)), ["bad", "dot"], ""]);
  }
  const legend = byId("backtest-legend");
  if (legend.childElementCount !== items.length) {
    legend.replaceChildren(...items.map(([name, [hue, dash]]) => {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      mark.className = `line ${dash === "solid" ? "" : dash}`;
      mark.style.setProperty("--line-of-policy", `var(--${hue})`);
      item.append(mark, `${name} `, document.createElement("b"));
      return item;
    }));
  }
  items.forEach(([, , n], i) => setText(legend.children[i].lastChild, n));
}

function paintSwatches() {
  for (const swatch of document.querySelectorAll(".swatch.policy")) {
    const [hue] = look.get(swatch.dataset.policy) ?? ["muted"];
    swatch.style.setProperty("--line-of-policy", `var(--${hue})`);
  }
}

async function follow() {
  const began = performance.now();
  let over = false;
  if (!document.hidden) {
    try {
      const answer = await fetch(page.api, { headers: { Accept: "application/json" } });
      if (answer.ok) {
        const { results } = await answer.json();
        draw(results);
        over = ["done", "failed", "cancelled"].includes(results.state);
        refresh(...REGIONS);
      }
    } catch {
      // The console is away: the frame's banner says so, and the next round asks again.
    }
  }
  // A backtest of many long runs answers slowly: never ask for more than a quarter of the time.
  const tookMs = performance.now() - began;
  if (!over) setTimeout(follow, Math.max(LEAST_MS, 3 * tookMs));
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const from = byId(button.dataset.copy);
    from.select();
    try {
      await navigator.clipboard.writeText(from.value);
      setText(button, _("Copied"));
    } catch {
      setText(button, _("Selected: press Ctrl+C"));
    }
  });
}
byId("baseline").addEventListener("change", (event) => event.target.form.submit());
for (const id of ["t-cluster", "link-name"]) {
  byId(id)?.addEventListener("change", () => shown && draw(shown));
}
document.addEventListener("themechange", () => shown && draw(shown));
document.addEventListener("regions", paintSwatches);

for (const [id] of CHARTS) addStillMenu(byId(id), { call: () => page.api });

paintSwatches();
draw(page.results);
if (!page.is_over) follow();
