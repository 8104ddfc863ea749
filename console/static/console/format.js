// How numbers are written for people: the same rules as console/figures.py, tested on one table.
// null or NaN means "not measured" and is written as a dash, never as zero.

import { _ } from "./i18n.js";

export const NONE = "–";

const SUFFIXES = [[1e9, "G"], [1e6, "M"], [1e3, "K"]];
const BINARY = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

export function missing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

export function significant(value) {
  if (missing(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size < 0.001) return value > 0 ? "<0.001" : ">−0.001";
  for (const [scale, suffix] of SUFFIXES) {
    // 999.5 already rounds to 1,000: it belongs to the next suffix.
    if (size >= scale * 0.9995) return sign + digits(size / scale) + suffix;
  }
  return sign + digits(size);
}

function digits(value) {
  if (Number.isInteger(value) && value < 1000) return String(value);
  return plain(value.toPrecision(3));
}

// toPrecision turns to exponents from 1e3 on; three digits of those are whole numbers.
function plain(text) {
  return text.includes("e") ? String(Number(text)) : text;
}

export function exact(value) {
  if (missing(value)) return _("not measured");
  return value.toLocaleString("en-GB", { maximumFractionDigits: 6 });
}

export function withUnit(value, unit) {
  return missing(value) ? NONE : `${significant(value)} ${unit}`;
}

// A reason's name as words: `QueuesApart` is `Queues apart`. Pages translate them; charts, which get
// them from the API, do not.
export function reasonWords(name) {
  const words = name.replace(/([a-z])(?=[A-Z])/g, "$1 ").toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

export const tokens = (value) => withUnit(value, "tok");
export const rate = (value) => withUnit(value, "req/s");
export const gbps = (value) => withUnit(value, "Gbps");

export function percent(ratio) {
  return missing(ratio) ? NONE : `${significant(hundredths(ratio))} %`;
}

export function signedPercent(ratio) {
  if (missing(ratio)) return NONE;
  const sign = ratio > 0 ? "+" : ratio < 0 ? "−" : "±";
  return `${sign}${significant(hundredths(Math.abs(ratio)))} %`;
}

// 0.07 * 100 is 7.000000000000001; people wrote 7 %.
const hundredths = (ratio) => Math.round(ratio * 1e11) / 1e9;

export function size(bytes) {
  if (missing(bytes)) return NONE;
  for (const [scale, unit] of BINARY) {
    if (Math.abs(bytes) >= scale) return `${significant(bytes / scale)} ${unit}`;
  }
  return `${significant(bytes)} B`;
}

export function duration(seconds) {
  if (missing(seconds)) return NONE;
  if (seconds === 0) return "0 s";
  if (Math.abs(seconds) < 0.9995) return `${significant(seconds * 1000)} ms`;
  if (Math.abs(seconds) < 59.95) return `${significant(seconds)} s`;
  return long(Math.round(seconds));
}

function long(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  for (let i = 0; i < 3; i += 1) {
    const [scale, unit] = units[i];
    if (seconds < scale) continue;
    const [smaller, smallerUnit] = units[i + 1];
    const rest = Math.floor((seconds % scale) / smaller);
    return `${Math.floor(seconds / scale)} ${unit}` + (rest ? ` ${rest} ${smallerUnit}` : "");
  }
  return `${seconds} s`;
}

export function age(seconds) {
  if (missing(seconds)) return _("never");
  const whole = Math.floor(Math.max(seconds, 0));
  if (whole === 0) return _("now");
  if (whole < 60) return _("%s s ago", whole);
  if (whole < 3600) return _("%s min ago", Math.floor(whole / 60));
  if (whole < 86400) return _("%s h ago", Math.floor(whole / 3600));
  return _("%s d ago", Math.floor(whole / 86400));
}

// Moments are told in the zone the page was made for (console/zones.py): UTC, or the reader's own.
const ZONE = globalThis.document?.documentElement.dataset.zone ?? "UTC";
const wall = ZONE === "UTC" ? null : new Intl.DateTimeFormat("en-GB", { timeZone: ZONE,
  hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric",
  minute: "numeric", second: "numeric" });

// Seconds that clocks of the page's zone are ahead of UTC at a moment.
export function offsetS(atSeconds) {
  if (!wall) return 0;
  const at = Object.fromEntries(wall.formatToParts(atSeconds * 1000)
    .map(({ type, value }) => [type, Number(value)]));
  const shown = Date.UTC(at.year, at.month - 1, at.day, at.hour, at.minute, at.second) / 1000;
  return shown - Math.floor(atSeconds);
}

// `UTC`, `UTC+9`, `UTC-3:30`: as console/figures.py.
export function zoneName(atSeconds) {
  const minutes = Math.round(offsetS(atSeconds) / 60);
  if (minutes === 0) return "UTC";
  const rest = Math.abs(minutes) % 60;
  const hours = Math.floor(Math.abs(minutes) / 60);
  return `UTC${minutes < 0 ? "-" : "+"}${hours}${rest ? `:${two(rest)}` : ""}`;
}

const two = (n) => String(n).padStart(2, "0");
const local = (atSeconds) => new Date((atSeconds + offsetS(atSeconds)) * 1000);

export function clock(atSeconds) {
  if (missing(atSeconds)) return NONE;
  const d = local(atSeconds);
  return `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())}`;
}

// The clock with its zone, where no other figure says which zone that is.
export function moment(atSeconds) {
  return missing(atSeconds) ? NONE : `${clock(atSeconds)} ${zoneName(atSeconds)}`;
}

export function stamp(atSeconds) {
  return missing(atSeconds) ? NONE
    : `${fieldValue(atSeconds).replace("T", " ")} ${zoneName(atSeconds)}`;
}

// A moment as <input type="datetime-local"> holds it, in the page's zone, and back again.
export function fieldValue(atSeconds) {
  return local(atSeconds).toISOString().slice(0, 19);
}

export function ofField(value) {
  const asUtc = Date.parse(`${value}Z`) / 1000;
  // The offset that holds there, found from the one that would hold if it were UTC.
  return asUtc - offsetS(asUtc - offsetS(asUtc));
}
