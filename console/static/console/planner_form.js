// The planner's form: sliders and numbers that belong together, what differs from the scenario, and
// the address that carries it. Names of fields are those of the API's query.

import { setText } from "./dom.js";
import { _ } from "./i18n.js";

const STEPS = 1000;

const form = document.getElementById("planner-form");
const numbers = [...form.querySelectorAll("[data-field]")].map((node) => ({
  node,
  name: node.dataset.field,
  entry: node.querySelector("input[name]"),
  slider: node.querySelector("input[type=range]"),
  back: node.querySelector(".was-number"),
}));
const mixes = [...form.querySelectorAll("[data-cluster]")].map((node) => ({
  cluster: node.dataset.cluster,
  select: node.querySelector("select"),
  shape: numbers.filter(({ name }) =>
    name === `${node.dataset.cluster}.mu` || name === `${node.dataset.cluster}.sigma`),
}));
const cluster = document.getElementById("planner-cluster");

// Blank is "as in the scenario".
function isChanged({ entry }) {
  const text = entry.value.trim();
  // What is no number equals nothing, itself included.
  return text !== "" && Number(text) !== Number(entry.dataset.default);
}

// Only what differs from the scenario: a link stays short and follows the scenario in the rest.
export function query() {
  const asked = new URLSearchParams();
  if (cluster && cluster.value !== cluster.dataset.default) asked.set("cluster", cluster.value);
  for (const { cluster: name, select, shape } of mixes) {
    // mu and sigma say by themselves that lengths are log-normal.
    const said = select.value === "lognormal" && shape.some(isChanged);
    if (select.value !== "scenario" && !said) asked.set(`${name}.lengths`, select.value);
  }
  const unused = mixes.filter(({ select }) => select.value !== "lognormal")
    .flatMap(({ shape }) => shape);
  for (const number of numbers) {
    if (isChanged(number) && !unused.includes(number)) {
      asked.set(number.name, number.entry.value.trim());
    }
  }
  return asked;
}

function toSlider({ slider, entry }) {
  const { low, high, scale } = slider.dataset;
  const [a, b] = [Number(low), Number(high)];
  const value = Math.min(Math.max(Number(entry.value.trim() || entry.dataset.default), a), b);
  const part = scale === "log" ? Math.log(value / a) / Math.log(b / a) : (value - a) / (b - a);
  if (!Number.isNaN(part)) slider.value = Math.round(part * STEPS);
  slider.setAttribute("aria-valuetext", entry.value);
}

function fromSlider({ slider, entry }) {
  const { low, high, scale } = slider.dataset;
  const [a, b, part] = [Number(low), Number(high), slider.value / STEPS];
  const value = scale === "log" ? a * (b / a) ** part : a + (b - a) * part;
  entry.value = "whole" in slider.dataset && Math.abs(value) < 1000
    ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
  slider.setAttribute("aria-valuetext", entry.value);
}

function mark() {
  for (const number of numbers) {
    const differs = isChanged(number);
    number.node.classList.toggle("changed-number", differs);
    number.back.hidden = !differs;
  }
  for (const { select, shape } of mixes) {
    const unused = select.value === "recorded";
    for (const { entry, slider, node } of shape) {
      entry.disabled = unused;
      slider.disabled = unused;
      node.title = unused ? _("Not used: lengths are the recorded ones") : "";
    }
  }
  const n = [...query().keys()].filter((name) => name !== "cluster").length;
  setText(document.getElementById("n-changed"),
    n === 0 ? _("as in the scenario") : _("%s changed", n));
  document.getElementById("reset").hidden = n === 0;
}

function restore(number) {
  number.entry.value = number.entry.dataset.default;
  toSlider(number);
}

function reset() {
  numbers.forEach(restore);
  for (const { select } of mixes) select.value = "scenario";
}

// A message of the API at its field; what has no field here stands above the form.
export function showErrors(errors) {
  for (const node of form.querySelectorAll("[data-error-of]")) {
    node.hidden = true;
    node.closest("[data-field], .mix").classList.remove("wrong");
  }
  for (const { entry } of numbers) entry.removeAttribute("aria-invalid");
  const elsewhere = [];
  for (const [name, messages] of Object.entries(errors)) {
    const node = [...form.querySelectorAll("[data-error-of]")]
      .find((each) => each.dataset.errorOf === name);
    if (!node) {
      elsewhere.push(`${name}: ${messages.join("; ")}`);
      continue;
    }
    node.hidden = false;
    setText(node, messages.join("; "));
    node.closest("[data-field], .mix").classList.add("wrong");
    node.closest("details").open = true;
    numbers.find((number) => number.name === name)?.entry.setAttribute("aria-invalid", "true");
  }
  const above = document.getElementById("form-error");
  above.hidden = elsewhere.length === 0;
  setText(above.querySelector(".text"), elsewhere.join(". "));
}

// `changed` is called after each change, also while a slider is being dragged.
export function startForm(changed) {
  const done = () => {
    mark();
    changed();
  };
  for (const number of numbers) {
    const shaped = mixes.find(({ shape }) => shape.includes(number));
    const use = () => {
      if (shaped) shaped.select.value = "lognormal";
      done();
    };
    number.slider.addEventListener("input", () => {
      fromSlider(number);
      use();
    });
    number.entry.addEventListener("input", () => {
      toSlider(number);
      use();
    });
    number.back.addEventListener("click", () => {
      restore(number);
      number.entry.focus();
      done();
    });
    toSlider(number);
  }
  for (const { select, shape } of mixes) {
    select.addEventListener("change", () => {
      if (select.value === "scenario") shape.forEach(restore);
      done();
    });
  }
  cluster?.addEventListener("change", () => {
    // Of a large fleet the page has the numbers around one cluster only: the address keeps the rest.
    if ("cut" in form.dataset) location.search = query().toString();
    else done();
  });
  for (const button of form.querySelectorAll("[data-use-measured]")) {
    button.addEventListener("click", () => {
      const name = button.dataset.useMeasured;
      const rate = numbers.find((number) => number.name === `${name}.rate_rps`);
      if (button.dataset.rate) rate.entry.value = button.dataset.rate;
      toSlider(rate);
      mixes.find((mix) => mix.cluster === name).select.value = "recorded";
      done();
    });
  }
  document.getElementById("reset").addEventListener("click", () => {
    reset();
    done();
  });
  // On a phone the answer would be far below all of them.
  if (matchMedia("(max-width: 760px)").matches) {
    const chosen = cluster?.value ?? mixes[0]?.cluster;
    for (const group of form.querySelectorAll("details.numbers")) {
      group.open = group.querySelector(".changed-number") !== null
        || group.querySelector(".mix")?.dataset.cluster === chosen;
    }
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  mark();
}
