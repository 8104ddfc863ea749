// Small hands for the page: text that flashes when it changes, states with icon and word.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function icon(name) {
  const made = svg("svg", { class: "icon", "aria-hidden": "true" });
  made.append(svg("use", { href: `#i-${name}` }));
  return made;
}

export function setText(node, text, { title = null, flash = false } = {}) {
  if (!node) return;
  if (title !== null && node.title !== title) node.title = title;
  if (node.textContent === text) return;
  const first = node.textContent === "–" || node.textContent === "";
  node.textContent = text;
  if (!flash || first) return;
  node.classList.remove("changed");
  void node.offsetWidth; // restarts the animation
  node.classList.add("changed");
}

const ICONS = { good: "ok", warn: "warn", bad: "bad", off: "off", info: "wait" };

export function setState(node, tone, text) {
  if (!node) return;
  const mark = node.classList.contains("state") ? node : node.querySelector(".state");
  if (mark.dataset.tone !== tone) {
    mark.dataset.tone = tone;
    mark.className = `state ${tone}`;
    mark.querySelector("use").setAttribute("href", `#i-${ICONS[tone]}`);
  }
  setText(mark.querySelector(".text"), text);
}
