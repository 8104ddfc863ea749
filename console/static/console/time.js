// One time range for the page, kept in the address: a live range that ends now (?range=15m), or a
// pinned one (?from=..&to=.., epoch seconds) after pausing, zooming or choosing both ends. Each
// change can be taken back. A wall display is always live.

import { serverNow } from "./clock.js";
import { age, clock, duration, fieldValue, moment, ofField, stamp, zoneName } from "./format.js";
import { setText } from "./dom.js";
import { _ } from "./i18n.js";

const SECONDS = { "5m": 300, "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400 };
const DEFAULT = "15m";
const LONGEST_S = 31 * 86400; // as routing/series.py
const MOST_STEPS_BACK = 50;
const isWall = document.body.classList.contains("wall");

class TimeRange extends EventTarget {
  constructor() {
    super();
    const query = new URLSearchParams(location.search);
    this.name = query.get("range") in SECONDS ? query.get("range") : DEFAULT;
    const from = Number(query.get("from"));
    const to = Number(query.get("to"));
    this.pinned = !isWall && from > 0 && to > from ? [from, to] : null;
    this.before = [];
  }

  get spanS() {
    return this.pinned ? this.pinned[1] - this.pinned[0] : SECONDS[this.name];
  }

  bounds() {
    if (this.pinned) return this.pinned;
    const now = serverNow();
    return [now - SECONDS[this.name], now];
  }

  choose(name) {
    this.enter(name, null);
  }

  pin(from, to) {
    if (!isWall) this.enter(this.name, [Math.round(from), Math.round(to)]);
  }

  goLive() {
    if (this.pinned) this.enter(this.name, null);
  }

  // The range before this one; from a pinned one that an address brought, to the present.
  back() {
    const last = this.before.pop();
    if (last) this.set(...last);
    else this.goLive();
  }

  enter(name, pinned) {
    this.before.push([this.name, this.pinned]);
    if (this.before.length > MOST_STEPS_BACK) this.before.shift();
    this.set(name, pinned);
  }

  set(name, pinned) {
    this.name = name;
    this.pinned = pinned;
    history.replaceState(history.state, "", this.on(location.href));
    this.dispatchEvent(new Event("change"));
  }

  // An address with this range on it; the page of a mode has another meaning for `to`.
  on(href) {
    const url = new URL(href, location.href);
    if (url.searchParams.has("to") && !url.searchParams.has("from")) return url;
    for (const key of ["range", "from", "to"]) url.searchParams.delete(key);
    if (this.name !== DEFAULT) url.searchParams.set("range", this.name);
    if (this.pinned) {
      url.searchParams.set("from", this.pinned[0]);
      url.searchParams.set("to", this.pinned[1]);
    }
    return url;
  }
}

export const range = new TimeRange();

const select = document.getElementById("range");
const pause = document.getElementById("pause");
const word = document.getElementById("live-word");
const dialog = document.getElementById("moments");

export function startTime() {
  if (select) {
    select.addEventListener("change", () => {
      if (select.value === "custom") askMoments();
      else range.choose(select.value);
    });
    if ("reload" in select.dataset) range.addEventListener("change", () => location.reload());
  }
  pause?.addEventListener("click", togglePause);
  word?.addEventListener("click", askMoments);
  dialog?.querySelector("form").addEventListener("submit", answerMoments);
  dialog?.addEventListener("close", show);
  range.addEventListener("change", show);
  show();
  setInterval(tickAges, 1000);
}

export function togglePause() {
  if (range.pinned) range.goLive();
  else range.pin(...range.bounds());
}

function askMoments() {
  if (isWall) return;
  const [from, to] = range.bounds();
  dialog.querySelector("#moment-from").value = fieldValue(from);
  dialog.querySelector("#moment-to").value = fieldValue(to);
  dialog.querySelector("[data-zone-name]").textContent = zoneName(to);
  refuse("");
  dialog.showModal();
}

function refuse(why) {
  const errors = dialog.querySelector(".errors");
  errors.hidden = why === "";
  setText(errors, why);
}

function answerMoments(event) {
  const asked = event.submitter?.value;
  if (asked === "now") range.goLive();
  else if (asked === "back") range.back();
  else if (asked === "show") {
    const [from, to] = ["from", "to"].map((end) =>
      ofField(dialog.querySelector(`#moment-${end}`).value));
    const why = trouble(from, to);
    refuse(why);
    if (why) event.preventDefault();
    else range.pin(from, to);
  }
}

function trouble(from, to) {
  if (!(from < to)) return _("“To” must be later than “From”.");
  if (to - from > LONGEST_S) return _("At most 31 days can be shown at a time.");
  if (from > serverNow()) return _("That lies in the future: nothing is measured there yet.");
  return "";
}

function show() {
  if (word) {
    word.classList.toggle("past", Boolean(range.pinned));
    setText(word, range.pinned ? _("To %s", clock(range.pinned[1])) : _("Live"), {
      title: range.pinned
        ? _("Charts show %s to %s; figures above are now. Choose another range here.",
          stamp(range.pinned[0]), stamp(range.pinned[1]))
        : _("Charts follow the present. Choose a range from and to here."),
    });
  }
  if (select) select.value = range.pinned ? "custom" : range.name;
  if (pause) {
    pause.setAttribute("aria-pressed", String(Boolean(range.pinned)));
    pause.querySelector("use").setAttribute("href", range.pinned ? "#i-play" : "#i-pause");
    const says = range.pinned ? _("Jump to now (key n or p)") : _("Pause the charts (key p)");
    pause.title = says;
    pause.querySelector(".visually-hidden").textContent = says;
  }
  for (const link of document.querySelectorAll("a[data-keep-range]")) {
    const url = range.on(link.href);
    link.href = url.pathname + url.search + url.hash;
  }
}

function tickAges() {
  const now = serverNow();
  for (const node of document.querySelectorAll("time[data-ago]")) {
    setText(node, age(now - Number(node.dataset.ago)));
  }
  for (const node of document.querySelectorAll("time[data-since]")) {
    setText(node, duration(Math.max(0, Math.floor(now - Number(node.dataset.since)))));
  }
  for (const node of document.querySelectorAll("time[data-until]")) {
    setText(node, duration(Math.max(0, Math.floor(Number(node.dataset.until) - now))));
  }
  setText(document.getElementById("clock"), moment(now));
}
