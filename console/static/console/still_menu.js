// The menu of a chart that no time passes over: the planner's, a backtest's, the request
// simulator's. Take it away as picture or table, the call of the API behind it, the whole screen.

import { element } from "./dom.js";
import { csv, csvBlob, download, fileName, png } from "./export.js";
import { _ } from "./i18n.js";
import { copy, curlOf } from "./share.js";

// table() -> [header, rows] of what is shown, without one every point that is drawn; call() -> the
// address of the API that answers with it. A plot that Plotly did not draw gives picture(title) ->
// its blob; a call that is no GET gives curl() -> the whole command.
export function addStillMenu(node, { table, call, picture, curl = () => curlOf(call()) }) {
  const panel = node.closest(".panel");
  const header = panel?.querySelector(":scope > header");
  if (!header || header.querySelector(".chart-menu")) return;
  const title = header.querySelector("h2, h3")?.textContent.trim() ?? node.id;
  const name = (ending) => fileName(`${document.body.dataset.fleet ?? ""} ${title}`, ending);
  const body = element("div", { class: "menu-body right" });
  const more = element("div", { class: "about", hidden: "", role: "status" });
  const menu = element("details", { class: "menu chart-menu", "data-menu": "" },
    element("summary", { class: "quiet", "aria-label": _("Menu of the chart %s", title),
      title: _("Picture, table, curl, full screen") },
    element("span", { "aria-hidden": "true" }, "⋯")), body);
  const tell = (part) => {
    more.replaceChildren(part);
    more.hidden = false;
  };
  const act = (label, run) => {
    const button = element("button", { type: "button" }, element("span", {}, label));
    button.addEventListener("click", () => run(button));
    body.append(button);
  };
  // A chart that says in words why there is nothing to draw has nothing to be taken away.
  const take = (label, run) => act(label, () => (picture || node._fullLayout ? run()
    : tell(element("p", {}, _("Nothing is drawn yet.")))));
  take(_("Picture (PNG)"), async () => download(name("png"),
    await (picture ? picture(title) : png(node, title))));
  take(_("Table of what is shown (CSV)"), () =>
    download(name("csv"), csvBlob(csv(...(table?.() ?? pointsOf(node.data))))));
  act(_("Copy as curl"), (button) => {
    const command = curl();
    copy(button, command);
    tell(element("code", { class: "command", tabindex: "0" }, command));
  });
  if (document.fullscreenEnabled) {
    act(_("Full screen"), () => {
      menu.open = false;
      if (document.fullscreenElement) document.exitFullscreen();
      else panel.requestFullscreen();
    });
  }
  body.append(more);
  menu.addEventListener("toggle", () => (more.hidden = true));
  panel.classList.add("with-menu");
  header.append(menu);
}

// [header, rows]: a row for each point of each line.
export function pointsOf(traces) {
  const rows = traces.flatMap(({ name, x, y }) =>
    y.map((value, i) => [name, x[i], value]).filter((row) => row[2] !== null));
  return [["series", "x", "y"], rows];
}
