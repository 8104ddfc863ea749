// Draws: columns in, no arithmetic. A Board holds the page's charts, redraws what is marked dirty,
// one chart per animation frame, only charts in view, never in a hidden tab. Zooming one zooms all;
// the crosshair runs through all.

import { element, setText } from "./dom.js";
import { range } from "./time.js";

const MOST_LINES = 10;
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false,
  showTips: false };
// A finger on a chart scrolls the page; a mouse zooms.
const DRAG = matchMedia("(pointer: coarse)").matches ? false : "zoom";
const HOVER_MS = 90;

// Tokens are written with light-dark(); only the browser can say which of the two they are now.
export function token(name) {
  const probe = token.probe ?? (token.probe = document.body.appendChild(element("i", { hidden: "" })));
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export class Board {
  constructor() {
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
    document.addEventListener("visibilitychange", () => !document.hidden && this.markAll());
    document.addEventListener("themechange", () => this.rebuild());
    range.addEventListener("change", () => this.markAll());
  }

  // spec: {node, legend, axes(), traces() -> [{...plotly trace}], shapes?(), empty?() -> text}
  add(spec) {
    const chart = { ...spec, visible: false, made: false, busyUntil: 0, key: "" };
    chart.overlay = element("div", { class: "empty", hidden: "" });
    chart.cross = element("div", { class: "crosshair", hidden: "" });
    chart.node.append(chart.overlay, chart.cross);
    this.charts.push(chart);
    this.watcher.observe(chart.node);
    return chart;
  }

  mark(chart) {
    this.dirty.add(chart);
    this.schedule();
  }

  markAll() {
    this.charts.forEach((chart) => this.mark(chart));
  }

  schedule() {
    if (this.drawing || document.hidden || this.dirty.size === 0) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const now = performance.now();
      const next = [...this.dirty].find((chart) => chart.visible && now >= chart.busyUntil);
      if (!next) {
        // Under the pointer: as soon as it rests.
        const resting = [...this.dirty].some((c) => c.visible && c.busyUntil !== Infinity);
        if (resting) setTimeout(() => this.schedule(), HOVER_MS);
        return;
      }
      this.dirty.delete(next);
      this.draw(next);
      this.schedule();
    });
  }

  rebuild() {
    for (const chart of this.charts) chart.key = "";
    this.markAll();
  }

  draw(chart) {
    const traces = chart.traces().slice(0, MOST_LINES);
    const shapes = chart.shapes?.() ?? [];
    const [from, to] = range.bounds();
    const x = [from * 1000, to * 1000];
    const key = traces.map((t) => t.name).join("|");
    if (chart.key === key) {
      const columns = { x: traces.map((t) => t.x), y: traces.map((t) => t.y) };
      if (traces.some((t) => t.customdata)) columns.customdata = traces.map((t) => t.customdata);
      // New x values make Plotly guess the axis type again; milliseconds would become numbers.
      Plotly.update(chart.node, columns, { "xaxis.type": "date", "xaxis.range": x, shapes });
    } else {
      chart.key = key;
      Plotly.react(chart.node, traces, this.layout(chart, x, shapes), CONFIG);
      if (!chart.made) this.wire(chart);
    }
    this.legend(chart, traces);
    const words = traces.some((t) => t.y.some((v) => !Number.isNaN(v))) ? "" : chart.empty();
    chart.overlay.hidden = words === "";
    chart.node.classList.toggle("blank", words !== "");
    setText(chart.overlay, words);
  }

  layout(chart, x, shapes) {
    const muted = token("muted");
    const line = { gridcolor: token("grid"), zerolinecolor: token("line"), tickcolor: token("line") };
    const axes = {};
    for (const [name, axis] of Object.entries(chart.axes())) {
      axes[name] = { ...line, fixedrange: true, rangemode: "tozero", nticks: 4,
        tickfont: { size: 11 }, automargin: false, ...axis };
    }
    return {
      uirevision: "page",
      margin: { l: 52, r: 12, t: 8, b: 24 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: muted },
      showlegend: false,
      hovermode: "x unified",
      hoversubplots: "axis",
      hoverlabel: { bgcolor: token("raised"), bordercolor: token("line-strong"),
        font: { color: token("text"), size: 12 } },
      dragmode: DRAG,
      selectdirection: "h",
      shapes,
      xaxis: { ...line, type: "date", range: x, tickformat: "%H:%M", hoverformat: "%H:%M:%S UTC",
        nticks: 6, tickfont: { size: 11 }, showspikes: false, ...(chart.anchor ?? {}) },
      ...axes,
    };
  }

  legend(chart, traces) {
    const shown = traces.filter((t) => t.legend)
      .sort((a, b) => (a.legend.order ?? 0) - (b.legend.order ?? 0));
    if (chart.legend.childElementCount !== shown.length || chart.legend.dataset.key !== chart.key) {
      chart.legend.dataset.key = chart.key;
      chart.legend.replaceChildren(...shown.map((t) => element("span", {},
        element("i", { class: `line ${t.legend.look}` }), t.legend.label, element("b"))));
    }
    shown.forEach((t, i) => setText(chart.legend.children[i].querySelector("b"), t.legend.value));
  }

  wire(chart) {
    chart.made = true;
    const { node } = chart;
    node.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      const to = change["xaxis.range[1]"];
      if (from === undefined || to === undefined) return;
      range.pin(toSeconds(from), toSeconds(to));
    });
    node.on("plotly_doubleclick", () => range.goLive());
    node.on("plotly_hover", (event) => {
      chart.busyUntil = performance.now() + HOVER_MS;
      this.cross(toSeconds(event.points[0].x));
    });
    node.on("plotly_unhover", () => this.cross(null));
    node.on("plotly_click", (event) => {
      const link = event.points.map((p) => p.customdata?.href).find(Boolean);
      if (link) location.assign(link);
    });
    // A redraw under a pressed button would take the rectangle being dragged away.
    node.addEventListener("pointerdown", () => (chart.busyUntil = Infinity));
    window.addEventListener("pointerup", () => {
      if (chart.busyUntil !== Infinity) return;
      chart.busyUntil = 0;
      this.schedule();
    });
  }

  cross(atS) {
    for (const { node, cross, made } of this.charts) {
      cross.hidden = atS === null || !made;
      if (cross.hidden) continue;
      const axis = node._fullLayout.xaxis;
      const left = axis._offset + axis.d2p(atS * 1000);
      cross.style.transform = `translateX(${left}px)`;
    }
  }
}

function toSeconds(x) {
  if (typeof x === "number") return x / 1000;
  // Plotly writes dates without a zone; on this page they are UTC.
  return Date.parse(`${x.replace(" ", "T")}${x.includes("T") || x.includes(" ") ? "Z" : ""}`) / 1000;
}

