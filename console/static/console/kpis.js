// The strip of figures: throughput, threshold, remote share, the busiest link, time to first token.

import { serverNow } from "./clock.js";
import { element, setText } from "./dom.js";
import * as f from "./format.js";
import { trouble } from "./links.js";
import { arrow, fresh, page } from "./page.js";

const sum = (values) => values.reduce((a, b) => a + b, 0);

export function showKpis(frame) {
  showThroughput(frame.loop);
  showThreshold(frame.loop);
  showRemote(frame.loop);
  showLink(frame);
  showTtft(frame);
}

// `figure` is "number unit"; `atS` when it was measured; `bar` and `mark` are shares of the bar.
function kpi(name, { figure, label = null, part = "", under, title = "", atS = null, bar = null,
  mark = null, overAt = 1, flash = false, alarm = false }) {
  const node = document.getElementById(`kpi-${name}`);
  const main = node.querySelector(".figure");
  const [number, ...unit] = figure.split(" ");
  if (!main.querySelector(".value")) {
    main.replaceChildren(element("span", { class: "value" }), element("span", { class: "unit" }),
      element("span", { class: "part" }));
  }
  setText(main.querySelector(".value"), number, { flash, title });
  setText(main.querySelector(".unit"), unit.length ? ` ${unit.join(" ")}` : "");
  setText(main.querySelector(".part"), part ? ` ${part}` : "");
  if (label) setText(node.querySelector(".label > span"), label);
  setText(node.querySelector(".under"), under, { title });
  node.classList.toggle("alarm", alarm);
  const stale = atS !== null && !fresh(atS);
  node.classList.toggle("stale", stale);
  setText(node.querySelector(".age"), stale ? `since ${f.clock(atS)}` : "");
  node.querySelector(".age").classList.toggle("warn", stale);
  const fill = node.querySelector(".bar > i");
  if (!fill || bar === null) return;
  fill.style.width = `${Math.min(100, 100 * bar)}%`;
  fill.classList.toggle("over", bar > overAt);
  let tick = node.querySelector(".bar > b");
  if (mark === null) tick?.remove();
  else {
    tick ??= fill.parentElement.appendChild(element("b"));
    tick.style.left = `${Math.min(100, 100 * mark)}%`;
  }
}

function showThroughput(loop) {
  const demand = loop?.observed.demand_rps ?? null;
  const most = loop?.current?.lambda_max_rps ?? null;
  kpi("throughput", {
    figure: f.rate(demand),
    under: demand === null ? "demand not measured yet"
      : most === null ? "capacity not predicted yet"
      : `of ${f.rate(most)}, headroom ×${f.significant(loop.current.headroom)}`,
    title: `Arrivals ${f.exact(demand)} req/s, refused ones too, weighted over 5 minutes`,
    atS: loop?.at_s ?? null,
    bar: most ? demand / most : 0,
  });
}

function planWords(plan) {
  if (plan.mode === "threshold") return f.tokens(plan.threshold_tokens);
  return plan.mode === "always_local" ? "all local" : "all remote";
}

function showThreshold(loop) {
  const plans = Object.entries(loop?.plan?.clusters ?? {});
  if (plans.length === 0) {
    kpi("threshold", { figure: "–", under: "no plan: gates send all local" });
    return;
  }
  const [[name, plan]] = plans;
  const change = page.changes[name];
  const others = plans.slice(1).map(([pd, p]) => `${pd} ${planWords(p)}`).join(", ");
  const was = change ? `was ${change.was.replace(/^t /, "")} ${f.age(serverNow() - change.at_s)}`
    : `since v${loop.plan.version}`;
  kpi("threshold", {
    figure: planWords(plan),
    part: plans.length > 1 ? name : "",
    under: others || was,
    title: plan.mode === "threshold" ? `${f.exact(plan.threshold_tokens)} tokens in ${name}` : name,
    atS: loop.at_s,
    flash: true,
  });
}

function observedShare(loop) {
  const seen = Object.values(loop?.observed.clusters ?? {})
    .filter((c) => c.remote_share !== null && c.demand_rps !== null);
  const demand = sum(seen.map((c) => c.demand_rps));
  return demand > 0 ? sum(seen.map((c) => c.remote_share * c.demand_rps)) / demand : null;
}

function showRemote(loop) {
  const share = observedShare(loop);
  const predicted = loop?.current?.remote_fraction ?? null;
  const demand = loop?.observed.demand_rps ?? null;
  kpi("remote", {
    figure: f.percent(share),
    under: share === null && predicted === null ? "observed, not measured yet"
      : `predicted ${f.percent(predicted)}`
        + (share !== null && demand !== null ? `, ${f.rate(share * demand)}` : ""),
    title: "Share of requests sent to a PrfaaS cluster in the last minute, weighted by demand",
    atS: loop?.at_s ?? null,
    bar: share ?? 0,
    mark: predicted,
  });
}

function showLink(frame) {
  const read = Object.entries(frame.links).filter(([, link]) => link.tx_gbps !== null);
  if (read.length === 0) {
    kpi("link", { figure: "–", under: "not read yet" });
    return;
  }
  const down = read.find(([, link]) => link.down_since_s !== null);
  if (down) {
    showDownLink(...down, read.length);
    return;
  }
  const [id, link] = read.reduce((a, b) =>
    ((b[1].utilisation_ratio ?? 0) > (a[1].utilisation_ratio ?? 0) ? b : a));
  const found = trouble(frame.loop, id);
  kpi("link", {
    figure: f.significant(link.tx_gbps),
    part: `/ ${f.gbps(link.capacity_gbps)}`,
    label: `Link ${arrow(id)}`,
    under: `${found ? `⚠ ${found.words}, ` : ""}${f.percent(link.utilisation_ratio)}, `
      + `loss ${f.percent(link.retransmit_ratio)}`
      + (read.length > 1 ? `, busiest of ${read.length}` : ""),
    title: `${f.exact(link.tx_gbps)} of ${f.exact(link.capacity_gbps)} Gbps`
      + (found ? `, ${found.words}: ${found.signs}` : ""),
    atS: link.received_s,
    bar: link.utilisation_ratio ?? 0,
    overAt: 0.9,
  });
}

function showDownLink(id, link, nRead) {
  kpi("link", {
    figure: "down",
    label: `Link ${arrow(id)}`,
    under: `⚠ since ${f.clock(link.down_since_s)}${nRead > 1 ? `, one of ${nRead}` : ""}`,
    title: `${id} says that it has no capacity`,
    atS: link.received_s,
    bar: 0,
    alarm: true,
  });
}

// Two times stand in one tile, and minutes would not fit.
const brief = (seconds) => (seconds < 60 ? f.duration(seconds) : `${Math.round(seconds)} s`);

// Above the largest bound of its histogram a quantile is known to be more, not how much more.
const more = (isAbove, text) => (isAbove ? `> ${text}` : text);

function showTtft(frame) {
  const gates = Object.entries(frame.routers).filter(([, gate]) => gate.ttft_p50_s !== null);
  const slo = page.slo_ttft_s;
  if (gates.length === 0) {
    kpi("ttft", { figure: "–", under: `no answers lately, SLO ${f.duration(slo)}` });
    return;
  }
  const [, slowest] = gates.reduce((a, b) => (b[1].ttft_p90_s > a[1].ttft_p90_s ? b : a));
  kpi("ttft", {
    figure: more(slowest.ttft_p50_is_above, brief(slowest.ttft_p50_s)),
    part: `P50, ${more(slowest.ttft_p90_is_above, brief(slowest.ttft_p90_s))} P90`,
    under: `${slowest.ttft_p90_s > slo ? "over its SLO of" : "SLO"} ${f.duration(slo)}` + (gates.length > 1 ? `, slowest of ${gates.length} gates` : ""),
    title: gates.map(([path, g]) =>
      `${path}: P50 ${more(g.ttft_p50_is_above, f.duration(g.ttft_p50_s))}, ` +
      `P90 ${more(g.ttft_p90_is_above, f.duration(g.ttft_p90_s))}`).join("\n"),
    atS: slowest.received_s,
    bar: slowest.ttft_p90_s / slo,
  });
}
