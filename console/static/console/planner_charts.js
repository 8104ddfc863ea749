// The planner's charts from one answer: columns in, no arithmetic but places on an axis. One chart
// per animation frame, the newest answer first.

import { token } from "./charts.js";
import { element, setText } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import * as words from "./planner_words.js";
import { stageHue, stageWords } from "./stages.js";

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };
const TICKS = [1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6];
const MOST_TICKS = 7;
const byId = (id) => document.getElementById(id);
const isNarrow = () => matchMedia("(max-width: 760px)").matches;

let drawing = 0;

const changeWords = (change) => (change > 0 ? _("%s % more", change * 100)
  : _("%s % less", -change * 100));

export function drawAnswer(answer) {
  drawing += 1;
  const mine = drawing;
  const left = [heat, sweep, tornado, lengths];
  const next = () => {
    if (mine !== drawing || left.length === 0) return;
    left.shift()(answer);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}

function layout(extra) {
  const { xaxis, yaxis, ...rest } = extra;
  const axis = { gridcolor: token("grid"), zerolinecolor: token("line"), linecolor: token("line"),
    tickcolor: token("line"), fixedrange: true, tickfont: { size: 11 }, automargin: false };
  const axes = Object.fromEntries(Object.entries(rest).filter(([name]) => /^[xy]axis/.test(name))
    .map(([name, own]) => [name, { ...axis, ...own }]));
  return {
    margin: { l: 52, r: 12, t: 8, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: token("muted") },
    showlegend: false, dragmode: false, bargap: 0.35,
    hoverlabel: { bgcolor: token("raised"), bordercolor: token("line-strong"),
      font: { color: token("text"), size: 12 } },
    ...rest, ...axes, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
  };
}

export function draw(id, traces, extra) {
  const node = byId(id);
  node.querySelector(":scope > .empty")?.remove();
  Plotly.react(node, traces, layout(extra), CONFIG);
}

// What each chart shows as [header, rows], by its node's id, from the answer itself: axes are places.
export const TABLES = {
  "chart-heat": ({ heat: map }) => [["threshold_tokens", "n_prefill", "lambda_rps"],
    map.n_prefill.flatMap((n, i) => map.t_tokens.map((t, j) => [t, n, map.lambda_rps[i][j]]))],
  "chart-sweep": ({ sweep: found }) => [
    ["load_rps", ...found.stages.map(({ name }) => `utilisation ${name}`), "ttft_s"],
    found.load_rps.map((load, i) => [load, ...found.stages.map((stage) => stage.utilisation[i]),
      found.ttft_s[i]])],
  "chart-tornado": (answer) => [
    ["number", ...answer.sensitivity.changes.flatMap((each) =>
      [`headroom at ${each}`, `headroom at ${each}, best plan again`])],
    answer.sensitivity.rows.map((row) => [words.sensitivityLabel(row, answer),
      ...answer.sensitivity.changes.flatMap((_each, i) => [row.kept[i], row.followed[i]])])],
  "chart-lengths": ({ lengths: { edges_tokens: edges, share } }) => [
    ["from_tokens", "to_tokens", "share"],
    share.map((each, i) => [edges[i], edges[i + 1], each])],
};

export function say(id, text) {
  const node = byId(id);
  if (node._fullLayout) Plotly.purge(node);
  node.replaceChildren(element("p", { class: "empty" }, text));
}

// Where a value stands between rising ones, in places 0, 1, 2…, evenly in its logarithm.
function place(value, rising) {
  const i = rising.findIndex((each) => each >= value);
  if (i === 0) return 0;
  if (i === -1) return rising.length - 1;
  const [a, b] = [rising[i - 1], rising[i]];
  return i - 1 + Math.log(value / a) / Math.log(b / a);
}

function ticks(rising) {
  const inside = TICKS.filter((t) => t >= rising[0] && t <= rising.at(-1));
  const shown = inside.length > MOST_TICKS ? inside.filter((t) => Number.isInteger(Math.log10(t)))
    : inside;
  return { tickmode: "array", tickangle: 0, tickvals: shown.map((t) => place(t, rising)),
    ticktext: shown.map((t) => f.significant(t)) };
}

function heat(answer) {
  const { heat: map, cluster, optimum, running } = answer;
  if (!map) {
    say("chart-heat",
      _("%s has no link from a PrfaaS cluster: everything is local, t does not matter.", cluster));
    setText(byId("heat-note"), "");
    return;
  }
  const columns = map.t_tokens;
  const rows = map.n_prefill;
  const best = optimum.clusters[cluster];
  const runs = running.clusters[cluster];
  const marked = [{ plan: best, symbol: "star", name: "best",
    line: { color: "#000000", width: 1 } }];
  const fits = running.headroom !== null && rows.includes(runs.n_prefill);
  if (fits && runs.threshold_tokens !== null) {
    marked.push({ plan: runs, symbol: "circle-open", name: _("runs now"),
      line: { color: "#ffffff", width: 3 } });
  }
  const instances = best.n_prefill + best.n_decode;
  const traces = [{
    type: "heatmap", x: columns.map((each, i) => i), y: rows.map((each, i) => i), z: map.lambda_rps,
    colorscale: "Cividis", zmin: 0, xgap: 1, ygap: 1,
    colorbar: { thickness: 8, outlinewidth: 0, title: { text: "req/s", font: { size: 11 } },
      tickfont: { size: 11 }, len: 1 },
    customdata: rows.map((n) => columns.map((t) =>
      `t = ${f.tokens(t)}, ${words.roles({ n_prefill: n, n_decode: instances - n })}`)),
    hovertemplate: "%{customdata}: %{z:.3f} req/s<extra></extra>",
  }, ...marked.map(({ plan, symbol, name, line: outline }) => ({
    type: "scatter", mode: "markers", name,
    x: [place(plan.threshold_tokens, columns)], y: [rows.indexOf(plan.n_prefill)],
    marker: { symbol, size: 15, color: "#ffffff", line: outline },
    hovertemplate: `${name}: t = ${f.tokens(plan.threshold_tokens)}, ${words.roles(plan)}`
      + "<extra></extra>",
  }))];
  const step = Math.ceil(rows.length / 8);
  draw("chart-heat", traces, {
    margin: { l: 44, r: 4, t: 8, b: 40 },
    xaxis: { ...ticks(columns), showgrid: false,
      title: { text: _("threshold t, tokens"), standoff: 4 } },
    yaxis: { tickmode: "array", tickvals: rows.map((each, i) => i).filter((i) => i % step === 0),
      ticktext: rows.filter((each, i) => i % step === 0).map(String), showgrid: false,
      title: { text: _("prefill instances of %s", instances), standoff: 4 } },
  });
  setText(byId("heat-note"), words.heatNote(answer));
}

export const upright = (x, hue, dash, width = 1.5) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1,
  yref: "paper", xref: "x", line: { color: token(hue), dash, width } });

function sweep(answer) {
  const { sweep: found, slo } = answer;
  const x = found.load_rps;
  const legend = [];
  const traces = found.stages.map((stage) => {
    const hue = stageHue(stage.name);
    const dash = stage.name.startsWith("link:") ? "dot" : "solid";
    legend.push([stageWords(stage.name), `${hue} ${dash === "dot" ? "dot" : ""}`]);
    const waits = stage.wait_s?.map((s) => (s === null ? "" : _(", wait %s", f.duration(s))));
    return { type: "scatter", mode: "lines", x, y: stage.utilisation, yaxis: "y2",
      line: { color: token(hue), width: 2, dash }, name: stageWords(stage.name),
      customdata: waits ?? x.map(() => ""),
      hovertemplate: "%{y:.1%}%{customdata}" };
  });
  traces.push({ type: "scatter", mode: "lines", x, y: found.ttft_s, name: _("first token, mean"),
    line: { color: token("text"), width: 2 }, connectgaps: false, hovertemplate: "%{y:.2f} s" });
  legend.push([_("First token, mean"), "text"]);
  const marks = [["asked", found.demand_rps, "text", "solid"],
    ["knee", found.knee_rps, "good", "dash"]];
  if (found.slo_rps !== null) marks.push(["SLO", found.slo_rps, "bad", "dot"]);
  const most = Math.max(found.most_rps, found.demand_rps) * 1.04;
  const right = (at) => at > 0.8 * most;
  draw("chart-sweep", traces, {
    hovermode: "x unified", hoversubplots: "axis", margin: { l: 52, r: 12, t: 52, b: 40 },
    xaxis: { range: [0, most], hoverformat: ".3s",
      title: { text: _("load, requests a second"), standoff: 4 } },
    yaxis: { domain: [0, 0.46], ticksuffix: " s", nticks: 4,
      range: [0, Math.max(2 * slo.ttft_s, 3 * found.service_s)] },
    yaxis2: { domain: [0.56, 1], range: [0, 1.02], tickformat: ".0%", nticks: 4 },
    shapes: [...marks.map(([, at, hue, dash]) => upright(at, hue, dash)),
      { type: "line", xref: "paper", x0: 0, x1: 1, y0: slo.ttft_s, y1: slo.ttft_s,
        line: { color: token("bad"), width: 1, dash: "dot" } }],
    // One row of words per mark: loads may lie close to each other.
    annotations: marks.map(([name, at, hue], i) => ({ x: at, y: 1, yref: "paper",
      showarrow: false, text: `${name} ${f.significant(at)}`, yanchor: "bottom", yshift: 14 * i,
      xanchor: right(at) ? "right" : "left", xshift: right(at) ? 2 : -2,
      font: { color: token(hue), size: 11 } })),
  });
  byId("legend-sweep").replaceChildren(...legend.map(([name, look]) =>
    element("span", {}, element("i", { class: `line ${look}` }), name)));
  setText(byId("sweep-note"), words.sweepNote(answer));
}

const shortened = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

function tornado(answer) {
  const { rows, changes } = answer.sensitivity;
  const base = answer.sweep.most_rps / answer.sweep.demand_rps;
  const ordered = [...rows].reverse();
  const names = ordered.map((row) => words.sensitivityLabel(row, answer));
  const y = names.map((each, i) => i);
  const bars = (change, colour) => {
    const i = changes.indexOf(change);
    return { type: "bar", orientation: "h", y, x: ordered.map((row) => row.kept[i] - base), base,
      marker: { color: colour },
      customdata: ordered.map((row, k) => [...[row.kept[i], row.followed[i],
        row.kept[changes.indexOf(change / 2)]].map(words.times), names[k]]),
      name: changeWords(change),
      hovertemplate: `${_("%s, %s: %s, best plan again %s; half as much: %s", "%{customdata[3]}",
        "%{fullData.name}", "%{customdata[0]}", "%{customdata[1]}",
        "%{customdata[2]}")}<extra></extra>` };
  };
  const follow = (change) => {
    const i = changes.indexOf(change);
    const known = y.filter((k) => ordered[k].followed[i] !== null);
    return { type: "scatter", mode: "markers", y: known,
      x: known.map((k) => ordered[k].followed[i]), customdata: known.map((k) => names[k]),
      marker: { symbol: "diamond-open", size: 8, color: token("text"), line: { width: 1.5 } },
      hovertemplate: `${_("%s, %s, best plan again: %s", "%{customdata}", changeWords(change),
        "×%{x:.3f}")}<extra></extra>` };
  };
  const narrow = isNarrow();
  draw("chart-tornado", [bars(-0.2, token("line-strong")), bars(0.2, token("neutral")),
    follow(-0.2), follow(0.2)], {
    barmode: "overlay", bargap: 0.4, margin: { l: narrow ? 136 : 162, r: 16, t: 8, b: 40 },
    xaxis: { tickprefix: "×", nticks: narrow ? 4 : 7, zeroline: false,
      title: { text: "headroom", standoff: 4 } },
    yaxis: { showgrid: false, ticklabelstandoff: 4, tickmode: "array", tickvals: y,
      ticktext: names.map((name) => shortened(name, narrow ? 19 : 24)) },
    shapes: [upright(base, "text", "solid", 1), upright(1, "bad", "dot")],
  });
  setText(byId("tornado-note"), words.sensitivityNote(answer));
}

function lengths(answer) {
  const { edges_tokens: edges, share } = answer.lengths;
  const plan = answer.optimum.clusters[answer.cluster];
  const t = plan.threshold_tokens ?? Infinity;
  const middle = share.map((each, i) => Math.sqrt(edges[i] * edges[i + 1]));
  draw("chart-lengths", [{
    type: "bar", x: share.map((each, i) => i + 0.5), y: share, width: 0.9,
    marker: { color: middle.map((tokens) => token(tokens > t ? "remote" : "local")) },
    customdata: share.map((each, i) => _("%s to %s", f.significant(edges[i]),
      f.tokens(edges[i + 1]))),
    hovertemplate: `${_("%s: %s of requests", "%{customdata}", "%{y:.2%}")}<extra></extra>`,
  }], {
    xaxis: { ...ticks(edges), range: [0, share.length], showgrid: false,
      title: { text: _("uncached tokens of a prompt"), standoff: 4 } },
    yaxis: { tickformat: ".1%", nticks: 4, rangemode: "tozero" },
    shapes: Number.isFinite(t) && t > edges[0] && t < edges.at(-1)
      ? [upright(place(t, edges), "text", "dot")] : [],
  });
  setText(byId("lengths-note"), words.lengthsNote(answer));
}
