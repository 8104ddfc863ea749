// The frame around every page of a fleet: truth line, banner, mode chip.

import "./chrome.js";
import { serverNow } from "./clock.js";
import { element, icon, setState } from "./dom.js";
import { age, clock, moment } from "./format.js";
import { _, n_ } from "./i18n.js";
import { live } from "./live.js";
import "./missing.js";
import { refresh } from "./refresh.js";

const { tickS, staleS } = document.body.dataset;
const LOOP_STALE_S = Math.max(3 * Number(tickS), 6);
const STALE_S = Number(staleS);
const CLOCK_AHEAD_S = 5; // as console/missing.py
const REFRESH_MS = 15000;

const banner = document.getElementById("banner");
let mode = null;

function showTruth() {
  const frame = live.frame;
  showSocket();
  if (!frame) return;
  const now = serverNow();
  showLoop(frame.loop, now);
  if (frame.partial) showCounted(frame.counts, frame.at_s, now);
  else showAgents(Object.entries(frame.agents), now);
  showGates(Object.entries(frame.routers), frame.loop?.plan, now);
}

function showLoop(loop, now) {
  const node = document.getElementById("truth-loop");
  if (!loop) setState(node, "off", _("loop has not run yet"));
  else if (loop.at_s - now > CLOCK_AHEAD_S) {
    setState(node, "warn", _("clock set back, last tick %s", clock(loop.at_s)));
  } else if (now - loop.at_s > LOOP_STALE_S) {
    setState(node, "warn", _("loop silent since %s", clock(loop.at_s)));
  } else setState(node, "good", _("loop %s", age(now - loop.at_s)));
}

function showAgents(agents, now) {
  const node = document.getElementById("truth-agents");
  if (agents.length === 0) {
    setState(node, "off", _("no agents"));
    return;
  }
  const silent = agents.filter(([, agent]) => now - agent.received_s > STALE_S);
  const fresh = _("%1/%2 agents fresh", agents.length - silent.length, agents.length);
  if (silent.length === 0) setState(node, "good", fresh);
  else {
    const since = Math.min(...silent.map(([, agent]) => agent.received_s));
    setState(node, "warn", _("%1, silent since %2", fresh, clock(since)));
  }
}

// A large fleet's frame does not tell of every agent: the console has counted them.
function showCounted({ agents, agents_silent: nSilent, agents_silent_since_s: since }, atS, now) {
  const node = document.getElementById("truth-agents");
  const old = now - atS > STALE_S;
  const fresh = _("%1/%2 agents fresh", old ? 0 : agents - nSilent, agents);
  if (!old && nSilent === 0) setState(node, "good", fresh);
  else setState(node, "warn", _("%1, silent since %2", fresh, clock(since ?? atS)));
}

function showGates(routers, plan, now) {
  const node = document.getElementById("truth-gates");
  if (routers.length === 0) {
    setState(node, "off", _("no gates"));
    return;
  }
  const silent = routers.filter(([, router]) => now - router.received_s > STALE_S);
  if (!plan) {
    setState(node, "off", n_("%s gate, no plan yet", "%s gates, no plan yet", routers.length));
    return;
  }
  const running = routers.filter(([, router]) =>
    router.plan_version === plan.version && router.plan_epoch === plan.epoch
    && now - router.received_s <= STALE_S);
  const words = _("%1/%2 gates on v%3", running.length, routers.length, plan.version);
  if (running.length === routers.length) setState(node, "good", words);
  else if (silent.length > 0) {
    const since = Math.min(...silent.map(([, router]) => router.received_s));
    setState(node, "warn", _("%1, silent since %2", words, clock(since)));
  } else setState(node, "warn", words);
}

function showSocket() {
  const node = document.getElementById("truth-socket");
  const words = {
    connecting: ["off", _("socket connecting")],
    live: ["good", _("socket ok")],
    polling: ["warn", _("socket away, polling")],
    down: ["warn", _("socket down since %s", clock(live.heardS))],
    "signed-out": ["bad", _("signed out")],
  }[live.state];
  if (live.silent && live.state !== "signed-out") {
    setState(node, "warn", _("socket silent since %s", clock(live.heardS)));
  } else setState(node, ...words);
}

function showBanner() {
  const signedOut = live.state === "signed-out";
  const show = live.silent || signedOut;
  banner.hidden = !show;
  if (!show) return;
  const since = moment(live.heardS);
  const says = signedOut ? _("Signed out; data from %s.", since) : _("No data since %s.", since);
  if (banner.dataset.says === says) return;
  banner.dataset.says = says;
  const more = signedOut ? "" : _("Reconnecting; gates keep routing by the plan they run.");
  banner.replaceChildren(icon("warn"), says, element("span", { class: "wide" }, more));
  if (signedOut) {
    const link = document.createElement("a");
    link.href = `/login/?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = _("Sign in");
    banner.append(" ", link);
  }
}

live.addEventListener("state", () => {
  document.body.classList.toggle("silent", live.silent);
  showTruth();
  showBanner();
});

live.addEventListener("frame", ({ detail: { frame, gap } }) => {
  showTruth();
  const types = new Set((frame.events ?? []).map((event) => event.type));
  const modeChanged = mode !== null && frame.loop && frame.loop.mode !== mode;
  mode = frame.loop?.mode ?? mode;
  if (frame.counts.agents > 0) refresh("no-agents");
  if (gap || modeChanged || types.has("policy")) refresh("mode", "policy", "holds");
  if (gap || types.has("rebalance")) refresh("rebalance", "delivery", "job-runs", "job-calendar");
  if (gap || types.has("alert")) refresh("incidents", "incident");
  if (gap || types.has("proposal")) {
    refresh("n-approvals", "proposals", "proposal-state", "proposal-facts", "job-runs");
  }
  if (gap || types.has("router") || types.has("delivery")) refresh("routers", "truth-link");
  if (gap || types.has("decision") || types.has("delivery")) {
    refresh("recent", "page-data", "gates", "timeline", "delivery", "policy", "rebalance");
  }
});

setInterval(showTruth, 1000);
// What gates run and who is silent is judged by the server: asked again while somebody looks.
setInterval(() => document.hidden || live.silent
  || refresh("gates", "sources", "rebalance", "routers", "truth-link", "findings-now",
    "job-runs", "job-calendar"), REFRESH_MS);
live.start();
