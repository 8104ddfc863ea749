// What happened, over the charts: decisions as marks that gather when there are many, holds and
// rebalances as spans. Each is a link with words of its own, so keys reach it as the pointer does.

import { serverNow } from "./clock.js";
import { element, setText } from "./dom.js";
import * as f from "./format.js";
import { _, n_ } from "./i18n.js";
import { cluster } from "./series.js";

const MOST_TOLD = 3;
const PLACES = { hold: "/fleet/#holds", rebalance: "/fleet/#rebalance",
  maintenance: "/windows/#maintenance" };
const NOTHING = { decisions: [], spans: [] };

// The marks of a fleet over a range, asked for once for all charts of a page.
export class Marks {
  constructor(api, fleet) {
    this.api = api;
    this.pages = `/fleets/${encodeURIComponent(fleet)}`;
    this.found = NOTHING;
  }

  async load(since, until) {
    const query = new URLSearchParams({ since, until });
    const answer = await fetch(`${this.api}/marks?${query}`,
      { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`marks: ${answer.status}`);
    this.found = await answer.json();
  }

  // What `Annotations.show` takes.
  get all() {
    return { ...this.found, pages: this.pages };
  }
}

// What a person asks of a change first; the rest is on the decision's page.
const NAMES = { threshold_tokens: "t", n_prefill: _("prefill"), n_decode: _("decode"),
  mode: _("mode"), band: _("band"), remote: _("remote shares") };

function told(field, value) {
  if (value === null || value === undefined) return f.NONE;
  if (field === "threshold_tokens") return f.tokens(value);
  if (Array.isArray(value)) return value.map(f.significant).join(" – ");
  if (typeof value !== "object") return String(value);
  return Object.entries(value).map(([name, share]) => `${name} ${f.significant(share)}`).join(", ");
}

export function changeWords(changes) {
  return Object.entries(changes).flatMap(([place, fields]) => {
    const shown = Object.keys(NAMES).filter((field) => field in fields).map((field) =>
      `${NAMES[field]} ${told(field, fields[field][0])} → ${told(field, fields[field][1])}`);
    return shown.length ? [`${place}: ${shown.join("; ")}`] : [];
  });
}

export function decisionWords(decision) {
  const tag = decision.version === null ? _("advised") : `v${decision.version}`;
  return [_("%s at %s, by %s", tag, f.moment(decision.at_s), decision.who),
    `${f.reasonWords(decision.reason)}: ${decision.message}`, ...changeWords(decision.changes)];
}

export function spanWords(span) {
  const where = span.cluster || _("every cluster");
  const until = span.until_s === null ? _("now") : f.clock(span.until_s);
  let head = _("Roles of %s %s → %s, %s to %s, by %s", where, span.before, span.after,
    f.clock(span.since_s), until, span.who);
  if (span.kind === "hold") {
    head = _("Held in %s, %s to %s, by %s", where, f.clock(span.since_s), until, span.who);
  } else if (span.kind === "maintenance") {
    head = _("Maintenance of %s, %s to %s, by %s", where, f.clock(span.since_s), until, span.who);
  }
  return span.reason ? [head, span.reason] : [head];
}

function groupWords(all) {
  const [first, last] = [all[0], all.at(-1)];
  const more = all.length - MOST_TOLD;
  return [n_("%s decision, %s to %s", "%s decisions, %s to %s", all.length, f.clock(first.at_s),
    f.clock(last.at_s)),
    ...all.slice(-MOST_TOLD).reverse().map((d) => decisionWords(d).slice(0, 2).join(". ")),
    ...(more > 0 ? [n_("and %s more", "and %s more", more)] : [])];
}

export class Annotations {
  constructor(node) {
    this.node = node;
    this.layer = element("div", { class: "marks" });
    this.words = element("div", { class: "mark-words", role: "tooltip", hidden: "" });
    this.words.id = `${node.id}-words`;
    node.append(this.layer, this.words);
    this.key = "";
  }

  // Marks stand where their moments are; they are made anew only when others come into view.
  show({ decisions, spans, pages }, [from, to]) {
    const axis = this.node._fullLayout.xaxis;
    Object.assign(this.layer.style, { left: `${axis._offset}px`, width: `${axis._length}px` });
    const groups = cluster(decisions, from, to);
    const inView = spans.filter((s) => s.since_s <= to && (s.until_s ?? to) >= from);
    const key = [...groups.map((g) => g.all.map((d) => d.id)),
      ...inView.map((s) => `${s.kind}${s.id}${s.until_s}`)].join("|");
    if (key !== this.key) this.make(groups, inView, pages, key);
    const place = (atS) => `${100 * Math.min(1, Math.max(0, (atS - from) / (to - from)))}%`;
    inView.forEach((span, i) => {
      const { style } = this.layer.children[i];
      style.left = place(span.since_s);
      style.right = `calc(100% - ${place(span.until_s ?? serverNow())})`;
    });
    groups.forEach((group, i) => {
      this.layer.children[inView.length + i].style.left = place(group.at_s);
    });
  }

  make(groups, spans, pages, key) {
    this.key = key;
    this.hide();
    this.layer.replaceChildren(
      ...spans.map((span) => this.link(`span ${span.kind}`,
        pages + PLACES[span.kind], spanWords(span))),
      ...groups.map(({ all }) => {
        const [first, last] = [all[0], all.at(-1)];
        if (all.length === 1) {
          return this.link(`mark${last.version === null ? " advised" : ""}`,
            `${pages}/decisions/${last.id}/`, decisionWords(last));
        }
        const range = `from=${Math.floor(first.at_s)}&to=${Math.ceil(last.at_s) + 1}`;
        return this.link("mark several", `${pages}/decisions/?${range}`, groupWords(all),
          String(all.length));
      }));
  }

  link(look, href, words, text = "") {
    const made = element("a", { class: look, href, "aria-label": words.join(". ") },
      element("span", {}, text));
    for (const type of ["pointerenter", "focus"]) {
      made.addEventListener(type, () => this.tell(made, words));
    }
    for (const type of ["pointerleave", "blur"]) made.addEventListener(type, () => this.hide());
    return made;
  }

  tell(mark, words) {
    this.words.replaceChildren(...words.map((text) => element("p", {}, text)));
    this.words.hidden = false;
    const middle = mark.offsetLeft + this.layer.offsetLeft;
    this.words.classList.toggle("left", middle > this.node.clientWidth / 2);
    this.words.style.setProperty("--at", `${middle}px`);
  }

  hide() {
    this.words.hidden = true;
    setText(this.words, "");
  }
}
