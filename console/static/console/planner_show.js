// An answer of the planner as text, bars and tables.

import { element, icon, setText } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import * as words from "./planner_words.js";
import { stageHue, stageWords } from "./stages.js";

const MOST_HOLDS = 8;

const { hold, can_operate: canOperate } = JSON.parse(
  document.getElementById("page-data").textContent);
const byId = (id) => document.getElementById(id);

export function showAnswer(answer, asked) {
  setText(byId("sentence"), words.best(answer));
  showFigures(words.figures(answer));
  showHolds(answer, asked);
  showStages(answer);
  showBaselines(answer);
  showCheapest(answer);
  setText(byId("hit-worth"), words.hitWorth(answer));
}

function bar(used, hue, markAt = null) {
  const fill = element("i", hue ? { class: hue } : {});
  fill.classList.toggle("over", used > 1);
  fill.style.width = `${Math.min(100, 100 * used)}%`;
  const whole = element("div", { class: "bar" }, fill);
  if (markAt !== null) {
    const mark = element("b");
    mark.style.left = `calc(${Math.min(100, 100 * markAt)}% - 1px)`;
    whole.append(mark);
  }
  return whole;
}

function showFigures(rows) {
  const node = byId("figures");
  if (node.childElementCount !== rows.length) {
    node.replaceChildren(...rows.map(([label]) => element("div", {},
      element("span", { class: "muted" }, label), element("strong"),
      element("span", { class: "muted under" }), element("div", { class: "bar" }))));
  }
  rows.forEach(([, figure, under, used, hue], i) => {
    const [, strong, small, old] = node.children[i].children;
    setText(strong, figure, { flash: true });
    setText(small, under);
    const now = used === null ? element("div", { class: "bar none" }) : bar(used, hue);
    old.replaceWith(now);
  });
}

function holdAddress({ cluster, threshold_tokens: t }, reason) {
  const query = new URLSearchParams({ cluster, span_s: "3600", reason,
    mode: t === null ? "always_local" : "threshold" });
  if (t !== null) query.set("threshold_tokens", t);
  return `${hold}?${query}`;
}

function showHolds(answer, asked) {
  const rows = words.holds(answer).slice(0, MOST_HOLDS);
  const parts = rows.flatMap((each) => {
    const what = words.threshold(each);
    const note = each.note ? [element("span", { class: "muted" }, each.note)] : [];
    if (!canOperate) return note;
    const link = element("a", { class: "button",
      href: holdAddress(each, words.holdReason(each, answer, asked)),
      title: _("Shows what it would do before anything is held") }, icon("held"),
    answer.clusters.length > 1 ? _("Apply %s as a hold in %s", what, each.cluster)
      : _("Apply %s as a hold", what));
    return [link, ...note];
  });
  if (!canOperate) {
    parts.push(element("span", { class: "muted" }, _("Only operators can apply t as a hold.")));
  }
  byId("actions").replaceChildren(...parts);
}

function showStages(answer) {
  setText(byId("stages-note"), words.inForce(answer));
  const running = new Map(answer.running.stages.map((s) => [s.name, s.utilisation_ratio]));
  const stages = [...answer.stages].sort((a, b) =>
    (b.utilisation_ratio ?? Infinity) - (a.utilisation_ratio ?? Infinity));
  byId("stages").replaceChildren(...stages.slice(0, 12).flatMap((stage) => {
    const binds = answer.optimum.binding.includes(stage.name) ? "binding" : "";
    const use = stage.utilisation_ratio;
    return [
      element("span", { class: binds }, stageWords(stage.name)),
      bar(use ?? 1.01, stageHue(stage.name), running.get(stage.name) ?? null),
      element("span", { class: `num ${binds}` }, use === null ? _("no capacity")
        : _("%s of %s", f.percent(use), f.rate(stage.capacity_rps))),
    ];
  }));
}

function showBaselines(answer) {
  const rows = words.baselines(answer);
  const most = Math.max(...rows.map(([, rate]) => rate));
  const best = rows[0][1];
  byId("baselines").replaceChildren(...rows.flatMap(([label, rate, roles], i) => [
    element("span", i === 0 ? { class: "binding" } : roles ? { title: roles } : {}, label),
    bar(rate / most, ""),
    element("span", { class: i === 0 ? "num binding" : "num" },
      i === 0 ? f.rate(rate) : `${f.rate(rate)}, ${words.times(rate / best)}`),
  ]));
  setText(byId("baselines-note"), words.baselinesNote(answer));
}

function showCheapest(answer) {
  const { cheapest } = answer;
  setText(byId("cheapest-basis"), cheapest.basis === "instances"
    ? _("by instances: not every profile has a cost_per_hour")
    : _("by cost_per_hour of the profiles"));
  setText(byId("cheapest-sentence"), words.cheapest(answer));
  setText(byId("cheapest-note"), words.cheapestNote(answer));
  const unit = cheapest.basis === "instances" ? _("Instances") : _("An hour");
  const rows = [...(cheapest.found ? [[_("Cheapest"), cheapest.found]] : []),
    ...cheapest.others.map((each) => ["", each]), [_("Now"), cheapest.now]];
  const head = element("thead", {}, element("tr", {},
    ...[_("Fleet"), unit, _("Headroom"), _("First token"), _("t and roles")].map((name) =>
      element("th", {}, name))));
  const body = element("tbody", {}, ...rows.map(([label, each]) => element("tr", {},
    element("th", {}, label ? `${label}: ` : "", words.fleetWords(each.counts)),
    cell(unit, f.significant(each.cost)),
    cell(_("Headroom"), words.times(each.headroom)),
    cell(_("First token"), f.missing(each.ttft_s) ? _("no end") : f.duration(each.ttft_s)),
    cell(_("t and roles"), Object.values(each.clusters).map(words.sized).join("; ")))));
  byId("cheapest-table").replaceChildren(element("table", { class: "stacked snug" }, head, body));
}

const cell = (label, text) => element("td", { "data-label": label, class: "nowrap" }, text);
