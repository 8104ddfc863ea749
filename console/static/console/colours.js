// Colours of the theme for what is drawn by scripts.

import { element } from "./dom.js";

const known = new Map();
let probe = null;

// Tokens are written with light-dark(); only the browser can say which of the two they are now.
export function token(name) {
  if (!known.has(name)) {
    probe ??= document.body.appendChild(element("i", { hidden: "" }));
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

document.addEventListener("themechange", () => known.clear());

const rgb = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);

// `share` of the first colour over the second.
export function mix(a, b, share) {
  const [first, second] = [rgb(a), rgb(b)];
  const mixed = first.map((v, i) => Math.round(v * share + second[i] * (1 - share)));
  return `rgb(${mixed.join(", ")})`;
}
