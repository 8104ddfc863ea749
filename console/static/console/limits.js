// What limits the fleet: the stages by how full they are, the tightest in a sentence.

import { element, setText } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { fresh } from "./page.js";
import { stagePage } from "./places.js";
import { stageHue, stageWords } from "./stages.js";

export function showLimits(loop) {
  const current = loop?.current;
  const sentence = document.getElementById("limits-sentence");
  const list = document.getElementById("limits");
  if (!current) {
    if (loop) setText(sentence, loop.message);
    delete list.dataset.key;
    list.replaceChildren();
    return;
  }
  const stages = [...current.stages].sort((a, b) =>
    (b.utilisation_ratio ?? Infinity) - (a.utilisation_ratio ?? Infinity));
  const growth = current.headroom - 1;
  const first = stageWords(current.bottleneck);
  setText(sentence, growth >= 0
    ? _("%s binds. If demand grows %s, it saturates first.", first, f.percent(growth))
    : _("%s is over its capacity: demand exceeds it by %s, queues grow.", first,
      f.percent(1 / current.headroom - 1)));
  const shown = stages.slice(0, 6);
  const key = shown.map((stage) => `${stage.name} ${stage.name === current.bottleneck}`).join("|");
  // The same links stay, or a keyboard's focus would be lost with each frame.
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...shown.flatMap((stage) => row(stage, stage.name === current.bottleneck)));
  }
  shown.forEach((stage, i) => showUse(list, i, stage));
  const stale = !fresh(loop.at_s);
  const ageNode = document.getElementById("limits-age");
  setText(ageNode, stale ? _("since %s", f.clock(loop.at_s)) : _("at the present demand"));
  ageNode.classList.toggle("warn", stale);
}

// Names of the stages of which more is asked than they carry.
export function overCapacity(loop) {
  return (loop?.current?.stages ?? []).filter(({ utilisation_ratio: use }) => use === null || use > 1)
    .map(({ name }) => name);
}

function row({ name }, binds) {
  return [
    element("a", { href: stagePage(name), ...(binds && { class: "binding" }) }, stageWords(name)),
    element("div", { class: "bar" }, element("i", { class: stageHue(name) })),
    element("span", { class: binds ? "num binding" : "num" }),
  ];
}

function showUse(list, i, { utilisation_ratio: use, capacity_rps: capacity }) {
  const [, bar, words] = [...list.children].slice(3 * i, 3 * i + 3);
  bar.firstChild.classList.toggle("over", use === null || use > 1);
  bar.firstChild.style.width = `${Math.min(100, 100 * (use ?? 1))}%`;
  setText(words, use === null ? _("no capacity") : f.percent(use),
    { title: _("carries %s at most", f.rate(capacity)) });
}
