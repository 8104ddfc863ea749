// Draws: columns in, no arithmetic. A Board holds the page's charts, redraws what is marked dirty,
// a chart per animation frame (several where they are quick), only charts in view, never in a hidden
// tab. Zooming one zooms all; the crosshair runs through all.

import { Annotations } from "./annotations.js";
import { addMenu } from "./chart_menu.js";
import { serverNow } from "./clock.js";
import { token } from "./colours.js";
import { element, setText } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { LiveLines } from "./live_lines.js";
import { axisTimes } from "./series.js";
import { range } from "./time.js";
import { moments, names, timeAxis } from "./time_axis.js";

export { token } from "./colours.js";

const MOST_LINES = 12;
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false,
  showTips: false };
// A finger on a chart scrolls the page; a mouse zooms.
const DRAG = matchMedia("(pointer: coarse)").matches ? false : "zoom";
const HOVER_MS = 90;
const SLOWEST_S = 10;
// A frame has room for another chart where those before it took less.
const QUICK_MS = 6;
const COLUMNS = ["x", "y", "z", "customdata", "text"];

// Plotly reads a little markup in names and hover texts.
const ENTITIES = { "<": "&lt;", ">": "&gt;", "&": "&amp;" };
export const plain = (text) => text.replace(/[<>&]/g, (c) => ENTITIES[c]);

// One line of a ring's values. `extra`: `line` and `trace` of Plotly's, `legend` of ours, which also
// says when its newest value was measured.
export function line(name, ring, colour, extra = {}) {
  return { name: plain(name), type: "scatter", mode: "lines", x: axisTimes(ring),
    y: ring.values().slice(), line: { color: colour, width: 1.5, ...extra.line },
    hovertemplate: "%{y:.3s}", ...extra.trace,
    legend: extra.legend && { atS: ring.lastT, ...extra.legend } };
}

export class Board {
  // Without options the charts follow the page's one time range.
  constructor({ bounds = () => range.bounds(), zoom = (from, to) => range.pin(from, to),
    back = () => range.back(), isLive = () => range.pinned === null } = {}) {
    Object.assign(this, { bounds, zoom, back, isLive });
    this.charts = [];
    this.dirty = new Set();
    this.drawing = false;
    this.watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = this.charts.find((c) => c.node === entry.target);
        chart.visible = entry.isIntersecting;
        if (chart.visible) this.mark(chart);
      }
    }, { rootMargin: "80px" });
    this.sizes = new ResizeObserver((entries) => {
      for (const { target, contentRect } of entries) {
        this.charts.find((c) => c.node === target).width = contentRect.width;
      }
    });
    document.addEventListener("visibilitychange", () => !document.hidden && this.markAll());
    document.addEventListener("themechange", () => this.rebuild());
    // Plotly is a page's last script.
    document.addEventListener("DOMContentLoaded", () => this.schedule());
    range.addEventListener("change", () => this.markAll());
    window.addEventListener("pointerup", () => this.released());
  }

  // spec: {node, legend, axes(), traces() -> [{...plotly trace}], shapes?(), empty() -> text,
  // version?() which changes with the axes, marks?() -> what `annotations.js` shows, silenceS?() after which a line has ended, about?() for
  // the menu, table?() for its CSV, click?(point)}
  add(spec) {
    const chart = { ...spec, visible: false, made: false, busyUntil: 0, drawnS: 0, key: "",
      drawn: null, bounds: null, width: spec.node.clientWidth, isUnderPointer: false };
    // Until it is drawn for the first time.
    chart.overlay = element("div", { class: "empty" }, _("Asking for the history…"));
    chart.cross = element("div", { class: "crosshair", hidden: "" }, element("span"));
    chart.since = element("p", { class: "since", hidden: "" });
    chart.node.append(chart.overlay, chart.cross, chart.since);
    if (chart.marks) chart.annotations = new Annotations(chart.node);
    addMenu(chart, this);
    this.charts.push(chart);
    this.watcher.observe(chart.node);
    this.sizes.observe(chart.node);
    return chart;
  }

  // To be drawn anew, by Plotly.
  mark(chart) {
    chart.drawnS = 0;
    chart.drawn = null;
    this.dirty.add(chart);
    this.schedule();
  }

  markAll() {
    this.charts.forEach((chart) => this.mark(chart));
  }

  // The present went on: a chart is drawn again once that moves its lines by a pixel.
  tick() {
    const [from, to] = this.bounds();
    for (const chart of this.charts) {
      const pixelS = Math.min((to - from) / (chart.width || 1), SLOWEST_S);
      if (to - chart.drawnS >= pixelS) this.dirty.add(chart);
    }
    this.schedule();
  }

  schedule() {
    if (this.drawing || document.hidden || this.dirty.size === 0 || !window.Plotly) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      if (document.hidden) return;
      const began = performance.now();
      let next = this.next(began);
      if (!next) {
        // Under the pointer: as soon as it rests.
        const resting = [...this.dirty].some((c) => c.visible && c.busyUntil !== Infinity);
        if (resting) setTimeout(() => this.schedule(), HOVER_MS);
        return;
      }
      do {
        this.dirty.delete(next);
        this.draw(next);
        next = this.next(began);
      } while (next && performance.now() - began < QUICK_MS);
      this.schedule();
    });
  }

  next(now) {
    return [...this.dirty].find((chart) => chart.visible && now >= chart.busyUntil);
  }

  // Other axes than before, not only other values.
  renew(chart) {
    chart.key = "";
    this.mark(chart);
  }

  rebuild() {
    for (const chart of this.charts) chart.key = "";
    this.markAll();
  }

  draw(chart) {
    const traces = chart.traces().slice(0, MOST_LINES);
    const shapes = chart.shapes?.() ?? [];
    const [from, to] = this.bounds();
    const key = `${chart.version?.() ?? ""}|${traces.map((t) => t.name).join("|")}`;
    chart.drawnS = to;
    chart.shown = traces;
    chart.bounds = [from, to];
    if (chart.key !== key || !chart.made) {
      chart.key = key;
      chart.ticks = "";
      Plotly.react(chart.node, traces, this.layout(chart, [from, to], shapes), CONFIG);
      if (!chart.made) this.wire(chart);
      chart.drawn = new LiveLines(chart.node, traces);
    } else {
      this.redraw(chart, traces, shapes);
    }
    this.told(chart, traces, to);
    this.legend(chart, traces);
    chart.annotations?.show(chart.marks(), [from, to]);
  }

  // By Plotly where more changed than time, and under the pointer: it finds what is hovered by what
  // it drew itself.
  redraw(chart, traces, shapes) {
    const [from, to] = chart.bounds.map((atS) => atS * 1000);
    const renamed = this.newTicks(chart);
    if (!renamed && !chart.shapes && !chart.isUnderPointer && chart.drawn?.follow(traces, from, to)) {
      return;
    }
    const columns = {};
    for (const name of COLUMNS) {
      if (traces.some((t) => t[name])) columns[name] = traces.map((t) => t[name]);
    }
    Plotly.update(chart.node, columns, { "xaxis.range": [from, to], ...renamed,
      ...(chart.shapes && { shapes }) });
    chart.drawn = new LiveLines(chart.node, traces);
  }

  // Marks of time where there are others than before.
  newTicks(chart) {
    const { step, tickvals } = moments(...chart.bounds, this.nTicks(chart));
    const key = tickvals.join();
    if (chart.ticks === key) return null;
    chart.ticks = key;
    return { "xaxis.tickvals": tickvals, "xaxis.ticktext": names(tickvals, step, ...chart.bounds) };
  }

  nTicks(chart) {
    return Math.max(2, Math.min(8, Math.floor(chart.width / 90)));
  }

  layout(chart, bounds, shapes) {
    const muted = token("muted");
    const line = { gridcolor: token("grid"), zerolinecolor: token("line"), tickcolor: token("line") };
    const axes = {};
    for (const [name, axis] of Object.entries(chart.axes())) {
      axes[name] = { ...line, fixedrange: true, rangemode: "tozero", nticks: 4,
        ticklabeloverflow: "allow", tickfont: { size: 11 }, automargin: false, ...axis };
    }
    return {
      uirevision: "page",
      margin: { l: 52, r: 12, t: 8, b: 24, ...chart.margin },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: muted },
      showlegend: false,
      hovermode: chart.hovermode ?? "x unified",
      ...(axes.yaxis2 && { hoversubplots: "axis" }),
      hoverlabel: { bgcolor: token("raised"), bordercolor: token("line-strong"),
        font: { color: token("text"), size: 12 } },
      dragmode: DRAG,
      selectdirection: "h",
      shapes,
      xaxis: { ...line, ...timeAxis(bounds, this.nTicks(chart)), tickfont: { size: 11 },
        showspikes: false, ...chart.anchor },
      ...axes,
    };
  }

  legend(chart, traces) {
    if (!chart.legend) return;
    const shown = traces.filter((t) => t.legend)
      .sort((a, b) => (a.legend.order ?? 0) - (b.legend.order ?? 0));
    if (chart.legend.childElementCount !== shown.length || chart.legend.dataset.key !== chart.key) {
      chart.legend.dataset.key = chart.key;
      chart.legend.replaceChildren(...shown.map((t) => element("span", {},
        element("i", { class: `line ${t.legend.look}` }), t.legend.label, element("b"))));
    }
    shown.forEach((t, i) => this.value(chart, chart.legend.children[i].querySelector("b"), t.legend));
  }

  // The newest value with its age: on hover, and in view where only some are old.
  value(chart, node, { value, atS }) {
    const known = Number.isFinite(atS);
    const agedS = serverNow() - atS;
    const title = known ? _("Measured %s, %s", f.stamp(atS), f.age(agedS)) : null;
    const isOld = known && chart.since.hidden && value === f.NONE && agedS > (chart.silenceS?.() ?? Infinity);
    setText(node, isOld ? _("%s since %s", f.NONE, f.clock(atS)) : value ?? "", { title });
  }

  // What the picture cannot say: that there is nothing, or nothing any more.
  told(chart, traces, toS) {
    const lastMs = Math.max(...traces.map(lastKnown));
    const words = lastMs === -Infinity ? chart.empty() : "";
    chart.overlay.hidden = words === "";
    chart.node.classList.toggle("blank", words !== "");
    setText(chart.overlay, words);
    const silenceS = chart.silenceS?.() ?? Infinity;
    const ended = words === "" && this.isLive() && toS - lastMs / 1000 > silenceS;
    chart.since.hidden = !ended;
    if (ended) setText(chart.since, _("No data since %s.", f.moment(lastMs / 1000)));
  }

  wire(chart) {
    chart.made = true;
    const { node } = chart;
    node.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      const to = change["xaxis.range[1]"];
      if (from !== undefined && to !== undefined) this.zoom(from / 1000, to / 1000);
    });
    node.on("plotly_doubleclick", () => this.back());
    node.on("plotly_hover", (event) => {
      chart.busyUntil = performance.now() + HOVER_MS;
      this.cross(event.points[0].x / 1000);
    });
    node.on("plotly_unhover", () => this.cross(null));
    node.on("plotly_click", (event) => {
      const link = event.points.map((p) => p.customdata?.href).find(Boolean)
        ?? chart.click?.(event.points[0]);
      if (link) location.assign(link);
    });
    // A redraw under a pressed button would take the rectangle being dragged away.
    node.addEventListener("pointerdown", () => (chart.busyUntil = Infinity));
    node.addEventListener("pointerenter", () => {
      chart.isUnderPointer = true;
      if (chart.drawn?.hasMoved) this.draw(chart);
    });
    node.addEventListener("pointerleave", () => (chart.isUnderPointer = false));
  }

  released() {
    for (const chart of this.charts) if (chart.busyUntil === Infinity) chart.busyUntil = 0;
    this.schedule();
  }

  cross(atS) {
    for (const { node, cross, made, bounds, width } of this.charts) {
      cross.hidden = atS === null || !made;
      if (cross.hidden) continue;
      const { _offset: start, _length: length } = node._fullLayout.xaxis;
      const left = start + length * (atS - bounds[0]) / (bounds[1] - bounds[0]);
      cross.style.transform = `translateX(${left}px)`;
      cross.classList.toggle("left", left > width / 2);
      setText(cross.firstChild, f.moment(atS));
    }
  }
}

// When a trace was last measured, in milliseconds of its axis; never is minus infinity.
function lastKnown({ x, y, z, hoverinfo }) {
  if (z) return z.some((row) => row.some((v) => v !== null)) ? x.at(-1) : -Infinity;
  if (hoverinfo === "skip") return -Infinity;
  for (let i = y.length - 1; i >= 0; i -= 1) {
    if (y[i] !== null && !Number.isNaN(y[i])) return x[i];
  }
  return -Infinity;
}
