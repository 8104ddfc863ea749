// What is missing, since when, what still works: the sentences of console/missing.py, kept up to
// date with the frames. When nothing is heard they stay and say of when they are.

import { serverNow } from "./clock.js";
import { element, icon } from "./dom.js";
import { clock, duration } from "./format.js";
import { _ } from "./i18n.js";
import { live } from "./live.js";

const list = document.getElementById("missing");
let shown = null;

function words(finding) {
  const { what, effect } = finding.said?.[document.documentElement.lang] ?? finding;
  const text = element("span", {}, element("strong", {}, what));
  if (finding.since_s !== null) {
    const lasts = duration(Math.max(0, Math.floor(serverNow() - finding.since_s)));
    const [before, after] = _("for %1 (since %2)", "\n", clock(finding.since_s)).split("\n");
    text.append(` ${before}`, element("time", { "data-since": finding.since_s }, lasts), after);
  }
  text.append(`: ${effect}.`);
  return text;
}

export function showMissing() {
  const found = live.frame?.missing;
  if (!found) return;
  const asOf = live.silent && found.length > 0 ? live.heardS : null;
  const key = JSON.stringify([found, asOf]);
  if (key === shown) return;
  shown = key;
  const rows = found.map((finding) => element("li", { class: finding.tone },
    icon(finding.tone === "bad" ? "bad" : "warn"), words(finding)));
  if (asOf !== null) {
    rows.unshift(element("li", { class: "as-of" }, icon("wait"),
      element("span", {}, _("As last heard at %s:", clock(asOf)))));
  }
  list.replaceChildren(...rows);
  list.hidden = rows.length === 0;
}

live.addEventListener("frame", showMissing);
live.addEventListener("state", showMissing);
