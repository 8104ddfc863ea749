// Clusters as cards, links as pipes between them: width is capacity, fill is use.

import { element, setText, svg } from "./dom.js";
import { clock, duration, exact, gbps, percent, significant } from "./format.js";
import { trouble } from "./links.js";
import { unread } from "./readings.js";

const WIDEST = 26;
const THINNEST = 8;
const MOST_PIPES = 4;

export class Topology {
  constructor(root, { clusters, links }) {
    this.root = root;
    this.links = links;
    this.widestGbps = Math.max(...links.map((link) => link.gbps), 1);
    this.cards = new Map();
    this.drawing = svg("svg", { "aria-hidden": "true" });
    root.append(this.drawing);
    this.addRow("top-row", clusters.filter((c) => c.kind === "prefill"));
    this.addRow("bottom-row", clusters.filter((c) => c.kind === "pd"));
    this.list = element("div", { class: "link-list" });
    root.append(this.list);
    this.pipes = new Map(links.map((link) => [link.id, this.addPipe(link)]));
    new ResizeObserver(() => this.layOut()).observe(root);
  }

  addRow(name, clusters) {
    const row = element("div", { class: `row ${name}` });
    for (const cluster of clusters) row.append(this.addCard(cluster));
    this.root.append(row);
  }

  addCard(cluster) {
    const kind = cluster.kind === "pd" ? "prefill and decode" : "prefill";
    const card = element("div", { class: "cluster" },
      element("div", { class: "name" }, element("strong", {}, cluster.name),
        element("span", { class: "muted" }, `${cluster.instances}× ${cluster.profile}, ${kind}`)));
    const roles = cluster.kind === "pd" ? ["prefill", "decode"] : ["prefill"];
    const pools = new Map();
    for (const role of roles) {
      const hue = role === "decode" ? "decode" : cluster.kind === "pd" ? "local" : "remote";
      const bar = element("i", { class: hue });
      const parts = {
        bar,
        nums: element("span", { class: "nums" }, "not read yet"),
        use: element("span", { class: "use" }, "–"),
      };
      card.append(element("div", { class: "pool" }, element("i", { class: `swatch ${hue}` }),
        element("span", {}, role), element("div", { class: "bar" }, bar), parts.nums, parts.use));
      pools.set(role, parts);
    }
    const asked = element("div", { class: "roles muted" });
    if (cluster.kind === "pd") card.append(asked);
    this.cards.set(cluster.name, { card, pools, asked, isPd: cluster.kind === "pd" });
    return card;
  }

  addPipe(link) {
    const width = THINNEST + (WIDEST - THINNEST) * Math.sqrt(link.gbps / this.widestGbps);
    const parts = {
      width,
      all: svg("path", { class: "pipe unknown", "stroke-width": width }),
      use: svg("path", { class: "pipe-use", "stroke-width": 0 }),
      arrow: svg("path", { class: "pipe-arrow" }),
      label: element("div", { class: "link-label" }, "–"),
      bar: element("i", { class: "remote" }),
      words: element("span", { class: "num" }, "–"),
    };
    this.drawing.append(parts.all, parts.use, parts.arrow);
    this.root.append(parts.label);
    this.list.append(element("span", {}, `${link.source} → ${link.target}`),
      element("div", { class: "bar" }, parts.bar), parts.words);
    return parts;
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
    this.links.forEach((link, i) => {
      const [x1, y1] = at(link.source, link);
      const [x2, y2] = at(link.target, link);
      const ahead = y2 > y1 ? 1 : -1;
      const end = y2 - 9 * ahead;
      const middle = (y1 + end) / 2;
      const path = `M${x1} ${y1} C${x1} ${middle} ${x2} ${middle} ${x2} ${end}`;
      const pipe = this.pipes.get(link.id);
      pipe.all.setAttribute("d", path);
      pipe.use.setAttribute("d", path);
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
    for (const [name, { pools, asked }] of this.cards) {
      showRoles(asked, frame.loop?.plan?.clusters[name], (role) => frame.pools[`${name}/${role}`]);
      for (const [role, parts] of pools) {
        const key = role === "decode" ? "decode" : parts.bar.className.includes("remote")
          ? "remote_prefill" : "local_prefill";
        this.showPool(parts, frame.pools[`${name}/${role}`], stages.get(`${key}:${name}`), role);
      }
    }
    for (const link of this.links) {
      const reading = frame.links[link.id];
      const isFresh = reading && fresh(reading.received_s);
      this.showPipe(this.pipes.get(link.id), link, reading, isFresh, trouble(frame.loop, link.id));
    }
  }

  showPool(parts, pool, stage, role) {
    // The model goes on predicting for engines that nobody hears of: nothing is claimed for them.
    const heard = pool && pool.n_fresh > 0;
    const use = heard ? stage?.utilisation_ratio ?? null : null;
    parts.bar.style.width = `${Math.min(100, 100 * (use ?? 0))}%`;
    parts.bar.classList.toggle("over", use > 1);
    setText(parts.use, percent(use), {
      title: use === null ? "Not measured or not predicted"
        : `${exact(use * 100)} % of its capacity at the present demand, by the model`,
    });
    parts.nums.classList.toggle("warn", Boolean(pool) && pool.n_fresh < pool.n);
    if (!pool) {
      setText(parts.nums, "never read");
    } else if (pool.n_fresh === 0) {
      setText(parts.nums, `⚠ ${pool.n} silent since ${clock(pool.at_s)}`);
    } else {
      const n = pool.n_fresh === pool.n ? `${pool.n}` : `${pool.n_fresh} of ${pool.n}`;
      const kv = role === "decode" && pool.kv_ratio !== null ? `, kv ${percent(pool.kv_ratio)}` : "";
      setText(parts.nums, `${n} up, ${significant(pool.waiting)} waiting${kv}`, {
        title: `${exact(pool.running)} running, ${exact(pool.waiting)} waiting, `
          + `KV cache ${percent(pool.kv_ratio)}`,
      });
    }
  }

  showPipe(pipe, link, reading, isFresh, found) {
    const failed = reading && reading.state !== "ok";
    const known = reading && isFresh && !failed;
    const down = known && reading.down_since_s !== null;
    const use = known ? reading.utilisation_ratio : null;
    const path = known && !down ? reading.path_trouble : "";
    pipe.all.setAttribute("class", `pipe${failed || down ? " broken" : known ? "" : " unknown"}`);
    pipe.use.setAttribute("stroke-width", use ? Math.max(1.5, pipe.width * Math.min(1, use)) : 0);
    pipe.use.setAttribute("class", use > 0.9 ? "pipe-use over" : "pipe-use");
    let says = "not read yet";
    if (failed) says = `⚠ ${unread(reading)[1]}`;
    else if (reading && !isFresh) says = `⚠ silent since ${clock(reading.received_s)}`;
    else if (down) says = `⚠ down since ${clock(reading.down_since_s)}`;
    else if (known) {
      says = `${gbps(reading.tx_gbps)} of ${significant(reading.capacity_gbps)}, ${percent(use)}`;
      if (path) says = `${says}, ⚠ path degraded`;
      if (found) says = `⚠ ${found.words}: ${says}`;
    }
    for (const words of [pipe.label, pipe.words]) {
      const bad = down || (known && found?.tone === "bad");
      words.classList.toggle("warn", Boolean(reading) && !bad && (!known || Boolean(found || path)));
      words.classList.toggle("bad", Boolean(bad));
    }
    pipe.bar.style.width = `${Math.min(100, 100 * (use ?? 0))}%`;
    pipe.bar.classList.toggle("over", use > 0.9);
    setText(pipe.words, says);
    const troubles = [found?.words, path && "path degraded"].filter(Boolean).join(", ");
    const brief = troubles ? `⚠ ${troubles}, ${percent(use)}` : percent(use);
    const short = this.links.length > 2 && known && !down ? brief : says;
    setText(pipe.label, short, {
      title: known
        ? `${link.id}: ${found ? `${found.words}, ${found.signs}; ` : ""}${path ? `${path}; ` : ""}${exact(reading.tx_gbps)} Gbps, round trip ${duration(reading.rtt_s)}, `
          + `${exact(reading.connections)} connections, loss ${percent(reading.retransmit_ratio)}`
        : link.id,
    });
  }
}

// The roles that the plan asks for beside those that engines report.
function showRoles(node, plan, pool) {
  if (!plan) return;
  const wanted = `${plan.n_prefill}/${plan.n_decode}`;
  const [prefill, decode] = ["prefill", "decode"].map((role) => pool(role)?.n_fresh ?? 0);
  const seen = prefill + decode > 0 ? `${prefill}/${decode}` : "not read";
  setText(node, `roles ${seen}${seen === wanted ? " as planned" : `, the plan asks ${wanted}`}`,
    { title: "prefill/decode instances" });
  node.classList.toggle("warn", seen !== wanted);
}
