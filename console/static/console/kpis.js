// The strip of figures: throughput, threshold, remote share, the busiest link, time to first token;
// each leads to where it comes from.

import { serverNow } from "./clock.js";
import { element, setText } from "./dom.js";
import * as f from "./format.js";
import { _, n_ } from "./i18n.js";
import { trouble } from "./links.js";
import { arrow, fresh, page } from "./page.js";
import { decisionPage, decisionsPage, linkPage, linksPage, signalPage, tickPage } from "./places.js";

const sum = (values) => values.reduce((a, b) => a + b, 0);

export function showKpis(frame) {
  showThroughput(frame.loop);
  showThreshold(frame.loop);
  showRemote(frame.loop);
  showLink(frame);
  showTtft(frame);
}

// `figure` is "number unit"; `atS` when it was measured; `bar` and `mark` are shares of the bar;
// `href` is its evidence.
function kpi(name, { figure, href, label = null, part = "", under, title = "", atS = null, bar = null,
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
  const evidence = node.querySelector(".label a");
  if (label) setText(evidence, label);
  if (href && evidence.getAttribute("href") !== href) evidence.setAttribute("href", href);
  setText(node.querySelector(".under"), under, { title });
  node.classList.toggle("alarm", alarm);
  const stale = atS !== null && !fresh(atS);
  node.classList.toggle("stale", stale);
  setText(node.querySelector(".age"), stale ? _("since %s", f.clock(atS)) : "");
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
    under: demand === null ? _("demand not measured yet")
      : most === null ? _("capacity not predicted yet")
      : _("of %s, headroom ×%s", f.rate(most), f.significant(loop.current.headroom)),
    title: _("Arrivals %s req/s, refused ones too, weighted over 5 minutes", f.exact(demand)),
    href: signalPage({ signal: "router.requests_per_s" }),
    atS: loop?.at_s ?? null,
    bar: most ? demand / most : 0,
  });
}

function planWords(plan) {
  if (plan.mode === "threshold") return f.tokens(plan.threshold_tokens);
  return plan.mode === "always_local" ? _("all local") : _("all remote");
}

function showThreshold(loop) {
  const plans = Object.entries(loop?.plan?.clusters ?? {});
  if (plans.length === 0) {
    kpi("threshold", { figure: "–", under: _("no plan: gates send all local"),
      href: decisionsPage() });
    return;
  }
  const [[name, plan]] = plans;
  const change = page.changes[name];
  const others = plans.slice(1).map(([pd, p]) => `${pd} ${planWords(p)}`).join(", ");
  const was = change ? _("was %s %s", change.was.replace(/^t /, ""), f.age(serverNow() - change.at_s))
    : _("since v%s", loop.plan.version);
  const { running } = page;
  const isKnown = running?.version === loop.plan.version && running?.epoch === loop.plan.epoch;
  kpi("threshold", {
    figure: planWords(plan),
    part: plans.length > 1 ? name : "",
    under: others || was,
    title: plan.mode === "threshold"
      ? _("%s tokens in %s", f.exact(plan.threshold_tokens), name) : name,
    href: isKnown ? decisionPage(running.decision) : decisionsPage(),
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
    under: share === null && predicted === null ? _("observed, not measured yet")
      : _("predicted %s", f.percent(predicted))
        + (share !== null && demand !== null ? `, ${f.rate(share * demand)}` : ""),
    title: _("Share of requests sent to a PrfaaS cluster in the last minute, weighted by demand"),
    href: loop ? tickPage(loop.seq) : decisionsPage(),
    atS: loop?.at_s ?? null,
    bar: share ?? 0,
    mark: predicted,
  });
}

function showLink(frame) {
  const read = Object.entries(frame.links).filter(([, link]) => link.tx_gbps !== null);
  if (read.length === 0) {
    kpi("link", { figure: "–", under: _("not read yet"), href: linksPage() });
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
    label: _("Link %s", arrow(id)),
    href: linkPage(id),
    under: `${found ? `⚠ ${found.words}, ` : ""}${f.percent(link.utilisation_ratio)}, `
      + _("loss %s", f.percent(link.retransmit_ratio))
      + (read.length > 1 ? _(", busiest of %s", read.length) : ""),
    title: _("%s of %s Gbps", f.exact(link.tx_gbps), f.exact(link.capacity_gbps))
      + (found ? `, ${found.words}: ${found.signs}` : ""),
    atS: link.received_s,
    bar: link.utilisation_ratio ?? 0,
    overAt: 0.9,
  });
}

function showDownLink(id, link, nRead) {
  kpi("link", {
    figure: _("down"),
    label: _("Link %s", arrow(id)),
    href: linkPage(id),
    under: `⚠ ${_("since %s", f.clock(link.down_since_s))}`
      + (nRead > 1 ? _(", one of %s", nRead) : ""),
    title: _("%s says that it has no capacity", id),
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
    kpi("ttft", { figure: "–", under: _("no answers lately, SLO %s", f.duration(slo)),
      href: signalPage({ signal: "router.ttft_seconds" }) });
    return;
  }
  const [path, slowest] = gates.reduce((a, b) => (b[1].ttft_p90_s > a[1].ttft_p90_s ? b : a));
  kpi("ttft", {
    figure: more(slowest.ttft_p50_is_above, brief(slowest.ttft_p50_s)),
    part: `P50, ${more(slowest.ttft_p90_is_above, brief(slowest.ttft_p90_s))} P90`,
    under: (slowest.ttft_p90_s > slo ? _("over its SLO of %s", f.duration(slo))
      : _("SLO %s", f.duration(slo)))
      + (gates.length > 1 ? n_(", slowest of %s gate", ", slowest of %s gates", gates.length) : ""),
    href: signalPage({ signal: "router.ttft_seconds", source: path.split(/\/(.*)/)[1] }),
    title: gates.map(([name, g]) =>
      `${name}: P50 ${more(g.ttft_p50_is_above, f.duration(g.ttft_p50_s))}, ` +
      `P90 ${more(g.ttft_p90_is_above, f.duration(g.ttft_p90_s))}`).join("\n"),
    atS: slowest.received_s,
    bar: slowest.ttft_p90_s / slo,
  });
}
