// How numbers are written for people: the same rules as console/figures.py, tested on one table.
// null or NaN means "not measured" and is written as a dash, never as zero.

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
  if (missing(value)) return "not measured";
  return value.toLocaleString("en-GB", { maximumFractionDigits: 6 });
}

export function withUnit(value, unit) {
  return missing(value) ? NONE : `${significant(value)} ${unit}`;
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
  if (missing(seconds)) return "never";
  const whole = Math.floor(Math.max(seconds, 0));
  if (whole === 0) return "now";
  for (const [limit, scale, unit] of [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"]]) {
    if (whole < limit) return `${Math.floor(whole / scale)} ${unit} ago`;
  }
  return `${Math.floor(whole / 86400)} d ago`;
}

const two = (n) => String(n).padStart(2, "0");

export function clock(atSeconds) {
  if (missing(atSeconds)) return NONE;
  const d = new Date(atSeconds * 1000);
  return `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())}`;
}

export function stamp(atSeconds) {
  if (missing(atSeconds)) return NONE;
  const d = new Date(atSeconds * 1000);
  const day = `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}`;
  return `${day} ${clock(atSeconds)} UTC`;
}
