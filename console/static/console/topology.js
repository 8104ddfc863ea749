// Clusters as cards, links as pipes between them: width is capacity, fill is use. A fleet of many
// shows the fullest of each and folds the rest. All of it leads to the page of what it shows, and
// says in words what the picture shows.

import { serverNow } from "./clock.js";
import { element, setText, svg } from "./dom.js";
import { clock, duration, exact, gbps, percent, significant } from "./format.js";
import { _, n_ } from "./i18n.js";
import { judged, trouble } from "./links.js";
import { clusterPage, instancesPage, linkPage, linksPage } from "./places.js";
import { unread } from "./readings.js";

const WIDEST = 26;
const THINNEST = 8;
const MOST_PIPES = 4;
const MOST_CARDS = 8;
const MOST_LISTED = 12;
const RANK_S = 15;
const LOSSY = 0.001;

export class Topology {
  constructor(root, { clusters, links }) {
    this.root = root;
    this.links = links;
    this.clusters = clusters;
    this.rankedAtS = -Infinity;
    this.cards = new Map();
    this.drawing = svg("svg", { "aria-hidden": "true" });
    root.append(this.drawing);
    this.rows = new Map([["top-row", "prefill"], ["bottom-row", "pd"]].map(([name, kind]) =>
      [kind, this.addRow(name, clusters.filter((c) => c.kind === kind))]));
    this.list = element("ul", { class: "link-list plain" });
    this.more = element("details", { class: "folded", hidden: "" }, element("summary"),
      element("ul", { class: "link-list plain" }));
    // Between the rows, as they are seen: the focus goes down the page.
    this.below = this.rows.get("pd").row.parentElement;
    this.below.before(element("div", { class: "link-lists" }, this.list, this.more));
    this.pipes = new Map(links.map((link) => [link.id, this.addPipe(link)]));
    this.list.append(...[...this.pipes.values()].map(({ entry }) => entry));
    this.rank(null);
    // A card that grows moves the ends of its pipes.
    const watcher = new ResizeObserver(() => this.layOut());
    for (const node of [root, ...root.querySelectorAll(".cluster")]) watcher.observe(node);
  }

  addRow(name, clusters) {
    const row = element("div", { class: `row ${name}` });
    const rest = element("details", { class: "folded", hidden: "" }, element("summary"),
      element("ul", { class: "plain folded-cards" }));
    for (const cluster of clusters) this.addCard(cluster);
    row.append(...clusters.map(({ name: of }) => this.cards.get(of).card));
    const part = element("div", { class: `part ${name}` }, row, rest);
    this.root.append(part);
    return { row, rest, names: clusters.map((c) => c.name) };
  }

  addCard(cluster) {
    const isPd = cluster.kind === "pd";
    const kind = isPd ? _("prefill and decode") : _("prefill");
    const card = element("div", { class: "cluster" },
      element("div", { class: "name" },
        element("a", { href: clusterPage(cluster.name), title: cluster.name },
          element("strong", {}, element("bdi", {}, cluster.name))),
        element("span", { class: "muted" }, `${cluster.instances}× ${cluster.profile}, ${kind}`)));
    const pools = new Map();
    for (const role of isPd ? ["prefill", "decode"] : ["prefill"]) {
      const hue = role === "decode" ? "decode" : isPd ? "local" : "remote";
      const bar = element("i", { class: hue });
      const parts = {
        bar,
        nums: element("span", { class: "nums" }, _("not read yet")),
        use: element("span", { class: "use" }, "–"),
      };
      const href = instancesPage({ cluster: cluster.name, role });
      card.append(element("div", { class: "pool" }, element("i", { class: `swatch ${hue}` }),
        element("a", { href }, role === "decode" ? _("decode") : _("prefill")),
        element("div", { class: "bar" }, bar), parts.nums, parts.use));
      pools.set(role, parts);
    }
    const asked = element("div", { class: "roles muted" });
    if (isPd) card.append(asked);
    this.cards.set(cluster.name, { card, pools, asked, isPd, use: null });
  }

  addPipe(link) {
    const href = linkPage(link.id);
    const name = `${link.source} → ${link.target}`;
    const parts = {
      width: THINNEST,
      gbps: link.gbps,
      use: null,
      all: svg("path", { class: "pipe unknown" }),
      fill: svg("path", { class: "pipe-use", "stroke-width": 0 }),
      arrow: svg("path", { class: "pipe-arrow" }),
      label: element("a", { class: "link-label", href }, "–"),
      bar: element("i", { class: "remote" }),
      words: element("span", { class: "num" }, "–"),
    };
    parts.anchor = element("a", { href, title: name }, element("bdi", {}, name));
    parts.entry = element("li", {}, parts.anchor, element("div", { class: "bar" }, parts.bar),
      parts.words);
    this.drawing.append(parts.all, parts.fill, parts.arrow);
    this.below.before(parts.label);
    return parts;
  }

  // Now and then the fullest come to the front; in between nothing jumps.
  rank(atS) {
    if (atS !== null && atS - this.rankedAtS < RANK_S) return;
    if (this.root.contains(document.activeElement)) return;
    if (atS !== null) this.rankedAtS = atS;
    for (const { row, rest, names } of this.rows.values()) {
      if (names.length <= MOST_CARDS) continue;
      const ranked = [...names].sort((a, b) => (this.cards.get(b).use ?? -1)
        - (this.cards.get(a).use ?? -1));
      row.replaceChildren(...ranked.slice(0, MOST_CARDS).map((name) => this.cards.get(name).card));
      this.fold(rest, ranked.slice(MOST_CARDS));
    }
    if (this.links.length <= MOST_LISTED) return;
    const ranked = [...this.pipes].sort(([, a], [, b]) => (b.use ?? -1) - (a.use ?? -1));
    const left = ranked.slice(MOST_LISTED);
    this.list.replaceChildren(...ranked.slice(0, MOST_LISTED).map(([, { entry }]) => entry));
    this.more.hidden = false;
    this.more.querySelector("ul").replaceChildren(...left.map(([, { entry }]) => entry),
      element("li", {}, element("a", { href: linksPage() }, _("The list of links, to sort and filter"))));
    const most = left[0]?.[1].use ?? null;
    setText(this.more.querySelector("summary"), most === null
      ? n_("%1 link more", "%1 links more", left.length)
      : n_("%1 link more, %2 used", "%1 links more, %2 used at most", left.length, percent(most)));
  }

  fold(rest, names) {
    rest.hidden = names.length === 0;
    const most = Math.max(...names.map((name) => this.cards.get(name).use ?? -1));
    setText(rest.querySelector("summary"), most < 0
      ? n_("%1 cluster more", "%1 clusters more", names.length)
      : n_("%1 cluster more, %2 busy", "%1 clusters more, %2 busy at most", names.length,
        percent(most)));
    rest.querySelector("ul").replaceChildren(...names.map((name) => element("li", {},
      element("a", { href: clusterPage(name) }, element("bdi", {}, name)),
      ` ${percent(this.cards.get(name).use)}`)));
  }

  // Several pipes on one card are spread over its width. Too many of them, or cards that had to
  // wrap, would be a knot: then the links are listed between the rows instead.
  layOut() {
    const wrapped = [...this.root.querySelectorAll(".row")].some((row) =>
      new Set([...row.children].map((card) => card.offsetTop)).size > 1);
    const listed = wrapped || this.links.length > MOST_PIPES;
    this.root.classList.toggle("listed", listed);
    if (!listed) this.layPipes();
  }

  // A link may lead either way: down from a PrfaaS cluster, or up to one.
  layPipes() {
    const box = this.root.getBoundingClientRect();
    const at = (name, link) => {
      const { card, isPd } = this.cards.get(name);
      const { left, width, top, bottom } = card.getBoundingClientRect();
      const ends = this.links.filter((l) => l.source === name || l.target === name);
      const x = left - box.left + (width * (ends.indexOf(link) + 1)) / (ends.length + 1);
      return [x, (isPd ? top : bottom) - box.top];
    };
    const widest = Math.max(...[...this.pipes.values()].map((pipe) => pipe.gbps), 1e-9);
    this.links.forEach((link, i) => {
      const [x1, y1] = at(link.source, link);
      const [x2, y2] = at(link.target, link);
      const ahead = y2 > y1 ? 1 : -1;
      const end = y2 - 9 * ahead;
      const middle = (y1 + end) / 2;
      const path = `M${x1} ${y1} C${x1} ${middle} ${x2} ${middle} ${x2} ${end}`;
      const pipe = this.pipes.get(link.id);
      pipe.width = THINNEST + (WIDEST - THINNEST) * Math.sqrt(pipe.gbps / widest);
      pipe.all.setAttribute("d", path);
      pipe.all.setAttribute("stroke-width", pipe.width);
      pipe.fill.setAttribute("d", path);
      const half = pipe.width / 2 + 4;
      pipe.arrow.setAttribute("d", `M${x2 - half} ${end} h${2 * half} L${x2} ${y2 - ahead} Z`);
      // Labels of neighbours sit near opposite ends, where their pipes are apart.
      const fromTop = this.links.length === 1 ? 0.5 : i % 2 ? 0.74 : 0.26;
      const u = ahead > 0 ? fromTop : 1 - fromTop;
      const bend = 3 * u * u - 2 * u * u * u; // x of the curve at u: its ends are upright
      pipe.label.style.left = `${x1 + (x2 - x1) * bend}px`;
      pipe.label.style.top = `${y1 + (end - y1) * u}px`;
    });
  }

  // `stages` by name as the loop predicts them; `fresh(atS)` tells whether a reading still counts.
  update(frame, stages, fresh) {
    for (const [name, card] of this.cards) {
      showRoles(card.asked, frame.loop?.plan?.clusters[name],
        (role) => frame.pools[`${name}/${role}`]);
      card.use = null;
      for (const [role, parts] of card.pools) {
        const key = role === "decode" ? "decode" : card.isPd ? "local_prefill" : "remote_prefill";
        const use = showPool(parts, frame.pools[`${name}/${role}`], stages.get(`${key}:${name}`), role);
        if (use !== null) card.use = Math.max(card.use ?? 0, use);
      }
    }
    const was = [...this.pipes.values()].map((pipe) => pipe.gbps).join();
    for (const link of this.links) {
      const reading = frame.links[link.id];
      this.showPipe(this.pipes.get(link.id), link, reading, reading && fresh(reading.received_s),
        frame.loop);
    }
    this.rank(serverNow());
    const isWider = was !== [...this.pipes.values()].map((pipe) => pipe.gbps).join();
    if (isWider && !this.root.classList.contains("listed")) this.layPipes();
  }

  showPipe(pipe, link, reading, isFresh, loop) {
    const found = trouble(loop, link.id);
    const breaker = judged(loop, link.id)?.breaker;
    const state = stateOf(reading, isFresh, found, breaker);
    const { known, down, use } = state;
    pipe.use = use;
    if (known && reading.capacity_gbps > 0) pipe.gbps = reading.capacity_gbps;
    const isBroken = (reading && reading.state !== "ok") || down || breaker === "open";
    pipe.all.setAttribute("class", `pipe${isBroken ? " broken" : known ? "" : " unknown"}`);
    pipe.fill.setAttribute("stroke-width",
      use && !isBroken ? Math.max(1.5, pipe.width * Math.min(1, use)) : 0);
    pipe.fill.setAttribute("class", `pipe-use${use > 0.9 ? " over" : ""}${state.lossy ? " lossy" : ""}`);
    pipe.bar.style.width = `${Math.min(100, 100 * (use ?? 0))}%`;
    pipe.bar.classList.toggle("over", use > 0.9);
    const isBad = down || breaker === "open" || (known && found?.tone === "bad");
    for (const words of [pipe.label, pipe.words]) {
      words.classList.toggle("bad", Boolean(isBad));
      words.classList.toggle("warn", Boolean(reading) && !isBad && (!known || state.isTroubled));
    }
    setText(pipe.words, state.says);
    setText(pipe.label, this.links.length > 2 && known && !down ? state.brief : state.says, {
      title: known ? titleOf(link, reading, found) : link.id });
    const sentence = _("Link from %1 to %2: %3", link.source, link.target,
      spoken(state, reading, breaker));
    for (const anchor of [pipe.label, pipe.anchor]) {
      if (anchor.getAttribute("aria-label") !== sentence) anchor.setAttribute("aria-label", sentence);
    }
  }
}

const BREAKERS = { open: _("breaker open"), half_open: _("breaker half open") };

// What is known of a link now, and how it is said: `says` in full, `brief` where room is short.
function stateOf(reading, isFresh, found, breaker) {
  const failed = reading && reading.state !== "ok";
  const known = Boolean(reading && isFresh && !failed);
  const down = known && reading.down_since_s !== null;
  const use = known ? reading.utilisation_ratio : null;
  const path = known && !down && reading.path_trouble ? _("path degraded") : "";
  const lossy = known && !down && reading.retransmit_ratio >= LOSSY;
  const loss = lossy ? _("loss %s", percent(reading.retransmit_ratio)) : "";
  const troubles = [found?.words, BREAKERS[breaker], path].filter(Boolean);
  let says = _("not read yet");
  if (failed) says = `⚠ ${unread(reading)[1]}`;
  else if (reading && !isFresh) says = `⚠ ${_("silent since %s", clock(reading.received_s))}`;
  else if (down) says = `⚠ ${_("down since %s", clock(reading.down_since_s))}`;
  else if (known) {
    says = _("%1 of %2, %3", gbps(reading.tx_gbps), significant(reading.capacity_gbps), percent(use));
    if (loss) says = `${says}, ${loss}`;
    if (path) says = `${says}, ⚠ ${path}`;
    const judgement = [found?.words, BREAKERS[breaker]].filter(Boolean).join(", ");
    if (judgement) says = `⚠ ${judgement}: ${says}`;
  }
  const brief = [troubles.length ? `⚠ ${troubles.join(", ")}` : "", percent(use), loss]
    .filter(Boolean).join(", ");
  return { known, down, use, says, brief, lossy, isTroubled: troubles.length > 0 };
}

// For those who do not see the picture: capacity, use, loss and breaker, whatever they are.
function spoken({ known, down, use, says }, reading, breaker) {
  if (!known || down) return says.replace("⚠ ", "");
  return [says.replaceAll("⚠ ", ""), _("%s used", percent(use)),
    _("loss %s", percent(reading.retransmit_ratio)),
    BREAKERS[breaker] ?? _("breaker closed")].join(", ");
}

function titleOf(link, reading, found) {
  const parts = [found ? `${found.words}, ${found.signs}` : "", reading.path_trouble].filter(Boolean);
  const read = _("%1 Gbps, round trip %2, %3 connections, loss %4", exact(reading.tx_gbps),
    duration(reading.rtt_s), exact(reading.connections), percent(reading.retransmit_ratio));
  return `${link.id}: ${[...parts, read].join("; ")}`;
}

// The share of its capacity that a pool uses, null where nobody is heard of.
function showPool(parts, pool, stage, role) {
  // The model goes on predicting for engines that nobody hears of: nothing is claimed for them.
  const heard = pool && pool.n_fresh > 0;
  const use = heard ? stage?.utilisation_ratio ?? null : null;
  parts.bar.style.width = `${Math.min(100, 100 * (use ?? 0))}%`;
  parts.bar.classList.toggle("over", use > 1);
  setText(parts.use, percent(use), {
    title: use === null ? _("Not measured or not predicted")
      : _("%s %% of its capacity at the present demand, by the model", exact(use * 100)),
  });
  parts.nums.classList.toggle("warn", Boolean(pool) && pool.n_fresh < pool.n);
  if (!pool) {
    setText(parts.nums, _("never read"));
  } else if (pool.n_fresh === 0) {
    setText(parts.nums, `⚠ ${_("%1 silent since %2", pool.n, clock(pool.at_s))}`);
  } else {
    const n = pool.n_fresh === pool.n ? `${pool.n}` : _("%1 of %2", pool.n_fresh, pool.n);
    const kv = role === "decode" && pool.kv_ratio !== null ? _(", kv %s", percent(pool.kv_ratio)) : "";
    setText(parts.nums, _("%1 up, %2 waiting", n, significant(pool.waiting)) + kv, {
      title: _("%1 running, %2 waiting, KV cache %3", exact(pool.running), exact(pool.waiting),
        percent(pool.kv_ratio)),
    });
  }
  return use;
}

// The roles that the plan asks for beside those that engines report.
function showRoles(node, plan, pool) {
  if (!plan) return;
  const wanted = `${plan.n_prefill}/${plan.n_decode}`;
  const [prefill, decode] = ["prefill", "decode"].map((role) => pool(role)?.n_fresh ?? 0);
  const seen = prefill + decode > 0 ? `${prefill}/${decode}` : _("not read");
  setText(node, seen === wanted ? _("roles %s as planned", seen)
    : _("roles %1, the plan asks %2", seen, wanted), { title: _("prefill/decode instances") });
  node.classList.toggle("warn", seen !== wanted);
}
