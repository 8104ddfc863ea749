// Try an operation of the API as whoever is signed in, and show what is answered.

import { element } from "./dom.js";
import { _ } from "./i18n.js";

const HEADERS = ["etag", "location", "ratelimit", "retry-after", "deprecation", "sunset", "x-request-id"];
const MOST_SHOWN = 100_000;

const form = document.getElementById("try");
const answer = document.getElementById("answer");

function address() {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("[data-in]")) {
    if (input.dataset.in === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.dataset.in === "query" && input.value !== "") query.set(input.name, input.value);
  }
  return query.size ? `${path}?${query}` : path;
}

function headers() {
  const found = { Accept: "application/json, */*;q=0.1" };
  if (form.dataset.method !== "get") found["X-CSRFToken"] = form.elements.csrfmiddlewaretoken.value;
  if (form.elements.body) found["Content-Type"] = "application/json";
  for (const input of form.querySelectorAll("[data-in='header']")) {
    if (input.value !== "") found[input.name] = input.value;
  }
  return found;
}

function written(text) {
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // It is shown as it came.
  }
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n…` : text;
}

async function send() {
  const began = performance.now();
  const response = await fetch(address(), {
    method: form.dataset.method.toUpperCase(),
    headers: headers(),
    body: form.elements.body?.value,
  });
  const text = await response.text();
  const took = Math.round(performance.now() - began);
  const said = HEADERS.filter((name) => response.headers.has(name))
    .map((name) => `${name}: ${response.headers.get(name)}`);
  answer.replaceChildren(
    element("p", { class: "mono" }, `${response.status} ${response.statusText} · ${took} ms`),
    element("p", { class: "mono muted" }, address()),
    ...(said.length ? [element("pre", { tabindex: "0" }, said.join("\n"))] : []),
    element("pre", { tabindex: "0" }, text ? written(text) : _("No body.")),
  );
}

if (form) {
  form.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    answer.replaceChildren(element("p", { class: "muted" }, _("Waiting for the answer…")));
    try {
      await send();
    } catch {
      answer.replaceChildren(element("p", {}, _("The console does not answer.")));
    } finally {
      button.disabled = false;
    }
  });
}
