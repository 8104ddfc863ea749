// The planner: the form's numbers to the API after each change, the newest answer onto the page.
// One question is under way at a time; what it answers after a newer one was asked is dropped.

import { serverNow } from "./clock.js";
import { setText } from "./dom.js";
import { clock, moment } from "./format.js";
import { _ } from "./i18n.js";
import { startCacheBudget } from "./planner_cache.js";
import { drawAnswer, TABLES } from "./planner_charts.js";
import { query, showErrors, startForm } from "./planner_form.js";
import { showAnswer } from "./planner_show.js";
import { curlOf } from "./share.js";
import { addStillMenu } from "./still_menu.js";

const DEBOUNCE_MS = 120;
const SLOW_MS = 600;

const { api } = JSON.parse(document.getElementById("page-data").textContent);
const state = document.getElementById("answer-state");
const answerNodes = [document.getElementById("answer"), document.getElementById("planner-head")];

let waiting = null;
let asking = null;
let answered = null; // {answer, asked, atS} of the last good answer

function dim(why) {
  for (const node of answerNodes) node.classList.toggle("old", why !== "");
  state.classList.toggle("warn", why !== "");
  if (why !== "") setText(state, why);
}

function remember(asked) {
  const search = asked.toString();
  history.replaceState(null, "", search ? `?${search}` : location.pathname);
  const twin = document.getElementById("run-twin");
  if (!twin) return;
  // The twin runs one fleet: what only looks from somewhere or searches sizes is not for it.
  const numbers = new URLSearchParams([...asked].filter(([name]) =>
    name.includes(".") && !name.endsWith(".most_instances")));
  twin.href = numbers.size > 0 ? `${twin.dataset.base}?${numbers}` : twin.dataset.base;
}

async function ask() {
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  const asked = query();
  remember(asked);
  const slow = setTimeout(() => mine === asking && setText(state, "computing"), SLOW_MS);
  try {
    const response = await fetch(asked.size ? `${api}?${asked}` : api,
      { signal: mine.signal, cache: "no-store", headers: { Accept: "application/json" } });
    const body = await response.json();
    if (mine !== asking) return;
    if (response.ok) show(body, asked);
    else refuse(response.status, body);
  } catch (error) {
    if (error.name === "AbortError" || mine !== asking) return;
    dim(_("no answer since %s: %s", clock(serverNow()), old()));
  } finally {
    clearTimeout(slow);
  }
}

function show(answer, asked) {
  answered = { answer, asked: asked.toString(), atS: serverNow() };
  showErrors({});
  dim("");
  setText(state, _("for these numbers, computed %s", moment(answered.atS)));
  showAnswer(answer, asked);
  drawAnswer(answer);
}

function refuse(status, body) {
  if (status === 422) showErrors(body.errors);
  const whys = { 401: _("signed out"), 422: _("not for these numbers") };
  const why = whys[status] ?? body.error;
  dim(`${why}: ${old()}`);
  if (!answered) setText(document.getElementById("sentence"), refused(body));
}

function refused({ error, errors = {} }) {
  const [first] = Object.entries(errors);
  return first ? _("Nothing is computed: %s %s", first[0], [first[1]].flat().join(" "))
    : _("Nothing is computed: %s", error);
}

const old = () => (answered
  ? _("shown is the last good answer, of %s", moment(answered.atS))
  : _("nothing could be computed yet"));

function address() {
  const asked = query();
  return `${location.origin}${api}${asked.size ? `?${asked}` : ""}`;
}

const copyText = (what) => (what === "link" ? location.href : curlOf(address()));

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = copyText(button.dataset.copy);
    const shown = document.getElementById("copy-text");
    const says = document.getElementById("copied");
    try {
      await navigator.clipboard.writeText(text);
      shown.hidden = true;
      setText(says, _("Copied."));
    } catch {
      // Browsers give the clipboard to secure origins only: then to be copied by hand.
      shown.hidden = false;
      setText(shown, text);
      setText(says, _("This browser does not let the page copy:"));
    }
  });
}

for (const [id, table] of Object.entries(TABLES)) {
  addStillMenu(document.getElementById(id), { table: () => table(answered.answer), call: address });
}

startForm(() => {
  clearTimeout(waiting);
  waiting = setTimeout(ask, DEBOUNCE_MS);
});
document.addEventListener("themechange", () => answered && drawAnswer(answered.answer));
startCacheBudget();
ask();
