// The menu of a chart's panel: take it away as picture or table, the call of the API behind it, the
// whole screen, and what exactly is shown.

import { serverNow } from "./clock.js";
import { element } from "./dom.js";
import { csv, csvBlob, download, fileName, isoUtc, png, tableOf } from "./export.js";
import { age, duration, stamp } from "./format.js";
import { _ } from "./i18n.js";
import { copy, curlOf } from "./share.js";

// chart: {node, shown: traces, table?(), about?()}; board: {bounds()}. `about` gives
// {call(from, to) -> address of the API, binS, csv(from, to) -> address of a longer table, notes}.
export function addMenu(chart, board) {
  const panel = chart.node.closest(".panel");
  const header = panel?.querySelector(":scope > header");
  if (!header) return;
  const title = header.querySelector("h2, h3")?.textContent.trim() ?? chart.node.id;
  const body = element("div", { class: "menu-body right" });
  const more = element("div", { class: "about", hidden: "" });
  const menu = element("details", { class: "menu chart-menu", "data-menu": "" },
    element("summary", { class: "quiet", "aria-label": _("Menu of the chart %s", title),
      title: _("Picture, table, curl, full screen") },
    element("span", { "aria-hidden": "true" }, "⋯")), body);
  const act = (label, run) => {
    const button = element("button", { type: "button" }, element("span", {}, label));
    button.addEventListener("click", () => run(button));
    body.append(button);
  };
  act(_("Picture (PNG)"), () => takePicture(chart, board, title));
  act(_("Table of what is shown (CSV)"), () => takeTable(chart, board, title));
  if (chart.about?.().csv) act(_("Table of every source (CSV)"), () => takeEverything(chart, board));
  if (chart.about?.().call) {
    act(_("Copy as curl"), (button) => {
      const command = curlOf(chart.about().call(...board.bounds()));
      copy(button, command);
      tell(more, [element("code", { class: "command", tabindex: "0" }, command)]);
    });
  }
  if (document.fullscreenEnabled) act(_("Full screen"), () => toggleFull(panel, menu));
  act(_("What is shown"), () => tell(more, explained(chart, board, title)));
  body.append(more);
  menu.addEventListener("toggle", () => (more.hidden = true));
  panel.classList.add("with-menu");
  header.append(menu);
}

const named = (title, [from, to], ending) =>
  fileName(`${document.body.dataset.fleet ?? ""} ${title} ${isoUtc(from * 1000).slice(0, 19)}`
    + ` ${isoUtc(to * 1000).slice(0, 19)}`, ending);

async function takePicture(chart, board, title) {
  const bounds = board.bounds();
  download(named(title, bounds, "png"), await png(chart.node, title, bounds));
}

function takeTable(chart, board, title) {
  const [from, to] = board.bounds();
  const [header, rows] = chart.table?.(from, to) ?? tableOf(chart.shown ?? []);
  const shown = rows.filter(([at]) => at >= isoUtc(from * 1000) && at <= isoUtc(to * 1000));
  download(named(title, [from, to], "csv"), csvBlob(csv(header, shown)));
}

function takeEverything(chart, board) {
  const link = element("a", { href: chart.about().csv(...board.bounds()), download: "" });
  link.click();
}

function toggleFull(panel, menu) {
  menu.open = false;
  if (document.fullscreenElement) document.exitFullscreen();
  else panel.requestFullscreen();
}

document.addEventListener("fullscreenchange", () => {
  for (const node of document.querySelectorAll(".chart.js-plotly-plot")) Plotly.Plots.resize(node);
});

function tell(more, parts) {
  more.replaceChildren(...parts);
  more.hidden = false;
}

// Every series with its unit and the moment of its newest value, where it is from, how fine it is.
function explained(chart, board, title) {
  const [from, to] = board.bounds();
  const about = chart.about?.() ?? {};
  const rows = (chart.shown ?? []).filter((t) => t.name && t.hoverinfo !== "skip")
    .map((trace) => element("tr", {}, element("th", { scope: "row" }, trace.legend?.label ?? trace.name),
      element("td", {}, trace.meta?.unit ?? ""), element("td", {}, newest(trace))));
  const table = element("table", { class: "snug" },
    element("thead", {}, element("tr", {}, ...[_("Series"), _("Unit"), _("Newest value")]
      .map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
  const lines = [_("%s, %s to %s.", title, stamp(from), stamp(to)),
    about.binS ? _("At most one value each %s.", duration(about.binS)) : "",
    ...(about.notes ?? []), about.call ? _("From the API:") : ""].filter(Boolean);
  return [...lines.map((text) => element("p", {}, text)),
    ...(about.call ? [element("code", { class: "command", tabindex: "0" },
      `GET ${about.call(from, to)}`)] : []),
    ...(rows.length ? [table] : [])];
}

function newest({ x, y, z, legend }) {
  let atS = legend?.atS;
  if (atS === undefined && z) atS = x.at(-1) / 1000;
  if (atS === undefined) {
    let i = y.length - 1;
    while (i >= 0 && (y[i] === null || Number.isNaN(y[i]))) i -= 1;
    atS = i < 0 ? -Infinity : x[i] / 1000;
  }
  return Number.isFinite(atS) ? `${stamp(atS)}, ${age(serverNow() - atS)}` : _("never");
}
