// What a chart shows, taken away: as a table (CSV) and as a picture (PNG). Cells are as inert as
// those of console/csv_cells.py: no text can be taken for a formula.

import { token } from "./colours.js";
import { svg } from "./dom.js";
import { stamp } from "./format.js";

const STARTS = "=+-@\u2212";
const UNSEEN = /^['"`\p{Cc}\p{Cf}\p{Zs}\p{Zl}\p{Zp}\p{Pi}\p{Pf}]+/u;
const NUMBER = /^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$/;
const LONGEST_NAME = 100;
const SCALE = 2;
const HEAD_PX = 56;
const MARGIN_PX = 12;
const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "vector-effect",
  "overflow", "font-family", "font-size", "text-anchor"];

export function neutral(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = String(value);
  if (/^[\t\r\n]/.test(text)) return `'${text}`;
  const seen = text.replace(UNSEEN, "").slice(0, 1).normalize("NFKC");
  return seen !== "" && STARTS.includes(seen) && !NUMBER.test(text) ? `'${text}` : text;
}

const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

export function csv(header, rows) {
  return [header, ...rows].map((row) => row.map((cell) => quoted(neutral(cell))).join(","))
    .map((row) => `${row}\r\n`).join("");
}

export function fileName(name, ending) {
  const plain = name.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "");
  return `${plain.slice(0, LONGEST_NAME) || "chart"}.${ending}`;
}

export const isoUtc = (atMs) => new Date(atMs).toISOString();

// Entities that names were given for Plotly, taken back.
const raw = (name) => name.replace(/&lt;|&gt;|&amp;/g, (e) => ({ "&lt;": "<", "&gt;": ">",
  "&amp;": "&" }[e]));

// [header, rows] of traces: a row for each moment, a column for each line or row of a heat map.
export function tableOf(traces) {
  const at = new Map();
  const columns = [];
  const put = (name, x, values) => {
    const place = columns.push(raw(name));
    x.forEach((ms, i) => {
      const value = values[i];
      if (ms === null || value === undefined || value === null || Number.isNaN(value)) return;
      if (!at.has(ms)) at.set(ms, [isoUtc(ms)]);
      at.get(ms)[place] = value;
    });
  };
  for (const trace of traces) {
    if (trace.hoverinfo === "skip" || (trace.mode === "markers" && !trace.meta?.table)) continue;
    const unit = trace.meta?.unit ? ` (${trace.meta.unit})` : "";
    if (trace.z) trace.z.forEach((row, i) => put(trace.meta.rows[i] + unit, trace.x, row));
    else put(`${trace.name}${unit}`, trace.x, trace.y);
  }
  const rows = [...at.keys()].sort((a, b) => a - b).map((ms) =>
    Array.from({ length: columns.length + 1 }, (_cell, i) => at.get(ms)[i]));
  return [["time_utc", ...columns], rows];
}

export function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // The browser has the file in hand once the click is through.
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export const csvBlob = (text) => new Blob([text], { type: "text/csv;charset=utf-8" });

// The chart as it stands, with its title, range (if time passes over it) and names, which on the
// page are around it.
export async function png(node, title, range) {
  const { width, height } = node.getBoundingClientRect();
  const layout = { ...node.layout, paper_bgcolor: token("panel"), plot_bgcolor: token("panel"),
    showlegend: node.data.length > 1, legend: { orientation: "h", y: -0.12, x: 0 },
    margin: { ...node.layout.margin, t: 44, b: 64 },
    title: { text: `${title}${range ? `<br><sub>${range.map(stamp).join(" – ")}</sub>` : ""}`, x: 0.01, xanchor: "left",
      y: 0.98, yanchor: "top", font: { size: 14, color: token("text") } } };
  const data = node.data.map(({ legend, ...trace }) => ({ ...trace,
    showlegend: trace.hoverinfo !== "skip" && Boolean(trace.name) }));
  const address = await Plotly.toImage({ data, layout, config: { staticPlot: true } },
    { format: "png", width: Math.max(480, width), height: height + 76, scale: SCALE });
  const bytes = Uint8Array.from(atob(address.split(",")[1]), (c) => c.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

// A plot of SVGs that the server drew, with its title and `keys` [{label, colour}] on top. Style
// sheets do not reach into a picture: what they paint becomes attributes of the copy.
export async function svgPng(node, title, keys) {
  const box = node.getBoundingClientRect();
  const [width, height] = [Math.ceil(box.width) + 2 * MARGIN_PX, Math.ceil(box.height) + HEAD_PX];
  const font = getComputedStyle(document.body).fontFamily;
  const whole = svg("svg", { width, height, "font-family": font, "font-size": 12 });
  whole.append(svg("rect", { width: "100%", height: "100%", fill: token("panel") }),
    written(title, { x: MARGIN_PX, y: 22, fill: token("text"), "font-size": 14 }),
    ...legendOf(keys));
  for (const drawn of node.querySelectorAll(":scope > svg")) {
    const own = drawn.getBoundingClientRect();
    const copy = painted(drawn);
    const at = { x: own.left - box.left + MARGIN_PX, y: own.top - box.top + HEAD_PX,
      width: own.width, height: own.height };
    for (const [name, value] of Object.entries(at)) copy.setAttribute(name, value);
    whole.append(copy);
  }
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${
    encodeURIComponent(new XMLSerializer().serializeToString(whole))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * SCALE, height * SCALE];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function written(text, attributes) {
  const made = svg("text", attributes);
  made.textContent = text;
  return made;
}

function legendOf(keys) {
  let x = MARGIN_PX;
  return keys.flatMap(({ label, colour, widthPx }) => {
    const parts = [svg("rect", { x, y: 36, width: 12, height: 2, fill: colour }),
      written(label, { x: x + 18, y: 41, fill: token("muted") })];
    x += widthPx + 2 * MARGIN_PX;
    return parts;
  });
}

function painted(drawn) {
  const copy = drawn.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [drawn, ...drawn.querySelectorAll("*")].forEach((each, i) => {
    const style = getComputedStyle(each);
    if (style.display === "none" && !each.closest("title")) copies[i].remove();
    for (const name of PAINT) copies[i].setAttribute(name, style.getPropertyValue(name));
  });
  return copy;
}
