// The planner's cache budget: what share of a trace's prompt tokens a prefix cache serves, by size.
// Counting takes seconds, so nothing is asked before the panel comes into view.

import { token } from "./charts.js";
import { setText } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { draw, say, upright } from "./planner_charts.js";
import { times } from "./planner_words.js";
import { addStillMenu } from "./still_menu.js";

const CHART = "chart-cache";
const TICKS = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 1e11];
const byId = (id) => document.getElementById(id);

const { cache_budget: api } = JSON.parse(byId("page-data").textContent);
const chosen = byId("cache-trace");
const cluster = byId("planner-cluster");

let asking = null;
let answered = null;
let isSeen = false;

function address() {
  const asked = new URLSearchParams({ trace: chosen.value });
  if (cluster) asked.set("cluster", cluster.value);
  return `${api}?${asked}`;
}

async function ask() {
  if (!isSeen) return;
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  answered = null;
  tell(_("Counting which prefixes come back."));
  try {
    const response = await fetch(address(),
      { signal: mine.signal, headers: { Accept: "application/json" } });
    const body = await response.json();
    if (mine !== asking) return;
    if (response.ok) show(body);
    else tell(why(response.status, body));
  } catch (error) {
    if (error.name !== "AbortError" && mine === asking) {
      tell(_("No answer. Choose the trace again."));
    }
  }
}

function why(status, body) {
  if (status === 401) return _("Signed out: sign in again to see this.");
  const errors = Object.entries(body.errors ?? {});
  return errors.length ? errors.map(([name, texts]) => `${name}: ${texts.join(", ")}`).join("; ")
    : body.error;
}

function tell(text) {
  say(CHART, text);
  setText(byId("cache-sentence"), "");
  setText(byId("cache-note"), "");
}

function show(answer) {
  answered = answer;
  setText(byId("cache-sentence"), sentence(answer));
  setText(byId("cache-note"), note(answer));
  curve(answer);
}

const known = (answer) => answer.holds.filter((each) => each.capacity_tokens !== null);
const hover = (points) => points.map((each) => [f.tokens(each.capacity_tokens),
  f.tokens(each.mean_uncached_tokens), times(each.headroom)]);
const HOVER = `${_("%s: %s served, %s left to compute, headroom %s", "%{customdata[0]}", "%{y:.1%}",
  "%{customdata[1]}", "%{customdata[2]}")}<extra></extra>`;

// The curve, then what each cluster holds: axes are places, the table is the answer's own numbers.
function table({ points, ...answer }) {
  const row = (name, each) => [name, each.capacity_tokens, each.hit_ratio,
    each.mean_uncached_tokens, each.headroom];
  return [["cluster", "cache_tokens", "hit_ratio", "mean_uncached_tokens", "headroom"],
    [...points.map((each) => row("", each)),
      ...known(answer).map((each) => row(each.cluster, each))]];
}

function curve(answer) {
  const { points, unbounded, cluster: seenFrom } = answer;
  const marks = known(answer);
  draw(CHART, [
    { type: "scatter", mode: "lines+markers", x: points.map((each) => each.capacity_tokens),
      y: points.map((each) => each.hit_ratio), customdata: hover(points), hovertemplate: HOVER,
      line: { color: token("accent"), width: 2 }, marker: { size: 5 } },
    { type: "scatter", mode: "markers+text", x: marks.map((each) => each.capacity_tokens),
      y: marks.map((each) => each.hit_ratio), customdata: hover(marks),
      text: marks.map((each) => each.cluster), textposition: "bottom center", cliponaxis: false,
      hovertemplate: `%{text}, ${HOVER}`,
      marker: { symbol: "circle-open", size: 12, color: token("text"), line: { width: 2 } } },
  ], {
    xaxis: { type: "log", tickmode: "array", tickvals: TICKS, ticktext: TICKS.map(f.significant),
      tickangle: 0, title: { text: _("prefix cache of the cluster, tokens"), standoff: 4 } },
    yaxis: { tickformat: ".0%", nticks: 5, rangemode: "tozero",
      title: { text: _("prompt tokens served"), standoff: 4 } },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: unbounded.hit_ratio,
      y1: unbounded.hit_ratio, line: { color: token("muted"), width: 1, dash: "dot" } },
    ...marks.filter((each) => each.cluster === seenFrom).map((each) =>
      upright(each.capacity_tokens, "text", "dot", 1))],
  });
}

function sentence({ cluster: seenFrom, holds, unbounded, enough, headroom }) {
  if (unbounded.hit_ratio === 0) {
    return _("No prefix of this trace comes back: no cache saves any.");
  }
  const whole = _("a cache that forgets nothing (%s) would serve %s",
    f.tokens(unbounded.capacity_tokens), f.percent(unbounded.hit_ratio));
  const most = _("%s serve %s, which makes headroom %s", f.tokens(enough.capacity_tokens),
    f.percent(enough.hit_ratio), times(enough.headroom));
  const here = holds.find((each) => each.cluster === seenFrom);
  if (here.capacity_tokens === null) {
    return _("Of the prompt tokens, %s; %s, where without any cache it is %s.", whole, most,
      times(headroom));
  }
  const now = _("%s holds %s and serves %s of the prompt tokens; %s.", seenFrom,
    f.tokens(here.capacity_tokens), f.percent(here.hit_ratio), whole);
  return here.capacity_tokens >= enough.capacity_tokens
    ? `${now} ${_("More memory for prefixes would save little: %s already serve %s.",
      f.tokens(enough.capacity_tokens), f.percent(enough.hit_ratio))}`
    : `${now} ${_("%s, where now it is %s.", most, times(headroom))}`;
}

function note(answer) {
  const { trace, exact_state: exact, lengths_basis: basis, holds, cluster: seenFrom } = answer;
  const { profile } = holds.find((each) => each.cluster === seenFrom);
  const cut = trace.n_used < trace.n_requests
    ? _("Counted over the last %s requests of the first %s, of %s, after the ones before filled "
      + "the cache; in order, without waiting; full blocks, least recently used out first.",
      f.significant(trace.n_counted), f.significant(trace.n_used),
      f.significant(trace.n_requests))
    : _("Counted over the last %s requests, after the ones before filled the cache; in order, "
      + "without waiting; full blocks, least recently used out first.",
      f.significant(trace.n_counted));
  const counted = exact ? `${cut} ${_("Linear state counts at exactly a prompt's length.")}` : cut;
  const size = basis === "present"
    ? _("Running requests need some of %s's tokens too. The scenario's lengths are taken for "
      + "what its size leaves uncached.", seenFrom)
    : _("Profile %s has no kv_capacity_tokens, so nobody knows what %s holds: the scenario's "
      + "lengths are taken for whole prompts.", profile, seenFrom);
  return `${counted} ${size}`;
}

export function startCacheBudget() {
  if (!chosen) return;
  addStillMenu(byId(CHART), { table: () => table(answered), call: address });
  new IntersectionObserver((entries, watcher) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    isSeen = true;
    ask();
  }).observe(byId("cache-budget"));
  chosen.addEventListener("change", ask);
  cluster?.addEventListener("change", ask);
  document.addEventListener("themechange", () => answered && curve(answered));
}
