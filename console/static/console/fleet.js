// Tables of instances, links, agents and gates, and the heads of their own pages: cells of what is
// in view follow the live frames.

import { serverNow } from "./clock.js";
import { setState, setText } from "./dom.js";
import * as f from "./format.js";
import { showGates } from "./gates.js";
import { _ } from "./i18n.js";
import { judged } from "./links.js";
import { live } from "./live.js";
import { unread } from "./readings.js";
import { refresh } from "./refresh.js";

const STALE_S = Number(document.body.dataset.staleS);
const SETTLED_MS = 150;
const MOST_ROWS = 300; // as console/live_state.py
const perS = (value) => f.withUnit(value, "tok/s");

const INSTANCE = { running: f.significant, waiting: f.significant, kv_ratio: f.percent,
  prompt_tokens_per_s: perS, generation_tokens_per_s: perS };
const LINK = { tx_gbps: f.gbps, capacity_gbps: f.gbps, utilisation_ratio: f.percent,
  retransmit_ratio: f.percent, rtt_s: f.duration, connections: f.significant };

function showRows(selector, key, readings, columns) {
  for (const row of document.querySelectorAll(selector)) {
    const reading = readings[row.dataset[key]];
    if (reading) showRow(row, reading, columns);
  }
}

function showRow(row, reading, columns, freshState = ["good", _("fresh")]) {
  const silent = serverNow() - reading.received_s > STALE_S;
  const known = !silent && reading.state === "ok";
  row.classList.toggle("aside", !known);
  for (const [field, write] of Object.entries(columns)) {
    const value = known || silent ? reading[field] : null;
    setText(row.querySelector(`[data-cell="${field}"]`), write(value), { title: f.exact(value) });
  }
  const state = row.querySelector('[data-cell="state"]');
  if (silent) setState(state, "warn", _("silent since %s", f.clock(reading.received_s)));
  else if (!known) setState(state, ...unread(reading));
  else if (reading.down_since_s != null) setState(state, "bad", _("down"));
  else setState(state, ...freshState);
  const age = row.querySelector('[data-cell="age"] time');
  if (age) {
    age.dataset.ago = reading.received_s;
    setText(age, f.age(serverNow() - reading.received_s), { title: f.stamp(reading.received_s) });
  }
}

// A fresh reading says nothing of congestion: the state of a link is what the loop found.
function showLinks({ loop, links }) {
  for (const row of document.querySelectorAll("[data-link]")) {
    const id = row.dataset.link;
    const found = judged(loop, id);
    const reading = links[id];
    const state = found ? [found.tone, found.words] : ["off", _("not judged yet")];
    if (reading) showRow(row, reading, LINK, state);
    if (reading) showPath(row.querySelector('[data-cell="path"]'), reading);
    if (found) showFound(row, found, reading);
    else row.querySelector('[data-cell="since"]')?.setAttribute("hidden", "");
  }
}

// A link that carries on fewer ports than it has is no trouble of the traffic yet.
function showPath(cell, reading) {
  if (!cell) return;
  const trouble = isRead(reading) ? reading.path_trouble : "";
  cell.hidden = !trouble;
  if (trouble) setState(cell, "warn", trouble);
}

// What follows from a state is rendered by the server: asked for again when it is another one.
function showFound(row, found, reading) {
  if (row.dataset.judged !== `${found.label} ${found.breaker}`) refresh("sources", "judged");
  const same = row.dataset.judged.startsWith(`${found.label} `);
  const since = row.querySelector('[data-cell="since"]');
  if (since) since.hidden = !same || found.old || !isRead(reading);
  const told = row.nextElementSibling;
  if (same && told?.dataset.told === row.dataset.link) {
    setText(told.querySelector('[data-cell="signs"]'), found.signs);
  }
}

const isRead = (reading) => reading && reading.state === "ok"
  && reading.down_since_s == null && serverNow() - reading.received_s <= STALE_S;

// An engine that changed its role says so in its next reading.
function showRole(row, reading) {
  if (!reading.role) return;
  setText(row.querySelector('[data-cell="role"]'), reading.role, { flash: true });
  const hue = reading.role === "decode" ? "decode"
    : row.dataset.kind === "prefill" ? "remote" : "local";
  const swatch = row.querySelector(".swatch");
  if (swatch) swatch.className = `swatch ${hue}`;
}

function showReported({ pools, at_s: atS }) {
  const heard = serverNow() - atS <= STALE_S;
  for (const row of document.querySelectorAll("tr[data-roles]")) {
    const mine = Object.entries(pools).filter(([name]) => name.split("/")[0] === row.dataset.roles);
    const n = (role) => (heard ? pools[`${row.dataset.roles}/${role}`]?.n_fresh ?? 0 : 0);
    const nRead = heard ? mine.reduce((sum, [, pool]) => sum + pool.n_fresh, 0) : 0;
    const nUnread = mine.reduce((sum, [, pool]) => sum + pool.n, 0) - nRead;
    setText(row.querySelector('[data-cell="reported"]'),
      (nRead ? `${n("prefill")}/${n("decode")}` : f.NONE)
        + (nUnread ? _(", %s not read", nUnread) : ""), { flash: true });
  }
}

// Of a large fleet frames tell of the rows that are on screen, and of those asked for when scrolled.
const onScreen = new Set();
let settled = null;
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) onScreen.add(target);
    else onScreen.delete(target);
  }
  clearTimeout(settled);
  settled = setTimeout(() => live.look(shown("instance"), shown("agent")), SETTLED_MS);
}, { rootMargin: "200px" });

const shown = (key) => [...onScreen].map((row) => row.dataset[key]).filter(Boolean)
  .sort().slice(0, MOST_ROWS);

function watchRows() {
  observer.disconnect();
  onScreen.clear();
  for (const row of document.querySelectorAll("[data-instance], [data-agent]")) {
    observer.observe(row);
  }
}

function show() {
  const { frame } = live;
  if (!frame) return;
  for (const row of document.querySelectorAll("[data-instance]")) {
    const reading = frame.instances[row.dataset.instance];
    if (reading) showRole(row, reading);
  }
  showReported(frame);
  showRows("[data-instance]", "instance", frame.instances, INSTANCE);
  showLinks(frame);
  showRows("[data-agent]", "agent", Object.fromEntries(Object.entries(frame.agents).map(
    ([name, agent]) => [name, { ...agent, state: "ok" }])), {});
  showGates(frame.routers, (atS) => serverNow() - atS <= STALE_S);
}

watchRows();
live.addEventListener("frame", show);
live.addEventListener("state", show);
document.addEventListener("regions", watchRows);
document.addEventListener("regions", show);
