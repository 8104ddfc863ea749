// The fleet page's tables: cells of the rows in view follow the live frames.

import { serverNow } from "./clock.js";
import { setState, setText } from "./dom.js";
import * as f from "./format.js";
import { showGates } from "./gates.js";
import { judged } from "./links.js";
import { live } from "./live.js";
import { unread } from "./readings.js";
import { refresh } from "./refresh.js";

const STALE_S = Number(document.body.dataset.staleS);
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

function showRow(row, reading, columns, freshState = ["good", "fresh"]) {
  const silent = serverNow() - reading.received_s > STALE_S;
  const known = !silent && reading.state === "ok";
  row.classList.toggle("aside", !known);
  for (const [field, write] of Object.entries(columns)) {
    const value = known || silent ? reading[field] : null;
    setText(row.querySelector(`[data-cell="${field}"]`), write(value), { title: f.exact(value) });
  }
  const state = row.querySelector('[data-cell="state"]');
  if (silent) setState(state, "warn", `silent since ${f.clock(reading.received_s)}`);
  else if (!known) setState(state, ...unread(reading));
  else if (reading.down_since_s != null) setState(state, "bad", "down");
  else setState(state, ...freshState);
  const age = row.querySelector('[data-cell="age"] time');
  if (age) {
    age.dataset.ago = reading.received_s;
    setText(age, f.age(serverNow() - reading.received_s), { title: f.stamp(reading.received_s) });
  }
}

// A fresh reading says nothing of congestion: the state of a link is what the loop found.
function showLinks({ loop, links }) {
  for (const row of document.querySelectorAll("tr[data-link]")) {
    const id = row.dataset.link;
    const found = judged(loop, id);
    const reading = links[id];
    const state = found ? [found.tone, found.words] : ["off", "not judged yet"];
    if (reading) showRow(row, reading, LINK, state);
    if (found) showFound(row, found, reading);
  }
}

// What follows from a state is rendered by the server: asked for again when it is another one.
function showFound(row, found, reading) {
  if (row.dataset.judged !== `${found.label} ${found.breaker}`) refresh("sources");
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
  row.querySelector(".swatch").className = `swatch ${hue}`;
}

function showReported(instances) {
  for (const row of document.querySelectorAll("tr[data-roles]")) {
    const mine = Object.entries(instances).filter(([path]) =>
      path.split("/")[1] === row.dataset.roles).map(([, reading]) => reading);
    const read = mine.filter((reading) =>
      reading.state === "ok" && serverNow() - reading.received_s <= STALE_S);
    const n = (role) => read.filter((reading) => reading.role === role).length;
    const unread = mine.length - read.length;
    setText(row.querySelector('[data-cell="reported"]'),
      (read.length ? `${n("prefill")}/${n("decode")}` : f.NONE)
        + (unread ? `, ${unread} not read` : ""), { flash: true });
  }
}

function show() {
  const { frame } = live;
  if (!frame) return;
  for (const row of document.querySelectorAll("tr[data-instance]")) {
    const reading = frame.instances[row.dataset.instance];
    if (reading) showRole(row, reading);
  }
  showReported(frame.instances);
  showRows("tr[data-instance]", "instance", frame.instances, INSTANCE);
  showLinks(frame);
  showRows("tr[data-agent]", "agent", Object.fromEntries(Object.entries(frame.agents).map(
    ([name, agent]) => [name, { ...agent, state: "ok" }])), {});
  showGates(frame.routers, (atS) => serverNow() - atS <= STALE_S);
}

live.addEventListener("frame", show);
live.addEventListener("state", show);
document.addEventListener("regions", show);
