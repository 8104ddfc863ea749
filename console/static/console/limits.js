// What limits the fleet: the stages by how full they are, the tightest in a sentence.

import { element, setText } from "./dom.js";
import * as f from "./format.js";
import { fresh } from "./page.js";
import { stageHue, stageWords } from "./stages.js";

export function showLimits(loop) {
  const current = loop?.current;
  const sentence = document.getElementById("limits-sentence");
  const list = document.getElementById("limits");
  if (!current) {
    if (loop) setText(sentence, loop.message);
    list.replaceChildren();
    return;
  }
  const stages = [...current.stages].sort((a, b) =>
    (b.utilisation_ratio ?? Infinity) - (a.utilisation_ratio ?? Infinity));
  const growth = current.headroom - 1;
  const first = stageWords(current.bottleneck);
  setText(sentence, growth >= 0
    ? `${first} binds. If demand grows ${f.percent(growth)}, it saturates first.`
    : `${first} is over its capacity: demand exceeds it by ${f.percent(1 / current.headroom - 1)}, `
      + "queues grow.");
  const rows = stages.slice(0, 6).flatMap((stage) => {
    const use = stage.utilisation_ratio;
    const binds = stage.name === current.bottleneck;
    const fill = element("i", { class: stageHue(stage.name) });
    fill.classList.toggle("over", use === null || use > 1);
    fill.style.width = `${Math.min(100, 100 * (use ?? 1))}%`;
    return [
      element("span", binds ? { class: "binding" } : {}, stageWords(stage.name)),
      element("div", { class: "bar" }, fill),
      element("span", { class: binds ? "num binding" : "num",
        title: `carries ${f.rate(stage.capacity_rps)} at most` },
      use === null ? "no capacity" : f.percent(use)),
    ];
  });
  list.replaceChildren(...rows);
  const stale = !fresh(loop.at_s);
  const ageNode = document.getElementById("limits-age");
  setText(ageNode, stale ? `since ${f.clock(loop.at_s)}` : "at the present demand");
  ageNode.classList.toggle("warn", stale);
}
