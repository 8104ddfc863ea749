// The overview: figures, limits, topology and charts of one fleet, kept up to date from live frames.

import { Board } from "./charts.js";
import { serverNow } from "./clock.js";
import { showGates } from "./gates.js";
import { showKpis } from "./kpis.js";
import { overCapacity, showLimits } from "./limits.js";
import { api, live } from "./live.js";
import { fresh, page, reread } from "./page.js";
import { append, isManyLinks, loadMore, manyLines, names, plots, series } from "./plots.js";
import { refresh } from "./refresh.js";
import { fetchHistory } from "./series.js";
import { range } from "./time.js";
import { Topology } from "./topology.js";

const MARKED = new Set(["decision", "policy", "rebalance"]);
const AGAIN_MS = 15000;

const topology = new Topology(document.getElementById("topology"), page);
const board = new Board();

document.querySelector(".charts").classList.toggle("many", manyLines);
for (const plot of plots) {
  board.add({ ...plot, node: document.getElementById(`chart-${plot.name}`),
    legend: document.getElementById(`legend-${plot.name}`) });
}

let history = null;
let loadedFor = null;

async function loadHistory() {
  if (history) return;
  const [from, to] = range.bounds();
  loadedFor = `${range.name}|${range.pinned}`;
  history = Promise.all([fetchHistory(api, names, from, to, series.points), loadMore(from, to)]);
  try {
    const [answer] = await history;
    series.load(answer, serverNow());
  } catch {
    // The console is away: the banner says so, and coming back asks for history again.
    loadedFor = null;
  }
  history = null;
  if (loadedFor !== null && loadedFor !== `${range.name}|${range.pinned}`) loadHistory();
  board.markAll();
}

// The server says what is over its capacity, in words: where the figures say another thing by now,
// it is asked again.
function agreeOnCapacity(loop) {
  const over = overCapacity(loop).sort().join("|");
  const node = document.getElementById("findings-now");
  if (loop && node && node.dataset.over !== over) refresh("findings-now");
}

function show(frame) {
  showKpis(frame);
  showLimits(frame.loop);
  agreeOnCapacity(frame.loop);
  showGates(frame.routers, fresh);
  const stages = new Map((frame.loop?.current?.stages ?? []).map((s) => [s.name, s]));
  topology.update(frame, stages, fresh);
}

live.addEventListener("frame", ({ detail: { frame, gap } }) => {
  show(frame);
  if (range.pinned === null) {
    append(frame);
    series.trim(range.bounds()[0] - series.silenceS);
    board.tick();
  }
  if (gap || (frame.events ?? []).some((event) => MARKED.has(event.type))) loadHistory();
});
live.addEventListener("state", () => {
  if (live.frame) show(live.frame);
  board.markAll();
});
document.addEventListener("regions", ({ detail: ids }) => {
  if (ids.includes("page-data")) reread();
  if (live.frame) show(live.frame);
});
range.addEventListener("change", loadHistory);
setInterval(() => live.silent && live.frame && show(live.frame), 1000);
// A ranking of many links is the console's to make: no frame tells it.
setInterval(() => isManyLinks && !document.hidden && !live.silent && range.pinned === null
  && loadMore(...range.bounds()).then(() => board.markAll(), () => null), AGAIN_MS);
loadHistory();
