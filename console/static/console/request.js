// The request simulator without waiting: while numbers are typed the page is asked for again and its
// answer swapped in. The server decides and draws; here is only the pointer on its plot.

import { setText } from "./dom.js";
import { svgPng } from "./export.js";
import { duration } from "./format.js";
import { _ } from "./i18n.js";
import { live } from "./live.js";
import { addStillMenu } from "./still_menu.js";

const PAUSE_MS = 150;

const form = document.getElementById("request-form");
let timer = null;
let asking = null;

function address() {
  const query = new URLSearchParams(location.search);
  for (const name of [...query.keys()]) if (form.elements[name]) query.delete(name);
  for (const [name, value] of new FormData(form)) if (value !== "") query.set(name, value);
  return `${location.pathname}?${query}`;
}

async function ask() {
  asking?.abort();
  const mine = (asking = new AbortController());
  const url = address();
  const answer = document.getElementById("answer");
  answer.classList.add("asking");
  try {
    const response = await fetch(url, { signal: mine.signal, headers: { Accept: "text/html" } });
    if (response.redirected || (!response.ok && response.status !== 422)) {
      location.assign(url);
      return;
    }
    const text = (await response.text()).replace(/<style[^>]*><\/style>/g, "");
    if (mine.signal.aborted) return;
    show(new DOMParser().parseFromString(text, "text/html"));
    history.replaceState(null, "", url);
  } catch (error) {
    if (error.name === "AbortError") return;
    answer.classList.remove("asking");
    setText(document.getElementById("readout"),
      _("The console does not answer; above is what it said last."));
  }
}

function show(page) {
  for (const old of document.querySelectorAll("[data-errors]")) {
    const fresh = page.getElementById(old.id);
    old.replaceChildren(...(fresh ? [...document.importNode(fresh, true).childNodes] : []));
  }
  const plans = form.elements.decision;
  const fresh = page.getElementById(plans.id);
  if (fresh && document.activeElement !== plans) {
    const chosen = plans.value;
    plans.replaceChildren(...document.importNode(fresh, true).children);
    plans.value = chosen;
  }
  document.getElementById("answer").replaceWith(
    document.importNode(page.getElementById("answer"), true));
  wire();
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
}

form.addEventListener("input", (event) => {
  // Another cluster has other remotes: the form itself is another one.
  if (event.target.name !== "cluster") soon();
});
form.addEventListener("change", (event) => {
  if (event.target.name === "cluster") form.requestSubmit();
});
form.addEventListener("submit", (event) => {
  if (event.submitter?.id !== "ask") return;
  event.preventDefault();
  clearTimeout(timer);
  ask();
});

// A plan that comes into force answers otherwise.
live.addEventListener("frame", ({ detail: { frame, gap } }) => {
  if (gap || (frame.events ?? []).some((event) => event.type === "decision")) soon();
});

// The plot: what stands at the length under the pointer, and a click asks for that length.
function wire() {
  const plot = document.querySelector("[data-plot]");
  const copy = document.querySelector("[data-copy]");
  if (copy && navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent);
      setText(copy, _("Copied"));
    });
  }
  if (!plot) return;
  const columns = JSON.parse(document.getElementById("plot-data").textContent);
  const area = plot.querySelector(".area");
  const pointer = plot.querySelector(".pointer");
  const readout = document.getElementById("readout");
  const words = readout.textContent;
  addStillMenu(plot, { table: () => tableOf(columns), picture: (title) => svgPng(plot, title, keys()),
    curl: () => document.getElementById("curl").textContent });
  plot.classList.add("reading");
  const nearest = (event) => {
    const box = area.getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    const wanted = share * columns.most;
    return columns.total.reduce((best, total, i) =>
      Math.abs(total - wanted) < Math.abs(columns.total[best] - wanted) ? i : best, 0);
  };
  area.addEventListener("pointermove", (event) => {
    const i = nearest(event);
    const x = `${(100 * columns.total[i]) / columns.most}%`;
    pointer.removeAttribute("hidden");
    pointer.setAttribute("x1", x);
    pointer.setAttribute("x2", x);
    setText(readout, _("%s tokens: %s (%s). To the first token %s local, %s remote.",
      columns.total[i].toLocaleString("en-GB"), columns.side[i] === "remote" ? _("remote") : _("local"),
      columns.reason[i], duration(columns.local_s[i]), duration(columns.remote_s[i])));
  });
  area.addEventListener("pointerleave", () => {
    pointer.setAttribute("hidden", "");
    setText(readout, words);
  });
  area.addEventListener("click", (event) => {
    form.elements.total.value = columns.total[nearest(event)];
    ask();
  });
}

// What the plot shows: a row for each length that was tried.
const tableOf = ({ total, side, reason, local_s: local, remote_s: remote }) => [
  ["total_tokens", "side", "reason", "local_ttft_s", "remote_ttft_s"],
  total.map((tokens, i) => [tokens, side[i], reason[i], local[i], remote[i]])];

// The legend in the panel's header, as it reads now.
const keys = () => [...document.querySelectorAll("#lengths > header .legend > span")].map((each) => ({
  label: each.textContent.trim(), widthPx: each.getBoundingClientRect().width,
  colour: getComputedStyle(each.querySelector(".line")).borderTopColor }));

wire();
